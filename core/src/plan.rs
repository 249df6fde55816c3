//! A checked topology: what `tombolo.toml` means once every mistake is out. The machines know no other configuration.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::aggregate::Needs;
use crate::collective::Shape;
use crate::compress::{Coding, Lossless};
use crate::congestion::Law;
use crate::ids::{DomainId, NodeId, Round, SliceId};
use crate::policy::PolicyPlan;
use crate::shaping::Cap;
use crate::staleness::AsyncPlan;

mod fabric;
mod model;
mod route;
mod work;

pub use fabric::Fabric;
pub use model::{Init, InnerKind, InnerPlan, ModelPlan, Order, Partition, Precision, TrainerKind};
pub use route::{Periods, RELAYS_MAX, RoutePlan, Weights};
pub use work::SyncEvery;

pub use crate::ladder::Cooldown;

/// A whole federation.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The federation's name.
    pub name: String,
    /// How many rounds to run.
    pub rounds: u64,
    /// Local work per round.
    pub sync_every: SyncEvery,
    /// Whether measured speed decides how much of it each node does.
    pub balance_steps: bool,
    /// The node that opens and closes rounds: the first gateway of its domain.
    pub coordinator: NodeId,
    /// Gateways that a user may make coordinator in its place.
    pub standby: Vec<NodeId>,
    /// Seeds batch order, initial weights and partitions.
    pub seed: u64,
    /// How rounds open and close.
    pub round: RoundPlan,
    /// The built-in model.
    pub model: ModelPlan,
    /// How updates become one.
    pub aggregator: AggregatorPlan,
    /// What is done with the aggregate.
    pub outer: OuterPlan,
    /// The domains in file order.
    pub domains: Vec<DomainPlan>,
    /// Explicit settings of links between domains.
    pub links: Vec<LinkPlan>,
    /// Ways that lead through a third domain.
    pub route: RoutePlan,
    /// Liveness.
    pub heartbeat: HeartbeatPlan,
    /// Keys and certificates.
    pub security: SecurityPlan,
    /// State on disk.
    pub checkpoint: CheckpointPlan,
    /// Who may do what at which site.
    pub policy: PolicyPlan,
}

/// `[round]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundPlan {
    /// What must have arrived to close.
    pub quorum: Quorum,
    /// When a round stops accepting.
    pub deadline: Deadline,
    /// Extra wait after the quorum.
    pub grace: Duration,
    /// Failed rounds in a row that end the run.
    pub failed_limit: u32,
    /// How long closing may take.
    pub close_limit: Duration,
    /// How long a node goes on with nobody in reach who leads it: as long as a coordinator without a quorum would.
    pub patience: Duration,
    /// How an acknowledged contribution survives a restart of the coordinator.
    pub durability: Durability,
    /// Who explicitly takes no part in which round.
    pub absent: BTreeMap<Round, Vec<NodeId>>,
    /// Rounds do not wait for each other's nodes: none in the synchronous mode.
    pub asynchronous: Option<AsyncPlan>,
    /// What packs models on their way down, on links that do not say it themselves.
    pub codec_down: Lossless,
}

/// What must have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quorum {
    /// The cohort less `absent`.
    All,
    /// So many nodes from so many domains.
    AtLeast {
        /// Nodes inside acknowledged contributions.
        nodes: usize,
        /// Domains with an acknowledged contribution.
        domains: usize,
    },
}

/// How an acknowledged contribution survives a restart of the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// It is noted; its sender is asked for the bytes again.
    Resend,
    /// Its bytes are written down, too.
    Journal,
}

/// When a round stops accepting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// From the arrivals of the last rounds.
    Adaptive,
    /// Always the same.
    Fixed(Duration),
}

/// `[aggregator]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AggregatorPlan {
    /// A name of [`BUILT_IN`](crate::aggregate::BUILT_IN), or a registered one.
    pub kind: String,
    /// Base weights.
    pub weights: BaseWeights,
    /// Norm bound.
    pub clip: Clip,
    /// The loss above which `dynamic-weighted` takes the penalty.
    pub loss_limit: f64,
    /// The gradient norm above which `dynamic-weighted` takes the penalty.
    pub norm_limit: f64,
    /// The factor on such a weight.
    pub penalty: f64,
    /// Whether the limits are multiples of the round's median instead of absolute values.
    pub relative: bool,
    /// How many updates of a round may be bad, for `trimmed-mean`, `krum` and `multi-krum`.
    pub faulty: usize,
    /// How often `centred-clipping` moves its centre.
    pub iterations: u32,
    /// Whether who drifts over rounds loses weight.
    pub feedback: Option<FeedbackPlan>,
    /// What the rule must be given; follows from the rule.
    pub needs: Needs,
}

/// What a topology means that says nothing of it.
impl Default for AggregatorPlan {
    fn default() -> Self {
        AggregatorPlan {
            kind: "dynamic-weighted".into(),
            weights: BaseWeights::Samples,
            clip: Clip::Median,
            loss_limit: 2.0,
            norm_limit: 5.0,
            penalty: 0.3,
            relative: false,
            faulty: 1,
            iterations: 3,
            feedback: None,
            needs: Needs::Sum,
        }
    }
}

/// `[aggregator] feedback`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedbackPlan {
    /// How much of what was known of a node before a round is kept, 0 to below 1.
    pub memory: f64,
    /// The multiple of the round's median above which a gradient norm or a loss drifts.
    pub limit: f64,
    /// What the weight of a node that drifts in every round is multiplied by, above 0.
    pub floor: f64,
}

/// What an update weighs before any rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BaseWeights {
    /// Its rows.
    Samples,
    /// One.
    Equal,
}

/// The bound on an update's norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// None.
    None,
    /// The lower median of the round's norms.
    Median,
    /// A fixed norm.
    Norm(f64),
}

/// `[outer]`: the optimizer on the coordinator.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OuterPlan {
    /// Which rule.
    pub optimizer: OuterKind,
    /// Its learning rate.
    pub learning_rate: f64,
    /// Its momentum.
    pub momentum: f64,
    /// Of the adaptive ones: how slowly the mean of the steps follows.
    pub beta1: f64,
    /// Of `adam` and `yogi`: how slowly the mean of the squares follows.
    pub beta2: f64,
    /// Of the adaptive ones: what is added to the root that divides the step.
    pub epsilon: f64,
}

/// What a topology means that says nothing of it.
impl Default for OuterPlan {
    fn default() -> Self {
        OuterPlan {
            optimizer: OuterKind::Sgd,
            learning_rate: 1.0,
            momentum: 0.9,
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 0.001,
        }
    }
}

/// An outer optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OuterKind {
    /// step = lr g.
    Sgd,
    /// v = m v + g; step = lr v.
    Momentum,
    /// v = m v + g; step = lr (g + m v).
    Nesterov,
    /// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; step = lr m / (sqrt v + e).
    Adam,
    /// As Adam, but v = v - (1 - b2) g^2 sign(v - g^2).
    Yogi,
    /// As Adam, but v = v + g^2.
    Adagrad,
}

/// `[[domain]]`.
#[derive(Debug, Clone, PartialEq)]
pub struct DomainPlan {
    /// Its name.
    pub id: DomainId,
    /// Its fabric.
    pub fabric: Fabric,
    /// The shape of reduces while its nodes train together.
    pub step_shape: Shape,
    /// Its nodes; the position is the rank.
    pub nodes: Vec<NodePlan>,
    /// Gateways in order of succession.
    pub gateways: Vec<NodeId>,
    /// The CA certificate, resolved against the file's folder.
    pub root: PathBuf,
    /// The pins of CA certificates (SHA-256): of those in the file, only these count. None: all of them do.
    pub root_sha256: Vec<[u8; 32]>,
}

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodePlan {
    /// Its id.
    pub id: NodeId,
    /// Where it listens; default: a free port on loopback.
    pub listen: Option<SocketAddr>,
    /// What it tells peers to dial, `host:port`; default: where it listens.
    pub advertise: Option<String>,
    /// Nodes of other domains cannot dial it.
    pub outbound_only: bool,
    /// The slice that it belongs to.
    pub slice: Option<SliceId>,
}

/// `[[link]]` between the gateways of two domains.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkPlan {
    /// The two domains.
    pub between: (DomainId, DomainId),
    /// What `run` and `sim` impose on it.
    pub emulate: Emulate,
    /// How contributions travel towards the coordinator.
    pub codec: Coding,
    /// What packs models that cross it, if it says so itself.
    pub lossless_down: Option<Lossless>,
    /// How much may be on the way, each way.
    pub congestion: Law,
    /// What may pass from the first of `between` to the second.
    pub cap: Option<Cap>,
    /// What may pass the other way.
    pub cap_back: Option<Cap>,
}

/// An emulated path, each way.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Emulate {
    /// One-way delay.
    pub delay: Duration,
    /// Uniform extra delay, at most this.
    pub jitter: Duration,
    /// Share of datagrams lost, 0 to 1.
    pub loss: f64,
    /// Bits per second.
    pub rate: Option<u64>,
}

/// `[heartbeat]`.
#[derive(Debug, Clone, PartialEq)]
pub struct HeartbeatPlan {
    /// The period.
    pub every: Duration,
    /// The suspicion at which a peer is suspected.
    pub phi: f64,
    /// Waits of the retries.
    pub retry: Vec<Duration>,
    /// How long a lost peer may take to come back before it is overdue.
    pub restore_limit: Duration,
    /// How long an evicted node stays out.
    pub cooldown: Cooldown,
}

impl HeartbeatPlan {
    /// Silence that makes a peer suspect, on a quiet link.
    pub fn limit(&self) -> Duration {
        self.every * crate::heartbeat::PERIODS_SILENT
    }
}

/// `[security]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SecurityPlan {
    /// Refuse peers without X25519MLKEM768.
    pub post_quantum_required: bool,
}

/// `[checkpoint]`.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckpointPlan {
    /// The state folder, resolved against the file's folder.
    pub folder: PathBuf,
    /// The URL of the object store that holds the coordinator's records; none if they lie in the state folder.
    pub store: Option<String>,
    /// Which committed states are kept: every so many rounds (the newest two always).
    pub every: u64,
    /// How long a node trains before it writes down where it is.
    pub snapshot: Duration,
    /// Of how many rounds each domain's gateway keeps what it contributed.
    pub retain_contributions: u64,
}

impl Plan {
    /// The domain of that name.
    pub fn domain(&self, id: &DomainId) -> Option<&DomainPlan> {
        self.domains.iter().find(|domain| domain.id == *id)
    }

    /// One node's entry.
    pub fn node(&self, id: &NodeId) -> Option<&NodePlan> {
        self.nodes().find(|node| node.id == *id)
    }

    /// The slice of a node, if it is in one.
    pub fn slice(&self, id: &NodeId) -> Option<&SliceId> {
        let nodes = &self.domain(&id.domain())?.nodes;
        let node = nodes.iter().find(|node| node.id == *id)?;
        node.slice.as_ref()
    }

    /// All nodes: domains in file order, nodes by rank.
    pub fn nodes(&self) -> impl Iterator<Item = &NodePlan> {
        self.domains.iter().flat_map(|domain| &domain.nodes)
    }

    /// The nodes asked in a round: all of them less those that are explicitly absent.
    pub fn cohort(&self, round: Round) -> Vec<NodeId> {
        let absent = self.round.absent.get(&round).map_or(&[][..], Vec::as_slice);
        self.nodes()
            .map(|node| node.id.clone())
            .filter(|id| !absent.contains(id))
            .collect()
    }

    /// Whether anybody of a domain is asked in any round. A domain that only looks on, such as a coordinator's own, needs no model.
    pub fn trains(&self, domain: &DomainId) -> bool {
        let rounds = 1..=self.rounds;
        let nodes = self.domain(domain).map_or(&[][..], |domain| &domain.nodes);
        nodes.iter().any(|node| {
            let absent = self.round.absent.range(rounds.clone());
            let absent = absent.filter(|(_, nodes)| nodes.contains(&node.id));
            (absent.count() as u64) < self.rounds
        })
    }

    /// How a domain's sums travel to the coordinator: within its own domain as they are. Updates that the rule must see one by one do, too.
    pub fn codec(&self, domain: &DomainId) -> Coding {
        match self.link(domain, &self.coordinator.domain()) {
            Some(link) if self.aggregator.needs == Needs::Sum => link.codec,
            _ => Coding::PLAIN,
        }
    }

    /// What packs models between two domains, if anything: a link's own word before the federation's.
    pub fn lossless_down(&self, one: &DomainId, other: &DomainId) -> Lossless {
        let link = self.link(one, other).and_then(|link| link.lossless_down);
        match one == other {
            true => Lossless::None,
            false => link.unwrap_or(self.round.codec_down),
        }
    }

    /// What the file says between two domains, if anything.
    pub fn link(&self, one: &DomainId, other: &DomainId) -> Option<&LinkPlan> {
        self.links.iter().find(|link| {
            let (a, b) = &link.between;
            (a, b) == (one, other) || (b, a) == (one, other)
        })
    }

    /// What may be sent from one domain to another.
    pub fn cap(&self, from: &DomainId, to: &DomainId) -> Option<&Cap> {
        let link = self.link(from, to)?;
        match link.between.0 == *from {
            true => link.cap.as_ref(),
            false => link.cap_back.as_ref(),
        }
    }

    /// The nodes that `node` keeps a link to: its domain, and across the WAN whoever may coordinate with every gateway and its successors.
    pub fn peers(&self, node: &NodeId) -> Vec<NodeId> {
        let mut peers: Vec<NodeId> = Vec::new();
        for domain in &self.domains {
            if domain.id == node.domain() {
                peers.extend(domain.nodes.iter().map(|peer| peer.id.clone()));
            } else if self.may_coordinate(node) {
                peers.extend(domain.gateways.iter().cloned());
            } else if self.may_be_gateway(node) {
                let may = domain.gateways.iter();
                peers.extend(may.filter(|peer| self.may_coordinate(peer)).cloned());
            }
        }
        peers.retain(|peer| peer != node);
        peers
    }

    /// Whether `node` dials `peer` in another domain (rather than waiting to be dialled): who can only dial out does, and who cannot coordinate
    /// dials who can.
    pub fn dials_across(&self, node: &NodeId, peer: &NodeId) -> bool {
        let rank = |node: &NodeId| {
            let is_open = !self.is_outbound_only(node);
            (
                is_open,
                *node == self.coordinator,
                self.may_coordinate(node),
            )
        };
        match rank(node).cmp(&rank(peer)) {
            Ordering::Less => true,
            Ordering::Greater => false,
            // Two standbys.
            Ordering::Equal => node > peer,
        }
    }

    /// Whether the link between two nodes crosses the WAN.
    pub fn is_wan(a: &NodeId, b: &NodeId) -> bool {
        a.domain() != b.domain()
    }

    /// Whether `node` is the coordinator that the topology names, or a standby.
    pub fn may_coordinate(&self, node: &NodeId) -> bool {
        *node == self.coordinator || self.standby.contains(node)
    }

    /// Whether the store may be changed by more than one coordinator in turn.
    pub fn shares_store(&self) -> bool {
        !self.standby.is_empty()
    }

    /// Whether `node` is in its domain's list of gateways.
    pub fn may_be_gateway(&self, node: &NodeId) -> bool {
        self.domain(&node.domain())
            .is_some_and(|domain| domain.gateways.contains(node))
    }
}

impl DomainPlan {
    /// The first gateway of the list.
    pub fn gateway(&self) -> &NodeId {
        &self.gateways[0]
    }

    /// A node's rank.
    pub fn rank(&self, node: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|peer| peer.id == *node)
    }
}

#[cfg(test)]
pub(crate) mod samples;

#[cfg(test)]
mod tests {
    use super::samples::plan;
    use super::*;

    fn n(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    #[test]
    fn a_domain_trains_unless_all_of_it_is_absent_in_every_round() {
        let mut plan = plan(&[1, 2]);
        plan.rounds = 3;
        let trains = |plan: &Plan| ["d0", "d1"].map(|domain| plan.trains(&domain.parse().unwrap()));
        assert_eq!(trains(&plan), [true, true]);
        for round in 1..=3 {
            let absent = [n("d0/n0"), n("d1/n0")].into();
            plan.round.absent.insert(round, absent);
        }
        assert_eq!(trains(&plan), [false, true]);
        plan.rounds = 4;
        assert_eq!(trains(&plan), [true, true]);
    }

    /// Whoever may coordinate reaches every gateway, and exactly one side of each link dials.
    #[test]
    fn standbys_have_links_to_all_gateways() {
        let mut plan = plan(&[2, 2, 2, 2]);
        plan.standby = vec![n("d1/n0"), n("d2/n0")];
        let wan = |node: &str| {
            let peers = plan.peers(&n(node)).into_iter();
            let far = peers.filter(|peer| Plan::is_wan(&n(node), peer));
            far.map(|peer| peer.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(wan("d0/n0"), ["d1/n0", "d2/n0", "d3/n0"]);
        assert_eq!(wan("d1/n0"), ["d0/n0", "d2/n0", "d3/n0"]);
        assert_eq!(wan("d3/n0"), ["d0/n0", "d1/n0", "d2/n0"]);
        assert_eq!(wan("d3/n1"), [""; 0]);
        for node in plan.nodes() {
            for peer in plan.peers(&node.id) {
                assert!(plan.peers(&peer).contains(&node.id), "{} {peer}", node.id);
                if Plan::is_wan(&node.id, &peer) {
                    let (one, other) = (
                        plan.dials_across(&node.id, &peer),
                        plan.dials_across(&peer, &node.id),
                    );
                    assert_ne!(one, other, "{} {peer}", node.id);
                }
            }
        }
        assert!(plan.dials_across(&n("d1/n0"), &n("d0/n0")));
        assert!(plan.dials_across(&n("d3/n0"), &n("d1/n0")));
    }
}
