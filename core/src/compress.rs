//! Codecs: how a vector becomes fewer bytes, and what must be remembered of what was lost.
//!
//! A vector is encoded as a whole, because top-k chooses over all of it, and into chunks of [`CHUNK_ELEMENTS`](crate::wire::CHUNK_ELEMENTS)
//! elements that decode each on its own: a receiver verifies and folds one chunk after another, and holds no more than one.
//!
//! A decoder hands out blocks of [`BLOCK`] elements, so what was decoded is folded while it lies in the nearest cache. Every kernel
//! works element by element, without fused multiplication: the processor's wide path and the portable one give the same bits.
//!
//! Behind a codec its chunks may be packed without loss: [`Coding`]. What a codec loses comes back in the next round: [`feedback`].

mod chunk;
mod coding;
pub mod feedback;
mod halves;
mod int8;
mod kernels;
mod lossless;
pub mod planner;
mod raw;
mod rice;
mod select;
mod sparse;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fold::{self, BLOCK, FoldError};

pub use chunk::Encoded;
pub use coding::Coding;
pub use kernels::Kernels;
pub use lossless::{Lossless, Packer, UnpackError};

/// Parts in a million: the unit of [`Codec::TopK`]'s share.
pub const MILLION: u32 = 1_000_000;

/// A codec with its settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// Plain little-endian `f32`.
    #[default]
    None,
    /// IEEE 754 half precision, nearest even. A number beyond 65,504 becomes 65,504: the rest is fed back.
    Fp16,
    /// The upper half of an `f32`, nearest even.
    Bf16,
    /// Eight bits for an element, and the largest magnitude for each 1,024 of them.
    Int8,
    /// The largest magnitudes only, exactly so many; of equal ones the first.
    TopK {
        /// How many elements are sent, in a million; at least one is.
        share: u32,
        /// Whether their values travel in half precision.
        halves: bool,
    },
}

/// Bytes that are no chunk of their codec. Lengths and counts are checked before anything is allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Too few or too many bytes.
    #[error(
        "a {codec} chunk of {elements} elements has {found} bytes where {expected} are expected: refuse it"
    )]
    Length {
        /// Which codec.
        codec: Codec,
        /// Elements of the chunk.
        elements: usize,
        /// Bytes expected.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// A sparse chunk names more elements than there are.
    #[error("a sparse chunk of {elements} elements names {count} of them: refuse it")]
    Count {
        /// Elements of the chunk.
        elements: usize,
        /// Elements named.
        count: usize,
    },
    /// The positions of a sparse chunk are no such list.
    #[error("the positions of a sparse chunk of {elements} elements {what}: refuse it")]
    Positions {
        /// Elements of the chunk.
        elements: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A packed chunk cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
}

/// Turns vectors into bytes and back. One file each, and one line in [`Codec::compressor`]; `laws` runs on all of them.
pub trait Compressor: Send + Sync {
    /// Encodes `values` into `encoded`, which is emptied first and keeps its memory.
    fn encode(&self, kernels: Kernels, values: &[f32], encoded: &mut Encoded);

    /// The most bytes that a chunk of so many elements takes: a receiver refuses more before it reads them.
    fn bytes_max(&self, elements: usize) -> usize;

    /// Undoes the lossless stage of a chunk of so many elements, into `room` if there is one: what [`Compressor::decoder`] reads.
    ///
    /// # Errors
    /// Bytes that no encoder makes; more than the chunk can have is never allocated.
    fn unpack<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], CodecError> {
        let _ = (elements, room);
        Ok(bytes)
    }

    /// Reads a chunk of so many elements, as [`Compressor::unpack`] gives it.
    ///
    /// # Errors
    /// Bytes that no encoder makes.
    fn decoder<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
    ) -> Result<Box<dyn Decoder + 'a>, CodecError>;
}

/// Hands out a chunk's elements in order.
pub trait Decoder {
    /// Fills `block` with the next elements; no more than the chunk has left may be asked for.
    ///
    /// # Errors
    /// Bytes that no encoder makes.
    fn next(&mut self, kernels: Kernels, block: &mut [f32]) -> Result<(), CodecError>;

    /// Whether every byte was used: called after the last block.
    ///
    /// # Errors
    /// Bytes that are left over.
    fn finish(&mut self) -> Result<(), CodecError> {
        Ok(())
    }
}

impl Codec {
    /// What does it.
    pub fn compressor(self) -> Box<dyn Compressor> {
        match self {
            Codec::None => Box::new(raw::Raw),
            Codec::Fp16 => Box::new(halves::Halves::FP16),
            Codec::Bf16 => Box::new(halves::Halves::BF16),
            Codec::Int8 => Box::new(int8::Int8),
            Codec::TopK { share, halves } => Box::new(sparse::TopK { share, halves }),
        }
    }

    /// Whether nothing is lost.
    pub fn is_lossless(self) -> bool {
        self == Codec::None
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::None => "none",
            Codec::Fp16 => "fp16",
            Codec::Bf16 => "bf16",
            Codec::Int8 => "int8",
            Codec::TopK { halves: false, .. } => "topk",
            Codec::TopK { halves: true, .. } => "topk+fp16",
        })
    }
}

/// The names of the topology file; the share of top-k is one in a hundred until it is said otherwise.
impl FromStr for Codec {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let top = |halves| Codec::TopK {
            share: MILLION / 100,
            halves,
        };
        Ok(match name {
            "none" => Codec::None,
            "fp16" => Codec::Fp16,
            "bf16" => Codec::Bf16,
            "int8" => Codec::Int8,
            "topk" => top(false),
            "topk+fp16" => top(true),
            _ => {
                return Err(format!(
                    "{name:?} is no codec: expected none, fp16, bf16, int8, topk or topk+fp16"
                ));
            }
        })
    }
}

/// Decodes a whole chunk into `out`.
///
/// # Errors
/// Bytes that no encoder makes; `out` then holds anything.
pub fn decode(
    compressor: &dyn Compressor,
    kernels: Kernels,
    bytes: &[u8],
    out: &mut [f32],
) -> Result<(), CodecError> {
    let mut room = Vec::new();
    let bytes = compressor.unpack(bytes, out.len(), &mut room)?;
    let mut decoder = compressor.decoder(bytes, out.len())?;
    for block in out.chunks_mut(BLOCK) {
        decoder.next(kernels, block)?;
    }
    decoder.finish()
}

/// Why a chunk could not be folded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// It cannot be decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// It cannot be folded.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// It decodes to something that is no number.
    #[error("element {element} of a chunk decodes to {value}: refuse the update")]
    NotFinite {
        /// Which.
        element: usize,
        /// To what.
        value: f32,
    },
}

/// Folds one chunk into the accumulator: `accumulator = factor * decoded` for the first term, `+=` for those after it; the same bits as
/// [`decode`] followed by [`fold::scale_into`] or [`fold::add_scaled`].
///
/// # Errors
/// Bytes that no encoder makes, or that decode to something not finite; the accumulator then holds anything.
pub fn fold_chunk(
    compressor: &dyn Compressor,
    kernels: Kernels,
    bytes: &[u8],
    factor: f32,
    is_first: bool,
    accumulator: &mut [f32],
) -> Result<(), ChunkError> {
    let mut room = Vec::new();
    let bytes = compressor.unpack(bytes, accumulator.len(), &mut room)?;
    let mut decoder = compressor.decoder(bytes, accumulator.len())?;
    let mut block = [0.0; BLOCK];
    for (index, target) in accumulator.chunks_mut(BLOCK).enumerate() {
        let block = &mut block[..target.len()];
        decoder.next(kernels, block)?;
        if let Some(at) = kernels.first_not_finite(block) {
            return Err(ChunkError::NotFinite {
                element: index * BLOCK + at,
                value: block[at],
            });
        }
        if is_first {
            fold::scale_into(target, factor, block);
        } else {
            fold::add_scaled(target, factor, block);
        }
    }
    Ok(decoder.finish()?)
}

#[cfg(test)]
mod laws;
