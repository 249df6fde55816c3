//! Who may say what: each control message has one kind of sender and one kind of receiver.
//!
//! The sender is the TLS peer of the connection that the message came on, never a name inside it; who is coordinator and gateway, the
//! receiver's view says. A newer view comes from the coordinator, from who has just become it, or through a gateway of the receiver's domain
//! or a successor of it.
//!
//! The policy of the receiver's site must let the sender do what the message is about, too: see [`crate::policy`].

mod granted;

use std::fmt;

use crate::ids::NodeId;
use crate::plan::Plan;
use crate::policy::{By, Verdict};
use crate::view::View;
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
    /// Its view of who takes part.
    View,
    /// Its copy of the record.
    Record,
    /// Its certificates, and whom it trusts.
    Credentials,
}

/// A message from somebody who has no say in the matter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// The TLS peer.
    pub from: NodeId,
    /// This node.
    pub to: NodeId,
    /// The message's kind.
    pub kind: &'static str,
    /// Who may.
    pub expected: &'static str,
    /// The policy that denies it, if one does; or that would, by the role that the file gives the sender.
    pub denial: Option<Box<Verdict>>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal {
            from,
            to,
            kind,
            expected,
            denial,
        } = self;
        write!(f, "{from} sent {kind} to {to}, which ")?;
        match denial.as_ref().filter(|denial| denial.by == By::NoRule) {
            Some(denial) => write!(f, "is not granted: {denial}"),
            None => write!(f, "only {expected} may"),
        }
    }
}

/// Decides which part of `to` a message from `from` is for.
///
/// # Errors
/// The sender may not send this to this node.
pub fn authorize(
    plan: &Plan,
    view: &View,
    to: &NodeId,
    from: &NodeId,
    control: &Control,
) -> Result<Part, Refusal> {
    let known = plan.node(from).is_some();
    let is_coordinator = *from == view.coordinator;
    let same_domain = known && from.domain() == to.domain();
    let (part, kind, expected, allowed) = match control {
        Control::Endpoint(_) => (
            Part::Fabric,
            "a fabric endpoint",
            "a node of its domain",
            same_domain,
        ),
        Control::Muster(muster) => (
            Part::Fabric,
            "an invitation to train together",
            "the first of some nodes of its domain",
            same_domain && muster.ranks.first() == Some(from),
        ),
        Control::View(told) => {
            let successor = same_domain && plan.may_be_gateway(from);
            let concerned = same_domain || plan.may_be_gateway(to);
            let is_coordinator =
                is_coordinator || (told.coordinator == *from && plan.may_coordinate(from));
            (
                Part::View,
                "a view",
                "the coordinator to gateways, and gateways to their domain",
                successor || (is_coordinator && concerned),
            )
        }
        Control::Resync
        | Control::Open(_)
        | Control::Weigh { .. }
        | Control::Answer { .. }
        | Control::Commit(_)
        | Control::Abort { .. }
        | Control::Amend(_)
        | Control::Finish { .. } => {
            let allowed = is_coordinator && view.is_gateway(to);
            (
                Part::Gateway,
                "a coordinator's message",
                "the coordinator to a gateway",
                allowed,
            )
        }
        Control::DomainJoin(_)
        | Control::Reported { .. }
        | Control::Stale { .. }
        | Control::TrainingFailed { .. }
        | Control::Unreachable { .. }
        | Control::Contribute(_)
        | Control::Standing { .. }
        | Control::MemberDiverged(..)
        | Control::MemberVitals(_)
        | Control::MemberAgreed { .. }
        | Control::Adopted { .. } => {
            let allowed = known && *to == view.coordinator && view.is_gateway(from);
            (
                Part::Coordinator,
                "a gateway's message",
                "a gateway to the coordinator",
                allowed,
            )
        }
        Control::Append(_) => (
            Part::Record,
            "leaves of the record",
            "the coordinator to a gateway",
            is_coordinator && view.is_gateway(to),
        ),
        Control::Recorded(_) => (
            Part::Record,
            "a word about its copy of the record",
            "a gateway to the coordinator",
            known && *to == view.coordinator && view.is_gateway(from),
        ),
        Control::Rejoin
        | Control::Train(_)
        | Control::Adopt(_)
        | Control::Drop { .. }
        | Control::Consider(_)
        | Control::Leave { .. } => {
            let allowed = same_domain && view.is_gateway(from);
            (
                Part::Member,
                "an order",
                "the gateway of its domain",
                allowed,
            )
        }
        Control::Measure(_) | Control::Fold(_) => {
            let allowed = same_domain && view.is_gateway(from);
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
        | Control::Departing
        | Control::Diverged(_)
        | Control::Vitals(_)
        | Control::Agreed { .. }
        | Control::Holds { .. } => {
            let allowed = same_domain && view.is_gateway(to);
            (
                Part::Gateway,
                "a member's message",
                "a member to its own gateway",
                allowed,
            )
        }
        // It proves itself, whoever passes it on.
        Control::Revoked(_) => (
            Part::Credentials,
            "a list of revoked certificates",
            "a node of the topology",
            known,
        ),
        // The link handles these itself.
        Control::Fetch { .. }
        | Control::Offer { .. }
        | Control::Missing { .. }
        | Control::Renew => (
            Part::Fabric,
            "a link's message",
            "nobody through a node",
            false,
        ),
    };
    // What roles imply has been looked at.
    let denial = match allowed && plan.policy.rules.is_empty() {
        true => None,
        false => granted::denial(plan, to, from, control),
    };
    if allowed && denial.is_none() {
        Ok(part)
    } else {
        Err(Refusal {
            from: from.clone(),
            to: to.clone(),
            kind,
            expected,
            denial,
        })
    }
}

pub use granted::{may_be_shown, only_granted};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::samples::plan;
    use crate::wire::samples::{controls, name};

    /// Who a node is: coordinator and gateway, gateway, member, each of this or of the other domain; or nobody.
    const NODES: [&str; 7] = [
        "d0/n0", "d0/n1", "d0/n2", "d1/n0", "d1/n1", "d1/n2", "d1/n9",
    ];

    /// Who may say a kind of message to whom, sender > receiver, and which part hears it.
    fn allowed(kind: &str) -> (Part, Vec<(&'static str, &'static str)>) {
        let both = |here: [&'static str; 3], there: [&'static str; 3], to_gateway: bool| {
            let mut pairs = Vec::new();
            for domain in [here, there] {
                for node in domain {
                    let pair = (domain[0], node);
                    pairs.push(if to_gateway { (pair.1, pair.0) } else { pair });
                }
            }
            pairs
        };
        let here = ["d0/n0", "d0/n1", "d0/n2"];
        let there = ["d1/n0", "d1/n1", "d1/n2"];
        match kind {
            "Fetch" | "Offer" | "Missing" | "Renew" => (Part::Fabric, vec![]),
            "Revoked" => {
                let pairs = NODES[..6]
                    .iter()
                    .flat_map(|from| NODES[..6].iter().map(|to| (*from, *to)));
                (Part::Credentials, pairs.collect())
            }
            "Muster" => {
                // The sample's first rank is hq/a, who is nobody here.
                (Part::Fabric, vec![])
            }
            "Endpoint" => {
                let pairs = [here, there].into_iter().flat_map(|domain| {
                    domain
                        .into_iter()
                        .flat_map(move |from| domain.map(|to| (from, to)))
                });
                (Part::Fabric, pairs.collect())
            }
            "Resync" | "Open" | "Weigh" | "Answer" | "Commit" | "Abort" | "Amend" | "Finish" => {
                (Part::Gateway, vec![("d0/n0", "d0/n0"), ("d0/n0", "d1/n0")])
            }
            "Append" => (Part::Record, vec![("d0/n0", "d0/n0"), ("d0/n0", "d1/n0")]),
            "Recorded" => (Part::Record, vec![("d0/n0", "d0/n0"), ("d1/n0", "d0/n0")]),
            "DomainJoin" | "Reported" | "Stale" | "TrainingFailed" | "Unreachable"
            | "Contribute" | "Standing" | "MemberDiverged" | "MemberVitals" | "MemberAgreed"
            | "Adopted" => (
                Part::Coordinator,
                vec![("d0/n0", "d0/n0"), ("d1/n0", "d0/n0")],
            ),
            "View" => {
                let mut pairs = both(here, there, false);
                pairs.push(("d0/n0", "d1/n0"));
                (Part::View, pairs)
            }
            "Rejoin" | "Train" | "Adopt" | "Drop" | "Consider" | "Leave" => {
                (Part::Member, both(here, there, false))
            }
            "Measure" | "Fold" => (Part::Rank, both(here, there, false)),
            "Join" | "Exported" | "Failed" | "Measured" | "Folded" | "Departing" | "Diverged"
            | "Vitals" | "Agreed" | "Holds" => (Part::Gateway, both(here, there, true)),
            other => panic!("who may say {other}?"),
        }
    }

    #[test]
    fn each_message_has_its_senders_and_its_receivers_and_nobody_else() {
        let plan = plan(&[3, 3]);
        let view = View::first(&plan);
        for control in controls() {
            let (part, pairs) = allowed(name(&control));
            let pairs: BTreeSet<(&str, &str)> = pairs.into_iter().collect();
            for from in NODES {
                // The last of them is in no plan, and so receives nothing.
                for to in &NODES[..6] {
                    let (from_id, to_id) = (from.parse().unwrap(), to.parse().unwrap());
                    let found = authorize(&plan, &view, &to_id, &from_id, &control);
                    let kind = name(&control);
                    if pairs.contains(&(from, to)) {
                        assert_eq!(found, Ok(part), "{kind}: {from} > {to}");
                    } else {
                        let refusal = found.expect_err(kind);
                        assert_eq!((refusal.from, refusal.to), (from_id, to_id));
                    }
                }
            }
        }
    }

    /// A standby makes itself coordinator by the view that it tells; nobody else can, and it can make nobody else.
    #[test]
    fn a_view_also_comes_from_whoever_it_makes_coordinator_if_it_is_a_standby() {
        let mut plan = plan(&[3, 3, 3]);
        let n = |text: &str| text.parse::<NodeId>().unwrap();
        plan.standby = vec![n("d1/n0")];
        let view = View::first(&plan);
        let told = |by: &str| Control::View(view.promoting(&n(by)));
        let says = |from: &str, to: &str, control: &Control| {
            authorize(&plan, &view, &n(to), &n(from), control).is_ok()
        };
        assert!(says("d1/n0", "d0/n0", &told("d1/n0")));
        assert!(says("d1/n0", "d2/n0", &told("d1/n0")));
        assert!(
            !says("d1/n0", "d2/n1", &told("d1/n0")),
            "not a gateway's business"
        );
        assert!(!says("d2/n0", "d0/n0", &told("d2/n0")), "it is no standby");
        assert!(!says("d1/n0", "d2/n0", &told("d2/n0")), "for itself only");
    }

    #[test]
    fn a_refusal_names_both_sides_and_who_may() {
        let plan = plan(&[3, 3]);
        let (to, from) = ("d0/n0".parse().unwrap(), "d1/n1".parse().unwrap());
        let refusal =
            authorize(&plan, &View::first(&plan), &to, &from, &Control::Resync).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "d1/n1 sent a coordinator's message to d0/n0, which only the coordinator to a gateway may"
        );
    }
}
