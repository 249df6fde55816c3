//! Which actors wait for each other, and a word when they do so in a ring that stands.
//!
//! Whoever asks, or waits for room in a queue, from within an actor is noted for as long as it waits: see [`WaitFor`]. Nothing looks at the
//! graph meanwhile; only a wait that closes a ring lets somebody look again, once the ring has stood for longer than a living peer is silent.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::env::Class;
use crate::shell::Stage;
use tombolo_core::event::Event;
use tombolo_core::wait_for::{Party, Ring, Wait, WaitFor, WaitId, What};

tokio::task_local! {
    /// The actor that runs.
    static ASKER: Asker;
}

/// The graph of a process.
#[derive(Clone, Default)]
pub(crate) struct Waits(Arc<Mutex<WaitFor>>);

impl Waits {
    fn lock(&self) -> MutexGuard<'_, WaitFor> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An actor that may wait for others.
#[derive(Clone)]
pub(crate) struct Asker {
    party: Arc<Party>,
    stage: Stage,
}

impl Asker {
    pub fn new(party: Arc<Party>, stage: Stage) -> Self {
        Asker { party, stage }
    }

    /// Runs the actor's life.
    pub fn scope<F: Future>(self, life: F) -> impl Future<Output = F::Output> {
        ASKER.scope(self, life)
    }

    fn waits_for(&self, on: &Arc<Party>, what: What) -> Waiting {
        let waits = self.stage.census.waits.clone();
        let (id, ring) = waits.lock().begin(Wait {
            who: self.party.clone(),
            on: on.clone(),
            what,
            since: self.stage.env.now(),
        });
        if let Some(ring) = ring {
            self.look_again(ring);
        }
        Waiting { waits, id }
    }

    fn look_again(&self, ring: Ring) {
        let stage = self.stage.clone();
        let look = async move {
            stage.env.sleep(stage.plan.heartbeat.limit()).await;
            let stands = stage.census.waits.lock().stands(&ring);
            let Some(waits) = stands else { return };
            let last = waits.iter().map(|wait| wait.since).max();
            let standing = stage.env.now().since(last.unwrap_or_default());
            stage.report(Event::Deadlocked {
                node: stage.node.clone(),
                ring: waits.iter().map(ToString::to_string).collect(),
                standing_ms: u64::try_from(standing.as_millis()).unwrap_or(u64::MAX),
            });
        };
        let env = self.stage.env.clone();
        env.spawn(Class::Node, Box::new(move || Box::pin(look)));
    }
}

/// A wait that has begun; it ends with this.
#[must_use]
pub(crate) struct Waiting {
    waits: Waits,
    id: WaitId,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waits.lock().end(self.id);
    }
}

/// Notes that the actor that runs waits for another one; outside of actors nobody does.
pub(crate) fn waits_for(on: &Arc<Party>, what: What) -> Option<Waiting> {
    ASKER.try_with(|asker| asker.waits_for(on, what)).ok()
}
