//! Nodes of a domain that step together, as processes: what becomes of a step when one of them dies or stops in the middle of it.

use rustix::process::Signal;
use serde_json::Value;

use crate::fleet::Fleet;

/// Rounds of a second or two, of thousands of steps.
const BAY: &str = r#"
    [federation]
    name = "bay"
    rounds = 900000
    sync_every = 1500
    [round]
    quorum = { nodes = 2, domains = 1 }
    deadline = "1min"
    grace = "1s"
    [model]
    trainer = "digits-mlp"
    data_parallel = true
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c", "d"]
    [heartbeat]
    every = "300ms"
    retry = ["300ms"]
    restore_limit = "10s"
"#;

fn counts(round: &Value, node: &str) -> bool {
    let counted = round["counted"].as_array().unwrap();
    counted.iter().any(|counted| counted == node)
}

/// Rounds that ended since there were so many.
fn since(fleet: &mut Fleet, before: usize) -> Vec<Value> {
    fleet.rounds().split_off(before)
}

/// Field faults: "when a member dies, hangs or brings a wrong size in a collective, the others get a typed error within the heartbeat limit, keep no partial
/// sums, regroup and redo; no survivor exits". torchft#164, pytorch#111646, pytorch#97191, ucx#5027, pccl#13
#[test]
fn who_is_left_does_the_step_again_when_one_is_killed_or_stopped() {
    let mut fleet = Fleet::start(BAY);
    fleet.until_true("a round of all", |fleet| {
        fleet.rounds().iter().any(|round| {
            ["hq/gate", "plant/gate", "plant/c", "plant/d"]
                .iter()
                .all(|node| counts(round, node))
        })
    });
    for (signal, victim) in [
        // The last rank, then the one in the middle.
        (Signal::KILL, "plant/d"),
        (Signal::STOP, "plant/c"),
    ] {
        let before = fleet.rounds().len();
        // In the middle of a round, in which they step.
        fleet.until_true("the next round", |fleet| fleet.rounds().len() > before);
        let before = before + 1;
        fleet
            .process(victim)
            .ended_within(std::time::Duration::from_millis(400));
        fleet.signal(victim, signal);
        let left: Vec<&str> = ["plant/gate", "plant/c", "plant/d"]
            .into_iter()
            .filter(|node| *node != victim)
            .collect();
        fleet.until_true("rounds of those who are left", |fleet| {
            let rounds = since(fleet, before);
            let without = rounds.iter().filter(|round| {
                !counts(round, victim) && left.iter().all(|node| counts(round, node))
            });
            without.count() >= 2
        });
        let rounds = since(&mut fleet, before);
        // Also the round in which it happened: they found each other again in it.
        for round in &rounds {
            assert_ne!(round["state"], "aborted", "{round:#}");
            assert!(left.iter().all(|node| counts(round, node)), "{round:#}");
        }
        match signal {
            Signal::KILL => {
                fleet.end(victim);
                fleet.begin(victim);
            }
            _ => fleet.signal(victim, Signal::CONT),
        }
        fleet.until_true("it is back", |fleet| {
            fleet
                .rounds()
                .last()
                .is_some_and(|round| counts(round, victim))
        });
    }
    for (node, output) in fleet.stop() {
        assert_eq!(output.code(), 130, "{node}: {output:#?}");
        let said = output.errors();
        assert!(!said.contains("panicked"), "{node}: {said}");
    }
}
