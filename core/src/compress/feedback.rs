//! Error feedback (Seide et al., 2014; Karimireddy et al., 2019): what a codec lost in one round is added to the next one's vector.
//!
//! A domain's sum travels as `s = S 2^-k`, and `k` may differ from round to round: what is remembered is kept in the units of `S`, and the
//! steps between the two are exact. A retry sends the bytes that were made; another attempt begins from the same residual.

use super::{Compressor, Encoded, Kernels};
use crate::fold::{self, BLOCK, FoldError};
use crate::wire::CHUNK_ELEMENTS;

/// `sum += residual * 2^-exponent`: what is to be encoded.
///
/// # Errors
/// An exponent outside -126..=126; the sum is then untouched.
///
/// # Panics
/// If the lengths differ.
pub fn apply(
    kernels: Kernels,
    sum: &mut [f32],
    residual: &[f32],
    exponent: i32,
) -> Result<(), FoldError> {
    assert_eq!(sum.len(), residual.len(), "one residual an element");
    let factor = fold::power(-exponent)?;
    kernels.add(sum, residual, factor);
    Ok(())
}

/// What the encoding of `sum` lost, in the units of `S`, into `pending`. It becomes the residual when the round that lists the
/// contribution is committed, and is forgotten otherwise.
///
/// # Errors
/// An exponent outside -126..=126; `pending` is then untouched.
///
/// # Panics
/// If the lengths differ, or `encoded` was not made from `sum` by `compressor`.
pub fn remember(
    kernels: Kernels,
    compressor: &dyn Compressor,
    sum: &[f32],
    encoded: &Encoded,
    exponent: i32,
    pending: &mut [f32],
) -> Result<(), FoldError> {
    assert_eq!(sum.len(), pending.len(), "one residual an element");
    let factor = fold::power(exponent)?;
    let (mut decoded, mut room) = ([0.0; BLOCK], Vec::new());
    let chunks = sum.chunks(CHUNK_ELEMENTS);
    let pending = pending.chunks_mut(CHUNK_ELEMENTS);
    for ((sum, pending), bytes) in chunks.zip(pending).zip(encoded.chunks()) {
        let ours = "our own encoding can be read";
        let bytes = compressor.unpack(bytes, sum.len(), &mut room).expect(ours);
        let mut decoder = compressor.decoder(bytes, sum.len()).expect(ours);
        for (sum, pending) in sum.chunks(BLOCK).zip(pending.chunks_mut(BLOCK)) {
            let decoded = &mut decoded[..sum.len()];
            decoder.next(kernels, decoded).expect(ours);
            kernels.rest(sum, decoded, factor, pending);
        }
    }
    Ok(())
}
