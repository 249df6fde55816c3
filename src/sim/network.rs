//! Every datagram and every timer of a simulation, in one list ordered by (time, order of arrival).

mod clock;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Waker};
use std::time::Duration;

use quinn::udp::EcnCodepoint;

use tombolo_core::ids::NodeId;
use tombolo_core::rng::Rng;

use clock::Clock;

use super::link::{Fate, Link, LinkModel, LinkStatistics, PathFault};
use super::trace::{Noted, Trace, TraceEvent, TraceKind};

/// What a socket holds for a reader that does not come, as `SO_RCVBUF` does.
pub const INBOX_BYTES_MAX: usize = 4 << 20;

/// The first port given to who asks for any.
const PORT_FIRST: u16 = 40_000;

/// The network and its clock; a handle.
#[derive(Clone)]
pub struct Network {
    inner: Arc<Mutex<Inner>>,
    living: Arc<Living>,
}

/// Sockets and timers that were made and not dropped.
#[derive(Debug, Default)]
pub struct Living {
    pub sockets: AtomicUsize,
    pub timers: AtomicUsize,
}

/// What a network holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes in the fullest socket.
    pub inbox_bytes: usize,
    /// Bytes on the fullest path.
    pub in_flight_bytes: u64,
    /// Wake-ups and arrivals to come.
    pub events: usize,
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Network")
    }
}

/// When an event fires; unique.
pub type Key = (u64, u64);

/// A datagram in a socket.
pub struct Received {
    pub from: SocketAddr,
    pub contents: Vec<u8>,
    pub ecn: Option<EcnCodepoint>,
}

enum Event {
    Arrive { to: SocketAddr, datagram: Received },
    Wake(Option<Waker>),
}

struct Socket {
    id: u64,
    inbox: VecDeque<Received>,
    inbox_bytes: usize,
    waker: Option<Waker>,
    /// With whom it has spoken, and whether it spoke first.
    flows: BTreeMap<SocketAddr, bool>,
}

struct Inner {
    seed: u64,
    clock: Clock,
    sequence: u64,
    events: BTreeMap<Key, Event>,
    sockets: BTreeMap<SocketAddr, Socket>,
    links: BTreeMap<(Ipv6Addr, Ipv6Addr), Link>,
    lan: LinkModel,
    wan: LinkModel,
    nodes: BTreeMap<Ipv6Addr, Node>,
    trace: Trace,
    root: Option<Waker>,
    /// The millisecond at which the root future shall be woken.
    awaited: Option<u64>,
}

struct Node {
    id: NodeId,
    next_port: u16,
    /// What a translation adds to the ports from which it sends.
    shift: u16,
    /// Its site lets nothing in from outside but answers.
    is_shut: bool,
}

/// From one translation to the next, far from all ports that a node has.
const SHIFT: u16 = 4099;

/// A node's address: the same for the same name, in every simulation.
pub fn address(node: &NodeId) -> Ipv6Addr {
    let hash = blake3::hash(node.as_str().as_bytes());
    let bits = u64::from_le_bytes(
        hash.as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    );
    Ipv6Addr::from_bits((0xFD << 120) | u128::from(bits))
}

impl Network {
    pub fn new(seed: u64) -> Self {
        Network {
            living: Arc::default(),
            inner: Arc::new(Mutex::new(Inner {
                seed,
                clock: Clock::Before,
                sequence: 0,
                events: BTreeMap::new(),
                sockets: BTreeMap::new(),
                links: BTreeMap::new(),
                lan: LinkModel::lan(),
                wan: LinkModel::wan(),
                nodes: BTreeMap::new(),
                trace: Trace::new(),
                root: None,
                awaited: None,
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no code under this lock panics")
    }

    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.lock().now()
    }

    /// Makes a node's name known.
    pub fn add_node(&self, node: &NodeId) {
        self.lock()
            .nodes
            .entry(address(node))
            .or_insert_with(|| Node {
                id: node.clone(),
                next_port: PORT_FIRST,
                shift: 0,
                is_shut: false,
            });
    }

    /// From now on nodes of other domains reach a node only where it has spoken to them first.
    pub fn shut(&self, node: &NodeId) {
        if let Some(node) = self.lock().nodes.get_mut(&address(node)) {
            node.is_shut = true;
        }
    }

    /// From now on what a node sends to whom it spoke first comes from other ports, as behind a translation that has forgotten it; what is under
    /// way to the ports before is lost. Whoever speaks first reaches its own ports as ever.
    pub fn rebind(&self, node: &NodeId) {
        if let Some(node) = self.lock().nodes.get_mut(&address(node)) {
            node.shift = node.shift.wrapping_add(SHIFT);
        }
    }

    /// Notes that something befell a node.
    pub fn note(&self, kind: TraceKind, from: &NodeId, to: &NodeId) {
        let at = |node| SocketAddr::new(IpAddr::V6(address(node)), 0);
        self.note_at(kind, at(from), at(to));
    }

    /// Notes that something befell a path.
    pub fn note_at(&self, kind: TraceKind, from: SocketAddr, to: SocketAddr) {
        self.lock().note(kind, 0, from, to);
    }

    /// Binds a port of a node: this one, or the next free one for 0.
    pub fn bind(&self, node: &NodeId, port: u16) -> io::Result<(SocketAddr, u64)> {
        let ip = address(node);
        let mut inner = self.lock();
        let Inner { nodes, sockets, .. } = &mut *inner;
        let free = |port| !sockets.contains_key(&SocketAddr::new(IpAddr::V6(ip), port));
        let port = match port {
            0 => {
                let node = nodes.get_mut(&ip).expect("a node is added before it binds");
                // Ports wrap after the last; a node that holds them all is refused.
                (0..=u16::MAX - PORT_FIRST)
                    .map(|_| {
                        let port = node.next_port;
                        node.next_port = port.checked_add(1).unwrap_or(PORT_FIRST);
                        port
                    })
                    .find(|&port| free(port))
            }
            _ => free(port).then_some(port),
        };
        let Some(port) = port else {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("the port is taken on {node}"),
            ));
        };
        let local = SocketAddr::new(IpAddr::V6(ip), port);
        inner.sequence += 1;
        let id = inner.sequence;
        inner.sockets.insert(
            local,
            Socket {
                id,
                inbox: VecDeque::new(),
                inbox_bytes: 0,
                waker: None,
                flows: BTreeMap::new(),
            },
        );
        Ok((local, id))
    }

    /// Frees a port, if it is still that socket's.
    pub fn unbind(&self, local: SocketAddr, id: u64) {
        let mut inner = self.lock();
        let owned = inner
            .sockets
            .get(&local)
            .is_some_and(|socket| socket.id == id);
        let socket = owned.then(|| inner.sockets.remove(&local));
        drop(inner);
        drop(socket);
    }

    /// Takes every socket from a node.
    pub fn silence(&self, node: &NodeId) {
        let ip = IpAddr::V6(address(node));
        let mut inner = self.lock();
        let sockets: Vec<Socket> = inner
            .sockets
            .extract_if(.., |local, _| local.ip() == ip)
            .map(|(_, socket)| socket)
            .collect();
        drop(inner);
        drop(sockets);
    }

    /// Sends a datagram from a socket; without effect if that is gone.
    pub fn send(
        &self,
        (local, id): (SocketAddr, u64),
        to: SocketAddr,
        contents: &[u8],
        ecn: Option<EcnCodepoint>,
    ) {
        let mut inner = self.lock();
        if inner
            .sockets
            .get(&local)
            .is_some_and(|socket| socket.id == id)
        {
            inner.send(local, to, contents, ecn);
        }
    }

    /// Takes the oldest datagram out of a socket, or keeps the waker.
    pub fn receive(
        &self,
        (local, id): (SocketAddr, u64),
        context: &mut Context<'_>,
    ) -> io::Result<Option<Received>> {
        let mut inner = self.lock();
        let Some(socket) = inner
            .sockets
            .get_mut(&local)
            .filter(|socket| socket.id == id)
        else {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the node of this socket is down",
            ));
        };
        let received = socket.inbox.pop_front();
        match &received {
            Some(datagram) => socket.inbox_bytes -= datagram.contents.len(),
            None => socket.waker = Some(context.waker().clone()),
        }
        Ok(received)
    }

    /// Puts a wake-up in the list.
    pub fn schedule(&self, at: u64, waker: Option<Waker>) -> Key {
        self.lock().push(at, Event::Wake(waker))
    }

    /// Sets who is woken; false if it has fired.
    pub fn set_waker(&self, key: Key, waker: &Waker) -> bool {
        let mut inner = self.lock();
        match inner.events.get_mut(&key) {
            Some(Event::Wake(slot)) => {
                *slot = Some(waker.clone());
                true
            }
            _ => false,
        }
    }

    /// Takes a wake-up out of the list.
    pub fn cancel(&self, key: Key) {
        let event = self.lock().events.remove(&key);
        drop(event);
    }

    /// Sets what links without a model of their own do: inside domains, and between them.
    pub fn set_defaults(&self, lan: LinkModel, wan: LinkModel) {
        let mut inner = self.lock();
        inner.lan = lan;
        inner.wan = wan;
    }

    /// Changes one direction of a path.
    pub fn with_link<T>(
        &self,
        from: &NodeId,
        to: &NodeId,
        change: impl FnOnce(&mut Link) -> T,
    ) -> T {
        change(self.lock().link(address(from), address(to)))
    }

    /// Lifts every partition.
    pub fn heal(&self) {
        for link in self.lock().links.values_mut() {
            link.heal();
        }
    }

    /// Ends a trouble on every path that has one of that name; tells which, and what it was.
    pub fn mend(&self, id: u64) -> Vec<(SocketAddr, SocketAddr, PathFault)> {
        let at = |ip: &Ipv6Addr| SocketAddr::new(IpAddr::V6(*ip), 0);
        let mut inner = self.lock();
        let links = inner.links.iter_mut();
        let ended = links.filter_map(|((from, to), link)| Some((at(from), at(to), link.mend(id)?)));
        ended.collect()
    }

    /// What has happened from one node to another.
    pub fn statistics(&self, from: &NodeId, to: &NodeId) -> LinkStatistics {
        self.lock()
            .links
            .get(&(address(from), address(to)))
            .map(|link| link.statistics)
            .unwrap_or_default()
    }

    /// The hash of every event so far, and how many there were.
    pub fn trace(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.trace.hash(), inner.trace.count())
    }

    /// The last events.
    pub fn events(&self) -> Vec<TraceEvent> {
        let inner = self.lock();
        let named = |end: SocketAddr| match end {
            SocketAddr::V6(end) if inner.nodes.contains_key(end.ip()) => {
                format!("{}:{}", inner.nodes[end.ip()].id, end.port())
            }
            _ => end.to_string(),
        };
        inner
            .trace
            .last()
            .map(|noted| TraceEvent {
                at: Duration::from_nanos(noted.at),
                kind: noted.kind,
                size: noted.size,
                from: named(noted.from),
                to: named(noted.to),
            })
            .collect()
    }

    /// How full it is.
    pub fn load(&self) -> Load {
        let inner = self.lock();
        let inboxes = inner.sockets.values().map(|socket| socket.inbox_bytes);
        Load {
            inbox_bytes: inboxes.max().unwrap_or(0),
            in_flight_bytes: inner.links.values().map(Link::in_flight).max().unwrap_or(0),
            events: inner.events.len(),
        }
    }

    /// Counts sockets and timers.
    pub fn living(&self) -> &Living {
        &self.living
    }
}

impl Inner {
    fn push(&mut self, at: u64, event: Event) -> Key {
        self.sequence += 1;
        let key = (at, self.sequence);
        self.events.insert(key, event);
        key
    }

    fn note(&mut self, kind: TraceKind, size: usize, from: SocketAddr, to: SocketAddr) {
        let at = self.now();
        self.trace.note(Noted {
            at,
            kind,
            size,
            from,
            to,
        });
    }

    fn link(&mut self, from: Ipv6Addr, to: Ipv6Addr) -> &mut Link {
        self.links.entry((from, to)).or_insert_with(|| {
            let domain = |ip| self.nodes.get(&ip).map(|node| node.id.domain());
            let model = match (domain(from), domain(to)) {
                (Some(from), Some(to)) if from == to => &self.lan,
                _ => &self.wan,
            };
            let labels = [&b"link"[..], &from.octets(), &to.octets()];
            Link::new(model.clone(), Rng::derive(self.seed, &labels))
        })
    }

    fn send(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        contents: &[u8],
        ecn: Option<EcnCodepoint>,
    ) {
        let size = contents.len();
        let from = self.translated(from, to);
        self.note(TraceKind::Send, size, from, to);
        let (IpAddr::V6(from_ip), IpAddr::V6(to_ip)) = (from.ip(), to.ip()) else {
            return self.note(TraceKind::Unreachable, size, from, to);
        };
        if !self.nodes.contains_key(&to_ip) {
            return self.note(TraceKind::Unreachable, size, from, to);
        }
        let now = self.now();
        let fate = self.link(from_ip, to_ip).send(now, size);
        let kind = match fate {
            Fate::Arrives(arrival, copy) => {
                for at in std::iter::once(arrival).chain(copy) {
                    let datagram = Received {
                        from,
                        contents: contents.to_vec(),
                        ecn,
                    };
                    self.push(at, Event::Arrive { to, datagram });
                }
                return;
            }
            Fate::Lost => TraceKind::Lost,
            Fate::QueueFull => TraceKind::QueueFull,
            Fate::TooLarge => TraceKind::TooLarge,
            Fate::Cut => TraceKind::Cut,
        };
        self.note(kind, size, from, to);
    }

    /// Where a peer sees the port of a node that sends to it.
    fn translated(&mut self, port: SocketAddr, to: SocketAddr) -> SocketAddr {
        let socket = self.sockets.get_mut(&port);
        let first = socket.is_none_or(|socket| *socket.flows.entry(to).or_insert(true));
        let shift = if first { self.shift(port) } else { 0 };
        SocketAddr::new(port.ip(), port.port().wrapping_add(shift))
    }

    /// The port that is meant by where others see one.
    fn meant(&self, seen: SocketAddr) -> SocketAddr {
        let shift = match self.sockets.contains_key(&seen) {
            true => 0,
            false => self.shift(seen),
        };
        SocketAddr::new(seen.ip(), seen.port().wrapping_sub(shift))
    }

    fn shift(&self, at: SocketAddr) -> u16 {
        match at.ip() {
            IpAddr::V6(ip) => self.nodes.get(&ip).map_or(0, |node| node.shift),
            IpAddr::V4(_) => 0,
        }
    }

    /// Whether a node's site keeps another node out that it has not spoken to.
    fn is_shut(&self, to: Ipv6Addr, from: Ipv6Addr) -> bool {
        let (Some(to), Some(from)) = (self.nodes.get(&to), self.nodes.get(&from)) else {
            return false;
        };
        to.is_shut && to.id.domain() != from.id.domain()
    }

    /// Fires every event up to `now`.
    fn fire(&mut self, now: u64, woken: &mut Vec<Waker>) {
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > now {
                break;
            }
            match entry.remove() {
                Event::Wake(waker) => woken.extend(waker),
                Event::Arrive { to, datagram } => woken.extend(self.arrive(to, datagram)),
            }
        }
    }

    fn arrive(&mut self, to: SocketAddr, datagram: Received) -> Option<Waker> {
        let (from, size) = (datagram.from, datagram.contents.len());
        let (IpAddr::V6(from_ip), IpAddr::V6(to_ip)) = (from.ip(), to.ip()) else {
            unreachable!("only datagrams between nodes are put in the list");
        };
        let socket = self.meant(to);
        let is_shut = self.is_shut(to_ip, from_ip);
        let socket = self.sockets.get_mut(&socket);
        let socket = socket.filter(|socket| !is_shut || socket.flows.get(&from) == Some(&true));
        let link = self
            .links
            .get_mut(&(from_ip, to_ip))
            .expect("a datagram travels on a link");
        link.leave(size);
        let mut waker = None;
        let kind = match socket {
            _ if link.is_cut() => {
                link.statistics.cut += 1;
                TraceKind::Cut
            }
            None => {
                link.statistics.unreachable += 1;
                TraceKind::Unreachable
            }
            Some(socket) if socket.inbox_bytes + size > INBOX_BYTES_MAX => {
                link.statistics.queue_full += 1;
                TraceKind::QueueFull
            }
            Some(socket) => {
                socket.flows.entry(from).or_insert(false);
                link.statistics.received += 1;
                link.statistics.received_bytes += size as u64;
                socket.inbox_bytes += size;
                socket.inbox.push_back(datagram);
                waker = socket.waker.take();
                TraceKind::Receive
            }
        };
        self.note(kind, size, from, to);
        waker
    }
}
