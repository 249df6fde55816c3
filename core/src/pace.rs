//! How fast nodes are, and what follows from it: how many local steps each is given, and who is sent to first.
//!
//! A node measures how long a training took and how many steps it made: its own word, which says nothing of how late the model came. The
//! coordinator measures how long a report took from the opening; what is left without the training is the node's *delay*: the model on its way
//! to it, the report on its way back, and what both waited for. Both are kept as an exponentially weighted mean that leans on what came last,
//! `x' = 0.8 new + 0.2 x`, in whole nanoseconds: the same numbers on every machine. Of a node that was asked and did not report before
//! the round ended one thing is known all the same: that it takes longer than that. Otherwise a node that is too slow for its first
//! share would keep it for good.
//!
//! Shares are dealt so that all end at about the same time: a level is sought such that what each can do until then adds up to the steps of the
//! cohort, `sync_every` for each. Nobody gets less than a quarter of that or more than four times as much.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{DomainId, NodeId};

/// By what factor a share may differ from `sync_every`, either way. The update of a share counts as one of `sync_every` steps, so that of a quarter of them
/// is stretched by four and its noise doubles; with fewer steps a round would follow a few batches of the slowest nodes. See decision 36.
pub const SPREAD: u64 = 4;

/// What a step, or a delay, is taken for at most: a day. Longer than any round; sums of a cohort's stay far from the end of the type.
const NANOS_MAX: u64 = 86_400_000_000_000;

/// How long a training took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Local steps that were timed: without those of a life before.
    pub steps: u64,
    /// How long they took, with all that the node does beside them until its update can be READ.
    pub micros: u64,
}

/// What is known of a node's speed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Whose.
    pub node: NodeId,
    /// How long it takes for a local step.
    pub step_ns: u64,
    /// How long its report takes beside its training.
    pub delay_ns: u64,
}

impl Pace {
    /// How long it takes for a local step.
    pub fn step(&self) -> Duration {
        Duration::from_nanos(self.step_ns)
    }

    /// How long its report takes beside its training.
    pub fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay_ns)
    }
}

/// What is also said of a round whose steps are balanced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// How many local steps each node of the cohort was given.
    pub steps: Vec<(NodeId, u64)>,
    /// What the rounds so far say of each node's speed; the next shares follow from it.
    pub paces: Vec<Pace>,
}

impl Balance {
    /// The steps that a node was given.
    pub fn steps_of(&self, node: &NodeId) -> Option<u64> {
        let given = self.steps.iter().find(|(of, _)| of == node);
        given.map(|(_, steps)| *steps)
    }

    /// How fast a node is.
    pub fn pace_of(&self, node: &NodeId) -> Option<&Pace> {
        self.paces.iter().find(|pace| pace.node == *node)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Speed {
    step: u64,
    delay: u64,
}

/// What is known of all nodes; see the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paces {
    nodes: BTreeMap<NodeId, Speed>,
    /// How long a domain takes from being told its weights to announcing its sum.
    domains: BTreeMap<DomainId, u64>,
}

/// `0.8 new + 0.2 old`.
fn mean(old: Option<u64>, new: u64) -> u64 {
    let new = new.min(NANOS_MAX);
    old.map_or(new, |old| (4 * new + old) / 5)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).map_or(NANOS_MAX, |nanos| nanos.min(NANOS_MAX))
}

impl Paces {
    /// As they were written down.
    pub fn new(paces: Vec<Pace>) -> Self {
        let speed = |pace: Pace| {
            let (step, delay) = (
                pace.step_ns.clamp(1, NANOS_MAX),
                pace.delay_ns.min(NANOS_MAX),
            );
            (pace.node, Speed { step, delay })
        };
        Paces {
            nodes: paces.into_iter().map(speed).collect(),
            domains: BTreeMap::new(),
        }
    }

    /// To be written down, by node.
    pub fn to_vec(&self) -> Vec<Pace> {
        let nodes = self.nodes.iter();
        nodes
            .map(|(node, speed)| Pace {
                node: node.clone(),
                step_ns: speed.step,
                delay_ns: speed.delay,
            })
            .collect()
    }

    /// A node's report came `took` after the round had opened.
    pub fn on_report(&mut self, node: &NodeId, effort: Effort, took: Duration) {
        let Some(step) = per_step(Duration::from_micros(effort.micros), effort.steps) else {
            return;
        };
        let old = self.nodes.get(node).copied();
        let delay = took.saturating_sub(Duration::from_micros(effort.micros));
        let speed = Speed {
            step: mean(old.map(|old| old.step), step),
            delay: mean(old.map(|old| old.delay), nanos(delay)),
        };
        self.nodes.insert(node.clone(), speed);
    }

    /// A node that had so many steps to make did not report within `span` of the opening: it is slower than that, if it was not known to be.
    pub fn on_silence(&mut self, node: &NodeId, steps: u64, span: Duration) {
        let old = self.nodes.get(node).copied();
        let delay = old.map_or(0, |old| old.delay);
        let trained = span.saturating_sub(Duration::from_nanos(delay));
        let Some(least) = per_step(trained, steps) else {
            return;
        };
        if old.is_none_or(|old| old.step < least) {
            let step = mean(old.map(|old| old.step), least);
            self.nodes.insert(node.clone(), Speed { step, delay });
        }
    }

    /// A domain has announced its sum that long after it was told its weights.
    pub fn on_contribution(&mut self, domain: &DomainId, took: Duration) {
        let known = self.domains.get(domain).copied();
        let mean = mean(known, nanos(took));
        self.domains.insert(domain.clone(), mean);
    }

    /// Forgets all nodes but these, and the domains of which nobody is left.
    pub fn keep(&mut self, stays: impl Fn(&NodeId) -> bool) {
        self.nodes.retain(|node, _| stays(node));
        let homes: BTreeSet<DomainId> = self.nodes.keys().map(NodeId::domain).collect();
        self.domains.retain(|domain, _| homes.contains(domain));
    }

    /// How long each domain's part in a round takes, as far as that is known: its slowest node with these steps, and its sum.
    pub fn predict<'a>(
        &self,
        work: impl Iterator<Item = (&'a NodeId, u64)>,
    ) -> BTreeMap<DomainId, Duration> {
        let mut slowest: BTreeMap<DomainId, u64> = BTreeMap::new();
        for (node, steps) in work {
            let Some(speed) = self.nodes.get(node) else {
                continue;
            };
            let takes = speed.step.saturating_mul(steps).saturating_add(speed.delay);
            let known = slowest.entry(node.domain()).or_default();
            *known = takes.max(*known);
        }
        let with_sum = |(domain, trains): (DomainId, u64)| {
            let sum = self.domains.get(&domain).copied().unwrap_or(0);
            (domain, Duration::from_nanos(trains.saturating_add(sum)))
        };
        slowest.into_iter().map(with_sum).collect()
    }

    /// How many steps each node of a cohort makes where equal shares were of `equal` steps. Of whom nothing is known is taken for as fast as the
    /// lower median of the others; of whom nothing can be said at all gets an equal share.
    pub fn shares(&self, equal: u64, cohort: &[NodeId]) -> BTreeMap<NodeId, u64> {
        let median = |of: fn(&Speed) -> u64| {
            let known = cohort.iter().filter_map(|node| self.nodes.get(node));
            let mut known: Vec<u64> = known.map(of).collect();
            known.sort_unstable();
            let middle = known.len().saturating_sub(1) / 2;
            known.get(middle).copied().unwrap_or(0)
        };
        let usual = Speed {
            step: median(|speed| speed.step).max(1),
            delay: median(|speed| speed.delay),
        };
        // By name, in whatever order they are given: where two end at once, the first is given one more.
        let cohort: BTreeSet<&NodeId> = cohort.iter().collect();
        let speeds: Vec<Speed> = cohort
            .iter()
            .map(|node| self.nodes.get(*node).copied().unwrap_or(usual))
            .collect();
        let shares = deal(equal, &speeds);
        cohort.into_iter().cloned().zip(shares).collect()
    }
}

/// Lets an update of so many steps count as one of another number: an aggregate of updates of unequal steps, each weighed by its rows alone, would follow
/// the fast nodes (Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization", 2020; decision 36).
pub fn stretch(update: &mut [f32], counts_as: Option<u64>, steps: u64) {
    let Some(counts_as) = counts_as.filter(|counts_as| steps > 0 && *counts_as != steps) else {
        return;
    };
    let factor = (counts_as as f64 / steps as f64) as f32;
    for element in update {
        *element *= factor;
    }
}

/// None if nothing was timed. Rounded up, so that a step always takes some time.
fn per_step(span: Duration, steps: u64) -> Option<u64> {
    let step = nanos(span).checked_div(steps)?;
    (step > 0).then_some(step)
}

/// Deals `equal` steps a node so that the last one ends as early as may be.
fn deal(equal: u64, speeds: &[Speed]) -> Vec<u64> {
    let equal = equal.max(1);
    let (least, most) = (equal.div_ceil(SPREAD), equal.saturating_mul(SPREAD));
    let total = u128::from(equal) * speeds.len() as u128;
    // What a node does until a moment.
    let until = |speed: &Speed, moment: u128| {
        let steps = moment.saturating_sub(u128::from(speed.delay)) / u128::from(speed.step);
        u64::try_from(steps).map_or(most, |steps| steps.clamp(least, most))
    };
    let sum = |moment: u128| -> u128 {
        let shares = speeds.iter().map(|speed| u128::from(until(speed, moment)));
        shares.sum()
    };
    // The last moment until which no more than all of it is done; at the latest everybody has done the most.
    let (mut early, mut late) = (0, u128::from(NANOS_MAX) * (u128::from(most) + 1));
    while late - early > 1 {
        let middle = early + (late - early) / 2;
        match sum(middle) <= total {
            true => early = middle,
            false => late = middle,
        }
    }
    let mut shares: Vec<u64> = speeds.iter().map(|speed| until(speed, early)).collect();
    let dealt: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    // What is left falls due at the next moment, to more nodes than it is enough for: one step each, to the fastest first.
    let end = |index: usize, share: u64| {
        let speed = &speeds[index];
        let trains = u128::from(speed.step) * (u128::from(share) + 1);
        (u128::from(speed.delay) + trains, speed.step, index)
    };
    let mut due: Vec<_> = (0..speeds.len())
        .filter(|index| shares[*index] < most)
        .map(|index| end(index, shares[index]))
        .collect();
    due.sort_unstable();
    let left = usize::try_from(total.saturating_sub(dealt)).unwrap_or(usize::MAX);
    for (_, _, index) in due.into_iter().take(left) {
        shares[index] += 1;
    }
    shares
}

#[cfg(test)]
mod tests;
