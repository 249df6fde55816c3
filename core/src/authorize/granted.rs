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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorize::authorize;
    use crate::plan::samples::plan;
    use crate::policy::Rule;
    use crate::view::View;
    use crate::wire::samples::{controls, name};

    fn n(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    fn rule(site: &str, identity: &str, actions: &[Action]) -> Rule {
        Rule {
            site: Some(site.parse().unwrap()),
            identity: identity.parse().unwrap(),
            actions: actions.iter().copied().collect(),
            slices: Default::default(),
        }
    }

    /// Three domains of three, in which `d0` grants `d1/n1` no training, and `d1` the coordinator nothing about it.
    fn ruled() -> Plan {
        let mut plan = plan(&[3, 3]);
        plan.policy.rules = vec![
            rule("d0", "d0/*", &Action::ALL),
            rule("d0", "d1/n0", &Action::ALL),
            rule("d0", "d1/n2", &[Action::Train]),
            rule("d1", "d1/n0", &Action::ALL),
            rule("d1", "d1/n2", &Action::ALL),
            rule("d1", "d0/n0", &[Action::Coordinate]),
        ];
        plan
    }

    /// Whatever kind of message it is: a rule that grants nothing of it has it refused, and one that grants everything changes nothing.
    #[test]
    fn no_message_that_asks_for_something_gets_past_a_site_that_grants_nothing() {
        let plain = plan(&[3, 3]);
        let view = View::first(&plain);
        let with = |rules: Vec<Rule>| {
            let mut plan = plain.clone();
            plan.policy.rules = rules;
            plan
        };
        let all = with(vec![
            rule("d0", "*", &Action::ALL),
            rule("d1", "*", &Action::ALL),
        ]);
        let nothing = with(vec![
            rule("d0", "d7/*", &[Action::Join]),
            rule("d1", "d7/*", &[Action::Join]),
        ]);
        let nodes: Vec<NodeId> = plain.nodes().map(|node| node.id.clone()).collect();
        // They follow from an order, or prove themselves.
        let free = [
            "Failed",
            "Measured",
            "Folded",
            "Agreed",
            "Departing",
            "Diverged",
            "Vitals",
            "Holds",
            "Revoked",
        ];
        for control in controls() {
            for (from, to) in nodes
                .iter()
                .flat_map(|from| nodes.iter().map(move |to| (from, to)))
            {
                // What it is about is the sender's own.
                let control = match control.clone() {
                    Control::Reported {
                        round,
                        epoch,
                        trained_for,
                        mut report,
                        effort,
                    } => {
                        report.node = from.clone();
                        Control::Reported {
                            round,
                            epoch,
                            trained_for,
                            report,
                            effort,
                        }
                    }
                    Control::Contribute(mut sum) => {
                        sum.members = vec![from.clone()];
                        Control::Contribute(sum)
                    }
                    Control::View(told) => Control::View(View {
                        coordinator: view.coordinator.clone(),
                        ..told
                    }),
                    other => other,
                };
                let asked = |plan: &Plan| authorize(plan, &view, to, from, &control);
                let kind = name(&control);
                assert_eq!(
                    asked(&all).is_ok(),
                    asked(&plain).is_ok(),
                    "{kind}: {from} > {to}"
                );
                if asked(&plain).is_ok() {
                    assert_eq!(
                        asked(&nothing).is_ok(),
                        free.contains(&kind),
                        "{kind}: {from} > {to}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_refusal_by_policy_says_which_and_is_none_by_role() {
        let plan = ruled();
        let view = View::first(&plan);
        let told = authorize(&plan, &view, &n("d1/n1"), &n("d1/n0"), &Control::Rejoin);
        assert!(told.is_ok(), "{told:?}");
        let exported = controls()
            .into_iter()
            .find(|control| name(control) == "Exported")
            .unwrap();
        let refusal = authorize(&plan, &view, &n("d1/n0"), &n("d1/n1"), &exported).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "d1/n1 sent a member's message to d1/n0, which is not granted: d1/n1 may not train at d1: d1 has rules of its own, and none of them grants it"
        );
        // A member of another domain has no role in which it would.
        let refusal =
            authorize(&plan, &view, &n("d0/n0"), &n("d1/n1"), &Control::Resync).unwrap_err();
        assert_eq!(
            refusal.denial.map(|denial| denial.by),
            Some(crate::policy::By::Role)
        );
    }

    /// A sum with somebody in it whom the coordinator's site does not let train is not taken, whoever hands it in.
    #[test]
    fn a_sum_is_refused_for_one_member_that_may_not_train() {
        let plan = ruled();
        let view = View::first(&plan);
        let sum = controls().into_iter().find_map(|control| match control {
            Control::Contribute(sum) => Some(sum),
            _ => None,
        });
        let sum = sum.unwrap();
        let of = |members: &[&str]| {
            let mut sum = sum.clone();
            sum.members = members.iter().map(|member| n(member)).collect();
            let told = authorize(
                &plan,
                &view,
                &n("d0/n0"),
                &n("d1/n0"),
                &Control::Contribute(sum),
            );
            told.map_err(|refusal| refusal.denial.unwrap().identity)
        };
        assert!(of(&["d1/n0", "d1/n2"]).is_ok());
        assert_eq!(of(&["d1/n0", "d1/n1", "d1/n2"]), Err(n("d1/n1")));
    }

    /// A coordinator that asks for them all the same gets only those whom the gateway's site grants it.
    #[test]
    fn a_gateway_asks_only_those_that_its_own_site_lets_take_part() {
        let plan = ruled();
        let mut open = controls()
            .into_iter()
            .find_map(|control| match control {
                Control::Open(open) => Some(open),
                _ => None,
            })
            .unwrap();
        open.cohort = ["d1/n0", "d1/n1", "d1/n2"].map(n).into();
        let denied = only_granted(&plan, &n("d1/n0"), &n("d0/n0"), &mut open);
        assert_eq!(open.cohort, ["d1/n0", "d1/n2"].map(n));
        assert_eq!(denied.len(), 1);
        assert!(
            denied[0]
                .to_string()
                .starts_with("d1/n1 may not train at d1")
        );
        open.cohort = ["d1/n0", "d1/n2"].map(n).into();
        let denied = only_granted(&plan, &n("d1/n0"), &n("d0/n9"), &mut open);
        assert_eq!(
            (open.cohort.len(), denied.len()),
            (0, 2),
            "nobody may be led by a stranger"
        );
    }
}
