//! An object on several streams at once.
//!
//! On a long fat path a burst of losses leaves thousands of holes among what has come, and quinn closes a connection that has to remember more than
//! about a thousand of them for one stream. So a large object goes over several streams in turns, each with a window that holds fewer packets than
//! that; together they have the window of one. Neither side holds more of an object than before, and pieces are read in order.

use bytes::Bytes;
use quinn::{Connection, ReadError, RecvStream, SendStream, VarInt};

use crate::quic;
use tombolo_core::wire::{ObjectHeader, STRIPE_BYTES};

/// An object of so many bytes has one stream.
const SMALL: usize = 1 << 20;

/// The streams of an object of so many bytes, over a path that may carry datagrams of `carries` bytes.
pub(super) fn stripes(bytes: usize, carries: u16) -> u8 {
    match bytes <= SMALL {
        true => 1,
        false => quic::stripes(carries),
    }
}

/// The sending side.
pub struct Writer {
    streams: Vec<SendStream>,
    turn: Turn,
}

/// The receiving side.
#[derive(Debug)]
pub struct Reader {
    streams: Vec<RecvStream>,
    turn: Turn,
}

/// Whose turn it is, and for how many bytes.
#[derive(Debug)]
struct Turn {
    of: usize,
    at: usize,
    left: usize,
}

impl Turn {
    fn new(of: usize) -> Self {
        let mut turn = Turn { of, at: 0, left: 0 };
        turn.begin();
        turn
    }

    fn begin(&mut self) {
        // One stream alone has no turns.
        self.left = if self.of > 1 {
            STRIPE_BYTES
        } else {
            usize::MAX
        };
    }

    fn pass(&mut self, bytes: usize) {
        self.left -= bytes;
        if self.left == 0 {
            self.at = (self.at + 1) % self.of;
            self.begin();
        }
    }
}

impl Writer {
    /// Opens the streams of an object, each behind its header. quinn bounds how many the peer lets us open.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn open(
        connection: &Connection,
        tag: u64,
        len: u64,
        stripes: u8,
        priority: Option<i32>,
    ) -> Result<Self, String> {
        let mut streams = Vec::new();
        for stripe in 0..stripes {
            let opened = connection.open_uni().await;
            let mut stream = opened.map_err(|error| error.to_string())?;
            if let Some(priority) = priority {
                // Fails only if the stream is closed, and then writing does, too.
                stream.set_priority(priority).ok();
            }
            let header = ObjectHeader {
                tag,
                len,
                stripe,
                stripes,
            };
            let written = stream.write_all(&header.to_bytes()).await;
            written.map_err(|error| error.to_string())?;
            streams.push(stream);
        }
        Ok(Writer {
            turn: Turn::new(streams.len()),
            streams,
        })
    }

    /// Sends more of the object.
    ///
    /// # Errors
    /// The connection has ended, or the other side wants no more.
    pub async fn write(&mut self, mut bytes: Bytes) -> Result<(), String> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(self.turn.left.min(bytes.len()));
            let sent = piece.len();
            let written = self.streams[self.turn.at].write_chunk(piece).await;
            written.map_err(|error| error.to_string())?;
            self.turn.pass(sent);
        }
        Ok(())
    }

    /// Ends it, and waits until all of it has been received or is not wanted any more.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn finish(&mut self) -> Result<(), String> {
        for stream in &mut self.streams {
            stream.finish().map_err(|error| error.to_string())?;
        }
        // A stream must live until its data has been received.
        for stream in &mut self.streams {
            stream.stopped().await.ok();
        }
        Ok(())
    }
}

impl Writer {
    /// Takes back what has not been sent: it is of no use.
    pub fn reset(&mut self) {
        for stream in &mut self.streams {
            // Fails only if all of it is out.
            let _ = stream.reset(VarInt::from_u32(0));
        }
    }
}

impl Reader {
    /// Of the streams of an object, in their order; at least one.
    fn new(streams: Vec<RecvStream>) -> Self {
        Reader {
            turn: Turn::new(streams.len()),
            streams,
        }
    }

    /// The next bytes in order, at most `most`; none at the end. Nothing is lost if it is not waited for.
    ///
    /// # Errors
    /// As those of a stream.
    pub async fn read_chunk(&mut self, most: usize) -> Result<Option<Bytes>, ReadError> {
        let most = most.min(self.turn.left);
        let chunk = self.streams[self.turn.at].read_chunk(most, true).await?;
        Ok(chunk.map(|chunk| {
            self.turn.pass(chunk.bytes.len());
            chunk.bytes
        }))
    }
}

/// Objects of which not all streams have begun: bounded by the streams that a peer may open.
#[derive(Default)]
pub struct Forming(Vec<(ObjectHeader, Vec<(u8, RecvStream)>)>);

impl Forming {
    /// Reads the header of a stream, and takes it.
    ///
    /// # Errors
    /// There is none, or it contradicts another stream of the same object.
    pub async fn begin(
        &mut self,
        mut stream: RecvStream,
    ) -> Result<Option<(ObjectHeader, Reader)>, String> {
        let mut header = [0; ObjectHeader::BYTES];
        let read = stream.read_exact(&mut header).await;
        read.map_err(|error| error.to_string())?;
        let header = ObjectHeader::from_bytes(&header)
            .ok_or_else(|| format!("there is no such stream of an object: {header:?}"))?;
        let reader = self.take(header, stream)?;
        Ok(reader.map(|reader| (header, reader)))
    }

    /// Takes a stream behind its header; gives all of an object once they are there.
    ///
    /// # Errors
    /// It contradicts another stream of the same object.
    fn take(&mut self, header: ObjectHeader, stream: RecvStream) -> Result<Option<Reader>, String> {
        if header.stripes == 1 {
            return Ok(Some(Reader::new(vec![stream])));
        }
        let found = self.0.iter().position(|(of, _)| of.tag == header.tag);
        let index = found.unwrap_or_else(|| {
            self.0.push((header, Vec::new()));
            self.0.len() - 1
        });
        let (first, streams) = &mut self.0[index];
        let is_known = streams.iter().any(|(stripe, _)| *stripe == header.stripe);
        if (first.len, first.stripes) != (header.len, header.stripes) || is_known {
            return Err(format!(
                "the streams of one object contradict each other: {header:?} after {first:?}"
            ));
        }
        streams.push((header.stripe, stream));
        if streams.len() < usize::from(header.stripes) {
            return Ok(None);
        }
        let (_, mut streams) = self.0.swap_remove(index);
        streams.sort_by_key(|(stripe, _)| *stripe);
        let streams = streams.into_iter().map(|(_, stream)| stream).collect();
        Ok(Some(Reader::new(streams)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::wire::STRIPES_MAX;

    /// Holes in one stream that quinn remembers.
    const HOLES_MAX: u32 = 1024;

    #[test]
    fn streams_take_turns_and_one_alone_has_none() {
        let mut turn = Turn::new(3);
        let mut pieces = Vec::new();
        for bytes in [STRIPE_BYTES, 5, STRIPE_BYTES - 5, STRIPE_BYTES, 1] {
            pieces.push(turn.at);
            turn.pass(bytes);
        }
        assert_eq!(pieces, [0, 1, 1, 2, 0]);
        assert_eq!((turn.at, turn.left), (0, STRIPE_BYTES - 1));
        let mut turn = Turn::new(1);
        turn.pass(1 << 40);
        assert_eq!(turn.at, 0);
    }

    /// As many packets as are in a stream's window leave no more holes than half of them.
    #[test]
    fn a_window_of_a_stream_has_fewer_holes_than_are_remembered() {
        let stripes = u32::from(stripes(SMALL + 1, 1452));
        assert_eq!(stripes, u32::from(STRIPES_MAX));
        let packets = quic::STREAM_WINDOW / stripes / 1200;
        assert!(packets / 2 < HOLES_MAX, "{packets}");
    }
}
