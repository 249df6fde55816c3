//! Many seeds: whatever happens, the run ends, nothing is violated, and the same seed does the same thing again.

use std::ops::Range;

use tombolo::simulation::{
    Simulation, SimulationReport, crash, millis, panic, partition, restart, secs, slow,
};
use tombolo_actors::crew::Crew;
use tombolo_core::rng::Rng;

const SMALL: &str = r#"
    [federation]
    name = "reef"
    rounds = 4
    sync_every = 3
    seed = 5
    [round]
    quorum = { nodes = 2, domains = 1 }
    deadline = "20s"
    grace = "500ms"
    failed_limit = 5
    [model]
    trainer = "digits-softmax"
    partition = { kind = "iid" }
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
    [[link]]
    between = ["hq", "plant"]
    emulate = { delay = "15ms", jitter = "3ms", loss = "1%" }
"#;

/// A plan of faults that ends after ten seconds, drawn from the seed.
fn run(seed: u64) -> SimulationReport {
    let mut simulation = Simulation::from_toml(SMALL)
        .unwrap()
        .seed(seed)
        .limit(secs(600));
    let mut rng = Rng::derive(seed, &[b"faults"]);
    let nodes = ["hq/gate", "hq/a", "plant/gate", "plant/c"];
    for _ in 0..rng.below(4) {
        let node = nodes[rng.below(4) as usize];
        let from = millis(100 + rng.below(4000));
        let until = from + millis(50 + rng.below(5000));
        simulation = match rng.below(5) {
            0 => simulation.at(from, crash(node)).at(until, restart(node)),
            1 => simulation.between(from, until, partition(["hq"], ["plant"])),
            2 => simulation.between(from, until, partition(["plant/gate"], ["plant/c"])),
            3 => simulation.between(from, until, slow(node, 20.0)),
            _ => simulation.at(from, panic(node, actor(&mut rng, node))),
        };
    }
    simulation
        .run()
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

/// The seeds of a test; `NAME=1000..2000` in the environment tries others, `NAME=50` the first fifty.
pub fn range(name: &str, usual: Range<u64>) -> Range<u64> {
    match std::env::var(name).ok() {
        None => usual,
        Some(text) => match text.split_once("..") {
            Some((from, until)) => from.parse().unwrap()..until.parse().unwrap(),
            None => 0..text.parse().unwrap(),
        },
    }
}

/// A number of a test that the environment may change.
pub fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// An actor that the node has.
pub fn actor(rng: &mut Rng, node: &str) -> &'static str {
    let actors = [&Crew::ACTORS[..], &Crew::COORDINATORS_ACTORS].concat();
    let count = if node == "hq/gate" {
        actors.len()
    } else {
        Crew::ACTORS.len()
    };
    actors[rng.below(count as u64) as usize]
}

#[test]
fn two_hundred_seeds_end_well_and_repeat_to_the_last_packet() {
    for seed in range("TOMBOLO_SEEDS", 0..200) {
        let report = run(seed);
        assert_eq!(report.violations, [], "seed {seed}");
        assert_eq!(
            report.finished.reason,
            "",
            "seed {seed}: {:#?}",
            report.rounds()
        );
        let again = run(seed);
        assert_eq!(report.trace_hash, again.trace_hash, "seed {seed} (SEED-1)");
        assert_eq!(
            report.finished.model_hash, again.finished.model_hash,
            "seed {seed}"
        );
    }
}
