//! Links between nodes: connections that break and are dialled anew, frames that wait for an acknowledgement, heartbeats that get lost.
//!
//! As with QUIC, a connection keeps the order of its frames, and what was lost on the way comes later; datagrams may be lost, overtaken and
//! doubled. A path may be cut one way only.

use std::time::Duration;

use bytes::Bytes;
use tombolo_core::event::Event;
use tombolo_core::heartbeat::{self, Effect, Heartbeat, Verdict};
use tombolo_core::ids::NodeId;
use tombolo_core::link::Memory;
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::membership::Word;
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;
use tombolo_core::wire::{self, Control, FrameHeader, Hello, codec};
use tombolo_core::{coordinator, gateway};

use crate::world::{Happening, World};

/// A link between two nodes; direction 0 is from the first to the second.
pub struct Link {
    pub ends: [NodeId; 2],
    wan: bool,
    pub up: [bool; 2],
    /// A connection stands, as far as both processes are concerned.
    stands: bool,
    generation: u64,
    dialing: bool,
    wait_ms: u64,
    memory: [Memory; 2],
    /// When the last frame of each direction arrives: none overtakes another.
    last: [Micros; 2],
    held: [Vec<(FrameHeader, Bytes)>; 2],
    acknowledges: [bool; 2],
    watch: [Option<Heartbeat>; 2],
    /// When each watch is looked after next, and when it wants to be.
    wakes: [Micros; 2],
    wanted: [Micros; 2],
    /// How many faults cut each direction.
    pub blocked: [u32; 2],
    /// Share of packets lost, and what is added to each one's way.
    pub loss: f64,
    pub delay_ms: u64,
}

impl Link {
    pub fn new(ends: [NodeId; 2]) -> Self {
        Link {
            wan: ends[0].domain() != ends[1].domain(),
            ends,
            up: [false; 2],
            stands: false,
            generation: 0,
            dialing: false,
            wait_ms: 50,
            memory: Default::default(),
            last: Default::default(),
            held: Default::default(),
            acknowledges: [false; 2],
            watch: [None, None],
            wakes: [Micros::NEVER; 2],
            wanted: [Micros::NEVER; 2],
            blocked: [0; 2],
            loss: 0.0,
            delay_ms: 0,
        }
    }

    pub fn side(&self, node: &NodeId) -> usize {
        usize::from(self.ends[1] == *node)
    }

    /// Messages that wait for an acknowledgement, on the fuller side.
    pub fn waiting(&self) -> usize {
        self.memory[0].waiting().max(self.memory[1].waiting())
    }

    fn passes(&self) -> bool {
        self.blocked == [0; 2]
    }
}

impl World {
    pub fn link_between(&self, a: &NodeId, b: &NodeId) -> Option<usize> {
        let key = if a < b { (a, b) } else { (b, a) };
        self.link_of.get(&(key.0.clone(), key.1.clone())).copied()
    }

    pub fn is_up(&self, node: &NodeId, peer: &NodeId) -> bool {
        if node == peer {
            return true;
        }
        let link = self.link_between(node, peer).map(|link| &self.links[link]);
        link.is_some_and(|link| link.up[link.side(node)])
    }

    /// How long a packet is under way.
    fn way(&mut self, link: usize, to: usize) -> Duration {
        let known = &self.links[link];
        let (wan, delay, loss) = (known.wan, known.delay_ms, known.loss);
        let slow = self.nodes[&known.ends[to]].slow;
        let mut micros = match wan {
            true => 5_000 + self.rng.below(30_000),
            false => 100 + self.rng.below(1_500),
        };
        micros += self.rng.below(delay * 1000 + 1);
        if slow {
            micros += self.rng.below(300_000);
        }
        if loss > 0.0 && self.chance(loss) {
            micros += 50_000 + self.rng.below(400_000);
        }
        Duration::from_micros(micros)
    }

    // ---- frames ----

    pub fn send(&mut self, from: &NodeId, to: &NodeId, control: Control) {
        if from == to {
            let process = self.nodes[from].process;
            let happening = Happening::Own(from.clone(), process, Box::new(control));
            return self.after_micros(100, 3_000, happening);
        }
        let Some(link) = self.link_between(from, to) else {
            return;
        };
        let bytes = codec::encode(&control).expect("what is said can be said");
        let side = self.links[link].side(from);
        let pushed = self.links[link].memory[side].push(Bytes::from(bytes));
        assert_eq!(pushed, Ok(()), "BOUND-1: {from} to {to}");
        self.pump(link, side);
    }

    fn pump(&mut self, link: usize, side: usize) {
        if !self.links[link].up[side] {
            return;
        }
        while let Some((header, bytes)) = self.links[link].memory[side].next_frame() {
            if self.links[link].stands {
                self.put(link, side, header, bytes);
            }
        }
    }

    fn put(&mut self, link: usize, side: usize, header: FrameHeader, bytes: Bytes) {
        if self.links[link].blocked[side] > 0 {
            // It is sent again and again, and comes once the path is back, if the connection still stands then.
            return self.links[link].held[side].push((header, bytes));
        }
        let way = self.way(link, 1 - side);
        let at = (self.now + way).max(self.links[link].last[side] + Duration::from_micros(1));
        self.links[link].last[side] = at;
        let generation = self.links[link].generation;
        let happening = Happening::Frame(link, side, generation, header, bytes);
        self.at(at, happening);
    }

    pub fn on_frame(
        &mut self,
        link: usize,
        side: usize,
        generation: u64,
        header: FrameHeader,
        bytes: &Bytes,
    ) {
        let known = &mut self.links[link];
        let (from, to) = (known.ends[side].clone(), known.ends[1 - side].clone());
        if known.generation != generation || !known.up[1 - side] {
            return;
        }
        let new = known.memory[1 - side].on_frame(header);
        let acknowledges = std::mem::replace(&mut known.acknowledges[1 - side], true);
        if !acknowledges && header.len > 0 {
            self.after_micros(5_000, 25_000, Happening::Acknowledge(link, 1 - side));
        }
        self.heard(link, 1 - side);
        if new && header.len > 0 {
            let control = codec::decode(bytes).expect("what was said can be understood");
            self.inbound(&from, &to, control);
        }
    }

    pub fn acknowledge(&mut self, link: usize, side: usize) {
        self.links[link].acknowledges[side] = false;
        if self.links[link].up[side] && self.links[link].stands {
            let header = self.links[link].memory[side].acknowledgement();
            self.put(link, side, header, Bytes::new());
        }
    }

    // ---- connections ----

    /// Dials soon, unless that is so already.
    pub fn dial(&mut self, link: usize, least_ms: u64, most_ms: u64) {
        if !std::mem::replace(&mut self.links[link].dialing, true) {
            self.after(least_ms, most_ms, Happening::Dial(link));
        }
    }

    pub fn on_dial(&mut self, link: usize) {
        self.links[link].dialing = false;
        let alive = |node: &NodeId| self.nodes[node].alive && self.nodes[node].frozen.is_none();
        let ends = self.links[link].ends.clone();
        if ends.iter().all(alive) && self.links[link].passes() {
            let way = self.way(link, 0) + self.way(link, 1);
            return self.at(self.now + way, Happening::Connected(link));
        }
        let wait = (self.links[link].wait_ms * 2).min(2000);
        self.links[link].wait_ms = wait;
        if ends.iter().any(|end| self.nodes[end].alive) {
            self.dial(link, wait / 2, wait * 3 / 2);
        }
    }

    pub fn on_connected(&mut self, link: usize) {
        let ends = self.links[link].ends.clone();
        let alive = ends.iter().all(|node| self.nodes[node].alive);
        if !alive || !self.links[link].passes() {
            return self.dial(link, 50, 500);
        }
        for side in [0, 1] {
            self.link_down(link, side);
        }
        let incarnations = [0, 1].map(|side: usize| self.nodes[&ends[side]].incarnation);
        let hello = [0, 1].map(|side: usize| {
            let (known, received) = self.links[link].memory[side].known();
            Hello {
                version: wire::VERSION,
                fingerprint: wire::FINGERPRINT,
                topology: Default::default(),
                incarnation: incarnations[side],
                known,
                received,
                heartbeat_ms: 500,
                at_work: true,
            }
        });
        let now = self.now;
        let known = &mut self.links[link];
        (known.up, known.stands, known.wait_ms) = ([true; 2], true, 50);
        known.generation += 1;
        (known.held, known.last) = (Default::default(), [now; 2]);
        for side in [0, 1] {
            let _ = known.memory[side].on_hello(incarnations[side], &hello[1 - side], None);
        }
        let every = self.plan.heartbeat.every;
        for side in [0, 1] {
            self.watch(link, side, Some(heartbeat::Message::Connected { every }));
            self.link_up(&ends[side].clone(), &ends[1 - side].clone());
            self.pump(link, side);
        }
    }

    /// One side closes what stands, or its process ends.
    pub fn hang_up(&mut self, link: usize, side: usize) {
        self.links[link].stands = false;
        self.link_down(link, side);
        if self.links[link].passes() {
            self.link_down(link, 1 - side);
        }
        self.dial(link, 50, 500);
    }

    /// A process ends: its memory of the link with it, and the other side does not know.
    pub fn forget(&mut self, link: usize, side: usize) {
        let known = &mut self.links[link];
        (known.stands, known.up[side]) = (false, false);
        known.memory[side] = Memory::default();
        known.watch[side] = None;
        known.wanted[side] = Micros::NEVER;
    }

    /// Whether what one side sends reaches the other's process.
    pub fn is_heard(&self, link: usize, side: usize) -> bool {
        let known = &self.links[link];
        let peer = &self.nodes[&known.ends[1 - side]];
        known.stands && known.blocked[side] == 0 && peer.alive && peer.frozen.is_none()
    }

    /// The peer has closed the connection and said that it leaves.
    pub fn part(&mut self, link: usize, side: usize) {
        self.link_down(link, side);
        self.watch(link, side, Some(heartbeat::Message::Goodbye));
    }

    fn link_down(&mut self, link: usize, side: usize) {
        if !std::mem::replace(&mut self.links[link].up[side], false) {
            return;
        }
        let known = &self.links[link];
        let (node, peer, wan) = (
            known.ends[side].clone(),
            known.ends[1 - side].clone(),
            known.wan,
        );
        if !wan {
            self.step_gateway(&node, gateway::Message::MemberSilent(peer));
        }
    }

    /// A direction is cut, or one cut less.
    pub fn block(&mut self, link: usize, side: usize, cut: bool) {
        let known = &mut self.links[link];
        if cut {
            known.blocked[side] += 1;
            return;
        }
        known.blocked[side] = known.blocked[side].saturating_sub(1);
        if known.blocked[side] == 0 {
            let held = std::mem::take(&mut known.held[side]);
            for (header, bytes) in held {
                self.put(link, side, header, bytes);
            }
        }
    }

    // ---- heartbeats ----

    /// A process starts to watch its peer.
    pub fn begin_watch(&mut self, link: usize, side: usize) {
        let rng = Rng::new(self.rng.next_u64());
        let heartbeat = Heartbeat::new(&self.plan.heartbeat, rng);
        self.links[link].watch[side] = Some(heartbeat);
        self.watch(link, side, None);
    }

    fn heard(&mut self, link: usize, side: usize) {
        let since = self.local(&self.links[link].ends[side].clone());
        self.watch(link, side, Some(heartbeat::Message::Progress { since }));
    }

    pub fn on_beat(&mut self, link: usize, side: usize, generation: u64, beat: wire::Heartbeat) {
        let known = &self.links[link];
        if known.generation == generation && known.up[1 - side] {
            self.watch(link, 1 - side, Some(heartbeat::Message::Beat(beat)));
        }
    }

    pub fn on_pulse(&mut self, link: usize, side: usize) {
        self.links[link].wakes[side] = Micros::NEVER;
        if self.links[link].wanted[side] <= self.now {
            self.watch(link, side, None);
        } else {
            self.wake_watch(link, side);
        }
    }

    fn wake_watch(&mut self, link: usize, side: usize) {
        let known = &mut self.links[link];
        let wanted = known.wanted[side];
        if wanted < known.wakes[side] {
            known.wakes[side] = wanted;
            let slow = self.nodes[&known.ends[side]].slow;
            let late = if slow { self.rng.below(400_000) } else { 0 };
            let at = wanted.max(self.now) + Duration::from_micros(late);
            self.at(at, Happening::Pulse(link, side));
        }
    }

    /// Steps the watch of one side.
    fn watch(&mut self, link: usize, side: usize, message: Option<heartbeat::Message>) {
        let node = self.links[link].ends[side].clone();
        let now = self.local(&node);
        let known = &mut self.links[link];
        let Some(machine) = &mut known.watch[side] else {
            return;
        };
        let mut out = Outcome::default();
        let mut cx = Context::new(now, &mut out);
        match message {
            Some(message) => machine.handle(message, &mut cx),
            None => machine.on_wake(&mut cx),
        }
        let wanted = out.wake_at.unwrap_or(Micros::NEVER);
        self.links[link].wanted[side] = self.global(&node, wanted);
        self.wake_watch(link, side);
        for effect in out.effects {
            match effect {
                Effect::Send(beat) => self.put_beat(link, side, beat),
                Effect::Redial => self.dial(link, 0, 1),
                Effect::Verdict(verdict) => self.verdict(link, side, verdict),
                // For the clocks, which no machine here looks at.
                Effect::Crossed(_) => {}
            }
        }
    }

    fn put_beat(&mut self, link: usize, side: usize, beat: wire::Heartbeat) {
        let known = &self.links[link];
        let (loss, generation) = (known.loss, known.generation);
        if !known.up[side] || !known.stands || known.blocked[side] > 0 || self.chance(loss) {
            return;
        }
        let copies = if self.storm && self.chance(0.02) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let way = self.way(link, 1 - side);
            let happening = Happening::Beat(link, side, generation, Box::new(beat));
            self.at(self.now + way, happening);
        }
    }

    /// As `Node::verdict` and the heartbeat's actor do.
    fn verdict(&mut self, link: usize, side: usize, verdict: Verdict) {
        let known = &self.links[link];
        let (node, peer, wan) = (
            known.ends[side].clone(),
            known.ends[1 - side].clone(),
            known.wan,
        );
        let up = known.up[side];
        let (of, about) = (node.clone(), peer.clone());
        let (event, word, told) = match verdict {
            Verdict::Suspected { silent } => {
                let silent_ms = silent.as_millis() as u64;
                let event = Event::PeerSuspected {
                    node: of,
                    peer: about,
                    silent_ms,
                };
                (event, None, gateway::Message::MemberSilent(peer.clone()))
            }
            Verdict::Recovered { after, from } => {
                let event = Event::PeerRecovered {
                    node: of,
                    peer: about,
                    silent_ms: after.as_millis() as u64,
                    lost: from.is_lost(),
                };
                self.events(&node, vec![event]);
                if up && wan {
                    self.wan_up(&node, &peer);
                } else if up {
                    self.step_gateway(&node, gateway::Message::MemberUp(peer));
                }
                return;
            }
            Verdict::Lost => (
                Event::PeerLost {
                    node: of,
                    peer: about,
                },
                Some(Word::Restoring),
                gateway::Message::MemberLost(peer.clone()),
            ),
            Verdict::Overdue => (
                Event::PeerOverdue {
                    node: of,
                    peer: about,
                },
                Some(Word::Overdue),
                gateway::Message::MemberOverdue(peer.clone()),
            ),
            Verdict::Left => (
                Event::PeerLeft {
                    node: of,
                    peer: about,
                },
                Some(Word::Left),
                gateway::Message::MemberLeaves(peer.clone()),
            ),
        };
        self.events(&node, vec![event]);
        if verdict == Verdict::Lost {
            self.hang_up(link, side);
        }
        match (wan, word) {
            (false, _) => self.step_gateway(&node, told),
            (true, Some(word)) if node == self.plan.coordinator => {
                self.step_coordinator(Some(coordinator::Message::Watched(peer, word)));
            }
            _ => {}
        }
    }
}
