//! One open round: what has arrived, what is missing, and what will be said of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Committed, Outcome};
use crate::aggregate::feedback::{self, Drift};
use crate::aggregate::{Needs, Report, Weight};
use crate::event::{RoundRecord, RoundState};
use crate::ids::{Attempt, DomainId, Epoch, NodeId, Round};
use crate::mutants;
use crate::pace::Effort;
use crate::plan::{DomainPlan, Plan, Quorum};
use crate::text::{clip, clip_to};
use crate::time::Micros;
use crate::wire::{CHUNK_ELEMENTS, Contribution};

/// Bytes of one node's reason in what is said of the round; the events have all of it.
const COMPLAINT_MAX: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Reports,
    Weighing,
    Fixing,
    Contributions,
    Folding(u32),
    Computing,
    Committing,
}

#[derive(Debug)]
pub(super) struct Current {
    pub(super) round: Round,
    pub(super) epoch: Epoch,
    pub(super) cohort: Vec<NodeId>,
    pub(super) opened: Micros,
    /// When each domain was first told of it: who was not there when it was opened is not slow for that.
    pub(super) told: BTreeMap<DomainId, Micros>,
    pub(super) deadline: Micros,
    pub(super) close_by: Micros,
    pub(super) grace: Option<Micros>,
    pub(super) phase: Phase,
    pub(super) reports: BTreeMap<NodeId, Report>,
    /// For which round each reported update was trained: in the synchronous mode for this one.
    pub(super) trained_for: BTreeMap<NodeId, Round>,
    /// Whose update was too many versions old.
    pub(super) stale: BTreeMap<NodeId, u64>,
    pub(super) refused: BTreeMap<NodeId, String>,
    pub(super) failed: BTreeMap<NodeId, String>,
    pub(super) unreachable: BTreeSet<NodeId>,
    pub(super) weights: Vec<Weight>,
    /// The newest that is to be noted of each domain, whose turn comes once the one before is written.
    pub(super) noting: BTreeMap<DomainId, Contribution>,
    pub(super) noted: BTreeMap<DomainId, Contribution>,
    /// Of the noted ones those whose bytes cannot be had yet: an earlier life had access to them, or a gateway that has lost its place.
    pub(super) away: BTreeSet<DomainId>,
    /// Of those being noted, whose gateway has lost its place meanwhile.
    pub(super) orphaned: BTreeSet<DomainId>,
    /// Until then everybody is waited for: the round goes on in a life that nobody has a link to yet, or a domain under another gateway.
    pub(super) recall_until: Micros,
    pub(super) dropped: BTreeMap<DomainId, String>,
    /// Who is not asked since a policy keeps its updates out.
    pub(super) denied: BTreeMap<NodeId, String>,
    /// Who was put out of the view while the round was open.
    pub(super) out: BTreeSet<NodeId>,
    /// Who is in sums that an earlier life had noted: its commit of them may be on its way, whatever has been noted since.
    pub(super) inherited: BTreeSet<NodeId>,
    pub(super) arrivals: BTreeMap<NodeId, Duration>,
    /// How many steps each of the cohort was given, where they are balanced.
    pub(super) steps: BTreeMap<NodeId, u64>,
    /// How long the trainings took that were reported, and when the reports came.
    pub(super) efforts: BTreeMap<NodeId, (Effort, Duration)>,
    /// When the domains were told their weights.
    pub(super) weighed: Option<Micros>,
    pub(super) outcome: Option<Outcome>,
}

impl Current {
    /// A round of `cohort` that stops accepting at `deadline`.
    pub(super) fn new(
        round: Round,
        epoch: Epoch,
        cohort: Vec<NodeId>,
        opened: Micros,
        deadline: Micros,
        close_by: Micros,
    ) -> Self {
        Current {
            round,
            epoch,
            cohort,
            opened,
            told: BTreeMap::new(),
            deadline,
            close_by,
            grace: None,
            phase: Phase::Reports,
            reports: BTreeMap::new(),
            trained_for: BTreeMap::new(),
            stale: BTreeMap::new(),
            refused: BTreeMap::new(),
            failed: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            weights: Vec::new(),
            noting: BTreeMap::new(),
            noted: BTreeMap::new(),
            away: BTreeSet::new(),
            orphaned: BTreeSet::new(),
            recall_until: opened,
            dropped: BTreeMap::new(),
            denied: BTreeMap::new(),
            out: BTreeSet::new(),
            inherited: BTreeSet::new(),
            arrivals: BTreeMap::new(),
            steps: BTreeMap::new(),
            efforts: BTreeMap::new(),
            weighed: None,
            outcome: None,
        }
    }

    pub(super) fn is_grace_over(&self, now: Micros) -> bool {
        self.grace.is_some_and(|grace| grace <= now)
    }

    /// Whether a node's update may still come, or is here.
    pub(super) fn may_count(&self, node: &NodeId) -> bool {
        !self.failed.contains_key(node) && !self.refused.contains_key(node)
    }

    /// The highest start of its fold that a domain has announced.
    pub(super) fn known_attempt(&self, domain: &DomainId) -> Option<Attempt> {
        [&self.noted, &self.noting]
            .into_iter()
            .filter_map(|known| known.get(domain))
            .map(|known| known.attempt)
            .max()
    }

    pub(super) fn has_answered(&self, node: &NodeId) -> bool {
        self.reports.contains_key(node)
            || self.refused.contains_key(node)
            || self.failed.contains_key(node)
    }

    pub(super) fn weights_of<'a>(
        &'a self,
        domain: &'a DomainId,
    ) -> impl Iterator<Item = &'a Weight> {
        self.weights
            .iter()
            .filter(move |weight| weight.node.domain() == *domain)
    }

    /// Whose update was refused or could not be made, and why; each cut, so that one long reason hides no other.
    pub(super) fn complaints(&self) -> String {
        let said = self
            .refused
            .iter()
            .chain(&self.failed)
            .map(|(node, reason)| format!("{node}: {}", clip_to(reason.as_str(), COMPLAINT_MAX)));
        said.collect::<Vec<_>>().join("; ")
    }

    /// Checks a contribution against the weights that were fixed.
    pub(super) fn acceptable(
        &self,
        domain: &DomainPlan,
        contribution: &Contribution,
        elements: usize,
        needs: Needs,
    ) -> Result<(), String> {
        if contribution.domain != domain.id {
            return Err(format!("it says it is from {}", contribution.domain));
        }
        let mut total = 0.0;
        let mut last = None;
        for member in &contribution.members {
            let weight = self
                .weights_of(&domain.id)
                .find(|weight| weight.node == *member && weight.weight > 0.0);
            let weight = weight.ok_or_else(|| format!("{member} was not weighed"))?;
            let rank = domain.rank(member);
            if rank <= last {
                return Err(format!("{member} stands in it twice or out of rank order"));
            }
            last = rank;
            total += weight.weight;
        }
        if mutants::is("planned-weight") {
            total = contribution.weight;
        }
        if contribution.members.is_empty() || total.to_bits() != contribution.weight.to_bits() {
            return Err(format!(
                "it weighs {}, its members weigh {total}",
                contribution.weight
            ));
        }
        if crate::fold::exponent(total).ok() != Some(contribution.exponent) {
            return Err(format!(
                "exponent {} does not belong to weight {total}",
                contribution.exponent
            ));
        }
        let chunks = elements.div_ceil(CHUNK_ELEMENTS) * contribution.tensors(needs);
        if contribution.chunks.len() != chunks {
            return Err(format!(
                "{} chunks where {chunks} are due",
                contribution.chunks.len()
            ));
        }
        Ok(())
    }

    /// The record of the open round; `aborted` gives the reason.
    pub(super) fn record(
        &self,
        plan: &Plan,
        committed: &Committed,
        now: Micros,
        aborted: Option<String>,
    ) -> RoundRecord {
        let mut counted: Vec<NodeId> = self
            .noted
            .values()
            .flat_map(|noted| noted.members.clone())
            .collect();
        counted.sort();
        if aborted.is_some() {
            counted.clear();
        }
        let refused: Vec<(NodeId, String)> = self
            .refused
            .iter()
            .map(|(node, reason)| (node.clone(), reason.clone()))
            .collect();
        let asynchronous = plan.round.asynchronous.as_ref();
        let late = match asynchronous {
            None => self.left_out(&counted),
            Some(_) => self.owed(&counted),
        };
        let dropped: Vec<String> = self
            .dropped
            .iter()
            .map(|(domain, reason)| format!("{domain}: {reason}"))
            .collect();
        let asked = match asynchronous {
            None => self.cohort.len() + self.out.len(),
            Some(plan) => plan.buffer.max(self.weighed().count()),
        };
        let (state, reason) = match aborted {
            Some(reason) => (RoundState::Aborted, reason),
            None if counted.len() == asked => (RoundState::Committed, String::new()),
            None => {
                let details = [self.complaints(), dropped.join("; ")]
                    .into_iter()
                    .filter(|text| !text.is_empty())
                    .collect::<Vec<_>>();
                let mut reason = format!("{} of {asked}", counted.len());
                if !details.is_empty() {
                    reason = format!("{reason} ({})", details.join("; "));
                }
                (RoundState::Degraded, clip(reason))
            }
        };
        let version = asynchronous.map(|plan| {
            self.version(
                plan,
                &committed.past,
                &counted,
                state != RoundState::Aborted,
            )
        });
        let denied = self.denied.clone().into_iter().collect();
        RoundRecord {
            round: self.round,
            epoch: self.epoch,
            state,
            reason,
            counted,
            late,
            denied,
            refused,
            accuracy: committed.accuracy,
            loss: committed.loss,
            weight_norm: 0.0,
            bytes: 0,
            bytes_down: 0,
            bytes_up: 0,
            model_hash: committed.hash,
            elapsed_s: now.since(self.opened).as_secs_f64(),
            version,
            // Without a commit nothing is learned of anybody.
            drifts: committed.drifts.clone(),
            balance: None,
        }
    }

    /// Who was asked and is neither counted nor refused.
    fn left_out(&self, counted: &[NodeId]) -> Vec<NodeId> {
        let mut late: Vec<NodeId> = self
            .cohort
            .iter()
            .chain(&self.out)
            .filter(|node| !counted.contains(node) && !self.refused.contains_key(*node))
            .cloned()
            .collect();
        late.sort();
        late
    }

    /// Who has drifted away, this round's reports included.
    pub(super) fn drifts(&self, plan: &Plan, committed: &Committed) -> Vec<Drift> {
        let Some(plan) = &plan.aggregator.feedback else {
            return Vec::new();
        };
        let (reports, refused) = (self.reports.values(), self.refused.keys());
        feedback::next(plan, &committed.drifts, self.round, reports, refused)
    }

    /// Why a round will not be, whatever still comes.
    pub(super) fn hopeless<'a>(
        &self,
        plan: &Plan,
        able: impl Iterator<Item = &'a NodeId>,
    ) -> String {
        let able: BTreeSet<&NodeId> = able.collect();
        let from: BTreeSet<DomainId> = able.iter().map(|node| node.domain()).collect();
        let (nodes, domains) = needed(plan, self);
        let mut reason = format!(
            "the quorum cannot be met any more: at most {} of {nodes} nodes from {} of {domains} domains can count",
            able.len(),
            from.len(),
        );
        if !self.complaints().is_empty() {
            reason = format!("{reason} ({})", self.complaints());
        }
        reason
    }

    /// What a round lacks at its deadline.
    pub(super) fn shortfall(&self, plan: &Plan) -> String {
        let (what, have): (&str, BTreeSet<&NodeId>) = match self.phase {
            Phase::Contributions => (
                "contributions",
                self.at_hand().flat_map(|noted| &noted.members).collect(),
            ),
            _ => ("reports", self.reports.keys().collect()),
        };
        let (nodes, domains) = needed(plan, self);
        let present: BTreeSet<DomainId> = have.iter().map(|node| node.domain()).collect();
        let missing: Vec<&str> = self
            .cohort
            .iter()
            .filter(|node| !have.contains(node))
            .map(NodeId::as_str)
            .collect();
        let mut reason = format!(
            "quorum not met: {what} of {} of {nodes} nodes from {} of {domains} domains at the deadline; missing: {}",
            have.len(),
            present.len(),
            missing.join(", "),
        );
        if !self.complaints().is_empty() {
            reason = format!("{reason} ({})", self.complaints());
        }
        reason
    }
}

/// How many nodes and domains a round needs.
pub(super) fn needed(plan: &Plan, current: &Current) -> (usize, usize) {
    match plan.round.quorum {
        Quorum::AtLeast { nodes, domains } => (nodes, domains),
        Quorum::All => {
            // Who has the weight zero is ignored by the aggregate, and so here.
            let ignored = |node: &NodeId| {
                current
                    .weights
                    .iter()
                    .any(|weight| weight.node == *node && weight.weight == 0.0)
            };
            let asked: Vec<&NodeId> = current
                .cohort
                .iter()
                .filter(|node| !ignored(node))
                .collect();
            let domains: BTreeSet<DomainId> = asked.iter().map(|node| node.domain()).collect();
            (asked.len(), domains.len())
        }
    }
}

pub(super) fn is_met<'a>(
    plan: &Plan,
    current: &Current,
    nodes: impl Iterator<Item = &'a NodeId>,
) -> bool {
    let nodes: BTreeSet<&NodeId> = nodes.collect();
    let domains: BTreeSet<DomainId> = nodes.iter().map(|node| node.domain()).collect();
    let (needed_nodes, needed_domains) = match mutants::is("no-quorum") {
        true => (1, 1),
        false => needed(plan, current),
    };
    !nodes.is_empty() && nodes.len() >= needed_nodes && domains.len() >= needed_domains
}

/// Whether these nodes would be enough for some round.
pub(super) fn could_meet<'a>(plan: &Plan, nodes: impl Iterator<Item = &'a NodeId>) -> bool {
    let nodes: BTreeSet<&NodeId> = nodes.collect();
    let domains: BTreeSet<DomainId> = nodes.iter().map(|node| node.domain()).collect();
    match plan.round.quorum {
        Quorum::All => !nodes.is_empty(),
        Quorum::AtLeast {
            nodes: enough,
            domains: spread,
        } => nodes.len() >= enough && domains.len() >= spread,
    }
}
