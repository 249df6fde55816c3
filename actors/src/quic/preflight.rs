//! The endpoint of a node that measures its links before a run: it dials, accepts and knows its peers as nodes at work do, and no link stands behind a
//! connection.
//!
//! The two tell each other apart by the protocol that TLS has agreed on, once both have shown who they are: a node at work turns a preflight away with
//! [`AT_WORK`], a preflight turns a node away with [`IN_PREFLIGHT`]. Neither takes part in what the other does.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use quinn::{Connection, ConnectionError, Endpoint, Incoming, VarInt};
use tokio::sync::mpsc;

use super::congestion::Later;
use super::dial::Dialler;
use super::door::{Answer, Door};
use super::shaping::{self, Shaper};
use super::{Bound, HANDSHAKE_LIMIT, UNTRUSTED, attached, config_until_known, law_between};
use crate::env::Env;
use crate::identity::{Identity, Purpose};
use crate::link::{DENIED, Trouble, dials};
use crate::shell::AbortOnDrop;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::policy::{self, Action};

/// The protocol named in the handshake.
pub const PROTOCOL: &[u8] = b"tombolo-preflight/1";

/// Closes the connection of a preflight: this node takes part in a run.
pub const AT_WORK: VarInt = VarInt::from_u32(25);

/// Closes the connection of a node at work: this one only measures, and will be there later.
pub const IN_PREFLIGHT: VarInt = VarInt::from_u32(26);

/// Callers that wait to be looked at: a peer calls once.
pub const CALLERS_MAX: usize = 64;

/// Who has called.
#[derive(Debug)]
pub enum Caller {
    /// A peer that measures, too, and that this node waits for.
    Peer(NodeId, Connection),
    /// A peer that takes part in a run; it was turned away.
    AtWork(NodeId),
    /// Somebody whose handshake failed, or whom a policy denies; and why.
    Refused(String),
}

/// See the module.
pub struct Preflight {
    env: Arc<dyn Env>,
    plan: Arc<Plan>,
    identity: Arc<dyn Identity>,
    endpoint: Endpoint,
    shaper: Option<Arc<Shaper>>,
    /// Those that the shaper looks after.
    shaped: RefCell<Vec<(NodeId, Connection)>>,
    door: RefCell<Door>,
}

impl Preflight {
    /// Of an endpoint that [`bind`](super::bind) has made, and of a node that shows this identity.
    pub fn new(
        env: Arc<dyn Env>,
        plan: Arc<Plan>,
        identity: Arc<dyn Identity>,
        Bound {
            endpoint, shaper, ..
        }: Bound,
    ) -> Rc<Self> {
        Rc::new(Preflight {
            env,
            plan,
            identity,
            endpoint,
            shaper,
            shaped: RefCell::default(),
            door: RefCell::default(),
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Dials a peer once, at all its addresses.
    ///
    /// # Errors
    /// No address answers, each with its reason.
    pub async fn dial(&self, peer: &NodeId) -> Result<Connection, Trouble> {
        let dialler = Dialler {
            env: self.env.clone(),
            endpoint: self.endpoint.clone(),
            plan: self.plan.clone(),
            identity: self.identity.clone(),
            shaper: self.shaper.clone(),
            // Only what can be dialled is measured.
            tunnels: None,
            peer: peer.clone(),
            purpose: Purpose::Preflight,
        };
        let connection = dialler.attempt().await?.connection;
        self.shape(peer, &connection);
        Ok(connection)
    }

    /// Gives a peer that has said a good hello the room that a measurement needs.
    pub fn admit(&self, connection: &Connection) {
        let carries = self.env.carries(connection.remote_address());
        super::admit(connection, &self.plan, self.identity.node(), carries);
    }

    /// Accepts whoever calls, until the endpoint is closed or nobody takes the callers any more. In a local task.
    pub async fn serve(self: Rc<Self>, callers: mpsc::Sender<Caller>) {
        let mut shaking: Vec<AbortOnDrop<()>> = Vec::new();
        while let Some(incoming) = self.endpoint.accept().await {
            let is_proven = incoming.remote_address_validated();
            let answer = self.door.borrow_mut().knock(self.env.now(), is_proven);
            let (number, pushed_out) = match answer {
                Answer::Shake(number, pushed_out) => (number, pushed_out),
                Answer::Retry => {
                    // Fails only for an address that was shown, and that gets another answer.
                    incoming.retry().unwrap_or(());
                    continue;
                }
                Answer::Ignore => {
                    incoming.ignore();
                    continue;
                }
            };
            let (own, callers) = (self.clone(), callers.clone());
            let task = tokio::task::spawn_local(async move {
                let law = Arc::new(Later::default());
                let limit = own.env.sleep(HANDSHAKE_LIMIT);
                let found = tokio::select! {
                    biased;
                    found = own.shake(incoming, law.clone()) => found,
                    _ = pushed_out => Err(ConnectionError::TimedOut),
                    () = limit => Err(ConnectionError::TimedOut),
                };
                own.door.borrow_mut().shaken(number);
                let caller = match found {
                    Ok(connection) => own.look_at(connection, &law),
                    Err(error) => Caller::Refused(error.to_string()),
                };
                // Nobody looks, or too many have called: whoever it is calls again.
                let _ = callers.try_send(caller);
            });
            shaking.retain(|task| !task.0.is_finished());
            shaking.push(AbortOnDrop(task));
        }
    }

    async fn shake(
        &self,
        incoming: Incoming,
        law: Arc<Later>,
    ) -> Result<Connection, ConnectionError> {
        let carries = self.env.carries(incoming.remote_address());
        let config = config_until_known(&self.plan, self.identity.as_ref(), law, carries);
        incoming.accept_with(config)?.await
    }

    /// Who it is, and what becomes of the connection.
    fn look_at(&self, connection: Connection, law: &Later) -> Caller {
        let own = self.identity.own();
        let known = self.identity.peer(connection.peer_identity());
        let known = known.and_then(|peer| {
            attached(self.identity.as_ref(), &connection, own)?;
            Ok(peer)
        });
        let peer = match known {
            Ok(peer) => peer,
            Err(error) => {
                connection.close(UNTRUSTED, error.to_string().as_bytes());
                return Caller::Refused(error.to_string());
            }
        };
        let node = self.identity.node();
        let verdict = policy::of(&self.plan, &node.domain(), &peer, Action::Join, node);
        if !verdict.allowed {
            connection.close(DENIED, verdict.to_string().as_bytes());
            return Caller::Refused(verdict.to_string());
        }
        if !self.plan.peers(node).contains(&peer) || !dials(&self.plan, &peer, node) {
            let reason = format!("{peer} has no business with {node}");
            connection.close(DENIED, reason.as_bytes());
            return Caller::Refused(reason);
        }
        if self.identity.purpose(connection.handshake_data()) != Purpose::Preflight {
            let reason = format!("{node} is in a preflight, and will be there after it");
            connection.close(IN_PREFLIGHT, reason.as_bytes());
            return Caller::AtWork(peer);
        }
        law.choose(Some(law_between(&self.plan, node, &peer)));
        self.shape(&peer, &connection);
        Caller::Peer(peer, connection)
    }

    fn shape(&self, peer: &NodeId, connection: &Connection) {
        let Some(shaper) = &self.shaper else { return };
        shaper.learn(peer, connection.remote_address());
        if Plan::is_wan(self.identity.node(), peer) {
            let mut shaped = self.shaped.borrow_mut();
            shaped.push((peer.clone(), connection.clone()));
        }
    }

    /// Looks after what is capped, again and again, for ever.
    pub async fn look(&self) {
        let Some(shaper) = &self.shaper else {
            return std::future::pending().await;
        };
        loop {
            self.env.sleep(shaping::LOOK).await;
            let mut shaped = self.shaped.borrow_mut();
            shaped.retain(|(_, connection)| connection.close_reason().is_none());
            shaper.look(&shaped, self.env.unix_time());
        }
    }
}
