//! The gateway side of a node: what its [`Gateway`] decides, and the two regions of the domain's model.

use super::Node;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::obtain::{Draft, Shown, Watch, obtain};
use super::retain;
use crate::collective::{self, Collective, region_ref};
use crate::coordinator;
use crate::env::{Work, work};
use crate::link;
use crate::record;
use crate::shell::{ASKS_MAX, Actor, Cx, Reply, later, pause};
use crate::waits::waits_for;
use tombolo_core::event::Event;
use tombolo_core::gateway::{self, Gateway};
use tombolo_core::ids::{Attempt, NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::member;
use tombolo_core::outline::Outline;
use tombolo_core::view::View;
use tombolo_core::wait_for::{Party, What};
use tombolo_core::wire::{Commit, Contribution, Control, ModelRef, Object};
use tombolo_fabric::Region;

/// A rank that lives and answers nothing for so many heartbeat limits, and the time that its bytes take on a slow machine, does not work.
const STALL_LIMITS: u32 = 4;
const STALL_PER_BYTE: Duration = Duration::from_nanos(40);

/// The gateway's two model regions: one that the domain may READ, one for the next model.
#[derive(Default)]
pub(super) struct Shop {
    pub(super) shown: Option<Shown>,
    pub(super) next: Option<Draft>,
}

impl Node {
    pub(super) fn step_gateway(&mut self, cx: &mut Cx<Self>, message: gateway::Message) {
        if let gateway::Message::MemberUp(peer) = &message
            && self.gateway.is_some()
            && !self.may_lead(peer)
        {
            return;
        }
        if matches!(message, gateway::Message::CoordinatorUp) && self.gateway.is_some() {
            let greet = record::Message::Greet(self.setup.coordinator());
            self.setup.record.deliver(greet);
        }
        self.move_gateway(cx, |gateway, cx| gateway.handle(message, cx));
    }

    fn wake_gateway(&mut self, cx: &mut Cx<Self>) {
        self.move_gateway(cx, Machine::on_wake);
    }

    fn move_gateway(
        &mut self,
        cx: &mut Cx<Self>,
        step: impl FnOnce(&mut Gateway, &mut Context<'_, gateway::Effect>),
    ) {
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        let mut out = Outcome::default();
        step(
            gateway,
            &mut Context::new(self.setup.stage.env.now(), &mut out),
        );
        let ranks: BTreeSet<NodeId> = gateway.waits_for().into_iter().cloned().collect();
        self.note_waits(&ranks);
        out.events
            .into_iter()
            .for_each(|event| self.setup.stage.report(event));
        for effect in out.effects {
            self.perform_gateway(cx, effect);
        }
        // Wishes only move to later: one that comes too early asks anew.
        if let Some(at) = out.wake_at.filter(|_| !self.gateway_wakes) {
            self.gateway_wakes = true;
            let env = self.setup.stage.env.clone();
            later(cx, env.sleep(at.since(env.now())), |node, (), cx| {
                node.gateway_wakes = false;
                node.wake_gateway(cx);
            });
        }
    }

    /// Lets it be known whose work this gateway waits for.
    fn note_waits(&mut self, ranks: &BTreeSet<NodeId>) {
        self.works.retain(|rank, _| ranks.contains(rank));
        for rank in ranks {
            self.works.entry(rank.clone()).or_insert_with(|| {
                let (actor, key) = (Collective::NAME, rank.to_string());
                waits_for(&Arc::new(Party { actor, key }), What::Work)
            });
        }
    }

    /// Becomes its domain's gateway, as far as it knows.
    pub(super) fn act(&mut self, cx: &mut Cx<Self>) {
        let plan = &self.setup.stage.plan;
        let domain = plan.domain(&self.me().domain());
        let domain = domain.expect("the plan holds this node");
        let ranks = domain.nodes.iter().map(|node| node.id.clone()).collect();
        let layout = self.setup.layout.clone();
        let patience = plan.heartbeat.limit() * STALL_LIMITS
            + STALL_PER_BYTE * u32::try_from(layout.len() * 4).unwrap_or(u32::MAX);
        self.term = 1 + self.setup.presence.terms.fetch_add(1, Ordering::Relaxed);
        let tokens = self.setup.stage.env.rng(&format!("gateway {}", self.term));
        let gateway = Gateway::new(domain.id.clone(), ranks, layout, tokens);
        let (needs, codec) = (plan.aggregator.needs, plan.codec(&domain.id));
        let gateway = gateway.patient(patience).for_rule(needs);
        let gateway = gateway.with_codec(codec);
        self.gateway = Some(match plan.trains(&domain.id) {
            true => gateway,
            false => gateway.looks_on(),
        });
        self.setup.residual.clear();
        // What an earlier term wished for; what it has under way is thrown away when it comes.
        self.obtain = None;
        self.wanted.send_replace(None);
        let view = self.setup.seen().view().clone();
        self.step_gateway(cx, gateway::Message::View(view));
    }

    /// Shows the domain a model that this node holds.
    pub(super) fn show(
        &mut self,
        cx: &mut Cx<Self>,
        round: Round,
        outline: Arc<Outline>,
        region: Region,
    ) {
        let hash = outline.hash();
        let model = ModelRef {
            round,
            hash,
            region: region_ref(self.me(), &region),
        };
        self.shop = Some(Shop {
            shown: Some(Shown { outline, region }),
            next: None,
        });
        self.step_gateway(cx, gateway::Message::Obtained(round, Ok(model)));
    }

    /// Goes to a later view, and hands it on to its domain if it acts as the gateway.
    pub(super) fn on_view(&mut self, cx: &mut Cx<Self>, view: View) {
        let epoch = view.epoch;
        let turn = {
            let plan = self.setup.stage.plan.clone();
            self.setup.seen().adopt(&plan, view.clone())
        };
        let Some(turn) = turn else {
            return;
        };
        let node = self.me().clone();
        self.setup.stage.report(Event::ViewAdopted { node, epoch });
        if turn.falls {
            self.gateway = None;
            self.works.clear();
            self.forget_contributions(|_| true);
        }
        if self.is_gateway() {
            let neighbours = self
                .up
                .iter()
                .filter(|peer| peer.domain() == self.me().domain());
            let neighbours: Vec<NodeId> = neighbours.cloned().collect();
            neighbours.iter().for_each(|peer| self.send_view(peer));
        }
        let coordinator = view.coordinator.clone();
        if turn.coordinator_moved {
            self.hand_over(&view);
            self.look_up(cx);
        }
        if turn.rises {
            self.rise(cx);
        } else {
            self.step_gateway(cx, gateway::Message::View(view));
            if turn.coordinator_moved
                && (coordinator == *self.me() || self.up.contains(&coordinator))
            {
                // It knows nothing of this domain yet.
                self.step_gateway(cx, gateway::Message::CoordinatorUp);
            }
        }
        if turn.gateway_moved && !turn.rises {
            self.step_member(cx, member::Message::GatewayUp);
        }
        self.leave_if_out();
    }

    /// Lets this node's own coordinator, if there is one at work, know that it is another one now.
    fn hand_over(&self, view: &View) {
        let company = self.setup.company.get();
        if let Some(own) = company.and_then(|company| company.coordinator.as_ref())
            && view.coordinator != *self.me()
        {
            own.deliver(coordinator::Message::Superseded(view.clone()));
        }
    }

    /// Tells a neighbour the view, if it may not know it.
    pub(super) fn send_view(&self, peer: &NodeId) {
        let view = self.setup.seen().view().clone();
        if self.is_gateway() && view.epoch > 1 {
            self.send(peer, Control::View(view));
        }
    }

    /// Takes over the domain: shows the model it holds, and asks everybody to join.
    fn rise(&mut self, cx: &mut Cx<Self>) {
        self.act(cx);
        if !self.setup.trains() {
            return self.gather_domain(cx);
        }
        // While the bench is lent to training there is nothing to copy from; the coordinator's model comes over the WAN then.
        let (Some(bench), Some(member)) = (self.bench.take(), &self.member) else {
            return self.gather_domain(cx);
        };
        let ((round, _), fabric) = (member.model(), self.setup.fabric.clone());
        let (env, bytes) = (
            self.setup.stage.env.clone(),
            Work::Bytes(self.setup.layout.len() as u64 * 4),
        );
        let shown = work(env.as_ref(), bytes, move || {
            let region = bench.shown(&fabric, round);
            (bench, region)
        });
        // What comes meanwhile waits: it may need the bench.
        pause(cx, shown, move |node, shown, cx| {
            match shown {
                Ok((bench, region)) => {
                    node.bench = Some(bench);
                    match region {
                        Ok((region, outline)) => node.show(cx, round, outline, region),
                        Err(reason) => {
                            tracing::warn!(node = %node.me(), reason, "the model cannot be shown")
                        }
                    }
                }
                Err(panicked) => {
                    let reason = panicked.to_string();
                    tracing::error!(node = %node.me(), reason, "the model was lost on the way");
                    node.rebuild(cx, member::Message::GatewayUp);
                }
            }
            node.gather_domain(cx);
        });
    }

    /// Asks everybody whom this gateway reaches to join, and says where the domain stands.
    fn gather_domain(&mut self, cx: &mut Cx<Self>) {
        let mine = self.me().clone();
        let mut members: Vec<NodeId> = self.up.iter().cloned().collect();
        members.retain(|peer| peer.domain() == mine.domain());
        members.push(mine);
        for member in members {
            self.step_gateway(cx, gateway::Message::MemberUp(member));
        }
        let coordinator = self.setup.coordinator();
        if coordinator == *self.me() || self.up.contains(&coordinator) {
            self.step_gateway(cx, gateway::Message::CoordinatorUp);
        }
        self.step_member(cx, member::Message::GatewayUp);
    }

    fn perform_gateway(&mut self, cx: &mut Cx<Self>, effect: gateway::Effect) {
        match effect {
            gateway::Effect::Tell(control) => {
                let coordinator = self.setup.coordinator();
                if let Control::Contribute(contribution) = &control {
                    let sent = record::Message::Sent(Box::new(contribution.clone()));
                    self.setup.record.deliver(sent);
                    self.retain(cx, contribution);
                    self.offer(
                        &coordinator,
                        Object::Contribution(contribution.round, contribution.attempt),
                    );
                }
                self.send(&coordinator, control);
            }
            gateway::Effect::Member(node, control) => self.send(&node, control),
            gateway::Effect::Obtain { round, base, hash } => {
                self.obtain = Some((round, base, hash));
                self.wanted.send_replace(Some(hash));
                self.obtain_next(cx);
            }
            gateway::Effect::Gather(gather) => {
                let (round, attempt) = (gather.round, gather.attempt);
                self.gather(cx, round, attempt, move |reply| {
                    collective::Message::Gather(gather.clone(), reply)
                });
            }
            gateway::Effect::Collect(collect) => {
                let (round, attempt) = (collect.round, collect.attempt);
                self.gather(cx, round, attempt, move |reply| {
                    collective::Message::Collect(collect.clone(), reply)
                });
            }
            gateway::Effect::Finished(_) => {}
        }
    }

    /// Keeps what is sent for whoever wants to compute the round again, if the file says so.
    fn retain(&mut self, cx: &mut Cx<Self>, contribution: &Contribution) {
        let rounds = self.setup.stage.plan.checkpoint.retain_contributions;
        let of = (contribution.round, contribution.attempt);
        let object = Object::Contribution(of.0, of.1);
        if rounds == 0 || self.retained == Some(of) {
            return;
        }
        let Some(bytes) = self.setup.shelf.find(object) else {
            return;
        };
        self.retained = Some(of);
        let env = self.setup.stage.env.clone();
        let (files, contribution) = (env.files(), contribution.clone());
        let kept = work(env.as_ref(), Work::Bytes(bytes.len() as u64), move || {
            retain::keep(files.as_ref(), &contribution, &bytes, rounds)
        });
        later(cx, kept, |node, kept, _| {
            let error = match kept {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error.to_string(),
                Err(panicked) => panicked.to_string(),
            };
            let node = node.me();
            tracing::warn!(%node, error, "the domain's contribution is not retained: the round cannot be computed again without it");
        });
    }

    /// Has the domain's contribution made, and keeps it for the coordinator to fetch.
    fn gather(
        &self,
        cx: &mut Cx<Self>,
        round: Round,
        attempt: Attempt,
        question: impl Fn(Reply<collective::Gathered>) -> collective::Message + Send + 'static,
    ) {
        let term = self.term;
        let (collective, own) = (self.setup.collective.clone(), self.me().clone());
        let gathered = async move {
            let gathered = collective.ask_again(ASKS_MAX, question).await;
            gathered.unwrap_or_else(|error| Err((own, format!("its collective: {error}"))))
        };
        later(cx, gathered, move |node, gathered, cx| {
            if node.term != term {
                return;
            }
            let offered = node.gateway.as_ref().and_then(Gateway::offered);
            let (shelf, made) = (
                node.setup.shelf.clone(),
                Object::Contribution(round, attempt),
            );
            // Of an actor before this one: the coordinator may have acknowledged it.
            let was_there = shelf.find(made).is_some();
            let result = gathered.map(|(bytes, parcel)| {
                shelf.keep(|object| match object {
                    Object::Contribution(of, old) => may_be_fetched(offered, round, (of, old)),
                    _ => true,
                });
                shelf.put(made, bytes);
                parcel
            });
            node.step_gateway(cx, gateway::Message::Gathered(round, attempt, result));
            let offered = node.gateway.as_ref().and_then(Gateway::offered);
            if offered != Some((round, attempt)) && !was_there {
                // The round went on without it.
                shelf.remove(made);
            }
        });
    }

    fn obtain_next(&mut self, cx: &mut Cx<Self>) {
        let Some(mut shop) = self.shop.take() else {
            return;
        };
        let Some((round, base, hash)) = self.obtain.take() else {
            self.shop = Some(shop);
            return;
        };
        let (setup, term) = (self.setup.clone(), self.term);
        let mut watch = Watch {
            wanted: self.wanted.subscribe(),
            reach: self.reach.subscribe(),
        };
        let work = async move {
            let result = obtain(&setup, &mut shop, &mut watch, round, base, hash).await;
            (shop, result)
        };
        later(cx, work, move |node, (shop, result), cx| {
            if node.term == term {
                node.shop = Some(shop);
                node.step_gateway(cx, gateway::Message::Obtained(round, result));
            } else {
                // This term's own regions are shown already, or it begins with those.
                node.shop.get_or_insert(shop);
            }
            node.obtain_next(cx);
        });
    }

    /// What the domain's codec lost of a committed contribution is sent with the next one.
    pub(super) fn remember(&self, commit: &Commit) {
        let domain = self.me().domain();
        let mut listed = commit.contributions.iter();
        let ours = listed.find(|(of, _)| *of == domain);
        let attempt = ours.map(|(_, attempt)| *attempt);
        self.setup.residual.on_commit(commit.round, attempt);
    }

    pub(super) fn forget_contributions(&self, is_over: impl Fn(Round) -> bool) {
        self.setup.shelf.keep(|object| match object {
            Object::Contribution(round, _) => !is_over(round),
            _ => true,
        });
    }

    /// Starts to send an object before it is asked for; its stream waits at the other side within the stream's window.
    fn offer(&self, peer: &NodeId, object: Object) {
        let company = self.setup.company.get();
        if let Some(link) = company.and_then(|company| company.links.get(peer)) {
            // If it cannot be taken, the peer fetches.
            let _ = link.post(link::Message::Offer(object));
        }
    }
}

/// Whether the coordinator may still fetch a contribution, now that there is a new one of `round`: what was offered last, until the new one takes its
/// place. An actor that was rebuilt does not know what the one before it has offered in this round.
fn may_be_fetched(
    offered: Option<(Round, Attempt)>,
    round: Round,
    contribution: (Round, Attempt),
) -> bool {
    match offered {
        Some(offered) => offered == contribution,
        None => contribution.0 == round,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_actor_before_has_offered_in_this_round_may_be_fetched_and_nothing_else_that_is_old()
    {
        assert!(may_be_fetched(None, 3, (3, 0)));
        assert!(!may_be_fetched(None, 3, (2, 0)));
        assert!(may_be_fetched(Some((3, 0)), 3, (3, 0)));
        assert!(!may_be_fetched(Some((3, 1)), 3, (3, 0)));
    }
}
