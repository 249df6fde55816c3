//! A bounded pool of threads for work that blocks or computes.
//!
//! Training and everything else have shares of their own, so that a commit is never queued behind somebody's training.

use std::io;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use tombolo_actors::env::{OffloadPanicked, SendFuture, Work};
use tombolo_actors::shell::panic_text;

/// Trainings at once. Above any number of cores here, because a trainer may wait (for a GPU, for data) and must not hold up the other nodes
/// of `run`; a waiting thread costs a stack.
const TRAININGS_MAX: usize = 32;

/// Reads, writes, hashes and folds at once: enough to keep a disk busy.
const OTHERS_MAX: usize = 8;

pub struct Pool {
    /// Only its blocking threads are used. Taken when the pool is dropped.
    runtime: Option<Runtime>,
    trainings: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Pool {
    pub fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_name("tombolo-work")
            .max_blocking_threads(TRAININGS_MAX + OTHERS_MAX)
            .build()?;
        Ok(Pool {
            runtime: Some(runtime),
            trainings: Arc::new(Semaphore::new(TRAININGS_MAX)),
            others: Arc::new(Semaphore::new(OTHERS_MAX)),
        })
    }

    /// Runs `task` once a thread is free, from the first poll on. If the future is dropped later, the task still runs to its end.
    pub fn offload(
        &self,
        work: Work,
        task: Box<dyn FnOnce() + Send>,
    ) -> SendFuture<Result<(), OffloadPanicked>> {
        let permits = match work {
            Work::Train | Work::Steps { .. } => self.trainings.clone(),
            Work::Bytes(_) => self.others.clone(),
        };
        let runtime = self
            .runtime
            .as_ref()
            .expect("taken by drop only")
            .handle()
            .clone();
        Box::pin(async move {
            let permit = permits
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            let done = runtime.spawn_blocking(move || {
                task();
                drop(permit);
            });
            match done.await {
                Ok(()) => Ok(()),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => Err(OffloadPanicked(panic_text(panic.as_ref()))),
                    Err(error) => Err(OffloadPanicked(format!("it was not run: {error}"))),
                },
            }
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Without waiting: a training may take hours, and this may be a thread that must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
