//! What a node does not do for others, since the policy of its site does not grant it to them. Each refusal is told, once in a while.

use super::Node;
use tombolo_core::authorize::{may_be_shown, only_granted};
use tombolo_core::event::Vitals;
use tombolo_core::ids::NodeId;
use tombolo_core::policy::{self, Action, Verdict};
use tombolo_core::wire::{Control, Open};

impl Node {
    fn grants(&self, verdict: &Verdict) -> bool {
        if !verdict.allowed {
            self.setup.stage.deny(verdict);
        }
        verdict.allowed
    }

    /// Whether a neighbour may READ what this node shows: else it gets no endpoint.
    pub(super) fn may_read(&self, peer: &NodeId) -> bool {
        let (plan, me) = (&self.setup.stage.plan, self.me());
        let reads = policy::of(plan, &me.domain(), peer, Action::ReadModel, me);
        self.grants(&reads)
    }

    /// Whether a neighbour is one of the members that this node leads as their gateway.
    pub(super) fn may_lead(&self, peer: &NodeId) -> bool {
        let (plan, me) = (&self.setup.stage.plan, self.me());
        let leads = policy::of(plan, &me.domain(), me, Action::Aggregate, peer);
        self.may_read(peer) && self.grants(&leads)
    }

    /// Takes out of a round that the coordinator opens whom this node's site does not let take part.
    pub(super) fn ask_only_granted(&self, coordinator: &NodeId, open: &mut Open) {
        let denied = only_granted(&self.setup.stage.plan, self.me(), coordinator, open);
        denied
            .iter()
            .for_each(|verdict| self.setup.stage.deny(verdict));
    }

    /// Tells a peer how a node does, if that node's site lets it be told.
    pub(super) fn tell_vitals(
        &self,
        peer: &NodeId,
        vitals: Vitals,
        say: impl Fn(Vitals) -> Control,
    ) {
        let verdict = may_be_shown(&self.setup.stage.plan, peer, &vitals);
        if self.grants(&verdict) {
            self.send_now(peer, say(vitals));
        }
    }
}
