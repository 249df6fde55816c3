//! One peer's clock: takes the stamps of heartbeats that crossed, and keeps what they tell.
//!
//! Nothing that a round decides depends on it: it places what happened at several nodes on one line of time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::shell::{Actor, Cx, Stage};
use tombolo_core::clock::{Estimate, Filter};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::time::Micros;
use tombolo_core::wire::Exchange;

/// What it takes: an exchange with one life of the peer.
#[derive(Debug)]
pub struct Message {
    /// The peer's incarnation: another process has another clock.
    pub life: u64,
    /// Four stamps.
    pub exchange: Exchange,
}

/// What is known of a peer's clock; outlives the actor.
#[derive(Debug, Default)]
pub struct Known(Mutex<(u64, Filter)>);

impl Known {
    /// How far the peer's clock is from ours, and which life of the peer that was learnt from.
    pub fn estimate(&self, now: Micros) -> Option<(u64, Estimate)> {
        let known = self.lock();
        known.1.estimate(now).map(|estimate| (known.0, estimate))
    }

    /// Takes in one exchange; true if the clock is not the one it was.
    fn learn(&self, message: &Message) -> bool {
        let mut known = self.lock();
        let (life, filter) = &mut *known;
        if *life != message.life {
            (*life, *filter) = (message.life, Filter::new());
        }
        let resets = filter.resets();
        filter.on_exchange(message.exchange);
        filter.resets() > resets
    }

    fn lock(&self) -> MutexGuard<'_, (u64, Filter)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What it needs to know.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where it acts.
    pub stage: Stage,
    /// Whose clock it is.
    pub peer: NodeId,
    /// Shared with status.
    pub known: Arc<Known>,
}

/// See the module.
pub struct ClockSync(Setup);

impl ClockSync {
    /// Watches a peer's clock.
    pub fn new(setup: Setup) -> Self {
        ClockSync(setup)
    }
}

impl Actor for ClockSync {
    type Message = Message;
    const NAME: &'static str = "ClockSync";

    fn handle(&mut self, message: Message, _: &mut Cx<Self>) {
        let ClockSync(setup) = self;
        if setup.known.learn(&message) {
            setup.stage.report(Event::ClockJumped {
                node: setup.stage.node.clone(),
                peer: setup.peer.clone(),
            });
        }
    }
}
