//! The same over QUIC, as nodes of two sites speak it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use quinn::Connection;

use super::super::link::quic::{End, TOPOLOGY};
use super::LIMIT;
use super::ways::{MESSAGE, Side, Way, stamp};
use tombolo::actors::identity::Purpose;
use tombolo::actors::quic;
use tombolo::topology;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

/// The end that sends; it is dialled.
pub struct Sender {
    end: End,
    accepted: mpsc::Receiver<io::Result<Connection>>,
}

/// The end that takes.
pub struct Taker;

/// A connection, at either end.
struct Carrier {
    connection: Connection,
    end: End,
}

fn plan(folder: &Path) -> io::Result<Arc<Plan>> {
    let plan = topology::parse("bench", TOPOLOGY, folder).map_err(io::Error::other)?;
    Ok(Arc::new(plan))
}

/// Does something where packets are looked after.
fn begin<T: Send + 'static, F: Future<Output = io::Result<T>> + 'static>(
    end: &End,
    task: impl FnOnce() -> F + Send + 'static,
) -> mpsc::Receiver<io::Result<T>> {
    let (tell, told) = mpsc::sync_channel(1);
    end.run(move || async move {
        // Fails only if nobody waits any more.
        let _ = tell.send(task().await);
    });
    told
}

/// The same, and waits for what it gives.
fn on<T: Send + 'static, F: Future<Output = io::Result<T>> + 'static>(
    end: &End,
    task: impl FnOnce() -> F + Send + 'static,
) -> io::Result<T> {
    let told = begin(end, task).recv_timeout(LIMIT);
    told.map_err(io::Error::other)?
}

impl Sender {
    /// Accepts from now on.
    pub fn new(folder: &Path) -> io::Result<Sender> {
        let plan = plan(folder)?;
        let end = End::new(&plan, folder, "from/gate")?;
        let (endpoint, node) = (end.endpoint.clone(), end.node.clone());
        let accepted = begin(&end, move || async move {
            let incoming = endpoint.accept().await;
            let incoming = incoming.ok_or_else(|| io::Error::other("the endpoint is closed"))?;
            let connection = incoming.await?;
            quic::admit(&connection, &plan, &node, u16::MAX);
            Ok(connection)
        });
        Ok(Sender { end, accepted })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.end.endpoint.local_addr()
    }

    pub fn accept(self) -> io::Result<impl Way> {
        let Sender { end, accepted } = self;
        let connection = accepted.recv_timeout(LIMIT).map_err(io::Error::other)??;
        Ok(Carrier { connection, end })
    }
}

impl Taker {
    pub fn dial(folder: &Path, address: SocketAddr) -> io::Result<impl Way + use<>> {
        let plan = plan(folder)?;
        let end = End::new(&plan, folder, "to/gate")?;
        let peer: NodeId = "from/gate".parse().map_err(io::Error::other)?;
        let carries = end.env.carries(address);
        let (config, name) =
            quic::dialling(&plan, end.identity.as_ref(), &peer, carries, Purpose::Link);
        let (endpoint, node) = (end.endpoint.clone(), end.node.clone());
        let connection = on(&end, move || async move {
            let connecting = endpoint.connect_with(config, address, &name);
            let connection = connecting.map_err(io::Error::other)?.await?;
            quic::admit(&connection, &plan, &node, carries);
            Ok(connection)
        })?;
        Ok(Carrier { connection, end })
    }
}

impl Way for Carrier {
    fn wait(&mut self, _: Side, polled: bool) -> io::Result<()> {
        match polled {
            true => Err(io::ErrorKind::Unsupported.into()),
            false => Ok(()),
        }
    }

    fn send(&mut self, stamp: u64) -> io::Result<()> {
        let connection = self.connection.clone();
        on(&self.end, move || async move {
            tell(&connection, stamp)?;
            connection.read_datagram().await?;
            Ok(())
        })
    }

    fn take(&mut self) -> io::Result<(u64, u64)> {
        let connection = self.connection.clone();
        on(&self.end, move || async move {
            let bytes = connection.read_datagram().await?;
            let came = stamp();
            let bytes = <[u8; MESSAGE]>::try_from(&*bytes).map_err(io::Error::other)?;
            let said = u64::from_le_bytes(bytes);
            tell(&connection, said)?;
            Ok((said, came))
        })
    }

    fn send_all(&mut self, bytes: &Arc<[u8]>) -> io::Result<()> {
        let (connection, bytes) = (self.connection.clone(), Bytes::from_owner(bytes.clone()));
        on(&self.end, move || async move {
            let mut stream = connection.open_uni().await?;
            stream.write_chunk(bytes).await?;
            stream.finish().map_err(io::Error::other)
        })
    }

    fn take_all(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let (connection, mut tensor) = (self.connection.clone(), std::mem::take(bytes));
        *bytes = on(&self.end, move || async move {
            let mut stream = connection.accept_uni().await?;
            let read = stream.read_exact(&mut tensor).await;
            read.map_err(io::Error::other)?;
            Ok(tensor)
        })?;
        Ok(())
    }
}

fn tell(connection: &Connection, word: u64) -> io::Result<()> {
    let bytes = Bytes::copy_from_slice(&word.to_le_bytes());
    connection.send_datagram(bytes).map_err(io::Error::other)
}
