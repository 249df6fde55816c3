//! Fixed-width headers: of a frame, of an object on its way, of a region.

use super::{CONTROL_BYTES_MAX, DecodeError, REGION_HEADER_BYTES};
use crate::ids::{Attempt, Epoch, Round};

/// The header of a control frame: length of the message, its sequence number (from 1; 0: nothing but an acknowledgement), and the highest
/// sequence number received from the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the message behind the header.
    pub len: u32,
    /// Sequence number.
    pub sequence: u64,
    /// Acknowledgement.
    pub acknowledged: u64,
}

impl FrameHeader {
    /// Its size on the wire.
    pub const BYTES: usize = 20;

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes
    }

    /// Reads and checks a header.
    ///
    /// # Errors
    /// The message would be longer than [`CONTROL_BYTES_MAX`].
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, DecodeError> {
        let len = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        if len as usize > CONTROL_BYTES_MAX {
            return Err(DecodeError::TooLong {
                found: len as usize,
                limit: CONTROL_BYTES_MAX,
            });
        }
        Ok(FrameHeader {
            len,
            sequence: u64::from_le_bytes(bytes[4..12].try_into().expect("eight bytes")),
            acknowledged: u64::from_le_bytes(bytes[12..].try_into().expect("eight bytes")),
        })
    }
}

/// The header of each stream of a fetched object: the fetcher's tag, how many bytes the object has, and which of its streams this is.
///
/// An object of several streams goes over them in turns of [`STRIPE_BYTES`]: the first piece on the first, the next on the second, and after the last
/// stream the first again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectHeader {
    /// As in the fetch.
    pub tag: u64,
    /// Raw bytes of the object.
    pub len: u64,
    /// Counted from 0.
    pub stripe: u8,
    /// How many streams the object has, 1 to [`STRIPES_MAX`].
    pub stripes: u8,
}

/// The most streams of an object.
pub const STRIPES_MAX: u8 = 8;

/// Bytes of an object on one of its streams before the next one has its turn.
pub const STRIPE_BYTES: usize = 64 << 10;

impl ObjectHeader {
    /// Its size on the wire.
    pub const BYTES: usize = 18;

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.tag.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..].copy_from_slice(&[self.stripe, self.stripes]);
        bytes
    }

    /// Reads a header; none if there is no such stream.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let [.., stripe, stripes] = *bytes;
        let header = ObjectHeader {
            tag: u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")),
            len: u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")),
            stripe,
            stripes,
        };
        Some(header).filter(|_| stripe < stripes && stripes <= STRIPES_MAX)
    }
}

/// What stands in front of the elements in a region, so that a reader knows what it has READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionHeader {
    /// The view.
    pub epoch: Epoch,
    /// The round whose update, fold or model this is.
    pub round: Round,
    /// Which start of a fold; 0 elsewhere.
    pub attempt: Attempt,
    /// As in the order to fold; 0 elsewhere.
    pub token: u64,
}

impl RegionHeader {
    const MAGIC: u32 = u32::from_le_bytes(*b"tbl1");

    /// Its bytes, [`REGION_HEADER_BYTES`] of them.
    pub fn to_bytes(self) -> [u8; REGION_HEADER_BYTES] {
        let mut bytes = [0; REGION_HEADER_BYTES];
        bytes[..4].copy_from_slice(&Self::MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.round.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if the region has none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        (word(0)? == Self::MAGIC).then_some(())?;
        Some(RegionHeader {
            attempt: word(4)?,
            epoch: long(8)?,
            round: long(16)?,
            token: long(24)?,
        })
    }
}
