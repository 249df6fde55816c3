//! The trainer of one node: its rows, its batches, its model.

use std::borrow::Cow;

use tombolo_core::ids::{NodeId, Round};
use tombolo_core::inner::Inner;
use tombolo_core::plan::{Init, Plan, TrainerKind};
use tombolo_core::rng::Rng;
use tombolo_core::tensor::{Layout, LayoutError};
use tombolo_core::trainer::{
    Evaluation, NoSnapshots, Snapshot, Snapshots, Task, TrainError, Trained, Trainer,
};

use super::batches::Batches;
use super::digits::{DataError, Digits};
use super::model::{Network, Step};
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

/// Trains a built-in model on one node's share of the digits.
///
/// With plain steps nothing is kept between rounds but buffers, so a round may be repeated, skipped or trained by a new trainer, with the same
/// result. With AdamW the moments go on from round to round; a round that is repeated begins with those that it began with before, and a
/// node that took no part in the round before, because it was away and has healed, begins with none: what they knew is of an older model.
#[derive(Debug)]
pub struct DigitsTrainer {
    node: NodeId,
    digits: Cow<'static, Digits>,
    network: Network,
    batches: Batches,
    init: Init,
    learning_rate: f64,
    inner: Inner,
    /// The round that was trained last, and what the inner optimizer knew when it began.
    last: Option<(Round, Vec<u8>)>,
    batch: usize,
    proximal: f64,
    /// The model that the round began with, if training is pulled to it.
    base: Vec<f32>,
}

impl DigitsTrainer {
    /// The trainer of `node`.
    ///
    /// # Errors
    /// Settings of `[model]` that cannot be trained with, or a node that the plan does not have.
    pub fn new(plan: &Plan, node: &NodeId) -> Result<Self, TrainerError> {
        let model = &plan.model;
        if model.batch == 0 {
            return Err(TrainerError::Batch);
        }
        if !(model.learning_rate.is_finite() && model.learning_rate > 0.0) {
            return Err(TrainerError::LearningRate {
                learning_rate: model.learning_rate,
            });
        }
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
        let digits = Digits::load()?;
        let rows = partition(plan)?
            .remove(node)
            .ok_or_else(|| TrainerError::UnknownNode { node: node.clone() })?;
        let network = Network::new(model.trainer, model.hidden, model.precision)?;
        let pulled = if model.proximal > 0.0 {
            network.layout().len()
        } else {
            0
        };
        let inner = Inner::new(&model.inner, model.learning_rate, network.layout().len());
        let rows_a_step = model.batch.saturating_mul(model.accumulate.max(1));
        Ok(DigitsTrainer {
            node: node.clone(),
            digits: Cow::Borrowed(digits),
            network,
            batches: Batches::new(rows, rows_a_step, model.order),
            init: model.init,
            learning_rate: model.learning_rate,
            inner,
            last: None,
            batch: model.batch,
            proximal: model.proximal,
            base: vec![0.0; pulled],
        })
    }

    /// Trains on other labels than the digits have: for studies of what a node does to a federation that labels its rows wrongly. Test rows
    /// keep theirs.
    #[must_use]
    pub fn relabelled(mut self, label: impl FnMut(usize, u8) -> u8) -> Self {
        self.digits.to_mut().relabel(label);
        self
    }

    /// Gives the inner optimizer the moments that a round begins with.
    fn begin(&mut self, round: Round) -> Result<(), TrainError> {
        if self.inner.is_stateless() {
            return Ok(());
        }
        match &self.last {
            Some((last, begun)) if *last == round => {
                let restored = self.inner.restore(begun);
                restored.map_err(|error| TrainError(error.to_string()))?;
            }
            Some((last, _)) if last.checked_add(1) == Some(round) => {}
            Some((last, _)) => {
                let node = &self.node;
                tracing::info!(%node, round, last, "trained in no round between: the inner optimizer begins anew");
                self.inner.reset();
            }
            None => self.inner.reset(),
        }
        self.last = Some((round, self.inner.state()));
        Ok(())
    }

    fn check(&self, parameters: &[f32]) -> Result<(), TrainError> {
        let expected = self.network.layout().len();
        if parameters.len() == expected {
            return Ok(());
        }
        Err(TrainError(format!(
            "the model has {} parameters where this trainer's has {expected}: node and federation differ in [model]",
            parameters.len()
        )))
    }
}

impl Trainer for DigitsTrainer {
    fn layout(&self) -> Layout {
        self.network.layout().clone()
    }

    /// From the seed of `[model] init` and the federation's.
    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.check(parameters)?;
        match self.init {
            Init::Zeros => parameters.fill(0.0),
            Init::Seed(init) => {
                let rng = Rng::derive(seed, &[b"init", &init.to_le_bytes()]);
                self.network.initialize(rng, parameters);
            }
        }
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        self.train_from(task, None, parameters, &mut NoSnapshots)
    }

    /// The batches follow from the step alone; beside the parameters only the loss so far and the inner optimizer's state are needed to go on.
    fn train_from(
        &mut self,
        task: &Task,
        from: Option<Snapshot<'_>>,
        parameters: &mut [f32],
        snapshots: &mut dyn Snapshots,
    ) -> Result<Trained, TrainError> {
        self.check(parameters)?;
        if task.node != self.node {
            return Err(TrainError(format!(
                "the trainer of {} was asked to train for {}",
                self.node, task.node
            )));
        }
        let steps = self.batches.steps(task.sync_every);
        if steps == 0 {
            return Err(TrainError("sync_every asks for no step at all".into()));
        }
        if !self.base.is_empty() {
            self.base.copy_from_slice(parameters);
        }
        self.begin(task.round)?;
        let (mut first, mut loss) = (0, 0.0);
        if let Some(from) = from.filter(|from| from.steps <= steps)
            && from.parameters.len() == parameters.len()
            && let Some((so_far, moments)) = from.state.split_first_chunk()
            && self.inner.restore(moments).is_ok()
        {
            parameters.copy_from_slice(from.parameters);
            (first, loss) = (from.steps, f64::from_le_bytes(*so_far));
        }
        for step in first..steps {
            let rows = self.batches.batch(task, step);
            let how = Step {
                batch: self.batch,
                proximal: self.proximal as f32,
                base: &self.base,
            };
            let (before, slope) = self.network.slope(&self.digits, rows, &how, parameters);
            self.inner.step(slope, parameters);
            loss += before;
            if snapshots.are_due() {
                let state = [&loss.to_le_bytes()[..], &self.inner.state()].concat();
                snapshots.take(Snapshot {
                    steps: step + 1,
                    parameters,
                    state: &state,
                });
            }
        }
        Ok(Trained {
            samples: self.batches.rows() as u64,
            loss: loss / steps as f64,
            steps,
            // An adaptive step is about as long whatever the gradient: no norm of one can be told from it.
            learning_rate: match self.inner.is_stateless() {
                true => self.learning_rate,
                false => 1.0,
            },
        })
    }

    /// The last round, what the inner optimizer knew at its beginning, and what it knows now; nothing with plain steps.
    fn state(&self) -> Vec<u8> {
        match &self.last {
            Some((round, begun)) => [&round.to_le_bytes()[..], begun, &self.inner.state()].concat(),
            None => Vec::new(),
        }
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), TrainError> {
        let Some((round, moments)) = state.split_first_chunk() else {
            return Ok(());
        };
        let (begun, now) = moments.split_at(moments.len() / 2);
        for state in [begun, now] {
            let restored = self.inner.restore(state);
            restored.map_err(|error| TrainError(error.to_string()))?;
        }
        self.last = Some((Round::from_le_bytes(*round), begun.to_vec()));
        Ok(())
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.check(parameters)?;
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
