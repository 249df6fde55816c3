//! Where peers can be dialled.
//!
//! An address in the topology wins: `advertise`, then `listen`. Without one, nodes of one machine meet in a folder: each writes its address
//! to `run/addresses/<domain>.<name>`, and it is read anew at every attempt, so that a node which comes back on another port is found.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::ids::NodeId;
use tombolo_core::plan::NodePlan;

use crate::bounded::{self, ReadError};

/// The most addresses tried for one name.
const ADDRESSES_MAX: usize = 16;

/// The longest address file that is read.
const FILE_BYTES_MAX: usize = 256;

pub struct Addresses {
    folder: PathBuf,
    planned: BTreeMap<NodeId, NodePlan>,
    next: AtomicU64,
}

impl Addresses {
    pub fn new(state: &Path, planned: impl IntoIterator<Item = NodePlan>) -> io::Result<Self> {
        let folder = folder(state);
        std::fs::create_dir_all(&folder).map_err(|error| {
            let path = folder.display();
            io::Error::new(
                error.kind(),
                format!("failed to make folder {path}: {error}"),
            )
        })?;
        Ok(Addresses {
            folder,
            planned: planned
                .into_iter()
                .map(|plan| (plan.id.clone(), plan))
                .collect(),
            next: AtomicU64::new(0),
        })
    }

    fn path(&self, node: &NodeId) -> PathBuf {
        path(&self.folder, node)
    }

    /// Writes a node's address for the others on this machine. Every interface is written as loopback, which they can reach.
    pub fn advertise(&self, node: &NodeId, mut address: SocketAddr) -> io::Result<()> {
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        let partial = self.folder.join(format!(".{}.{nth}", std::process::id()));
        let path = self.path(node);
        // Not synchronized: after a power cut every address is stale anyway.
        let written = std::fs::write(&partial, address.to_string())
            .and_then(|()| std::fs::rename(&partial, &path));
        written.map_err(|error| {
            let _ = std::fs::remove_file(&partial);
            let path = path.display();
            io::Error::new(error.kind(), format!("failed to write {path}: {error}"))
        })
    }

    /// What the topology says about a node: `host:port`.
    pub fn planned(&self, node: &NodeId) -> Option<String> {
        host_of(self.planned.get(node)?)
    }

    /// Where a node is dialled now, for people.
    pub fn known(&self, node: &NodeId) -> Option<String> {
        let written = || self.written(node).ok();
        self.planned(node)
            .or_else(|| written().map(|address| address.to_string()))
    }

    /// What the node has written.
    pub fn written(&self, node: &NodeId) -> io::Result<SocketAddr> {
        let path = self.path(node);
        let failed = |kind, why: &dyn std::fmt::Display| {
            let path = path.display();
            io::Error::new(
                kind,
                format!(
                    "{node} has no address: {path}: {why}; start it, or set its `advertise` in the topology"
                ),
            )
        };
        let bytes = bounded::read(&path, FILE_BYTES_MAX).map_err(|error| match error {
            ReadError::Io(error) => failed(error.kind(), &error),
            _ => failed(ErrorKind::InvalidData, &"the file is too large"),
        })?;
        let text = std::str::from_utf8(&bytes).unwrap_or_default();
        text.trim()
            .parse()
            .map_err(|_| failed(ErrorKind::InvalidData, &"the file does not hold an address"))
    }
}

/// What the topology has peers dial: `host:port`.
pub fn host_of(plan: &NodePlan) -> Option<String> {
    let listen = plan
        .listen
        .filter(|listen| listen.port() != 0 && !listen.ip().is_unspecified());
    let advertise = plan.advertise.clone();
    advertise.or_else(|| listen.map(|listen| listen.to_string()))
}

/// Whether a `host:port` of a topology says that it is of this machine, and of no other.
pub fn is_this_machine(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let ip = name.parse::<IpAddr>().map(|ip| ip.to_canonical());
    name.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Removes what a node wrote in an earlier life, before others dial it for nothing.
pub fn forget(state: &Path, node: &NodeId) -> io::Result<()> {
    let path = path(&folder(state), node);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let path = path.display();
            Err(io::Error::new(
                error.kind(),
                format!("failed to remove {path}: {error}"),
            ))
        }
        _ => Ok(()),
    }
}

fn folder(state: &Path) -> PathBuf {
    state.join("run").join("addresses")
}

fn path(folder: &Path, node: &NodeId) -> PathBuf {
    // No name holds a dot, so no two nodes share a file.
    folder.join(format!("{}.{}", node.domain(), node.name()))
}

/// Looks a `host:port` up, now.
pub async fn look_up(node: &NodeId, host: &str) -> io::Result<Vec<SocketAddr>> {
    let found = tokio::net::lookup_host(host).await.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("failed to look up {host:?}, the address of {node}: {error}"),
        )
    })?;
    let found: Vec<SocketAddr> = found.take(ADDRESSES_MAX).collect();
    if found.is_empty() {
        return Err(io::Error::new(
            ErrorKind::NotFound,
            format!("{host:?}, the address of {node}, stands for no address"),
        ));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(node: &str, listen: Option<&str>, advertise: Option<&str>) -> NodePlan {
        NodePlan {
            id: node.parse().unwrap(),
            listen: listen.map(|listen| listen.parse().unwrap()),
            advertise: advertise.map(str::to_owned),
            outbound_only: false,
            slice: None,
        }
    }

    #[test]
    fn the_topology_wins_in_order_and_a_free_port_or_any_interface_is_no_address() {
        let state = tempfile::tempdir().unwrap();
        let cases = [
            (
                plan("d/a", Some("10.0.0.1:7"), Some("gate.example:9")),
                Some("gate.example:9"),
            ),
            (plan("d/b", Some("10.0.0.1:7"), None), Some("10.0.0.1:7")),
            (plan("d/c", Some("10.0.0.1:0"), None), None),
            (plan("d/d", Some("0.0.0.0:7"), None), None),
            (plan("d/e", None, None), None),
        ];
        let plans = cases.iter().map(|(plan, _)| plan.clone());
        let addresses = Addresses::new(state.path(), plans).unwrap();
        for (plan, expected) in &cases {
            assert_eq!(
                addresses.planned(&plan.id).as_deref(),
                *expected,
                "{plan:?}"
            );
        }
    }

    #[test]
    fn a_restart_on_another_port_is_seen_by_another_process() {
        let state = tempfile::tempdir().unwrap();
        let node = "hq/a".parse().unwrap();
        let ours = Addresses::new(state.path(), []).unwrap();
        let theirs = Addresses::new(state.path(), []).unwrap();
        let missing = theirs.written(&node).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(
            missing.to_string().contains("hq/a has no address"),
            "{missing}"
        );
        for address in ["127.0.0.1:4001", "[::1]:4002"] {
            ours.advertise(&node, address.parse().unwrap()).unwrap();
            assert_eq!(theirs.written(&node).unwrap(), address.parse().unwrap());
        }
        ours.advertise(&node, "0.0.0.0:4003".parse().unwrap())
            .unwrap();
        assert_eq!(
            theirs.written(&node).unwrap(),
            "127.0.0.1:4003".parse().unwrap()
        );
    }

    #[test]
    fn what_is_forgotten_is_not_dialled_and_may_be_missing() {
        let state = tempfile::tempdir().unwrap();
        let node = "hq/a".parse().unwrap();
        forget(state.path(), &node).unwrap();
        let addresses = Addresses::new(state.path(), []).unwrap();
        addresses
            .advertise(&node, "127.0.0.1:4001".parse().unwrap())
            .unwrap();
        forget(state.path(), &node).unwrap();
        let missing = addresses.written(&node).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_damaged_address_file_is_an_error_that_names_it() {
        let state = tempfile::tempdir().unwrap();
        let addresses = Addresses::new(state.path(), []).unwrap();
        let file = state.path().join("run/addresses/hq.a");
        for (contents, said) in [
            ("nonsense", "does not hold"),
            (&"x".repeat(300), "too large"),
        ] {
            std::fs::write(&file, contents).unwrap();
            let error = addresses.written(&"hq/a".parse().unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            let text = error.to_string();
            assert!(text.contains(said) && text.contains("hq.a"), "{text}");
        }
    }
}
