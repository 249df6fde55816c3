//! Nodes that spoil a model: a trainer around the built-in one. No topology can ask for it.

use std::cell::RefCell;

use tombolo::learn::{CLASSES, DigitsTrainer, TrainerError};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::rng::Rng;
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{
    Evaluation, NoSnapshots, Snapshot, Snapshots, Task, TrainError, Trained, Trainer,
};

/// How many times too long an update is.
const TOO_LONG: f32 = 30.0;

/// What is wrong with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The labels of its rows are drawn at random.
    Noise,
    /// The label of each of its rows is its mirror: 9 for 0, 8 for 1.
    Flip,
    /// Its updates are 30 times too long.
    Thirty,
    /// One element of its updates is no number.
    NotANumber,
}

impl Fault {
    /// As a column of a table.
    pub fn name(self) -> &'static str {
        match self {
            Fault::Noise => "noise",
            Fault::Flip => "flip",
            Fault::Thirty => "x30",
            Fault::NotANumber => "nan",
        }
    }
}

/// A node's trainer, good or bad.
pub struct Suspect {
    trainer: DigitsTrainer,
    fault: Option<Fault>,
}

impl Suspect {
    /// The trainer of `node`, with what is wrong with it.
    ///
    /// # Errors
    /// As [`DigitsTrainer::new`].
    pub fn new(plan: &Plan, node: &NodeId, fault: Option<Fault>) -> Result<Self, TrainerError> {
        let trainer = DigitsTrainer::new(plan, node)?;
        let random = Rng::derive(plan.seed, &[b"labels", node.as_str().as_bytes()]);
        let random = RefCell::new(random);
        let last = CLASSES as u8 - 1;
        let trainer = match fault {
            Some(Fault::Noise) => {
                trainer.relabelled(|_, _| random.borrow_mut().below(CLASSES as u64) as u8)
            }
            Some(Fault::Flip) => trainer.relabelled(|_, label| last - label),
            _ => trainer,
        };
        Ok(Suspect { trainer, fault })
    }
}

impl Trainer for Suspect {
    fn layout(&self) -> Layout {
        self.trainer.layout()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.trainer.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        self.train_from(task, None, parameters, &mut NoSnapshots)
    }

    fn train_from(
        &mut self,
        task: &Task,
        from: Option<Snapshot<'_>>,
        parameters: &mut [f32],
        snapshots: &mut dyn Snapshots,
    ) -> Result<Trained, TrainError> {
        let begun = parameters.to_vec();
        let trained = self.trainer.train_from(task, from, parameters, snapshots)?;
        match self.fault {
            Some(Fault::Thirty) => {
                for (parameter, begun) in parameters.iter_mut().zip(&begun) {
                    *parameter = begun + TOO_LONG * (*parameter - begun);
                }
            }
            Some(Fault::NotANumber) => parameters[0] = f32::NAN,
            Some(Fault::Noise | Fault::Flip) | None => {}
        }
        Ok(trained)
    }

    fn state(&self) -> Vec<u8> {
        self.trainer.state()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), TrainError> {
        self.trainer.restore(state)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.trainer.evaluate(parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::super::setting::Setting;
    use super::*;

    #[test]
    fn each_fault_spoils_the_update_in_its_own_way_and_none_leaves_it_alone() {
        let setting = Setting::default();
        let plan = setting.plan().unwrap();
        let node = &setting.bad_nodes()[0];
        let update = |fault| {
            let mut trainer = Suspect::new(&plan, node, fault).unwrap();
            let mut begun = vec![0.0; trainer.layout().len()];
            trainer.initialize(plan.seed, &mut begun).unwrap();
            let mut parameters = begun.clone();
            let task = Task {
                node: node.clone(),
                round: 1,
                seed: plan.seed,
                sync_every: plan.sync_every,
                domain: tombolo_core::trainer::Domain::alone(),
            };
            let told = trainer.train(&task, &mut parameters).unwrap();
            let update = parameters.iter().zip(&begun).map(|(a, b)| a - b);
            (told, update.collect::<Vec<f32>>())
        };
        let norm = |update: &[f32]| update.iter().map(|e| e * e).sum::<f32>().sqrt();
        let (told, good) = update(None);
        assert!(norm(&good) > 0.1);
        let (_, long) = update(Some(Fault::Thirty));
        let ratio = norm(&long) / norm(&good);
        assert!((ratio - TOO_LONG).abs() < 1e-3, "{ratio}");
        let (_, broken) = update(Some(Fault::NotANumber));
        assert_eq!(broken.iter().filter(|e| e.is_nan()).count(), 1);
        let (noisy, other) = update(Some(Fault::Noise));
        assert!(noisy.loss > told.loss + 0.1 && other != good);
        // Nothing in its report gives away a node that has learned other names for the same kinds.
        let (flipped, other) = update(Some(Fault::Flip));
        assert_eq!((flipped.samples, flipped.steps), (told.samples, told.steps));
        assert!(other != good);
    }
}
