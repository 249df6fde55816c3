//! UDP sockets for quinn, and the runtime that drives it on a node's own tasks.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};
use socket2::{Domain, Protocol, Socket, Type};

use super::scope::Scope;

/// What is asked of the system, each way: what arrives in 50 ms at 5 Gbit/s would need more than most systems grant, this most do.
const BUFFER_BYTES: usize = 4 << 20;

/// Binds a UDP socket with large buffers.
pub fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let named = |doing: &str, error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("failed to {doing} UDP {address}: {error}"),
        )
    };
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )
    .map_err(|error| named("make a socket for", error))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        // Where the system has no IPv4 beside it, IPv6 alone still works.
        let _ = socket.set_only_v6(false);
    }
    // The system may grant less; that is told, and no error.
    let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(BUFFER_BYTES);
    socket
        .set_nonblocking(true)
        .and_then(|()| socket.bind(&address.into()))
        .map_err(|error| named("bind", error))?;
    let granted = |size: io::Result<usize>| size.unwrap_or(0);
    let receive = granted(socket.recv_buffer_size());
    let send = granted(socket.send_buffer_size());
    if receive.min(send) < BUFFER_BYTES {
        tracing::info!(
            receive,
            send,
            asked = BUFFER_BYTES,
            "the system grants smaller UDP buffers than asked; raise net.core.rmem_max and wmem_max for fast links"
        );
    } else {
        tracing::debug!(receive, send, "UDP buffers");
    }
    Ok(socket.into())
}

/// Tokio's sockets and timers, with quinn's tasks in the node's scope: they end with the node.
pub struct ScopedRuntime {
    pub scope: Scope,
}

impl fmt::Debug for ScopedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScopedRuntime")
    }
}

impl Runtime for ScopedRuntime {
    fn new_timer(&self, instant: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(instant)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.scope.spawn(Box::new(move || future));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
