//! What carries tensors inside a domain, on this machine: the file's word, or with `auto` what can be had here, and why.
//!
//! Shared memory is the fastest between processes of one machine, so `auto` takes RDMA devices only where a domain has more than one. All
//! machines of a domain must come to the same choice; a node that meets an endpoint of another fabric says so.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tombolo_actors::step::Meeting;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::{DomainPlan, Fabric};
use tombolo_fabric::ibverbs::{Found, Ibverbs};
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{Device, FabricError, NoRdma, VerbsProvider};

/// What a domain uses here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Whose.
    pub domain: DomainId,
    /// Never [`Fabric::Auto`].
    pub fabric: Fabric,
    /// Why, and with which device.
    pub why: String,
    /// Something is probably not as meant.
    pub is_doubtful: bool,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Choice {
            domain,
            fabric,
            why,
            ..
        } = self;
        write!(f, "the fabric of {domain} is {}: {why}", fabric.name())
    }
}

/// `fabric = "ibverbs"` where that cannot be.
#[derive(Debug, thiserror::Error)]
#[error(
    "domain {domain} has fabric = \"ibverbs\", which this machine cannot give: {reason}; or write fabric = \"auto\""
)]
pub struct NoFabric {
    /// Whose.
    pub domain: DomainId,
    /// What is missing.
    pub reason: String,
}

/// What decides, and then opens.
pub struct Fabrics {
    /// Of the sockets of shared memory.
    folder: PathBuf,
    shm: OnceLock<Shm>,
    ibverbs: Ibverbs,
    /// Looked at once, and only if a domain asks.
    found: OnceLock<Result<Found, NoRdma>>,
}

impl Fabrics {
    /// Of this machine. The sockets of shared memory lie in the state folder `state`, which is not touched before a device is opened.
    pub fn new(state: &Path) -> Fabrics {
        Fabrics {
            folder: state.join("run").join("fabric"),
            shm: OnceLock::new(),
            ibverbs: Ibverbs::new(),
            found: OnceLock::new(),
        }
    }

    /// Where the nodes of a domain meet to train together; none if they are on several machines.
    pub fn meeting(&self, domain: &DomainPlan) -> Option<Meeting> {
        (domain.hosts() == 1 || domain.fabric == Fabric::Shm).then(|| Meeting {
            folder: self.folder.clone(),
            shape: domain.step_shape,
        })
    }

    /// What a domain uses here, whose nodes in this process register at least `bytes`.
    ///
    /// # Errors
    /// It must have RDMA devices, and there are none, or they may not lock so much.
    pub fn choose(&self, domain: &DomainPlan, bytes: u64) -> Result<Choice, NoFabric> {
        choose(domain, || {
            let found = self.found.get_or_init(|| self.ibverbs.probe());
            let found = found.as_ref().map_err(NoRdma::to_string)?;
            let room = self.ibverbs.check_room(bytes);
            room.map_err(|error| error.to_string())?;
            Ok(found.clone())
        })
    }

    /// Opens a device for a node of a domain that has chosen.
    ///
    /// # Errors
    /// In the provider's words.
    pub fn open(&self, choice: &Choice, node: &NodeId) -> Result<Arc<dyn Device>, FabricError> {
        match choice.fabric {
            Fabric::Ibverbs => self.ibverbs.open(node.as_str()),
            Fabric::Auto | Fabric::Shm => {
                let shm = self.shm.get_or_init(|| Shm::new(self.folder.clone()));
                shm.open(node.as_str())
            }
        }
    }
}

/// Whether it takes a look at the machine to say what a domain uses.
pub fn asks_the_machine(domain: &DomainPlan) -> bool {
    match domain.fabric {
        Fabric::Shm => false,
        Fabric::Ibverbs => true,
        Fabric::Auto => domain.hosts() > 1,
    }
}

/// What a domain uses on a machine where `probe` finds RDMA devices, or says why not.
///
/// # Errors
/// It must have them, and there are none.
fn choose(
    domain: &DomainPlan,
    probe: impl FnOnce() -> Result<Found, String>,
) -> Result<Choice, NoFabric> {
    let choice = |fabric, why, is_doubtful| Choice {
        domain: domain.id.clone(),
        fabric,
        why,
        is_doubtful,
    };
    let hosts = domain.hosts();
    match domain.fabric {
        Fabric::Shm => Ok(choice(Fabric::Shm, "the file says so".to_owned(), false)),
        Fabric::Ibverbs => match probe() {
            Ok(found) => Ok(choice(Fabric::Ibverbs, found.to_string(), false)),
            Err(reason) => Err(NoFabric {
                domain: domain.id.clone(),
                reason,
            }),
        },
        Fabric::Auto if hosts == 1 => Ok(choice(
            Fabric::Shm,
            "all nodes are on one machine".to_owned(),
            false,
        )),
        Fabric::Auto => Ok(match probe() {
            Ok(found) => choice(
                Fabric::Ibverbs,
                format!("its nodes are on {hosts} machines; {found}"),
                false,
            ),
            Err(reason) => choice(
                Fabric::Shm,
                format!(
                    "its nodes seem to be on {hosts} machines, which shared memory does not join, but {reason}"
                ),
                true,
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology;

    fn domain(fabric: &str, other_host: &str) -> DomainPlan {
        let text = format!(
            r#"
            [federation]
            name = "two"
            [[domain]]
            name = "hq"
            fabric = "{fabric}"
            [[domain.node]]
            name = "a"
            listen = "10.0.0.1:7001"
            [[domain.node]]
            name = "b"
            listen = "{other_host}:7002"
            "#
        );
        topology::parse("two.toml", &text, Path::new("."))
            .unwrap()
            .domains[0]
            .clone()
    }

    fn without(domain: &DomainPlan) -> Result<Choice, NoFabric> {
        choose(domain, || Err("there is no RDMA device".to_owned()))
    }

    #[test]
    fn auto_takes_shared_memory_on_one_machine_and_does_not_even_look_for_a_device() {
        let choice = choose(&domain("auto", "10.0.0.1"), || panic!("not asked")).unwrap();
        assert_eq!(choice.fabric, Fabric::Shm);
        assert_eq!(
            choice.to_string(),
            "the fabric of hq is shm: all nodes are on one machine"
        );
    }

    #[test]
    fn auto_on_several_machines_without_a_device_is_shared_memory_with_a_doubt() {
        let choice = without(&domain("auto", "10.0.0.2")).unwrap();
        assert_eq!((choice.fabric, choice.is_doubtful), (Fabric::Shm, true));
        assert!(choice.why.contains("2 machines"), "{choice}");
        assert!(choice.why.contains("there is no RDMA device"), "{choice}");
    }

    #[test]
    fn ibverbs_without_a_device_is_refused_with_the_reason_and_a_way_out() {
        let said = without(&domain("ibverbs", "10.0.0.1")).unwrap_err();
        let said = said.to_string();
        for part in ["domain hq", "there is no RDMA device", "fabric = \"auto\""] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(
            without(&domain("shm", "10.0.0.2")).unwrap().fabric,
            Fabric::Shm
        );
    }

    // Whatever this machine has: a device is taken where one is found, and the reason is told where not.
    #[test]
    fn what_is_chosen_here_is_what_is_found_here() {
        let folder = tempfile::tempdir().unwrap();
        let fabrics = Fabrics::new(folder.path());
        let found = Ibverbs::new().probe();
        let choice = fabrics.choose(&domain("auto", "10.0.0.2"), 0).unwrap();
        match found {
            Ok(found) => {
                assert_eq!(choice.fabric, Fabric::Ibverbs);
                assert!(choice.why.contains(&found.device), "{choice}");
            }
            Err(reason) => {
                assert_eq!(choice.fabric, Fabric::Shm);
                assert!(choice.why.contains(&reason.to_string()), "{choice}");
            }
        }
    }
}
