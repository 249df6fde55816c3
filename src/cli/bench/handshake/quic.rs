//! Handshakes of QUIC, on the sockets of two nodes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, TransportConfig, VarInt};
use tokio::sync::mpsc as signals;

use super::super::link::quic::End;
use super::super::measure::now;
use super::settings::{Sides, Site};
use super::{Shaken, Shakes};
use tombolo::actors::identity::Identity;
use tombolo_core::ids::NodeId;

/// What is answered to who is the right one, and to anybody else.
const KNOWN: u8 = 1;
const STRANGER: u8 = 0;

/// How long one handshake may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Handshakes of two nodes: with their own settings, or with others.
pub fn shakes(site: &Site, sides: Option<&Sides>, repeat: usize) -> io::Result<Shakes> {
    let to = End::of(&site.plan, &site.folder, site.to.clone())?;
    let from = End::of(&site.plan, &site.folder, site.from.clone())?;
    let server: Arc<dyn quinn::crypto::ServerConfig> = match sides {
        None => to.identity.server(),
        Some(sides) => {
            Arc::new(QuicServerConfig::try_from(sides.server.clone()).map_err(io::Error::other)?)
        }
    };
    let mut server = quinn::ServerConfig::with_crypto(server);
    server.transport_config(transport());
    to.endpoint.set_server_config(Some(server));
    let (client, name): (Arc<dyn quinn::crypto::ClientConfig>, String) = match sides {
        None => from.identity.client(&to.node),
        Some(sides) => {
            let client = QuicClientConfig::try_from(sides.client.clone());
            (
                Arc::new(client.map_err(io::Error::other)?),
                sides.name.clone(),
            )
        }
    };
    let mut config = quinn::ClientConfig::new(client);
    config.transport_config(transport());
    let dialler = Dialler {
        endpoint: from.endpoint.clone(),
        config,
        address: to.endpoint.local_addr()?,
        name,
        identity: from.identity.clone(),
        expected: to.node.clone(),
    };
    let (ask, asked) = signals::unbounded_channel();
    let (tell, told) = mpsc::sync_channel(1);
    let (endpoint, identity) = (to.endpoint.clone(), to.identity.clone());
    let expected = from.node.clone();
    to.run(move || answer(endpoint, identity, expected));
    from.run(move || dial(dialler, asked, tell));
    Shakes::take(repeat, |is_first| {
        ask.send(()).map_err(io::Error::other)?;
        let mut shaken = told.recv_timeout(LIMIT).map_err(io::Error::other)??;
        shaken.ok &= sides.is_none_or(|sides| sides.went_right(is_first));
        Ok(shaken)
    })
}

/// Nothing but the handshake travels: no search for larger packets.
fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.mtu_discovery_config(None);
    Arc::new(transport)
}

/// Who dials.
struct Dialler {
    endpoint: Endpoint,
    config: quinn::ClientConfig,
    address: SocketAddr,
    name: String,
    identity: Arc<dyn Identity>,
    expected: NodeId,
}

impl Dialler {
    async fn once(&self) -> io::Result<Shaken> {
        let began = now();
        let connecting = self
            .endpoint
            .connect_with(self.config.clone(), self.address, &self.name);
        let connection = connecting.map_err(io::Error::other)?.await?;
        let (_, mut answer) = connection.accept_bi().await?;
        let mut byte = [STRANGER];
        let came = answer.read_exact(&mut byte).await;
        let seconds = (now() - began).as_secs_f64();
        came.map_err(io::Error::other)?;
        let stats = connection.stats();
        let peer = self.identity.peer(connection.peer_identity());
        connection.close(VarInt::from_u32(0), b"measured");
        Ok(Shaken {
            seconds,
            bytes: stats.udp_tx.bytes + stats.udp_rx.bytes,
            ok: byte == [KNOWN] && peer.is_ok_and(|peer| peer == self.expected),
        })
    }
}

async fn dial(
    dialler: Dialler,
    mut asked: signals::UnboundedReceiver<()>,
    tell: SyncSender<io::Result<Shaken>>,
) {
    while asked.recv().await.is_some() {
        // Fails only if nobody measures any more.
        let _ = tell.send(dialler.once().await);
    }
}

async fn answer(endpoint: Endpoint, identity: Arc<dyn Identity>, expected: NodeId) {
    while let Some(incoming) = endpoint.accept().await {
        // Why not is what who dials is told.
        let Ok(connection) = incoming.await else {
            continue;
        };
        let peer = identity.peer(connection.peer_identity());
        let word = match peer.is_ok_and(|peer| peer == expected) {
            true => KNOWN,
            false => STRANGER,
        };
        if let Ok((mut stream, _)) = connection.open_bi().await
            && stream.write_all(&[word]).await.is_ok()
            && stream.finish().is_ok()
        {
            connection.closed().await;
        }
    }
}
