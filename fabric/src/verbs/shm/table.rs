//! What a device and its listener thread share: regions, grants and the board.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::board::{self, Board};
use crate::error::{FabricError, system};
use crate::folder::random;
use crate::region::DeviceId;
use crate::verbs::{GRANTS_MAX, Limits, REGIONS_MAX, Stats, Token, check_room, too_many_grants};

/// One device's state.
pub(super) struct Shared {
    pub(super) owner: String,
    pub(super) id: DeviceId,
    pub(super) limits: Limits,
    /// Queue pairs that this device connected.
    pub(super) queue_pairs: AtomicUsize,
    board: Board,
    board_file: OwnedFd,
    wake: OwnedFd,
    closed: AtomicBool,
    table: Mutex<Table>,
}

struct Table {
    /// Taken seats whose region is being made hold `None`.
    regions: BTreeMap<u16, Option<Entry>>,
    bytes: u64,
    grants: BTreeMap<String, Grant>,
    /// The last number given to a region or grant. Begins at random, so that what names a region of a dead device of this owner names
    /// nothing in its successor.
    last: u64,
}

struct Entry {
    key: u64,
    len: u64,
    file: Arc<OwnedFd>,
}

#[derive(Clone, Copy)]
struct Grant {
    token: Token,
    pass: Pass,
}

/// What a connection proves at each request and a reader at each READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) seat: u16,
    pub(super) grant: u64,
}

impl Shared {
    pub(super) fn new(owner: &str, limits: Limits) -> Result<Shared, FabricError> {
        let (board, board_file) = Board::new().map_err(system("making the board"))?;
        // 40 random bits leave 8 of the 48 that fit above a seat: a thousand regions a second for seven thousand years.
        let last = random::<8>()
            .map(u64::from_le_bytes)
            .map_err(system("drawing random bytes"))?
            >> 24;
        Ok(Shared {
            owner: owner.to_owned(),
            id: DeviceId::next(),
            limits,
            queue_pairs: AtomicUsize::new(0),
            board,
            board_file,
            wake: super::wake().map_err(system("making an event descriptor"))?,
            closed: AtomicBool::new(false),
            table: Mutex::new(Table {
                regions: BTreeMap::new(),
                bytes: 0,
                grants: BTreeMap::new(),
                last,
            }),
        })
    }

    /// Takes a seat and the bytes before the region is made, which can take long.
    pub(super) fn reserve(&self, bytes: usize) -> Result<u16, FabricError> {
        let mut table = self.table();
        if self.is_closed() {
            return Err(FabricError::Closed {
                owner: self.owner.clone(),
            });
        }
        check_room(&self.limits, table.regions.len(), table.bytes, bytes)?;
        let seat = free_seat(table.regions.keys().copied(), REGIONS_MAX)
            .expect("fewer regions than seats, checked above");
        table.regions.insert(seat, None);
        table.bytes += bytes as u64;
        Ok(seat)
    }

    /// Gives a reserved seat back.
    pub(super) fn release(&self, seat: u16, bytes: usize) {
        let mut table = self.table();
        table.regions.remove(&seat);
        table.bytes -= bytes as u64;
    }

    /// Lets peers have the region in a reserved seat.
    pub(super) fn export(&self, seat: u16, bytes: usize, file: OwnedFd) -> u64 {
        let mut table = self.table();
        let key = board::key(table.number(), seat);
        table.regions.insert(
            seat,
            Some(Entry {
                key,
                len: bytes as u64,
                file: Arc::new(file),
            }),
        );
        self.board.set_region(seat, key);
        key
    }

    /// Takes a region from the peers.
    pub(super) fn withdraw(&self, key: u64, bytes: usize) {
        let seat = board::seat(key);
        self.board.set_region(seat, 0);
        self.release(seat, bytes);
    }

    /// Where a peer finds the region: its length and descriptor.
    pub(super) fn region(&self, key: u64) -> Option<(u64, Arc<OwnedFd>)> {
        let table = self.table();
        let entry = table.regions.get(&board::seat(key))?.as_ref()?;
        (entry.key == key).then(|| (entry.len, entry.file.clone()))
    }

    /// Draws a token for `peer`; an older one ends.
    pub(super) fn grant(&self, peer: &str) -> Result<Token, FabricError> {
        let token = random().map_err(system("drawing random bytes"))?;
        let mut table = self.table();
        if self.is_closed() {
            return Err(FabricError::Closed {
                owner: self.owner.clone(),
            });
        }
        let seat = match table.grants.get(peer) {
            Some(old) => old.pass.seat,
            None => free_seat(
                table.grants.values().map(|grant| grant.pass.seat),
                GRANTS_MAX,
            )
            .ok_or_else(too_many_grants)?,
        };
        let pass = Pass {
            seat,
            grant: table.number(),
        };
        table.grants.insert(peer.to_owned(), Grant { token, pass });
        self.board.set_grant(seat, pass.grant);
        drop(table);
        self.wake();
        Ok(token)
    }

    pub(super) fn revoke(&self, peer: &str) {
        if let Some(grant) = self.table().grants.remove(peer) {
            self.board.set_grant(grant.pass.seat, 0);
        }
        self.wake();
    }

    /// The pass for a peer that knows its token.
    pub(super) fn admit(&self, peer: &str, token: &Token) -> Option<Pass> {
        let table = self.table();
        let grant = table.grants.get(peer)?;
        // All bytes are looked at, so that the time taken tells nothing of where they differ.
        let difference = grant
            .token
            .iter()
            .zip(token)
            .fold(0, |sum, (a, b)| sum | (a ^ b));
        (difference == 0).then_some(grant.pass)
    }

    /// Whether the pass still holds.
    pub(super) fn holds(&self, peer: &str, pass: Pass) -> bool {
        self.table()
            .grants
            .get(peer)
            .is_some_and(|grant| grant.pass == pass)
    }

    /// Ends all grants and stops the listener. Regions stay the owner's.
    pub(super) fn close(&self) {
        let mut table = self.table();
        self.closed.store(true, Ordering::Release);
        self.board.close();
        table.grants.clear();
        drop(table);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn board_file(&self) -> BorrowedFd<'_> {
        self.board_file.as_fd()
    }

    /// Readable when the listener must look at `is_closed` and the grants.
    pub(super) fn wake_file(&self) -> &OwnedFd {
        &self.wake
    }

    pub(super) fn stats(&self) -> Stats {
        let table = self.table();
        Stats {
            regions: table.regions.len(),
            bytes: table.bytes,
            queue_pairs: self.queue_pairs.load(Ordering::Relaxed),
        }
    }

    fn wake(&self) {
        // Fails only when the counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// A panic elsewhere leaves a whole table behind: no change under this lock can stop in the middle.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// The lowest seat that is not taken.
fn free_seat(taken: impl Iterator<Item = u16>, seats: usize) -> Option<u16> {
    let mut free = vec![true; seats];
    for seat in taken {
        free[usize::from(seat)] = false;
    }
    free.iter().position(|&free| free).map(|seat| seat as u16)
}
