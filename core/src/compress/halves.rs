//! `fp16` and `bf16`: two bytes an element, rounded to the nearest, ties to even.

use super::raw::fixed;
use super::{Codec, CodecError, Compressor, Decoder, Encoded, Kernels};
use crate::fold::BLOCK;
use crate::wire::CHUNK_ELEMENTS;

/// One of the two formats.
pub(super) struct Halves {
    codec: Codec,
    narrow: fn(Kernels, &[f32], &mut [u16]),
    widen: fn(Kernels, &[u16], &mut [f32]),
}

impl Halves {
    pub(super) const FP16: Halves = Halves {
        codec: Codec::Fp16,
        narrow: Kernels::to_f16,
        widen: Kernels::widen_f16,
    };

    pub(super) const BF16: Halves = Halves {
        codec: Codec::Bf16,
        narrow: Kernels::to_bf16,
        widen: Kernels::widen_bf16,
    };
}

impl Compressor for Halves {
    fn encode(&self, kernels: Kernels, values: &[f32], encoded: &mut Encoded) {
        encode(values, encoded, |block, bits| {
            (self.narrow)(kernels, block, bits)
        });
    }

    fn bytes_max(&self, elements: usize) -> usize {
        elements.saturating_mul(2)
    }

    fn decoder<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
    ) -> Result<Box<dyn Decoder + 'a>, CodecError> {
        fixed(self.codec, bytes, elements, self.bytes_max(elements))?;
        Ok(Box::new(Reader {
            left: bytes.as_chunks().0,
            widen: self.widen,
        }))
    }
}

fn encode(values: &[f32], encoded: &mut Encoded, narrow: impl Fn(&[f32], &mut [u16])) {
    encoded.clear();
    encoded.buffer().reserve(values.len() * 2);
    let mut bits = [0; BLOCK];
    for chunk in values.chunks(CHUNK_ELEMENTS) {
        for block in chunk.chunks(BLOCK) {
            let bits = &mut bits[..block.len()];
            narrow(block, bits);
            write(bits, encoded.buffer());
        }
        encoded.end_chunk();
    }
}

/// Appends halves in little-endian order.
pub(super) fn write(bits: &[u16], out: &mut Vec<u8>) {
    let from = out.len();
    out.resize(from + bits.len() * 2, 0);
    let pairs = out[from..].as_chunks_mut::<2>().0;
    for (pair, bits) in pairs.iter_mut().zip(bits) {
        *pair = bits.to_le_bytes();
    }
}

/// Reads halves in little-endian order.
pub(super) fn read(pairs: &[[u8; 2]], bits: &mut [u16]) {
    for (bits, pair) in bits.iter_mut().zip(pairs) {
        *bits = u16::from_le_bytes(*pair);
    }
}

struct Reader<'a> {
    left: &'a [[u8; 2]],
    widen: fn(Kernels, &[u16], &mut [f32]),
}

impl Decoder for Reader<'_> {
    fn next(&mut self, kernels: Kernels, block: &mut [f32]) -> Result<(), CodecError> {
        let mut bits = [0; BLOCK];
        for block in block.chunks_mut(BLOCK) {
            let (head, rest) = self.left.split_at(block.len());
            self.left = rest;
            let bits = &mut bits[..block.len()];
            read(head, bits);
            (self.widen)(kernels, bits, block);
        }
        Ok(())
    }
}
