//! Krum: the update that lies nearest to its neighbours; multi-Krum: the mean of all but the `faulty` that lie farthest.
//!
//! Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent", 2017. Of `n` updates, `f` of them bad, an update's score is the
//! sum of its squared distances to the `n - f - 2` nearest others; it needs `n >= 2 f + 3`. Krum takes the one of the lowest score, multi-Krum the
//! mean of the `n - f` lowest. Equal scores go to whoever comes first.

use super::each::{Products, combine};
use super::{AggregateError, Aggregator, EachFold, Needs, Report, Weight, enough, equal_weights};
use crate::plan::{AggregatorPlan, Clip};

/// Both rules; every update with rows counts alike.
#[derive(Debug, Clone)]
pub struct Krum {
    clip: Clip,
    faulty: usize,
    is_multi: bool,
}

impl Krum {
    /// The one update that is taken.
    pub fn new(plan: &AggregatorPlan) -> Self {
        Krum {
            clip: plan.clip,
            faulty: plan.faulty,
            is_multi: false,
        }
    }

    /// The mean of all but the worst.
    pub fn multi(plan: &AggregatorPlan) -> Self {
        Krum {
            is_multi: true,
            ..Krum::new(plan)
        }
    }
}

impl Aggregator for Krum {
    fn needs(&self) -> Needs {
        Needs::EachTwice
    }

    fn least(&self) -> usize {
        2 * self.faulty + 3
    }

    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        enough(self, equal_weights(self.clip, reports))
    }

    fn each(&mut self, counted: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        enough(self, counted.to_vec())?;
        Ok(Box::new(Choice {
            faulty: self.faulty,
            chosen: match self.is_multi {
                true => counted.len() - self.faulty,
                false => 1,
            },
            products: Products::new(counted.len()),
            shares: Vec::new(),
        }))
    }
}

struct Choice {
    faulty: usize,
    chosen: usize,
    products: Products,
    shares: Vec<f64>,
}

impl EachFold for Choice {
    fn look(&mut self, chunk: &[&[f32]]) {
        self.products.add(chunk);
    }

    fn decide(&mut self) -> Result<(), AggregateError> {
        let scores = scores(&self.products.square(), self.faulty);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        // A stable sort: of equal scores the first.
        order.sort_by(|one, other| scores[*one].total_cmp(&scores[*other]));
        self.shares = vec![0.0; scores.len()];
        for index in &order[..self.chosen] {
            self.shares[*index] = 1.0 / self.chosen as f64;
        }
        Ok(())
    }

    fn fold(&mut self, chunk: &[&[f32]], out: &mut [f32]) {
        combine(&self.shares, chunk, out);
    }
}

/// Each update's sum of squared distances to its `n - f - 2` nearest others.
fn scores(products: &[Vec<f64>], faulty: usize) -> Vec<f64> {
    let updates = products.len();
    let near = updates.saturating_sub(faulty + 2);
    let score = |one: usize| {
        let others = (0..updates).filter(|other| *other != one);
        let mut squares: Vec<f64> = others
            .map(|other| {
                let apart =
                    products[one][one] + products[other][other] - 2.0 * products[one][other];
                // Rounding may make it a little less than nothing.
                apart.max(0.0)
            })
            .collect();
        squares.sort_by(f64::total_cmp);
        squares[..near].iter().sum()
    };
    (0..updates).map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_sum_of_squared_distances_to_the_nearest_others() {
        // Points on a line at 0, 1, 3, 10 and 100.
        let at = [0.0, 1.0, 3.0, 10.0, 100.0];
        let products: Vec<Vec<f64>> = at
            .iter()
            .map(|one| at.iter().map(|other| one * other).collect())
            .collect();
        assert_eq!(
            scores(&products, 1),
            [
                1.0 + 9.0,
                1.0 + 4.0,
                4.0 + 9.0,
                49.0 + 81.0,
                8100.0 + 9409.0
            ]
        );
    }
}
