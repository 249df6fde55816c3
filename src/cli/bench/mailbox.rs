//! `tombolo bench mailbox`: what it costs to tell an actor something, and to ask it, beside actix alone and a bare channel; and what more
//! arbiters bring where requests are work.
//!
//! Tells and questions stay on one thread, as those of one arbiter do. A tell is measured from the first to the last one handled.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use clap::Args;
use serde_json::{Map, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::child::folder;
use super::measure::{self, Measurement, cpu_seconds, now, show, within};
use crate::cli::{Common, Exit};
use tombolo::actors::env::Class;
use tombolo::actors::shell::{self, Cx, Handle, Reply, Stage, supervise};
use tombolo::topology;
use tombolo::world::{World, WorldOptions};

/// Of one actor that does nothing but count.
const TOPOLOGY: &str =
    "[federation]\nname = \"bench\"\n[[domain]]\nname = \"hq\"\nnodes = [\"a\"]\n";

const TELLS_MAX: u64 = 100_000_000;
const REPEAT_MAX: usize = 1000;

/// As many as an actor's queue here holds.
const ROOM: usize = shell::QUEUE;

/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(600);

/// Hashed for one request: some ten microseconds.
const WORK_BYTES: usize = 32 << 10;

/// Requests that a client has under way.
const IN_FLIGHT: usize = 64;

/// Arguments of `bench mailbox`.
#[derive(Debug, Args)]
pub struct Mailbox {
    /// Tells of one operation; questions are a tenth, requests a hundredth of that.
    #[arg(long, default_value_t = 1_000_000)]
    tells: u64,
    /// How often each operation is measured; once before that it is not.
    #[arg(long, default_value_t = 5)]
    repeat: usize,
}

/// Counts what it is told, and says how much that was.
#[derive(Default)]
struct Counter(u64);

enum Word {
    More(u64),
    Total(Reply<u64>),
}

impl shell::Actor for Counter {
    type Message = Word;
    const NAME: &'static str = "Counter";

    fn handle(&mut self, word: Word, _: &mut Cx<Self>) {
        match word {
            Word::More(more) => self.0 += more,
            Word::Total(reply) => reply.send(self.0),
        }
    }
}

/// The same as actix alone has it.
#[derive(Default)]
struct Plain(u64);

impl Actor for Plain {
    type Context = Context<Self>;

    fn started(&mut self, cx: &mut Self::Context) {
        cx.set_mailbox_capacity(ROOM);
    }
}

#[derive(Message)]
#[rtype(result = "()")]
struct More(u64);

#[derive(Message)]
#[rtype(result = "u64")]
struct Total;

impl Handler<More> for Plain {
    type Result = ();

    fn handle(&mut self, More(more): More, _: &mut Self::Context) {
        self.0 += more;
    }
}

impl Handler<Total> for Plain {
    type Result = u64;

    fn handle(&mut self, Total: Total, _: &mut Self::Context) -> u64 {
        self.0
    }
}

/// One way to an actor.
#[derive(Clone)]
enum Way {
    Ours(Handle<Word>),
    Actix(Addr<Plain>),
    Channel(mpsc::Sender<Note>),
}

enum Note {
    More(u64),
    Total(oneshot::Sender<u64>),
}

impl Way {
    fn open(peer: &str, stage: &Stage) -> Way {
        match peer {
            "tombolo" => Way::Ours(supervise(stage, Class::Node, "bench", |_| {
                Counter::default()
            })),
            "actix" => Way::Actix(Plain::default().start()),
            _ => {
                let (sender, mut receiver) = mpsc::channel(ROOM);
                tokio::task::spawn_local(async move {
                    let mut total = 0;
                    while let Some(note) = receiver.recv().await {
                        match note {
                            Note::More(more) => total += more,
                            Note::Total(reply) => _ = reply.send(total),
                        }
                    }
                });
                Way::Channel(sender)
            }
        }
    }

    /// Tells it so often to count one more. False if it is gone.
    async fn tell(&self, tells: u64) -> bool {
        match self {
            Way::Ours(handle) => {
                for _ in 0..tells {
                    if handle.tell(Word::More(1)).await.is_err() {
                        return false;
                    }
                }
            }
            Way::Actix(address) => {
                for tell in 0..tells {
                    address.do_send(More(1));
                    // Nothing else bounds a mailbox of actix.
                    if tell % ROOM as u64 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            }
            Way::Channel(sender) => {
                for _ in 0..tells {
                    if sender.send(Note::More(1)).await.is_err() {
                        return false;
                    }
                }
            }
        }
        true
    }

    async fn ask(&self) -> Option<u64> {
        match self {
            Way::Ours(handle) => handle.ask(Word::Total).await.ok(),
            Way::Actix(address) => address.send(Total).await.ok(),
            Way::Channel(sender) => {
                let (reply, total) = oneshot::channel();
                sender.send(Note::Total(reply)).await.ok()?;
                total.await.ok()
            }
        }
    }
}

/// What was measured once.
struct Once {
    seconds: f64,
    ok: bool,
}

async fn tells(peer: &'static str, stage: Stage, producers: u64, each: u64) -> Once {
    let way = Way::open(peer, &stage);
    // It lives before the clock runs.
    let there = way.ask().await == Some(0);
    let began = now();
    let mut tasks = JoinSet::new();
    for _ in 0..producers {
        let way = way.clone();
        tasks.spawn_local(async move { way.tell(each).await });
    }
    let told = tasks.join_all().await.into_iter().all(|told| told);
    let total = way.ask().await;
    Once {
        seconds: (now() - began).as_secs_f64(),
        ok: there && told && total == Some(producers * each),
    }
}

async fn asks(peer: &'static str, stage: Stage, asks: u64) -> Once {
    let way = Way::open(peer, &stage);
    let mut right = way.ask().await == Some(0);
    let began = now();
    for _ in 0..asks {
        right &= black_box(way.ask().await) == Some(0);
    }
    Once {
        seconds: (now() - began).as_secs_f64(),
        ok: right,
    }
}

/// Does what it is asked for.
struct Worker(Vec<u8>);

impl Actor for Worker {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "u8")]
struct Request;

impl Handler<Request> for Worker {
    type Result = u8;

    fn handle(&mut self, Request: Request, _: &mut Self::Context) -> u8 {
        blake3::hash(&self.0).as_bytes()[0]
    }
}

/// Requests to workers on so many arbiters, always the same number of them under way; and how long each took.
async fn requests(arbiters: usize, count: u64) -> (Once, Vec<f64>) {
    let workers: Vec<(Arbiter, Addr<Worker>)> = (0..arbiters).map(|_| worker()).collect();
    let expected = blake3::hash(&vec![1; WORK_BYTES]).as_bytes()[0];
    let began = now();
    let (mut took, mut right) = (Vec::new(), true);
    let mut under_way = JoinSet::new();
    for request in 0..count {
        if under_way.len() >= IN_FLIGHT
            && let Some(Ok((seconds, answer))) = under_way.join_next().await
        {
            took.push(seconds);
            right &= answer == Some(expected);
        }
        let (_, worker) = &workers[request as usize % arbiters];
        let worker = worker.clone();
        under_way.spawn_local(async move {
            let asked = now();
            let answer = worker.send(Request).await.ok();
            ((now() - asked).as_secs_f64(), answer)
        });
    }
    for (seconds, answer) in under_way.join_all().await {
        took.push(seconds);
        right &= answer == Some(expected);
    }
    let seconds = (now() - began).as_secs_f64();
    for (arbiter, _) in &workers {
        arbiter.stop();
    }
    took.sort_by(f64::total_cmp);
    let ok = right && took.len() as u64 == count;
    (Once { seconds, ok }, took)
}

#[expect(
    clippy::disallowed_methods,
    reason = "it is what arbiters bring that is measured"
)]
fn worker() -> (Arbiter, Addr<Worker>) {
    let arbiter = Arbiter::new();
    let worker = Worker::start_in_arbiter(&arbiter.handle(), |_| Worker(vec![1; WORK_BYTES]));
    (arbiter, worker)
}

impl Mailbox {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || {
            Ok(show(common, &self.measure(common)?))
        })
    }

    fn check(&self) -> Result<(), String> {
        within("tells", self.tells, TELLS_MAX)?;
        within("repeat", self.repeat as u64, REPEAT_MAX as u64)
    }

    fn measure(&self, common: &Common) -> io::Result<Vec<Measurement>> {
        let folder = folder(common)?;
        let plan = topology::parse("bench", TOPOLOGY, folder.path()).map_err(io::Error::other)?;
        let plan = Arc::new(plan);
        let mut options = WorldOptions::from(plan.as_ref());
        options.state = folder.path().join("state");
        let world = World::new(options)?;
        let node = plan.coordinator.clone();
        let stage = Stage {
            env: world.env(&node)?,
            node,
            plan,
            events: Arc::new(|_| {}),
            census: Default::default(),
            denials: Default::default(),
        };
        let mut measured = Vec::new();
        for producers in [1, 4, 16] {
            let each = (self.tells / producers).max(1);
            for peer in ["tombolo", "actix", "channel"] {
                let case = "tell";
                let run = move |stage: Stage| tells(peer, stage, producers, each);
                let mut line = self.repeated(&stage, peer, case, producers * each, run)?;
                line.n = producers as usize;
                measured.push(line);
            }
        }
        let questions = (self.tells / 10).max(1);
        for peer in ["tombolo", "actix", "channel"] {
            let run = move |stage: Stage| asks(peer, stage, questions);
            measured.push(self.repeated(&stage, peer, "ask", questions, run)?);
        }
        let count = (self.tells / 100).max(1);
        for arbiters in [1, 2, 4] {
            measured.push(self.requests(&stage, arbiters, count)?);
        }
        Ok(measured)
    }

    fn repeated<F: Future<Output = Once> + 'static>(
        &self,
        stage: &Stage,
        peer: &'static str,
        case: &str,
        count: u64,
        run: impl Fn(Stage) -> F + Clone + Send + 'static,
    ) -> io::Result<Measurement> {
        let (mut seconds, mut ok, mut used) = (Vec::new(), true, 0.0);
        for turn in 0..=self.repeat {
            let before = cpu_seconds(std::process::id())?;
            let (run, own) = (run.clone(), stage.clone());
            let once = on(stage, move || run(own))?;
            ok &= once.ok;
            if turn > 0 {
                used += cpu_seconds(std::process::id())? - before;
                seconds.push(once.seconds);
            }
        }
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let mut more = Map::new();
        // Of the quickest, as everywhere: what others do on this machine only makes it slower.
        more.insert("ns_each".into(), json!(least / count as f64 * 1e9));
        more.insert("per_s".into(), json!(count as f64 / least));
        Ok(Measurement {
            group: "mailbox",
            peer: if peer == "channel" {
                "limit-channel"
            } else {
                peer
            },
            case: case.to_owned(),
            n: 1,
            bytes: 0,
            seconds,
            cpu_s_per_op: used / self.repeat as f64,
            ok,
            more,
        })
    }

    fn requests(&self, stage: &Stage, arbiters: usize, count: u64) -> io::Result<Measurement> {
        let took = Arc::new(std::sync::Mutex::new(Vec::new()));
        let kept = took.clone();
        let run = move |_: Stage| {
            let kept = kept.clone();
            async move {
                let (once, took) = requests(arbiters, count).await;
                *kept
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner) = took;
                once
            }
        };
        let mut line = self.repeated(stage, "tombolo", "request", count, run)?;
        line.peer = "actix";
        line.case = format!("requests, {arbiters} arbiters");
        line.n = arbiters;
        let took = took
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let at = |share: f64| {
            took.get(((took.len() - 1) as f64 * share) as usize)
                .copied()
        };
        line.more
            .insert("p50_us".into(), json!(at(0.5).map(|seconds| seconds * 1e6)));
        line.more.insert(
            "p99_us".into(),
            json!(at(0.99).map(|seconds| seconds * 1e6)),
        );
        Ok(line)
    }
}

/// Runs a task on the node's arbiter, and waits for what it gives.
fn on<T: Send + 'static, F: Future<Output = T> + 'static>(
    stage: &Stage,
    task: impl FnOnce() -> F + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let task = Box::new(move || {
        Box::pin(async move {
            // Fails only if nobody waits any more.
            let _ = tell.send(task().await);
        }) as _
    });
    stage.env.spawn(Class::Node, task);
    told.recv_timeout(LIMIT).map_err(io::Error::other)
}
