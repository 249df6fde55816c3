//! `topk`: where the largest magnitudes lie, and their values.
//!
//! A chunk is how many elements it names (4 bytes), the length of their positions (4), the width of the Rice code (1), the positions, the
//! values. Numbers are little-endian. Elements that are not named are zero.

use super::halves;
use super::rice::{self, WIDTH_MAX};
use super::select;
use super::{CodecError, Compressor, Decoder, Encoded, Kernels, MILLION};

const HEADER_BYTES: usize = 9;

pub(super) struct TopK {
    pub(super) share: u32,
    pub(super) halves: bool,
}

impl TopK {
    /// How many elements of a vector are sent.
    fn count(&self, elements: usize) -> usize {
        let count = elements as u128 * u128::from(self.share) / u128::from(MILLION);
        (count as usize).max(1).min(elements)
    }

    fn value_bytes(&self) -> usize {
        if self.halves { 2 } else { 4 }
    }
}

impl Compressor for TopK {
    fn encode(&self, kernels: Kernels, values: &[f32], encoded: &mut Encoded) {
        encoded.clear();
        let (mut chosen, mut bits) = (Vec::new(), Vec::new());
        let count = self.count(values.len());
        select::largest(kernels, values, count, |positions, chunk| {
            let width = rice::width(positions, chunk.len());
            let out = encoded.buffer();
            let from = out.len();
            out.extend((positions.len() as u32).to_le_bytes());
            out.extend([0; 4]);
            out.push(width as u8);
            rice::write(positions, width, out);
            let index_bytes = (out.len() - from - HEADER_BYTES) as u32;
            out[from + 4..from + 8].copy_from_slice(&index_bytes.to_le_bytes());
            // A zero is sent without its sign, as elements that are not named have none.
            let values = positions.iter().map(|at| chunk[*at as usize] + 0.0);
            if self.halves {
                chosen.clear();
                chosen.extend(values);
                bits.resize(chosen.len(), 0);
                kernels.to_f16(&chosen, &mut bits);
                halves::write(&bits, out);
            } else {
                out.extend(values.flat_map(f32::to_le_bytes));
            }
            encoded.end_chunk();
        });
    }

    fn bytes_max(&self, elements: usize) -> usize {
        // A gap costs at most two bits an element it passes and its remainder, and a chunk may hold all that was chosen.
        let positions = elements.div_ceil(4).saturating_add(elements.div_ceil(8));
        elements
            .saturating_mul(self.value_bytes())
            .saturating_add(positions)
            .saturating_add(HEADER_BYTES)
    }

    fn decoder<'a>(
        &self,
        bytes: &'a [u8],
        elements: usize,
    ) -> Result<Box<dyn Decoder + 'a>, CodecError> {
        let too_short = |expected| CodecError::Length {
            codec: super::Codec::TopK {
                share: self.share,
                halves: self.halves,
            },
            elements,
            expected,
            found: bytes.len(),
        };
        let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
            return Err(too_short(HEADER_BYTES));
        };
        let word = |at: usize| {
            let word = header[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(word) as usize
        };
        let (count, index_bytes, width) = (word(0), word(4), u32::from(header[8]));
        if count > elements {
            return Err(CodecError::Count { elements, count });
        }
        let expected = index_bytes.saturating_add(count * self.value_bytes());
        if rest.len() != expected {
            return Err(too_short(expected.saturating_add(HEADER_BYTES)));
        }
        if width > WIDTH_MAX {
            let what = "have remainders wider than a chunk is long";
            return Err(CodecError::Positions { elements, what });
        }
        let (positions, values) = rest.split_at(index_bytes);
        let mut reader = Reader {
            elements,
            positions: rice::Reader::new(positions, width),
            values,
            value_bytes: self.value_bytes(),
            left: count,
            pending: None,
            at: 0,
        };
        reader.advance()?;
        Ok(Box::new(reader))
    }
}

struct Reader<'a> {
    elements: usize,
    positions: rice::Reader<'a>,
    values: &'a [u8],
    value_bytes: usize,
    /// Positions that were not read yet.
    left: usize,
    /// The position that was read last and whose block was not asked for yet.
    pending: Option<usize>,
    /// Elements handed out.
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, what: &'static str) -> CodecError {
        CodecError::Positions {
            elements: self.elements,
            what,
        }
    }

    fn advance(&mut self) -> Result<(), CodecError> {
        self.pending = None;
        if self.left > 0 {
            self.left -= 1;
            let next = self.positions.next(self.elements);
            self.pending = Some(next.map_err(|what| self.wrong(what))? as usize);
        }
        Ok(())
    }

    fn value(&mut self) -> f32 {
        let (head, rest) = self.values.split_at(self.value_bytes);
        self.values = rest;
        match *head {
            [low, high] => half::f16::from_le_bytes([low, high]).to_f32(),
            _ => f32::from_le_bytes(head.try_into().expect("two bytes or four")),
        }
    }
}

impl Decoder for Reader<'_> {
    fn next(&mut self, _: Kernels, block: &mut [f32]) -> Result<(), CodecError> {
        block.fill(0.0);
        let end = self.at + block.len();
        while let Some(position) = self.pending.filter(|position| *position < end) {
            block[position - self.at] = self.value();
            self.advance()?;
        }
        self.at = end;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), CodecError> {
        if self.positions.is_at_end() {
            Ok(())
        } else {
            Err(self.wrong("do not end with their last byte"))
        }
    }
}
