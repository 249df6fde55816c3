//! SIGTERM: a node that is told to leave says so, is waited for by nobody, and comes back as the same node.

use rustix::process::Signal;
use serde_json::{Value, json};
use tombolo_core::rng::Rng;

use crate::fixture::Output;
use crate::fleet::Fleet;

/// Endless; d has two gateways. Training of some hundred milliseconds, so that a signal may come in each phase of a round.
const COAST: &str = r#"
    [federation]
    name = "coast"
    rounds = 900000
    sync_every = 2000
    [round]
    quorum = { nodes = 2, domains = 1 }
    deadline = "30s"
    grace = "10s"
    [model]
    trainer = "digits-softmax"
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c", "d"]
    gateways = ["gate", "c"]
    [heartbeat]
    every = "100ms"
    retry = ["100ms", "100ms"]
    restore_limit = "2s"
"#;

/// What a process said of the failure of a node while that was gone, and how often it heard it say goodbye.
fn complaints(output: &Output, node: &str) -> (Vec<String>, usize) {
    let failures = ["PeerSuspected", "PeerLost", "PeerOverdue", "NodeEvicted"];
    let (mut gone, mut goodbyes, mut found) = (false, 0, Vec::new());
    for line in &output.errors {
        if !line.contains(&format!("peer: {node}")) {
            continue;
        }
        if line.contains("PeerLeft") {
            (gone, goodbyes) = (true, goodbyes + 1);
        } else if line.contains("LinkUp") {
            gone = false;
        } else if gone && failures.iter().any(|word| line.contains(word)) {
            found.push(line.clone());
        }
    }
    (found, goodbyes)
}

fn left(output: &Output, node: &str) {
    assert_eq!(output.code(), 0, "{output:#?}");
    assert_eq!(output.events("left")[0]["nodes"], json!([node]));
}

/// spd#677, pytorch-lightning#1455: in any phase of a round; it is not taken for a failure, and there is no cool-down.
#[test]
fn a_node_that_is_told_to_leave_is_not_missed_and_comes_back_as_the_same_node() {
    let mut fleet = Fleet::start(COAST);
    fleet.until_state("plant/d", "active");
    let mut rng = Rng::new(7);
    for turn in 0..6 {
        fleet.more_rounds(1);
        // Somewhere in a round of about half a second.
        let moment = std::time::Duration::from_millis(rng.below(500));
        fleet.process("plant/d").ended_within(moment);
        fleet.signal("plant/d", Signal::TERM);
        left(&fleet.end("plant/d"), "plant/d");
        let entry = fleet.until_state("plant/d", "left");
        assert_eq!(entry["left_s"], Value::Null, "turn {turn}: no cool-down");
        fleet.begin("plant/d");
        fleet.until_state("plant/d", "active");
    }
    fleet.more_rounds(2);
    let last = fleet.rounds().pop().unwrap();
    assert_eq!(last["counted"].as_array().unwrap().len(), 5, "{last:#}");
    let rounds = fleet.rounds();
    assert!(rounds.iter().all(|round| round["state"] != "aborted"));
    let outputs = fleet.stop();
    assert!(!outputs["hq/gate"].errors().contains("NodeEvicted"));
    for neighbour in ["plant/gate", "plant/c"] {
        let (found, goodbyes) = complaints(&outputs[neighbour], "plant/d");
        assert_eq!(found, [""; 0], "{neighbour}");
        assert!(goodbyes >= 6, "{neighbour} heard {goodbyes} goodbyes");
    }
}

#[test]
fn a_gateway_that_is_told_to_leave_hands_over_and_comes_back_as_a_member() {
    let mut fleet = Fleet::start(COAST);
    fleet.until_state("plant/d", "active");
    fleet.more_rounds(1);
    fleet.signal("plant/gate", Signal::TERM);
    left(&fleet.end("plant/gate"), "plant/gate");
    fleet.until_state("plant/gate", "left");
    let status = fleet.until("the successor", |status| {
        status["membership"]["gateways"]["plant"] == "plant/c"
    });
    assert_eq!(status["membership"]["epoch"], 2, "in one view: {status:#}");
    fleet.more_rounds(2);
    let last = fleet.rounds().pop().unwrap();
    let counted = json!(["hq/a", "hq/gate", "plant/c", "plant/d"]);
    assert_eq!(last["counted"], counted, "{last:#}");
    fleet.begin("plant/gate");
    fleet.until_state("plant/gate", "active");
    fleet.more_rounds(2);
    let last = fleet.rounds().pop().unwrap();
    assert_eq!(last["counted"].as_array().unwrap().len(), 5, "{last:#}");
    let outputs = fleet.stop();
    assert!(!outputs["hq/gate"].errors().contains("NodeEvicted"));
    for peer in ["hq/gate", "plant/c", "plant/d"] {
        let (found, goodbyes) = complaints(&outputs[peer], "plant/gate");
        assert_eq!(found, [""; 0], "{peer}");
        assert!(goodbyes >= 1, "{peer} heard no goodbye");
    }
}

/// Nobody waits for a node that never came; and where nobody takes note of its leaving, it does not wait for long.
#[test]
fn a_node_that_cannot_say_goodbye_leaves_all_the_same() {
    let mut fleet = Fleet::idle(COAST);
    fleet.begin("plant/d");
    fleet
        .process("plant/d")
        .until("its start", |seen| seen.errors().contains("NodeStarted"));
    fleet.signal("plant/d", Signal::TERM);
    left(&fleet.end("plant/d"), "plant/d");

    for node in fleet.nodes() {
        fleet.begin(&node);
    }
    fleet.until_state("plant/d", "active");
    fleet.signal("hq/gate", Signal::STOP);
    fleet.signal("plant/d", Signal::TERM);
    let output = fleet.end("plant/d");
    assert_eq!(output.code(), 143, "{output:#?}");
    let said = output.errors();
    assert!(said.contains("terminated before it could drain"), "{said}");
    fleet.signal("hq/gate", Signal::CONT);
    // The end of its connections was a goodbye as well.
    fleet.until_state("plant/d", "left");
    fleet.stop();
}
