//! What goes over the connection beside a queue pair: frames of one size each way.
//!
//! ```text
//! reader                                   owner
//!         <- Challenge { nonce }
//! Hello { name, card, nonce, proof }  ->             its queue pair is ready to receive before it answers
//!         <- Welcome { card, proof } | Denied | Busy
//! Locate { key } ->
//!         <- Region { key, len, source } | NoRegion { key }
//!         <- Revoked                                 whenever the grant ends; then it closes
//! ```
//!
//! The token of the grant never travels here: each side proves that it knows it, by a keyed hash over everything that the two have said.

use std::io::{self, Read, Write};

use super::objects::Source;
use crate::verbs::{NAME_LENGTH_MAX, Token};

/// Says which protocol and version this is.
const MAGIC: [u8; 4] = *b"tbr1";

pub(super) const REQUEST_LENGTH: usize = 8 + Card::LENGTH + 32 + 32 + NAME_LENGTH_MAX;
pub(super) const REPLY_LENGTH: usize = 8 + Card::LENGTH + 32;

/// What a side must know of the other's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Card {
    /// The address of its port.
    pub(super) gid: [u8; 16],
    /// Of its queue pair.
    pub(super) number: u32,
    /// Where its packets begin to count.
    pub(super) sequence: u32,
    /// Bytes in one message.
    pub(super) message_max: u32,
    /// The largest packet that its link takes, as a code.
    pub(super) mtu: u8,
    /// READs at a time: a reader's that it begins, an owner's that it serves.
    pub(super) reads: u8,
}

impl Card {
    const LENGTH: usize = 32;

    fn to_bytes(self) -> [u8; Card::LENGTH] {
        let mut bytes = [0; Card::LENGTH];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..20].copy_from_slice(&self.number.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.message_max.to_le_bytes());
        bytes[28] = self.mtu;
        bytes[29] = self.reads;
        bytes
    }

    fn from_bytes(bytes: &[u8; Card::LENGTH]) -> Card {
        let word = |at: usize| {
            let word = bytes[at..at + 4].try_into().expect("four bytes");
            u32::from_le_bytes(word)
        };
        Card {
            gid: bytes[..16].try_into().expect("sixteen bytes"),
            number: word(16),
            sequence: word(20),
            message_max: word(24),
            mtu: bytes[28],
            reads: bytes[29],
        }
    }
}

/// What a side draws so that no proof fits twice.
pub(super) type Nonce = [u8; 32];

/// Shows that a side knows the token.
pub(super) type Proof = [u8; 32];

/// Who proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Reader,
    Owner,
}

/// The proof of one side: over both nonces, the reader's name, and that side's card.
pub(super) fn prove(
    token: &Token,
    side: Side,
    nonces: [&Nonce; 2],
    name: &str,
    card: Card,
) -> Proof {
    let mut hasher = blake3::Hasher::new_keyed(token);
    hasher.update(match side {
        Side::Reader => b"tombolo fabric: reader ",
        Side::Owner => b"tombolo fabric: owner  ",
    });
    for nonce in nonces {
        hasher.update(nonce);
    }
    hasher.update(&card.to_bytes());
    hasher.update(name.as_bytes());
    *hasher.finalize().as_bytes()
}

/// Whether two proofs are the same; the time taken does not tell where they differ.
pub(super) fn is_same(a: &Proof, b: &Proof) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

/// From a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// The first on a connection.
    Hello {
        name: String,
        card: Card,
        nonce: Nonce,
        proof: Proof,
    },
    /// Where the memory behind a key is.
    Locate { key: u64 },
}

impl Request {
    pub(super) fn to_bytes(&self) -> [u8; REQUEST_LENGTH] {
        let mut bytes = [0; REQUEST_LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        match self {
            Request::Hello {
                name,
                card,
                nonce,
                proof,
            } => {
                bytes[4] = 1;
                bytes[5] = name.len() as u8;
                bytes[8..40].copy_from_slice(&card.to_bytes());
                bytes[40..72].copy_from_slice(nonce);
                bytes[72..104].copy_from_slice(proof);
                bytes[104..104 + name.len()].copy_from_slice(name.as_bytes());
            }
            Request::Locate { key } => {
                bytes[4] = 2;
                bytes[8..16].copy_from_slice(&key.to_le_bytes());
            }
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; REQUEST_LENGTH]) -> Option<Request> {
        let body = bytes.strip_prefix(&MAGIC)?;
        match body[0] {
            1 => {
                let name = body[100..].get(..body[1].into())?;
                Some(Request::Hello {
                    name: std::str::from_utf8(name).ok()?.to_owned(),
                    card: Card::from_bytes(body[4..].first_chunk()?),
                    nonce: *body[36..].first_chunk()?,
                    proof: *body[68..].first_chunk()?,
                })
            }
            2 => Some(Request::Locate {
                key: u64::from_le_bytes(*body[4..].first_chunk()?),
            }),
            _ => None,
        }
    }
}

/// Where a region of the owner's is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) source: Source,
    pub(super) len: u64,
}

/// From the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// The first on a connection.
    Challenge { nonce: Nonce },
    /// To `Hello`: the owner's queue pair is ready.
    Welcome { card: Card, proof: Proof },
    /// To `Hello`: the proof does not fit.
    Denied,
    /// To `Hello`: no room.
    Busy,
    /// To `Locate`.
    Region { key: u64, window: Window },
    /// To `Locate`: no such key now.
    NoRegion { key: u64 },
    /// The grant has ended.
    Revoked,
}

impl Reply {
    pub(super) fn to_bytes(self) -> [u8; REPLY_LENGTH] {
        let mut bytes = [0; REPLY_LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        let mut word = |at: usize, word: u64| {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        let kind = match self {
            Reply::Challenge { nonce } => {
                bytes[8..40].copy_from_slice(&nonce);
                1
            }
            Reply::Welcome { card, proof } => {
                bytes[8..40].copy_from_slice(&card.to_bytes());
                bytes[40..72].copy_from_slice(&proof);
                2
            }
            Reply::Denied => 3,
            Reply::Busy => 4,
            Reply::Region { key, window } => {
                word(8, key);
                word(16, window.len);
                word(24, window.source.address);
                word(32, window.source.key.into());
                5
            }
            Reply::NoRegion { key } => {
                word(8, key);
                6
            }
            Reply::Revoked => 7,
        };
        bytes[4] = kind;
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; REPLY_LENGTH]) -> Option<Reply> {
        let body = bytes.strip_prefix(&MAGIC)?;
        let word = |at: usize| {
            body[at..]
                .first_chunk()
                .map(|word| u64::from_le_bytes(*word))
        };
        match body[0] {
            1 => Some(Reply::Challenge {
                nonce: *body[4..].first_chunk()?,
            }),
            2 => Some(Reply::Welcome {
                card: Card::from_bytes(body[4..].first_chunk()?),
                proof: *body[36..].first_chunk()?,
            }),
            3 => Some(Reply::Denied),
            4 => Some(Reply::Busy),
            5 => Some(Reply::Region {
                key: word(4)?,
                window: Window {
                    len: word(12)?,
                    source: Source {
                        address: word(20)?,
                        key: u32::try_from(word(28)?).ok()?,
                    },
                },
            }),
            6 => Some(Reply::NoRegion { key: word(4)? }),
            7 => Some(Reply::Revoked),
            _ => None,
        }
    }
}

/// A frame of `N` bytes that comes in pieces.
pub(super) struct Frame<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

/// What a look at the socket gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Received<const N: usize> {
    /// All of it.
    Whole([u8; N]),
    /// Not all of it yet.
    Part,
    /// The other side has gone.
    Gone,
}

impl<const N: usize> Frame<N> {
    pub(super) fn new() -> Frame<N> {
        Frame {
            bytes: [0; N],
            filled: 0,
        }
    }

    /// Reads what there is, at most to the end of this frame.
    pub(super) fn receive(&mut self, stream: &mut impl Read) -> Received<N> {
        while self.filled < N {
            match stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Received::Gone,
                Ok(length) => self.filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return Received::Part;
                }
                Err(_) => return Received::Gone,
            }
        }
        self.filled = 0;
        Received::Whole(self.bytes)
    }
}

/// Sends a frame at once or not at all: frames are small, and who lets them pile up has stopped listening.
pub(super) fn send(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Card = Card {
        gid: [7; 16],
        number: 0x00ab_cdef,
        sequence: 0x0012_3456,
        message_max: 1 << 23,
        mtu: 5,
        reads: 16,
    };

    #[test]
    fn messages_survive_the_wire() {
        let requests = [
            Request::Hello {
                name: "n".repeat(NAME_LENGTH_MAX),
                card: CARD,
                nonce: [8; 32],
                proof: [9; 32],
            },
            Request::Locate { key: u64::MAX },
        ];
        for request in requests {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        }
        let source = Source {
            address: 1 << 62,
            key: u32::MAX,
        };
        let replies = [
            Reply::Challenge { nonce: [1; 32] },
            Reply::Welcome {
                card: CARD,
                proof: [2; 32],
            },
            Reply::Denied,
            Reply::Busy,
            Reply::Region {
                key: 3,
                window: Window { source, len: 4 },
            },
            Reply::NoRegion { key: 5 },
            Reply::Revoked,
        ];
        for reply in replies {
            assert_eq!(Reply::from_bytes(&reply.to_bytes()), Some(reply));
        }
    }

    #[test]
    fn other_kinds_versions_and_names_past_the_end_are_no_request() {
        let hello = Request::Hello {
            name: "hq/a".to_owned(),
            card: CARD,
            nonce: [0; 32],
            proof: [0; 32],
        };
        let hello = hello.to_bytes();
        for (index, value) in [(0, b'x'), (4, 0), (4, 3), (5, 255), (104, 0xff)] {
            let mut bad = hello;
            bad[index] = value;
            assert!(Request::from_bytes(&bad).is_none(), "byte {index}");
        }
        let mut bad = Reply::Denied.to_bytes();
        bad[4] = 8;
        assert!(Reply::from_bytes(&bad).is_none());
    }

    #[test]
    fn a_proof_fits_one_token_side_name_card_and_pair_of_nonces() {
        let (token, a, b) = ([1; 32], [2; 32], [3; 32]);
        let proof = prove(&token, Side::Reader, [&a, &b], "hq/b", CARD);
        assert!(is_same(
            &proof,
            &prove(&token, Side::Reader, [&a, &b], "hq/b", CARD)
        ));
        let other_card = Card {
            number: CARD.number + 1,
            ..CARD
        };
        for other in [
            prove(&[4; 32], Side::Reader, [&a, &b], "hq/b", CARD),
            prove(&token, Side::Owner, [&a, &b], "hq/b", CARD),
            prove(&token, Side::Reader, [&b, &a], "hq/b", CARD),
            prove(&token, Side::Reader, [&a, &b], "hq/c", CARD),
            prove(&token, Side::Reader, [&a, &b], "hq/b", other_card),
        ] {
            assert!(!is_same(&proof, &other));
        }
    }

    #[test]
    fn a_frame_comes_in_any_pieces_and_ends_where_it_ends() {
        let bytes: Vec<u8> = (0..20).collect();
        let mut frame = Frame::<8>::new();
        let mut first = &bytes[..5];
        assert_eq!(frame.receive(&mut first), Received::Gone, "no more to come");
        let mut rest = &bytes[5..];
        assert_eq!(
            frame.receive(&mut rest),
            Received::Whole([0, 1, 2, 3, 4, 5, 6, 7])
        );
        assert_eq!(
            frame.receive(&mut rest),
            Received::Whole([8, 9, 10, 11, 12, 13, 14, 15])
        );
        assert_eq!(rest.len(), 4);
    }
}
