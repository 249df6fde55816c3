//! The k largest magnitudes of a vector, exactly: of equal ones the first.
//!
//! A sample tells about where the k-th lies; one pass collects what is above a little less than that; the exact bound is found among
//! those. If the sample misled, or too many are equal, two counting passes find the bound instead. The choice is the same either way.

use super::kernels::{Kernels, MAGNITUDE};
use crate::wire::CHUNK_ELEMENTS;

/// Elements looked at first: with one in a hundred sought, the guess is then some four percent wide.
const SAMPLE: usize = 1 << 16;

/// What is chosen: every magnitude above `bound`, and of those equal to it the first `ties`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bound {
    bound: u32,
    ties: usize,
}

/// The chosen positions of each chunk, counted from the chunk's start, in order.
pub(super) fn largest(
    kernels: Kernels,
    values: &[f32],
    count: usize,
    mut each_chunk: impl FnMut(&[u32], &[f32]),
) {
    let count = count.min(values.len());
    let mut candidates = Candidates::default();
    let bound = candidates.collect(kernels, values, count);
    let mut left = bound.ties;
    let mut positions = Vec::new();
    for (index, chunk) in values.chunks(CHUNK_ELEMENTS).enumerate() {
        positions.clear();
        for (position, magnitude) in candidates.of_chunk(index) {
            if *magnitude > bound.bound {
                positions.push(*position);
            } else if *magnitude == bound.bound && left > 0 {
                left -= 1;
                positions.push(*position);
            }
        }
        each_chunk(&positions, chunk);
    }
}

/// Elements that may be chosen: position in the chunk and bits without sign.
#[derive(Default)]
struct Candidates {
    found: Vec<(u32, u32)>,
    ends: Vec<usize>,
}

impl Candidates {
    fn collect(&mut self, kernels: Kernels, values: &[f32], count: usize) -> Bound {
        let most = count + count / 2 + SAMPLE / 16;
        self.above(kernels, values, guess(values, count), most);
        if (count..=most).contains(&self.found.len()) {
            let mut magnitudes: Vec<u32> = self.found.iter().map(|(_, bits)| *bits).collect();
            return bound(&mut magnitudes, count);
        }
        let bound = counted(values, count);
        // Beyond the first `ties` nobody asks for those equal to the bound: what is collected is the choice itself.
        self.found.clear();
        self.ends.clear();
        let mut left = bound.ties;
        for chunk in values.chunks(CHUNK_ELEMENTS) {
            for (position, value) in chunk.iter().enumerate() {
                let magnitude = value.to_bits() & MAGNITUDE;
                let is_tie = magnitude == bound.bound && left > 0;
                left -= usize::from(is_tie);
                if is_tie || magnitude > bound.bound {
                    self.found.push((position as u32, magnitude));
                }
            }
            self.ends.push(self.found.len());
        }
        bound
    }

    fn above(&mut self, kernels: Kernels, values: &[f32], floor: u32, most: usize) {
        self.found.reserve(most.min(values.len()));
        for chunk in values.chunks(CHUNK_ELEMENTS) {
            kernels.above(chunk, floor, most, &mut self.found);
            self.ends.push(self.found.len());
            if self.found.len() > most {
                return;
            }
        }
    }

    fn of_chunk(&self, index: usize) -> &[(u32, u32)] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.found[start..self.ends[index]]
    }
}

/// A magnitude that about `count` elements reach, and rarely fewer.
fn guess(values: &[f32], count: usize) -> u32 {
    let stride = values.len().div_ceil(SAMPLE).max(1);
    let mut sample: Vec<u32> = values
        .iter()
        .step_by(stride)
        .map(|value| value.to_bits() & MAGNITUDE)
        .collect();
    let sought = (count / stride).max(1);
    // Four standard deviations of how many of the sample are among the sought.
    let reserve = 4 * sought.isqrt() + 8;
    let rank = sought + reserve;
    if rank >= sample.len() {
        return 0;
    }
    *sample.select_nth_unstable_by(rank, |a, b| b.cmp(a)).1
}

/// The bound of the `count` largest; there are at least so many.
fn bound(magnitudes: &mut [u32], count: usize) -> Bound {
    let Some(last) = count.checked_sub(1) else {
        return Bound {
            bound: u32::MAX,
            ties: 0,
        };
    };
    let (larger, bound, _) = magnitudes.select_nth_unstable_by(last, |a, b| b.cmp(a));
    let above = larger.iter().filter(|bits| **bits > *bound).count();
    Bound {
        bound: *bound,
        ties: count - above,
    }
}

/// The same by counting: first the upper, then the lower half of the bits.
fn counted(values: &[f32], count: usize) -> Bound {
    let mut upper = vec![0usize; 1 << 15];
    for value in values {
        upper[((value.to_bits() & MAGNITUDE) >> 16) as usize] += 1;
    }
    let (high, above) = fall(&upper, count);
    let mut lower = vec![0usize; 1 << 16];
    for value in values {
        let magnitude = value.to_bits() & MAGNITUDE;
        if magnitude >> 16 == high as u32 {
            lower[(magnitude & 0xFFFF) as usize] += 1;
        }
    }
    let (low, above_low) = fall(&lower, count - above);
    Bound {
        bound: (high << 16 | low) as u32,
        ties: count - above - above_low,
    }
}

/// From the top down, the class in which the `count`-th lies, and how many lie above that class.
fn fall(classes: &[usize], count: usize) -> (usize, usize) {
    let mut above = 0;
    for (class, members) in classes.iter().enumerate().rev() {
        if above + members >= count {
            return (class, above);
        }
        above += members;
    }
    (0, above)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chosen(kernels: Kernels, values: &[f32], count: usize) -> Vec<usize> {
        let (mut all, mut base) = (Vec::new(), 0);
        largest(kernels, values, count, |positions, chunk| {
            all.extend(positions.iter().map(|position| base + *position as usize));
            base += chunk.len();
        });
        all
    }

    /// By sorting.
    fn reference(values: &[f32], count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(values[*index].to_bits() & MAGNITUDE));
        order.truncate(count);
        order.sort_unstable();
        order
    }

    proptest! {
        #[test]
        fn the_largest_are_chosen_and_of_equal_ones_the_first(
            values in prop::collection::vec(prop_oneof![-4i8..4], 0..300),
            count in 0usize..320,
        ) {
            let values: Vec<f32> = values.into_iter().map(f32::from).collect();
            prop_assert_eq!(chosen(Kernels::PORTABLE, &values, count), reference(&values, count.min(values.len())));
        }
    }

    #[test]
    fn sample_and_count_agree_over_several_chunks() {
        let mut rng = crate::rng::Rng::new(11);
        let len = 2 * CHUNK_ELEMENTS + 777;
        let spread: Vec<f32> = (0..len).map(|_| (rng.next_f64() - 0.5) as f32).collect();
        let few_values: Vec<f32> = (0..len).map(|_| rng.below(3) as f32).collect();
        // The sample sees one element in nine: here the others are larger.
        let misleading: Vec<f32> = (0..len)
            .map(|index| {
                if index % 9 == 0 {
                    1e-9
                } else {
                    rng.next_f64() as f32
                }
            })
            .collect();
        for values in [spread, few_values, misleading, vec![1.0; len]] {
            for count in [1, len / 100, len / 2] {
                let expected = reference(&values, count);
                assert_eq!(chosen(Kernels::widest(), &values, count), expected);
                assert_eq!(chosen(Kernels::PORTABLE, &values, count), expected);
                let mut magnitudes: Vec<u32> = values
                    .iter()
                    .map(|value| value.to_bits() & MAGNITUDE)
                    .collect();
                assert_eq!(counted(&values, count), bound(&mut magnitudes, count));
            }
        }
    }
}
