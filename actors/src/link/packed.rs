//! A model on its way down a link with a lossless stage: pieces that are packed one by one, so that neither end holds more than one of them.
//!
//! The stream of such an object is, for each piece of [`PIECE_BYTES`], the length of what follows (4 bytes, little-endian), and the piece as
//! [`Packer`] makes it. Both ends know from the plan whether a link has a stage; what the object's header states is the model's own length.

use std::time::Duration;

use bytes::Bytes;

use super::Incoming;
use super::stripes::{Reader, Writer};
use crate::env::{Env, Work, work};
use tombolo_core::compress::{Lossless, Packer};
use tombolo_core::event::Shrunk;

/// Packed at once: enough for a method to find what repeats, and far below a millisecond's work for most.
const PIECE_BYTES: usize = 256 * 1024;

/// Bytes of the length before a piece.
const LENGTH_BYTES: usize = 4;

/// Sends a model piece by piece, and says what it has made of it. Packing is off the arbiter; one piece is packed while quinn sends those
/// before it.
pub(super) async fn send(
    env: &dyn Env,
    lossless: Lossless,
    mut model: Bytes,
    stream: &mut Writer,
) -> Result<Shrunk, String> {
    let mut packer = Packer::new(lossless);
    let mut sent = Shrunk::default();
    while !model.is_empty() {
        let piece = model.split_to(PIECE_BYTES.min(model.len()));
        let bytes = piece.len() as u64;
        let packed = work(env, Work::Bytes(bytes), move || {
            let packed = frame(&mut packer, &piece);
            (packer, packed)
        });
        let packed = packed.await.map_err(|panicked| panicked.to_string())?;
        packer = packed.0;
        sent.plain += bytes;
        sent.travelled += packed.1.len() as u64;
        stream.write(packed.1.into()).await?;
    }
    Ok(sent)
}

/// A packed piece behind its length.
fn frame(packer: &mut Packer, piece: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; LENGTH_BYTES];
    packer.pack(piece, &mut frame);
    // It fits: no piece grows by more than a byte.
    let length = (frame.len() - LENGTH_BYTES) as u32;
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    frame
}

/// Takes apart what [`send`] sends.
pub struct Unpacking {
    stream: Reader,
    lossless: Lossless,
    /// Bytes of the model that are still to come.
    left: usize,
    read: u64,
    room: Vec<u8>,
}

impl Unpacking {
    /// The pieces of a model of so many bytes.
    pub fn new(incoming: Incoming, lossless: Lossless, bytes: usize) -> Self {
        Unpacking {
            stream: incoming.stream,
            lossless,
            left: bytes,
            read: 0,
            room: Vec::new(),
        }
    }

    /// Bytes that have come so far, as they travelled.
    pub fn read_bytes(&self) -> u64 {
        self.read
    }

    /// The next piece; nothing behind the last.
    ///
    /// # Errors
    /// The connection ended, nothing came for `stall`, or what came is no piece: its length is compared before memory is taken for it.
    pub async fn next(&mut self, env: &dyn Env, stall: Duration) -> Result<Bytes, String> {
        let plain = self.left.min(PIECE_BYTES);
        if plain == 0 {
            return Ok(Bytes::new());
        }
        let length = self.read(env, stall, LENGTH_BYTES).await?;
        let length = length.try_into().expect("so many were read");
        let length = piece_length(self.lossless, u32::from_le_bytes(length), plain)?;
        let packed = self.read(env, stall, length).await?;
        let piece = piece(self.lossless, &packed, plain, &mut self.room)?;
        self.left -= plain;
        Ok(piece)
    }

    /// Reads so many bytes; whatever comes is progress.
    async fn read(
        &mut self,
        env: &dyn Env,
        stall: Duration,
        len: usize,
    ) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let chunk = tokio::select! {
                biased;
                chunk = self.stream.read_chunk(len - bytes.len()) => chunk,
                () = env.sleep(stall) => return Err(format!("no progress for {stall:?}")),
            };
            match chunk.map_err(|error| error.to_string())? {
                Some(chunk) => {
                    self.read += chunk.len() as u64;
                    bytes.extend_from_slice(&chunk);
                }
                None => return Err("the stream ended too early".to_owned()),
            }
        }
        Ok(bytes)
    }
}

/// The bytes of a packed piece, if there can be so many.
fn piece_length(lossless: Lossless, stated: u32, plain: usize) -> Result<usize, String> {
    let (stated, most) = (stated as usize, lossless.bytes_max(plain));
    if stated > most {
        return Err(format!(
            "a {lossless} piece of a model states {stated} bytes where {most} are the most: the sender is at fault"
        ));
    }
    Ok(stated)
}

/// A piece of exactly so many bytes.
fn piece(
    lossless: Lossless,
    packed: &[u8],
    plain: usize,
    room: &mut Vec<u8>,
) -> Result<Bytes, String> {
    let unpacked = lossless.unpack(packed, plain, room);
    let unpacked = unpacked.map_err(|error| error.to_string())?;
    if unpacked.len() != plain {
        let found = unpacked.len();
        return Err(format!(
            "a {lossless} piece of a model has {found} bytes, expected {plain}: the sender is at fault"
        ));
    }
    Ok(Bytes::copy_from_slice(unpacked))
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [Lossless; 3] = [Lossless::Snappy, Lossless::Lz4, Lossless::Zstd];

    #[test]
    fn a_piece_comes_back_whether_it_shrinks_or_not() {
        let noise = (0..5000u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_le_bytes());
        for plain in [vec![7; PIECE_BYTES], noise.collect()] {
            for lossless in METHODS {
                let frame = frame(&mut Packer::new(lossless), &plain);
                let (length, packed) = frame.split_at(LENGTH_BYTES);
                let length = u32::from_le_bytes(length.try_into().unwrap());
                let length = piece_length(lossless, length, plain.len()).unwrap();
                assert_eq!(length, packed.len());
                let found = piece(lossless, packed, plain.len(), &mut Vec::new());
                assert_eq!(found.unwrap(), plain, "{lossless}");
            }
        }
    }

    /// bincode#239: the length is compared before anything is allocated.
    #[test]
    fn a_piece_that_cannot_be_so_long_is_refused_before_it_is_read() {
        for lossless in METHODS {
            assert_eq!(piece_length(lossless, 101, 100), Ok(101));
            let refused = piece_length(lossless, u32::MAX, 100).unwrap_err();
            assert!(
                refused.contains("4294967295") && refused.contains("101"),
                "{refused}"
            );
        }
    }

    /// lance#8456: what was packed has the length that it must have, not the one that it says.
    #[test]
    fn a_piece_of_another_length_is_refused_naming_both() {
        for lossless in METHODS {
            let mut packed = Vec::new();
            Packer::new(lossless).pack(&[7; 100], &mut packed);
            let refused = piece(lossless, &packed, 101, &mut Vec::new()).unwrap_err();
            assert!(refused.contains("has 100 bytes, expected 101"), "{refused}");
            assert!(piece(lossless, &packed, 99, &mut Vec::new()).is_err());
        }
    }
}
