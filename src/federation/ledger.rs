//! What a run comes to, taken down where events arise, so that no slow listener can miss it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::SetOnce;

use tombolo_core::event::{Event, Finished, Objection, RoundRecord};
use tombolo_core::ids::Round;

/// The rounds that ended and the last word.
#[derive(Debug, Default)]
pub struct Ledger {
    rounds: Mutex<Vec<RoundRecord>>,
    objections: Mutex<BTreeMap<Objection, u64>>,
    finished: SetOnce<Finished>,
}

impl Ledger {
    /// Takes an event.
    pub fn record(&self, event: &Event) {
        if let Some(objection) = event.objection() {
            let objections = self.objections.lock();
            let mut objections = objections.unwrap_or_else(PoisonError::into_inner);
            *objections.entry(objection).or_default() += 1;
        }
        if let Event::Round(record) = event {
            self.lock().push(record.clone());
        }
        if let Some(finished) = last_word(event) {
            // The first one counts.
            let _ = self.finished.set(finished);
        }
    }

    /// Ends the run for this process, before its last word.
    pub fn end(&self, reason: String) {
        let _ = self.finished.set(Finished::without_rounds(reason));
    }

    /// The rounds that ended, in order, without the first `known`.
    pub fn rounds_from(&self, known: usize) -> Vec<RoundRecord> {
        self.lock().get(known..).unwrap_or_default().to_vec()
    }

    /// The last round that ended; 0 before the first.
    pub fn last_round(&self) -> Round {
        self.lock().last().map_or(0, |record| record.round)
    }

    /// What arrived and counted for nothing, or not in full: how often, by reason.
    pub fn objections(&self) -> BTreeMap<Objection, u64> {
        let objections = self.objections.lock();
        objections.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends with the run.
    pub async fn finished(&self) -> Finished {
        self.finished.wait().await.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RoundRecord>> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last word of a run, if the event is one.
fn last_word(event: &Event) -> Option<Finished> {
    match event {
        Event::Finished(finished) => Some(finished.clone()),
        // Nobody is left who could say it.
        Event::ActorGivenUp { actor, reason, .. } if actor == "Coordinator" => {
            let reason = format!("the coordinator failed too often: {reason}");
            Some(Finished::without_rounds(reason))
        }
        _ => None,
    }
}
