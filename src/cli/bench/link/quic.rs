//! A connection of two nodes, made as nodes make it: their sockets, their limits and timers, mutual TLS 1.3.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path as Folder;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, Endpoint, RecvStream, VarInt};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc as signals;

use super::{Path, Taken, is_right};
use tombolo::actors::env::{Class, Env};
use tombolo::actors::identity::{Identity, Purpose};
use tombolo::actors::quic;
use tombolo::identity::NodeIdentity;
use tombolo::topology;
use tombolo::world::{World, WorldOptions, unix_now};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

/// Two domains, so that the link is one between sites.
pub const TOPOLOGY: &str = "[federation]\nname = \"bench\"\n\
    [[domain]]\nname = \"from\"\nnodes = [\"gate\"]\n\
    [[domain]]\nname = \"to\"\nnodes = [\"gate\"]\n";

/// Any: the keys of a measurement guard nothing.
const SEED: u64 = 7;

/// How long one transfer may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The connection and what waits at its ends.
pub struct Quic {
    connection: Connection,
    /// Asks the sender for the object; whether every byte is to be looked at.
    go: signals::UnboundedSender<bool>,
    done: Receiver<io::Result<bool>>,
    /// Dropped last: they end what runs at both ends.
    _worlds: [World; 2],
}

impl Quic {
    /// Connects two nodes over loopback, with packets of at most `carries` bytes.
    pub fn open(folder: &Folder, object: &Bytes, taken: Taken, carries: u16) -> io::Result<Quic> {
        let plan = topology::parse("bench", TOPOLOGY, folder).map_err(io::Error::other)?;
        let plan = Arc::new(plan);
        let (go, asked) = signals::unbounded_channel();
        let (tell, done) = mpsc::sync_channel(1);
        let (connected, connection) = mpsc::sync_channel(1);
        let (told, tells) = signals::unbounded_channel();
        let receiver = End::new(&plan, folder, "to/gate")?;
        let address = receiver.endpoint.local_addr()?;
        let sender = End::new(&plan, folder, "from/gate")?;
        let carries = sender.env.carries(address).min(carries);
        let (config, name) = quic::dialling(
            &plan,
            sender.identity.as_ref(),
            &receiver.node,
            carries,
            Purpose::Link,
        );
        let connecting = sender
            .endpoint
            .connect_with(config, address, &name)
            .map_err(io::Error::other)?;
        let (endpoint, bytes) = (receiver.endpoint.clone(), object.len());
        let admitted = (plan.clone(), receiver.node.clone(), carries);
        receiver.run(move || receive(endpoint, admitted, bytes, taken, tells, tell));
        let object = object.clone();
        sender.run(move || async move {
            match connecting.await {
                Ok(connection) => {
                    // Fails only if nobody measures any more.
                    let _ = connected.send(Ok(connection.clone()));
                    send(connection, object, asked, told).await;
                }
                Err(error) => {
                    let _ = connected.send(Err(io::Error::other(error)));
                }
            }
        });
        let connection = connection.recv_timeout(LIMIT).map_err(io::Error::other)??;
        Ok(Quic {
            connection,
            go,
            done,
            _worlds: [sender.world, receiver.world],
        })
    }
}

impl Path for Quic {
    fn pass(&mut self, is_first: bool) -> io::Result<bool> {
        self.go.send(is_first).map_err(io::Error::other)?;
        match self.done.recv_timeout(LIMIT) {
            Ok(right) => right,
            Err(_) => Err(match self.connection.close_reason() {
                Some(reason) => io::Error::other(reason),
                None => io::Error::other(format!("the object did not arrive within {LIMIT:?}")),
            }),
        }
    }

    fn more(&self) -> Map<String, Value> {
        let path = self.connection.stats().path;
        let more = json!({ "packet_bytes": path.current_mtu, "lost_packets": path.lost_packets });
        more.as_object().cloned().unwrap_or_default()
    }
}

impl Drop for Quic {
    fn drop(&mut self) {
        self.connection.close(VarInt::from_u32(0), b"measured");
    }
}

/// One node, without the actors that would use its endpoint.
pub struct End {
    pub node: NodeId,
    world: World,
    pub env: Arc<dyn Env>,
    pub identity: Arc<dyn Identity>,
    pub endpoint: Endpoint,
}

impl End {
    /// The node of that name, with keys that guard nothing.
    pub fn new(plan: &Plan, folder: &Folder, name: &str) -> io::Result<End> {
        let node: NodeId = name.parse().map_err(io::Error::other)?;
        let identity = NodeIdentity::seeded(plan, &node, SEED, Arc::new(unix_now))
            .map_err(io::Error::other)?;
        End::of(plan, folder, identity)
    }

    /// The node of that identity.
    pub fn of(plan: &Plan, folder: &Folder, identity: Arc<dyn Identity>) -> io::Result<End> {
        let node = identity.node().clone();
        let mut options = WorldOptions::from(plan);
        options.state = folder.join(node.as_str());
        let world = World::new(options)?;
        let env = world.env(&node)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let quic::Bound { endpoint, .. } =
            quic::bind(&env, plan, &node, identity.as_ref(), address)?;
        Ok(End {
            node,
            world,
            env,
            identity,
            endpoint,
        })
    }

    /// Runs a task where packets are looked after, until the node is dropped.
    pub fn run<F: Future<Output = ()> + 'static>(&self, task: impl FnOnce() -> F + Send + 'static) {
        let task = Box::new(move || Box::pin(task()) as _);
        self.env.spawn(Class::Network, task);
    }
}

async fn send(
    connection: Connection,
    object: Bytes,
    mut asked: signals::UnboundedReceiver<bool>,
    told: signals::UnboundedSender<bool>,
) {
    while let Some(is_first) = asked.recv().await {
        let sent = async {
            told.send(is_first).ok()?;
            let mut stream = connection.open_uni().await.ok()?;
            stream.write_chunk(object.clone()).await.ok()?;
            stream.finish().ok()
        };
        // Why is what the connection says.
        if sent.await.is_none() {
            return;
        }
    }
}

async fn receive(
    endpoint: Endpoint,
    (plan, node, carries): (Arc<Plan>, NodeId, u16),
    bytes: usize,
    taken: Taken,
    mut tells: signals::UnboundedReceiver<bool>,
    tell: SyncSender<io::Result<bool>>,
) {
    let Some(incoming) = endpoint.accept().await else {
        return;
    };
    let Ok(connection) = incoming.await else {
        return;
    };
    quic::admit(&connection, &plan, &node, carries);
    let mut tensor = match taken {
        Taken::InPieces => Vec::new(),
        Taken::AsOneTensor => vec![0; bytes],
    };
    while let Some(is_first) = tells.recv().await {
        let Ok(stream) = connection.accept_uni().await else {
            return;
        };
        let right = match taken {
            Taken::InPieces => in_pieces(stream, bytes, is_first).await,
            Taken::AsOneTensor => as_one(stream, &mut tensor, is_first).await,
        };
        // Fails only if nobody measures any more.
        let _ = tell.send(right.map_err(io::Error::other));
    }
}

async fn in_pieces(
    mut stream: RecvStream,
    bytes: usize,
    is_first: bool,
) -> Result<bool, quinn::ReadError> {
    let (mut came, mut right) = (0, true);
    while let Some(chunk) = stream.read_chunk(usize::MAX, false).await? {
        right &= is_right(&chunk.bytes, chunk.offset as usize, is_first);
        came += chunk.bytes.len();
    }
    Ok(right && came == bytes)
}

async fn as_one(
    mut stream: RecvStream,
    tensor: &mut [u8],
    is_first: bool,
) -> Result<bool, quinn::ReadError> {
    let mut at = 0;
    while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
        let Some(room) = tensor.get_mut(at..at + chunk.bytes.len()) else {
            return Ok(false);
        };
        room.copy_from_slice(&chunk.bytes);
        at += chunk.bytes.len();
    }
    Ok(at == tensor.len() && is_right(tensor, 0, is_first))
}
