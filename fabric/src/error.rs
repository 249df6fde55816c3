//! What can go wrong, by who is to blame.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Something that a device or queue pair could not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Our configuration: the folder for sockets cannot be used.
    #[error(
        "socket folder {path:?} cannot be used: {reason}; name a folder that this user owns with mode 0700"
    )]
    Folder {
        /// As configured.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Our call: a name that cannot stand in an endpoint.
    #[error("name {name:?} cannot be used: expected 1 to {max} bytes, found {}", name.len())]
    Name {
        /// As given.
        name: String,
        /// The longest.
        max: usize,
    },
    /// Our call: a region without bytes.
    #[error("a region of 0 bytes cannot be registered; ask for at least 1")]
    EmptyRegion,
    /// Our call: more than a single READ may carry.
    #[error(
        "a read of {len} bytes is longer than the limit of {max} bytes; split it, or use `read`"
    )]
    ReadTooLong {
        /// As asked.
        len: usize,
        /// `Limits::read_length_max`.
        max: usize,
    },
    /// Our call: posted reads wait on a queue pair that was to be used alone.
    #[error(
        "{pending} reads are still posted to {peer}; poll them before a read that waits by itself"
    )]
    Pending {
        /// Whose memory.
        peer: String,
        /// How many.
        pending: usize,
    },
    /// Our call: the queue pair holds as many posted reads as it may.
    #[error("the queue to {peer} is full with {depth} reads; poll completions, then post again")]
    QueueFull {
        /// Whose memory.
        peer: String,
        /// `Limits::queue_depth`.
        depth: usize,
    },
    /// Our resources: a limit is reached.
    #[error("no room for {what}: {needed} needed, limit {limit}; {advice}")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// What would be in use.
        needed: u64,
        /// What may be.
        limit: u64,
        /// What to do next.
        advice: &'static str,
    },
    /// Our system: a call to the kernel failed.
    #[error("{what} failed: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },
    /// The device is gone: dropped, or crashed in simulation.
    #[error("device of {owner} is closed; open it anew")]
    Closed {
        /// Whose it was.
        owner: String,
    },
    /// The peer's fault: an endpoint or region that is not well-formed.
    #[error("{what} is malformed: expected {expected}, found {found}")]
    Malformed {
        /// Which blob.
        what: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The sides do not fit: another provider or folder.
    #[error(
        "endpoint of {peer} does not fit: expected {expected}, found {found}; give both sides the same fabric"
    )]
    Incompatible {
        /// Whose endpoint.
        peer: String,
        /// What is used here.
        expected: String,
        /// What is used there.
        found: String,
    },
    /// Nobody answers at the endpoint.
    #[error(
        "{peer} cannot be reached over the fabric: {reason}; ask it for a new endpoint if it lives"
    )]
    Unreachable {
        /// Whose endpoint.
        peer: String,
        /// What was seen.
        reason: String,
    },
    /// The peer does not know our token: a wrong, foreign or revoked endpoint.
    #[error("{peer} refused our token; ask it for a new endpoint")]
    Denied {
        /// Who refused.
        peer: String,
    },
    /// The peer serves as many queue pairs as it may.
    #[error("{peer} serves as many queue pairs as it may; drop unused ones and try again")]
    Busy {
        /// Who refused.
        peer: String,
    },
    /// The peer is not who it should be, or breaks the protocol.
    #[error("{peer} cannot be trusted: {reason}; evict it")]
    Distrusted {
        /// Who.
        peer: String,
        /// What was seen.
        reason: String,
    },
    /// The wait is over.
    #[error(
        "no answer from {peer} within {wait:?} while {doing}; the queue pair is dead, connect anew"
    )]
    TimedOut {
        /// Who.
        peer: String,
        /// What was waited for.
        doing: &'static str,
        /// How long.
        wait: Duration,
    },
    /// This machine has no RDMA device for us.
    #[error(transparent)]
    NoRdma(#[from] NoRdma),
    /// A READ failed.
    #[error("read from {peer} failed: {source}; the queue pair is dead, connect anew")]
    Read {
        /// Whose memory.
        peer: String,
        /// Why.
        source: CompletionError,
    },
}

/// What a call to the kernel was for, put to its answer.
pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> FabricError {
    move |source| FabricError::System {
        what,
        source: source.into(),
    }
}

/// Why this machine has no RDMA device that can be used. All of them mean: take shared memory, where there is one machine only.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoRdma {
    /// No library.
    #[error("rdma-core cannot be loaded ({reason}); install it (on Debian: ibverbs-providers)")]
    NoLibrary {
        /// The loader's words.
        reason: String,
    },
    /// The kernel knows no verbs.
    #[error("the kernel has no support for RDMA ({source}); load its module ib_uverbs")]
    NoKernel {
        /// The library's answer.
        source: io::Error,
    },
    /// There is no device.
    #[error("there is no RDMA device; `rdma link` lists them")]
    NoDevice,
    /// There are devices, and something is wrong with each.
    #[error("no RDMA device can be used: {}", .reasons.join("; "))]
    Unusable {
        /// One a port: which, what was expected and found.
        reasons: Vec<String>,
    },
    /// The device does not let us in.
    #[error(
        "RDMA device {device} cannot be opened: {source}; give this user access to /dev/infiniband"
    )]
    Refused {
        /// Its name.
        device: String,
        /// The library's answer.
        source: io::Error,
    },
}

/// Why a posted READ failed. The first one moves its queue pair to the error state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The key names no region of the peer, or not any more.
    #[error("key {key:#x} names no region of the peer")]
    RemoteKey {
        /// The key.
        key: u64,
    },
    /// The range leaves the peer's region.
    #[error("{len} bytes at {offset} leave the peer's region of {region} bytes")]
    RemoteBounds {
        /// From here.
        offset: u64,
        /// So many.
        len: u64,
        /// Of so many.
        region: u64,
    },
    /// The scratch region belongs to another device.
    #[error("the scratch region is not registered with this device")]
    LocalKey,
    /// The range leaves the scratch region.
    #[error("{len} bytes at {offset} leave the scratch region of {region} bytes")]
    LocalBounds {
        /// From here.
        offset: u64,
        /// So many.
        len: u64,
        /// Of so many.
        region: u64,
    },
    /// The peer wrote into the region at that moment. Only the `memory` provider sees this; others give torn bytes, which the checksum of
    /// the layer above must find.
    #[error("the peer was writing the region with key {key:#x}")]
    Torn {
        /// The region.
        key: u64,
    },
    /// The peer took its grant back.
    #[error("the peer revoked the grant")]
    Revoked,
    /// The peer does not answer: dead, or cut off.
    #[error("the peer is gone")]
    PeerGone,
    /// The peer breaks the protocol or offers memory that is not safe to map.
    #[error("the peer misbehaved: {0}")]
    PeerMisbehaved(&'static str),
    /// This side ran out of something.
    #[error("this machine ran out of {0}")]
    Exhausted(&'static str),
    /// The device, or the way between the devices, failed.
    #[error("the RDMA device says: {0}")]
    Device(&'static str),
    /// This side's device is closed.
    #[error("the local device is closed")]
    DeviceClosed,
    /// Not tried, because the queue pair is in the error state.
    #[error("flushed: the queue pair had failed before")]
    Flushed,
}
