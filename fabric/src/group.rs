//! Groups for step mode: ranks of one machine that write into each other's memory.
//!
//! The verbs of this crate only READ, because in a round a node that wakes up late must not be able to destroy anything. Inside one step of
//! data-parallel training that is another matter: when a step fails it is computed again, and memory speed is all that counts. So the ranks of a
//! [`Group`] (processes or threads of one user on one machine) share [`Buffer`]s that all of them map for writing, and meet at a gate made
//! of a few words of shared memory: a bounded spin, then the kernel's futex; no spin at all when there are more ranks than cores.
//!
//! One rank, the first, makes a [`Founding`] and gives each other rank an invitation, over a link that has authenticated it. A rank joins with it
//! over a UNIX socket whose name nobody can guess; the kernel says whose process it is, and gives a descriptor of its life. All memory comes from
//! the first rank as descriptors over those sockets.
//!
//! Every wait ends: when all have come, when a rank has died or left, or at the deadline. The group has then failed for all ranks, and each is told
//! the same rank to blame. Buffers of an operation that failed are retired: their memory is never handed to another group, since a rank that
//! was only stopped may still write it; the kernel frees it when the last rank that maps it has ended. The others found a new group.
//!
//! ```
//! use std::time::Duration;
//! use tombolo_fabric::group::{Call, Founding, Group};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let place = tempfile::tempdir()?;
//! # let folder = place.path().join("fabric");
//! let wait = Duration::from_secs(10);
//! let founding = Founding::new(&folder, &["hq/a", "hq/b"])?;
//! let invitation = founding.invitation(1);
//! // The invitation travels over the control link. Here the other rank is a thread.
//! let other = std::thread::spawn({
//!     let folder = folder.clone();
//!     move || step(Group::join(&folder, "hq/b", &invitation, wait).unwrap())
//! });
//! assert_eq!(step(founding.found(wait)?), [1, 2]);
//! assert_eq!(other.join().unwrap(), [1, 2]);
//!
//! /// Each rank tells the others its number.
//! fn step(mut group: Group) -> Vec<u8> {
//!     let (rank, ranks) = (group.rank(), group.ranks());
//!     let mut buffer = group.allocate(ranks).unwrap();
//!     let operation = group.begin(&mut buffer, Call { what: 1, count: 1 }, 0).unwrap();
//!     for other in 0..ranks {
//!         operation.write(other, rank, &[rank as u8 + 1]);
//!     }
//!     operation.finish().unwrap();
//!     buffer.bytes().unwrap().to_vec()
//! }
//! # Ok(())
//! # }
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time"
)]

#[expect(
    unsafe_code,
    reason = "a rank's own part of the shared memory is a slice between operations"
)]
mod buffer;
mod control;
mod error;
mod gate;
mod message;
mod rendezvous;
#[expect(
    unsafe_code,
    reason = "memory that other processes write is reached through raw pointers"
)]
mod slab;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::RecvFlags;

use crate::error::{FabricError, system};
use crate::pages::{self, MapError};
use control::Control;
use gate::{Failure, Reason, Turn};
use message::{Message, NoMessage};
use slab::Slab;

pub use buffer::{Buffer, Operation};
pub use error::GroupError;
pub use rendezvous::Founding;

/// Most ranks of a group: more than a machine has processes that train. Each costs every rank a descriptor.
pub const RANKS_MAX: usize = 64;

/// How often a rank looks for the others before it sleeps, at most: a few hundred microseconds, so that ranks which are equally fast never sleep.
/// It looks half as often after each time in vain, down to the least, since the rank that it waits for may need this very core.
const SPINS: u32 = 20_000;
const SPINS_MIN: u32 = 250;

/// How often it gives the processor to another before it sleeps. Where ranks share a processor, the one that is waited for may be next.
const YIELDS: u32 = 50;

/// How long a process may still be there after its sockets have closed: the kernel takes it apart in that order.
const ENDING: Duration = Duration::from_secs(1);

/// The first sleep, which doubles up to the longest: after each, dead ranks and the deadline are looked for.
const NAP: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(20);

/// What `Call::what` is for calls of the group itself.
const ALLOCATE: u64 = u64::MAX;
const BARRIER: u64 = u64::MAX - 1;

/// What a rank comes to a meeting for. All must come for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Which operation, as the caller numbers them; the two greatest numbers are the group's own.
    pub what: u64,
    /// On how much.
    pub count: u64,
}

/// One rank's place in a group.
pub struct Group {
    id: u64,
    rank: usize,
    names: Vec<String>,
    control: Control,
    /// A descriptor of each rank's process, readable once it has ended.
    lives: Vec<OwnedFd>,
    /// Of the first rank: to each other rank, in order. Of another: to the first.
    sockets: Vec<OwnedFd>,
    turn: u16,
    wait: Duration,
    spins: u32,
    yields: u32,
    doubts: Arc<AtomicU64>,
}

impl Group {
    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn ranks(&self) -> usize {
        self.names.len()
    }

    /// Who they are, by rank.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Chooses how long others may keep this rank waiting at a meeting; until then it is as long as it waited for them to join.
    pub fn set_wait(&mut self, wait: Duration) {
        self.wait = wait;
    }

    /// Ranks, by bit, of which somebody who watches them gets no sign of life: they are waited for no longer. Whoever watches sets the bits, also while this
    /// rank waits.
    pub fn doubts(&self) -> Arc<AtomicU64> {
        self.doubts.clone()
    }

    /// Sleeps at once where it would look for the others again and again, because the processors have better to do.
    pub fn rest_while_waiting(&mut self) {
        (self.spins, self.yields) = (0, 0);
    }

    /// A buffer of so many bytes for each rank, zeroed, reserved and mapped. All ranks must ask for it.
    ///
    /// # Errors
    ///
    /// [`FabricError::Exhausted`] if the machine has no room: the group goes on. Else the group has failed.
    pub fn allocate(&mut self, bytes: usize) -> Result<Buffer, GroupError> {
        if bytes == 0 {
            return Err(FabricError::EmptyRegion.into());
        }
        self.meet(Some((
            Call {
                what: ALLOCATE,
                count: bytes as u64,
            },
            0,
        )))?;
        let memory = match self.rank {
            0 => self.hand_out(bytes),
            _ => self.take_memory(),
        };
        let (file, stride) = match memory {
            Ok(memory) => memory,
            // All are told so.
            Err(error @ FabricError::Exhausted { .. }) => return Err(error.into()),
            Err(error) => return Err(self.failed_with(error)),
        };
        match self.map(&file, stride, bytes) {
            Ok(slab) => Ok(Buffer::new(slab, stride, bytes, self.rank, self.id)),
            Err(error @ GroupError::Fabric(_)) => {
                self.give_up();
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    ///
    /// Names the rank that is to blame; the group has failed.
    pub fn barrier(&mut self) -> Result<(), GroupError> {
        let call = Call {
            what: BARRIER,
            count: 0,
        };
        self.meet(Some((call, 0)))
    }

    /// Begins an operation of all ranks on a buffer; gives each rank's contribution to all.
    ///
    /// # Errors
    ///
    /// Names the rank that is to blame, which may be one that came for something else; the group has failed. Or the buffer does not fit, and nothing
    /// has happened.
    pub fn begin<'a>(
        &'a mut self,
        buffer: &'a mut Buffer,
        call: Call,
        contribution: u64,
    ) -> Result<Operation<'a>, GroupError> {
        Operation::check(self, buffer)?;
        self.meet(Some((call, contribution)))?;
        Ok(Operation::begun(self, buffer))
    }

    /// The first meeting. Spins are for ranks that each have a processor, also if each is bound to one of its own.
    fn convene(&mut self) -> Result<(), GroupError> {
        let call = Call {
            what: BARRIER,
            count: 0,
        };
        self.meet(Some((call, processors())))?;
        let of_rank = |rank| self.control.contribution(rank);
        let processors = (0..self.ranks()).fold(0, |all, rank| all | of_rank(rank));
        if self.ranks() <= processors.count_ones() as usize {
            self.spins = SPINS;
        }
        // Nobody contributes anew before all have read it.
        self.barrier()
    }

    /// Meets all other ranks, and says what for if they may have come for something else.
    fn meet(&mut self, why: Option<(Call, u64)>) -> Result<(), GroupError> {
        if let Some((call, contribution)) = why {
            self.control.announce(self.rank, call, contribution);
        }
        let (turn, gate) = (self.turn, self.control.gate());
        let arrived = gate.arrive(turn, || why.and_then(|_| self.mismatch()));
        self.control.note(self.rank, turn);
        let ended = match arrived {
            Turn::Waiting => match self.spin(turn) {
                Turn::Waiting => self.sleep(turn),
                ended => ended,
            },
            ended => ended,
        };
        match ended {
            Turn::Failed(failure) => Err(self.error(failure)),
            Turn::Passed | Turn::Waiting => {
                self.turn = turn.wrapping_add(1);
                Ok(())
            }
        }
    }

    fn spin(&mut self, turn: u16) -> Turn {
        let gate = self.control.gate();
        for _ in 0..self.spins {
            match gate.look(turn) {
                Turn::Waiting => std::hint::spin_loop(),
                ended => {
                    self.spins = (self.spins * 2).min(SPINS);
                    return ended;
                }
            }
        }
        self.spins = match self.spins {
            0 => 0,
            spins => (spins / 2).max(SPINS_MIN),
        };
        for _ in 0..self.yields {
            std::thread::yield_now();
            match gate.look(turn) {
                Turn::Waiting => {}
                ended => return ended,
            }
        }
        Turn::Waiting
    }

    fn sleep(&self, turn: u16) -> Turn {
        let gate = self.control.gate();
        let until = Instant::now() + self.wait;
        let mut nap = NAP;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            gate.sleep(turn, nap.min(left));
            match gate.look(turn) {
                Turn::Waiting => {}
                ended => return ended,
            }
            nap = (nap * 2).min(NAP_MAX);
            if let Some(rank) = self.dead(Duration::ZERO) {
                return gate.fail(turn, blame(Reason::Dead, rank));
            }
            if let Some(rank) = self.doubted(turn) {
                return gate.fail(turn, blame(Reason::Late, rank));
            }
            if Instant::now() >= until {
                // Were all noted, the words would be wrong: then any other rank is to blame.
                let another = usize::from(self.rank == 0);
                let rank = self.control.missing(turn).unwrap_or(another);
                return gate.fail(turn, blame(Reason::Late, rank));
            }
        }
    }

    /// A rank that has not come and gives no sign of life.
    fn doubted(&self, turn: u16) -> Option<usize> {
        let doubts = self.doubts.load(Ordering::Relaxed);
        let is_doubted = |rank: &usize| doubts >> *rank & 1 == 1;
        let mut missing = (0..self.ranks()).filter(|&rank| !self.control.is_noted(rank, turn));
        missing.find(is_doubted)
    }

    /// A rank whose process has ended, or does so `within`.
    fn dead(&self, within: Duration) -> Option<usize> {
        let mut lives: Vec<PollFd<'_>> = self
            .lives
            .iter()
            .map(|life| PollFd::new(life, PollFlags::IN))
            .collect();
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).expect("a few seconds at most");
            match rustix::event::poll(&mut lives, Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                polled => break polled.ok().map(drop)?,
            }
        }
        lives.iter().position(|life| !life.revents().is_empty())
    }

    /// The first rank that has come for something else than rank 0.
    fn mismatch(&self) -> Option<Failure> {
        let expected = self.control.announced(0);
        let differs = |&rank: &usize| self.control.announced(rank) != expected;
        let rank = (1..self.ranks()).find(differs)?;
        Some(blame(Reason::Mismatch, rank))
    }

    fn error(&self, Failure { reason, rank }: Failure) -> GroupError {
        // What a failure names may be anything, since all ranks can write it.
        let rank = usize::from(rank).min(self.ranks() - 1);
        let name = self.names[rank].clone();
        match reason {
            Reason::Dead => GroupError::Dead { rank, name },
            Reason::Late => GroupError::Late {
                rank,
                name,
                wait: self.wait,
            },
            Reason::Mismatch => GroupError::Mismatch {
                rank,
                name,
                expected: self.control.announced(0),
                found: self.control.announced(rank),
            },
            Reason::Left => GroupError::Left { rank, name },
        }
    }

    /// Fails the group on this rank's account.
    fn give_up(&self) {
        let failure = blame(Reason::Left, self.rank);
        self.control.gate().fail(self.turn, failure);
    }

    fn failed_with(&self, error: FabricError) -> GroupError {
        let gate = self.control.gate();
        let own = blame(Reason::Left, self.rank);
        let ended = match gate.look(self.turn) {
            Turn::Failed(_) => None,
            _ if is_cut_off(&error) => self.dead(self.wait.min(ENDING)),
            _ => None,
        };
        let failure = ended.map_or(own, |rank| blame(Reason::Dead, rank));
        match gate.fail(self.turn, failure) {
            // Somebody else failed first, which may be why.
            Turn::Failed(first) if first != own => self.error(first),
            _ => error.into(),
        }
    }

    /// Makes the memory of a buffer and sends it to the others.
    fn hand_out(&self, bytes: usize) -> Result<(OwnedFd, usize), FabricError> {
        let page = if bytes < slab::HUGE_PAGE {
            4096
        } else {
            slab::HUGE_PAGE
        };
        let stride = bytes.checked_next_multiple_of(page);
        let whole = stride.and_then(|stride| stride.checked_mul(self.ranks()));
        let made = match whole {
            Some(whole) => slab::create(whole),
            None => Err(std::io::ErrorKind::OutOfMemory.into()),
        };
        let result = match made {
            Ok(file) => Ok((file, stride.unwrap_or(0))),
            Err(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                let needed = whole.map_or(u64::MAX, |whole| whole as u64);
                Err((needed, pages::available().unwrap_or(0)))
            }
            Err(error) => return Err(system("making a group's memory")(error)),
        };
        for socket in &self.sockets {
            let sent = match &result {
                Ok((file, stride)) => {
                    let message = Message::Memory {
                        stride: *stride as u64,
                    };
                    message.send(socket, &[file.as_fd()])
                }
                Err((needed, limit)) => {
                    let (needed, limit) = (*needed, *limit);
                    Message::NoRoom { needed, limit }.send(socket, &[])
                }
            };
            sent.map_err(system("handing out a group's memory"))?;
        }
        result.map_err(|(needed, limit)| no_room(needed, limit))
    }

    fn take_memory(&self) -> Result<(OwnedFd, usize), FabricError> {
        let socket = self.sockets.first().expect("every rank has one to rank 0");
        let (message, mut files) = self.receive(socket)?;
        match (message, files.pop()) {
            (Message::Memory { stride }, Some(file)) => {
                let stride = usize::try_from(stride).ok().filter(|stride| {
                    stride.is_multiple_of(4096) && stride.checked_mul(self.ranks()).is_some()
                });
                let stride =
                    stride.ok_or_else(|| self.distrusted("its memory has no such size"))?;
                Ok((file, stride))
            }
            (Message::NoRoom { needed, limit }, None) => Err(no_room(needed, limit)),
            _ => Err(self.distrusted("it did not answer as agreed")),
        }
    }

    /// What the first rank sends. It ends with the deadline, and when that rank or the group is no more.
    fn receive(&self, socket: &OwnedFd) -> Result<(Message, Vec<OwnedFd>), FabricError> {
        let until = Instant::now() + self.wait;
        loop {
            match Message::receive(socket, RecvFlags::DONTWAIT) {
                Ok(received) => return Ok(received),
                Err(NoMessage::Nothing) => {}
                Err(NoMessage::Gone) => return Err(self.unreachable("it has closed its socket")),
                Err(NoMessage::Malformed) => {
                    return Err(self.distrusted("it did not answer as agreed"));
                }
                Err(NoMessage::FilesLost) => return Err(no_files(files_max().saturating_add(1))),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FabricError::TimedOut {
                    peer: self.names[0].clone(),
                    doing: "handing out a buffer",
                    wait: self.wait,
                });
            }
            if let Turn::Failed(_) = self.control.gate().look(self.turn) {
                return Err(self.unreachable("the group has failed"));
            }
            let nap = Timespec::try_from(left.min(NAP_MAX)).expect("milliseconds fit");
            let mut file = [PollFd::new(socket, PollFlags::IN)];
            // Whatever ends the wait, the next turn finds out.
            let _ = rustix::event::poll(&mut file, Some(&nap));
        }
    }

    /// Maps a buffer's memory. Each rank takes the room of its own part, so that it lies on the memory near it.
    fn map(&mut self, file: &OwnedFd, stride: usize, bytes: usize) -> Result<Slab, GroupError> {
        let whole = stride * self.ranks();
        if stride < bytes {
            return Err(self.distrusted("its memory is too small").into());
        }
        let slab =
            Slab::map(file.as_fd(), whole as u64).map_err(|error| self.unsafe_memory(error))?;
        let own = self.rank * stride..(self.rank + 1) * stride;
        let reserving = "reserving shared memory (it takes Linux 5.14, and room)";
        slab.reserve(own).map_err(system(reserving))?;
        self.meet(None)?;
        if !slab::is_reserved(file.as_fd(), whole).map_err(system("looking at a group's memory"))? {
            return Err(self.distrusted("the group's memory is not reserved").into());
        }
        // There is room for all of it now; this puts it into this process's tables.
        slab.reserve(0..whole).map_err(system(reserving))?;
        self.meet(None)?;
        Ok(slab)
    }

    fn unsafe_memory(&self, error: MapError) -> FabricError {
        match error {
            MapError::Unsafe(reason) => self.distrusted(reason),
            MapError::System(errno) => system("mapping a group's memory")(errno),
        }
    }

    fn distrusted(&self, reason: &str) -> FabricError {
        FabricError::Distrusted {
            peer: self.names[0].clone(),
            reason: reason.to_owned(),
        }
    }

    fn unreachable(&self, reason: &str) -> FabricError {
        FabricError::Unreachable {
            peer: self.names[0].clone(),
            reason: reason.to_owned(),
        }
    }

    fn lives(&self) -> Vec<BorrowedFd<'_>> {
        self.lives.iter().map(AsFd::as_fd).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Whether it may be what is seen of the end of another rank.
fn is_cut_off(error: &FabricError) -> bool {
    match error {
        FabricError::Unreachable { .. } => true,
        FabricError::System { source, .. } => matches!(
            source.kind(),
            std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset
        ),
        _ => false,
    }
}

fn blame(reason: Reason, rank: usize) -> Failure {
    Failure {
        reason,
        rank: rank as u8,
    }
}

fn no_room(needed: u64, limit: u64) -> FabricError {
    FabricError::Exhausted {
        what: "a group's buffer in this machine's free memory",
        needed,
        limit,
        advice: "use a smaller buffer or fewer ranks, or free memory",
    }
}

/// Descriptors that a group takes: of each rank a socket and a life, and some for a while.
fn files(ranks: usize) -> u64 {
    2 * ranks as u64 + 4
}

fn files_max() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// Refuses what would come to a halt in the middle.
fn check_files(ranks: usize) -> Result<(), FabricError> {
    let open = std::fs::read_dir("/proc/self/fd").map_err(system("counting open files"))?;
    // One of them is that of the count.
    let needed = open.count() as u64 - 1 + files(ranks);
    match needed <= files_max() {
        true => Ok(()),
        false => Err(no_files(needed)),
    }
}

fn no_files(needed: u64) -> FabricError {
    FabricError::Exhausted {
        what: "the descriptors of a group",
        needed,
        limit: files_max(),
        advice: "raise the limit of open files (ulimit -n)",
    }
}

/// The processors that this rank may use, as a bit each. Those from the 65th on share a bit, so that many can look like fewer, never like more.
fn processors() -> u64 {
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let allowed = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&processor| allowed.is_set(processor))
        .take(at_once)
        .fold(0, |bits, processor| bits | 1 << (processor % 64))
}
