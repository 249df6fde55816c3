//! What a seed stands for: a federation, and everything that goes wrong in it.

use std::time::Duration;

use tombolo_core::aggregate::Needs;
use tombolo_core::ids::NodeId;
use tombolo_core::member;
use tombolo_core::plan::{Durability, Plan, Quorum, SyncEvery};
use tombolo_core::rng::Rng;
use tombolo_core::staleness::{AsyncPlan, Discount, Staleness};

use crate::samples;
use crate::world::{Happening, World};

/// How long a node that was told to leave waits until it is out of the view.
const DRAIN_MS: u64 = 5000;

/// One thing that goes wrong; spans in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// A process ends at once, and another begins on what the disk holds, or on an empty one.
    Crash { node: NodeId, down: u64, disk: bool },
    /// A node is told to leave: it says so, ends once it is out of the view or its patience is over, and comes back later as the same node.
    Leave { node: NodeId, down: u64 },
    /// The actor that owns a node's machines panics and is built again.
    Panic { node: NodeId },
    /// The same, of the coordinator's.
    CoordinatorPanics,
    /// A process is stopped and goes on.
    Freeze { node: NodeId, span: u64 },
    /// A machine is overloaded: its work, its messages and its timers come late.
    Slow { node: NodeId, span: u64 },
    /// Nothing passes from one node to the other, or both ways.
    Cut {
        from: NodeId,
        to: NodeId,
        both: bool,
        span: u64,
    },
    /// Nothing passes between these nodes and all others; or only outward, or only inward.
    Partition {
        nodes: Vec<NodeId>,
        outward: bool,
        inward: bool,
        span: u64,
    },
    /// A connection breaks, and both sides see it.
    Break { from: NodeId, to: NodeId },
    /// A link loses packets, and delays them: what is not held up overtakes the rest.
    Bad {
        from: NodeId,
        to: NodeId,
        loss: f64,
        delay: u64,
        span: u64,
    },
    /// The coordinator's disk is full.
    DiskFull { span: u64 },
    /// The wall clock steps. No machine knows it, so nothing is to be done.
    ClockStep,
}

/// How hard a storm is.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// How long it lasts.
    pub minutes: u64,
    pub faults_a_minute: u64,
    /// Nodes at most.
    pub nodes: u64,
}

impl Weather {
    pub const FULL: Weather = Weather {
        minutes: 2,
        faults_a_minute: 60,
        nodes: 33,
    };

    pub fn until_ms(self) -> u64 {
        self.minutes * 60_000
    }
}

/// A federation of 2 to 7 domains and 3 to 33 nodes.
pub fn plan(seed: u64, weather: Weather) -> Plan {
    let mut rng = Rng::derive(seed, &[b"plan"]);
    let domains = 2 + rng.below(6.min(weather.nodes / 3)) as usize;
    let total = (domains as u64).max(3);
    let mut sizes = vec![1; domains];
    for _ in domains as u64..total + rng.below(weather.nodes - total + 1) {
        sizes[rng.below(domains as u64) as usize] += 1;
    }
    let total: usize = sizes.iter().sum();
    let mut plan = samples::plan(&sizes);
    plan.seed = rng.below(10);
    plan.rounds = 1_000_000;
    if plan.seed % 3 == 1 {
        plan.aggregator.needs = Needs::Each;
    }
    plan.round.failed_limit = 1_000_000;
    if rng.below(4) > 0 {
        plan.round.quorum = Quorum::AtLeast {
            nodes: total / 2 + 1,
            domains: domains / 2 + 1,
        };
    }
    for domain in &mut plan.domains[1..] {
        let successors = 1 + rng.below(domain.nodes.len() as u64) as usize;
        let nodes = domain.nodes[..successors].iter();
        domain.gateways = nodes.map(|node| node.id.clone()).collect();
    }
    plan.round.grace = Duration::from_millis(rng.below(3000));
    if rng.below(2) == 0 {
        plan.round.durability = Durability::Journal;
    }
    for _ in 0..rng.below(3) {
        let round = 1 + rng.below(30);
        let gone = &plan.domains[rng.below(domains as u64) as usize];
        let gone = gone.nodes.iter().take(1 + rng.below(3) as usize);
        let gone = gone.map(|node| node.id.clone()).collect();
        plan.round.absent.insert(round, gone);
    }
    if rng.below(2) == 0 {
        plan.heartbeat.retry = [500, 1000].map(Duration::from_millis).to_vec();
    }
    plan.heartbeat.restore_limit = Duration::from_millis(1000 + rng.below(8000));
    plan.heartbeat.cooldown.first = Duration::from_millis(2000 + rng.below(10_000));
    plan.heartbeat.cooldown.cap = Duration::from_secs(60);
    if seed % 4 == 3 {
        make_asynchronous(&mut plan, &mut rng);
    } else if seed % 4 == 1 {
        plan.balance_steps = true;
        plan.sync_every = SyncEvery::Steps(40);
    }
    plan
}

/// The same federation with versions of a few updates each.
pub fn make_asynchronous(plan: &mut Plan, rng: &mut Rng) {
    let nodes = plan.nodes().count() as u64;
    let buffer = 1 + rng.below(nodes.div_ceil(2)) as usize;
    plan.aggregator.needs = Needs::Sum;
    plan.round.quorum = Quorum::AtLeast {
        nodes: 1 + rng.below(buffer as u64) as usize,
        domains: 1,
    };
    plan.round.asynchronous = Some(AsyncPlan {
        buffer,
        staleness: Staleness {
            weight: Discount::Polynomial { exponent: 0.5 },
            limit: rng.below(6),
        },
    });
}

/// What goes wrong in a federation, and when.
pub fn faults(seed: u64, plan: &Plan, weather: Weather) -> Vec<(u64, Fault)> {
    let mut rng = Rng::derive(seed, &[b"faults"]);
    let count = weather.minutes * weather.faults_a_minute;
    let mut faults: Vec<(u64, Fault)> = (0..count)
        .map(|_| (rng.below(weather.until_ms()), fault(&mut rng, plan)))
        .collect();
    faults.sort_by_key(|(at, _)| *at);
    faults
}

fn fault(rng: &mut Rng, plan: &Plan) -> Fault {
    let nodes: Vec<NodeId> = plan.nodes().map(|node| node.id.clone()).collect();
    let mut node = nodes[rng.below(nodes.len() as u64) as usize].clone();
    if rng.below(4) == 0 {
        // Gateways have more to lose.
        let domain = &plan.domains[rng.below(plan.domains.len() as u64) as usize];
        node = domain.gateways[rng.below(domain.gateways.len() as u64) as usize].clone();
    }
    // Most faults pass soon, some outlast a ladder.
    let span = match rng.below(4) {
        0 => 5_000 + rng.below(20_000),
        _ => 100 + rng.below(4_000),
    };
    let peers = plan.peers(&node);
    let peer = peers[rng.below(peers.len() as u64) as usize].clone();
    match rng.below(21) {
        0..=3 => Fault::Crash {
            disk: node == plan.coordinator || rng.below(3) > 0,
            node,
            down: span,
        },
        4 => Fault::Crash {
            node: plan.coordinator.clone(),
            down: 100 + rng.below(5_000),
            disk: true,
        },
        5 => Fault::Panic { node },
        6 => {
            let domain = &plan.domains[rng.below(plan.domains.len() as u64) as usize];
            let node = domain.gateway().clone();
            Fault::Panic { node }
        }
        7 => Fault::CoordinatorPanics,
        8..=9 => Fault::Freeze { node, span },
        10 => Fault::Slow { node, span },
        11..=12 => Fault::Cut {
            from: node,
            to: peer,
            both: rng.below(2) == 0,
            span,
        },
        13 => {
            let domain = &plan.domains[rng.below(plan.domains.len() as u64) as usize];
            let most = domain.nodes.len() as u64;
            let part = match rng.below(2) {
                0 => most,
                _ => 1 + rng.below(most),
            };
            let cut = domain.nodes.iter().take(part as usize);
            let way = rng.below(4);
            Fault::Partition {
                nodes: cut.map(|node| node.id.clone()).collect(),
                outward: way != 0,
                inward: way != 1,
                span: span.min(10_000),
            }
        }
        14 => Fault::Break {
            from: node,
            to: peer,
        },
        15..=17 => Fault::Bad {
            from: node,
            to: peer,
            loss: rng.next_f64() * 0.5,
            delay: rng.below(1500),
            span,
        },
        18 if rng.below(6) == 0 => Fault::DiskFull {
            span: span.min(1_500),
        },
        18 => Fault::CoordinatorPanics,
        // A coordinator that is told to leave ends the run.
        19 if node != plan.coordinator => Fault::Leave { node, down: span },
        _ => Fault::ClockStep,
    }
}

impl World {
    /// A fault begins.
    pub fn strike(&mut self, fault: Fault) {
        if self.now >= self.until {
            return;
        }
        self.check.on_fault(self.now, &fault);
        self.calm_since = self.now;
        match &fault {
            Fault::Crash { node, down, disk } => {
                self.crash(node);
                let (node, down) = (node.clone(), *down);
                return self.after(down, down, Happening::Boot(node, *disk));
            }
            Fault::Leave { node, down } => {
                let entry = self.nodes.get_mut(node).expect("it is in the plan");
                if entry.alive && entry.frozen.is_none() && !entry.leaves {
                    entry.leaves = true;
                    let (node, process) = (node.clone(), entry.process);
                    self.step_member(&node, member::Message::Leave);
                    let departs = Happening::Departs(node.clone(), process);
                    self.after(DRAIN_MS, DRAIN_MS, departs);
                    let down = DRAIN_MS + down;
                    self.after(down, down, Happening::Boot(node, true));
                }
                return;
            }
            Fault::Panic { node } => {
                if self.nodes[node].alive {
                    self.begin(node);
                }
                return;
            }
            Fault::CoordinatorPanics => {
                if self.coordinator.is_some() {
                    self.begin_coordinator();
                }
                return;
            }
            Fault::Freeze { node, span } => {
                let entry = self.nodes.get_mut(node).expect("it is in the plan");
                if entry.alive && entry.frozen.is_none() {
                    entry.frozen = Some(self.now);
                    let node = node.clone();
                    self.after(*span, *span, Happening::Thaw(node));
                }
                return;
            }
            Fault::Break { from, to } => {
                if let Some(link) = self.link_between(from, to) {
                    let side = self.links[link].side(from);
                    self.hang_up(link, side);
                }
                return;
            }
            Fault::ClockStep => return,
            _ => {}
        }
        self.apply_fault(&fault, true);
        let (Fault::Slow { span, .. }
        | Fault::Cut { span, .. }
        | Fault::Partition { span, .. }
        | Fault::Bad { span, .. }
        | Fault::DiskFull { span }) = fault
        else {
            return;
        };
        self.after(span, span, Happening::Over(fault));
    }

    /// A fault that lasts is over.
    pub fn relent(&mut self, fault: &Fault) {
        if self.now < self.until {
            self.calm_since = self.now;
            self.apply_fault(fault, false);
        }
    }

    fn apply_fault(&mut self, fault: &Fault, begins: bool) {
        match fault {
            Fault::Slow { node, .. } => {
                self.nodes.get_mut(node).expect("it is in the plan").slow = begins;
            }
            Fault::Cut { from, to, both, .. } => {
                let Some(link) = self.link_between(from, to) else {
                    return;
                };
                let side = self.links[link].side(from);
                self.block(link, side, begins);
                if *both {
                    self.block(link, 1 - side, begins);
                }
            }
            Fault::Partition {
                nodes,
                outward,
                inward,
                ..
            } => {
                for link in 0..self.links.len() {
                    let inside = self.links[link].ends.clone();
                    let inside = inside.map(|end| nodes.contains(&end));
                    for side in [0, 1] {
                        let cut = match (inside[side], inside[1 - side]) {
                            (true, false) => *outward,
                            (false, true) => *inward,
                            _ => false,
                        };
                        if cut {
                            self.block(link, side, begins);
                        }
                    }
                }
            }
            Fault::Bad {
                from,
                to,
                loss,
                delay,
                ..
            } => {
                if let Some(link) = self.link_between(from, to) {
                    let link = &mut self.links[link];
                    (link.loss, link.delay_ms) = match begins {
                        true => (*loss, *delay),
                        false => (0.0, 0),
                    };
                }
            }
            Fault::DiskFull { .. } => self.disk.full = begins,
            _ => {}
        }
    }

    /// Everything is well from now on.
    pub fn end_storm(&mut self) {
        self.storm = false;
        self.calm_since = self.now;
        self.disk.full = false;
        for link in 0..self.links.len() {
            for side in [0, 1] {
                while self.links[link].blocked[side] > 0 {
                    self.block(link, side, false);
                }
            }
            (self.links[link].loss, self.links[link].delay_ms) = (0.0, 0);
        }
        let nodes: Vec<NodeId> = self.nodes.keys().cloned().collect();
        for node in nodes {
            if self.nodes[&node].leaves {
                self.depart(&node);
            }
            self.nodes.get_mut(&node).expect("it is in the plan").slow = false;
            self.after(0, 1, Happening::Thaw(node.clone()));
            self.after(0, 100, Happening::Boot(node, true));
        }
        let deadline = self.check.deadline.as_millis() as u64;
        let enough = 2 * deadline + 10_000;
        if self.plan.rounds > 1000 {
            self.after(enough, enough, Happening::Stop);
        }
    }
}
