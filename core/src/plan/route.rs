//! Which ways lead from one domain to another: the direct one, and those through a domain that passes on what it cannot read.
//!
//! A node whose site lets nobody in from outside dials out, and others can only wait for it. Two such nodes meet at a third one, a *relay*: both
//! keep a connection with it, a *tunnel*, and it passes the datagrams of their own connection on, end to end encrypted, from the one tunnel to the
//! other.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Plan;
use crate::ids::{DomainId, NodeId};

/// Nodes through which two others are joined, at most: more are not tried.
pub const RELAYS_MAX: usize = 8;

/// `[route]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutePlan {
    /// Domains whose gateways pass on what others have for each other.
    pub relay: Vec<DomainId>,
    /// What counts in the score of a path.
    pub weights: Weights,
    /// How often paths are measured.
    pub periods: Periods,
}

/// What counts in the score of a path; together 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Of how long it takes there and back.
    pub latency: f64,
    /// Of how much passes.
    pub bandwidth: f64,
    /// Of how much gets lost.
    pub loss: f64,
}

/// How often paths are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// How long it takes there and back.
    pub latency: Duration,
    /// How much passes.
    pub bandwidth: Duration,
    /// How much gets lost.
    pub loss: Duration,
}

/// What a topology means that says nothing of it.
impl Default for RoutePlan {
    fn default() -> Self {
        RoutePlan {
            relay: Vec::new(),
            weights: Weights {
                latency: 0.4,
                bandwidth: 0.3,
                loss: 0.3,
            },
            periods: Periods {
                latency: Duration::from_millis(500),
                bandwidth: Duration::from_secs(1),
                loss: Duration::from_millis(800),
            },
        }
    }
}

impl Plan {
    /// Whether nodes of other domains cannot dial a node.
    pub fn is_outbound_only(&self, node: &NodeId) -> bool {
        self.node(node).is_some_and(|node| node.outbound_only)
    }

    /// Whether neither of two nodes of different domains can dial the other.
    pub fn needs_relay(&self, one: &NodeId, other: &NodeId) -> bool {
        Plan::is_wan(one, other) && self.is_outbound_only(one) && self.is_outbound_only(other)
    }

    /// The nodes through which two nodes of different domains may be joined, in the order of the file.
    pub fn relays(&self, one: &NodeId, other: &NodeId) -> Vec<NodeId> {
        if !Plan::is_wan(one, other) {
            return Vec::new();
        }
        let ends = [one.domain(), other.domain()];
        let domains = self.route.relay.iter().filter(|id| !ends.contains(id));
        let domains = domains.filter_map(|id| self.domain(id));
        let nodes = domains.flat_map(|domain| &domain.gateways);
        let open = nodes.filter(|node| !self.is_outbound_only(node));
        open.take(RELAYS_MAX).cloned().collect()
    }

    /// The peers of a node in other domains.
    fn far(&self, node: &NodeId) -> impl Iterator<Item = NodeId> {
        let peers = self.peers(node).into_iter();
        peers.filter(|peer| Plan::is_wan(node, peer))
    }

    /// Pairs of nodes between which a node passes on what they have for each other, either way.
    pub fn relayed_by(&self, relay: &NodeId) -> Vec<(NodeId, NodeId)> {
        if !self.route.relay.contains(&relay.domain()) {
            return Vec::new();
        }
        let gateways = self.domains.iter().flat_map(|domain| &domain.gateways);
        let pairs = gateways.flat_map(|one| self.far(one).map(move |other| (one.clone(), other)));
        pairs
            .filter(|(one, other)| self.relays(one, other).contains(relay))
            .collect()
    }

    /// Whether the way between two nodes is chosen by what it is like: they can be joined directly, and by a relay as well.
    pub fn has_choice(&self, one: &NodeId, other: &NodeId) -> bool {
        !self.needs_relay(one, other) && !self.relays(one, other).is_empty()
    }

    /// The nodes with which a node may have a tunnel: relays of its own links, whoever it is a relay for, and peers to which there is a choice of ways,
    /// of which the direct one is probed as the others are.
    pub fn tunnels(&self, node: &NodeId) -> BTreeSet<NodeId> {
        let relays = self.far(node).flat_map(|peer| self.relays(node, &peer));
        let mut tunnels: BTreeSet<NodeId> = relays.collect();
        tunnels.extend(self.far(node).filter(|peer| self.has_choice(node, peer)));
        tunnels.extend(self.relayed_by(node).into_iter().map(|(one, _)| one));
        tunnels
    }

    /// The nodes with which a node makes a tunnel and keeps it: those that lead to it, if nobody can dial it; and all ways to peers that it dials
    /// and may choose a way to.
    pub fn standing_tunnels(&self, node: &NodeId) -> BTreeSet<NodeId> {
        let mut standing = BTreeSet::new();
        for peer in self.far(node) {
            let chooses = self.has_choice(node, &peer) && self.dials_across(node, &peer);
            if chooses {
                standing.insert(peer.clone());
            }
            if chooses || self.needs_relay(node, &peer) || self.is_outbound_only(node) {
                standing.extend(self.relays(node, &peer));
            }
        }
        standing
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::plan;
    use super::*;

    fn n(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    fn shut(plan: &mut Plan, names: &[&str]) {
        let nodes = plan.domains.iter_mut().flat_map(|domain| &mut domain.nodes);
        for node in nodes {
            node.outbound_only = names.contains(&node.id.as_str());
        }
    }

    /// Whoever can only dial out dials, whoever coordinates; and two of them meet at every open gateway of the domains that pass on.
    #[test]
    fn who_can_only_dial_out_dials_or_meets_at_a_relay() {
        let mut plan = plan(&[2, 1, 2]);
        shut(&mut plan, &["d0/n0"]);
        assert!(plan.dials_across(&n("d0/n0"), &n("d1/n0")));
        assert!(!plan.dials_across(&n("d1/n0"), &n("d0/n0")));
        assert!(!plan.needs_relay(&n("d0/n0"), &n("d1/n0")));

        shut(&mut plan, &["d0/n0", "d1/n0"]);
        assert!(plan.needs_relay(&n("d0/n0"), &n("d1/n0")));
        assert_eq!(plan.relays(&n("d0/n0"), &n("d1/n0")), []);
        plan.route.relay = vec!["d2".parse().unwrap(), "d1".parse().unwrap()];
        plan.domains[2].gateways = vec![n("d2/n1"), n("d2/n0")];
        let both = [n("d2/n1"), n("d2/n0")];
        assert_eq!(plan.relays(&n("d0/n0"), &n("d1/n0")), both);
        assert_eq!(plan.standing_tunnels(&n("d1/n0")), both.clone().into());
        assert_eq!(plan.standing_tunnels(&n("d2/n0")), [].into());
        assert_eq!(plan.relays(&n("d0/n0"), &n("d0/n1")), []);
        shut(&mut plan, &["d0/n0", "d1/n0", "d2/n1"]);
        assert_eq!(plan.relays(&n("d0/n0"), &n("d1/n0")), [n("d2/n0")]);
    }

    #[test]
    fn tunnels_are_known_to_both_of_their_ends() {
        let mut plan = plan(&[1, 1, 1, 1]);
        plan.standby = vec![n("d1/n0")];
        plan.route.relay = vec!["d2".parse().unwrap(), "d3".parse().unwrap()];
        let mut ends = 0;
        for node in plan.nodes() {
            for peer in plan.tunnels(&node.id) {
                assert!(plan.tunnels(&peer).contains(&node.id), "{} {peer}", node.id);
                ends += 1;
            }
            let standing = plan.standing_tunnels(&node.id);
            assert!(standing.is_subset(&plan.tunnels(&node.id)));
        }
        // All with all: each of d0 and d1 with the relays d2 and d3, these with each other, and d0 with d1, to which there is a choice of ways.
        assert_eq!(ends, 12);
        let pairs = plan.relayed_by(&n("d2/n0"));
        assert!(pairs.contains(&(n("d0/n0"), n("d3/n0"))));
        assert!(pairs.contains(&(n("d3/n0"), n("d0/n0"))));
        assert!(
            !pairs
                .iter()
                .any(|(one, other)| [one, other].contains(&&n("d2/n0")))
        );
    }
}
