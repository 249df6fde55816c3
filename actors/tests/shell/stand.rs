//! One actor that does what messages say, in a world of one thread.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use actix::ActorContext;
use tokio::sync::Notify;

use tombolo_actors::env::{
    Bound, Class, Env, Files, LocalFuture, OffloadPanicked, SendFuture, Work,
};
use tombolo_actors::shell::{Actor, Alarm, Census, Cx, Handle, Reply, Stage, pause, supervise};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::{
    AggregatorPlan, BaseWeights, CheckpointPlan, Clip, Cooldown, Deadline, Durability,
    HeartbeatPlan, Init, ModelPlan, Order, OuterKind, OuterPlan, Partition, Plan, Quorum,
    RoundPlan, SecurityPlan, SyncEvery, TrainerKind,
};
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;

/// Runs a test on one thread; with `paused` time jumps to the next timer whenever there is nothing to do.
pub fn on_one_thread(paused: bool, test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(paused)
        .build()
        .unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}

/// What actors may use of the world here: time, chance and tasks.
pub struct OneThread {
    start: tokio::time::Instant,
    pub spawned: Mutex<Vec<Class>>,
    /// Where actors keep files that do.
    pub files: OnceLock<Arc<dyn Files>>,
    /// Sleeps that somebody still waits for.
    pub asleep: Arc<AtomicUsize>,
}

/// Counts a sleep for as long as it is waited for.
struct Asleep(Arc<AtomicUsize>);

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Env for OneThread {
    fn now(&self) -> Micros {
        Micros::default() + (tokio::time::Instant::now() - self.start)
    }

    fn sleep(&self, span: Duration) -> SendFuture<()> {
        self.asleep.fetch_add(1, Ordering::Relaxed);
        let asleep = Asleep(self.asleep.clone());
        Box::pin(async move {
            let _asleep = asleep;
            tokio::time::sleep(span).await;
        })
    }

    fn unix_time(&self) -> u64 {
        0
    }

    fn rng(&self, purpose: &str) -> Rng {
        Rng::derive(7, &[purpose.as_bytes()])
    }

    fn spawn(&self, class: Class, task: Box<dyn FnOnce() -> LocalFuture + Send>) {
        self.spawned.lock().unwrap().push(class);
        tokio::task::spawn_local(task());
    }

    fn offload(
        &self,
        _: Work,
        task: Box<dyn FnOnce() + Send>,
    ) -> SendFuture<Result<(), OffloadPanicked>> {
        task();
        Box::pin(std::future::ready(Ok(())))
    }

    fn bind(&self, _: SocketAddr) -> io::Result<Bound> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn endpoint_seed(&self) -> Option<[u8; 32]> {
        None
    }

    fn reset_key(&self) -> [u8; 64] {
        [0; 64]
    }

    fn files(&self) -> Arc<dyn Files> {
        let files = self.files.get().cloned();
        files.expect("these actors keep no files")
    }

    fn advertise(&self, _: &NodeId, _: SocketAddr) -> io::Result<()> {
        Ok(())
    }

    fn resolve(&self, _: &NodeId) -> SendFuture<io::Result<Vec<SocketAddr>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// What the actor under test takes.
pub enum Message {
    /// Write the number down.
    Note(u32),
    /// Write the number down after as much work as handling a control message takes: a few microseconds.
    Toil(u32),
    /// Answer with it.
    Echo(u32, Reply<u32>),
    /// Write the number down when that span is over, unless it is told another one before.
    Wake(Duration, u32),
    /// Take nothing more until told.
    Block(Arc<Notify>),
    /// Panic; the question stays without an answer.
    Boom(Option<Reply<u32>>),
    /// End for good.
    Stop,
}

/// Steps of [`Message::Toil`].
const TOIL: u32 = 300;

/// Does what messages say.
pub struct Puppet {
    notes: Arc<Mutex<Vec<u32>>>,
    gate: Option<Arc<Notify>>,
    env: Arc<OneThread>,
    alarm: Alarm,
}

impl Actor for Puppet {
    type Message = Message;
    const NAME: &'static str = "Puppet";

    fn started(&mut self, cx: &mut Cx<Self>) {
        if let Some(gate) = self.gate.take() {
            pause(cx, async move { gate.notified().await }, |_, (), _| {});
        }
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Note(number) => self.notes.lock().unwrap().push(number),
            Message::Toil(number) => {
                for step in 0..TOIL {
                    std::hint::black_box(step);
                }
                self.notes.lock().unwrap().push(number);
            }
            Message::Echo(number, reply) => reply.send(number),
            Message::Wake(span, number) => {
                let note = move |puppet: &mut Puppet, _: &mut Cx<Self>| {
                    puppet.notes.lock().unwrap().push(number);
                };
                self.alarm.set(cx, self.env.sleep(span), note);
            }
            Message::Block(gate) => {
                pause(cx, async move { gate.notified().await }, |_, (), _| {});
            }
            Message::Boom(_question) => panic!("boom"),
            Message::Stop => cx.stop(),
        }
    }
}

/// The actor under test and what can be seen of it.
pub struct Stand {
    pub handle: Handle<Message>,
    pub env: Arc<OneThread>,
    pub notes: Arc<Mutex<Vec<u32>>>,
    pub events: Arc<Mutex<Vec<Event>>>,
    pub census: Census,
    stage: Stage,
}

impl Stand {
    /// An actor that takes messages at once.
    pub fn open() -> Self {
        Self::build(Class::Node, None, 0)
    }

    /// An actor that takes its first message when `gate` is notified.
    pub fn closed(gate: &Arc<Notify>) -> Self {
        Self::build(Class::Node, Some(gate.clone()), 0)
    }

    /// An actor on the arbiter of `class` whose first `failures` factories panic.
    pub fn build(class: Class, gate: Option<Arc<Notify>>, failures: u32) -> Self {
        let (stage, env, events) = stage();
        let census = stage.census.clone();
        let notes = Arc::new(Mutex::new(Vec::new()));
        let (written, counted) = (notes.clone(), Arc::new(Mutex::new(0)));
        let clock = env.clone();
        let handle = supervise(&stage, class, "under test", move |_| {
            let mut count = counted.lock().unwrap_or_else(|poison| poison.into_inner());
            *count += 1;
            assert!(*count > failures, "no body for the actor yet");
            Puppet {
                notes: written.clone(),
                gate: gate.clone().filter(|_| *count == 1),
                env: clock.clone(),
                alarm: Alarm::default(),
            }
        });
        Stand {
            handle,
            env,
            notes,
            events,
            census,
            stage,
        }
    }

    /// Another actor of the same node.
    pub fn beside(&self, key: &str) -> Handle<Message> {
        let (notes, env) = (self.notes.clone(), self.env.clone());
        supervise(&self.stage, Class::Node, key, move |_| Puppet {
            notes: notes.clone(),
            gate: None,
            env: env.clone(),
            alarm: Alarm::default(),
        })
    }

    pub fn notes(&self) -> Vec<u32> {
        self.notes.lock().unwrap().clone()
    }

    /// The numbers of restarts as reported, one behind the other.
    pub fn restarts(&self) -> Vec<u32> {
        let events = self.events.lock().unwrap();
        let restarts = events.iter().filter_map(|event| match event {
            Event::ActorRestarted { restarts, .. } => Some(*restarts),
            _ => None,
        });
        restarts.collect()
    }

    /// Ends when the actor has handled everything sent before.
    pub async fn settled(&self) {
        let answer = self.handle.ask(|reply| Message::Echo(0, reply)).await;
        assert_eq!(answer, Ok(0));
    }
}

/// Where an actor acts here, and what it reports.
pub fn stage() -> (Stage, Arc<OneThread>, Arc<Mutex<Vec<Event>>>) {
    let env = Arc::new(OneThread {
        start: tokio::time::Instant::now(),
        spawned: Mutex::default(),
        files: OnceLock::new(),
        asleep: Arc::default(),
    });
    let plan = plan();
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let stage = Stage {
        node: plan.coordinator.clone(),
        env: env.clone(),
        plan: Arc::new(plan),
        events: Arc::new(move |event| sink.lock().unwrap().push(event)),
        census: Census::default(),
        denials: Default::default(),
    };
    (stage, env, events)
}

/// Lets every other task run as far as it can.
pub async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

/// A federation of nobody: an actor here asks its plan for nothing.
fn plan() -> Plan {
    Plan {
        name: "test".into(),
        rounds: 1,
        sync_every: SyncEvery::Steps(1),
        balance_steps: false,
        coordinator: "hq/gate".parse().unwrap(),
        standby: Vec::new(),
        seed: 7,
        round: RoundPlan {
            quorum: Quorum::All,
            deadline: Deadline::Adaptive,
            grace: Duration::ZERO,
            failed_limit: 1,
            close_limit: Duration::ZERO,
            patience: Duration::from_secs(900),
            durability: Durability::Resend,
            asynchronous: None,
            codec_down: Default::default(),
            absent: Default::default(),
        },
        model: ModelPlan {
            trainer: TrainerKind::DigitsSoftmax,
            hidden: 0,
            learning_rate: 0.1,
            batch: 1,
            init: Init::Zeros,
            order: Order::Sequential,
            partition: Partition::Iid,
            ..ModelPlan::default()
        },
        aggregator: AggregatorPlan {
            kind: "fedavg".into(),
            weights: BaseWeights::Equal,
            clip: Clip::None,
            loss_limit: 1.0,
            norm_limit: 1.0,
            penalty: 1.0,
            relative: false,
            ..AggregatorPlan::default()
        },
        outer: OuterPlan {
            optimizer: OuterKind::Sgd,
            learning_rate: 1.0,
            momentum: 0.0,
            ..OuterPlan::default()
        },
        domains: Vec::new(),
        links: Vec::new(),
        route: Default::default(),
        heartbeat: HeartbeatPlan {
            every: Duration::from_millis(500),
            phi: 8.0,
            retry: Vec::new(),
            restore_limit: Duration::from_secs(60),
            cooldown: Cooldown {
                first: Duration::from_secs(10),
                cap: Duration::from_secs(600),
            },
        },
        security: SecurityPlan::default(),
        checkpoint: CheckpointPlan {
            folder: "state".into(),
            store: None,
            every: 1,
            snapshot: Duration::from_secs(10),
            retain_contributions: 0,
        },
        policy: Default::default(),
    }
}
