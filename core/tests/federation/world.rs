//! The world of a pure federation: a clock, processes, memory and a disk, all of them values.
//!
//! Mathematics is replaced by labels: an update, a fold, a model is a hash of what it was made from, so that the checker can tell exactly
//! what is inside of what.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tombolo_core::authorize::{Part, authorize};
use tombolo_core::coordinator::{self, Coordinator};
use tombolo_core::event::{Event, Finished};
use tombolo_core::gateway::{self, Gateway};
use tombolo_core::ids::{Attempt, DomainId, NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::member::{self, Export, Member};
use tombolo_core::plan::Plan;
use tombolo_core::rng::Rng;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::view::{Seen, View};
use tombolo_core::wire::{self, Control, FrameHeader, RegionRef};

use crate::check::Checker;
use crate::disk::Disk;
use crate::net::Link;
use crate::samples::layout;
use crate::storm::Fault;
use crate::work::{Work, update_region};

/// A label: what stands for a tensor.
pub type Label = Hash;

/// What a domain's contribution is made of.
pub type Sum = Vec<(NodeId, Label)>;

/// Labels something by its parts.
pub fn label(parts: &[&[u8]]) -> Label {
    let mut word = Rng::derive(0, parts);
    let mut bytes = [0; 32];
    word.fill(&mut bytes);
    Hash(bytes)
}

/// What lies in a region.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Update(Round, Label),
    /// With the token of its order.
    Folded(Round, u64, BTreeMap<u32, Sum>),
    Model(Round, Hash),
}

/// What will happen.
#[derive(Debug)]
pub enum Happening {
    Frame(usize, usize, u64, FrameHeader, Bytes),
    Acknowledge(usize, usize),
    Beat(usize, usize, u64, Box<wire::Heartbeat>),
    Pulse(usize, usize),
    Dial(usize),
    Connected(usize),
    Own(NodeId, u64, Box<Control>),
    Coordinator(u64, Box<coordinator::Message>),
    Load(u64),
    Wake(u64, u64),
    GatewayWake(NodeId, u64),
    Work(NodeId, u64, Box<Work>),
    /// The same, of the process rather than of a life.
    Labour(NodeId, u64, Box<Work>),
    Written(u64),
    Boot(NodeId, bool),
    Thaw(NodeId),
    Fault(usize),
    Over(Fault),
    StormEnds,
    Stop,
}

/// One node's process and memory. A life is that of the actor that owns the machines; it ends with the process at the latest.
pub struct Node {
    pub alive: bool,
    pub process: u64,
    pub life: u64,
    pub incarnation: u64,
    /// Its monotonic clock: what it showed, and when.
    origin: (Micros, Micros),
    pub frozen: bool,
    pub slow: bool,
    backlog: VecDeque<Happening>,
    pub seen: Seen,
    pub member: Option<Member>,
    pub gateway: Option<Gateway>,
    gateway_wakes: bool,
    pub regions: BTreeMap<u64, Content>,
    pub shelf: BTreeMap<(Round, Attempt), Sum>,
    /// The term as a gateway whose model is being obtained.
    pub obtaining: Option<u64>,
    pub wanted: Option<(Round, Hash)>,
    pub term: u64,
    /// The model in its trainer's memory, whatever the machine says.
    pub model: (Round, Hash),
    /// On its disk: the last update.
    pub kept: Option<(Export, Label)>,
}

pub struct World {
    pub plan: Plan,
    pub now: Micros,
    pub rng: Rng,
    pub nodes: BTreeMap<NodeId, Node>,
    pub links: Vec<Link>,
    pub link_of: BTreeMap<(NodeId, NodeId), usize>,
    pub coordinator: Option<Coordinator>,
    pub coordinator_life: u64,
    wake: u64,
    pub disk: Disk,
    pub check: Checker,
    pub finished: Option<Finished>,
    pub faults: Vec<(u64, Fault)>,
    /// Faults strike, and work fails now and then.
    pub storm: bool,
    /// When the last thing went wrong.
    pub calm_since: Micros,
    pub steps: u64,
    agenda: BTreeMap<(Micros, u64), Happening>,
    happenings: u64,
}

pub fn initial() -> Hash {
    label(&[b"initial"])
}

impl World {
    /// A federation that is about to start, and what will go wrong in the milliseconds before `until_ms`.
    pub fn new(plan: Plan, seed: u64, faults: Vec<(u64, Fault)>, until_ms: u64) -> Self {
        let node = |id: &NodeId| Node {
            alive: false,
            process: 0,
            life: 0,
            incarnation: 0,
            origin: Default::default(),
            frozen: false,
            slow: false,
            backlog: VecDeque::new(),
            seen: Seen::new(&plan, id.clone()),
            member: None,
            gateway: None,
            gateway_wakes: false,
            regions: BTreeMap::new(),
            shelf: BTreeMap::new(),
            obtaining: None,
            wanted: None,
            term: 0,
            model: (0, initial()),
            kept: None,
        };
        let mut world = World {
            nodes: plan.nodes().map(|n| (n.id.clone(), node(&n.id))).collect(),
            check: Checker::new(&plan),
            disk: Disk::new(),
            plan,
            now: Micros(0),
            rng: Rng::derive(seed, &[b"world"]),
            links: Vec::new(),
            link_of: BTreeMap::new(),
            coordinator: None,
            coordinator_life: 0,
            wake: 0,
            finished: None,
            storm: until_ms > 0,
            calm_since: Micros(0),
            steps: 0,
            faults: Vec::new(),
            agenda: BTreeMap::new(),
            happenings: 0,
        };
        let ids: Vec<NodeId> = world.nodes.keys().cloned().collect();
        for id in &ids {
            for peer in world.plan.peers(id) {
                let ends = match *id < peer {
                    true => [id.clone(), peer],
                    false => [peer, id.clone()],
                };
                let key = (ends[0].clone(), ends[1].clone());
                if !world.link_of.contains_key(&key) {
                    world.link_of.insert(key, world.links.len());
                    world.links.push(Link::new(ends));
                }
            }
        }
        for id in ids {
            world.after(0, 500, Happening::Boot(id, true));
        }
        for (index, (at_ms, _)) in faults.iter().enumerate() {
            world.at(Micros(at_ms * 1000), Happening::Fault(index));
        }
        world.faults = faults;
        world.at(Micros(until_ms * 1000), Happening::StormEnds);
        world
    }

    /// Lets something happen between `least` and `most` milliseconds from now.
    pub fn after(&mut self, least: u64, most: u64, happening: Happening) {
        self.after_micros(least * 1000, most * 1000, happening);
    }

    pub fn after_micros(&mut self, least: u64, most: u64, happening: Happening) {
        let span = Duration::from_micros(least + self.rng.below(most - least + 1));
        self.at(self.now + span, happening);
    }

    pub fn at(&mut self, at: Micros, happening: Happening) {
        if at == Micros::NEVER {
            return;
        }
        self.happenings += 1;
        self.agenda.insert((at, self.happenings), happening);
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.rng.next_f64() < share
    }

    /// What a node's clock shows.
    pub fn local(&self, node: &NodeId) -> Micros {
        let (shown, then) = self.nodes[node].origin;
        shown + self.now.since(then)
    }

    /// When a node's clock will show that.
    pub fn global(&self, node: &NodeId, local: Micros) -> Micros {
        if local == Micros::NEVER {
            return local;
        }
        let (shown, then) = self.nodes[node].origin;
        then + local.since(shown)
    }

    /// Lets the next thing happen; false once nothing is left or the run has ended.
    pub fn step(&mut self) -> bool {
        if self.finished.is_some() {
            return false;
        }
        let Some(((at, _), happening)) = self.agenda.pop_first() else {
            return false;
        };
        self.now = at;
        self.steps += 1;
        if let Some(node) = self.target(&happening)
            && self.nodes[&node].frozen
        {
            let node = self.nodes.get_mut(&node).expect("it is in the plan");
            node.backlog.push_back(happening);
        } else {
            self.happen(happening);
        }
        if self.steps.is_multiple_of(100) {
            crate::check::look(self);
        }
        true
    }

    /// The process that something happens in, which may be stopped.
    fn target(&self, happening: &Happening) -> Option<NodeId> {
        Some(match happening {
            Happening::Frame(link, side, ..) | Happening::Beat(link, side, ..) => {
                self.links[*link].ends[1 - side].clone()
            }
            Happening::Acknowledge(link, side) | Happening::Pulse(link, side) => {
                self.links[*link].ends[*side].clone()
            }
            Happening::Own(node, ..)
            | Happening::Work(node, ..)
            | Happening::Labour(node, ..)
            | Happening::GatewayWake(node, _) => node.clone(),
            Happening::Coordinator(..) | Happening::Load(_) | Happening::Wake(..) => {
                self.plan.coordinator.clone()
            }
            _ => return None,
        })
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Frame(link, side, generation, header, bytes) => {
                self.on_frame(link, side, generation, header, &bytes);
            }
            Happening::Acknowledge(link, side) => self.acknowledge(link, side),
            Happening::Beat(link, side, generation, beat) => {
                self.on_beat(link, side, generation, *beat);
            }
            Happening::Pulse(link, side) => self.on_pulse(link, side),
            Happening::Dial(link) => self.on_dial(link),
            Happening::Connected(link) => self.on_connected(link),
            Happening::Own(node, process, control) if self.nodes[&node].process == process => {
                self.inbound(&node, &node, *control);
            }
            Happening::Coordinator(life, message) if life == self.coordinator_life => {
                self.step_coordinator(Some(*message));
            }
            Happening::Load(life) if life == self.coordinator_life => self.start_coordinator(),
            Happening::Wake(life, wake) if (life, wake) == (self.coordinator_life, self.wake) => {
                self.step_coordinator(None);
            }
            Happening::GatewayWake(node, term) if self.nodes[&node].term == term => {
                let entry = self.nodes.get_mut(&node).expect("it is in the plan");
                entry.gateway_wakes = false;
                self.move_gateway(&node, Machine::on_wake);
            }
            Happening::Work(node, life, work) if self.lives(&node, life) => self.work(&node, *work),
            Happening::Labour(node, process, work) if self.nodes[&node].process == process => {
                self.work(&node, *work);
            }
            Happening::Written(write) => self.written(write),
            Happening::Boot(node, with_disk) => self.boot(&node, with_disk),
            Happening::Thaw(node) => self.thaw(&node),
            Happening::Fault(index) => {
                let fault = self.faults[index].1.clone();
                self.strike(fault);
            }
            Happening::Over(fault) => self.relent(&fault),
            Happening::StormEnds => self.end_storm(),
            Happening::Stop => {
                let stop = coordinator::Message::Stop(crate::ENOUGH.into());
                self.step_coordinator(Some(stop));
                self.after(1000, 1000, Happening::Stop);
            }
            _ => {}
        }
    }

    pub fn lives(&self, node: &NodeId, life: u64) -> bool {
        let node = &self.nodes[node];
        node.alive && node.life == life
    }

    // ---- lives ----

    /// A process starts, with empty memory and perhaps with an empty disk.
    fn boot(&mut self, id: &NodeId, with_disk: bool) {
        if self.nodes[id].alive {
            return;
        }
        let shows = Micros(self.rng.below(3_600_000_000));
        let incarnation = self.rng.next_u64() | 1;
        let (now, seen) = (self.now, Seen::new(&self.plan, id.clone()));
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        (node.alive, node.incarnation, node.origin) = (true, incarnation, (shows, now));
        node.shelf.clear();
        node.seen = seen;
        if !with_disk {
            node.kept = None;
        }
        self.check.on_boot(id);
        for link in self.links_of(id) {
            let side = self.links[link].side(id);
            self.begin_watch(link, side);
            self.dial(link, 1, 200);
        }
        self.begin(id);
        if *id == self.plan.coordinator {
            self.begin_coordinator();
        }
    }

    pub fn links_of(&self, id: &NodeId) -> Vec<usize> {
        let links = self.links.iter().enumerate();
        let mine = links.filter(|(_, link)| link.ends.contains(id));
        mine.map(|(index, _)| index).collect()
    }

    /// The actor that owns a node's machines starts, or starts again.
    pub fn begin(&mut self, id: &NodeId) {
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        node.life += 1;
        node.regions.clear();
        (node.obtaining, node.wanted, node.model) = (None, None, (0, initial()));
        let mut member = Member::new(id.clone(), layout(), 0, initial());
        if let Some((export, update)) = &mut node.kept {
            // The update that the life before has made lies in a region of this one.
            let round = export.exported.round;
            export.exported.region = update_region(id, node.life);
            let key = export.exported.region.key;
            node.regions.insert(key, Content::Update(round, *update));
            member.restore(export.clone());
        }
        node.member = Some(member);
        node.gateway = None;
        if self.nodes[id].seen.is_gateway() {
            self.act(id);
            self.show(id, (0, initial()));
        }
        // Links announce themselves to the new machines.
        for peer in self.plan.peers(id) {
            if self.is_up(id, &peer) {
                self.link_up(id, &peer);
            }
        }
        if self.nodes[id].seen.is_gateway() {
            self.step_gateway(id, gateway::Message::MemberUp(id.clone()));
            if *id == self.plan.coordinator {
                self.step_gateway(id, gateway::Message::CoordinatorUp);
            }
        }
    }

    /// A node gets the machine of a gateway.
    fn act(&mut self, id: &NodeId) {
        let domain = self.plan.domain(&id.domain()).expect("it is in the plan");
        let ranks: Vec<NodeId> = domain.nodes.iter().map(|node| node.id.clone()).collect();
        let tokens = Rng::new(self.rng.next_u64());
        let patience = self.plan.heartbeat.limit() * 4;
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        let gateway = Gateway::new(id.domain(), ranks, layout(), tokens).patient(patience);
        node.gateway = Some(gateway.for_rule(self.plan.aggregator.needs));
        node.term += 1;
        (node.gateway_wakes, node.wanted) = (false, None);
        let view = node.seen.view().clone();
        self.step_gateway(id, gateway::Message::View(view));
    }

    /// A node hears of a view.
    fn on_view(&mut self, id: &NodeId, view: View) {
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        let Some(turn) = node.seen.adopt(&self.plan, view.clone()) else {
            return;
        };
        let member = node.member.as_ref().expect("it lives").model();
        self.check.on_view(id, &view);
        let epoch = view.epoch;
        let event = Event::ViewAdopted {
            node: id.clone(),
            epoch,
        };
        self.events(id, vec![event]);
        if turn.falls {
            let node = self.nodes.get_mut(id).expect("it is in the plan");
            node.gateway = None;
            node.shelf.clear();
        }
        let mut neighbours: Vec<NodeId> = self.plan.peers(id);
        neighbours.retain(|peer| peer.domain() == id.domain() && self.is_up(id, peer));
        if self.nodes[id].seen.is_gateway() {
            for peer in &neighbours {
                self.send(id, peer, Control::View(view.clone()));
            }
        }
        if turn.rises {
            self.act(id);
            self.show(id, member);
            for peer in neighbours.iter().chain([id]) {
                self.step_gateway(id, gateway::Message::MemberUp(peer.clone()));
            }
            if self.is_up(id, &self.plan.coordinator.clone()) {
                self.step_gateway(id, gateway::Message::CoordinatorUp);
            }
            self.step_member(id, member::Message::GatewayUp);
        } else {
            self.step_gateway(id, gateway::Message::View(view));
        }
        if turn.gateway_moved && !turn.rises {
            self.step_member(id, member::Message::GatewayUp);
        }
    }

    /// The coordinator's actor starts, or starts again: first it reads what is written down.
    pub fn begin_coordinator(&mut self) {
        self.coordinator_life += 1;
        self.coordinator = Some(Coordinator::new(self.plan.clone(), layout()));
        self.check.on_restart();
        self.after(50, 300, Happening::Load(self.coordinator_life));
    }

    fn start_coordinator(&mut self) {
        // What this process is writing is written before anything is read.
        self.flush();
        let (committed, resumed) = self.disk.load();
        let start = coordinator::Message::Start(Box::new(committed), resumed.map(Box::new));
        self.step_coordinator(Some(start));
        let own = self.plan.coordinator.clone();
        let mut up: BTreeSet<NodeId> = [own.clone()].into();
        for peer in self.plan.peers(&own) {
            if peer.domain() != own.domain() && self.is_up(&own, &peer) {
                up.insert(peer);
            }
        }
        for node in up {
            self.step_coordinator(Some(coordinator::Message::Up(node)));
        }
    }

    /// A process ends, and its memory with it.
    pub fn crash(&mut self, id: &NodeId) {
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        if !node.alive {
            return;
        }
        (node.alive, node.frozen) = (false, false);
        node.process += 1;
        node.life += 1;
        node.term += 1;
        node.backlog.clear();
        node.regions.clear();
        node.shelf.clear();
        (node.member, node.gateway) = (None, None);
        for link in self.links_of(id) {
            let side = self.links[link].side(id);
            self.forget(link, side);
        }
        if *id == self.plan.coordinator {
            self.coordinator = None;
            self.coordinator_life += 1;
            self.lose_writes();
        }
    }

    fn thaw(&mut self, id: &NodeId) {
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        if !std::mem::replace(&mut node.frozen, false) {
            return;
        }
        let backlog = std::mem::take(&mut node.backlog);
        // In their order, one after another, before anything new.
        for happening in backlog {
            self.at(self.now, happening);
        }
    }

    /// The run has ended before its time, for a stated reason: whoever runs it starts all of it again from what is written down.
    pub fn start_over(&mut self, finished: &Finished) {
        self.check.on_run_over(finished);
        self.calm_since = self.now;
        let ids: Vec<NodeId> = self.nodes.keys().cloned().collect();
        for id in ids {
            self.crash(&id);
            self.after(500, 3000, Happening::Boot(id, true));
        }
    }

    // ---- links come up ----

    /// Tells a node's machines that a link of theirs carries messages.
    pub fn link_up(&mut self, node: &NodeId, peer: &NodeId) {
        if !self.nodes[node].alive {
            return;
        }
        if node.domain() != peer.domain() {
            return self.wan_up(node, peer);
        }
        let seen = self.nodes[node].seen.clone();
        if seen.is_gateway() && seen.view().epoch > 1 {
            self.send(node, peer, Control::View(seen.view().clone()));
        }
        self.step_gateway(node, gateway::Message::MemberUp(peer.clone()));
        if seen.gateway() == peer {
            self.step_member(node, member::Message::GatewayUp);
        }
    }

    pub fn wan_up(&mut self, node: &NodeId, peer: &NodeId) {
        if *peer == self.plan.coordinator {
            self.step_gateway(node, gateway::Message::CoordinatorUp);
        }
        if *node == self.plan.coordinator {
            let up = coordinator::Message::Up(peer.clone());
            self.step_coordinator(Some(up));
        }
    }

    /// A message has come: who may say what, and who hears it.
    pub fn inbound(&mut self, from: &NodeId, to: &NodeId, control: Control) {
        if !self.nodes[to].alive {
            return;
        }
        let view = self.nodes[to].seen.view();
        let part = match authorize(&self.plan, view, to, from, &control) {
            Ok(part) => part,
            // Only who goes by another view, now or when it said so, says what it may not.
            Err(refusal) => {
                return assert!(self.disk.committed.view.is_some(), "IDENT-1: {refusal}");
            }
        };
        match (part, control) {
            (Part::View, Control::View(view)) => self.on_view(to, view),
            (Part::Coordinator, control) => {
                let message = coordinator::Message::Domain(from.clone(), control);
                self.step_coordinator(Some(message));
            }
            (
                Part::Gateway,
                control @ (Control::Join(_)
                | Control::Exported(_)
                | Control::Failed { .. }
                | Control::Measured(_)
                | Control::Folded(_)
                | Control::Departing
                | Control::Holds { .. }),
            ) => self.step_gateway(to, gateway::Message::Member(from.clone(), control)),
            (Part::Gateway, control) => {
                let over = match &control {
                    Control::Commit(commit) => commit.round + 1,
                    Control::Abort { round, .. } => *round + 1,
                    Control::Open(open) => open.round,
                    _ => 0,
                };
                let shelf = &mut self.nodes.get_mut(to).expect("it is in the plan").shelf;
                shelf.retain(|(round, _), _| *round >= over);
                self.step_gateway(to, gateway::Message::Coordinator(control));
            }
            (Part::Rank, control) => self.collect(from, to, control),
            (Part::Member, control) => match control {
                Control::Train(train) => self.step_member(to, member::Message::Train(train)),
                Control::Adopt(model) => self.step_member(to, member::Message::Adopt(model)),
                Control::Drop { round, .. } => self.step_member(to, member::Message::Drop(round)),
                Control::Rejoin => self.step_member(to, member::Message::GatewayUp),
                _ => {}
            },
            (Part::Fabric | Part::View, _) => {}
        }
    }

    // ---- machines ----

    pub fn step_member(&mut self, id: &NodeId, message: member::Message) {
        let now = self.local(id);
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        let Some(machine) = &mut node.member else {
            return;
        };
        let mut out = Outcome::default();
        machine.handle(message, &mut Context::new(now, &mut out));
        self.events(id, out.events);
        let gateway = self.nodes[id].seen.gateway().clone();
        for effect in out.effects {
            match effect {
                member::Effect::Tell(control) => self.send(id, &gateway, control),
                member::Effect::Adopt(model) => self.adopt(id, model),
                member::Effect::Train(train) => self.train(id, train),
            }
        }
    }

    pub fn step_gateway(&mut self, id: &NodeId, message: gateway::Message) {
        self.move_gateway(id, |gateway, cx| gateway.handle(message, cx));
    }

    fn move_gateway(
        &mut self,
        id: &NodeId,
        step: impl FnOnce(&mut Gateway, &mut Context<'_, gateway::Effect>),
    ) {
        let now = self.local(id);
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        let Some(machine) = &mut node.gateway else {
            return;
        };
        let mut out = Outcome::default();
        step(machine, &mut Context::new(now, &mut out));
        let term = node.term;
        self.events(id, out.events);
        for effect in out.effects {
            match effect {
                gateway::Effect::Tell(control) => {
                    self.send(id, &self.plan.coordinator.clone(), control);
                }
                gateway::Effect::Member(member, control) => self.send(id, &member, control),
                gateway::Effect::Obtain { round, hash, .. } => self.obtain(id, round, hash),
                gateway::Effect::Gather(gather) => self.gather(id, gather),
                gateway::Effect::Collect(collect) => self.collect_updates(id, collect),
                gateway::Effect::Finished(_) => {}
            }
        }
        if let Some(at) = out.wake_at {
            let at = self.global(id, at);
            let node = self.nodes.get_mut(id).expect("it is in the plan");
            if !std::mem::replace(&mut node.gateway_wakes, true) {
                self.at(at, Happening::GatewayWake(id.clone(), term));
            }
        }
    }

    pub fn step_coordinator(&mut self, message: Option<coordinator::Message>) {
        let id = self.plan.coordinator.clone();
        let now = self.local(&id);
        let Some(machine) = &mut self.coordinator else {
            return;
        };
        let mut out = Outcome::default();
        let mut cx = Context::new(now, &mut out);
        match message {
            Some(message) => machine.handle(message, &mut cx),
            None => machine.on_wake(&mut cx),
        }
        self.events(&id, out.events);
        let life = self.coordinator_life;
        for effect in out.effects {
            // The last one may have ended the process.
            if life == self.coordinator_life {
                self.perform(life, effect);
            }
        }
        if let Some(at) = out.wake_at.filter(|_| life == self.coordinator_life) {
            // As in the actor: a new wish takes the place of the older one.
            self.wake += 1;
            let (wake, at) = (self.wake, self.global(&id, at));
            let at = at.max(self.now + Duration::from_millis(1));
            self.at(at, Happening::Wake(life, wake));
        }
    }

    pub fn events(&mut self, node: &NodeId, events: Vec<Event>) {
        let now = self.local(node);
        for event in events {
            self.check.on_event(self.now, now, node, &event);
        }
    }

    /// As the coordinator sees it.
    pub fn gateway_of(&self, domain: &DomainId) -> NodeId {
        let view = self.coordinator.as_ref().expect("it asks").view();
        view.gateway(domain).expect("it is in the view").clone()
    }

    /// Whether a node is out of the last view that was written down.
    pub fn is_out(&self, node: &NodeId) -> bool {
        let view = self.disk.committed.view.as_ref();
        view.is_some_and(|view| view.is_out(node))
    }

    pub fn read(&self, region: &RegionRef) -> Option<&Content> {
        self.nodes.get(&region.owner)?.regions.get(&region.key)
    }
}
