//! What stays small stays small: thousands of tiny rounds, and a node that comes and goes, cost a process neither memory nor descriptors.
//!
//! `TOMBOLO_ROUNDS=10000` and `TOMBOLO_CONNECTS=1000` are the long form. Each test prints one line of figures.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixture::process_of;
use crate::fleet::{Fleet, from_environment};

/// What a process may hold more at the end than after its first rounds, in KiB: caches of the allocator, which it does not give back.
const GROWTH_MAX: u64 = 12 << 10;

/// Descriptors that may be open for a moment: a file that is being written, a connection of `status`.
const DESCRIPTORS_MAX: usize = 6;

const SITES: [&str; 3] = ["hq/gate", "plant/gate", "lab/gate"];

fn fleet() -> Fleet {
    Fleet::idle(
        r#"
    [federation]
    name = "tiny"
    rounds = 999999
    sync_every = 1
    [round]
    quorum = { nodes = 2, domains = 2 }
    grace = "50ms"
    deadline = "30s"
    [model]
    trainer = "digits-softmax"
    [heartbeat]
    every = "200ms"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate"]
    [[domain]]
    name = "lab"
    nodes = ["gate"]
"#,
    )
}

/// KiB of memory, and open descriptors.
fn holds(process: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    let memory = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    (memory, open.count())
}

fn ended(status: &Value) -> u64 {
    status["rounds"]["ended"].as_u64().unwrap()
}

#[track_caller]
fn stays(what: &str, before: (u64, usize), after: (u64, usize)) {
    assert!(
        after.0 <= before.0 + GROWTH_MAX && after.1 <= before.1 + DESCRIPTORS_MAX,
        "{what} held {before:?} (KiB, descriptors) and then {after:?}"
    );
}

/// Step by step: the fleet is patient for some hundred rounds, not for ten thousand.
fn until_ended(fleet: &mut Fleet, rounds: u64) {
    for step in (0..rounds).step_by(200).skip(1).chain([rounds]) {
        fleet.until("its rounds", |status| ended(status) >= step);
    }
}

/// NVFlare#4019, NVFlare#2166: memory is flat over rounds, and so are descriptors.
#[test]
fn many_tiny_rounds_cost_no_process_memory_or_descriptors() {
    let rounds = from_environment("TOMBOLO_ROUNDS", 300);
    let mut fleet = fleet();
    // A node that waits for the others holds no model.
    fleet.begin("plant/gate");
    fleet
        .process("plant/gate")
        .until("its wait", |seen| seen.errors().contains("NodeStarted"));
    let (idle, _) = holds(process_of(&fleet.workspace, "plant/gate"));
    fleet.begin("hq/gate");
    fleet.begin("lab/gate");
    until_ended(&mut fleet, rounds / 4);
    let processes = SITES.map(|node| process_of(&fleet.workspace, node));
    let before = processes.map(holds);
    until_ended(&mut fleet, rounds);
    let after = processes.map(holds);
    for (site, (before, after)) in SITES.iter().zip(before.into_iter().zip(after)) {
        stays(site, before, after);
    }
    fleet.stop();
    println!(
        "{}",
        json!({
            "rounds": rounds, "idle_kib": idle, "running_kib": after[1].0, "coordinator_kib": after[0].0,
            "growth_kib": after[0].0.saturating_sub(before[0].0), "descriptors": after[0].1,
        })
    );
}

/// A node that leaves and comes back, again and again, leaves nothing behind with those who stay.
#[test]
fn a_node_that_comes_and_goes_costs_the_others_nothing() {
    let connects = from_environment("TOMBOLO_CONNECTS", 8);
    let mut fleet = fleet();
    SITES.iter().for_each(|node| fleet.begin(node));
    let stay = ["hq/gate", "lab/gate"];
    let mut before = None;
    for cycle in 0..connects {
        fleet
            .process("plant/gate")
            .until("its link", |seen| seen.errors().contains("LinkUp"));
        fleet.more_rounds(1);
        if cycle == connects.min(40) / 4 {
            before = Some(stay.map(|node| holds(process_of(&fleet.workspace, node))));
        }
        fleet.signal("plant/gate", Signal::KILL);
        fleet.end("plant/gate");
        fleet.begin("plant/gate");
    }
    fleet.until_state("plant/gate", "active");
    let after = stay.map(|node| holds(process_of(&fleet.workspace, node)));
    let before = before.unwrap();
    for (site, (before, after)) in stay.iter().zip(before.into_iter().zip(after)) {
        stays(site, before, after);
    }
    fleet.stop();
    println!(
        "{}",
        json!({ "connects": connects, "growth_kib": after[0].0.saturating_sub(before[0].0), "descriptors": after[0].1 })
    );
}
