//! The federation's coordinator: performs what [`tombolo_core::coordinator::Coordinator`] decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::aggregate;
use crate::checkpoint::{self, Loaded, State};
use crate::env::Work;
use crate::link::{self, Incoming, Shelf, Wire};
use crate::node;
use crate::shell::{AbortOnDrop, Actor, Cx, Handle, Stage, later};
use crate::slab::{Pool, Slab, SlabMut};
use tombolo_core::coordinator::{self as machine, Committed, Effect, FoldError, Outcome};
use tombolo_core::event::{Event, RoundRecord};
use tombolo_core::fold::{self, ByteFold};
use tombolo_core::ids::{DomainId, NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome as Step};
use tombolo_core::outer::{self, OuterOptimizer};
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::trainer::Trainer;
use tombolo_core::wire::{CHUNK_ELEMENTS, Contribution, Control, Object};

/// How often a question to an actor that failed over it is asked again.
const ASKS_MAX: usize = 4;

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// What the machine takes: from gateways, from its own work.
    Machine(machine::Message),
    /// The result of a fold: the mean.
    Mean(Round, u32, Box<SlabMut>),
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
    /// Progress for status.
    pub progress: Arc<std::sync::Mutex<String>>,
}

/// See the module.
pub struct Coordinator {
    setup: Setup,
    own: Handle<Message>,
    machine: machine::Coordinator,
    wake: u64,
    model: Option<Slab>,
    mean: Option<(Round, u32, SlabMut)>,
    bench: Option<Bench>,
    fold: Option<AbortOnDrop<()>>,
    traffic: (u64, u64),
    tally: (u64, u64, u64),
}

/// What the commit's blocking work uses; lent to it.
struct Bench {
    trainer: Box<dyn Trainer>,
    outer: Box<dyn OuterOptimizer>,
}

/// What a commit computed before it was written.
struct Computed {
    bench: Bench,
    step: Slab,
    next: Slab,
    outcome: Outcome,
    weight_norm: f64,
}

impl Coordinator {
    /// A coordinator that first loads what was committed.
    pub fn new(setup: Setup, own: Handle<Message>) -> Self {
        let machine =
            machine::Coordinator::new(setup.stage.plan.as_ref().clone(), setup.layout.clone());
        Coordinator {
            setup,
            own,
            machine,
            wake: 0,
            model: None,
            mean: None,
            bench: None,
            fold: None,
            traffic: (0, 0),
            tally: (0, 0, 0),
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
        let progress =
            self.machine
                .progress()
                .map_or_else(String::new, |(round, have, asked, deadline)| {
                    let left = deadline.since(self.setup.stage.env.now());
                    format!(
                        "round {round}: {have} of {asked} reports, {:.0} s left",
                        left.as_secs_f64()
                    )
                });
        *self
            .setup
            .progress
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = progress;
    }

    fn gateway(&self, domain: &DomainId) -> Option<NodeId> {
        self.setup
            .stage
            .plan
            .domain(domain)
            .map(|domain| domain.gateway().clone())
    }

    fn tell(&self, domain: &DomainId, control: Control) {
        let Some(gateway) = self.gateway(domain) else {
            return;
        };
        if gateway == self.setup.stage.node {
            let _ = self
                .setup
                .node
                .post(node::Message::Inbound(gateway, control));
        } else if let Some(link) = self.setup.links.get(&gateway) {
            let _ = link.post(link::Message::Send(control));
        }
    }

    fn perform(&mut self, cx: &mut Cx<Self>, effect: Effect) {
        match effect {
            Effect::Tell(domain, control) => self.tell(&domain, control),
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
                    for _ in 0..ASKS_MAX {
                        let reports = reports.clone();
                        if let Ok(answer) = aggregate
                            .ask(|reply| aggregate::Message::Weigh(round, reports, reply))
                            .await
                        {
                            return answer.map_err(|error| error.to_string());
                        }
                    }
                    Err("the aggregator failed each time it was asked".to_owned())
                };
                later(cx, answer, move |coordinator, answer, cx| {
                    coordinator.step(cx, Some(machine::Message::Weighed(round, answer)));
                });
            }
            Effect::Note(contribution) => self.note(cx, contribution),
            Effect::Fold(round, start, contributions) => self.fold(round, start, contributions),
            Effect::Commit(record) => self.commit(cx, *record),
            Effect::Record(mut record) => {
                self.complete(&mut record);
                self.tally.2 += 1;
                let (checkpoint, tally, written) =
                    (self.setup.checkpoint.clone(), self.tally, record.clone());
                self.setup.stage.report(Event::Round(*record));
                later(
                    cx,
                    async move {
                        checkpoint
                            .ask(|reply| checkpoint::Message::Abort(*written, tally, reply))
                            .await
                    },
                    |_, result, _| {
                        if let Ok(Err(error)) = result {
                            tracing::error!(%error, "an aborted round could not be recorded");
                        }
                    },
                );
            }
            Effect::Finish(finished) => self.setup.stage.report(Event::Finished(finished)),
        }
    }

    fn note(&self, cx: &mut Cx<Self>, contribution: Contribution) {
        let (round, domain, attempt) = (
            contribution.round,
            contribution.domain.clone(),
            contribution.attempt,
        );
        let checkpoint = self.setup.checkpoint.clone();
        let noted = async move {
            for _ in 0..ASKS_MAX {
                let contribution = contribution.clone();
                if let Ok(answer) = checkpoint
                    .ask(|reply| checkpoint::Message::Note(contribution, reply))
                    .await
                {
                    return answer.map_err(|error| error.to_string());
                }
            }
            Err("the checkpoint actor failed each time it was asked".to_owned())
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
        let (setup, own) = (self.setup.clone(), self.own.clone());
        let task = tokio::task::spawn_local(async move {
            let (mean, result) = match fold_all(&setup, sources).await {
                Ok(mean) => (Some(mean), Ok(())),
                Err(error) => (None, Err(error)),
            };
            if let Some(mean) = mean {
                let _ = own.tell(Message::Mean(round, start, Box::new(mean))).await;
            } else {
                let _ = own
                    .tell(Message::Machine(machine::Message::Folded(
                        round, start, result,
                    )))
                    .await;
            }
        });
        self.fold = Some(AbortOnDrop(task));
    }

    fn commit(&mut self, cx: &mut Cx<Self>, mut record: RoundRecord) {
        let round = record.round;
        let (Some((_, _, mean)), Some(bench), Some(model)) =
            (self.mean.take(), self.bench.take(), self.model.clone())
        else {
            let reason = "the mean of the round is gone".to_owned();
            return self.step(cx, Some(machine::Message::Committed(round, Err(reason))));
        };
        let setup = self.setup.clone();
        let mut tally = self.tally;
        match record.state {
            tombolo_core::event::RoundState::Committed => tally.0 += 1,
            _ => tally.1 += 1,
        }
        let work = async move {
            let question = |reply| aggregate::Message::Finish(mean, reply);
            let mean = setup
                .aggregate
                .ask(question)
                .await
                .map_err(|error| format!("the aggregator: {error}"))?;
            let mean = mean.map_err(|error| error.to_string())?;
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let pool = setup.pool.clone();
            let task = move || {
                let _ = sender.send(compute(bench, mean, &model, &pool));
            };
            let done = setup
                .stage
                .env
                .offload(Work::Bytes(setup.layout.len() as u64 * 16), Box::new(task))
                .await;
            done.map_err(|panicked| panicked.to_string())?;
            receiver
                .await
                .map_err(|_| "the outer step was given up".to_owned())?
        };
        later(cx, work, move |coordinator, computed, cx| {
            let computed = match computed {
                Ok(computed) => computed,
                Err(reason) => {
                    return coordinator
                        .step(cx, Some(machine::Message::Committed(round, Err(reason))));
                }
            };
            coordinator.complete(&mut record);
            record.accuracy = computed.outcome.accuracy;
            record.loss = computed.outcome.loss;
            record.weight_norm = computed.weight_norm;
            record.model_hash = computed.outcome.hash;
            coordinator.store(cx, record, tally, computed);
        });
    }

    fn store(
        &mut self,
        cx: &mut Cx<Self>,
        record: RoundRecord,
        tally: (u64, u64, u64),
        computed: Computed,
    ) {
        let Computed {
            bench,
            step,
            next,
            outcome,
            ..
        } = computed;
        let outer = bench
            .outer
            .state()
            .into_iter()
            .map(|(name, elements)| (name.to_owned(), elements.to_vec()))
            .collect();
        let state = Box::new(State {
            record: record.clone(),
            tally,
            model: next.clone(),
            outer,
        });
        let (checkpoint, layout) = (self.setup.checkpoint.clone(), self.setup.layout.clone());
        let stored = async move {
            checkpoint
                .ask(|reply| checkpoint::Message::Commit(layout, state, reply))
                .await
        };
        later(cx, stored, move |coordinator, stored, cx| {
            let round = record.round;
            coordinator.bench = Some(bench);
            let result = stored
                .map_err(|error| error.to_string())
                .and_then(|stored| stored.map_err(|error| error.to_string()));
            if let Err(reason) = result {
                return coordinator.step(cx, Some(machine::Message::Committed(round, Err(reason))));
            }
            let shelf = &coordinator.setup.shelf;
            for stale in round.saturating_sub(3)..round {
                shelf.remove(Object::Step(stale));
                shelf.remove(Object::Model(stale));
            }
            shelf.put(Object::Step(round), step.bytes());
            shelf.put(Object::Model(round), next.bytes());
            coordinator.model = Some(next);
            coordinator.tally = tally;
            coordinator.setup.stage.report(Event::Round(record));
            coordinator.step(cx, Some(machine::Message::Committed(round, Ok(outcome))));
        });
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
        record.bytes_down = now.0 - self.traffic.0;
        record.bytes_up = now.1 - self.traffic.1;
        record.bytes = record.bytes_down + record.bytes_up;
        self.traffic = now;
        record.weight_norm = self.model.as_ref().map_or(0.0, |model| norm(model));
    }

    fn begin(&mut self, cx: &mut Cx<Self>) {
        let (checkpoint, layout) = (self.setup.checkpoint.clone(), self.setup.layout.clone());
        let loaded = async move {
            for _ in 0..ASKS_MAX {
                let layout = layout.clone();
                if let Ok(loaded) = checkpoint
                    .ask(|reply| checkpoint::Message::Load(layout, reply))
                    .await
                {
                    return loaded.map_err(|error| error.to_string());
                }
            }
            Err("the checkpoint actor failed each time it was asked".to_owned())
        };
        later(cx, loaded, |coordinator, loaded, cx| match loaded {
            Ok(loaded) => coordinator.prepare(cx, loaded),
            Err(reason) => coordinator.fail(reason),
        });
    }

    fn prepare(&mut self, cx: &mut Cx<Self>, loaded: Option<Loaded>) {
        let setup = self.setup.clone();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = move || {
            let _ = sender.send(start(&setup, loaded));
        };
        let done = self.setup.stage.env.offload(
            Work::Bytes(self.setup.layout.len() as u64 * 4),
            Box::new(task),
        );
        later(
            cx,
            async move { (done.await, receiver.await) },
            |coordinator, (done, ready), cx| {
                let ready = ready.unwrap_or_else(|_| {
                    Err(done
                        .err()
                        .map_or_else(String::new, |panicked| panicked.to_string()))
                });
                let (bench, model, committed) = match ready {
                    Ok(ready) => ready,
                    Err(reason) => return coordinator.fail(reason),
                };
                coordinator.tally = committed.tally;
                coordinator
                    .setup
                    .shelf
                    .put(Object::Model(committed.round), model.bytes());
                coordinator.bench = Some(bench);
                coordinator.model = Some(model);
                coordinator.step(cx, Some(machine::Message::Start(committed)));
                let _ = coordinator
                    .setup
                    .node
                    .post(node::Message::CoordinatorStarted);
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
            Message::Mean(round, start, mean) => {
                self.mean = Some((round, start, *mean));
                self.step(cx, Some(machine::Message::Folded(round, start, Ok(()))));
            }
        }
    }
}

/// Loads or makes the model and the optimizer. Blocks.
fn start(setup: &Setup, loaded: Option<Loaded>) -> Result<(Bench, Slab, Committed), String> {
    let plan = &setup.stage.plan;
    let mut trainer = (setup.trainer)(&setup.stage.node)?;
    let mut outer = outer::build(&plan.outer, setup.layout.len());
    let mut committed = Committed {
        ended: 0,
        round: 0,
        hash: Hash::default(),
        tally: (0, 0, 0),
        accuracy: 0.0,
        loss: 0.0,
    };
    let mut stored = None;
    if let Some(loaded) = loaded {
        let state: Vec<(&str, &[f32])> = loaded
            .outer
            .iter()
            .map(|(name, elements)| (name.as_str(), elements.as_slice()))
            .collect();
        if loaded.model.is_some() {
            outer.restore(&state).map_err(|error| error.to_string())?;
        }
        committed.ended = loaded.last.record.round;
        committed.tally = loaded.last.tally;
        committed.round = loaded.round;
        committed.accuracy = loaded.accuracy;
        committed.loss = loaded.loss;
        stored = loaded.model;
    }
    let model = match stored {
        Some(model) => model,
        None => {
            let mut initial = setup.pool.take(setup.layout.len());
            trainer
                .initialize(plan.seed, &mut initial)
                .map_err(|error| error.to_string())?;
            initial.freeze()
        }
    };
    committed.hash = Hash::of(&model);
    Ok((Bench { trainer, outer }, model, committed))
}

/// The outer step on the mean, and everything that is said of its result. Blocks.
fn compute(
    mut bench: Bench,
    mut mean: SlabMut,
    model: &Slab,
    pool: &Pool,
) -> Result<Computed, String> {
    bench
        .outer
        .step(0, &mut mean)
        .map_err(|error| error.to_string())?;
    let mut next = pool.take(model.len());
    for ((next, parameter), step) in next.iter_mut().zip(model.iter()).zip(mean.iter()) {
        *next = parameter + step;
    }
    if !next.iter().all(|parameter| parameter.is_finite()) {
        return Err(
            "the outer step would make the model not finite; lower the outer learning rate".into(),
        );
    }
    let evaluation = bench
        .trainer
        .evaluate(&next)
        .map_err(|error| format!("evaluation: {error}"))?;
    let outcome = Outcome {
        hash: Hash::of(&next),
        accuracy: evaluation.accuracy,
        loss: evaluation.loss,
    };
    let weight_norm = norm(&next);
    Ok(Computed {
        bench,
        step: mean.freeze(),
        next: next.freeze(),
        outcome,
        weight_norm,
    })
}

fn norm(model: &[f32]) -> f64 {
    model
        .iter()
        .map(|parameter| f64::from(*parameter) * f64::from(*parameter))
        .sum::<f64>()
        .sqrt()
}

/// Where a contribution's bytes come from.
enum Source {
    /// This node's own domain: they are here.
    Here(Bytes),
    /// Another domain's gateway.
    There(Incoming),
}

/// The left fold over domains by name, chunk by chunk, each chunk verified before it is folded.
async fn fold_all(
    setup: &Setup,
    domains: Vec<(Contribution, Option<Handle<link::Message>>)>,
) -> Result<SlabMut, FoldError> {
    let stall = setup.stage.plan.round.close_limit / 3;
    let mut sources = Vec::new();
    let elements = setup.layout.len();
    for (contribution, link) in &domains {
        let object = Object::Contribution(contribution.round, contribution.attempt);
        let blame = |reason: String| FoldError::Domain(contribution.domain.clone(), reason);
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
                    return Err(blame(format!(
                        "{} bytes, expected {}",
                        incoming.len,
                        elements * 4
                    )));
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
            let blame = |reason: String| FoldError::Domain(contribution.domain.clone(), reason);
            let power =
                fold::power(contribution.exponent).map_err(|error| blame(error.to_string()))?;
            let pieces = match source {
                Source::Here(bytes) => vec![bytes.split_to(chunk.len() * 4)],
                Source::There(incoming) => {
                    let read = read_exactly(&mut incoming.stream, chunk.len() * 4);
                    within(setup, stall, read)
                        .await
                        .map_err(&blame)?
                        .map_err(&blame)?
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
    let total = total.map_err(|error| FoldError::Result(error.to_string()))?;
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
