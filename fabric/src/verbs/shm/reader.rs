//! The reader's side of a connection: greets, asks for memory once per key, maps it, and copies.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::board::ForeignBoard;
use super::folder::{Address, Folder};
use super::message::{self, NoReply, Reply, Request};
use super::system;
use super::table::{Pass, Shared};
use crate::error::{CompletionError, FabricError};
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
    let dial = Dial {
        peer,
        address: folder.resolve(peer, address)?,
        deadline: Instant::now() + CONNECT_WAIT,
    };
    let hello = Request::Hello {
        name: shared.owner.clone(),
        token: *token,
    };
    let (socket, reply, file) = dial.greet(&hello)?;
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

/// One bounded attempt to get through to an owner.
struct Dial<'a> {
    peer: &'a str,
    address: SocketAddrUnix,
    deadline: Instant,
}

impl Dial<'_> {
    /// Connects, greets and takes the answer. Under a flood of strangers the owner may close on us before it has read our greeting;
    /// then we come again.
    fn greet(&self, hello: &Request) -> Result<(OwnedFd, Reply, Option<OwnedFd>), FabricError> {
        for _ in 0..GREETINGS_MAX {
            let socket = self.connect()?;
            if message::send_request(&socket, hello, SendFlags::empty()).is_err() {
                continue;
            }
            match self.receive(&socket)? {
                Ok((reply, file)) => return Ok((socket, reply, file)),
                Err(NoReply::Malformed) => return Err(self.distrusted(NO_ANSWER)),
                Err(NoReply::Gone | NoReply::Nothing) => {}
            }
        }
        Err(self.unreachable("it closes every connection"))
    }

    fn connect(&self) -> Result<OwnedFd, FabricError> {
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(system("making a UNIX socket"))?;
        loop {
            self.bound_waits(&socket)?;
            match rustix::net::connect(&socket, &self.address) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(self.timed_out()),
                Err(errno) => return Err(self.unreachable(&errno.to_string())),
            }
        }
        let user = sockopt::socket_peercred(&socket)
            .map_err(system("asking who listens"))?
            .uid;
        if user != rustix::process::geteuid() {
            let reason = format!("its process runs as user {}", user.as_raw());
            return Err(self.distrusted(&reason));
        }
        Ok(socket)
    }

    fn receive(
        &self,
        socket: &OwnedFd,
    ) -> Result<Result<(Reply, Option<OwnedFd>), NoReply>, FabricError> {
        loop {
            self.bound_waits(socket)?;
            match message::receive_reply(socket, RecvFlags::empty()) {
                Err(NoReply::Nothing) => {}
                reply => return Ok(reply),
            }
        }
    }

    /// Makes blocking calls on the socket end by the deadline.
    fn bound_waits(&self, socket: &OwnedFd) -> Result<(), FabricError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timed_out());
        }
        // A timeout of zero would mean none.
        let left = Some(left.max(Duration::from_millis(1)));
        sockopt::set_socket_timeout(socket, Timeout::Send, left)
            .and_then(|()| sockopt::set_socket_timeout(socket, Timeout::Recv, left))
            .map_err(system("bounding the waits of a UNIX socket"))
    }

    fn timed_out(&self) -> FabricError {
        FabricError::TimedOut {
            peer: self.peer.to_owned(),
            doing: "connecting to it",
            wait: CONNECT_WAIT,
        }
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
