//! Invariants that can be read off what was reported, whoever reported it.

use std::collections::BTreeMap;

use tombolo_core::event::{Event, RoundState};
use tombolo_core::ids::Round;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;

/// What was violated, in words.
pub(super) fn violations(plan: &Plan, events: &[(Micros, Event)]) -> Vec<String> {
    let mut found = Vec::new();
    let mut ended: BTreeMap<Round, RoundState> = BTreeMap::new();
    let mut models: BTreeMap<Round, Hash> = BTreeMap::new();
    let mut opened: BTreeMap<Round, (Micros, u64)> = BTreeMap::new();
    let mut newest = 0;
    for (at, event) in events {
        match event {
            Event::RoundOpened {
                round, deadline_ms, ..
            } => {
                if *round <= newest {
                    found.push(format!(
                        "STORE-2: round {round} was opened at {at:?} after round {newest} had ended"
                    ));
                }
                opened.insert(*round, (*at, *deadline_ms));
            }
            Event::Round(record) => {
                if ended.insert(record.round, record.state).is_some() {
                    found.push(format!("ROUND-5: round {} ended twice", record.round));
                }
                newest = newest.max(record.round);
                if record.is_committed() {
                    models.insert(record.round, record.model_hash);
                }
                let mut counted = record.counted.clone();
                counted.dedup();
                if counted.len() != record.counted.len() {
                    found.push(format!(
                        "ROUND-2: round {} counts somebody twice",
                        record.round
                    ));
                }
                if let Some((since, deadline_ms)) = opened.get(&record.round) {
                    let limit =
                        std::time::Duration::from_millis(*deadline_ms) + plan.round.close_limit;
                    // What the coordinator still has to write once its limit has passed is not waiting.
                    let slack = std::time::Duration::from_secs(1);
                    if at.since(*since) > limit + slack {
                        found.push(format!(
                            "ROUND-6: round {} took {:?}, its limit is {limit:?}",
                            record.round,
                            at.since(*since)
                        ));
                    }
                }
            }
            Event::ModelAdopted {
                node, round, hash, ..
            } => match models.get(round) {
                Some(committed) if committed != hash => found.push(format!(
                    "MODEL-1: {node} adopted {hash:?} for round {round}, committed was {committed:?}"
                )),
                _ => {}
            },
            _ => {}
        }
    }
    found
}
