//! Batches that are gathered into a buffer before each step: by the thread that trains, or ahead of it by a second one.
//!
//! The built-in trainers gather nothing, they read each row where it lies. So what is measured here is what a gathering costs them, and what
//! of it a second thread hides.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tombolo::learn::{Digits, PIXELS};
use tombolo_core::trainer::{Snapshot, Snapshots};

/// Batches that wait for the trainer: one is filled while another is in use.
const AHEAD: usize = 1;

/// The rows of a node, pass after pass, in one order.
#[derive(Debug, Clone)]
pub struct Batches {
    pub digits: &'static Digits,
    /// At least one.
    pub rows: Vec<usize>,
    /// Rows of a batch; the last of a pass is short.
    pub batch: usize,
}

impl Batches {
    /// Copies a batch, counted from the first of the first pass, into the buffer.
    fn gather(&self, batch: usize, into: &mut Vec<f32>) {
        let start = batch % self.rows.len().div_ceil(self.batch) * self.batch;
        let end = self.rows.len().min(start + self.batch);
        into.clear();
        for row in &self.rows[start..end] {
            into.extend_from_slice(self.digits.image(*row));
        }
    }

    fn buffer(&self) -> Vec<f32> {
        Vec::with_capacity(self.batch * PIXELS)
    }
}

/// The thread that trains gathers. A trainer asks after each step whether a snapshot is due: that is where the next batch is gathered.
#[derive(Debug)]
pub struct Gathered {
    batches: Batches,
    next: Cell<usize>,
    buffer: RefCell<Vec<f32>>,
}

impl Gathered {
    pub fn new(batches: Batches) -> Self {
        Gathered {
            buffer: RefCell::new(batches.buffer()),
            batches,
            next: Cell::new(0),
        }
    }
}

impl Snapshots for Gathered {
    fn are_due(&self) -> bool {
        let mut buffer = self.buffer.borrow_mut();
        self.batches.gather(self.next.get(), &mut buffer);
        self.next.set(self.next.get() + 1);
        black_box(&*buffer);
        false
    }

    fn take(&mut self, _: Snapshot<'_>) {}
}

/// What another thread has gathered. That thread ends when this is dropped.
#[derive(Debug)]
pub struct Prefetched {
    filled: Receiver<Vec<f32>>,
    used: SyncSender<Vec<f32>>,
    buffer: RefCell<Vec<f32>>,
}

/// The other end of a [`Prefetched`].
#[derive(Debug)]
pub struct Gatherer {
    batches: Batches,
    filled: SyncSender<Vec<f32>>,
    used: Receiver<Vec<f32>>,
}

/// Two buffers, one on each side.
pub fn ahead(batches: Batches) -> (Prefetched, Gatherer) {
    let (filled, to_train) = sync_channel(AHEAD);
    let (used, to_fill) = sync_channel(AHEAD + 1);
    // There is room for it, and the other end is in scope.
    let _ = used.send(batches.buffer());
    let prefetched = Prefetched {
        filled: to_train,
        used,
        buffer: RefCell::new(batches.buffer()),
    };
    let gatherer = Gatherer {
        batches,
        filled,
        used: to_fill,
    };
    (prefetched, gatherer)
}

impl Gatherer {
    /// Fills what comes back, until nobody trains.
    pub fn run(self) {
        for batch in 0.. {
            let Ok(mut buffer) = self.used.recv() else {
                return;
            };
            self.batches.gather(batch, &mut buffer);
            if self.filled.send(buffer).is_err() {
                return;
            }
        }
    }
}

impl Snapshots for Prefetched {
    fn are_due(&self) -> bool {
        let mut buffer = self.buffer.borrow_mut();
        // If the other thread panicked, whoever joins it says so.
        if let Ok(next) = self.filled.recv() {
            let _ = self.used.send(std::mem::replace(&mut *buffer, next));
        }
        black_box(&*buffer);
        false
    }

    fn take(&mut self, _: Snapshot<'_>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_batches_come_from_either_thread_pass_after_pass() {
        let digits = Digits::load().unwrap();
        let batches = Batches {
            digits,
            rows: vec![7, 3, 5],
            batch: 2,
        };
        let rows = |rows: &[usize]| {
            let images = rows.iter().flat_map(|row| digits.image(*row));
            images.copied().collect::<Vec<f32>>()
        };
        let expected = [rows(&[7, 3]), rows(&[5]), rows(&[7, 3])];
        let here = Gathered::new(batches.clone());
        let (there, gatherer) = ahead(batches);
        std::thread::scope(|scope| {
            scope.spawn(|| gatherer.run());
            // Dropped at the end of this scope, whatever fails: else the other thread would not end.
            let there = there;
            for batch in expected {
                assert!(!here.are_due() && !there.are_due());
                assert_eq!(*here.buffer.borrow(), batch);
                assert_eq!(*there.buffer.borrow(), batch);
            }
        });
    }
}
