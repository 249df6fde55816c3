//! When a round goes on, and how it ends.

use std::collections::BTreeSet;
use std::time::Duration;

use super::round::{Phase, is_met};
use super::{Coordinator, Domain, Effect, Ending, FoldError, Outcome, stale};
use crate::aggregate::{self, Report, Weight, feedback};
use crate::event::{Event, Finished, RoundState};
use crate::ids::{DomainId, NodeId, Round};
use crate::machine::Context;
use crate::mutants;
use crate::plan::{BaseWeights, Quorum};
use crate::text::{Text, clip};
use crate::time::Micros;
use crate::wire::{Commit, Contribution, Control};

/// At the end of a run the signatures under its last round are waited for no longer: they take a message each way and one small file. Without
/// them the gateways would learn of that round's leaves in the next run.
const SIGNATURES_WAIT: Duration = Duration::from_secs(2);

impl Coordinator {
    /// Looks whether the open round can go on, and says when to look again.
    pub(super) fn check(&mut self, cx: &mut Context<'_, Effect>) {
        self.check_ending(cx);
        self.check_amending(cx);
        if self.ending.is_some() {
            return;
        }
        self.review(cx);
        let Some(current) = &self.current else {
            return self.open_next(cx);
        };
        match current.phase {
            Phase::Reports => self.check_reports(cx),
            Phase::Contributions => self.check_contributions(cx),
            Phase::Weighing | Phase::Fixing | Phase::Folding(_) | Phase::Computing
                if cx.now() >= current.close_by =>
            {
                let limit = self.plan.round.close_limit;
                let rule = &self.plan.aggregator.kind;
                let missing = match current.phase {
                    Phase::Weighing => format!("the aggregator {rule:?} gave no weights"),
                    Phase::Fixing => "the weights were not noted".to_owned(),
                    Phase::Folding(_) => "the contributions were not folded".to_owned(),
                    _ => {
                        format!("the aggregator {rule:?} or the evaluation did not come to an end")
                    }
                };
                let reason = format!("closing took longer than close_limit ({limit:?}): {missing}");
                self.abort(cx, reason);
            }
            Phase::Weighing | Phase::Fixing | Phase::Folding(_) | Phase::Computing => {
                cx.wake_at(current.close_by);
            }
            // Its record may exist already: only the answer tells.
            Phase::Committing => {}
        }
    }

    fn check_reports(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &self.current else { return };
        let everybody_is_absent = self.plan.cohort(current.round).is_empty();
        if everybody_is_absent {
            return self.abort(cx, "empty cohort: every node is declared absent".into());
        }
        let quorum = is_met(&self.plan, current, current.reports.keys());
        let waiting = current.cohort.iter().any(|node| {
            !current.has_answered(node)
                && !current.unreachable.contains(node)
                && self.may_come(node, cx.now())
        });
        // Who weighs nothing does not help at the second gate: the others are waited for while they may come.
        let weighty = current.reports.values().filter(|report| {
            report.samples > 0
                || self.plan.round.quorum == Quorum::All
                || self.plan.aggregator.weights == BaseWeights::Equal
        });
        let full = self.is_full(weighty.clone().count());
        let enough = is_met(&self.plan, current, weighty.map(|report| &report.node));
        if (quorum && !waiting) || (enough && (full || current.is_grace_over(cx.now()))) {
            return self.weigh(cx);
        }
        // Who is out of the view may come back, for the next round; until the deadline there is no reason to hurry.
        let able = current.cohort.iter().filter(|node| current.may_count(node));
        let out = self.view().out.keys().chain(&current.out);
        if !is_met(&self.plan, current, able.clone().chain(out)) {
            let reason = current.hopeless(&self.plan, able);
            return self.abort(cx, reason);
        }
        // The second gate lies before the deadline, too: the grace leaves it a quarter of the round's time.
        let reserve = current.deadline.since(current.opened) / 4;
        let latest = current.deadline - reserve.min(self.plan.round.close_limit);
        let grace = match self.plan.round.asynchronous {
            None => self.plan.round.grace,
            // A buffer that is not full is waited for as long as may be.
            Some(_) => current.deadline.since(current.opened),
        };
        self.wait_or_abort(cx, enough, grace, latest);
    }

    fn weigh(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.phase = Phase::Weighing;
        current.grace = None;
        current.close_by = current.close_by.min(cx.now() + self.plan.round.close_limit);
        let reports = current.reports.values().cloned().collect();
        cx.wake_at(current.close_by);
        cx.effect(Effect::Weigh(current.round, reports));
    }

    pub(super) fn on_weighed(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        result: Result<Vec<Weight>, String>,
    ) {
        let (Some(current), Some(committed)) = (&mut self.current, &self.committed) else {
            return;
        };
        if (current.round, current.phase) != (round, Phase::Weighing) {
            return;
        }
        let reports: Vec<Report> = current.reports.values().cloned().collect();
        let result = result.and_then(|mut weights| {
            let check = |weights: &[Weight]| {
                aggregate::check(&reports, weights).map_err(|error| error.to_string())
            };
            if let Some(plan) = &self.plan.round.asynchronous {
                stale::discount(plan, &committed.past, &current.trained_for, &mut weights);
            }
            check(&weights)?;
            feedback::apply(&committed.drifts, &mut weights);
            check(&weights)?;
            Ok(weights)
        });
        match result {
            Err(reason) => self.abort(cx, reason),
            Ok(mut weights) => {
                for weight in &mut weights {
                    weight.reason = clip(std::mem::take(&mut weight.reason));
                }
                current.phase = Phase::Fixing;
                current.weights = weights;
                cx.effect(Effect::Fix(Box::new(current.weighing(committed.hash))));
            }
        }
    }

    pub(super) fn on_fixed(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        result: Result<(), String>,
    ) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| (current.round, current.phase) == (round, Phase::Fixing))
        else {
            return;
        };
        if let Err(reason) = result {
            return self.abort(cx, format!("its weights could not be noted: {reason}"));
        }
        current.phase = Phase::Contributions;
        current.weighed = Some(cx.now());
        current.close_by = current.deadline + self.plan.round.close_limit;
        for weight in current.weights.iter().filter(|weight| weight.clip < 1.0) {
            cx.report(Event::UpdateClipped {
                round,
                node: weight.node.clone(),
                factor: weight.clip,
            });
        }
        let nodes = current
            .weights
            .iter()
            .filter(|weight| weight.weight > 0.0)
            .map(|weight| weight.node.clone());
        let reasons = current.weights.iter();
        let reasons = reasons.filter(|weight| !weight.reason.is_empty());
        let reasons = reasons.map(|weight| (weight.node.clone(), weight.reason.clone()));
        let committed = self.committed.as_ref();
        cx.report(Event::Weighed {
            round,
            nodes: nodes.collect(),
            reasons: reasons.collect(),
            drifts: committed.map_or_else(Vec::new, |committed| committed.drifts.clone()),
        });
        let joined = self.longest_first();
        joined
            .iter()
            .for_each(|domain| self.tell_weights(cx, domain));
        self.check(cx);
    }

    fn check_contributions(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &mut self.current else {
            return;
        };
        let members = current.at_hand().flat_map(|noted| &noted.members);
        let inside: BTreeSet<&NodeId> = members.collect();
        let quorum = is_met(&self.plan, current, inside.iter().copied());
        let outside: Vec<&NodeId> = current
            .weights
            .iter()
            .filter(|weight| weight.weight > 0.0 && !inside.contains(&weight.node))
            .map(|weight| &weight.node)
            .collect();
        let domains = &self.domains;
        let now = cx.now();
        let may_come = |node: &NodeId| {
            let domain = node.domain();
            !current.unreachable.contains(node)
                && !current.failed.contains_key(node)
                && !current.dropped.contains_key(&domain)
                && !domains.get(&domain).is_some_and(|domain| domain.lost)
        };
        let waiting = !current.noting.is_empty() || outside.iter().any(|node| may_come(node));
        if quorum && waiting && now < current.recall_until {
            return cx.wake_at(current.recall_until);
        }
        if quorum && (!waiting || current.deadline <= now || current.is_grace_over(now)) {
            return self.fold(cx, 0);
        }
        let on_the_way = current.noting.values().flat_map(|noting| &noting.members);
        let able = outside
            .iter()
            .copied()
            .filter(|node| !current.failed.contains_key(*node))
            .chain(inside.iter().copied())
            .chain(on_the_way)
            .chain(&current.out);
        if !is_met(&self.plan, current, able.clone()) {
            let reason = current.hopeless(&self.plan, able);
            return self.abort(cx, reason);
        }
        if !quorum {
            // A smaller contribution took the place of the one that had met it.
            current.grace = None;
        }
        let latest = current.deadline;
        self.wait_or_abort(cx, quorum, self.plan.round.grace, latest);
    }

    /// Waits for the deadline, or for the grace, which ends by `latest`.
    fn wait_or_abort(
        &mut self,
        cx: &mut Context<'_, Effect>,
        quorum: bool,
        grace: Duration,
        latest: Micros,
    ) {
        let Some(current) = &mut self.current else {
            return;
        };
        if cx.now() >= current.deadline && !mutants::is("deadline-ignored") {
            let reason = current.shortfall(&self.plan);
            self.adaptive.on_missed();
            return self.abort(cx, reason);
        }
        if quorum && current.grace.is_none() {
            cx.report(Event::QuorumReached {
                round: current.round,
            });
            let grace = (cx.now() + grace).min(latest);
            current.grace = Some(grace.max(cx.now()));
            return self.check(cx);
        }
        cx.wake_at(current.grace.unwrap_or(current.deadline));
    }

    fn fold(&mut self, cx: &mut Context<'_, Effect>, start: u32) {
        let Some(current) = &mut self.current else {
            return;
        };
        for (domain, reason) in current.drop_away() {
            cx.report(Event::DomainDropped {
                round: current.round,
                domain,
                reason,
            });
        }
        current.phase = Phase::Folding(start);
        current.close_by = current.close_by.min(cx.now() + self.plan.round.close_limit);
        cx.wake_at(current.close_by);
        let mut noted: Vec<Contribution> = current.noted.values().cloned().collect();
        if mutants::is("double-count") {
            noted.extend(
                current
                    .noted
                    .values()
                    .find(|noted| noted.attempt > 0)
                    .cloned(),
            );
        }
        cx.effect(Effect::Fold(current.round, start, noted));
    }

    pub(super) fn on_folded(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        start: u32,
        result: Result<(), FoldError>,
    ) {
        let Some(current) = &mut self.current else {
            return;
        };
        if (current.round, current.phase) != (round, Phase::Folding(start)) {
            return;
        }
        match result {
            Ok(()) => {
                current.phase = Phase::Computing;
                cx.report(Event::ContributionsFolded { round });
                cx.wake_at(current.close_by);
                cx.effect(Effect::Compute(round));
            }
            Err(FoldError::Result(reason)) => self.abort(cx, reason),
            Err(FoldError::Domain(domain, reason)) => {
                cx.report(Event::DomainDropped {
                    round,
                    domain: domain.clone(),
                    reason: reason.clone(),
                });
                current.noted.remove(&domain);
                current.dropped.insert(domain.clone(), reason.clone());
                if is_met(
                    &self.plan,
                    current,
                    current.noted.values().flat_map(|noted| &noted.members),
                ) {
                    self.fold(cx, start + 1);
                } else {
                    self.abort(
                        cx,
                        format!("the acknowledged contribution of {domain} was lost: {reason}"),
                    );
                }
            }
        }
    }

    pub(super) fn on_computed(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        result: Result<Outcome, String>,
    ) {
        let (Some(current), Some(committed)) = (&mut self.current, &self.committed) else {
            return;
        };
        if (current.round, current.phase) != (round, Phase::Computing) {
            return;
        }
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(reason) => return self.abort(cx, reason),
        };
        current.phase = Phase::Committing;
        current.outcome = Some(outcome);
        let mut record = current.record(&self.plan, committed, cx.now(), None);
        record.drifts = current.drifts(&self.plan, committed);
        record.accuracy = outcome.accuracy;
        record.loss = outcome.loss;
        record.model_hash = outcome.hash;
        record.balance = self.learn(cx.now());
        cx.effect(Effect::Commit(Box::new(record)));
    }

    pub(super) fn on_committed(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        result: Result<(), String>,
    ) {
        if self
            .current
            .as_ref()
            .is_none_or(|current| (current.round, current.phase) != (round, Phase::Committing))
        {
            return;
        }
        if let (Err(reason), false) = (result, mutants::is("commit-unfenced")) {
            // What cannot be written down is not committed, and the next round could not be either.
            self.drop_round(cx);
            let reason = format!("round {round} could not be committed: {reason}");
            return self.end(cx, reason);
        }
        let (Some(current), Some(committed)) = (self.current.take(), &mut self.committed) else {
            return;
        };
        let outcome = current.outcome.expect("it was computed before");
        let record = current.record(&self.plan, committed, cx.now(), None);
        let counted = current.noted.values().flat_map(|noted| &noted.members);
        let counted = counted.cloned().collect();
        let contributions = current
            .noted
            .values()
            .map(|noted| (noted.domain.clone(), noted.attempt))
            .collect();
        let commit = Commit {
            round,
            base: committed.hash,
            hash: outcome.hash,
            contributions,
        };
        committed.drifts = current.drifts(&self.plan, committed);
        committed.ended = round;
        committed.round = round;
        committed.hash = outcome.hash;
        committed.accuracy = outcome.accuracy;
        committed.loss = outcome.loss;
        if let Some(past) = record.version.and_then(|version| version.past) {
            committed.past = past;
        }
        match record.state {
            RoundState::Committed => committed.tally.0 += 1,
            _ => committed.tally.1 += 1,
        }
        self.failed_in_a_row = 0;
        self.adaptive
            .on_round(round, current.opened, current.arrivals);
        for domain in self.longest_first() {
            cx.effect(Effect::Offer(domain.clone(), round));
            cx.effect(Effect::Tell(domain, Control::Commit(commit.clone())));
        }
        self.counted = (round, counted);
        self.announced = Some(commit);
        self.check_ending(cx);
        self.open_next(cx);
    }

    pub(super) fn abort(&mut self, cx: &mut Context<'_, Effect>, reason: String) {
        let reason = Text::from(reason);
        let balance = self.learn(cx.now());
        let (Some(current), Some(committed)) = (self.current.take(), &self.committed) else {
            return;
        };
        let mut record = current.record(&self.plan, committed, cx.now(), Some(reason.to_string()));
        record.balance = balance;
        self.recording = Some(current.round);
        for domain in self.joined() {
            cx.effect(Effect::Tell(
                domain.clone(),
                Control::Abort {
                    round: current.round,
                    reason: reason.clone(),
                },
            ));
        }
        cx.effect(Effect::Record(Box::new(record)));
        self.failed_in_a_row += 1;
    }

    pub(super) fn on_recorded(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        result: Result<(), String>,
    ) {
        let Some(committed) = &mut self.committed else {
            return;
        };
        if self.recording.take_if(|of| *of == round).is_none() {
            return;
        }
        match result {
            Ok(()) => {
                committed.ended = round;
                committed.tally.2 += 1;
                self.check(cx);
            }
            Err(reason) => {
                let reason = format!("the end of round {round} could not be recorded: {reason}");
                match &mut self.ending {
                    None => self.end(cx, reason),
                    Some(ending) => {
                        ending.reason = clip(reason);
                        self.check_ending(cx);
                    }
                }
            }
        }
    }

    /// Forgets the open round without an outcome: it is not over, only this run is.
    fn drop_round(&mut self, cx: &mut Context<'_, Effect>) {
        if let Some(current) = self.current.take() {
            for domain in self.joined() {
                cx.effect(Effect::Tell(
                    domain.clone(),
                    Control::Abort {
                        round: current.round,
                        reason: "the run ends".into(),
                    },
                ));
            }
        }
    }

    /// Begins the end. A round whose record is being written is waited for, since it may exist already; any other is dropped, and is run
    /// again when the run is resumed.
    pub(super) fn end(&mut self, cx: &mut Context<'_, Effect>, reason: String) {
        let reason = clip(reason);
        self.ending = Some(Ending {
            orderly: reason.is_empty() || self.orders.stopping() == Some(&reason),
            reason,
            until: cx.now() + self.plan.round.close_limit,
            signed_by: None,
            done: false,
        });
        if self.phase() != Some(Phase::Committing) {
            self.drop_round(cx);
        }
        self.check_ending(cx);
    }

    /// Ends a run that cannot begin. Whoever is there is sent away at once, whoever comes is too: nobody should wait for rounds.
    pub(super) fn on_fail(&mut self, cx: &mut Context<'_, Effect>, reason: String) {
        let reason = clip(reason);
        self.ending = Some(Ending {
            reason: reason.clone(),
            orderly: false,
            until: cx.now(),
            signed_by: None,
            done: true,
        });
        let own = self.me.domain();
        let reached = self.reached().map(NodeId::domain).chain([own]);
        let domains: BTreeSet<DomainId> = reached.collect();
        for domain in domains {
            self.send_away(cx, domain);
        }
        cx.effect(Effect::Finish(Finished::without_rounds(reason)));
    }

    /// Tells a domain that the run is over, if it could not begin.
    pub(super) fn send_away(&self, cx: &mut Context<'_, Effect>, domain: DomainId) {
        if let (Some(ending), None) = (&self.ending, &self.committed)
            && ending.done
        {
            let reason = ending.reason.as_str().into();
            cx.effect(Effect::Tell(domain, Control::Finish { reason }));
        }
    }

    pub(super) fn on_stop(&mut self, cx: &mut Context<'_, Effect>, reason: String) {
        match &mut self.ending {
            None => self.end(cx, reason),
            // The last round is run: only stragglers were waited for.
            Some(ending) if ending.orderly => {
                ending.until = ending.until.min(cx.now());
                self.check_ending(cx);
            }
            Some(_) => {}
        }
    }

    /// The run is over once every domain that can be reached holds the last model, or after `close_limit`.
    pub(super) fn check_ending(&mut self, cx: &mut Context<'_, Effect>) {
        let phase = self.phase();
        let (Some(ending), Some(committed)) = (&mut self.ending, &self.committed) else {
            return;
        };
        if ending.done {
            return;
        }
        // An interrupted or failed run does not wait for domains that are behind, and nobody waits for a domain that never came if all
        // that could be handed out is the initial model.
        let handed_out = committed.tally.0 + committed.tally.1 > 0;
        let lacks = |id: &DomainId, domain: &Domain| {
            domain.adopted != Some(committed.hash) && self.plan.trains(id)
        };
        let behind = self
            .domains
            .iter()
            .any(|(id, domain)| (domain.joined || handed_out) && !domain.lost && lacks(id, domain));
        let waits = phase.is_some() || self.recording.is_some() || (ending.orderly && behind);
        if waits && cx.now() < ending.until {
            return cx.wake_at(ending.until);
        }
        let view = self.membership.view();
        let there = self
            .domains
            .iter()
            .filter(|(_, domain)| domain.joined && !domain.lost);
        let gateways = there
            .filter_map(|(id, _)| view.gateway(id))
            .filter(|node| **node != self.me);
        if ending.orderly && self.untold.is_unsigned(committed.ended, gateways) {
            let until = *ending.signed_by.get_or_insert(cx.now() + SIGNATURES_WAIT);
            if cx.now() < until {
                return cx.wake_at(until);
            }
        }
        ending.done = true;
        let mut reason = ending.reason.clone();
        if let Some(current) = self.current.take() {
            reason = format!(
                "{reason}; round {} was still being committed, resuming tells its outcome",
                current.round
            );
        }
        if let Some(round) = self.recording.take() {
            reason = format!("{reason}; the end of round {round} was still being recorded");
        }
        for (id, domain) in &self.domains {
            if ending.orderly && lacks(id, domain) {
                let why = match (domain.lost, domain.joined) {
                    (true, _) => "its gateway gives no sign of life",
                    (false, false) => "it never joined",
                    (false, true) => "it did not adopt it in time",
                };
                cx.report(Event::DomainDropped {
                    round: committed.ended,
                    domain: id.clone(),
                    reason: format!("it does not hold the last model: {why}"),
                });
            }
            if domain.joined {
                cx.effect(Effect::Tell(
                    id.clone(),
                    Control::Finish {
                        reason: reason.as_str().into(),
                    },
                ));
            }
        }
        let (done, degraded, aborted) = committed.tally;
        cx.effect(Effect::Finish(Finished {
            rounds: done + degraded + aborted,
            committed: done,
            degraded,
            aborted,
            accuracy: committed.accuracy,
            loss: committed.loss,
            model_hash: committed.hash,
            reason,
            wall_s: cx.now().since(self.began.unwrap_or_default()).as_secs_f64(),
        }));
    }

    fn phase(&self) -> Option<Phase> {
        self.current.as_ref().map(|current| current.phase)
    }
}
