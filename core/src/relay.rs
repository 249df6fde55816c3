//! What travels through a relay: a datagram of a connection between two nodes, in datagrams of the connections that each has with a third one.
//!
//! ```text
//! byte  0        1..3          3..11       11..
//!       form     number        node        of the inner datagram
//!       u8       u16 (LE)      u64 (LE)
//! ```
//!
//! On its way to the relay the header names who it is for, behind it who it is from: the relay knows its neighbours by their certificates and
//! nobody's word. What is inside is a QUIC packet of the two ends; the relay has no key to it.
//!
//! Every path of QUIC must carry datagrams of 1,200 bytes (RFC 9000, section 14), and the header leaves less of a tunnel that carries no more:
//! so up to that size a datagram that does not fit travels as two halves. A larger one that does not fit is lost, as on any path, and the
//! discovery of the inner connection learns from it how large datagrams may be.

use std::collections::VecDeque;

use crate::ids::NodeId;
use crate::tensor::Hash;

/// Bytes before the inner datagram.
pub const HEADER: usize = 11;

/// What every path has to carry.
pub const DATAGRAM_MIN: usize = 1200;

/// The largest datagram that is worth sending through a relay: with headers and tag it fits into one of Ethernet.
pub const DATAGRAM_MAX: u16 = 1400;

/// Halves that wait for their other half; the oldest goes.
const HALVES_MAX: usize = 32;

/// A node in a header: the first eight bytes of the hash of its name. Two nodes with the same one could not be told apart by a relay, and would
/// be found out by their certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u64);

impl Tag {
    /// Of a node.
    pub fn of(node: &NodeId) -> Self {
        let hash = Hash::of_bytes(node.as_str().as_bytes()).0;
        let [a, b, c, d, e, f, g, h, ..] = hash;
        Tag(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// How much of an inner datagram it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// All of it.
    Whole,
    /// The first half; the second has the same number.
    First,
    /// The second half.
    Second,
    /// A question how long it takes there and back, for the other end, which gives its bytes back as they are.
    Probe,
    /// The answer.
    Echo,
}

/// What stands before the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// How much it is.
    pub part: Part,
    /// A relay has passed it on.
    pub passed_on: bool,
    /// The same for both halves.
    pub number: u16,
    /// For whom it is, or from whom.
    pub node: Tag,
}

/// Set in the first byte of what a relay has passed on.
const PASSED_ON: u8 = 4;

impl Header {
    /// Reads a datagram of a tunnel; none if it is none.
    pub fn read(datagram: &[u8]) -> Option<(Header, &[u8])> {
        let (header, contents) = datagram.split_first_chunk::<HEADER>()?;
        let [form, n0, n1, node @ ..] = *header;
        let part = match form & !PASSED_ON {
            0 => Part::Whole,
            1 => Part::First,
            2 => Part::Second,
            8 => Part::Probe,
            9 => Part::Echo,
            _ => return None,
        };
        let header = Header {
            part,
            passed_on: form & PASSED_ON != 0,
            number: u16::from_le_bytes([n0, n1]),
            node: Tag(u64::from_le_bytes(node)),
        };
        Some((header, contents)).filter(|_| !contents.is_empty())
    }

    /// A datagram for a tunnel.
    pub fn write(&self, contents: &[u8]) -> Vec<u8> {
        let form = match self.part {
            Part::Whole => 0,
            Part::First => 1,
            Part::Second => 2,
            Part::Probe => 8,
            Part::Echo => 9,
        };
        let mut datagram = Vec::with_capacity(HEADER + contents.len());
        datagram.push(form | if self.passed_on { PASSED_ON } else { 0 });
        datagram.extend(self.number.to_le_bytes());
        datagram.extend(self.node.0.to_le_bytes());
        datagram.extend_from_slice(contents);
        datagram
    }

    /// The datagrams in which a whole one travels through a tunnel that carries `room` bytes: one, two, or none if it does not fit.
    pub fn cut(self, contents: &[u8], room: usize) -> Vec<Vec<u8>> {
        let fits = |bytes: usize| HEADER + bytes <= room;
        if fits(contents.len()) {
            return vec![self.write(contents)];
        }
        let half = contents.len().div_ceil(2);
        if self.part != Part::Whole || contents.len() > DATAGRAM_MIN || !fits(half) {
            return Vec::new();
        }
        let (first, second) = contents.split_at(half);
        let of = |part| Header { part, ..self };
        vec![of(Part::First).write(first), of(Part::Second).write(second)]
    }
}

/// Puts halves together again.
#[derive(Debug, Default)]
pub struct Halves {
    waiting: VecDeque<(Header, Vec<u8>)>,
}

impl Halves {
    /// Takes a piece; gives the datagram that is whole with it.
    pub fn take(&mut self, header: Header, contents: &[u8]) -> Option<Vec<u8>> {
        let other = match header.part {
            Part::Whole => return Some(contents.to_vec()),
            Part::Probe | Part::Echo => return None,
            Part::First => Part::Second,
            Part::Second => Part::First,
        };
        if contents.len() > DATAGRAM_MIN {
            return None;
        }
        let other = Header {
            part: other,
            ..header
        };
        let found = self.waiting.iter().position(|(of, _)| *of == other);
        let Some((_, theirs)) = found.and_then(|index| self.waiting.remove(index)) else {
            if self.waiting.len() >= HALVES_MAX {
                self.waiting.pop_front();
            }
            self.waiting.push_back((header, contents.to_vec()));
            return None;
        };
        let (first, second) = match header.part {
            Part::Second => (&theirs[..], contents),
            _ => (contents, &theirs[..]),
        };
        Some([first, second].concat())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(number: u16) -> Header {
        Header {
            part: Part::Whole,
            passed_on: false,
            number,
            node: Tag::of(&"plant/gate".parse().unwrap()),
        }
    }

    fn pieces(number: u16, contents: &[u8], room: usize) -> Vec<Vec<u8>> {
        header(number).cut(contents, room)
    }

    #[test]
    fn the_bytes_are_these() {
        let tag = Tag(0x0807_0605_0403_0201);
        let header = Header {
            part: Part::Second,
            passed_on: true,
            number: 0x0A09,
            node: tag,
        };
        let bytes = header.write(b"x");
        assert_eq!(bytes, [6, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, b'x']);
        assert_eq!(Header::read(&bytes), Some((header, &b"x"[..])));
        assert_eq!(Header::read(&bytes[..HEADER]), None, "nothing inside");
        assert_eq!(Header::read(&[3; 20]), None, "a form that there is not");
    }

    #[test]
    fn what_must_fit_travels_in_halves_and_what_need_not_is_lost() {
        let room = 1180;
        assert_eq!(pieces(1, &[7; 1169], room).len(), 1);
        assert_eq!(pieces(1, &[7; 1170], room).len(), 2);
        assert_eq!(pieces(1, &[7; DATAGRAM_MIN], room).len(), 2);
        assert_eq!(pieces(1, &[7; DATAGRAM_MIN + 1], room).len(), 0);
        assert_eq!(pieces(1, &[7; DATAGRAM_MIN], 600).len(), 0);
        // A relay whose next tunnel is narrower cannot cut again.
        let half = Header {
            part: Part::First,
            ..header(1)
        };
        assert_eq!(half.cut(&[7; 600], 500).len(), 0);
    }

    #[test]
    fn halves_that_nobody_completes_are_forgotten() {
        let mut halves = Halves::default();
        for number in 0..1000 {
            let pieces = pieces(number, &[7; 1200], 1180);
            let (header, contents) = Header::read(&pieces[0]).unwrap();
            assert_eq!(halves.take(header, contents), None);
            assert!(halves.waiting.len() <= HALVES_MAX);
        }
    }

    proptest! {
        /// However large, in whatever order the halves come, among others: the same bytes or none.
        #[test]
        fn what_arrives_is_what_was_sent(
            sizes in prop::collection::vec(1usize..1400, 1..8),
            room in 620usize..1420,
            order in any::<u64>(),
        ) {
            let mut sent = Vec::new();
            let mut on_their_way = Vec::new();
            for (number, size) in sizes.into_iter().enumerate() {
                let contents: Vec<u8> = (0..size).map(|at| (at * 7 + number) as u8).collect();
                let pieces = pieces(number as u16, &contents, room);
                if !pieces.is_empty() {
                    sent.push(contents);
                }
                on_their_way.extend(pieces);
            }
            let mut rng = crate::rng::Rng::new(order);
            let mut halves = Halves::default();
            let mut arrived = Vec::new();
            while !on_their_way.is_empty() {
                let index = rng.below(on_their_way.len() as u64) as usize;
                let piece = on_their_way.swap_remove(index);
                prop_assert!(piece.len() <= room);
                let (header, contents) = Header::read(&piece).unwrap();
                arrived.extend(halves.take(header, contents));
            }
            sent.sort();
            arrived.sort();
            prop_assert_eq!(arrived, sent);
            prop_assert!(halves.waiting.is_empty());
        }

        #[test]
        fn any_bytes_are_a_datagram_or_none(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some((header, contents)) = Header::read(&bytes) {
                prop_assert_eq!(header.write(contents), bytes);
            }
        }
    }
}
