//! A small federation and a trainer whose every move is known.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo::federation::{Federation, Report};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::rng::Rng;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

/// No federation here takes longer, not even on a machine that does much else; one that does hangs.
pub const LIMIT: Duration = Duration::from_secs(300);

/// More than two slices of 4,096 elements, so that each rank of a domain of three has a part of its own.
const ELEMENTS: usize = 2 * 4096 + 5;

/// What a trainer does before it trains.
pub type Prank =
    Arc<dyn Fn(&Task, &mut [f32]) -> Result<Option<Trained>, TrainError> + Send + Sync>;

/// Pulls every parameter towards a number that only node, round and position decide.
pub struct Tiny {
    prank: Option<Prank>,
}

impl Tiny {
    pub fn new() -> Self {
        Tiny { prank: None }
    }

    pub fn with(prank: Prank) -> Self {
        Tiny { prank: Some(prank) }
    }
}

impl Trainer for Tiny {
    fn layout(&self) -> Layout {
        Layout::new([("bias", vec![5]), ("weight", vec![ELEMENTS - 5])]).unwrap()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        let mut rng = Rng::new(seed);
        parameters
            .iter_mut()
            .for_each(|parameter| *parameter = rng.next_f64() as f32);
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        if let Some(prank) = &self.prank
            && let Some(trained) = prank(task, parameters)?
        {
            return Ok(trained);
        }
        let labels = [task.node.as_str().as_bytes(), &task.round.to_le_bytes()];
        let mut rng = Rng::derive(task.seed, &labels);
        for parameter in parameters.iter_mut() {
            *parameter += 0.25 * (rng.next_f64() as f32 - *parameter);
        }
        Ok(trained(10 + task.node.as_str().len() as u64))
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: f64::from(parameters[0]),
            loss: 0.5,
        })
    }
}

/// A report of local training over so many rows.
pub fn trained(samples: u64) -> Trained {
    Trained {
        samples,
        loss: 0.5,
        steps: 1,
        learning_rate: 0.1,
    }
}

pub fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// Two domains of three. `round` is the body of its table.
pub fn topology(rounds: Round, round: &str) -> String {
    format!(
        r#"
[federation]
name = "small"
rounds = {rounds}
sync_every = 1
coordinator = "hq/gate"
seed = 7

[run]
kernels = "portable"

[round]
{round}

[aggregator]
kind = "fedavg"
clip = "none"

[outer]
optimizer = "nesterov"
learning_rate = 0.7

[[domain]]
name = "hq"
nodes = ["gate", "a", "b"]

[[domain]]
name = "plant"
nodes = ["gate", "c", "d"]
"#
    )
}

/// Nobody may be missing, and nobody is hurried.
pub const PINNED: &str = "quorum = \"all\"\ndeadline = \"10min\"\nclose_limit = \"60s\"";

/// Reads a topology into a folder of its own.
pub fn federation(toml: &str) -> (TempDir, Federation) {
    let folder = tempfile::tempdir().unwrap();
    let federation = Federation::from_toml(toml, folder.path())
        .unwrap()
        .state(folder.path().join("state"));
    (folder, federation)
}

/// Runs a test that needs a runtime, within [`LIMIT`].
pub fn within_limit<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(LIMIT, test)
            .await
            .expect("the federation hangs")
    })
}

/// Runs a federation to its end.
pub fn run(
    toml: &str,
    trainer: impl Fn(&NodeId) -> Tiny + Send + Sync + 'static,
) -> (Report, Vec<tombolo_core::event::Event>) {
    let (_folder, federation) = federation(toml);
    within_limit(async {
        let running = federation.trainer(trainer).spawn().await.unwrap();
        let mut events = running.events();
        let report = running.run().await.unwrap();
        let mut seen = Vec::new();
        while let Ok(event) = events.try_recv() {
            seen.push(event);
        }
        (report, seen)
    })
}
