//! BOUND-1: nothing that waits exceeds its cap. BOUND-2: at the end nothing is left.

use std::collections::BTreeMap;

use tombolo_actors::shell::QUEUE;
use tombolo_core::ids::NodeId;
use tombolo_core::link::{OUTBOX_BYTES_MAX, OUTBOX_MESSAGES_MAX};
use tombolo_fabric::Stats;

use super::{Cx, Law};
use crate::sim::{IN_FLIGHT_BYTES_MAX, INBOX_BYTES_MAX, Load};

/// Wake-ups and datagrams to come: a node has some timers for each connection, and a path carries what [`IN_FLIGHT_BYTES_MAX`] allows, but no
/// federation that can be simulated needs this many.
const EVENTS_MAX: usize = 1 << 20;

/// Regions of a node: two models, an update, slices and scratch, whatever it went through.
const REGIONS_MAX: usize = 64;

/// How full everything is.
#[derive(Debug, Default)]
pub struct Look {
    /// The longest queue of an actor of each node.
    pub queues: BTreeMap<NodeId, usize>,
    /// Messages and bytes that a peer of each node has not acknowledged, where they are the most.
    pub outboxes: BTreeMap<NodeId, (usize, usize)>,
    /// What each node holds of its fabric.
    pub fabric: BTreeMap<NodeId, Stats>,
    /// What the network holds.
    pub network: Load,
    /// For each node and peer how wrong the node is about the peer's clock, and how wrong it says that it is, in microseconds.
    pub clocks: BTreeMap<(NodeId, NodeId), (u64, u64)>,
}

/// What outlived the world.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Actors by type.
    pub actors: BTreeMap<&'static str, usize>,
    /// Tasks, or whatever else can still report.
    pub reporters: usize,
    /// Sockets.
    pub sockets: usize,
    /// Timers.
    pub timers: usize,
    /// Devices of the fabric.
    pub devices: usize,
    /// Registered regions.
    pub regions: usize,
}

pub(super) struct Bounds;

impl Law for Bounds {
    fn on_look(&mut self, cx: &mut Cx<'_>, look: &Look) {
        let mut over = |what: String| cx.violated("BOUND-1", what);
        for (node, depth) in &look.queues {
            if *depth > QUEUE {
                over(format!(
                    "an actor of {node} has {depth} messages in its queue, its cap is {QUEUE}"
                ));
            }
        }
        for (node, (messages, bytes)) in &look.outboxes {
            if *messages > OUTBOX_MESSAGES_MAX || *bytes > OUTBOX_BYTES_MAX {
                over(format!(
                    "{messages} messages of {node} ({bytes} bytes) wait for one peer"
                ));
            }
        }
        for (node, stats) in &look.fabric {
            if stats.regions > REGIONS_MAX {
                over(format!(
                    "{node} holds {} regions, {REGIONS_MAX} are far more than it needs",
                    stats.regions
                ));
            }
        }
        let Load {
            inbox_bytes,
            in_flight_bytes,
            events,
        } = look.network;
        if inbox_bytes > INBOX_BYTES_MAX {
            over(format!("{inbox_bytes} bytes wait in one socket"));
        }
        if in_flight_bytes > IN_FLIGHT_BYTES_MAX {
            over(format!("{in_flight_bytes} bytes are under way on one path"));
        }
        if events > EVENTS_MAX {
            over(format!("{events} timers and datagrams are to come"));
        }
    }

    fn on_leftovers(&mut self, cx: &mut Cx<'_>, left: &Leftovers) {
        if *left != Leftovers::default() {
            cx.violated(
                "BOUND-2",
                format!("the world is over, and there is left: {left:?}"),
            );
        }
    }
}
