//! The budget of a site's links, in front of its gateway's socket: [`tombolo_core::shaping`] for whatever is sent to a capped domain, by any connection.
//!
//! What must wait waits as one batch in quinn's hands, and not in a queue: acknowledgements, heartbeats and control messages are put into the next
//! datagram that leaves, before tensors.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncTimer, AsyncUdpSocket, Connection, Runtime, UdpPoller};

use crate::env::DATAGRAM;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use tombolo_core::shaping::{Adaptive, Bucket, Cap, Overload, Seen, batch};

/// How often it is looked where the peers are, which rate holds at this time of day, and how the paths do.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// Addresses that are known to be a domain's; more than a federation has gateways.
const ADDRESSES_MAX: usize = 4096;

/// What a node may send to other domains. Cheap to ask where there is no cap.
#[derive(Debug)]
pub struct Shaper {
    runtime: Arc<dyn Runtime>,
    began: Instant,
    lanes: BTreeMap<DomainId, Mutex<Lane>>,
    addresses: Mutex<BTreeMap<SocketAddr, DomainId>>,
    turn: Mutex<Turn>,
    segments: usize,
}

/// What a poller and the socket tell each other. quinn asks a connection's poller right before it sends a batch of it and right after the batch was
/// refused, on one thread; only what is no connection's is sent without.
#[derive(Debug, Default)]
struct Turn {
    /// A poller has said that its connection may send.
    asked: bool,
    /// What it sends next has been paid for.
    paid: bool,
    /// What it wanted to send is paid for, and may leave at that time.
    at: Option<Instant>,
}

/// What goes to one domain.
#[derive(Debug)]
struct Lane {
    cap: Cap,
    bucket: Bucket,
    adaptive: Adaptive,
    /// Of all connections to it, at the last look.
    seen: Counted,
}

/// Datagrams since a connection was made, of all connections.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    sent: u64,
    lost: u64,
}

/// The lowest rate that ever holds towards another domain; none where nothing is capped.
pub(super) fn least(plan: &Plan, node: &NodeId) -> Option<u64> {
    caps(plan, node).map(|(_, cap)| cap.least()).min()
}

/// The largest datagram for such a rate: one that has left within the time that a full bucket covers.
pub(super) fn datagram(least: Option<u64>, carries: u16) -> u16 {
    let fits = |rate| batch(rate, 1).clamp(usize::from(DATAGRAM), usize::from(u16::MAX));
    let most = least.map_or(u16::MAX, |rate| fits(rate) as u16);
    carries.min(most)
}

fn caps<'a>(plan: &'a Plan, node: &NodeId) -> impl Iterator<Item = (&'a DomainId, &'a Cap)> {
    let own = node.domain();
    let others = plan.domains.iter().map(|domain| &domain.id);
    others.filter_map(move |domain| Some((domain, plan.cap(&own, domain)?)))
}

impl Shaper {
    /// Of a node; without a cap there is none.
    pub(super) fn new(
        plan: &Plan,
        node: &NodeId,
        runtime: Arc<dyn Runtime>,
        unix_s: u64,
    ) -> Option<Arc<Shaper>> {
        let lane = |(domain, cap): (&DomainId, &Cap)| {
            let rate = cap.rate_at(unix_s);
            let lane = Lane {
                bucket: Bucket::new(rate, 0),
                adaptive: Adaptive::new(rate),
                cap: cap.clone(),
                seen: Counted::default(),
            };
            (domain.clone(), Mutex::new(lane))
        };
        let least = least(plan, node)?;
        Some(Arc::new(Shaper {
            began: runtime.now(),
            runtime,
            lanes: caps(plan, node).map(lane).collect(),
            addresses: Mutex::default(),
            turn: Mutex::default(),
            segments: batch(least, DATAGRAM),
        }))
    }

    /// Puts itself in front of a socket.
    pub(super) fn wrap(self: Arc<Self>, inner: Arc<dyn AsyncUdpSocket>) -> Arc<dyn AsyncUdpSocket> {
        Arc::new(Shaped {
            inner,
            shaper: self,
        })
    }

    /// Notes that a peer is at an address, whoever was there before.
    pub(super) fn learn(&self, peer: &NodeId, address: SocketAddr) {
        let domain = peer.domain();
        let mut addresses = locked(&self.addresses);
        if !self.lanes.contains_key(&domain) {
            addresses.remove(&address);
            return;
        }
        if addresses.len() >= ADDRESSES_MAX {
            addresses.pop_first();
        }
        addresses.insert(address, domain);
    }

    /// Looks after all connections: where their peers are now, and at which rate each lane goes on.
    pub(super) fn look(&self, connections: &[(NodeId, Connection)], unix_s: u64) {
        for (peer, connection) in connections {
            self.learn(peer, connection.remote_address());
        }
        let now = self.now();
        for (domain, lane) in &self.lanes {
            let to = connections
                .iter()
                .filter(|(peer, _)| peer.domain() == *domain);
            let mut lane = locked(lane);
            let cap = lane.cap.rate_at(unix_s);
            let rate = match lane.cap.overload {
                Overload::Adapt => {
                    let seen = lane.since(to.map(|(_, connection)| connection));
                    lane.adaptive.look(cap, seen)
                }
                Overload::Delay | Overload::Drop => cap,
            };
            if rate != lane.bucket.rate() {
                lane.bucket.set_rate(rate, now);
            }
        }
    }

    fn now(&self) -> u64 {
        let passed = self.runtime.now().saturating_duration_since(self.began);
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether a batch may leave, and whether its destination is capped.
    fn admit(&self, transmit: &Transmit<'_>) -> io::Result<Admitted> {
        let turn = std::mem::take(&mut *locked(&self.turn));
        if turn.paid {
            return Ok(Admitted::Paid);
        }
        let addresses = locked(&self.addresses);
        let lane = addresses.get(&transmit.destination);
        let Some(lane) = lane.and_then(|domain| self.lanes.get(domain)) else {
            return Ok(Admitted::Free);
        };
        let mut lane = locked(lane);
        let (bytes, now) = (transmit.contents.len(), self.now());
        match lane.cap.overload {
            Overload::Drop => match lane.bucket.take(bytes, now) {
                Ok(()) => Ok(Admitted::Paid),
                Err(_) => Ok(Admitted::Dropped),
            },
            // An endpoint's own answer, which waits for nothing.
            Overload::Delay | Overload::Adapt if !turn.asked => {
                let taken = lane.bucket.take(bytes, now);
                taken.map_err(|_| io::ErrorKind::WouldBlock)?;
                Ok(Admitted::Free)
            }
            Overload::Delay | Overload::Adapt => match lane.bucket.reserve(bytes, now) {
                at if at <= now => Ok(Admitted::Paid),
                at => {
                    self.wait(self.began + Duration::from_nanos(at));
                    Err(io::ErrorKind::WouldBlock.into())
                }
            },
        }
    }

    /// Has the poller that is asked next wait for its turn.
    fn wait(&self, at: Instant) {
        locked(&self.turn).at = Some(at);
    }
}

enum Admitted {
    /// Nothing is capped there, or nothing waits for it.
    Free,
    Paid,
    Dropped,
}

impl Lane {
    /// What was seen since the last look.
    fn since<'a>(&mut self, connections: impl Iterator<Item = &'a Connection>) -> Seen {
        let (mut counted, mut round_trip) = (Counted::default(), 0.0_f64);
        for connection in connections {
            let path = connection.stats().path;
            counted.sent += path.sent_packets;
            counted.lost += path.lost_packets;
            round_trip = round_trip.max(path.rtt.as_secs_f64());
        }
        let before = std::mem::replace(&mut self.seen, counted);
        Seen {
            sent: counted.sent.saturating_sub(before.sent),
            lost: counted.lost.saturating_sub(before.lost),
            round_trip,
        }
    }
}

pub(super) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Shaped {
    inner: Arc<dyn AsyncUdpSocket>,
    shaper: Arc<Shaper>,
}

impl AsyncUdpSocket for Shaped {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller {
            inner: self.inner.clone().create_io_poller(),
            shaper: self.shaper.clone(),
            waits: Mutex::default(),
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let admitted = self.shaper.admit(transmit)?;
        if matches!(admitted, Admitted::Dropped) {
            return Ok(());
        }
        let sent = self.inner.try_send(transmit);
        let is_full = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if matches!(admitted, Admitted::Paid) && sent.as_ref().is_err_and(is_full) {
            // It is not paid for again.
            self.shaper.wait(self.shaper.runtime.now());
        }
        sent
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
        self.inner.max_transmit_segments().min(self.shaper.segments)
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

/// Of one connection.
struct Poller {
    inner: Pin<Box<dyn UdpPoller>>,
    shaper: Arc<Shaper>,
    /// Never contended: a poller is polled by its connection alone.
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Waits {
    timer: Option<Pin<Box<dyn AsyncTimer>>>,
    /// What waits is paid for.
    paid: bool,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poller")
    }
}

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let waits = this.waits.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = locked(&this.shaper.turn).at.take() {
            waits.timer = Some(this.shaper.runtime.new_timer(at));
            waits.paid = true;
        }
        if let Some(timer) = &mut waits.timer {
            ready!(timer.as_mut().poll(context));
            waits.timer = None;
        }
        ready!(this.inner.as_mut().poll_writable(context))?;
        let mut turn = locked(&this.shaper.turn);
        turn.asked = true;
        turn.paid = std::mem::take(&mut waits.paid);
        Poll::Ready(Ok(()))
    }
}
