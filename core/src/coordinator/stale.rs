//! The asynchronous mode: which updates a round takes, and what they count for.

use std::collections::BTreeMap;

use super::{Coordinator, Current, Effect};
use crate::aggregate::Weight;
use crate::event::{Event, Version};
use crate::ids::{DomainId, NodeId, Round};
use crate::machine::Context;
use crate::mutants;
use crate::staleness::{AsyncPlan, Fresh, Past, Standing};
use crate::time::Micros;

/// Openings that are remembered: more than an update can be stale.
const OPENINGS_MAX: usize = 1024;

impl Coordinator {
    /// Which updates of a domain's members the open round takes; none in the synchronous mode, where they must have been made for it.
    pub(super) fn fresh(&self, domain: &DomainId) -> Option<Fresh> {
        let plan = self.plan.round.asynchronous.as_ref()?;
        let (current, committed) = (self.current.as_ref()?, self.committed.as_ref()?);
        let cohort = current.cohort.iter();
        let members = cohort.filter(|node| node.domain() == *domain);
        let spent = |node: &NodeId| {
            let round = self.spent_of(&committed.past, node)?;
            Some((node.clone(), round))
        };
        Some(Fresh {
            oldest: committed.past.oldest(plan.staleness.limit),
            spent: members.filter_map(spent).collect(),
        })
    }

    /// The last round whose update of a node has counted or was refused.
    fn spent_of(&self, past: &Past, node: &NodeId) -> Option<Round> {
        let counted = match mutants::is("counted-forgotten") {
            true => None,
            false => past.counted(node),
        };
        counted.max(self.spent.get(node).copied())
    }

    /// Whether a reported update may be in the open round; if not, says why. In the synchronous mode only one that was made for the round may.
    pub(super) fn takes(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        node: &NodeId,
        trained_for: Round,
    ) -> bool {
        let (Some(current), Some(committed)) = (&self.current, &self.committed) else {
            return false;
        };
        if current.round != round {
            // Answered like any word of another round.
            return true;
        }
        let from = node.to_string();
        let Some(plan) = &self.plan.round.asynchronous else {
            if trained_for != round {
                cx.report(Event::LateAnswered { round, from });
            }
            return trained_for == round;
        };
        let fresh = Fresh {
            oldest: committed.past.oldest(plan.staleness.limit),
            spent: self
                .spent_of(&committed.past, node)
                .map(|last| (node.clone(), last))
                .into_iter()
                .collect(),
        };
        let standing = match fresh.standing(node, trained_for) {
            Standing::TooStale if mutants::is("limit-ignored") => Standing::Fresh,
            standing => standing,
        };
        match standing {
            Standing::Fresh if trained_for <= round => return true,
            Standing::Fresh => cx.report(Event::ReorderAnswered { round, from }),
            Standing::Spent => cx.report(Event::ReplayAnswered { round, from }),
            Standing::TooStale => self.on_stale(cx, round, node.clone(), trained_for),
        }
        false
    }

    /// A member's update came too many versions late; it trains anew.
    pub(super) fn on_stale(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        node: NodeId,
        trained_for: Round,
    ) {
        let (Some(current), Some(committed)) = (&mut self.current, &self.committed) else {
            return;
        };
        let Some(plan) = &self.plan.round.asynchronous else {
            return;
        };
        let staleness = committed.past.staleness(trained_for);
        let asked = current.round == round && current.cohort.contains(&node);
        if !asked || staleness <= plan.staleness.limit {
            return;
        }
        if current.stale.insert(node.clone(), staleness).is_none() {
            cx.report(Event::StaleAnswered {
                round,
                node,
                trained_for,
                staleness,
            });
        }
    }

    /// How long an update took is told from when the round opened that it was trained for: the buffer may be full at once of those that wait, and
    /// the next round needs as much time as a training all the same.
    pub(super) fn remember_opening(&mut self, round: Round, now: Micros) {
        if self.plan.round.asynchronous.is_none() {
            return;
        }
        self.opened.insert(round, now);
        while self.opened.len() > OPENINGS_MAX {
            self.opened.pop_first();
        }
    }

    /// Whether the buffer is full of updates that count for something.
    pub(super) fn is_full(&self, weighty: usize) -> bool {
        let plan = self.plan.round.asynchronous.as_ref();
        plan.is_some_and(|plan| weighty >= plan.buffer)
    }
}

/// Lets older updates count for less.
pub(super) fn discount(
    plan: &AsyncPlan,
    past: &Past,
    trained_for: &BTreeMap<NodeId, Round>,
    weights: &mut [Weight],
) {
    for weight in weights {
        let made = trained_for.get(&weight.node);
        let staleness = made.map_or(0, |round| past.staleness(*round));
        let factor = plan.staleness.weight.factor(staleness);
        if factor == 1.0 || mutants::is("stale-in-full") {
            continue;
        }
        let text = format!("{staleness} versions old: times {factor:.4}");
        weight.scale(factor, &text);
    }
}

impl Current {
    /// What a record also says in the asynchronous mode, and what later rounds need to know if this one is committed with these updates.
    pub(super) fn version(
        &self,
        plan: &AsyncPlan,
        past: &Past,
        counted: &[NodeId],
        is_committed: bool,
    ) -> Box<Version> {
        let made = |node: &NodeId| self.trained_for.get(node).copied();
        let trained_for: Vec<Round> = counted
            .iter()
            .map(|node| made(node).unwrap_or(self.round))
            .collect();
        let staleness = trained_for.iter().map(|round| past.staleness(*round));
        let mut next = past.clone();
        let updates = counted.iter().cloned().zip(trained_for.iter().copied());
        if is_committed {
            next.on_commit(self.round, updates, plan.staleness.limit);
        }
        Box::new(Version {
            staleness: staleness.collect(),
            trained_for,
            past: Some(next),
        })
    }

    /// Whose update has a weight in this round, those included who were put out since they reported it.
    pub(super) fn weighed(&self) -> impl Iterator<Item = &NodeId> {
        let weights = self.weights.iter().filter(|weight| weight.weight > 0.0);
        let reported = |node: &&NodeId| self.trained_for.contains_key(*node);
        let out = self.out.iter().filter(reported);
        weights.map(|weight| &weight.node).chain(out)
    }

    /// Who is to be named in an asynchronous round's record: whose update was too old, and whose was weighed and is not in the sum. The others
    /// are in nobody's debt.
    pub(super) fn owed(&self, counted: &[NodeId]) -> Vec<NodeId> {
        let mut owed: Vec<NodeId> = self
            .weighed()
            .chain(self.stale.keys())
            .filter(|node| !counted.contains(node) && !self.refused.contains_key(*node))
            .cloned()
            .collect();
        owed.sort();
        owed.dedup();
        owed
    }
}
