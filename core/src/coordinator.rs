//! The federation's clockwork: opens rounds, counts what arrives, closes them, one after another.
//!
//! A round passes two gates. At the first, the *reports* of nodes are in (all of them, or a quorum and the grace): weights are fixed. At the
//! second, the *contributions* of domains are durably noted (all, or a quorum and the grace): they are folded, the outer step is taken, the
//! state is written, the commit recorded and announced. A round that misses its deadline without a quorum is aborted with the reason, and
//! the model stays.

mod deadline;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::aggregate::{Report, Weight};
use crate::event::{Event, Finished, RoundRecord, RoundState};
use crate::ids::{Attempt, DomainId, Epoch, NodeId, Round};
use crate::machine::{Context, Machine};
use crate::plan::{Deadline, Plan, Quorum};
use crate::tensor::{Hash, Layout};
use crate::time::Micros;
use crate::wire::{Answer, CHUNK_ELEMENTS, Commit, Contribution, Control, DomainJoin, Open};
use deadline::Adaptive;

/// The only membership view of this version: who is out of a round is out of that round only.
const EPOCH: Epoch = 1;

/// What comes in.
#[derive(Debug)]
pub enum Message {
    /// The last committed state was loaded (or made): rounds may begin.
    Start(Committed),
    /// A domain's gateway can be reached.
    DomainUp(DomainId),
    /// A domain's gateway gave no sign of life through all retries.
    DomainLost(DomainId),
    /// From a domain's gateway.
    Domain(DomainId, Control),
    /// The aggregator's word.
    Weighed(Round, Result<Vec<Weight>, String>),
    /// A contribution is on stable storage.
    Noted(Round, DomainId, Attempt, Result<(), String>),
    /// All contributions are folded, or one domain's could not be had.
    Folded(Round, u32, Result<(), FoldError>),
    /// The new state is on stable storage and recorded.
    Committed(Round, Result<Outcome, String>),
    /// End the run now; what is not committed is not lost, it was never promised.
    Stop(String),
}

/// Why the global fold failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoldError {
    /// A domain's bytes could not be had or were not the announced ones: fold again without it.
    Domain(DomainId, String),
    /// The result cannot be used.
    Result(String),
}

/// What is known of the past.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// The last round that ended, committed or not.
    pub ended: Round,
    /// The round whose commit made the current model.
    pub round: Round,
    /// That model's hash.
    pub hash: Hash,
    /// Rounds ended so far: with everyone, with some, without a commit.
    pub tally: (u64, u64, u64),
    /// The last evaluation.
    pub accuracy: f64,
    /// The last evaluation.
    pub loss: f64,
}

/// What a commit brought.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// The new model.
    pub hash: Hash,
    /// On the test rows.
    pub accuracy: f64,
    /// On the test rows.
    pub loss: f64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send to a domain's gateway.
    Tell(DomainId, Control),
    /// Send the step of a round along with the word that it is committed, so that it need not be asked for.
    Offer(DomainId, Round),
    /// Ask the aggregator; answer with [`Message::Weighed`].
    Weigh(Round, Vec<Report>),
    /// Write durably; answer with [`Message::Noted`].
    Note(Contribution),
    /// Fetch and fold these, in this order; answer with [`Message::Folded`].
    Fold(Round, u32, Vec<Contribution>),
    /// Step, evaluate, write, record; complete the record with what only doing it can tell; report it; answer with
    /// [`Message::Committed`].
    Commit(Box<RoundRecord>),
    /// A round ended without a commit: complete and report the record.
    Record(Box<RoundRecord>),
    /// The run is over.
    Finish(Finished),
}

/// See the module.
#[derive(Debug)]
pub struct Coordinator {
    plan: Plan,
    layout: Layout,
    committed: Option<Committed>,
    domains: BTreeMap<DomainId, Domain>,
    current: Option<Current>,
    announced: Option<Commit>,
    adaptive: Adaptive,
    failed_in_a_row: u32,
    began: Option<Micros>,
    ending: Option<Ending>,
}

#[derive(Debug, Default)]
struct Domain {
    joined: bool,
    lost: bool,
    adopted: Option<Hash>,
}

#[derive(Debug)]
struct Ending {
    reason: String,
    until: Micros,
    done: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Reports,
    Weighing,
    Contributions,
    Folding(u32),
    Committing,
}

#[derive(Debug)]
struct Current {
    round: Round,
    cohort: Vec<NodeId>,
    opened: Micros,
    deadline: Micros,
    close_by: Micros,
    grace: Option<Micros>,
    phase: Phase,
    reports: BTreeMap<NodeId, Report>,
    refused: BTreeMap<NodeId, String>,
    failed: BTreeMap<NodeId, String>,
    unreachable: BTreeSet<NodeId>,
    weights: Vec<Weight>,
    noting: BTreeMap<DomainId, Contribution>,
    noted: BTreeMap<DomainId, Contribution>,
    dropped: BTreeMap<DomainId, String>,
    arrivals: Vec<Duration>,
}

impl Coordinator {
    /// A coordinator of `plan` for models of `layout`. It waits for [`Message::Start`].
    pub fn new(plan: Plan, layout: Layout) -> Self {
        let domains = plan
            .domains
            .iter()
            .map(|domain| (domain.id.clone(), Domain::default()))
            .collect();
        Coordinator {
            plan,
            layout,
            committed: None,
            domains,
            current: None,
            announced: None,
            adaptive: Adaptive::default(),
            failed_in_a_row: 0,
            began: None,
            ending: None,
        }
    }

    /// For status: the open round, how many nodes reported, how many were asked, when it stops accepting.
    pub fn progress(&self) -> Option<(Round, usize, usize, Micros)> {
        let current = self.current.as_ref()?;
        Some((
            current.round,
            current.reports.len(),
            current.cohort.len(),
            current.deadline,
        ))
    }

    fn open_next(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(committed) = &self.committed else {
            return;
        };
        if self.ending.is_some() {
            return;
        }
        let round = committed.ended + 1;
        if round > self.plan.rounds {
            return self.end(cx, String::new());
        }
        if self.failed_in_a_row >= self.plan.round.failed_limit {
            let reason = format!(
                "{} rounds in a row failed, the limit is {}",
                self.failed_in_a_row, self.plan.round.failed_limit
            );
            return self.end(cx, reason);
        }
        let span = match self.plan.round.deadline {
            Deadline::Fixed(span) => span,
            Deadline::Adaptive => self.adaptive.span(),
        };
        let cohort = self.plan.cohort(round);
        cx.report(Event::RoundOpened {
            round,
            epoch: EPOCH,
            cohort: cohort.clone(),
            deadline_ms: u64::try_from(span.as_millis()).unwrap_or(u64::MAX),
        });
        let deadline = cx.now() + span;
        self.current = Some(Current {
            round,
            cohort,
            opened: cx.now(),
            deadline,
            close_by: deadline + self.plan.round.close_limit,
            grace: None,
            phase: Phase::Reports,
            reports: BTreeMap::new(),
            refused: BTreeMap::new(),
            failed: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            weights: Vec::new(),
            noting: BTreeMap::new(),
            noted: BTreeMap::new(),
            dropped: BTreeMap::new(),
            arrivals: Vec::new(),
        });
        let joined: Vec<DomainId> = self.joined().cloned().collect();
        joined.iter().for_each(|domain| self.tell_open(cx, domain));
        self.check(cx);
    }

    fn joined(&self) -> impl Iterator<Item = &DomainId> {
        self.domains
            .iter()
            .filter(|(_, domain)| domain.joined)
            .map(|(id, _)| id)
    }

    fn tell_open(&self, cx: &mut Context<'_, Effect>, domain: &DomainId) {
        let (Some(current), Some(committed)) = (&self.current, &self.committed) else {
            return;
        };
        let cohort: Vec<NodeId> = current
            .cohort
            .iter()
            .filter(|node| node.domain() == *domain)
            .cloned()
            .collect();
        if cohort.is_empty() {
            return;
        }
        let open = Open {
            round: current.round,
            epoch: EPOCH,
            base_round: committed.round,
            base: committed.hash,
            cohort,
            sync_every: self.plan.sync_every,
            seed: self.plan.seed,
        };
        cx.effect(Effect::Tell(domain.clone(), Control::Open(open)));
        if matches!(current.phase, Phase::Contributions) {
            self.tell_weights(cx, domain);
        }
    }

    fn tell_weights(&self, cx: &mut Context<'_, Effect>, domain: &DomainId) {
        let Some(current) = &self.current else { return };
        let mine: Vec<Weight> = current.weights_of(domain).cloned().collect();
        if !mine.is_empty() {
            cx.effect(Effect::Tell(
                domain.clone(),
                Control::Weigh {
                    round: current.round,
                    weights: mine,
                },
            ));
        }
    }

    fn on_domain(&mut self, cx: &mut Context<'_, Effect>, domain: DomainId, control: Control) {
        match control {
            Control::DomainJoin(join) => return self.on_join(cx, domain, join),
            Control::Adopted { hash, .. } => {
                if let Some(entry) = self.domains.get_mut(&domain) {
                    entry.adopted = Some(hash);
                }
                return self.check(cx);
            }
            Control::Contribute(contribution) => {
                return self.on_contribute(cx, domain, contribution);
            }
            _ => {}
        }
        let Some(current) = &mut self.current else {
            return;
        };
        let ours = |node: &NodeId| node.domain() == domain;
        match control {
            Control::Reported {
                round,
                epoch,
                report,
            } if ours(&report.node) => {
                let node = report.node.clone();
                if (round, epoch) != (current.round, EPOCH) {
                    return cx.report(Event::LateAnswered {
                        round,
                        from: node.to_string(),
                    });
                }
                if current.reports.contains_key(&node) || current.refused.contains_key(&node) {
                    return cx.report(Event::DuplicateAnswered {
                        round,
                        from: node.to_string(),
                    });
                }
                if !current.cohort.contains(&node) {
                    return cx.report(Event::UpdateRefused {
                        round,
                        node,
                        reason: "not asked in this round".into(),
                    });
                }
                current.failed.remove(&node);
                current.unreachable.remove(&node);
                current.arrivals.push(cx.now().since(current.opened));
                if let Some(reason) = crate::aggregate::refusal(&report) {
                    cx.report(Event::UpdateRefused {
                        round,
                        node: node.clone(),
                        reason: reason.clone(),
                    });
                    current.refused.insert(node, reason);
                } else if current.phase != Phase::Reports {
                    cx.report(Event::LateAnswered {
                        round,
                        from: node.to_string(),
                    });
                } else {
                    cx.report(Event::Reported {
                        round,
                        node: node.clone(),
                        norm: report.norm,
                    });
                    current.reports.insert(node, report);
                }
            }
            Control::TrainingFailed {
                round,
                node,
                reason,
            } if round == current.round && ours(&node) => {
                current.failed.insert(node, reason);
            }
            Control::Unreachable { round, node, .. } if round == current.round && ours(&node) => {
                current.unreachable.insert(node);
            }
            // Not a gateway's words; the link's authorization has refused them before.
            _ => return,
        }
        self.check(cx);
    }

    fn on_join(&mut self, cx: &mut Context<'_, Effect>, domain: DomainId, join: DomainJoin) {
        if let Some(difference) = self.layout.difference(&join.layout) {
            let reason =
                format!("domain {domain} trains another model than the coordinator: {difference}");
            cx.report(Event::DomainDropped {
                round: 0,
                domain: domain.clone(),
                reason: reason.clone(),
            });
            return cx.effect(Effect::Tell(domain, Control::Finish { reason }));
        }
        let Some(entry) = self.domains.get_mut(&domain) else {
            return;
        };
        (entry.joined, entry.lost) = (true, false);
        let Some(committed) = &self.committed else {
            return;
        };
        if self.current.is_none() || self.ending.is_some() {
            let commit = self.announced.clone().unwrap_or_else(|| Commit {
                round: committed.round,
                base: Hash::default(),
                hash: committed.hash,
                contributions: Vec::new(),
            });
            cx.effect(Effect::Tell(domain.clone(), Control::Commit(commit)));
        }
        self.tell_open(cx, &domain);
        self.check(cx);
    }

    fn on_contribute(
        &mut self,
        cx: &mut Context<'_, Effect>,
        domain: DomainId,
        contribution: Contribution,
    ) {
        let (round, attempt) = (contribution.round, contribution.attempt);
        let answer = |cx: &mut Context<'_, Effect>, answer| {
            cx.effect(Effect::Tell(
                domain.clone(),
                Control::Answer {
                    round,
                    attempt,
                    answer,
                },
            ));
        };
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| (current.round, EPOCH) == (round, contribution.epoch))
        else {
            cx.report(Event::LateAnswered {
                round,
                from: domain.to_string(),
            });
            return answer(cx, Answer::Late);
        };
        match current.phase {
            Phase::Contributions => {}
            // Made for a coordinator that is no more: once weights are fixed again, the domain is asked again.
            Phase::Reports | Phase::Weighing => return,
            Phase::Folding(_) | Phase::Committing => {
                cx.report(Event::LateAnswered {
                    round,
                    from: domain.to_string(),
                });
                return answer(cx, Answer::Late);
            }
        }
        let known = [&current.noted, &current.noting]
            .into_iter()
            .filter_map(|known| known.get(&domain))
            .map(|known| known.attempt)
            .max();
        if known.is_some_and(|known| attempt <= known) {
            cx.report(Event::DuplicateAnswered {
                round,
                from: domain.to_string(),
            });
            return answer(cx, Answer::Duplicate);
        }
        if let Err(reason) = current.acceptable(&domain, &contribution, self.layout.len()) {
            cx.report(Event::DomainDropped {
                round,
                domain: domain.clone(),
                reason: reason.clone(),
            });
            return answer(cx, Answer::Refused(reason));
        }
        current.noting.insert(domain.clone(), contribution.clone());
        cx.effect(Effect::Note(contribution));
    }

    fn on_noted(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        domain: DomainId,
        attempt: Attempt,
        result: Result<(), String>,
    ) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.round == round)
        else {
            return;
        };
        let Some(contribution) = current
            .noting
            .get(&domain)
            .filter(|noting| noting.attempt == attempt)
            .cloned()
        else {
            return;
        };
        current.noting.remove(&domain);
        let answer = match result {
            Ok(()) if current.phase != Phase::Contributions => Answer::Late,
            Ok(()) => {
                let weight = contribution.weight;
                cx.report(Event::Acknowledged {
                    round,
                    attempt,
                    domain: domain.clone(),
                    weight,
                });
                current.noted.insert(domain.clone(), contribution);
                Answer::Acknowledged
            }
            Err(reason) => Answer::Refused(format!("the coordinator could not note it: {reason}")),
        };
        cx.effect(Effect::Tell(
            domain,
            Control::Answer {
                round,
                attempt,
                answer,
            },
        ));
        self.check(cx);
    }

    /// Looks whether the open round can go on, and says when to look again.
    fn check(&mut self, cx: &mut Context<'_, Effect>) {
        self.check_ending(cx);
        let Some(current) = &mut self.current else {
            return;
        };
        let now = cx.now();
        match current.phase {
            Phase::Reports => {
                let usable: BTreeSet<&NodeId> = current.reports.keys().collect();
                let quorum = is_met(&self.plan, current, usable.iter().copied());
                let lost = |node: &NodeId| {
                    self.domains
                        .get(&node.domain())
                        .is_some_and(|domain| domain.lost)
                };
                let waiting = current.cohort.iter().any(|node| {
                    !current.has_answered(node)
                        && !current.unreachable.contains(node)
                        && !lost(node)
                });
                if current.cohort.is_empty() {
                    return self.abort(cx, "empty cohort: every node is declared absent".into());
                }
                if quorum && (!waiting || current.grace.is_some_and(|grace| grace <= now)) {
                    current.phase = Phase::Weighing;
                    current.grace = None;
                    let reports = current.reports.values().cloned().collect();
                    cx.effect(Effect::Weigh(current.round, reports));
                    return;
                }
                let able = current.cohort.iter().filter(|node| {
                    !current.failed.contains_key(node) && !current.refused.contains_key(node)
                });
                if !is_met(&self.plan, current, able) {
                    let reason = format!(
                        "the quorum cannot be met any more: {}",
                        current.complaints()
                    );
                    return self.abort(cx, reason);
                }
                self.wait_or_abort(cx, quorum);
            }
            Phase::Contributions => {
                let members = current.noted.values().flat_map(|noted| &noted.members);
                let quorum = is_met(&self.plan, current, members.clone());
                let inside: BTreeSet<&NodeId> = members.collect();
                let lost = |node: &NodeId| {
                    self.domains
                        .get(&node.domain())
                        .is_some_and(|domain| domain.lost)
                };
                let waiting = !current.noting.is_empty()
                    || current.weights.iter().any(|weight| {
                        let node = &weight.node;
                        weight.weight > 0.0
                            && !inside.contains(node)
                            && !current.unreachable.contains(node)
                            && !current.failed.contains_key(node)
                            && !lost(node)
                    });
                if quorum
                    && (!waiting
                        || [Some(current.deadline), current.grace]
                            .iter()
                            .flatten()
                            .any(|at| *at <= now))
                {
                    return self.fold(cx, 0);
                }
                self.wait_or_abort(cx, quorum);
            }
            Phase::Weighing | Phase::Folding(_) | Phase::Committing => {
                if now >= current.close_by && current.phase != Phase::Committing {
                    let limit = self.plan.round.close_limit;
                    return self.abort(
                        cx,
                        format!("closing took longer than close_limit ({limit:?})"),
                    );
                }
                if now < current.close_by {
                    cx.wake_at(current.close_by);
                }
            }
        }
    }

    fn wait_or_abort(&mut self, cx: &mut Context<'_, Effect>, quorum: bool) {
        let Some(current) = &mut self.current else {
            return;
        };
        if cx.now() >= current.deadline {
            let reason = self.shortfall();
            self.adaptive.on_missed();
            return self.abort(cx, reason);
        }
        if quorum && current.grace.is_none() {
            cx.report(Event::QuorumReached {
                round: current.round,
            });
            current.grace = Some((cx.now() + self.plan.round.grace).min(current.deadline));
        }
        cx.wake_at(
            current
                .grace
                .unwrap_or(current.deadline)
                .min(current.deadline),
        );
    }

    fn shortfall(&self) -> String {
        let Some(current) = &self.current else {
            return String::new();
        };
        let (what, have): (&str, BTreeSet<&NodeId>) = match current.phase {
            Phase::Contributions => (
                "contributions",
                current
                    .noted
                    .values()
                    .flat_map(|noted| &noted.members)
                    .collect(),
            ),
            _ => ("reports", current.reports.keys().collect()),
        };
        let (nodes, domains) = needed(&self.plan, current);
        let present: BTreeSet<DomainId> = have.iter().map(|node| node.domain()).collect();
        let missing: Vec<&str> = current
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
        if !current.complaints().is_empty() {
            reason = format!("{reason} ({})", current.complaints());
        }
        reason
    }

    fn fold(&mut self, cx: &mut Context<'_, Effect>, start: u32) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.phase = Phase::Folding(start);
        current.close_by = current.close_by.min(cx.now() + self.plan.round.close_limit);
        cx.wake_at(current.close_by);
        cx.effect(Effect::Fold(
            current.round,
            start,
            current.noted.values().cloned().collect(),
        ));
    }

    fn on_folded(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        start: u32,
        result: Result<(), FoldError>,
    ) {
        let Some(current) = self.current.as_mut() else {
            return;
        };
        if (current.round, current.phase) != (round, Phase::Folding(start)) {
            return;
        }
        match result {
            Ok(()) => {
                current.phase = Phase::Committing;
                let record = self.record(cx.now(), None);
                cx.effect(Effect::Commit(Box::new(record)));
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

    /// The record of the open round; `aborted` gives the reason.
    fn record(&self, now: Micros, aborted: Option<String>) -> RoundRecord {
        let current = self.current.as_ref().expect("called with an open round");
        let committed = self
            .committed
            .as_ref()
            .expect("rounds open after the start");
        let mut counted: Vec<NodeId> = current
            .noted
            .values()
            .flat_map(|noted| noted.members.clone())
            .collect();
        counted.sort();
        if aborted.is_some() {
            counted.clear();
        }
        let refused: Vec<(NodeId, String)> = current
            .refused
            .iter()
            .map(|(node, reason)| (node.clone(), reason.clone()))
            .collect();
        let mut late: Vec<NodeId> = current
            .cohort
            .iter()
            .filter(|node| !counted.contains(node) && !current.refused.contains_key(node))
            .cloned()
            .collect();
        late.sort();
        let dropped: Vec<String> = current
            .dropped
            .iter()
            .map(|(domain, reason)| format!("{domain}: {reason}"))
            .collect();
        let (state, reason) = match aborted {
            Some(reason) => (RoundState::Aborted, reason),
            None if counted.len() == current.cohort.len() => (RoundState::Committed, String::new()),
            None => {
                let details = [current.complaints(), dropped.join("; ")]
                    .into_iter()
                    .filter(|text| !text.is_empty())
                    .collect::<Vec<_>>();
                let mut reason = format!("{} of {}", counted.len(), current.cohort.len());
                if !details.is_empty() {
                    reason = format!("{reason} ({})", details.join("; "));
                }
                (RoundState::Degraded, reason)
            }
        };
        RoundRecord {
            round: current.round,
            epoch: EPOCH,
            state,
            reason,
            counted,
            late,
            refused,
            accuracy: committed.accuracy,
            loss: committed.loss,
            weight_norm: 0.0,
            bytes: 0,
            bytes_down: 0,
            bytes_up: 0,
            model_hash: committed.hash,
            elapsed_s: now.since(current.opened).as_secs_f64(),
        }
    }

    fn on_committed(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        result: Result<Outcome, String>,
    ) {
        if self
            .current
            .as_ref()
            .is_none_or(|current| (current.round, current.phase) != (round, Phase::Committing))
        {
            return;
        }
        let outcome = match result {
            Ok(outcome) => outcome,
            Err(reason) => {
                // What cannot be written down is not committed, and the next round could not be either.
                let reason = format!("round {round} could not be committed: {reason}");
                return self.end(cx, reason);
            }
        };
        let state = self.record(cx.now(), None).state;
        let current = self.current.take().expect("checked above");
        let committed = self
            .committed
            .as_mut()
            .expect("rounds open after the start");
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
        committed.ended = round;
        committed.round = round;
        committed.hash = outcome.hash;
        committed.accuracy = outcome.accuracy;
        committed.loss = outcome.loss;
        match state {
            RoundState::Committed => committed.tally.0 += 1,
            _ => committed.tally.1 += 1,
        }
        self.failed_in_a_row = 0;
        self.adaptive.on_round(current.arrivals);
        let joined: Vec<DomainId> = self.joined().cloned().collect();
        for domain in joined {
            cx.effect(Effect::Offer(domain.clone(), round));
            cx.effect(Effect::Tell(domain, Control::Commit(commit.clone())));
        }
        self.announced = Some(commit);
        self.open_next(cx);
    }

    fn abort(&mut self, cx: &mut Context<'_, Effect>, reason: String) {
        let record = self.record(cx.now(), Some(reason.clone()));
        let Some(current) = self.current.take() else {
            return;
        };
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
        let committed = self
            .committed
            .as_mut()
            .expect("rounds open after the start");
        committed.ended = current.round;
        committed.tally.2 += 1;
        self.failed_in_a_row += 1;
        self.open_next(cx);
    }

    fn end(&mut self, cx: &mut Context<'_, Effect>, reason: String) {
        self.ending = Some(Ending {
            reason,
            until: cx.now() + self.plan.round.close_limit,
            done: false,
        });
        if let Some(current) = self.current.take() {
            let reason = "the run ends".to_owned();
            for domain in self.joined() {
                cx.effect(Effect::Tell(
                    domain.clone(),
                    Control::Abort {
                        round: current.round,
                        reason: reason.clone(),
                    },
                ));
            }
        }
        self.check_ending(cx);
    }

    /// The run is over once every domain that can be reached holds the last model, or after `close_limit`.
    fn check_ending(&mut self, cx: &mut Context<'_, Effect>) {
        let (Some(ending), Some(committed)) = (&mut self.ending, &self.committed) else {
            return;
        };
        if ending.done {
            return;
        }
        let behind = |domain: &Domain| !domain.lost && domain.adopted != Some(committed.hash);
        // An interrupted or failed run does not wait for domains that never came.
        let waits = |domain: &&Domain| {
            if ending.reason.is_empty() {
                behind(domain)
            } else {
                false
            }
        };
        if self.domains.values().any(|domain| waits(&domain)) && cx.now() < ending.until {
            return cx.wake_at(ending.until);
        }
        ending.done = true;
        let reason = ending.reason.clone();
        for (id, _) in self.domains.iter().filter(|(_, domain)| domain.joined) {
            cx.effect(Effect::Tell(
                id.clone(),
                Control::Finish {
                    reason: reason.clone(),
                },
            ));
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
}

impl Current {
    fn has_answered(&self, node: &NodeId) -> bool {
        self.reports.contains_key(node)
            || self.refused.contains_key(node)
            || self.failed.contains_key(node)
    }

    fn weights_of<'a>(&'a self, domain: &'a DomainId) -> impl Iterator<Item = &'a Weight> {
        self.weights
            .iter()
            .filter(move |weight| weight.node.domain() == *domain)
    }

    /// Whose update was refused or could not be made, and why.
    fn complaints(&self) -> String {
        let said = self
            .refused
            .iter()
            .chain(&self.failed)
            .map(|(node, reason)| format!("{node}: {reason}"));
        said.collect::<Vec<_>>().join("; ")
    }

    /// Checks a contribution against the weights that were fixed.
    fn acceptable(
        &self,
        domain: &DomainId,
        contribution: &Contribution,
        elements: usize,
    ) -> Result<(), String> {
        if contribution.domain != *domain {
            return Err(format!("it says it is from {}", contribution.domain));
        }
        let mut total = 0.0;
        let mut seen = BTreeSet::new();
        for member in &contribution.members {
            let weight = self
                .weights_of(domain)
                .find(|weight| weight.node == *member && weight.weight > 0.0);
            let weight = weight.ok_or_else(|| format!("{member} was not weighed"))?;
            if !seen.insert(member) {
                return Err(format!("{member} stands in it twice"));
            }
            total += weight.weight;
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
        let chunks = elements.div_ceil(CHUNK_ELEMENTS);
        if contribution.chunks.len() != chunks {
            return Err(format!(
                "{} chunks where {chunks} are due",
                contribution.chunks.len()
            ));
        }
        Ok(())
    }
}

/// How many nodes and domains a round needs.
fn needed(plan: &Plan, current: &Current) -> (usize, usize) {
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

fn is_met<'a>(plan: &Plan, current: &Current, nodes: impl Iterator<Item = &'a NodeId>) -> bool {
    let nodes: BTreeSet<&NodeId> = nodes.collect();
    let domains: BTreeSet<DomainId> = nodes.iter().map(|node| node.domain()).collect();
    let (needed_nodes, needed_domains) = needed(plan, current);
    !nodes.is_empty() && nodes.len() >= needed_nodes && domains.len() >= needed_domains
}

impl Machine for Coordinator {
    type Message = Message;
    type Effect = Effect;

    fn handle(&mut self, message: Message, cx: &mut Context<'_, Effect>) {
        match message {
            Message::Start(committed) => {
                self.began = Some(cx.now());
                self.committed = Some(committed);
                self.open_next(cx);
            }
            Message::DomainUp(domain) => {
                if let Some(entry) = self.domains.get_mut(&domain) {
                    entry.lost = false;
                    cx.effect(Effect::Tell(domain, Control::Resync));
                }
            }
            Message::DomainLost(domain) => {
                if let Some(entry) = self.domains.get_mut(&domain) {
                    (entry.lost, entry.joined) = (true, false);
                    let round = self.current.as_ref().map_or(0, |current| current.round);
                    cx.report(Event::DomainDropped {
                        round,
                        domain,
                        reason: "its gateway gives no sign of life".into(),
                    });
                }
                self.check(cx);
            }
            Message::Domain(domain, control) => self.on_domain(cx, domain, control),
            Message::Weighed(round, result) => {
                let Some(current) = self.current.as_mut() else {
                    return;
                };
                if (current.round, current.phase) != (round, Phase::Weighing) {
                    return;
                }
                match result {
                    Err(reason) => self.abort(cx, reason),
                    Ok(weights) => {
                        current.phase = Phase::Contributions;
                        let nodes = weights
                            .iter()
                            .filter(|weight| weight.weight > 0.0)
                            .map(|weight| weight.node.clone());
                        cx.report(Event::Weighed {
                            round,
                            nodes: nodes.collect(),
                        });
                        current.weights = weights;
                        let joined: Vec<DomainId> = self.joined().cloned().collect();
                        joined
                            .iter()
                            .for_each(|domain| self.tell_weights(cx, domain));
                        self.check(cx);
                    }
                }
            }
            Message::Noted(round, domain, attempt, result) => {
                self.on_noted(cx, round, domain, attempt, result)
            }
            Message::Folded(round, start, result) => self.on_folded(cx, round, start, result),
            Message::Committed(round, result) => self.on_committed(cx, round, result),
            Message::Stop(reason) => {
                if self.ending.is_none() {
                    self.end(cx, reason);
                }
            }
        }
    }

    fn on_wake(&mut self, cx: &mut Context<'_, Effect>) {
        self.check(cx);
    }
}

#[cfg(test)]
mod tests;
