//! The watch: a copy of a model that changed, and actors that wait for each other, are named within one round. That nothing else ever is, every
//! simulation checks (WATCH-1), the storms of this folder among them.

use tombolo::explain::{self, Past};
use tombolo::simulation::{Simulation, SimulationReport, bit_flip, deadlock, millis, secs};
use tombolo_core::event::Event;
use tombolo_core::ids::Round;
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;

use crate::dropout::COAST;

const MEMBERS: [&str; 6] = [
    "hq/gate",
    "hq/a",
    "plant/gate",
    "plant/d",
    "lab/gate",
    "lab/e",
];

/// Rounds of three tenths of a second.
fn coast(seed: u64) -> Simulation {
    let coast = Simulation::from_toml(COAST).unwrap().limit(secs(600));
    coast.training(millis(300)).seed(seed)
}

/// A run in which a bit of the model that a node holds flips.
pub fn flipped(seed: u64) -> SimulationReport {
    let mut rng = Rng::derive(seed, &[b"flip"]);
    let node = MEMBERS[rng.below(6) as usize];
    let at = millis(500 + rng.below(2000));
    let report = coast(seed).at(at, bit_flip(node)).run();
    report.unwrap_or_else(|error| panic!("seed {seed}: {error}"))
}

/// Who struck whom: the fault's node.
fn struck(report: &SimulationReport) -> &str {
    report.faults.faults[0].fault.node().unwrap()
}

fn opened_before(report: &SimulationReport, nth: usize) -> Option<Round> {
    let before = report.events[..nth].iter().rev();
    let mut rounds = before.filter_map(|(_, event)| match event {
        Event::RoundOpened { round, .. } => Some(*round),
        _ => None,
    });
    rounds.next()
}

#[test]
fn a_bit_flip_in_a_model_is_named_in_the_round_that_would_train_from_it_and_healed() {
    for seed in 0..8 {
        let report = flipped(seed);
        assert_eq!(report.violations, [], "seed {seed}");
        let node = struck(&report);
        let named: Vec<_> = (report.events.iter().enumerate())
            .filter(|(_, (_, event))| matches!(event, Event::ModelDiverged { .. }))
            .collect();
        let [
            (
                nth,
                (
                    _,
                    Event::ModelDiverged {
                        node: of,
                        round,
                        model,
                        expected,
                        found,
                    },
                ),
            ),
        ] = &named[..]
        else {
            panic!("seed {seed}: {named:?}")
        };
        assert_eq!(of.as_str(), node, "seed {seed}");
        assert_ne!(expected, found);
        assert_eq!(
            opened_before(&report, *nth),
            Some(*round),
            "seed {seed}: within one round"
        );
        let rounds = report.rounds();
        let base = rounds.iter().find(|record| record.round == *model).unwrap();
        assert_eq!(base.model_hash, *expected);
        // It has read the model anew, and its update counts in that very round.
        let healed = rounds.iter().find(|record| record.round == *round).unwrap();
        assert!(healed.counted.contains(of), "seed {seed}: {healed:?}");
        // The model is the one that it would have been.
        let calm = coast(seed).run().unwrap();
        assert_eq!(
            report.finished.model_hash, calm.finished.model_hash,
            "seed {seed}"
        );
        let past = report.events.iter().map(|(at, event)| Past {
            at: at.0 as f64 / 1e6,
            life: 0,
            event: event.clone(),
        });
        let story = explain::node(past, of).unwrap();
        let told = story
            .incidents
            .iter()
            .filter(|incident| incident.what.contains("had changed"));
        assert_eq!(told.count(), 1, "{:?}", story.incidents);
    }
}

/// Nobody can do without anybody: the round waits for the node whose actors wait for each other.
const ALL: &str = r#"
    [federation]
    name = "reef"
    rounds = 6
    sync_every = 5
    [round]
    quorum = { nodes = 3, domains = 2 }
    deadline = "40s"
    grace = "30s"
    failed_limit = 3
    [model]
    trainer = "digits-softmax"
    partition = { kind = "iid" }
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
"#;

fn reef(seed: u64) -> Simulation {
    let reef = Simulation::from_toml(ALL).unwrap().limit(secs(900));
    reef.training(millis(300)).seed(seed)
}

#[test]
fn actors_that_wait_for_each_other_are_named_with_the_ring_in_the_round_that_waits_for_them() {
    for (seed, (node, actor, other)) in [
        ("plant/c", "Node", "Collective"),
        ("plant/gate", "Collective", "Verbs"),
    ]
    .into_iter()
    .enumerate()
    {
        let simulation = reef(seed as u64).at(millis(700), deadlock(node, actor, other));
        let report = simulation.run().unwrap();
        assert_eq!(report.violations, []);
        let named: Vec<_> = (report.events.iter().enumerate())
            .filter(|(_, (_, event))| matches!(event, Event::Deadlocked { .. }))
            .collect();
        let [
            (
                nth,
                (
                    at,
                    Event::Deadlocked {
                        node: of,
                        ring,
                        standing_ms,
                    },
                ),
            ),
        ] = &named[..]
        else {
            panic!("{named:?}")
        };
        assert_eq!(of.as_str(), node);
        let mut ring = ring.clone();
        ring.sort();
        let mut expected = [(actor, other), (other, actor)]
            .map(|(who, on)| format!("{who} of {node} waits for an answer of {on} of {node}"));
        expected.sort();
        assert_eq!(ring, expected);
        assert!(*standing_ms > 0, "{standing_ms}");
        // The round that was open when the actors stood still, or the one after it, waits for them: it is open when they are named.
        let ends =
            |(at, event): &&(Micros, Event)| at.0 > 700_000 && matches!(event, Event::Round(_));
        let before = report.events[..*nth].iter().filter(ends).count();
        assert!(before <= 1, "{before} rounds ended before {at:?}");
    }
}

/// pccl#13: one that lives and does not work is told by its rank and what it is to do.
#[test]
fn a_collective_without_progress_is_told_by_rank_and_operation() {
    let stuck = deadlock("plant/gate", "Collective", "Verbs");
    let report = reef(3).at(millis(700), stuck).run().unwrap();
    let chains = report.events.iter().filter_map(|(_, event)| match event {
        Event::Stalled { domain, chain, .. } if domain.as_str() == "plant" => Some(chain),
        _ => None,
    });
    let chains: Vec<String> = chains.flatten().cloned().collect();
    let told = |chain: &String| {
        chain.starts_with("plant/gate is to measure slices 0 of the region of plant/")
    };
    assert!(chains.iter().any(told), "{chains:?}");
}
