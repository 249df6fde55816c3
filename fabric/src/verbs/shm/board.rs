//! The board: a shared table of words that tells readers what still holds.
//!
//! Word `i` of the first part is the key of the region in seat `i`, or zero. Word `i` of the second part is the number of the grant in
//! seat `i`, or zero. The last word is one until the device is closed. Only the owner writes. A lying owner can only make reads of its own memory fail.

use std::io;

use rustix::fd::{BorrowedFd, OwnedFd};

use crate::pages::{ForeignPages, MapError, Words};
use crate::verbs::{GRANTS_MAX, REGIONS_MAX};

const WORDS: usize = REGIONS_MAX + GRANTS_MAX + 1;

/// The word that says whether the device is open.
const OPEN: usize = WORDS - 1;

/// Keys carry their seat in the low bits, and a number that never repeats above.
const SEAT_BITS: u32 = 16;

const _: () = assert!(REGIONS_MAX <= 1 << SEAT_BITS && GRANTS_MAX <= 1 << SEAT_BITS);

/// The key of the region number `number` in `seat`.
pub(super) fn key(number: u64, seat: u16) -> u64 {
    number << SEAT_BITS | u64::from(seat)
}

/// The seat in a key.
pub(super) fn seat(key: u64) -> u16 {
    key as u16
}

/// The owner's side.
pub(super) struct Board(Words);

impl Board {
    pub(super) fn new() -> io::Result<(Board, OwnedFd)> {
        let (words, file) = Words::shared(WORDS)?;
        words.set(OPEN, 1);
        Ok((Board(words), file))
    }

    pub(super) fn set_region(&self, seat: u16, key: u64) {
        self.0.set(usize::from(seat), key);
    }

    pub(super) fn set_grant(&self, seat: u16, grant: u64) {
        self.0.set(REGIONS_MAX + usize::from(seat), grant);
    }

    pub(super) fn close(&self) {
        self.0.set(OPEN, 0);
    }
}

/// A reader's side.
pub(super) struct ForeignBoard(ForeignPages);

impl ForeignBoard {
    pub(super) fn map(file: BorrowedFd<'_>) -> Result<ForeignBoard, MapError> {
        ForeignPages::map(file, WORDS as u64 * 8).map(ForeignBoard)
    }

    /// Whether the owner has not closed its device; one that was killed has not.
    pub(super) fn is_open(&self) -> bool {
        self.0.word(OPEN) == 1
    }

    /// Whether the key names a region now.
    pub(super) fn has_region(&self, key: u64) -> bool {
        let seat = usize::from(seat(key));
        key != 0 && seat < REGIONS_MAX && self.0.word(seat) == key
    }

    /// Whether the grant holds now.
    pub(super) fn has_grant(&self, seat: u16, grant: u64) -> bool {
        let seat = usize::from(seat);
        grant != 0 && seat < GRANTS_MAX && self.0.word(REGIONS_MAX + seat) == grant
    }
}
