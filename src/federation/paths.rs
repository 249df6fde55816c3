//! How the links between sites are, and how far the clocks of other processes are from this one's: looked at now and then, and told as events,
//! so that whoever shows a run needs nothing but events.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::waiting::Clock;
use tombolo_actors::clock_sync::Known;
use tombolo_actors::crew::Crew;
use tombolo_actors::link::{Durable, Wire};
use tombolo_core::event::{ClockOffset, Event, Measured};
use tombolo_core::heartbeat::Heartbeat;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;

/// How often the links are looked at, if they are few.
pub(crate) const LINKS_LOOK: Duration = Duration::from_secs(2);

/// How many links are told of in a second at most, so that the record of a thousand sites does not fill up with them.
const TOLD_PER_SECOND_MAX: u32 = 50;

/// Looks between two at which everything is told: a clock that was not known is told at the next one, so that a short run has it, too.
const LOOKS: u32 = 8;

/// The links between sites of a process's nodes, and the clocks of other processes.
pub(crate) struct Paths {
    paths: Vec<Path>,
    clocks: Vec<PeerClock>,
}

struct Path {
    node: NodeId,
    peer: NodeId,
    wire: Arc<Wire>,
    outbox: Arc<Durable>,
    alive: Arc<Mutex<Heartbeat>>,
}

struct PeerClock {
    node: NodeId,
    peer: NodeId,
    known: Arc<Known>,
}

impl Paths {
    /// Of these nodes, which share a clock; `elsewhere` says of a peer whether it has another one.
    pub fn new<'a>(
        crews: impl Iterator<Item = &'a Crew>,
        elsewhere: impl Fn(&NodeId) -> bool,
    ) -> Self {
        let (mut paths, mut clocks) = (Vec::new(), Vec::new());
        for crew in crews {
            let node = &crew.node_id;
            let wan = crew.wires.iter();
            let wan = wan.filter(|(peer, _)| Plan::is_wan(node, peer));
            paths.extend(wan.filter_map(|(peer, wire)| {
                Some(Path {
                    node: node.clone(),
                    peer: peer.clone(),
                    wire: wire.clone(),
                    outbox: crew.outboxes.get(peer)?.clone(),
                    alive: crew.liveness.get(peer)?.clone(),
                })
            }));
            let others = crew.clocks.iter().filter(|(peer, _)| elsewhere(peer));
            clocks.extend(others.map(|(peer, known)| PeerClock {
                node: node.clone(),
                peer: peer.clone(),
                known: known.clone(),
            }));
        }
        Paths { paths, clocks }
    }

    /// Looks at them without end, reporting each link that carries frames and each clock that is known.
    pub async fn watch(&self, clock: &Clock, report: &(dyn Fn(Event) + Send + Sync)) -> Infallible {
        let count = self.paths.len() + self.clocks.len();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count == 0 {
            return std::future::pending().await;
        }
        let pause = LINKS_LOOK.max(Duration::from_secs(1) * count / TOLD_PER_SECOND_MAX);
        let mut told = vec![None; self.clocks.len()];
        loop {
            for look in 1..=LOOKS {
                tokio::time::sleep(pause / LOOKS).await;
                let now = clock();
                // In the middle of the pause a link that comes up at the start has something to tell.
                if look == LOOKS / 2 {
                    self.measured(now).map(Event::LinkMeasured).for_each(report);
                }
                for (of, told) in self.clocks.iter().zip(&mut told) {
                    let offset = of.offset(now);
                    let life = offset.as_ref().map(|offset| offset.life);
                    let is_due = look == LOOKS || life != *told;
                    *told = life;
                    if let Some(offset) = offset.filter(|_| is_due) {
                        report(Event::ClockMeasured(offset));
                    }
                }
            }
        }
    }

    /// How each link is that carries frames.
    pub fn measured(&self, now: Micros) -> impl Iterator<Item = Measured> {
        let up = self
            .paths
            .iter()
            .filter(|path| path.wire.agreed().is_some());
        up.map(move |path| {
            let (sent, received) = path.wire.traffic();
            let (messages, bytes) = path.outbox.waiting();
            let alive = path.alive.lock();
            let standing = alive.unwrap_or_else(PoisonError::into_inner).standing(now);
            Measured {
                node: path.node.clone(),
                peer: path.peer.clone(),
                round_trip_ms: standing.round_trip.map(|span| span.as_secs_f64() * 1e3),
                heartbeat_loss: standing.loss,
                sent,
                received,
                unacknowledged: messages as u64,
                unacknowledged_bytes: bytes as u64,
                models: path.wire.models(),
            }
        })
    }

    /// How far each clock is that is known.
    pub fn offsets(&self, now: Micros) -> impl Iterator<Item = ClockOffset> {
        self.clocks.iter().filter_map(move |of| of.offset(now))
    }
}

impl PeerClock {
    fn offset(&self, now: Micros) -> Option<ClockOffset> {
        let (life, estimate) = self.known.estimate(now)?;
        Some(ClockOffset {
            node: self.node.clone(),
            peer: self.peer.clone(),
            life,
            offset_us: estimate.offset_us,
            bound_us: u64::try_from(estimate.bound.as_micros()).unwrap_or(u64::MAX),
        })
    }
}
