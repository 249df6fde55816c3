//! Whether a node is there for the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tombolo_core::time::Micros;
use tombolo_core::waiting::Patience;

/// Whether a node is there for the others, and how long it goes on without any; outlives the actor.
#[derive(Debug)]
pub struct Presence {
    pub(super) joined: AtomicBool,
    pub(super) leaves: AtomicBool,
    /// How often it became its domain's gateway.
    pub(super) terms: AtomicU64,
    pub(super) patience: Mutex<Patience>,
}

impl Presence {
    /// A node that nobody has seen yet.
    pub fn new(patience: Patience) -> Self {
        Presence {
            joined: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            terms: AtomicU64::new(0),
            patience: Mutex::new(patience),
        }
    }

    /// How long it still waits for somebody who leads it, if it does and that ends.
    pub fn left(&self, now: Micros) -> Option<Duration> {
        self.patience().left(now)
    }

    pub(super) fn patience(&self) -> MutexGuard<'_, Patience> {
        self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody may wait for it: it has been in touch with who gives it work.
    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }
}
