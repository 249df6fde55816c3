//! Bytes over a simulated path under a congestion law: real quinn and TLS between two nodes, and no actors.
//!
//! A path has one queue, and all flows that are opened here share it. A flow is one connection whose stream carries as much as is asked of
//! it; it is measured by what has arrived at the other end. Windows are so large that only the law limits it.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn::{Connection, Endpoint, TransportConfig, VarInt};

use tombolo_actors::env::{Class, Env};
use tombolo_actors::identity::Identity;
use tombolo_actors::quic;
use tombolo_actors::quic::congestion::Fixed;
use tombolo_core::congestion::Law;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

use crate::identity::NodeIdentity;
use crate::sim::{LinkModel, LinkStatistics, SimError, SimWorld};
use crate::topology;

/// Two domains, so that certificates are those of a link between sites.
const TOPOLOGY: &str = "[federation]\nname = \"flows\"\n\
    [[domain]]\nname = \"from\"\nnodes = [\"gate\"]\n\
    [[domain]]\nname = \"to\"\nnodes = [\"gate\"]\n";

/// How often arrivals are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// A flow of which nothing has arrived for so long will not end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that one write hands to quinn.
const BLOCK: usize = 64 << 10;

/// Bytes that may be on their way on one flow: what 1 Gbit/s carries in 300 ms, three times.
const WINDOW: u32 = 128 << 20;

/// A path both ways, whose queue holds what it carries in a round trip.
pub fn path(round_trip: Duration, loss: f64, rate: u64) -> LinkModel {
    let held = u128::from(rate) * round_trip.as_micros() / 8_000_000;
    LinkModel {
        latency: round_trip / 2,
        jitter: Duration::ZERO,
        loss,
        rate: Some(rate),
        queue: u64::try_from(held).unwrap_or(u64::MAX).max(30_000),
        ..LinkModel::lan()
    }
}

/// One node that takes what another sends, over any number of flows.
pub struct Flows {
    world: SimWorld,
    plan: Plan,
    sender: Arc<dyn Env>,
    identity: Arc<dyn Identity>,
    to: NodeId,
    /// Bytes that arrived, by flow in the order in which they were opened.
    arrived: Vec<Arc<AtomicU64>>,
    open: RefCell<Vec<Connection>>,
}

impl Flows {
    /// Runs a scenario over a path that up to `count` flows share.
    ///
    /// # Errors
    /// As [`SimWorld::run`], or what kept the two nodes from being made.
    ///
    /// # Panics
    /// As [`SimWorld::run`].
    pub fn run<F, T>(
        seed: u64,
        path: LinkModel,
        count: usize,
        scenario: impl FnOnce(Flows) -> F + 'static,
    ) -> io::Result<T>
    where
        F: Future<Output = io::Result<T>> + 'static,
        T: 'static,
    {
        let ran = SimWorld::new(seed).run(move |world| async move {
            let flows = Flows::new(&world, seed, path, count)?;
            scenario(flows).await
        });
        ran.map_err(|error: SimError| io::Error::other(error))?
    }

    fn new(world: &SimWorld, seed: u64, path: LinkModel, count: usize) -> io::Result<Flows> {
        let folder = std::path::Path::new(".");
        let plan = topology::parse("flows", TOPOLOGY, folder).map_err(io::Error::other)?;
        let node = |name: &str| -> io::Result<(Arc<dyn Env>, Arc<dyn Identity>)> {
            let node: NodeId = name.parse().map_err(io::Error::other)?;
            let env = world.env(&node);
            let clock = env.clone();
            let clock = Arc::new(move || clock.unix_time());
            let identity = NodeIdentity::seeded(&plan, &node, seed, clock);
            Ok((env, identity.map_err(io::Error::other)?))
        };
        let ((sender, from), (receiver, to)) = (node("from/gate")?, node("to/gate")?);
        world.link(from.node(), to.node(), path);
        let endpoint = endpoint(&receiver, &plan, &*to)?;
        let mut server = quinn::ServerConfig::with_crypto(to.server());
        server.transport_config(transport(Law::Cubic));
        endpoint.set_server_config(Some(server));
        receiver.advertise(to.node(), endpoint.local_addr()?)?;
        let arrived: Vec<Arc<AtomicU64>> = (0..count).map(|_| Arc::default()).collect();
        let counters = arrived.clone();
        receiver.spawn(
            Class::Gateway,
            Box::new(move || Box::pin(take(endpoint, counters))),
        );
        Ok(Flows {
            world: world.clone(),
            sender,
            to: to.node().clone(),
            identity: from,
            plan,
            arrived,
            open: RefCell::default(),
        })
    }

    /// Opens the next flow, under a law.
    ///
    /// # Errors
    /// The handshake failed.
    pub async fn open(&self, law: Law) -> io::Result<Flow> {
        let endpoint = endpoint(&self.sender, &self.plan, &*self.identity)?;
        let (crypto, name) = self.identity.client(&self.to);
        let mut config = quinn::ClientConfig::new(crypto);
        config.transport_config(transport(law));
        let addresses = self.sender.resolve(&self.to).await?;
        let address = addresses.first().copied();
        let address = address.ok_or_else(|| io::Error::other("nobody listens"))?;
        let connecting = endpoint.connect_with(config, address, &name);
        let connection = connecting.map_err(io::Error::other)?.await?;
        self.open.borrow_mut().push(connection.clone());
        Ok(Flow(connection))
    }

    /// Bytes of a flow that have arrived.
    pub fn arrived(&self, flow: usize) -> u64 {
        self.arrived[flow].load(Ordering::Relaxed)
    }

    /// Waits until so many bytes of a flow have arrived.
    ///
    /// # Errors
    /// Nothing has arrived for long, and why if that is known.
    pub async fn until(&self, flow: usize, bytes: u64) -> io::Result<()> {
        let (mut seen, mut since) = (0, self.now());
        loop {
            let arrived = self.arrived(flow);
            if arrived >= bytes {
                return Ok(());
            }
            if arrived > seen {
                (seen, since) = (arrived, self.now());
            } else if self.now() - since > PATIENCE {
                return Err(self.stalled(flow, arrived, bytes));
            }
            self.sleep(LOOK).await;
        }
    }

    fn stalled(&self, flow: usize, arrived: u64, bytes: u64) -> io::Error {
        let open = self.open.borrow();
        let closed = open.get(flow).and_then(Connection::close_reason);
        let why = closed.map_or("it is open".to_owned(), |reason| reason.to_string());
        io::Error::other(format!(
            "of flow {flow}, {arrived} bytes of {bytes} have arrived, and nothing for {PATIENCE:?}: {why}"
        ))
    }

    /// Waits, in virtual time.
    pub async fn sleep(&self, span: Duration) {
        self.world.sleep(span).await;
    }

    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.world.now().0)
    }

    /// Makes the path another one, both ways.
    pub fn change_path(&self, path: LinkModel) {
        self.world.link(self.identity.node(), &self.to, path);
    }

    /// What has happened on the path that the bytes take.
    pub fn statistics(&self) -> LinkStatistics {
        self.world.statistics(self.identity.node(), &self.to)
    }
}

/// One connection of the sender.
pub struct Flow(Connection);

impl Flow {
    /// Sends so many bytes in the background, on a stream of their own.
    pub fn send(&self, bytes: u64) {
        let connection = self.0.clone();
        // If it fails, they do not arrive.
        tokio::task::spawn_local(async move { send(connection, bytes).await });
    }
}

async fn send(connection: Connection, bytes: u64) -> Result<(), quinn::WriteError> {
    let mut stream = connection.open_uni().await?;
    let block = bytes::Bytes::from(vec![7; BLOCK]);
    let mut left = bytes;
    while left > 0 {
        let length = left.min(BLOCK as u64);
        left -= length;
        stream.write_chunk(block.slice(..length as usize)).await?;
    }
    // A stream that is closed already has nothing left to finish.
    let _ = stream.finish();
    connection.closed().await;
    Ok(())
}

async fn take(endpoint: Endpoint, counters: Vec<Arc<AtomicU64>>) {
    for counter in counters {
        let Some(incoming) = endpoint.accept().await else {
            return;
        };
        // Whose handshake fails says so to who dialled.
        if let Ok(connection) = incoming.await {
            tokio::task::spawn_local(drain(connection, counter));
        }
    }
    std::future::pending::<()>().await;
}

async fn drain(connection: Connection, count: Arc<AtomicU64>) {
    while let Ok(mut stream) = connection.accept_uni().await {
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
            count.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        }
    }
}

fn endpoint(env: &Arc<dyn Env>, plan: &Plan, identity: &dyn Identity) -> io::Result<Endpoint> {
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let quic::Bound { endpoint, .. } = quic::bind(env, plan, identity.node(), identity, address)?;
    Ok(endpoint)
}

fn transport(law: Law) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .initial_rtt(Duration::from_millis(100))
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .send_window(2 * u64::from(WINDOW))
        .congestion_controller_factory(Arc::new(Fixed(Some(law))));
    Arc::new(transport)
}
