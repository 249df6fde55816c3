//! Storms: many faults at once over three domains, then calm. Whatever was hit, rounds go on and everybody is back.

use tombolo::simulation::{
    Simulation, SimulationReport, crash, freeze, millis, panic, partition, restart, secs, slow,
};
use tombolo_core::event::Event;
use tombolo_core::rng::Rng;

use crate::dropout::COAST;
use crate::seeds;

const NODES: [&str; 9] = [
    "hq/gate",
    "hq/a",
    "hq/b",
    "plant/gate",
    "plant/c",
    "plant/d",
    "lab/gate",
    "lab/e",
    "lab/f",
];

fn storm(seed: u64) -> SimulationReport {
    let text = COAST
        .replace("rounds = 12", "rounds = 60")
        .replace("grace = \"1s\"", "grace = \"1s\"\n    failed_limit = 10");
    let mut simulation = Simulation::from_toml(&text)
        .unwrap()
        .seed(seed)
        .limit(secs(3600));
    let mut rng = Rng::derive(seed, &[b"storm"]);
    for _ in 0..12 {
        let node = NODES[rng.below(9) as usize];
        let domain = ["hq", "plant", "lab"][rng.below(3) as usize];
        let from = millis(100 + rng.below(10_000));
        let until = from + millis(50 + rng.below(8000));
        simulation = match rng.below(6) {
            0 | 1 => simulation.at(from, crash(node)).at(until, restart(node)),
            2 => {
                let rest = ["hq", "plant", "lab"]
                    .into_iter()
                    .filter(|other| *other != domain);
                simulation.between(from, until, partition([domain], rest))
            }
            3 => {
                let gate = format!("{domain}/gate");
                match gate == node {
                    true => simulation.between(from, until, freeze(node)),
                    false => simulation.between(from, until, partition([gate.as_str()], [node])),
                }
            }
            4 => simulation.between(from, until, slow(node, 30.0)),
            _ => simulation.at(from, panic(node, seeds::actor(&mut rng, node))),
        };
    }
    simulation
        .run()
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

#[test]
fn after_a_storm_everybody_is_counted_again() {
    for seed in seeds::range("TOMBOLO_STORMS", 0..12) {
        let report = storm(seed);
        assert_eq!(report.violations, [], "seed {seed}");
        assert_eq!(
            report.finished.reason,
            "",
            "seed {seed}: {:#?}",
            report.rounds()
        );
        let last = report.rounds().last().unwrap();
        // The faults end before second 19; a run that was over by then proves less.
        if report.virtual_time > secs(40) {
            assert_eq!(last.counted.len(), 9, "seed {seed}: {last:#?}");
        }
        let aborted = report
            .events
            .iter()
            .filter(|(at, event)| match event {
                Event::Round(record) => !record.is_committed() && at.0 > 80_000_000,
                _ => false,
            })
            .count();
        assert_eq!(aborted, 0, "seed {seed}: ROUND-7");
    }
}
