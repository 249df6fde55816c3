//! What came of a run.

use std::collections::BTreeMap;

use tombolo_core::event::{Finished, Objection, RoundRecord};

/// What came of a run.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Report {
    /// The last line.
    pub finished: Finished,
    /// The rounds that ended while this process ran, in order.
    pub rounds: Vec<RoundRecord>,
    /// What arrived and counted for nothing, or not in full, while this process ran: how often, by reason.
    pub objections: BTreeMap<Objection, u64>,
}

impl Report {
    /// The rounds, in order.
    pub fn rounds(&self) -> &[RoundRecord] {
        &self.rounds
    }

    /// Whether the run came to its planned end and a round was committed on the way.
    pub fn succeeded(&self) -> bool {
        self.finished.reason.is_empty() && !self.never_met_quorum()
    }

    /// Whether no round ever met its quorum.
    pub fn never_met_quorum(&self) -> bool {
        self.finished.never_met_quorum()
    }
}
