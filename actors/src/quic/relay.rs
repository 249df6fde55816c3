//! Paths through a third node, in front of an endpoint's socket: [`tombolo_core::relay`] over QUIC.
//!
//! A *tunnel* is a connection with a relay that carries nothing but datagrams of other connections. To quinn a peer behind a relay is at an address of
//! its own, one of a block that no network routes; what is sent there goes into the tunnel, and what comes out of the tunnel comes from there. So a
//! link through a relay is a link as any other: TLS from end to end, its own congestion law, loss and all.
//!
//! Neither side waits for the other: what does not fit into a tunnel is lost, as in a router.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Connection, UdpPoller, VarInt};
use tokio::sync::mpsc;

use super::routes::Routes;
use super::shaping::locked;
use crate::env::{Class, Env, LocalFuture};
use crate::identity::Identity;
use crate::link::{Attached, UNTRUSTED};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::policy::{self, Action};
use tombolo_core::relay::{DATAGRAM_MAX, Halves, Header, Part, Tag};
use tombolo_core::route::Advice;
use tombolo_core::time::Micros;

/// How often tunnels are looked after.
pub(super) const TEND: Duration = Duration::from_millis(250);

/// How often it is looked whether the certificates of a tunnel still count.
const RECHECK: Duration = Duration::from_secs(1);

/// Nothing passes a tunnel for so long: it is closed, unless the plan has it stand.
const IDLE: Duration = Duration::from_secs(60);

/// The longest wait between two attempts to make a tunnel.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// A tunnel that ends so soon after its handshake was turned away.
const YOUNG: Duration = Duration::from_secs(5);

/// Bytes that came out of tunnels and that quinn has not taken yet; what comes on top is lost.
const INBOX_BYTES: usize = 1 << 20;

/// Datagrams that wait to be put into tunnels.
const OUTBOX_MAX: usize = 1024;

/// What a probe carries: something.
const PROBE: &[u8] = &[0];

/// The close code of a tunnel that another one has taken the place of, or that nobody needs.
const SPARE: VarInt = VarInt::from_u32(27);

/// The block of addresses that stand for a path through a relay: reserved, and routed nowhere (RFC 1112, section 4).
const BLOCK: u8 = 240;

/// Their port: one that nobody dials.
const PORT: u16 = 1;

/// What a path through a relay carries at most.
pub(super) fn carries(address: SocketAddr) -> Option<u16> {
    index(address).map(|_| DATAGRAM_MAX)
}

/// The address that stands for a path.
fn ip(index: usize) -> Ipv4Addr {
    let [.., a, b, c] = index.to_be_bytes();
    Ipv4Addr::new(BLOCK, a, b, c)
}

/// Which path an address stands for.
fn index(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(ip) = address.ip().to_canonical() else {
        return None;
    };
    let [block, rest @ ..] = ip.octets();
    let [a, b, c] = rest.map(usize::from);
    ((block, address.port()) == (BLOCK, PORT)).then_some(a << 16 | b << 8 | c)
}

/// A path from this node to a peer.
#[derive(Debug)]
struct Way {
    /// With whom the tunnel is that it begins with: a relay, or the peer itself where it is only probed.
    relay: NodeId,
    peer: NodeId,
    to: Tag,
}

impl Way {
    fn is_direct(&self) -> bool {
        self.relay == self.peer
    }

    fn header(&self, part: Part, number: u16) -> Header {
        Header {
            part,
            passed_on: self.is_direct(),
            number,
            node: self.to,
        }
    }
}

/// A connection with a relay, or with somebody whom this node is a relay for.
struct Tunnel {
    attached: Attached,
    /// By this node, which looks after it.
    dialled: bool,
    /// Something was sent since the last look.
    moved: bool,
    since: Micros,
    used: Micros,
    looked: Micros,
}

/// All tunnels of a node.
pub struct Tunnels {
    node: NodeId,
    ways: Vec<Way>,
    /// Which of them leads through a relay to a peer.
    by_relay: BTreeMap<(NodeId, Tag), usize>,
    /// For whom something is that somebody sends through this node.
    passes: BTreeMap<(NodeId, Tag), NodeId>,
    may: BTreeSet<NodeId>,
    /// Of those, who can be dialled.
    dialled: BTreeSet<NodeId>,
    standing: BTreeSet<NodeId>,
    number: AtomicU16,
    open: Mutex<BTreeMap<NodeId, Tunnel>>,
    wanted: Mutex<BTreeSet<NodeId>>,
    /// Attempts that have failed: how many, when the next one may begin, and why.
    failed: Mutex<BTreeMap<NodeId, (u32, Micros, String)>>,
    halves: Mutex<BTreeMap<NodeId, Halves>>,
    inbox: Mutex<Inbox>,
    routes: Routes,
    env: Arc<dyn Env>,
}

#[derive(Default)]
struct Inbox {
    datagrams: VecDeque<(usize, Vec<u8>)>,
    bytes: usize,
    waker: Option<Waker>,
}

impl std::fmt::Debug for Tunnels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnels").field("ways", &self.ways).finish()
    }
}

/// Whether the site of a node lets a peer in.
fn joins(plan: &Plan, node: &NodeId, peer: &NodeId) -> bool {
    policy::of(plan, &node.domain(), peer, Action::Join, node).allowed
}

impl Tunnels {
    /// Of a node; none if the plan has none for it.
    pub(super) fn new(env: &Arc<dyn Env>, plan: &Plan, node: &NodeId) -> Option<Arc<Tunnels>> {
        let may: BTreeSet<NodeId> = plan
            .tunnels(node)
            .into_iter()
            .filter(|peer| joins(plan, node, peer))
            .collect();
        if may.is_empty() {
            return None;
        }
        let dialled = may.iter().filter(|peer| !plan.is_outbound_only(peer));
        let dialled: BTreeSet<NodeId> = dialled.cloned().collect();
        let peers = plan.peers(node);
        let ways = peers.iter().flat_map(|peer| {
            let direct = plan.has_choice(node, peer).then(|| Way {
                relay: peer.clone(),
                peer: peer.clone(),
                // As a relay would say it.
                to: Tag::of(node),
            });
            let relays = plan.relays(node, peer).into_iter();
            let relays = relays.map(|relay| Way {
                relay,
                peer: peer.clone(),
                to: Tag::of(peer),
            });
            direct.into_iter().chain(relays)
        });
        let ways: Vec<Way> = ways.collect();
        let mut routes = BTreeMap::new();
        for (index, way) in ways.iter().enumerate() {
            if plan.has_choice(node, &way.peer) && plan.dials_across(node, &way.peer) {
                let of: &mut Vec<usize> = routes.entry(way.peer.clone()).or_default();
                of.push(index);
            }
        }
        let by_relay = ways.iter().enumerate();
        let by_relay =
            by_relay.map(|(index, way)| ((way.relay.clone(), Tag::of(&way.peer)), index));
        let passes = plan.relayed_by(node).into_iter();
        let passes = passes.map(|(from, to)| ((from, Tag::of(&to)), to));
        Some(Arc::new(Tunnels {
            node: node.clone(),
            by_relay: by_relay.collect(),
            passes: passes.collect(),
            standing: &plan.standing_tunnels(node) & &dialled,
            may,
            dialled,
            ways,
            number: AtomicU16::new(0),
            open: Mutex::default(),
            wanted: Mutex::default(),
            failed: Mutex::default(),
            halves: Mutex::default(),
            inbox: Mutex::default(),
            routes: Routes::new(&plan.route, routes),
            env: env.clone(),
        }))
    }

    /// Puts itself in front of a socket.
    pub(super) fn wrap(
        self: &Arc<Self>,
        inner: Arc<dyn AsyncUdpSocket>,
    ) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let (outbox, mut waiting) = mpsc::channel::<(usize, Vec<u8>)>(OUTBOX_MAX);
        let tunnels = Arc::downgrade(self);
        let sends = move || -> LocalFuture {
            Box::pin(async move {
                while let Some((index, datagram)) = waiting.recv().await {
                    let Some(tunnels) = tunnels.upgrade() else {
                        return;
                    };
                    tunnels.send(index, &datagram);
                }
            })
        };
        self.env.spawn(Class::Network, Box::new(sends));
        Ok(Arc::new(Tunnelled {
            is_v6: inner.local_addr()?.is_ipv6(),
            inner,
            outbox,
            tunnels: Arc::downgrade(self),
        }))
    }

    /// The addresses at which a peer is behind each of its relays.
    pub(super) fn addresses(&self, peer: &NodeId) -> Vec<SocketAddr> {
        let ways = self.ways.iter().enumerate();
        let ways = ways.filter(|(_, way)| way.peer == *peer && !way.is_direct());
        ways.map(|(index, _)| SocketAddr::new(ip(index).into(), PORT))
            .collect()
    }

    /// The relay behind which an address is.
    pub(super) fn relay(&self, address: SocketAddr) -> Option<&NodeId> {
        self.ways.get(index(address)?).map(|way| &way.relay)
    }

    /// The addresses of a peer in the order in which they are tried: the way that is wanted, then the direct one, then the others.
    pub(super) fn in_order(&self, peer: &NodeId, direct: Vec<SocketAddr>) -> Vec<SocketAddr> {
        let relayed = self.addresses(peer);
        let wanted = self.routes.wanted(peer);
        let is_taken = |address: &SocketAddr| index(*address) == wanted;
        let (first, rest): (Vec<_>, Vec<_>) = relayed.into_iter().partition(is_taken);
        first.into_iter().chain(direct).chain(rest).collect()
    }

    /// A connection with a peer that this node has dialled leads to that address.
    pub(super) fn took(&self, peer: &NodeId, address: SocketAddr) {
        self.routes.took(peer, index(address), self.env.now());
    }

    /// Probes all ways between which there is a choice, if it is time; peers whose links are to lead another way.
    pub(super) fn route(&self) -> Vec<(NodeId, Advice)> {
        let now = self.env.now();
        let looked = self.routes.look(now);
        for (index, number) in looked.probes {
            if let Some(way) = self.ways.get(index) {
                let header = way.header(Part::Probe, number);
                self.put(&way.relay, header, PROBE);
            }
        }
        looked.changes
    }

    /// Whether there is a tunnel with the relay behind which an address is; if not, it is made. True for any other address.
    pub(super) fn is_ready(&self, address: SocketAddr) -> bool {
        let Some(relay) = self.relay(address) else {
            return true;
        };
        let stands = locked(&self.open).contains_key(relay);
        if !stands {
            locked(&self.wanted).insert(relay.clone());
        }
        stands
    }

    /// An address, for people.
    pub(super) fn shown(&self, address: SocketAddr) -> String {
        let Some(relay) = self.relay(address) else {
            return address.to_string();
        };
        if locked(&self.open).contains_key(relay) {
            return format!("through {relay}");
        }
        match locked(&self.failed).get(relay) {
            Some((.., reason)) => format!("through {relay}, which is not reached ({reason})"),
            None => format!("through {relay}, which is not reached yet"),
        }
    }

    fn is_direct(&self, index: usize) -> bool {
        self.ways.get(index).is_some_and(Way::is_direct)
    }

    /// Whether somebody may have a tunnel with this node.
    pub(super) fn may(&self, peer: &NodeId) -> bool {
        self.may.contains(peer)
    }

    /// Sends a datagram on a path.
    fn send(&self, index: usize, contents: &[u8]) {
        let Some(way) = self.ways.get(index) else {
            return;
        };
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        self.put(&way.relay, way.header(Part::Whole, number), contents);
    }

    /// Puts something into the tunnel with a neighbour; what does not fit is lost.
    fn put(&self, neighbour: &NodeId, header: Header, contents: &[u8]) {
        let connection = match locked(&self.open).get_mut(neighbour) {
            Some(tunnel) => {
                tunnel.moved = true;
                tunnel.attached.connection.clone()
            }
            None => {
                if self.dialled.contains(neighbour) {
                    locked(&self.wanted).insert(neighbour.clone());
                }
                return;
            }
        };
        let Some(room) = connection.max_datagram_size() else {
            return;
        };
        for datagram in header.cut(contents, room) {
            // What is queued leaves first: a queue that is full loses its newest.
            if connection.datagram_send_buffer_space() >= datagram.len() {
                // Fails only with the connection.
                let _ = connection.send_datagram(Bytes::from(datagram));
            }
        }
    }

    /// A neighbour sends something through its tunnel.
    fn receive(&self, from: &NodeId, datagram: &[u8]) {
        let Some((header, contents)) = Header::read(datagram) else {
            return;
        };
        if !header.passed_on {
            let Some(to) = self.passes.get(&(from.clone(), header.node)) else {
                return;
            };
            let header = Header {
                passed_on: true,
                node: Tag::of(from),
                ..header
            };
            return self.put(to, header, contents);
        }
        let Some(index) = self.by_relay.get(&(from.clone(), header.node)) else {
            return;
        };
        let whole = match header.part {
            // A peer that can be dialled has no business in here but probes.
            Part::Whole | Part::First | Part::Second if self.is_direct(*index) => return,
            Part::Whole => Some(contents.to_vec()),
            Part::Probe => {
                if let Some(way) = self.ways.get(*index) {
                    self.put(&way.relay, way.header(Part::Echo, header.number), contents);
                }
                return;
            }
            Part::Echo => return self.routes.answered(*index, header.number, self.env.now()),
            Part::First | Part::Second => {
                let mut halves = locked(&self.halves);
                halves
                    .entry(from.clone())
                    .or_default()
                    .take(header, contents)
            }
        };
        if let Some(whole) = whole {
            self.deliver(*index, whole);
        }
    }

    fn deliver(&self, index: usize, datagram: Vec<u8>) {
        let mut inbox = locked(&self.inbox);
        if inbox.bytes + datagram.len() > INBOX_BYTES {
            return;
        }
        inbox.bytes += datagram.len();
        inbox.datagrams.push_back((index, datagram));
        if let Some(waker) = inbox.waker.take() {
            drop(inbox);
            waker.wake();
        }
    }

    /// A tunnel stands; one with the same neighbour gives way to it, unless both were made at once: then both sides keep the one that the smaller name
    /// has dialled. Says whether it is this one.
    pub(super) fn open(&self, peer: &NodeId, attached: Attached, dialled: bool) -> bool {
        let now = self.env.now();
        let mut open = locked(&self.open);
        let stays = dialled == (self.node < *peer);
        let crosses = |old: &Tunnel| {
            let stands = old.attached.connection.close_reason().is_none();
            stands && old.dialled != dialled && now < old.since + YOUNG && !stays
        };
        if open.get(peer).is_some_and(crosses) {
            attached
                .connection
                .close(SPARE, b"two tunnels were made at once");
            return false;
        }
        let tunnel = Tunnel {
            attached,
            dialled,
            moved: false,
            since: now,
            used: now,
            looked: now,
        };
        if let Some(old) = open.insert(peer.clone(), tunnel) {
            let old = old.attached.connection;
            old.close(SPARE, b"another tunnel takes its place");
        }
        tracing::debug!(node = %self.node, %peer, "a tunnel stands");
        true
    }

    /// Reads a tunnel until it ends.
    pub(super) async fn carry(self: Arc<Self>, peer: NodeId, connection: Connection) {
        while let Ok(datagram) = connection.read_datagram().await {
            self.receive(&peer, &datagram);
        }
        let mut open = locked(&self.open);
        let is_this =
            |tunnel: &Tunnel| tunnel.attached.connection.stable_id() == connection.stable_id();
        if open.get(&peer).is_some_and(is_this) {
            open.remove(&peer);
        }
    }

    /// An attempt to make a tunnel has failed.
    pub(super) fn failed(&self, peer: &NodeId, why: &str) {
        let mut failed = locked(&self.failed);
        let (count, next, reason) = failed.entry(peer.clone()).or_default();
        let wait = TEND * 2u32.pow((*count).min(8));
        *next = self.env.now() + wait.min(WAIT_MAX);
        *count += 1;
        if reason != why {
            tracing::warn!(node = %self.node, %peer, reason = why, "there is no tunnel with a peer");
            why.clone_into(reason);
        }
    }

    /// Neighbours to dial now: those with whom a tunnel is to stand, or for whom there is something, and those who saw another certificate.
    pub(super) fn due(&self, now: Micros, shows: &str) -> Vec<NodeId> {
        let mut all = std::mem::take(&mut *locked(&self.wanted));
        all.extend(self.standing.iter().cloned());
        let (open, failed) = (locked(&self.open), locked(&self.failed));
        all.retain(|peer| !open.contains_key(peer));
        // Whoever has dialled renews.
        let is_old = |tunnel: &Tunnel| tunnel.dialled && tunnel.attached.shown != shows;
        let old = open.iter().filter(|(_, tunnel)| is_old(tunnel));
        all.extend(old.map(|(peer, _)| peer.clone()));
        let waits = |peer: &NodeId| failed.get(peer).is_some_and(|(_, next, _)| now < *next);
        all.into_iter().filter(|peer| !waits(peer)).collect()
    }

    /// Closes what does not count any more, and what nobody has used for long.
    pub(super) fn tend(&self, identity: &dyn Identity, now: Micros, unix_s: u64) {
        let mut open = locked(&self.open);
        for (peer, tunnel) in open.iter_mut() {
            let connection = &tunnel.attached.connection;
            if std::mem::take(&mut tunnel.moved) || self.standing.contains(peer) {
                tunnel.used = now;
            }
            if tunnel.dialled && now >= tunnel.used + IDLE {
                connection.close(SPARE, b"there is nothing to relay");
                continue;
            }
            if now < tunnel.looked + RECHECK {
                continue;
            }
            tunnel.looked = now;
            if now >= tunnel.since + YOUNG {
                locked(&self.failed).remove(peer);
            }
            if let Err(error) = identity.recheck(connection.peer_identity()) {
                connection.close(UNTRUSTED, error.to_string().as_bytes());
            } else if tunnel.attached.until < unix_s {
                connection.close(UNTRUSTED, b"a certificate of this tunnel has expired");
            }
        }
        open.retain(|_, tunnel| tunnel.attached.connection.close_reason().is_none());
    }
}

#[derive(Debug)]
struct Tunnelled {
    inner: Arc<dyn AsyncUdpSocket>,
    /// A connection that sends is locked, and may be the very tunnel that its datagrams would go into: nothing is put into a tunnel from here.
    outbox: mpsc::Sender<(usize, Vec<u8>)>,
    /// The endpoint of this socket lives as long as a tunnel does.
    tunnels: Weak<Tunnels>,
    is_v6: bool,
}

impl Tunnelled {
    /// The address of a path as the endpoint writes it.
    fn address(&self, index: usize) -> SocketAddr {
        let ip = match self.is_v6 {
            true => IpAddr::V6(ip(index).to_ipv6_mapped()),
            false => IpAddr::V4(ip(index)),
        };
        SocketAddr::new(ip, PORT)
    }

    /// Takes what has come out of tunnels; says how many datagrams. Without any, more of it wakes.
    fn take(
        &self,
        tunnels: &Tunnels,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> usize {
        let mut inbox = locked(&tunnels.inbox);
        let mut filled = 0;
        for (buffer, meta) in buffers.iter_mut().zip(meta) {
            let Some((index, datagram)) = inbox.datagrams.pop_front() else {
                break;
            };
            inbox.bytes -= datagram.len();
            // As with UDP, what does not fit is cut off.
            let len = datagram.len().min(buffer.len());
            buffer[..len].copy_from_slice(&datagram[..len]);
            *meta = RecvMeta {
                addr: self.address(index),
                len,
                stride: len,
                ecn: None,
                dst_ip: None,
            };
            filled += 1;
        }
        if filled == 0 {
            inbox.waker = Some(context.waker().clone());
        }
        filled
    }
}

impl AsyncUdpSocket for Tunnelled {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(index) = index(transmit.destination) else {
            return self.inner.try_send(transmit);
        };
        let segment = transmit.segment_size.unwrap_or(transmit.contents.len());
        for datagram in transmit.contents.chunks(segment.max(1)) {
            // As in a router: what does not fit is lost.
            let _ = self.outbox.try_send((index, datagram.to_vec()));
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let tunnels = self.tunnels.upgrade();
        match tunnels.map_or(0, |tunnels| self.take(&tunnels, context, buffers, meta)) {
            0 => self.inner.poll_recv(context, buffers, meta),
            filled => Poll::Ready(Ok(filled)),
        }
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
