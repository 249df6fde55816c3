//! The norm of an update that nobody reads as a whole.
//!
//! Each block of [`BLOCK`](super::BLOCK) elements gives one sum of squares in `f64`, and block sums are added in order. A model is cut into
//! slices at the borders of blocks, by the plan and not by who is present, so a slice has the same bits whoever read it. The sum cannot
//! overflow: the squares of the largest model of the largest `f32` add up to less than 2^298.

use super::BLOCK;

/// Eight sums side by side in a block: element `i` goes to sum `i % 8`, and in the end the eight are added in order. One sum alone would wait
/// for each addition.
const LANES: usize = 8;

/// A sum of squares over whole blocks. Not finite exactly if an element is not.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Squares(f64);

impl Squares {
    /// Adds little-endian elements that begin at the border of a block; bytes behind the last whole element are not looked at.
    pub fn add(&mut self, bytes: &[u8]) {
        for block in bytes.as_chunks::<4>().0.chunks(BLOCK) {
            let (eights, rest) = block.as_chunks::<LANES>();
            let mut lanes = [0.0; LANES];
            for eight in eights {
                add_squares(&mut lanes, eight);
            }
            add_squares(&mut lanes, rest);
            self.0 += lanes.iter().sum::<f64>();
        }
    }

    /// The sum.
    pub fn sum(self) -> f64 {
        self.0
    }
}

fn add_squares(lanes: &mut [f64; LANES], elements: &[[u8; 4]]) {
    for (lane, bytes) in lanes.iter_mut().zip(elements) {
        let element = f64::from(f32::from_le_bytes(*bytes));
        *lane += element * element;
    }
}
