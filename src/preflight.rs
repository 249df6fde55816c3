//! What the links of a topology are like, before anything trains: `tombolo preflight`.
//!
//! Every node that takes part meets its peers as it would in a run, with its own certificate, over a protocol of its own; then each link between sites is
//! measured, one after another. Each part is a module:
//!
//! - `attend`: a node's part, from the first dial to the last link.
//! - [`talk`]: what the two ends of a link say to each other, and what they measure.
//! - `measure`: round trips, losses, flows, clocks.
//! - [`places`]: on which NUMA nodes device, interrupts and gateway sit.
//! - [`judge`]: what all of it means. Pure.

mod attend;
pub mod judge;
mod measure;
pub mod places;
pub mod talk;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tombolo_actors::env::{Class, Env};
use tombolo_actors::identity::Identity;
use tombolo_actors::quic::{self, preflight::Preflight};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;

use self::attend::{Post, Told, attend};
use self::judge::{Absent, Finding, Own};
use self::talk::{Hello, Link};
use crate::federation::{Federation, FederationError, check_ports};
use crate::identity::NodeIdentity;
use crate::topology::config_hash;
use crate::world::{World, WorldOptions, address, forget_address, udp_buffers, unix_now};
use crate::{control, doctor};

/// How long one link may take to be measured: two seconds of probes, two flows, and what a long path adds.
const MEASURE_LIMIT: Duration = Duration::from_secs(45);

/// Links of a federation that are reckoned with when others are waited for: of more, the last wait in vain.
const LINKS_RECKONED: u32 = 64;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Question {
    /// The nodes of this process; empty for all of them, on this machine, their paths emulated as the topology says.
    pub nodes: Vec<NodeId>,
    /// How long peers are waited for.
    pub wait: Duration,
    /// Bytes of the model; none for that of the built-in trainer.
    pub model_bytes: Option<u64>,
}

/// How it goes.
#[derive(Debug, Clone)]
pub enum Progress {
    /// A node listens.
    Listens {
        /// Which.
        node: NodeId,
        /// Where.
        address: SocketAddr,
        /// How many peers it is to meet.
        peers: usize,
    },
    /// A peer was met.
    Reached {
        /// By whom.
        node: NodeId,
        /// Which.
        peer: NodeId,
        /// Where.
        address: SocketAddr,
        /// How many more are waited for.
        left: usize,
    },
    /// Peers are still waited for.
    Waits {
        /// By whom.
        node: NodeId,
        /// Which, and what the last attempt said.
        missing: Vec<(NodeId, String)>,
        /// How long they have.
        left: Duration,
    },
    /// A link is to be measured next, once its other end is ready.
    NextLink {
        /// At which node.
        node: NodeId,
        /// With whom.
        peer: NodeId,
    },
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// What it means, in the order in which one would look.
    pub findings: Vec<Finding>,
    /// The links that were measured.
    pub links: Vec<Link>,
}

/// Meets, measures and judges; tells how it goes meanwhile.
///
/// # Errors
/// See [`FederationError`]: a node cannot listen, has no certificate, or is at work already.
pub async fn survey(
    federation: &Federation,
    question: &Question,
    tell: impl FnMut(Progress),
) -> Result<Survey, FederationError> {
    let plan = Arc::new(federation.plan().clone());
    let is_emulated = question.nodes.is_empty();
    let nodes: BTreeSet<NodeId> = match is_emulated {
        true => plan.nodes().map(|node| node.id.clone()).collect(),
        false => question.nodes.iter().cloned().collect(),
    };
    if let Some(unknown) = nodes.iter().find(|node| plan.node(node).is_none()) {
        return Err(FederationError::UnknownNode(unknown.clone()));
    }
    refuse_at_work(&plan, &nodes)?;
    if is_emulated {
        federation.make_pki()?;
    }
    let elements = federation.elements().map(|elements| elements as u64);
    let model = question
        .model_bytes
        .or(elements.map(|elements| elements * 4));
    let stage = Stage::set(&plan, &nodes, is_emulated)?;
    let told = stage.play(question.wait, tell).await;
    stage.clear();
    let limits = doctor::limits(&doctor::Question {
        plan: Some(plan.as_ref().clone()),
        nodes: nodes.iter().cloned().collect(),
        state: plan.checkpoint.folder.clone(),
        elements: model.unwrap_or(0) / 4,
    });
    let mut findings: Vec<Finding> = doctor::judge_limits(&limits)
        .into_iter()
        .map(|found| judge::limit("this machine", found))
        .collect();
    findings.extend(
        nodes
            .iter()
            .filter_map(|node| judge::advertised(&own(&plan, node))),
    );
    findings.extend(told.judge(&plan, &nodes, is_emulated, model));
    Ok(Survey {
        findings,
        links: told.links().cloned().collect(),
    })
}

/// A node that takes part in a run keeps its port and its certificate's connections.
fn refuse_at_work(plan: &Plan, nodes: &BTreeSet<NodeId>) -> Result<(), FederationError> {
    let processes = control::processes(&plan.checkpoint.folder);
    for status in processes.into_iter().flatten() {
        let here = status.nodes.iter().map(|node| &node.node);
        if let Some(node) = here.into_iter().find(|node| nodes.contains(node)) {
            return Err(FederationError::Machine(format!(
                "{node} is at work already, in process {}: measure before the run, or stop it first (`tombolo stop FILE`)",
                status.process
            )));
        }
    }
    Ok(())
}

/// What a node tells others to dial, and who could not.
fn own(plan: &Plan, node: &NodeId) -> Own {
    let host = plan.node(node).and_then(address::host_of);
    let elsewhere = plan.peers(node).into_iter().find(|peer| {
        let host = plan.node(peer).and_then(address::host_of);
        host.is_some_and(|host| !address::is_this_machine(&host))
    });
    Own {
        node: node.clone(),
        host: host.map(|host| {
            let is_loopback = address::is_this_machine(&host);
            (host, is_loopback)
        }),
        elsewhere,
    }
}

/// The nodes of this process, ready to begin.
struct Stage {
    plan: Arc<Plan>,
    world: World,
    nodes: Vec<Ready>,
}

struct Ready {
    node: NodeId,
    env: Arc<dyn Env>,
    identity: Arc<dyn Identity>,
    endpoint: quic::Bound,
    address: SocketAddr,
}

/// What all nodes have told.
#[derive(Default)]
struct Heard {
    links: Vec<Link>,
    /// The address of a peer, as a node here sees it.
    ways: Vec<(NodeId, NodeId, SocketAddr)>,
    absent: Vec<Absent>,
    neighbours: BTreeSet<(NodeId, NodeId)>,
}

/// The peers of a node that one of the two can dial: what only a relay joins is not measured.
fn measured(plan: &Plan, node: &NodeId) -> Vec<NodeId> {
    let mut peers = plan.peers(node);
    peers.retain(|peer| !plan.needs_relay(node, peer));
    peers
}

impl Stage {
    fn set(
        plan: &Arc<Plan>,
        nodes: &BTreeSet<NodeId>,
        is_emulated: bool,
    ) -> Result<Stage, FederationError> {
        let machine = |error: std::io::Error| FederationError::Machine(error.to_string());
        let mut identities = BTreeMap::new();
        for node in nodes {
            let clock = Arc::new(unix_now);
            let identity = NodeIdentity::load_for_preflight(plan, node, clock)?;
            identities.insert(node.clone(), identity);
        }
        check_ports(plan, nodes)?;
        let mut options = WorldOptions::from(plan.as_ref());
        if is_emulated {
            options.links.clone_from(&plan.links);
        }
        let world = World::new(options).map_err(machine)?;
        let mut ready = Vec::new();
        for (node, identity) in identities {
            // It takes the node's folder: a run that begins meanwhile is refused, and one that is at work refuses this.
            let env = world.env(&node).map_err(machine)?;
            let planned = plan.node(&node).and_then(|node| node.listen);
            let listen = planned.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
            let endpoint = quic::bind(&env, plan, &node, identity.as_ref(), listen);
            let endpoint = endpoint.map_err(|error| FederationError::Listen {
                node: node.clone(),
                address: listen,
                reason: error.to_string(),
            })?;
            let address = endpoint.endpoint.local_addr().map_err(machine)?;
            env.advertise(&node, address).map_err(machine)?;
            ready.push(Ready {
                node,
                env,
                identity,
                endpoint,
                address,
            });
        }
        Ok(Stage {
            plan: plan.clone(),
            world,
            nodes: ready,
        })
    }

    /// Lets all nodes do their part, and hears what they tell.
    async fn play(&self, wait: Duration, mut tell: impl FnMut(Progress)) -> Heard {
        let (to, mut from) = mpsc::unbounded_channel();
        let turn = Arc::new(Semaphore::new(1));
        let (_, receive, send) = udp_buffers();
        let hello = Hello {
            topology: Hash(config_hash(&self.plan)),
            buffers: (receive as u64, send as u64),
        };
        for ready in &self.nodes {
            tell(Progress::Listens {
                node: ready.node.clone(),
                address: ready.address,
                peers: measured(&self.plan, &ready.node).len(),
            });
            let post = Post {
                env: ready.env.clone(),
                plan: self.plan.clone(),
                node: ready.node.clone(),
                hello: hello.clone(),
                wait,
                patience: wait + MEASURE_LIMIT * self.links(),
                turn: turn.clone(),
                tell: to.clone(),
            };
            let (identity, endpoint) = (ready.identity.clone(), ready.endpoint.clone());
            let task = move || {
                let (env, plan) = (post.env.clone(), post.plan.clone());
                let preflight = Preflight::new(env, plan, identity, endpoint);
                Box::pin(attend(post, preflight)) as _
            };
            ready.env.spawn(Class::Gateway, Box::new(task));
        }
        drop(to);
        let mut heard = Heard::default();
        let mut working = self.nodes.len();
        while working > 0
            && let Some(told) = from.recv().await
        {
            match told {
                Told::Progress(progress) => tell(progress),
                Told::Neighbour(node, peer) => drop(heard.neighbours.insert((node, peer))),
                Told::Measured(link, node, address) => {
                    let peer = match link.from == node {
                        true => link.to.clone(),
                        false => link.from.clone(),
                    };
                    heard.ways.push((node, peer, address));
                    heard.links.push(*link);
                }
                Told::Absent(absent) => heard.absent.push(*absent),
                Told::Done => working -= 1,
            }
        }
        heard
    }

    /// How many links between sites there are, within bounds.
    fn links(&self) -> u32 {
        let ends = self.plan.nodes().map(|node| {
            let peers = measured(&self.plan, &node.id);
            peers
                .iter()
                .filter(|peer| Plan::is_wan(&node.id, peer))
                .count()
        });
        let links = ends.sum::<usize>().div_ceil(2);
        u32::try_from(links).map_or(LINKS_RECKONED, |links| links.clamp(1, LINKS_RECKONED))
    }

    /// Leaves nothing that others would dial.
    fn clear(self) {
        for ready in &self.nodes {
            ready
                .endpoint
                .endpoint
                .close(quinn::VarInt::from_u32(0), b"measured");
            if let Err(error) = forget_address(&self.plan.checkpoint.folder, &ready.node) {
                tracing::warn!(%error, "an address of the preflight is left behind");
            }
        }
        drop(self.world);
    }
}

impl Heard {
    /// What it means; each link once, though both of its ends may be here.
    fn judge(
        &self,
        plan: &Plan,
        nodes: &BTreeSet<NodeId>,
        is_emulated: bool,
        model: Option<u64>,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        for link in self.links() {
            findings.extend(judge::link(plan, is_emulated, model, link));
        }
        findings.extend(self.places());
        let mut missing: BTreeMap<DomainId, usize> = BTreeMap::new();
        for absent in self.absent(nodes) {
            if !Plan::is_wan(&absent.node, &absent.peer) {
                *missing.entry(absent.node.domain()).or_default() += 1;
            }
            findings.push(judge::absent(absent));
        }
        for domain in &plan.domains {
            let reached = self.reached(&domain.id, nodes);
            let missing = missing.get(&domain.id).copied().unwrap_or(0);
            if reached + missing > 0 {
                findings.push(judge::control(&domain.id, reached, missing));
            }
        }
        findings
    }

    /// Where devices, interrupts and nodes sit: once a node and device.
    fn places(&self) -> Vec<Finding> {
        let mut seen = BTreeSet::new();
        let each = self.ways.iter().filter_map(|(node, peer, address)| {
            let places = places::find(Path::new("/"), address.ip());
            let is_news = seen.insert((node, places.device.clone()));
            is_news.then(|| judge::places(node, peer, &places))?
        });
        each.collect()
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        let mut seen = BTreeSet::new();
        let each = self.links.iter();
        each.filter(move |link| seen.insert((link.from.clone(), link.to.clone())))
    }

    /// Of a link whose ends are both here, the one that dials has more to say; unless only the other one failed.
    fn absent<'a>(&'a self, nodes: &'a BTreeSet<NodeId>) -> impl Iterator<Item = &'a Absent> {
        let told_by_other = |absent: &Absent| {
            let other = |one: &&Absent| one.node == absent.peer && one.peer == absent.node;
            nodes.contains(&absent.peer) && self.absent.iter().any(|one| other(&one))
        };
        self.absent
            .iter()
            .filter(move |absent| absent.leads || !told_by_other(absent))
    }

    /// Control links of a domain that were reached, each once.
    fn reached(&self, domain: &DomainId, nodes: &BTreeSet<NodeId>) -> usize {
        let of = |(node, _): &&(NodeId, NodeId)| node.domain() == *domain;
        let once = |(node, peer): &&(NodeId, NodeId)| {
            let twin = (peer.clone(), node.clone());
            !(nodes.contains(peer) && self.neighbours.contains(&twin) && peer < node)
        };
        self.neighbours.iter().filter(of).filter(once).count()
    }
}
