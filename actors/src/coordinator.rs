//! The federation's coordinator: performs what [`tombolo_core::coordinator::Coordinator`] decides.

mod compute;
mod each;
mod notes;
mod promotion;
mod sums;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::aggregate;
use crate::checkpoint::{self, Found, Loaded, State, Term};
use crate::env::{Work, work};
use crate::link::{self, Held, Holder, Shelf, Wire};
use crate::node;
use crate::record;
use crate::shell::{ASKS_MAX, AbortOnDrop, Actor, Alarm, Cx, Handle, Reply, Stage, later};
use crate::slab::{Pool, Slab, SlabMut};
use compute::{Bench, Computed, compute, lock, norm, start};
use tombolo_core::coordinator::{self as machine, Effect, FoldError, Order, OrderAnswer, Paused};
use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::ids::{DomainId, Epoch, NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome as Step};
use tombolo_core::membership::{Membership, NotLifted};
use tombolo_core::outline::Outline;
use tombolo_core::record::Leaf;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::text::clip;
use tombolo_core::time::Micros;
use tombolo_core::trainer::Trainer;
use tombolo_core::view::View;
use tombolo_core::wire::{Contribution, Control, Object};

/// A node that is the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    /// From which membership view on, or the view of now.
    pub epoch: Epoch,
    /// It was so before, and nothing is changed.
    pub already: bool,
}

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// What the machine takes: from gateways, from its own work.
    Machine(machine::Message),
    /// A user lifts the cool-down of a node; the answer says how much of it was left.
    Readmit(NodeId, Reply<Result<Duration, NotLifted>>),
    /// A user asks something of the run.
    Order(Order, Reply<OrderAnswer>),
    /// A user makes this node the coordinator; the answer is the epoch in which it is.
    Promote(Reply<Result<Promoted, String>>),
    /// Somebody else is, by a view that this node goes by.
    Superseded(View),
    /// The result of the fold that this life of the actor started: the mean, or why there is none.
    Folded(u64, Round, u32, Result<Box<SlabMut>, FoldError>),
}

/// What outlives the actor, so that a life goes on where the one before it ended.
#[derive(Debug, Default)]
pub struct Durable {
    lives: u64,
    /// Whether this node coordinates, once that is known.
    acts: Option<bool>,
    /// Who does, as far as this node knows; the topology's choice at first.
    known: Option<NodeId>,
    /// The run that it was promoted in.
    run: Option<Hash>,
    /// The last round whose record was reported; none before the first life has loaded, unless it is known.
    reported: Option<Round>,
    traffic: (u64, u64),
}

impl Durable {
    /// Of a process that knows of which round the one before it has told last.
    pub fn new(told: Option<Round>) -> Self {
        Durable {
            reported: told,
            ..Durable::default()
        }
    }
}

/// Makes the trainer with which the coordinator initializes and evaluates.
pub type TrainerFactory = Arc<dyn Fn(&NodeId) -> Result<Box<dyn Trainer>, String> + Send + Sync>;

/// What the coordinator needs.
#[derive(Clone)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// The run.
    pub run: Hash,
    /// Names and shapes of the model.
    pub layout: Layout,
    /// Makes a trainer.
    pub trainer: TrainerFactory,
    /// What gateways may fetch; also holds this node's own domain's contribution.
    pub shelf: Shelf,
    /// Memory.
    pub pool: Pool,
    /// This node.
    pub node: Handle<node::Message>,
    /// The rule.
    pub aggregate: Handle<aggregate::Message>,
    /// The state on disk.
    pub checkpoint: Handle<checkpoint::Message>,
    /// In which what it writes down is.
    pub term: Term,
    /// This node's copy of the record.
    pub record: Handle<record::Message>,
    /// Links to the gateways of other domains.
    pub links: BTreeMap<NodeId, Handle<link::Message>>,
    /// Their traffic.
    pub wires: BTreeMap<NodeId, Arc<Wire>>,
    /// For status.
    pub board: Arc<Mutex<Board>>,
    /// Outlives this actor.
    pub durable: Arc<Mutex<Durable>>,
}

impl Setup {
    fn board(&self) -> std::sync::MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn durable(&self) -> std::sync::MutexGuard<'_, Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What status shows.
#[derive(Debug, Default)]
pub struct Board {
    /// Whether this node coordinates, as far as it knows.
    pub acts: bool,
    /// The open round.
    pub progress: Option<Progress>,
    /// Where every node stands; none before the coordinator has begun.
    pub membership: Option<Membership>,
    /// Since when the run is paused, and by whom.
    pub paused: Option<Paused>,
}

/// How far the open round is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Its number.
    pub round: Round,
    /// Nodes that have reported.
    pub reports: usize,
    /// Nodes that were asked.
    pub asked: usize,
    /// When it stops accepting.
    pub deadline: Micros,
}

/// See the module.
pub struct Coordinator {
    setup: Setup,
    own: Handle<Message>,
    machine: machine::Coordinator,
    life: u64,
    alarm: Alarm,
    model: Option<(Round, Slab)>,
    mean: Option<(Round, SlabMut)>,
    bench: Option<Arc<Mutex<Bench>>>,
    /// Waits for the machine's word whether it is committed.
    computed: Option<Computed>,
    fold: Option<AbortOnDrop<()>>,
    tally: (u64, u64, u64),
    /// Waits for the answer of the step under way.
    asked: Option<Reply<Result<Duration, NotLifted>>>,
    /// Whose orders are being carried out, by number.
    orders: BTreeMap<u64, Reply<OrderAnswer>>,
    ordered: u64,
}

impl Coordinator {
    /// A coordinator that first loads what was committed.
    pub fn new(setup: Setup, own: Handle<Message>) -> Self {
        let machine = promotion::machine(&setup);
        let life = {
            let mut durable = setup.durable();
            durable.lives += 1;
            durable.lives
        };
        Coordinator {
            setup,
            own,
            machine,
            life,
            alarm: Alarm::default(),
            model: None,
            mean: None,
            bench: None,
            computed: None,
            fold: None,
            tally: (0, 0, 0),
            asked: None,
            orders: BTreeMap::new(),
            ordered: 0,
        }
    }

    fn step(&mut self, cx: &mut Cx<Self>, message: Option<machine::Message>) {
        if !self.acts() {
            // What was begun before it stepped down.
            return;
        }
        let mut out = Step::default();
        let mut context = Context::new(self.setup.stage.env.now(), &mut out);
        match message {
            Some(message) => self.machine.handle(message, &mut context),
            None => self.machine.on_wake(&mut context),
        }
        for event in out.events {
            self.setup.stage.report(event);
        }
        for effect in out.effects {
            self.perform(cx, effect);
        }
        if let Some(at) = out.wake_at {
            let (env, life) = (self.setup.stage.env.clone(), self.life);
            let span = at.since(env.now()).max(Duration::from_millis(1));
            // Only the newest wish counts: the machine names its earliest at every step.
            let wake = move |coordinator: &mut Self, cx: &mut Cx<Self>| {
                if coordinator.life == life {
                    coordinator.step(cx, None);
                }
            };
            self.alarm.set(cx, env.sleep(span), wake);
        }
        self.publish();
    }

    fn publish(&self) {
        let mut board = self.setup.board();
        let progress = self.machine.progress();
        board.progress = progress.map(|(round, reports, asked, deadline)| Progress {
            round,
            reports,
            asked,
            deadline,
        });
        if board.paused.as_ref() != self.machine.paused() {
            board.paused = self.machine.paused().cloned();
        }
        // It seldom changes, and a large federation's is long.
        let membership = self.machine.membership();
        if self.model.is_some() && board.membership.as_ref() != Some(membership) {
            board.membership = Some(membership.clone());
        }
    }

    /// The domain's acting gateway.
    fn gateway(&self, domain: &DomainId) -> Option<NodeId> {
        self.machine.view().gateway(domain).cloned()
    }

    fn send(&self, node: NodeId, control: Control) {
        if node == self.setup.stage.node {
            self.setup
                .node
                .deliver(node::Message::Inbound(node, control));
        } else if let Some(link) = self.setup.links.get(&node) {
            link.deliver(link::Message::Send(control));
        }
    }

    fn perform(&mut self, cx: &mut Cx<Self>, effect: Effect) {
        match effect {
            Effect::Tell(domain, control) => {
                if let Some(gateway) = self.gateway(&domain) {
                    self.send(gateway, control);
                }
            }
            Effect::Send(node, control) => self.send(node, control),
            Effect::View(view) => self.write_view(cx, view),
            Effect::Offer(domain, round) => {
                if let Some(link) = self.link(&domain) {
                    // If it cannot be taken, the gateway fetches.
                    let _ = link.post(link::Message::Offer(Object::Model(round)));
                }
            }
            Effect::Weigh(round, reports) => {
                let aggregate = self.setup.aggregate.clone();
                let answer = async move {
                    let question = |reply| aggregate::Message::Weigh(round, reports.clone(), reply);
                    let answer = aggregate.ask_again(ASKS_MAX, question).await;
                    let answer = answer.map_err(|error| format!("the aggregator: {error}"))?;
                    answer.map_err(|error| error.to_string())
                };
                later(cx, answer, move |coordinator, answer, cx| {
                    coordinator.step(cx, Some(machine::Message::Weighed(round, answer)));
                });
            }
            Effect::Fix(weighing) => self.fix(cx, *weighing),
            Effect::Note(contribution) => self.note(cx, contribution),
            Effect::Fold(round, start, contributions) => self.fold(round, start, contributions),
            Effect::Compute(round) => self.compute(cx, round),
            Effect::Commit(record) => self.commit(cx, *record),
            Effect::Record(record) => {
                self.fold = None;
                self.record(cx, *record);
            }
            Effect::Lifted(answer) => {
                if let Some(reply) = self.asked.take() {
                    reply.send(answer);
                }
            }
            Effect::Hold(number, paused) => self.write_pause(cx, number, paused),
            Effect::Amend(number, amendment) => self.write_amendment(cx, number, amendment),
            Effect::Ordered(number, answer) => {
                if let Some(reply) = self.orders.remove(&number) {
                    reply.send(answer);
                }
            }
            Effect::Finish(finished) => {
                self.fold = None;
                self.setup.stage.report(Event::Finished(finished));
            }
        }
    }

    /// The link to a domain's gateway; none if that is this node.
    fn link(&self, domain: &DomainId) -> Option<Handle<link::Message>> {
        let gateway = self.gateway(domain)?;
        self.setup.links.get(&gateway).cloned()
    }

    /// Folds in a plain task: it reads from the network chunk by chunk and yields in between.
    fn fold(&mut self, round: Round, start: u32, contributions: Vec<Contribution>) {
        let with_links = contributions.into_iter().map(|contribution| {
            let link = self.link(&contribution.domain);
            (contribution, link)
        });
        let domains: Vec<sums::Domain> = with_links.collect();
        let weights = self.machine.weights().to_vec();
        let (setup, own, life) = (self.setup.clone(), self.own.clone(), self.life);
        let task = tokio::task::spawn_local(async move {
            let result = sums::fold(&setup, &domains, &weights).await;
            let message = Message::Folded(life, round, start, result.map(Box::new));
            // Fails only if the actor is gone for good, and the run with it.
            let _ = own.tell(message).await;
        });
        self.fold = Some(AbortOnDrop(task));
    }

    fn compute(&mut self, cx: &mut Cx<Self>, round: Round) {
        let mean = self.mean.take().filter(|(of, _)| *of == round);
        let (Some((_, mean)), Some(bench), Some((_, model))) =
            (mean, self.bench.clone(), self.model.clone())
        else {
            let reason = "the mean of the round is gone".to_owned();
            return self.step(cx, Some(machine::Message::Computed(round, Err(reason))));
        };
        let setup = self.setup.clone();
        let computed = async move {
            let question = |reply| aggregate::Message::Finish(mean, reply);
            let mean = setup.aggregate.ask(question).await;
            let mean = mean.map_err(|error| format!("the aggregator: {error}"))?;
            let mean = mean.map_err(|error| error.to_string())?;
            let env = setup.stage.env.clone();
            let bytes = Work::Bytes(setup.layout.len() as u64 * 16);
            let job = move || compute(&setup, &bench, mean, &model);
            let done = work(env.as_ref(), bytes, job).await;
            done.map_err(|panicked| panicked.to_string())?
        };
        later(cx, computed, move |coordinator, computed, cx| {
            let result = computed.map(|computed| coordinator.computed.insert(computed).outcome);
            coordinator.step(cx, Some(machine::Message::Computed(round, result)));
            // A commit has taken it; otherwise it came too late.
            coordinator.computed = None;
        });
    }

    fn commit(&mut self, cx: &mut Cx<Self>, mut record: RoundRecord) {
        let (Some(computed), Some(bench)) = (self.computed.take(), self.bench.clone()) else {
            let reason = "the outer step of the round is gone".to_owned();
            return self.step(
                cx,
                Some(machine::Message::Committed(record.round, Err(reason))),
            );
        };
        let Computed {
            next,
            outline,
            weight_norm,
            ..
        } = computed;
        self.complete(&mut record);
        let leaves = self.leaves(&record);
        record.weight_norm = weight_norm;
        let mut tally = self.tally;
        match record.state {
            RoundState::Committed => tally.0 += 1,
            _ => tally.1 += 1,
        }
        let state = Arc::new(State {
            record: record.clone(),
            tally,
            leaves,
            model: next.clone(),
            outer: lock(&bench).outer.clone(),
        });
        let (checkpoint, layout) = (self.setup.checkpoint.clone(), self.setup.layout.clone());
        let stored = async move {
            let question =
                |reply| checkpoint::Message::Commit(layout.clone(), state.clone(), reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        later(cx, stored, move |coordinator, stored, cx| {
            let round = record.round;
            let Some(stored) = coordinator.written(cx, stored) else {
                return;
            };
            if stored.is_ok() {
                lock(&bench).accept();
                coordinator.hold(round, next, outline);
                coordinator.tally = tally;
                coordinator.report(record);
                coordinator.tell_end(round);
            }
            coordinator.step(cx, Some(machine::Message::Committed(round, stored)));
        });
    }

    /// Holds a committed model in place of the one before, for gateways to fetch as a whole or in chunks.
    fn hold(&mut self, round: Round, model: Slab, outline: Arc<Outline>) {
        let (shelf, bytes) = (&self.setup.shelf, model.bytes());
        if let Some((stale, _)) = self.model.replace((round, model)) {
            shelf.remove(Object::Model(stale));
        }
        shelf.put(Object::Model(round), bytes.clone());
        shelf.hold(Holder::Coordinator, Held { outline, bytes });
    }

    /// Writes down that a round was aborted, and only then says so.
    fn record(&mut self, cx: &mut Cx<Self>, mut record: RoundRecord) {
        self.complete(&mut record);
        let leaves = self.leaves(&record);
        self.tally.2 += 1;
        let (checkpoint, tally, aborted) =
            (self.setup.checkpoint.clone(), self.tally, record.clone());
        let recorded = async move {
            let question =
                |reply| checkpoint::Message::Abort(aborted.clone(), tally, leaves.clone(), reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        later(cx, recorded, |coordinator, recorded, cx| {
            let round = record.round;
            let Some(recorded) = coordinator.written(cx, recorded) else {
                return;
            };
            if recorded.is_ok() {
                coordinator.report(record);
                coordinator.tell_end(round);
            }
            coordinator.step(cx, Some(machine::Message::Recorded(round, recorded)));
        });
    }

    fn leaves(&mut self, record: &RoundRecord) -> Vec<String> {
        let leaves = self.machine.leaves(record);
        leaves.iter().map(Leaf::line).collect()
    }

    /// A round has ended: its leaves go to every domain, and nobody waits for that.
    fn tell_end(&self, round: Round) {
        let gateways = self.machine.view().gateways.values().cloned().collect();
        let ended = record::Message::Ended(round, gateways);
        self.setup.record.deliver(ended);
    }

    fn report(&self, mut record: RoundRecord) {
        self.setup.durable().reported = Some(record.round);
        if let Some(version) = &mut record.version {
            // It is for the next coordinator, not for people.
            version.past = None;
        }
        self.setup.stage.report(Event::Round(record));
    }

    /// Fills in what only this node knows: traffic over the WAN since the last round, and the norm of a model that did not change.
    fn complete(&mut self, record: &mut RoundRecord) {
        let sums = self
            .setup
            .wires
            .iter()
            .filter(|(peer, _)| peer.domain() != self.setup.stage.node.domain());
        let now = sums.fold((0, 0), |sum, (_, wire)| {
            let (sent, received) = wire.traffic();
            (sum.0 + sent, sum.1 + received)
        });
        let before = std::mem::replace(&mut self.setup.durable().traffic, now);
        record.bytes_down = now.0 - before.0;
        record.bytes_up = now.1 - before.1;
        record.bytes = record.bytes_down + record.bytes_up;
        record.weight_norm = self.model.as_ref().map_or(0.0, |(_, model)| norm(model));
    }

    fn begin(&mut self, cx: &mut Cx<Self>) {
        let (checkpoint, layout) = (self.setup.checkpoint.clone(), self.setup.layout.clone());
        let run = self.setup.stage.plan.shares_store().then(|| self.run());
        let loaded = async move {
            if let Some(run) = run {
                let question = |reply| checkpoint::Message::Claim(run, reply);
                let claimed = checkpoint.ask_again(ASKS_MAX, question).await;
                if !matches!(claimed, Ok(Ok(()))) {
                    return claimed.map(|claimed| claimed.map(|()| None));
                }
            }
            let question = |reply| checkpoint::Message::Load(layout.clone(), reply);
            let loaded = checkpoint.ask_again(ASKS_MAX, question).await;
            loaded.map(|loaded| loaded.map(Some))
        };
        later(cx, loaded, |coordinator, loaded, cx| {
            match coordinator.written(cx, loaded) {
                Some(Ok(Some(found))) => {
                    coordinator.catch_up(found.committed.as_ref());
                    coordinator.read_record(cx, found);
                }
                Some(Ok(None)) | None => {}
                Some(Err(reason)) => coordinator.fail(cx, reason),
            }
        });
    }

    /// A round that the life before this one recorded and did not live to report is reported now.
    fn catch_up(&self, loaded: Option<&Loaded>) {
        let last = loaded.map(|loaded| &loaded.last.record);
        let round = last.map_or(0, |record| record.round);
        let before = self.setup.durable().reported.replace(round);
        if let Some(record) = last.filter(|_| before.is_some_and(|before| before < round)) {
            self.report(record.clone());
        }
    }

    /// Learns what the record says already. Without one the run goes on, and says so.
    fn read_record(&mut self, cx: &mut Cx<Self>, found: Found) {
        let committed = found.committed.as_ref();
        let ended = committed.map_or(0, |loaded| loaded.last.record.round);
        let (record, run) = (self.setup.record.clone(), self.run());
        let standing = async move {
            let question = |reply| record::Message::Stand(run, ended, reply);
            record.ask_again(ASKS_MAX, question).await
        };
        later(cx, standing, move |coordinator, standing, cx| {
            let standing = standing.unwrap_or_else(|error| Err(error.to_string()));
            let told = standing.map(|(told, certificates)| {
                for (node, certificate) in certificates {
                    let certified = machine::Message::Certified(node, certificate);
                    coordinator.step(cx, Some(certified));
                }
                told
            });
            let told = told.inspect_err(|reason| {
                let node = coordinator.setup.stage.node.clone();
                let reason = clip(format!("no record is kept: {reason}"));
                let by = node.clone();
                coordinator
                    .setup
                    .stage
                    .report(Event::RecordRefused { node, by, reason });
            });
            coordinator.step(cx, Some(machine::Message::Told(told.ok())));
            coordinator.prepare(cx, found);
        });
    }

    fn prepare(&mut self, cx: &mut Cx<Self>, found: Found) {
        let Found {
            committed,
            open,
            overtaken,
            view,
            paused,
        } = found;
        let mut setup = self.setup.clone();
        setup.run = self.run();
        let env = setup.stage.env.clone();
        let bytes = Work::Bytes(setup.layout.len() as u64 * 4);
        later(
            cx,
            work(env.as_ref(), bytes, move || start(&setup, committed)),
            move |coordinator, ready, cx| {
                let ready = ready.unwrap_or_else(|panicked| Err(panicked.to_string()));
                let (bench, model, outline, mut committed) = match ready {
                    Ok(ready) => ready,
                    Err(reason) => return coordinator.fail(cx, reason),
                };
                committed.view = view;
                committed.overtaken = overtaken;
                committed.paused = paused;
                coordinator.tally = committed.tally;
                coordinator.hold(committed.round, model, outline);
                coordinator.bench = Some(Arc::new(Mutex::new(bench)));
                coordinator.step(
                    cx,
                    Some(machine::Message::Start(
                        Box::new(committed),
                        open.map(Box::new),
                    )),
                );
                let started = node::Message::CoordinatorStarted;
                coordinator.setup.node.deliver(started);
            },
        );
    }

    /// There is nothing to begin from. Who comes is sent away, so that nobody waits for rounds.
    fn fail(&mut self, cx: &mut Cx<Self>, reason: String) {
        self.step(cx, Some(machine::Message::Fail(reason)));
        let started = node::Message::CoordinatorStarted;
        self.setup.node.deliver(started);
    }
}

impl Actor for Coordinator {
    type Message = Message;
    const NAME: &'static str = "Coordinator";

    fn started(&mut self, cx: &mut Cx<Self>) {
        let acts = self.setup.durable().acts;
        match acts {
            Some(true) => self.begin(cx),
            Some(false) => {}
            None => self.learn_whether_it_acts(cx),
        }
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Promote(reply) => self.promote(cx, reply),
            Message::Superseded(view) => {
                self.setup.durable().known = Some(view.coordinator.clone());
                self.step_down(&view.coordinator, view.epoch);
            }
            // Whoever asked hears that nobody answers.
            _ if !self.acts() => {}
            Message::Machine(message) => self.step(cx, Some(message)),
            Message::Readmit(node, reply) => {
                self.asked = Some(reply);
                self.step(cx, Some(machine::Message::Readmit(node)));
            }
            Message::Order(order, reply) => {
                self.ordered += 1;
                self.orders.insert(self.ordered, reply);
                let order = machine::Message::Order(self.ordered, order);
                self.step(cx, Some(order));
            }
            Message::Folded(life, ..) if life != self.life => {}
            Message::Folded(_, round, start, result) => {
                let result = result.map(|mean| self.mean = Some((round, *mean)));
                self.step(cx, Some(machine::Message::Folded(round, start, result)));
            }
        }
    }
}
