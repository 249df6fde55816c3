//! UDP sockets for quinn, and the runtime that drives it on a node's own tasks.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};

use super::scope::Scope;
use tombolo_actors::env::DATAGRAM;

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

/// What is asked for, and what the system grants to receive and to send.
pub fn granted() -> (usize, usize, usize) {
    let size = |of: fn(&Socket) -> io::Result<usize>| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        // The system may grant less.
        let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
        let _ = socket.set_send_buffer_size(BUFFER_BYTES);
        of(&socket)
    };
    let receive = size(Socket::recv_buffer_size).unwrap_or(0);
    let send = size(Socket::send_buffer_size).unwrap_or(0);
    (BUFFER_BYTES, receive, send)
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

/// The largest UDP payload of ordinary Ethernet that a path is asked for.
const ORDINARY: u16 = DATAGRAM;
/// That of jumbo frames, IPv4.
const JUMBO: u16 = 9000 - 28;
/// The largest that IPv4 has: what the loopback device carries in one piece.
const LARGEST: u16 = 65_507;
/// Headers of IP and UDP, IPv6 and IPv4.
const HEADERS: [u32; 2] = [48, 28];

/// The largest UDP payload that a socket on an address takes.
pub fn receives(address: SocketAddr) -> u16 {
    match address.ip().to_canonical().is_loopback() {
        true => LARGEST,
        false => JUMBO,
    }
}

/// The largest UDP payload that the first device on the way to a peer carries; ordinary Ethernet's where the system does not say.
pub fn carries(peer: SocketAddr) -> u16 {
    let route = || -> io::Result<u32> {
        let any: SocketAddr = match peer {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Nothing is sent: the system only looks up the route.
        let socket = std::net::UdpSocket::bind(any)?;
        socket.connect(peer)?;
        let mtu = match peer {
            SocketAddr::V4(_) => rustix::net::sockopt::ip_mtu(&socket)?,
            SocketAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(&socket)?,
        };
        Ok(mtu - HEADERS[usize::from(peer.is_ipv4())].min(mtu))
    };
    let payload = route().map_or(ORDINARY, |payload| {
        u16::try_from(payload).unwrap_or(u16::MAX)
    });
    payload.min(receives(peer))
}

/// A socket whose batches of equal datagrams stay within what one `sendmsg` takes, however large the datagrams: one that is too long is
/// refused as a whole, which quinn takes for a path that carries no large packets (quinn#2201).
#[derive(Debug)]
pub struct Batched {
    inner: Arc<dyn AsyncUdpSocket>,
    segments: usize,
}

impl Batched {
    /// For datagrams of up to `payload` bytes.
    pub fn wrap(inner: Arc<dyn AsyncUdpSocket>, payload: u16) -> Arc<dyn AsyncUdpSocket> {
        let most = usize::from(LARGEST / payload.max(1)).max(1);
        let segments = inner.max_transmit_segments().min(most);
        Arc::new(Batched { inner, segments })
    }
}

impl AsyncUdpSocket for Batched {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.segments
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_carries_the_largest_datagrams_and_no_other_address_more_than_jumbo_frames()
     {
        assert_eq!(carries("127.0.0.1:9".parse().unwrap()), LARGEST);
        for far in ["192.0.2.1:9", "[2001:db8::1]:9"] {
            let payload = carries(far.parse().unwrap());
            assert!((1200..=JUMBO).contains(&payload), "{payload}");
        }
        assert_eq!(receives("[::1]:0".parse().unwrap()), LARGEST);
        assert_eq!(receives("0.0.0.0:0".parse().unwrap()), JUMBO);
    }

    /// quinn#2201: a batch of more than the system takes at once would vanish as a whole.
    #[tokio::test]
    async fn no_batch_is_larger_than_one_system_call_takes() {
        for payload in [DATAGRAM, JUMBO, LARGEST] {
            let socket = bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let socket = TokioRuntime.wrap_udp_socket(socket).unwrap();
            let inner = socket.max_transmit_segments();
            let segments = Batched::wrap(socket, payload).max_transmit_segments();
            assert!((1..=inner).contains(&segments));
            assert!(
                segments * usize::from(payload) <= usize::from(LARGEST),
                "{payload}: {segments}"
            );
        }
    }
}
