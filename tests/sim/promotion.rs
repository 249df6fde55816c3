//! No split brain: a standby that a user promotes goes on with the run, and the coordinator before it can commit nothing more, whatever it
//! still believes (ROUND-5).

use std::collections::BTreeSet;

use tombolo::Round;
use tombolo::simulation::{
    Simulation, SimulationReport, crash, freeze, partition, promote, restart, secs,
};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;

use crate::dropout::COAST;

const SEEDS: std::ops::Range<u64> = 0..2;

fn coast(seed: u64) -> Simulation {
    coast_with("nodes = 4, domains = 2", "resend", seed)
}

fn coast_with(quorum: &str, durability: &str, seed: u64) -> Simulation {
    let text = COAST
        .replace("rounds = 12", "rounds = 70")
        .replace(
            "[round]",
            &format!(
                "standby = [\"plant/gate\", \"lab/gate\"]\n    [round]\n    durability = \"{durability}\""
            ),
        )
        .replace("nodes = 4, domains = 2", quorum)
        .replace("deadline = \"30s\"", "deadline = \"3s\"");
    let text = format!(
        "{text}\n[heartbeat]\nretry = [\"200ms\", \"400ms\"]\nrestore_limit = \"2s\"\ncooldown = {{ first = \"1s\", cap = \"1s\" }}"
    );
    Simulation::from_toml(&text)
        .unwrap()
        .seed(seed)
        .limit(secs(3600))
}

fn node(text: &str) -> NodeId {
    text.parse().unwrap()
}

/// It came to its end, no law was broken, and each round was recorded once.
#[track_caller]
fn whole(report: &SimulationReport) {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    let rounds: Vec<u64> = report.rounds().iter().map(|round| round.round).collect();
    let once: BTreeSet<u64> = rounds.iter().copied().collect();
    assert_eq!(rounds.len(), once.len(), "a round was recorded twice");
    assert_eq!(once.last(), Some(&70));
    let aborted = report.rounds().iter().filter(|round| !round.is_committed());
    assert!(aborted.count() <= 3, "{:#?}", report.rounds());
}

fn promoted(report: &SimulationReport) -> Vec<(NodeId, u64)> {
    let events = report.events.iter();
    let promoted = events.filter_map(|(_, event)| match event {
        Event::CoordinatorPromoted { node, epoch } => Some((node.clone(), *epoch)),
        _ => None,
    });
    promoted.collect()
}

fn stepped_down(report: &SimulationReport) -> Vec<(NodeId, NodeId, bool)> {
    let events = report.events.iter();
    let fallen = events.filter_map(|(_, event)| match event {
        Event::CoordinatorSteppedDown {
            node, by, acted, ..
        } => Some((node.clone(), by.clone(), *acted)),
        _ => None,
    });
    fallen.collect()
}

/// The last rounds count everybody whom the promoted coordinator can reach.
fn counted_at_the_end(report: &SimulationReport) -> usize {
    report
        .rounds()
        .last()
        .map_or(0, |round| round.counted.len())
}

#[test]
fn a_standby_finishes_the_run_of_a_coordinator_that_is_lost() {
    for seed in SEEDS {
        let report = coast(seed)
            .at(secs(2), crash("hq/gate"))
            .at(secs(5), promote("plant/gate"))
            .run()
            .unwrap();
        whole(&report);
        assert_eq!(promoted(&report), [(node("plant/gate"), 2)]);
        assert_eq!(stepped_down(&report), []);
        assert_eq!(counted_at_the_end(&report), 6, "seed {seed}");
    }
}

/// It comes back, finds in the store who coordinates, and acts for its domain as any gateway.
#[test]
fn a_coordinator_that_is_restarted_after_a_promotion_is_a_gateway() {
    for seed in SEEDS {
        let report = coast(seed)
            .at(secs(2), crash("hq/gate"))
            .at(secs(4), promote("plant/gate"))
            .at(secs(6), restart("hq/gate"))
            .run()
            .unwrap();
        whole(&report);
        let fallen = [(node("hq/gate"), node("plant/gate"), false)];
        assert_eq!(stepped_down(&report), fallen);
        assert_eq!(counted_at_the_end(&report), 9, "seed {seed}");
    }
}

/// Cut off from everybody but the store: it loses every create, steps down, and after the healing there is one coordinator.
#[test]
fn a_coordinator_that_was_only_cut_off_commits_nothing_more_and_steps_down() {
    for seed in SEEDS {
        for healed in [secs(4), secs(8)] {
            let report = coast(seed)
                .between(
                    secs(2),
                    healed,
                    partition(["hq/gate"], ["plant", "lab", "hq/a", "hq/b"]),
                )
                .at(secs(3), promote("plant/gate"))
                .run()
                .unwrap();
            whole(&report);
            assert_eq!(promoted(&report), [(node("plant/gate"), 2)]);
            let fallen = [(node("hq/gate"), node("plant/gate"), true)];
            assert_eq!(stepped_down(&report), fallen);
            assert_eq!(counted_at_the_end(&report), 9, "seed {seed}");
        }
    }
}

/// Cut off together with a quorum, so that nothing but the store stands between it and a commit of its own.
#[test]
fn a_coordinator_with_a_quorum_on_its_side_is_fenced_by_the_store() {
    for seed in SEEDS {
        let report = coast_with("nodes = 3, domains = 1", "resend", seed)
            .between(secs(2), secs(5), partition(["hq", "lab"], ["plant"]))
            .at(secs(4), promote("plant/gate"))
            .run()
            .unwrap();
        whole(&report);
        let fallen = [(node("hq/gate"), node("plant/gate"), true)];
        assert_eq!(stepped_down(&report), fallen);
        assert_eq!(counted_at_the_end(&report), 9, "seed {seed}");
    }
}

/// Promoted while all is well: the user's word is enough, and the one before hears of it.
#[test]
fn a_healthy_coordinator_hands_over() {
    for seed in SEEDS {
        let report = coast(seed)
            .at(secs(2), promote("plant/gate"))
            .at(secs(4), promote("hq/gate"))
            .run()
            .unwrap();
        whole(&report);
        assert_eq!(
            promoted(&report),
            [(node("plant/gate"), 2), (node("hq/gate"), 3)]
        );
        assert_eq!(stepped_down(&report).len(), 2);
        assert_eq!(counted_at_the_end(&report), 9, "seed {seed}");
    }
}

/// In the middle of everything, with everything in hand.
#[test]
fn a_frozen_coordinator_that_wakes_can_destroy_nothing() {
    for seed in SEEDS {
        let report = coast(seed)
            .between(secs(2), secs(9), freeze("hq/gate"))
            .at(secs(4), promote("lab/gate"))
            .run()
            .unwrap();
        whole(&report);
        let fallen = [(node("hq/gate"), node("lab/gate"), true)];
        assert_eq!(stepped_down(&report), fallen);
        assert_eq!(counted_at_the_end(&report), 9, "seed {seed}");
    }
}

#[test]
fn of_two_that_are_promoted_at_once_one_coordinates() {
    for seed in SEEDS {
        let report = coast(seed)
            .at(secs(2), crash("hq/gate"))
            .at(secs(4), promote("plant/gate"))
            .at(secs(4), promote("lab/gate"))
            .run()
            .unwrap();
        whole(&report);
        let [(one, 2)] = &promoted(&report)[..] else {
            panic!("{:?}", promoted(&report));
        };
        assert!([node("plant/gate"), node("lab/gate")].contains(one));
        assert_eq!(stepped_down(&report), []);
    }
}

/// What it had written down of the open round goes on with whoever takes over; each of it counts once.
#[test]
fn whenever_the_coordinator_is_lost_no_acknowledged_update_is() {
    for durability in ["resend", "journal"] {
        for moment in 0..5 {
            let lost = secs(2) + std::time::Duration::from_millis(29 * moment);
            let report = coast_with("nodes = 4, domains = 2", durability, 7)
                .at(lost, crash("hq/gate"))
                .at(lost + secs(1), promote("plant/gate"))
                .at(lost + secs(3), restart("hq/gate"))
                .run()
                .unwrap();
            whole(&report);
            assert!(
                report
                    .rounds()
                    .iter()
                    .filter(|round| round.is_committed())
                    .count()
                    >= 67
            );
        }
    }
}

/// A promoted coordinator is one like any other: restarted, it goes on.
#[test]
fn a_promoted_coordinator_survives_its_own_restart_and_a_panic() {
    for seed in SEEDS {
        let report = coast(seed)
            .at(secs(2), crash("hq/gate"))
            .at(secs(4), promote("plant/gate"))
            .at(
                secs(6),
                tombolo::simulation::panic("plant/gate", "Coordinator"),
            )
            .at(secs(7), restart("plant/gate"))
            .run()
            .unwrap();
        whole(&report);
        assert_eq!(promoted(&report), [(node("plant/gate"), 2)]);
        assert!(
            report
                .rounds()
                .iter()
                .all(|round: &Round| round.round <= 70)
        );
    }
}

#[test]
fn who_is_no_standby_cannot_be_promoted() {
    let refused = coast(1).at(secs(2), promote("plant/c")).run().unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("standby = [\"plant/gate\", \"lab/gate\"]"),
        "{refused}"
    );
}
