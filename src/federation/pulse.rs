//! Whether a process still works: its arbiters take a turn each. What holds one of them up for long makes a node look dead to its peers, and a
//! supervisor should know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_actors::env::{Class, Env};

/// Between two turns.
const PERIOD: Duration = Duration::from_millis(50);

/// The arbiters that every node needs. A rule of a user's own may block its own one, which is said elsewhere.
const CLASSES: [Class; 3] = [Class::Network, Class::Gateway, Class::Node];

/// The turns of a process's arbiters.
pub struct Pulse {
    beats: [Arc<AtomicU64>; CLASSES.len()],
    seen: [u64; CLASSES.len()],
}

impl Pulse {
    /// Begins to count, for as long as that node's tasks run.
    pub(super) fn start(env: &Arc<dyn Env>) -> Self {
        let beats = CLASSES.map(|class| {
            let beats = Arc::new(AtomicU64::new(0));
            let (beat, on) = (beats.clone(), env.clone());
            let turn = async move {
                loop {
                    beat.fetch_add(1, Ordering::Relaxed);
                    on.sleep(PERIOD).await;
                }
            };
            env.spawn(class, Box::new(move || Box::pin(turn)));
            beats
        });
        Pulse {
            beats,
            seen: [0; CLASSES.len()],
        }
    }

    /// Whether all of them have had a turn since this was last asked.
    pub fn beats(&mut self) -> bool {
        let mut all = true;
        for (beat, seen) in self.beats.iter().zip(&mut self.seen) {
            let now = beat.load(Ordering::Relaxed);
            all &= now > *seen;
            *seen = now;
        }
        all
    }
}
