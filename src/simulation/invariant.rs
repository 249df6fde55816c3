//! The invariants of ARCHITECTURE.md, checked from outside: by what was reported, by what trainer and rule were asked, by how full queues are.
//!
//! One file each group. A [`Law`] is told of every event as it happens and of every fault as it begins and ends, so a violation is found at its
//! instant; every [`STEPS_PER_LOOK`] steps of the clock, and at the end, it may look at what no event tells.

mod bound;
mod clock;
mod ident;
mod ladder;
mod model;
mod policy;
mod record;
mod round;
mod seed;
mod store;
mod view;
mod watch;
mod witness;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use tombolo_actors::env::Files;
use tombolo_core::event::{Event, Finished};
use tombolo_core::ids::{DomainId, Epoch, NodeId};
use tombolo_core::plan::{Plan, Quorum};
use tombolo_core::record::audit::Report;
use tombolo_core::time::Micros;

use super::inflict::Phase;
use super::plan::{Fault, FaultPlan};

pub(super) use bound::{Leftovers, Look};
pub(super) use seed::differs;
pub(super) use witness::Witness;

/// Steps of the clock between two looks at what no event tells.
pub(super) const STEPS_PER_LOOK: u64 = 100;

/// Violations kept: who breaks a law at every step need not be told each time.
const VIOLATIONS_MAX: usize = 100;

/// An invariant that did not hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which: `ROUND-5`.
    pub law: &'static str,
    /// When, in virtual time.
    pub at: Micros,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:?}: {}", self.law, self.at, self.what)
    }
}

/// One group of invariants. It remembers what it needs.
trait Law: Send {
    /// Something happened.
    fn on_event(&mut self, _cx: &mut Cx<'_>, _event: &Event) {}

    /// Something begins or ends to be wrong.
    fn on_fault(&mut self, _cx: &mut Cx<'_>, _fault: &Fault, _phase: Phase) {}

    /// A node's power was cut; its disk holds what was synchronized.
    fn on_power_cut(&mut self, _cx: &mut Cx<'_>, _node: &NodeId, _disk: &dyn Files) {}

    /// How full everything is now.
    fn on_look(&mut self, _cx: &mut Cx<'_>, _look: &Look) {}

    /// The run is over.
    fn on_end(&mut self, _cx: &mut Cx<'_>, _finished: &Finished) {}

    /// The copies of the record that are left on gateways' disks.
    fn on_copies(&mut self, _cx: &mut Cx<'_>, _audited: &Report) {}

    /// The world is over, and everything in it should be gone.
    fn on_leftovers(&mut self, _cx: &mut Cx<'_>, _left: &Leftovers) {}
}

/// What a law may know besides what it remembers, and where it tells what it found.
struct Cx<'a> {
    at: Micros,
    plan: &'a Plan,
    faults: &'a FaultPlan,
    state: &'a State,
    found: &'a mut Vec<Violation>,
}

impl Cx<'_> {
    fn violated(&mut self, law: &'static str, what: String) {
        self.violated_at(self.at, law, what);
    }

    /// For what is known only later.
    fn violated_at(&mut self, at: Micros, law: &'static str, what: String) {
        if self.found.len() < VIOLATIONS_MAX {
            self.found.push(Violation { law, at, what });
        }
    }
}

/// What is wrong now, and how often something was.
#[derive(Debug, Default)]
struct State {
    /// Nodes without power, or frozen.
    still: BTreeSet<NodeId>,
    /// Faults that have begun, wall clocks apart.
    troubles: usize,
    /// Who was promoted last, and in which epoch.
    promoted: Option<(NodeId, Epoch)>,
    /// Nodes without power.
    dark: BTreeSet<NodeId>,
    /// Nodes that coordinated before and may not have heard that another one does.
    rivals: BTreeSet<NodeId>,
}

impl State {
    fn on_event(&mut self, event: &Event, plan: &Plan) {
        match event {
            Event::NodeStarted { node, .. } => {
                self.still.remove(node);
                self.dark.remove(node);
                self.rivals.remove(node);
            }
            Event::CoordinatorPromoted { node, epoch } => {
                let before = self.promoted.replace((node.clone(), *epoch));
                let before = before.map_or(plan.coordinator.clone(), |(before, _)| before);
                // Whose power is cut believes nothing.
                if !self.dark.contains(&before) {
                    self.rivals.insert(before);
                }
                self.rivals.remove(node);
            }
            Event::CoordinatorSteppedDown { node, .. } => {
                self.rivals.remove(node);
            }
            _ => {}
        }
    }

    /// Whether a coordinator says it that can commit nothing more: what it believes meanwhile is nobody's promise.
    fn is_of_a_rival(&self, event: &Event) -> bool {
        let since = self.promoted.as_ref().map_or(0, |(_, epoch)| *epoch);
        !self.rivals.is_empty()
            && match event {
                Event::RoundOpened { epoch, .. } => *epoch < since,
                // Nothing in it tells who took it.
                Event::Reported { .. } => true,
                _ => false,
            }
    }
}

/// Everything that is checked, over one run.
pub(super) struct Checker {
    plan: Arc<Plan>,
    faults: FaultPlan,
    state: State,
    laws: Vec<Box<dyn Law>>,
    found: Vec<Violation>,
}

impl Checker {
    pub fn new(plan: Arc<Plan>, faults: FaultPlan, witness: Option<Witness>) -> Self {
        Checker {
            laws: vec![
                Box::new(round::Rounds::default()),
                Box::new(round::Liveness::default()),
                Box::new(witness::Fold::new(witness)),
                Box::new(view::Views::default()),
                Box::new(model::Models::default()),
                Box::new(watch::Watch::default()),
                Box::new(ladder::Ladder::default()),
                Box::new(store::Store::default()),
                Box::new(bound::Bounds),
                Box::new(clock::Clocks),
                Box::new(ident::Identities::default()),
                Box::new(policy::Policies::default()),
                Box::new(record::Record),
            ],
            plan,
            faults,
            state: State::default(),
            found: Vec::new(),
        }
    }

    fn each(&mut self, at: Micros, mut tell: impl FnMut(&mut dyn Law, &mut Cx<'_>)) {
        let mut cx = Cx {
            at,
            plan: &self.plan,
            faults: &self.faults,
            state: &self.state,
            found: &mut self.found,
        };
        for law in &mut self.laws {
            tell(law.as_mut(), &mut cx);
        }
    }

    pub fn on_event(&mut self, at: Micros, event: &Event) {
        self.state.on_event(event, &self.plan);
        if self.state.is_of_a_rival(event) {
            return;
        }
        self.each(at, |law, cx| law.on_event(cx, event));
    }

    pub fn on_fault(&mut self, at: Micros, fault: &Fault, phase: Phase) {
        let wall_only = match fault {
            Fault::ClockForward { .. } | Fault::ClockBack { .. } => true,
            Fault::ClockDrift { monotonic_ppm, .. } => *monotonic_ppm == 0.0,
            _ => false,
        };
        if phase == Phase::Begins && !wall_only {
            self.state.troubles += 1;
        }
        if let Fault::Freeze { node } = fault
            && let Ok(node) = node.parse()
        {
            match phase {
                Phase::Begins => self.state.still.insert(node),
                Phase::Ends => self.state.still.remove(&node),
            };
        }
        self.each(at, |law, cx| law.on_fault(cx, fault, phase));
    }

    pub fn on_power_cut(&mut self, at: Micros, node: &NodeId, disk: &dyn Files) {
        self.state.still.insert(node.clone());
        self.state.dark.insert(node.clone());
        self.state.rivals.remove(node);
        self.each(at, |law, cx| law.on_power_cut(cx, node, disk));
    }

    pub fn on_look(&mut self, at: Micros, look: &Look) {
        self.each(at, |law, cx| law.on_look(cx, look));
    }

    pub fn on_end(&mut self, at: Micros, finished: &Finished) {
        self.each(at, |law, cx| law.on_end(cx, finished));
    }

    pub fn on_copies(&mut self, at: Micros, audited: &Report) {
        self.each(at, |law, cx| law.on_copies(cx, audited));
    }

    pub fn on_leftovers(&mut self, at: Micros, left: &Leftovers) {
        self.each(at, |law, cx| law.on_leftovers(cx, left));
    }

    /// Takes what was found, oldest first.
    pub fn violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.found)
    }
}

/// Whether these nodes are enough for a round.
fn has_quorum<'a>(plan: &Plan, nodes: impl Iterator<Item = &'a NodeId>) -> bool {
    let nodes: Vec<&NodeId> = nodes.collect();
    let domains: BTreeSet<DomainId> = nodes.iter().map(|node| node.domain()).collect();
    match plan.round.quorum {
        Quorum::All => nodes.len() == plan.nodes().count(),
        Quorum::AtLeast {
            nodes: least,
            domains: from,
        } => nodes.len() >= least && domains.len() >= from,
    }
}

/// Slack of a check that compares spans measured by two clocks, or waits for work that nobody bounds.
fn slack(span: Duration) -> Duration {
    Duration::from_secs(1) + span / 1000
}

#[cfg(test)]
mod tests;
