//! Whom the nodes of this process wait for: nodes of other processes that they need and do not reach.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::identity::show::span;
use crate::world::address::Addresses;
use tombolo_actors::coordinator::Board;
use tombolo_actors::crew::Crew;
use tombolo_actors::link::Wire;
use tombolo_core::event::{Event, Missing, Wait};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;
use tombolo_core::waiting::{self, Need, Word};

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
    machine: Mutex<waiting::Waiting>,
}

impl Waiting {
    pub fn new(
        plan: &Plan,
        crews: &BTreeMap<NodeId, Crew>,
        addresses: Arc<Addresses>,
        clock: Clock,
    ) -> Self {
        let now = clock();
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
                machine: Mutex::new(waiting::Waiting::new(plan, &crew.node_id, now)),
            }
        });
        Waiting {
            nodes: nodes.filter(|waiter| !waiter.needs.is_empty()).collect(),
            addresses,
            clock,
        }
    }

    /// Looks around until a node gives up, reporting each wait that is to be said; ends with the reason.
    pub async fn watch(&self, report: &(dyn Fn(Event) + Send + Sync)) -> String {
        if self.nodes.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let now = (self.clock)();
            for waiter in &self.nodes {
                match waiter.look(now) {
                    Some(Word::Wait) => {
                        let wait = waiter.wait(now, &self.addresses);
                        wait.into_iter().map(Event::NodeWaits).for_each(report);
                    }
                    Some(Word::GiveUp) => return waiter.last_word(&self.addresses),
                    None => {}
                }
            }
            tokio::time::sleep(LOOK).await;
        }
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
    fn look(&self, now: Micros) -> Option<Word> {
        let led = |(need, wire): &(Need, Arc<Wire>)| need.leads && is_up(wire);
        let missing = self.needs.iter().any(|(_, wire)| !is_up(wire));
        let leads_itself = {
            let board = self.board.lock();
            board.unwrap_or_else(PoisonError::into_inner).acts
        };
        let led = leads_itself
            || !self.needs.iter().any(|(need, _)| need.leads)
            || self.needs.iter().any(led);
        self.machine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .look(now, missing, led)
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
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        let left = match open {
            Some(open) => Some(open.deadline.since(now)),
            None => machine.left(now),
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

    fn last_word(&self, addresses: &Addresses) -> String {
        let leads = self.needs.iter().filter(|(need, _)| need.leads);
        let leads: Vec<String> = leads
            .map(|(need, _)| named(&need.peer, addresses.known(&need.peer).as_deref()))
            .collect();
        let machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        format!(
            "{} has not reached {} for {} and gives up; is that node running, and can its UDP port be reached from here?",
            self.node,
            leads.join(" or "),
            span(machine.patience().map_or(0, |patience| patience.as_secs())),
        )
    }
}

fn is_up(wire: &Wire) -> bool {
    wire.connection().is_some()
}

/// A node and where it is dialled, for people.
pub fn named(node: &NodeId, address: Option<&str>) -> String {
    match address {
        Some(address) => format!("{node} (udp {address})"),
        None => format!("{node} (no address yet)"),
    }
}
