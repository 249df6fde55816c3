//! Users' texts that would fill a message, an event or a report: they are cut, and the rounds go on.

use std::sync::Arc;

use tombolo_core::aggregate::{AggregateError, Aggregator, Report, Weight};
use tombolo_core::event::{Event, RoundState};
use tombolo_core::text::TEXT_BYTES_MAX;
use tombolo_core::trainer::{Task, TrainError};

use crate::stand::{PINNED, Prank, Tiny, federation, run, topology, within_limit};

/// Longer than any message may be.
fn long() -> String {
    "é".repeat(tombolo_core::wire::CONTROL_BYTES_MAX)
}

/// Everybody but one must be in, so that on a slow machine nobody else is left out.
const MOST: &str = "quorum = { nodes = 5, domains = 2 }\ngrace = \"20s\"\ndeadline = \"60s\"";

/// flower#1400: however much it says, the cause of a node's failure reaches whoever looks.
#[test]
fn a_trainer_that_fails_at_length_is_named_and_the_rounds_go_on() {
    let failures: [fn() -> Result<(), TrainError>; 2] =
        [|| Err(TrainError(long())), || panic!("{}", long())];
    for failure in failures {
        let prank: Prank = Arc::new(move |task: &Task, _: &mut [f32]| {
            if (task.node.as_str(), task.round) == ("plant/c", 2) {
                failure()?;
            }
            Ok(None)
        });
        let (report, events) = run(&topology(3, MOST), move |_| Tiny::with(prank.clone()));
        let states: Vec<RoundState> = report.rounds.iter().map(|round| round.state).collect();
        let (good, short) = (RoundState::Committed, RoundState::Degraded);
        assert_eq!(states, [good, short, good], "{:?}", report.rounds);
        let reason = &report.rounds[1].reason;
        assert!(reason.len() <= TEXT_BYTES_MAX, "{}", reason.len());
        assert!(reason.contains("plant/c: "), "{reason}");
        let told = events.iter().filter_map(|event| match event {
            Event::TrainingFailed { reason, .. } | Event::UpdateRefused { reason, .. } => {
                Some(reason)
            }
            _ => None,
        });
        let told: Vec<usize> = told.map(String::len).collect();
        assert!(!told.is_empty());
        assert!(told.iter().all(|len| *len <= TEXT_BYTES_MAX), "{told:?}");
    }
}

/// Counts everybody alike and gives reasons without an end.
struct Talker;

impl Aggregator for Talker {
    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        let weight = |report: &Report| Weight {
            node: report.node.clone(),
            weight: 1.0,
            clip: 1.0,
            reason: long(),
        };
        Ok(reports.iter().map(weight).collect())
    }
}

#[test]
fn a_rule_with_endless_reasons_hangs_no_round() {
    let toml = topology(2, PINNED).replace("\"fedavg\"", "\"talker\"");
    let (_folder, federation) = federation(&toml);
    let federation = federation
        .trainer(|_| Tiny::new())
        .aggregator("talker", || Talker);
    let report = within_limit(async { federation.spawn().await.unwrap().run().await.unwrap() });
    assert!(report.succeeded(), "{report:?}");
    assert_eq!(report.finished.committed, 2);
}
