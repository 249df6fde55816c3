//! The one seam to the world.
//!
//! Actors take time, chance, tasks, threads, sockets and files from an [`Env`] and from nowhere else. Production (`tombolo::world`) and
//! simulation (`tombolo::sim`) each implement it once; nothing else differs between them. Every node has an `Env` of its own, so that a
//! simulated crash can end exactly that node's tasks.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::ids::NodeId;
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;

/// A future that stays on the thread where it was made.
pub type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// A future that may be awaited anywhere.
pub type SendFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Which arbiter a task belongs on. In simulation there is one for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Packets and heartbeats, and nothing that computes: whatever keeps the others busy, this node does not look dead.
    Network,
    /// Links, the coordinator and what talks across the WAN.
    Gateway,
    /// A user's own rule, on a thread of its own: its code may block.
    Rule,
    /// Everything else.
    Node,
}

/// How long blocking work takes in virtual time. Production ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Local training of one round.
    Train,
    /// Local training of so many steps, where that of a round has `of`.
    Steps {
        /// How many it is given.
        steps: u64,
        /// How many are usual.
        of: u64,
    },
    /// Reading, hashing or folding so many bytes.
    Bytes(u64),
}

/// The largest UDP payload that a path is asked for where nothing more is known: that of Ethernet, with an IPv6 header and room for a tunnel's.
pub const DATAGRAM: u16 = 1452;

/// A bound UDP socket and the runtime that drives quinn on it.
pub type Bound = (Arc<dyn quinn::AsyncUdpSocket>, Arc<dyn quinn::Runtime>);

/// Time, chance, tasks, threads, sockets and files, as one node sees them.
pub trait Env: Send + Sync + 'static {
    /// The monotonic clock.
    fn now(&self) -> Micros;

    /// Ends after `span`.
    fn sleep(&self, span: Duration) -> SendFuture<()>;

    /// The wall clock, for certificates and file dates only: seconds since 1970.
    fn unix_time(&self) -> u64;

    /// A generator seeded for one purpose.
    fn rng(&self, purpose: &str) -> Rng;

    /// Runs `task` on the arbiter of `class` until it ends or the node does.
    fn spawn(&self, class: Class, task: Box<dyn FnOnce() -> LocalFuture + Send>);

    /// Runs blocking work off the arbiters (in simulation: at once, then waits for its modelled duration). The future ends early with an
    /// error if the work panicked.
    fn offload(
        &self,
        work: Work,
        task: Box<dyn FnOnce() + Send>,
    ) -> SendFuture<Result<(), OffloadPanicked>>;

    /// Whether a message to a peer gets stuck half-way, as when its connection breaks. Only a simulation ever says so.
    fn send_fails(&self, _to: &NodeId, _message: &[u8]) -> bool {
        false
    }

    /// Whether a bit of the model that this node holds has flipped since this was asked last. Only a simulation ever says so.
    fn model_flips(&self) -> bool {
        false
    }

    /// Binds a UDP socket.
    fn bind(&self, address: SocketAddr) -> io::Result<Bound>;

    /// The largest UDP payload that a socket bound there takes.
    fn receives(&self, _address: SocketAddr) -> u16 {
        DATAGRAM
    }

    /// The largest UDP payload that may travel to a peer as far as this machine knows; discovery on each connection finds what does.
    fn carries(&self, _peer: SocketAddr) -> u16 {
        DATAGRAM
    }

    /// Seeds quinn's own random choices; `None` in production.
    fn endpoint_seed(&self) -> Option<[u8; 32]>;

    /// The key from which a node derives stateless-reset tokens and connection ids, so that a restarted node is recognised at once.
    fn reset_key(&self) -> [u8; 64];

    /// The node's files.
    fn files(&self) -> Arc<dyn Files>;

    /// Where the coordinator's records lie: the node's own files, unless the federation keeps them elsewhere.
    fn store(&self) -> Arc<dyn Files> {
        self.files()
    }

    /// Makes this node's address known to its peers.
    fn advertise(&self, node: &NodeId, address: SocketAddr) -> io::Result<()>;

    /// Where a peer can be dialled now; asked anew at each attempt.
    fn resolve(&self, node: &NodeId) -> SendFuture<io::Result<Vec<SocketAddr>>>;
}

/// Runs blocking work that answers, as [`Env::offload`] does.
pub fn work<R, J>(
    env: &dyn Env,
    work: Work,
    job: J,
) -> impl Future<Output = Result<R, OffloadPanicked>> + use<R, J>
where
    R: Send + 'static,
    J: FnOnce() -> R + Send + 'static,
{
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let task = move || {
        // Fails only if nobody waits for the answer any more.
        let _ = sender.send(job());
    };
    let done = env.offload(work, Box::new(task));
    async move {
        done.await?;
        let result = receiver.await;
        result.map_err(|_| OffloadPanicked("it was given up".into()))
    }
}

/// Blocking work panicked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("blocking work panicked: {0}")]
pub struct OffloadPanicked(pub String);

/// A folder of files with the promises that a commit needs. Paths are relative, `/`-separated and never leave the folder.
///
/// Every change is durable once it is answered. One that failed, or during which the process ended, has happened or not, as a whole.
pub trait Files: Send + Sync {
    /// Where people find a path, for messages.
    fn locate(&self, path: &str) -> String {
        path.to_owned()
    }

    /// The whole file.
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;

    /// The whole file; fails with `FileTooLarge`, where that can be before it is read, if it holds more than `bytes_max` bytes.
    fn read_small(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        let bytes = self.read(path)?;
        match bytes.len() > bytes_max {
            true => Err(too_large(bytes.len() as u64, bytes_max)),
            false => Ok(bytes),
        }
    }

    /// Replaces a file by `parts`, one behind the other: there is the old one or the new one, never a piece. Makes missing folders.
    fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()>;

    /// Creates a file; fails with `AlreadyExists` if there is one, whoever made it.
    fn create(&self, path: &str, contents: &[u8]) -> io::Result<()>;

    /// The names in a folder, sorted; empty if there is no such folder.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Removes a file or a whole folder; no error if there is none.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Makes durable what a folder lists: a change that was not answered may be seen and still be lost.
    fn settle(&self, folder: &str) -> io::Result<()>;
}

/// Why a file was not read that holds more than it can.
pub fn too_large(bytes: u64, bytes_max: usize) -> io::Error {
    let why = format!("it holds {bytes} bytes, and can hold at most {bytes_max}");
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}
