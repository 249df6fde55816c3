//! The seam to a fabric: devices, endpoints, queue pairs, and one blocking READ on top of them.
//!
//! A provider is one file in `verbs/` and one line below. Queue pairs follow this table; a new one is at `ReadyToSend` when `connect`
//! returns, and to come back from `Error` means to connect anew.
//!
//! ```text
//! Reset -> Init -> ReadyToReceive -> ReadyToSend
//!   any of them  -----------------------> Error
//! ```

mod endpoint;
pub mod ibverbs;
mod in_order;
pub mod memory;
pub mod shm;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;

use crate::error::{CompletionError, FabricError, system};
use crate::pages;
use crate::region::{Region, RemoteRegion};

pub use endpoint::Endpoint;
pub(crate) use endpoint::Token;

/// The longest name of an owner or peer, in bytes: a domain, a slash and a node, with room.
pub const NAME_LENGTH_MAX: usize = 128;

/// Posted reads a queue pair holds. Enough to keep a NIC busy with reads of 8 MiB; small enough to fail early on who never polls.
pub const QUEUE_DEPTH: usize = 64;

/// The longest single READ: what the smallest device we know takes as one message (soft-RoCE, 8 MiB).
pub const READ_LENGTH_MAX: usize = 8 << 20;

/// Regions of a device. Each costs a file descriptor in `shm`, and 1,024 is the usual limit of those.
pub const REGIONS_MAX: usize = 1024;

/// Grants of a device: more peers than a domain has nodes.
pub const GRANTS_MAX: usize = 1024;

/// Opens devices.
pub trait VerbsProvider: Send + Sync {
    /// The tag in its endpoints.
    fn name(&self) -> &'static str;

    /// Opens a device for the node `owner`.
    ///
    /// # Errors
    ///
    /// When the provider cannot work on this machine; the message says what to change.
    fn open(&self, owner: &str) -> Result<Arc<dyn Device>, FabricError>;
}

/// One node's access to the fabric. Drop it to close it: peers then fail, and the owner's regions stay readable for the owner.
pub trait Device: Send + Sync {
    /// What it can do.
    fn limits(&self) -> Limits;

    /// Makes a zeroed region that peers with a grant may READ. Its memory is reserved now, so that nothing fails later; this costs about
    /// half a second per GiB, so regions are to be kept and used again.
    ///
    /// # Errors
    ///
    /// [`FabricError::Exhausted`] with limit and need, or what the system said.
    fn allocate(&self, bytes: usize) -> Result<Region, FabricError>;

    /// Lets `peer` connect and READ every region of this device. The endpoint carries a secret, so it belongs on a link that has
    /// authenticated the peer. A new grant takes the place of the peer's old one, as does a revocation.
    ///
    /// # Errors
    ///
    /// [`FabricError::Name`] or [`FabricError::Exhausted`].
    fn grant(&self, peer: &str) -> Result<Endpoint, FabricError>;

    /// Takes the grant back: the peer's queue pairs fail at their next READ and its endpoint connects no more.
    fn revoke(&self, peer: &str);

    /// Connects to `peer` with the endpoint that it made for this device's owner. Bounded: a few seconds.
    ///
    /// # Errors
    ///
    /// Says whether nobody is there, the token was refused, or the endpoint does not fit.
    fn connect(&self, peer: &str, endpoint: &Endpoint) -> Result<Box<dyn QueuePair>, FabricError>;

    /// What is in use now.
    fn stats(&self) -> Stats;
}

/// What a device can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in one READ.
    pub read_length_max: usize,
    /// Posted reads of one queue pair.
    pub queue_depth: usize,
    /// Regions at one time.
    pub regions_max: usize,
    /// Bytes in all regions.
    pub bytes_max: u64,
}

/// What a device uses now; all zero when nothing leaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Regions that live.
    pub regions: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Queue pairs that it connected and that live.
    pub queue_pairs: usize,
}

/// Where a queue pair is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Made.
    Reset,
    /// Bound to its device.
    Init,
    /// Knows its peer.
    ReadyToReceive,
    /// Accepted by its peer.
    ReadyToSend,
    /// Failed; what is posted is flushed.
    Error,
}

impl State {
    /// Whether the table above allows the step.
    pub fn may_become(self, next: State) -> bool {
        matches!(
            (self, next),
            (State::Reset, State::Init)
                | (State::Init, State::ReadyToReceive)
                | (State::ReadyToReceive, State::ReadyToSend)
                | (_, State::Error)
        )
    }
}

/// One READ to post. The scratch region goes with it, since the fabric may write it until the completion gives it back.
#[derive(Debug)]
pub struct Read {
    /// Names it in its completion.
    pub id: u64,
    /// Where the bytes go; registered with the device that connected.
    pub scratch: Region,
    /// From this byte of it.
    pub scratch_offset: usize,
    /// Where they come from.
    pub remote: RemoteRegion,
    /// From this byte of it.
    pub offset: u64,
    /// How many.
    pub len: usize,
}

/// The end of a posted READ.
#[derive(Debug)]
pub struct Completion {
    /// As posted.
    pub id: u64,
    /// As posted; its bytes mean something only on success.
    pub scratch: Region,
    /// The number of bytes read.
    pub result: Result<usize, CompletionError>,
}

/// A READ that was not posted; nothing has changed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// As given.
    pub read: Read,
    /// Why.
    #[source]
    pub error: FabricError,
}

/// A connection that READs from one peer. Completions come in the order of posting.
pub trait QueuePair: Send {
    /// Whose memory it reads.
    fn peer(&self) -> &str;

    /// Where it is in its life.
    fn state(&self) -> State;

    /// As its device's, or the peer's where that can do less.
    fn limits(&self) -> Limits;

    /// Reads that are posted and not completed.
    fn pending(&self) -> usize;

    /// Posts a READ. Bad keys and ranges show in the completion, as with a NIC; in the error state everything completes as flushed.
    ///
    /// # Errors
    ///
    /// Gives the read back if the queue is full or the read too long.
    fn post_read(&mut self, read: Read) -> Result<(), Box<Refused>>;

    /// Takes the next completion, if there is one. Never blocks.
    fn poll(&mut self) -> Option<Completion>;

    /// Waits until [`QueuePair::poll`] may give more than it did, at most `span`.
    fn wait(&mut self, span: Duration);

    /// Moves to the error state, so that what is posted comes back flushed.
    fn fail(&mut self);
}

/// READs `len` bytes at `offset` of the peer's region into `scratch`, in pieces as long as the device allows, and waits at most `wait`.
///
/// # Errors
///
/// [`FabricError::Read`] or [`FabricError::TimedOut`]; both leave the queue pair in the error state. [`FabricError::Pending`] if reads are
/// posted on it.
pub fn read(
    queue_pair: &mut dyn QueuePair,
    scratch: &mut Region,
    scratch_offset: usize,
    remote: &RemoteRegion,
    offset: u64,
    len: usize,
    wait: Duration,
) -> Result<(), FabricError> {
    if queue_pair.pending() > 0 {
        return Err(FabricError::Pending {
            peer: queue_pair.peer().to_owned(),
            pending: queue_pair.pending(),
        });
    }
    let mut patience = Patience {
        wait,
        started: None,
    };
    let length_max = queue_pair.limits().read_length_max;
    let mut done = 0;
    loop {
        // Saturated sums fail the bounds check, which is what they must do.
        let piece = Read {
            id: done as u64,
            scratch: std::mem::replace(scratch, Region::vacant()),
            scratch_offset: scratch_offset.saturating_add(done),
            remote: *remote,
            offset: offset.saturating_add(done as u64),
            len: (len - done).min(length_max),
        };
        if let Err(refused) = queue_pair.post_read(piece) {
            *scratch = refused.read.scratch;
            return Err(refused.error);
        }
        done += read_one(queue_pair, scratch, &mut patience)?;
        if done >= len {
            return Ok(());
        }
    }
}

/// Waits for the only posted READ and puts its scratch region back.
fn read_one(
    queue_pair: &mut dyn QueuePair,
    scratch: &mut Region,
    patience: &mut Patience,
) -> Result<usize, FabricError> {
    let mut timed_out = false;
    loop {
        if let Some(completion) = queue_pair.poll() {
            *scratch = completion.scratch;
            return match completion.result {
                Err(_) if timed_out => Err(FabricError::TimedOut {
                    peer: queue_pair.peer().to_owned(),
                    doing: "reading its memory",
                    wait: patience.wait,
                }),
                result => result.map_err(|source| FabricError::Read {
                    peer: queue_pair.peer().to_owned(),
                    source,
                }),
            };
        }
        match patience.left() {
            Some(left) => queue_pair.wait(left),
            None if !timed_out => {
                timed_out = true;
                queue_pair.fail();
            }
            // A provider that needs time to take a read back gets it: the memory must not return before.
            None => queue_pair.wait(Duration::from_millis(1)),
        }
    }
}

/// Looks at the clock only when it has to wait, so that a provider that never makes one wait stays deterministic.
struct Patience {
    wait: Duration,
    started: Option<Instant>,
}

#[allow(
    clippy::disallowed_methods,
    reason = "real memory is waited for in real time"
)]
impl Patience {
    fn left(&mut self) -> Option<Duration> {
        let started = *self.started.get_or_insert_with(Instant::now);
        self.wait
            .checked_sub(started.elapsed())
            .filter(|left| !left.is_zero())
    }
}

/// Checks the name of an owner or peer.
pub(crate) fn check_name(name: &str) -> Result<(), FabricError> {
    if name.is_empty() || name.len() > NAME_LENGTH_MAX {
        return Err(FabricError::Name {
            name: name.to_owned(),
            max: NAME_LENGTH_MAX,
        });
    }
    Ok(())
}

/// Checks that a device has room for one more region of `bytes`.
fn check_room(limits: &Limits, regions: usize, used: u64, bytes: usize) -> Result<(), FabricError> {
    if bytes == 0 {
        return Err(FabricError::EmptyRegion);
    }
    if regions >= limits.regions_max {
        return Err(FabricError::Exhausted {
            what: "regions",
            needed: regions as u64 + 1,
            limit: limits.regions_max as u64,
            advice: "use regions again instead of making new ones",
        });
    }
    let needed = used.saturating_add(bytes as u64);
    if needed > limits.bytes_max {
        return Err(FabricError::Exhausted {
            what: "bytes in regions",
            needed,
            limit: limits.bytes_max,
            advice: "drop regions, or use a machine with more memory",
        });
    }
    Ok(())
}

/// What wakes a thread that waits for descriptors.
fn wake() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?)
}

/// Half of the machine for one node's regions: more than that is a mistake, and is better refused than killed.
fn bytes_max() -> u64 {
    pages::memory_info("MemTotal:").map_or(1 << 40, |total| total / 2)
}

/// What the system's word on memory for a region means.
fn no_memory(what: &'static str, bytes: usize, error: io::Error) -> FabricError {
    if error.kind() == io::ErrorKind::OutOfMemory {
        return FabricError::Exhausted {
            what: "a region in this machine's free memory",
            needed: bytes as u64,
            limit: pages::available().unwrap_or(0),
            advice: "drop regions, or free memory",
        };
    }
    system(what)(error)
}

fn too_many_grants() -> FabricError {
    FabricError::Exhausted {
        what: "grants",
        needed: GRANTS_MAX as u64 + 1,
        limit: GRANTS_MAX as u64,
        advice: "revoke those of peers that left",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_the_table_and_error_is_final() {
        use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset};
        let all = [Reset, Init, ReadyToReceive, ReadyToSend, Error];
        let allowed: Vec<_> = all
            .iter()
            .flat_map(|from| all.iter().map(move |to| (*from, *to)))
            .filter(|(from, to)| from.may_become(*to))
            .collect();
        let expected = [
            (Reset, Init),
            (Reset, Error),
            (Init, ReadyToReceive),
            (Init, Error),
            (ReadyToReceive, ReadyToSend),
            (ReadyToReceive, Error),
            (ReadyToSend, Error),
            (Error, Error),
        ];
        assert_eq!(allowed, expected);
    }
}
