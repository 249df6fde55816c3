//! How each fault of a plan is done to the world.
//!
//! Faults overlap. What lasts is kept in force by its number, and what a node or a path is like follows from all that is in force; so the end of
//! one fault never ends another.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::time::Duration;

use tombolo_actors::coordinator;
use tombolo_actors::shell::Reply;
use tombolo_core::coordinator::{Order, Wish};
use tombolo_core::ids::NodeId;

use super::SimulationError;
use super::plan::{Fault, FaultPlan, Paths, Stale, find_node};
use super::theatre::{Crews, Theatre};
use crate::identity::papers::Standing;
use crate::sim::{Failure, Loss, PathFault, SimWorld};

/// Whether a fault begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Ends,
    Begins,
}

/// When each fault of a plan begins and ends. At one instant ends come first.
pub(super) fn timeline(plan: &FaultPlan) -> Vec<(Duration, usize, Phase)> {
    let mut timeline = Vec::new();
    for (nth, timed) in plan.faults.iter().enumerate() {
        timeline.push((timed.at, nth, Phase::Begins));
        timeline.extend(timed.until.map(|until| (until, nth, Phase::Ends)));
    }
    timeline.sort_by_key(|&(at, nth, phase)| (at, phase, nth));
    timeline
}

/// All that is wrong now.
pub(super) struct Weather<'a> {
    theatre: &'a Theatre,
    world: &'a SimWorld,
    crews: &'a Crews,
    in_force: BTreeMap<usize, Fault>,
    /// Pairs in one domain that some partition keeps apart, by the partition's number.
    fabric_cuts: BTreeMap<usize, BTreeSet<(NodeId, NodeId)>>,
}

impl<'a> Weather<'a> {
    pub fn new(theatre: &'a Theatre, world: &'a SimWorld, crews: &'a Crews) -> Self {
        Weather {
            theatre,
            world,
            crews,
            in_force: BTreeMap::new(),
            fabric_cuts: BTreeMap::new(),
        }
    }

    /// Lets a fault begin; one that happens at an instant has happened then.
    pub fn begin(&mut self, nth: usize, fault: &Fault) -> Result<(), SimulationError> {
        if fault.lasts() {
            self.in_force.insert(nth, fault.clone());
        }
        match fault {
            Fault::Crash { node } => self.cut_power(self.node(node), Loss::Everything),
            Fault::TornWrite { node } => {
                let disk = self.world.disk(self.node(node));
                let struck = Failure::Crash(self.torn(nth));
                disk.fail_at(disk.changes(), struck);
            }
            Fault::Kill { node, changes } => {
                let disk = self.world.disk(self.node(node));
                let nth = disk.changes().saturating_add(*changes);
                disk.fail_at(nth, Failure::Crash(Loss::Nothing));
            }
            Fault::Restart { node, without_disk } => {
                return self.start_again(self.node(node), *without_disk);
            }
            Fault::Heal { paths } => self.heal(paths),
            Fault::Panic { node, actor } => {
                if let Some(crew) = self.crews.borrow().get(self.node(node)) {
                    // A full queue has trouble enough.
                    let _ = crew.inject_panic(actor, "a fault of the simulation");
                }
            }
            Fault::Promote { node } => {
                let crews = self.crews.borrow();
                let crew = crews.get(self.node(node));
                if let Some(coordinator) = crew.and_then(|crew| crew.coordinator.as_ref()) {
                    // What becomes of it, events tell.
                    let (reply, _) = Reply::channel();
                    let _ = coordinator.post(coordinator::Message::Promote(reply));
                }
            }
            Fault::Pause => self.order(Wish::Pause),
            Fault::Stop { now: false } => self.order(Wish::Stop),
            Fault::Stop { now: true } => self.order(Wish::StopNow),
            Fault::BitFlip { node } => self.world.flip(self.node(node)),
            Fault::Deadlock { node, actor, other } => {
                if let Some(crew) = self.crews.borrow().get(self.node(node)) {
                    // A full queue has trouble enough.
                    let _ = crew.inject_deadlock(actor, other);
                }
            }
            Fault::Rebind { node } => self.world.rebind(self.node(node)),
            Fault::ClockForward { node, by } => self.step(node, by.as_secs_f64()),
            Fault::ClockBack { node, by } => self.step(node, -by.as_secs_f64()),
            _ => self.turn(nth, fault),
        }
        Ok(())
    }

    /// Ends a fault, unless another one has undone it before.
    pub fn end(&mut self, nth: usize) -> Result<(), SimulationError> {
        let Some(fault) = self.in_force.remove(&nth) else {
            return Ok(());
        };
        match &fault {
            Fault::Crash { node } => return self.power_back(self.node(node)),
            Fault::TornWrite { node } => {
                let node = self.node(node);
                // It may have written nothing since: then the power goes now.
                self.cut_power(node, self.torn(nth));
                return self.power_back(node);
            }
            Fault::Kill { node, .. } => {
                let node = self.node(node);
                self.cut_power(node, Loss::Nothing);
                return self.power_back(node);
            }
            Fault::Pause => self.order(Wish::Resume),
            Fault::ClockForward { node, by } => self.step(node, -by.as_secs_f64()),
            Fault::ClockBack { node, by } => self.step(node, by.as_secs_f64()),
            _ => self.turn(nth, &fault),
        }
        Ok(())
    }

    /// A user asks something of the run. If nobody coordinates now it is asked in vain.
    fn order(&self, wish: Wish) {
        let order = Order {
            wish,
            by: "a user".to_owned(),
            unix: 0,
        };
        let crews = self.crews.borrow();
        let mut acting = crews.values().filter(|crew| crew.coordinates());
        if let Some(coordinator) = acting.find_map(|crew| crew.coordinator.as_ref()) {
            // What becomes of it, events tell.
            let (reply, _) = Reply::channel();
            let _ = coordinator.post(coordinator::Message::Order(order, reply));
        }
    }

    /// Brings a node or paths to what everything in force makes of them.
    fn turn(&mut self, nth: usize, fault: &Fault) {
        if let Some(paths) = fault.paths() {
            return self.impair(nth, fault, paths);
        }
        let Some(name) = fault.node() else { return };
        let (node, world) = (self.node(name), self.world);
        let of_node = || self.in_force.values().filter(|f| f.node() == Some(name));
        match fault {
            Fault::Freeze { .. } => match of_node().any(|f| matches!(f, Fault::Freeze { .. })) {
                true => world.freeze(node),
                false => world.thaw(node),
            },
            Fault::Slow { .. } => {
                let factors = of_node().filter_map(|f| match f {
                    Fault::Slow { factor, .. } => Some(factor),
                    _ => None,
                });
                world.slow(node, factors.product());
            }
            Fault::ClockDrift { .. } => {
                let drifts = of_node().filter_map(|f| match f {
                    Fault::ClockDrift {
                        wall_ppm,
                        monotonic_ppm,
                        ..
                    } => Some((wall_ppm, monotonic_ppm)),
                    _ => None,
                });
                let (wall, monotonic) = drifts.fold((0.0, 0.0), |sum, (wall, monotonic)| {
                    (sum.0 + wall, sum.1 + monotonic)
                });
                world.drift_clocks(node, wall, monotonic);
            }
            Fault::DiskFull { .. } => {
                let full = of_node().any(|f| matches!(f, Fault::DiskFull { .. }));
                world.disk(node).set_capacity(full.then_some(0));
            }
            Fault::StaleCertificate { .. } => {
                let mut newest = of_node().filter_map(|f| match f {
                    Fault::StaleCertificate { stale, .. } => Some(*stale),
                    _ => None,
                });
                let shown = match newest.next_back() {
                    None => Standing::Good,
                    Some(Stale::Expired) => Standing::Expired,
                    Some(Stale::NotYetValid) => Standing::NotYetValid,
                };
                self.theatre.papers[node].show(shown);
            }
            _ => {}
        }
    }

    // ---- lives ----

    fn cut_power(&mut self, node: &NodeId, loss: Loss) {
        self.world.crash_with(node, loss);
        self.thawed(node);
        // What was to befall the disk of the life before befalls no other.
        let never = Failure::Error(ErrorKind::Other);
        self.world.disk(node).fail_at(u64::MAX, never);
        self.crews.borrow_mut().remove(node);
    }

    /// A new life is not frozen.
    fn thawed(&mut self, node: &NodeId) {
        self.in_force.retain(|_, fault| match fault {
            Fault::Freeze { node: frozen } => frozen != node.as_str(),
            _ => true,
        });
    }

    /// Starts a node, unless something else still keeps it down.
    fn power_back(&mut self, node: &NodeId) -> Result<(), SimulationError> {
        let down = self.in_force.values().any(
            |fault| matches!(fault, Fault::Crash { node: down } if down.as_str() == node.as_str()),
        );
        if down {
            return Ok(());
        }
        self.world.restart(node);
        self.theatre.start(self.world, self.crews, node)
    }

    fn start_again(&mut self, node: &NodeId, without_disk: bool) -> Result<(), SimulationError> {
        self.in_force.retain(|_, fault| match fault {
            Fault::Crash { node: down }
            | Fault::TornWrite { node: down }
            | Fault::Kill { node: down, .. } => down != node.as_str(),
            _ => true,
        });
        self.cut_power(node, Loss::Everything);
        if without_disk {
            self.world.forget(node);
            self.theatre.replace(node);
        }
        self.power_back(node)
    }

    fn torn(&self, nth: usize) -> Loss {
        Loss::Some {
            seed: self.world.seed() ^ (nth as u64) << 32,
        }
    }

    // ---- paths ----

    fn impair(&mut self, nth: usize, fault: &Fault, paths: &Paths) {
        let id = nth as u64;
        if !self.in_force.contains_key(&nth) {
            self.world.mend(id);
            self.fabric_cuts.remove(&nth);
            return self.cut_fabric();
        }
        let trouble = match *fault {
            Fault::Loss { share, .. } => PathFault::Loss(share),
            Fault::Duplicate { share, .. } => PathFault::Duplicate(share),
            Fault::Reorder { within, .. } => PathFault::Reorder(within),
            Fault::Delay { by, .. } => PathFault::Delay(by),
            Fault::MtuBlackHole { bytes, .. } => {
                PathFault::Mtu(usize::try_from(bytes).unwrap_or(usize::MAX))
            }
            Fault::RateLimit { rate, .. } => PathFault::Rate(rate),
            _ => PathFault::Cut,
        };
        let pairs = paths.pairs(&self.theatre.plan);
        for (from, to) in &pairs {
            let (from, to) = (std::slice::from_ref(from), std::slice::from_ref(to));
            self.world.impair(id, from, to, trouble);
        }
        if trouble == PathFault::Cut {
            let inside = pairs.into_iter().filter(|(a, b)| a.domain() == b.domain());
            self.fabric_cuts.insert(nth, inside.map(ordered).collect());
            self.cut_fabric();
        }
    }

    fn heal(&mut self, paths: &Paths) {
        for (a, b) in paths.pairs(&self.theatre.plan) {
            self.world
                .heal(std::slice::from_ref(&a), std::slice::from_ref(&b));
            let pair = ordered((a, b));
            for cuts in self.fabric_cuts.values_mut() {
                cuts.remove(&pair);
            }
        }
        self.cut_fabric();
    }

    /// A READ is a question and an answer: it needs both ways.
    fn cut_fabric(&self) {
        let cut: BTreeSet<_> = self.fabric_cuts.values().flatten().collect();
        for domain in &self.theatre.plan.domains {
            for (index, a) in domain.nodes.iter().enumerate() {
                for b in &domain.nodes[index + 1..] {
                    let memory = &self.theatre.memory;
                    match cut.contains(&ordered((a.id.clone(), b.id.clone()))) {
                        true => memory.cut(a.id.as_str(), b.id.as_str()),
                        false => memory.heal(a.id.as_str(), b.id.as_str()),
                    }
                }
            }
        }
    }

    // ---- clocks ----

    fn step(&self, node: &str, seconds: f64) {
        self.world.step_clock(self.node(node), seconds);
    }

    fn node(&self, name: &str) -> &'a NodeId {
        find_node(&self.theatre.plan, name).expect("names of faults are checked first")
    }
}

fn ordered((a, b): (NodeId, NodeId)) -> (NodeId, NodeId) {
    if a <= b { (a, b) } else { (b, a) }
}
