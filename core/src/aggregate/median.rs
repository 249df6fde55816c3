//! The coordinate-wise median: in every element the middle one of the updates' numbers.
//!
//! Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates", 2018. Fewer than half of the updates, however bad, move
//! no element out of the range of the others. On skewed data it also passes over what only a few honest nodes know.

use super::{
    AggregateError, Aggregator, EachFold, Needs, Report, Weight, by_element, equal_weights,
};
use crate::plan::{AggregatorPlan, Clip};

/// The rule; every update with rows counts alike.
#[derive(Debug, Clone)]
pub struct Median {
    clip: Clip,
}

impl Median {
    /// The rule with these settings.
    pub fn new(plan: &AggregatorPlan) -> Self {
        Median { clip: plan.clip }
    }
}

impl Aggregator for Median {
    fn needs(&self) -> Needs {
        Needs::Each
    }

    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        Ok(equal_weights(self.clip, reports))
    }

    fn each(&mut self, _counted: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        Ok(Box::new(Middle))
    }
}

struct Middle;

impl EachFold for Middle {
    fn fold(&mut self, chunk: &[&[f32]], out: &mut [f32]) {
        by_element(chunk, out, middle);
    }
}

/// The middle number; of an even count the mean of the middle two.
fn middle(numbers: &mut [f32]) -> f32 {
    let half = numbers.len() / 2;
    let is_odd = numbers.len() % 2 == 1;
    let (below, upper, _) = numbers.select_nth_unstable_by(half, f32::total_cmp);
    if is_odd {
        return *upper;
    }
    let lower = below.iter().copied().max_by(f32::total_cmp);
    let lower = lower.expect("an even count above zero has a number below its middle");
    // Halved before they are added: the sum of two numbers may not be one.
    0.5 * lower + 0.5 * *upper
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_that_of_an_odd_count_or_between_the_two_of_an_even_one() {
        for (numbers, expected) in [
            (&mut [3.0][..], 3.0),
            (&mut [4.0, 1.0], 2.5),
            (&mut [9.0, 1.0, 4.0], 4.0),
            (&mut [9.0, 1.0, -4.0, 2.0], 1.5),
            (&mut [f32::MAX, f32::MAX], f32::MAX),
        ] {
            assert_eq!(middle(numbers), expected);
        }
    }
}
