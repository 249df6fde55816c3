//! A node's QUIC endpoint: accepts and dials, with mutual TLS, and hands each authenticated connection to the link of its peer.
//!
//! The peer's name is what its certificate says, and nothing else: a connection from a node that the plan does not pair with this one, or
//! that should have waited to be dialled, is closed.

pub mod congestion;
mod dial;
mod door;
pub mod preflight;
pub mod relay;
mod routes;
pub mod shaping;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quinn::congestion::ControllerFactory;
use quinn::{
    Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig,
    TransportConfig, VarInt,
};

use self::congestion::{Fixed, Later};
use self::dial::Dialler;
use self::door::{Answer, Door, HANDSHAKES_MAX};
use self::relay::Tunnels;
use self::shaping::Shaper;
use crate::env::{DATAGRAM, Env};
use crate::identity::{Identity, IdentityError, Paper, Purpose};
use crate::link::{self, Attached, DENIED, Trouble, UNTRUSTED, dials};
use crate::shell::{Actor, Cx, Handle, Stage, later};
use tombolo_core::congestion::Law;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::{LinkPlan, Plan};
use tombolo_core::policy::{self, Action};
use tombolo_core::wire::STRIPES_MAX;

/// Refused handshakes told to the operator: whoever dials can make up reasons.
const REFUSALS_MAX: u32 = 32;
/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Bytes that are kept of an attempt which nobody has looked at yet, behind its first packet: the rest of a hello with a post-quantum key.
const ATTEMPT_BYTES: u64 = 8 << 10;
/// The same of all attempts.
const ATTEMPTS_BYTES: u64 = 1 << 20;
/// Bytes of a handshake that came out of order: a chain of certificates of a corporate authority.
const HANDSHAKE_BYTES: usize = 16 << 10;
/// Bytes that may be in flight to us before the other side has said who it is and which version it speaks: a hello fits many times.
const FIRST_WINDOW: u32 = 16 << 10;
/// Bytes of datagrams that wait to be read or sent; the oldest go. A heartbeat has 44.
const DATAGRAMS_BYTES: usize = 64 << 10;
/// How long the address that was shown by an answer to a retry counts.
const RETRY_LIFETIME: Duration = Duration::from_secs(15);
/// Bytes of one fetched object that may be in flight to us: two bandwidth-delay products of 200 Mbit/s at 300 ms.
pub(crate) const STREAM_WINDOW: u32 = 16 << 20;
/// Bytes of objects that may be in flight to a node whom several send one at once: memory that it has to find beside its models.
const STREAMS_WINDOW: u32 = 32 << 20;
/// The same on this machine, where the round trip is nothing: more than the socket buffers hold would only be lost.
const LOCAL_WINDOW: u32 = 4 << 20;
/// However many send at once, each may keep so much in flight.
const WINDOW_MIN: u32 = 256 << 10;
/// A connection has room for so many streams' windows.
const STREAMS_OF_A_CONNECTION: u32 = 2;
/// Only the loopback device carries larger datagrams.
const JUMBO: u16 = 9000;
/// Objects that a peer may send to us at once: what we may have fetched from it.
const OBJECT_STREAMS: u32 = 16;

/// The round trip that a connection begins with, where the plan does not know better.
const FIRST_ROUND_TRIP: Duration = Duration::from_millis(100);

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// Connect to a peer; its link hears of the outcome.
    Dial(NodeId),
    /// The links exist: start accepting.
    Links(BTreeMap<NodeId, Handle<link::Message>>),
}

/// See the module. The endpoint outlives the actor.
pub struct Quic {
    stage: Stage,
    identity: Arc<dyn Identity>,
    endpoint: Endpoint,
    links: Arc<std::sync::OnceLock<BTreeMap<NodeId, Handle<link::Message>>>>,
    early: Vec<NodeId>,
    refusals: u32,
    refusal: String,
    door: Door,
    shaper: Option<Arc<Shaper>>,
    /// Those that the shaper looks after.
    shaped: Vec<(NodeId, Connection)>,
    tunnels: Option<Arc<Tunnels>>,
    /// Through whom links lead; the others lead directly.
    ways: BTreeMap<NodeId, NodeId>,
    /// With whom a tunnel is being made.
    tunnelling: BTreeSet<NodeId>,
}

/// An endpoint, and what stands between it and its socket.
#[derive(Clone)]
pub struct Bound {
    /// It.
    pub endpoint: Endpoint,
    /// What holds its links' caps, if there are any.
    pub shaper: Option<Arc<Shaper>>,
    /// Its ways through other nodes, if there are any.
    pub tunnels: Option<Arc<Tunnels>>,
}

/// Makes a node's endpoint on an address.
///
/// # Errors
/// The address is taken or cannot be bound; the message names it.
pub fn bind(
    env: &Arc<dyn Env>,
    plan: &Plan,
    node: &NodeId,
    identity: &dyn Identity,
    address: SocketAddr,
) -> std::io::Result<Bound> {
    let (socket, runtime) = env.bind(address)?;
    let tunnels = Tunnels::new(env, plan, node);
    let socket = match &tunnels {
        Some(tunnels) => tunnels.wrap(socket)?,
        None => socket,
    };
    // What goes through a relay counts for the site where it ends, and for that of the relay.
    let shaper = Shaper::new(plan, node, runtime.clone(), env.unix_time());
    let socket = match &shaper {
        Some(shaper) => shaper.clone().wrap(socket),
        None => socket,
    };
    let key = env.reset_key();
    let mut config = EndpointConfig::new(Arc::new(ResetKey(blake3::derive_key(
        "tombolo stateless reset",
        &key,
    ))));
    config.rng_seed(env.endpoint_seed());
    let receives = env.receives(address);
    if receives > DATAGRAM {
        let taken = config.max_udp_payload_size(receives);
        taken.map_err(std::io::Error::other)?;
    }
    let connection_ids = u64::from_le_bytes(
        blake3::derive_key("tombolo connection ids", &key)[..8]
            .try_into()
            .expect("eight bytes"),
    );
    config.cid_generator(move || {
        Box::new(quinn_proto::HashedConnectionIdGenerator::from_key(
            connection_ids,
        ))
    });
    let mut server = quinn::ServerConfig::with_crypto(identity.server());
    let congestion = Arc::new(Fixed(Some(Law::Cubic)));
    server.transport_config(Arc::new(transport(plan, node, receives, congestion)));
    server
        .max_incoming(HANDSHAKES_MAX)
        .incoming_buffer_size(ATTEMPT_BYTES)
        .incoming_buffer_size_total(ATTEMPTS_BYTES)
        .retry_token_lifetime(RETRY_LIFETIME)
        .time_source(Arc::new(Monotonic(env.clone())))
        .migration(true);
    let endpoint = Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)?;
    Ok(Bound {
        endpoint,
        shaper,
        tunnels,
    })
}

/// How old an answer to a retry is, the monotonic clock says: steps of the other one change nothing.
struct Monotonic(Arc<dyn Env>);

impl quinn_proto::TimeSource for Monotonic {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(self.0.now().0)
    }
}

/// Gives a peer the room that objects need: its certificate was good, and it has said hello. Before that a connection takes in a hello and no
/// stream of an object.
pub fn admit(connection: &Connection, plan: &Plan, node: &NodeId, carries: u16) {
    let window = stream_window(plan, node, carries) * STREAMS_OF_A_CONNECTION;
    connection.set_receive_window(VarInt::from_u32(window));
    let streams = OBJECT_STREAMS * u32::from(stripes(carries));
    connection.set_max_concurrent_uni_streams(VarInt::from_u32(streams));
}

/// How many streams share the window of a large object, over a path that may carry datagrams of `carries` bytes: as many as it takes so that losses
/// leave no more holes in one of them than are remembered. On this machine there are none.
pub fn stripes(carries: u16) -> u8 {
    match carries > JUMBO {
        true => 1,
        false => STRIPES_MAX,
    }
}

/// How many bytes of an object may be in flight to a node, over a path that may carry datagrams of `carries` bytes.
fn stream_window(plan: &Plan, node: &NodeId, carries: u16) -> u32 {
    let senders = match plan.may_coordinate(node) {
        true => plan.domains.len().saturating_sub(1).max(1),
        false => 1,
    };
    let (all, most) = match carries > JUMBO {
        true => (LOCAL_WINDOW, LOCAL_WINDOW),
        false => (STREAMS_WINDOW, STREAM_WINDOW),
    };
    let share = all / u32::try_from(senders).unwrap_or(u32::MAX);
    share.clamp(WINDOW_MIN, most)
}

/// Limits and timers of every connection of a node, over a path that may carry datagrams of `carries` bytes.
fn transport(
    plan: &Plan,
    node: &NodeId,
    carries: u16,
    congestion: Arc<dyn ControllerFactory + Send + Sync>,
) -> TransportConfig {
    let window = stream_window(plan, node, carries);
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(shaping::datagram(shaping::least(plan, node), carries));
    let mut transport = TransportConfig::default();
    // Heartbeats keep a connection alive; without any sign of life for many periods it is given up and dialled anew.
    let idle = (plan.heartbeat.every * 12).max(Duration::from_secs(6));
    transport
        .max_idle_timeout(Some(
            IdleTimeout::try_from(idle).unwrap_or(IdleTimeout::from(VarInt::from_u32(60_000))),
        ))
        .mtu_discovery_config(Some(discovery))
        .stream_receive_window(VarInt::from_u32(window / u32::from(stripes(carries))))
        .receive_window(VarInt::from_u32(FIRST_WINDOW))
        .send_window(u64::from(STREAMS_WINDOW))
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .crypto_buffer_size(HANDSHAKE_BYTES)
        .datagram_receive_buffer_size(Some(DATAGRAMS_BYTES))
        .datagram_send_buffer_size(DATAGRAMS_BYTES)
        .initial_rtt(FIRST_ROUND_TRIP)
        .congestion_controller_factory(congestion);
    transport
}

/// Of a connection that this node dials: the peer, and so the link, is known.
fn transport_to(
    plan: &Plan,
    node: &NodeId,
    peer: &NodeId,
    carries: u16,
    purpose: Purpose,
) -> TransportConfig {
    let law = match purpose {
        Purpose::Link | Purpose::Preflight => Some(law_between(plan, node, peer)),
        Purpose::Tunnel => None,
    };
    let mut transport = transport(plan, node, carries, Arc::new(Fixed(law)));
    let link = plan.link(&node.domain(), &peer.domain());
    if let Some(link) = link.filter(|_| law != Some(Law::Cubic))
        && !link.emulate.delay.is_zero()
    {
        transport.initial_rtt(2 * link.emulate.delay);
    }
    if purpose != Purpose::Link {
        // Nothing else keeps it up, and the way back through a firewall open.
        transport.keep_alive_interval(Some(plan.heartbeat.every * 4));
    }
    transport
}

/// How a node dials a peer over a path that may carry datagrams of `carries` bytes, and the server name to send.
pub fn dialling(
    plan: &Plan,
    identity: &dyn Identity,
    peer: &NodeId,
    carries: u16,
    purpose: Purpose,
) -> (quinn::ClientConfig, String) {
    let (crypto, server_name) = match purpose {
        Purpose::Link | Purpose::Preflight => identity.client(peer),
        Purpose::Tunnel => identity.tunnel(peer),
    };
    let mut config = quinn::ClientConfig::new(crypto);
    let transport = transport_to(plan, identity.node(), peer, carries, purpose);
    config.transport_config(Arc::new(transport));
    (config, server_name)
}

/// The congestion law between two nodes.
fn law_between(plan: &Plan, node: &NodeId, peer: &NodeId) -> Law {
    let link = plan.link(&node.domain(), &peer.domain());
    link.map_or(Law::Cubic, |link| link.congestion)
}

/// The configuration of one handshake. Who dials is known after it, so the congestion law is chosen then; where every link has the default, there is
/// nothing to choose.
fn config_until_known(
    plan: &Plan,
    identity: &dyn Identity,
    law: Arc<Later>,
    carries: u16,
) -> Arc<quinn::ServerConfig> {
    let is_default = |link: &LinkPlan| link.congestion == Law::Cubic;
    let congestion: Arc<dyn ControllerFactory + Send + Sync> =
        match plan.links.iter().all(is_default) && plan.route.relay.is_empty() {
            true => Arc::new(Fixed(Some(Law::Cubic))),
            false => law,
        };
    let mut server = quinn::ServerConfig::with_crypto(identity.server());
    let transport = transport(plan, identity.node(), carries, congestion);
    server.transport_config(Arc::new(transport));
    server.migration(true);
    Arc::new(server)
}

/// What a TLS alert is as an error of QUIC, whichever it is (RFC 9001, 4.8).
const TLS_ALERTS: Range<u64> = 0x100..0x200;

/// Whether another attempt would meet the same certificates: TLS alerts of ours or theirs. A peer that takes no connection now, because it
/// has too many handshakes at once, or has to begin anew or to end in the middle of one, may take one later.
pub fn is_final(error: &ConnectionError) -> bool {
    let code = match error {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        _ => return false,
    };
    TLS_ALERTS.contains(&code.into())
}

/// A connection, and how long it counts. What the peer showed was good a moment ago, and is looked at once more: it may have been revoked
/// during the handshake.
fn attached(
    identity: &dyn Identity,
    connection: &Connection,
    own: Paper,
) -> Result<Attached, IdentityError> {
    let theirs = identity.recheck(connection.peer_identity())?;
    Ok(Attached {
        connection: connection.clone(),
        shown: own.sha256,
        until: own.not_after.min(theirs.not_after),
    })
}

/// The key of stateless resets: BLAKE3 in keyed mode, so that a restarted node answers its peers' old packets at once.
struct ResetKey([u8; 32]);

impl quinn_proto::crypto::HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        signature.copy_from_slice(blake3::keyed_hash(&self.0, data).as_bytes());
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(
        &self,
        data: &[u8],
        signature: &[u8],
    ) -> Result<(), quinn_proto::crypto::CryptoError> {
        // The comparison of two hashes takes constant time.
        let given =
            <[u8; 32]>::try_from(signature).map_err(|_| quinn_proto::crypto::CryptoError)?;
        if blake3::keyed_hash(&self.0, data) == blake3::Hash::from_bytes(given) {
            Ok(())
        } else {
            Err(quinn_proto::crypto::CryptoError)
        }
    }
}

impl Quic {
    /// An actor for an endpoint. `links` is filled by the first [`Message::Links`] and outlives the actor.
    pub fn new(
        stage: Stage,
        identity: Arc<dyn Identity>,
        bound: Bound,
        links: Arc<std::sync::OnceLock<BTreeMap<NodeId, Handle<link::Message>>>>,
    ) -> Self {
        let Bound {
            endpoint,
            shaper,
            tunnels,
        } = bound;
        Quic {
            stage,
            identity,
            endpoint,
            links,
            early: Vec::new(),
            refusals: 0,
            refusal: String::new(),
            door: Door::default(),
            shaper,
            shaped: Vec::new(),
            tunnels,
            ways: BTreeMap::new(),
            tunnelling: BTreeSet::new(),
        }
    }

    /// Has the shaper look after a connection, if what goes over it is capped.
    fn shape(&mut self, peer: &NodeId, connection: &Connection) {
        let Some(shaper) = &self.shaper else { return };
        shaper.learn(peer, connection.remote_address());
        if Plan::is_wan(&self.stage.node, peer) {
            self.shaped.push((peer.clone(), connection.clone()));
        }
    }

    /// Looks after what is capped, again and again.
    fn look(&self, cx: &mut Cx<Self>) {
        if self.shaper.is_none() {
            return;
        }
        later(cx, self.stage.env.sleep(shaping::LOOK), |quic, (), cx| {
            quic.shaped
                .retain(|(_, connection)| connection.close_reason().is_none());
            if let Some(shaper) = &quic.shaper {
                shaper.look(&quic.shaped, quic.stage.env.unix_time());
            }
            quic.look(cx);
        });
    }

    fn accept(&self, cx: &mut Cx<Self>) {
        let endpoint = self.endpoint.clone();
        later(
            cx,
            async move { endpoint.accept().await },
            |quic, incoming, cx| {
                let Some(incoming) = incoming else { return };
                quic.accept(cx);
                let now = quic.stage.env.now();
                let (number, pushed_out) =
                    match quic.door.knock(now, incoming.remote_address_validated()) {
                        Answer::Shake(number, pushed_out) => (number, pushed_out),
                        // Fails only for an address that was shown, and that gets another answer.
                        Answer::Retry => return incoming.retry().unwrap_or(()),
                        Answer::Ignore => return incoming.ignore(),
                    };
                let law = Arc::new(Later::default());
                let from = incoming.remote_address();
                let carries = relay::carries(from);
                let carries = carries.unwrap_or_else(|| quic.stage.env.carries(from));
                // Before the handshake: what is shown in it is this one or a newer one.
                let own = quic.identity.own();
                let (plan, identity) = (&quic.stage.plan, quic.identity.as_ref());
                let config = config_until_known(plan, identity, law.clone(), carries);
                let limit = quic.stage.env.sleep(HANDSHAKE_LIMIT);
                let handshake = async move {
                    let connecting = incoming.accept_with(config)?;
                    tokio::select! {
                        biased;
                        connection = connecting => connection,
                        _ = pushed_out => Err(ConnectionError::TimedOut),
                        () = limit => Err(ConnectionError::TimedOut),
                    }
                };
                later(cx, handshake, move |quic, connection, _| {
                    quic.door.shaken(number);
                    match connection {
                        Ok(connection) => quic.on_accepted(connection, own, &law),
                        Err(error) => quic.on_refused(&error),
                    }
                });
            },
        );
    }

    /// A handshake that failed over certificates or versions is told to the operator, who alone can mend it; the same trouble once.
    fn on_refused(&mut self, error: &ConnectionError) {
        let reason = error.to_string();
        let mendable = matches!(error, ConnectionError::TransportError(_));
        if !mendable || self.refusals >= REFUSALS_MAX || self.refusal == reason {
            tracing::debug!(node = %self.stage.node, reason, "a handshake failed");
            return;
        }
        tracing::warn!(node = %self.stage.node, reason, "somebody who dialled this node was refused");
        self.refusals += 1;
        self.refusal = reason;
    }

    fn on_accepted(&mut self, connection: Connection, own: Paper, law: &Later) {
        let peer = match self.identity.peer(connection.peer_identity()) {
            Ok(peer) => peer,
            Err(error) => {
                return connection.close(VarInt::from_u32(10), error.to_string().as_bytes());
            }
        };
        match self.identity.purpose(connection.handshake_data()) {
            Purpose::Preflight => {
                let node = &self.stage.node;
                tracing::info!(%node, %peer, "a preflight is turned away: this node is at work");
                let reason = format!("{node} is at work already");
                return connection.close(preflight::AT_WORK, reason.as_bytes());
            }
            Purpose::Tunnel => {
                law.choose(None);
                return self.on_tunnel(peer, connection, own);
            }
            Purpose::Link => {}
        }
        let link = self.links.get().and_then(|links| links.get(&peer)).cloned();
        match link {
            Some(link) if dials(&self.stage.plan, &peer, &self.stage.node) => {
                self.shape(&peer, &connection);
                self.note_way(&peer, &connection);
                let its = law_between(&self.stage.plan, &self.stage.node, &peer);
                law.choose(Some(its));
                let attached = match attached(self.identity.as_ref(), &connection, own) {
                    Ok(attached) => attached,
                    Err(error) => {
                        return connection.close(UNTRUSTED, error.to_string().as_bytes());
                    }
                };
                if link.post(link::Message::Attach(attached)).is_err() {
                    connection.close(VarInt::from_u32(11), b"busy");
                }
            }
            _ => self.turn_away(&connection, &peer),
        }
    }

    /// Closes a connection with a peer that this node has no link to, or that it should have dialled itself.
    fn turn_away(&self, connection: &Connection, peer: &NodeId) {
        let (plan, node) = (&self.stage.plan, &self.stage.node);
        let verdict = policy::of(plan, &node.domain(), peer, Action::Join, node);
        if !verdict.allowed {
            self.stage.deny(&verdict);
            return connection.close(DENIED, verdict.to_string().as_bytes());
        }
        let reason = format!("{peer} has no business with {node}");
        connection.close(VarInt::from_u32(12), reason.as_bytes());
    }

    fn dialler(&self, peer: &NodeId, purpose: Purpose) -> Dialler {
        Dialler {
            env: self.stage.env.clone(),
            endpoint: self.endpoint.clone(),
            plan: self.stage.plan.clone(),
            identity: self.identity.clone(),
            shaper: self.shaper.clone(),
            tunnels: self.tunnels.clone(),
            peer: peer.clone(),
            purpose,
        }
    }

    fn dial(&self, cx: &mut Cx<Self>, peer: NodeId) {
        let Some(link) = self.links.get().and_then(|links| links.get(&peer)).cloned() else {
            return;
        };
        let dialler = self.dialler(&peer, Purpose::Link);
        later(cx, dialler.attempt(), move |quic, result, _| {
            let message = match result {
                Ok(attached) => {
                    quic.shape(&peer, &attached.connection);
                    quic.note_way(&peer, &attached.connection);
                    if let Some(tunnels) = &quic.tunnels {
                        tunnels.took(&peer, attached.connection.remote_address());
                    }
                    link::Message::Attach(attached)
                }
                Err(reason) => link::Message::DialFailed(reason),
            };
            link.deliver(message);
        });
    }
}

impl Actor for Quic {
    type Message = Message;
    const NAME: &'static str = "Quic";

    fn started(&mut self, cx: &mut Cx<Self>) {
        self.look(cx);
        self.tend(cx);
        if let Some(links) = self.links.get() {
            // Dials that were under way are gone with the actor before this one.
            for link in links.values() {
                link.deliver(link::Message::DialFailed(Trouble::from(
                    "the endpoint's actor was rebuilt".to_owned(),
                )));
            }
            self.accept(cx);
        }
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            // A link may be quicker than the list of all of them.
            Message::Dial(peer) if self.links.get().is_none() => self.early.push(peer),
            Message::Dial(peer) => self.dial(cx, peer),
            Message::Links(links) => {
                if self.links.set(links).is_ok() {
                    self.accept(cx);
                }
                for peer in std::mem::take(&mut self.early) {
                    self.dial(cx, peer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quinn_proto::{ConnectionClose, TransportErrorCode};

    /// What a peer may close a handshake with: only a word about certificates is one on which to give up.
    #[test]
    fn only_what_tls_refuses_is_refused() {
        let closed = |error_code: TransportErrorCode| {
            is_final(&ConnectionError::ConnectionClosed(ConnectionClose {
                error_code,
                frame_type: None,
                reason: bytes::Bytes::new(),
            }))
        };
        let bad_certificate = TransportErrorCode::crypto(42);
        assert!(closed(bad_certificate));
        for passing in [
            TransportErrorCode::CONNECTION_REFUSED,
            // An endpoint that is dropped in the middle of a handshake.
            TransportErrorCode::APPLICATION_ERROR,
            TransportErrorCode::NO_ERROR,
            TransportErrorCode::INTERNAL_ERROR,
        ] {
            assert!(!closed(passing), "{passing:?}");
        }
        assert!(!is_final(&ConnectionError::TimedOut));
    }
}
