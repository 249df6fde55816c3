//! What the roles of a topology imply: the most that anybody can be granted, and what a site without rules grants.

use super::Action;
use crate::ids::{DomainId, NodeId};
use crate::plan::Plan;

/// What a site without rules grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltIn {
    /// To do what.
    pub action: Action,
    /// Who may do what, as a sentence.
    pub grants: &'static str,
}

/// The rules of a site that has none, in the order of [`Action::ALL`].
pub const BUILT_IN: [BuiltIn; 6] = [
    BuiltIn {
        action: Action::Join,
        grants: "nodes of the site join, and so do those of other sites with which its gateways have links, or tunnels of a relay",
    },
    BuiltIn {
        action: Action::Train,
        grants: "every node trains at its own site, and at the sites of the coordinator and the standbys",
    },
    BuiltIn {
        action: Action::Aggregate,
        grants: "gateways and their successors speak for their domain, at their own site and at those of the coordinator and the standbys",
    },
    BuiltIn {
        action: Action::Coordinate,
        grants: "the coordinator and the standbys coordinate at every site",
    },
    BuiltIn {
        action: Action::ReadModel,
        grants: "whoever has a link reads the model",
    },
    BuiltIn {
        action: Action::ReadMetrics,
        grants: "a site's gateways and their successors read its metrics, and so do the coordinator and the standbys",
    },
];

/// The rule of an action.
pub(super) fn built_in(action: Action) -> BuiltIn {
    BUILT_IN[action as usize]
}

/// Whether the file gives a node a role in which it would do this at a site.
///
/// # Errors
/// It does not, and why.
pub(super) fn implies(
    plan: &Plan,
    site: &DomainId,
    node: &NodeId,
    action: Action,
) -> Result<(), String> {
    let Some(home) = plan.domain(site) else {
        return Err(format!("the topology has no site {site}"));
    };
    if plan.node(node).is_none() {
        return Err(format!("{node} is no node of the topology"));
    }
    let is_own = node.domain() == *site;
    let speaks = plan.may_be_gateway(node);
    let coordinates = plan.may_coordinate(node);
    let takes_sums = || {
        let mut seats = plan.standby.iter().chain([&plan.coordinator]);
        seats.any(|seat| seat.domain() == *site)
    };
    let linked = || is_own || coordinates || speaks && takes_sums();
    let tunnels = || {
        let all = plan.tunnels(node);
        all.iter().any(|peer| peer.domain() == *site)
    };
    let holds = match action {
        // As `Plan::peers` has it.
        Action::ReadModel => linked(),
        Action::Join => linked() || speaks && tunnels(),
        Action::Train => is_own || takes_sums(),
        Action::Aggregate => speaks && (is_own || takes_sums()),
        Action::Coordinate => coordinates,
        Action::ReadMetrics => is_own && speaks || coordinates,
    };
    if holds {
        return Ok(());
    }
    let home = &home.id;
    Err(match action {
        Action::Join | Action::ReadModel => format!("no node of {home} has a link to {node}"),
        Action::Aggregate if !speaks => {
            format!("{node} is no gateway of its domain, nor a successor")
        }
        Action::Train | Action::Aggregate => {
            format!("nobody of {home} may coordinate, so it takes nothing of other domains")
        }
        Action::Coordinate => format!("{node} is neither the coordinator nor a standby"),
        Action::ReadMetrics => {
            format!("{node} is no gateway of {home}, nor the coordinator, nor a standby")
        }
    })
}
