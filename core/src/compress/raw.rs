//! `none`: the elements as they are, four little-endian bytes each.

use super::{Codec, CodecError, Compressor, Decoder, Encoded, Kernels};
use crate::wire::CHUNK_ELEMENTS;

pub(super) struct Raw;

impl Compressor for Raw {
    fn encode(&self, _: Kernels, values: &[f32], encoded: &mut Encoded) {
        encoded.clear();
        encoded.buffer().reserve(values.len() * 4);
        for chunk in values.chunks(CHUNK_ELEMENTS) {
            let bytes = chunk.iter().flat_map(|value| value.to_le_bytes());
            encoded.buffer().extend(bytes);
            encoded.end_chunk();
        }
    }

    fn bytes_max(&self, elements: usize) -> usize {
        elements.saturating_mul(4)
    }

    fn decoder<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
    ) -> Result<Box<dyn Decoder + 'a>, CodecError> {
        fixed(Codec::None, bytes, elements, elements.saturating_mul(4))?;
        Ok(Box::new(Reader(bytes.as_chunks().0)))
    }
}

/// Refuses bytes of another length.
pub(super) fn fixed(
    codec: Codec,
    bytes: &[u8],
    elements: usize,
    expected: usize,
) -> Result<(), CodecError> {
    let found = bytes.len();
    if found == expected {
        return Ok(());
    }
    Err(CodecError::Length {
        codec,
        elements,
        expected,
        found,
    })
}

struct Reader<'a>(&'a [[u8; 4]]);

impl Decoder for Reader<'_> {
    fn next(&mut self, _: Kernels, block: &mut [f32]) -> Result<(), CodecError> {
        let (head, rest) = self.0.split_at(block.len());
        self.0 = rest;
        for (out, bytes) in block.iter_mut().zip(head) {
            *out = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}
