//! Paths made worse on purpose, so that `run` on one machine behaves like several sites.
//!
//! What a node sends to a node of another domain is delayed or dropped by the same model that the simulator uses, before the real socket
//! sees it. Who is behind an address is known from what nodes of this process advertise and resolve; what goes elsewhere passes as it is.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::sync::Notify;
use tokio::time::Instant;

use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::{Emulate, LinkPlan};
use tombolo_core::rng::Rng;

use super::scope::Scope;
use crate::sim::LinkModel;
use crate::sim::link::{Fate, Link};

/// The most addresses kept; a federation on one machine has far fewer nodes.
const ADDRESSES_MAX: usize = 4096;

/// Which paths are emulated.
pub struct Emulation {
    seed: u64,
    links: BTreeMap<(DomainId, DomainId), Emulate>,
    domains: Arc<Mutex<BTreeMap<SocketAddr, DomainId>>>,
}

impl Emulation {
    pub fn new(seed: u64, plans: &[LinkPlan]) -> Self {
        let mut links = BTreeMap::new();
        for plan in plans {
            if plan.emulate != Emulate::default() {
                let (a, b) = plan.between.clone();
                links.insert((a.clone(), b.clone()), plan.emulate);
                links.insert((b, a), plan.emulate);
            }
        }
        Emulation {
            seed,
            links,
            domains: Arc::default(),
        }
    }

    /// Whether there is one.
    pub fn is_any(&self) -> bool {
        !self.links.is_empty()
    }

    /// Notes whose address it is.
    pub fn learn(&self, node: &NodeId, addresses: &[SocketAddr]) {
        if self.links.is_empty() {
            return;
        }
        let mut domains = self.domains.lock().expect("no code under this lock panics");
        for address in addresses {
            if domains.len() >= ADDRESSES_MAX {
                domains.pop_first();
            }
            domains.insert(*address, node.domain());
        }
    }

    /// Puts the node's emulated paths in front of its socket; without any, the socket itself.
    pub fn wrap(
        &self,
        node: &NodeId,
        socket: Arc<dyn AsyncUdpSocket>,
        scope: &Scope,
    ) -> Arc<dyn AsyncUdpSocket> {
        let domain = node.domain();
        let links: BTreeMap<DomainId, Link> = self
            .links
            .iter()
            .filter(|((from, _), _)| *from == domain)
            .map(|((_, to), emulate)| {
                let labels = [node.as_str().as_bytes(), to.as_str().as_bytes()];
                let chance = Rng::derive(self.seed, &labels);
                (to.clone(), Link::new(LinkModel::from(*emulate), chance))
            })
            .collect();
        if links.is_empty() {
            return socket;
        }
        let delayed = Arc::new(Delayed {
            start: Instant::now(),
            paths: Mutex::new(Paths {
                links,
                waiting: BTreeMap::new(),
                sequence: 0,
            }),
            earlier: Notify::new(),
        });
        let emulated = Arc::new(EmulatedSocket {
            inner: socket.clone(),
            domains: self.domains.clone(),
            delayed: delayed.clone(),
        });
        scope.spawn(Box::new(move || Box::pin(release(delayed, socket))));
        emulated
    }
}

struct Delayed {
    start: Instant,
    paths: Mutex<Paths>,
    earlier: Notify,
}

impl std::fmt::Debug for Delayed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Delayed")
    }
}

struct Paths {
    links: BTreeMap<DomainId, Link>,
    /// Bounded by what each link lets be on the way.
    waiting: BTreeMap<(u64, u64), Datagram>,
    sequence: u64,
}

struct Datagram {
    domain: DomainId,
    to: SocketAddr,
    contents: Vec<u8>,
    ecn: Option<EcnCodepoint>,
}

impl Paths {
    /// Puts a datagram on the way to a domain; true if it is the next to arrive.
    fn send(&mut self, now: u64, domain: &DomainId, transmit: &Transmit, contents: &[u8]) -> bool {
        let Some(link) = self.links.get_mut(domain) else {
            return false;
        };
        let Fate::Arrives(at, _) = link.send(now, contents.len()) else {
            return false;
        };
        self.sequence += 1;
        let key = (at, self.sequence);
        self.waiting.insert(
            key,
            Datagram {
                domain: domain.clone(),
                to: transmit.destination,
                contents: contents.to_vec(),
                ecn: transmit.ecn,
            },
        );
        self.waiting.keys().next() == Some(&key)
    }

    /// Takes the next datagram if it is due, else tells when one will be.
    fn due(&mut self, now: u64) -> Result<Datagram, Option<u64>> {
        match self.waiting.first_entry() {
            Some(entry) if entry.key().0 <= now => {
                let datagram = entry.remove();
                if let Some(link) = self.links.get_mut(&datagram.domain) {
                    link.leave(datagram.contents.len());
                }
                Ok(datagram)
            }
            entry => Err(entry.map(|entry| entry.key().0)),
        }
    }
}

/// Gives each datagram to the real socket when its time has come.
async fn release(delayed: Arc<Delayed>, socket: Arc<dyn AsyncUdpSocket>) {
    loop {
        let now = crate::sim::nanos(delayed.start.elapsed());
        let due = delayed
            .paths
            .lock()
            .expect("no code under this lock panics")
            .due(now);
        match due {
            Ok(datagram) => {
                // A socket that takes no more drops it, as any full queue on the way would.
                let _ = socket.try_send(&Transmit {
                    destination: datagram.to,
                    ecn: datagram.ecn,
                    contents: &datagram.contents,
                    segment_size: None,
                    src_ip: None,
                });
            }
            Err(Some(at)) => {
                tokio::select! {
                    biased;
                    () = delayed.earlier.notified() => {}
                    () = tokio::time::sleep_until(delayed.start + Duration::from_nanos(at)) => {}
                }
            }
            Err(None) => delayed.earlier.notified().await,
        }
    }
}

#[derive(Debug)]
struct EmulatedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    domains: Arc<Mutex<BTreeMap<SocketAddr, DomainId>>>,
    delayed: Arc<Delayed>,
}

impl AsyncUdpSocket for EmulatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit) -> io::Result<()> {
        let domain = self
            .domains
            .lock()
            .expect("no code under this lock panics")
            .get(&transmit.destination)
            .cloned();
        let mut paths = self
            .delayed
            .paths
            .lock()
            .expect("no code under this lock panics");
        let Some(domain) = domain.filter(|domain| paths.links.contains_key(domain)) else {
            drop(paths);
            return self.inner.try_send(transmit);
        };
        let now = crate::sim::nanos(self.delayed.start.elapsed());
        let whole = transmit.contents.len().max(1);
        let segment = transmit.segment_size.unwrap_or(whole).max(1);
        let mut earlier = false;
        for contents in transmit.contents.chunks(segment) {
            earlier |= paths.send(now, &domain, transmit, contents);
        }
        drop(paths);
        if earlier {
            self.delayed.earlier.notify_one();
        }
        Ok(())
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
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
