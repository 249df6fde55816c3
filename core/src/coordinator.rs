//! The federation's clockwork: opens rounds, counts what arrives, closes them, one after another.
//!
//! A round passes two gates. At the first, the *reports* of nodes are in (all of them, or a quorum and the grace): weights are fixed. At the
//! second, the *contributions* of domains are durably noted (all, or a quorum and the grace): they are folded, the outer step is taken, the
//! state is written, the commit recorded and announced. A round that misses its deadline without a quorum, or whose result cannot be had in
//! time or used, is aborted with the reason, and the model stays. What cannot be written down ends the run.
//!
//! In the asynchronous mode (see [`crate::staleness`]) the first gate opens once as many updates are in as the buffer holds, and an update that
//! was made from an older model is one of them, of a smaller weight.
//!
//! Weights are on stable storage before anybody is told of them, and contributions before they are acknowledged: a coordinator that is
//! restarted behind the first gate goes on with the same round. See [`Resumed`].

mod amend;
mod balance;
mod close;
mod contributions;
mod deadline;
mod leaves;
mod messages;
mod orders;
mod resume;
mod round;
mod stale;
mod views;

use std::collections::{BTreeMap, BTreeSet};

use crate::aggregate::{self, Weight};
use crate::event::{Event, Objection};
use crate::ids::{DomainId, NodeId, Round};
use crate::machine::{Context, Machine};
use crate::membership::{Membership, Word};
use crate::mutants;
use crate::pace::Paces;
use crate::plan::{Deadline, Plan};
use crate::policy;
use crate::tensor::{Hash, Layout};
use crate::time::Micros;
use crate::view::View;
use crate::wire::{Commit, Control, DomainJoin, Open};
use deadline::Adaptive;
pub(crate) use deadline::DEADLINE_MOST;
use leaves::Untold;
use orders::Orders;
use round::{Current, Phase};

pub use amend::{AMENDED, Amendment, Disagreement, objection};
pub use leaves::Told;
pub use messages::{Committed, Effect, FoldError, Message, NoteError, Outcome};
pub use orders::{Held, NotObeyed, Obeyed, Order, OrderAnswer, Paused, STOPPED, Wish};
pub use resume::{Noted, Resumed, Weighing, overtaken};

/// See the module.
#[derive(Debug)]
pub struct Coordinator {
    plan: Plan,
    me: NodeId,
    layout: Layout,
    committed: Option<Committed>,
    /// Until the round that it is about is open again.
    resumed: Option<Resumed>,
    domains: BTreeMap<DomainId, Domain>,
    membership: Membership,
    /// The view that is being written.
    writing: Option<View>,
    /// Gateways and successors in other domains: whether they can be reached.
    reach: BTreeMap<NodeId, bool>,
    /// When a node was last heard to say how it does.
    vitals: BTreeMap<NodeId, Micros>,
    /// Of whom it was said that a policy keeps them out of rounds.
    denials: BTreeSet<NodeId>,
    current: Option<Current>,
    /// The aborted round whose record is being written: the next one opens after it.
    recording: Option<Round>,
    announced: Option<Commit>,
    /// Whose updates are in the last committed round.
    counted: (Round, Vec<NodeId>),
    adaptive: Adaptive,
    paces: Paces,
    failed_in_a_row: u32,
    /// In the asynchronous mode: whose updates up to the one for that round were refused, so that another one is needed.
    spent: BTreeMap<NodeId, Round>,
    /// In the asynchronous mode: when this life opened its last rounds.
    opened: BTreeMap<Round, Micros>,
    began: Option<Micros>,
    ending: Option<Ending>,
    untold: Untold,
    orders: Orders,
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
    /// Behind a last round, which every domain is to hold; a run that failed or was interrupted waits for nobody.
    orderly: bool,
    until: Micros,
    /// Until when signatures under the last round are waited for.
    signed_by: Option<Micros>,
    done: bool,
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
            membership: Membership::new(&plan, View::first(&plan), Micros::default()),
            writing: None,
            reach: BTreeMap::new(),
            vitals: BTreeMap::new(),
            denials: BTreeSet::new(),
            me: plan.coordinator.clone(),
            plan,
            layout,
            committed: None,
            resumed: None,
            domains,
            current: None,
            recording: None,
            announced: None,
            counted: (0, Vec::new()),
            adaptive: Adaptive::default(),
            paces: Paces::default(),
            failed_in_a_row: 0,
            spent: BTreeMap::new(),
            opened: BTreeMap::new(),
            began: None,
            ending: None,
            untold: Untold::default(),
            orders: Orders::default(),
        }
    }

    /// The same on another node than the topology names: a standby that was promoted.
    #[must_use]
    pub fn on(mut self, node: NodeId) -> Self {
        self.me = node;
        self
    }

    /// The view that holds.
    pub fn view(&self) -> &View {
        self.membership.view()
    }

    /// For status: where every node stands.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// What each update of the open round counts for, once that is fixed.
    pub fn weights(&self) -> &[Weight] {
        let current = self.current.as_ref();
        current.map_or(&[], |current| &current.weights)
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
        if self.ending.is_some() || self.recording.is_some() {
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
        if let Some(reason) = self.orders.stopping() {
            return self.end(cx, reason.clone());
        }
        if self.orders.is_held() && self.unfinished() != Some(round) {
            return;
        }
        let span = match self.plan.round.deadline {
            Deadline::Fixed(span) => span,
            Deadline::Adaptive => self.adaptive.span(),
        };
        let epoch = self.view().epoch;
        let mut cohort = self.plan.cohort(round);
        let next = self.writing.as_ref().unwrap_or(self.view());
        cohort.retain(|node| !self.view().is_out(node) && !next.is_out(node));
        let denied = self.leave_out(cx, &mut cohort);
        cx.report(Event::RoundOpened {
            round,
            epoch,
            cohort: cohort.clone(),
            deadline_ms: u64::try_from(span.as_millis()).unwrap_or(u64::MAX),
        });
        let deadline = cx.now() + span;
        let close_by = deadline + self.plan.round.close_limit;
        let mut current = Current::new(round, epoch, cohort, cx.now(), deadline, close_by);
        current.denied = denied;
        // Steps that are dealt to a domain which nobody leads are made by nobody.
        let led = current
            .cohort
            .iter()
            .filter(|node| self.is_led(&node.domain()));
        current.steps = self.deal(&led.cloned().collect::<Vec<_>>());
        self.current = Some(current);
        self.remember_opening(round, cx.now());
        self.resume(cx);
        let joined = self.longest_first();
        joined.iter().for_each(|domain| self.tell_open(cx, domain));
        self.greet_silent(cx);
        self.check(cx);
    }

    /// Takes out of a cohort whom a policy keeps out of rounds; says who and why.
    fn leave_out(
        &mut self,
        cx: &mut Context<'_, Effect>,
        cohort: &mut Vec<NodeId>,
    ) -> BTreeMap<NodeId, String> {
        let mut denied = BTreeMap::new();
        cohort.retain(|node| {
            let Some(verdict) = policy::left_out(&self.plan, self.membership.view(), node) else {
                return true;
            };
            denied.insert(node.clone(), verdict.to_string());
            if self.denials.insert(node.clone()) {
                let node = self.me.clone();
                cx.report(Event::PolicyDenied { node, verdict });
            }
            false
        });
        denied
    }

    fn joined(&self) -> impl Iterator<Item = &DomainId> {
        self.domains
            .iter()
            .filter(|(_, domain)| domain.joined)
            .map(|(id, _)| id)
    }

    fn tell_open(&mut self, cx: &mut Context<'_, Effect>, domain: &DomainId) {
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
            run: committed.run,
            round: current.round,
            epoch: current.epoch,
            base_round: committed.round,
            base: committed.hash,
            cohort,
            attempt: current
                .known_attempt(domain)
                .map_or(0, |known| known.saturating_add(1)),
            sync_every: self.plan.sync_every,
            steps: self.shares_of(domain),
            seed: self.plan.seed,
            fresh: self.fresh(domain),
        };
        cx.effect(Effect::Tell(domain.clone(), Control::Open(open)));
        if let Some(current) = &mut self.current {
            current.told.entry(domain.clone()).or_insert(cx.now());
        }
        let Some(current) = &self.current else { return };
        if matches!(current.phase, Phase::Contributions) && !mutants::is("no-second-fold") {
            self.tell_weights(cx, domain);
        }
    }

    fn tell_weights(&self, cx: &mut Context<'_, Effect>, domain: &DomainId) {
        let Some(current) = &self.current else { return };
        let weights: Vec<Weight> = current.weights_of(domain).cloned().collect();
        let norm = |weight: &Weight| current.reports.get(&weight.node).map(|report| report.norm);
        let norms = weights.iter().filter_map(norm).collect();
        if !weights.is_empty() {
            cx.effect(Effect::Tell(
                domain.clone(),
                Control::Weigh {
                    round: current.round,
                    weights,
                    norms,
                },
            ));
        }
    }

    fn on_domain(&mut self, cx: &mut Context<'_, Effect>, from: NodeId, control: Control) {
        if !self.view().is_gateway(&from) || self.view().is_out(&from) && !self.is_own(&from) {
            // It was the gateway when it said this; the one that is now will say it again.
            return;
        }
        let domain = from.domain();
        let plan = self.plan.domain(&domain);
        let is_ours = |node: &NodeId| plan.is_some_and(|plan| plan.rank(node).is_some());
        if named(&control).is_some_and(|node| !is_ours(node)) {
            // A gateway speaks for its domain's nodes alone; names that it makes up would be kept without end.
            return;
        }
        match control {
            Control::Standing { node, word } => {
                return self.on_word(cx, &node, word);
            }
            // Nothing is decided by it: who has diverged reads the model anew by itself.
            Control::MemberDiverged(node, divergence) => {
                return cx.report(Event::ModelDiverged {
                    node,
                    round: divergence.round,
                    model: divergence.model,
                    expected: divergence.expected,
                    found: divergence.found,
                });
            }
            Control::MemberVitals(vitals) => {
                return self.on_vitals(cx, vitals);
            }
            Control::MemberAgreed {
                node,
                topology,
                objection,
            } if node.domain() == domain => {
                return self.on_agreed(cx, node, topology, objection);
            }
            // Said before its link was lost: over the next one it is asked to say it again.
            Control::DomainJoin(_) if self.reach.get(&from) == Some(&false) => return,
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
        if let Control::Reported {
            round,
            trained_for,
            report,
            ..
        } = &control
            && !self.takes(cx, *round, &report.node, *trained_for)
        {
            return;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        match control {
            Control::Reported {
                round,
                epoch,
                trained_for,
                report,
                effort,
            } => {
                let node = report.node.clone();
                let from = node.to_string();
                if round != current.round {
                    self.adaptive.on_late(round, node.clone(), cx.now());
                    let counted = self.counted.0 == round && self.counted.1.contains(&node);
                    return cx.report(match counted {
                        true => Event::ReplayAnswered { round, from },
                        false => Event::LateAnswered { round, from },
                    });
                }
                if epoch != current.epoch && !mutants::is("stale-epoch") {
                    return cx.report(Event::EpochAnswered { round, from });
                }
                // While nothing is weighed a newer word replaces the older one: the node was restarted and has trained again.
                let replaces = current.phase == Phase::Reports
                    && current
                        .reports
                        .get(&node)
                        .is_some_and(|known| *known != report);
                if current.refused.contains_key(&node)
                    || (current.reports.contains_key(&node) && !replaces)
                {
                    return cx.report(Event::DuplicateAnswered {
                        round,
                        from: node.to_string(),
                    });
                }
                if !current.cohort.contains(&node) {
                    return cx.report(Event::UpdateRefused {
                        why: Objection::NotAsked,
                        round,
                        node,
                        reason: "not asked in this round".into(),
                    });
                }
                current.failed.remove(&node);
                current.unreachable.remove(&node);
                let asked = self.opened.get(&trained_for).copied();
                let took = cx.now().since(asked.unwrap_or(current.opened));
                current.arrivals.insert(node.clone(), took);
                let told = current.told.get(&node.domain()).copied();
                let took = told.map_or(took, |told| took.min(cx.now().since(told)));
                current.efforts.insert(node.clone(), (effort, took));
                if let Some((why, reason)) = aggregate::refusal(&report) {
                    current.reports.remove(&node);
                    cx.report(Event::UpdateRefused {
                        why,
                        round,
                        node: node.clone(),
                        reason: reason.clone(),
                    });
                    self.spent.insert(node.clone(), trained_for);
                    current.refused.insert(node, reason);
                } else if current.phase != Phase::Reports {
                    // An asynchronous round is one of many that may take it.
                    if self.plan.round.asynchronous.is_none() {
                        cx.report(Event::LateAnswered {
                            round,
                            from: node.to_string(),
                        });
                    }
                } else {
                    cx.report(Event::Reported {
                        round,
                        node: node.clone(),
                        norm: report.norm,
                    });
                    current.trained_for.insert(node.clone(), trained_for);
                    current.stale.remove(&node);
                    current.reports.insert(node, report);
                }
            }
            Control::Stale {
                round,
                node,
                trained_for,
            } => self.on_stale(cx, round, node, trained_for),
            Control::TrainingFailed {
                round,
                node,
                reason,
            } if round == current.round => {
                if current.cohort.contains(&node) {
                    self.spent.insert(node.clone(), round);
                }
                current.failed.insert(node, reason.into());
            }
            Control::Unreachable { round, node, .. } if round == current.round => {
                current.unreachable.insert(node);
            }
            // Not a gateway's words; the link's authorization has refused them before.
            _ => return,
        }
        self.check(cx);
    }

    fn on_join(&mut self, cx: &mut Context<'_, Effect>, domain: DomainId, join: DomainJoin) {
        if let Some((why, reason)) = self.misfit(&domain, &join) {
            return self.turn_away(cx, domain, why, reason);
        }
        let Some(entry) = self.domains.get_mut(&domain) else {
            return;
        };
        // Who joins says anew what it holds.
        *entry = Domain {
            joined: true,
            lost: false,
            adopted: None,
        };
        for node in join.members {
            if node.domain() == domain {
                self.hear(cx, &node, Word::Active);
            }
        }
        let Some(committed) = &self.committed else {
            return self.send_away(cx, domain);
        };
        let asked = self.current.as_ref().is_some_and(|current| {
            current.cohort.iter().any(|node| node.domain() == domain) && self.ending.is_none()
        });
        if !asked {
            let commit = self.announced.clone().unwrap_or_else(|| Commit {
                round: committed.round,
                base: Hash::default(),
                hash: committed.hash,
                contributions: Vec::new(),
            });
            cx.effect(Effect::Tell(domain.clone(), Control::Commit(commit)));
        }
        match &self.ending {
            None => self.tell_open(cx, &domain),
            Some(ending) if ending.done => {
                let reason = ending.reason.as_str().into();
                return cx.effect(Effect::Tell(domain, Control::Finish { reason }));
            }
            Some(_) => {}
        }
        self.check(cx);
    }
}

/// Of which node a gateway's message tells.
fn named(control: &Control) -> Option<&NodeId> {
    match control {
        Control::Standing { node, .. }
        | Control::MemberDiverged(node, _)
        | Control::Stale { node, .. }
        | Control::TrainingFailed { node, .. }
        | Control::Unreachable { node, .. } => Some(node),
        Control::Reported { report, .. } => Some(&report.node),
        Control::MemberVitals(vitals) => Some(&vitals.node),
        _ => None,
    }
}

impl Machine for Coordinator {
    type Message = Message;
    type Effect = Effect;

    fn handle(&mut self, message: Message, cx: &mut Context<'_, Effect>) {
        let closes = self.current.as_ref().map(|current| current.deadline);
        if closes.is_some_and(|deadline| deadline < cx.now()) && !mutants::is("deadline-ignored") {
            // A timer may be late; a round accepts nothing after its deadline all the same.
            self.check(cx);
        }
        match message {
            Message::Start(committed, resumed) => self.on_start(cx, *committed, resumed),
            Message::Told(told) => self.untold.begin(told),
            Message::Certified(node, certificate) => self.untold.certify(node, certificate),
            Message::Rooted(domain, root) => self.untold.root(domain, root),
            Message::Unrooted(domain, root) => self.untold.retire(domain, root),
            Message::Revoked(domain, list) => self.untold.revoke(domain, list),
            Message::Cosigned(round, by) => {
                self.untold.sign(round, by);
                self.check_ending(cx);
            }
            Message::Fail(reason) => self.on_fail(cx, reason),
            Message::Up(node) => self.on_up(cx, node),
            Message::Watched(node, word) => self.on_watched(cx, node, word),
            Message::Viewed(epoch, result) => self.on_viewed(cx, epoch, result),
            Message::Readmit(node) => {
                let lifted = self.membership.lift(&node, cx.now());
                cx.effect(Effect::Lifted(lifted));
                self.check(cx);
            }
            Message::Order(number, order) => self.on_order(cx, number, order),
            Message::Held(number, result) => self.on_held(cx, number, result),
            Message::Amended(number, result) => self.on_amended(cx, number, result),
            Message::Domain(from, control) => self.on_domain(cx, from, control),
            Message::Weighed(round, result) => self.on_weighed(cx, round, result),
            Message::Fixed(round, result) => self.on_fixed(cx, round, result),
            Message::Noted(round, domain, attempt, result) => {
                self.on_noted(cx, round, domain, attempt, result)
            }
            Message::Folded(round, start, result) => self.on_folded(cx, round, start, result),
            Message::Computed(round, result) => self.on_computed(cx, round, result),
            Message::Committed(round, result) => self.on_committed(cx, round, result),
            Message::Recorded(round, result) => self.on_recorded(cx, round, result),
            Message::Stop(reason) => self.on_stop(cx, reason),
        }
    }

    fn on_wake(&mut self, cx: &mut Context<'_, Effect>) {
        self.check(cx);
    }
}

#[cfg(test)]
mod tests;
