//! The current connection, as others see it: the heartbeat, status and statistics.

use std::sync::atomic::{self, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use quinn::Connection;
use tokio::sync::Notify;

use super::Trouble;
use tombolo_core::event::Shrunk;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;

/// What a link shares with its heartbeat and with statistics; outlives the actor and its connections.
#[derive(Debug, Default)]
pub struct Wire {
    connection: ArcSwapOption<Connection>,
    agreed: ArcSwapOption<Agreed>,
    changed: Notify,
    heard: AtomicU64,
    until: AtomicU64,
    trouble: Mutex<Option<String>>,
    other_topology: ArcSwapOption<Hash>,
    sent_before: AtomicU64,
    received_before: AtomicU64,
    models_plain: AtomicU64,
    models_travelled: AtomicU64,
}

/// A connection whose two sides have shaken hands.
#[derive(Debug)]
pub struct Agreed {
    /// It.
    pub connection: Connection,
    /// How often the peer sends a heartbeat.
    pub every: Duration,
    /// The peer's incarnation.
    pub life: u64,
}

impl Agreed {
    /// Frames of streams received: a peer whose bytes come in lives.
    pub fn frames(&self) -> u64 {
        self.connection.stats().frame_rx.stream
    }
}

impl Wire {
    /// The connection now.
    pub fn connection(&self) -> Option<Arc<Connection>> {
        self.connection.load_full()
    }

    /// The connection now, once its handshake is done.
    pub fn agreed(&self) -> Option<Arc<Agreed>> {
        self.agreed.load_full()
    }

    /// Ends when [`Wire::agreed`] has changed; for one listener.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The last frame.
    pub fn heard(&self) -> Micros {
        Micros(self.heard.load(atomic::Ordering::Relaxed))
    }

    /// When the first certificate ends with which the connection was made, in seconds since 1970; 0 without one.
    pub fn until(&self) -> u64 {
        match self.connection.load().is_some() {
            true => self.until.load(atomic::Ordering::Relaxed),
            false => 0,
        }
    }

    pub(super) fn set_until(&self, until: u64) {
        self.until.store(until, atomic::Ordering::Relaxed);
    }

    /// By which topology the peer goes, if that is why there is no connection.
    pub fn other_topology(&self) -> Option<Hash> {
        let other = self.other_topology.load_full();
        other.as_deref().copied()
    }

    pub(super) fn note_topology(&self, other: Option<Hash>) {
        self.other_topology.store(other.map(Arc::new));
    }

    /// Why there is no connection, as last heard.
    pub fn trouble(&self) -> Option<String> {
        self.lock_trouble().clone()
    }

    /// UDP payload sent and received over all connections of this link.
    pub fn traffic(&self) -> (u64, u64) {
        let now = self.connection().map_or((0, 0), |connection| {
            let stats = connection.stats();
            (stats.udp_tx.bytes, stats.udp_rx.bytes)
        });
        (
            self.sent_before.load(atomic::Ordering::Relaxed) + now.0,
            self.received_before.load(atomic::Ordering::Relaxed) + now.1,
        )
    }

    /// Models that were sent through a lossless stage.
    pub fn models(&self) -> Shrunk {
        Shrunk {
            plain: self.models_plain.load(atomic::Ordering::Relaxed),
            travelled: self.models_travelled.load(atomic::Ordering::Relaxed),
        }
    }

    pub(super) fn note_model(&self, sent: Shrunk) {
        self.models_plain
            .fetch_add(sent.plain, atomic::Ordering::Relaxed);
        self.models_travelled
            .fetch_add(sent.travelled, atomic::Ordering::Relaxed);
    }

    pub(super) fn note_life(&self, now: Micros) {
        self.heard.fetch_max(now.0, atomic::Ordering::Relaxed);
    }

    pub(super) fn note_trouble(&self, trouble: Option<&Trouble>) {
        *self.lock_trouble() = trouble.map(|trouble| trouble.reason.clone());
    }

    fn lock_trouble(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn agree(&self, agreed: Agreed) {
        self.agreed.store(Some(Arc::new(agreed)));
        self.changed.notify_one();
    }

    pub(super) fn replace(&self, next: Option<Arc<Connection>>) {
        self.agreed.store(None);
        self.changed.notify_one();
        if let Some(last) = self.connection.swap(next) {
            self.add(&last);
        }
    }

    /// Puts another connection in the place of one that goes on for a while; says what was counted of that one.
    pub(super) fn hand_over(&self, old: &Connection, next: Arc<Connection>) -> (u64, u64) {
        let stats = old.stats();
        self.replace(Some(next));
        (stats.udp_tx.bytes, stats.udp_rx.bytes)
    }

    /// Adds the traffic of a connection that ended.
    pub(super) fn add(&self, connection: &Connection) {
        self.add_since(connection, (0, 0));
    }

    /// Adds what a connection that ended has carried beyond what was counted of it.
    pub(super) fn add_since(&self, connection: &Connection, counted: (u64, u64)) {
        let stats = connection.stats();
        let sent = stats.udp_tx.bytes.saturating_sub(counted.0);
        let received = stats.udp_rx.bytes.saturating_sub(counted.1);
        self.sent_before.fetch_add(sent, atomic::Ordering::Relaxed);
        self.received_before
            .fetch_add(received, atomic::Ordering::Relaxed);
    }
}
