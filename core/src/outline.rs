//! The outline of a model: one value for each of its chunks, which prove themselves by the model's own hash.
//!
//! BLAKE3 is a tree (O'Connor, Aumasson, Neves, Wilcox-O'Hearn: "BLAKE3: one function, fast everywhere", 2020, section 2.1), and a chunk of
//! 1 MiB is a whole subtree of it. The chaining values of these subtrees, merged pair by pair, give the hash of the model. So whoever knows that
//! hash can check an outline that anybody sent before it has a byte of the model, and then each chunk by itself; nothing else need be announced.

use blake3::hazmat::{self, HasherExt, Mode};

use crate::tensor::{Hash, bytes_of};
use crate::wire::CHUNK_ELEMENTS;

/// Bytes of a chunk; the last of a model may be short. A power of two of BLAKE3's own 1 KiB chunks, so that it is a subtree.
pub const CHUNK_BYTES: usize = CHUNK_ELEMENTS * 4;

/// Bytes of a chunk's value.
const VALUE_BYTES: usize = size_of::<Hash>();

/// How many chunks a model of so many elements has.
pub fn chunks(elements: usize) -> usize {
    elements.div_ceil(CHUNK_ELEMENTS)
}

/// The bytes of one chunk of a model of so many elements; zero if there is no such chunk.
pub fn chunk_bytes(elements: usize, index: usize) -> usize {
    (elements * 4)
        .saturating_sub(index.saturating_mul(CHUNK_BYTES))
        .min(CHUNK_BYTES)
}

/// What was sent is no outline of the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutlineError {
    /// As many values as the model has chunks are needed.
    #[error("an outline of {found} bytes, expected {expected}")]
    Length {
        /// Bytes.
        found: usize,
        /// Bytes.
        expected: usize,
    },
    /// It is of something else.
    #[error("an outline of {found:?}, expected one of {expected:?}")]
    OtherModel {
        /// The hash that it stands for.
        found: Hash,
        /// The model's.
        expected: Hash,
    },
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    values: Vec<Hash>,
    hash: Hash,
}

impl Outline {
    /// Of a model that is here.
    pub fn of(elements: &[f32]) -> Self {
        let mut outliner = Outliner::new(elements.len());
        outliner.push(bytes_of(elements));
        outliner.finish()
    }

    /// From what a peer sent, if it is of the model of that hash.
    ///
    /// # Errors
    /// It is not.
    pub fn read(bytes: &[u8], elements: usize, expected: Hash) -> Result<Self, OutlineError> {
        let right = chunks(elements) * VALUE_BYTES;
        if bytes.len() != right {
            return Err(OutlineError::Length {
                found: bytes.len(),
                expected: right,
            });
        }
        let values = bytes.as_chunks::<VALUE_BYTES>().0.iter();
        let outline = Outline::new(values.map(|value| Hash(*value)).collect());
        if outline.hash != expected {
            return Err(OutlineError::OtherModel {
                found: outline.hash,
                expected,
            });
        }
        Ok(outline)
    }

    fn new(values: Vec<Hash>) -> Self {
        let hash = match &values[..] {
            [] => Hash::of_bytes(&[]),
            // The only chunk is the root, and its value the hash itself.
            [only] => *only,
            values => {
                let (left, right) = values.split_at(left_of(values.len()));
                let (left, right) = (merged(left), merged(right));
                Hash(*hazmat::merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
            }
        };
        Outline { values, hash }
    }

    /// The hash of the whole model.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The values of its chunks, in order.
    pub fn values(&self) -> &[Hash] {
        &self.values
    }

    /// As it travels.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|value| value.0).collect()
    }
}

/// The values under a node of the tree, merged.
fn merged(values: &[Hash]) -> hazmat::ChainingValue {
    match values {
        [only] => only.0,
        values => {
            let (left, right) = values.split_at(left_of(values.len()));
            hazmat::merge_subtrees_non_root(&merged(left), &merged(right), Mode::Hash)
        }
    }
}

/// How many of so many chunks, more than one, are on a node's left: the largest power of two below.
fn left_of(chunks: usize) -> usize {
    chunks.next_power_of_two() / 2
}

/// The value of one chunk, from its bytes in pieces: no more than [`chunk_bytes`] of them.
#[derive(Debug)]
pub struct ChunkValue {
    hasher: blake3::Hasher,
    is_root: bool,
}

impl ChunkValue {
    /// Of a model of so many elements.
    pub fn new(elements: usize, index: usize) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(index as u64 * CHUNK_BYTES as u64);
        ChunkValue {
            hasher,
            is_root: index == 0 && chunks(elements) == 1,
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Its value; zero if nothing came, which is no chunk's.
    pub fn finish(&self) -> Hash {
        match self.is_root {
            true => Hash(*self.hasher.finalize().as_bytes()),
            false if self.hasher.count() == 0 => Hash::default(),
            false => Hash(self.hasher.finalize_non_root()),
        }
    }
}

/// Makes an outline of bytes that come in order.
#[derive(Debug)]
pub struct Outliner {
    elements: usize,
    values: Vec<Hash>,
    open: Option<(ChunkValue, usize)>,
}

impl Outliner {
    /// For a model of so many elements.
    pub fn new(elements: usize) -> Self {
        Outliner {
            elements,
            values: Vec::with_capacity(chunks(elements)),
            open: None,
        }
    }

    /// Takes the next piece; what goes beyond the model is passed over.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.values.len() < chunks(self.elements) {
            let index = self.values.len();
            let (value, left) = self.open.get_or_insert_with(|| {
                let left = chunk_bytes(self.elements, index);
                (ChunkValue::new(self.elements, index), left)
            });
            let piece;
            (piece, bytes) = bytes.split_at(bytes.len().min(*left));
            value.push(piece);
            *left -= piece.len();
            if *left == 0 {
                let value = value.finish();
                self.values.push(value);
                self.open = None;
            }
        }
    }

    /// The values of the chunks that are complete.
    pub fn values(&self) -> &[Hash] {
        &self.values
    }

    /// The outline of what was pushed: of the model, if that was all of it.
    pub fn finish(mut self) -> Outline {
        if let Some((value, _)) = self.open.take() {
            self.values.push(value.finish());
        }
        Outline::new(self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn model(elements: usize) -> Vec<f32> {
        let mut rng = Rng::new(elements as u64);
        (0..elements).map(|_| rng.next_f64() as f32).collect()
    }

    /// Models of every shape of tree up to nine chunks, with a last chunk that is full, short, or one element.
    #[test]
    fn an_outline_stands_for_the_hash_of_the_whole() {
        let full = (0..=9).map(|chunks| chunks * CHUNK_ELEMENTS);
        let sizes = full.flat_map(|full| [full, full + 1, full + CHUNK_ELEMENTS / 3]);
        for elements in sizes {
            let model = model(elements);
            let outline = Outline::of(&model);
            assert_eq!(outline.hash(), Hash::of(&model), "{elements} elements");
            assert_eq!(outline.values().len(), chunks(elements));
            let sent = outline.to_bytes();
            let read = Outline::read(&sent, elements, Hash::of(&model));
            assert_eq!(read.as_ref(), Ok(&outline));
        }
    }

    #[test]
    fn each_chunk_is_known_by_its_value_whatever_its_pieces() {
        let model = model(2 * CHUNK_ELEMENTS + 5000);
        let bytes = bytes_of(&model);
        let mut outliner = Outliner::new(model.len());
        bytes.chunks(77_777).for_each(|piece| outliner.push(piece));
        let outline = outliner.finish();
        assert_eq!(outline, Outline::of(&model));
        let mut lengths = 0;
        for (index, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            assert_eq!(chunk.len(), chunk_bytes(model.len(), index));
            lengths += chunk.len();
            let mut value = ChunkValue::new(model.len(), index);
            chunk.chunks(50_001).for_each(|piece| value.push(piece));
            assert_eq!(value.finish(), outline.values()[index]);
            // At another place it is another chunk.
            let mut value = ChunkValue::new(model.len(), index + 1);
            value.push(chunk);
            assert_ne!(value.finish(), outline.values()[index]);
        }
        assert_eq!((lengths, chunk_bytes(model.len(), 3)), (bytes.len(), 0));
        assert_eq!(chunk_bytes(model.len(), usize::MAX), 0);
    }

    #[test]
    fn what_is_complete_of_a_model_that_was_cut_short_is_known() {
        let model = model(3 * CHUNK_ELEMENTS);
        let mut outliner = Outliner::new(model.len());
        outliner.push(&bytes_of(&model)[..2 * CHUNK_BYTES + 5]);
        assert_eq!(outliner.values(), &Outline::of(&model).values()[..2]);
        assert_ne!(outliner.finish().hash(), Hash::of(&model));
    }

    #[test]
    fn any_other_outline_is_refused() {
        let model = model(3 * CHUNK_ELEMENTS);
        let right = Hash::of(&model);
        let sent = Outline::of(&model).to_bytes();
        for at in 0..sent.len() {
            let mut changed = sent.clone();
            changed[at] ^= 1;
            let read = Outline::read(&changed, model.len(), right);
            assert!(matches!(read, Err(OutlineError::OtherModel { .. })));
        }
        for wrong in [
            &sent[1..],
            &sent[32..],
            &[sent.clone(), sent.clone()].concat(),
        ] {
            let read = Outline::read(wrong, model.len(), right);
            assert!(matches!(read, Err(OutlineError::Length { .. })));
        }
        // The values in another order, and those of a tree of another height.
        let mut swapped = sent.clone();
        swapped.rotate_left(32);
        assert!(Outline::read(&swapped, model.len(), right).is_err());
        let node = merged(&Outline::of(&model).values()[..2]);
        let short = [&node[..], &sent[64..]].concat();
        assert!(Outline::read(&short, model.len(), right).is_err());
    }
}
