//! `int8`: for each 1,024 elements their largest magnitude over 127, then one signed byte an element.

use super::raw::fixed;
use super::{Codec, CodecError, Compressor, Decoder, Encoded, Kernels};
use crate::fold::BLOCK;
use crate::wire::CHUNK_ELEMENTS;

/// Elements with one scale: an outlier spoils no more of its neighbours, and a scale costs four tenths of a percent.
const GROUP: usize = 1024;

const SCALE_BYTES: usize = size_of::<f32>();

pub(super) struct Int8;

fn len(elements: usize) -> usize {
    let scales = elements.div_ceil(GROUP).saturating_mul(SCALE_BYTES);
    elements.saturating_add(scales)
}

impl Compressor for Int8 {
    fn encode(&self, kernels: Kernels, values: &[f32], encoded: &mut Encoded) {
        encoded.clear();
        encoded.buffer().reserve(len(values.len()) + SCALE_BYTES);
        for chunk in values.chunks(CHUNK_ELEMENTS) {
            for group in chunk.chunks(GROUP) {
                let (scale, factor) = scale(f32::from_bits(kernels.largest(group)));
                let out = encoded.buffer();
                out.extend(scale.to_le_bytes());
                let from = out.len();
                out.resize(from + group.len(), 0);
                kernels.quantize(group, factor, &mut out[from..]);
            }
            encoded.end_chunk();
        }
    }

    fn bytes_max(&self, elements: usize) -> usize {
        len(elements)
    }

    fn decoder<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
    ) -> Result<Box<dyn Decoder + 'a>, CodecError> {
        fixed(Codec::Int8, bytes, elements, len(elements))?;
        Ok(Box::new(Reader { left: bytes }))
    }
}

/// What a byte stands for, and what an element is multiplied by. Numbers too small to be divided are nothing; of what is no number the
/// scale tells.
fn scale(largest: f32) -> (f32, f32) {
    let mut scale = largest / 127.0;
    let factor = 127.0 / largest;
    if scale == 0.0 || factor.is_infinite() {
        return (0.0, 0.0);
    }
    if !largest.is_finite() {
        return (f32::NAN, 0.0);
    }
    // What is finite stays so: rounded up, 127 times the scale of the largest numbers is infinite.
    if (scale * 127.0).is_infinite() {
        scale = scale.next_down();
    }
    (scale, factor)
}

struct Reader<'a> {
    left: &'a [u8],
}

impl Decoder for Reader<'_> {
    fn next(&mut self, kernels: Kernels, block: &mut [f32]) -> Result<(), CodecError> {
        const { assert!(BLOCK.is_multiple_of(GROUP), "blocks begin with a scale") };
        for group in block.chunks_mut(GROUP) {
            let (scale, rest) = self.left.split_at(SCALE_BYTES);
            let (bytes, rest) = rest.split_at(group.len());
            self.left = rest;
            let scale = f32::from_le_bytes(scale.try_into().expect("four bytes"));
            kernels.widen(bytes, scale, group);
        }
        Ok(())
    }
}
