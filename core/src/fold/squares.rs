//! The norm of an update that nobody reads as a whole.
//!
//! Each block of [`BLOCK`](super::BLOCK) elements gives one sum of squares in `f64`. Block sums are then added exactly, in fixed point, so the
//! norm of an update has the same bits however its blocks were dealt out to readers: after a dropout there are fewer readers and other
//! slices, but the clip factors of those who stay do not change by a bit.

use serde::{Deserialize, Serialize};

use super::BLOCK;

/// 64-bit digits, the lowest first, of a fixed-point number in units of 2^-320. The smallest square of an `f32` is 2^-298 and the largest model
/// sums up to below 2^298, so neither end is ever reached by honest data.
const LIMBS: usize = 10;
const LOWEST: i32 = -320;

/// Eight sums side by side in a block: element `i` goes to sum `i % 8`, and in the end the eight are added in order. One sum alone would wait
/// for each addition.
const LANES: usize = 8;

/// A sum of squares over whole blocks, and whether all elements are finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Squares {
    limbs: [u64; LIMBS],
    is_finite: bool,
}

impl Default for Squares {
    fn default() -> Self {
        Squares {
            limbs: [0; LIMBS],
            is_finite: true,
        }
    }
}

impl Squares {
    /// The squares of a slice that begins at the border of a block.
    pub fn of(elements: &[f32]) -> Self {
        let mut squares = Squares::default();
        squares.add(elements);
        squares
    }

    /// Adds a slice that begins at the border of a block.
    pub fn add(&mut self, elements: &[f32]) {
        for block in elements.chunks(BLOCK) {
            let (eights, rest) = block.as_chunks::<LANES>();
            self.add_block(eights.iter().copied(), rest);
        }
    }

    /// Adds little-endian elements that begin at the border of a block; bytes behind the last whole element are not looked at.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        for block in bytes.as_chunks::<4>().0.chunks(BLOCK) {
            let (eights, rest) = block.as_chunks::<LANES>();
            let mut last = [0.0; LANES];
            for (element, bytes) in last.iter_mut().zip(rest) {
                *element = f32::from_le_bytes(*bytes);
            }
            self.add_block(
                eights.iter().map(|eight| eight.map(f32::from_le_bytes)),
                &last[..rest.len()],
            );
        }
    }

    /// Adds another part of the same update; the order of parts does not matter.
    pub fn merge(&mut self, other: &Squares) {
        self.is_finite &= other.is_finite;
        self.add_limbs(&other.limbs);
    }

    /// Whether every element is finite.
    pub fn is_finite(&self) -> bool {
        self.is_finite
    }

    /// The sum of the squares; NaN if an element is not finite.
    pub fn sum(&self) -> f64 {
        if !self.is_finite {
            return f64::NAN;
        }
        let mut sum = 0.0;
        for (position, limb) in self.limbs.iter().enumerate().rev() {
            sum += *limb as f64 * power(64 * position as i32 + LOWEST);
        }
        sum
    }

    /// The L2 norm; NaN if an element is not finite.
    pub fn norm(&self) -> f64 {
        self.sum().sqrt()
    }

    fn add_block(&mut self, eights: impl Iterator<Item = [f32; LANES]>, rest: &[f32]) {
        let mut lanes = [0.0f64; LANES];
        for eight in eights {
            for (lane, element) in lanes.iter_mut().zip(eight) {
                *lane += f64::from(element) * f64::from(element);
            }
        }
        for (lane, element) in lanes.iter_mut().zip(rest) {
            *lane += f64::from(*element) * f64::from(*element);
        }
        let sum: f64 = lanes.iter().fold(0.0, |sum, lane| sum + lane);
        // The square of a finite f32 is far below the largest f64, so only an element that is not finite gives such a sum.
        if !sum.is_finite() {
            self.is_finite = false;
        } else if sum > 0.0 {
            self.add_exactly(sum);
        }
    }

    /// `sum` is a multiple of 2^-298 and below 2^268, as a sum of at most [`BLOCK`] squares is.
    fn add_exactly(&mut self, sum: f64) {
        let bits = sum.to_bits();
        let mantissa = (bits & ((1 << 52) - 1)) | (1 << 52);
        let exponent = ((bits >> 52) & 0x7FF) as i32 - 1023 - 52;
        // A sum below 2^-268 has zeros where the shift to the right would drop bits.
        let (mantissa, shift) = match exponent - LOWEST {
            below @ ..0 => (mantissa >> below.unsigned_abs().min(63), 0),
            shift => (mantissa, shift as usize),
        };
        let wide = u128::from(mantissa) << (shift % 64);
        let mut limbs = [0; LIMBS];
        limbs[shift / 64] = wide as u64;
        limbs[shift / 64 + 1] = (wide >> 64) as u64;
        self.add_limbs(&limbs);
    }

    fn add_limbs(&mut self, other: &[u64; LIMBS]) {
        let mut carry = false;
        for (limb, other) in self.limbs.iter_mut().zip(other) {
            let (sum, first) = limb.overflowing_add(*other);
            let (sum, second) = sum.overflowing_add(u64::from(carry));
            *limb = sum;
            carry = first | second;
        }
        // Only a made-up part can get here; such an update is refused like one with an infinite element.
        if carry {
            self.is_finite = false;
        }
    }
}

/// `2^exponent` for exponents of normal numbers.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
