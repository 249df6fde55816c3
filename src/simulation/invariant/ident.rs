//! IDENT-1: who cannot show that it is who it says, is not talked to; who can, is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::policy;
use tombolo_core::time::Micros;

use super::{Cx, Law};
use crate::simulation::inflict::Phase;
use crate::simulation::plan::Fault;

/// How long a handshake with the certificate of before may still take, and news of a refusal may be on the way.
const ON_THE_WAY: Duration = Duration::from_secs(30);

/// How near to a simulation's begin certificates that are stale end or begin. A clock set by less changes no verdict.
const MARGIN: Duration = Duration::from_secs(86_400);

#[derive(Default)]
pub(super) struct Identities {
    /// Whose clock was set so far that it judges others' certificates, or they its, by another day.
    astray: BTreeSet<NodeId>,
    /// How many faults make a node's certificate stale, and since when there are any or none.
    stale: BTreeMap<NodeId, (usize, Micros)>,
}

impl Identities {
    /// Whether a node's certificate is stale, and since when that is so or not.
    fn of(&self, node: &NodeId) -> (bool, Micros) {
        let known = self.stale.get(node).copied();
        known.map_or((false, Micros::default()), |(count, since)| {
            (count > 0, since)
        })
    }
}

impl Law for Identities {
    fn on_fault(&mut self, cx: &mut Cx<'_>, fault: &Fault, phase: Phase) {
        let node = match fault {
            Fault::StaleCertificate { node, .. } => node,
            Fault::ClockForward { node, by } | Fault::ClockBack { node, by } if *by >= MARGIN => {
                self.astray.extend(node.parse());
                return;
            }
            _ => return,
        };
        let Ok(node) = node.parse() else { return };
        let (count, since) = self.stale.entry(node).or_default();
        let before = *count;
        *count = match phase {
            Phase::Begins => before + 1,
            Phase::Ends => before.saturating_sub(1),
        };
        if (before == 0) != (*count == 0) {
            *since = cx.at;
        }
    }

    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        if let Event::LinkUp { node, peer } | Event::LinkRefused { node, peer, .. } = event
            && [node, peer]
                .into_iter()
                .any(|end| self.astray.contains(end))
        {
            return;
        }
        match event {
            Event::LinkUp { node, peer } => {
                for end in [node, peer] {
                    let (stale, since) = self.of(end);
                    if stale && cx.at.since(since) > ON_THE_WAY {
                        let what = format!(
                            "{node} and {peer} talk, though the certificate of {end} is stale since {since:?}"
                        );
                        cx.violated("IDENT-1", what);
                    }
                }
            }
            Event::LinkRefused { node, peer, reason } => {
                let excused = |end| {
                    let (stale, since) = self.of(end);
                    stale || (since > Micros::default() && cx.at.since(since) < ON_THE_WAY)
                };
                // Who they are is not all that is asked.
                let denied = policy::reaches(cx.plan, node, peer).is_some();
                if !excused(node) && !excused(peer) && !denied {
                    let what = format!(
                        "{node} and {peer} do not talk, and both are who they say: {reason}"
                    );
                    cx.violated("IDENT-1", what);
                }
            }
            _ => {}
        }
    }
}
