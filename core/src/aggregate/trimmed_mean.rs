//! The coordinate-wise trimmed mean: in every element the mean of what is left without the `faulty` smallest and the `faulty` largest numbers.
//!
//! Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates", 2018, with a count in place of their share: who
//! knows how many nodes may be bad need not know how many will be there.

use super::{
    AggregateError, Aggregator, EachFold, Needs, Report, Weight, by_element, enough, equal_weights,
};
use crate::plan::{AggregatorPlan, Clip};

/// The rule; every update with rows counts alike.
#[derive(Debug, Clone)]
pub struct TrimmedMean {
    clip: Clip,
    faulty: usize,
}

impl TrimmedMean {
    /// The rule with these settings.
    pub fn new(plan: &AggregatorPlan) -> Self {
        TrimmedMean {
            clip: plan.clip,
            faulty: plan.faulty,
        }
    }
}

impl Aggregator for TrimmedMean {
    fn needs(&self) -> Needs {
        Needs::Each
    }

    fn least(&self) -> usize {
        2 * self.faulty + 1
    }

    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        enough(self, equal_weights(self.clip, reports))
    }

    fn each(&mut self, counted: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        enough(self, counted.to_vec())?;
        Ok(Box::new(Trim(self.faulty)))
    }
}

struct Trim(usize);

impl EachFold for Trim {
    fn fold(&mut self, chunk: &[&[f32]], out: &mut [f32]) {
        by_element(chunk, out, |numbers| {
            numbers.sort_unstable_by(f32::total_cmp);
            let kept = &numbers[self.0..numbers.len() - self.0];
            let sum: f64 = kept.iter().copied().map(f64::from).sum();
            (sum / kept.len() as f64) as f32
        });
    }
}
