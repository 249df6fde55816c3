//! What a user's model must do to be trained in a federation.

mod domain;

pub use domain::{Domain, DomainError, Ranks, Values};

use crate::ids::{NodeId, Round};
use crate::plan::SyncEvery;
use crate::tensor::Layout;

/// One round's local work.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Who trains.
    pub node: NodeId,
    /// The round, from 1.
    pub round: Round,
    /// The federation's seed. Everything random derives from (seed, node, round) only, so that a round can be repeated.
    pub seed: u64,
    /// How long to train before the update is due. Where steps are balanced it is the node's own number, and may differ from round to round.
    pub sync_every: SyncEvery,
    /// The nodes of its domain that train in the same round, for who trains data-parallel with them.
    pub domain: Domain,
}

impl Task {
    /// The nodes of its domain that train in the same round.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }
}

/// What local training reports of itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trained {
    /// Training rows seen (the node's own rows); the weight under `weights = "samples"`.
    pub samples: u64,
    /// Mean training loss over the steps of this round.
    pub loss: f64,
    /// Local steps taken.
    pub steps: u64,
    /// The local learning rate, for rules that look at gradient norms; 1.0 if it has no meaning.
    pub learning_rate: f64,
}

/// How good a model is on held-out rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The share of right answers, 0 to 1.
    pub accuracy: f64,
    /// Mean loss.
    pub loss: f64,
}

/// Local training that could not be done. The node reports it and takes no part in the round.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TrainError(pub String);

impl From<DomainError> for TrainError {
    fn from(error: DomainError) -> Self {
        TrainError(error.to_string())
    }
}

/// Where local training is after so many steps: enough to go on from there to the same bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot<'a> {
    /// Steps of this round that are done.
    pub steps: u64,
    /// The parameters after them.
    pub parameters: &'a [f32],
    /// Whatever else the trainer needs, in its own words.
    pub state: &'a [u8],
}

/// Takes snapshots of a training and writes them down, so that a node which is killed repeats only the steps since the last one.
pub trait Snapshots {
    /// Whether it is time for one. Cheap: ask after every step.
    fn are_due(&self) -> bool;

    /// Writes one down, in place of the one before.
    fn take(&mut self, snapshot: Snapshot<'_>);
}

/// For a training that nobody writes down.
#[derive(Debug, Clone, Copy)]
pub struct NoSnapshots;

impl Snapshots for NoSnapshots {
    fn are_due(&self) -> bool {
        false
    }

    fn take(&mut self, _: Snapshot<'_>) {}
}

/// A model and its data on one node.
///
/// Called on a thread of its own, never on one that carries messages, so it may compute and block as long as the round's deadline allows.
/// Parameters are one flat slice in the order of [`Trainer::layout`].
pub trait Trainer: Send {
    /// Names and shapes of the parameters. Must be the same on every node and for the life of the trainer.
    fn layout(&self) -> Layout;

    /// Writes the initial parameters: the same on every node, from `seed` only.
    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError>;

    /// Trains in place.
    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError>;

    /// Trains in place like [`Trainer::train`], and leaves snapshots on the way; `from` is the last one that a life before has left of the
    /// same task. The result is the same to the last bit whether a training was interrupted or not. Without an implementation there are
    /// no snapshots, and a training that was interrupted begins anew.
    fn train_from(
        &mut self,
        task: &Task,
        from: Option<Snapshot<'_>>,
        parameters: &mut [f32],
        snapshots: &mut dyn Snapshots,
    ) -> Result<Trained, TrainError> {
        let _ = (from, snapshots);
        self.train(task, parameters)
    }

    /// What later rounds depend on beside the parameters, such as the moments of an inner optimizer. Written down with each update.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes up what [`Trainer::state`] of a life before has given.
    fn restore(&mut self, state: &[u8]) -> Result<(), TrainError> {
        let _ = state;
        Ok(())
    }

    /// Judges the parameters on held-out rows.
    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError>;
}
