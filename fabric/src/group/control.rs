//! The words of a group: the gate, and a line for each rank that says what it came for.

use super::gate::Gate;
use super::slab::Words;
use super::{Call, RANKS_MAX};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Two cache lines, because they are fetched in pairs: no rank's word lies beside another's.
const LINE: usize = 128;

pub(super) const CONTROL_LENGTH: usize = LINE * (2 + RANKS_MAX);

pub(super) struct Control {
    words: Words,
    ranks: usize,
}

impl Control {
    pub(super) fn new(words: Words, ranks: usize) -> Control {
        Control { words, ranks }
    }

    pub(super) fn gate(&self) -> Gate<'_, AtomicU32> {
        Gate {
            phase: self.words.word(0),
            arrived: self.words.word(LINE),
            ranks: self.ranks as u32,
        }
    }

    /// Says what a rank comes for, before it arrives.
    pub(super) fn announce(&self, rank: usize, call: Call, contribution: u64) {
        self.line(rank, 0).store(call.what, Ordering::Relaxed);
        self.line(rank, 1).store(call.count, Ordering::Relaxed);
        self.line(rank, 2).store(contribution, Ordering::Relaxed);
    }

    /// What a rank has announced: known of the others once they have arrived.
    pub(super) fn announced(&self, rank: usize) -> Call {
        Call {
            what: self.line(rank, 0).load(Ordering::Relaxed),
            count: self.line(rank, 1).load(Ordering::Relaxed),
        }
    }

    pub(super) fn contribution(&self, rank: usize) -> u64 {
        self.line(rank, 2).load(Ordering::Relaxed)
    }

    /// Notes that a rank has arrived: to name those who have not.
    pub(super) fn note(&self, rank: usize, turn: u16) {
        let noted = 1 << 16 | u64::from(turn);
        self.line(rank, 3).store(noted, Ordering::Relaxed);
    }

    /// The first rank that has not arrived.
    pub(super) fn missing(&self, turn: u16) -> Option<usize> {
        (0..self.ranks).find(|&rank| !self.is_noted(rank, turn))
    }

    /// Whether a rank has arrived, as far as it has said so.
    pub(super) fn is_noted(&self, rank: usize, turn: u16) -> bool {
        let noted = 1 << 16 | u64::from(turn);
        self.line(rank, 3).load(Ordering::Relaxed) == noted
    }

    fn line(&self, rank: usize, index: usize) -> &AtomicU64 {
        self.words.long(LINE * (2 + rank) + 8 * index)
    }
}
