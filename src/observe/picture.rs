//! What is known of a federation: plain values that a page can show.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::control::{LinkState, RoundMode};
use crate::explain::{Course, Lines, Share, SumSpan};
use crate::federation::Title;
use tombolo_core::coordinator::Paused;
use tombolo_core::event::{Finished, Objection, RoundState, Shrunk};
use tombolo_core::ids::{DomainId, Epoch, NodeId, Round};
use tombolo_core::membership::State;
use tombolo_core::plan::Plan;
use tombolo_core::view::Out;

/// How much of a run is kept. What is older is gone, and counted in [`Totals`] only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Rounds.
    pub rounds: usize,
    /// Times of nodes within rounds, over all rounds: of older rounds the outcome stays.
    pub spans: usize,
    /// Things that happened, in words.
    pub notices: usize,
}

impl Bounds {
    /// For a page that is sent anew many times a minute: some hundred kilobytes.
    pub const LIVE: Bounds = Bounds {
        rounds: 400,
        spans: 2_000,
        notices: 100,
    };

    /// For a file that is written once: some megabytes.
    pub const REPORT: Bounds = Bounds {
        rounds: 10_000,
        spans: 20_000,
        notices: 1_000,
    };
}

/// Nodes that are shown one by one; names come from a file, which may hold anything.
pub(super) const NODES_MAX: usize = 4_096;

/// Links between sites that are shown one by one.
pub(super) const LINKS_MAX: usize = 4_096;

/// Marks of a round, and names in its lists: enough to see what it waited for.
pub(super) const MARKS_MAX: usize = 64;

/// How a federation stands, by its events.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Picture {
    /// The federation's name; empty if nothing but a record is there.
    pub federation: String,
    /// How rounds follow each other.
    pub mode: RoundMode,
    /// How many rounds are planned; 0 if that is not known.
    pub planned: u64,
    /// Seconds since the run began, at the last event. Another life of the process goes on where the one before was.
    pub at: f64,
    /// The membership view's number.
    pub epoch: Epoch,
    /// Who opens and closes rounds.
    pub coordinator: Option<NodeId>,
    /// By name.
    pub domains: BTreeMap<DomainId, DomainPicture>,
    /// By name.
    pub nodes: BTreeMap<NodeId, NodePicture>,
    /// Between sites, by their ends.
    pub links: Vec<LinkPicture>,
    /// The last rounds, oldest first; the last one may be open.
    pub rounds: VecDeque<RoundPicture>,
    /// The record of the run, as its coordinator offered it last.
    pub record: Option<RecordPicture>,
    /// Over the whole run.
    pub totals: Totals,
    /// What happened lately, oldest first.
    pub notices: VecDeque<Notice>,
    /// Since when no round is opened any more, and who asked for it.
    pub paused: Option<Paused>,
    /// The last word.
    pub finished: Option<Finished>,
    #[serde(skip)]
    pub(super) bounds: Bounds,
    #[serde(skip)]
    pub(super) life: u64,
    /// When the present life of the recording process began.
    #[serde(skip)]
    pub(super) life_at: f64,
    #[serde(skip)]
    pub(super) codecs: BTreeMap<DomainId, String>,
    #[serde(skip)]
    pub(super) out: BTreeMap<NodeId, Out>,
    /// What has happened in the newest round.
    #[serde(skip)]
    pub(super) course: Course,
    #[serde(skip)]
    pub(super) lines: Lines,
}

/// A site.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DomainPicture {
    /// Who holds its links to other sites.
    pub gateway: Option<NodeId>,
    /// The last round in which its sum was noted by the coordinator.
    pub acknowledged: Round,
    /// Why it is out of the open round, or was sent away; empty if all is well.
    pub reason: String,
}

/// Where a node is in the round that it works on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is not asked.
    #[default]
    Idle,
    /// It was asked.
    Asked,
    /// It trains.
    Training,
    /// Its update is ready.
    Trained,
    /// The coordinator has its report.
    Reported,
    /// Its update is in the model.
    Counted,
    /// It was not there in time.
    Late,
    /// Its update was refused.
    Refused,
    /// Its training failed.
    Failed,
}

/// A node.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodePicture {
    /// Whether it takes part.
    pub state: State,
    /// How far others have climbed to reach it: unmet, alive, suspect, restoring, overdue, left.
    pub rung: &'static str,
    /// Why it is there; empty if all is well.
    pub reason: String,
    /// Since when, in seconds of the run.
    pub since: f64,
    /// Where it is in its round.
    pub phase: Phase,
    /// The last round that counted it.
    pub counted_in: Round,
    /// The model that it holds.
    pub model: Round,
    /// The view by which it goes.
    pub epoch: Epoch,
    /// Rounds that counted it.
    pub counted: u64,
    /// Rounds that it was late for.
    pub late: u64,
    /// Updates of it that were refused.
    pub refused: u64,
    /// Updates of it that were made shorter.
    pub clipped: u64,
    /// Trainings that failed.
    pub failed: u64,
    /// How often its copy of a model was not that model any more.
    pub diverged: u64,
    /// The loss of its last training, its own word.
    pub loss: Option<f64>,
    /// The rows of its last training, its own word.
    pub samples: u64,
    /// Where steps are balanced: how many it was given in the last round.
    pub steps: Option<u64>,
    /// Where steps are balanced: how long one takes it.
    pub step_s: Option<f64>,
    /// How its process's clock lies to the coordinator's; none if they are one, or nobody has said.
    pub clock: Option<ClockPicture>,
    /// How it does, if it has said so.
    pub vitals: Option<VitalsPicture>,
}

/// How one clock lies to another. Clocks count from the start of their process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ClockPicture {
    /// Added to this clock it gives the coordinator's; none if only the bound is known.
    pub offset_ms: Option<f64>,
    /// It is off by no more.
    pub bound_ms: f64,
}

/// How a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VitalsPicture {
    /// Bytes of memory that its process has.
    pub memory: u64,
    /// Messages in the longest queue of its actors.
    pub queued: u64,
    /// Messages that wait for a peer's acknowledgement, of the link with the most.
    pub unacknowledged: u64,
    /// Their bytes.
    pub unacknowledged_bytes: u64,
    /// Seconds that its certificate is still good for.
    pub certificate_s: u64,
}

/// A link between two sites.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkPicture {
    /// One end; by name before the other.
    pub a: NodeId,
    /// The other end.
    pub b: NodeId,
    /// Whether it carries frames.
    pub state: LinkState,
    /// Why not; empty if it does.
    pub reason: String,
    /// How sums travel over it towards the coordinator; empty if that is not known.
    pub codec: String,
    /// How long two heartbeats that crossed were on their way.
    pub round_trip_ms: Option<f64>,
    /// The share of heartbeats that got lost lately.
    pub heartbeat_loss: Option<f64>,
    /// From `a` to `b`.
    pub a_to_b: WayPicture,
    /// From `b` to `a`.
    pub b_to_a: WayPicture,
    /// How often it went down.
    pub downs: u64,
}

/// One direction of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WayPicture {
    /// UDP payload.
    pub bytes: u64,
    /// Sums that came over it.
    pub sums: Shrunk,
    /// Models that were sent over it through a lossless stage.
    pub models: Shrunk,
    /// Messages that are not acknowledged yet; none if its sender has not said.
    pub unacknowledged: Option<u64>,
    /// Their bytes.
    pub unacknowledged_bytes: Option<u64>,
}

/// The record that every domain holds of what happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordPicture {
    /// The last round of which it tells.
    pub round: Round,
    /// Leaves below its head.
    pub size: u64,
    /// Gateways that have cosigned the head before it.
    pub by: Vec<NodeId>,
    /// Gateways that have not.
    pub behind: Vec<NodeId>,
}

/// A round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoundPicture {
    /// Its number.
    pub round: Round,
    /// The membership view in which it opened.
    pub epoch: Epoch,
    /// When it opened, in seconds of the run.
    pub opened: f64,
    /// How long it took; none while it is open.
    pub elapsed_s: Option<f64>,
    /// How it ended.
    pub state: Option<RoundState>,
    /// Why, unless committed.
    pub reason: String,
    /// How many nodes were asked.
    pub asked: usize,
    /// How many updates are in the model.
    pub counted: usize,
    /// Who was not there in time; the first of them.
    pub late: Vec<NodeId>,
    /// Whose update was refused, and why; the first of them.
    pub refused: Vec<(NodeId, String)>,
    /// The model on the test rows.
    pub loss: Option<f64>,
    /// The model on the test rows.
    pub accuracy: Option<f64>,
    /// L2 norm of the model.
    pub weight_norm: Option<f64>,
    /// UDP payload between sites, both ways.
    pub bytes: u64,
    /// The part of it that the coordinator sent.
    pub bytes_down: u64,
    /// The part of it that the coordinator received.
    pub bytes_up: u64,
    /// What happened when; of the last rounds only.
    pub marks: Vec<Mark>,
    /// What its nodes did when; of the last rounds only.
    pub spans: BTreeMap<NodeId, Span>,
    /// What its domains did when; of the last rounds only.
    pub sums: BTreeMap<DomainId, SumSpan>,
    /// What it spent its time on, one after the other; of the last rounds only.
    pub path: Vec<Share>,
    /// Which of that was the longest, in a sentence; empty until it has ended.
    pub limit: String,
}

/// A step of a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mark {
    /// Seconds since the round was opened.
    pub at: f64,
    /// What.
    pub what: String,
}

/// What a node did in a round; times in seconds since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Span {
    /// When it began to train, if this process was told.
    pub began: Option<f64>,
    /// When its update was ready, if this process was told.
    pub trained: Option<f64>,
    /// When its peers had measured it, if this process was told.
    pub measured: Option<f64>,
    /// When the coordinator had its report.
    pub reported: Option<f64>,
    /// How far it came.
    pub phase: Phase,
}

/// Sums over a run. They only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Events that made this picture.
    pub events: u64,
    /// Events that were missed because too many came at once. Rounds that ended are in the picture all the same.
    pub missed: u64,
    /// Rounds of everyone.
    pub committed: u64,
    /// Rounds of some.
    pub degraded: u64,
    /// Rounds without a commit.
    pub aborted: u64,
    /// Updates that are in a model.
    pub counted: u64,
    /// Updates that were not there in time.
    pub late: u64,
    /// Updates that were refused.
    pub refused: u64,
    /// UDP payload between sites in rounds that ended, from the coordinator.
    pub bytes_down: u64,
    /// UDP payload between sites in rounds that ended, to the coordinator.
    pub bytes_up: u64,
    /// UDP payload between sites in rounds that ended, both ways, whoever sent it.
    pub bytes: u64,
    /// Copies of models on nodes that were not those models any more.
    pub diverged: u64,
    /// Rings of actors that waited for each other.
    pub deadlocks: u64,
    /// Collectives that made no progress.
    pub stalls: u64,
    /// Actors that panicked and were rebuilt.
    pub restarts: u64,
    /// What arrived and counts for nothing, or not in full: how often, by reason.
    pub objections: BTreeMap<Objection, u64>,
}

/// Something that happened, in words.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Notice {
    /// When, in seconds of the run.
    pub at: f64,
    /// What.
    pub what: String,
}

impl Picture {
    /// Nothing is known yet.
    pub fn new(bounds: Bounds) -> Self {
        Picture {
            federation: String::new(),
            mode: RoundMode::Sync,
            planned: 0,
            at: 0.0,
            epoch: 0,
            coordinator: None,
            domains: BTreeMap::new(),
            nodes: BTreeMap::new(),
            links: Vec::new(),
            rounds: VecDeque::new(),
            record: None,
            totals: Totals::default(),
            notices: VecDeque::new(),
            paused: None,
            finished: None,
            bounds,
            life: 0,
            life_at: 0.0,
            codecs: BTreeMap::new(),
            out: BTreeMap::new(),
            course: Course::default(),
            lines: Lines::default(),
        }
    }

    /// What a state folder says of a run before its record is read.
    pub fn of_title(title: Option<Title>, bounds: Bounds) -> Self {
        let mut picture = Picture::new(bounds);
        if let Some(title) = title {
            (picture.federation, picture.planned) = (title.name, title.rounds);
            picture.coordinator = Some(title.coordinator);
            for (domain, gateway) in title.gateways {
                picture.domain(&domain).gateway = Some(gateway);
            }
        }
        picture
    }

    /// What a plan says before anything has happened: who is there, and which links lead to the coordinator.
    pub fn of_plan(plan: &Plan, bounds: Bounds) -> Self {
        let mut picture = Picture::new(bounds);
        picture.federation.clone_from(&plan.name);
        picture.planned = plan.rounds;
        picture.mode = match plan.round.asynchronous {
            None => RoundMode::Sync,
            Some(_) => RoundMode::Async,
        };
        picture.coordinator = Some(plan.coordinator.clone());
        for domain in &plan.domains {
            let codec = plan.codec(&domain.id).to_string();
            picture.codecs.insert(domain.id.clone(), codec);
            picture.domain(&domain.id).gateway = Some(domain.gateway().clone());
            for node in &domain.nodes {
                picture.node(&node.id);
            }
        }
        for domain in &plan.domains {
            picture.link(&plan.coordinator, domain.gateway());
        }
        picture
    }

    pub(super) fn domain(&mut self, domain: &DomainId) -> &mut DomainPicture {
        self.domains.entry(domain.clone()).or_default()
    }

    /// A node, unless there are too many.
    pub(super) fn node(&mut self, node: &NodeId) -> Option<&mut NodePicture> {
        if !self.nodes.contains_key(node) {
            if self.nodes.len() == NODES_MAX {
                return None;
            }
            self.domain(&node.domain());
            self.nodes.insert(node.clone(), NodePicture::new(self.at));
        }
        self.nodes.get_mut(node)
    }

    /// The link between two nodes if it is one between sites, and which of them is `a`; unless there are too many.
    pub(super) fn link(&mut self, one: &NodeId, other: &NodeId) -> Option<&mut LinkPicture> {
        if !Plan::is_wan(one, other) {
            return None;
        }
        let (a, b) = if one < other {
            (one, other)
        } else {
            (other, one)
        };
        let found = self
            .links
            .binary_search_by(|link| (&link.a, &link.b).cmp(&(a, b)));
        let at = match found {
            Ok(at) => at,
            Err(_) if self.links.len() == LINKS_MAX => return None,
            Err(at) => {
                // The coordinator's own domain sends nothing to itself over it.
                let from = match &self.coordinator {
                    Some(coordinator) if coordinator.domain() == a.domain() => b.domain(),
                    _ => a.domain(),
                };
                let codec = self.codecs.get(&from).cloned().unwrap_or_default();
                self.links.insert(at, LinkPicture::new(a, b, codec));
                at
            }
        };
        Some(&mut self.links[at])
    }
}

impl NodePicture {
    fn new(since: f64) -> Self {
        NodePicture {
            state: State::Joining,
            rung: "unmet",
            reason: String::new(),
            since,
            phase: Phase::Idle,
            counted_in: 0,
            model: 0,
            epoch: 0,
            counted: 0,
            late: 0,
            refused: 0,
            clipped: 0,
            failed: 0,
            diverged: 0,
            loss: None,
            samples: 0,
            steps: None,
            step_s: None,
            clock: None,
            vitals: None,
        }
    }
}

impl WayPicture {
    /// Bytes of sums and models as they are and as they travelled, where something may have made them fewer.
    pub fn tensors(&self) -> [u64; 2] {
        let (sums, models) = (&self.sums, &self.models);
        [
            sums.plain.saturating_add(models.plain),
            sums.travelled.saturating_add(models.travelled),
        ]
    }
}

impl LinkPicture {
    fn new(a: &NodeId, b: &NodeId, codec: String) -> Self {
        LinkPicture {
            a: a.clone(),
            b: b.clone(),
            state: LinkState::Connecting,
            reason: String::new(),
            codec,
            round_trip_ms: None,
            heartbeat_loss: None,
            a_to_b: WayPicture::default(),
            b_to_a: WayPicture::default(),
            downs: 0,
        }
    }
}
