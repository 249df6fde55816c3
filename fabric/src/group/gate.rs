//! The gate where ranks meet: one word says which turn it is and whether the group has failed, another counts who has arrived.
//!
//! A turn ends once, by a single exchange of the word: either the last rank to arrive opens the gate, or somebody who waits in vain closes it for
//! good and says whose fault it was. So all ranks learn the same: a turn was passed by all or by none. Who was away for long finds a later turn or
//! the failure, and can take part in nothing that it does not know of.
//!
//! A rank that goes to sleep marks the word first, so that nobody calls the kernel to wake ranks that are awake.

#[cfg(test)]
mod tests;

use std::time::Duration;

/// A word of shared memory that one can sleep on.
pub(super) trait Word {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    /// Adds and gives what was there before.
    fn add(&self, value: u32) -> u32;
    /// Exchanges what is `expected`; else gives what is there.
    fn exchange(&self, expected: u32, value: u32) -> Result<(), u32>;
    /// Sleeps for a while, or until woken, if the value is `expected`.
    fn sleep(&self, expected: u32, span: Duration);
    fn wake(&self);
}

/// Why a group has failed, and whose fault it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    pub(super) rank: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Its process has ended.
    Dead,
    /// It did not come in time.
    Late,
    /// It came for something else than rank 0 did.
    Mismatch,
    /// It gave up.
    Left,
}

/// What is known of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Not all have arrived.
    Waiting,
    /// All have.
    Passed,
    /// Nobody will pass it.
    Failed(Failure),
}

/// The words, as one rank uses them.
pub(super) struct Gate<'a, W> {
    pub(super) phase: &'a W,
    pub(super) arrived: &'a W,
    pub(super) ranks: u32,
}

// The phase: the turn's number in the low half, then the reason and the rank of a failure, then the mark of sleepers. A rank is never more than
// one turn behind another, so that half of a word tells turns apart.
const REASON: u32 = 16;
const RANK: u32 = 20;
const SLEEPERS: u32 = 1 << 31;

impl<W: Word> Gate<'_, W> {
    /// Arrives. The last to do so opens the gate, unless `judge` says why not. Once for each turn and rank.
    pub(super) fn arrive(&self, turn: u16, judge: impl FnOnce() -> Option<Failure>) -> Turn {
        if self.arrived.add(1) + 1 == self.ranks {
            // Nobody arrives for the next turn before this one is passed.
            self.arrived.store(0);
            let next = match judge() {
                None => u32::from(turn.wrapping_add(1)),
                Some(failure) => failed(turn, failure),
            };
            self.end(turn, next);
        }
        self.look(turn)
    }

    /// What has become of the turn.
    pub(super) fn look(&self, turn: u16) -> Turn {
        read(self.phase.load(), turn)
    }

    /// Gives the group up, unless the turn has ended. Gives what became of it.
    pub(super) fn fail(&self, turn: u16, failure: Failure) -> Turn {
        self.end(turn, failed(turn, failure));
        self.look(turn)
    }

    /// Sleeps for a while, or until the turn has ended.
    pub(super) fn sleep(&self, turn: u16, span: Duration) {
        let mut word = self.phase.load();
        while read(word, turn) == Turn::Waiting {
            let marked = word | SLEEPERS;
            match self.phase.exchange(word, marked) {
                Ok(()) => return self.phase.sleep(marked, span),
                Err(found) => word = found,
            }
        }
    }

    fn end(&self, turn: u16, next: u32) {
        let mut word = self.phase.load();
        while read(word, turn) == Turn::Waiting {
            match self.phase.exchange(word, next) {
                Ok(()) if word & SLEEPERS != 0 => return self.phase.wake(),
                Ok(()) => return,
                Err(found) => word = found,
            }
        }
    }
}

fn failed(turn: u16, failure: Failure) -> u32 {
    u32::from(turn) | (failure.reason as u32 + 1) << REASON | u32::from(failure.rank) << RANK
}

fn read(word: u32, turn: u16) -> Turn {
    let reason = match (word >> REASON) & 0xf {
        _ if word as u16 != turn => return Turn::Passed,
        0 => return Turn::Waiting,
        1 => Reason::Dead,
        2 => Reason::Late,
        3 => Reason::Mismatch,
        _ => Reason::Left,
    };
    Turn::Failed(Failure {
        reason,
        rank: (word >> RANK) as u8 & 0x7f,
    })
}
