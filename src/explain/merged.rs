//! The records of several processes as one, in the order of the coordinator's clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit, setrlimit};

use super::clocks::{Clocks, Place, Survey};
use super::{Chronicle, ExplainError, Past};

/// An event and when it happened on the coordinator's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// Which of the records tells of it.
    pub record: usize,
    /// The event, at seconds since the first moment that was recorded; all of it is one life.
    pub past: Past,
    /// How far off that may be, in seconds; none if nothing is known of that.
    pub bound: Option<f64>,
}

/// Reads several records at once; memory does not grow with their length.
pub struct Merged<I> {
    records: Vec<I>,
    clocks: Clocks,
    /// The next event of each record, the earliest first.
    heads: BinaryHeap<Reverse<Head>>,
    unplaced: u64,
}

struct Head {
    /// Times are not negative, so their bits are in order, too.
    key: (u64, usize),
    placed: Placed,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl Merged<Chronicle> {
    /// Opens every record of these state folders.
    ///
    /// # Errors
    /// A folder has none.
    pub fn open(folders: &[PathBuf]) -> Result<Self, ExplainError> {
        let mut survey = Survey::default();
        for (record, mut chronicle) in Chronicle::open_each(folders)?.into_iter().enumerate() {
            chronicle
                .by_ref()
                .for_each(|past| survey.take(record, &past));
        }
        allow_files();
        let records = Chronicle::open_each(folders)?;
        Ok(Merged::new(survey.settle(), records))
    }

    /// Lines so far that are no events of this version.
    pub fn unreadable(&self) -> u64 {
        self.records.iter().map(Chronicle::unreadable).sum()
    }

    /// Files so far that could not be read to their end, and why.
    pub fn damaged(&self) -> impl Iterator<Item = &str> {
        let damaged = self.records.iter().flat_map(Chronicle::damaged);
        damaged.map(String::as_str)
    }
}

/// All records are open at once: as many files as the system allows this process at all, which is more than it begins with.
fn allow_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // What cannot be opened then is told as left out.
    let _ = setrlimit(Resource::Nofile, limit);
}

impl<I: Iterator<Item = Past>> Merged<I> {
    /// Records that were surveyed, in the same order.
    pub fn new(clocks: Clocks, records: Vec<I>) -> Self {
        let mut merged = Merged {
            heads: BinaryHeap::new(),
            unplaced: 0,
            clocks,
            records,
        };
        (0..merged.records.len()).for_each(|record| merged.refill(record));
        merged
    }

    /// How the clocks of the records lie to each other.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Events so far whose time on the coordinator's clock cannot be told.
    pub fn unplaced(&self) -> u64 {
        self.unplaced
    }

    fn refill(&mut self, record: usize) {
        for past in self.records[record].by_ref() {
            let Some(Place { at, bound }) = self.clocks.place(record, &past) else {
                self.unplaced += u64::from(!self.clocks.repeats(record, past.life));
                continue;
            };
            let event = past.event;
            let past = Past { at, life: 0, event };
            let key = (at.to_bits(), record);
            let placed = Placed {
                record,
                past,
                bound,
            };
            self.heads.push(Reverse(Head { key, placed }));
            return;
        }
    }
}

impl<I: Iterator<Item = Past>> Iterator for Merged<I> {
    type Item = Placed;

    fn next(&mut self) -> Option<Placed> {
        let Reverse(Head { placed, .. }) = self.heads.pop()?;
        self.refill(placed.record);
        Some(placed)
    }
}
