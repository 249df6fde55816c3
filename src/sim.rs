//! The real protocol in virtual time.
//!
//! A [`SimWorld`] holds a network, a clock and one [`Env`] per node. Actors, links and quinn run on it unchanged, on one thread, as fast
//! as the machine computes: whenever everyone waits, the clock jumps to the next thing that happens. Every choice derives from the seed,
//! so that equal seeds give equal traces (SEED-1), and a failure is replayed by running its seed again.
//!
//! - `network`: sockets, links, timers and the clock.
//! - `link`, `trace`: what a path does to datagrams; what happened.
//! - `socket`: the network as quinn sees it.
//! - `runner`: the root future, with the limits that end every simulation.
//! - `env`, `files`, `skew`: one node's view of the world, its disk, its clocks.

mod env;
mod files;
pub(crate) mod link;
mod network;
mod runner;
mod skew;
mod socket;
mod trace;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tombolo_actors::env::{Env, Files};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;

use crate::files::FolderFiles;
use crate::world::scope::Scope;
use env::SimEnv;
use files::DiskOfLife;
use network::Network;
use skew::Clocks;

pub use files::{Failure, Loss, MemoryDisk};
pub(crate) use link::IN_FLIGHT_BYTES_MAX;
pub use link::{LinkModel, LinkStatistics, PathFault};
pub(crate) use network::{INBOX_BYTES_MAX, Load};
pub use skew::{MONOTONIC_PPM_MAX, WALL_PPM_MAX};
pub use trace::{TraceEvent, TraceKind};

/// How long a simulation may last unless told otherwise.
const LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long local training takes unless told otherwise, and how much that varies.
const TRAINING: (Duration, f64) = (Duration::from_millis(40), 0.2);

/// The trouble that [`SimWorld::cut`] makes.
const BY_HAND: u64 = u64::MAX;

/// A simulation that did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// Virtual time ran out.
    #[error(
        "the simulation with seed {seed} did not end within {limit:?} of virtual time: raise the limit or find who waits for what never \
         comes; the last events were\n{events}"
    )]
    Limit {
        /// Replays it.
        seed: u64,
        /// The limit that was passed.
        limit: Duration,
        /// The last events, one a line.
        events: String,
    },
    /// Tasks kept waking each other while the clock stood still.
    #[error(
        "the simulation with seed {seed} stands still at {at:?}: tasks wake each other without waiting for anything; the last events \
         were\n{events}"
    )]
    Stalled {
        /// Replays it.
        seed: u64,
        /// Where the clock stands.
        at: Duration,
        /// The last events, one a line.
        events: String,
    },
    /// A world can be run once.
    #[error("the simulation with seed {seed} has run before: make a new world for each run")]
    AlreadyRan {
        /// Its seed.
        seed: u64,
    },
    /// Tokio refused the runtime.
    #[error("the simulation's runtime could not be made: {0}")]
    Runtime(String),
}

/// A simulated world; a handle. Make nodes with [`SimWorld::env`], then give [`SimWorld::run`] what shall happen.
#[derive(Clone)]
pub struct SimWorld {
    shared: Arc<Shared>,
}

struct Shared {
    seed: u64,
    network: Network,
    /// What runs beside the scenario: the nodes' scopes.
    root: Scope,
    state: Mutex<State>,
}

struct State {
    limit: Duration,
    training: (Duration, f64),
    failing_sends: f64,
    nodes: BTreeMap<NodeId, Node>,
    directory: BTreeMap<NodeId, SocketAddr>,
    mourners: Vec<Mourner>,
    /// Whose disk holds the coordinator's records, if several nodes may be coordinator in turn.
    shared: Option<NodeId>,
}

/// Is told of each node whose life ends, and shown what its disk holds then.
type Mourner = Arc<dyn Fn(&NodeId, &dyn Files) + Send + Sync>;

struct Node {
    env: Arc<SimEnv>,
    disk: Arc<MemoryDisk>,
    clocks: Clocks,
    slowness: f64,
}

impl fmt::Debug for SimWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimWorld(seed {})", self.shared.seed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    fn last_events(&self) -> String {
        let lines: Vec<String> = self
            .network
            .events()
            .iter()
            .map(TraceEvent::to_string)
            .collect();
        lines.join("\n")
    }
}

impl SimWorld {
    /// A world without nodes.
    pub fn new(seed: u64) -> Self {
        SimWorld {
            shared: Arc::new(Shared {
                seed,
                network: Network::new(seed),
                root: Scope::new(),
                state: Mutex::new(State {
                    limit: LIMIT,
                    training: TRAINING,
                    failing_sends: 0.0,
                    nodes: BTreeMap::new(),
                    directory: BTreeMap::new(),
                    mourners: Vec::new(),
                    shared: None,
                }),
            }),
        }
    }

    /// Sets the virtual time after which [`SimWorld::run`] gives up; one day by default.
    pub fn set_limit(&self, limit: Duration) {
        self.shared.lock().limit = limit;
    }

    /// Sets how long local training takes: `base`, give or take the share `spread`.
    pub fn set_training(&self, base: Duration, spread: f64) {
        self.shared.lock().training = (base, spread.clamp(0.0, 1.0));
    }

    /// Sets how many sends of a contribution fail, 0 to 1: each time one is sent, its connection breaks with this chance. None by default.
    pub fn set_failing_sends(&self, share: f64) {
        self.shared.lock().failing_sends = share.clamp(0.0, 1.0);
    }

    /// Runs a scenario to its end, then ends every node. `Err` if it takes too long or stands still.
    ///
    /// # Errors
    /// See [`SimError`]. What the scenario returns is not looked at.
    ///
    /// # Panics
    /// If the scenario panics, after printing seed and last events.
    pub fn run<F, T>(&self, scenario: impl FnOnce(SimWorld) -> F) -> Result<T, SimError>
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        runner::run(self, scenario, None)
    }

    /// As [`SimWorld::run`], and calls `look` whenever the clock has taken so many steps.
    ///
    /// # Errors
    /// As [`SimWorld::run`].
    ///
    /// # Panics
    /// As [`SimWorld::run`].
    pub(crate) fn run_watched<F, T>(
        &self,
        scenario: impl FnOnce(SimWorld) -> F,
        steps: u64,
        look: Box<dyn FnMut()>,
    ) -> Result<T, SimError>
    where
        F: Future<Output = T> + 'static,
        T: 'static,
    {
        runner::run(self, scenario, Some((steps, look)))
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// Virtual time since the start.
    pub fn now(&self) -> Micros {
        Micros(self.shared.network.now() / 1000)
    }

    /// Tells [`SimWorld::now`], also for those who must not keep the world alive.
    pub(crate) fn clock(&self) -> impl Fn() -> Micros + Send + Sync + use<> {
        let network = self.shared.network.clone();
        move || Micros(network.now() / 1000)
    }

    /// Ends after `span` of virtual time, to the nanosecond.
    pub fn sleep(&self, span: Duration) -> impl Future<Output = ()> + Send + use<> {
        let network = self.shared.network.clone();
        let at = network.now().saturating_add(nanos(span));
        tokio::task::coop::cooperative(socket::Timer::new(network, at))
    }

    /// A node's view of the world; the node is made if there is none of that name. After a crash: the view that is dead.
    pub fn env(&self, node: &NodeId) -> Arc<dyn Env> {
        let mut state = self.shared.lock();
        if let Some(node) = state.nodes.get(node) {
            return node.env.clone();
        }
        self.shared.network.add_node(node);
        let (disk, clocks) = (Arc::new(MemoryDisk::new()), Clocks::default());
        let env = self.start(node, 1, &disk, &clocks);
        state.nodes.insert(
            node.clone(),
            Node {
                env: env.clone(),
                disk,
                clocks,
                slowness: 1.0,
            },
        );
        env
    }

    fn start(
        &self,
        node: &NodeId,
        incarnation: u64,
        disk: &Arc<MemoryDisk>,
        clocks: &Clocks,
    ) -> Arc<SimEnv> {
        self.shared.network.note(TraceKind::Start, node, node);
        SimEnv::start(&self.shared, node, incarnation, disk, clocks)
    }

    /// From now on nodes of other domains reach a node only where it has spoken to them first, as behind the firewall of a site.
    pub fn shut(&self, node: &NodeId) {
        self.env(node);
        self.shared.network.shut(node);
    }

    /// Ends a node as a power cut does: tasks, timers, sockets and what its disk had not synchronized are gone, files stay.
    pub fn crash(&self, node: &NodeId) {
        self.crash_with(node, Loss::Everything);
    }

    /// Ends a node. If a [`Failure::Crash`] of its disk has ended it already, the failure's own loss counts.
    pub fn crash_with(&self, node: &NodeId, loss: Loss) {
        let state = self.shared.lock();
        let entry = state.nodes.get(node);
        let entry = entry.map(|node| (node.env.clone(), node.disk.clone()));
        let mourners = state.mourners.clone();
        drop(state);
        if let Some((env, disk)) = entry.filter(|(env, _)| env.kill()) {
            disk.end_life(loss);
            self.shared.network.silence(node);
            self.shared.network.note(TraceKind::Crash, node, node);
            if !mourners.is_empty() {
                let files = self.files(node);
                mourners.iter().for_each(|mourner| mourner(node, &*files));
            }
            drop(env);
        }
    }

    /// Whether a node was started and has not crashed since.
    pub fn is_up(&self, node: &NodeId) -> bool {
        let state = self.shared.lock();
        state
            .nodes
            .get(node)
            .is_some_and(|node| node.env.is_alive())
    }

    /// Calls `mourner`, with what is on the disk, for each node that crashes from now on, be it by a [`Failure::Crash`] of its disk.
    pub fn on_crash(&self, mourner: impl Fn(&NodeId, &dyn Files) + Send + Sync + 'static) {
        self.shared.lock().mourners.push(Arc::new(mourner));
    }

    /// Starts a node again (crashing it first if it is up), with the files it had. The caller starts its actors on the returned view.
    pub fn restart(&self, node: &NodeId) -> Arc<dyn Env> {
        self.env(node);
        self.crash(node);
        let mut state = self.shared.lock();
        let entry = state.nodes.get_mut(node).expect("the node was made above");
        let life = entry.env.incarnation() + 1;
        let fresh = self.start(node, life, &entry.disk, &entry.clocks);
        let old = std::mem::replace(&mut entry.env, fresh.clone());
        drop(state);
        drop(old);
        fresh
    }

    /// Keeps the coordinator's records on this node's disk, whoever coordinates: a folder that all of them reach, whatever their links do.
    pub fn keep_records_of(&self, node: &NodeId) {
        self.shared.lock().shared = Some(node.clone());
    }

    /// Empties a node's disk.
    pub fn forget(&self, node: &NodeId) {
        if let Some(node) = self.shared.lock().nodes.get(node) {
            node.disk.clear();
        }
    }

    /// A node's files, whether the node is up or not.
    pub fn files(&self, node: &NodeId) -> Arc<dyn Files> {
        Arc::new(FolderFiles::look(Arc::new(DiskOfLife {
            disk: self.disk(node),
            alive: Arc::new(AtomicBool::new(true)),
            node: node.clone(),
        })))
    }

    /// A node's disk, to be filled, broken, or made to fail at a certain change.
    pub fn disk(&self, node: &NodeId) -> Arc<MemoryDisk> {
        self.env(node);
        self.shared.lock().nodes[node].disk.clone()
    }

    /// Makes all blocking work of a node take so many times as long: training, reading, hashing, folding.
    pub fn slow(&self, node: &NodeId, factor: f64) {
        self.env(node);
        if let Some(node) = self.shared.lock().nodes.get_mut(node) {
            node.slowness = factor.max(0.0);
        }
    }

    /// Moves a node's wall clock forward by so many seconds, or back.
    pub fn step_clock(&self, node: &NodeId, seconds: f64) {
        self.clocks(node).step((seconds * 1e9) as i128);
    }

    /// Lets a node's monotonic clock be ahead of the world's, as if its machine had run for so much longer; before anything runs on it.
    pub fn start_clock_ahead(&self, node: &NodeId, by: Duration) {
        self.clocks(node).start_ahead(nanos(by));
    }

    /// Lets a bit of the model that a node holds flip, before it trains from it next.
    pub fn flip(&self, node: &NodeId) {
        if let Some(node) = self.shared.lock().nodes.get(node) {
            node.env.flip();
        }
    }

    /// Lets a node's clocks run too fast or slow from now on, by so many parts per million: its wall clock by up to [`WALL_PPM_MAX`], its
    /// monotonic clock by up to [`MONOTONIC_PPM_MAX`]. Zero lets them run right, from where they stand.
    pub fn drift_clocks(&self, node: &NodeId, wall_ppm: f64, monotonic_ppm: f64) {
        let now = self.shared.network.now();
        self.clocks(node).drift(now, wall_ppm, monotonic_ppm);
    }

    fn clocks(&self, node: &NodeId) -> Clocks {
        self.env(node);
        self.shared.lock().nodes[node].clocks.clone()
    }

    /// Sets the path between two nodes, both ways.
    pub fn link(&self, a: &NodeId, b: &NodeId, model: LinkModel) {
        self.link_one_way(a, b, model.clone());
        self.link_one_way(b, a, model);
    }

    /// Sets the path from one node to another.
    pub fn link_one_way(&self, from: &NodeId, to: &NodeId, model: LinkModel) {
        self.shared
            .network
            .with_link(from, to, |link| link.behave(model));
    }

    /// Sets what paths without a model of their own do, from now on: inside a domain, and between domains.
    pub fn set_default_links(&self, lan: LinkModel, wan: LinkModel) {
        self.shared.network.set_defaults(lan, wan);
    }

    /// Sets every path that the plan's `[[link]]` tables emulate.
    pub fn link_as_planned(&self, plan: &Plan) {
        for link in &plan.links {
            let (Some(a), Some(b)) = (plan.domain(&link.between.0), plan.domain(&link.between.1))
            else {
                continue;
            };
            for a in &a.nodes {
                for b in &b.nodes {
                    self.env(&a.id);
                    self.env(&b.id);
                    self.link(&a.id, &b.id, link.emulate.into());
                }
            }
        }
    }

    /// Cuts every path between the two groups, both ways, until [`SimWorld::heal`].
    pub fn partition(&self, a: &[NodeId], b: &[NodeId]) {
        self.cut(a, b);
        self.cut(b, a);
    }

    /// Cuts every path from one group to the other, until [`SimWorld::heal`]; the way back stays.
    pub fn cut(&self, from: &[NodeId], to: &[NodeId]) {
        self.impair(BY_HAND, from, to, PathFault::Cut);
    }

    /// Lifts partitions between the two groups, both ways, whoever made them.
    pub fn heal(&self, a: &[NodeId], b: &[NodeId]) {
        let network = &self.shared.network;
        for (from, to) in pairs(a, b).chain(pairs(b, a)) {
            network.with_link(from, to, |link| link.heal());
            network.note(TraceKind::Heal, from, to);
        }
    }

    /// Lifts every partition.
    pub fn heal_all(&self) {
        self.shared.network.heal();
    }

    /// Lets trouble begin on every path from one group to the other. Troubles on a path add up; `id` names this one for [`SimWorld::mend`],
    /// and is used for one trouble at a time.
    pub fn impair(&self, id: u64, from: &[NodeId], to: &[NodeId], fault: PathFault) {
        let network = &self.shared.network;
        let kind = match fault {
            PathFault::Cut => TraceKind::Partition,
            _ => TraceKind::Impair,
        };
        for (from, to) in pairs(from, to) {
            network.with_link(from, to, |link| link.befall(id, fault));
            network.note(kind, from, to);
        }
    }

    /// Ends a trouble on every path that has it.
    pub fn mend(&self, id: u64) {
        let network = &self.shared.network;
        for (from, to, fault) in network.mend(id) {
            let kind = match fault {
                PathFault::Cut => TraceKind::Heal,
                _ => TraceKind::Mend,
            };
            network.note_at(kind, from, to);
        }
    }

    /// Gives a node other ports in the eyes of its peers, as a translation of addresses does that has forgotten it.
    pub fn rebind(&self, node: &NodeId) {
        self.env(node);
        self.shared.network.rebind(node);
        self.shared.network.note(TraceKind::Rebind, node, node);
    }

    /// Stops a node's tasks and timers where they are, as `SIGSTOP` does: what arrives waits in its sockets, and peers may still READ its memory.
    /// A node that crashes is not frozen any more.
    pub fn freeze(&self, node: &NodeId) {
        self.set_frozen(node, true);
    }

    /// Lets a frozen node go on: all that waited happens at once.
    pub fn thaw(&self, node: &NodeId) {
        self.set_frozen(node, false);
    }

    fn set_frozen(&self, node: &NodeId, frozen: bool) {
        self.env(node);
        let env = self.shared.lock().nodes[node].env.clone();
        let kind = if frozen {
            TraceKind::Freeze
        } else {
            TraceKind::Thaw
        };
        self.shared.network.note(kind, node, node);
        env.freeze(frozen);
    }

    /// How full the network is.
    pub(crate) fn load(&self) -> Load {
        self.shared.network.load()
    }

    /// Sockets and timers that were made and not dropped.
    pub(crate) fn living(&self) -> (usize, usize) {
        let living = self.shared.network.living();
        let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        (count(&living.sockets), count(&living.timers))
    }

    /// What has happened on the path from one node to another.
    pub fn statistics(&self, from: &NodeId, to: &NodeId) -> LinkStatistics {
        self.shared.network.statistics(from, to)
    }

    /// A hash over time, kind, size and ends of every event so far.
    pub fn trace_hash(&self) -> u64 {
        self.shared.network.trace().0
    }

    /// How many events there were so far.
    pub fn event_count(&self) -> u64 {
        self.shared.network.trace().1
    }

    /// The last events, oldest first.
    pub fn events(&self) -> Vec<TraceEvent> {
        self.shared.network.events()
    }
}

/// Every path from one group to the other.
fn pairs<'a>(
    from: &'a [NodeId],
    to: &'a [NodeId],
) -> impl Iterator<Item = (&'a NodeId, &'a NodeId)> {
    from.iter()
        .flat_map(move |from| to.iter().map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
}

/// Nanoseconds; what does not fit (584 years) is cut off.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
