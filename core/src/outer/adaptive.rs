//! Adaptive outer optimizers: each element's step is divided by the size that its means have had.
//!
//! Reddi et al., "Adaptive federated optimization", 2021, algorithm 2: `m = b1 m + (1 - b1) g`, then `v` by one of three rules, then
//! `step = lr m / (sqrt(v) + e)`, without correction of the bias; m begins at 0 and v at e squared. In `f32`, in this order; `1 - b` is rounded
//! once from `f64`. The step's size is about `lr` in every element, whatever the size of the means.

use super::{OuterError, OuterOptimizer, check_state, end_within};
use crate::plan::{OuterKind, OuterPlan};

/// The names of the two state slices: m and v.
const STATE: [&str; 2] = ["momentum", "second_moment"];

/// How v follows the squares of the means.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// v = b2 v + (1 - b2) g^2.
    Adam,
    /// v = v - (1 - b2) g^2 sign(v - g^2): it grows and shrinks by the same amounts.
    Yogi,
    /// v = v + g^2.
    Adagrad,
}

pub(super) struct Adaptive {
    rule: Rule,
    learning_rate: f32,
    beta1: [f32; 2],
    beta2: [f32; 2],
    epsilon: f32,
    moments: [Vec<f32>; 2],
    /// The moments after a step that was not accepted yet.
    next: [Vec<f32>; 2],
    stepped: bool,
}

impl Adaptive {
    pub(super) fn new(plan: &OuterPlan, len: usize) -> Self {
        let epsilon = plan.epsilon as f32;
        let moments = [vec![0.0; len], vec![epsilon * epsilon; len]];
        Adaptive {
            rule: match plan.optimizer {
                OuterKind::Yogi => Rule::Yogi,
                OuterKind::Adagrad => Rule::Adagrad,
                _ => Rule::Adam,
            },
            learning_rate: plan.learning_rate as f32,
            beta1: [plan.beta1 as f32, (1.0 - plan.beta1) as f32],
            beta2: [plan.beta2 as f32, (1.0 - plan.beta2) as f32],
            epsilon,
            next: moments.clone(),
            moments,
            stepped: false,
        }
    }
}

impl Rule {
    fn next(self, [beta, rest]: [f32; 2], v: f32, square: f32) -> f32 {
        match self {
            Rule::Adam => beta * v + rest * square,
            Rule::Yogi if v > square => v - rest * square,
            Rule::Yogi if v < square => v + rest * square,
            Rule::Yogi => v,
            Rule::Adagrad => v + square,
        }
    }
}

impl OuterOptimizer for Adaptive {
    fn step(&mut self, offset: usize, slice: &mut [f32]) -> Result<(), OuterError> {
        let [m, v] = &self.moments;
        let [next_m, next_v] = &mut self.next;
        let end = end_within(m.len(), offset, slice)?;
        let range = offset..end;
        let [beta, rest] = self.beta1;
        let firsts = m[range.clone()].iter().zip(&mut next_m[range.clone()]);
        let seconds = v[range.clone()].iter().zip(&mut next_v[range]);
        for ((g, (m, next_m)), (v, next_v)) in slice.iter_mut().zip(firsts).zip(seconds) {
            *next_m = beta * *m + rest * *g;
            *next_v = self.rule.next(self.beta2, *v, *g * *g);
            *g = self.learning_rate * *next_m / (next_v.sqrt() + self.epsilon);
        }
        self.stepped = true;
        Ok(())
    }

    fn accept(&mut self) {
        if std::mem::take(&mut self.stepped) {
            std::mem::swap(&mut self.moments, &mut self.next);
        }
    }

    fn state(&self) -> Vec<(&'static str, &[f32])> {
        let newest = if self.stepped {
            &self.next
        } else {
            &self.moments
        };
        let slices = newest.iter().map(Vec::as_slice);
        STATE.into_iter().zip(slices).collect()
    }

    fn restore(&mut self, state: &[(&str, &[f32])]) -> Result<(), OuterError> {
        check_state(&STATE, self.moments[0].len(), state)?;
        for (moment, (_, stored)) in self.moments.iter_mut().zip(state) {
            moment.copy_from_slice(stored);
        }
        self.stepped = false;
        Ok(())
    }
}
