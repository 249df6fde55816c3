//! Why a link is as it is.

use serde::Serialize;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;

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
    /// The last incidents, each from the end that saw it.
    pub incidents: Vec<Incident>,
    /// Incidents before those.
    pub earlier: u64,
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
    for past in past {
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
    if incidents.kept.is_empty() {
        return Err(ExplainError::Unknown {
            what: format!("a link between {a} and {b}"),
            known: "only gateways have links to other domains' nodes, and only those of the coordinator's process are recorded there".to_owned(),
        });
    }
    Ok(LinkStory {
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
