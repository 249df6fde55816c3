//! Outer optimizers: what the coordinator makes of a round's mean.
//!
//! `g` is the mean of the updates (local minus global). `sgd`: step = lr g. `momentum`: v = m v + g, step = lr v. `nesterov`: v = m v + g,
//! step = lr (g + m v). All in `f32`, in this order, without fused multiplication, from v = 0. The adaptive ones are in `adaptive.rs`. Each
//! element is on its own, so a mean may be given slice by slice.
//!
//! A step counts once its round is committed: until [`OuterOptimizer::accept`] the optimizer keeps what it held before, and another step
//! begins from there.

mod adaptive;
#[cfg(test)]
mod tests;

use crate::plan::{OuterKind, OuterPlan};
use adaptive::Adaptive;

/// State or slices that do not fit the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OuterError {
    /// A slice reaches past the model.
    #[error("elements {offset}..{end} do not lie in a model of {len} elements")]
    OutOfModel {
        /// Where the slice begins.
        offset: usize,
        /// Where it ends.
        end: usize,
        /// Elements of the model.
        len: usize,
    },
    /// A checkpoint holds other state than this optimizer has.
    #[error(
        "the checkpoint's optimizer state is [{found}] where [{expected}] is expected: resume with the optimizer it was written by"
    )]
    OtherState {
        /// Names here.
        expected: String,
        /// Names there.
        found: String,
    },
    /// A checkpoint holds state of another length.
    #[error(
        "optimizer state {name:?} has {found} elements where the model has {expected}: the checkpoint is of another model"
    )]
    OtherLength {
        /// Which.
        name: String,
        /// Elements of the model.
        expected: usize,
        /// Elements in the checkpoint.
        found: usize,
    },
}

/// Turns a mean into a step, and remembers.
pub trait OuterOptimizer: Send {
    /// Replaces the mean's elements `offset..offset + slice.len()` by those of the step. Done again, it takes the place of the step before
    /// that nobody accepted.
    ///
    /// # Errors
    /// A slice that reaches past the model; nothing is then changed.
    fn step(&mut self, offset: usize, slice: &mut [f32]) -> Result<(), OuterError>;

    /// The step of every element is committed: the next one goes on from it.
    fn accept(&mut self);

    /// What must be stored to go on after the last step, accepted or not: flat slices of the model's length, by name in order.
    fn state(&self) -> Vec<(&'static str, &[f32])>;

    /// Goes on from stored state.
    ///
    /// # Errors
    /// Other names or lengths than [`state`](Self::state) gives; nothing is then changed.
    fn restore(&mut self, state: &[(&str, &[f32])]) -> Result<(), OuterError>;
}

/// The optimizer of a plan, for a model of `len` elements.
pub fn build(plan: &OuterPlan, len: usize) -> Box<dyn OuterOptimizer> {
    let learning_rate = plan.learning_rate as f32;
    let momentum = plan.momentum as f32;
    match plan.optimizer {
        OuterKind::Sgd => Box::new(Sgd { learning_rate, len }),
        OuterKind::Momentum | OuterKind::Nesterov => Box::new(Momentum {
            learning_rate,
            momentum,
            looks_ahead: plan.optimizer == OuterKind::Nesterov,
            velocity: vec![0.0; len],
            next: vec![0.0; len],
            stepped: false,
        }),
        OuterKind::Adam | OuterKind::Yogi | OuterKind::Adagrad => {
            Box::new(Adaptive::new(plan, len))
        }
    }
}

/// `model += step`, element by element: how a committed step makes the next model. The same bits come of `step += model`.
///
/// # Panics
/// If the lengths differ.
pub fn adopt(model: &mut [f32], step: &[f32]) {
    assert_eq!(model.len(), step.len(), "a step has the model's length");
    for (parameter, step) in model.iter_mut().zip(step) {
        *parameter += step;
    }
}

struct Sgd {
    learning_rate: f32,
    len: usize,
}

impl OuterOptimizer for Sgd {
    fn step(&mut self, offset: usize, slice: &mut [f32]) -> Result<(), OuterError> {
        end_within(self.len, offset, slice)?;
        for element in slice {
            *element *= self.learning_rate;
        }
        Ok(())
    }

    fn accept(&mut self) {}

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        Vec::new()
    }

    fn restore(&mut self, state: &[(&str, &[f32])]) -> Result<(), OuterError> {
        check_state(&[], self.len, state)
    }
}

/// The name of the one state slice.
const VELOCITY: &str = "velocity";

struct Momentum {
    learning_rate: f32,
    momentum: f32,
    /// Nesterov.
    looks_ahead: bool,
    velocity: Vec<f32>,
    /// The velocity after a step that was not accepted yet.
    next: Vec<f32>,
    stepped: bool,
}

impl OuterOptimizer for Momentum {
    fn step(&mut self, offset: usize, slice: &mut [f32]) -> Result<(), OuterError> {
        let end = end_within(self.velocity.len(), offset, slice)?;
        let (m, lr) = (self.momentum, self.learning_rate);
        let velocities = self.velocity[offset..end]
            .iter()
            .zip(&mut self.next[offset..end]);
        let elements = slice.iter_mut().zip(velocities);
        if self.looks_ahead {
            for (g, (v, next)) in elements {
                *next = m * *v + *g;
                *g = lr * (*g + m * *next);
            }
        } else {
            for (g, (v, next)) in elements {
                *next = m * *v + *g;
                *g = lr * *next;
            }
        }
        self.stepped = true;
        Ok(())
    }

    fn accept(&mut self) {
        if std::mem::take(&mut self.stepped) {
            std::mem::swap(&mut self.velocity, &mut self.next);
        }
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        let newest = if self.stepped {
            &self.next
        } else {
            &self.velocity
        };
        vec![(VELOCITY, newest)]
    }

    fn restore(&mut self, state: &[(&str, &[f32])]) -> Result<(), OuterError> {
        check_state(&[VELOCITY], self.velocity.len(), state)?;
        self.velocity.copy_from_slice(state[0].1);
        self.stepped = false;
        Ok(())
    }
}

fn end_within(len: usize, offset: usize, slice: &[f32]) -> Result<usize, OuterError> {
    let end = offset.saturating_add(slice.len());
    if end > len {
        return Err(OuterError::OutOfModel { offset, end, len });
    }
    Ok(end)
}

fn check_state(names: &[&str], len: usize, state: &[(&str, &[f32])]) -> Result<(), OuterError> {
    if !names.iter().eq(state.iter().map(|(name, _)| name)) {
        let found: Vec<&str> = state.iter().take(8).map(|(name, _)| *name).collect();
        return Err(OuterError::OtherState {
            expected: names.join(", "),
            found: found.join(", "),
        });
    }
    match state.iter().find(|(_, elements)| elements.len() != len) {
        Some((name, elements)) => Err(OuterError::OtherLength {
            name: (*name).into(),
            expected: len,
            found: elements.len(),
        }),
        None => Ok(()),
    }
}
