//! A node's part of a preflight: meet every peer within a deadline, then measure the links between sites, one after another.
//!
//! The order in which a node measures its links is that of their names, the same at both ends: of all links that are not measured yet the first is next at
//! both of its ends, so none waits for ever, and no node ever measures two at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, VarInt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_local};
use tombolo_actors::env::{Env, Work, work};
use tombolo_actors::link::{DENIED, UNTRUSTED, dials};
use tombolo_actors::quic::preflight::{AT_WORK, CALLERS_MAX, Caller, Preflight};
use tombolo_actors::shell::AbortOnDrop;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::text::clip;
use tombolo_core::time::Micros;

use super::judge::{Absent, Why};
use super::measure::Met;
use super::talk::{Hello, Link, Talk, Word};
use super::{MEASURE_LIMIT, Progress};
use crate::doctor::ask_address;

/// How long a peer that has been reached may take to say hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Before a peer is tried once more.
const AGAIN: Duration = Duration::from_millis(500);

/// How often it is told who is still waited for.
const TELL: Duration = Duration::from_secs(5);

/// How often a connection that waits shows that it is alive.
const ALIVE: Duration = Duration::from_secs(1);

/// How long the end of a connection is waited for, so that the last word arrives.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Addresses of a peer that did not come that are asked what comes back from there.
const ASKED_MAX: usize = 4;

/// Refused handshakes that are told.
const REFUSALS_MAX: usize = 4;

/// Closes a connection over which all has been said.
const DONE: VarInt = VarInt::from_u32(0);

/// Closes a connection with a peer that has another topology.
const ANOTHER_TOPOLOGY: VarInt = VarInt::from_u32(27);

/// What a node tells of its preflight.
#[derive(Debug)]
pub enum Told {
    /// How it goes.
    Progress(Progress),
    /// A neighbour of its domain was reached.
    Neighbour(NodeId, NodeId),
    /// A link was measured, and this is the address of the peer as this node sees it.
    Measured(Box<Link>, NodeId, SocketAddr),
    /// A peer did not come, or its link could not be measured.
    Absent(Box<Absent>),
    /// The node has nothing more to tell.
    Done,
}

/// What a node's task is given.
pub struct Post {
    pub env: Arc<dyn Env>,
    pub plan: Arc<Plan>,
    pub node: NodeId,
    pub hello: Hello,
    pub wait: Duration,
    /// How long a peer that was met may be busy with others, before and while they measure.
    pub patience: Duration,
    /// Nodes of one process take turns.
    pub turn: Arc<Semaphore>,
    pub tell: mpsc::UnboundedSender<Told>,
}

/// A peer that is about to be met: none of one whose link is only to be reached.
type Meeting = JoinHandle<Result<Option<Met>, Why>>;

/// Who is waited for, and what was last heard of the attempt.
type Missing = Rc<RefCell<BTreeMap<NodeId, String>>>;

/// Where a peer's connections go as they come in.
type Mailbox = mpsc::Sender<Result<Connection, Why>>;

/// What all that a node does in a preflight shares.
struct Desk {
    post: Post,
    preflight: Rc<Preflight>,
    missing: Missing,
    refusals: RefCell<Vec<String>>,
    deadline: Micros,
}

/// Runs a node's part to its end.
pub async fn attend(post: Post, preflight: Rc<Preflight>) {
    let peers = super::measured(&post.plan, &post.node);
    let deadline = post.env.now() + post.wait;
    let missing = peers.iter().map(|peer| (peer.clone(), String::new()));
    let desk = Rc::new(Desk {
        missing: Rc::new(RefCell::new(missing.collect())),
        refusals: RefCell::default(),
        deadline,
        preflight: preflight.clone(),
        post,
    });
    let (callers, called) = mpsc::channel(CALLERS_MAX);
    let looking = preflight.clone();
    let mut mailboxes = BTreeMap::new();
    let mut meeting = Vec::new();
    for peer in peers {
        let (to, from) = mpsc::channel(2);
        mailboxes.insert(peer.clone(), to);
        let task = spawn_local(meet(desk.clone(), peer.clone(), from));
        meeting.push((peer, task));
    }
    let _background = [
        AbortOnDrop(spawn_local(preflight.serve(callers))),
        AbortOnDrop(spawn_local(async move { looking.look().await })),
        AbortOnDrop(spawn_local(hand_out(desk.clone(), called, mailboxes))),
        AbortOnDrop(spawn_local(remind(desk.clone()))),
    ];
    let mut links = gather(&desk, meeting).await;
    links.sort_by_key(|met| order(&met.node, &met.peer));
    // A link that waits for its turn is kept alive by both of its ends.
    let alive: Vec<_> = links
        .iter()
        .map(|met| {
            let task = stay_alive(desk.post.env.clone(), met.connection.clone());
            AbortOnDrop(spawn_local(task))
        })
        .collect();
    for met in &mut links {
        desk.measure(met).await;
    }
    drop(alive);
    desk.tell(Told::Done);
}

/// The place of a link among all: the same at both ends.
fn order(one: &NodeId, other: &NodeId) -> (NodeId, NodeId) {
    let (first, second) = if one < other {
        (one, other)
    } else {
        (other, one)
    };
    (first.clone(), second.clone())
}

/// Waits until every peer was met or given up; those whose links are to be measured.
async fn gather(desk: &Rc<Desk>, meeting: Vec<(NodeId, Meeting)>) -> Vec<Met> {
    let (mut links, mut asking) = (Vec::new(), Vec::new());
    for (peer, task) in meeting {
        let met = task.await;
        let met = met.unwrap_or_else(|error| Err(Why::Broke(error.to_string())));
        match met {
            Ok(Some(met)) => links.push(met),
            Ok(None) => desk.tell(Told::Neighbour(desk.post.node.clone(), peer)),
            Err(why) => {
                let desk = desk.clone();
                asking.push(spawn_local(
                    async move { desk.tell_absent(peer, why).await },
                ));
            }
        }
    }
    for one in asking {
        // A panic there has been reported.
        let _ = one.await;
    }
    links
}

/// Gives each caller to whoever waits for it.
async fn hand_out(
    desk: Rc<Desk>,
    mut called: mpsc::Receiver<Caller>,
    mailboxes: BTreeMap<NodeId, Mailbox>,
) {
    while let Some(caller) = called.recv().await {
        let (peer, result) = match caller {
            Caller::Peer(peer, connection) => (peer, Ok(connection)),
            Caller::AtWork(peer) => (peer, Err(Why::AtWork)),
            Caller::Refused(reason) => {
                let mut refusals = desk.refusals.borrow_mut();
                if refusals.len() < REFUSALS_MAX && !refusals.contains(&reason) {
                    refusals.push(clip(reason));
                }
                continue;
            }
        };
        if let Some(mailbox) = mailboxes.get(&peer) {
            // Full or closed: it has been met, or calls again.
            let _ = mailbox.try_send(result);
        }
    }
}

/// Tells who is still waited for, again and again.
async fn remind(desk: Rc<Desk>) {
    loop {
        desk.post.env.sleep(TELL).await;
        let missing = desk.missing.borrow().clone();
        if missing.is_empty() {
            return;
        }
        desk.tell(Told::Progress(Progress::Waits {
            node: desk.post.node.clone(),
            missing: missing.into_iter().collect(),
            left: desk.deadline.since(desk.post.env.now()),
        }));
    }
}

/// Shows that a connection which waits for its turn is alive.
async fn stay_alive(env: Arc<dyn Env>, connection: Connection) {
    while connection.send_datagram(Bytes::from_static(b".")).is_ok() {
        env.sleep(ALIVE).await;
    }
}

/// Meets a peer: none of one whose link is only to be reached.
async fn meet(
    desk: Rc<Desk>,
    peer: NodeId,
    mut calls: mpsc::Receiver<Result<Connection, Why>>,
) -> Result<Option<Met>, Why> {
    let env = desk.post.env.clone();
    let met = tokio::select! {
        biased;
        met = desk.try_on(&peer, &mut calls) => met,
        () = env.sleep(desk.post.wait) => Err(Why::Missed(desk.last_word(&peer))),
    };
    desk.missing.borrow_mut().remove(&peer);
    let mut met = met?;
    desk.tell(Told::Progress(Progress::Reached {
        node: desk.post.node.clone(),
        peer: peer.clone(),
        address: met.connection.remote_address(),
        left: desk.missing.borrow().len(),
    }));
    if Plan::is_wan(&desk.post.node, &peer) {
        return Ok(Some(met));
    }
    desk.part(&mut met).await;
    Ok(None)
}

impl Desk {
    fn tell(&self, told: Told) {
        // Nobody listens any more: the command was interrupted.
        let _ = self.post.tell.send(told);
    }

    fn last_word(&self, peer: &NodeId) -> String {
        let missing = self.missing.borrow();
        missing.get(peer).cloned().unwrap_or_default()
    }

    /// Dials or waits to be dialled until a peer has said a good hello, or says why there is no use.
    async fn try_on(
        &self,
        peer: &NodeId,
        calls: &mut mpsc::Receiver<Result<Connection, Why>>,
    ) -> Result<Met, Why> {
        let leads = dials(&self.post.plan, &self.post.node, peer);
        loop {
            let reason = match self.reach(peer, leads, calls).await? {
                Ok(connection) => match self.greet(peer, leads, connection).await? {
                    Ok(met) => return Ok(met),
                    Err(reason) => reason,
                },
                Err(reason) => reason,
            };
            if let Some(last) = self.missing.borrow_mut().get_mut(peer) {
                *last = clip(reason);
            }
            self.post.env.sleep(AGAIN).await;
        }
    }

    /// A connection, or why there is none yet.
    async fn reach(
        &self,
        peer: &NodeId,
        leads: bool,
        calls: &mut mpsc::Receiver<Result<Connection, Why>>,
    ) -> Result<Result<Connection, String>, Why> {
        if !leads {
            return match calls.recv().await {
                Some(called) => called.map(Ok),
                None => std::future::pending().await,
            };
        }
        match self.preflight.dial(peer).await {
            Ok(connection) => Ok(Ok(connection)),
            Err(trouble) if trouble.refused => Err(Why::Refused(trouble.reason)),
            Err(trouble) => Ok(Err(trouble.reason)),
        }
    }

    /// Says and hears hello.
    async fn greet(
        &self,
        peer: &NodeId,
        leads: bool,
        connection: Connection,
    ) -> Result<Result<Met, String>, Why> {
        let env = &self.post.env;
        let hello = Word::Hello(self.post.hello.clone());
        let greeting = async {
            let mut talk = match leads {
                true => Talk::open(&connection).await?,
                false => Talk::accept(&connection).await?,
            };
            talk.say(&hello).await?;
            let word = talk.hear().await?;
            Ok::<_, String>((talk, word))
        };
        let greeted = tokio::select! {
            biased;
            greeted = greeting => greeted,
            () = env.sleep(HELLO_LIMIT) => Err(format!("{peer} says no hello within {HELLO_LIMIT:?}")),
        };
        let (talk, word) = match greeted {
            Ok(greeted) => greeted,
            Err(reason) => return self.why_closed(&connection).map(|()| Err(reason)),
        };
        let Word::Hello(theirs) = word else {
            return Ok(Err(format!("{peer} begins with no hello")));
        };
        if theirs.topology != self.post.hello.topology {
            let reason = format!("{} has another topology", self.post.node);
            if !leads {
                // The other has its answer only once it ends the connection.
                tokio::select! {
                    biased;
                    _ = connection.closed() => {}
                    () = env.sleep(END_LIMIT) => {}
                }
            }
            connection.close(ANOTHER_TOPOLOGY, reason.as_bytes());
            return Err(Why::AnotherTopology);
        }
        self.preflight.admit(&connection);
        Ok(Ok(Met {
            node: self.post.node.clone(),
            peer: peer.clone(),
            leads,
            connection,
            talk,
            theirs,
            ours: self.post.hello.clone(),
        }))
    }

    /// What the end of a connection says for good.
    fn why_closed(&self, connection: &Connection) -> Result<(), Why> {
        let close = match connection.close_reason() {
            Some(ConnectionError::ApplicationClosed(close)) => close,
            Some(error @ ConnectionError::ConnectionClosed(_))
                if tombolo_actors::quic::is_final(&error) =>
            {
                return Err(Why::Refused(error.to_string()));
            }
            _ => return Ok(()),
        };
        let reason = clip(String::from_utf8_lossy(&close.reason).into_owned());
        match close.error_code {
            AT_WORK => Err(Why::AtWork),
            ANOTHER_TOPOLOGY => Err(Why::AnotherTopology),
            UNTRUSTED | DENIED => Err(Why::Refused(reason)),
            _ => Ok(()),
        }
    }

    /// Ends a connection over which all has been said: who leads closes it, once the other has said its last word.
    async fn part(&self, met: &mut Met) {
        if met.leads {
            return met.connection.close(DONE, b"measured");
        }
        tokio::select! {
            biased;
            _ = met.connection.closed() => {}
            () = self.post.env.sleep(END_LIMIT) => met.connection.close(DONE, b"measured"),
        }
    }

    /// Measures one link and tells what came of it.
    async fn measure(&self, met: &mut Met) {
        self.tell(Told::Progress(Progress::NextLink {
            node: self.post.node.clone(),
            peer: met.peer.clone(),
        }));
        let env = self.post.env.clone();
        let result = async {
            let ready = async {
                met.talk.say(&Word::Ready).await?;
                met.talk.hear().await
            };
            let word = tokio::select! {
                biased;
                word = ready => word?,
                () = env.sleep(self.post.patience) => {
                    return Err(format!("{} was not ready within {:?}", met.peer, self.post.patience));
                }
            };
            if word != Word::Ready {
                return Err(format!("{} says {word:?} before it is ready", met.peer));
            }
            if !met.leads {
                // Nodes of one process take turns, and this end does not know whose it is.
                let limit = self.post.patience + MEASURE_LIMIT;
                return tokio::select! {
                    biased;
                    link = met.follow(&env) => link,
                    () = env.sleep(limit) => Err(format!("it was not measured within {limit:?}")),
                };
            }
            let turn = self.post.turn.acquire().await;
            let _turn = turn.map_err(|error| error.to_string())?;
            tokio::select! {
                biased;
                link = met.lead(env.as_ref()) => link,
                () = env.sleep(MEASURE_LIMIT) => Err(format!("it was not measured within {MEASURE_LIMIT:?}")),
            }
        };
        let result = result.await;
        match result {
            Ok(link) => {
                self.part(met).await;
                let address = met.connection.remote_address();
                self.tell(Told::Measured(Box::new(link), met.node.clone(), address));
            }
            Err(reason) => {
                let reason = match met.connection.close_reason() {
                    Some(error) => format!("{reason}: {error}"),
                    None => reason,
                };
                met.connection.close(DONE, b"given up");
                self.tell_absent(met.peer.clone(), Why::Broke(clip(reason)))
                    .await;
            }
        }
    }

    /// Tells that a peer is not there, with what its addresses say.
    async fn tell_absent(&self, peer: NodeId, why: Why) {
        let asks = matches!(why, Why::Missed(_) | Why::Broke(_));
        let found = self.post.env.resolve(&peer).await;
        let addresses = found.map_err(|error| error.to_string());
        let addresses = match addresses {
            Ok(addresses) => Ok(self.ask(addresses, asks).await),
            Err(reason) => Err(reason),
        };
        self.tell(Told::Absent(Box::new(Absent {
            node: self.post.node.clone(),
            leads: dials(&self.post.plan, &self.post.node, &peer),
            peer,
            why,
            addresses,
            refusals: self.refusals.borrow().clone(),
            waited: self.post.wait,
        })));
    }

    async fn ask(
        &self,
        addresses: Vec<SocketAddr>,
        asks: bool,
    ) -> Vec<(SocketAddr, Option<crate::doctor::Answer>)> {
        let env = self.post.env.as_ref();
        let mut found = Vec::new();
        for (nth, address) in addresses.into_iter().enumerate() {
            let carries = env.carries(address);
            let answer = match asks && nth < ASKED_MAX {
                true => work(env, Work::Bytes(0), move || ask_address(address, carries))
                    .await
                    .ok(),
                false => None,
            };
            found.push((address, answer));
        }
        found
    }
}
