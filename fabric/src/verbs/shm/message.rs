//! What goes over the UNIX socket: one fixed-size request, one fixed-size reply with at most one descriptor. Packets keep their borders.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::verbs::{NAME_LENGTH_MAX, Token};

/// Says which protocol and version this is.
const MAGIC: [u8; 4] = *b"tbf1";

pub(super) const REQUEST_LENGTH: usize = 40 + NAME_LENGTH_MAX;
pub(super) const REPLY_LENGTH: usize = 24;

/// From a reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Who it is and what it knows; the first on a connection.
    Hello { name: String, token: Token },
    /// The memory behind a key.
    Map { key: u64 },
}

impl Request {
    pub(super) fn to_bytes(&self) -> [u8; REQUEST_LENGTH] {
        let mut bytes = [0; REQUEST_LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        match self {
            Request::Hello { name, token } => {
                bytes[4] = 1;
                bytes[5] = name.len() as u8;
                bytes[8..40].copy_from_slice(token);
                bytes[40..40 + name.len()].copy_from_slice(name.as_bytes());
            }
            Request::Map { key } => {
                bytes[4] = 2;
                bytes[8..16].copy_from_slice(&key.to_le_bytes());
            }
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; REQUEST_LENGTH] = bytes.try_into().ok()?;
        let body = bytes.strip_prefix(&MAGIC)?;
        match body[0] {
            1 => {
                let name = body[36..].get(..body[1].into())?;
                Some(Request::Hello {
                    name: std::str::from_utf8(name).ok()?.to_owned(),
                    token: *body[4..].first_chunk()?,
                })
            }
            2 => Some(Request::Map {
                key: u64::from_le_bytes(*body[4..].first_chunk()?),
            }),
            _ => None,
        }
    }
}

/// From the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// To `Hello`: which word of the board, which comes along, tells that the grant holds.
    Welcome { seat: u16, grant: u64 },
    /// To `Hello`: name and token do not fit.
    Denied,
    /// To `Hello`: no room.
    Busy,
    /// To `Map`: the memory comes along.
    Memory { key: u64, len: u64 },
    /// To `Map`: no such key now.
    NoRegion { key: u64 },
}

impl Reply {
    pub(super) fn to_bytes(self) -> [u8; REPLY_LENGTH] {
        let (kind, seat, first, second) = match self {
            Reply::Welcome { seat, grant } => (1, seat, grant, 0),
            Reply::Denied => (2, 0, 0, 0),
            Reply::Busy => (3, 0, 0, 0),
            Reply::Memory { key, len } => (4, 0, key, len),
            Reply::NoRegion { key } => (5, 0, key, 0),
        };
        let mut bytes = [0; REPLY_LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = kind;
        bytes[6..8].copy_from_slice(&seat.to_le_bytes());
        bytes[8..16].copy_from_slice(&first.to_le_bytes());
        bytes[16..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Reply> {
        let bytes: &[u8; REPLY_LENGTH] = bytes.try_into().ok()?;
        let body = bytes.strip_prefix(&MAGIC)?;
        let seat = u16::from_le_bytes(*body[2..].first_chunk()?);
        let first = u64::from_le_bytes(*body[4..].first_chunk()?);
        let second = u64::from_le_bytes(*body[12..].first_chunk()?);
        match body[0] {
            1 => Some(Reply::Welcome { seat, grant: first }),
            2 => Some(Reply::Denied),
            3 => Some(Reply::Busy),
            4 => Some(Reply::Memory {
                key: first,
                len: second,
            }),
            5 => Some(Reply::NoRegion { key: first }),
            _ => None,
        }
    }
}

/// Sends a request. `DONTWAIT` in `flags` makes it return at once.
pub(super) fn send_request(
    socket: &OwnedFd,
    request: &Request,
    flags: SendFlags,
) -> Result<(), Errno> {
    rustix::net::send(socket, &request.to_bytes(), flags | SendFlags::NOSIGNAL).map(|_| ())
}

/// Receives a request without waiting; descriptors that come along are closed by the kernel. Length zero: the other side has gone.
pub(super) fn receive_request(
    socket: &OwnedFd,
    buffer: &mut [u8; REQUEST_LENGTH + 1],
) -> Result<usize, Errno> {
    rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT).map(|(length, _)| length)
}

/// Sends a reply without waiting: who does not take it does not get it.
pub(super) fn send_reply(
    socket: &OwnedFd,
    reply: Reply,
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let bytes = reply.to_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = file.as_slice();
    if !files.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(files));
        debug_assert!(pushed, "the space is for one descriptor");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).map(|_| ())
}

/// What came instead of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoReply {
    /// Nothing yet.
    Nothing,
    /// The other side has gone.
    Gone,
    /// Not a reply of this protocol.
    Malformed,
}

/// Receives a reply and its descriptor.
pub(super) fn receive_reply(
    socket: &OwnedFd,
    flags: RecvFlags,
) -> Result<(Reply, Option<OwnedFd>), NoReply> {
    let mut bytes = [0; REPLY_LENGTH + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket.as_fd(),
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        flags | RecvFlags::CMSG_CLOEXEC,
    );
    let received = match received {
        Ok(received) if received.bytes == 0 => return Err(NoReply::Gone),
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Err(NoReply::Nothing),
        Err(_) => return Err(NoReply::Gone),
    };
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(NoReply::Malformed);
    }
    Reply::from_bytes(&bytes[..received.bytes])
        .map(|reply| (reply, file))
        .ok_or(NoReply::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire() {
        let requests = [
            Request::Hello {
                name: "n".repeat(NAME_LENGTH_MAX),
                token: [9; 32],
            },
            Request::Map { key: u64::MAX },
        ];
        for request in requests {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        }
        let replies = [
            Reply::Welcome {
                seat: 513,
                grant: 1 << 60,
            },
            Reply::Denied,
            Reply::Busy,
            Reply::Memory { key: 3, len: 4 },
            Reply::NoRegion { key: 5 },
        ];
        for reply in replies {
            assert_eq!(Reply::from_bytes(&reply.to_bytes()), Some(reply));
        }
    }

    #[test]
    fn other_lengths_kinds_versions_and_names_past_the_end_are_no_request() {
        let hello = Request::Hello {
            name: "hq/a".to_owned(),
            token: [0; 32],
        }
        .to_bytes();
        assert!(Request::from_bytes(&hello[..REQUEST_LENGTH - 1]).is_none());
        assert!(Request::from_bytes(&[&hello[..], &[0]].concat()).is_none());
        for (index, value) in [(0, b'x'), (4, 0), (4, 3), (5, 255), (40, 0xff)] {
            let mut bad = hello;
            bad[index] = value;
            assert!(Request::from_bytes(&bad).is_none(), "byte {index}");
        }
    }
}
