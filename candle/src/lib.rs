//! Trains models of the [candle](candle_core) library in a Tombolo federation.
//!
//! A [`Learner`] is a model and its data, written as candle programs are: it builds the model from a [`VarBuilder`](candle_nn::VarBuilder) and gives the
//! loss of some rows. [`trainer`] makes a [`Trainer`](tombolo::core::trainer::Trainer) of it for one node. The federation sees flat `f32` slices,
//! tensors in order of their names; batches, accumulation, AdamW, FedProx and snapshots are those of `[model]` in the topology.
//!
//! * [`learner`]: what a user writes, and what gives its gradient.
//! * `vars`: where a model gets its tensors from.
//!
//! Checkpoints of the federation are safetensors files with the model's own names: candle's `VarBuilder::from_buffered_safetensors` opens them, and so
//! does PyTorch. [`CandleGradient::start_from`] begins with such a file.
//!
//! The same machine, number of threads, topology and seed give the same bits as long as the same nodes count in each round. Another processor may
//! not: candle's products choose their kernels by it.

#![forbid(unsafe_code)]

pub mod learner;
mod vars;

pub use learner::{CandleError, CandleGradient, CandleTrainer, Learner, trainer};
