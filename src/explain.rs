//! Why a round, a node or a link went as it did, from the events that were recorded: nothing here is measured a second time.
//!
//! [`Chronicle`] reads `events.jsonl` and the older files beside it in the order in which they were written; [`round`], [`node`] and [`link`] pass
//! over it once and keep only what they tell of. The record is the coordinator's process's: of nodes in other processes it knows what they reported.

mod chronicle;
mod clocks;
mod course;
mod link;
mod merged;
mod node;
mod round;

#[cfg(test)]
mod tests;

use thiserror::Error;

pub use chronicle::{Chronicle, Past};
pub(crate) use chronicle::{LINE_BYTES_MAX, Lives, OLD_MAX, RUN_RECORD, last_told, own_record};
pub use clocks::{Clocks, Place, Survey};
pub use course::{Cause, Share, Step, SumSpan, limit};
pub(crate) use course::{Course, Lines};
pub use link::{Limit, LinkStory, link};
pub use merged::{Merged, Placed};
pub use node::{Asked, NodeStory, node};
pub use round::{DomainStory, Fate, NodeRound, RoundStory, round};

use serde::Serialize;
use tombolo_core::event::Event;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::text::{clip, span};

/// Incidents of a story; what happened before the last ones is counted only.
const INCIDENTS_MAX: usize = 40;

/// Why nothing can be explained.
#[derive(Debug, Error)]
pub enum ExplainError {
    /// Nothing was recorded.
    #[error(
        "no events are recorded in {0}; name the state folder of a run with --state, or the topology's file"
    )]
    Nothing(String),
    /// The record does not know of it.
    #[error("{what} is not in the record; {known}")]
    Unknown {
        /// What was asked for.
        what: String,
        /// What is there.
        known: String,
    },
}

/// Something that happened to a node or a link, in words.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Incident {
    /// Seconds since the recording process began.
    pub at: f64,
    /// How many times that process had been started before.
    pub life: u64,
    /// What.
    pub what: String,
}

/// The last incidents.
#[derive(Debug, Default)]
struct Incidents {
    kept: std::collections::VecDeque<Incident>,
    earlier: u64,
    /// If the last one is of updates that were made shorter: of which round the first was, and how many there were.
    clipped: Option<(Round, u64)>,
}

impl Incidents {
    fn push(&mut self, past: &Past, what: String) {
        self.clipped = None;
        if self.kept.len() == INCIDENTS_MAX {
            self.kept.pop_front();
            self.earlier += 1;
        }
        self.kept.push_back(Incident {
            at: past.at,
            life: past.life,
            what: clip(what),
        });
    }

    /// An update that was made shorter. That is no accident, and may happen in every round: those that follow each other are one line.
    fn push_clipped(&mut self, past: &Past, round: Round, factor: f64) {
        let (first, count) = self.clipped.unwrap_or((round, 0));
        let what = match count {
            0 => format!("round {round}: longer than the bound, made shorter by {factor:.3}"),
            _ => format!(
                "rounds {first} to {round}: {} times longer than the bound and made shorter, at last by {factor:.3}",
                count + 1
            ),
        };
        match self.kept.back_mut().filter(|_| count > 0) {
            Some(last) => last.what = what,
            None => self.push(past, what),
        }
        self.clipped = Some((first, count + 1));
    }
}

/// What an event says of how one node sees another one, or of a link between the two: who saw it, whom, and what.
pub(crate) fn between(event: &Event) -> Option<(&NodeId, &NodeId, String)> {
    Some(match event {
        Event::LinkUp { node, peer } => (node, peer, "the link is up".to_owned()),
        Event::LinkDown { node, peer, reason } => {
            (node, peer, format!("the link is down: {reason}"))
        }
        Event::LinkRefused { node, peer, reason } => {
            (node, peer, format!("the link is refused: {reason}"))
        }
        Event::PeerSuspected {
            node,
            peer,
            silent_ms,
        } => (
            node,
            peer,
            format!("suspected: silent for {silent_ms} ms, longer than a living peer would be"),
        ),
        Event::PeerRecovered {
            node,
            peer,
            silent_ms,
            lost,
        } => {
            let before = if *lost { "lost" } else { "suspected" };
            let what = format!("heard again after {silent_ms} ms; it was {before}");
            (node, peer, what)
        }
        Event::PeerLost { node, peer } => (
            node,
            peer,
            "lost: every retry failed, out of the round".to_owned(),
        ),
        Event::PeerOverdue { node, peer } => (
            node,
            peer,
            "the time to restore is over: to be evicted".to_owned(),
        ),
        Event::PeerLeft { node, peer } => (node, peer, "left".to_owned()),
        Event::ClockJumped { node, peer } => (
            node,
            peer,
            "its clock jumped: one of the two was stopped or set".to_owned(),
        ),
        Event::PolicyDenied { node, verdict } => (
            node,
            &verdict.identity,
            format!("denied by policy: {verdict}"),
        ),
        Event::RecordRefused { node, by, reason } => (
            node,
            by,
            format!("its word on the record is refused: {reason}"),
        ),
        Event::RecordForked { node, by, reason } => {
            (node, by, format!("it signed two records: {reason}"))
        }
        Event::HealRefused {
            node,
            peer,
            round,
            reason,
        } => {
            let what = format!("its chunks of model {round} are refused: {reason}");
            (node, peer, what)
        }
        _ => return None,
    })
}

/// What an event says of a node, a domain or an actor that failed; `None` if it says nothing of that sort.
pub fn trouble(event: &Event) -> Option<String> {
    Some(match event {
        Event::LinkRefused { node, peer, reason } => {
            format!("{node} cannot talk to {peer}: {reason}")
        }
        Event::PolicyDenied { verdict, .. } => format!("denied by policy: {verdict}"),
        Event::CertificateEnds { node, left_s, .. } => format!(
            "the certificate of {node} is good for another {}: renew it with `tombolo certs rotate`",
            span(*left_s)
        ),
        Event::CertificateKept { node, reason } => {
            format!("{node} keeps the certificate and roots that it had: {reason}")
        }
        Event::CertificateLost { node, reason } => format!("{node}: {reason}"),
        Event::CertificatesRevoked {
            node,
            domain,
            number,
            count,
        } => format!(
            "{node} has learnt that {domain} has revoked {count} certificates (list {number})"
        ),
        Event::PeerLost { peer, .. } => format!("{peer} gives no sign of life"),
        Event::CoordinatorPromoted { node, epoch } => {
            format!("{node} is the coordinator from membership view {epoch} on")
        }
        Event::CoordinatorSteppedDown {
            node, by, epoch, ..
        } => format!(
            "{node} coordinates no more: {by} is the coordinator since membership view {epoch}"
        ),
        Event::RunPaused { by, open, .. } => match open {
            Some(round) => {
                format!(
                    "the run is paused by {by} behind round {round}: no other is opened until `tombolo resume`"
                )
            }
            None => {
                format!("the run is paused by {by}: no round is opened until `tombolo resume`")
            }
        },
        Event::RunResumed { by } => format!("{by} goes on with the run"),
        Event::RunAmended { by, open, .. } => match open {
            Some(round) => {
                format!("{by} has amended the topology: behind round {round} all begin again by it")
            }
            None => format!("{by} has amended the topology: all begin again by it"),
        },
        Event::RunStopping { by, now, open } => match open.filter(|_| !now) {
            Some(round) => format!("{by} ends the run behind round {round}"),
            None => format!("{by} ends the run"),
        },
        Event::NodeEvicted { node, .. } => format!("{node} is out until its cool-down is over"),
        Event::DomainDropped { domain, reason, .. } => {
            format!("domain {domain} is out: {reason}")
        }
        Event::TurnedAway { domain, reason, .. } => {
            format!("domain {domain} was sent away: {reason}")
        }
        Event::HealRefused {
            node, peer, reason, ..
        } => {
            format!("{peer} sent {node} a wrong part of the model: {reason}")
        }
        Event::RecordRefused { node, by, reason } if node == by => format!("{node}: {reason}"),
        Event::RecordRefused { node, by, reason } => {
            format!("{node} does not take what {by} says of the record: {reason}")
        }
        Event::RecordForked { node, by, reason } => {
            format!("{by} has signed two records, {node} holds the proof: {reason}")
        }
        Event::RecordMissing { node, by } => {
            format!(
                "{node} has not seen the cosignature of {by} for some rounds: it is away, or is kept from it"
            )
        }
        Event::GaveUp { reason, .. } => reason.clone(),
        Event::Stalled { domain, chain, .. } => {
            format!("work stands still in domain {domain}: {}", chain.join(", "))
        }
        Event::ModelDiverged {
            node,
            model,
            expected,
            found,
            ..
        } => format!(
            "the copy of model {model} on {node} has changed: hash {found}, expected {expected}; it reads it anew"
        ),
        Event::Deadlocked {
            ring, standing_ms, ..
        } => format!(
            "actors wait for each other, for {standing_ms} ms already: {}",
            ring.join(", ")
        ),
        Event::UpdateRefused { node, reason, .. } => {
            format!("the update of {node} was refused: {reason}")
        }
        Event::TrainingFailed { node, reason, .. } => {
            format!("training failed on {node}: {reason}")
        }
        Event::ActorRestarted {
            actor, key, reason, ..
        } => format!("{actor} of {key} was rebuilt: {reason}"),
        Event::ActorGivenUp {
            actor, key, reason, ..
        } => format!("{actor} of {key} failed too often and stays down: {reason}"),
        _ => return None,
    })
}
