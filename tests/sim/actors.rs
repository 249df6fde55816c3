//! The whole federation, real actors, QUIC and TLS, for a virtual minute under faults of every kind. Whatever goes wrong: no invariant is
//! violated, the run ends, and the same seed takes the same course.

use std::time::Duration;

use tombolo::core::rng::Rng;
use tombolo::simulation::{
    Dose, Failure, RUNS_MAX, Simulation, SimulationError, SimulationReport, secs,
};

use crate::probe::Probe;
use crate::seeds;

/// Federations of 9 to 16 nodes in 2 to 5 domains, whose rounds take a bit more than two seconds.
fn federation(seed: u64) -> String {
    let mut rng = Rng::derive(seed, &[b"federation"]);
    let domains = 2 + rng.below(4);
    let nodes = 9 + rng.below(8);
    let quorum = (nodes / 2, domains / 2 + 1);
    let kind = ["fedavg", "dynamic-weighted"][rng.below(2) as usize];
    let clip = ["\"none\"", "\"median\"", "0.5"][rng.below(3) as usize];
    let optimizer = ["sgd", "nesterov"][rng.below(2) as usize];
    let mut text = format!(
        r#"
        [federation]
        name = "archipelago"
        rounds = 22
        sync_every = 5
        seed = {seed}
        [round]
        quorum = {{ nodes = {}, domains = {} }}
        deadline = "8s"
        grace = "500ms"
        failed_limit = 30
        close_limit = "10s"
        [aggregator]
        kind = "{kind}"
        clip = {clip}
        [outer]
        optimizer = "{optimizer}"
        "#,
        quorum.0, quorum.1
    );
    for domain in 0..domains {
        let count = nodes / domains + u64::from(domain < nodes % domains);
        let names: Vec<String> = (0..count).map(|node| format!("\"n{node}\"")).collect();
        text += &format!(
            "[[domain]]\nname = \"d{domain}\"\nnodes = [{}]\n",
            names.join(", ")
        );
    }
    text
}

fn simulation(seed: u64) -> Simulation {
    let per_minute = std::env::var("TOMBOLO_FAULTS").map_or(20, |text| text.parse().unwrap());
    Simulation::from_toml(&federation(seed))
        .unwrap_or_else(|error| panic!("{error}"))
        .trainer(Probe::new)
        .training(Duration::from_secs(2))
        .seed(seed)
        .random_faults(Dose {
            per_minute,
            span: secs(45),
        })
        .limit(secs(600))
        .replay(format!(
            "TOMBOLO_FAULTS={per_minute} TOMBOLO_SEEDS={seed}..{} cargo test --test sim actors",
            seed + 1
        ))
}

/// Fails with all that is known; with `TOMBOLO_SHRINK` in the environment, about the smallest plan that fails so.
fn fail(seed: u64, failure: &Failure) -> ! {
    if std::env::var_os("TOMBOLO_SHRINK").is_some() {
        let smallest = simulation(seed).shrink(RUNS_MAX).unwrap();
        panic!("{}", smallest.expect("it failed before"));
    }
    panic!("{failure}");
}

fn judge(seed: u64, run: Result<SimulationReport, SimulationError>) -> SimulationReport {
    match run.map(SimulationReport::sound) {
        Ok(Ok(report)) => report,
        Ok(Err(failure)) | Err(SimulationError::Failed(failure)) => fail(seed, &failure),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn forty_seeds_of_a_minute_under_faults_break_no_invariant() {
    for seed in seeds::range("TOMBOLO_SEEDS", 0..40) {
        if let Ok(text) = std::env::var("TOMBOLO_PLAN") {
            let text = std::fs::read_to_string(text).unwrap();
            let mut sim = simulation(seed).faults_from_toml(&text).unwrap();
            sim = sim.random_faults(Dose {
                per_minute: 0,
                span: secs(1),
            });
            let report = sim.run().unwrap();
            for (at, event) in &report.events {
                eprintln!("{at:?} {}", serde_json::to_string(event).unwrap());
            }
            return;
        }
        let report = judge(seed, simulation(seed).run());
        assert_eq!(report.finished.reason, "", "seed {seed}");
        if std::env::var_os("TOMBOLO_TELL").is_some() {
            eprintln!(
                "{seed} {:.1} {}",
                report.virtual_time.as_secs_f64(),
                report.finished.aborted
            );
        }
    }
}
