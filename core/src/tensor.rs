//! Named tensors on one flat `f32` slice: all that the federation knows of a model.

use serde::{Deserialize, Serialize};

use crate::wire::{CHUNK_ELEMENTS, CONTROL_BYTES_MAX};

/// The most bytes of names and shapes: a layout travels in one message, beside the names of a domain's members.
pub const DESCRIPTION_BYTES_MAX: usize = CONTROL_BYTES_MAX - (256 << 10);

/// The most elements in a model (49 GiB of `f32`): hashes and sizes of a contribution's chunks travel in one message, beside the names of its
/// members.
pub const ELEMENTS_MAX: u64 =
    (DESCRIPTION_BYTES_MAX / (size_of::<Hash>() + size_of::<u32>()) * CHUNK_ELEMENTS) as u64;

/// One tensor's place in the flat slice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// The name, unique within the layout.
    pub name: String,
    /// The extent of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// Where it begins, in elements.
    pub offset: usize,
}

impl Tensor {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether a dimension is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A layout that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Two tensors share a name.
    #[error("tensor {0:?} is declared twice")]
    Repeated(String),
    /// The sizes overflow or pass [`ELEMENTS_MAX`].
    #[error(
        "tensor {name:?} brings the model above {ELEMENTS_MAX} elements, which is all that a message can announce; train fewer parameters"
    )]
    TooLarge {
        /// The first tensor that does not fit.
        name: String,
    },
    /// What describes the tensors does not fit into a message.
    #[error(
        "names and shapes of {tensors} tensors take {bytes} bytes, at most {DESCRIPTION_BYTES_MAX} can travel; give them shorter names, or join small ones"
    )]
    Lengthy {
        /// How many.
        tensors: usize,
        /// What they take.
        bytes: usize,
    },
}

/// Where every tensor of a model lies. Tensors are ordered by name, without gaps, so that equal sets of (name, shape) give equal layouts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    tensors: Vec<Tensor>,
    len: usize,
}

impl Layout {
    /// Lays the tensors out in order of their names.
    ///
    /// # Errors
    /// A repeated name, more than [`ELEMENTS_MAX`] elements, or names and shapes of more than [`DESCRIPTION_BYTES_MAX`] bytes.
    pub fn new<N: Into<String>>(
        tensors: impl IntoIterator<Item = (N, Vec<usize>)>,
    ) -> Result<Self, LayoutError> {
        let mut named: Vec<(String, Vec<usize>)> = tensors
            .into_iter()
            .map(|(name, shape)| (name.into(), shape))
            .collect();
        let bytes = named
            .iter()
            .map(|(name, shape)| described(name, shape))
            .sum();
        if bytes > DESCRIPTION_BYTES_MAX {
            let tensors = named.len();
            return Err(LayoutError::Lengthy { tensors, bytes });
        }
        named.sort();
        if let Some(pair) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(LayoutError::Repeated(pair[0].0.clone()));
        }
        let mut offset: u64 = 0;
        let mut laid = Vec::with_capacity(named.len());
        for (name, shape) in named {
            let elements = shape
                .iter()
                .try_fold(1u64, |product, &extent| product.checked_mul(extent as u64));
            let end = elements
                .and_then(|elements| offset.checked_add(elements))
                .filter(|&end| end <= ELEMENTS_MAX);
            let Some(end) = end else {
                return Err(LayoutError::TooLarge { name });
            };
            laid.push(Tensor {
                name,
                shape,
                offset: offset as usize,
            });
            offset = end;
        }
        Ok(Layout {
            tensors: laid,
            len: offset as usize,
        })
    }

    /// The tensors in order of their names.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The number of elements in the flat slice.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first difference to another side's layout, in words; `None` if they agree.
    pub fn difference(&self, other: &Layout) -> Option<String> {
        for tensor in &self.tensors {
            match other
                .tensors
                .iter()
                .find(|candidate| candidate.name == tensor.name)
            {
                None => {
                    return Some(format!(
                        "tensor {:?} {:?} is here but not there",
                        tensor.name, tensor.shape
                    ));
                }
                Some(theirs) if theirs.shape != tensor.shape => {
                    return Some(format!(
                        "tensor {:?} has shape {:?} here and {:?} there",
                        tensor.name, tensor.shape, theirs.shape
                    ));
                }
                Some(_) => {}
            }
        }
        let extra = other
            .tensors
            .iter()
            .find(|theirs| self.tensors.iter().all(|tensor| tensor.name != theirs.name))?;
        Some(format!(
            "tensor {:?} {:?} is there but not here",
            extra.name, extra.shape
        ))
    }
}

/// The bytes of a tensor's name, shape and place in a message: their lengths and numbers take eight each.
fn described(name: &str, shape: &[usize]) -> usize {
    name.len() + 8 * (shape.len() + 3)
}

/// The elements as they travel: little-endian bytes, without a copy.
pub fn bytes_of(elements: &[f32]) -> &[u8] {
    bytemuck::cast_slice(elements)
}

#[cfg(target_endian = "big")]
compile_error!("tensors travel as they lie in memory, which must be little-endian");

/// A BLAKE3 hash of a model, an update or a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash of the elements as little-endian bytes.
    pub fn of(elements: &[f32]) -> Hash {
        Hash::of_bytes(bytes_of(elements))
    }

    /// The hash of raw bytes.
    pub fn of_bytes(bytes: &[u8]) -> Hash {
        Hash(*blake3::hash(bytes).as_bytes())
    }
}

/// Hexadecimal where people read, 32 bytes elsewhere.
impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return <[u8; 32]>::deserialize(deserializer).map(Hash);
        }
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|()| serde::de::Error::custom("expected 64 hexadecimal digits"))
    }
}

impl std::str::FromStr for Hash {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut hash = [0u8; 32];
        if text.len() != 64 || !text.is_ascii() {
            return Err(());
        }
        for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| ())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| ())?;
        }
        Ok(Hash(hash))
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..6]
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Codec, Lossless};
    use crate::wire::{Contribution, Control, DomainJoin, Encoding, codec};

    #[test]
    fn tensors_are_laid_out_by_name_whatever_the_order_given() {
        let one = Layout::new([("b", vec![2, 3]), ("a", vec![4])]).unwrap();
        let two = Layout::new([("a", vec![4]), ("b", vec![2, 3])]).unwrap();
        assert_eq!(one, two);
        assert_eq!((one.tensors()[1].offset, one.len()), (4, 10));
    }

    #[test]
    fn scalar_and_empty_tensors_have_one_and_no_element() {
        let layout = Layout::new([("scalar", vec![]), ("empty", vec![0, 9])]).unwrap();
        assert_eq!(layout.len(), 1);
    }

    #[test]
    fn a_model_past_the_bound_and_an_overflowing_shape_are_refused() {
        for shape in [vec![ELEMENTS_MAX as usize + 1], vec![usize::MAX, 2]] {
            assert!(matches!(
                Layout::new([("huge", shape)]),
                Err(LayoutError::TooLarge { .. })
            ));
        }
    }

    #[test]
    fn the_largest_model_can_be_contributed() {
        let members = (0..1024).map(|node| format!("{0:x<32}/{node:0>32}", "d"));
        let contribution = Control::Contribute(Contribution {
            round: 1,
            epoch: 1,
            attempt: 0,
            domain: "d".repeat(32).parse().unwrap(),
            members: members.map(|name| name.parse().unwrap()).collect(),
            weight: 1.0,
            exponent: 0,
            chunks: vec![Hash::default(); (ELEMENTS_MAX as usize).div_ceil(CHUNK_ELEMENTS)],
            encoding: Encoding {
                codec: Codec::Fp16,
                lossless: Lossless::None,
                sizes: vec![u32::MAX; (ELEMENTS_MAX as usize).div_ceil(CHUNK_ELEMENTS)],
            },
        });
        codec::encode(&contribution).unwrap();
        assert!(Layout::new([("all", vec![ELEMENTS_MAX as usize])]).is_ok());
    }

    #[test]
    fn names_that_do_not_fit_into_a_message_are_refused_and_the_longest_that_do_travel() {
        let name = "x".repeat(DESCRIPTION_BYTES_MAX - 5 * 8);
        let layout = Layout::new([(name.clone(), vec![1, 1])]).unwrap();
        let members = (0..1024).map(|node| format!("{0:x<32}/{node:0>32}", "d"));
        let join = Control::DomainJoin(DomainJoin {
            layout,
            round: 0,
            hash: Hash::default(),
            members: members.map(|name| name.parse().unwrap()).collect(),
        });
        codec::encode(&join).unwrap();
        assert!(matches!(
            Layout::new([(name + "x", vec![1, 1])]),
            Err(LayoutError::Lengthy { tensors: 1, .. })
        ));
    }

    #[test]
    fn a_difference_names_the_tensor_and_both_sides() {
        let ours = Layout::new([("w", vec![64, 10])]).unwrap();
        let theirs = Layout::new([("w", vec![10, 64])]).unwrap();
        let said = ours.difference(&theirs).unwrap();
        assert!(
            said.contains("\"w\"") && said.contains("[64, 10]") && said.contains("[10, 64]"),
            "{said}"
        );
        assert_eq!(ours.difference(&ours), None);
    }
}
