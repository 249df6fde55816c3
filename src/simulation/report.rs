//! What came of a simulation.

use std::collections::BTreeMap;
use std::time::Duration;

use tombolo_core::event::{Event, Finished, RoundRecord};
use tombolo_core::ids::NodeId;
use tombolo_core::record::audit::Report;
use tombolo_core::time::Micros;

use super::failure::Failure;
use super::invariant::Violation;
use super::plan::FaultPlan;
use crate::explain::Past;

/// What came of a simulation.
#[derive(Debug, Clone)]
pub struct SimulationReport {
    /// The last line.
    pub finished: Finished,
    /// Every round that ended, in order.
    pub rounds: Vec<RoundRecord>,
    /// Equal for equal seeds, topologies and versions.
    pub trace_hash: u64,
    /// How long it took in virtual time.
    pub virtual_time: Duration,
    /// Invariants that were violated; none unless there is a bug.
    pub violations: Vec<Violation>,
    /// Everything that was reported, with its virtual time.
    pub events: Vec<(Micros, Event)>,
    /// What each node's own process would have recorded, by its own clock, and beside that the virtual time; empty unless the simulation was
    /// [`observed`](super::Simulation::observed).
    pub records: BTreeMap<NodeId, Vec<(Micros, Past)>>,
    /// The world's seed.
    pub seed: u64,
    /// What was made to go wrong.
    pub faults: FaultPlan,
    /// How many leaves each gateway's copy of the record has, and their root.
    pub copies: BTreeMap<String, (u64, String)>,
    pub(super) replay: String,
}

impl SimulationReport {
    /// Every round that ended, in order.
    pub fn rounds(&self) -> &[RoundRecord] {
        &self.rounds
    }

    /// What failed, if an invariant was violated.
    pub fn failure(&self) -> Option<Failure> {
        let first = self
            .violations
            .iter()
            .min_by_key(|violation| violation.at)?;
        let before = self.events.partition_point(|(at, _)| *at <= first.at);
        Some(Failure {
            seed: self.seed,
            faults: self.faults.clone(),
            law: first.law.to_owned(),
            reasons: self.violations.iter().map(ToString::to_string).collect(),
            events: Failure::last(&self.events[..before]),
            replay: self.replay.clone(),
        })
    }

    /// The report, unless an invariant was violated.
    ///
    /// # Errors
    /// What was violated, with the last events, what was made to go wrong, and how to replay it.
    pub fn sound(self) -> Result<Self, Box<Failure>> {
        match self.failure() {
            None => Ok(self),
            Some(failure) => Err(failure.into()),
        }
    }
}

/// The copies of the record, in short.
pub(super) fn copies(audited: &Report) -> BTreeMap<String, (u64, String)> {
    let copies = audited.copies.iter();
    let heads = copies.filter_map(|copy| Some((copy.name.clone(), copy.head.as_ref()?)));
    heads
        .map(|(name, note)| (name, (note.head.size, note.head.root.to_string())))
        .collect()
}

/// One hash over everything that happened: packets (time, kind, size, ends) and events.
pub(super) fn trace_hash(packets: u64, events: &[(Micros, Event)]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&packets.to_le_bytes());
    for (at, event) in events {
        hasher.update(&at.0.to_le_bytes());
        hasher.update(&serde_json::to_vec(event).unwrap_or_default());
    }
    u64::from_le_bytes(
        hasher.finalize().as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}
