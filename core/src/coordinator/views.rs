//! Who takes part while rounds go on: words about nodes come in, views follow.
//!
//! A view is written down before anybody is told. The open round keeps its opening epoch; a later view only takes nodes out of it or points a
//! domain to another gateway. Who is in a sum that may still be committed is put out after that round (ROUND-4).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::round::{Phase, could_meet};
use super::{Coordinator, Domain, Effect};
use crate::event::{Event, Misfit, Vitals};
use crate::ids::{DomainId, Epoch, NodeId};
use crate::machine::Context;
use crate::membership::{State, Word};
use crate::mutants;
use crate::plan::{Durability, Quorum};
use crate::policy;
use crate::text::Text;
use crate::time::Micros;
use crate::view::{Out, View};
use crate::wire::{Control, DomainJoin};

/// How a node does is worth a line of the record so often: half as often as nodes say it, since words that were held up come close together.
const VITALS_EVERY: Duration = Duration::from_secs(5);

impl Coordinator {
    pub(super) fn is_own(&self, node: &NodeId) -> bool {
        *node == self.me
    }

    pub(super) fn on_up(&mut self, cx: &mut Context<'_, Effect>, node: NodeId) {
        self.reach.insert(node.clone(), true);
        // How a mere successor does, its own domain says, as long as anybody speaks for it.
        let domain = self.domains.get(&node.domain());
        if self.view().is_gateway(&node) || domain.is_none_or(|domain| !domain.joined) {
            self.hear(cx, &node, Word::Active);
        }
        self.send_view(cx, &node);
        if self.view().is_gateway(&node) {
            self.greet(cx, &node.domain());
            self.send_away(cx, node.domain());
        }
        self.check(cx);
    }

    /// Why a domain cannot take part, naming both sides; none if it can.
    pub(super) fn misfit(&self, domain: &DomainId, join: &DomainJoin) -> Option<(Misfit, String)> {
        if let Some(difference) = self.layout.difference(&join.layout) {
            let reason =
                format!("domain {domain} trains another model than the coordinator: {difference}");
            return Some((Misfit::Model, reason));
        }
        // A commit is told only once it is written down for good: who holds what this coordinator never committed has it from another one.
        // What every node makes by itself, or held before, is put right by the last commit.
        let ours = self.committed.as_ref()?;
        let is_other = join.round > ours.round
            || (join.round == ours.round && join.round > 0 && join.hash != ours.hash);
        is_other.then(|| {
            let reason = format!(
                "domain {domain} has another past than the coordinator: it holds model {:?} of round {}, the coordinator has committed {:?} of round {}; \
                 start the nodes of {domain} anew, or the coordinator with the state folder of the run that they belong to",
                join.hash, join.round, ours.hash, ours.round
            );
            (Misfit::Past, reason)
        })
    }

    /// Sends a domain away that cannot take part. It may come again, as another.
    pub(super) fn turn_away(
        &mut self,
        cx: &mut Context<'_, Effect>,
        domain: DomainId,
        why: Misfit,
        reason: String,
    ) {
        let reason = Text::from(reason);
        cx.report(Event::TurnedAway {
            domain: domain.clone(),
            why,
            reason: reason.to_string(),
        });
        if let Some(entry) = self.domains.get_mut(&domain) {
            entry.joined = false;
        }
        cx.effect(Effect::Tell(domain, Control::Finish { reason }));
    }

    /// Asks a domain, through its acting gateway, to say where it stands.
    fn greet(&mut self, cx: &mut Context<'_, Effect>, domain: &DomainId) {
        let Some(gateway) = self.view().gateway(domain).cloned() else {
            return;
        };
        if self.view().is_out(&gateway) {
            return;
        }
        if let Some(entry) = self.domains.get_mut(domain) {
            entry.lost = false;
            cx.effect(Effect::Tell(domain.clone(), Control::Resync));
        }
    }

    /// Asks again where domains stand that could say so and have not: their word may have come when it could not be judged yet.
    pub(super) fn greet_silent(&mut self, cx: &mut Context<'_, Effect>) {
        let unheard = self.domains.iter().filter(|(_, entry)| !entry.joined);
        let unheard: Vec<DomainId> = unheard.map(|(domain, _)| domain.clone()).collect();
        for domain in unheard {
            let gateway = self.view().gateway(&domain);
            if gateway.is_some_and(|gateway| self.reach.get(gateway) == Some(&true)) {
                self.greet(cx, &domain);
            }
        }
    }

    pub(super) fn on_watched(&mut self, cx: &mut Context<'_, Effect>, node: NodeId, word: Word) {
        let is_gateway = self.view().is_gateway(&node);
        match word {
            Word::Active => return self.on_up(cx, node),
            // A link may be down for that long without anybody noticing.
            Word::Suspect => {}
            Word::Restoring | Word::Overdue | Word::Left => {
                self.reach.insert(node.clone(), false);
                if is_gateway {
                    let reason = match word {
                        Word::Left => "its gateway leaves",
                        _ => "its gateway gives no sign of life",
                    };
                    self.lose(cx, &node.domain(), reason);
                }
            }
        }
        // How a mere successor does, its own domain says.
        if is_gateway {
            self.hear(cx, &node, word);
        }
        self.check(cx);
    }

    pub(super) fn on_word(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, word: Word) {
        if self.view().is_gateway(node) {
            // The gateway's own word for itself: only that it leaves is news.
            if word == Word::Left && !self.is_own(node) {
                self.on_watched(cx, node.clone(), word);
            }
            return;
        }
        self.hear(cx, node, word);
        self.check(cx);
    }

    /// Says how a node of another process does. Nothing is decided by it, so it may not fill the record: who speaks too often is not heard.
    pub(super) fn on_vitals(&mut self, cx: &mut Context<'_, Effect>, vitals: Vitals) {
        let last = self.vitals.get(&vitals.node);
        let is_due = last.is_none_or(|last| cx.now().since(*last) >= VITALS_EVERY);
        if is_due && self.plan.nodes().any(|node| node.id == vitals.node) {
            self.vitals.insert(vitals.node.clone(), cx.now());
            cx.report(Event::NodeMeasured(vitals));
        }
    }

    /// Takes a word about a node, and says so if it stands elsewhere now. That everybody comes at the start is no news.
    pub(super) fn hear(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, word: Word) {
        let now = cx.now();
        if let Some((before, entry)) = self.membership.on_word(now, node, word)
            && before != State::Joining
        {
            cx.report(Event::StandingChanged {
                node: node.clone(),
                state: entry.state,
                reason: entry.reason(now),
            });
        }
    }

    fn lose(&mut self, cx: &mut Context<'_, Effect>, domain: &DomainId, reason: &str) {
        let Some(entry) = self.domains.get_mut(domain).filter(|entry| !entry.lost) else {
            return;
        };
        (entry.lost, entry.joined) = (true, false);
        let round = self.current.as_ref().map_or(0, |current| current.round);
        cx.report(Event::DomainDropped {
            round,
            domain: domain.clone(),
            reason: reason.to_owned(),
        });
    }

    /// Which domains are lost by the view that has just come to hold: what was heard before may be of gateways that are none any more.
    pub(super) fn judge_domains(&mut self) {
        let view = self.membership.view();
        for (domain, entry) in &mut self.domains {
            let gateway = view.gateway(domain);
            entry.lost = gateway.is_some_and(|gateway| self.reach.get(gateway) == Some(&false));
        }
    }

    /// Lost gateways and who succeeds them: the next one of the list, from the top again, that can be reached.
    fn successors(&self) -> BTreeMap<DomainId, NodeId> {
        let mut successors = BTreeMap::new();
        for domain in &self.plan.domains {
            let acting = self.view().gateway(&domain.id);
            let lost = self.domains.get(&domain.id).is_some_and(|entry| entry.lost)
                || acting.is_some_and(|acting| {
                    let may_not = policy::may_speak(&self.plan, &self.me, acting).is_some();
                    (self.view().is_out(acting) || may_not) && !self.is_own(acting)
                });
            let place = domain.gateways.iter().position(|node| Some(node) == acting);
            let (Some(place), true) = (place, lost && !self.is_fetching(&domain.id)) else {
                continue;
            };
            let (before, after) = domain.gateways.split_at(place);
            let candidate = after.iter().skip(1).chain(before).find(|node| {
                self.reach.get(*node).copied().unwrap_or(false)
                    && !self.view().is_out(node)
                    && policy::may_speak(&self.plan, &self.me, node).is_none()
            });
            if let Some(candidate) = candidate {
                successors.insert(domain.id.clone(), candidate.clone());
            }
        }
        successors
    }

    /// Whether a domain's sum is being fetched, which only the gateway that made it has.
    fn is_fetching(&self, domain: &DomainId) -> bool {
        self.current.as_ref().is_some_and(|current| {
            matches!(current.phase, Phase::Folding(_)) && current.noted.contains_key(domain)
        })
    }

    /// Lets the next view be written if there is reason for one.
    pub(super) fn review(&mut self, cx: &mut Context<'_, Effect>) {
        if self.writing.is_some() || self.ending.is_some() || self.committed.is_none() {
            return;
        }
        let now = cx.now();
        let scarce = self.is_scarce(now);
        let next = self.membership.next(
            now,
            &self.successors(),
            |node| !self.is_own(node) && self.may_evict(node),
            |_| scarce,
        );
        if let Some(view) = next {
            // From now on, so that nothing of theirs gets into a sum while the view is being written.
            let gone: Vec<NodeId> = view.out.keys().cloned().collect();
            gone.iter().for_each(|node| self.take_out(node));
            self.writing = Some(view.clone());
            let epoch = view.epoch;
            cx.effect(Effect::View(view));
            if mutants::is("view-untold") {
                self.on_viewed(cx, epoch, Ok(()));
            }
        } else if let Some(at) = self.membership.wake(cx.now()) {
            cx.wake_at(at);
        }
    }

    /// Whether no sum that may still be committed holds the node's update.
    fn may_evict(&self, node: &NodeId) -> bool {
        let Some(current) = &self.current else {
            return true;
        };
        if mutants::is("evicted-counts") {
            return true;
        }
        if current.inherited.contains(node) {
            return false;
        }
        let inside = |contributions: &BTreeMap<DomainId, crate::wire::Contribution>| {
            contributions
                .values()
                .any(|contribution| contribution.members.contains(node))
        };
        match current.phase {
            Phase::Reports => true,
            Phase::Contributions => !inside(&current.noted) && !inside(&current.noting),
            // Whether it will be weighed, or is being folded, is open.
            Phase::Weighing
            | Phase::Fixing
            | Phase::Folding(_)
            | Phase::Computing
            | Phase::Committing => !current.cohort.contains(node),
        }
    }

    pub(super) fn on_viewed(
        &mut self,
        cx: &mut Context<'_, Effect>,
        epoch: Epoch,
        result: Result<(), String>,
    ) {
        let Some(view) = self.writing.take_if(|view| view.epoch == epoch) else {
            return;
        };
        if let Err(reason) = result {
            // A run that ends, or has ended, needs no view that follows.
            if self.ending.is_none() {
                let reason = format!("membership view {epoch} could not be written down: {reason}");
                self.end(cx, reason);
            }
            return;
        }
        let gateways = self.view().gateways.clone();
        cx.report(Event::EpochChanged { view: view.clone() });
        self.untold.view(view.clone());
        let (gone, back) = self.membership.adopt(view, cx.now());
        gone.iter()
            .for_each(|node| self.report_gone(cx, node, epoch));
        for node in back {
            cx.report(Event::NodeReadmitted { node, epoch });
        }
        let mut reached: BTreeSet<NodeId> = self.reached().cloned().collect();
        reached.insert(self.me.clone());
        // Who leaves waits for nothing else.
        let leavers = gone.iter().filter(|node| self.plan.may_be_gateway(node));
        reached.extend(leavers.cloned());
        reached.iter().for_each(|node| self.send_view(cx, node));
        for (domain, gateway) in self.view().gateways.clone() {
            let moved = gateways.get(&domain) != Some(&gateway);
            if moved {
                self.domains.insert(domain.clone(), Domain::default());
                // The sum lies with the old gateway, unless it is in the journal; members still hold their updates, and the new one makes it
                // again.
                let until = cx.now() + self.plan.round.close_limit;
                let kept = self.plan.round.durability == Durability::Journal;
                if let Some(current) = self.current.as_mut().filter(|_| !kept) {
                    current.put_away(&domain, until);
                }
            }
        }
        self.greet_silent(cx);
        self.check(cx);
    }

    pub(super) fn reached(&self) -> impl Iterator<Item = &NodeId> {
        let up = self.reach.iter().filter(|(_, up)| **up);
        up.map(|(node, _)| node)
    }

    pub(super) fn send_view(&self, cx: &mut Context<'_, Effect>, node: &NodeId) {
        let view: &View = self.view();
        if view.epoch > 1 {
            cx.effect(Effect::Send(node.clone(), Control::View(view.clone())));
        }
    }

    fn report_gone(&self, cx: &mut Context<'_, Effect>, node: &NodeId, epoch: Epoch) {
        let node = node.clone();
        cx.report(match self.view().out.get(&node) {
            Some(Out::Evicted(times)) => {
                let span = self.plan.heartbeat.cooldown.span(*times);
                let cooldown_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
                Event::NodeEvicted {
                    node,
                    epoch,
                    cooldown_ms,
                }
            }
            _ => Event::NodeLeft { node, epoch },
        });
    }

    /// Takes a node that is put out from the open round.
    pub(super) fn take_out(&mut self, node: &NodeId) {
        let Some(current) = &mut self.current else {
            return;
        };
        if current.cohort.contains(node) && !mutants::is("evicted-counts") {
            current.cohort.retain(|asked| asked != node);
            current.reports.remove(node);
            current.failed.remove(node);
            current.weights.retain(|weight| weight.node != *node);
            current.out.insert(node.clone());
        }
    }

    /// Whether there is no quorum without those who are out.
    fn is_scarce(&self, now: Micros) -> bool {
        let led = |node: &&NodeId| self.is_led(&node.domain());
        let nodes = || self.plan.nodes().map(|node| &node.id);
        if self.plan.round.quorum == Quorum::All {
            // Whoever is in the view is asked, and must answer.
            let mut asked = nodes().filter(|node| !self.view().is_out(node));
            if !asked.all(|node| led(&node)) {
                return true;
            }
        }
        let living = nodes().filter(led);
        let living = living.filter(|node| self.may_come(node, now));
        !could_meet(&self.plan, living)
    }

    /// Whether a domain has a gateway that is not out: its nodes are as good as out without one.
    pub(super) fn is_led(&self, domain: &DomainId) -> bool {
        let gateway = self.view().gateway(domain);
        gateway.is_some_and(|gateway| !self.view().is_out(gateway) || self.is_own(gateway))
    }

    /// Whether word of a node may still come.
    pub(super) fn may_come(&self, node: &NodeId, now: Micros) -> bool {
        let lost = self.domains.get(&node.domain());
        self.membership.is_expected(node, now) && !lost.is_some_and(|domain| domain.lost)
    }
}
