//! A numbered membership view: who coordinates, who holds each domain's WAN links, who is out.
//!
//! Views are the coordinator's alone: each is written down before it is told, and each node only ever goes to a later one (VIEW-1). A view is
//! small and complete, so a node that missed some needs only the newest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{DomainId, Epoch, NodeId};
use crate::plan::Plan;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// Its number, from 1.
    pub epoch: Epoch,
    /// Who opens and closes rounds.
    pub coordinator: NodeId,
    /// The acting gateway of each domain.
    pub gateways: BTreeMap<DomainId, NodeId>,
    /// Who is out, and why.
    pub out: BTreeMap<NodeId, Out>,
}

/// Why a node is out of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Out {
    /// It gave no sign of life through the whole ladder; so often without a long healthy time in between.
    Evicted(u32),
    /// It said that it leaves.
    Left,
}

impl View {
    /// The view in which a federation begins: everybody is in, the first gateway of each list acts.
    pub fn first(plan: &Plan) -> Self {
        let gateways = plan.domains.iter();
        View {
            epoch: 1,
            coordinator: plan.coordinator.clone(),
            gateways: gateways
                .map(|domain| (domain.id.clone(), domain.gateway().clone()))
                .collect(),
            out: BTreeMap::new(),
        }
    }

    /// The acting gateway of a domain.
    pub fn gateway(&self, domain: &DomainId) -> Option<&NodeId> {
        self.gateways.get(domain)
    }

    /// Whether `node` is its domain's acting gateway.
    pub fn is_gateway(&self, node: &NodeId) -> bool {
        self.gateway(&node.domain()) == Some(node)
    }

    /// Whether `node` takes no part.
    pub fn is_out(&self, node: &NodeId) -> bool {
        self.out.contains_key(node)
    }

    /// Whether the view names only nodes of the plan, each in its place.
    pub fn fits(&self, plan: &Plan) -> bool {
        let acts = |domain: &crate::plan::DomainPlan| {
            let acting = self.gateways.get(&domain.id);
            acting.is_some_and(|node| domain.gateways.contains(node))
        };
        plan.node(&self.coordinator).is_some()
            && self.gateways.len() == plan.domains.len()
            && plan.domains.iter().all(acts)
            && self.out.keys().all(|node| plan.node(node).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::samples::plan;

    #[test]
    fn the_first_view_holds_everybody() {
        let plan = plan(&[2, 2]);
        let view = View::first(&plan);
        assert_eq!(view.epoch, 1);
        assert!(view.fits(&plan));
        assert!(view.is_gateway(&"d1/n0".parse().unwrap()));
        assert!(!view.is_gateway(&"d1/n1".parse().unwrap()));
        assert!(!view.is_out(&"d1/n1".parse().unwrap()));
    }

    #[test]
    fn a_view_of_strangers_does_not_fit() {
        let plan = plan(&[2, 2]);
        let mut stranger = View::first(&plan);
        stranger.out.insert("d7/n0".parse().unwrap(), Out::Left);
        assert!(!stranger.fits(&plan));
        let mut usurper = View::first(&plan);
        let node: NodeId = "d1/n1".parse().unwrap();
        usurper.gateways.insert(node.domain(), node);
        assert!(!usurper.fits(&plan), "it is not in the list of gateways");
    }
}
