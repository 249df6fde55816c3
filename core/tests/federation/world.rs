//! The world of a pure federation: a clock, processes, memory and a disk, all of them values.
//!
//! Mathematics is replaced by labels: an update, a fold, a model is a hash of what it was made from, so that the checker can tell exactly
//! what is inside of what.

use std::collections::{BTreeMap, VecDeque};
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
use tombolo_core::view::Seen;
use tombolo_core::wire::{self, Control, FrameHeader, RegionRef};

use crate::check::Checker;
use crate::disk::Disk;
use crate::net::Link;
use crate::storm::Fault;
use crate::work::Work;

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
    Departs(NodeId, u64),
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
    pub origin: (Micros, Micros),
    /// Since when it is stopped.
    pub frozen: Option<Micros>,
    pub slow: bool,
    /// It was told to leave.
    pub leaves: bool,
    pub backlog: VecDeque<Happening>,
    pub seen: Seen,
    pub member: Option<Member>,
    pub gateway: Option<Gateway>,
    pub gateway_wakes: bool,
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
    /// Faults strike until then.
    pub until: Micros,
    /// Work fails now and then, and takes its time.
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
            frozen: None,
            slow: false,
            leaves: false,
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
            until: Micros(until_ms * 1000),
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
            && self.nodes[&node].frozen.is_some()
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
            | Happening::Departs(node, _)
            | Happening::GatewayWake(node, _) => node.clone(),
            Happening::Coordinator(..) | Happening::Load(_) | Happening::Wake(..) => {
                self.plan.coordinator.clone()
            }
            // Who is stopped panics when it goes on.
            Happening::Fault(index) => match &self.faults[*index].1 {
                Fault::Panic { node } => node.clone(),
                Fault::CoordinatorPanics => self.plan.coordinator.clone(),
                _ => return None,
            },
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
            Happening::Departs(node, process) if self.nodes[&node].process == process => {
                self.depart(&node);
            }
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
            (Part::Record, control) => unreachable!("nobody keeps a record here: {control:?}"),
            (Part::Member, control) => match control {
                Control::Train(train) => self.step_member(to, member::Message::Train(train)),
                Control::Adopt(model) => self.step_member(to, member::Message::Adopt(model)),
                Control::Drop { round, .. } => self.step_member(to, member::Message::Drop(round)),
                Control::Rejoin => self.step_member(to, member::Message::GatewayUp),
                _ => {}
            },
            (Part::Fabric | Part::View | Part::Credentials, _) => {}
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
            if let Event::Acknowledged {
                round,
                domain,
                attempt,
                ..
            } = &event
            {
                // Another life may have ended the round, in a write that landed late: then this one's outcome will not count.
                let over = self.disk.committed.ended >= *round;
                let noted = over || self.disk.is_noted(*round, domain, *attempt);
                assert!(
                    noted,
                    "ROUND-3: acknowledged and not noted: {event:?}; on disk: {}",
                    self.disk.told(domain)
                );
            }
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
