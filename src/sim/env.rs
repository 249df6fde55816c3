//! One node's view of a simulated world, for one life: a restarted node gets another.
//!
//! Every future here is cooperative: a task that awaits nothing but what is ready must still yield, or no guard could stop it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::task::coop::cooperative;
use tombolo_actors::env::{
    Bound, Class, Env, Files, LocalFuture, OffloadPanicked, SendFuture, Work,
};
use tombolo_actors::shell::panic_text;
use tombolo_core::ids::NodeId;
use tombolo_core::rng::Rng;
use tombolo_core::time::Micros;
use tombolo_core::wire::{Control, codec};

use super::files::{DiskOfLife, MemoryDisk};
use super::network::{self, Network};
use super::skew::Clocks;
use super::socket::{SimRuntime, SimSocket, Timer};
use super::{Shared, SimWorld, nanos};
use crate::files::{Disk, FolderFiles};
use crate::world::scope::Scope;

/// The wall clock at the start: 2026-01-01 00:00:00 UTC.
const EPOCH: u64 = 1_767_225_600;

/// What [`Work::Bytes`] assumes: about what one core reads and hashes.
const BYTES_PER_SECOND: f64 = 4e9;

pub struct SimEnv {
    /// Weak, because the world owns its nodes.
    world: Weak<Shared>,
    network: Network,
    seed: u64,
    node: NodeId,
    incarnation: u64,
    scope: Scope,
    alive: Arc<AtomicBool>,
    disk: Arc<MemoryDisk>,
    files: Arc<FolderFiles>,
    /// The disk of the coordinator's records, once it is needed.
    records: OnceLock<Arc<FolderFiles>>,
    clocks: Clocks,
    endpoints: AtomicU64,
    trainings: AtomicU64,
    sends: AtomicU64,
    /// A bit of the model that the node holds is to flip.
    flips: AtomicBool,
}

impl SimEnv {
    pub fn start(
        world: &Arc<Shared>,
        node: &NodeId,
        incarnation: u64,
        disk: &Arc<MemoryDisk>,
        clocks: &Clocks,
    ) -> Arc<Self> {
        let scope = Scope::new();
        let tasks = scope.clone();
        world.root.spawn(Box::new(move || Box::pin(tasks.runner())));
        let alive = Arc::new(AtomicBool::new(true));
        let of_life: Arc<dyn Disk> = Arc::new(DiskOfLife {
            disk: disk.clone(),
            alive: alive.clone(),
            node: node.clone(),
        });
        // A disk that cannot even be cleared is found broken at the first change.
        let files = FolderFiles::open(of_life.clone());
        let files = files.unwrap_or_else(|_| FolderFiles::look(of_life));
        Arc::new(SimEnv {
            world: Arc::downgrade(world),
            network: world.network.clone(),
            seed: world.seed,
            node: node.clone(),
            incarnation,
            scope,
            alive,
            disk: disk.clone(),
            files: Arc::new(files),
            records: OnceLock::new(),
            clocks: clocks.clone(),
            endpoints: AtomicU64::new(0),
            trainings: AtomicU64::new(0),
            sends: AtomicU64::new(0),
            flips: AtomicBool::new(false),
        })
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Ends this life; false if it had ended before.
    pub fn kill(&self) -> bool {
        let lived = self.alive.swap(false, Ordering::Relaxed);
        self.scope.close();
        lived
    }

    /// Whether this life has not ended.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Stops this life's tasks, or lets them go on.
    pub fn freeze(&self, frozen: bool) {
        self.scope.freeze(frozen);
    }

    /// Lets a bit of the model that this node holds flip.
    pub fn flip(&self) {
        self.flips.store(true, Ordering::Relaxed);
    }

    fn check_alive(&self) -> io::Result<()> {
        check_alive(&self.alive, &self.node)
    }

    fn world(&self) -> io::Result<Arc<Shared>> {
        self.world
            .upgrade()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the simulation is over"))
    }

    fn derive(&self, kind: &str, purpose: &[u8]) -> Rng {
        let labels = [
            kind.as_bytes(),
            self.node.as_str().as_bytes(),
            purpose,
            &self.incarnation.to_le_bytes(),
        ];
        Rng::derive(self.seed, &labels)
    }

    fn duration(&self, work: Work) -> Duration {
        let Ok(world) = self.world() else {
            return Duration::ZERO;
        };
        let (slowness, (base, spread)) = {
            let state = world.lock();
            let node = state.nodes.get(&self.node);
            (node.map_or(1.0, |node| node.slowness), state.training)
        };
        let nanos = match work {
            Work::Bytes(bytes) => bytes as f64 * 1e9 / BYTES_PER_SECOND,
            Work::Train => self.training(base, spread),
            Work::Steps { steps, of } => {
                self.training(base, spread) * (steps as f64 / of.max(1) as f64)
            }
        };
        // Through nanoseconds: a huge factor must end in a long time, not in a panic.
        Duration::from_nanos((nanos * slowness) as u64)
    }

    /// How many nanoseconds the next training takes.
    fn training(&self, base: Duration, spread: f64) -> f64 {
        let nth = self.trainings.fetch_add(1, Ordering::Relaxed);
        let chance = self.derive("training", &nth.to_le_bytes()).next_f64();
        nanos(base) as f64 * (1.0 + spread * (2.0 * chance - 1.0))
    }

    /// The first instant of the world at which `span` has passed on this node's clock.
    fn after(&self, span: Duration) -> u64 {
        let here = self.clocks.monotonic(self.network.now());
        self.clocks.world(here.saturating_add(nanos(span)))
    }
}

pub fn check_alive(alive: &AtomicBool, node: &NodeId) -> io::Result<()> {
    if alive.load(Ordering::Relaxed) {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::NotConnected,
            format!("{node} is down: this is the view of a life that has ended"),
        ))
    }
}

impl Env for SimEnv {
    fn now(&self) -> Micros {
        Micros(self.clocks.monotonic(self.network.now()) / 1000)
    }

    fn sleep(&self, span: Duration) -> SendFuture<()> {
        let at = self.after(span);
        Box::pin(cooperative(Timer::new(self.network.clone(), at)))
    }

    fn unix_time(&self) -> u64 {
        let passed = self.clocks.wall(self.network.now());
        let seconds = i128::from(EPOCH) + passed.div_euclid(1_000_000_000);
        u64::try_from(seconds.max(0)).unwrap_or(u64::MAX)
    }

    fn rng(&self, purpose: &str) -> Rng {
        self.derive("purpose", purpose.as_bytes())
    }

    fn spawn(&self, _: Class, task: Box<dyn FnOnce() -> LocalFuture + Send>) {
        self.scope.spawn(task);
    }

    fn offload(
        &self,
        work: Work,
        task: Box<dyn FnOnce() + Send>,
    ) -> SendFuture<Result<(), OffloadPanicked>> {
        let duration = self.duration(work);
        let network = self.network.clone();
        let (disk, world, node) = (self.disk.clone(), self.world.clone(), self.node.clone());
        Box::pin(async move {
            let result = std::panic::catch_unwind(AssertUnwindSafe(task));
            if disk.has_ended()
                && let Some(shared) = world.upgrade()
            {
                // The node died at a change of its disk; its crash drops this task at the next chance.
                SimWorld { shared }.crash(&node);
                std::future::pending::<()>().await;
            }
            let at = network.now().saturating_add(nanos(duration));
            cooperative(Timer::new(network, at)).await;
            result.map_err(|panic| OffloadPanicked(panic_text(panic.as_ref())))
        })
    }

    /// Of contributions, with the chance that the world was given.
    fn send_fails(&self, _to: &NodeId, message: &[u8]) -> bool {
        let share = self.world().map_or(0.0, |world| world.lock().failing_sends);
        let contributes = || matches!(codec::decode(message), Ok(Control::Contribute(_)));
        if share == 0.0 || !contributes() {
            return false;
        }
        let nth = self.sends.fetch_add(1, Ordering::Relaxed);
        self.derive("send", &nth.to_le_bytes()).next_f64() < share
    }

    fn model_flips(&self) -> bool {
        self.flips.swap(false, Ordering::Relaxed)
    }

    /// The port counts; the address is always the node's own.
    fn bind(&self, address: SocketAddr) -> io::Result<Bound> {
        self.check_alive()?;
        let socket = self.network.bind(&self.node, address.port())?;
        let runtime = SimRuntime {
            network: self.network.clone(),
            scope: self.scope.clone(),
            clocks: self.clocks.clone(),
        };
        Ok((
            Arc::new(SimSocket::new(self.network.clone(), socket)),
            Arc::new(runtime),
        ))
    }

    fn endpoint_seed(&self) -> Option<[u8; 32]> {
        let nth = self.endpoints.fetch_add(1, Ordering::Relaxed);
        let mut seed = [0; 32];
        self.derive("endpoint", &nth.to_le_bytes()).fill(&mut seed);
        Some(seed)
    }

    fn reset_key(&self) -> [u8; 64] {
        let mut key = [0; 64];
        Rng::derive(0, &[b"reset key", self.node.as_str().as_bytes()]).fill(&mut key);
        key
    }

    fn files(&self) -> Arc<dyn Files> {
        self.files.clone()
    }

    fn store(&self) -> Arc<dyn Files> {
        if let Some(records) = self.records.get() {
            return records.clone();
        }
        let shared = self.world().ok().and_then(|world| {
            let state = world.lock();
            let owner = state.shared.as_ref().filter(|owner| **owner != self.node)?;
            Some(state.nodes.get(owner)?.disk.clone())
        });
        match shared {
            Some(disk) => {
                let of_life = DiskOfLife {
                    disk,
                    alive: self.alive.clone(),
                    node: self.node.clone(),
                };
                let name = format!("{}.{}", self.node.domain(), self.node.name());
                let open = || Arc::new(FolderFiles::share(Arc::new(of_life), &name));
                self.records.get_or_init(open).clone()
            }
            None => self.files(),
        }
    }

    fn advertise(&self, node: &NodeId, address: SocketAddr) -> io::Result<()> {
        self.check_alive()?;
        self.world()?.lock().directory.insert(node.clone(), address);
        Ok(())
    }

    fn resolve(&self, node: &NodeId) -> SendFuture<io::Result<Vec<SocketAddr>>> {
        let found = self
            .world()
            .map(|world| world.lock().directory.get(node).copied());
        let node = node.clone();
        Box::pin(cooperative(async move {
            found?.map(|address| vec![address]).ok_or_else(|| {
                let ip = IpAddr::V6(network::address(&node));
                io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{node} ({ip}) has not made its address known yet"),
                )
            })
        }))
    }
}
