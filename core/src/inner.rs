//! Inner optimizers: what a trainer makes of the gradient of each local step, between two rounds.
//!
//! `sgd`: `p = p - lr g`. `adamw` (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2): `m = b1 m + (1 - b1) g`,
//! `v = b2 v + (1 - b2) g^2`, `p = p - lr d p`, then `p = p - lr m' / (sqrt(v') + e)`, where `m' = m / (1 - b1^t)` and `v' = v / (1 - b2^t)` at
//! step `t` from 1; m and v begin at 0. The decay is multiplied by the learning rate, as common libraries have it. In `f32`, in this order;
//! `1 - b` and the corrections of the bias are rounded once from `f64`.
//!
//! The moments are the node's own (DiLoCo: Douillard et al., 2023): they never travel.

use crate::plan::{InnerKind, InnerPlan};
use crate::tensor::bytes_of;

/// State of another optimizer or model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the inner optimizer's state has {found} bytes where {expected} are expected: it is of another model or optimizer, so begin anew"
)]
pub struct InnerError {
    /// Bytes of ours.
    pub expected: usize,
    /// Bytes given.
    pub found: usize,
}

/// An inner optimizer and what it remembers.
#[derive(Debug, Clone)]
pub struct Inner {
    learning_rate: f32,
    adam: Option<Adam>,
}

#[derive(Debug, Clone)]
struct Adam {
    plan: InnerPlan,
    /// m and v.
    moments: [Vec<f32>; 2],
    steps: u64,
}

impl Inner {
    /// The optimizer of a plan, for a model of `len` elements.
    pub fn new(plan: &InnerPlan, learning_rate: f64, len: usize) -> Self {
        Inner {
            learning_rate: learning_rate as f32,
            adam: (plan.optimizer == InnerKind::AdamW).then(|| Adam {
                plan: plan.clone(),
                moments: [vec![0.0; len], vec![0.0; len]],
                steps: 0,
            }),
        }
    }

    /// Moves the parameters by one step against the gradient.
    ///
    /// # Panics
    /// If the lengths differ from the model's.
    pub fn step(&mut self, gradient: &[f32], parameters: &mut [f32]) {
        assert_eq!(gradient.len(), parameters.len(), "a slope an element");
        match &mut self.adam {
            Some(adam) => adam.step(self.learning_rate, gradient, parameters),
            None => {
                for (parameter, gradient) in parameters.iter_mut().zip(gradient) {
                    *parameter -= self.learning_rate * gradient;
                }
            }
        }
    }

    /// Whether nothing is remembered from step to step.
    pub fn is_stateless(&self) -> bool {
        self.adam.is_none()
    }

    /// Forgets what was.
    pub fn reset(&mut self) {
        if let Some(adam) = &mut self.adam {
            adam.moments.iter_mut().for_each(|moment| moment.fill(0.0));
            adam.steps = 0;
        }
    }

    /// What must be stored to go on to the same bits: the steps done, m, v, all little-endian; nothing for `sgd`.
    pub fn state(&self) -> Vec<u8> {
        let Some(adam) = &self.adam else {
            return Vec::new();
        };
        let mut state = adam.steps.to_le_bytes().to_vec();
        for moment in &adam.moments {
            state.extend_from_slice(bytes_of(moment));
        }
        state
    }

    /// Goes on from stored state.
    ///
    /// # Errors
    /// Another length than [`state`](Self::state) has; nothing is then changed.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), InnerError> {
        let len = self.adam.as_ref().map(|adam| adam.moments[0].len());
        let expected = len.map_or(0, |len| 8 + 8 * len);
        let found = state.len();
        if found != expected {
            return Err(InnerError { expected, found });
        }
        let (Some(adam), Some((steps, moments))) = (&mut self.adam, state.split_first_chunk())
        else {
            return Ok(());
        };
        adam.steps = u64::from_le_bytes(*steps);
        let elements = moments.as_chunks::<4>().0.iter();
        let stored = elements.map(|bytes| f32::from_le_bytes(*bytes));
        let kept = adam.moments.iter_mut().flatten();
        kept.zip(stored).for_each(|(kept, stored)| *kept = stored);
        Ok(())
    }
}

impl Adam {
    fn step(&mut self, learning_rate: f32, gradient: &[f32], parameters: &mut [f32]) {
        let InnerPlan {
            beta1,
            beta2,
            epsilon,
            weight_decay,
            optimizer: _,
        } = self.plan;
        assert_eq!(self.moments[0].len(), gradient.len(), "one model for life");
        // The corrections are 1 long before this would wrap.
        self.steps = self.steps.saturating_add(1);
        let correction = |beta: f64| (1.0 - libm::pow(beta, self.steps as f64)) as f32;
        let (first, second) = (correction(beta1), correction(beta2));
        let (keep1, take1) = (beta1 as f32, (1.0 - beta1) as f32);
        let (keep2, take2) = (beta2 as f32, (1.0 - beta2) as f32);
        let (epsilon, decay) = (epsilon as f32, (weight_decay as f32) * learning_rate);
        let [m, v] = &mut self.moments;
        let moments = m.iter_mut().zip(v);
        for ((parameter, g), (m, v)) in parameters.iter_mut().zip(gradient).zip(moments) {
            *m = keep1 * *m + take1 * g;
            *v = keep2 * *v + take2 * (g * g);
            *parameter -= decay * *parameter;
            *parameter -= learning_rate * (*m / first) / ((*v / second).sqrt() + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adam() -> Inner {
        let plan = InnerPlan {
            optimizer: InnerKind::AdamW,
            ..InnerPlan::default()
        };
        Inner::new(&plan, 0.01, 2)
    }

    #[test]
    fn the_first_step_is_of_the_learning_rate_whatever_the_gradient() {
        for size in [1e-3, 1.0, 1e3] {
            let mut parameters = [0.0, 0.0];
            adam().step(&[size, -size], &mut parameters);
            assert!((parameters[0] + 0.01).abs() < 1e-6, "{parameters:?}");
            assert!((parameters[1] - 0.01).abs() < 1e-6, "{parameters:?}");
        }
    }

    #[test]
    fn weights_decay_also_where_there_is_no_slope() {
        let mut parameters = [1.0, -2.0];
        adam().step(&[0.0, 0.0], &mut parameters);
        let decayed = 1.0 - 0.01 * 0.01;
        assert!((parameters[0] - decayed).abs() < 1e-6);
        assert!((parameters[1] + 2.0 * decayed).abs() < 1e-6);
    }

    #[test]
    fn restored_state_goes_on_to_the_same_bits_and_a_reset_begins_anew() {
        let gradients = [[0.5, -0.25], [0.125, 3.0], [-1.0, 0.1]];
        let (mut whole, mut parameters) = (adam(), [0.3, -0.7]);
        whole.step(&gradients[0], &mut parameters);
        let mut second = adam();
        second.restore(&whole.state()).unwrap();
        let mut others = parameters;
        for gradient in &gradients[1..] {
            whole.step(gradient, &mut parameters);
            second.step(gradient, &mut others);
        }
        assert_eq!(parameters, others);
        assert_ne!(whole.state(), adam().state());
        whole.reset();
        assert_eq!(whole.state(), adam().state());
    }

    #[test]
    fn state_of_another_kind_is_refused_and_changes_nothing() {
        let mut adam = adam();
        adam.step(&[1.0, 2.0], &mut [0.0, 0.0]);
        let before = adam.state();
        let error = adam.restore(&before[1..]).unwrap_err();
        assert_eq!((error.expected, error.found), (24, 23));
        assert_eq!(adam.state(), before);
        let mut sgd = Inner::new(&InnerPlan::default(), 0.1, 2);
        assert!(sgd.is_stateless() && sgd.state().is_empty());
        assert!(sgd.restore(&before).is_err());
        assert_eq!(sgd.restore(&[]), Ok(()));
    }
}
