//! The world of a pure federation: a clock, links, memory and a disk, all of them values.
//!
//! Mathematics is replaced by labels: an update, a fold, a model is a hash of what it was made from, so that the checker can tell exactly
//! what is inside of what.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tombolo_core::aggregate::Report;
use tombolo_core::authorize::{Part, authorize};
use tombolo_core::coordinator::{self, Committed, Coordinator, Noted, Resumed, Weighing};
use tombolo_core::event::{Event, Finished, RoundRecord};
use tombolo_core::gateway::{self, Gateway};
use tombolo_core::ids::{Attempt, DomainId, NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::member::{self, Member};
use tombolo_core::membership::Word;
use tombolo_core::plan::Plan;
use tombolo_core::rng::Rng;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::view::{Seen, View};
use tombolo_core::wire::{Contribution, Control, RegionRef};

use crate::check::Checker;
use crate::samples::layout;

/// A label: what stands for a tensor.
pub type Label = Hash;

/// Labels something by its parts.
pub fn label(parts: &[&[u8]]) -> Label {
    Hash(
        Rng::derive(0, parts)
            .next_u64()
            .to_le_bytes()
            .repeat(4)
            .try_into()
            .expect("32 bytes"),
    )
}

/// What lies in a region.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Update(Round, Label),
    Folded(Round, u64, BTreeMap<u32, Vec<(NodeId, Label)>>),
    Model(Round, Hash),
}

/// What will happen.
#[derive(Debug)]
pub enum Happening {
    Deliver(NodeId, NodeId),
    Coordinator(u64, coordinator::Message),
    Work(NodeId, u64, Box<crate::work::Work>),
    Boot(NodeId),
    LinkUp(NodeId, NodeId, u64),
    Silent(NodeId, NodeId, u64),
    Lost(NodeId, NodeId, u64),
    Overdue(NodeId, NodeId, u64),
    Wake(u64, u64),
    Fault,
    FaultsEnd,
}

/// One node's machines and memory. A life ends with a crash of the process or of the actor that owns the machines.
pub struct Node {
    pub alive: bool,
    pub life: u64,
    pub seen: Seen,
    pub member: Option<Member>,
    pub gateway: Option<Gateway>,
    pub regions: BTreeMap<u64, Content>,
    pub shelf: BTreeMap<(Round, Attempt), Sum>,
    pub obtaining: bool,
    pub wanted: Option<(Round, Hash)>,
}

/// A link between two nodes: what is under way each way, and whether anything moves.
#[derive(Default)]
struct Link {
    up: bool,
    generation: u64,
    suspected: bool,
    queues: BTreeMap<NodeId, VecDeque<Control>>,
}

/// What is written down of the open round.
#[derive(Default)]
pub struct Notes {
    pub weighing: Option<Weighing>,
    /// With the sum itself, if there is a journal.
    pub noted: BTreeMap<DomainId, (Contribution, Option<Sum>)>,
}

/// What a domain's contribution is made of.
pub type Sum = Vec<(NodeId, Label)>;

pub struct World {
    pub plan: Plan,
    pub now: Micros,
    pub rng: Rng,
    pub nodes: BTreeMap<NodeId, Node>,
    pub coordinator: Option<Coordinator>,
    pub coordinator_life: u64,
    wake: u64,
    pub committed: Committed,
    pub notes: Notes,
    pub check: Checker,
    pub finished: Option<Finished>,
    pub faults: bool,
    links: BTreeMap<(NodeId, NodeId), Link>,
    agenda: BTreeMap<(Micros, u64), Happening>,
    happenings: u64,
}

pub fn initial() -> Hash {
    label(&[b"initial"])
}

impl World {
    pub fn new(plan: Plan, seed: u64) -> Self {
        let node = |id: &NodeId| Node {
            alive: false,
            life: 0,
            seen: Seen::new(&plan, id.clone()),
            member: None,
            gateway: None,
            regions: BTreeMap::new(),
            shelf: BTreeMap::new(),
            obtaining: false,
            wanted: None,
        };
        let committed = Committed {
            run: Hash::default(),
            ended: 0,
            round: 0,
            hash: initial(),
            tally: (0, 0, 0),
            accuracy: 0.0,
            loss: 0.0,
            view: None,
        };
        let mut world = World {
            nodes: plan.nodes().map(|n| (n.id.clone(), node(&n.id))).collect(),
            check: Checker::new(&plan),
            plan,
            now: Micros(0),
            rng: Rng::new(seed),
            coordinator: None,
            coordinator_life: 0,
            wake: 0,
            committed,
            notes: Notes::default(),
            finished: None,
            faults: true,
            links: BTreeMap::new(),
            agenda: BTreeMap::new(),
            happenings: 0,
        };
        let ids: Vec<NodeId> = world.nodes.keys().cloned().collect();
        for id in &ids {
            for peer in world.plan.peers(id) {
                let link = world.links.entry(pair(id, &peer)).or_default();
                link.queues.insert(peer, VecDeque::new());
            }
        }
        for id in ids {
            world.after(0, 500, Happening::Boot(id));
        }
        world
    }

    /// Lets something happen between `least` and `most` milliseconds from now.
    pub fn after(&mut self, least: u64, most: u64, happening: Happening) {
        let span = Duration::from_micros(least * 1000 + self.rng.below((most - least) * 1000 + 1));
        self.at(self.now + span, happening);
    }

    pub fn at(&mut self, at: Micros, happening: Happening) {
        self.happenings += 1;
        self.agenda.insert((at, self.happenings), happening);
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.rng.next_f64() < share
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
        self.happen(happening);
        true
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver(from, to) => self.deliver(&from, &to),
            Happening::Coordinator(life, message) if life == self.coordinator_life => {
                self.step_coordinator(Some(message));
            }
            Happening::Work(node, life, work) if self.lives(&node, life) => self.work(&node, *work),
            Happening::Wake(life, wake) if (life, wake) == (self.coordinator_life, self.wake) => {
                self.step_coordinator(None);
            }
            Happening::Boot(node) => self.boot(&node),
            Happening::LinkUp(a, b, generation) => self.link_up(&a, &b, generation),
            Happening::Silent(a, b, generation) if self.is_down(&a, &b, generation) => {
                self.link(&a, &b).suspected = true;
                for (node, peer) in [(&a, &b), (&b, &a)] {
                    if a.domain() == b.domain() {
                        self.step_gateway(node, gateway::Message::MemberSilent(peer.clone()));
                    }
                }
            }
            Happening::Lost(a, b, generation) if self.is_down(&a, &b, generation) => {
                for (node, peer) in [(&a, &b), (&b, &a)] {
                    if a.domain() == b.domain() {
                        self.step_gateway(node, gateway::Message::MemberLost(peer.clone()));
                    } else if *node == self.plan.coordinator {
                        self.watched(peer, Word::Restoring);
                    }
                }
            }
            Happening::Overdue(a, b, generation) if self.is_down(&a, &b, generation) => {
                for (node, peer) in [(&a, &b), (&b, &a)] {
                    if a.domain() == b.domain() {
                        self.step_gateway(node, gateway::Message::MemberOverdue(peer.clone()));
                    } else if *node == self.plan.coordinator {
                        self.watched(peer, Word::Overdue);
                    }
                }
            }
            Happening::Fault => crate::faults::strike(self),
            Happening::FaultsEnd => crate::faults::end(self),
            _ => {}
        }
    }

    pub fn lives(&self, node: &NodeId, life: u64) -> bool {
        let node = &self.nodes[node];
        node.alive && node.life == life
    }

    // ---- lives ----

    /// A process starts, with empty memory.
    fn boot(&mut self, id: &NodeId) {
        if self.nodes[id].alive {
            return;
        }
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        node.alive = true;
        node.shelf.clear();
        node.seen = Seen::new(&self.plan, id.clone());
        self.check.on_boot(id);
        self.begin(id);
        if *id == self.plan.coordinator {
            self.begin_coordinator();
        }
        for peer in self.plan.peers(id) {
            if self.nodes[&peer].alive {
                let generation = self.link(id, &peer).generation;
                self.after(1, 200, Happening::LinkUp(id.clone(), peer, generation));
            }
        }
    }

    /// The actor that owns a node's machines starts, or starts again.
    pub fn begin(&mut self, id: &NodeId) {
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        node.life += 1;
        node.regions.clear();
        (node.obtaining, node.wanted) = (false, None);
        node.member = Some(Member::new(id.clone(), layout(), 0, initial()));
        node.gateway = None;
        if self.nodes[id].seen.is_gateway() {
            self.rise(id);
            self.obtain(id, 0, initial());
            self.step_gateway(id, gateway::Message::MemberUp(id.clone()));
            if *id == self.plan.coordinator {
                self.step_gateway(id, gateway::Message::CoordinatorUp);
            }
        }
        // Links announce themselves to the new machines.
        for peer in self.plan.peers(id) {
            if self.link(id, &peer).up {
                self.say_up(id, &peer);
            }
        }
    }

    /// A node gets the machine of a gateway.
    fn rise(&mut self, id: &NodeId) {
        let domain = self.plan.domain(&id.domain()).expect("it is in the plan");
        let ranks: Vec<NodeId> = domain.nodes.iter().map(|node| node.id.clone()).collect();
        let tokens = Rng::new(self.rng.next_u64());
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        node.gateway = Some(Gateway::new(id.domain(), ranks, layout(), tokens));
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
        if turn.falls {
            let node = self.nodes.get_mut(id).expect("it is in the plan");
            node.gateway = None;
        }
        if turn.rises {
            self.rise(id);
            self.show(id, member);
        } else {
            self.step_gateway(id, gateway::Message::View(view.clone()));
        }
        let neighbours: Vec<NodeId> = self.plan.peers(id);
        for peer in neighbours {
            if peer.domain() != id.domain() || !self.is_up(id, &peer) {
                continue;
            }
            if self.nodes[id].seen.is_gateway() {
                self.send(id, &peer, Control::View(view.clone()));
            }
            if turn.rises {
                self.step_gateway(id, gateway::Message::MemberUp(peer.clone()));
            }
        }
        if turn.rises {
            self.step_gateway(id, gateway::Message::MemberUp(id.clone()));
            if self.is_up(id, &self.plan.coordinator.clone()) {
                self.step_gateway(id, gateway::Message::CoordinatorUp);
            }
        }
        if turn.gateway_moved {
            self.step_member(id, member::Message::GatewayUp);
        }
    }

    fn watched(&mut self, node: &NodeId, word: Word) {
        let message = coordinator::Message::Watched(node.clone(), word);
        self.step_coordinator(Some(message));
    }

    pub fn begin_coordinator(&mut self) {
        self.coordinator_life += 1;
        self.coordinator = Some(Coordinator::new(self.plan.clone(), layout()));
        self.check.on_restart();
        let life = self.coordinator_life;
        let start = coordinator::Message::Start(
            Box::new(self.committed.clone()),
            self.resumed().map(Box::new),
        );
        self.after(50, 300, Happening::Coordinator(life, start));
        let mut up: BTreeSet<NodeId> = [self.plan.coordinator.clone()].into();
        for peer in self.plan.peers(&self.plan.coordinator.clone()) {
            let wan = peer.domain() != self.plan.coordinator.domain();
            if wan && self.is_up(&self.plan.coordinator.clone(), &peer) {
                up.insert(peer);
            }
        }
        for node in up {
            let up = coordinator::Message::Up(node);
            self.after(300, 310, Happening::Coordinator(life, up));
        }
    }

    fn resumed(&self) -> Option<Resumed> {
        let noted = self.notes.noted.values().map(|(contribution, sum)| Noted {
            contribution: contribution.clone(),
            kept: sum.is_some(),
        });
        Some(Resumed {
            weighing: self.notes.weighing.clone()?,
            noted: noted.collect(),
        })
    }

    /// A process ends, and its memory with it.
    pub fn crash(&mut self, id: &NodeId) {
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        node.alive = false;
        node.life += 1;
        node.regions.clear();
        node.shelf.clear();
        if *id == self.plan.coordinator {
            self.coordinator = None;
            self.coordinator_life += 1;
        }
        let own = self.link(id, id);
        own.queues.clear();
        for peer in self.plan.peers(id) {
            self.cut(id, &peer, true);
        }
    }

    // ---- links ----

    fn link(&mut self, a: &NodeId, b: &NodeId) -> &mut Link {
        self.links.entry(pair(a, b)).or_default()
    }

    fn is_down(&mut self, a: &NodeId, b: &NodeId, generation: u64) -> bool {
        let link = self.link(a, b);
        !link.up && link.generation == generation
    }

    /// A link goes down. If `forgets`, what was under way is gone: the peer is another process, or was cut off.
    pub fn cut(&mut self, a: &NodeId, b: &NodeId, forgets: bool) {
        let link = self.link(a, b);
        if forgets {
            link.queues.values_mut().for_each(VecDeque::clear);
        }
        if !link.up {
            return;
        }
        link.up = false;
        link.generation += 1;
        let generation = link.generation;
        for (node, peer) in [(a, b), (b, a)] {
            if a.domain() == b.domain() {
                self.step_gateway(node, gateway::Message::MemberSilent(peer.clone()));
            }
        }
        let (a, b) = pair(a, b);
        self.after(
            1500,
            1500,
            Happening::Silent(a.clone(), b.clone(), generation),
        );
        self.after(
            8500,
            8500,
            Happening::Lost(a.clone(), b.clone(), generation),
        );
        self.after(11_000, 11_000, Happening::Overdue(a, b, generation));
    }

    /// Brings a link back after a while.
    pub fn mend(&mut self, a: &NodeId, b: &NodeId, least: u64, most: u64) {
        let generation = self.link(a, b).generation;
        self.after(
            least,
            most,
            Happening::LinkUp(a.clone(), b.clone(), generation),
        );
    }

    fn link_up(&mut self, a: &NodeId, b: &NodeId, generation: u64) {
        let living = self.nodes[a].alive && self.nodes[b].alive;
        let link = self.link(a, b);
        if !living || link.up || link.generation != generation {
            return;
        }
        link.up = true;
        let recovered = std::mem::take(&mut link.suspected);
        let waiting: Vec<(NodeId, usize)> = link
            .queues
            .iter()
            .map(|(to, queue)| (to.clone(), queue.len()))
            .collect();
        for (to, count) in waiting {
            let from = if to == *a { b } else { a };
            for _ in 0..count {
                self.after(1, 20, Happening::Deliver(from.clone(), to.clone()));
            }
        }
        for _ in 0..=usize::from(recovered) {
            self.say_up(a, b);
            self.say_up(b, a);
        }
    }

    /// Tells a node's machines that a link of theirs carries messages.
    fn say_up(&mut self, node: &NodeId, peer: &NodeId) {
        if node.domain() == peer.domain() {
            let seen = self.nodes[node].seen.clone();
            if seen.is_gateway() && seen.view().epoch > 1 {
                self.send(node, peer, Control::View(seen.view().clone()));
            }
            self.step_gateway(node, gateway::Message::MemberUp(peer.clone()));
            if seen.gateway() == peer {
                self.step_member(node, member::Message::GatewayUp);
            }
            return;
        }
        if *peer == self.plan.coordinator {
            self.step_gateway(node, gateway::Message::CoordinatorUp);
        }
        if *node == self.plan.coordinator {
            let up = coordinator::Message::Up(peer.clone());
            self.step_coordinator(Some(up));
        }
    }

    pub fn is_up(&mut self, a: &NodeId, b: &NodeId) -> bool {
        a == b || self.link(a, b).up
    }

    pub fn send(&mut self, from: &NodeId, to: &NodeId, control: Control) {
        let copies = if self.faults && self.chance(0.03) {
            2
        } else {
            1
        };
        let slow = if self.faults { 60 } else { 10 };
        let link = self.links.entry(pair(from, to)).or_default();
        let queue = link.queues.entry(to.clone()).or_default();
        let up = from == to || link.up;
        for _ in 0..copies {
            queue.push_back(control.clone());
        }
        for _ in 0..copies * usize::from(up) {
            self.after(1, slow, Happening::Deliver(from.clone(), to.clone()));
        }
    }

    /// The oldest message of a link arrives: links keep the order, but nothing is known between two links.
    fn deliver(&mut self, from: &NodeId, to: &NodeId) {
        let alive = self.nodes[to].alive;
        let link = self.link(from, to);
        if !alive || (from != to && !link.up) {
            return;
        }
        let Some(control) = link.queues.entry(to.clone()).or_default().pop_front() else {
            return;
        };
        let view = self.nodes[to].seen.view();
        let part = match authorize(&self.plan, view, to, from, &control) {
            Ok(part) => part,
            // Only who goes by another view says what it may not.
            Err(refusal) => {
                let differs = self.nodes[from].seen.view().epoch != view.epoch
                    || self
                        .coordinator
                        .as_ref()
                        .is_some_and(|c| c.view().epoch != view.epoch);
                return assert!(differs || self.committed.view.is_some(), "{refusal}");
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
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        let (true, Some(machine)) = (node.alive, &mut node.member) else {
            return;
        };
        let mut out = Outcome::default();
        machine.handle(message, &mut Context::new(self.now, &mut out));
        self.events(out.events);
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
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        let (true, Some(machine)) = (node.alive, &mut node.gateway) else {
            return;
        };
        let mut out = Outcome::default();
        machine.handle(message, &mut Context::new(self.now, &mut out));
        self.events(out.events);
        for effect in out.effects {
            match effect {
                gateway::Effect::Tell(control) => {
                    self.send(id, &self.plan.coordinator.clone(), control);
                }
                gateway::Effect::Member(member, control) => self.send(id, &member, control),
                gateway::Effect::Obtain { round, hash, .. } => self.obtain(id, round, hash),
                gateway::Effect::Gather(gather) => self.gather(id, gather),
                gateway::Effect::Finished(_) => {}
            }
        }
    }

    pub fn step_coordinator(&mut self, message: Option<coordinator::Message>) {
        let Some(machine) = &mut self.coordinator else {
            return;
        };
        let mut out = Outcome::default();
        let mut cx = Context::new(self.now, &mut out);
        match message {
            Some(message) => machine.handle(message, &mut cx),
            None => machine.on_wake(&mut cx),
        }
        self.events(out.events);
        let life = self.coordinator_life;
        for effect in out.effects {
            self.perform(life, effect);
        }
        if let Some(at) = out.wake_at {
            // As in the actor: a new wish takes the place of the older one.
            self.wake += 1;
            let wake = self.wake;
            self.at(
                at.max(self.now + Duration::from_millis(1)),
                Happening::Wake(life, wake),
            );
        }
    }

    fn events(&mut self, events: Vec<Event>) {
        for event in events {
            self.check.on_event(self.now, &event);
        }
    }

    /// As the coordinator sees it.
    pub fn gateway_of(&self, domain: &DomainId) -> NodeId {
        let view = self.coordinator.as_ref().expect("it asks").view();
        view.gateway(domain).expect("it is in the view").clone()
    }

    /// A round's outcome reaches the disk.
    pub fn write(&mut self, record: &RoundRecord, hash: Option<Hash>) {
        self.check.on_record(self.now, record);
        self.notes = Notes::default();
        self.committed.ended = record.round;
        if let Some(hash) = hash {
            self.check.on_commit(record.round, hash);
            (self.committed.round, self.committed.hash) = (record.round, hash);
            self.committed.tally.0 += 1;
        } else {
            self.committed.tally.2 += 1;
        }
    }

    pub fn read(&self, region: &RegionRef) -> Option<&Content> {
        self.nodes
            .get(&region.owner)
            .filter(|owner| owner.alive)?
            .regions
            .get(&region.key)
    }

    pub fn note_weighing(&mut self, round: Round, reports: &[Report]) {
        self.check.on_weighing(round, reports);
    }
}

fn pair(a: &NodeId, b: &NodeId) -> (NodeId, NodeId) {
    let (first, second) = if a <= b { (a, b) } else { (b, a) };
    (first.clone(), second.clone())
}
