//! Rules that must see each update: how they fold, chunk by chunk.
//!
//! A chunk here is one stretch of the model out of every update, so the memory of such a fold is one chunk a node beside the result, whatever
//! the model's size. A rule that first needs to know how far updates lie apart ([`Needs::EachTwice`](super::Needs)) looks at all chunks, decides, and
//! then folds them.

use super::{AggregateError, Aggregator, Weight};
use crate::fold::{BLOCK, FoldError};

/// One round's fold over each update.
///
/// The order of calls: if the rule looks first, [`look`](Self::look) on every chunk in order; then [`decide`](Self::decide); then
/// [`fold`](Self::fold) on every chunk in order. Chunks begin at multiples of [`BLOCK`](crate::fold::BLOCK); within one, the updates lie in the order of the weights
/// that the fold was made for, cut to the same length. The result has the same bits however the model is cut.
pub trait EachFold: Send {
    /// Looks at one chunk of every update.
    fn look(&mut self, _chunk: &[&[f32]]) {}

    /// Decides, once everything was looked at.
    ///
    /// # Errors
    /// The rule cannot choose among these updates.
    fn decide(&mut self) -> Result<(), AggregateError> {
        Ok(())
    }

    /// Makes one chunk of the result from one chunk of every update.
    fn fold(&mut self, chunk: &[&[f32]], out: &mut [f32]);
}

/// The whole fold at once, over updates that are in memory: what the streamed one must equal, bit for bit.
///
/// # Errors
/// No update, updates of unequal length, or a rule that cannot decide.
pub fn fold_each(
    rule: &mut dyn Aggregator,
    weights: &[Weight],
    updates: &[&[f32]],
) -> Result<Vec<f32>, AggregateError> {
    let len = updates.first().map_or(0, |update| update.len());
    if let Some(other) = updates.iter().find(|update| update.len() != len) {
        let error = FoldError::Length {
            expected: len,
            found: other.len(),
        };
        return Err(AggregateError::Rule(error.to_string()));
    }
    if updates.is_empty() || weights.len() != updates.len() {
        return Err(AggregateError::Empty);
    }
    let mut fold = rule.each(weights)?;
    fold.look(updates);
    fold.decide()?;
    let mut out = vec![0.0; len];
    fold.fold(updates, &mut out);
    Ok(out)
}

/// Inner products of all pairs of updates, accumulated in `f64`: from them follow all distances, also to any weighted sum of the updates.
///
/// Blanchard et al. need distances only, but clipping around a centre needs those to a centre that is not an update.
#[derive(Debug, Clone)]
pub(super) struct Products {
    updates: usize,
    /// The lower triangle by rows, the diagonal included.
    lanes: Vec<[f64; LANES]>,
}

/// Element `i` of a model goes to sum `i % 8`; in the end the eight are added in order. One sum alone would wait for each addition.
const LANES: usize = 8;

impl Products {
    pub(super) fn new(updates: usize) -> Self {
        Products {
            updates,
            lanes: vec![[0.0; LANES]; updates * (updates + 1) / 2],
        }
    }

    /// Adds a chunk. Block by block, so that a block of every update stays in cache while all pairs are made.
    pub(super) fn add(&mut self, chunk: &[&[f32]]) {
        let len = chunk.first().map_or(0, |update| update.len());
        for start in (0..len).step_by(BLOCK) {
            let end = (start + BLOCK).min(len);
            let mut pairs = self.lanes.iter_mut();
            for (row, one) in chunk.iter().enumerate() {
                for other in &chunk[..=row] {
                    let lanes = pairs.next().expect("there is a sum for each pair");
                    add_products(lanes, &one[start..end], &other[start..end]);
                }
            }
        }
    }

    /// The product of two updates.
    pub(super) fn of(&self, one: usize, other: usize) -> f64 {
        let (row, column) = (one.max(other), one.min(other));
        self.lanes[row * (row + 1) / 2 + column].iter().sum()
    }

    /// The products as a square, row by row.
    pub(super) fn square(&self) -> Vec<Vec<f64>> {
        (0..self.updates)
            .map(|row| {
                (0..self.updates)
                    .map(|column| self.of(row, column))
                    .collect()
            })
            .collect()
    }
}

fn add_products(lanes: &mut [f64; LANES], one: &[f32], other: &[f32]) {
    let (ones, rest) = one.as_chunks::<LANES>();
    let (others, other_rest) = other.as_chunks::<LANES>();
    for (a, b) in ones.iter().zip(others) {
        for lane in 0..LANES {
            lanes[lane] += f64::from(a[lane]) * f64::from(b[lane]);
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(rest.iter().zip(other_rest)) {
        *lane += f64::from(*a) * f64::from(*b);
    }
}

/// `out = sum of shares[i] * update i`, in `f64` in the order of the updates, rounded once. A share of zero is no term: what was not chosen is not read.
pub(super) fn combine(shares: &[f64], chunk: &[&[f32]], out: &mut [f32]) {
    let mut sums = [0.0f64; BLOCK];
    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
        let sums = &mut sums[..out.len()];
        sums.fill(0.0);
        let start = index * BLOCK;
        for (share, update) in shares.iter().zip(chunk) {
            if *share == 0.0 {
                continue;
            }
            for (sum, element) in sums.iter_mut().zip(&update[start..]) {
                *sum += share * f64::from(*element);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = *sum as f32;
        }
    }
}

/// Folds element by element: `judge` makes one number out of the updates' numbers, which it may reorder.
pub(super) fn by_element(
    chunk: &[&[f32]],
    out: &mut [f32],
    mut judge: impl FnMut(&mut [f32]) -> f32,
) {
    let mut column = vec![0.0; chunk.len()];
    for (index, out) in out.iter_mut().enumerate() {
        for (number, update) in column.iter_mut().zip(chunk) {
            *number = update[index];
        }
        *out = judge(&mut column);
    }
}
