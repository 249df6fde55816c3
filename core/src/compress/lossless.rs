//! Lossless compression of bytes behind a codec or of a model on its way down: `snappy`, `lz4`, `zstd`.
//!
//! A packed piece is a flag and what follows it: 0 and the bytes as they are, or 1, their length (4 bytes, little-endian) and what the
//! method made of them. What does not shrink travels as it is, so that no piece is more than one byte longer than it was.
//!
//! Who unpacks knows how long a piece can be at most. The stated length is compared with that before memory is taken for it, and no
//! method writes beyond the stated length, whatever its bytes say.

use std::borrow::Cow;
use std::fmt;
use std::io::{Read, Write};
use std::str::FromStr;

use lz4_flex::frame::{BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use serde::{Deserialize, Serialize};
use zstd_safe::{CCtx, DCtx};

/// The flag of bytes that follow as they are.
const PLAIN: u8 = 0;

/// The flag of bytes that a method made shorter.
const PACKED: u8 = 1;

/// Bytes of the flag and the length.
const HEADER_BYTES: usize = 5;

/// Zstandard's own default: the levels above it cost several times as much for a few percent.
const ZSTD_LEVEL: i32 = 3;

/// What makes bytes fewer and loses nothing.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Lossless {
    /// Nothing does.
    #[default]
    None,
    /// Snappy's raw format.
    Snappy,
    /// One frame of LZ4, in blocks of 1 MiB without checksums.
    Lz4,
    /// One frame of Zstandard.
    Zstd,
}

/// Bytes that no packer makes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The flag is missing, or the length behind it.
    #[error("a {method} piece ends within its header, after {found} bytes: refuse it")]
    Header {
        /// Which method.
        method: Lossless,
        /// Its bytes.
        found: usize,
    },
    /// A flag of no meaning.
    #[error("a {method} piece begins with {found}, expected 0 (plain) or 1 (packed): refuse it")]
    Flag {
        /// Which method.
        method: Lossless,
        /// The flag.
        found: u8,
    },
    /// More bytes than there can be. Nothing was allocated for them.
    #[error("a {method} piece states {found} bytes where {most} are the most: refuse it")]
    Long {
        /// Which method.
        method: Lossless,
        /// Bytes stated.
        found: usize,
        /// The most that there can be.
        most: usize,
    },
    /// The method cannot read it, or it would be longer than it states.
    #[error("a {method} piece of {stated} bytes cannot be unpacked: {reason}: refuse it")]
    Damaged {
        /// Which method.
        method: Lossless,
        /// Bytes stated.
        stated: usize,
        /// In the method's words.
        reason: String,
    },
    /// It ends before its stated length.
    #[error("a {method} piece states {stated} bytes and holds {found}: refuse it")]
    Short {
        /// Which method.
        method: Lossless,
        /// Bytes stated.
        stated: usize,
        /// Bytes that came out.
        found: usize,
    },
    /// Something stands behind its end.
    #[error("{left} bytes stand behind the end of a {method} piece: refuse it")]
    Trailing {
        /// Which method.
        method: Lossless,
        /// How many.
        left: usize,
    },
}

impl Lossless {
    /// All of them.
    pub const ALL: [Lossless; 4] = [
        Lossless::None,
        Lossless::Snappy,
        Lossless::Lz4,
        Lossless::Zstd,
    ];

    /// The most bytes that so many take when they are packed.
    pub fn bytes_max(self, plain: usize) -> usize {
        match self {
            Lossless::None => plain,
            _ => plain.saturating_add(1),
        }
    }

    /// Takes a piece apart that had at most `most` bytes, into `room` if it was packed.
    ///
    /// # Errors
    /// Bytes that no packer makes; `room` then holds anything, and no more than `most`.
    pub fn unpack<'a>(
        self,
        bytes: &'a [u8],
        most: usize,
        room: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], UnpackError> {
        let found = bytes.len();
        let long = |found| UnpackError::Long {
            method: self,
            found,
            most,
        };
        let (plain, rest) = match (self, bytes) {
            (Lossless::None, plain) => (plain, None),
            (_, [PLAIN, plain @ ..]) => (plain, None),
            (_, [PACKED, a, b, c, d, rest @ ..]) => {
                let stated = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
                (&[][..], Some((stated, rest)))
            }
            (_, [] | [PACKED, ..]) => {
                return Err(UnpackError::Header {
                    method: self,
                    found,
                });
            }
            (_, [flag, ..]) => {
                return Err(UnpackError::Flag {
                    method: self,
                    found: *flag,
                });
            }
        };
        let Some((stated, rest)) = rest else {
            return match plain.len() {
                len if len > most => Err(long(len)),
                _ => Ok(plain),
            };
        };
        if stated > most {
            return Err(long(stated));
        }
        room.clear();
        room.reserve_exact(stated);
        room.resize(stated, 0);
        let found = match self {
            Lossless::None => unreachable!("what is not packed was handed out above"),
            Lossless::Snappy => unpack_snappy(rest, room),
            Lossless::Lz4 => unpack_lz4(rest, room),
            Lossless::Zstd => unpack_zstd(rest, room),
        }?;
        if found != stated {
            return Err(UnpackError::Short {
                method: self,
                stated,
                found,
            });
        }
        Ok(room)
    }
}

impl fmt::Display for Lossless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lossless::None => "none",
            Lossless::Snappy => "snappy",
            Lossless::Lz4 => "lz4",
            Lossless::Zstd => "zstd",
        })
    }
}

/// The names of the topology file.
impl FromStr for Lossless {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Lossless::ALL.iter().find(|one| one.to_string() == name);
        found.copied().ok_or_else(|| {
            format!("{name:?} is no lossless stage: expected none, snappy, lz4 or zstd")
        })
    }
}

/// Packs piece after piece, and keeps its tables from one to the next.
pub struct Packer {
    method: Method,
    room: Vec<u8>,
}

enum Method {
    None,
    Snappy(Box<snap::raw::Encoder>),
    Lz4,
    Zstd(CCtx<'static>),
}

impl Packer {
    /// One that has packed nothing yet.
    pub fn new(method: Lossless) -> Self {
        Packer {
            method: match method {
                Lossless::None => Method::None,
                Lossless::Snappy => Method::Snappy(Box::new(snap::raw::Encoder::new())),
                Lossless::Lz4 => Method::Lz4,
                Lossless::Zstd => Method::Zstd(CCtx::create()),
            },
            room: Vec::new(),
        }
    }

    /// Appends a piece to `out`: packed, or as it is if that is no shorter.
    pub fn pack(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        if matches!(self.method, Method::None) {
            out.extend_from_slice(plain);
            return;
        }
        match (self.packed(plain), u32::try_from(plain.len())) {
            (Some(packed), Ok(len)) if packed.len() + HEADER_BYTES < plain.len() + 1 => {
                out.push(PACKED);
                out.extend(len.to_le_bytes());
                out.extend_from_slice(packed);
            }
            _ => {
                out.push(PLAIN);
                out.extend_from_slice(plain);
            }
        }
    }

    /// What the method makes of it; nothing if it cannot: it then travels as it is.
    fn packed(&mut self, plain: &[u8]) -> Option<&[u8]> {
        if let Method::Lz4 = self.method {
            return self.lz4(plain);
        }
        let most = match &self.method {
            Method::None | Method::Lz4 => 0,
            Method::Snappy(_) => snap::raw::max_compress_len(plain.len()),
            Method::Zstd(_) => zstd_safe::compress_bound(plain.len()),
        };
        if self.room.len() < most {
            self.room.resize(most, 0);
        }
        let room = &mut self.room[..];
        let len = match &mut self.method {
            Method::None | Method::Lz4 => None,
            Method::Snappy(encoder) => encoder.compress(plain, room).ok(),
            Method::Zstd(context) => context.compress(room, plain, ZSTD_LEVEL).ok(),
        };
        self.room.get(..len?)
    }

    fn lz4(&mut self, plain: &[u8]) -> Option<&[u8]> {
        self.room.clear();
        let frame = FrameInfo::new().block_size(BlockSize::Max1MB);
        let mut encoder = FrameEncoder::with_frame_info(frame, &mut self.room);
        encoder.write_all(plain).ok()?;
        encoder.finish().ok()?;
        Some(&self.room)
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

fn damaged(method: Lossless, stated: usize, reason: impl fmt::Display) -> UnpackError {
    UnpackError::Damaged {
        method,
        stated,
        reason: reason.to_string(),
    }
}

fn unpack_snappy(bytes: &[u8], room: &mut [u8]) -> Result<usize, UnpackError> {
    let mut decoder = snap::raw::Decoder::new();
    let found = decoder.decompress(bytes, room);
    found.map_err(|error| damaged(Lossless::Snappy, room.len(), error))
}

fn unpack_lz4(bytes: &[u8], room: &mut [u8]) -> Result<usize, UnpackError> {
    let stated = room.len();
    let wrong = |reason: &str| damaged(Lossless::Lz4, stated, reason);
    // Another frame may ask for larger buffers than ours do, and the decoder takes them before it reads on.
    if !bytes.starts_with(&LZ4_FRAME) {
        return Err(wrong("it is no frame of independent blocks of 1 MiB"));
    }
    // The decoder takes a missing end for one, and goes on with a frame behind it.
    let frame = lz4_frame(bytes).ok_or_else(|| wrong("it ends too early"))?;
    if frame < bytes.len() {
        return Err(UnpackError::Trailing {
            method: Lossless::Lz4,
            left: bytes.len() - frame,
        });
    }
    let (mut decoder, mut found) = (FrameDecoder::new(bytes), 0);
    while found < stated {
        match decoder.read(&mut room[found..]) {
            Ok(0) => return Ok(found),
            Ok(read) => found += read,
            Err(error) => return Err(wrong(&error.to_string())),
        }
    }
    match decoder.read(&mut [0]) {
        Ok(0) => Ok(found),
        Ok(_) => Err(wrong("it is longer than it states")),
        Err(error) => Err(wrong(&error.to_string())),
    }
}

/// How a frame of ours begins: the magic number, version 1 with independent blocks, and their size.
const LZ4_FRAME: [u8; 6] = [0x04, 0x22, 0x4D, 0x18, 0x60, 0x60];

/// Where a frame without checksums ends, behind its last block's length of 0; nothing if it does not.
fn lz4_frame(bytes: &[u8]) -> Option<usize> {
    // The header's own check is one byte.
    let mut at = LZ4_FRAME.len() + 1;
    loop {
        let length = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
        at += 4;
        match u32::from_le_bytes(length) {
            0 => return Some(at),
            // The highest bit says that the block is as it was.
            length => at = at.checked_add((length & 0x7FFF_FFFF) as usize)?,
        }
    }
}

fn unpack_zstd(bytes: &[u8], room: &mut [u8]) -> Result<usize, UnpackError> {
    let wrong = |code| {
        damaged(
            Lossless::Zstd,
            room.len(),
            Cow::from(zstd_safe::get_error_name(code)),
        )
    };
    // Frames may follow one another, and some of them are passed over: there is one.
    let frame = zstd_safe::find_frame_compressed_size(bytes).map_err(wrong)?;
    if frame < bytes.len() {
        return Err(UnpackError::Trailing {
            method: Lossless::Zstd,
            left: bytes.len() - frame,
        });
    }
    let stated = room.len();
    let found = DCtx::create().decompress(room, bytes);
    found.map_err(|code| damaged(Lossless::Zstd, stated, zstd_safe::get_error_name(code)))
}

#[cfg(test)]
mod tests;
