//! What every actor here has around it: a bounded queue, a mailbox that holds a handful of messages, and a supervisor that survives panics.
//!
//! actix gives a fast local mailbox and no more: its capacity is bypassed by `do_send`, by every clone of an address and by every `send()`
//! future, its loop has no budget, and its supervisor dies with a panic. So callers never see an address. They hold a [`Handle`]: a bounded
//! queue, in front of a task that owns the actor's life. That task takes up to [`WINDOW`] messages at once out of the queue and puts them into
//! the mailbox as one batch, whose permit is dropped when all of them have been handled; so however callers send, the mailbox is bounded, a
//! wake-up is paid once a batch, and a flood yields to timers after a few messages. When the actor panics the task waits (backoff with seeded
//! jitter), builds it again from its factory, and delivers again what had not been begun. The message that was being handled is gone; whoever
//! asked gets an error.
//!
//! There are permits for messages and none for bytes, because no message holds many: tensors travel as handles, and the largest control
//! message is bounded by the wire's limit. Bytes are budgeted where they lie: a link's outbox, quinn's windows, the pool of slabs.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::env::{Class, Env, LocalFuture};
use crate::waits::{Asker, Waits, waits_for};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::policy::{self, Verdict};
use tombolo_core::text::clip;
use tombolo_core::wait_for::{Party, What};

/// Messages in a mailbox at once, as one batch: enough to keep an actor busy while its queue is refilled, few enough that handling all of them does not
/// make a timer on the same thread late.
pub const WINDOW: usize = 16;

/// Messages in the queue before a mailbox. Control messages are small and few; a queue this long means that the actor is stuck.
pub const QUEUE: usize = 1024;

/// How often an actor asks another that may fail over the question: a panic by chance is survived, one by rule is not asked for ever.
pub const ASKS_MAX: usize = 4;

/// Restarts within [`RESTART_SPAN`] after which an actor is given up.
pub const RESTARTS_MAX: usize = 16;
const RESTART_SPAN: Duration = Duration::from_secs(60);
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_MOST: Duration = Duration::from_secs(2);

/// Where an actor acts: what all actors of a node share.
#[derive(Clone)]
pub struct Stage {
    /// The node.
    pub node: NodeId,
    /// Its world.
    pub env: Arc<dyn Env>,
    /// The federation's plan.
    pub plan: Arc<Plan>,
    /// Takes events.
    pub events: Arc<dyn Fn(Event) + Send + Sync>,
    /// Counts living actors.
    pub census: Census,
    /// What this node has not let others do lately.
    pub denials: Denials,
}

/// Refusals by policies that a node has told; outlives its actors.
#[derive(Clone, Default)]
pub struct Denials(Arc<Mutex<policy::Refusals>>);

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stage")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl Stage {
    /// Records a past fact.
    pub fn report(&self, event: Event) {
        (self.events)(event);
    }

    /// Records that a policy has denied something, unless that was said a moment ago.
    pub fn deny(&self, verdict: &Verdict) {
        let mut told = self
            .denials
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_news = told.is_news(self.env.now(), verdict);
        drop(told);
        if is_news {
            self.report(Event::PolicyDenied {
                node: self.node.clone(),
                verdict: Box::new(verdict.clone()),
            });
        }
    }
}

/// What acts. Handlers must not block; long work goes to [`Env::offload`].
pub trait Actor: Sized + Unpin + 'static {
    /// What it takes.
    type Message: Send + 'static;

    /// Its name in the census and in events.
    const NAME: &'static str;

    /// Called once before the first message of each life.
    fn started(&mut self, _cx: &mut Cx<Self>) {}

    /// Takes one message.
    fn handle(&mut self, message: Self::Message, cx: &mut Cx<Self>);
}

/// The actix context of an actor.
pub type Cx<A> = actix::Context<Shell<A>>;

/// Runs `future` within the actor's life, then `then` on the actor.
pub fn later<A: Actor, F>(
    cx: &mut Cx<A>,
    future: F,
    then: impl FnOnce(&mut A, F::Output, &mut Cx<A>) + 'static,
) where
    F: Future + 'static,
{
    cx.spawn(
        actix::fut::wrap_future::<_, Shell<A>>(future)
            .map(|output, shell, cx| then(&mut shell.actor, output, cx)),
    );
}

/// The one time at which an actor wishes to be woken.
#[derive(Debug, Default)]
pub struct Alarm(Option<actix::SpawnHandle>);

impl Alarm {
    /// Runs `then` in the actor once `sleep` has ended, instead of what was wished for before: nobody sleeps for that any more.
    pub fn set<A: Actor>(
        &mut self,
        cx: &mut Cx<A>,
        sleep: impl Future<Output = ()> + 'static,
        then: impl FnOnce(&mut A, &mut Cx<A>) + 'static,
    ) {
        if let Some(before) = self.0.take() {
            cx.cancel_future(before);
        }
        let woken = actix::fut::wrap_future::<_, Shell<A>>(sleep)
            .map(|(), shell, cx| then(&mut shell.actor, cx));
        self.0 = Some(cx.spawn(woken));
    }
}

/// As [`later`], but the actor takes no message until `then` has run.
pub fn pause<A: Actor, F>(
    cx: &mut Cx<A>,
    future: F,
    then: impl FnOnce(&mut A, F::Output, &mut Cx<A>) + 'static,
) where
    F: Future + 'static,
{
    cx.wait(
        actix::fut::wrap_future::<_, Shell<A>>(future)
            .map(|output, shell, cx| then(&mut shell.actor, output, cx)),
    );
}

/// The actix actor around an [`Actor`].
pub struct Shell<A: Actor> {
    actor: A,
    _entry: Entry,
}

impl<A: Actor> actix::Actor for Shell<A> {
    type Context = actix::Context<Self>;

    fn started(&mut self, cx: &mut Self::Context) {
        self.actor.started(cx);
    }
}

/// Messages until they are begun.
type Batch<M> = Arc<Mutex<VecDeque<Parcel<M>>>>;

/// A batch on its way, with the permit that let it in.
struct Carried<M> {
    batch: Batch<M>,
    _permit: OwnedSemaphorePermit,
}

fn lock<M>(batch: &Batch<M>) -> MutexGuard<'_, VecDeque<Parcel<M>>> {
    batch.lock().unwrap_or_else(PoisonError::into_inner)
}

enum Parcel<M> {
    Message(M),
    Panic(String),
    /// Wait for this, and take nothing else.
    Wait(Passing),
    /// Say that it was come to.
    Pass(Reply<()>),
}

/// Ends once an actor has come to a message of no meaning.
pub type Passing = Box<dyn FnOnce() -> LocalFuture + Send>;

impl<M: Send + 'static> actix::Message for Carried<M> {
    type Result = ();
}

impl<A: Actor> actix::Handler<Carried<A::Message>> for Shell<A> {
    type Result = ();

    fn handle(&mut self, carried: Carried<A::Message>, cx: &mut Self::Context) {
        loop {
            let parcel = lock(&carried.batch).pop_front();
            match parcel {
                Some(Parcel::Message(message)) => self.actor.handle(message, cx),
                // Without the panic hook: whoever asked for it knows of it.
                Some(Parcel::Panic(reason)) => std::panic::resume_unwind(Box::new(reason)),
                Some(Parcel::Wait(passing)) => pause(cx, passing(), |_, (), _| {}),
                Some(Parcel::Pass(reply)) => reply.send(()),
                None => return,
            }
            if cx.waiting() {
                // What the actor waits for comes before the rest.
                if !lock(&carried.batch).is_empty() {
                    cx.address().do_send(carried);
                }
                return;
            }
        }
    }
}

/// The queue of an actor is full, or the actor is gone for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TellError {
    /// It does not keep up.
    #[error("its queue of {QUEUE} messages is full")]
    Full,
    /// It has stopped.
    #[error("it has stopped")]
    Stopped,
}

/// No answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It has stopped.
    #[error("it has stopped")]
    Stopped,
    /// It failed while it handled the question.
    #[error("it failed while it handled the question")]
    Failed,
}

/// Answers one question; dropping it tells the asker that there is no answer.
#[derive(Debug)]
pub struct Reply<T>(oneshot::Sender<T>);

impl<T> Reply<T> {
    /// A reply and the future of its answer.
    pub fn channel() -> (Self, oneshot::Receiver<T>) {
        let (sender, receiver) = oneshot::channel();
        (Reply(sender), receiver)
    }

    /// Whether the asker still waits.
    pub fn is_awaited(&self) -> bool {
        !self.0.is_closed()
    }

    /// Answers. An asker that went away is no error.
    pub fn send(self, answer: T) {
        let _ = self.0.send(answer);
    }
}

/// A stable address: stays valid while the actor behind it is rebuilt.
pub struct Handle<M> {
    queue: mpsc::Sender<Parcel<M>>,
    waiting: Arc<AtomicUsize>,
    party: Arc<Party>,
}

/// A place in an actor's queue, to be filled without waiting.
pub struct Place<'a, M>(mpsc::Permit<'a, Parcel<M>>);

impl<M> Place<'_, M> {
    /// Fills it.
    pub fn fill(self, message: M) {
        self.0.send(Parcel::Message(message));
    }
}

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Handle {
            queue: self.queue.clone(),
            waiting: self.waiting.clone(),
            party: self.party.clone(),
        }
    }
}

impl<M> fmt::Debug for Handle<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

impl<M: Send + 'static> Handle<M> {
    /// Puts a message into the queue if there is room.
    ///
    /// # Errors
    /// No room, or no actor.
    pub fn post(&self, message: M) -> Result<(), TellError> {
        self.queue
            .try_send(Parcel::Message(message))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => TellError::Full,
                mpsc::error::TrySendError::Closed(_) => TellError::Stopped,
            })
    }

    /// Puts a message into the queue once there is room: how back-pressure reaches whoever reads from a network.
    ///
    /// # Errors
    /// No actor.
    pub async fn tell(&self, message: M) -> Result<(), TellError> {
        let is_full = self.queue.capacity() == 0;
        let _waits = is_full.then(|| waits_for(&self.party, What::Room));
        self.queue
            .send(Parcel::Message(message))
            .await
            .map_err(|_| TellError::Stopped)
    }

    /// Waits for a place in the queue: for a sender that must not be interrupted between taking a message from elsewhere and passing it on.
    ///
    /// # Errors
    /// No actor.
    pub async fn reserve(&self) -> Result<Place<'_, M>, TellError> {
        let permit = self.queue.reserve().await;
        permit.map(Place).map_err(|_| TellError::Stopped)
    }

    /// Puts a message into the queue, now or, if it is full, as soon as there is room, without making the caller wait: for one actor that
    /// must not lose a word to another. What one caller delivers stays in order. What waits is bounded by [`QUEUE`] as well; beyond it a
    /// message is lost, with an error in the log. An actor that has stopped needs no messages any more. Call it on an arbiter.
    pub fn deliver(&self, message: M) {
        let mut parcel = Parcel::Message(message);
        // Behind a message that waits this one waits too, even if there is room by now.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            parcel = match self.queue.try_send(parcel) {
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => return,
                Err(mpsc::error::TrySendError::Full(parcel)) => parcel,
            };
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= QUEUE {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return tracing::error!(
                message = std::any::type_name::<M>(),
                "an actor is stuck and a message to it is lost"
            );
        }
        let (queue, waiting) = (self.queue.clone(), self.waiting.clone());
        tokio::task::spawn_local(async move {
            let _ = queue.send(parcel).await;
            waiting.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Asks, up to `times` times if the actor fails over the question.
    ///
    /// # Errors
    /// No actor, or it failed each time.
    pub async fn ask_again<R: Send + 'static>(
        &self,
        times: usize,
        mut question: impl FnMut(Reply<R>) -> M,
    ) -> Result<R, AskError> {
        for _ in 1..times {
            match self.ask(&mut question).await {
                Err(AskError::Failed) => {}
                answer => return answer,
            }
        }
        self.ask(question).await
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// No actor, or it failed over the question.
    pub async fn ask<R: Send + 'static>(
        &self,
        question: impl FnOnce(Reply<R>) -> M,
    ) -> Result<R, AskError> {
        let (reply, answer) = Reply::channel();
        self.tell(question(reply))
            .await
            .map_err(|_| AskError::Stopped)?;
        let _waits = waits_for(&self.party, What::Answer);
        answer.await.map_err(|_| AskError::Failed)
    }

    /// Makes the actor wait, when it comes to this message, and take nothing else: a fault for tests and simulations.
    ///
    /// # Errors
    /// No room, or no actor.
    pub fn inject_wait(&self, passing: Passing) -> Result<(), TellError> {
        self.inject(Parcel::Wait(passing))
    }

    /// Ends once the actor has come to what stands in its queue then.
    pub fn passing(&self) -> Passing {
        let handle = self.clone();
        Box::new(move || {
            Box::pin(async move {
                let (reply, passed) = Reply::channel();
                if handle.queue.send(Parcel::Pass(reply)).await.is_ok() {
                    let _waits = waits_for(&handle.party, What::Answer);
                    let _ = passed.await;
                }
            })
        })
    }

    /// Makes the actor panic when it comes to this message: a fault for tests and simulations.
    ///
    /// # Errors
    /// No room, or no actor.
    pub fn inject_panic(&self, reason: &str) -> Result<(), TellError> {
        self.inject(Parcel::Panic(reason.to_owned()))
    }

    fn inject(&self, parcel: Parcel<M>) -> Result<(), TellError> {
        self.queue.try_send(parcel).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => TellError::Full,
            mpsc::error::TrySendError::Closed(_) => TellError::Stopped,
        })
    }

    /// Messages that wait in the queue.
    pub fn depth(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

/// Starts an actor under supervision on the arbiter of `class`. `factory` builds it for each life; it gets the handle, so that an actor can
/// give out its own address. The actor ends with its node.
pub fn supervise<A: Actor>(
    stage: &Stage,
    class: Class,
    key: impl Into<String>,
    factory: impl Fn(&Handle<A::Message>) -> A + Send + 'static,
) -> Handle<A::Message> {
    let (queue, receiver) = mpsc::channel(QUEUE);
    let (actor, key) = (A::NAME, key.into());
    let handle = Handle {
        queue,
        waiting: Arc::default(),
        party: Arc::new(Party { actor, key }),
    };
    let (stage, own) = (stage.clone(), handle.clone());
    stage.env.clone().spawn(
        class,
        Box::new(move || {
            let party = own.party.clone();
            let factory = Rc::new(move || factory(&own));
            Box::pin(live(stage, party, factory, receiver))
        }),
    );
    handle
}

/// Ends a task when dropped.
#[derive(Debug)]
pub struct AbortOnDrop<T>(pub tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn live<A: Actor>(
    stage: Stage,
    party: Arc<Party>,
    factory: Rc<impl Fn() -> A + 'static>,
    mut queue: mpsc::Receiver<Parcel<A::Message>>,
) {
    let key = &party.key;
    // What was taken out of the queue and is not begun.
    let batch: Batch<A::Message> = Arc::default();
    let mut taken = Vec::with_capacity(WINDOW);
    let mut restarts: VecDeque<tombolo_core::time::Micros> = VecDeque::new();
    let mut rng = stage.env.rng(&format!("supervise {} {key}", A::NAME));
    loop {
        let context = actix::Context::<Shell<A>>::new();
        let address = actix::AsyncContext::address(&context);
        let entry = stage.census.enter(A::NAME, key);
        let build = factory.clone();
        let asker = Asker::new(party.clone(), stage.clone());
        let mut life = AbortOnDrop(tokio::task::spawn_local(asker.scope(async move {
            let shell = Shell {
                actor: build(),
                _entry: entry,
            };
            context.into_future(shell).await;
        })));
        // One batch at a time: its permit comes back when it has been handled.
        let permits = Arc::new(Semaphore::new(1));
        let send = |permit| {
            let batch = batch.clone();
            let _permit = permit;
            address.do_send(Carried { batch, _permit });
        };
        let is_left = !lock(&batch).is_empty();
        if is_left && let Ok(permit) = permits.clone().try_acquire_owned() {
            send(permit);
        }
        let end = loop {
            let next = async {
                let permit = permits
                    .clone()
                    .acquire_owned()
                    .await
                    .expect("the semaphore is never closed");
                (queue.recv_many(&mut taken, WINDOW).await, permit)
            };
            tokio::select! {
                biased;
                end = &mut life.0 => break end,
                (count, permit) = next => {
                    if count == 0 {
                        return;
                    }
                    lock(&batch).extend(taken.drain(..));
                    send(permit);
                }
            }
        };
        let Err(error) = end else { return };
        if !error.is_panic() {
            return;
        }
        let reason = panic_text(error.into_panic().as_ref());
        let now = stage.env.now();
        restarts.push_back(now);
        while restarts
            .front()
            .is_some_and(|first| now.since(*first) > RESTART_SPAN)
        {
            restarts.pop_front();
        }
        let count = restarts.len();
        let (actor, key) = (A::NAME.to_owned(), key.clone());
        let restarts = u32::try_from(count).unwrap_or(u32::MAX);
        if count > RESTARTS_MAX {
            tracing::error!(actor, key, reason, "given up after too many panics");
            return stage.report(Event::ActorGivenUp {
                actor,
                key,
                reason,
                restarts: restarts - 1,
            });
        }
        stage.report(Event::ActorRestarted {
            actor,
            key,
            reason,
            restarts,
        });
        let backoff = BACKOFF_FIRST
            .saturating_mul(1 << (count - 1).min(16))
            .min(BACKOFF_MOST);
        stage.env.sleep(backoff.mul_f64(0.5 + rng.next_f64())).await;
    }
}

/// What a panic said, cut to what can travel.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    clip(text.unwrap_or("a panic without a text"))
}

/// The actors of a process that are alive now, by type: what the census test counts and `status` shows; and who of them waits for whom.
#[derive(Clone, Default)]
pub struct Census {
    alive: Arc<Mutex<BTreeMap<(&'static str, String), usize>>>,
    pub(crate) waits: Waits,
}

impl Census {
    fn enter(&self, name: &'static str, key: &str) -> Entry {
        let id = (name, key.to_owned());
        *self
            .alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(id.clone())
            .or_default() += 1;
        Entry {
            census: self.clone(),
            id,
        }
    }

    /// How many of each type.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for ((name, _), count) in self
            .alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            *counts.entry(*name).or_default() += count;
        }
        counts
    }
}

struct Entry {
    census: Census,
    id: (&'static str, String),
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut census = self
            .census
            .alive
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = census.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                census.remove(&self.id);
            }
        }
    }
}
