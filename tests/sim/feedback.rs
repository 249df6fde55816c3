//! Nodes that drift over rounds: they lose weight and regain it, and a coordinator that is restarted goes on where it was.

use tombolo::Round;
use tombolo::learn::DigitsTrainer;
use tombolo::simulation::{Simulation, SimulationReport, crash, millis, restart, secs};
use tombolo_core::aggregate::feedback::Drift;
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

const TOPOLOGY: &str = r#"
    [federation]
    name = "shoal"
    rounds = 12
    sync_every = 5
    seed = 3
    [round]
    quorum = { nodes = 3, domains = 2 }
    deadline = "30s"
    grace = "1s"
    [model]
    trainer = "digits-softmax"
    partition = { kind = "iid" }
    [aggregator]
    feedback = { memory = 0.5 }
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
"#;

/// Its updates are too long until some round.
struct Wild {
    trainer: DigitsTrainer,
    until: u64,
}

impl Trainer for Wild {
    fn layout(&self) -> Layout {
        self.trainer.layout()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.trainer.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let begun = parameters.to_vec();
        let trained = self.trainer.train(task, parameters)?;
        let times = if task.round <= self.until { 9.0 } else { 1.0 };
        for (parameter, begun) in parameters.iter_mut().zip(&begun) {
            *parameter = begun + times * (*parameter - begun);
        }
        Ok(trained)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.trainer.evaluate(parameters)
    }
}

/// `plant/c` drifts in the first six rounds.
fn shoal() -> Simulation {
    let simulation = Simulation::from_toml(TOPOLOGY).unwrap().limit(secs(600));
    let plan = simulation.plan().clone();
    simulation.trainer(move |node: &NodeId| Wild {
        trainer: DigitsTrainer::new(&plan, node).unwrap(),
        until: if node.as_str() == "plant/c" { 6 } else { 0 },
    })
}

/// What each round's record says of `plant/c`, and that it speaks of nobody else.
fn factors(report: &SimulationReport) -> Vec<f64> {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    let of = |round: &Round| {
        let names: Vec<&str> = round
            .drifts
            .iter()
            .map(|drift| drift.node.as_str())
            .collect();
        assert!(names.is_empty() || names == ["plant/c"], "{names:?}");
        round
            .drifts
            .first()
            .map_or(1.0, |Drift { factor, .. }| *factor)
    };
    report.rounds().iter().map(of).collect()
}

#[test]
fn who_drifts_loses_weight_and_regains_it() {
    let report = shoal().run().unwrap();
    let factors = factors(&report);
    assert_eq!(factors.len(), 12);
    assert!(factors[..6].is_sorted_by(|a, b| a > b), "{factors:?}");
    assert!(factors[5] < 0.2, "{factors:?}");
    assert!(factors[5..].is_sorted(), "{factors:?}");
    assert!(factors[11] > 0.95, "{factors:?}");
    let reason = &report.rounds()[5].drifts[0].reason;
    assert!(reason.starts_with("round 6: gradient norm"), "{reason}");
}

/// NVFlare#242, openfl#1229: what a rule knows of the rounds before survives the coordinator.
#[test]
fn a_restarted_coordinator_weighs_as_the_one_before_would_have() {
    let undisturbed = factors(&shoal().run().unwrap());
    for at in [900, 1150, 1400] {
        let report = shoal()
            .at(millis(at), crash("hq/gate"))
            .at(secs(4), restart("hq/gate"))
            .run()
            .unwrap();
        let found = factors(&report);
        assert_eq!(found, undisturbed, "killed at {at} ms");
    }
}
