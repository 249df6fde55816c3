//! Which node makes how many local steps, and which domain is told first: by how fast they were.
//!
//! What a round leaves stands in its record, aborted or not, and the next shares follow from that: a coordinator that is restarted, or a standby that
//! takes its place, deals as the one before would have.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Coordinator;
use crate::ids::{DomainId, NodeId};
use crate::pace::Balance;
use crate::time::Micros;

impl Coordinator {
    /// How many steps each node of a cohort makes; nothing where all make the same.
    pub(super) fn deal(&self, cohort: &[NodeId]) -> BTreeMap<NodeId, u64> {
        match self.plan.sync_every.steps() {
            Some(equal) if self.plan.balance_steps => self.paces.shares(equal, cohort),
            _ => BTreeMap::new(),
        }
    }

    /// What the members of a domain were given in the open round.
    pub(super) fn shares_of(&self, domain: &DomainId) -> Vec<(NodeId, u64)> {
        let given = self.current.iter().flat_map(|current| &current.steps);
        let given = given.filter(|(node, _)| node.domain() == *domain);
        given.map(|(node, steps)| (node.clone(), *steps)).collect()
    }

    /// Who has joined, the one whose next part is likely to take longest first: what is sent at once goes out in this order. By name where nothing is known.
    pub(super) fn longest_first(&self) -> Vec<DomainId> {
        let mut domains: Vec<DomainId> = self.joined().cloned().collect();
        let Some(equal) = self.plan.sync_every.steps() else {
            // How long an epoch is only its node knows.
            return domains;
        };
        let asked = match &self.current {
            Some(current) => current.steps.clone(),
            None => {
                let next = self.committed.as_ref().map_or(1, |past| past.ended + 1);
                self.deal(&self.plan.cohort(next))
            }
        };
        let work: Vec<(&NodeId, u64)> = match asked.is_empty() {
            true => self.plan.nodes().map(|node| (&node.id, equal)).collect(),
            false => asked.iter().map(|(node, steps)| (node, *steps)).collect(),
        };
        let mut lengths = self.paces.predict(work.into_iter());
        domains.sort_by_cached_key(|domain| Reverse(lengths.remove(domain)));
        domains
    }

    /// Learns from the round that ends now how fast its nodes are. Once a round: when it is computed, or else when it is aborted.
    pub(super) fn learn(&mut self, now: Micros) -> Option<Box<Balance>> {
        let current = self.current.as_ref()?;
        for node in &current.cohort {
            if let Some((effort, took)) = current.efforts.get(node) {
                self.paces.on_report(node, *effort, *took);
                continue;
            }
            let given = current.steps.get(node).copied();
            let given = given.or_else(|| self.plan.sync_every.steps());
            let trains = !current.failed.contains_key(node)
                && !current.unreachable.contains(node)
                && self.may_come(node, now);
            // Nobody is silent who was never asked.
            let told = current.told.get(&node.domain());
            if let (Some(steps), Some(told)) = (given.filter(|_| trains), told) {
                self.paces.on_silence(node, steps, now.since(*told));
            }
        }
        let view = self.membership.view();
        let (plan, paces) = (&self.plan, &mut self.paces);
        paces.keep(|node| plan.node(node).is_some() && !view.is_out(node));
        let steps = current.steps.clone().into_iter().collect();
        plan.balance_steps.then(|| {
            let paces = paces.to_vec();
            Box::new(Balance { steps, paces })
        })
    }
}
