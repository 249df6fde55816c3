//! The reference fold: how the counted updates of a round become one mean, to the last bit.
//!
//! Two levels. In a domain a left fold by rank: `S = f_0 u_0`, then `S += f_i u_i`, with `f_i = weight_i clip_i` rounded once to `f32`. Over
//! the WAN goes `s = S 2^-k`, where `2^k <= W < 2^(k+1)` and `W` is the domain's weight: numbers of the size of one update, whatever the
//! weights. Globally a left fold over domains by name, `G = s_0 2^k_0`, then `G += s_d 2^k_d`, and one division by the sum of all `W`, rounded
//! once to `f32`. A member of weight zero is no term of the fold at all.
//!
//! Everything is element by element, so callers may work chunk by chunk, on any number of threads, and get the same bits. Multiplication
//! and addition stay apart: Rust never contracts them into a fused one.
//!
//! The step by `2^-k` is exact while its result is a normal `f32` (at least 2^-126 in magnitude); below that it rounds, by at most 2^-150.

mod squares;

use std::ops::Range;

pub use squares::Squares;

/// Elements in a block: slices of a model have their borders at multiples of it, and norms are summed by it.
pub const BLOCK: usize = 4096;

/// The exponents of domain weights, at both ends: `2^k` and `2^-k` are then both normal in `f32`, so that neither of the two steps that
/// use them loses a bit of an ordinary number.
pub const EXPONENT_MAX: i32 = 126;

/// A fold that cannot be made. Weights and clip factors are fixed by the round's rule; bytes and lengths come from whoever offers them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FoldError {
    /// A member's weight or clip factor.
    #[error(
        "weight {weight} with clip factor {clip} cannot be folded: expected a weight of zero or with |log2| at most 126 and a clip factor from 0 to 1; rescale the weights"
    )]
    Factor {
        /// The weight.
        weight: f64,
        /// The clip factor.
        clip: f64,
    },
    /// A domain's weight.
    #[error(
        "domain weight {weight} cannot be folded: expected a number from 2^-126 to below 2^127; rescale the weights"
    )]
    DomainWeight {
        /// The weight.
        weight: f64,
    },
    /// The sum of the domains' weights.
    #[error(
        "total weight {total} cannot divide the fold: expected a positive number within f32; rescale the weights"
    )]
    Total {
        /// The sum.
        total: f64,
    },
    /// An exponent from outside.
    #[error("exponent {exponent} is outside -126..=126: the sender breaks the protocol")]
    Exponent {
        /// The exponent.
        exponent: i32,
    },
    /// An update of another length.
    #[error("an update has {found} elements where {expected} are expected: refuse it")]
    Length {
        /// Elements in the accumulator.
        expected: usize,
        /// Elements in the update.
        found: usize,
    },
    /// More or fewer bytes than the accumulator holds.
    #[error("got {found} bytes of an update where {expected} are expected: refuse it")]
    Bytes {
        /// Bytes in the accumulator.
        expected: usize,
        /// Bytes offered.
        found: usize,
    },
    /// No member has a weight.
    #[error("nothing to fold: no counted update has a weight above zero")]
    Empty,
}

/// `weight * clip`, rounded once to `f32`.
///
/// # Errors
/// A weight or clip factor that is negative, not finite or out of range.
pub fn factor(weight: f64, clip: f64) -> Result<f32, FoldError> {
    let in_range = weight == 0.0 || exponent(weight).is_ok();
    if in_range && (0.0..=1.0).contains(&clip) {
        Ok((weight * clip) as f32)
    } else {
        Err(FoldError::Factor { weight, clip })
    }
}

/// `k` of `2^k <= weight < 2^(k+1)`.
///
/// # Errors
/// A weight that is not positive and finite (subnormal ones included), or an exponent outside -126..=126.
pub fn exponent(weight: f64) -> Result<i32, FoldError> {
    if weight.is_normal() && weight > 0.0 {
        let exponent = ((weight.to_bits() >> 52) & 0x7FF) as i32 - 1023;
        if exponent.abs() <= EXPONENT_MAX {
            return Ok(exponent);
        }
    }
    Err(FoldError::DomainWeight { weight })
}

/// `2^exponent`, exactly.
///
/// # Errors
/// An exponent outside -126..=126.
pub fn power(exponent: i32) -> Result<f32, FoldError> {
    if exponent.abs() > EXPONENT_MAX {
        return Err(FoldError::Exponent { exponent });
    }
    Ok(f32::from_bits(((exponent + 127) as u32) << 23))
}

/// `out = factor * update`.
///
/// # Panics
/// If the lengths differ.
pub fn scale_into(out: &mut [f32], factor: f32, update: &[f32]) {
    assert_eq!(out.len(), update.len(), "the caller cuts equal chunks");
    for (out, element) in out.iter_mut().zip(update) {
        *out = factor * element;
    }
}

/// `accumulator += factor * update`, the product rounded before the sum.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(accumulator: &mut [f32], factor: f32, update: &[f32]) {
    assert_eq!(
        accumulator.len(),
        update.len(),
        "the caller cuts equal chunks"
    );
    for (sum, element) in accumulator.iter_mut().zip(update) {
        *sum += factor * element;
    }
}

/// `slice *= 2^exponent`.
///
/// # Errors
/// An exponent outside -126..=126; the slice is then untouched.
pub fn scale_power(slice: &mut [f32], exponent: i32) -> Result<(), FoldError> {
    let power = power(exponent)?;
    for element in slice {
        *element *= power;
    }
    Ok(())
}

/// The divisor of the global fold: the domains' weights added in the order of their names in `f64`, rounded once to `f32`.
///
/// # Errors
/// A sum that is not a positive finite normal number in `f32`.
pub fn total(weights: impl IntoIterator<Item = f64>) -> Result<f32, FoldError> {
    let total = weights.into_iter().fold(0.0, |sum, weight| sum + weight);
    let rounded = total as f32;
    if rounded.is_normal() && rounded > 0.0 {
        Ok(rounded)
    } else {
        Err(FoldError::Total { total })
    }
}

/// `accumulator /= total`.
pub fn divide(accumulator: &mut [f32], total: f32) {
    for element in accumulator {
        *element /= total;
    }
}

/// The ranges of a model that `ranks` readers take: in order, without gaps, borders at multiples of [`BLOCK`], sizes differing by at most
/// one block. With more ranks than blocks the last ones are empty.
pub fn slices(len: usize, ranks: usize) -> Vec<Range<usize>> {
    let blocks = len.div_ceil(BLOCK);
    let mut start: usize = 0;
    (0..ranks)
        .map(|rank| {
            let share = blocks / ranks + usize::from(rank < blocks % ranks);
            let end = share
                .checked_mul(BLOCK)
                .and_then(|share| start.checked_add(share))
                .map_or(len, |end| end.min(len));
            std::mem::replace(&mut start, end)..end
        })
        .collect()
}

/// Folds one term that arrives as little-endian bytes, in pieces that may end within an element.
///
/// Give the pieces in order to [`push`](Self::push), always with the same accumulator, then call [`finish`](Self::finish).
#[derive(Debug, Clone)]
pub struct ByteFold {
    factor: f32,
    is_first: bool,
    at: usize,
    carry: [u8; 4],
    carried: usize,
}

impl ByteFold {
    /// A term that sets the accumulator, as [`scale_into`] does.
    pub fn first(factor: f32) -> Self {
        ByteFold {
            factor,
            is_first: true,
            at: 0,
            carry: [0; 4],
            carried: 0,
        }
    }

    /// A term that is added, as [`add_scaled`] does.
    pub fn next(factor: f32) -> Self {
        ByteFold {
            is_first: false,
            ..ByteFold::first(factor)
        }
    }

    /// Folds one more piece.
    ///
    /// # Errors
    /// More bytes than the accumulator holds; nothing of this piece is then folded.
    pub fn push(&mut self, accumulator: &mut [f32], mut bytes: &[u8]) -> Result<(), FoldError> {
        let expected = accumulator.len().saturating_mul(4);
        let found = (self.at * 4 + self.carried).saturating_add(bytes.len());
        if found > expected {
            return Err(FoldError::Bytes { expected, found });
        }
        if self.carried > 0 {
            let missing = (4 - self.carried).min(bytes.len());
            let (head, rest) = bytes.split_at(missing);
            self.carry[self.carried..self.carried + missing].copy_from_slice(head);
            self.carried += missing;
            bytes = rest;
            if self.carried < 4 {
                return Ok(());
            }
            let carry = self.carry;
            self.fold(accumulator, &carry);
            self.carried = 0;
        }
        let (whole, tail) = bytes.split_at(bytes.len() / 4 * 4);
        self.fold(accumulator, whole);
        self.carry[..tail.len()].copy_from_slice(tail);
        self.carried = tail.len();
        Ok(())
    }

    /// Ends the term.
    ///
    /// # Errors
    /// Fewer bytes than the accumulator holds: what it holds then is no fold.
    pub fn finish(self, accumulator: &[f32]) -> Result<(), FoldError> {
        let expected = accumulator.len().saturating_mul(4);
        let found = self.at * 4 + self.carried;
        if found == expected {
            Ok(())
        } else {
            Err(FoldError::Bytes { expected, found })
        }
    }

    fn fold(&mut self, accumulator: &mut [f32], whole: &[u8]) {
        let elements = whole.len() / 4;
        let target = &mut accumulator[self.at..self.at + elements];
        let source = whole.as_chunks::<4>().0;
        // Two loops, so that neither asks on each element.
        if self.is_first {
            for (out, bytes) in target.iter_mut().zip(source) {
                *out = self.factor * f32::from_le_bytes(*bytes);
            }
        } else {
            for (sum, bytes) in target.iter_mut().zip(source) {
                *sum += self.factor * f32::from_le_bytes(*bytes);
            }
        }
        self.at += elements;
    }
}

/// One counted update.
#[derive(Debug, Clone, Copy)]
pub struct Counted<'a> {
    /// Its weight.
    pub weight: f64,
    /// Its clip factor.
    pub clip: f64,
    /// The update as its node made it.
    pub update: &'a [f32],
}

/// The whole fold at once: domains in the order of their names, members in the order of their ranks. This is what every distributed way of
/// computing it must equal, bit for bit.
///
/// # Errors
/// Nothing with a weight, a weight out of range, updates of unequal length.
pub fn reference(domains: &[Vec<Counted<'_>>]) -> Result<Vec<f32>, FoldError> {
    let len = domains
        .iter()
        .flatten()
        .map(|counted| counted.update.len())
        .next()
        .ok_or(FoldError::Empty)?;
    if let Some(other) = domains.iter().flatten().find(|c| c.update.len() != len) {
        return Err(FoldError::Length {
            expected: len,
            found: other.update.len(),
        });
    }
    let mut global: Option<Vec<f32>> = None;
    let mut weights = Vec::new();
    for members in domains {
        let mut sum: Option<Vec<f32>> = None;
        let mut weight = 0.0;
        for member in members {
            let factor = factor(member.weight, member.clip)?;
            if member.weight == 0.0 {
                continue;
            }
            match &mut sum {
                None => scale_into(sum.insert(vec![0.0; len]), factor, member.update),
                Some(sum) => add_scaled(sum, factor, member.update),
            }
            weight += member.weight;
        }
        let Some(mut sum) = sum else { continue };
        let exponent = exponent(weight)?;
        scale_power(&mut sum, -exponent)?;
        match &mut global {
            None => {
                scale_power(&mut sum, exponent)?;
                global = Some(sum);
            }
            Some(global) => add_scaled(global, power(exponent)?, &sum),
        }
        weights.push(weight);
    }
    let mut mean = global.ok_or(FoldError::Empty)?;
    divide(&mut mean, total(weights)?);
    Ok(mean)
}

#[cfg(test)]
mod tests;
