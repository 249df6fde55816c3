//! Who is put out and let in again, and who succeeds a lost gateway.

use tombolo::Round;
use tombolo::simulation::{Simulation, SimulationReport, crash, partition, restart, secs};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;

use crate::dropout::COAST;

/// A round takes about an eighth of a second; the ladder ends within the run.
fn coast(heartbeat: &str) -> Simulation {
    let text = COAST.replace("rounds = 12", "rounds = 120").replace(
        "name = \"plant\"",
        "name = \"plant\"\ngateways = [\"gate\", \"c\"]",
    );
    Simulation::from_toml(&format!("{text}\n[heartbeat]\n{heartbeat}"))
        .unwrap()
        .limit(secs(3600))
}

const SHORT: &str = r#"
    retry = ["200ms", "400ms"]
    restore_limit = "2s"
    cooldown = { first = "4s", cap = "1min" }
"#;

fn healthy(report: &SimulationReport) {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    let aborted = report.rounds().iter().filter(|round| !round.is_committed());
    assert_eq!(aborted.count(), 0, "{:#?}", report.rounds());
}

fn views(report: &SimulationReport) -> Vec<&Event> {
    let events = report.events.iter().map(|(_, event)| event);
    events
        .filter(|event| {
            matches!(
                event,
                Event::NodeEvicted { .. }
                    | Event::NodeReadmitted { .. }
                    | Event::EpochChanged { .. }
            )
        })
        .collect()
}

fn node(text: &str) -> NodeId {
    text.parse().unwrap()
}

/// torchft#63, hivemind#525: a dead member leaves the count, a restarted one gets work again.
/// horovod#3319: it has a cool-down first.
#[test]
fn who_is_silent_through_the_ladder_is_put_out_and_let_in_again_after_its_cool_down() {
    let report = coast(SHORT)
        .at(secs(2), crash("lab/e"))
        .at(secs(8), restart("lab/e"))
        .run()
        .unwrap();
    healthy(&report);
    let evicted = views(&report).into_iter().find_map(|event| match event {
        Event::NodeEvicted { node, epoch, .. } => Some((node.clone(), *epoch)),
        _ => None,
    });
    assert_eq!(evicted, Some((node("lab/e"), 2)), "{:#?}", views(&report));
    assert!(
        views(&report).contains(&&Event::NodeReadmitted {
            node: node("lab/e"),
            epoch: 3
        }),
        "{:#?}",
        views(&report)
    );
    let without: Vec<&Round> = report
        .rounds()
        .iter()
        .filter(|round| round.epoch == 2)
        .collect();
    assert!(!without.is_empty());
    for round in &without {
        assert!(!round.counted.contains(&node("lab/e")), "{round:#?}");
        assert!(
            !round.late.contains(&node("lab/e")),
            "nobody asked it: {round:#?}"
        );
    }
    let last = report.rounds().last().unwrap();
    assert_eq!((last.epoch, last.counted.len()), (3, 9), "{last:#?}");
}

/// A domain whose gateway dies goes on under its successor, and the old one comes back as a member.
#[test]
fn a_lost_gateway_is_succeeded_and_comes_back_as_a_member() {
    let report = coast(SHORT)
        .at(secs(2), crash("plant/gate"))
        .at(secs(9), restart("plant/gate"))
        .run()
        .unwrap();
    healthy(&report);
    let last = report.rounds().last().unwrap();
    assert_eq!(last.counted.len(), 9, "{last:#?}");
    let succeeded = views(&report).into_iter().any(|event| match event {
        Event::EpochChanged { view } => view.is_gateway(&node("plant/c")),
        _ => false,
    });
    assert!(succeeded, "{:#?}", views(&report));
    assert!(views(&report).iter().any(|event| matches!(event, Event::NodeReadmitted { node: who, .. } if *who == node("plant/gate"))));
    let under_successor = report.rounds().iter().filter(|round| {
        round.counted.contains(&node("plant/d")) && !round.counted.contains(&node("plant/gate"))
    });
    assert!(under_successor.count() > 0, "{:#?}", report.rounds());
}

/// A gateway that is cut off from the coordinator, and from nobody else, hands over; what it still says counts for nothing.
#[test]
fn a_gateway_that_is_cut_off_from_the_coordinator_hands_over_to_one_that_is_not() {
    let report = coast(SHORT)
        .between(secs(2), secs(12), partition(["hq"], ["plant/gate"]))
        .run()
        .unwrap();
    healthy(&report);
    let all: Vec<&Round> = report
        .rounds()
        .iter()
        .filter(|round| round.counted.contains(&node("plant/gate")))
        .collect();
    let last = report.rounds().last().unwrap();
    assert_eq!(last.counted.len(), 9, "{last:#?}");
    assert!(
        all.len() > report.rounds().len() - 20,
        "it goes on as a member: {} of {}",
        all.len(),
        report.rounds().len()
    );
}
