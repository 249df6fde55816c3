//! How processes and the actors in them begin and end, and what they make of views and of links that come up.

use std::collections::BTreeSet;

use tombolo_core::coordinator::{self, Coordinator};
use tombolo_core::event::{Event, Finished};
use tombolo_core::gateway::{self, Gateway};
use tombolo_core::ids::NodeId;
use tombolo_core::member::{self, Member};
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;
use tombolo_core::view::{Seen, View};
use tombolo_core::wire::Control;

use crate::samples::layout;
use crate::work::update_region;
use crate::world::{Content, Happening, World, initial};

impl World {
    /// A process starts, with empty memory and perhaps with an empty disk.
    pub fn boot(&mut self, id: &NodeId, with_disk: bool) {
        if self.nodes[id].alive {
            return;
        }
        let shows = Micros(self.rng.below(3_600_000_000));
        let incarnation = self.rng.next_u64() | 1;
        let (now, seen) = (self.now, Seen::new(&self.plan, id.clone()));
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        (node.alive, node.incarnation, node.origin) = (true, incarnation, (shows, now));
        node.leaves = false;
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
        if self.nodes[id].leaves {
            self.step_member(id, member::Message::Leave);
        }
    }

    /// A node gets the machine of a gateway.
    pub fn act(&mut self, id: &NodeId) {
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
    pub fn on_view(&mut self, id: &NodeId, view: View) {
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
        let node = &self.nodes[id];
        if node.leaves && node.seen.view().is_out(id) {
            let departs = Happening::Departs(id.clone(), node.process);
            self.after(0, 200, departs);
        }
    }

    /// The coordinator's actor starts, or starts again: first it reads what is written down.
    pub fn begin_coordinator(&mut self) {
        self.coordinator_life += 1;
        self.coordinator = Some(Coordinator::new(self.plan.clone(), layout()));
        self.check.on_restart();
        self.after(50, 300, Happening::Load(self.coordinator_life));
    }

    pub fn start_coordinator(&mut self) {
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
        (node.alive, node.frozen) = (false, None);
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

    /// A process that was told to leave ends: it closes its connections, and whom that reaches does not miss it.
    pub fn depart(&mut self, id: &NodeId) {
        let reached: Vec<(usize, usize)> = self
            .links_of(id)
            .into_iter()
            .map(|link| (link, 1 - self.links[link].side(id)))
            .filter(|(link, side)| self.is_heard(*link, 1 - side))
            .collect();
        self.crash(id);
        for (link, side) in reached {
            self.part(link, side);
        }
    }

    pub fn thaw(&mut self, id: &NodeId) {
        let node = self.nodes.get_mut(id).expect("it is in the plan");
        let Some(since) = node.frozen.take() else {
            return;
        };
        self.check.witness.on_thaw(id, self.now.since(since));
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
}
