//! Every decoder takes anything: what it has met before, and what is generated from that. It does not panic, what it takes is what it should be,
//! and no input takes more memory than the decoder states.
//!
//! ```text
//! TOMBOLO_FUZZ_CASES=100000000   inputs over all targets; without it 20,000 for each
//! TOMBOLO_FUZZ_SEED=7            another seed makes other inputs
//! TOMBOLO_FUZZ_TARGET=control    only that one
//! ```
//!
//! An input that a decoder does not survive is printed in hexadecimal; it belongs in `fuzz/corpus/<target>/`. Files there whose names begin with
//! `good` must be taken, all others refused. `TOMBOLO_FUZZ_SEEDS=write` writes those that our own encoders make.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../fuzz/engine.rs"]
mod engine;
mod ledger;
mod seeds;
#[path = "../../fuzz/targets.rs"]
mod targets;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::json;

use engine::Engine;
use targets::{TARGETS, Target};

/// Inputs for each target, if nothing else is said.
const CASES: u64 = 20_000;

/// After so many a target is given up.
const CRASHES_MAX: u64 = 10;

/// Frames as they travel, one a line: a name and its bytes.
const GOLDEN: &str = include_str!("../../core/src/wire/golden.txt");

fn corpus_of(target: &Target) -> PathBuf {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    all.join(target.name)
}

/// What lies in a target's folder, by name, and the golden frames that it takes.
fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<(String, Vec<u8>)> = std::fs::read_dir(corpus_of(target))
        .into_iter()
        .flatten()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    found.sort();
    let golden = GOLDEN.lines().filter_map(|line| line.split_once(' '));
    let golden = golden.filter(|(name, _)| (target.golden)(name));
    found.extend(golden.map(|(name, hex)| (format!("good {name}"), bytes_of(hex))));
    found
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: expected a whole number")),
    )
}

/// What was seen of one target.
#[derive(Default)]
struct Seen {
    cases: u64,
    taken: u64,
    crashes: u64,
    /// The most memory that one input took.
    largest: usize,
    /// The most inputs took more than they may.
    over: u64,
    slowest: Duration,
    elapsed: Duration,
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a decoder takes is about the real world"
)]
fn now() -> Instant {
    Instant::now()
}

/// One input: whether it was taken, and what it cost.
fn give(target: &Target, input: &[u8], seen: &mut Seen) -> Option<bool> {
    let began = now();
    ledger::begin();
    let taken = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let most = ledger::most();
    seen.slowest = seen.slowest.max(now() - began);
    seen.cases += 1;
    seen.largest = seen.largest.max(most);
    let room = (target.room)(input.len());
    if most > room {
        seen.over += 1;
        if seen.over == 1 {
            let (name, len) = (target.name, input.len());
            eprintln!(
                "{name}: an input of {len} bytes takes {most}, at most {room} are stated: {}",
                hex(input)
            );
        }
    }
    match taken {
        Ok(taken) => {
            seen.taken += u64::from(taken);
            Some(taken)
        }
        Err(_) => {
            seen.crashes += 1;
            if seen.crashes == 1 {
                eprintln!("{}: it does not survive {}", target.name, hex(input));
            }
            None
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All inputs of one target.
fn examine(target: &Target, seed: u64, cases: u64) -> Seen {
    let mut seen = Seen::default();
    let corpus = corpus(target);
    assert!(
        corpus.iter().any(|(name, _)| name.starts_with("good")),
        "{}: nothing in its corpus is good: TOMBOLO_FUZZ_SEEDS=write",
        target.name
    );
    // Whatever is made once is made now.
    for (_, input) in &corpus {
        (target.run)(input);
    }
    for (name, input) in &corpus {
        let taken = give(target, input, &mut seen);
        let due = name.starts_with("good");
        assert_eq!(taken, Some(due), "{}: {name} in its corpus", target.name);
    }
    let corpus = corpus.into_iter().map(|(_, input)| input).collect();
    let mut engine = Engine::new(seed, target.name, corpus, target.is_text);
    let mut input = Vec::new();
    seen.cases = 0;
    let began = now();
    // Who does not survive some does not survive many.
    while seen.cases < cases && seen.crashes < CRASHES_MAX {
        engine.next(&mut input);
        give(target, &input, &mut seen);
    }
    seen.elapsed = now() - began;
    seen
}

#[test]
fn every_decoder_takes_anything_without_panic_and_within_the_memory_that_it_states() {
    ledger::open();
    seeds::write_if_asked(&|name| corpus_of(TARGETS.iter().find(|it| it.name == name).unwrap()));
    let only = std::env::var("TOMBOLO_FUZZ_TARGET").ok();
    let wanted = |target: &&Target| only.as_deref().is_none_or(|only| only == target.name);
    let wanted: Vec<&Target> = TARGETS.iter().filter(wanted).collect();
    assert!(!wanted.is_empty(), "there is no target {only:?}");
    let seed = number("TOMBOLO_FUZZ_SEED").unwrap_or(7);
    let all = number("TOMBOLO_FUZZ_CASES");
    let cases = all.map_or(CASES, |all| all.div_ceil(wanted.len() as u64));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (queue, found) = (Mutex::new(VecDeque::from(wanted)), Mutex::new(Vec::new()));
    let began = now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(target) = queue.lock().unwrap().pop_front() else {
                        break;
                    };
                    let seen = examine(target, seed, cases);
                    found.lock().unwrap().push((target, seen));
                }
            });
        }
    });
    let elapsed = (now() - began).as_secs_f64();
    let found = found.into_inner().unwrap();
    let mut sum = 0;
    for (target, seen) in &found {
        let per_second = seen.cases as f64 / seen.elapsed.as_secs_f64();
        let line = json!({
            "target": target.name,
            "cases": seen.cases,
            "taken": seen.taken,
            "crashes": seen.crashes,
            "over_memory": seen.over,
            "largest_bytes": seen.largest,
            "slowest_us": seen.slowest.as_micros() as u64,
            "per_second": per_second.round(),
        });
        println!("{line}");
        sum += seen.cases;
    }
    let line = json!({ "targets": found.len(), "cases": sum, "threads": threads, "per_second": (sum as f64 / elapsed).round() });
    println!("{line}");
    for (target, seen) in &found {
        assert_eq!((seen.crashes, seen.over), (0, 0), "{}", target.name);
        assert_eq!(seen.cases, cases, "{}", target.name);
    }
}
