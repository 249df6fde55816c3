//! Rules that must see each update: every node's update crosses the WAN, and is folded where the rule is.
//!
//! The invariants of the simulator look on: ROUND-1 compares each mean, bit for bit, with the rule over all counted updates at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo::Round;
use tombolo::simulation::{Simulation, SimulationReport, crash, millis, restart, secs};
use tombolo_core::aggregate::{AggregateError, Aggregator, EachFold, Needs, Report, Weight};
use tombolo_core::event::{Event, RoundState};
use tombolo_core::tensor::Layout;
use tombolo_core::wire::CHUNK_ELEMENTS;

use crate::probe::Probe;

/// Seven nodes: enough for Krum with two that may be bad.
fn reef(rule: &str) -> Simulation {
    let text = format!(
        r#"
        [federation]
        name = "reef"
        rounds = 6
        sync_every = 5
        seed = 3
        [round]
        quorum = {{ nodes = 5, domains = 2 }}
        deadline = "30s"
        grace = "1s"
        [model]
        trainer = "digits-softmax"
        partition = {{ kind = "iid" }}
        [aggregator]
        {rule}
        [[domain]]
        name = "hq"
        nodes = ["gate", "a", "b"]
        [[domain]]
        name = "plant"
        nodes = ["gate", "c"]
        gateways = ["gate", "c"]
        [[domain]]
        name = "lab"
        nodes = ["gate", "e"]
    "#
    );
    Simulation::from_toml(&text).unwrap().limit(secs(600))
}

const RULES: [&str; 6] = [
    "kind = \"median\"",
    "kind = \"trimmed-mean\"\nfaulty = 2",
    "kind = \"krum\"\nfaulty = 2\nclip = \"none\"",
    "kind = \"multi-krum\"",
    "kind = \"centred-clipping\"",
    "kind = \"centred-clipping\"\nclip = 0.25\niterations = 8",
];

fn healthy(report: &SimulationReport) {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    let rounds = report.rounds();
    assert!(rounds.iter().all(Round::is_committed), "{rounds:#?}");
    assert_eq!(rounds.len(), 6);
}

#[test]
fn every_rule_trains_on_every_update() {
    for rule in RULES {
        let report = reef(rule).run().unwrap();
        healthy(&report);
        let all = |round: &Round| round.state == RoundState::Committed && round.counted.len() == 7;
        assert!(report.rounds().iter().all(all), "{rule}");
        let reached = report.finished.accuracy;
        assert!(reached > 0.5, "{rule}: {reached}");
    }
}

#[test]
fn a_rule_for_each_update_costs_one_update_a_node_on_the_wan_and_no_more() {
    let traffic = |rule| {
        let report = reef(rule).run().unwrap();
        let last = report.rounds().last().cloned().unwrap();
        (last.bytes_up, last.bytes_down)
    };
    let (sums, down) = traffic("kind = \"fedavg\"");
    for rule in RULES {
        // Two domains are not the coordinator's own, with two nodes each: two sums, or four updates.
        let (each, same) = traffic(rule);
        let ratio = each as f64 / sums as f64;
        assert!((1.5..2.2).contains(&ratio), "{rule}: {each} against {sums}");
        assert!(
            same.abs_diff(down) < down / 5,
            "{rule}: {same} against {down}"
        );
    }
}

#[test]
fn a_node_and_a_gateway_that_vanish_are_left_out_and_come_back() {
    for rule in [RULES[0], RULES[3]] {
        let report = reef(rule)
            .at(millis(350), crash("lab/e"))
            .at(millis(700), crash("plant/gate"))
            .at(secs(5), restart("lab/e"))
            .at(secs(40), restart("plant/gate"))
            .run()
            .unwrap();
        healthy(&report);
        let fewer = report.rounds().iter().any(|round| round.counted.len() < 7);
        assert!(fewer, "{rule}: nobody was missed, nothing was tested");
    }
}

#[test]
fn a_coordinator_that_is_restarted_goes_on_with_the_round_and_its_updates() {
    let mut resumed = 0;
    for rule in [RULES[1], RULES[4]] {
        for at in [300, 340, 380, 420, 460] {
            let report = reef(rule)
                .at(millis(at), crash("hq/gate"))
                .at(secs(2), restart("hq/gate"))
                .run()
                .unwrap();
            assert_eq!(report.violations, []);
            let is_resumed = |(_, event): &_| matches!(event, Event::RoundResumed { .. });
            resumed += report
                .events
                .iter()
                .filter(|event| is_resumed(event))
                .count();
        }
    }
    assert!(resumed > 0, "no round was resumed, nothing was tested");
}

#[test]
fn too_few_updates_for_the_rule_end_a_round_with_the_reason_and_the_old_model() {
    let report = reef("kind = \"krum\"\nfaulty = 2")
        .at(millis(350), crash("lab/e"))
        .at(secs(8), restart("lab/e"))
        .run()
        .unwrap();
    assert_eq!(report.violations, []);
    let aborted = report
        .rounds()
        .iter()
        .find(|round| !round.is_committed())
        .cloned();
    let reason = aborted.expect("one round lacks a node").reason;
    assert!(
        reason.contains("updates with a weight are too few") && reason.contains("needs 7"),
        "{reason}"
    );
}

#[test]
fn a_model_of_many_chunks_is_collected_and_folded_across_all_their_borders() {
    // The borders of slices and of chunks fall apart, and the last chunk is short.
    let layout = Layout::new([("w", vec![CHUNK_ELEMENTS + 70_001])]).unwrap();
    for rule in [
        RULES[1],
        RULES[3],
        "kind = \"centred-clipping\"\nclip = 0.5",
    ] {
        let layout = layout.clone();
        let report = reef(rule)
            .trainer(move |_| Probe {
                layout: layout.clone(),
            })
            .run()
            .unwrap();
        healthy(&report);
    }
}

/// A user's own rule: whoever has most rows decides.
struct Heaviest;

struct Take(usize);

impl Aggregator for Heaviest {
    fn needs(&self) -> Needs {
        Needs::Each
    }

    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        let weight = |report: &Report| Weight {
            node: report.node.clone(),
            weight: report.samples as f64,
            clip: 1.0,
            reason: String::new(),
        };
        Ok(reports.iter().map(weight).collect())
    }

    fn each(&mut self, counted: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        assert_eq!(counted.len(), 7);
        let names: Vec<&str> = counted.iter().map(|weight| weight.node.as_str()).collect();
        assert_eq!(names[..4], ["hq/gate", "hq/a", "hq/b", "lab/gate"]);
        let heaviest = (0..7).max_by(|a, b| counted[*a].weight.total_cmp(&counted[*b].weight));
        Ok(Box::new(Take(heaviest.unwrap())))
    }
}

impl EachFold for Take {
    fn fold(&mut self, chunk: &[&[f32]], out: &mut [f32]) {
        out.copy_from_slice(chunk[self.0]);
    }
}

#[test]
fn a_rule_of_the_user_s_own_may_see_each_update() {
    let report = reef("kind = \"heaviest\"")
        .aggregator("heaviest", || Heaviest)
        .run()
        .unwrap();
    healthy(&report);
    let reached = report.finished.accuracy;
    assert!(reached > 0.3, "{reached}");
}

/// Breaks once.
struct Clumsy(Arc<AtomicBool>);

impl Aggregator for Clumsy {
    fn needs(&self) -> Needs {
        Needs::EachTwice
    }

    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        Heaviest.weigh(reports)
    }

    fn each(&mut self, _: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        Ok(Box::new(Clumsy(self.0.clone())))
    }
}

impl EachFold for Clumsy {
    fn fold(&mut self, chunk: &[&[f32]], out: &mut [f32]) {
        assert!(self.0.swap(true, Ordering::Relaxed), "dropped it");
        Take(0).fold(chunk, out);
    }
}

#[test]
fn a_rule_that_panics_over_the_updates_ends_the_round_and_not_the_run() {
    let dropped = Arc::new(AtomicBool::new(false));
    let report = reef("kind = \"clumsy\"")
        .aggregator("clumsy", move || Clumsy(dropped.clone()))
        .run()
        .unwrap();
    assert_eq!(report.violations, []);
    let rounds = report.rounds();
    let states: Vec<bool> = rounds.iter().map(Round::is_committed).collect();
    assert_eq!(states, [false, true, true, true, true, true]);
    let reason = &rounds[0].reason;
    assert!(
        reason.contains("the rule failed") && reason.contains("dropped it"),
        "{reason}"
    );
}
