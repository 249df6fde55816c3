//! What a process says of itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::federation::Waiting;
use tombolo_actors::clock_sync::Known;
use tombolo_actors::coordinator::{self, Board};
use tombolo_actors::crew::Crew;
use tombolo_actors::env::Env;
use tombolo_actors::identity::Identity;
use tombolo_actors::link::Wire;
use tombolo_actors::shell::{Census, Handle};
use tombolo_core::aggregate::feedback::Drift;
use tombolo_core::coordinator::{NotObeyed, Obeyed, Paused, Wish};
use tombolo_core::event::{Event, Objection, Wait};
use tombolo_core::heartbeat::{Heartbeat, Standing};
use tombolo_core::ids::{DomainId, Epoch, NodeId, Round};
use tombolo_core::ladder::Rung;
use tombolo_core::membership::{NotLifted, State};
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;
use tombolo_core::view::{Seen, View};

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How it stands.
    Status,
    /// Lift the cool-down of a node; only the coordinator's process can.
    Readmit {
        /// Whose.
        node: NodeId,
    },
    /// Make a standby of this process coordinator.
    Promote {
        /// Whom.
        node: NodeId,
    },
    /// Pause the run, go on with it, or end it; only the coordinator's process can.
    Order {
        /// Which of these.
        wish: Wish,
        /// Who asks, in his own words.
        #[serde(default)]
        by: String,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    /// How it stands.
    Status(Box<Status>),
    /// The cool-down is lifted.
    Readmitted {
        /// Whose.
        node: NodeId,
        /// Seconds that were left of it.
        left_s: f64,
    },
    /// There is no cool-down to lift.
    NotLifted {
        /// Why.
        reason: NotLifted,
    },
    /// The standby is coordinator.
    Promoted {
        /// Who.
        node: NodeId,
        /// From which membership view on.
        epoch: Epoch,
        /// It was so before.
        already: bool,
    },
    /// It is not.
    NotPromoted {
        /// Why.
        reason: NotPromoted,
    },
    /// The order is carried out.
    Obeyed {
        /// How.
        #[serde(flatten)]
        how: Obeyed,
    },
    /// It is not.
    NotObeyed {
        /// Why.
        reason: NotObeyed,
    },
    /// The request was not understood, or nobody here can do it.
    Error {
        /// Why.
        message: String,
    },
}

/// How one process stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its number.
    pub process: u32,
    /// The federation's name.
    pub federation: String,
    /// Its nodes, by name.
    pub nodes: Vec<NodeStatus>,
    /// Living actors by type.
    pub actors: BTreeMap<String, usize>,
    /// Its nodes' links, by node and peer.
    pub links: Vec<LinkStatus>,
    /// What it has seen of the rounds.
    pub rounds: RoundsStatus,
    /// Who takes part: by the newest view that its nodes have seen.
    pub membership: MembershipStatus,
}

/// Who takes part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MembershipStatus {
    /// The view's number.
    pub epoch: Epoch,
    /// Who opens and closes rounds.
    pub coordinator: NodeId,
    /// The acting gateway of each domain.
    pub gateways: BTreeMap<DomainId, NodeId>,
    /// Where every node stands; known to the coordinator's process only.
    pub nodes: Vec<MemberStatus>,
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Which.
    pub node: NodeId,
    /// Where.
    pub state: State,
    /// For how many seconds.
    pub since_s: f64,
    /// Why; empty if all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Seconds left of its cool-down.
    pub left_s: Option<f64>,
}

/// How one node stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which.
    pub node: NodeId,
    /// Where it listens.
    pub address: String,
    /// Whether it opens and closes rounds.
    pub coordinator: bool,
    /// Seconds that its certificate is still good for.
    pub certificate_s: u64,
    /// Whether it is to be renewed: less than a third of its life is left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub certificate_ends: bool,
    /// Whom it waits for, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Wait>,
}

/// How one link stands, and what its node thinks of the peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Whose.
    pub node: NodeId,
    /// With whom.
    pub peer: NodeId,
    /// Whether it carries frames.
    pub state: LinkState,
    /// Whether it crosses domains.
    pub wan: bool,
    /// UDP payload sent.
    pub sent: u64,
    /// UDP payload received.
    pub received: u64,
    /// How far the peer has climbed: left, unmet, alive, suspect, "retry 2", restoring, overdue.
    pub rung: String,
    /// Why it is there; empty if all is well.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Seconds until the next rung, if time leads there.
    pub left_s: Option<f64>,
    /// The suspicion: -log10 of the chance that a living peer is silent for so long.
    pub phi: f64,
    /// The share of the peer's heartbeats that got lost lately.
    pub heartbeat_loss: f64,
    /// How late this node's own timers come, 0 to 8: it is that much more patient.
    pub health: u8,
    /// The same of the peer, by its own word.
    pub peer_health: u8,
    /// How long two heartbeats that crossed were on their way.
    pub round_trip_ms: Option<f64>,
    /// How far the peer's clock is from this node's, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockStatus>,
    /// The UDP payload that fits into one packet on this path.
    pub packet_bytes: Option<u16>,
    /// How often the path began to drop large packets.
    pub black_holes: Option<u64>,
}

/// What is known of a peer's clock. Clocks count from the start of their process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClockStatus {
    /// Add it to this node's clock to get the peer's.
    pub offset_us: i64,
    /// The offset is off by no more.
    pub bound_us: u64,
    /// How much faster the peer's clock runs, in millionths.
    pub rate_ppm: f64,
}

/// Whether a link carries frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Not yet, or not again.
    Connecting,
    /// It does.
    Up,
    /// Its peer is suspected to be dead.
    Suspect,
    /// Its peer was not heard through all retries.
    Lost,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkState::Connecting => "connecting",
            LinkState::Up => "up",
            LinkState::Suspect => "suspect",
            LinkState::Lost => "lost",
        })
    }
}

/// How the rounds stand.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundsStatus {
    /// How they follow each other.
    #[serde(default)]
    pub mode: RoundMode,
    /// Of so many.
    pub planned: u64,
    /// The last that ended; of nodes without the coordinator: the last whose model arrived.
    pub ended: Round,
    /// The open one; known to the coordinator's process only.
    pub open: Option<Open>,
    /// Since when no round is opened any more, and who asked for it; known to the coordinator's process only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// What arrived and counts for nothing, or not in full: how often, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub objections: BTreeMap<Objection, u64>,
    /// Last committed model on the test rows; known to the coordinator's process only.
    pub accuracy: Option<f64>,
    /// Last committed model on the test rows; known to the coordinator's process only.
    pub loss: Option<f64>,
    /// Who has drifted away in recent rounds; known to the coordinator's process only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drifts: Vec<Drift>,
}

/// How rounds follow each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundMode {
    /// Each waits for its nodes.
    #[default]
    Sync,
    /// Each takes the updates that are there.
    Async,
}

/// The open round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// Its number.
    pub round: Round,
    /// Nodes that have reported.
    pub reports: usize,
    /// Nodes that were asked.
    pub asked: usize,
    /// Until it stops accepting.
    pub left_s: f64,
    /// In the asynchronous mode: how many reports close it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<usize>,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let due = self.buffer.unwrap_or(self.asked);
        write!(
            f,
            "round {}: {} of {due} reports, {:.0} s left",
            self.round, self.reports, self.left_s
        )
    }
}

/// What events have told so far.
#[derive(Debug)]
pub(crate) struct History(Mutex<RoundsStatus>);

impl History {
    /// Nothing yet.
    pub fn new(planned: u64) -> Self {
        History(Mutex::new(RoundsStatus {
            planned,
            ..RoundsStatus::default()
        }))
    }

    /// Takes an event.
    pub fn record(&self, event: &Event) {
        let mut rounds = lock(&self.0);
        if let Some(objection) = event.objection() {
            *rounds.objections.entry(objection).or_default() += 1;
        }
        match event {
            // After a resume the first round that opens tells what ended before.
            Event::RoundOpened { round, .. } => {
                rounds.ended = rounds.ended.max(round.saturating_sub(1));
            }
            Event::ModelAdopted { round, .. } => rounds.ended = rounds.ended.max(*round),
            Event::Round(record) => {
                rounds.ended = rounds.ended.max(record.round);
                (rounds.accuracy, rounds.loss) = (Some(record.accuracy), Some(record.loss));
                rounds.drifts.clone_from(&record.drifts);
            }
            _ => {}
        }
    }
}

/// Why a node was not made coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum NotPromoted {
    /// The topology does not name it.
    #[error("{node} is no standby; {}", match standby.as_slice() {
        [] => "the topology names none in `standby`".to_owned(),
        standby => format!("the topology names {}", named(standby)),
    })]
    NoStandby {
        /// Who.
        node: NodeId,
        /// Who may be promoted.
        standby: Vec<NodeId>,
    },
    /// Somewhere else, or nowhere.
    #[error("{node} does not run in this process")]
    Elsewhere {
        /// Who.
        node: NodeId,
    },
    /// It could not be.
    #[error("{node} is not promoted: {reason}")]
    Refused {
        /// Who.
        node: NodeId,
        /// Why.
        reason: String,
    },
}

fn named(nodes: &[NodeId]) -> String {
    let names: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
    names.join(", ")
}

/// Where a process looks to answer.
pub(crate) struct Sources {
    pub env: Arc<dyn Env>,
    plan: Arc<Plan>,
    federation: String,
    nodes: Vec<NodeSources>,
    census: Census,
    history: Arc<History>,
    waiting: Arc<Waiting>,
}

struct LinkSources {
    alive: Arc<Mutex<Heartbeat>>,
    wire: Arc<Wire>,
    clock: Arc<Known>,
}

struct NodeSources {
    node: NodeId,
    address: String,
    coordinator: Option<Handle<coordinator::Message>>,
    identity: Arc<dyn Identity>,
    links: BTreeMap<NodeId, LinkSources>,
    board: Arc<Mutex<Board>>,
    seen: Arc<Mutex<Seen>>,
}

impl Sources {
    /// Of the crews of a process.
    pub fn new(
        plan: &Arc<Plan>,
        crews: &BTreeMap<NodeId, Crew>,
        census: Census,
        history: Arc<History>,
        waiting: Arc<Waiting>,
        env: Arc<dyn Env>,
    ) -> Self {
        let nodes = crews.values().map(|crew| NodeSources {
            node: crew.node_id.clone(),
            address: crew.address.to_string(),
            coordinator: crew.coordinator.clone(),
            identity: crew.identity.clone(),
            links: crew
                .wires
                .iter()
                .filter_map(|(peer, wire)| {
                    let sources = LinkSources {
                        alive: crew.liveness.get(peer)?.clone(),
                        wire: wire.clone(),
                        clock: crew.clocks.get(peer)?.clone(),
                    };
                    Some((peer.clone(), sources))
                })
                .collect(),
            board: crew.board.clone(),
            seen: crew.seen.clone(),
        });
        Sources {
            plan: plan.clone(),
            federation: plan.name.clone(),
            nodes: nodes.collect(),
            census,
            history,
            waiting,
            env,
        }
    }

    /// The coordinator that is at work in this process.
    pub fn coordinator(&self) -> Option<&Handle<coordinator::Message>> {
        let mut acting = self.nodes.iter().filter(|node| lock(&node.board).acts);
        acting.find_map(|node| node.coordinator.as_ref())
    }

    /// What a node of this process would coordinate with.
    pub fn standby(&self, node: &NodeId) -> Result<&Handle<coordinator::Message>, NotPromoted> {
        let (node, plan) = (node.clone(), &self.plan);
        if !plan.may_coordinate(&node) || !plan.shares_store() {
            let standby = plan.standby.clone();
            return Err(NotPromoted::NoStandby { node, standby });
        }
        let mut here = self.nodes.iter().filter(|here| here.node == node);
        let found = here.find_map(|here| here.coordinator.as_ref());
        found.ok_or(NotPromoted::Elsewhere { node })
    }

    /// How it stands now.
    pub fn status(&self) -> Status {
        let (now, unix) = (self.env.now(), self.env.unix_time());
        let asynchronous = self.plan.round.asynchronous;
        let open = self.nodes.iter().find_map(|node| {
            let progress = lock(&node.board).progress;
            progress.map(|progress| Open {
                round: progress.round,
                reports: progress.reports,
                asked: progress.asked,
                left_s: progress.deadline.since(now).as_secs_f64(),
                buffer: asynchronous.map(|plan| plan.buffer),
            })
        });
        let rounds = RoundsStatus {
            mode: match asynchronous {
                None => RoundMode::Sync,
                Some(_) => RoundMode::Async,
            },
            open,
            paused: self
                .nodes
                .iter()
                .find_map(|node| lock(&node.board).paused.clone()),
            ..lock(&self.history.0).clone()
        };
        let counts = self.census.counts().into_iter();
        let nodes = self.nodes.iter().map(|node| NodeStatus {
            waits: self.waiting.of(&node.node),
            ..node.status(unix)
        });
        Status {
            process: std::process::id(),
            federation: self.federation.clone(),
            nodes: nodes.collect(),
            actors: counts
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            links: self.nodes.iter().flat_map(|node| node.links(now)).collect(),
            rounds,
            membership: self.membership(now),
        }
    }

    fn membership(&self, now: Micros) -> MembershipStatus {
        let known = self
            .nodes
            .iter()
            .find_map(|node| lock(&node.board).membership.clone());
        if let Some(membership) = known {
            let nodes = membership.entries().map(|(node, entry)| MemberStatus {
                node: node.clone(),
                state: entry.state,
                since_s: now.since(entry.since).as_secs_f64(),
                reason: entry.reason(now),
                left_s: entry
                    .until
                    .filter(|until| *until > now)
                    .map(|until| until.since(now).as_secs_f64()),
            });
            return MembershipStatus::new(membership.view(), nodes.collect());
        }
        let views = self
            .nodes
            .iter()
            .map(|node| lock(&node.seen).view().clone());
        let newest = views.max_by_key(|view| view.epoch);
        let newest = newest.expect("a process hosts a node");
        MembershipStatus::new(&newest, Vec::new())
    }
}

impl MembershipStatus {
    fn new(view: &View, nodes: Vec<MemberStatus>) -> Self {
        MembershipStatus {
            epoch: view.epoch,
            coordinator: view.coordinator.clone(),
            gateways: view.gateways.clone(),
            nodes,
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeSources {
    fn status(&self, unix: u64) -> NodeStatus {
        let own = self.identity.own();
        NodeStatus {
            node: self.node.clone(),
            address: self.address.clone(),
            coordinator: lock(&self.board).acts,
            certificate_s: own.not_after.saturating_sub(unix),
            certificate_ends: own.is_due(unix),
            waits: None,
        }
    }

    fn links(&self, now: Micros) -> impl Iterator<Item = LinkStatus> {
        self.links
            .iter()
            .map(move |(peer, LinkSources { alive, wire, clock })| {
                let (sent, received) = wire.traffic();
                let standing = lock(alive).standing(now);
                let up = wire.agreed().is_some();
                let path = wire.connection().map(|connection| connection.stats().path);
                LinkStatus {
                    node: self.node.clone(),
                    peer: peer.clone(),
                    state: match standing.rung {
                        Rung::Suspect | Rung::Retry(_) => LinkState::Suspect,
                        rung if rung.is_lost() => LinkState::Lost,
                        _ if up => LinkState::Up,
                        _ => LinkState::Connecting,
                    },
                    wan: Plan::is_wan(&self.node, peer),
                    sent,
                    received,
                    rung: standing.rung.to_string(),
                    reason: reason(&standing, up, wire.trouble()),
                    left_s: standing.left.map(|left| left.as_secs_f64()),
                    phi: standing.phi,
                    heartbeat_loss: standing.loss,
                    health: standing.health,
                    peer_health: standing.peer_health,
                    round_trip_ms: standing
                        .round_trip
                        .map(|round_trip| round_trip.as_secs_f64() * 1e3),
                    clock: clock.estimate(now).map(|(_, estimate)| ClockStatus {
                        offset_us: estimate.offset_us,
                        bound_us: u64::try_from(estimate.bound.as_micros()).unwrap_or(u64::MAX),
                        rate_ppm: estimate.rate_ppm,
                    }),
                    packet_bytes: path.map(|path| path.current_mtu),
                    black_holes: path.map(|path| path.black_holes_detected),
                }
            })
    }
}

/// Why a peer is not simply there; empty if it is.
fn reason(standing: &Standing, up: bool, trouble: Option<String>) -> String {
    let silence = match standing.rung {
        Rung::Alive if up => return String::new(),
        Rung::Alive => None,
        Rung::Left => Some("it said that it leaves".to_owned()),
        Rung::Unmet => Some("never heard of".to_owned()),
        _ => Some(format!(
            "no sign of life for {:.1} s",
            standing.silent.as_secs_f64()
        )),
    };
    let words: Vec<String> = silence.into_iter().chain(trouble).collect();
    words.join("; ")
}
