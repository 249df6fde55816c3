//! Who may say what: each control message has one kind of sender and one kind of receiver.
//!
//! The sender is the TLS peer of the connection that the message came on, never a name inside it.

use crate::ids::NodeId;
use crate::plan::Plan;
use crate::wire::Control;

/// Which part of a node a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its access to the fabric.
    Fabric,
    /// Its membership in its domain.
    Member,
    /// Its rank in its domain's collectives.
    Rank,
    /// Its domain's gateway.
    Gateway,
    /// The federation's coordinator.
    Coordinator,
}

/// A message from somebody who has no say in the matter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{from} sent {kind} to {to}, which only {expected} may")]
pub struct Refusal {
    /// The TLS peer.
    pub from: NodeId,
    /// This node.
    pub to: NodeId,
    /// The message's kind.
    pub kind: &'static str,
    /// Who may.
    pub expected: &'static str,
}

/// Decides which part of `to` a message from `from` is for.
///
/// # Errors
/// The sender may not send this to this node.
pub fn authorize(
    plan: &Plan,
    to: &NodeId,
    from: &NodeId,
    control: &Control,
) -> Result<Part, Refusal> {
    let same_domain = from.domain() == to.domain();
    let (part, kind, expected, allowed) = match control {
        Control::Endpoint(_) => (
            Part::Fabric,
            "a fabric endpoint",
            "a node of its domain",
            same_domain,
        ),
        Control::Resync
        | Control::Open(_)
        | Control::Weigh { .. }
        | Control::Answer { .. }
        | Control::Commit(_)
        | Control::Abort { .. }
        | Control::Finish { .. } => {
            let allowed = *from == plan.coordinator && plan.is_gateway(to);
            (
                Part::Gateway,
                "a coordinator's message",
                "the coordinator to a gateway",
                allowed,
            )
        }
        Control::DomainJoin(_)
        | Control::Reported { .. }
        | Control::TrainingFailed { .. }
        | Control::Unreachable { .. }
        | Control::Contribute(_)
        | Control::Adopted { .. } => {
            let allowed = *to == plan.coordinator && plan.is_gateway(from);
            (
                Part::Coordinator,
                "a gateway's message",
                "a gateway to the coordinator",
                allowed,
            )
        }
        Control::Rejoin
        | Control::Train(_)
        | Control::Adopt(_)
        | Control::Drop { .. }
        | Control::Leave { .. } => {
            let allowed = same_domain && plan.is_gateway(from);
            (
                Part::Member,
                "an order",
                "the gateway of its domain",
                allowed,
            )
        }
        Control::Measure(_) | Control::Fold(_) => {
            let allowed = same_domain && plan.is_gateway(from);
            (
                Part::Rank,
                "a collective's order",
                "the gateway of its domain",
                allowed,
            )
        }
        Control::Join(_)
        | Control::Exported(_)
        | Control::Failed { .. }
        | Control::Measured(_)
        | Control::Folded(_)
        | Control::Holds { .. } => {
            let allowed = same_domain && plan.is_gateway(to);
            (
                Part::Gateway,
                "a member's message",
                "a member to its own gateway",
                allowed,
            )
        }
        // The link handles these itself.
        Control::Fetch { .. } | Control::Offer { .. } | Control::Missing { .. } => (
            Part::Fabric,
            "a link's message",
            "nobody through a node",
            false,
        ),
    };
    if allowed {
        Ok(part)
    } else {
        Err(Refusal {
            from: from.clone(),
            to: to.clone(),
            kind,
            expected,
        })
    }
}
