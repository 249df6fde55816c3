//! The reader's side of a connection: greets, asks for memory once per key, maps it, and copies.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::board::ForeignBoard;
use super::message::{self, NoReply, Reply, Request};
use super::table::{Pass, Shared};
use crate::dial::Dial;
use crate::error::{CompletionError, FabricError, system};
use crate::folder::{Address, Folder};
use crate::pages::{ForeignPages, MapError};
use crate::region::RemoteRegion;
use crate::verbs::in_order::{InOrder, Wire, check_bounds};
use crate::verbs::{QueuePair, Token};

/// How long to wait for an owner to accept and to answer. It answers from a thread that does nothing else.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// Greetings in one attempt to connect: an owner that closes so many times does not want us.
const GREETINGS_MAX: usize = 16;

/// Mapped regions of one peer; the one unused for longest makes room. A node exports a handful.
const MAPPINGS_MAX: usize = 64;

/// Connects to the owner at `address` as this device's owner.
pub(super) fn connect(
    shared: &Arc<Shared>,
    folder: &Folder,
    peer: &str,
    token: &Token,
    address: &Address,
) -> Result<Box<dyn QueuePair>, FabricError> {
    if shared.is_closed() {
        return Err(FabricError::Closed {
            owner: shared.owner.clone(),
        });
    }
    let dial = Dial::new(peer, folder.resolve(peer, address)?, CONNECT_WAIT);
    let hello = Request::Hello {
        name: shared.owner.clone(),
        token: *token,
    };
    let (socket, reply, file) = greet(&dial, &hello)?;
    let (pass, board) = match (reply, file) {
        (Reply::Welcome { seat, grant }, Some(board)) => (Pass { seat, grant }, board),
        (Reply::Denied, None) => {
            return Err(FabricError::Denied {
                peer: peer.to_owned(),
            });
        }
        (Reply::Busy, None) => {
            return Err(FabricError::Busy {
                peer: peer.to_owned(),
            });
        }
        _ => return Err(dial.distrusted(NO_ANSWER)),
    };
    let board = ForeignBoard::map(board.as_fd()).map_err(|error| match error {
        MapError::Unsafe(reason) => dial.distrusted(reason),
        MapError::System(errno) => system("mapping the peer's board")(errno),
    })?;
    shared.queue_pairs.fetch_add(1, Ordering::Relaxed);
    let wire = Reader {
        shared: shared.clone(),
        socket,
        board,
        pass,
        mapped: Vec::new(),
        asked: None,
    };
    Ok(InOrder::connected(peer, shared.id, shared.limits, wire))
}

const NO_ANSWER: &str = "it did not answer our greeting as agreed";

/// Connects, greets and takes the answer. Under a flood of strangers the owner may close on us before it has read our greeting; then we come
/// again.
fn greet(
    dial: &Dial<'_>,
    hello: &Request,
) -> Result<(OwnedFd, Reply, Option<OwnedFd>), FabricError> {
    for _ in 0..GREETINGS_MAX {
        let socket = dial.connect()?;
        if message::send_request(&socket, hello, SendFlags::empty()).is_err() {
            continue;
        }
        match receive(dial, &socket)? {
            Ok((reply, file)) => return Ok((socket, reply, file)),
            Err(NoReply::Malformed) => return Err(dial.distrusted(NO_ANSWER)),
            Err(NoReply::Gone | NoReply::Nothing) => {}
        }
    }
    Err(dial.unreachable("it closes every connection"))
}

fn receive(
    dial: &Dial<'_>,
    socket: &OwnedFd,
) -> Result<Result<(Reply, Option<OwnedFd>), NoReply>, FabricError> {
    loop {
        dial.bound_waits(socket)?;
        match message::receive_reply(socket, RecvFlags::empty()) {
            Err(NoReply::Nothing) => {}
            reply => return Ok(reply),
        }
    }
}

struct Reader {
    /// Of this side's device.
    shared: Arc<Shared>,
    socket: OwnedFd,
    board: ForeignBoard,
    pass: Pass,
    /// By time of use, the latest last.
    mapped: Vec<(u64, ForeignPages)>,
    /// The key for which a reply is due.
    asked: Option<u64>,
}

impl Reader {
    /// Makes the key's memory the last of `mapped`.
    fn find(&mut self, key: u64) -> Poll<Result<(), CompletionError>> {
        if let Some(index) = self.mapped.iter().position(|(mapped, _)| *mapped == key) {
            self.mapped[index..].rotate_left(1);
            return Poll::Ready(Ok(()));
        }
        if self.asked.is_none() {
            match message::send_request(&self.socket, &Request::Map { key }, SendFlags::DONTWAIT) {
                Ok(()) => self.asked = Some(key),
                Err(Errno::AGAIN | Errno::INTR) => return Poll::Pending,
                Err(_) => return Poll::Ready(Err(self.gone())),
            }
        }
        let reply = message::receive_reply(&self.socket, RecvFlags::DONTWAIT);
        if reply.as_ref().err() == Some(&NoReply::Nothing) {
            return Poll::Pending;
        }
        self.asked = None;
        Poll::Ready(match reply {
            Ok((Reply::Memory { key: given, len }, Some(file))) if given == key => {
                self.map(key, len, &file)
            }
            Ok((Reply::NoRegion { key: given }, None)) if given == key => {
                Err(CompletionError::RemoteKey { key })
            }
            Err(NoReply::Gone | NoReply::Nothing) => Err(self.gone()),
            Ok(_) | Err(NoReply::Malformed) => Err(CompletionError::PeerMisbehaved(
                "it did not answer our request as agreed",
            )),
        })
    }

    fn map(&mut self, key: u64, len: u64, file: &OwnedFd) -> Result<(), CompletionError> {
        let pages = ForeignPages::map(file.as_fd(), len).map_err(|error| match error {
            MapError::Unsafe(reason) => CompletionError::PeerMisbehaved(reason),
            MapError::System(_) => CompletionError::Exhausted("address space for mappings"),
        })?;
        if self.mapped.len() >= MAPPINGS_MAX {
            self.mapped.remove(0);
        }
        self.mapped.push((key, pages));
        Ok(())
    }

    /// Why the connection ended.
    fn gone(&self) -> CompletionError {
        if self.board.is_open() && !self.board.has_grant(self.pass.seat, self.pass.grant) {
            CompletionError::Revoked
        } else {
            CompletionError::PeerGone
        }
    }
}

impl Wire for Reader {
    fn fetch(
        &mut self,
        remote: &RemoteRegion,
        offset: u64,
        target: &mut [u8],
    ) -> Poll<Result<(), CompletionError>> {
        if self.shared.is_closed() {
            return Poll::Ready(Err(CompletionError::DeviceClosed));
        }
        if !self.board.is_open() || !self.board.has_grant(self.pass.seat, self.pass.grant) {
            return Poll::Ready(Err(self.gone()));
        }
        // Memory of dropped regions is held by mappings only: let it go. What is left may be read, whatever became of its owner.
        self.mapped.retain(|(key, _)| self.board.has_region(*key));
        match self.find(remote.key) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
        let (_, pages) = self.mapped.last().expect("`find` has put it there");
        let copied = check_bounds(remote, pages.len() as u64, offset, target.len())
            .map(|offset| pages.copy_to(offset, target));
        Poll::Ready(copied)
    }

    fn wait(&mut self, span: Duration) {
        let awaited = if self.asked.is_some() {
            PollFlags::IN
        } else {
            PollFlags::OUT
        };
        let mut file = [PollFd::new(&self.socket, awaited)];
        if let Ok(span) = Timespec::try_from(span) {
            // Whatever ends the wait, the next poll finds out.
            let _ = rustix::event::poll(&mut file, Some(&span));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.queue_pairs.fetch_sub(1, Ordering::Relaxed);
    }
}
