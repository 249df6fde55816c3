//! The trainer of one node on the digits: its rows and its model.

use std::borrow::Cow;

use tombolo_core::ids::NodeId;
use tombolo_core::plan::{Init, Plan, TrainerKind};
use tombolo_core::rng::Rng;
use tombolo_core::tensor::{Layout, LayoutError};
use tombolo_core::trainer::{Evaluation, Snapshot, Snapshots, Task, TrainError, Trained, Trainer};

use super::digits::{DataError, Digits};
use super::gradient::{Gradient, GradientTrainer};
use super::model::Network;
use super::partition::{PartitionError, partition};

/// The most hidden units: far more than the digits need, far less than would exhaust a machine.
pub const HIDDEN_MAX: usize = 1 << 16;

/// Settings that no built-in model can be trained with.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainerError {
    /// The number of hidden units.
    #[error("[model] hidden is {hidden}, expected 1 to {HIDDEN_MAX}")]
    Hidden {
        /// As given.
        hidden: usize,
    },
    /// The batch size.
    #[error("[model] batch is 0, expected at least one row")]
    Batch,
    /// The learning rate.
    #[error("[model] learning_rate is {learning_rate}, expected a positive finite number")]
    LearningRate {
        /// As given.
        learning_rate: f64,
    },
    /// An MLP of zeros.
    #[error(
        "[model] init = \"zeros\" cannot start digits-mlp: its hidden units would stay off for ever; give init a seed"
    )]
    ZeroMlp,
    /// A node without data.
    #[error("{node} has no row to train on: give it some, or leave it out of the topology")]
    NoRows {
        /// Whose.
        node: NodeId,
    },
    /// A node that the plan does not have.
    #[error("the topology declares no node {node}: use one of its names")]
    UnknownNode {
        /// As asked for.
        node: NodeId,
    },
    /// No rows for the node.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The model is too large.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The data does not load.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// Trains a built-in model on one node's share of the digits, as [`GradientTrainer`] does.
#[derive(Debug)]
pub struct DigitsTrainer(GradientTrainer<DigitsGradient>);

/// A built-in model and the digits.
#[derive(Debug)]
struct DigitsGradient {
    digits: Cow<'static, Digits>,
    network: Network,
    init: Init,
}

impl DigitsTrainer {
    /// The trainer of `node`.
    ///
    /// # Errors
    /// Settings of `[model]` that cannot be trained with, or a node that the plan does not have.
    pub fn new(plan: &Plan, node: &NodeId) -> Result<Self, TrainerError> {
        let model = &plan.model;
        if model.trainer == TrainerKind::DigitsMlp {
            if !(1..=HIDDEN_MAX).contains(&model.hidden) {
                return Err(TrainerError::Hidden {
                    hidden: model.hidden,
                });
            }
            if model.init == Init::Zeros {
                return Err(TrainerError::ZeroMlp);
            }
        }
        let rows = partition(plan)?
            .remove(node)
            .ok_or_else(|| TrainerError::UnknownNode { node: node.clone() })?;
        let gradient = DigitsGradient {
            digits: Cow::Borrowed(Digits::load()?),
            network: Network::new(model.trainer, model.hidden, model.precision)?,
            init: model.init,
        };
        GradientTrainer::new(model, node, rows, gradient).map(DigitsTrainer)
    }

    /// Trains on other labels than the digits have: for studies of what a node does to a federation that labels its rows wrongly. Test rows
    /// keep theirs.
    #[must_use]
    pub fn relabelled(mut self, label: impl FnMut(usize, u8) -> u8) -> Self {
        self.0.gradient.digits.to_mut().relabel(label);
        self
    }
}

impl Gradient for DigitsGradient {
    fn layout(&self) -> &Layout {
        self.network.layout()
    }

    /// From the seed of `[model] init` and the federation's.
    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        match self.init {
            Init::Zeros => parameters.fill(0.0),
            Init::Seed(init) => {
                let rng = Rng::derive(seed, &[b"init", &init.to_le_bytes()]);
                self.network.initialize(rng, parameters);
            }
        }
        Ok(())
    }

    fn slope(
        &mut self,
        rows: &[usize],
        parameters: &[f32],
        gradient: &mut [f32],
    ) -> Result<f64, TrainError> {
        let (loss, slope) = self.network.slope(&self.digits, rows, parameters);
        gradient.copy_from_slice(slope);
        Ok(loss)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        let (mut rows, mut right, mut loss) = (0.0, 0.0, 0.0);
        for row in Digits::test_rows() {
            let (is_right, row_loss) = self.network.judge(&self.digits, row, parameters);
            rows += 1.0;
            right += f64::from(u8::from(is_right));
            loss += row_loss;
        }
        Ok(Evaluation {
            accuracy: right / rows,
            loss: loss / rows,
        })
    }
}

impl Trainer for DigitsTrainer {
    fn layout(&self) -> Layout {
        self.0.layout()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.0.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        self.0.train(task, parameters)
    }

    fn train_from(
        &mut self,
        task: &Task,
        from: Option<Snapshot<'_>>,
        parameters: &mut [f32],
        snapshots: &mut dyn Snapshots,
    ) -> Result<Trained, TrainError> {
        self.0.train_from(task, from, parameters, snapshots)
    }

    fn state(&self) -> Vec<u8> {
        self.0.state()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), TrainError> {
        self.0.restore(state)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.0.evaluate(parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::plan::{ModelPlan, SyncEvery};

    #[test]
    fn four_batches_accumulated_are_one_of_four_times_the_rows() {
        for kind in [TrainerKind::DigitsSoftmax, TrainerKind::DigitsMlp] {
            let after = |batch, accumulate| {
                let model = ModelPlan {
                    batch,
                    accumulate,
                    ..ModelPlan::default()
                };
                let gradient = DigitsGradient {
                    digits: Cow::Borrowed(Digits::load().unwrap()),
                    network: Network::new(kind, model.hidden, model.precision).unwrap(),
                    init: model.init,
                };
                let rows = Digits::training_rows().take(128).collect();
                let node: NodeId = "hq/a".parse().unwrap();
                let mut trainer = GradientTrainer::new(&model, &node, rows, gradient).unwrap();
                let mut parameters = vec![0.0; trainer.layout().len()];
                trainer.initialize(7, &mut parameters).unwrap();
                let begun = parameters.clone();
                let task = Task {
                    node,
                    round: 1,
                    seed: 7,
                    sync_every: SyncEvery::Steps(4),
                    domain: tombolo_core::trainer::Domain::alone(),
                };
                let loss = trainer.train(&task, &mut parameters).unwrap().loss;
                assert_ne!(parameters, begun);
                (loss, parameters)
            };
            let ((loss, whole), (other, parts)) = (after(32, 1), after(8, 4));
            assert!((loss - other).abs() < 1e-6, "{loss} {other}");
            let apart = whole.iter().zip(&parts).map(|(a, b)| (a - b).abs());
            let most = apart.fold(0.0, f32::max);
            assert!(most < 1e-6, "{most}");
        }
    }
}
