//! What a process says of itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::federation::Waiting;
use crate::identity::show;
use tombolo_actors::coordinator::Progress;
use tombolo_actors::crew::Crew;
use tombolo_actors::env::Env;
use tombolo_actors::link::Wire;
use tombolo_actors::shell::Census;
use tombolo_core::event::{Event, Wait};
use tombolo_core::heartbeat::{Heartbeat, Standing};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::ladder::Rung;
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How it stands.
    Status,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "snake_case")]
pub enum Response {
    /// How it stands.
    Status(Box<Status>),
    /// The request was not understood.
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
    /// How far the peer has climbed: unmet, alive, suspect, "retry 2", restoring, overdue.
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
    /// The UDP payload that fits into one packet on this path.
    pub packet_bytes: Option<u16>,
    /// How often the path began to drop large packets.
    pub black_holes: Option<u64>,
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
    /// Of so many.
    pub planned: u64,
    /// The last that ended; of nodes without the coordinator: the last whose model arrived.
    pub ended: Round,
    /// The open one; known to the coordinator's process only.
    pub open: Option<Open>,
    /// Last committed model on the test rows; known to the coordinator's process only.
    pub accuracy: Option<f64>,
    /// Last committed model on the test rows; known to the coordinator's process only.
    pub loss: Option<f64>,
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
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "round {}: {} of {} reports, {:.0} s left",
            self.round, self.reports, self.asked, self.left_s
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
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            // After a resume the first round that opens tells what ended before.
            Event::RoundOpened { round, .. } => {
                rounds.ended = rounds.ended.max(round.saturating_sub(1));
            }
            Event::ModelAdopted { round, .. } => rounds.ended = rounds.ended.max(*round),
            Event::Round(record) => {
                rounds.ended = rounds.ended.max(record.round);
                (rounds.accuracy, rounds.loss) = (Some(record.accuracy), Some(record.loss));
            }
            _ => {}
        }
    }
}

/// Where a process looks to answer.
pub(crate) struct Sources {
    pub env: Arc<dyn Env>,
    federation: String,
    nodes: Vec<NodeSources>,
    census: Census,
    history: Arc<History>,
    waiting: Arc<Waiting>,
}

struct NodeSources {
    node: NodeId,
    address: String,
    coordinator: bool,
    certificate_ends: u64,
    links: BTreeMap<NodeId, (Arc<Mutex<Heartbeat>>, Arc<Wire>)>,
    progress: Arc<Mutex<Option<Progress>>>,
}

impl Sources {
    /// Of the crews of a process.
    pub fn new(
        plan: &Plan,
        crews: &BTreeMap<NodeId, Crew>,
        census: Census,
        history: Arc<History>,
        waiting: Arc<Waiting>,
        env: Arc<dyn Env>,
    ) -> Self {
        let now = env.unix_time();
        let nodes = crews.values().map(|crew| NodeSources {
            node: crew.node_id.clone(),
            address: crew.address.to_string(),
            coordinator: crew.coordinator.is_some(),
            certificate_ends: now
                + show::show_node(plan, &crew.node_id, now).map_or(0, |entry| entry.remaining_s),
            links: crew
                .wires
                .iter()
                .filter_map(|(peer, wire)| {
                    let alive = crew.liveness.get(peer)?;
                    Some((peer.clone(), (alive.clone(), wire.clone())))
                })
                .collect(),
            progress: crew.progress.clone(),
        });
        Sources {
            federation: plan.name.clone(),
            nodes: nodes.collect(),
            census,
            history,
            waiting,
            env,
        }
    }

    /// How it stands now.
    pub fn status(&self) -> Status {
        let (now, unix) = (self.env.now(), self.env.unix_time());
        let open = self.nodes.iter().find_map(|node| {
            let progress = *node.progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.map(|progress| Open {
                round: progress.round,
                reports: progress.reports,
                asked: progress.asked,
                left_s: progress.deadline.since(now).as_secs_f64(),
            })
        });
        let rounds = self.history.0.lock();
        let rounds = RoundsStatus {
            open,
            ..rounds.unwrap_or_else(PoisonError::into_inner).clone()
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
        }
    }
}

impl NodeSources {
    fn status(&self, unix: u64) -> NodeStatus {
        NodeStatus {
            node: self.node.clone(),
            address: self.address.clone(),
            coordinator: self.coordinator,
            certificate_s: self.certificate_ends.saturating_sub(unix),
            waits: None,
        }
    }

    fn links(&self, now: Micros) -> impl Iterator<Item = LinkStatus> {
        self.links.iter().map(move |(peer, (alive, wire))| {
            let (sent, received) = wire.traffic();
            let alive = alive.lock().unwrap_or_else(PoisonError::into_inner);
            let standing = alive.standing(now);
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
        Rung::Unmet => Some("never heard of".to_owned()),
        _ => Some(format!(
            "no sign of life for {:.1} s",
            standing.silent.as_secs_f64()
        )),
    };
    let words: Vec<String> = silence.into_iter().chain(trouble).collect();
    words.join("; ")
}
