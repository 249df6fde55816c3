//! What follows from all policies together: who is asked in a round, who may act as a gateway, and what of a file cannot be meant.

use std::collections::BTreeSet;

use super::{Action, Verdict, Who, of};
use crate::ids::{DomainId, NodeId};
use crate::plan::{Plan, Quorum};
use crate::view::View;

/// Why a node is not asked in a round that opens in this view: the first policy that keeps its update out. None if none does.
///
/// A round asks whom the coordinator's site lets train, and the node's own; whom the node's site lets be led, by its gateway and by the
/// coordinator; who can be reached; and who may read the model to train from.
pub fn left_out(plan: &Plan, view: &View, node: &NodeId) -> Option<Box<Verdict>> {
    if plan.policy.rules.is_empty() {
        // Whatever a round needs, roles imply.
        return None;
    }
    let (home, leads) = (node.domain(), &view.coordinator);
    let seat = leads.domain();
    let gateway = view.gateway(&home)?;
    let ask = |site: &DomainId, who: &NodeId, action, node: &NodeId| {
        of(plan, site, who, action, node).denial()
    };
    ask(&seat, node, Action::Train, node)
        .or_else(|| ask(&home, node, Action::Train, node))
        .or_else(|| reaches(plan, node, gateway))
        .or_else(|| ask(&home, node, Action::ReadModel, gateway))
        .or_else(|| ask(&home, gateway, Action::Aggregate, node))
        .or_else(|| ask(&seat, gateway, Action::Aggregate, node))
        .or_else(|| ask(&home, leads, Action::Coordinate, node))
        // What the gateway does for all of them.
        .or_else(|| reaches(plan, gateway, leads))
        .or_else(|| ask(&seat, gateway, Action::ReadModel, leads))
        .or_else(|| ask(&seat, gateway, Action::Aggregate, gateway))
        .or_else(|| ask(&home, gateway, Action::Aggregate, gateway))
        .or_else(|| ask(&home, leads, Action::Coordinate, gateway))
        .or_else(|| ask(&seat, leads, Action::Coordinate, leads))
}

/// Why two nodes may have no connection; none if they may, or are one.
pub fn reaches(plan: &Plan, a: &NodeId, b: &NodeId) -> Option<Box<Verdict>> {
    if a == b {
        return None;
    }
    let lets_in =
        |node: &NodeId, peer: &NodeId| of(plan, &node.domain(), peer, Action::Join, node).denial();
    lets_in(a, b).or_else(|| lets_in(b, a))
}

/// Why a node may not act as its domain's gateway under that coordinator; none if it may.
pub fn may_speak(plan: &Plan, coordinator: &NodeId, node: &NodeId) -> Option<Box<Verdict>> {
    if plan.policy.rules.is_empty() {
        return None;
    }
    let ask = |site: &DomainId| of(plan, site, node, Action::Aggregate, node).denial();
    ask(&node.domain()).or_else(|| ask(&coordinator.domain()))
}

/// What a file's policies come to, where that may not be what was meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concern {
    /// No round could ever be committed: nobody can mean that.
    Impossible(String),
    /// It works, without somebody.
    Warning(String),
}

/// Judges the policies of a plan.
pub fn concerns(plan: &Plan) -> Vec<Concern> {
    if plan.policy.rules.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let coordinator = &plan.coordinator;
    let seat = coordinator.domain();
    for action in [Action::Coordinate, Action::Aggregate] {
        let verdict = of(plan, &seat, coordinator, action, coordinator);
        if !verdict.allowed {
            found.push(Concern::Impossible(format!(
                "nobody could coordinate: {verdict}"
            )));
        }
    }
    if !found.is_empty() {
        return found;
    }
    let view = View::first(plan);
    let out: Vec<(&NodeId, Box<Verdict>)> = plan
        .nodes()
        .filter_map(|node| Some((&node.id, left_out(plan, &view, &node.id)?)))
        .collect();
    found.extend(without_quorum(plan, &out));
    for (node, verdict) in out {
        let rest = match verdict.identity == *node && verdict.action == Action::Train {
            true => "it will only follow",
            false => "it takes no part in rounds",
        };
        found.push(Concern::Warning(format!("{verdict}; {node}: {rest}")));
    }
    for standby in &plan.standby {
        let verdict = of(
            plan,
            &standby.domain(),
            standby,
            Action::Coordinate,
            standby,
        );
        if !verdict.allowed {
            found.push(Concern::Warning(format!(
                "{standby} cannot be promoted: {verdict}"
            )));
        }
    }
    for (place, rule) in plan.policy.rules.iter().enumerate() {
        let is_known = match &rule.identity {
            Who::Everyone => true,
            Who::Domain(domain) => plan.domain(domain).is_some(),
            Who::Node(node) => plan.node(node).is_some(),
        };
        if !is_known {
            found.push(Concern::Warning(format!(
                "rule {} grants something to {}, whom this topology does not have",
                place + 1,
                rule.identity
            )));
        }
    }
    found
}

/// Whether those who are left are too few for any round.
fn without_quorum(plan: &Plan, out: &[(&NodeId, Box<Verdict>)]) -> Option<Concern> {
    let gone: BTreeSet<&NodeId> = out.iter().map(|(node, _)| *node).collect();
    let nodes = plan.nodes().map(|node| &node.id);
    let left: Vec<&NodeId> = nodes.filter(|node| !gone.contains(node)).collect();
    let spread: BTreeSet<DomainId> = left.iter().map(|node| node.domain()).collect();
    let (nodes, domains) = match plan.round.quorum {
        Quorum::All => (1, 1),
        Quorum::AtLeast { nodes, domains } => (nodes, domains),
    };
    if left.len() >= nodes && spread.len() >= domains {
        return None;
    }
    let (_, first) = out.first()?;
    Some(Concern::Impossible(format!(
        "no round can ever meet its quorum of {nodes} nodes from {domains} domains, since the policies let {} nodes from {} take part; for one, {first}",
        left.len(),
        spread.len()
    )))
}
