//! What an encoder makes: chunks one behind the other in one buffer.

/// An encoded vector. Its buffer is kept from one use to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Encoded {
    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether nothing was encoded.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The chunks in order.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let chunk = &self.bytes[start..*end];
            start = *end;
            chunk
        })
    }

    /// Takes the bytes out; what is left is empty.
    pub fn take(&mut self) -> Vec<u8> {
        self.ends.clear();
        std::mem::take(&mut self.bytes)
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The chunk that is being written ends at the end of `bytes`.
    pub(super) fn end_chunk(&mut self) {
        self.ends.push(self.bytes.len());
    }

    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}
