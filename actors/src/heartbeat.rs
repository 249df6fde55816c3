//! One peer's liveness: sends a datagram each period, judges what comes back, and climbs the ladder when nothing does.
//!
//! Sending, receiving and watching are one plain task on the arbiter of the network, so that neither a busy mailbox nor anybody's computing
//! makes a living peer look dead; the actor passes verdicts on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn::{ConnectionError, VarInt};

use crate::clock_sync;
use crate::link::{self, Agreed, Wire};
use crate::node;
use crate::shell::{AbortOnDrop, Actor, Cx, Handle, Stage};
use tombolo_core::event::Event;
use tombolo_core::heartbeat::{self, Effect, Verdict};
use tombolo_core::ids::NodeId;
use tombolo_core::ladder::Rung;
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::mutants;
use tombolo_core::time::Micros;
use tombolo_core::wire;

/// What it takes: a verdict of its watch.
#[derive(Debug)]
pub struct Message(Verdict);

/// What a heartbeat needs to know.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// Whom it watches.
    pub peer: NodeId,
    /// Shared with the link.
    pub wire: Arc<Wire>,
    /// Dials.
    pub link: Handle<link::Message>,
    /// Outlives this actor.
    pub machine: Arc<Mutex<heartbeat::Heartbeat>>,
    /// Takes verdicts.
    pub node: Handle<node::Message>,
    /// Takes the stamps of heartbeats that crossed.
    pub clock: Handle<clock_sync::Message>,
}

/// See the module.
pub struct Heartbeat {
    setup: Setup,
    own: Handle<Message>,
    task: Option<AbortOnDrop<()>>,
}

impl Heartbeat {
    /// A watch over a peer.
    pub fn new(setup: Setup, own: Handle<Message>) -> Self {
        Heartbeat {
            setup,
            own,
            task: None,
        }
    }

    fn tell_node(&self, verdict: Verdict) {
        let peer = self.setup.peer.clone();
        self.setup
            .node
            .deliver(node::Message::Verdict(peer, verdict));
    }
}

impl Actor for Heartbeat {
    type Message = Message;
    const NAME: &'static str = "Heartbeat";

    fn started(&mut self, _: &mut Cx<Self>) {
        let rung = self.setup.machine().rung();
        // The actor before this one may have failed over this very verdict.
        if rung == Rung::Left {
            self.tell_node(Verdict::Left);
        }
        if rung.is_lost() {
            self.tell_node(Verdict::Lost);
        }
        if rung == Rung::Overdue {
            self.tell_node(Verdict::Overdue);
        }
        let watch = Watch {
            setup: self.setup.clone(),
            own: self.own.clone(),
            current: None,
            heard: Micros::default(),
        };
        self.task = Some(AbortOnDrop(tokio::task::spawn_local(watch.run())));
    }

    fn handle(&mut self, Message(verdict): Message, _: &mut Cx<Self>) {
        let (node, peer) = (self.setup.stage.node.clone(), self.setup.peer.clone());
        let event = match verdict {
            Verdict::Suspected { silent } => Event::PeerSuspected {
                node,
                peer,
                silent_ms: millis(silent),
            },
            Verdict::Recovered { after, from } => Event::PeerRecovered {
                node,
                peer,
                silent_ms: millis(after),
                lost: from.is_lost(),
            },
            Verdict::Lost => Event::PeerLost { node, peer },
            Verdict::Overdue => Event::PeerOverdue { node, peer },
            Verdict::Left => Event::PeerLeft { node, peer },
        };
        self.setup.stage.report(event);
        if verdict == Verdict::Lost {
            // What still stands carries nothing; without it the link dials on its own until the peer is there.
            self.setup.link.deliver(link::Message::HangUp);
        }
        self.tell_node(verdict);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Setup {
    fn machine(&self) -> std::sync::MutexGuard<'_, heartbeat::Heartbeat> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Watch {
    setup: Setup,
    own: Handle<Message>,
    current: Option<Current>,
    /// The last frame that the machine knows of.
    heard: Micros,
}

/// The connection on which heartbeats travel.
struct Current {
    agreed: Arc<Agreed>,
    ended: bool,
    /// The peer said goodbye on it.
    gone: bool,
    /// Frames of streams received when it was last looked at, and when that was.
    frames: u64,
    looked: Micros,
}

impl Watch {
    async fn run(mut self) {
        let mut arrived = None;
        loop {
            let (effects, wake) = self.step(arrived.take());
            for effect in effects {
                match effect {
                    Effect::Send(heartbeat) => self.send(heartbeat),
                    Effect::Crossed(exchange) => self.crossed(exchange),
                    Effect::Redial => self.setup.link.deliver(link::Message::Redial),
                    Effect::Verdict(verdict) => {
                        if self.own.tell(Message(verdict)).await.is_err() {
                            return;
                        }
                    }
                }
            }
            let env = &self.setup.stage.env;
            let sleep = env.sleep(wake.since(self.now()).max(Duration::from_millis(1)));
            tokio::select! {
                biased;
                datagram = datagram(self.current.as_ref()) => match datagram {
                    Ok(datagram) => arrived = Some(datagram),
                    // The link hears of it as well, and dials.
                    Err(_) => self.ended(),
                },
                () = self.setup.wire.changed() => {}
                () = sleep => {}
            }
        }
    }

    fn now(&self) -> Micros {
        let env = &self.setup.stage.env;
        match mutants::is("wall-clock") {
            true => Micros(env.unix_time() * 1_000_000),
            false => env.now(),
        }
    }

    /// Gives the machine whatever has come up; returns what it wants done, and when it wants to be woken.
    fn step(&mut self, datagram: Option<Bytes>) -> (Vec<Effect>, Micros) {
        let now = self.now();
        let mut messages = Vec::new();
        // What came on the connection that was, before its end and before what takes its place.
        messages.extend(datagram.and_then(|datagram| self.decode(&datagram)));
        messages.extend(self.progress(now));
        messages.extend(self.goodbye());
        messages.extend(self.new_connection(now));
        let mut machine = self.setup.machine();
        let mut effects = Vec::new();
        for message in messages {
            let mut out = Outcome::default();
            machine.handle(message, &mut Context::new(now, &mut out));
            effects.extend(out.effects);
        }
        let mut out = Outcome::default();
        machine.on_wake(&mut Context::new(now, &mut out));
        effects.extend(out.effects);
        (effects, out.wake_at.unwrap_or(Micros::NEVER))
    }

    /// Whether the peer has closed the connection because it leaves; said once.
    fn goodbye(&mut self) -> Option<heartbeat::Message> {
        let current = self.current.as_mut()?;
        if current.gone || !link::has_left(&current.agreed.connection) {
            return None;
        }
        (current.gone, current.ended) = (true, true);
        Some(heartbeat::Message::Goodbye)
    }

    fn new_connection(&mut self, now: Micros) -> Option<heartbeat::Message> {
        let agreed = self.setup.wire.agreed();
        let known = self.current.as_ref().map(|current| &current.agreed);
        match (&agreed, known) {
            (Some(agreed), Some(known)) if Arc::ptr_eq(agreed, known) => return None,
            (None, None) => return None,
            _ => {}
        }
        self.current = agreed.map(|agreed| Current {
            frames: agreed.frames(),
            agreed,
            ended: false,
            gone: false,
            looked: now,
        });
        let every = self.current.as_ref()?.agreed.every;
        Some(heartbeat::Message::Connected { every })
    }

    /// Whether anything but heartbeats came since the last look.
    fn progress(&mut self, now: Micros) -> Option<heartbeat::Message> {
        let mut since = None;
        let heard = self.setup.wire.heard();
        if heard > self.heard {
            self.heard = heard;
            since = Some(heard);
        }
        if let Some(current) = &mut self.current {
            let frames = current.agreed.frames();
            if frames > current.frames {
                // They came at some moment after the last look.
                since = since.max(Some(current.looked));
            }
            (current.frames, current.looked) = (frames, now);
            if current.gone {
                // What is read late was said before the goodbye.
                return None;
            }
        }
        Some(heartbeat::Message::Progress { since: since? })
    }

    /// Reads a heartbeat; who sends something else is cut off.
    fn decode(&mut self, datagram: &[u8]) -> Option<heartbeat::Message> {
        match wire::Heartbeat::from_bytes(datagram) {
            Ok(heartbeat) => Some(heartbeat::Message::Beat(heartbeat)),
            Err(error) => {
                if let Some(current) = &self.current {
                    let reason = format!("a datagram of {}: {error}", self.setup.peer);
                    current
                        .agreed
                        .connection
                        .close(VarInt::from_u32(6), reason.as_bytes());
                }
                self.ended();
                None
            }
        }
    }

    fn send(&self, heartbeat: wire::Heartbeat) {
        let current = self.current.as_ref().filter(|current| !current.ended);
        if let Some(current) = current {
            let bytes = Bytes::copy_from_slice(&heartbeat.to_bytes());
            // One that cannot be sent is as good as lost: the next one follows.
            let _ = current.agreed.connection.send_datagram(bytes);
        }
    }

    fn crossed(&self, exchange: wire::Exchange) {
        if let Some(current) = &self.current {
            let life = current.agreed.life;
            // One that finds no room tells no more than the next one will.
            let _ = self
                .setup
                .clock
                .post(clock_sync::Message { life, exchange });
        }
    }

    fn ended(&mut self) {
        if let Some(current) = &mut self.current {
            current.ended = true;
        }
    }
}

/// The next datagram of the connection; never, without one.
async fn datagram(current: Option<&Current>) -> Result<Bytes, ConnectionError> {
    match current.filter(|current| !current.ended) {
        Some(current) => current.agreed.connection.read_datagram().await,
        None => std::future::pending().await,
    }
}
