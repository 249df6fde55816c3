//! A node: takes every message that comes in, lets its machines decide, and performs what they decide.
//!
//! Each node is a [`Member`] of its domain; the domain's gateway also runs the [`Gateway`]. A message's sender is the TLS peer of the link
//! it came on, and [`authorize`] says whether that peer may send it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{SetOnce, watch};

use crate::collective::{self, read_model, region_ref, write_header};
use crate::coordinator::{self, TrainerFactory};
use crate::env::{OffloadPanicked, Work, work};
use crate::link::{self, Incoming, Shelf};
use crate::shell::{Actor, Cx, Handle, Stage, later, pause};
use crate::slab::copy;
use crate::verbs::{self, Fabric, Readers};
use tombolo_core::authorize::{Part, authorize};
use tombolo_core::event::Event;
use tombolo_core::fold::ByteFold;
use tombolo_core::gateway::{self, Gateway};
use tombolo_core::heartbeat::Verdict;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::member::{self, Member};
use tombolo_core::outer;
use tombolo_core::tensor::{Hash, Layout, bytes_of};
use tombolo_core::trainer::{Task, Trained, Trainer};
use tombolo_core::wire::{
    Commit, Control, Measured, ModelRef, Object, REGION_HEADER_BYTES, RegionHeader, RegionRef,
    Train,
};
use tombolo_fabric::Region;

/// How often a question to an actor that failed over it is asked again.
const ASKS_MAX: usize = 4;
/// A transfer of a model or step without progress for this many heartbeat periods is given up.
const STALL_PERIODS: u32 = 20;

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
}

/// What a node needs.
#[derive(Clone)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// Names and shapes of the model.
    pub layout: Layout,
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
    /// Becomes the reason once the run is over for this node.
    pub left: watch::Sender<Option<String>>,
    /// Filled once they exist: its links and, on one node, the coordinator.
    pub company: Arc<SetOnce<Company>>,
}

/// Whom a node talks to.
#[derive(Clone)]
pub struct Company {
    /// By peer.
    pub links: BTreeMap<NodeId, Handle<link::Message>>,
    /// On the coordinator's node.
    pub coordinator: Option<Handle<coordinator::Message>>,
}

/// See the module.
pub struct Node {
    setup: Setup,
    own: Handle<Message>,
    gateway_of_mine: NodeId,
    member: Option<Member>,
    gateway: Option<Gateway>,
    up: BTreeSet<NodeId>,
    bench: Option<Bench>,
    shop: Option<Shop>,
    obtain: Option<(Round, Option<Hash>, Hash)>,
}

/// What training and reading use; lent to the blocking work.
struct Bench {
    trainer: Box<dyn Trainer>,
    /// READ straight into; empty after a READ that failed for good.
    model: Region,
    local: Vec<f32>,
    export: Option<Region>,
    readers: Readers,
}

/// The gateway's two model regions: one that the domain may READ, one for the next model.
#[derive(Default)]
struct Shop {
    shown: Option<(Hash, Region)>,
    next: Option<Region>,
}

impl Node {
    /// A node that first makes its trainer and the initial model.
    pub fn new(setup: Setup, own: Handle<Message>) -> Self {
        let plan = &setup.stage.plan;
        let gateway_of_mine = plan
            .domain(&setup.stage.node.domain())
            .expect("the plan holds this node")
            .gateway()
            .clone();
        Node {
            setup,
            own,
            gateway_of_mine,
            member: None,
            gateway: None,
            up: BTreeSet::new(),
            bench: None,
            shop: Some(Shop::default()),
            obtain: None,
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

    fn is_gateway(&self) -> bool {
        self.gateway_of_mine == *self.me()
    }

    /// Starts to send an object before it is asked for; its stream waits at the other side within the stream's window.
    fn offer(&self, peer: &NodeId, object: Object) {
        let company = self.setup.company.get();
        if let Some(link) = company.and_then(|company| company.links.get(peer)) {
            // If it cannot be taken, the peer fetches.
            let _ = link.post(link::Message::Offer(object));
        }
    }

    // ---- life ----

    /// Makes the bench; until it is there messages wait in the queue.
    fn prepare(&mut self, cx: &mut Cx<Self>) {
        let setup = self.setup.clone();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = move || {
            let _ = sender.send(bench(&setup));
        };
        let done = self.setup.stage.env.offload(
            Work::Bytes(self.setup.layout.len() as u64 * 4),
            Box::new(task),
        );
        let company = self.setup.company.clone();
        pause(
            cx,
            async move {
                company.wait().await;
                (done.await, receiver.await)
            },
            |node, (done, bench), cx| {
                let bench = bench.unwrap_or_else(|_| {
                    Err(done
                        .err()
                        .map_or_else(String::new, |panicked| panicked.to_string()))
                });
                match bench {
                    Ok((bench, shown)) => node.begin(cx, bench, shown),
                    Err(reason) => {
                        let (node_id, round) = (node.me().clone(), 0);
                        node.setup.stage.report(Event::TrainingFailed {
                            node: node_id,
                            round,
                            reason,
                        });
                    }
                }
            },
        );
    }

    fn begin(&mut self, cx: &mut Cx<Self>, bench: Bench, initial: Initial) {
        let layout = self.setup.layout.clone();
        let member = Member::new(self.me().clone(), layout.clone(), 0, initial.hash);
        self.member = Some(member);
        self.bench = Some(bench);
        if let Some(region) = initial.shown {
            let domain = self
                .setup
                .stage
                .plan
                .domain(&self.me().domain())
                .expect("the plan holds this node");
            let ranks = domain.nodes.iter().map(|node| node.id.clone()).collect();
            self.gateway = Some(Gateway::new(domain.id.clone(), ranks, layout));
            // The initial model needs no transfer: everybody can make it.
            let model = ModelRef {
                round: 0,
                hash: initial.hash,
                region: region_ref(self.me(), &region),
            };
            self.shop = Some(Shop {
                shown: Some((initial.hash, region)),
                next: None,
            });
            self.step_gateway(cx, gateway::Message::Obtained(0, Ok(model)));
        }
        // A node that was rebuilt hears of links that are up already, and makes itself known to a coordinator beside it.
        if let Some(company) = self.setup.company.get() {
            for link in company.links.values() {
                link.deliver(link::Message::Announce);
            }
        }
        if self.is_gateway() {
            self.step_gateway(cx, gateway::Message::MemberUp(self.me().clone()));
            if self.setup.stage.plan.coordinator == *self.me() {
                // No link tells this domain and its coordinator apart: after a restart it says by itself where it stands.
                self.step_gateway(cx, gateway::Message::CoordinatorUp);
            }
        }
    }

    // ---- machines ----

    fn step_member(&mut self, cx: &mut Cx<Self>, message: member::Message) {
        for effect in self.ask_member(message) {
            match effect {
                member::Effect::Tell(control) => self.send(&self.gateway_of_mine.clone(), control),
                member::Effect::Adopt(model) => self.adopt(cx, model),
                member::Effect::Train(train) => self.train(cx, train),
            }
        }
    }

    fn ask_member(&mut self, message: member::Message) -> VecDeque<member::Effect> {
        let Some(member) = &mut self.member else {
            return VecDeque::new();
        };
        let mut out = Outcome::default();
        member.handle(
            message,
            &mut Context::new(self.setup.stage.env.now(), &mut out),
        );
        out.events
            .into_iter()
            .for_each(|event| self.setup.stage.report(event));
        out.effects
    }

    fn step_gateway(&mut self, cx: &mut Cx<Self>, message: gateway::Message) {
        let Some(gateway) = &mut self.gateway else {
            return;
        };
        let mut out = Outcome::default();
        gateway.handle(
            message,
            &mut Context::new(self.setup.stage.env.now(), &mut out),
        );
        out.events
            .into_iter()
            .for_each(|event| self.setup.stage.report(event));
        for effect in out.effects {
            self.perform_gateway(cx, effect);
        }
    }

    fn perform_gateway(&mut self, cx: &mut Cx<Self>, effect: gateway::Effect) {
        match effect {
            gateway::Effect::Tell(control) => {
                let coordinator = self.setup.stage.plan.coordinator.clone();
                if let Control::Contribute(contribution) = &control {
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
                self.obtain_next(cx);
            }
            gateway::Effect::Gather(gather) => {
                let (round, attempt) = (gather.round, gather.attempt);
                let (collective, own) = (self.setup.collective.clone(), self.me().clone());
                let gathered = async move {
                    let question = |reply| collective::Message::Gather(gather.clone(), reply);
                    let gathered = collective.ask_again(ASKS_MAX, question).await;
                    gathered.unwrap_or_else(|error| Err((own, format!("its collective: {error}"))))
                };
                later(cx, gathered, move |node, gathered, cx| {
                    // What the coordinator may still fetch stays until the new sum takes its place.
                    let offered = node.gateway.as_ref().and_then(Gateway::offered);
                    let result = gathered.map(|(sum, chunks)| {
                        node.setup.shelf.keep(|object| match object {
                            Object::Contribution(round, old) => offered == Some((round, old)),
                            _ => true,
                        });
                        node.setup
                            .shelf
                            .put(Object::Contribution(round, attempt), sum.bytes());
                        chunks
                    });
                    node.step_gateway(cx, gateway::Message::Gathered(round, attempt, result));
                    if node.gateway.as_ref().and_then(Gateway::offered) != Some((round, attempt)) {
                        // The round went on without it.
                        let object = Object::Contribution(round, attempt);
                        node.setup.shelf.remove(object);
                    }
                });
            }
            gateway::Effect::Finished(_) => {}
        }
    }

    // ---- a member's work ----

    fn adopt(&mut self, cx: &mut Cx<Self>, model: ModelRef) {
        let Some(mut bench) = self.bench.take() else {
            return self.step_member(
                cx,
                member::Message::Adopted(model, Err("the node is busy".into())),
            );
        };
        let (wanted, fabric) = (model.clone(), self.setup.fabric.clone());
        let elements = self.setup.layout.len();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = move || {
            let result = bench.adopt(&wanted, &fabric, elements);
            let _ = sender.send((bench, result));
        };
        let done = self.setup.stage.env.offload(
            Work::Bytes(self.setup.layout.len() as u64 * 4),
            Box::new(task),
        );
        later(
            cx,
            async move { (done.await, receiver.await) },
            move |node, (done, result), cx| match result {
                Ok((bench, result)) => {
                    node.bench = Some(bench);
                    node.step_member(cx, member::Message::Adopted(model, result));
                }
                Err(_) => {
                    node.rebuild(cx, member::Message::Adopted(model, Err(panicked(done))));
                }
            },
        );
    }

    fn train(&mut self, cx: &mut Cx<Self>, train: Train) {
        let round = train.round;
        let Some(bench) = self.bench.take() else {
            return self.step_member(
                cx,
                member::Message::Trained(round, Err("the node is busy".into())),
            );
        };
        let task = Task {
            node: self.me().clone(),
            round,
            seed: train.seed,
            sync_every: train.sync_every,
        };
        let (fabric, epoch) = (self.setup.fabric.clone(), train.epoch);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let work = move || {
            let mut bench = bench;
            let result = bench.train(&task, epoch, &fabric);
            let _ = sender.send((bench, result));
        };
        let done = self.setup.stage.env.offload(Work::Train, Box::new(work));
        later(
            cx,
            async move { (done.await, receiver.await) },
            move |node, (done, result), cx| match result {
                Ok((bench, result)) => {
                    node.bench = Some(bench);
                    node.step_member(cx, member::Message::Trained(round, result));
                }
                Err(_) => {
                    node.rebuild(cx, member::Message::Trained(round, Err(panicked(done))));
                }
            },
        );
    }

    /// The trainer panicked and took the bench with it: a new one is made, and the machine starts over from the initial model.
    fn rebuild(&mut self, cx: &mut Cx<Self>, message: member::Message) {
        let setup = self.setup.clone();
        let env = setup.stage.env.clone();
        let bytes = Work::Bytes(setup.layout.len() as u64 * 4);
        let made = work(env.as_ref(), bytes, move || bench(&setup));
        later(cx, made, move |node, made, cx| {
            // The old machine's last word. What it would begin now is for a model that is gone; the gateway asks the new one for it.
            for effect in node.ask_member(message) {
                if let member::Effect::Tell(control) = effect {
                    node.send(&node.gateway_of_mine.clone(), control);
                }
            }
            match made.unwrap_or_else(|panicked| Err(panicked.to_string())) {
                Ok((bench, initial)) => {
                    let layout = node.setup.layout.clone();
                    node.bench = Some(bench);
                    node.member = Some(Member::new(node.me().clone(), layout, 0, initial.hash));
                    node.step_member(cx, member::Message::GatewayUp);
                }
                Err(reason) => {
                    let reason = format!("its trainer could not be made again: {reason}");
                    node.setup.stage.report(Event::TrainingFailed {
                        node: node.me().clone(),
                        round: 0,
                        reason,
                    });
                }
            }
        });
    }

    // ---- a gateway's model ----

    fn obtain_next(&mut self, cx: &mut Cx<Self>) {
        let Some(mut shop) = self.shop.take() else {
            return;
        };
        let Some((round, base, hash)) = self.obtain.take() else {
            self.shop = Some(shop);
            return;
        };
        let setup = self.setup.clone();
        let work = async move {
            let result = obtain(&setup, &mut shop, round, base, hash).await;
            (shop, result)
        };
        later(cx, work, move |node, (shop, result), cx| {
            node.shop = Some(shop);
            node.step_gateway(cx, gateway::Message::Obtained(round, result));
            node.obtain_next(cx);
        });
    }

    // ---- messages ----

    fn inbound(&mut self, cx: &mut Cx<Self>, from: NodeId, control: Control) {
        let part = match authorize(&self.setup.stage.plan, self.me(), &from, &control) {
            Ok(part) => part,
            Err(refusal) => return tracing::warn!(%refusal, "message refused"),
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
            (Part::Coordinator, control) => {
                let domain = from.domain();
                self.tell_coordinator(tombolo_core::coordinator::Message::Domain(domain, control));
            }
            (Part::Gateway, control)
                if from == self.setup.stage.plan.coordinator && !is_member_word(&control) =>
            {
                match &control {
                    Control::Commit(Commit { round, .. }) | Control::Abort { round, .. } => {
                        self.forget_contributions(|of| of <= *round);
                    }
                    Control::Open(open) => self.forget_contributions(|of| of < open.round),
                    _ => {}
                }
                self.step_gateway(cx, gateway::Message::Coordinator(control));
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
            (Part::Member, Control::Rejoin) => self.step_member(cx, member::Message::GatewayUp),
            (Part::Member, Control::Leave { reason }) => {
                // The links still carry what was said last; whoever owns the node ends it.
                let _ = self.setup.left.send(Some(reason));
            }
            (Part::Fabric | Part::Member, _) => {}
        }
    }

    fn forget_contributions(&self, is_over: impl Fn(Round) -> bool) {
        self.setup.shelf.keep(|object| match object {
            Object::Contribution(round, _) => !is_over(round),
            _ => true,
        });
    }

    fn collect(&mut self, cx: &mut Cx<Self>, from: NodeId, control: Control) {
        let collective = self.setup.collective.clone();
        match control {
            Control::Measure(measure) => {
                let (round, node, key) = (measure.round, measure.node.clone(), measure.region.key);
                let answer = async move {
                    let question = |reply| collective::Message::Measure(measure.clone(), reply);
                    let measured = collective.ask_again(ASKS_MAX, question).await;
                    measured.unwrap_or_else(|error| Measured {
                        round,
                        node,
                        key,
                        result: Err(format!("the collective: {error}")),
                    })
                };
                later(cx, answer, move |node, measured, _| {
                    node.send(&from, Control::Measured(measured))
                });
            }
            Control::Fold(fold) => {
                let own = self.me().clone();
                let answer = async move {
                    let question = |reply| collective::Message::Fold(fold.clone(), reply);
                    let folded = collective.ask_again(ASKS_MAX, question).await;
                    folded.unwrap_or_else(|error| tombolo_core::wire::Folded {
                        round: fold.round,
                        attempt: fold.attempt,
                        slices: fold.slices,
                        result: Err((own, format!("its collective: {error}"))),
                    })
                };
                later(cx, answer, move |node, folded, _| {
                    node.send(&from, Control::Folded(folded))
                });
            }
            _ => {}
        }
    }

    fn link_up(&mut self, cx: &mut Cx<Self>, peer: NodeId) {
        self.up.insert(peer.clone());
        if peer.domain() == self.me().domain() {
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
                if node.gateway.is_some() {
                    node.step_gateway(cx, gateway::Message::MemberUp(peer.clone()));
                }
                if peer == node.gateway_of_mine {
                    node.step_member(cx, member::Message::GatewayUp);
                }
            });
        } else {
            self.wan_up(cx, &peer);
        }
    }

    fn wan_up(&mut self, cx: &mut Cx<Self>, peer: &NodeId) {
        if *peer == self.setup.stage.plan.coordinator {
            self.step_gateway(cx, gateway::Message::CoordinatorUp);
        }
        self.tell_coordinator(tombolo_core::coordinator::Message::DomainUp(peer.domain()));
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

    fn verdict(&mut self, cx: &mut Cx<Self>, peer: NodeId, verdict: Verdict) {
        let neighbour = peer.domain() == self.me().domain();
        match verdict {
            Verdict::Suspected { .. } if neighbour => {
                self.step_gateway(cx, gateway::Message::MemberSilent(peer))
            }
            Verdict::Lost if neighbour => self.step_gateway(cx, gateway::Message::MemberLost(peer)),
            Verdict::Recovered if neighbour => {
                if self.up.contains(&peer) {
                    self.step_gateway(cx, gateway::Message::MemberUp(peer));
                }
            }
            Verdict::Lost => self.tell_coordinator(tombolo_core::coordinator::Message::DomainLost(
                peer.domain(),
            )),
            Verdict::Recovered => {
                if self.up.contains(&peer) {
                    self.wan_up(cx, &peer);
                }
            }
            Verdict::Suspected { .. } => {}
        }
    }
}

impl Actor for Node {
    type Message = Message;
    const NAME: &'static str = "Node";

    fn started(&mut self, cx: &mut Cx<Self>) {
        self.prepare(cx);
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        if self.member.is_none() {
            // A node without a trainer takes no part; why was reported.
            return;
        }
        match message {
            Message::Inbound(from, control) => self.inbound(cx, from, control),
            Message::LinkUp(peer) => self.link_up(cx, peer),
            Message::LinkDown(peer) => {
                self.up.remove(&peer);
                if peer.domain() == self.me().domain() {
                    self.step_gateway(cx, gateway::Message::MemberSilent(peer));
                }
            }
            Message::Verdict(peer, verdict) => self.verdict(cx, peer, verdict),
            Message::CoordinatorStarted => {
                let mut domains: BTreeSet<_> = self.up.iter().map(NodeId::domain).collect();
                domains.insert(self.me().domain());
                for domain in domains {
                    self.tell_coordinator(tombolo_core::coordinator::Message::DomainUp(domain));
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
            | Control::Holds { .. }
    )
}

/// What the blocking work said when it panicked.
fn panicked(done: Result<(), OffloadPanicked>) -> String {
    done.err()
        .map_or_else(|| "the work was given up".into(), |error| error.to_string())
}

/// The model that every node can make.
struct Initial {
    hash: Hash,
    /// On a gateway: a region of it that the domain may READ.
    shown: Option<Region>,
}

/// Makes the trainer and the initial model. Blocks.
fn bench(setup: &Setup) -> Result<(Bench, Initial), String> {
    let mut trainer = (setup.trainer)(&setup.stage.node)?;
    if let Some(difference) = setup.layout.difference(&trainer.layout()) {
        return Err(format!("the trainer changed its layout: {difference}"));
    }
    let elements = setup.layout.len();
    let mut local = vec![0.0; elements];
    trainer
        .initialize(setup.stage.plan.seed, &mut local)
        .map_err(|error| error.to_string())?;
    let mut model = setup.fabric.allocate(elements * 4)?;
    copy(&local, &mut model.f32s_mut());
    let me = &setup.stage.node;
    let domain = setup.stage.plan.domain(&me.domain());
    let shows = domain.is_some_and(|domain| domain.gateway() == me);
    let shown = shows.then(|| -> Result<Region, String> {
        let mut region = setup.fabric.allocate(REGION_HEADER_BYTES + elements * 4)?;
        write_header(
            &mut region,
            RegionHeader {
                epoch: 0,
                round: 0,
                attempt: 0,
            },
        );
        copy(&local, &mut region.f32s_mut()[REGION_HEADER_BYTES / 4..]);
        Ok(region)
    });
    let initial = Initial {
        hash: Hash::of(&local),
        shown: shown.transpose()?,
    };
    let readers = setup.fabric.readers();
    let bench = Bench {
        trainer,
        model,
        local,
        export: None,
        readers,
    };
    Ok((bench, initial))
}

impl Bench {
    /// READs a model and holds it. Blocks.
    fn adopt(&mut self, model: &ModelRef, fabric: &Fabric, elements: usize) -> Result<(), String> {
        if self.model.is_empty() {
            self.model = fabric.allocate(elements * 4)?;
        }
        read_model(&mut self.readers, model, &mut self.model, elements)
    }

    /// Trains from the model and leaves local minus global in the region that the domain may READ. Blocks.
    fn train(
        &mut self,
        task: &Task,
        epoch: u64,
        fabric: &Fabric,
    ) -> Result<(Trained, RegionRef), String> {
        if self.model.is_empty() {
            return Err("no model is held".into());
        }
        copy(self.model.f32s(), &mut self.local);
        let trained = self
            .trainer
            .train(task, &mut self.local)
            .map_err(|error| error.to_string())?;
        let mut region = match self.export.take() {
            Some(region) => region,
            None => fabric.allocate(REGION_HEADER_BYTES + self.local.len() * 4)?,
        };
        write_header(
            &mut region,
            RegionHeader {
                epoch,
                round: task.round,
                attempt: 0,
            },
        );
        {
            let mut elements = region.f32s_mut();
            let update = &mut elements[REGION_HEADER_BYTES / 4..];
            let global = self.model.f32s();
            for ((update, local), global) in update.iter_mut().zip(&self.local).zip(global) {
                *update = local - global;
            }
        }
        let reference = region_ref(&task.node, &region);
        self.export = Some(region);
        Ok((trained, reference))
    }
}

/// Puts the model of `round` into the gateway's next region and shows it to the domain.
async fn obtain(
    setup: &Setup,
    shop: &mut Shop,
    round: Round,
    base: Option<Hash>,
    hash: Hash,
) -> Result<ModelRef, String> {
    let elements = setup.layout.len();
    let mut next = match shop.next.take() {
        Some(region) => region,
        None => {
            let bytes = REGION_HEADER_BYTES + elements * 4;
            let question = |reply| verbs::Message::Allocate(bytes, reply);
            let region = setup.verbs.ask_again(ASKS_MAX, question).await;
            region.map_err(|error| format!("the Verbs actor: {error}"))??
        }
    };
    let shown = shop
        .shown
        .as_ref()
        .filter(|(shown, _)| Some(*shown) == base)
        .map(|(_, region)| region);
    let result = fill(setup, &mut next, shown, round, hash).await;
    if let Err(reason) = result {
        shop.next = Some(next);
        return Err(reason);
    }
    let region = region_ref(&setup.stage.node, &next);
    shop.next = shop.shown.replace((hash, next)).map(|(_, region)| region);
    Ok(ModelRef {
        round,
        hash,
        region,
    })
}

/// Writes the model into a region and verifies its hash: each received byte is passed over once, then the model before is added to it while
/// it lies in a core's cache.
async fn fill(
    setup: &Setup,
    next: &mut Region,
    base: Option<&Region>,
    round: Round,
    hash: Hash,
) -> Result<(), String> {
    let elements = setup.layout.len();
    let object = if base.is_some() {
        Object::Step(round)
    } else {
        Object::Model(round)
    };
    let mut incoming = fetch(setup, object).await?;
    if incoming.len() != elements as u64 * 4 {
        return Err(format!(
            "{object:?} has {} bytes, expected {}",
            incoming.len(),
            elements * 4
        ));
    }
    let mut hasher = blake3::Hasher::new();
    {
        let mut target = next.f32s_mut();
        let target = &mut target[REGION_HEADER_BYTES / 4..];
        let base = base.map(|region| &region.f32s()[REGION_HEADER_BYTES / 4..]);
        let block = crate::verbs::READ_BYTES / 4;
        for (index, target) in target.chunks_mut(block).enumerate() {
            let mut step = ByteFold::first(1.0);
            let mut left = target.len() * 4;
            while left > 0 {
                let piece = incoming.next(setup, left).await?;
                left -= piece.len();
                step.push(target, &piece)
                    .map_err(|error| error.to_string())?;
            }
            step.finish(target).map_err(|error| error.to_string())?;
            if let Some(base) = base {
                let begin = index * block;
                outer::adopt(target, &base[begin..begin + target.len()]);
            }
            hasher.update(bytes_of(target));
            tokio::task::yield_now().await;
        }
    }
    let found = Hash(*hasher.finalize().as_bytes());
    if found != hash {
        return Err(format!(
            "the model of round {round} has hash {found:?}, expected {hash:?}"
        ));
    }
    write_header(
        next,
        RegionHeader {
            epoch: 0,
            round,
            attempt: 0,
        },
    );
    Ok(())
}

/// An object from the coordinator, which may be this node.
enum Stream {
    Here(bytes::Bytes),
    There(Incoming),
}

impl Stream {
    fn len(&self) -> u64 {
        match self {
            Stream::Here(bytes) => bytes.len() as u64,
            Stream::There(incoming) => incoming.len,
        }
    }

    /// The next piece, at most `most` bytes.
    async fn next(&mut self, setup: &Setup, most: usize) -> Result<bytes::Bytes, String> {
        match self {
            Stream::Here(bytes) => Ok(bytes.split_to(most.min(bytes.len()))),
            Stream::There(incoming) => {
                let stall: Duration = setup.stage.plan.heartbeat.every * STALL_PERIODS;
                tokio::select! {
                    biased;
                    chunk = incoming.stream.read_chunk(most, true) => {
                        let chunk = chunk.map_err(|error| error.to_string())?;
                        chunk.map(|chunk| chunk.bytes).ok_or_else(|| "the stream ended too early".to_owned())
                    }
                    () = setup.stage.env.sleep(stall) => Err(format!("no progress for {stall:?}")),
                }
            }
        }
    }
}

async fn fetch(setup: &Setup, object: Object) -> Result<Stream, String> {
    let coordinator = &setup.stage.plan.coordinator;
    if *coordinator == setup.stage.node {
        let found = setup.shelf.find(object);
        return found
            .map(Stream::Here)
            .ok_or_else(|| format!("{object:?} is not on this node's shelf"));
    }
    let link = setup
        .company
        .get()
        .and_then(|company| company.links.get(coordinator));
    let link = link.ok_or_else(|| format!("there is no link to {coordinator}"))?;
    let stall = setup.stage.plan.heartbeat.every * STALL_PERIODS;
    let incoming = tokio::select! {
        biased;
        incoming = link.ask(|reply| link::Message::Fetch(object, reply)) => {
            incoming.map_err(|error| error.to_string())?
        }
        () = setup.stage.env.sleep(stall) => {
            return Err(format!("{object:?} did not begin to come within {stall:?}"));
        }
    };
    incoming
        .map(Stream::There)
        .map_err(|error| error.to_string())
}
