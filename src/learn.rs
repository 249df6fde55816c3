//! A built-in model to train, so that one command trains something real: handwritten digits by softmax regression or by a network with one
//! hidden layer.
//!
//! [`Digits`] is the data, [`partition()`] deals its training rows out to the nodes, [`DigitsTrainer`] is the [`Trainer`] of one node. Nothing
//! here knows of the federation; a trainer of your own takes the same place. If it follows a gradient, [`GradientTrainer`] makes one of it.
//!
//! A trainer's numbers repeat exactly, on every machine: one thread, fixed order of sums, no fused multiplication, `libm` instead of the
//! platform's exponential, no state between rounds.
//!
//! [`Trainer`]: tombolo_core::trainer::Trainer

mod batches;
mod digits;
mod gradient;
mod model;
mod partition;
mod trainer;

pub use digits::{CLASSES, DataError, Digits, PIXELS, ROWS};
pub use gradient::{Gradient, GradientTrainer};
pub use partition::{Dealt, PartitionError, dealt, partition};
pub use trainer::{DigitsTrainer, TrainerError};
