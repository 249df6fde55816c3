//! A model for tests that are about everything but training.

use tombolo::core::ids::NodeId;
use tombolo::core::rng::Rng;
use tombolo::core::tensor::Layout;
use tombolo::core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

/// A model of nothing: its updates follow from node and round, and cost next to no time.
pub struct Probe {
    pub layout: Layout,
}

impl Probe {
    pub fn new(_: &NodeId) -> Self {
        let tensors = [("weight", vec![97, 64]), ("bias", vec![64])];
        Probe {
            layout: Layout::new(tensors).unwrap(),
        }
    }
}

impl Trainer for Probe {
    fn layout(&self) -> Layout {
        self.layout.clone()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        let mut rng = Rng::derive(seed, &[b"initial"]);
        parameters.fill_with(|| rng.next_f64() as f32 - 0.5);
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let labels = [task.node.as_str().as_bytes(), &task.round.to_le_bytes()];
        let mut rng = Rng::derive(task.seed, &labels);
        for parameter in parameters.iter_mut() {
            *parameter += (rng.next_f64() as f32 - 0.5) / 16.0 - *parameter / 8.0;
        }
        Ok(Trained {
            samples: 10 + rng.below(90),
            loss: 1.0 + rng.next_f64(),
            steps: 5,
            learning_rate: 0.1,
        })
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: 0.5,
            loss: f64::from(parameters[0].abs()),
        })
    }
}
