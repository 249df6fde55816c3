//! A member that dies or stands still while its domain measures and folds.

use std::time::Duration;

use tombolo::simulation::{Simulation, SimulationReport, crash, freeze, millis, secs};
use tombolo_core::event::Event;
use tombolo_core::time::Micros;

use crate::dropout::COAST;

/// The round in which it happens.
const ROUND: u64 = 4;
const VICTIM: &str = "plant/c";

/// A model of several blocks, so that each rank has slices of its own, and time enough to fold again.
fn coast() -> Simulation {
    let text = COAST
        .replace("rounds = 12", "rounds = 5")
        .replace("grace = \"1s\"", "grace = \"10s\"")
        .replace("\"digits-softmax\"", "\"digits-mlp\"\n    hidden = 100");
    Simulation::from_toml(&text).unwrap().limit(secs(600))
}

fn moment(report: &SimulationReport, what: impl Fn(&Event) -> bool) -> Duration {
    let found = report.events.iter().find(|(_, event)| what(event));
    found.unwrap().0.since(Micros::default())
}

/// When the domain's last sum of the round was acknowledged.
fn folded(report: &SimulationReport) -> Duration {
    let sum = |event: &Event| matches!(event, Event::Acknowledged { round: ROUND, domain, .. } if domain.as_str() == "plant");
    let mut sums = report.events.iter().filter(|(_, event)| sum(event));
    sums.next_back().unwrap().0.since(Micros::default())
}

fn ended(event: &Event) -> bool {
    matches!(event, Event::Round(record) if record.round == ROUND)
}

/// Field fault: when a member dies or hangs in a collective, the others get a typed error within the heartbeat limit, keep no partial sums,
/// regroup and redo; no survivor exits. torchft#164, pytorch#111646, pytorch#97191, ucx#5027, pccl#13. That the mean is exactly the survivors'
/// is ROUND-1, which every simulation checks. (A wrong size: `an_export_of_another_epoch_or_shape_is_answered_as_what_it_is` in
/// `core/src/gateway/tests/views.rs`.)
#[test]
fn whoever_dies_or_stands_still_in_a_collective_costs_the_others_one_regroup() {
    let calm = coast().run().unwrap();
    let limit = coast().plan().heartbeat.limit();
    let weighed = |event: &Event| matches!(event, Event::Weighed { round: ROUND, .. });
    let (from, until) = (moment(&calm, weighed), moment(&calm, ended));
    assert!(until - from > millis(5), "{from:?} to {until:?}");
    let (mut regrouped, mut without) = (0, 0);
    for fault in [crash(VICTIM), freeze(VICTIM)] {
        for nth in 0..6 {
            let at = from + (until - from) * nth / 6;
            let report = coast().at(at, fault.clone()).run().unwrap();
            let replay = format!("{fault:?} at {at:?}");
            assert_eq!(report.violations, [], "{replay}");
            assert_eq!(report.finished.reason, "", "{replay}");
            let rounds = report.rounds();
            assert!(rounds.iter().all(|round| round.is_committed()), "{replay}");
            // Whoever is still counted has left an update; all others always have.
            let counted = &rounds[ROUND as usize - 1].counted;
            assert!(counted.len() >= 8, "{replay}: {counted:?}");
            without += usize::from(counted.len() == 8);
            // The coordinator may wait out its grace for the missing one; the others' sum is there before.
            let took = folded(&report).saturating_sub(at);
            assert!(
                took <= limit + millis(100),
                "{replay}: {took:?}, the limit is {limit:?}"
            );
            let again = |event: &&Event| matches!(event, Event::Regrouped { round: ROUND, domain, members, .. } if domain.as_str() == "plant" && members.len() == 2);
            let events = report.events.iter().map(|(_, event)| event);
            regrouped += events.filter(again).count();
        }
    }
    assert!(
        regrouped > 0 && without > 0,
        "{regrouped} {without}: nothing was tested"
    );
}
