//! Who is taken for dead though nobody is. Every path between domains loses one datagram in twenty and delays each by up to 200 ms of its own.
//!
//! `TOMBOLO_NODE_HOURS` in the environment asks for more than a change needs: `cargo xtask soak evictions`.

use serde_json::json;
use tombolo::core::event::Event;
use tombolo::simulation::{Simulation, loss, millis, reorder, secs};

use crate::crowd;
use crate::probe::Probe;
use crate::seeds::number;

/// Each with one node.
const DOMAINS: u64 = 9;

/// Of one simulation.
const HOURS: u64 = 1;

/// They train for an hour: hardly anything but heartbeats passes, and nothing else could tell that somebody lives.
fn archipelago(seed: u64) -> Simulation {
    let mut text = format!(
        r#"
        [federation]
        name = "archipelago"
        rounds = {HOURS}
        sync_every = 5
        [round]
        quorum = "all"
        deadline = "3h"
        "#
    );
    for domain in 0..DOMAINS {
        text += &format!("[[domain]]\nname = \"d{domain}\"\nnodes = [\"n\"]\n");
    }
    // Every path leads to the coordinator's domain.
    Simulation::from_toml(&text)
        .unwrap()
        .at(millis(1), loss(["d0"], [], 0.05))
        .at(millis(1), reorder(["d0"], [], millis(200)))
        .trainer(Probe::new)
        .training(secs(3600))
        .seed(seed)
        .limit(secs(12 * 3600))
}

#[test]
fn a_lossy_path_with_jitter_evicts_nobody() {
    let node_hours = number("TOMBOLO_NODE_HOURS", DOMAINS * HOURS);
    let runs = node_hours.div_ceil(DOMAINS * HOURS);
    let found = crowd::each(0..runs, |seed| {
        let report = archipelago(seed)
            .run()
            .unwrap_or_else(|error| panic!("{error}"));
        let report = report.sound().unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(report.finished.reason, "", "seed {seed}");
        let count =
            |of: fn(&Event) -> bool| report.events.iter().filter(|(_, event)| of(event)).count();
        let hours = report.virtual_time.as_secs_f64() / 3600.0 * DOMAINS as f64;
        let suspected = count(|event| matches!(event, Event::PeerSuspected { .. }));
        let lost = count(|event| matches!(event, Event::PeerLost { .. }));
        let evicted = count(|event| matches!(event, Event::NodeEvicted { .. }));
        (hours, suspected, lost, evicted)
    });
    let hours: f64 = found.iter().map(|found| found.0).sum();
    let sum = |of: fn(&(f64, usize, usize, usize)) -> usize| found.iter().map(of).sum::<usize>();
    let (suspected, lost, evicted) = (
        sum(|found| found.1),
        sum(|found| found.2),
        sum(|found| found.3),
    );
    println!(
        "{}",
        json!({
            "loss": "5 %",
            "jitter_ms": 200,
            "node_hours": hours.round(),
            "suspected": suspected,
            "lost_after_all_retries": lost,
            "evicted": evicted,
        })
    );
    assert!(hours >= node_hours as f64, "{hours}");
    assert!(
        evicted as f64 <= hours / 1000.0,
        "{evicted} evictions in {hours} node-hours"
    );
}
