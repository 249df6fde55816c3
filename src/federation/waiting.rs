//! Whom the nodes of this process wait for: nodes of other processes that they need and do not reach.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::world::address::Addresses;
use tombolo_actors::coordinator::Board;
use tombolo_actors::crew::Crew;
use tombolo_actors::link::Wire;
use tombolo_actors::node::Presence;
use tombolo_core::event::{Event, Missing, Wait};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::waiting::{self, Need};

/// How often the links are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Tells the monotonic time.
pub(crate) type Clock = Arc<dyn Fn() -> Micros + Send + Sync>;

/// The waits of a process's nodes.
pub(crate) struct Waiting {
    clock: Clock,
    addresses: Arc<Addresses>,
    nodes: Vec<Waiter>,
}

struct Waiter {
    node: NodeId,
    address: String,
    needs: Vec<(Need, Arc<Wire>)>,
    board: Arc<Mutex<Board>>,
    presence: Arc<Presence>,
    machine: Mutex<waiting::Waiting>,
}

impl Waiting {
    pub fn new(
        plan: &Plan,
        crews: &BTreeMap<NodeId, Crew>,
        addresses: Arc<Addresses>,
        clock: Clock,
    ) -> Self {
        let nodes = crews.values().map(|crew| {
            let needs = waiting::needs(plan, &crew.node_id).into_iter();
            let elsewhere = needs.filter(|need| !crews.contains_key(&need.peer));
            Waiter {
                node: crew.node_id.clone(),
                address: crew.address.to_string(),
                needs: elsewhere
                    .filter_map(|need| {
                        let wire = crew.wires.get(&need.peer)?.clone();
                        Some((need, wire))
                    })
                    .collect(),
                board: crew.board.clone(),
                presence: crew.presence.clone(),
                machine: Mutex::default(),
            }
        });
        Waiting {
            nodes: nodes.filter(|waiter| !waiter.needs.is_empty()).collect(),
            addresses,
            clock,
        }
    }

    /// Looks around without end, reporting each wait that is to be said.
    pub async fn watch(&self, report: &(dyn Fn(Event) + Send + Sync)) -> Infallible {
        if self.nodes.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let now = (self.clock)();
            for waiter in self.nodes.iter().filter(|waiter| waiter.is_due(now)) {
                let wait = waiter.wait(now, &self.addresses);
                wait.into_iter().map(Event::NodeWaits).for_each(report);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Other topologies by which those go who lead nodes of this process, of nodes that reach none of them.
    pub fn topologies(&self) -> Vec<Hash> {
        let mut found = Vec::new();
        for waiter in &self.nodes {
            let leads = waiter.needs.iter().filter(|(need, _)| need.leads);
            let leads: Vec<_> = leads.map(|(_, wire)| wire).collect();
            if !leads.iter().any(|wire| is_up(wire)) {
                found.extend(leads.iter().filter_map(|wire| wire.other_topology()));
            }
        }
        found
    }

    /// How a node waits now, if it does.
    pub fn of(&self, node: &NodeId) -> Option<Wait> {
        let waiter = self.nodes.iter().find(|waiter| waiter.node == *node)?;
        waiter.wait((self.clock)(), &self.addresses)
    }

    /// Nodes of other processes that are needed here, or need what is here, and whose address the topology does not give.
    pub fn unaddressed(&self) -> Vec<NodeId> {
        let both = self.nodes.iter().flat_map(|waiter| {
            let needed = waiter.needs.iter().map(|(need, _)| &need.peer);
            std::iter::once(&waiter.node).chain(needed)
        });
        both.filter(|node| self.addresses.planned(node).is_none())
            .cloned()
            .collect()
    }
}

impl Waiter {
    fn is_due(&self, now: Micros) -> bool {
        let missing = self.needs.iter().any(|(_, wire)| !is_up(wire));
        let machine = self.machine.lock();
        machine
            .unwrap_or_else(PoisonError::into_inner)
            .look(now, missing)
    }

    fn wait(&self, now: Micros, addresses: &Addresses) -> Option<Wait> {
        let missing: Vec<Missing> = self
            .needs
            .iter()
            .filter(|(_, wire)| !is_up(wire))
            .map(|(need, _)| Missing {
                node: need.peer.clone(),
                address: addresses.known(&need.peer),
            })
            .collect();
        if missing.is_empty() {
            return None;
        }
        let open = self
            .board
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .progress;
        let left = match open {
            Some(open) => Some(open.deadline.since(now)),
            None => self.presence.left(now),
        };
        Some(Wait {
            node: self.node.clone(),
            address: self.address.clone(),
            have: self.needs.len() - missing.len(),
            need: self.needs.len(),
            missing,
            left_s: left.map(|left| left.as_secs()),
            round: open.map(|open| open.round),
        })
    }
}

fn is_up(wire: &Wire) -> bool {
    wire.connection().is_some()
}
