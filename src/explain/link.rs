//! Why a link is as it is.

use serde::Serialize;
use tombolo_core::event::{Event, Measured};
use tombolo_core::ids::NodeId;

use super::course::{Cause, Lines, verdict};
use super::{ExplainError, Incident, Incidents, Past, between};

/// What happened between two nodes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkStory {
    /// One end.
    pub a: NodeId,
    /// The other one.
    pub b: NodeId,
    /// How often it came up, went down, and was refused.
    pub up: u64,
    /// How often it went down.
    pub down: u64,
    /// How often one end refused the other one.
    pub refused: u64,
    /// How often one end suspected the other one to be dead.
    pub suspected: u64,
    /// How often it gave the other one up.
    pub lost: u64,
    /// The longest silence that ended, in milliseconds.
    pub silent_ms: u64,
    /// How long two heartbeats that crossed were on their way, in milliseconds, as last seen; none if nobody said.
    pub round_trip_ms: Option<f64>,
    /// The share of heartbeats that got lost lately, as last seen.
    pub heartbeat_loss: Option<f64>,
    /// Sums and models that came over it.
    pub transfers: u64,
    /// Seconds that their receivers waited for them, by what held them up, the most first; of each the last transfer in words.
    pub limits: Vec<Limit>,
    /// The last incidents, each from the end that saw it.
    pub incidents: Vec<Incident>,
    /// Incidents before those.
    pub earlier: u64,
}

/// What held transfers up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// What.
    pub cause: Cause,
    /// For how many seconds in all.
    pub seconds: f64,
    /// The last of them.
    pub last: String,
}

/// Whoever waited for less was not held up.
const WAITED_US_MIN: u64 = 1_000;

/// What came over a link, and how it was meanwhile.
#[derive(Default)]
struct Traffic {
    lines: Lines,
    last: Option<Measured>,
    transfers: u64,
    limits: Vec<Limit>,
}

impl Traffic {
    fn take(&mut self, event: &Event, a: &NodeId, b: &NodeId) {
        let ends = (a.domain(), b.domain());
        match event {
            Event::LinkMeasured(seen) => {
                self.lines.take(seen);
                if (&seen.node, &seen.peer) == (a, b) || (&seen.node, &seen.peer) == (b, a) {
                    self.last = Some(seen.clone());
                }
            }
            Event::Transferred(sent) => {
                let (from, to) = (sent.from.clone(), sent.to.clone());
                if ends != (from.clone(), to.clone()) && ends != (to, from) {
                    return;
                }
                self.transfers += 1;
                // It was there before anybody waited for it.
                if sent.waited_us < WAITED_US_MIN {
                    return;
                }
                let seconds = sent.waited_us as f64 / 1e6;
                let (cause, last) = verdict(sent, seconds, &self.lines);
                match self.limits.iter_mut().find(|limit| limit.cause == cause) {
                    Some(limit) => {
                        limit.seconds += seconds;
                        limit.last = last;
                    }
                    None => self.limits.push(Limit {
                        cause,
                        seconds,
                        last,
                    }),
                }
            }
            _ => {}
        }
    }
}

/// Tells what was recorded of the link between two nodes.
///
/// # Errors
/// The record never speaks of the two together.
pub fn link(
    past: impl Iterator<Item = Past>,
    a: &NodeId,
    b: &NodeId,
) -> Result<LinkStory, ExplainError> {
    if a == b {
        return Err(ExplainError::Unknown {
            what: format!("a link from {a} to itself"),
            known: "name its two ends".to_owned(),
        });
    }
    let (mut up, mut down, mut refused, mut suspected, mut lost) = (0, 0, 0, 0, 0);
    let mut silent = 0;
    let mut incidents = Incidents::default();
    let mut traffic = Traffic::default();
    for past in past {
        traffic.take(&past.event, a, b);
        let Some((node, peer, what)) = between(&past.event) else {
            continue;
        };
        if (node, peer) != (a, b) && (node, peer) != (b, a) {
            continue;
        }
        match &past.event {
            Event::LinkUp { .. } => up += 1,
            Event::LinkDown { .. } => down += 1,
            Event::LinkRefused { .. } => refused += 1,
            Event::PeerSuspected { .. } => suspected += 1,
            Event::PeerLost { .. } => lost += 1,
            Event::PeerRecovered { silent_ms, .. } => silent = silent.max(*silent_ms),
            _ => {}
        }
        let what = format!("{node} says of {peer}: {what}");
        incidents.push(&past, what);
    }
    if incidents.kept.is_empty() && traffic.last.is_none() {
        return Err(ExplainError::Unknown {
            what: format!("a link between {a} and {b}"),
            known: "only gateways have links to other domains' nodes, and only those of the coordinator's process are recorded there".to_owned(),
        });
    }
    let Traffic {
        last,
        transfers,
        mut limits,
        ..
    } = traffic;
    limits.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(LinkStory {
        round_trip_ms: last.as_ref().and_then(|last| last.round_trip_ms),
        heartbeat_loss: last.map(|last| last.heartbeat_loss),
        transfers,
        limits,
        a: a.clone(),
        b: b.clone(),
        up,
        down,
        refused,
        suspected,
        lost,
        silent_ms: silent,
        incidents: incidents.kept.into(),
        earlier: incidents.earlier,
    })
}
