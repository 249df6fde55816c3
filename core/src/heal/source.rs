//! Somebody who may have the model, as a transfer sees it.

use std::time::Duration;

use super::Candidate;
use crate::ids::NodeId;
use crate::time::Micros;

/// How far it is with a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not asked yet, or to be asked again.
    New,
    /// Asked for the outline.
    Asked,
    /// It has sent it: it holds the model.
    Holds,
    /// It is not asked any more.
    Out,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) node: NodeId,
    pub(super) last: bool,
    near: bool,
    pub(super) round_trip: Option<Duration>,
    pub(super) reached: bool,
    /// While it is not reached.
    pub(super) awaited_until: Micros,
    /// When it was asked for the outline.
    pub(super) asked_at: Micros,
    pub(super) rests_until: Micros,
    /// In a row.
    pub(super) rests: u32,
    pub(super) stage: Stage,
    pub(super) lied: bool,
    /// What was wrong last.
    pub(super) word: String,
    /// Chunks that came from it.
    pub(super) given: u64,
}

impl Source {
    pub(super) fn new(candidate: Candidate, lied: bool) -> Self {
        Source {
            node: candidate.node,
            last: candidate.last,
            near: candidate.near,
            round_trip: candidate.round_trip,
            reached: candidate.reached,
            awaited_until: Micros::default(),
            asked_at: Micros::default(),
            rests_until: Micros::default(),
            rests: 0,
            stage: if lied { Stage::Out } else { Stage::New },
            word: if lied {
                "has sent something wrong before".into()
            } else {
                String::new()
            },
            lied,
            given: 0,
        }
    }

    /// The nearest first: the own domain, then by the round trip. The name settles it.
    pub(super) fn distance(&self) -> (bool, bool, Duration, NodeId) {
        let round_trip = self.round_trip.unwrap_or(Duration::MAX);
        (self.last, !self.near, round_trip, self.node.clone())
    }

    /// Whether anything may still come from it. Whoever comes last is waited for until the end.
    pub(super) fn may_help(&self, now: Micros) -> bool {
        self.stage != Stage::Out && (self.reached || self.last || now < self.awaited_until)
    }

    /// Whether it is worth waiting for before somebody who comes last is asked: who does not even say what it holds is not, nor is somebody of
    /// another domain to whom there is no way now.
    pub(super) fn is_hoped_for(&self, now: Micros, patience: Duration) -> bool {
        let mute = self.stage == Stage::Asked && now >= self.asked_at + patience;
        self.may_help(now) && !mute && (self.reached || self.near)
    }

    pub(super) fn can_be_asked(&self, now: Micros) -> bool {
        self.reached && now >= self.rests_until
    }

    /// Takes one of the places of those who are asked at once.
    pub(super) fn is_at_work(&self) -> bool {
        self.reached && matches!(self.stage, Stage::Asked | Stage::Holds)
    }
}
