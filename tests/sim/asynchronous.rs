//! Asynchronous rounds in the real protocol: nobody waits for a slow node, and what is counted is counted once, whatever happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tombolo::Round;
use tombolo::simulation::{
    Simulation, SimulationReport, crash, freeze, millis, panic, partition, restart, secs, slow,
};
use tombolo_core::event::{Event, RoundState};
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;

use crate::seeds;

/// Three domains of two on digits; a training takes a second, on `lab/e` ten.
const DIGITS: &str = r#"
    [federation]
    name = "coast"
    rounds = 30
    sync_every = 10
    seed = 3
    [round]
    MODE
    deadline = "60s"
    [model]
    trainer = "digits-mlp"
    hidden = 32
    partition = { kind = "iid" }
    [aggregator]
    kind = "fedavg"
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
    [[domain]]
    name = "lab"
    nodes = ["gate", "e"]
"#;

const SYNC: &str = r#"quorum = "all""#;
const ASYNC: &str = r#"mode = "async"
    buffer = 4"#;

fn digits(mode: &str) -> Simulation {
    Simulation::from_toml(&DIGITS.replace("MODE", mode))
        .unwrap()
        .training(secs(1))
        .limit(secs(3600))
        .between(millis(1), secs(3000), slow("lab/e", 10.0))
}

fn sound(simulation: Simulation) -> SimulationReport {
    let report = simulation.run().unwrap();
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "", "{:#?}", report.rounds());
    report
}

/// When the model was first that good.
fn time_to(report: &SimulationReport, accuracy: f64) -> Duration {
    let good = |(at, event): &(Micros, Event)| match event {
        Event::Round(record) if record.accuracy >= accuracy => Some(at.since(Micros::default())),
        _ => None,
    };
    let reached = report.events.iter().find_map(good);
    reached.unwrap_or_else(|| panic!("never {accuracy}: {:#?}", report.rounds().last()))
}

fn staleness(record: &Round) -> &[u64] {
    let version = record.version.as_ref();
    &version.expect("it is asynchronous").staleness
}

/// FedBuff's claim, with one node of six that is ten times as slow.
#[test]
fn a_slow_node_holds_up_nobody_and_the_model_is_as_good() {
    let mode = format!("{ASYNC}\n    staleness = {{ limit = 20 }}");
    let (waiting, going) = (sound(digits(SYNC)), sound(digits(&mode)));
    let (slowly, soon) = (time_to(&waiting, 0.9), time_to(&going, 0.9));
    let (before, after) = (waiting.finished.accuracy, going.finished.accuracy);
    println!(
        r#"{{"group":"asynchronous","sync_s":{:.3},"async_s":{:.3},"sync_accuracy":{before:.4},"async_accuracy":{after:.4}}}"#,
        slowly.as_secs_f64(),
        soon.as_secs_f64(),
    );
    assert!(soon * 2 <= slowly, "{soon:?} and {slowly:?}");
    assert!((before - after).abs() <= 0.01, "{before} and {after}");
    // The slow node takes part, for what its updates are worth.
    let slow: Vec<u64> = going
        .rounds()
        .iter()
        .filter_map(|record| {
            let index = record.counted.iter().position(|n| n.as_str() == "lab/e")?;
            Some(staleness(record)[index])
        })
        .collect();
    assert!(
        slow.len() >= 2 && slow.iter().all(|age| *age >= 4),
        "{slow:?}"
    );
    assert!(going.rounds().iter().all(|record| record.late.is_empty()));
}

#[test]
fn an_update_beyond_the_limit_is_named_and_its_node_goes_on() {
    let mode = format!("{ASYNC}\n    staleness = {{ limit = 2 }}");
    let report = sound(digits(&mode));
    let stale = |(_, event): &&(Micros, Event)| match event {
        Event::StaleAnswered {
            node, staleness, ..
        } => node.as_str() == "lab/e" && *staleness == 3,
        _ => false,
    };
    let answered = report.events.iter().filter(stale).count();
    assert!(answered >= 2, "{answered}");
    let named = |record: &&Round| record.late.iter().any(|node| node.as_str() == "lab/e");
    assert_eq!(report.rounds().iter().filter(named).count(), answered);
    let rounds = report.rounds().iter();
    let counted = rounds.filter(|r| r.counted.iter().any(|node| node.as_str() == "lab/e"));
    assert_eq!(counted.count(), 0);
}

// ---- faults ----

/// As `dropout::COAST`, in versions of four.
const COAST: &str = r#"
    [federation]
    name = "coast"
    rounds = 40
    sync_every = 5
    seed = 3
    [round]
    mode = "async"
    buffer = 4
    quorum = { nodes = 2, domains = 1 }
    deadline = "30s"
    grace = "1s"
    failed_limit = 10
    DURABILITY
    [model]
    trainer = "digits-softmax"
    partition = { kind = "iid" }
    [[domain]]
    name = "hq"
    nodes = ["gate", "a", "b"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c", "d"]
    gateways = ["gate", "c"]
    [[domain]]
    name = "lab"
    nodes = ["gate", "e", "f"]
    [[link]]
    between = ["hq", "lab"]
    emulate = { delay = "30ms", jitter = "5ms", loss = "1%" }
"#;

fn coast(durability: &str) -> Simulation {
    let durability = format!("durability = \"{durability}\"");
    Simulation::from_toml(&COAST.replace("DURABILITY", &durability))
        .unwrap()
        .training(millis(300))
        .limit(secs(3600))
        .between(millis(1), secs(3000), slow("lab/f", 6.0))
}

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

fn storm(seed: u64) -> Simulation {
    let durability = ["resend", "journal"][(seed % 2) as usize];
    let mut simulation = coast(durability).seed(seed);
    let mut rng = Rng::derive(seed, &[b"asynchronous storm"]);
    for _ in 0..12 {
        let node = NODES[rng.below(9) as usize];
        let from = millis(100 + rng.below(10_000));
        let until = from + millis(50 + rng.below(8000));
        simulation = match rng.below(6) {
            0 | 1 => simulation.at(from, crash(node)).at(until, restart(node)),
            2 => simulation.between(from, until, partition(["hq"], ["plant", "lab"])),
            3 => simulation.between(from, until, freeze(node)),
            4 => simulation.between(from, until, slow(node, 30.0)),
            _ => simulation.at(from, panic(node, seeds::actor(&mut rng, node))),
        };
    }
    simulation
}

#[test]
fn no_storm_breaks_an_invariant_of_asynchronous_rounds() {
    let mut older = 0;
    for seed in seeds::range("TOMBOLO_ASYNC_STORMS", 0..8) {
        let report = storm(seed)
            .run()
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(report.violations, [], "seed {seed}");
        let rounds = report.rounds();
        assert_eq!(report.finished.reason, "", "seed {seed}: {rounds:#?}");
        let committed = rounds.iter().filter(|record| record.is_committed());
        older += committed
            .flat_map(staleness)
            .filter(|age| **age > 0)
            .count();
        if seed % 4 == 0 {
            let again = storm(seed).run().unwrap();
            assert_eq!(report.trace_hash, again.trace_hash, "seed {seed} (SEED-1)");
            let (one, two) = (&report.finished, &again.finished);
            assert_eq!(one.model_hash, two.model_hash, "seed {seed}");
        }
    }
    assert!(older > 0, "nothing old was counted");
}

/// The round in which the coordinator ends.
const ROUND: u64 = 9;

fn round(report: &SimulationReport) -> &Round {
    let rounds = report.rounds().iter();
    let mut of = rounds.filter(|record| record.round == ROUND);
    of.next().expect("it ended")
}

fn moments(report: &SimulationReport, what: impl Fn(&Event) -> bool) -> Vec<Duration> {
    let happened = report.events.iter().filter(|(_, event)| what(event));
    happened
        .map(|(at, _)| at.since(Micros::default()))
        .collect()
}

/// From the first gate to the record of a round, at every moment at which something happened: the version is the same to the last bit, and no
/// update of it is in a later one.
#[test]
fn whenever_it_ends_the_coordinator_goes_on_with_the_same_version() {
    for durability in ["resend", "journal"] {
        let undisturbed = sound(coast(durability));
        let ages: BTreeSet<u64> = staleness(round(&undisturbed)).iter().copied().collect();
        let weighed = moments(&undisturbed, |event| {
            matches!(event, Event::Weighed { round: ROUND, .. })
        });
        let ended = moments(
            &undisturbed,
            |event| matches!(event, Event::Round(record) if record.round == ROUND),
        );
        let mut all = moments(&undisturbed, |_| true);
        all.retain(|at| (weighed[0]..ended[0]).contains(at));
        all.dedup();
        assert!(all.len() >= 4, "{all:?}");
        for moment in all {
            let moment = moment + Duration::from_micros(1);
            let report = sound(
                coast(durability)
                    .at(moment, crash("hq/gate"))
                    .at(moment + millis(700), restart("hq/gate")),
            );
            let replay = format!("{durability} at {moment:?}");
            let (found, expected) = (round(&report), round(&undisturbed));
            assert_eq!(found.counted, expected.counted, "{replay}");
            assert_eq!(staleness(found), staleness(expected), "{replay}");
            assert_eq!(found.model_hash, expected.model_hash, "{replay}: {ages:?}");
            counted_once(&report);
        }
    }
}

/// ROUND-2, from the records alone.
fn counted_once(report: &SimulationReport) {
    let mut seen = BTreeMap::new();
    for record in report.rounds() {
        let version = record.version.as_ref().expect("it is asynchronous");
        for (node, made) in record.counted.iter().zip(&version.trained_for) {
            let before = seen.insert((node, made), record.round);
            assert_eq!(before, None, "{node} for round {made} in {}", record.round);
        }
    }
}

/// A dead node contributes nothing and is waited for by nobody; with fewer nodes than the buffer holds versions still close.
#[test]
fn who_is_dead_is_not_waited_for() {
    let mut simulation = coast("resend");
    for node in ["hq/a", "hq/b", "plant/d", "plant/c", "lab/e", "lab/f"] {
        simulation = simulation.at(secs(3), crash(node));
    }
    let report = sound(simulation);
    let last = report.rounds().last().unwrap();
    assert_eq!((last.counted.len(), last.state), (3, RoundState::Degraded));
    assert_eq!(last.reason, "3 of 4");
    assert!(report.finished.aborted == 0, "{:#?}", report.rounds());
    let latest: Vec<f64> = report.rounds().iter().map(|r| r.elapsed_s).collect();
    let latest = &latest[report.rounds().len() - 5..];
    assert!(latest.iter().all(|span| *span < 2.0), "{latest:?}");
}
