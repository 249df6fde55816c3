//! What goes over the UNIX sockets between the first rank and the others. Packets keep their borders, and descriptors come along.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::RANKS_MAX;
use crate::verbs::{NAME_LENGTH_MAX, Token};

/// Says which protocol and version this is.
const MAGIC: [u8; 4] = *b"tbg1";

/// The words, and one descriptor for each rank's life.
const FILES_MAX: usize = 1 + RANKS_MAX;

/// A welcome, the longest.
const LENGTH_MAX: usize = 32 + RANKS_MAX * (1 + NAME_LENGTH_MAX);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    /// From a rank: who it is and what it knows; the first on a connection.
    Hello { name: String, token: Token },
    /// To `Hello`, when all are there: which rank this is, and who the others are. The words and all lives come along.
    Welcome {
        rank: usize,
        id: u64,
        names: Vec<String>,
    },
    /// To `Hello`: name and token do not fit, or it is here already.
    Denied,
    /// To all who ask for a buffer: its memory comes along, of which each rank has so much.
    Memory { stride: u64 },
    /// To all who ask for a buffer: there is no room.
    NoRoom { needed: u64, limit: u64 },
}

impl Message {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        match self {
            Message::Hello { name, token } => {
                bytes.push(1);
                bytes.extend_from_slice(token);
                push_name(&mut bytes, name);
            }
            Message::Welcome { rank, id, names } => {
                bytes.extend_from_slice(&[2, *rank as u8, names.len() as u8]);
                bytes.extend_from_slice(&id.to_le_bytes());
                for name in names {
                    push_name(&mut bytes, name);
                }
            }
            Message::Denied => bytes.push(3),
            Message::Memory { stride } => {
                bytes.push(4);
                bytes.extend_from_slice(&stride.to_le_bytes());
            }
            Message::NoRoom { needed, limit } => {
                bytes.push(5);
                bytes.extend_from_slice(&needed.to_le_bytes());
                bytes.extend_from_slice(&limit.to_le_bytes());
            }
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Message> {
        let (&kind, mut rest) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        let message = match kind {
            1 => {
                let token = *take::<32>(&mut rest)?;
                let name = take_name(&mut rest)?;
                Message::Hello { name, token }
            }
            2 => {
                let &[rank, ranks] = take(&mut rest)?;
                let id = u64::from_le_bytes(*take(&mut rest)?);
                let names: Option<Vec<String>> = (0..ranks).map(|_| take_name(&mut rest)).collect();
                let fits = rank < ranks && usize::from(ranks) <= RANKS_MAX;
                Message::Welcome {
                    rank: rank.into(),
                    id,
                    names: names.filter(|_| fits)?,
                }
            }
            3 => Message::Denied,
            4 => Message::Memory {
                stride: u64::from_le_bytes(*take(&mut rest)?),
            },
            5 => Message::NoRoom {
                needed: u64::from_le_bytes(*take(&mut rest)?),
                limit: u64::from_le_bytes(*take(&mut rest)?),
            },
            _ => return None,
        };
        rest.is_empty().then_some(message)
    }

    /// Sends it with descriptors. Without waiting: who does not take it does not get it.
    pub(super) fn send(&self, socket: &OwnedFd, files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let bytes = self.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            let pushed = ancillary.push(SendAncillaryMessage::ScmRights(files));
            debug_assert!(pushed, "there is space for as many as a group can need");
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).map(|_| ())
    }

    /// Receives one, and the descriptors that come along.
    pub(super) fn receive(
        socket: &OwnedFd,
        flags: RecvFlags,
    ) -> Result<(Message, Vec<OwnedFd>), NoMessage> {
        let mut bytes = [0; LENGTH_MAX + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            flags | RecvFlags::CMSG_CLOEXEC,
        );
        let received = match received {
            Ok(received) if received.bytes == 0 => return Err(NoMessage::Gone),
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Err(NoMessage::Nothing),
            Err(_) => return Err(NoMessage::Gone),
        };
        let mut files = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                files.extend(more);
            }
        }
        // Descriptors are cut off when this process may have no more of them.
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(NoMessage::FilesLost);
        }
        Message::from_bytes(&bytes[..received.bytes])
            .map(|message| (message, files))
            .ok_or(NoMessage::Malformed)
    }
}

/// What came instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoMessage {
    /// Nothing yet.
    Nothing,
    /// The other side has gone.
    Gone,
    /// Not a message of this protocol.
    Malformed,
    /// This process may open no more descriptors.
    FilesLost,
}

fn push_name(bytes: &mut Vec<u8>, name: &str) {
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name.as_bytes());
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, more) = rest.split_first_chunk()?;
    *rest = more;
    Some(taken)
}

fn take_name(rest: &mut &[u8]) -> Option<String> {
    let &[len] = take(rest)?;
    let (name, more) = rest.split_at_checked(len.into())?;
    *rest = more;
    let name = std::str::from_utf8(name).ok()?;
    (name.len() <= NAME_LENGTH_MAX).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_message() -> Vec<Message> {
        vec![
            Message::Hello {
                name: "n".repeat(NAME_LENGTH_MAX),
                token: [9; 32],
            },
            Message::Welcome {
                rank: RANKS_MAX - 1,
                id: 1 << 60,
                names: vec!["n".repeat(NAME_LENGTH_MAX); RANKS_MAX],
            },
            Message::Denied,
            Message::Memory { stride: 1 << 40 },
            Message::NoRoom {
                needed: 3,
                limit: 2,
            },
        ]
    }

    #[test]
    fn messages_survive_the_wire_and_no_prefix_or_addition_is_one() {
        for message in every_message() {
            let bytes = message.to_bytes();
            assert!(bytes.len() <= LENGTH_MAX, "{}", bytes.len());
            for len in 0..bytes.len() {
                assert_eq!(Message::from_bytes(&bytes[..len]), None, "{len}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Message::from_bytes(&longer), None);
            assert_eq!(Message::from_bytes(&bytes), Some(message));
        }
    }

    #[test]
    fn ranks_past_the_end_and_names_that_are_no_text_are_refused() {
        let welcome = Message::Welcome {
            rank: 1,
            id: 0,
            names: vec!["a".into(), "b".into()],
        }
        .to_bytes();
        for (index, value) in [(0, b'x'), (4, 0), (4, 9), (5, 2), (6, 1), (16, 0xff)] {
            let mut bad = welcome.clone();
            bad[index] = value;
            assert_eq!(Message::from_bytes(&bad), None, "byte {index}");
        }
    }
}
