//! The test of the tests: bugs of the actors and of what writes to disk, planted one at a time. Each must be found within 200 seeds, by the
//! invariants of the simulation or by what else this folder holds to.
//!
//! Bugs that the machines alone show are in `core/tests/federation/`. Without the feature `mutants` none of them is built.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::json;
use tombolo::core::mutants;
use tombolo::core::rng::Rng;
use tombolo::simulation::{Dose, Simulation, SimulationError, SimulationReport, secs};

use crate::crash_points::Case;
use crate::dropout::COAST;
use crate::probe::Probe;
use crate::{crash_points, duplicate};

const SEEDS_MAX: u64 = 200;

/// What a seed does to a program with a bug; it panics, or says what it found.
type Search = fn(u64) -> Option<String>;

/// The bugs: what each does, and who should find it.
const MUTANTS: &[(&str, &str, Search)] = &[
    (
        "no-fsync",
        "a file gets its name before its contents are on the disk",
        crash_point,
    ),
    (
        "no-folder-fsync",
        "a name is given and may be gone after a power cut",
        crash_point,
    ),
    (
        "not-settled",
        "what a killed process did not synchronize is taken for lasting",
        kill_point,
    ),
    (
        "record-first",
        "a round's record is written before the state that it names",
        crash_point,
    ),
    (
        "last-good-removed",
        "the newest state is removed with those that need not be kept",
        crash_point,
    ),
    (
        "manifest-unchecked",
        "a file of a state is used whatever its hash",
        rot,
    ),
    ("wall-clock", "liveness goes by the wall clock", storm),
    (
        "permit-leak",
        "who has sent an object does not give the permit back",
        storm,
    ),
    (
        "duplicate-accepted",
        "a second process of an identity takes the first one's place",
        twin,
    ),
    (
        "divergence-unseen",
        "a node trains from a copy of the model that has changed in its memory",
        flip,
    ),
    (
        "pause-ignored",
        "rounds are opened while the run is paused",
        paused,
    ),
    (
        "two-histories",
        "a coordinator tells one domain another record than the others",
        crate::record::histories,
    ),
];

/// One change of a coordinator's disk goes wrong in one way.
fn crash_point(seed: u64) -> Option<String> {
    one_of(crash_points::cases(), seed)
}

/// A coordinator is killed at one change of its disk, and the power is cut after it is back.
fn kill_point(seed: u64) -> Option<String> {
    let mut cases = crash_points::cases();
    cases.retain(Case::kills);
    one_of(cases, seed)
}

fn one_of(cases: Vec<Case>, seed: u64) -> Option<String> {
    let chosen = Rng::derive(seed, &[b"case"]).below(cases.len() as u64);
    cases[chosen as usize].check();
    None
}

fn rot(seed: u64) -> Option<String> {
    crash_points::rot(seed);
    None
}

fn twin(seed: u64) -> Option<String> {
    duplicate::of_a_live_node(seed);
    None
}

/// A user pauses the run.
fn paused(seed: u64) -> Option<String> {
    let violations = crate::orders::paused(seed).violations;
    violations.first().map(ToString::to_string)
}

/// A bit flips somewhere.
fn flip(seed: u64) -> Option<String> {
    let violations = crate::watch::flipped(seed).violations;
    violations.first().map(ToString::to_string)
}

/// Faults of every kind, for longer than a leak takes to be felt.
fn storm(seed: u64) -> Option<String> {
    let text = COAST.replace("rounds = 12", "rounds = 40");
    let dose = Dose {
        per_minute: 30,
        span: secs(40),
    };
    let simulation = Simulation::from_toml(&text)
        .unwrap()
        .trainer(Probe::new)
        .training(secs(1))
        .seed(seed)
        .random_faults(dose)
        .limit(secs(900));
    match simulation.run().map(SimulationReport::sound) {
        Ok(Ok(report)) => {
            let reason = report.finished.reason;
            (!reason.is_empty()).then(|| format!("the run ended: {reason}"))
        }
        Ok(Err(failure)) | Err(SimulationError::Failed(failure)) => Some(failure.law),
        Err(error) => panic!("{error}"),
    }
}

/// What a seed finds.
fn look(search: Search, seed: u64) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| search(seed))) {
        Ok(found) => found,
        Err(panic) => Some(tombolo_actors::shell::panic_text(panic.as_ref())),
    }
}

#[test]
fn each_planted_bug_is_found_within_two_hundred_seeds() {
    let mut missed = Vec::new();
    for &(name, what, search) in MUTANTS {
        let planted = mutants::plant(name);
        let found = (0..SEEDS_MAX).find_map(|seed| Some((seed, look(search, seed)?)));
        drop(planted);
        let Some((seed, by)) = found else {
            missed.push(name);
            continue;
        };
        let by = by.lines().next().unwrap_or_default();
        println!(
            "{}",
            json!({ "bug": name, "what_it_does": what, "found_by_seed": seed, "as": by })
        );
        // The same seed finds nothing where nothing is planted.
        assert_eq!(look(search, seed), None, "{name}, seed {seed}");
    }
    assert_eq!(
        missed, [""; 0],
        "nobody has found these within {SEEDS_MAX} seeds"
    );
}
