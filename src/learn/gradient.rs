//! Local training around a gradient: whoever can tell the slope of a model's loss has a trainer.
//!
//! A [`Gradient`] knows its model and its data. [`GradientTrainer`] brings the rest, from the keys of `[model]`: which rows make a batch, batches that are
//! added up to one step, the pull to the model that the round began with, plain steps or AdamW's, and snapshots on the way.

use tombolo_core::collective::Operation;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::inner::Inner;
use tombolo_core::plan::ModelPlan;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::trainer::{
    DomainError, Evaluation, NoSnapshots, Snapshot, Snapshots, Task, TrainError, Trained, Trainer,
};

use super::batches::Batches;
use super::trainer::TrainerError;

/// A model and its data, as an engine of any kind computes them.
///
/// Parameters and gradients are flat slices in the order of [`layout`](Gradient::layout), and as long. To train to the same bits wherever it is
/// repeated, `slope` must depend on its arguments alone.
pub trait Gradient: Send {
    /// Names and shapes of the parameters. Must be the same on every node and for ever.
    fn layout(&self) -> &Layout;

    /// Writes the initial parameters: the same on every node, from `seed` only.
    ///
    /// # Errors
    /// There are none to begin with.
    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError>;

    /// Writes the gradient of the mean loss over `rows`, and gives that loss.
    ///
    /// # Errors
    /// It cannot be computed: the node reports it and takes no part in the round.
    fn slope(
        &mut self,
        rows: &[usize],
        parameters: &[f32],
        gradient: &mut [f32],
    ) -> Result<f64, TrainError>;

    /// Judges the parameters on held-out rows.
    ///
    /// # Errors
    /// It cannot be done.
    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError>;
}

/// Trains a model on one node's rows by its gradient.
///
/// With plain steps nothing is kept between rounds but buffers, so a round may be repeated, skipped or trained by a new trainer, with the same
/// result. With AdamW the moments go on from round to round; a round that is repeated begins with those that it began with before, and a
/// node that took no part in the round before, because it was away and has healed, begins with none: what they knew is of an older model.
#[derive(Debug)]
pub struct GradientTrainer<G> {
    node: NodeId,
    pub(super) gradient: G,
    elements: usize,
    batches: Batches,
    learning_rate: f64,
    inner: Inner,
    /// The round that was trained last, and what the inner optimizer knew when it began.
    last: Option<(Round, Vec<u8>)>,
    batch: usize,
    data_parallel: bool,
    proximal: f32,
    /// The model that the round began with, if training is pulled to it.
    base: Vec<f32>,
    /// Of one batch.
    slope: Vec<f32>,
    /// Of the batches of one step.
    sum: Vec<f32>,
}

impl<G: Gradient> GradientTrainer<G> {
    /// The trainer of `node` on `rows`, which are whatever `gradient` takes them for. Of `model` it looks at `learning_rate`, `batch`, `accumulate`,
    /// `proximal`, `order` and the inner optimizer.
    ///
    /// # Errors
    /// No rows, or settings that cannot be trained with.
    pub fn new(
        model: &ModelPlan,
        node: &NodeId,
        rows: Vec<usize>,
        gradient: G,
    ) -> Result<Self, TrainerError> {
        if rows.is_empty() {
            return Err(TrainerError::NoRows { node: node.clone() });
        }
        if model.batch == 0 {
            return Err(TrainerError::Batch);
        }
        if !(model.learning_rate.is_finite() && model.learning_rate > 0.0) {
            return Err(TrainerError::LearningRate {
                learning_rate: model.learning_rate,
            });
        }
        let elements = gradient.layout().len();
        let pulled = if model.proximal > 0.0 { elements } else { 0 };
        let rows_a_step = model.batch.saturating_mul(model.accumulate.max(1));
        Ok(GradientTrainer {
            node: node.clone(),
            gradient,
            elements,
            batches: Batches::new(rows, rows_a_step, model.order),
            learning_rate: model.learning_rate,
            inner: Inner::new(&model.inner, model.learning_rate, elements),
            last: None,
            batch: model.batch,
            data_parallel: model.data_parallel,
            proximal: model.proximal as f32,
            base: vec![0.0; pulled],
            slope: vec![0.0; elements],
            // Behind it, when nodes step together, how many rows it is of.
            sum: vec![0.0; elements + usize::from(model.data_parallel)],
        })
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

    /// Moves the parameters by one step and gives the loss before it.
    fn step(
        &mut self,
        task: &Task,
        number: u64,
        parameters: &mut [f32],
    ) -> Result<f64, TrainError> {
        let mut loss = self.slope(task, number, parameters)?;
        while self.data_parallel
            && let Err(error) = together(task, &mut self.sum)
        {
            match error {
                // Who is left is told the same, and all do this step again.
                DomainError::Regrouped { .. } => {
                    tracing::warn!(node = %self.node, round = task.round, step = number, %error, "a neighbour is lost in the middle of a step");
                    loss = self.slope(task, number, parameters)?;
                }
                error => return Err(error.into()),
            }
        }
        let sum = &mut self.sum[..self.elements];
        for ((sum, parameter), base) in sum.iter_mut().zip(&*parameters).zip(&self.base) {
            *sum += self.proximal * (parameter - base);
        }
        self.inner.step(sum, parameters);
        Ok(loss)
    }

    /// The gradient of the mean loss over the rows of a step; behind it, if there is room, how many they are.
    fn slope(&mut self, task: &Task, number: u64, parameters: &[f32]) -> Result<f64, TrainError> {
        let rows = self.batches.batch(task, number);
        self.sum.fill(0.0);
        let mut loss = 0.0;
        for batch in rows.chunks(self.batch) {
            let share = batch.len() as f64 / rows.len() as f64;
            loss += share * self.gradient.slope(batch, parameters, &mut self.slope)?;
            for (sum, slope) in self.sum.iter_mut().zip(&self.slope) {
                *sum += share as f32 * slope;
            }
        }
        if let Some(count) = self.sum.get_mut(self.elements) {
            *count = rows.len() as f32;
        }
        Ok(loss)
    }

    /// What all nodes that step together must have in common: as many steps as the one with the most, and the same moments, or none.
    fn agree(&mut self, task: &Task, steps: u64) -> Result<u64, TrainError> {
        let moments = Hash::of_bytes(&self.inner.state()).0;
        let moments = i64::from_le_bytes(*moments.first_chunk().expect("a hash is longer"));
        let steps = i64::try_from(steps).unwrap_or(i64::MAX);
        let agreed = loop {
            let mut most = [steps, moments];
            let mut least = [moments];
            let greatest = task.domain().reduce(&mut most, Operation::Max, 1.0);
            let reduced =
                greatest.and_then(|()| task.domain().reduce(&mut least, Operation::Min, 1.0));
            match reduced {
                Ok(()) => break (most, least),
                Err(error @ DomainError::Regrouped { .. }) => {
                    tracing::warn!(node = %self.node, round = task.round, %error, "a neighbour is lost before the first step");
                }
                Err(error) => return Err(error.into()),
            }
        };
        let ([steps, greatest], [least]) = agreed;
        if greatest != least {
            tracing::info!(node = %self.node, round = task.round, "nodes have not the same moments: all begin with none");
            self.inner.reset();
        }
        Ok(steps.unsigned_abs())
    }

    fn check(&self, parameters: &[f32]) -> Result<(), TrainError> {
        if parameters.len() == self.elements {
            return Ok(());
        }
        Err(TrainError(format!(
            "the model has {} parameters where this trainer's has {}: node and federation differ in [model]",
            parameters.len(),
            self.elements
        )))
    }
}

/// The mean of everybody's gradients, each counted by its rows. Behind each stand its rows, behind the mean stands a one.
fn together(task: &Task, sum: &mut [f32]) -> Result<(), DomainError> {
    let Some((rows, _)) = sum.split_last().map(|(rows, rest)| (*rows, rest)) else {
        return Ok(());
    };
    if let Some(last) = sum.last_mut() {
        *last = 1.0;
    }
    task.domain()
        .reduce(sum, Operation::WeightedSum, f64::from(rows))?;
    let all = sum.last().copied().unwrap_or(1.0);
    for slope in &mut *sum {
        *slope /= all;
    }
    Ok(())
}

impl<G: Gradient> Trainer for GradientTrainer<G> {
    fn layout(&self) -> Layout {
        self.gradient.layout().clone()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.check(parameters)?;
        self.gradient.initialize(seed, parameters)
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
        let steps = match self.data_parallel {
            true => self.agree(task, steps)?,
            false => steps,
        };
        // A node cannot go on in the middle of what it does with others.
        let from = from.filter(|_| !self.data_parallel);
        if let Some(from) = from.filter(|from| from.steps <= steps)
            && from.parameters.len() == parameters.len()
            && let Some((so_far, moments)) = from.state.split_first_chunk()
            && self.inner.restore(moments).is_ok()
        {
            parameters.copy_from_slice(from.parameters);
            (first, loss) = (from.steps, f64::from_le_bytes(*so_far));
        }
        for step in first..steps {
            loss += self.step(task, step, parameters)?;
            if !self.data_parallel && snapshots.are_due() {
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
        self.gradient.evaluate(parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::plan::{Order, SyncEvery};

    /// Both parameters are pulled to the mean of the rows' numbers; the loss is that mean.
    struct Squares(Layout);

    impl Gradient for Squares {
        fn layout(&self) -> &Layout {
            &self.0
        }

        fn initialize(&mut self, _: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
            parameters.fill(0.0);
            Ok(())
        }

        fn slope(
            &mut self,
            rows: &[usize],
            parameters: &[f32],
            gradient: &mut [f32],
        ) -> Result<f64, TrainError> {
            let mean = rows.iter().sum::<usize>() as f32 / rows.len() as f32;
            for (slope, parameter) in gradient.iter_mut().zip(parameters) {
                *slope = parameter - mean;
            }
            Ok(f64::from(mean))
        }

        fn evaluate(&mut self, _: &[f32]) -> Result<Evaluation, TrainError> {
            Err(TrainError("nobody asks".into()))
        }
    }

    fn node() -> NodeId {
        "hq/a".parse().unwrap()
    }

    /// Some steps over rows 0 to 6; the mean loss.
    fn train(model: &ModelPlan, steps: u64, parameters: &mut [f32]) -> f64 {
        let layout = Layout::new([("both", vec![2])]).unwrap();
        let rows = (0..7).collect();
        let mut trainer = GradientTrainer::new(model, &node(), rows, Squares(layout)).unwrap();
        let task = Task {
            node: node(),
            round: 1,
            seed: 7,
            sync_every: SyncEvery::Steps(steps),
            domain: tombolo_core::trainer::Domain::alone(),
        };
        trainer.train(&task, parameters).unwrap().loss
    }

    fn plain(batch: usize, accumulate: usize) -> ModelPlan {
        ModelPlan {
            learning_rate: 0.5,
            batch,
            accumulate,
            order: Order::Sequential,
            ..ModelPlan::default()
        }
    }

    #[test]
    fn accumulated_batches_are_one_of_all_their_rows_and_a_short_one_counts_by_its_rows() {
        // Batches of three, three and one.
        let mut parameters = [1.0, -1.0];
        let loss = train(&plain(3, 3), 1, &mut parameters);
        assert!((loss - 3.0).abs() < 1e-6, "{loss}");
        // Half of the way to the mean.
        assert!((parameters[0] - 2.0).abs() < 1e-6, "{parameters:?}");
        assert!((parameters[1] - 1.0).abs() < 1e-6, "{parameters:?}");
    }

    #[test]
    fn the_proximal_term_pulls_back_to_where_the_round_began() {
        let mut parameters = [1.0, 3.0];
        let pulled = ModelPlan {
            proximal: 2.0,
            ..plain(7, 1)
        };
        train(&pulled, 2, &mut parameters);
        // At first nothing pulls: 1 to 2. Then the slope is (2 - 3) + 2 (2 - 1), and the step half of that.
        assert_eq!(parameters, [1.5, 3.0]);
    }

    #[test]
    fn a_node_without_rows_is_named() {
        let layout = Layout::new([("both", vec![2])]).unwrap();
        let none = GradientTrainer::new(&plain(1, 1), &node(), Vec::new(), Squares(layout));
        let error = none.err().unwrap();
        assert_eq!(error, TrainerError::NoRows { node: node() });
    }
}
