//! LADDER-1: who watches a peer climbs rung by rung, and comes down only for a sign of life; who was put out comes back when its cool-down is over.

use std::collections::BTreeMap;
use std::time::Duration;

use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::time::Micros;

use super::{Cx, Law, has_quorum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rung {
    Suspect,
    Lost,
    Overdue,
}

#[derive(Default)]
pub(super) struct Ladder {
    /// By who watches and who is watched.
    rungs: BTreeMap<(NodeId, NodeId), Rung>,
    /// Since when each node is out, and for how long.
    out: BTreeMap<NodeId, (Micros, Duration)>,
}

impl Ladder {
    fn climb(&mut self, cx: &mut Cx<'_>, node: &NodeId, peer: &NodeId, to: Option<Rung>) {
        let watch = (node.clone(), peer.clone());
        let from = match to {
            Some(rung) => self.rungs.insert(watch, rung),
            None => self.rungs.remove(&watch),
        };
        let allowed = match to {
            Some(Rung::Suspect) => from.is_none(),
            Some(Rung::Lost) => from == Some(Rung::Suspect),
            Some(Rung::Overdue) => from == Some(Rung::Lost),
            None => from.is_some(),
        };
        if !allowed {
            let what = format!("at {node}, {peer} went from {from:?} to {to:?}");
            cx.violated("LADDER-1", what);
        }
    }

    fn on_readmitted(&mut self, cx: &mut Cx<'_>, node: &NodeId) {
        let Some((since, cooldown)) = self.out.remove(node) else {
            return;
        };
        let stays = cx.plan.nodes().map(|node| &node.id);
        let stays = stays.filter(|other| *other != node && !self.out.contains_key(other));
        let out = cx.at.since(since);
        // The coordinator's crystal may be off.
        if out + cooldown / 1000 < cooldown && has_quorum(cx.plan, stays) {
            let what = format!(
                "{node} is let in after {out:?}, its cool-down is {cooldown:?} and there is a quorum without it"
            );
            cx.violated("LADDER-1", what);
        }
    }
}

impl Law for Ladder {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            // What a node knew of its peers is gone with its process.
            Event::NodeStarted { node, .. } => self.rungs.retain(|(own, _), _| own != node),
            Event::PeerSuspected { node, peer, .. } => {
                self.climb(cx, node, peer, Some(Rung::Suspect));
            }
            Event::PeerLost { node, peer } => self.climb(cx, node, peer, Some(Rung::Lost)),
            Event::PeerOverdue { node, peer } => self.climb(cx, node, peer, Some(Rung::Overdue)),
            Event::PeerRecovered { node, peer, .. } => self.climb(cx, node, peer, None),
            Event::PeerLeft { node, peer } => {
                self.rungs.remove(&(node.clone(), peer.clone()));
            }
            Event::NodeEvicted {
                node, cooldown_ms, ..
            } => {
                let cooldown = Duration::from_millis(*cooldown_ms);
                self.out.insert(node.clone(), (cx.at, cooldown));
            }
            Event::NodeReadmitted { node, .. } => self.on_readmitted(cx, node),
            _ => {}
        }
    }
}
