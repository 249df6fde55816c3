//! Edge dropout: who vanishes, what the others do, and that everybody is back afterwards.

use tombolo::Round;
use tombolo::simulation::{
    Simulation, SimulationReport, crash, millis, panic, partition, restart, secs, slow,
};
use tombolo_core::event::{Event, RoundState};

/// Three domains of three; a round takes about a third of a virtual second.
pub const COAST: &str = r#"
    [federation]
    name = "coast"
    rounds = 12
    sync_every = 5
    seed = 3
    [round]
    quorum = { nodes = 4, domains = 2 }
    deadline = "30s"
    grace = "1s"
    [model]
    trainer = "digits-softmax"
    partition = { kind = "iid" }
    [[domain]]
    name = "hq"
    nodes = ["gate", "a", "b"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c", "d"]
    [[domain]]
    name = "lab"
    nodes = ["gate", "e", "f"]
"#;

fn coast() -> Simulation {
    Simulation::from_toml(COAST).unwrap().limit(secs(600))
}

/// What every run must end like: nothing violated, every round committed, everybody with the last model.
fn healthy(report: &SimulationReport) {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    assert!(
        report.rounds().iter().all(Round::is_committed),
        "{:#?}",
        report.rounds()
    );
    assert_eq!(report.rounds().len(), 12);
}

fn adopted_last(report: &SimulationReport, node: &str) -> bool {
    report.events.iter().any(|(_, event)| match event {
        Event::ModelAdopted {
            node: who, hash, ..
        } => who.as_str() == node && *hash == report.finished.model_hash,
        _ => false,
    })
}

#[test]
fn without_faults_everybody_is_counted_in_every_round() {
    let report = coast().run().unwrap();
    healthy(&report);
    assert!(
        report
            .rounds()
            .iter()
            .all(|round| round.state == RoundState::Committed && round.counted.len() == 9)
    );
    for node in ["hq/gate", "hq/a", "plant/gate", "plant/d", "lab/f"] {
        assert!(adopted_last(&report, node), "{node}");
    }
}

/// openfl#441, flower#1172, NVFlare#1607: one node that is gone does not stall the others.
#[test]
fn a_node_that_vanishes_in_mid_round_is_left_out_and_counted_again_when_it_is_back() {
    let report = coast()
        .at(millis(500), crash("plant/c"))
        .at(secs(4), restart("plant/c"))
        .run()
        .unwrap();
    healthy(&report);
    let without = report
        .rounds()
        .iter()
        .filter(|round| round.late.iter().any(|node| node.as_str() == "plant/c"))
        .count();
    assert!(without > 0, "{:#?}", report.rounds());
    assert!(adopted_last(&report, "plant/c"));
    let last = report.rounds().last().unwrap();
    assert_eq!(last.counted.len(), 9, "{last:#?}");
}

#[test]
fn a_domain_that_is_cut_off_is_left_out_and_counted_again_when_it_is_healed() {
    let report = coast()
        .between(millis(600), secs(5), partition(["hq"], ["lab"]))
        .run()
        .unwrap();
    healthy(&report);
    assert!(
        report.rounds().iter().any(|round| round
            .counted
            .iter()
            .all(|node| node.domain().as_str() != "lab")),
        "{:#?}",
        report.rounds()
    );
    assert_eq!(report.rounds().last().unwrap().counted.len(), 9);
    assert!(adopted_last(&report, "lab/e"));
}

/// NVFlare#242, openfl#1229: a restarted coordinator resumes from its last committed round.
#[test]
fn a_coordinator_that_restarts_goes_on_from_its_last_commit() {
    let undisturbed = coast().run().unwrap();
    let report = coast()
        .at(millis(900), crash("hq/gate"))
        .at(secs(3), restart("hq/gate"))
        .run()
        .unwrap();
    healthy(&report);
    // Everybody is in every round again, so even the numbers are the same.
    if report.rounds().iter().all(|round| round.counted.len() == 9) {
        assert_eq!(report.finished.model_hash, undisturbed.finished.model_hash);
    }
}

#[test]
fn a_gateway_that_restarts_relearns_its_domain() {
    let report = coast()
        .at(millis(700), crash("plant/gate"))
        .at(secs(2), restart("plant/gate"))
        .run()
        .unwrap();
    healthy(&report);
    assert_eq!(report.rounds().last().unwrap().counted.len(), 9);
}

#[test]
fn a_panic_of_any_actor_in_mid_round_costs_nothing() {
    let undisturbed = coast().run().unwrap();
    for node in ["hq/gate", "plant/gate", "lab/e"] {
        for actor in [
            "Node",
            "Link",
            "Quic",
            "Verbs",
            "Collective",
            "Heartbeat",
            "ClockSync",
            "Checkpoint",
            "Coordinator",
            "Aggregate",
        ] {
            if node != "hq/gate" && matches!(actor, "Coordinator" | "Aggregate") {
                continue;
            }
            let report = coast().at(millis(450), panic(node, actor)).run().unwrap();
            healthy(&report);
            let rebuilt = report.events.iter().any(|(_, event)| matches!(event, Event::ActorRestarted { actor: name, .. } if name == actor));
            assert!(rebuilt, "{actor} of {node}");
            if report.rounds().iter().all(|round| round.counted.len() == 9) {
                assert_eq!(
                    report.finished.model_hash, undisturbed.finished.model_hash,
                    "{actor} of {node}"
                );
            }
        }
    }
}

#[test]
fn faults_that_cannot_happen_are_refused_before_anything_runs() {
    for (simulation, said) in [
        (coast().at(secs(1), crash("plant/nobody")), "plant/nobody"),
        (
            coast().at(secs(1), panic("plant/c", "Nonsense")),
            "Nonsense",
        ),
        (
            coast().at(secs(1), panic("plant/c", "Coordinator")),
            "Coordinator",
        ),
        (
            coast().between(secs(1), secs(2), slow("plant/c", f64::NAN)),
            "NaN",
        ),
        (
            coast().between(secs(1), secs(2), slow("plant/c", -5.0)),
            "-5",
        ),
    ] {
        let refusal = simulation.run().unwrap_err().to_string();
        assert!(refusal.contains(said), "{refusal}");
    }
}

/// A coordinator that is given up ends the run with a reason, as in the real world.
#[test]
fn a_coordinator_that_panics_too_often_ends_the_run() {
    let panics = tombolo_actors::shell::RESTARTS_MAX as u64 + 1;
    let endless = COAST.replace("rounds = 12", "rounds = 90000");
    let endless = Simulation::from_toml(&endless).unwrap().limit(secs(120));
    let simulation = (1..=panics).fold(endless, |simulation, count| {
        simulation.at(millis(2100 * count), panic("hq/gate", "Coordinator"))
    });
    let report = simulation.run().unwrap();
    let reason = &report.finished.reason;
    assert!(reason.contains("coordinator failed too often"), "{reason}");
}
