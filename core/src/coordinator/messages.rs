//! What a coordinator hears, and what it wants done.

use std::time::Duration;

use super::{Amendment, Held, Order, OrderAnswer, Paused, Resumed, Told, Weighing};
use crate::aggregate::feedback::Drift;
use crate::aggregate::{Report, Weight};
use crate::event::{Finished, RoundRecord};
use crate::ids::{Attempt, DomainId, Epoch, NodeId, Round};
use crate::membership::{NotLifted, Word};
use crate::pace::Pace;
use crate::staleness::Past;
use crate::tensor::Hash;
use crate::view::View;
use crate::wire::{Contribution, Control};

/// What comes in.
#[derive(Debug)]
pub enum Message {
    /// The last committed state was loaded (or made): rounds may begin, or the one that was interrupted goes on.
    Start(Box<Committed>, Option<Box<Resumed>>),
    /// What the record says already, before the start; none if none can be kept.
    Told(Option<Told>),
    /// A node's certificate, verified: it signs under its key.
    Certified(NodeId, Vec<u8>),
    /// That root vouches for a domain's nodes from now on.
    Rooted(DomainId, Vec<u8>),
    /// It does not any more.
    Unrooted(DomainId, Vec<u8>),
    /// A domain has revoked certificates, by that list.
    Revoked(DomainId, Vec<u8>),
    /// What was told of a round is written down, and these gateways have signed it.
    Cosigned(Round, Vec<NodeId>),
    /// There is no state to begin from, and why: the run is over before its first round.
    Fail(String),
    /// A gateway, or a successor of one, can be reached.
    Up(NodeId),
    /// What the watch over a gateway, or over a successor of one, found.
    Watched(NodeId, Word),
    /// From a node that the sender's view holds for its domain's gateway.
    Domain(NodeId, Control),
    /// A view is on stable storage, or cannot be written down.
    Viewed(Epoch, Result<(), String>),
    /// A user lifts the cool-down of a node; answered at once with [`Effect::Lifted`].
    Readmit(NodeId),
    /// A user asks something of the run; answered under this number with [`Effect::Ordered`].
    Order(u64, Order),
    /// A pause, or its end, is on stable storage, or cannot be written down.
    Held(u64, Result<Held, String>),
    /// By which topology the run goes on is on stable storage, or cannot be written down.
    Amended(u64, Result<(), String>),
    /// The aggregator's word.
    Weighed(Round, Result<Vec<Weight>, String>),
    /// What was fixed at the first gate is on stable storage.
    Fixed(Round, Result<(), String>),
    /// A contribution is on stable storage, or why not.
    Noted(Round, DomainId, Attempt, Result<(), NoteError>),
    /// All contributions are folded, or one domain's could not be had.
    Folded(Round, u32, Result<(), FoldError>),
    /// The outer step is taken and its result evaluated, or it cannot be used.
    Computed(Round, Result<Outcome, String>),
    /// The new state is on stable storage and recorded, or cannot be written down.
    Committed(Round, Result<(), String>),
    /// The record of an aborted round is on stable storage and reported, or cannot be written down.
    Recorded(Round, Result<(), String>),
    /// End the run now; what is not committed is not lost, it was never promised.
    Stop(String),
}

/// Why the global fold failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoldError {
    /// A domain's bytes could not be had or were not the announced ones: fold again without it.
    Domain(DomainId, String),
    /// The result cannot be used.
    Result(String),
}

/// A contribution that could not be noted, and who is to blame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// What is written here does not stay: it is not worth waiting for another one.
    #[error(
        "the coordinator's disk does not take it: {0}; make room on it, or give it another state folder"
    )]
    Disk(String),
    /// The bytes that the journal is to keep did not come, or are not the announced ones: the domain may contribute through its next gateway.
    #[error("its bytes could not be had: {0}")]
    Bytes(String),
}

/// What is known of the past.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// Drawn when the run began.
    pub run: Hash,
    /// The last round that ended, committed or not.
    pub ended: Round,
    /// The round whose commit made the current model.
    pub round: Round,
    /// That model's hash.
    pub hash: Hash,
    /// Rounds ended so far: with everyone, with some, without a commit.
    pub tally: (u64, u64, u64),
    /// The last evaluation.
    pub accuracy: f64,
    /// The last evaluation.
    pub loss: f64,
    /// The last view that was written down; none yet in a run's first life.
    pub view: Option<View>,
    /// What is known of earlier updates, in the asynchronous mode.
    pub past: Past,
    /// Who has drifted away, as the last round's record says.
    pub drifts: Vec<Drift>,
    /// How fast nodes are, as the last round's record says.
    pub paces: Vec<Pace>,
    /// What was acknowledged for the last round although its record does not name everybody inside; see [`overtaken`].
    pub overtaken: Vec<Contribution>,
    /// A pause that is in force.
    pub paused: Option<Paused>,
}

/// What an outer step brought.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The new model.
    pub hash: Hash,
    /// On the test rows.
    pub accuracy: f64,
    /// On the test rows.
    pub loss: f64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send to a domain's acting gateway.
    Tell(DomainId, Control),
    /// Send to a gateway, to a successor of one, or to this node itself.
    Send(NodeId, Control),
    /// Write a view durably, created if absent; answer with [`Message::Viewed`].
    View(View),
    /// Send the model of a round along with the word that it is committed, so that it need not be asked for.
    Offer(DomainId, Round),
    /// Ask the aggregator; answer with [`Message::Weighed`].
    Weigh(Round, Vec<Report>),
    /// Write durably; answer with [`Message::Fixed`].
    Fix(Box<Weighing>),
    /// Write durably; answer with [`Message::Noted`].
    Note(Contribution),
    /// Fetch and fold these, in this order; answer with [`Message::Folded`].
    Fold(Round, u32, Vec<Contribution>),
    /// Take the outer step on the mean that was folded and evaluate; answer with [`Message::Computed`]. Only a commit makes the step count.
    Compute(Round),
    /// Write what was computed, record; complete the record with what only doing it can tell; report it; answer with
    /// [`Message::Committed`].
    Commit(Box<RoundRecord>),
    /// A round ended without a commit, whatever is still at work for it: complete the record, write it, report it; answer with
    /// [`Message::Recorded`].
    Record(Box<RoundRecord>),
    /// Answers [`Message::Readmit`]: how much of the cool-down was left.
    Lifted(Result<Duration, NotLifted>),
    /// Write durably that the run is paused, or that it is not any more; answer with [`Message::Held`].
    Hold(u64, Option<Paused>),
    /// Write durably by which topology the run goes on; answer with [`Message::Amended`].
    Amend(u64, Amendment),
    /// Answers [`Message::Order`].
    Ordered(u64, OrderAnswer),
    /// The run is over.
    Finish(Finished),
}
