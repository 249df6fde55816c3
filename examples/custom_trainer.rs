//! A trainer of your own: least squares, `y = a x + b`, on rows that each node makes up for itself.
//!
//! Run it with `cargo run --example custom_trainer`.

use std::error::Error;

use tombolo::Federation;
use tombolo::core::ids::NodeId;
use tombolo::core::plan::SyncEvery;
use tombolo::core::rng::Rng;
use tombolo::core::tensor::Layout;
use tombolo::core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

const TOPOLOGY: &str = r#"
    [federation]
    name = "fit"
    rounds = 12
    sync_every = 20

    [[domain]]
    name = "north"
    nodes = ["gate", "a"]

    [[domain]]
    name = "south"
    nodes = ["gate", "b"]
"#;

/// What all nodes' rows follow, but for some noise.
const SLOPE: f64 = 3.0;
const INTERCEPT: f64 = -1.0;

const LEARNING_RATE: f32 = 0.1;

struct LeastSquares {
    rows: Vec<(f32, f32)>,
}

impl LeastSquares {
    fn new(node: &NodeId) -> Self {
        let mut rng = Rng::derive(1, &[node.as_str().as_bytes()]);
        let mut between =
            |low: f64, high: f64| low + (high - low) * (rng.next_u64() as f64 / u64::MAX as f64);
        let rows = (0..64).map(|_| {
            let x = between(-1.0, 1.0);
            let y = SLOPE * x + INTERCEPT + between(-0.1, 0.1);
            (x as f32, y as f32)
        });
        LeastSquares {
            rows: rows.collect(),
        }
    }

    /// Mean squared error and its gradient.
    fn loss(&self, parameters: &[f32]) -> (f32, [f32; 2]) {
        // In the order of the layout, which is the order of names.
        let [intercept, slope] = [parameters[0], parameters[1]];
        let n = self.rows.len() as f32;
        let mut sums = (0.0, [0.0; 2]);
        for (x, y) in &self.rows {
            let error = slope * x + intercept - y;
            sums.0 += error * error / n;
            sums.1[0] += 2.0 * error / n;
            sums.1[1] += 2.0 * error * x / n;
        }
        sums
    }
}

impl Trainer for LeastSquares {
    fn layout(&self) -> Layout {
        Layout::new([("intercept", vec![1]), ("slope", vec![1])]).expect("two names that differ")
    }

    fn initialize(&mut self, _seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        parameters.fill(0.0);
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let steps = match task.sync_every {
            SyncEvery::Steps(steps) | SyncEvery::Epochs(steps) => steps,
        };
        let mut losses = 0.0;
        for _ in 0..steps {
            let (loss, gradient) = self.loss(parameters);
            losses += f64::from(loss);
            for (parameter, slope) in parameters.iter_mut().zip(gradient) {
                *parameter -= LEARNING_RATE * slope;
            }
        }
        Ok(Trained {
            samples: self.rows.len() as u64,
            loss: losses / steps as f64,
            steps,
            learning_rate: f64::from(LEARNING_RATE),
        })
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        let loss = f64::from(self.loss(parameters).0);
        let error = (f64::from(parameters[1]) - SLOPE).abs();
        Ok(Evaluation {
            // The share of right answers has no meaning here: how near the slope is to the true one.
            accuracy: (1.0 - error / SLOPE).max(0.0),
            loss,
        })
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

/// The whole example; also called by a test.
#[tokio::main(flavor = "current_thread")]
pub async fn run() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let running = Federation::from_toml(TOPOLOGY, folder.path())?
        .trainer(LeastSquares::new)
        .spawn()
        .await?;
    let report = running.run().await?;
    for round in report.rounds() {
        println!("round {:>2}: loss {:.4}", round.round, round.loss);
    }
    assert!(report.succeeded(), "{:?}", report.finished);
    let slope = SLOPE * report.finished.accuracy;
    println!("the slope is {slope:.2}, within 5 % of {SLOPE:.1}");
    assert!(report.finished.accuracy > 0.95, "{:?}", report.finished);
    Ok(())
}
