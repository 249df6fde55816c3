//! The tasks of one node on one thread.
//!
//! A node's tasks share a [`LocalSet`] of their own, nested in the thread's. So whatever they start there, by whichever crate (actor
//! contexts, supervisors, quinn's drivers), ends with them: closing the scope drops the set and nothing of the node is left running. A frozen
//! scope keeps its tasks and polls none of them.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;
use tokio::task::LocalSet;

use tombolo_actors::env::LocalFuture;

/// Makes a task on the thread where it shall run.
pub type MakeTask = Box<dyn FnOnce() -> LocalFuture + Send>;

/// The handle of a node's tasks; usable from every thread.
#[derive(Clone)]
pub struct Scope {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    ended: watch::Sender<bool>,
}

struct State {
    /// Emptied at each poll of the runner, so it stays as short as what one poll of the callers adds. While frozen it keeps what outsiders
    /// spawn, which is one task for each thing that befalls the node.
    queue: VecDeque<MakeTask>,
    waker: Option<Waker>,
    frozen: bool,
    closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }
}

impl Scope {
    /// A scope whose [`Runner`] is yet to be polled.
    pub fn new() -> Self {
        Scope {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    queue: VecDeque::new(),
                    waker: None,
                    frozen: false,
                    closed: false,
                }),
                ended: watch::Sender::new(false),
            }),
        }
    }

    /// The future that runs this scope's tasks. Make and poll it on their thread, once.
    pub fn runner(&self) -> Runner {
        Runner {
            shared: self.shared.clone(),
            set: LocalSet::new(),
        }
    }

    /// Runs a task until it ends or the scope closes; does nothing once closed.
    pub fn spawn(&self, task: MakeTask) {
        let mut state = self.shared.lock();
        if state.closed {
            return;
        }
        state.queue.push_back(task);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends every task: none is polled again. They are dropped when the runner is polled next.
    pub fn close(&self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        let waker = state.waker.take();
        drop(state);
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Stops every task where it waits, or lets all go on; what woke them meanwhile is not lost.
    pub fn freeze(&self, frozen: bool) {
        let mut state = self.shared.lock();
        state.frozen = frozen;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until every task is dropped.
    pub async fn ended(&self) {
        let mut ended = self.shared.ended.subscribe();
        ended
            .wait_for(|ended| *ended)
            .await
            .expect("the sender lives as long as the scope");
    }
}

/// Runs the tasks of a [`Scope`]; ends when the scope closes.
pub struct Runner {
    shared: Arc<Shared>,
    set: LocalSet,
}

impl Runner {
    /// The set that the tasks run in.
    pub fn set(&self) -> &LocalSet {
        &self.set
    }
}

impl Future for Runner {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let tasks = {
            let mut state = self.shared.lock();
            if state.closed {
                drop(state);
                // Here and not when the runner is dropped, which whoever holds it may do late.
                self.set = LocalSet::new();
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            if state.frozen {
                return Poll::Pending;
            }
            std::mem::take(&mut state.queue)
        };
        for make in tasks {
            self.set.spawn_local(async move { make().await });
        }
        // A set without tasks says that it is ready; more may come.
        let _ = Pin::new(&mut self.set).poll(context);
        Poll::Pending
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        self.set = LocalSet::new();
        self.shared.lock().closed = true;
        self.shared.ended.send_replace(true);
    }
}
