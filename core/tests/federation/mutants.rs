//! The test of the tests: each bug of `core/src/mutants.rs` is planted, and storms must find it.
//!
//! A new one needs a line there, an `if mutants::is(..)` where it belongs, and nothing here. One that is not found says that an invariant is
//! missing, that no storm leads there, or that the product does not depend on what was broken.

use tombolo_core::mutants;

use crate::storm::Weather;
use crate::{attempt, on_all_processors, set, succession};

/// Seeds in which a bug must be found.
const SEEDS: u64 = 200;

#[test]
fn every_planted_bug_is_found() {
    let only: Option<String> = set("TOMBOLO_MUTANT");
    let planted = mutants::CORE.iter().map(|(name, _)| *name);
    let planted: Vec<&str> = planted
        .filter(|name| only.as_ref().is_none_or(|only| only == name))
        .collect();
    let found = on_all_processors(0..planted.len() as u64, |index| {
        let name = planted[index as usize];
        let _planted = mutants::plant(name);
        let finds = |seed| {
            let calm = || succession(seed).err();
            attempt(seed, WEATHER, None).err().or_else(calm)
        };
        let found = (0..SEEDS).find_map(|seed| Some((seed, finds(seed)?)));
        (name, found)
    });
    let mut missed = Vec::new();
    for (name, found) in found {
        match found {
            Some((seed, why)) => {
                let why = why.lines().next().unwrap_or_default();
                println!("{name}: seed {seed} {why}");
            }
            None => missed.push(name),
        }
    }
    assert!(
        missed.is_empty(),
        "{SEEDS} seeds do not find these planted bugs: {missed:?}"
    );
}

/// Smaller federations in shorter storms show the same.
const WEATHER: Weather = Weather {
    minutes: 1,
    faults_a_minute: 60,
    nodes: 12,
};
