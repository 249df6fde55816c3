//! A node: takes every message that comes in, lets its machines decide, and performs what they decide.
//!
//! Each node is a [`Member`] of its domain; the domain's gateway also runs the [`Gateway`]. A message's sender is the TLS peer of the link
//! it came on, and [`authorize`] says whether that peer may send it.

mod as_gateway;
mod as_member;
mod bench;
mod consider;
mod granted;
mod heal;
pub mod keep;
mod obtain;
mod presence;
pub mod retain;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{SetOnce, watch};

use self::as_gateway::Shop;
use self::bench::{Bench, Initial, bench};
pub use self::consider::Ahead;
pub use self::presence::Presence;
use crate::clock_sync;
use crate::collective;
use crate::coordinator::{self, TrainerFactory};
use crate::credentials;
use crate::env::{Work, work};
use crate::link::{self, Shelf};
use crate::record;
use crate::residual::Residual;
use crate::shell::{ASKS_MAX, Actor, Cx, Handle, Stage, later, pause};
use crate::step::Musters;
use crate::verbs::{self, Fabric};
use crate::waits::Waiting;
use tombolo_core::authorize::{Part, authorize};
use tombolo_core::event::{Event, Vitals};
use tombolo_core::gateway::{self, Gateway};
use tombolo_core::heartbeat::Verdict;
use tombolo_core::ids::{Attempt, Epoch, NodeId, Round};
use tombolo_core::member::{self, Export, Member};
use tombolo_core::membership::Word;
use tombolo_core::policy;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::text::clip;
use tombolo_core::trainer::Domain;
use tombolo_core::view::Seen;
use tombolo_core::waiting;
use tombolo_core::wire::Control;

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// From a peer, or from this node itself.
    Inbound(NodeId, Control),
    /// A link carries frames.
    LinkUp(NodeId),
    /// A link does not any more.
    LinkDown(NodeId),
    /// What a heartbeat found.
    Verdict(NodeId, Verdict),
    /// This node's coordinator is ready, for the first time or again.
    CoordinatorStarted,
    /// This node leaves: whoever waits for it must hear so.
    Leave,
    /// How it does: the coordinator, in another process, is to know.
    Vitals(Vitals),
    /// A peer has ended because the run is over, for this reason. Who leads this node speaks for it, too: it may have been out of reach when
    /// the others were told.
    Over(NodeId, String),
}

/// Why a node that was told to leave has left: nobody waits for it, nothing of it is needed any more.
pub const DEPARTED: &str = "it left as it was told to";

/// What a node needs.
#[derive(Clone)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// Names and shapes of the model.
    pub layout: Layout,
    /// Hash of everything in the configuration that decides the outcome.
    pub configuration: Hash,
    /// Hash of the topology by which the run goes.
    pub topology: Hash,
    /// Looks for the one by which it may go on.
    pub ahead: Option<Ahead>,
    /// Those with whom it trains.
    pub musters: Musters,
    /// Makes its trainer.
    pub trainer: TrainerFactory,
    /// What peers may fetch from it.
    pub shelf: Shelf,
    /// Its access to the fabric.
    pub fabric: Fabric,
    /// Its Verbs actor.
    pub verbs: Handle<verbs::Message>,
    /// Its rank in collectives.
    pub collective: Handle<collective::Message>,
    /// Its copy of the record.
    pub record: Handle<record::Message>,
    /// Its certificates.
    pub credentials: Handle<credentials::Message>,
    /// Becomes the reason once the run is over for this node.
    pub left: watch::Sender<Option<String>>,
    /// Filled once they exist: its links and, on one node, the coordinator.
    pub company: Arc<SetOnce<Company>>,
    /// The view by which it goes; outlives the actor.
    pub seen: Arc<Mutex<Seen>>,
    /// Whether it is there.
    pub presence: Arc<Presence>,
    /// What the domain's codec has lost, if this node is its gateway.
    pub residual: Arc<Residual>,
}

impl Setup {
    /// The view by which the node goes.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes of its domain that are asked in a round, as far as it knows.
    pub(super) fn together(&self, round: Round, epoch: Epoch) -> Domain {
        let (plan, own) = (&self.stage.plan, self.stage.node.domain());
        let apart = plan
            .round
            .asynchronous
            .is_some()
            .then_some("in the asynchronous mode each node trains for a round of its own");
        let mut asked = plan.cohort(round);
        let seen = self.seen();
        let view = seen.view();
        asked.retain(|node| {
            let is_in = node.domain() == own && !view.is_out(node);
            is_in && policy::left_out(plan, view, node).is_none()
        });
        drop(seen);
        self.musters.domain(round, epoch, asked, apart)
    }

    /// Whether anybody of the node's domain is asked in any round.
    pub(super) fn trains(&self) -> bool {
        self.stage.plan.trains(&self.stage.node.domain())
    }

    /// The coordinator, as the node's view has it.
    pub(super) fn coordinator(&self) -> NodeId {
        self.seen().view().coordinator.clone()
    }
}

/// Whom a node talks to.
#[derive(Clone)]
pub struct Company {
    /// By peer.
    pub links: BTreeMap<NodeId, Handle<link::Message>>,
    /// By peer: the connection.
    pub wires: BTreeMap<NodeId, Arc<link::Wire>>,
    /// By peer: how far it is.
    pub clocks: BTreeMap<NodeId, Arc<clock_sync::Known>>,
    /// On the coordinator's node.
    pub coordinator: Option<Handle<coordinator::Message>>,
}

/// See the module.
pub struct Node {
    setup: Setup,
    own: Handle<Message>,
    member: Option<Member>,
    gateway: Option<Gateway>,
    /// Which of this node's terms as a gateway it is.
    term: u64,
    gateway_wakes: bool,
    /// The ranks whose work it waits for as a gateway.
    works: BTreeMap<NodeId, Option<Waiting>>,
    /// It is looked again whether anybody leads.
    patience_wakes: bool,
    /// It says its last word, or has said it.
    gives_up: bool,
    up: BTreeSet<NodeId>,
    /// Silent nodes of other domains: a coordinator that begins only now must hear so.
    watched: BTreeMap<NodeId, Word>,
    bench: Option<Bench>,
    shop: Option<Shop>,
    obtain: Option<(Round, Option<Hash>, Hash)>,
    /// The contribution that was retained last.
    retained: Option<(Round, Attempt)>,
    /// The model that is wanted now: a transfer of another one ends.
    wanted: watch::Sender<Option<Hash>>,
    /// As `up`, for transfers under way.
    reach: watch::Sender<BTreeSet<NodeId>>,
}

impl Node {
    /// A node that first makes its trainer and the initial model.
    pub fn new(setup: Setup, own: Handle<Message>) -> Self {
        Node {
            setup,
            own,
            member: None,
            gateway: None,
            term: 0,
            gateway_wakes: false,
            works: BTreeMap::new(),
            patience_wakes: false,
            gives_up: false,
            up: BTreeSet::new(),
            watched: BTreeMap::new(),
            bench: None,
            shop: Some(Shop::default()),
            obtain: None,
            retained: None,
            wanted: watch::Sender::new(None),
            reach: watch::Sender::default(),
        }
    }

    fn me(&self) -> &NodeId {
        &self.setup.stage.node
    }

    fn send(&self, peer: &NodeId, control: Control) {
        if peer == self.me() {
            self.own.deliver(Message::Inbound(peer.clone(), control));
        } else if let Some(link) = self
            .setup
            .company
            .get()
            .and_then(|company| company.links.get(peer))
        {
            link.deliver(link::Message::Send(control));
        }
    }

    /// Sends what nobody wants to know later, so that it does not wait for a peer that is away.
    fn send_now(&self, peer: &NodeId, control: Control) {
        if peer == self.me() || self.up.contains(peer) {
            self.send(peer, control);
        }
    }

    /// The acting gateway of the node's domain.
    fn gateway_of_mine(&self) -> NodeId {
        self.setup.seen().gateway().clone()
    }

    fn is_gateway(&self) -> bool {
        self.setup.seen().is_gateway()
    }

    // ---- life ----

    /// Makes the bench; until it is there messages wait in the queue.
    fn prepare(&mut self, cx: &mut Cx<Self>) {
        let setup = self.setup.clone();
        let (env, company) = (setup.stage.env.clone(), setup.company.clone());
        let bytes = Work::Bytes(setup.layout.len() as u64 * 4);
        let made = work(env.as_ref(), bytes, move || bench(&setup));
        let made = async move {
            company.wait().await;
            made.await
        };
        pause(cx, made, |node, made, cx| {
            match made.unwrap_or_else(|panicked| Err(panicked.to_string())) {
                Ok((bench, initial)) => node.begin(cx, bench, initial),
                Err(reason) => node.setup.stage.report(Event::TrainingFailed {
                    node: node.me().clone(),
                    round: 0,
                    reason: clip(reason),
                }),
            }
        });
    }

    fn begin(&mut self, cx: &mut Cx<Self>, bench: Bench, initial: Initial) {
        self.enlist(cx, bench, initial.outline.hash(), initial.export);
        if let Some(region) = initial.shown {
            self.act(cx);
            // The initial model needs no transfer: everybody can make it.
            self.show(cx, 0, initial.outline, region);
        }
        // A node that was rebuilt hears of links that are up already, and makes itself known to a coordinator beside it.
        if let Some(company) = self.setup.company.get() {
            for link in company.links.values() {
                link.deliver(link::Message::Announce);
            }
        }
        if self.is_gateway() {
            self.step_gateway(cx, gateway::Message::MemberUp(self.me().clone()));
            if self.setup.coordinator() == *self.me() {
                // No link tells this domain and its coordinator apart: after a restart it says by itself where it stands.
                self.step_gateway(cx, gateway::Message::CoordinatorUp);
            }
        }
    }

    /// Becomes a member that holds the initial model, and the last update of a life before.
    fn enlist(&mut self, cx: &mut Cx<Self>, bench: Bench, initial: Hash, export: Option<Export>) {
        let layout = self.setup.layout.clone();
        let mut member = Member::new(self.me().clone(), layout, 0, initial);
        if let Some(export) = export {
            member.restore(export);
        }
        self.member = Some(member);
        self.hold(&bench);
        self.bench = Some(bench);
        if self.setup.presence.leaves.load(Ordering::Relaxed) {
            self.leave(cx);
        }
    }

    /// Who leads this node, as the file has it.
    fn leads(&self) -> Vec<NodeId> {
        let needs = waiting::needs(&self.setup.stage.plan, self.me());
        let leads = needs.into_iter().filter(|need| need.leads);
        leads.map(|need| need.peer).collect()
    }

    /// Whether anybody who does is in reach. Whoever has become coordinator leads itself.
    fn is_led(&self) -> bool {
        self.setup.coordinator() == *self.me()
            || self.leads().iter().any(|peer| self.up.contains(peer))
    }

    /// Looks whether anybody who leads this node is in reach, and again once that was not so for as long as it is patient.
    fn look_up(&mut self, cx: &mut Cx<Self>) {
        let (mut leads, led) = (self.leads(), self.is_led());
        let (env, now) = (self.setup.stage.env.clone(), self.setup.stage.env.now());
        let (is_over, left, span) = {
            let mut patience = self.setup.presence.patience();
            let is_over = patience.look(now, led);
            (is_over, patience.left(now), patience.span())
        };
        if is_over {
            if std::mem::replace(&mut self.gives_up, true) {
                return;
            }
            let addresses = async move {
                let mut named = Vec::new();
                for peer in leads.drain(..) {
                    let found = env.resolve(&peer).await.unwrap_or_default();
                    let address = found.first().map(ToString::to_string);
                    named.push((peer, address));
                }
                named
            };
            later(cx, addresses, move |node, leads, cx| {
                if node.is_led() {
                    // Somebody was reached meanwhile.
                    node.gives_up = false;
                    return node.look_up(cx);
                }
                let reason = waiting::last_word(node.me(), &leads, span.unwrap_or_default());
                node.setup.stage.report(Event::GaveUp {
                    node: node.me().clone(),
                    reason: clip(reason.as_str()),
                });
                node.give_up(cx, reason);
            });
        } else if let Some(left) = left.filter(|_| !self.patience_wakes) {
            self.patience_wakes = true;
            later(cx, env.sleep(left), |node, (), cx| {
                node.patience_wakes = false;
                node.look_up(cx);
            });
        }
    }

    /// Ends, and if it is a gateway its domain with it.
    fn give_up(&mut self, cx: &mut Cx<Self>, reason: String) {
        let finish = Control::Finish {
            reason: reason.as_str().into(),
        };
        self.step_gateway(cx, gateway::Message::Coordinator(finish));
        let _ = self.setup.left.send(Some(reason));
    }

    fn leave(&mut self, cx: &mut Cx<Self>) {
        self.setup.presence.leaves.store(true, Ordering::Relaxed);
        self.step_member(cx, member::Message::Leave);
        self.leave_if_out();
    }

    /// A node that is told to leave has left once it is out of the view: then no open sum holds its update.
    fn leave_if_out(&self) {
        let leaves = self.setup.presence.leaves.load(Ordering::Relaxed);
        if leaves && self.setup.seen().view().is_out(self.me()) {
            let _ = self.setup.left.send(Some(DEPARTED.to_owned()));
        }
    }

    // ---- messages ----

    fn inbound(&mut self, cx: &mut Cx<Self>, from: NodeId, control: Control) {
        let view = self.setup.seen().view().clone();
        let part = match authorize(&self.setup.stage.plan, &view, self.me(), &from, &control) {
            Ok(part) => part,
            Err(refusal) => {
                if let Some(verdict) = &refusal.denial {
                    self.setup.stage.deny(verdict);
                }
                return tracing::warn!(%refusal, "message refused");
            }
        };
        match (part, control) {
            (Part::Fabric, Control::Endpoint(bytes)) => {
                let verbs = self.setup.verbs.clone();
                let learned = async move {
                    let question =
                        |reply| verbs::Message::Learn(from.clone(), bytes.clone(), reply);
                    verbs.ask_again(ASKS_MAX, question).await
                };
                later(cx, learned, |node, learned, _| {
                    if let Err(error) = learned {
                        tracing::error!(node = %node.me(), %error, "a neighbour's endpoint is lost");
                    }
                });
            }
            (Part::Fabric, Control::Muster(muster)) => self.setup.musters.hear(from, muster),
            (Part::View, Control::View(view)) => self.on_view(cx, view),
            (Part::Record, control) => {
                let inbound = record::Message::Inbound(from, control);
                self.setup.record.deliver(inbound);
            }
            (Part::Credentials, control) => {
                let inbound = credentials::Message::Inbound(from, control);
                self.setup.credentials.deliver(inbound);
            }
            (Part::Coordinator, control) => {
                self.tell_coordinator(tombolo_core::coordinator::Message::Domain(from, control));
            }
            (Part::Gateway, Control::Amend(topology)) => self.pass_on(topology),
            (Part::Gateway, mut control)
                if from == view.coordinator && !is_member_word(&control) =>
            {
                match &mut control {
                    Control::Commit(commit) => {
                        let committed = record::Message::Committed(commit.round, commit.hash);
                        self.setup.record.deliver(committed);
                        self.forget_contributions(|of| of <= commit.round);
                        self.remember(commit);
                    }
                    Control::Abort { round, .. } => {
                        self.forget_contributions(|of| of <= *round);
                        self.setup.residual.on_abort(*round);
                    }
                    Control::Open(open) => {
                        self.forget_contributions(|of| of < open.round);
                        self.ask_only_granted(&from, open);
                    }
                    _ => {}
                }
                self.step_gateway(cx, gateway::Message::Coordinator(control));
            }
            (Part::Gateway, Control::Vitals(vitals)) if vitals.node == from => {
                self.tell_vitals(&view.coordinator, vitals, Control::MemberVitals);
            }
            (
                Part::Gateway,
                Control::Agreed {
                    topology,
                    objection,
                },
            ) => {
                let agreed = Control::MemberAgreed {
                    node: from,
                    topology,
                    objection,
                };
                self.send_now(&view.coordinator, agreed);
            }
            (Part::Gateway, control) => {
                self.step_gateway(cx, gateway::Message::Member(from, control))
            }
            (Part::Rank, control) => self.collect(cx, from, control),
            (Part::Member, Control::Train(train)) => {
                self.step_member(cx, member::Message::Train(train))
            }
            (Part::Member, Control::Adopt(model)) => {
                self.step_member(cx, member::Message::Adopt(model))
            }
            (Part::Member, Control::Drop { round, .. }) => {
                self.step_member(cx, member::Message::Drop(round))
            }
            (Part::Member, Control::Consider(topology)) => self.consider(cx, from, topology),
            (Part::Member, Control::Rejoin) => self.step_member(cx, member::Message::GatewayUp),
            (Part::Member, Control::Leave { reason }) => {
                // The links still carry what was said last; whoever owns the node ends it.
                let _ = self.setup.left.send(Some(reason.into()));
            }
            (Part::Fabric | Part::Member | Part::View, _) => {}
        }
    }

    fn link_up(&mut self, cx: &mut Cx<Self>, peer: NodeId) {
        if peer.domain() == self.me().domain() {
            if !self.may_read(&peer) {
                return self.neighbour_up(cx, &peer);
            }
            let (verbs, to) = (self.setup.verbs.clone(), peer.clone());
            let endpoint = async move {
                let question = |reply| verbs::Message::Grant(to.clone(), reply);
                let endpoint = verbs.ask_again(ASKS_MAX, question).await;
                endpoint.unwrap_or_else(|error| Err(format!("the Verbs actor: {error}")))
            };
            later(cx, endpoint, move |node, endpoint, cx| {
                match endpoint {
                    Ok(bytes) => node.send(&peer, Control::Endpoint(bytes)),
                    Err(reason) => {
                        tracing::error!(node = %node.me(), %peer, reason, "no endpoint for a neighbour")
                    }
                }
                // Only now: who joins is asked to work at once, and work needs the endpoint.
                node.neighbour_up(cx, &peer);
            });
        } else {
            self.wan_up(cx, &peer);
        }
    }

    fn neighbour_up(&mut self, cx: &mut Cx<Self>, peer: &NodeId) {
        self.send_view(peer);
        if self.gateway.is_some() {
            self.step_gateway(cx, gateway::Message::MemberUp(peer.clone()));
        }
        if *peer == self.gateway_of_mine() {
            self.setup.presence.joined.store(true, Ordering::Relaxed);
            self.step_member(cx, member::Message::GatewayUp);
        }
    }

    fn wan_up(&mut self, cx: &mut Cx<Self>, peer: &NodeId) {
        self.watched.remove(peer);
        if *peer == self.setup.coordinator() {
            if self.is_gateway() {
                self.setup.presence.joined.store(true, Ordering::Relaxed);
            }
            self.step_gateway(cx, gateway::Message::CoordinatorUp);
        }
        self.tell_coordinator(tombolo_core::coordinator::Message::Up(peer.clone()));
    }

    fn tell_coordinator(&self, message: tombolo_core::coordinator::Message) {
        if let Some(coordinator) = self
            .setup
            .company
            .get()
            .and_then(|company| company.coordinator.as_ref())
        {
            coordinator.deliver(coordinator::Message::Machine(message));
        }
    }

    fn watch(&mut self, peer: NodeId, word: Word) {
        self.watched.insert(peer.clone(), word);
        self.tell_coordinator(tombolo_core::coordinator::Message::Watched(peer, word));
    }

    fn verdict(&mut self, cx: &mut Cx<Self>, peer: NodeId, verdict: Verdict) {
        let neighbour = peer.domain() == self.me().domain();
        if neighbour {
            let is_silent = !matches!(verdict, Verdict::Recovered { .. });
            self.setup.musters.note(&peer, is_silent);
        }
        match verdict {
            Verdict::Suspected { .. } if neighbour => {
                self.step_gateway(cx, gateway::Message::MemberSilent(peer))
            }
            Verdict::Lost if neighbour => self.step_gateway(cx, gateway::Message::MemberLost(peer)),
            Verdict::Recovered { .. } if neighbour => {
                if self.up.contains(&peer) {
                    self.step_gateway(cx, gateway::Message::MemberUp(peer));
                }
            }
            Verdict::Lost => self.watch(peer, Word::Restoring),
            Verdict::Recovered { .. } => {
                if self.up.contains(&peer) {
                    self.wan_up(cx, &peer);
                }
            }
            Verdict::Overdue if neighbour => {
                self.step_gateway(cx, gateway::Message::MemberOverdue(peer))
            }
            Verdict::Overdue => self.watch(peer, Word::Overdue),
            Verdict::Left if neighbour => {
                self.step_gateway(cx, gateway::Message::MemberLeaves(peer))
            }
            Verdict::Left => self.watch(peer, Word::Left),
            Verdict::Suspected { .. } => {}
        }
    }
}

impl Actor for Node {
    type Message = Message;
    const NAME: &'static str = "Node";

    fn started(&mut self, cx: &mut Cx<Self>) {
        self.look_up(cx);
        self.prepare(cx);
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match &message {
            Message::LinkUp(peer) => {
                let met = credentials::Message::Met(peer.clone());
                self.setup.credentials.deliver(met);
                if peer.domain() == self.me().domain() {
                    self.setup.musters.met(peer);
                }
                self.up.insert(peer.clone());
                self.reach.send_replace(self.up.clone());
                self.look_up(cx);
            }
            Message::LinkDown(peer) => {
                self.up.remove(peer);
                self.reach.send_replace(self.up.clone());
                self.look_up(cx);
            }
            _ => {}
        }
        // Who invites may be quicker than this node makes its trainer, and says it once.
        let is_invitation = matches!(message, Message::Inbound(_, Control::Muster(_)));
        if self.member.is_none() && !is_invitation {
            // A node without a trainer takes no part; why was reported.
            return;
        }
        match message {
            Message::Inbound(from, control) => self.inbound(cx, from, control),
            Message::LinkUp(peer) => self.link_up(cx, peer),
            Message::LinkDown(peer) => {
                if peer.domain() == self.me().domain() {
                    self.step_gateway(cx, gateway::Message::MemberSilent(peer));
                }
            }
            Message::Verdict(peer, verdict) => self.verdict(cx, peer, verdict),
            Message::Leave => self.leave(cx),
            Message::Vitals(vitals) => {
                self.tell_vitals(&self.gateway_of_mine(), vitals, Control::Vitals);
            }
            Message::Over(peer, reason) => {
                let leads = [self.setup.coordinator(), self.gateway_of_mine()].contains(&peer);
                if leads && self.setup.left.borrow().is_none() {
                    self.give_up(cx, reason);
                }
            }
            Message::CoordinatorStarted => {
                for (node, word) in self.watched.clone() {
                    self.tell_coordinator(tombolo_core::coordinator::Message::Watched(node, word));
                }
                let mine = self.me().clone();
                let wan = self.up.iter().filter(|peer| peer.domain() != mine.domain());
                for node in wan.chain([&mine]) {
                    self.tell_coordinator(tombolo_core::coordinator::Message::Up(node.clone()));
                }
            }
        }
    }
}

/// Whether a message comes from a member rather than from the coordinator, where one node is both.
fn is_member_word(control: &Control) -> bool {
    matches!(
        control,
        Control::Join(_)
            | Control::Exported(_)
            | Control::Failed { .. }
            | Control::Measured(_)
            | Control::Folded(_)
            | Control::Departing
            | Control::Diverged(_)
            | Control::Vitals(_)
            | Control::Agreed { .. }
            | Control::Holds { .. }
    )
}
