//! How the links between sites are: looked at now and then, and told as events, so that whoever shows a run needs nothing but events.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::waiting::Clock;
use tombolo_actors::crew::Crew;
use tombolo_actors::link::Wire;
use tombolo_core::event::{Event, Measured};
use tombolo_core::heartbeat::Heartbeat;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

/// How often the links are looked at, if they are few.
const LOOK: Duration = Duration::from_secs(2);

/// How many links are told of in a second at most, so that the record of a thousand sites does not fill up with them.
const TOLD_PER_SECOND_MAX: u32 = 50;

/// The links between sites of a process's nodes.
pub(crate) struct Paths {
    clock: Clock,
    paths: Vec<Path>,
}

struct Path {
    node: NodeId,
    peer: NodeId,
    wire: Arc<Wire>,
    alive: Arc<Mutex<Heartbeat>>,
}

impl Paths {
    pub fn new<'a>(crews: impl Iterator<Item = &'a Crew>, clock: Clock) -> Self {
        let paths = crews.flat_map(|crew| {
            let node = &crew.node_id;
            let wan = crew.wires.iter();
            let wan = wan.filter(move |(peer, _)| Plan::is_wan(node, peer));
            wan.filter_map(move |(peer, wire)| {
                Some(Path {
                    node: node.clone(),
                    peer: peer.clone(),
                    wire: wire.clone(),
                    alive: crew.liveness.get(peer)?.clone(),
                })
            })
        });
        Paths {
            paths: paths.collect(),
            clock,
        }
    }

    /// Looks at them without end, reporting each that carries frames.
    pub async fn watch(&self, report: &(dyn Fn(Event) + Send + Sync)) -> Infallible {
        let count = u32::try_from(self.paths.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return std::future::pending().await;
        }
        let pause = LOOK.max(Duration::from_secs(1) * count / TOLD_PER_SECOND_MAX);
        loop {
            // In the middle of the pause a link that comes up at the start has something to tell.
            tokio::time::sleep(pause / 2).await;
            self.measured().map(Event::LinkMeasured).for_each(report);
            tokio::time::sleep(pause / 2).await;
        }
    }

    fn measured(&self) -> impl Iterator<Item = Measured> {
        let now = (self.clock)();
        let up = self
            .paths
            .iter()
            .filter(|path| path.wire.agreed().is_some());
        up.map(move |path| {
            let (sent, received) = path.wire.traffic();
            let alive = path.alive.lock();
            let standing = alive.unwrap_or_else(PoisonError::into_inner).standing(now);
            Measured {
                node: path.node.clone(),
                peer: path.peer.clone(),
                round_trip_ms: standing.round_trip.map(|span| span.as_secs_f64() * 1e3),
                heartbeat_loss: standing.loss,
                sent,
                received,
            }
        })
    }
}
