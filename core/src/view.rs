//! A numbered membership view: who coordinates, who holds each domain's WAN links, who is out.
//!
//! Views are the coordinator's alone: each is written down before it is told, and each node only ever goes to a later one (VIEW-1). A view is
//! small and complete, so a node that missed some needs only the newest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{DomainId, Epoch, NodeId};
use crate::plan::{DomainPlan, Plan};
use crate::policy::may_speak;

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
    /// The view in which a federation begins: everybody is in, the first gateway of each list acts that policies let.
    pub fn first(plan: &Plan) -> Self {
        let gateways = plan.domains.iter();
        let acts = |domain: &DomainPlan| {
            let mut list = domain.gateways.iter();
            let willing = |node: &&NodeId| may_speak(plan, &plan.coordinator, node).is_none();
            list.find(willing).unwrap_or(domain.gateway()).clone()
        };
        View {
            epoch: 1,
            coordinator: plan.coordinator.clone(),
            gateways: gateways
                .map(|domain| (domain.id.clone(), acts(domain)))
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

    /// The view in which `node` coordinates from now on. It also acts for its domain, as every coordinator does.
    #[must_use]
    pub fn promoting(&self, node: &NodeId) -> Self {
        let mut next = self.clone();
        next.epoch += 1;
        next.coordinator = node.clone();
        next.gateways.insert(node.domain(), node.clone());
        next.out.remove(node);
        next
    }

    /// The next view, in which the federation goes on by an amended plan: who acts goes on as far as it may, who is out stays out.
    #[must_use]
    pub fn amended(&self, plan: &Plan) -> Self {
        let first = View::first(plan);
        let coordinator = match plan.may_coordinate(&self.coordinator) {
            true => self.coordinator.clone(),
            false => first.coordinator.clone(),
        };
        let acting = plan.domains.iter().map(|domain| {
            let acts = self.gateways.get(&domain.id);
            let acts = acts
                .filter(|node| domain.gateways.contains(node))
                .into_iter();
            let mut may_act = acts.chain(&domain.gateways);
            let speaks = may_act.find(|node| may_speak(plan, &coordinator, node).is_none());
            (
                domain.id.clone(),
                speaks.unwrap_or(domain.gateway()).clone(),
            )
        });
        let mut gateways: BTreeMap<DomainId, NodeId> = acting.collect();
        gateways.insert(coordinator.domain(), coordinator.clone());
        let mut out = self.out.clone();
        out.retain(|node, _| plan.node(node).is_some() && *node != coordinator);
        View {
            epoch: self.epoch + 1,
            coordinator,
            gateways,
            out,
        }
    }

    /// Whether the view names only nodes of the plan, each in its place.
    pub fn fits(&self, plan: &Plan) -> bool {
        let acts = |domain: &crate::plan::DomainPlan| {
            let acting = self.gateways.get(&domain.id);
            acting.is_some_and(|node| domain.gateways.contains(node))
        };
        plan.may_coordinate(&self.coordinator)
            && self.gateways.len() == plan.domains.len()
            && plan.domains.iter().all(acts)
            && self.out.keys().all(|node| plan.node(node).is_some())
    }
}

/// The view by which one node goes.
#[derive(Debug, Clone)]
pub struct Seen {
    me: NodeId,
    view: View,
}

/// What a new view means for the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// It acts as its domain's gateway from now on.
    pub rises: bool,
    /// It did, and does not any more.
    pub falls: bool,
    /// Its domain has another gateway.
    pub gateway_moved: bool,
    /// The federation has another coordinator.
    pub coordinator_moved: bool,
}

impl Seen {
    /// A node that knows the first view only.
    pub fn new(plan: &Plan, me: NodeId) -> Self {
        Seen {
            view: View::first(plan),
            me,
        }
    }

    /// The view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The gateway of the node's own domain.
    pub fn gateway(&self) -> &NodeId {
        let gateway = self.view.gateway(&self.me.domain());
        gateway.expect("a view that fits the plan names one for each domain")
    }

    /// Whether that is the node itself.
    pub fn is_gateway(&self) -> bool {
        *self.gateway() == self.me
    }

    /// Goes to a later view that fits the plan; an earlier one is an echo.
    pub fn adopt(&mut self, plan: &Plan, view: View) -> Option<Turn> {
        if view.epoch <= self.view.epoch || !view.fits(plan) {
            return None;
        }
        let (acted, gateway) = (self.is_gateway(), self.gateway().clone());
        let coordinator_moved = view.coordinator != self.view.coordinator;
        self.view = view;
        Some(Turn {
            rises: !acted && self.is_gateway(),
            falls: acted && !self.is_gateway(),
            gateway_moved: gateway != *self.gateway(),
            coordinator_moved,
        })
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

    /// VIEW-1.
    #[test]
    fn a_node_only_ever_goes_to_a_later_view() {
        let mut plan = plan(&[2, 2]);
        let (a, b): (NodeId, NodeId) = ("d1/n0".parse().unwrap(), "d1/n1".parse().unwrap());
        plan.domains[1].gateways = vec![a.clone(), b.clone()];
        let mut seen = Seen::new(&plan, b.clone());
        let mut next = View::first(&plan);
        assert_eq!(seen.adopt(&plan, next.clone()), None, "it knows that one");
        next.epoch = 4;
        next.gateways.insert(b.domain(), b);
        let turn = seen.adopt(&plan, next.clone()).expect("it is later");
        assert_eq!(
            (turn.rises, turn.falls, turn.gateway_moved),
            (true, false, true)
        );
        next.epoch = 3;
        assert_eq!(seen.adopt(&plan, next.clone()), None);
        next.epoch = 5;
        next.gateways.insert(a.domain(), a);
        let turn = seen.adopt(&plan, next).expect("it is later");
        assert_eq!(
            (turn.rises, turn.falls, turn.gateway_moved),
            (false, true, true)
        );
    }

    #[test]
    fn who_is_promoted_coordinates_and_acts_for_its_domain() {
        let mut plan = plan(&[2, 2]);
        let (gate, standby): (NodeId, NodeId) =
            ("d1/n0".parse().unwrap(), "d1/n1".parse().unwrap());
        plan.domains[1].gateways = vec![gate.clone(), standby.clone()];
        let first = View::first(&plan);
        assert!(!first.promoting(&standby).fits(&plan), "it is no standby");
        plan.standby = vec![standby.clone()];
        let next = first.promoting(&standby);
        assert!(next.fits(&plan));
        assert_eq!((next.epoch, &next.coordinator), (2, &standby));
        assert!(next.is_gateway(&standby) && !next.is_gateway(&gate));
        let mut seen = Seen::new(&plan, gate);
        let turn = seen.adopt(&plan, next).expect("it is later");
        assert!(turn.coordinator_moved && turn.falls);
    }

    #[test]
    fn an_amended_plan_keeps_who_acts_and_who_is_out_as_far_as_they_are_in_it() {
        let n = |text: &str| text.parse::<NodeId>().unwrap();
        let mut old = plan(&[2, 2, 2]);
        old.standby = vec![n("d1/n1")];
        old.domains[1].gateways = vec![n("d1/n0"), n("d1/n1")];
        let mut view = View::first(&old).promoting(&n("d1/n1"));
        view.out = [(n("d1/n0"), Out::Left), (n("d2/n1"), Out::Evicted(1))].into();
        let mut wider = plan(&[2, 3, 2, 1]);
        wider.standby.clone_from(&old.standby);
        wider.domains[1]
            .gateways
            .clone_from(&old.domains[1].gateways);
        let next = view.amended(&wider);
        assert!(next.fits(&wider) && !next.fits(&old));
        assert_eq!((next.epoch, &next.coordinator), (3, &n("d1/n1")));
        assert_eq!(next.gateway(&n("d3/n0").domain()), Some(&n("d3/n0")));
        assert_eq!(next.out, view.out);
        // The third domain and the promoted node's right are gone.
        let narrower = plan(&[2, 2]);
        let next = view.amended(&narrower);
        assert!(next.fits(&narrower));
        assert_eq!((next.epoch, &next.coordinator), (3, &n("d0/n0")));
        assert!(next.is_gateway(&n("d1/n0")) && next.is_out(&n("d1/n0")));
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
