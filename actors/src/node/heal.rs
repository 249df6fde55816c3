//! A whole model in chunks, from several peers at once: performs what [`tombolo_core::heal`] decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::Setup;
use super::obtain::{Draft, Shown, Watch, stall};
use crate::env::Env;
use crate::link::{self, FetchError, Incoming, REDIAL_MOST};
use crate::shell::{AbortOnDrop, Handle};
use tombolo_core::heal::{
    Answer, Candidate, Effect, Heal, HealError, IN_FLIGHT_MAX, Message, Order, Part, SOURCES_MAX,
};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::outline::{self, ChunkValue, Outline};
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::wire::{Lack, Object, REGION_HEADER_BYTES};

/// Obtains the whole model of a round into the draft, whatever of it is there already.
pub(super) async fn heal(
    setup: &Setup,
    draft: &mut Draft,
    shown: Option<&Shown>,
    watch: &mut Watch,
    (round, hash): (Round, Hash),
) -> Result<Arc<Outline>, Unhealed> {
    let heartbeat = &setup.stage.plan.heartbeat;
    let liars = draft.liars.take().filter(|(of, _)| *of == hash);
    let reached = watch.reach.borrow_and_update().clone();
    let order = Order {
        node: setup.stage.node.clone(),
        round,
        hash,
        elements: setup.layout.len(),
        here: draft.values.clone(),
        other: shown.map_or_else(Vec::new, |shown| shown.outline.values().to_vec()),
        whole: draft.whole_tried != Some(hash),
        liars: liars.map(|(_, liars)| liars).unwrap_or_default(),
        limit: heartbeat.restore_limit,
        // Time must be left for those who are asked then.
        wait: heartbeat
            .limit()
            .max(REDIAL_MOST)
            .min(heartbeat.restore_limit / 4),
        patience: heartbeat.limit(),
        rest: heartbeat.every,
    };
    let (answers, mut inbox) = mpsc::channel(IN_FLIGHT_MAX + SOURCES_MAX);
    let mut transfer = Transfer {
        setup,
        machine: Heal::new(order, candidates(setup, &reached)),
        hash,
        draft,
        shown,
        questions: BTreeMap::new(),
        answers,
        wake: Micros::NEVER,
        done: None,
    };
    transfer.step(Some(Message::Begin), Vec::new());
    let result = transfer.run(&mut inbox, watch, reached).await;
    let liars = transfer.machine.liars();
    draft.liars = (!liars.is_empty()).then_some((hash, liars));
    result
}

/// Why a model was not had from peers.
pub(super) enum Unhealed {
    /// The coordinator is to be asked for the whole.
    OnlyLast,
    /// For people.
    Reason(String),
}

/// How far a peer is, by its heartbeats.
fn round_trip(setup: &Setup, peer: &NodeId) -> Option<Duration> {
    let clock = setup.company.get()?.clocks.get(peer)?;
    let (_, estimate) = clock.estimate(setup.stage.env.now())?;
    Some(estimate.round_trip)
}

/// Everybody to whom there is a link.
fn candidates(setup: &Setup, reached: &BTreeSet<NodeId>) -> Vec<Candidate> {
    let (coordinator, mine) = (setup.coordinator(), setup.stage.node.domain());
    let peers = setup.stage.plan.peers(&setup.stage.node).into_iter();
    let candidates = peers.map(|peer| Candidate {
        last: peer == coordinator,
        near: peer.domain() == mine,
        reached: reached.contains(&peer),
        round_trip: round_trip(setup, &peer),
        node: peer,
    });
    candidates.collect()
}

/// A question's answer, and a chunk's bytes with it.
struct Reply {
    peer: NodeId,
    part: Part,
    answer: Answer,
    pieces: Vec<Bytes>,
}

struct Transfer<'a> {
    setup: &'a Setup,
    machine: Heal,
    hash: Hash,
    draft: &'a mut Draft,
    shown: Option<&'a Shown>,
    questions: BTreeMap<(NodeId, Part), AbortOnDrop<()>>,
    answers: mpsc::Sender<Reply>,
    wake: Micros,
    done: Option<Result<Outline, Unhealed>>,
}

impl Transfer<'_> {
    async fn run(
        &mut self,
        inbox: &mut mpsc::Receiver<Reply>,
        watch: &mut Watch,
        mut reached: BTreeSet<NodeId>,
    ) -> Result<Arc<Outline>, Unhealed> {
        let (env, hash) = (self.setup.stage.env.clone(), self.hash);
        loop {
            if let Some(done) = self.done.take() {
                return done.map(Arc::new);
            }
            let sleep = env.sleep(self.wake.since(env.now()).max(Duration::from_millis(1)));
            tokio::select! {
                biased;
                _ = watch.wanted.wait_for(|wanted| *wanted != Some(hash)) => {
                    return Err(Unhealed::Reason("another model is wanted now".into()));
                }
                () = changed(&mut watch.reach) => {
                    let now = watch.reach.borrow_and_update().clone();
                    self.on_reach(&reached, &now);
                    reached = now;
                }
                reply = inbox.recv() => {
                    if let Some(Reply { peer, part, answer, pieces }) = reply {
                        self.questions.remove(&(peer.clone(), part));
                        self.step(Some(Message::Answer(peer, part, answer)), pieces);
                    }
                }
                () = sleep => self.step(None, Vec::new()),
            }
        }
    }

    fn on_reach(&mut self, before: &BTreeSet<NodeId>, now: &BTreeSet<NodeId>) {
        for peer in before.difference(now) {
            self.step(Some(Message::Parted(peer.clone())), Vec::new());
        }
        for peer in now.difference(before) {
            let round_trip = round_trip(self.setup, peer);
            self.step(Some(Message::Reached(peer.clone(), round_trip)), Vec::new());
        }
    }

    /// Gives the machine a message, with the bytes that came with it, and performs what it decides.
    fn step(&mut self, message: Option<Message>, pieces: Vec<Bytes>) {
        let mut out = Outcome::default();
        let mut cx = Context::new(self.setup.stage.env.now(), &mut out);
        match message {
            Some(message) => self.machine.handle(message, &mut cx),
            None => self.machine.on_wake(&mut cx),
        }
        self.wake = out.wake_at.unwrap_or(Micros::NEVER);
        for event in out.events {
            self.setup.stage.report(event);
        }
        for effect in out.effects {
            match effect {
                Effect::Ask(peer, part) => self.ask(peer, part),
                Effect::Forget(peer, part) => {
                    self.questions.remove(&(peer, part));
                }
                Effect::Take(_, index, value) => {
                    let pieces = pieces.iter().map(AsRef::as_ref);
                    self.draft.put(index as usize, value, pieces);
                }
                Effect::Copy(index, value) => self.copy(index as usize, value),
                Effect::Done(result) => {
                    self.done = Some(result.map_err(|error| match error {
                        HealError::OnlyLast => Unhealed::OnlyLast,
                        error => Unhealed::Reason(error.to_string()),
                    }));
                }
            }
        }
    }

    /// Copies a chunk of the model shown.
    fn copy(&mut self, index: usize, value: Hash) {
        let Some(shown) = self.shown else { return };
        let len = outline::chunk_bytes(self.setup.layout.len(), index);
        let begin = REGION_HEADER_BYTES + index * outline::CHUNK_BYTES;
        let chunk = &shown.region.bytes()[begin..begin + len];
        self.draft.put(index, value, [chunk]);
    }

    fn ask(&mut self, peer: NodeId, part: Part) {
        let company = self.setup.company.get();
        let question = Question {
            env: self.setup.stage.env.clone(),
            link: company.and_then(|company| company.links.get(&peer).cloned()),
            stall: stall(self.setup),
            elements: self.setup.layout.len(),
            hash: self.hash,
            part,
        };
        let (answers, key) = (self.answers.clone(), (peer.clone(), part));
        let task = tokio::task::spawn_local(async move {
            let (answer, pieces) = question.put().await;
            let reply = Reply {
                peer,
                part,
                answer,
                pieces,
            };
            // Fails only if the transfer has ended.
            let _ = answers.send(reply).await;
        });
        self.questions.insert(key, AbortOnDrop(task));
    }
}

/// Ends when the peers in reach have changed; never, once the node has ended.
async fn changed(reach: &mut watch::Receiver<BTreeSet<NodeId>>) {
    if reach.changed().await.is_err() {
        std::future::pending().await
    }
}

/// One question to one peer.
struct Question {
    env: Arc<dyn Env>,
    link: Option<Handle<link::Message>>,
    stall: Duration,
    elements: usize,
    hash: Hash,
    part: Part,
}

impl Question {
    async fn put(&self) -> (Answer, Vec<Bytes>) {
        let came = match self.fetch().await {
            Ok(incoming) => self.read(incoming).await,
            Err(answer) => Err(answer),
        };
        match (came, self.part) {
            (Ok(pieces), Part::Outline) => (Answer::Outline(pieces.concat()), Vec::new()),
            (Ok(pieces), Part::Chunk(index)) => {
                let mut value = ChunkValue::new(self.elements, index as usize);
                pieces.iter().for_each(|piece| value.push(piece));
                (Answer::Chunk(value.finish()), pieces)
            }
            (Err(answer), _) => (answer, Vec::new()),
        }
    }

    async fn fetch(&self) -> Result<Incoming, Answer> {
        let object = match self.part {
            Part::Outline => Object::Outline(self.hash),
            Part::Chunk(index) => Object::Chunk(self.hash, index),
        };
        let broken = |error: &dyn std::error::Error| Answer::Broken(error.to_string());
        let Some(link) = &self.link else {
            return Err(Answer::Broken("there is no link".into()));
        };
        let asked = link.ask(|reply| link::Message::Fetch(object, reply));
        let incoming = self.within(asked).await?.map_err(|error| broken(&error))?;
        incoming.map_err(|error| match error {
            FetchError::Missing { lack, reason, .. } => Answer::Missing(lack, reason),
            FetchError::Busy(_) => Answer::Missing(Lack::Busy, error.to_string()),
            _ => broken(&error),
        })
    }

    /// All of an object, which has the length that it must have.
    async fn read(&self, mut incoming: Incoming) -> Result<Vec<Bytes>, Answer> {
        let expected = match self.part {
            Part::Outline => outline::chunks(self.elements) * size_of::<Hash>(),
            Part::Chunk(index) => outline::chunk_bytes(self.elements, index as usize),
        };
        if incoming.len != expected as u64 {
            return Err(Answer::Wrong(format!(
                "{:?} has {} bytes, expected {expected}",
                self.part, incoming.len
            )));
        }
        let (mut pieces, mut left) = (Vec::new(), expected);
        while left > 0 {
            let piece = self.within(incoming.stream.read_chunk(left)).await?;
            let piece = piece.map_err(|error| Answer::Broken(error.to_string()))?;
            let Some(piece) = piece else {
                let reason = format!("the stream ended {left} bytes too early");
                return Err(Answer::Broken(reason));
            };
            left -= piece.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }

    async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Answer> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.env.sleep(self.stall) => {
                Err(Answer::Broken(format!("no progress for {:?}", self.stall)))
            }
        }
    }
}
