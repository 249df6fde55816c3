//! How a round goes on in another life of the coordinator.
//!
//! What was fixed at the first gate is fixed for good: reports, weights and clip factors are read back, and so is every contribution that was
//! acknowledged. Its bytes are not, unless the journal kept them: the domain is asked for them again, and until it offers the same sum once
//! more, or a newer one in its place, it counts for nothing. The domains have lost their links to the coordinator, too: before the grace may
//! run, everybody who was weighed has as much time as closing may take. Who does not come is left out and named.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::round::{Current, Phase};
use super::{Committed, Coordinator, Effect};
use crate::aggregate::{Report, Weight};
use crate::event::{Event, RoundRecord};
use crate::ids::{DomainId, Epoch, NodeId, Round};
use crate::machine::Context;
use crate::membership::Membership;
use crate::mutants;
use crate::pace::{Effort, Paces};
use crate::tensor::Hash;
use crate::time::Micros;
use crate::view::View;
use crate::wire::Contribution;

/// What is fixed at a round's first gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Weighing {
    /// The round.
    pub round: Round,
    /// The view in which it opened.
    pub epoch: Epoch,
    /// The model that it starts from.
    pub base: Hash,
    /// Who was asked.
    pub cohort: Vec<NodeId>,
    /// What is known of each update that was weighed.
    pub reports: Vec<Report>,
    /// Whose update was refused, and why.
    pub refused: Vec<(NodeId, String)>,
    /// Weight and clip factor of each report.
    pub weights: Vec<Weight>,
    /// In the asynchronous mode, for which round each of these updates was trained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained_for: Vec<(NodeId, Round)>,
    /// Where steps are balanced, how many each was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<(NodeId, u64)>,
    /// How long the trainings took, and after how long their reports came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub efforts: Vec<(NodeId, Effort, Duration)>,
}

/// An acknowledged contribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Noted {
    /// As announced.
    pub contribution: Contribution,
    /// Whether its bytes are in the journal.
    pub kept: bool,
}

/// The round that was open when the coordinator ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed {
    /// What was fixed.
    pub weighing: Weighing,
    /// What was acknowledged.
    pub noted: Vec<Noted>,
}

/// Of what was noted for a round, the contributions with somebody inside whom the record of its end does not name: a life of the coordinator
/// acknowledged them while the record of the life before it, which knew of fewer nodes, was still on its way to the store. The record holds, so
/// they count for nothing; the next life says that by name (ROUND-3).
pub fn overtaken(
    record: &RoundRecord,
    noted: impl IntoIterator<Item = Contribution>,
) -> Vec<Contribution> {
    let refused = record.refused.iter().map(|(node, _)| node);
    let named = record.counted.iter().chain(&record.late).chain(refused);
    let named: BTreeSet<&NodeId> = named.collect();
    let of_the_round = noted.into_iter().filter(|sum| sum.round == record.round);
    let unnamed = |sum: &Contribution| sum.members.iter().any(|node| !named.contains(node));
    of_the_round.filter(unnamed).collect()
}

impl Coordinator {
    /// Begins with what was found on disk.
    pub(super) fn on_start(
        &mut self,
        cx: &mut Context<'_, Effect>,
        committed: Committed,
        resumed: Option<Box<Resumed>>,
    ) {
        self.began = Some(cx.now());
        let view = committed.view.clone().filter(|view| view.fits(&self.plan));
        let view = view.unwrap_or_else(|| View::first(&self.plan));
        self.membership = Membership::new(&self.plan, view, cx.now());
        self.orders.begin(committed.paused.clone());
        self.paces = Paces::new(committed.paces.clone());
        self.committed = Some(committed);
        self.resumed = resumed.map(|resumed| *resumed);
        self.tell_overtaken(cx);
        self.tell_pause(cx);
        self.judge_domains();
        // This node judges by it who may say what to its coordinator.
        self.send_view(cx, &self.me);
        self.check_ending(cx);
        self.open_next(cx);
        // Who came before the view was known.
        let reached: Vec<NodeId> = self.reached().cloned().collect();
        reached.into_iter().for_each(|node| self.on_up(cx, node));
    }

    /// Names whose acknowledged updates are in no round's record.
    fn tell_overtaken(&self, cx: &mut Context<'_, Effect>) {
        let Some(committed) = &self.committed else {
            return;
        };
        for sum in &committed.overtaken {
            let members: Vec<&str> = sum.members.iter().map(NodeId::as_str).collect();
            cx.report(Event::DomainDropped {
                round: sum.round,
                domain: sum.domain.clone(),
                reason: format!(
                    "its acknowledged sum of {} came after the round's end, which an earlier life of the coordinator had decided and whose record \
                     was still on its way: what that record does not count is not in the model",
                    members.join(", ")
                ),
            });
        }
    }

    /// The round that a life before has weighed and not ended: it is gone on with, even in a pause.
    pub(super) fn unfinished(&self) -> Option<Round> {
        let (resumed, committed) = (self.resumed.as_ref()?, self.committed.as_ref()?);
        let Weighing {
            round, epoch, base, ..
        } = resumed.weighing;
        let fits = (round, base) == (committed.ended + 1, committed.hash);
        (fits && epoch <= self.view().epoch).then_some(round)
    }

    /// Puts the round that has just been opened where the life before left it.
    pub(super) fn resume(&mut self, cx: &mut Context<'_, Effect>) {
        let (Some(resumed), Some(current), Some(committed)) =
            (self.resumed.take(), &mut self.current, &self.committed)
        else {
            return;
        };
        let Weighing {
            round, epoch, base, ..
        } = resumed.weighing;
        if (round, base) != (current.round, committed.hash) || epoch > current.epoch {
            return;
        }
        current.resume(resumed);
        current.recall_until(cx.now() + self.plan.round.close_limit);
        cx.report(Event::RoundResumed {
            round,
            acknowledged: current.noted.keys().cloned().collect(),
            asked_again: current.away.iter().cloned().collect(),
        });
        let out: Vec<NodeId> = self.view().out.keys().cloned().collect();
        if let Some(current) = &mut self.current {
            // Nobody is put out whose update is in a sum that is known to be noted; but a note of a life before may have landed after that.
            // Its domain folds again without them.
            let holds = |sum: &Contribution| sum.members.iter().any(|node| out.contains(node));
            current.noted.retain(|_, sum| !holds(sum));
            let noted = &current.noted;
            current.away.retain(|domain| noted.contains_key(domain));
        }
        out.iter().for_each(|node| self.take_out(node));
    }
}

impl Current {
    pub(super) fn resume(&mut self, resumed: Resumed) {
        let Weighing {
            epoch,
            cohort,
            reports,
            refused,
            weights,
            trained_for,
            steps,
            efforts,
            ..
        } = resumed.weighing;
        self.steps = steps.into_iter().collect();
        let efforts = efforts.into_iter();
        self.efforts = efforts
            .map(|(node, effort, took)| (node, (effort, took)))
            .collect();
        self.phase = Phase::Contributions;
        self.epoch = epoch;
        self.cohort = cohort;
        self.reports = by(reports, |report| report.node.clone());
        self.refused = refused.into_iter().collect();
        self.weights = weights;
        let reported = self.reports.keys().cloned();
        self.trained_for = reported.map(|node| (node, self.round)).collect();
        self.trained_for.extend(trained_for);
        let away = resumed.noted.iter().filter(|noted| !noted.kept);
        self.away = away
            .map(|noted| noted.contribution.domain.clone())
            .collect();
        let members = resumed.noted.iter();
        let members = members.flat_map(|noted| &noted.contribution.members);
        self.inherited = members.cloned().collect();
        let noted = resumed.noted.into_iter().map(|noted| noted.contribution);
        self.noted = by(noted, |contribution| contribution.domain.clone());
        if mutants::is("acknowledged-forgotten") {
            let forgotten = std::mem::take(&mut self.noted);
            let inside = |node: &NodeId| forgotten.values().any(|sum| sum.members.contains(node));
            self.cohort.retain(|node| !inside(node));
            self.weights.retain(|weight| !inside(&weight.node));
            self.away.clear();
        }
    }

    /// What a later life needs.
    pub(super) fn weighing(&self, base: Hash) -> Weighing {
        let refused = self.refused.iter();
        let older = self.trained_for.iter().any(|(_, made)| *made != self.round);
        let trained_for = self.trained_for.iter().filter(|_| older);
        // Where all make the same steps, only the order of sends follows from it.
        let efforts = self.efforts.iter().filter(|_| !self.steps.is_empty());
        Weighing {
            round: self.round,
            epoch: self.epoch,
            base,
            cohort: self.cohort.clone(),
            reports: self.reports.values().cloned().collect(),
            refused: refused
                .map(|(node, reason)| (node.clone(), reason.clone()))
                .collect(),
            weights: self.weights.clone(),
            trained_for: trained_for
                .map(|(node, round)| (node.clone(), *round))
                .collect(),
            steps: self.steps.clone().into_iter().collect(),
            efforts: efforts
                .map(|(node, (effort, took))| (node.clone(), *effort, *took))
                .collect(),
        }
    }

    /// Sums that are away are waited for until then, and no longer than the round.
    pub(super) fn recall_until(&mut self, until: Micros) {
        self.recall_until = until.min(self.deadline);
    }

    /// What was noted of a domain can only be had once its new gateway offers it, or another sum.
    pub(super) fn put_away(&mut self, domain: &DomainId, until: Micros) {
        if self.phase != Phase::Contributions {
            return;
        }
        if self.noting.contains_key(domain) {
            self.orphaned.insert(domain.clone());
            self.recall_until(until);
        }
        if self.noted.contains_key(domain) {
            self.away.insert(domain.clone());
            self.recall_until(until);
        }
    }

    /// A domain offers a sum: if it is the one that was acknowledged, its bytes can be had.
    pub(super) fn found(&mut self, contribution: &Contribution) {
        if self.noted.get(&contribution.domain) == Some(contribution) {
            self.away.remove(&contribution.domain);
        }
    }

    /// Contributions that were acknowledged and can be had.
    pub(super) fn at_hand(&self) -> impl Iterator<Item = &Contribution> {
        let noted = self.noted.iter();
        noted
            .filter(|(domain, _)| !self.away.contains(*domain))
            .map(|(_, noted)| noted)
    }

    /// Gives up what was acknowledged and cannot be had; names it.
    pub(super) fn drop_away(&mut self) -> Vec<(DomainId, String)> {
        let mut dropped = Vec::new();
        for domain in std::mem::take(&mut self.away) {
            self.noted.remove(&domain);
            let reason = "its acknowledged contribution was not offered again after the coordinator was restarted or its gateway was lost";
            self.dropped.insert(domain.clone(), reason.to_owned());
            dropped.push((domain, reason.to_owned()));
        }
        dropped
    }
}

fn by<K: Ord, V>(values: impl IntoIterator<Item = V>, key: impl Fn(&V) -> K) -> BTreeMap<K, V> {
    let keyed = values.into_iter().map(|value| (key(&value), value));
    keyed.collect()
}
