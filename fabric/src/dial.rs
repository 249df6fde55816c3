//! One bounded attempt to reach the owner of a socket, who must be this user.

#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time"
)]

use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::error::{FabricError, system};

/// Whom to reach, where, and until when.
pub(crate) struct Dial<'a> {
    peer: &'a str,
    address: SocketAddrUnix,
    wait: Duration,
    deadline: Instant,
}

impl<'a> Dial<'a> {
    /// An attempt that ends within `wait` from now.
    pub(crate) fn new(peer: &'a str, address: SocketAddrUnix, wait: Duration) -> Dial<'a> {
        Dial {
            peer,
            address,
            wait,
            deadline: Instant::now() + wait,
        }
    }

    /// A connection whose packets keep their borders.
    pub(crate) fn connect(&self) -> Result<OwnedFd, FabricError> {
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

    /// Makes blocking calls on the socket end by the deadline.
    pub(crate) fn bound_waits(&self, socket: &OwnedFd) -> Result<(), FabricError> {
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

    pub(crate) fn timed_out(&self) -> FabricError {
        FabricError::TimedOut {
            peer: self.peer.to_owned(),
            doing: "connecting to it",
            wait: self.wait,
        }
    }

    pub(crate) fn unreachable(&self, reason: &str) -> FabricError {
        FabricError::Unreachable {
            peer: self.peer.to_owned(),
            reason: reason.to_owned(),
        }
    }

    pub(crate) fn distrusted(&self, reason: &str) -> FabricError {
        FabricError::Distrusted {
            peer: self.peer.to_owned(),
            reason: reason.to_owned(),
        }
    }
}
