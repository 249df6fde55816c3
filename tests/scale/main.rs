//! One large federation, alone in its process: how long it takes, and how much memory.
//!
//! `TOMBOLO_NODES=1000` in the environment asks for more than a change needs: `cargo xtask soak thousand`.

#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

use std::time::Instant;

use serde_json::json;
use tombolo::Round;
use tombolo::core::event::Event;
use tombolo::simulation::{Simulation, secs};

#[path = "../sim/probe.rs"]
mod probe;

use probe::Probe;

/// In a domain every node is linked with every other.
const NODES_OF_A_DOMAIN: usize = 10;

/// Each round takes about ten seconds, most of it training.
const ROUNDS: usize = 6;

fn federation(domains: usize) -> String {
    let names: Vec<String> = (0..NODES_OF_A_DOMAIN)
        .map(|node| format!("\"n{node}\""))
        .collect();
    let mut text = format!(
        "[federation]\nname = \"ocean\"\nrounds = {ROUNDS}\nsync_every = 5\n[round]\nquorum = \"all\"\ndeadline = \"1min\"\n"
    );
    for domain in 0..domains {
        text += &format!(
            "[[domain]]\nname = \"d{domain}\"\nnodes = [{}]\n",
            names.join(", ")
        );
    }
    text
}

/// The most memory that this process has had, in MB.
fn peak_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let kilobytes: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    kilobytes / 1024
}

#[test]
fn a_large_federation_goes_round_for_a_virtual_minute() {
    let nodes = std::env::var("TOMBOLO_NODES").map_or(60, |text| text.parse().unwrap());
    let text = federation(nodes / NODES_OF_A_DOMAIN);
    let simulation = Simulation::from_toml(&text).unwrap();
    let nodes = simulation.plan().nodes().count();
    let simulation = simulation
        .trainer(Probe::new)
        .training(secs(11))
        .limit(secs(600));
    let begun = now();
    let report = simulation.run().unwrap_or_else(|error| panic!("{error}"));
    let took = now().duration_since(begun);
    let report = report.sound().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.rounds().len(), ROUNDS);
    for round in report.rounds() {
        assert!(
            Round::is_committed(round) && round.counted.len() == nodes,
            "{round:#?}"
        );
    }
    assert!(report.virtual_time >= secs(60), "{:?}", report.virtual_time);
    let links = report
        .events
        .iter()
        .filter(|(_, event)| matches!(event, Event::LinkUp { .. }));
    let figures = json!({
        "nodes": nodes,
        "domains": nodes / NODES_OF_A_DOMAIN,
        "connections": links.count() / 2,
        "virtual_s": report.virtual_time.as_secs(),
        "rounds": report.rounds().len(),
        "wall_s": (took.as_secs_f64() * 10.0).round() / 10.0,
        "peak_memory_mb": peak_mb(),
    });
    println!("{figures}");
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long it takes is about the real world"
)]
fn now() -> Instant {
    Instant::now()
}
