//! What a message asks of the receiver's site, in the words of its policy.

use crate::event::Vitals;
use crate::ids::NodeId;
use crate::plan::Plan;
use crate::policy::{self, Action, Verdict};
use crate::wire::{Control, Open};

/// The first thing that a message is about and that the site of `to` does not grant.
pub(super) fn denial(
    plan: &Plan,
    to: &NodeId,
    from: &NodeId,
    control: &Control,
) -> Option<Box<Verdict>> {
    let site = to.domain();
    let ask =
        |who: &NodeId, action, node: &NodeId| policy::of(plan, &site, who, action, node).denial();
    let trains = |node: &NodeId| {
        ask(from, Action::Aggregate, node).or_else(|| ask(node, Action::Train, node))
    };
    match control {
        // Whoever says where it is to be let in reads what this node shows.
        Control::Endpoint(_) => ask(from, Action::ReadModel, to),
        Control::View(told) => {
            ask(&told.coordinator, Action::Coordinate, to).or_else(|| {
                match *from == told.coordinator {
                    true => None,
                    false if from.domain() == site => ask(from, Action::Aggregate, to),
                    false => ask(from, Action::Coordinate, to),
                }
            })
        }
        Control::Resync
        | Control::Open(_)
        | Control::Weigh { .. }
        | Control::Answer { .. }
        | Control::Commit(_)
        | Control::Abort { .. }
        | Control::Finish { .. }
        | Control::Amend(_)
        | Control::Append(_) => ask(from, Action::Coordinate, to),
        Control::Reported { report, .. } => trains(&report.node),
        Control::Contribute(contribution) => contribution.members.iter().find_map(trains),
        Control::DomainJoin(_)
        | Control::Stale { .. }
        | Control::TrainingFailed { .. }
        | Control::Unreachable { .. }
        | Control::Standing { .. }
        | Control::MemberDiverged(..)
        | Control::MemberVitals(_)
        | Control::MemberAgreed { .. }
        | Control::Adopted { .. }
        | Control::Recorded(_) => ask(from, Action::Aggregate, from),
        Control::Rejoin
        | Control::Train(_)
        | Control::Adopt(_)
        | Control::Drop { .. }
        | Control::Leave { .. }
        | Control::Consider(_)
        | Control::Measure(_)
        | Control::Fold(_) => ask(from, Action::Aggregate, to),
        Control::Join(_) => {
            ask(from, Action::ReadModel, to).or_else(|| ask(to, Action::Aggregate, from))
        }
        Control::Exported(_) | Control::Muster(_) => ask(from, Action::Train, from),
        // What follows from an order, and says nothing about the model.
        Control::Failed { .. }
        | Control::Measured(_)
        | Control::Folded(_)
        | Control::Departing
        | Control::Diverged(_)
        | Control::Vitals(_)
        | Control::Agreed { .. }
        | Control::Holds { .. } => None,
        // It proves itself; and the link's own.
        Control::Revoked(_)
        | Control::Fetch { .. }
        | Control::Offer { .. }
        | Control::Missing { .. }
        | Control::Renew => None,
    }
}

/// Takes out of a round whom the gateway's own site does not let train, or be led by that coordinator. A coordinator of the same file has not
/// asked for them.
pub fn only_granted(
    plan: &Plan,
    gateway: &NodeId,
    coordinator: &NodeId,
    open: &mut Open,
) -> Vec<Verdict> {
    let mut denied = Vec::new();
    if plan.policy.rules.is_empty() {
        return denied;
    }
    let site = gateway.domain();
    open.cohort.retain(|node| {
        let verdict = policy::of(plan, &site, node, Action::Train, node)
            .denial()
            .or_else(|| policy::of(plan, &site, coordinator, Action::Coordinate, node).denial());
        match verdict {
            None => true,
            Some(verdict) => {
                denied.push(*verdict);
                false
            }
        }
    });
    denied
}

/// Whether `to` may be told how a node does, as that node's site has it.
pub fn may_be_shown(plan: &Plan, to: &NodeId, vitals: &Vitals) -> Verdict {
    let node = &vitals.node;
    policy::of(plan, &node.domain(), to, Action::ReadMetrics, node)
}
