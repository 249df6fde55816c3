//! The federation's coordinator: performs what [`tombolo_core::coordinator::Coordinator`] decides.

mod compute;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::aggregate;
use crate::checkpoint::{self, CheckpointError, Loaded, State};
use crate::env::{Work, work};
use crate::link::{self, Incoming, Shelf, Wire};
use crate::node;
use crate::shell::{ASKS_MAX, AbortOnDrop, Actor, AskError, Cx, Handle, Reply, Stage, later};
use crate::slab::{Pool, Slab, SlabMut};
use compute::{Bench, Computed, compute, lock, norm, start};
use tombolo_core::coordinator::{self as machine, Effect, FoldError};
use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::fold::{self, ByteFold};
use tombolo_core::ids::{DomainId, NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome as Step};
use tombolo_core::membership::{Membership, NotLifted};
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::time::Micros;
use tombolo_core::trainer::Trainer;
use tombolo_core::view::View;
use tombolo_core::wire::{CHUNK_ELEMENTS, Contribution, Control, Object};

/// How soon a fold is begun again after a connection broke: about as long as it takes to dial anew.
const FOLD_AGAIN: Duration = Duration::from_millis(100);

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// What the machine takes: from gateways, from its own work.
    Machine(machine::Message),
    /// A user lifts the cool-down of a node; the answer says how much of it was left.
    Readmit(NodeId, Reply<Result<Duration, NotLifted>>),
    /// The result of the fold that this life of the actor started: the mean, or why there is none.
    Folded(u64, Round, u32, Result<Box<SlabMut>, FoldError>),
}

/// What outlives the actor, so that a life goes on where the one before it ended.
#[derive(Debug, Default)]
pub struct Durable {
    lives: u64,
    /// The last round whose record was reported; none before the first life has loaded.
    reported: Option<Round>,
    traffic: (u64, u64),
}

/// Makes the trainer with which the coordinator initializes and evaluates.
pub type TrainerFactory = Arc<dyn Fn(&NodeId) -> Result<Box<dyn Trainer>, String> + Send + Sync>;

/// What the coordinator needs.
#[derive(Clone)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
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
    fn durable(&self) -> std::sync::MutexGuard<'_, Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What status shows.
#[derive(Debug, Default)]
pub struct Board {
    /// The open round.
    pub progress: Option<Progress>,
    /// Where every node stands; none before the coordinator has begun.
    pub membership: Option<Membership>,
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
    wake: u64,
    model: Option<(Round, Slab)>,
    mean: Option<(Round, SlabMut)>,
    bench: Option<Arc<Mutex<Bench>>>,
    /// Waits for the machine's word whether it is committed.
    computed: Option<Computed>,
    fold: Option<AbortOnDrop<()>>,
    tally: (u64, u64, u64),
    /// Waits for the answer of the step under way.
    asked: Option<Reply<Result<Duration, NotLifted>>>,
}

impl Coordinator {
    /// A coordinator that first loads what was committed.
    pub fn new(setup: Setup, own: Handle<Message>) -> Self {
        let machine =
            machine::Coordinator::new(setup.stage.plan.as_ref().clone(), setup.layout.clone());
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
            wake: 0,
            model: None,
            mean: None,
            bench: None,
            computed: None,
            fold: None,
            tally: (0, 0, 0),
            asked: None,
        }
    }

    fn step(&mut self, cx: &mut Cx<Self>, message: Option<machine::Message>) {
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
            self.wake += 1;
            let (wake, env) = (self.wake, self.setup.stage.env.clone());
            let span = at.since(env.now()).max(Duration::from_millis(1));
            later(cx, env.sleep(span), move |coordinator, (), cx| {
                // Only the newest wish counts: the machine names its earliest at every step.
                if coordinator.wake == wake {
                    coordinator.step(cx, None);
                }
            });
        }
        self.publish();
    }

    fn publish(&self) {
        let board = self.setup.board.lock();
        let mut board = board.unwrap_or_else(PoisonError::into_inner);
        let progress = self.machine.progress();
        board.progress = progress.map(|(round, reports, asked, deadline)| Progress {
            round,
            reports,
            asked,
            deadline,
        });
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
                let gateway = self.gateway(&domain);
                let link = gateway.and_then(|gateway| self.setup.links.get(&gateway));
                if let Some(link) = link {
                    // If it cannot be taken, the gateway fetches.
                    let _ = link.post(link::Message::Offer(Object::Step(round)));
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
            Effect::Finish(finished) => {
                self.fold = None;
                self.setup.stage.report(Event::Finished(finished));
            }
        }
    }

    fn write_view(&self, cx: &mut Cx<Self>, view: View) {
        let (checkpoint, epoch) = (self.setup.checkpoint.clone(), view.epoch);
        let stored = async move {
            let question = |reply| checkpoint::Message::View(view.clone(), reply);
            written(checkpoint.ask_again(ASKS_MAX, question).await)
        };
        later(cx, stored, move |coordinator, stored, cx| {
            coordinator.step(cx, Some(machine::Message::Viewed(epoch, stored)));
        });
    }

    fn note(&self, cx: &mut Cx<Self>, contribution: Contribution) {
        let (round, domain, attempt) = (
            contribution.round,
            contribution.domain.clone(),
            contribution.attempt,
        );
        let checkpoint = self.setup.checkpoint.clone();
        let noted = async move {
            let question = |reply| checkpoint::Message::Note(contribution.clone(), reply);
            let answer = checkpoint.ask_again(ASKS_MAX, question).await;
            let answer = answer.map_err(|error| format!("the checkpoint actor: {error}"))?;
            answer.map_err(|error| error.to_string())
        };
        later(cx, noted, move |coordinator, result, cx| {
            coordinator.step(
                cx,
                Some(machine::Message::Noted(round, domain, attempt, result)),
            );
        });
    }

    /// Folds in a plain task: it reads from the network chunk by chunk and yields in between.
    fn fold(&mut self, round: Round, start: u32, contributions: Vec<Contribution>) {
        let mut sources = Vec::new();
        for contribution in contributions {
            let gateway = self.gateway(&contribution.domain);
            let link = gateway
                .as_ref()
                .and_then(|gateway| self.setup.links.get(gateway))
                .cloned();
            sources.push((contribution, link));
        }
        let (setup, own, life) = (self.setup.clone(), self.own.clone(), self.life);
        let task = tokio::task::spawn_local(async move {
            let result = fold_patiently(&setup, &sources).await;
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
            step,
            next,
            weight_norm,
            ..
        } = computed;
        self.complete(&mut record);
        record.weight_norm = weight_norm;
        let mut tally = self.tally;
        match record.state {
            RoundState::Committed => tally.0 += 1,
            _ => tally.1 += 1,
        }
        let state = Arc::new(State {
            record: record.clone(),
            tally,
            model: next.clone(),
            outer: lock(&bench).outer.clone(),
        });
        let (checkpoint, layout) = (self.setup.checkpoint.clone(), self.setup.layout.clone());
        let stored = async move {
            let question =
                |reply| checkpoint::Message::Commit(layout.clone(), state.clone(), reply);
            written(checkpoint.ask_again(ASKS_MAX, question).await)
        };
        later(cx, stored, move |coordinator, stored, cx| {
            let round = record.round;
            if stored.is_ok() {
                lock(&bench).accept();
                let shelf = &coordinator.setup.shelf;
                shelf.put(Object::Step(round), step.bytes());
                shelf.put(Object::Model(round), next.bytes());
                if let Some((stale, _)) = coordinator.model.replace((round, next)) {
                    shelf.remove(Object::Step(stale));
                    shelf.remove(Object::Model(stale));
                }
                coordinator.tally = tally;
                coordinator.report(record);
            }
            coordinator.step(cx, Some(machine::Message::Committed(round, stored)));
        });
    }

    /// Writes down that a round was aborted, and only then says so.
    fn record(&mut self, cx: &mut Cx<Self>, mut record: RoundRecord) {
        self.complete(&mut record);
        self.tally.2 += 1;
        let (checkpoint, tally, aborted) =
            (self.setup.checkpoint.clone(), self.tally, record.clone());
        let recorded = async move {
            let question = |reply| checkpoint::Message::Abort(aborted.clone(), tally, reply);
            written(checkpoint.ask_again(ASKS_MAX, question).await)
        };
        later(cx, recorded, |coordinator, recorded, cx| {
            let round = record.round;
            if recorded.is_ok() {
                coordinator.report(record);
            }
            coordinator.step(cx, Some(machine::Message::Recorded(round, recorded)));
        });
    }

    fn report(&self, record: RoundRecord) {
        self.setup.durable().reported = Some(record.round);
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
        let loaded = async move {
            let question = |reply| checkpoint::Message::Load(layout.clone(), reply);
            let loaded = checkpoint.ask_again(ASKS_MAX, question).await;
            let loaded = loaded.map_err(|error| format!("the checkpoint actor: {error}"))?;
            let loaded = loaded.map_err(|error| error.to_string())?;
            let view = checkpoint.ask_again(ASKS_MAX, checkpoint::Message::LastView);
            let view = view
                .await
                .map_err(|error| format!("the checkpoint actor: {error}"))?;
            Ok((loaded, view.map_err(|error| error.to_string())?))
        };
        later(cx, loaded, |coordinator, loaded, cx| match loaded {
            Ok((loaded, view)) => {
                coordinator.catch_up(loaded.as_ref());
                coordinator.prepare(cx, loaded, view);
            }
            Err(reason) => coordinator.fail(reason),
        });
    }

    /// A round that the life before this one recorded and did not live to report is reported now.
    fn catch_up(&self, loaded: Option<&Loaded>) {
        let last = loaded.map(|loaded| &loaded.last.record);
        let round = last.map_or(0, |record| record.round);
        let before = self.setup.durable().reported.replace(round);
        if let Some(record) = last.filter(|_| before.is_some_and(|before| before < round)) {
            self.setup.stage.report(Event::Round(record.clone()));
        }
    }

    fn prepare(&mut self, cx: &mut Cx<Self>, loaded: Option<Loaded>, view: Option<View>) {
        let setup = self.setup.clone();
        let env = setup.stage.env.clone();
        let bytes = Work::Bytes(setup.layout.len() as u64 * 4);
        later(
            cx,
            work(env.as_ref(), bytes, move || start(&setup, loaded)),
            |coordinator, ready, cx| {
                let ready = ready.unwrap_or_else(|panicked| Err(panicked.to_string()));
                let (bench, model, mut committed) = match ready {
                    Ok(ready) => ready,
                    Err(reason) => return coordinator.fail(reason),
                };
                committed.view = view;
                coordinator.tally = committed.tally;
                coordinator
                    .setup
                    .shelf
                    .put(Object::Model(committed.round), model.bytes());
                coordinator.bench = Some(Arc::new(Mutex::new(bench)));
                coordinator.model = Some((committed.round, model));
                coordinator.step(cx, Some(machine::Message::Start(committed)));
                let started = node::Message::CoordinatorStarted;
                coordinator.setup.node.deliver(started);
            },
        );
    }

    fn fail(&self, reason: String) {
        self.setup
            .stage
            .report(Event::Finished(tombolo_core::event::Finished {
                rounds: 0,
                committed: 0,
                degraded: 0,
                aborted: 0,
                accuracy: 0.0,
                loss: 0.0,
                model_hash: Hash::default(),
                reason,
                wall_s: 0.0,
            }));
    }
}

impl Actor for Coordinator {
    type Message = Message;
    const NAME: &'static str = "Coordinator";

    fn started(&mut self, cx: &mut Cx<Self>) {
        self.begin(cx);
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Machine(message) => self.step(cx, Some(message)),
            Message::Readmit(node, reply) => {
                self.asked = Some(reply);
                self.step(cx, Some(machine::Message::Readmit(node)));
            }
            Message::Folded(life, ..) if life != self.life => {}
            Message::Folded(_, round, start, result) => {
                let result = result.map(|mean| self.mean = Some((round, *mean)));
                self.step(cx, Some(machine::Message::Folded(round, start, result)));
            }
        }
    }
}

/// What the checkpoint actor said of a record.
fn written(answer: Result<Result<(), CheckpointError>, AskError>) -> Result<(), String> {
    let answer = answer.map_err(|error| format!("the checkpoint actor: {error}"))?;
    answer.map_err(|error| error.to_string())
}

/// Where a contribution's bytes come from.
enum Source {
    /// This node's own domain: they are here.
    Here(Bytes),
    /// Another domain's gateway.
    There(Incoming),
}

/// A contribution that could not be folded.
enum Trouble {
    /// Its bytes did not come: they may, if asked for again.
    Missing(FoldError),
    /// They came and are not what was announced, or cannot be used.
    Wrong(FoldError),
}

/// Folds, and if a connection breaks on the way begins again until [`machine`] would give up: an acknowledged contribution is not dropped
/// for a link that is back in a moment.
async fn fold_patiently(
    setup: &Setup,
    domains: &[(Contribution, Option<Handle<link::Message>>)],
) -> Result<SlabMut, FoldError> {
    let env = &setup.stage.env;
    let until = env.now() + setup.stage.plan.round.close_limit / 3;
    loop {
        match fold_all(setup, domains).await {
            Ok(mean) => return Ok(mean),
            Err(Trouble::Wrong(error)) => return Err(error),
            Err(Trouble::Missing(error)) if env.now() >= until => return Err(error),
            Err(Trouble::Missing(error)) => {
                tracing::debug!(node = %setup.stage.node, ?error, "the fold begins again");
                env.sleep(FOLD_AGAIN).await;
            }
        }
    }
}

/// The left fold over domains by name, chunk by chunk, each chunk verified before it is folded.
async fn fold_all(
    setup: &Setup,
    domains: &[(Contribution, Option<Handle<link::Message>>)],
) -> Result<SlabMut, Trouble> {
    let stall = setup.stage.plan.round.close_limit / 3;
    let mut sources = Vec::new();
    let elements = setup.layout.len();
    for (contribution, link) in domains {
        let object = Object::Contribution(contribution.round, contribution.attempt);
        let domain_error = |reason| FoldError::Domain(contribution.domain.clone(), reason);
        let blame = |reason: String| Trouble::Missing(domain_error(reason));
        let source = match link {
            None => Source::Here(
                setup
                    .shelf
                    .find(object)
                    .ok_or_else(|| blame("its own gateway has lost it".into()))?,
            ),
            Some(link) => {
                let fetch = link.ask(|reply| link::Message::Fetch(object, reply));
                let fetched = within(setup, stall, fetch).await.map_err(&blame)?;
                let incoming = fetched
                    .map_err(|error| blame(error.to_string()))?
                    .map_err(|error| blame(error.to_string()))?;
                if incoming.len != elements as u64 * 4 {
                    let reason = format!("{} bytes, expected {}", incoming.len, elements * 4);
                    return Err(Trouble::Wrong(domain_error(reason)));
                }
                Source::There(incoming)
            }
        };
        sources.push(source);
    }
    let mut sum = setup.pool.take(elements);
    for (index, chunk) in sum.chunks_mut(CHUNK_ELEMENTS).enumerate() {
        for (position, ((contribution, _), source)) in domains.iter().zip(&mut sources).enumerate()
        {
            let domain_error = |reason| FoldError::Domain(contribution.domain.clone(), reason);
            let blame = |reason: String| Trouble::Wrong(domain_error(reason));
            let late = |reason: String| Trouble::Missing(domain_error(reason));
            let power =
                fold::power(contribution.exponent).map_err(|error| blame(error.to_string()))?;
            let pieces = match source {
                Source::Here(bytes) => vec![bytes.split_to(chunk.len() * 4)],
                Source::There(incoming) => {
                    let read = read_exactly(&mut incoming.stream, chunk.len() * 4);
                    within(setup, stall, read)
                        .await
                        .map_err(&late)?
                        .map_err(&late)?
                }
            };
            let mut hasher = blake3::Hasher::new();
            pieces.iter().for_each(|piece| {
                hasher.update(piece);
            });
            if contribution.chunks[index] != Hash(*hasher.finalize().as_bytes()) {
                return Err(blame(format!("chunk {index} is not the announced one")));
            }
            let mut term = if position == 0 {
                ByteFold::first(power)
            } else {
                ByteFold::next(power)
            };
            for piece in &pieces {
                term.push(chunk, piece)
                    .map_err(|error| blame(error.to_string()))?;
            }
            term.finish(chunk)
                .map_err(|error| blame(error.to_string()))?;
        }
        tokio::task::yield_now().await;
    }
    let total = fold::total(domains.iter().map(|(contribution, _)| contribution.weight));
    let total = total.map_err(|error| Trouble::Wrong(FoldError::Result(error.to_string())))?;
    fold::divide(&mut sum, total);
    Ok(sum)
}

/// Reads so many bytes, in the pieces in which they came.
async fn read_exactly(
    stream: &mut quinn::RecvStream,
    mut len: usize,
) -> Result<Vec<Bytes>, String> {
    let mut pieces = Vec::new();
    while len > 0 {
        let chunk = stream
            .read_chunk(len, true)
            .await
            .map_err(|error| error.to_string())?;
        let chunk = chunk.ok_or_else(|| format!("the stream ended {len} bytes too early"))?;
        len -= chunk.bytes.len();
        pieces.push(chunk.bytes);
    }
    Ok(pieces)
}

async fn within<T>(
    setup: &Setup,
    limit: Duration,
    future: impl Future<Output = T>,
) -> Result<T, String> {
    tokio::select! {
        biased;
        output = future => Ok(output),
        () = setup.stage.env.sleep(limit) => Err(format!("no progress for {limit:?}")),
    }
}
