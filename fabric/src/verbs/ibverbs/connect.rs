//! The reader's side of a greeting, bounded in time.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::choice::{self, Gid};
use super::listener::sequence;
use super::message::{self, Card, Frame, REPLY_LENGTH, Received, Reply, Request, Side};
use super::objects::{Completions, Pair, Reader, Route};
use super::queue_pair::ReaderPair;
use super::table::Shared;
use crate::error::{FabricError, system};
use crate::folder::random;
use crate::verbs::{Limits, QueuePair, Token};

/// Greetings in one attempt to connect: an owner that closes so many times does not want us.
const GREETINGS_MAX: usize = 16;

/// Where an owner listens: a GID and a port.
pub(super) struct Place {
    gid: [u8; 16],
    port: u16,
}

impl Place {
    const LENGTH: usize = 18;

    pub(super) fn new(gid: &Gid, port: u16) -> Place {
        Place {
            gid: gid.bytes,
            port,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        [&self.gid[..], &self.port.to_le_bytes()].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Place, FabricError> {
        let parse = |bytes: &[u8]| {
            let (gid, port) = bytes.split_first_chunk()?;
            Some(Place {
                gid: *gid,
                port: u16::from_le_bytes(port.try_into().ok()?),
            })
        };
        parse(bytes).ok_or_else(|| FabricError::Malformed {
            what: "endpoint",
            expected: format!("an address of {} bytes", Place::LENGTH),
            found: format!("{} bytes", bytes.len()),
        })
    }
}

/// Connects to the owner at `place` as this device's owner.
pub(super) fn connect(
    shared: &Arc<Shared>,
    peer: &str,
    token: &Token,
    place: &Place,
) -> Result<Box<dyn QueuePair>, FabricError> {
    if shared.is_closed() {
        return Err(shared.closed());
    }
    let Some(gid) = shared.port.gid_towards(&place.gid) else {
        return Err(FabricError::Incompatible {
            peer: peer.to_owned(),
            expected: format!("an address (GID) of the kind of {}", shared.port.gid().ip()),
            found: choice::ip(&place.gid).to_string(),
        });
    };
    let completions = Completions::new(&shared.context, shared.limits.queue_depth, true)
        .map_err(system("making a completion queue"))?;
    let pair = Pair::new(
        &shared.domain,
        Arc::new(completions),
        shared.limits.queue_depth,
    )
    .map_err(system("making a queue pair"))?;
    pair.initialize(shared.port.number, false)
        .map_err(system("initializing a queue pair"))?;
    let card = Card {
        gid: gid.bytes,
        number: pair.number(),
        sequence: sequence().map_err(system("drawing random bytes"))?,
        message_max: shared.link.message_max,
        mtu: shared.link.mtu,
        reads: shared.link.reads_begun,
    };
    let dial = Dial {
        peer,
        address: choice::socket(&place.gid, gid.scope, place.port),
        patience: shared.patience,
        deadline: Instant::now() + shared.patience,
    };
    let (stream, theirs) = dial.greet(&shared.owner, token, card)?;
    if choice::ip(&theirs.gid) != choice::ip(&place.gid) {
        return Err(dial.distrusted("its queue pair is at another address than its endpoint"));
    }
    pair.connect(&Route {
        port: shared.port.number,
        source_index: gid.index,
        target: theirs.gid,
        number: theirs.number,
        sequences: (card.sequence, theirs.sequence),
        mtu: card.mtu.min(theirs.mtu),
        reads: card.reads.min(theirs.reads),
    })
    .map_err(|error| {
        dial.unreachable(&format!(
            "the device finds no way from {} to {} with packets of {} bytes (this side takes {}, the peer {}): {error}",
            gid.ip(),
            choice::ip(&theirs.gid),
            packet(card.mtu.min(theirs.mtu)),
            packet(card.mtu),
            packet(theirs.mtu),
        ))
    })?;
    shared.queue_pairs.fetch_add(1, Ordering::Relaxed);
    let limits = Limits {
        read_length_max: shared
            .limits
            .read_length_max
            .min(theirs.message_max.max(1) as usize),
        ..shared.limits
    };
    Ok(Box::new(ReaderPair::connected(
        shared.clone(),
        peer,
        limits,
        Reader::new(pair),
        stream,
    )))
}

/// Bytes of a code for a packet's length.
pub(super) fn packet(code: u8) -> u32 {
    128u32.checked_shl(code.into()).unwrap_or(0)
}

const NO_ANSWER: &str = "it did not answer our greeting as agreed";

/// One bounded attempt to get through to an owner.
struct Dial<'a> {
    peer: &'a str,
    address: SocketAddr,
    patience: Duration,
    deadline: Instant,
}

impl Dial<'_> {
    /// Connects, greets and takes the answer. Under a flood of strangers the owner may close on us before it has read our greeting;
    /// then we come again.
    fn greet(
        &self,
        name: &str,
        token: &Token,
        card: Card,
    ) -> Result<(TcpStream, Card), FabricError> {
        for _ in 0..GREETINGS_MAX {
            let mut stream = TcpStream::connect_timeout(&self.address, self.left()?)
                .map_err(|error| self.unreachable(&error.to_string()))?;
            stream
                .set_nodelay(true)
                .map_err(system("setting up a connection"))?;
            let Some(reply) = self.receive(&mut stream)? else {
                continue;
            };
            let Reply::Challenge { nonce: theirs } = reply else {
                return Err(self.distrusted(NO_ANSWER));
            };
            let ours = random().map_err(system("drawing random bytes"))?;
            let nonces = [&theirs, &ours];
            let hello = Request::Hello {
                name: name.to_owned(),
                card,
                nonce: ours,
                proof: message::prove(token, Side::Reader, nonces, name, card),
            };
            if message::send(&mut stream, &hello.to_bytes()).is_err() {
                continue;
            }
            let peer = || self.peer.to_owned();
            match self.receive(&mut stream)? {
                Some(Reply::Welcome { card, proof }) => {
                    let expected = message::prove(token, Side::Owner, nonces, name, card);
                    if !message::is_same(&expected, &proof) {
                        return Err(self.distrusted("it does not know its own token"));
                    }
                    stream
                        .set_nonblocking(true)
                        .map_err(system("setting up a connection"))?;
                    return Ok((stream, card));
                }
                Some(Reply::Denied) => return Err(FabricError::Denied { peer: peer() }),
                Some(Reply::Busy) => return Err(FabricError::Busy { peer: peer() }),
                Some(_) => return Err(self.distrusted(NO_ANSWER)),
                None => {}
            }
        }
        Err(self.unreachable("it closes every connection"))
    }

    /// The next reply; `None` if the owner has closed.
    fn receive(&self, stream: &mut TcpStream) -> Result<Option<Reply>, FabricError> {
        let mut frame = Frame::<REPLY_LENGTH>::new();
        loop {
            let left = self.left()?;
            stream
                .set_read_timeout(Some(left))
                .and_then(|()| stream.set_write_timeout(Some(left)))
                .map_err(system("bounding the waits of a connection"))?;
            match frame.receive(stream) {
                Received::Whole(bytes) => {
                    return Reply::from_bytes(&bytes)
                        .map(Some)
                        .ok_or_else(|| self.distrusted(NO_ANSWER));
                }
                Received::Part => {}
                Received::Gone => return Ok(None),
            }
        }
    }

    fn left(&self) -> Result<Duration, FabricError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FabricError::TimedOut {
                peer: self.peer.to_owned(),
                doing: "connecting to it",
                wait: self.patience,
            });
        }
        Ok(left.max(Duration::from_millis(1)))
    }

    fn unreachable(&self, reason: &str) -> FabricError {
        FabricError::Unreachable {
            peer: self.peer.to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn distrusted(&self, reason: &str) -> FabricError {
        FabricError::Distrusted {
            peer: self.peer.to_owned(),
            reason: reason.to_owned(),
        }
    }
}
