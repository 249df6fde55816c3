//! One peer: carries control messages, in order and once, and fetches and serves tensor objects.
//!
//! The decisions (what is sent again, what was delivered before) are [`tombolo_core::link::Memory`]'s. This actor owns the current
//! connection's session: a plain task that shakes hands, reads frames and hands them to the node with back-pressure, writes frames, serves
//! what the peer fetches from the node's [`Shelf`], and notes every frame for the heartbeat.

mod greeting;
mod packed;
mod redial;
mod renewal;
mod session;
mod shelf;
pub mod stripes;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{self, AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{Connection, VarInt};
use tokio::sync::{Notify, Semaphore};

use crate::identity::Identity;
use crate::node;
use crate::quic;
use crate::shell::{AbortOnDrop, Actor, Cx, Handle, Reply, Stage, later};
use redial::Redial;
use renewal::Retired;
use session::{Handover, send_object};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::link::{Memory, Peer};
use tombolo_core::policy;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::wire::{Control, FrameHeader, Lack, Object, codec};

pub(crate) use greeting::has_left;
pub use packed::Unpacking;
pub use redial::REDIAL_MOST;
pub use shelf::{Held, Holder, Shelf};
pub use stripes::Reader;
pub use wire::{Agreed, Wire};

/// Fetches of ours that may be open at one peer: a model, a step and a contribution, twice.
const FETCHES_MAX: usize = 6;
/// Offered objects whose streams wait here for somebody to fetch them; each holds at most a stream's window. The oldest goes first.
const OFFERS_MAX: usize = 2;
/// Marks tags of offers, to tell them from tags of fetches.
const OFFER: u64 = 1 << 63;

/// Why a node that leaves closes its connections: there is nothing more to tell it. Not 0, with which quinn closes what nobody holds.
pub const LEFT: VarInt = VarInt::from_u32(20);

/// Why a node closes its connections once the run is over: its reason goes with it, so that whoever it leads need not hear it otherwise.
pub const OVER: VarInt = VarInt::from_u32(22);

/// Why a connection is closed whose certificates do not count any more.
pub const UNTRUSTED: VarInt = VarInt::from_u32(23);

/// Why a connection is closed that the policy of a site does not let be.
pub const DENIED: VarInt = VarInt::from_u32(24);

/// Fetches of the peer that are served at once; a peer that keeps to [`FETCHES_MAX`] never sees this limit.
const SERVES_MAX: usize = 16;

/// An object that comes in: its length and the stream of its raw bytes.
#[derive(Debug)]
pub struct Incoming {
    /// Its bytes.
    pub len: u64,
    /// Their stream: raw, but of a model on a link with a lossless stage.
    pub stream: Reader,
}

/// An object that could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The link closed.
    #[error("the link to {0} closed")]
    Closed(NodeId),
    /// The peer does not have it, or serves as much as it can.
    #[error("{peer} cannot send it: {reason}")]
    Missing {
        /// Who.
        peer: NodeId,
        /// Whether it may be had a little later.
        lack: Lack,
        /// Its words.
        reason: String,
    },
    /// We ask for too much at once.
    #[error("{FETCHES_MAX} fetches from {0} are open already")]
    Busy(NodeId),
}

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// In words.
    pub reason: String,
    /// Whether trying again is of no use until somebody changes something.
    pub refused: bool,
}

impl From<String> for Trouble {
    fn from(reason: String) -> Self {
        Trouble {
            reason,
            refused: false,
        }
    }
}

/// What a link takes.
#[derive(Debug)]
pub enum Message {
    /// Carry a control message.
    Send(Control),
    /// Fetch an object.
    Fetch(Object, Reply<Result<Incoming, FetchError>>),
    /// Start to send an object that the peer is about to fetch.
    Offer(Object),
    /// Answer once the peer has acknowledged all that was sent before, or has left.
    Settle(Reply<()>),
    /// From the session of that number: the peer sends an object under that tag.
    Offered(u64, u64, Object),
    /// A connection to the peer stands.
    Attach(Attached),
    /// After that time: this node has another certificate, so the connection is to be replaced by one that shows it.
    Renew(Duration),
    /// The peer wants the same.
    RenewAsked,
    /// Another way to the peer is better than the one that the connection leads.
    Reroute,
    /// Look whether connections still count: their time may be over; or, if true, roots or revocations have changed.
    Judge(bool),
    /// From the session of that number: the peer said hello, with its incarnation. May the session take the place of the one before?
    Greeted(u64, u64, Reply<Result<(), Trouble>>),
    /// Dialling failed.
    DialFailed(Trouble),
    /// The peer is silent: dial it anew, whatever stands.
    Redial,
    /// The peer gave no sign of life through all retries: let go of the connection.
    HangUp,
    /// Tell the node whether the link is up: for a node that was rebuilt.
    Announce,
    /// From the session of that number: the handshake is done.
    Up(u64, Peer),
    /// From the session of that number: it ended.
    Down(u64, Trouble),
    /// From the session of that number: the peer lacks the object of that tag.
    Missing(u64, u64, Lack, String),
    /// From the session of that number: the object of that tag begins.
    Begins(u64, u64, Incoming),
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub struct Attached {
    /// It.
    pub connection: Connection,
    /// SHA-256 of the certificate that this side has shown, in hexadecimal.
    pub shown: String,
    /// When the first certificate of either side ends: seconds since 1970.
    pub until: u64,
}

/// What a link keeps while its actor is rebuilt. Numbers of sessions and fetches go on, so that no answer to the actor before is taken for
/// one to this.
#[derive(Debug)]
pub struct Durable {
    memory: Mutex<Memory>,
    wake: Notify,
    /// The peer has acknowledged something, or has left.
    heard: Notify,
    left: AtomicBool,
    sessions: AtomicU64,
    tags: AtomicU64,
    serves: Arc<Semaphore>,
}

impl Default for Durable {
    fn default() -> Self {
        Durable {
            memory: Mutex::default(),
            wake: Notify::new(),
            heard: Notify::new(),
            left: AtomicBool::new(false),
            sessions: AtomicU64::new(0),
            tags: AtomicU64::new(0),
            serves: Arc::new(Semaphore::new(SERVES_MAX)),
        }
    }
}

impl Durable {
    /// Messages that the peer has not acknowledged, and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        let memory = self.memory();
        (memory.waiting(), memory.waiting_bytes())
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a frame's header, as [`Memory::on_frame`] does.
    fn on_frame(&self, header: FrameHeader) -> bool {
        let new = self.memory().on_frame(header);
        self.heard.notify_waiters();
        new
    }

    fn set_left(&self, left: bool) {
        self.left.store(left, atomic::Ordering::Relaxed);
        self.heard.notify_waiters();
    }

    /// Ends once nothing waits for the peer any more.
    async fn settled(&self) {
        loop {
            let heard = self.heard.notified();
            if self.memory().waiting() == 0 || self.left.load(atomic::Ordering::Relaxed) {
                return;
            }
            heard.await;
        }
    }
}

/// What a link needs to know.
#[derive(Clone)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// Says whether the peer's certificate still counts.
    pub identity: Arc<dyn Identity>,
    /// The other side.
    pub peer: NodeId,
    /// Drawn when this node started.
    pub incarnation: u64,
    /// Hash of the topology's shared keys.
    pub topology: Hash,
    /// Whether this node is there for others.
    pub presence: Arc<node::Presence>,
    /// What the peer may fetch.
    pub shelf: Shelf,
    /// Shared with the heartbeat.
    pub wire: Arc<Wire>,
    /// Outlives this actor.
    pub durable: Arc<Durable>,
    /// Dials.
    pub quic: Handle<quic::Message>,
    /// Takes what arrives.
    pub node: Handle<node::Message>,
}

impl fmt::Debug for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup")
            .field("stage", &self.stage)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Setup {
    /// Whether this side dials: inside a domain the higher rank, between domains whoever cannot coordinate.
    pub fn dials(&self) -> bool {
        dials(&self.stage.plan, &self.stage.node, &self.peer)
    }
}

/// Whether `node` dials `peer` (rather than waiting to be dialled).
pub fn dials(plan: &tombolo_core::plan::Plan, node: &NodeId, peer: &NodeId) -> bool {
    if node.domain() != peer.domain() {
        return plan.dials_across(node, peer);
    }
    plan.domain(&node.domain())
        .is_some_and(|domain| domain.rank(node) > domain.rank(peer))
}

/// See the module.
pub struct Link {
    setup: Setup,
    own: Handle<Message>,
    session: Option<Current>,
    /// Connections whose hello is awaited, by the number of their session.
    candidates: BTreeMap<u64, Carrier>,
    /// Sessions that have handed over.
    retired: Vec<Retired>,
    /// Until when a new connection takes over from the one that stands without a gap.
    renews: Micros,
    /// The peer was asked to dial anew, and has not yet.
    renewal_asked: bool,
    up: bool,
    /// One attempt at a time.
    dialling: bool,
    redial: Redial,
    fetches: BTreeMap<u64, Reply<Result<Incoming, FetchError>>>,
    offers: VecDeque<Offer>,
    refusal: Option<String>,
}

/// The session that carries.
struct Current {
    number: u64,
    /// Of the process at the other end.
    incarnation: u64,
    /// None if it was told of and never was: so do tests that say each message themselves.
    carrier: Option<Carrier>,
}

/// A connection with its session.
struct Carrier {
    connection: Connection,
    /// Makes it send something that must be acknowledged.
    nudge: Arc<Notify>,
    handover: Rc<Handover>,
    /// As in [`Attached`].
    shown: String,
    until: u64,
    _task: AbortOnDrop<()>,
}

/// An object that the peer sends unasked.
struct Offer {
    tag: u64,
    /// Not known yet if its stream was quicker than the word of it.
    object: Option<Object>,
    begun: Option<Incoming>,
}

impl Link {
    /// A link without a connection.
    pub fn new(setup: Setup, own: Handle<Message>) -> Self {
        let lives = setup.durable.sessions.load(atomic::Ordering::Relaxed);
        let purpose = format!("redial {} {lives}", setup.peer);
        Link {
            redial: Redial::new(setup.stage.env.rng(&purpose)),
            setup,
            own,
            session: None,
            candidates: BTreeMap::new(),
            retired: Vec::new(),
            renews: Micros::default(),
            renewal_asked: false,
            up: false,
            dialling: false,
            fetches: BTreeMap::new(),
            offers: VecDeque::new(),
            refusal: None,
        }
    }

    fn push(&mut self, cx: &mut Cx<Self>, control: &Control) {
        let bytes = match codec::encode(control) {
            Ok(bytes) => bytes,
            // The peer is not to blame, and what else it is told must still reach it.
            Err(error) => {
                let (node, peer) = (&self.setup.stage.node, &self.setup.peer);
                return tracing::error!(%node, %peer, %error, "a message that cannot be sent is lost");
            }
        };
        let pushed = self.setup.durable.memory().push(bytes.into());
        match pushed.map_err(|full| full.to_string()) {
            Ok(()) => self.setup.durable.wake.notify_one(),
            // A peer that does not keep up is cut off; it is told everything anew when it is back.
            Err(reason) => {
                *self.setup.durable.memory() = Memory::default();
                if let Some(connection) = self.setup.wire.connection() {
                    connection.close(VarInt::from_u32(1), reason.as_bytes());
                }
                self.down(&reason);
                self.dial_later(cx);
            }
        }
    }

    /// Says once what has to be changed, however often it is met.
    fn report_refusal(&mut self, trouble: &Trouble) {
        // What time it is now is no news.
        let point = trouble.reason.split(", now ").next();
        let point = point.unwrap_or_default();
        if !trouble.refused || self.refusal.as_deref() == Some(point) {
            return;
        }
        self.refusal = Some(point.to_owned());
        self.setup.stage.report(Event::LinkRefused {
            node: self.setup.stage.node.clone(),
            peer: self.setup.peer.clone(),
            reason: trouble.reason.clone(),
        });
    }

    /// Whether the peer is sent an object; if not, that is told.
    fn may_have(&self, object: Object) -> bool {
        let stage = &self.setup.stage;
        let verdict = policy::serves(&stage.plan, &stage.node, &self.setup.peer, object);
        if !verdict.allowed {
            stage.deny(&verdict);
        }
        verdict.allowed
    }

    fn take_offer(&mut self, object: Object) -> Option<Offer> {
        let index = self
            .offers
            .iter()
            .position(|offer| offer.object == Some(object))?;
        self.offers.remove(index)
    }

    /// Keeps an offer for whoever fetches it; the oldest goes.
    fn keep_offer(&mut self, offer: Offer) {
        if self.offers.len() >= OFFERS_MAX {
            self.offers.pop_front();
        }
        self.offers.push_back(offer);
    }

    fn fetch(
        &mut self,
        cx: &mut Cx<Self>,
        object: Object,
        reply: Reply<Result<Incoming, FetchError>>,
    ) {
        let tag = self.next_tag();
        self.fetches.insert(tag, reply);
        self.push(cx, &Control::Fetch { tag, object });
    }

    fn next_tag(&self) -> u64 {
        self.setup
            .durable
            .tags
            .fetch_add(1, atomic::Ordering::Relaxed)
            + 1
    }

    fn is_current(&self, session: u64) -> bool {
        let current = self.session.as_ref();
        current.is_some_and(|current| current.number == session)
    }

    fn down(&mut self, reason: &str) {
        self.session = None;
        self.renewal_asked = false;
        for (_, reply) in std::mem::take(&mut self.fetches) {
            reply.send(Err(FetchError::Closed(self.setup.peer.clone())));
        }
        self.offers.clear();
        self.setup.wire.replace(None);
        if std::mem::take(&mut self.up) {
            let (node, peer) = (self.setup.stage.node.clone(), self.setup.peer.clone());
            self.setup.stage.report(Event::LinkDown {
                node,
                peer: peer.clone(),
                reason: reason.to_owned(),
            });
            self.setup.node.deliver(node::Message::LinkDown(peer));
        }
    }

    fn dial_later(&mut self, cx: &mut Cx<Self>) {
        if !self.setup.dials() {
            return;
        }
        if let Some(wait) = self.redial.later() {
            later(cx, self.setup.stage.env.sleep(wait), |link, (), cx| {
                link.redial.due();
                if link.session.is_none() && link.candidates.is_empty() {
                    link.dial();
                } else {
                    link.renew_again(cx);
                }
            });
        }
    }

    fn dial(&mut self) {
        if !std::mem::replace(&mut self.dialling, true) {
            let peer = self.setup.peer.clone();
            self.setup.quic.deliver(quic::Message::Dial(peer));
        }
    }
}

impl Actor for Link {
    type Message = Message;
    const NAME: &'static str = "Link";

    fn started(&mut self, _: &mut Cx<Self>) {
        // A connection that outlived the actor before this one is replaced: what was in flight is in the memory.
        if let Some(old) = self.setup.wire.connection() {
            old.close(VarInt::from_u32(4), b"the link is rebuilt");
            self.up = true;
            self.down("the link is rebuilt");
        }
        if self.setup.dials() {
            self.dial();
        }
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Send(control) => self.push(cx, &control),
            Message::Fetch(object, reply) => {
                if !self.up {
                    return reply.send(Err(FetchError::Closed(self.setup.peer.clone())));
                }
                self.fetches.retain(|_, reply| reply.is_awaited());
                if self.fetches.len() >= FETCHES_MAX {
                    return reply.send(Err(FetchError::Busy(self.setup.peer.clone())));
                }
                match self.take_offer(object) {
                    Some(Offer {
                        begun: Some(incoming),
                        ..
                    }) => reply.send(Ok(incoming)),
                    Some(Offer { tag, .. }) => {
                        // Its stream is on the way, unless the connection that carried it is gone: then it is fetched after all.
                        self.fetches.insert(tag, reply);
                        let wait = self.setup.stage.plan.heartbeat.every;
                        later(cx, self.setup.stage.env.sleep(wait), move |link, (), cx| {
                            let reply = link.fetches.remove(&tag);
                            if let Some(reply) = reply.filter(Reply::is_awaited) {
                                link.fetch(cx, object, reply);
                            }
                        });
                    }
                    None => self.fetch(cx, object, reply),
                }
            }
            Message::Offer(object) if !self.may_have(object) => {}
            Message::Offer(object) => {
                let connection = self.setup.wire.connection().filter(|_| self.up);
                let found = self.setup.shelf.find(object);
                let permit = self.setup.durable.serves.clone().try_acquire_owned();
                // If it cannot be sent now, the peer fetches it.
                if let (Some(connection), Some(bytes), Ok(permit)) = (connection, found, permit) {
                    let tag = OFFER | self.next_tag();
                    // The stream lives and dies with the connection, and so must the word of it.
                    let offer =
                        codec::encode(&Control::Offer { tag, object }).expect("a short message");
                    if self.setup.durable.memory().push_once(offer.into()).is_err() {
                        return;
                    }
                    self.setup.durable.wake.notify_one();
                    send_object(&self.setup, &connection, tag, object, bytes, permit);
                }
            }
            Message::Offered(session, tag, object) if self.is_current(session) => {
                let quick = self.offers.iter_mut().find(|offer| offer.tag == tag);
                if let Some(offer) = quick {
                    offer.object = Some(object);
                } else {
                    self.take_offer(object);
                    self.keep_offer(Offer {
                        tag,
                        object: Some(object),
                        begun: None,
                    });
                }
            }
            Message::Settle(reply) => {
                let durable = self.setup.durable.clone();
                later(cx, async move { durable.settled().await }, |_, (), _| {
                    reply.send(());
                });
            }
            Message::Attach(attached) => {
                self.dialling = false;
                self.attach(attached);
            }
            Message::Renew(after) => self.renew_later(cx, after),
            Message::RenewAsked => self.on_renew_asked(cx),
            Message::Reroute => self.reroute(cx),
            Message::Judge(again) => self.judge(cx, again),
            Message::Greeted(session, incarnation, reply) => {
                self.on_greeted(cx, session, incarnation, reply);
            }
            Message::Redial => {
                if self.setup.dials() {
                    self.dial();
                }
            }
            Message::HangUp => {
                if let Some(connection) = self.setup.wire.connection() {
                    connection.close(VarInt::from_u32(5), b"no sign of life");
                    self.down("no sign of life");
                    self.dial_later(cx);
                }
            }
            Message::DialFailed(trouble) => {
                self.dialling = false;
                self.setup.wire.note_trouble(Some(&trouble));
                tracing::debug!(node = %self.setup.stage.node, peer = %self.setup.peer, ?trouble, "dialling failed");
                self.report_refusal(&trouble);
                self.dial_later(cx);
            }
            Message::Announce => {
                if self.up {
                    let peer = self.setup.peer.clone();
                    self.setup.node.deliver(node::Message::LinkUp(peer));
                }
            }
            Message::Up(session, peer) => {
                if !self.is_current(session) {
                    return;
                }
                self.setup.wire.note_trouble(None);
                self.redial.reset();
                self.refusal = None;
                let was_up = std::mem::replace(&mut self.up, true);
                self.look_again(cx);
                if was_up {
                    return self.report_renewal();
                }
                let (node, to) = (self.setup.stage.node.clone(), self.setup.peer.clone());
                tracing::debug!(%node, peer = %to, ?peer, "link is up");
                self.setup.stage.report(Event::LinkUp {
                    node,
                    peer: to.clone(),
                });
                self.setup.node.deliver(node::Message::LinkUp(to));
            }
            Message::Down(session, _) if self.bury(session) => {}
            Message::Down(session, trouble) => {
                let candidate = self.candidates.remove(&session);
                if candidate.is_none() && !self.is_current(session) {
                    return;
                }
                tracing::debug!(node = %self.setup.stage.node, peer = %self.setup.peer, ?trouble, "session ended");
                self.report_refusal(&trouble);
                if let Some(candidate) = candidate {
                    self.setup.wire.add(&candidate.connection);
                    if self.session.is_some() {
                        // What stands is to be replaced all the same.
                        if self.setup.stage.env.now() < self.renews {
                            self.dial_later(cx);
                        }
                        return;
                    }
                }
                self.setup.wire.note_trouble(Some(&trouble));
                self.down(&trouble.reason);
                self.dial_later(cx);
            }
            Message::Missing(session, tag, lack, reason) if self.is_current(session) => {
                if let Some(reply) = self.fetches.remove(&tag) {
                    reply.send(Err(FetchError::Missing {
                        peer: self.setup.peer.clone(),
                        lack,
                        reason,
                    }));
                }
            }
            Message::Begins(session, tag, incoming)
                if self.is_current(session) || self.is_retired(session) =>
            {
                if let Some(reply) = self.fetches.remove(&tag) {
                    reply.send(Ok(incoming));
                } else if let Some(offer) = self.offers.iter_mut().find(|offer| offer.tag == tag) {
                    offer.begun = Some(incoming);
                } else if tag & OFFER != 0 {
                    self.keep_offer(Offer {
                        tag,
                        object: None,
                        begun: Some(incoming),
                    });
                }
                // Otherwise nobody wants it any more: dropping the stream tells the sender to stop.
            }
            // The word of a session that has ended: its tags mean nothing in this one.
            Message::Offered(..) | Message::Missing(..) | Message::Begins(..) => {}
        }
    }
}
