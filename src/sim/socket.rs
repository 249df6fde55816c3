//! What quinn sees of a simulation: a socket, a runtime and timers with nanoseconds.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, UdpPoller};

use super::network::{Key, Network};
use super::skew::Clocks;
use crate::world::scope::Scope;

/// A bound port of a node.
#[derive(Debug)]
pub struct SimSocket {
    network: Network,
    local: SocketAddr,
    id: u64,
}

impl SimSocket {
    pub fn new(network: Network, (local, id): (SocketAddr, u64)) -> Self {
        network.living().sockets.fetch_add(1, Ordering::Relaxed);
        SimSocket { network, local, id }
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        self.network.unbind(self.local, self.id);
        let living = self.network.living();
        living.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsyncUdpSocket for SimSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        let whole = transmit.contents.len().max(1);
        let segment = transmit.segment_size.unwrap_or(whole).max(1);
        for contents in transmit.contents.chunks(segment) {
            let socket = (self.local, self.id);
            self.network
                .send(socket, transmit.destination, contents, transmit.ecn);
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some(datagram) = self.network.receive((self.local, self.id), context)? else {
                break;
            };
            // As with UDP, what does not fit is cut off.
            let len = datagram.contents.len().min(buffer.len());
            buffer[..len].copy_from_slice(&datagram.contents[..len]);
            *meta = RecvMeta {
                addr: datagram.from,
                len,
                stride: len,
                ecn: datagram.ecn,
                dst_ip: None,
            };
            filled += 1;
        }
        if filled == 0 {
            Poll::Pending
        } else {
            Poll::Ready(Ok(filled))
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn max_transmit_segments(&self) -> usize {
        10
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Quinn's runtime on one node.
pub struct SimRuntime {
    pub network: Network,
    pub scope: Scope,
    pub clocks: Clocks,
}

impl fmt::Debug for SimRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimRuntime")
    }
}

impl Runtime for SimRuntime {
    fn new_timer(&self, instant: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let (network, clocks) = (self.network.clone(), self.clocks.clone());
        let at = clocks.world(network.since_start(instant));
        Box::pin(NodeTimer {
            timer: Timer::new(network, at),
            clocks,
        })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.scope.spawn(Box::new(move || future));
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "a simulation has no real sockets",
        ))
    }

    fn now(&self) -> Instant {
        self.network.instant(&self.clocks)
    }
}

/// A timer that follows a node's clock.
#[derive(Debug)]
struct NodeTimer {
    timer: Timer,
    clocks: Clocks,
}

impl AsyncTimer for NodeTimer {
    fn reset(mut self: Pin<&mut Self>, instant: Instant) {
        let at = self.clocks.world(self.timer.network.since_start(instant));
        self.timer.set(at);
    }

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.timer).poll(context)
    }
}

/// Ends at one nanosecond of the simulation.
#[derive(Debug)]
pub struct Timer {
    network: Network,
    at: u64,
    key: Option<Key>,
}

impl Timer {
    pub fn new(network: Network, at: u64) -> Self {
        network.living().timers.fetch_add(1, Ordering::Relaxed);
        Timer {
            network,
            at,
            key: None,
        }
    }

    /// Lets it end at another nanosecond.
    pub fn set(&mut self, at: u64) {
        self.disarm();
        self.at = at;
    }

    fn disarm(&mut self) {
        if let Some(key) = self.key.take() {
            self.network.cancel(key);
        }
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.network.now() >= self.at {
            self.disarm();
            return Poll::Ready(());
        }
        let waker = context.waker();
        let armed = self
            .key
            .is_some_and(|key| self.network.set_waker(key, waker));
        if !armed {
            self.key = Some(self.network.schedule(self.at, Some(waker.clone())));
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.disarm();
        let living = self.network.living();
        living.timers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sim::SimWorld;

    #[test]
    fn a_timer_that_is_reset_or_dropped_leaves_no_event_behind() {
        let world = SimWorld::new(1);
        world
            .run(|world| async move {
                let network = world.shared.network.clone();
                let runtime = SimRuntime {
                    network: network.clone(),
                    scope: Scope::new(),
                    clocks: Clocks::default(),
                };
                let before = network.load().events;
                let at = |seconds| runtime.now() + Duration::from_secs(seconds);
                let mut timer = runtime.new_timer(at(1));
                for seconds in 2..100 {
                    let armed = std::future::poll_fn(|context| {
                        let poll = timer.as_mut().poll(context);
                        Poll::Ready(poll.is_pending() && timer.as_mut().poll(context).is_pending())
                    });
                    assert!(armed.await);
                    assert_eq!(network.load().events, before + 1);
                    timer.as_mut().reset(at(seconds));
                }
                drop(timer);
                assert_eq!(network.load().events, before);
            })
            .unwrap();
    }
}
