//! Centred clipping: updates are shortened around a centre that moves to their mean, not around zero.
//!
//! Karimireddy, He and Jaggi, "Learning from history for Byzantine robust optimization", 2021: `v += mean of (u_i - v) min(1, r / |u_i - v|)`, a few times over.
//! Here every round begins at `v = 0`, so that no round depends on the one before it (theirs begins at the last aggregate, which a restart, an abort
//! and a new member would each have to agree about); the first of the `iterations` is then plain clipping, the others correct it. The
//! radius `r` is `[aggregator] clip`: a number, or in each iteration the lower median of the distances.
//!
//! A centre is a weighted sum of the updates, so every distance follows from the updates' inner products, and two passes over them are enough however
//! many iterations there are.

use super::each::{Products, combine};
use super::{
    AggregateError, Aggregator, EachFold, Needs, Report, Weight, equal_weights, lower_median,
};
use crate::plan::{AggregatorPlan, Clip};

/// The rule; every update with rows counts alike.
#[derive(Debug, Clone)]
pub struct CentredClipping {
    radius: Clip,
    iterations: u32,
}

impl CentredClipping {
    /// The rule with these settings.
    pub fn new(plan: &AggregatorPlan) -> Self {
        CentredClipping {
            radius: plan.clip,
            iterations: plan.iterations,
        }
    }
}

impl Aggregator for CentredClipping {
    fn needs(&self) -> Needs {
        Needs::EachTwice
    }

    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        Ok(equal_weights(Clip::None, reports))
    }

    fn each(&mut self, counted: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        Ok(Box::new(Centring {
            radius: self.radius,
            iterations: self.iterations,
            products: Products::new(counted.len()),
            shares: Vec::new(),
        }))
    }
}

struct Centring {
    radius: Clip,
    iterations: u32,
    products: Products,
    shares: Vec<f64>,
}

impl EachFold for Centring {
    fn look(&mut self, chunk: &[&[f32]]) {
        self.products.add(chunk);
    }

    fn decide(&mut self) -> Result<(), AggregateError> {
        let products = self.products.square();
        self.shares = vec![0.0; products.len()];
        for _ in 0..self.iterations {
            self.shares = moved(self.radius, &products, &self.shares);
        }
        Ok(())
    }

    fn fold(&mut self, chunk: &[&[f32]], out: &mut [f32]) {
        combine(&self.shares, chunk, out);
    }
}

/// The shares of the next centre.
fn moved(radius: Clip, products: &[Vec<f64>], shares: &[f64]) -> Vec<f64> {
    let count = products.len() as f64;
    let distances = distances(products, shares);
    let radius = match radius {
        Clip::None => f64::INFINITY,
        Clip::Norm(radius) => radius,
        Clip::Median => lower_median(distances.iter().copied()).unwrap_or(0.0),
    };
    let factor = |distance: &f64| {
        if *distance > radius {
            radius / distance
        } else {
            1.0
        }
    };
    let factors: Vec<f64> = distances.iter().map(factor).collect();
    let kept = 1.0 - factors.iter().sum::<f64>() / count;
    let pairs = shares.iter().zip(&factors);
    pairs
        .map(|(share, factor)| share * kept + factor / count)
        .collect()
}

/// Each update's distance to the weighted sum of all.
fn distances(products: &[Vec<f64>], shares: &[f64]) -> Vec<f64> {
    let to_centre = |row: &Vec<f64>| -> f64 {
        row.iter()
            .zip(shares)
            .map(|(product, share)| product * share)
            .sum()
    };
    let along: Vec<f64> = products.iter().map(to_centre).collect();
    let centre: f64 = along
        .iter()
        .zip(shares)
        .map(|(product, share)| product * share)
        .sum();
    let squares = along.iter().enumerate().map(|(index, along)| {
        // Rounding may make it a little less than nothing.
        (products[index][index] - 2.0 * along + centre).max(0.0)
    });
    squares.map(f64::sqrt).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn products(at: &[f64]) -> Vec<Vec<f64>> {
        at.iter()
            .map(|one| at.iter().map(|other| one * other).collect())
            .collect()
    }

    #[test]
    fn distances_are_those_to_the_weighted_sum() {
        assert_eq!(distances(&products(&[1.0, 3.0]), &[0.0, 0.0]), [1.0, 3.0]);
        assert_eq!(distances(&products(&[1.0, 3.0]), &[0.5, 0.5]), [1.0, 1.0]);
    }

    #[test]
    fn the_centre_moves_by_what_is_within_the_radius() {
        let line = products(&[1.0, 2.0, 30.0]);
        // From zero, radius 2 (the lower median): 1, 2 and 2 of 30.
        let shares = moved(Clip::Median, &line, &[0.0; 3]);
        assert_eq!(shares, [1.0 / 3.0, 1.0 / 3.0, 2.0 / 30.0 / 3.0]);
        // The centre is 5/3 now: the others lie 2/3, 1/3 and 28 1/3 from it.
        let shares = moved(Clip::Norm(2.0 / 3.0), &line, &shares);
        let centre = shares[0] + 2.0 * shares[1] + 30.0 * shares[2];
        assert!(
            (centre - (5.0 + (-2.0 + 1.0 + 2.0) / 3.0) / 3.0).abs() < 1e-12,
            "{centre}"
        );
    }
}
