//! The coordinator's blocking work on whole models: the first one, and from each round's mean the next one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use super::Setup;
use crate::checkpoint::{Loaded, SharedOuter};
use crate::slab::{Slab, SlabMut};
use tombolo_core::coordinator::{Committed, Outcome};
use tombolo_core::fold::Squares;
use tombolo_core::outer::{self, OuterOptimizer};
use tombolo_core::outline::Outline;
use tombolo_core::staleness::Past;
use tombolo_core::tensor::{Hash, bytes_of};
use tombolo_core::trainer::{Evaluation, Trainer};

/// What the work uses from round to round.
pub(super) struct Bench {
    /// None after it panicked: the next round gets a new one.
    trainer: Option<Box<dyn Trainer>>,
    pub(super) outer: SharedOuter,
}

impl Bench {
    /// The last step is committed.
    pub(super) fn accept(&mut self) {
        self.outer().accept();
    }

    fn outer(&self) -> MutexGuard<'_, Box<dyn OuterOptimizer>> {
        self.outer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn lock(bench: &Mutex<Bench>) -> MutexGuard<'_, Bench> {
    bench.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a commit needs.
pub(super) struct Computed {
    pub(super) next: Slab,
    pub(super) outline: Arc<Outline>,
    pub(super) outcome: Outcome,
    pub(super) weight_norm: f64,
}

/// Loads or makes the model and the optimizer. Blocks.
pub(super) fn start(
    setup: &Setup,
    loaded: Option<Loaded>,
) -> Result<(Bench, Slab, Arc<Outline>, Committed), String> {
    let plan = &setup.stage.plan;
    let mut trainer = (setup.trainer)(&setup.stage.node)?;
    let mut outer = outer::build(&plan.outer, setup.layout.len());
    let mut committed = Committed {
        run: setup.run,
        ended: 0,
        round: 0,
        hash: Hash::default(),
        tally: (0, 0, 0),
        accuracy: 0.0,
        loss: 0.0,
        view: None,
        past: Past::default(),
        drifts: Vec::new(),
        paces: Vec::new(),
        overtaken: Vec::new(),
        paused: None,
    };
    let mut stored = None;
    if let Some(loaded) = loaded {
        let state: Vec<(&str, &[f32])> = loaded
            .outer
            .iter()
            .map(|(name, elements)| (name.as_str(), elements.as_slice()))
            .collect();
        if loaded.model.is_some() {
            outer.restore(&state).map_err(|error| error.to_string())?;
        }
        committed.drifts = loaded.last.record.drifts.clone();
        let balance = loaded.last.record.balance;
        committed.paces = balance.map_or_else(Vec::new, |balance| balance.paces);
        committed.ended = loaded.last.record.round;
        let version = loaded.last.record.version;
        committed.past = version.and_then(|version| version.past).unwrap_or_default();
        committed.tally = loaded.last.tally;
        committed.round = loaded.round;
        committed.accuracy = loaded.accuracy;
        committed.loss = loaded.loss;
        stored = loaded.model;
    }
    let model = match stored {
        Some(model) => model,
        None => {
            let mut initial = setup.pool.take(setup.layout.len());
            trainer
                .initialize(plan.seed, &mut initial)
                .map_err(|error| error.to_string())?;
            let evaluation = evaluate(trainer.as_mut(), &initial)?;
            committed.accuracy = evaluation.accuracy;
            committed.loss = evaluation.loss;
            initial.freeze()
        }
    };
    let outline = Arc::new(Outline::of(&model));
    committed.hash = outline.hash();
    let bench = Bench {
        trainer: Some(trainer),
        outer: Arc::new(Mutex::new(outer)),
    };
    Ok((bench, model, outline, committed))
}

/// The outer step on the mean, and everything that is said of its result. Blocks.
pub(super) fn compute(
    setup: &Setup,
    bench: &Mutex<Bench>,
    mut mean: SlabMut,
    model: &Slab,
) -> Result<Computed, String> {
    let mut bench = match bench.try_lock() {
        Ok(bench) => bench,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err("the evaluation of an earlier round has not ended yet".into());
        }
    };
    let stepped = bench.outer().step(0, &mut mean);
    stepped.map_err(|error| error.to_string())?;
    // In the place of the step: what travels is the model, so nobody needs the step any more.
    let mut next = mean;
    outer::adopt(&mut next, model);
    let weight_norm = norm(&next);
    if !weight_norm.is_finite() {
        return Err(
            "the outer step would make the model not finite; lower the outer learning rate".into(),
        );
    }
    let mut trainer = match bench.trainer.take() {
        Some(trainer) => trainer,
        None => (setup.trainer)(&setup.stage.node)?,
    };
    let evaluation = evaluate(trainer.as_mut(), &next);
    bench.trainer = Some(trainer);
    let evaluation = evaluation?;
    let outline = Arc::new(Outline::of(&next));
    let outcome = Outcome {
        hash: outline.hash(),
        accuracy: evaluation.accuracy,
        loss: evaluation.loss,
    };
    Ok(Computed {
        next: next.freeze(),
        outline,
        outcome,
        weight_norm,
    })
}

/// Evaluates; refuses numbers that no record could hold.
fn evaluate(trainer: &mut dyn Trainer, model: &[f32]) -> Result<Evaluation, String> {
    let evaluation = trainer
        .evaluate(model)
        .map_err(|error| format!("evaluation: {error}"))?;
    let Evaluation { accuracy, loss } = evaluation;
    if !(accuracy.is_finite() && loss.is_finite()) {
        return Err(format!(
            "evaluation: the trainer gave accuracy {accuracy} and loss {loss}, which must be finite"
        ));
    }
    Ok(evaluation)
}

/// The L2 norm. Not finite exactly if a parameter is not.
pub(super) fn norm(model: &[f32]) -> f64 {
    let mut squares = Squares::default();
    squares.add(bytes_of(model));
    squares.sum().sqrt()
}
