//! Steps dealt by speed in a real run: what the record says is what was trained.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tombolo::Federation;
use tombolo::learn::DigitsTrainer;
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

const TOPOLOGY: &str = r#"
    [federation]
    name = "delta"
    rounds = 6
    sync_every = 40
    [run]
    balance_steps = true
    [round]
    quorum = "all"
    [model]
    trainer = "digits-softmax"
    partition = { kind = "iid" }
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate"]
"#;

/// How many steps were made, by node and round.
type Made = Arc<Mutex<BTreeMap<(NodeId, u64), u64>>>;

/// Notes how many steps the digits' trainer makes; a slow one does everything many times over.
struct Noted {
    trainer: DigitsTrainer,
    times: usize,
    made: Made,
}

impl Trainer for Noted {
    fn layout(&self) -> Layout {
        self.trainer.layout()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.trainer.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let begun = parameters.to_vec();
        for _ in 1..self.times {
            self.trainer.train(task, parameters)?;
            parameters.copy_from_slice(&begun);
        }
        let trained = self.trainer.train(task, parameters)?;
        let of = (task.node.clone(), task.round);
        self.made.lock().unwrap().insert(of, trained.steps);
        Ok(trained)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.trainer.evaluate(parameters)
    }
}

#[test]
fn a_real_run_records_the_steps_that_were_trained() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("delta.toml");
    std::fs::write(&path, TOPOLOGY).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let made = Made::default();
    let report = runtime.block_on(async {
        let federation = Federation::from_path(&path).unwrap();
        let (plan, made) = (federation.plan().clone(), made.clone());
        let federation = federation.trainer(move |node: &NodeId| Noted {
            trainer: DigitsTrainer::new(&plan, node).unwrap(),
            times: if node.as_str() == "plant/gate" {
                200
            } else {
                20
            },
            made: made.clone(),
        });
        federation.spawn().await.unwrap().run().await.unwrap()
    });
    let made = made.lock().unwrap();
    assert_eq!(report.rounds().len(), 6);
    for round in report.rounds() {
        let balance = round.balance.as_ref().expect("steps are balanced");
        for (node, steps) in &balance.steps {
            assert_eq!(
                made[&(node.clone(), round.round)],
                *steps,
                "{node} {round:?}"
            );
        }
        let total: u64 = balance.steps.iter().map(|(_, steps)| steps).sum();
        assert_eq!(total, 3 * 40);
        assert_eq!(balance.paces.len(), 3);
    }
    // The one that does ten times the work for a step is given fewer of them.
    let last = report.rounds()[5].balance.as_ref().unwrap();
    let (slow, fast) = (last.steps[2].1, last.steps[0].1.max(last.steps[1].1));
    assert!(slow < fast, "{last:?}");
    assert!(report.finished.accuracy > 0.8, "{:?}", report.finished);
}
