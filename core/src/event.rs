//! Past facts. Logs, progress, `events.jsonl` and reports are derived from these and from nothing else.

mod measured;

use serde::{Deserialize, Serialize};

pub use measured::{Cargo, ClockOffset, Measured, Shrunk, Transfer, Vitals};

use crate::aggregate::feedback::Drift;
use crate::ids::{Attempt, DomainId, Epoch, NodeId, Round};
use crate::membership::State;
use crate::pace::Balance;
use crate::policy::Verdict;
use crate::staleness::Past;
use crate::tensor::Hash;
use crate::view::View;

/// How a round ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RoundState {
    /// Everyone asked was counted.
    Committed,
    /// The quorum was there, somebody was not.
    Degraded,
    /// No commit; the model stays.
    Aborted,
}

/// One ended round, as the command line prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Its number.
    pub round: Round,
    /// The membership view in which it opened.
    pub epoch: Epoch,
    /// How it ended.
    pub state: RoundState,
    /// Why, unless committed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Whose updates are in the aggregate, by name.
    pub counted: Vec<NodeId>,
    /// Who was asked and is not in it, by name.
    pub late: Vec<NodeId>,
    /// Who was not asked since a policy keeps its updates out, and which.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<(NodeId, String)>,
    /// Of those in none of these lists: refused updates and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<(NodeId, String)>,
    /// Committed model on the test rows.
    pub accuracy: f64,
    /// Committed model on the test rows: mean cross-entropy.
    pub loss: f64,
    /// L2 norm of the committed model.
    pub weight_norm: f64,
    /// UDP payload over WAN links during the round, both ways.
    pub bytes: u64,
    /// The part of `bytes` that the coordinator sent.
    pub bytes_down: u64,
    /// The part of `bytes` that the coordinator received.
    pub bytes_up: u64,
    /// BLAKE3 of the model after the round.
    pub model_hash: Hash,
    /// From opening to the outcome, monotonic seconds.
    pub elapsed_s: f64,
    /// In the asynchronous mode only.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Box<Version>>,
    /// Who has drifted away in recent rounds, and what the next round makes of that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drifts: Vec<Drift>,
    /// Only where steps are balanced.
    #[serde(flatten, default, skip_serializing_if = "Option::is_none")]
    pub balance: Option<Box<Balance>>,
}

/// What is also said of a round in the asynchronous mode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// How many versions were committed since each counted update was begun; in the order of `counted`.
    pub staleness: Vec<u64>,
    /// The round that each counted update was trained for; in that order, too.
    pub trained_for: Vec<Round>,
    /// For the rounds to come; in what is written down, not in what is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<Past>,
}

impl Version {
    /// The mean and the greatest staleness of the counted updates; zeros if there is none.
    pub fn staleness_mean_max(&self) -> (f64, u64) {
        let all = self.staleness.iter();
        let most = all.clone().max().copied().unwrap_or(0);
        (
            all.sum::<u64>() as f64 / self.staleness.len().max(1) as f64,
            most,
        )
    }
}

impl RoundRecord {
    /// Whether the round ended with a commit, of everyone or of a quorum.
    pub fn is_committed(&self) -> bool {
        self.state != RoundState::Aborted
    }
}

/// A past fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
#[expect(missing_docs, reason = "field names say it; variants are documented")]
pub enum Event {
    /// A node's actors run and its socket is bound.
    NodeStarted {
        node: NodeId,
        address: String,
        /// Drawn at each start, so that whoever measures its clock can say which life's it is.
        #[serde(default)]
        life: u64,
    },
    /// A node waits for others that it needs; said soon, then ever more rarely.
    NodeWaits(Wait),
    /// A node reached nobody who leads it for as long as it is patient: it ends, and if it is a gateway its domain with it.
    GaveUp { node: NodeId, reason: String },
    /// A link carries frames.
    LinkUp { node: NodeId, peer: NodeId },
    /// How a link between sites was, as its node saw it: said now and then while the run goes on.
    LinkMeasured(Measured),
    /// How far another process's clock is from this one's: said now and then, so that what both recorded can be placed on one line of time.
    ClockMeasured(ClockOffset),
    /// A tensor has come over a link between sites.
    Transferred(Transfer),
    /// The coordinator has heard that a node does otherwise than before.
    StandingChanged {
        node: NodeId,
        state: State,
        reason: String,
    },
    /// How a node does: said now and then while the run goes on.
    NodeMeasured(Vitals),
    /// A link does not any more.
    LinkDown {
        node: NodeId,
        peer: NodeId,
        reason: String,
    },
    /// A peer cannot be talked to until somebody changes something: another identity, version or topology.
    LinkRefused {
        node: NodeId,
        peer: NodeId,
        reason: String,
    },
    /// A node does not let another do something, or leaves it out of rounds, since the policy of a site denies it.
    PolicyDenied {
        node: NodeId,
        #[serde(flatten)]
        verdict: Box<Verdict>,
    },
    /// A node shows another certificate from now on.
    CertificateRotated {
        node: NodeId,
        serial: String,
        sha256: String,
        not_after: u64,
    },
    /// A node's certificate ends soon, or has ended: it is to be renewed. Said once for each certificate.
    CertificateEnds {
        node: NodeId,
        not_after: u64,
        left_s: u64,
    },
    /// What lies on disk was not taken, and why; what was there before holds.
    CertificateKept { node: NodeId, reason: String },
    /// A connection was replaced by a new one, without a gap, since one side has another certificate.
    LinkRenewed { node: NodeId, peer: NodeId },
    /// A link leads another way than before, at first than directly: through a node that passes on what it cannot read, or, without one, directly again.
    LinkRouted {
        node: NodeId,
        peer: NodeId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        relay: Option<NodeId>,
    },
    /// A node takes certificates of one more root of a domain.
    RootAdded {
        node: NodeId,
        domain: DomainId,
        sha256: String,
    },
    /// A node does not take certificates of that root of a domain any more.
    RootRetired {
        node: NodeId,
        domain: DomainId,
        sha256: String,
    },
    /// A node has learnt which certificates a domain has called back: `count` by the list of that number.
    CertificatesRevoked {
        node: NodeId,
        domain: DomainId,
        number: u64,
        count: u64,
    },
    /// A node's own certificate was called back: nobody talks to it until it has another one.
    CertificateLost { node: NodeId, reason: String },
    /// Silent for longer than a living peer would be.
    PeerSuspected {
        node: NodeId,
        peer: NodeId,
        silent_ms: u64,
    },
    /// A suspected or lost peer was heard again.
    PeerRecovered {
        node: NodeId,
        peer: NodeId,
        silent_ms: u64,
        lost: bool,
    },
    /// All retries failed: the peer is out of the round.
    PeerLost { node: NodeId, peer: NodeId },
    /// All of the ladder is over: the peer should be evicted.
    PeerOverdue { node: NodeId, peer: NodeId },
    /// A peer closed the connection because it leaves: it is not missed.
    PeerLeft { node: NodeId, peer: NodeId },
    /// A user has made a standby coordinator; the view that says so is written down.
    CoordinatorPromoted { node: NodeId, epoch: Epoch },
    /// Another node is coordinator: this one coordinates no more, or if it has not `acted` in this life not again.
    CoordinatorSteppedDown {
        node: NodeId,
        by: NodeId,
        epoch: Epoch,
        acted: bool,
    },
    /// The run is paused: after the open round, if one is open, none opens. Told again by a coordinator that was started anew.
    RunPaused {
        by: String,
        /// Seconds since 1970.
        since: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        open: Option<Round>,
    },
    /// A user has ended the pause.
    RunResumed { by: String },
    /// A user has amended the topology, and all nodes agree: behind the open round each process begins again by the one of that hash.
    RunAmended {
        by: String,
        topology: Hash,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        open: Option<Round>,
    },
    /// A user ends the run: behind the open round, or `now`, so that it is given up.
    RunStopping {
        by: String,
        now: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        open: Option<Round>,
    },
    /// A peer's clock is not where two sound clocks could be: one of them was stopped or set. What was known of it is forgotten.
    ClockJumped { node: NodeId, peer: NodeId },
    /// A membership view is written down and holds.
    EpochChanged { view: View },
    /// A node is out of the view, for this long at least.
    NodeEvicted {
        node: NodeId,
        epoch: Epoch,
        cooldown_ms: u64,
    },
    /// A node said that it leaves, and is out of the view.
    NodeLeft { node: NodeId, epoch: Epoch },
    /// A node is in the view again.
    NodeReadmitted { node: NodeId, epoch: Epoch },
    /// A node goes by this view from now on.
    ViewAdopted { node: NodeId, epoch: Epoch },
    /// The coordinator opened a round.
    RoundOpened {
        round: Round,
        epoch: Epoch,
        cohort: Vec<NodeId>,
        deadline_ms: u64,
    },
    /// The coordinator was restarted behind a round's first gate, and goes on with it.
    RoundResumed {
        round: Round,
        acknowledged: Vec<DomainId>,
        /// Of those, whose bytes are not in the journal.
        asked_again: Vec<DomainId>,
    },
    /// A node began to train.
    TrainingStarted { node: NodeId, round: Round },
    /// A node goes on with a training of its life before, after so many steps of it.
    TrainingResumed {
        node: NodeId,
        round: Round,
        steps: u64,
    },
    /// A node has the update that its life before has made.
    UpdateRestored { node: NodeId, round: Round },
    /// A gateway does not know what its domain's codec lost in earlier rounds: it begins at zero.
    ResidualLost { node: NodeId, round: Round },
    /// A node's update lies in its region.
    UpdateExported {
        node: NodeId,
        round: Round,
        samples: u64,
        loss: f64,
    },
    /// The peers of a node have measured all of its update.
    UpdateMeasured { node: NodeId, round: Round },
    /// Training failed.
    TrainingFailed {
        node: NodeId,
        round: Round,
        reason: String,
    },
    /// The coordinator has a node's report.
    Reported {
        round: Round,
        node: NodeId,
        norm: f64,
    },
    /// An update was refused.
    UpdateRefused {
        why: Objection,
        round: Round,
        node: NodeId,
        reason: String,
    },
    /// Something arrived after its round had closed for it.
    LateAnswered { round: Round, from: String },
    /// The same thing arrived again.
    DuplicateAnswered { round: Round, from: String },
    /// What arrived is in a committed round already.
    ReplayAnswered { round: Round, from: String },
    /// An older start of a domain's fold arrived behind a newer one.
    ReorderAnswered { round: Round, from: String },
    /// In the asynchronous mode: an update was begun too many versions ago to count. Its node goes on from the newest model.
    StaleAnswered {
        round: Round,
        node: NodeId,
        trained_for: Round,
        staleness: u64,
    },
    /// What arrived was made in another membership view than the open round's.
    EpochAnswered { round: Round, from: String },
    /// An update is longer than the bound: it counts by this factor less.
    UpdateClipped {
        round: Round,
        node: NodeId,
        factor: f64,
    },
    /// Weights are fixed; those of nodes that have drifted in the rounds before are smaller.
    Weighed {
        round: Round,
        nodes: Vec<NodeId>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        drifts: Vec<Drift>,
        /// Whose weight is not the base weight, and why.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        reasons: Vec<(NodeId, String)>,
    },
    /// A domain began to fold the updates that were weighed.
    FoldStarted {
        round: Round,
        attempt: Attempt,
        domain: DomainId,
    },
    /// A domain starts its fold anew with these members.
    Regrouped {
        round: Round,
        attempt: Attempt,
        domain: DomainId,
        members: Vec<NodeId>,
    },
    /// A domain's contribution is made, and announced to the coordinator.
    Contributed {
        round: Round,
        attempt: Attempt,
        domain: DomainId,
    },
    /// A domain's contribution, with the updates of these members, is durably noted.
    Acknowledged {
        round: Round,
        attempt: Attempt,
        domain: DomainId,
        weight: f64,
        members: Vec<NodeId>,
    },
    /// The quorum is there; the grace runs.
    QuorumReached { round: Round },
    /// The coordinator has received and folded all contributions.
    ContributionsFolded { round: Round },
    /// Ranks that live do not answer: who waits for whom. Their work is given to others.
    Stalled {
        round: Round,
        domain: DomainId,
        chain: Vec<String>,
    },
    /// A domain cannot take part, and was sent away.
    TurnedAway {
        domain: DomainId,
        why: Misfit,
        reason: String,
    },
    /// A domain is out of the round.
    DomainDropped {
        round: Round,
        domain: DomainId,
        reason: String,
    },
    /// A round ended.
    Round(RoundRecord),
    /// A domain's gateway has a committed model, and shows it to its domain.
    ModelObtained { domain: DomainId, round: Round },
    /// A node adopted a committed model.
    ModelAdopted {
        node: NodeId,
        round: Round,
        hash: Hash,
        healed: bool,
    },
    /// A node's copy of a model was not that model any more when it was to train from it for `round`: memory that fails, or code that writes
    /// where it should not. It reads the model anew.
    ModelDiverged {
        node: NodeId,
        round: Round,
        model: Round,
        expected: Hash,
        found: Hash,
    },
    /// A node that was behind has a whole model, verified: so many chunks of 1 MiB came from these peers, and so many were at hand. What was
    /// asked for in vain, because a source failed or was slow, was asked for `again`.
    ModelHealed {
        node: NodeId,
        round: Round,
        kept: u64,
        again: u64,
        from: Vec<Share>,
    },
    /// A peer sent something else than the model that it was asked for: it is not asked any more in this transfer.
    HealRefused {
        node: NodeId,
        peer: NodeId,
        round: Round,
        reason: String,
    },
    /// New leaves of the record are signed and offered: which gateways have cosigned the head before them, and which have not.
    RecordSigned {
        round: Round,
        size: u64,
        by: Vec<NodeId>,
        behind: Vec<NodeId>,
    },
    /// A node does not take what another says of the record; or its own copy cannot be used.
    RecordRefused {
        node: NodeId,
        by: NodeId,
        reason: String,
    },
    /// Two histories were signed, and a node holds the proof.
    RecordForked {
        node: NodeId,
        by: NodeId,
        reason: String,
    },
    /// The cosignatures of a gateway did not come to a node with some heads in a row.
    RecordMissing { node: NodeId, by: NodeId },
    /// Actors wait for each other in a ring, and none of them goes on by itself: who waits for whom, and how long all of it has stood.
    Deadlocked {
        node: NodeId,
        ring: Vec<String>,
        standing_ms: u64,
    },
    /// An actor panicked and is being rebuilt.
    ActorRestarted {
        actor: String,
        key: String,
        reason: String,
        restarts: u32,
    },
    /// An actor panicked too often and stays down.
    ActorGivenUp {
        actor: String,
        key: String,
        reason: String,
        restarts: u32,
    },
    /// The run ended.
    Finished(Finished),
}

/// A node that waits for others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Which.
    pub node: NodeId,
    /// Where it listens.
    pub address: String,
    /// Whom it needs and does not reach.
    pub missing: Vec<Missing>,
    /// How many of those it needs are there.
    pub have: usize,
    /// How many it needs.
    pub need: usize,
    /// Whole seconds until the open round ends, or else until the node gives up; none if neither will happen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_s: Option<u64>,
    /// The open round; known to the coordinator only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<Round>,
}

/// A peer that is needed and not reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Who.
    pub node: NodeId,
    /// Where it is dialled, as far as that is known.
    pub address: Option<String>,
}

/// A peer's part of a model that was healed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Who.
    pub peer: NodeId,
    /// How many chunks came from it.
    pub chunks: u64,
}

/// Why something that arrived counts for nothing, or not in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objection {
    /// Its round has closed, or passed the gate that it was for.
    Late,
    /// The same is here already.
    Duplicate,
    /// The same is in a committed round already.
    Replayed,
    /// Something newer of the same sender is here.
    Reordered,
    /// Too many versions old, in the asynchronous mode.
    TooStale,
    /// Another membership view.
    WrongEpoch,
    /// Other tensors, or another length, than the model's.
    WrongShape,
    /// An element, or the norm, is not finite.
    NotFinite,
    /// Longer than the bound: it is clipped.
    OverNorm,
    /// Nobody asked for it in this round.
    NotAsked,
    /// It cannot be used for another reason, which is told with it.
    Unusable,
}

/// Why a domain cannot take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Misfit {
    /// Its trainer has other tensors.
    Model,
    /// It holds a model that this coordinator never committed: it comes from another run, or the coordinator lost rounds.
    Past,
}

impl Event {
    /// The objection that the event is about, if it is about one.
    pub fn objection(&self) -> Option<Objection> {
        Some(match self {
            Event::LateAnswered { .. } => Objection::Late,
            Event::DuplicateAnswered { .. } => Objection::Duplicate,
            Event::ReplayAnswered { .. } => Objection::Replayed,
            Event::ReorderAnswered { .. } => Objection::Reordered,
            Event::EpochAnswered { .. } => Objection::WrongEpoch,
            Event::StaleAnswered { .. } => Objection::TooStale,
            Event::UpdateClipped { .. } => Objection::OverNorm,
            Event::UpdateRefused { why, .. } => *why,
            _ => return None,
        })
    }
}

/// The last line of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Rounds that ended in this federation's life, aborted ones included.
    pub rounds: u64,
    /// With everyone.
    pub committed: u64,
    /// With some.
    pub degraded: u64,
    /// Without a commit.
    pub aborted: u64,
    /// Last committed model on the test rows.
    pub accuracy: f64,
    /// Last committed model on the test rows.
    pub loss: f64,
    /// BLAKE3 of the last committed model.
    pub model_hash: Hash,
    /// Why the run ended before its last round; empty if it did not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Monotonic seconds.
    pub wall_s: f64,
}

impl Finished {
    /// The last word of a process that saw no round end, and why.
    pub fn without_rounds(reason: String) -> Self {
        Finished {
            rounds: 0,
            committed: 0,
            degraded: 0,
            aborted: 0,
            accuracy: 0.0,
            loss: 0.0,
            model_hash: Hash::default(),
            reason,
            wall_s: 0.0,
        }
    }

    /// Whether a user has ended the run, which has not failed then.
    pub fn was_stopped(&self) -> bool {
        self.reason.starts_with(crate::coordinator::STOPPED)
    }

    /// Whether rounds ended and none of them ever met its quorum.
    pub fn never_met_quorum(&self) -> bool {
        self.committed + self.degraded == 0 && self.aborted > 0
    }
}
