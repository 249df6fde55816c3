//! A trainer that adds one and the same update in every round, and knows what the model must be.

use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

/// So many elements make 4 GB; more than a machine that measures should be asked for by mistake.
pub const ELEMENTS_MAX: usize = 1 << 30;

/// Beyond so many rounds the sums would not be exact: numbers below 2^13 in steps of 2^-10 fit into an `f32`.
pub const ROUNDS_MAX: u64 = 1 << 12;

/// In rounds before the last every so manieth element is looked at: a prime, so that no pattern escapes.
const STRIDE: usize = 1009;

/// Adds numbers that differ from element to element, all of them multiples of 2^-10 below 1.
pub struct Addition {
    elements: usize,
    /// The round in which every element is looked at.
    last: u64,
    evaluated: u64,
}

impl Addition {
    pub fn new(elements: usize, last: u64) -> Self {
        Addition {
            elements,
            last,
            evaluated: 0,
        }
    }
}

/// What the training of a round adds to an element, and what the element is in the beginning.
fn grain(index: usize) -> f32 {
    // Knuth's multiplicative hash: its upper bits look like noise.
    let mixed = (index as u32).wrapping_mul(2_654_435_761) >> 22;
    (mixed as f32 + 1.0) / 1024.0
}

impl Trainer for Addition {
    fn layout(&self) -> Layout {
        Layout::new([("model", vec![self.elements])]).expect("one tensor of bounded size")
    }

    fn initialize(&mut self, _seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        for (index, parameter) in parameters.iter_mut().enumerate() {
            *parameter = grain(index);
        }
        Ok(())
    }

    fn train(&mut self, _task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        for (index, parameter) in parameters.iter_mut().enumerate() {
            *parameter += grain(index);
        }
        Ok(Trained {
            samples: 1,
            loss: 0.0,
            steps: 1,
            learning_rate: 1.0,
        })
    }

    /// The share of elements that are what they must be, and as loss how many rounds the first one has been through.
    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.evaluated += 1;
        let rounds = parameters[0] / grain(0) - 1.0;
        let stride = match self.evaluated >= self.last {
            true => 1,
            false => STRIDE,
        };
        let (mut looked, mut right) = (0_u64, 0_u64);
        for (index, parameter) in parameters.iter().enumerate().step_by(stride) {
            looked += 1;
            right += u64::from(*parameter == grain(index) * (rounds + 1.0));
        }
        Ok(Evaluation {
            accuracy: right as f64 / looked as f64,
            loss: f64::from(rounds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_was_trained_is_right_and_one_wrong_element_is_found() {
        let mut trainer = Addition::new(5000, 1);
        let mut model = vec![0.0; 5000];
        trainer.initialize(0, &mut model).unwrap();
        for (index, parameter) in model.iter_mut().enumerate() {
            for _ in 0..ROUNDS_MAX {
                *parameter += grain(index);
            }
        }
        let found = trainer.evaluate(&model).unwrap();
        assert_eq!((found.accuracy, found.loss), (1.0, ROUNDS_MAX as f64));
        model[4999] += 1.0;
        assert!(trainer.evaluate(&model).unwrap().accuracy < 1.0);
    }
}
