//! The real world: threads, sockets, disks and clocks for the nodes of one process.
//!
//! A [`World`] owns three actix arbiters, one for packets and heartbeats, one for what talks across the WAN and one for everything else,
//! a fourth for a user's aggregation rule if there is one, and a bounded pool of threads for work that blocks. [`World::env`] gives each node its [`Env`]; what a node starts through it ends with [`World::stop`].
//!
//! - `scope`: a node's tasks on one thread.
//! - `offload`: the pool.
//! - `files`: a folder on a real disk.
//! - `address`: how nodes find each other.
//! - `socket`, `emulate`: UDP, and paths that `run` makes worse on purpose.
#![expect(
    clippy::disallowed_methods,
    reason = "this is the seam to clocks, threads and arbiters"
)]

pub(crate) mod address;
mod emulate;
pub(crate) mod files;
pub(crate) mod offload;
pub(crate) mod scope;
mod socket;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant, SystemTime};

use actix::{Arbiter, ArbiterHandle, System};
use tokio::runtime::Handle;

use tombolo_actors::env::{
    Bound, Class, DATAGRAM, Env, Files, LocalFuture, OffloadPanicked, SendFuture, Work,
};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::{LinkPlan, NodePlan, Plan};
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;

use crate::files::FolderFiles;
use address::Addresses;
use emulate::Emulation;
use offload::Pool;
use scope::Scope;
use socket::ScopedRuntime;

/// How long a user's rule may take to end with its node.
const RULE_LIMIT: Duration = Duration::from_millis(500);

/// The file of a node's reset key.
const RESET_KEY: &str = "reset-key";

/// What a world needs to know of a federation.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldOptions {
    /// The state folder: `nodes/<domain>.<name>/` and `run/addresses/` are made in it.
    pub state: PathBuf,
    /// Nodes with explicit addresses.
    pub nodes: Vec<NodePlan>,
    /// Emulated paths; none in a real deployment.
    pub links: Vec<LinkPlan>,
    /// Seeds the loss and jitter of emulated paths.
    pub seed: u64,
}

/// As for a real deployment: no path is emulated.
impl From<&Plan> for WorldOptions {
    fn from(plan: &Plan) -> Self {
        WorldOptions {
            state: plan.checkpoint.folder.clone(),
            nodes: plan.nodes().cloned().collect(),
            links: Vec::new(),
            seed: plan.seed,
        }
    }
}

/// The real world. Dropping it ends every node and joins its threads, except on one of those threads.
pub struct World {
    shared: Arc<Shared>,
    system: System,
    thread: Option<JoinHandle<()>>,
    threads: [ThreadId; 4],
}

struct Shared {
    start: Instant,
    entropy: u64,
    state: PathBuf,
    network: ArbiterHandle,
    /// Where sockets are watched, whoever binds them.
    reactor: Handle,
    gateway: ArbiterHandle,
    node: ArbiterHandle,
    pool: Pool,
    addresses: Arc<Addresses>,
    emulation: Emulation,
    store: OnceLock<Arc<dyn Files>>,
    /// Whose folder holds the coordinator's records, if several nodes may be coordinator in turn.
    shared: OnceLock<NodeId>,
    nodes: Mutex<BTreeMap<NodeId, Node>>,
}

struct Node {
    /// Kept from life to life: offloaded work of the last one may still hold them.
    files: Arc<FolderFiles>,
    lives: u64,
    env: Option<Arc<WorldEnv>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Node>> {
        self.nodes.lock().expect("no code under this lock panics")
    }
}

/// Ready threads: the system, its arbiters (network, gateway, node), who they are, and the first one's reactor.
struct Started {
    system: System,
    arbiters: [ArbiterHandle; 3],
    threads: [ThreadId; 4],
    reactor: Handle,
}

fn run_system(started: &mpsc::Sender<io::Result<Started>>) {
    let runner = System::new();
    let arbiters = runner.block_on(async {
        Ok([
            Arbiter::try_new()?,
            Arbiter::try_new()?,
            Arbiter::try_new()?,
        ])
    });
    let arbiters: [Arbiter; 3] = match arbiters {
        Ok(arbiters) => arbiters,
        Err(error) => {
            let _ = started.send(Err(error));
            return;
        }
    };
    let this = (
        std::thread::current().id(),
        runner.runtime().tokio_runtime().handle().clone(),
    );
    let [network, gateway, node] = arbiters.each_ref().map(|arbiter| {
        let (sender, receiver) = mpsc::channel();
        arbiter.spawn_fn(move || {
            let _ = sender.send((std::thread::current().id(), Handle::current()));
        });
        receiver.recv().unwrap_or(this.clone())
    });
    let _ = started.send(Ok(Started {
        system: System::current(),
        arbiters: arbiters.each_ref().map(Arbiter::handle),
        threads: [this.0, network.0, gateway.0, node.0],
        reactor: network.1,
    }));
    if let Err(error) = runner.run() {
        tracing::error!(%error, "the actor system ended badly");
    }
    for arbiter in arbiters {
        let _ = arbiter.join();
    }
}

impl World {
    /// How long this world exists.
    pub fn clock(&self) -> impl Fn() -> Micros + Send + Sync + use<> {
        let start = self.shared.start;
        move || Micros::default() + start.elapsed()
    }

    /// Starts the threads and makes the state folder.
    ///
    /// # Errors
    /// The folder cannot be made, or the system grants no threads.
    pub fn new(options: WorldOptions) -> io::Result<Self> {
        let addresses = Arc::new(Addresses::new(&options.state, options.nodes)?);
        let mut entropy = [0; 8];
        aws_lc_rs::rand::fill(&mut entropy)
            .map_err(|_| io::Error::other("the system gives no random numbers"))?;
        let pool = Pool::new()?;
        let (sender, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("tombolo-system".to_owned())
            .spawn(move || run_system(&sender))?;
        let Started {
            system,
            arbiters: [network, gateway, node],
            threads,
            reactor,
        } = started
            .recv()
            .map_err(|_| io::Error::other("the actor system did not start"))??;
        Ok(World {
            shared: Arc::new(Shared {
                start: Instant::now(),
                entropy: u64::from_le_bytes(entropy),
                state: options.state,
                network,
                reactor,
                gateway,
                node,
                pool,
                addresses,
                emulation: Emulation::new(options.seed, &options.links),
                store: OnceLock::new(),
                shared: OnceLock::new(),
                nodes: Mutex::new(BTreeMap::new()),
            }),
            system,
            thread: Some(thread),
            threads,
        })
    }

    /// A node's view of the world; the same one until the node is stopped.
    ///
    /// # Errors
    /// The node's folder cannot be used, or another process uses it.
    pub fn env(&self, node: &NodeId) -> io::Result<Arc<dyn Env>> {
        let mut nodes = self.shared.lock();
        if let Some(Node { env: Some(env), .. }) = nodes.get(node) {
            return Ok(env.clone());
        }
        let folder = node_folder(&self.shared.state, node);
        let (files, lives) = match nodes.get(node) {
            Some(node) => (node.files.clone(), node.lives + 1),
            None => (Arc::new(files::open(&folder)?), 1),
        };
        let env = Arc::new(WorldEnv {
            shared: self.shared.clone(),
            node: node.clone(),
            life: lives,
            reset_key: reset_key(&folder.join(RESET_KEY), &files)?,
            files: files.clone(),
            records: OnceLock::new(),
            network: run_scope(&self.shared.network)?,
            gateway: run_scope(&self.shared.gateway)?,
            rule: OnceLock::new(),
            others: run_scope(&self.shared.node)?,
        });
        nodes.insert(
            node.clone(),
            Node {
                files,
                lives,
                env: Some(env.clone()),
            },
        );
        Ok(env)
    }

    /// Keeps the coordinator's records in this store instead of its own files. Once, before any node starts.
    pub(crate) fn keep_records_in(&self, store: Arc<dyn Files>) {
        // Fails only if there is one.
        let _ = self.shared.store.set(store);
    }

    /// Keeps the coordinator's records in this node's folder, whoever coordinates. Once, before any node starts.
    pub(crate) fn keep_records_of(&self, node: &NodeId) {
        // Fails only if there is one.
        let _ = self.shared.shared.set(node.clone());
    }

    /// How nodes find each other.
    pub(crate) fn addresses(&self) -> Arc<Addresses> {
        self.shared.addresses.clone()
    }

    /// Ends a node's tasks and waits until they are dropped. Its view stays dead; [`World::env`] gives a new one.
    pub async fn stop(&self, node: &NodeId) {
        let env = self
            .shared
            .lock()
            .get_mut(node)
            .and_then(|node| node.env.take());
        if let Some(env) = env {
            env.close();
            env.network.ended().await;
            env.gateway.ended().await;
            env.others.ended().await;
            if let Some(rule) = env.rule.get() {
                // Code of a user's that blocks there ends with the process.
                let _ = tokio::time::timeout(RULE_LIMIT, rule.ended()).await;
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let envs: Vec<_> = self
            .shared
            .lock()
            .values_mut()
            .filter_map(|node| node.env.take())
            .collect();
        envs.iter().for_each(|env| env.close());
        self.system.stop();
        if let Some(thread) = self.thread.take()
            && !self.threads.contains(&std::thread::current().id())
        {
            // A panic there has been reported by its own thread.
            let _ = thread.join();
        }
    }
}

fn run_scope(arbiter: &ArbiterHandle) -> io::Result<Scope> {
    let scope = Scope::new();
    let tasks = scope.clone();
    let sent = arbiter.spawn_fn(move || {
        actix::spawn(tasks.runner());
    });
    if sent {
        Ok(scope)
    } else {
        Err(io::Error::new(
            ErrorKind::NotConnected,
            "the world is being shut down",
        ))
    }
}

/// As [`run_scope`], on an arbiter of its own, which nobody joins.
fn run_apart(arbiter: &ArbiterHandle) -> Scope {
    let scope = Scope::new();
    let tasks = scope.clone();
    // An arbiter is made on a thread of the system that it belongs to, and ends with it.
    let sent = arbiter.spawn_fn(move || match Arbiter::try_new() {
        Ok(own) => {
            own.spawn_fn(move || {
                actix::spawn(tasks.runner());
            });
        }
        Err(error) => tracing::error!(%error, "there is no thread for the aggregation rule"),
    });
    if !sent {
        tracing::debug!("the world is being shut down");
    }
    scope
}

/// Reads a node's reset key, made at its first start. Who knows it can end the node's connections.
fn reset_key(path: &Path, files: &FolderFiles) -> io::Result<[u8; 64]> {
    match files.read(RESET_KEY) {
        Ok(key) => {
            let path = std::path::absolute(path)?;
            let mode = std::fs::metadata(&path)?.permissions().mode() & 0o7777;
            let found = key.len();
            if mode & 0o077 != 0 {
                let why = format!(
                    "{}: mode is {mode:04o}, expected 0600: others could read or replace it; run `chmod 600` on it, or remove it, and a new one is made",
                    path.display()
                );
                return Err(io::Error::new(ErrorKind::PermissionDenied, why));
            }
            key.try_into().map_err(|_| {
                let why = format!(
                    "{}: {found} bytes, expected 64; remove it, and a new one is made",
                    path.display()
                );
                io::Error::new(ErrorKind::InvalidData, why)
            })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut key = [0; 64];
            aws_lc_rs::rand::fill(&mut key)
                .map_err(|_| io::Error::other("the system gives no random numbers"))?;
            files.create_private(RESET_KEY, &key)?;
            Ok(key)
        }
        Err(error) => Err(error),
    }
}

struct WorldEnv {
    shared: Arc<Shared>,
    node: NodeId,
    /// Counted from 1: what one life draws, the next must not draw again.
    life: u64,
    reset_key: [u8; 64],
    files: Arc<FolderFiles>,
    /// The folder of the coordinator's records, once it is needed.
    records: OnceLock<Arc<FolderFiles>>,
    network: Scope,
    gateway: Scope,
    /// Made when it is needed: on one node of a federation.
    rule: OnceLock<Scope>,
    others: Scope,
}

impl WorldEnv {
    fn rule(&self) -> &Scope {
        self.rule.get_or_init(|| run_apart(&self.shared.gateway))
    }

    fn close(&self) {
        self.network.close();
        self.gateway.close();
        if let Some(rule) = self.rule.get() {
            rule.close();
        }
        self.others.close();
    }
}

impl Env for WorldEnv {
    fn now(&self) -> Micros {
        Micros::default() + self.shared.start.elapsed()
    }

    fn sleep(&self, span: Duration) -> SendFuture<()> {
        Box::pin(async move { tokio::time::sleep(span).await })
    }

    fn unix_time(&self) -> u64 {
        unix_now()
    }

    fn rng(&self, purpose: &str) -> Rng {
        let life = self.life.to_le_bytes();
        let labels = [self.node.as_str().as_bytes(), &life, purpose.as_bytes()];
        Rng::derive(self.shared.entropy, &labels)
    }

    fn spawn(&self, class: Class, task: Box<dyn FnOnce() -> LocalFuture + Send>) {
        match class {
            Class::Network => self.network.spawn(task),
            Class::Gateway => self.gateway.spawn(task),
            Class::Rule => self.rule().spawn(task),
            Class::Node => self.others.spawn(task),
        }
    }

    fn offload(
        &self,
        work: Work,
        task: Box<dyn FnOnce() + Send>,
    ) -> SendFuture<Result<(), OffloadPanicked>> {
        self.shared.pool.offload(work, task)
    }

    fn bind(&self, address: SocketAddr) -> io::Result<Bound> {
        let runtime = Arc::new(ScopedRuntime {
            scope: self.network.clone(),
        });
        let socket = socket::bind(address)?;
        let _reactor = self.shared.reactor.enter();
        let socket = quinn::Runtime::wrap_udp_socket(&*runtime, socket)?;
        let socket = socket::Batched::wrap(socket, self.receives(address));
        let socket = self
            .shared
            .emulation
            .wrap(&self.node, socket, &self.network);
        Ok((socket, runtime))
    }

    fn receives(&self, address: SocketAddr) -> u16 {
        match self.shared.emulation.is_any() {
            // A path that is emulated is one of the wide area.
            true => DATAGRAM,
            false => socket::receives(address),
        }
    }

    fn carries(&self, peer: SocketAddr) -> u16 {
        match self.shared.emulation.is_any() {
            true => DATAGRAM,
            false => socket::carries(peer),
        }
    }

    fn endpoint_seed(&self) -> Option<[u8; 32]> {
        None
    }

    fn reset_key(&self) -> [u8; 64] {
        self.reset_key
    }

    fn files(&self) -> Arc<dyn Files> {
        self.files.clone()
    }

    fn store(&self) -> Arc<dyn Files> {
        if let Some(elsewhere) = self.shared.store.get() {
            return elsewhere.clone();
        }
        match self.shared.shared.get() {
            Some(owner) if *owner != self.node => {
                let open = || {
                    let folder = node_folder(&self.shared.state, owner);
                    Arc::new(files::share(&folder, &folder_name(&self.node)))
                };
                self.records.get_or_init(open).clone()
            }
            _ => self.files(),
        }
    }

    fn advertise(&self, node: &NodeId, address: SocketAddr) -> io::Result<()> {
        self.shared.emulation.learn(node, &[address]);
        self.shared.addresses.advertise(node, address)
    }

    fn resolve(&self, node: &NodeId) -> SendFuture<io::Result<Vec<SocketAddr>>> {
        let shared = self.shared.clone();
        let node = node.clone();
        Box::pin(async move {
            let found = match shared.addresses.planned(&node) {
                Some(host) => address::look_up(&node, &host).await?,
                None => vec![shared.addresses.written(&node)?],
            };
            shared.emulation.learn(&node, &found);
            Ok(found)
        })
    }
}

/// Removes the address that a node of this machine wrote in an earlier life. Nobody may be that node now.
pub(crate) fn forget_address(state: &Path, node: &NodeId) -> io::Result<()> {
    address::forget(state, node)
}

/// A node's files, for reading, whoever uses them.
pub(crate) fn look(state: &Path, node: &NodeId) -> Arc<dyn Files> {
    Arc::new(files::look(&node_folder(state, node)))
}

fn node_folder(state: &Path, node: &NodeId) -> PathBuf {
    state.join("nodes").join(folder_name(node))
}

fn folder_name(node: &NodeId) -> String {
    format!("{}.{}", node.domain(), node.name())
}

/// The wall clock, for certificates and file dates only: seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_secs())
}

/// The wall clock in microseconds since 1970, to compare it with that of another machine.
pub(crate) fn unix_micros() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Bytes of a UDP socket's buffers: asked for, granted to receive, granted to send.
pub(crate) fn udp_buffers() -> (usize, usize, usize) {
    socket::granted()
}

/// The largest UDP payload that the first device on the way to a peer carries.
pub(crate) fn udp_carries(peer: SocketAddr) -> u16 {
    socket::carries(peer)
}

/// Waits, where nothing else is to be done.
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// A named thread for work that waits on files.
pub(crate) fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}
