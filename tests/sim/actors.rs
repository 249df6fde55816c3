//! The whole federation, real actors, QUIC and TLS, for a virtual minute under faults of every kind. Whatever goes wrong: no invariant is
//! violated, the run ends, and the same seed takes the same course.
//!
//! `cargo xtask soak` runs the same with other numbers, from the environment: `TOMBOLO_SEEDS` (`1000..2000`), `TOMBOLO_MINUTES` (virtual ones
//! of each seed), `TOMBOLO_FAULTS` (that begin in a minute). `TOMBOLO_SHRINK=1` looks for the smallest plan that fails in the same way;
//! `TOMBOLO_PLAN=FILE` lets that plan happen instead and tells all events.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tombolo::Round;
use tombolo::core::event::Event;
use tombolo::core::rng::Rng;
use tombolo::simulation::{
    Dose, Failure, RUNS_MAX, Simulation, SimulationError, SimulationReport, secs,
};

use crate::crowd;
use crate::probe::Probe;
use crate::seeds::{number, range};

/// Seeds that are run twice.
const TWICE: u64 = 20;

/// Rounds of a minute: each takes a bit more than two seconds.
const ROUNDS: u64 = 26;

/// Federations of 9 to 16 nodes in 2 to 5 domains.
fn federation(seed: u64, minutes: u64) -> String {
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
        rounds = {}
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
        ROUNDS * minutes,
        quorum.0,
        quorum.1
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
    let (per_minute, minutes) = (number("TOMBOLO_FAULTS", 20), number("TOMBOLO_MINUTES", 1));
    Simulation::from_toml(&federation(seed, minutes))
        .unwrap_or_else(|error| panic!("{error}"))
        .trainer(Probe::new)
        .training(secs(2))
        .seed(seed)
        .random_faults(Dose {
            per_minute: u32::try_from(per_minute).unwrap(),
            // The rest is for ROUND-7: a quorum lives, and rounds commit again.
            span: secs(60 * minutes) - secs(12),
        })
        .limit(secs(600 * minutes))
        .replay(format!(
            "TOMBOLO_FAULTS={per_minute} TOMBOLO_MINUTES={minutes} TOMBOLO_SEEDS={seed}..{} cargo test --test sim actors::forty",
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

/// What a sound run adds to the figures.
#[derive(Default)]
struct Tally {
    nodes: usize,
    faults: usize,
    lives: usize,
    rounds: usize,
    committed: usize,
    seconds: f64,
}

impl Tally {
    fn of(report: &SimulationReport, nodes: usize) -> Tally {
        let lives = report.events.iter();
        let lives = lives.filter(|(_, event)| matches!(event, Event::NodeStarted { .. }));
        let rounds = report.rounds();
        Tally {
            nodes,
            faults: report.faults.faults.len(),
            lives: lives.count(),
            rounds: rounds.len(),
            committed: rounds
                .iter()
                .filter(|round| Round::is_committed(round))
                .count(),
            seconds: report.virtual_time.as_secs_f64(),
        }
    }
}

#[test]
fn forty_seeds_of_a_minute_under_faults_break_no_invariant() {
    if let Ok(file) = std::env::var("TOMBOLO_PLAN") {
        return tell(range("TOMBOLO_SEEDS", 0..1).start, &file);
    }
    let (seeds, minutes) = (range("TOMBOLO_SEEDS", 0..40), number("TOMBOLO_MINUTES", 1));
    let tallies = crowd::each(seeds.clone(), |seed| {
        let simulation = simulation(seed);
        let nodes = simulation.plan().nodes().count();
        // SEED-1: a second run that differs is a violation.
        let run = match seed < seeds.start + TWICE {
            true => simulation.run_twice(),
            false => simulation.run(),
        };
        let report = judge(seed, run);
        assert_eq!(report.finished.reason, "", "seed {seed}");
        assert!(
            report.virtual_time >= secs(60 * minutes),
            "seed {seed}: {:?}",
            report.virtual_time
        );
        Tally::of(&report, nodes)
    });
    let sum = |of: fn(&Tally) -> usize| tallies.iter().map(of).sum::<usize>();
    let hours: f64 = tallies.iter().map(|tally| tally.seconds / 3600.0).sum();
    let figures = json!({
        "seeds": format!("{}..{}", seeds.start, seeds.end),
        "runs": tallies.len(),
        "virtual_minutes_of_each_at_least": minutes,
        "virtual_hours_in_all": (hours * 100.0).round() / 100.0,
        "nodes": sum(|tally| tally.nodes),
        "faults": sum(|tally| tally.faults),
        "starts_of_nodes": sum(|tally| tally.lives),
        "rounds": sum(|tally| tally.rounds),
        "committed": sum(|tally| tally.committed),
        "run_twice_with_equal_traces": TWICE.min(seeds.end - seeds.start),
        "violations": 0,
    });
    println!("{figures}");
}

/// Tells what happens in a run with a given plan of faults.
fn tell(seed: u64, file: &str) {
    let plan = std::fs::read_to_string(file).unwrap();
    let no_others = Dose {
        per_minute: 0,
        span: secs(1),
    };
    let simulation = simulation(seed)
        .random_faults(no_others)
        .faults_from_toml(&plan)
        .unwrap();
    let report = simulation.run().unwrap();
    for (at, event) in &report.events {
        eprintln!("{at:?} {}", serde_json::to_string(event).unwrap());
    }
}

/// SEED-1: a seed takes the same course in another process, whose memory lies elsewhere, and in another build: `cargo xtask soak profiles`
/// runs this in debug and in release, and compares what it prints.
#[test]
fn five_seeds_tell_the_hash_of_their_course() {
    let folder = tempfile::tempdir().unwrap();
    let told = crowd::each(0..5, |seed| {
        let file = folder.path().join(format!("{seed}.toml"));
        let model = "\n[model]\ntrainer = \"digits-softmax\"\npartition = { kind = \"iid\" }\n";
        std::fs::write(&file, federation(seed, 1) + model).unwrap();
        let here = Simulation::from_path(&file)
            .unwrap()
            .training(Duration::from_secs(2))
            .seed(seed)
            .random_faults(Dose::default());
        let here = judge(seed, here.run());
        let output = Command::new(env!("CARGO_BIN_EXE_tombolo"))
            .args([
                "sim",
                "--format",
                "json",
                "--training",
                "2s",
                "--faults",
                "random",
            ])
            .args(["--seed", &seed.to_string()])
            .arg(&file)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let there: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(
            there["trace_hash"],
            format!("{:016x}", here.trace_hash),
            "seed {seed} (SEED-1)"
        );
        assert_eq!(
            there["model_hash"],
            here.finished.model_hash.to_string(),
            "seed {seed}"
        );
        json!({
            "seed": seed,
            "trace_hash": there["trace_hash"],
            "model_hash": there["model_hash"],
            "rounds": here.rounds().len(),
        })
    });
    told.iter().for_each(|line| println!("{line}"));
}
