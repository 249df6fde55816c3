//! Every role, action and slice, tried live at every site: what comes of it is what `policy explain` says.
//!
//! Whoever tries says it straight to its link, so no check of its own keeps it from trying. A refusal is seen as the event of the node that
//! refuses, and must be, word for word, the verdict of the one function; where nothing is refused, that function must allow it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tombolo::sim::SimWorld;
use tombolo_actors::{link, node};
use tombolo_core::aggregate::Report;
use tombolo_core::event::{Event, Vitals};
use tombolo_core::ids::NodeId;
use tombolo_core::pace::Effort;
use tombolo_core::plan::Plan;
use tombolo_core::policy::{self, Action, Verdict};
use tombolo_core::tensor::Hash;
use tombolo_core::view::View;
use tombolo_core::wire::{Control, Exported, Object, Recorded, RegionRef};

use crate::stand::{Site, n, plan};

/// hq/gate coordinates, lab/gate is a standby, plant/b a successor; plant/c and lab/e are in slices of their own.
const COAST: &str = r#"
    [federation]
    name = "coast"
    rounds = 99999
    standby = ["lab/gate"]
    [round]
    quorum = { nodes = 1, domains = 1 }
    deadline = "1h"
    grace = "50min"
    [aggregator]
    kind = "fedavg"
    [[slice]]
    name = "blue"
    [[slice]]
    name = "red"
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    gateways = ["gate", "b"]
    [[domain.node]]
    name = "gate"
    [[domain.node]]
    name = "b"
    [[domain.node]]
    name = "c"
    slice = "blue"
    [[domain]]
    name = "lab"
    [[domain.node]]
    name = "gate"
    [[domain.node]]
    name = "e"
    slice = "red"
"#;

/// Whatever is needed for hq to coordinate itself.
const SELF: &str = "[[policy]]\nsite = \"hq\"\nidentity = \"hq/*\"\nactions = [\"join\", \"train\", \"aggregate\", \"coordinate\", \"read-model\", \"read-metrics\"]\n";

/// Grants these actions to everybody at every site.
fn everybody(actions: &[Action]) -> String {
    let words: Vec<String> = actions
        .iter()
        .map(|action| format!("{:?}", action.word()))
        .collect();
    format!(
        "[[policy]]\nidentity = \"*\"\nactions = [{}]\n",
        words.join(", ")
    )
}

fn but(left: Action) -> Vec<Action> {
    Action::ALL
        .into_iter()
        .filter(|action| *action != left)
        .collect()
}

/// What was tried, and what came of it.
#[derive(Default)]
struct Tried {
    tries: usize,
    refused: BTreeMap<Action, BTreeSet<Verdict2>>,
}

/// Who was refused where.
type Verdict2 = (NodeId, NodeId);

impl Tried {
    /// Compares what a node has refused with what the policy says of it.
    #[track_caller]
    fn compare(
        &mut self,
        site: &Site,
        plan: &Plan,
        at: &NodeId,
        who: &NodeId,
        action: Action,
        of: &NodeId,
    ) {
        let said = policy::of(plan, &at.domain(), who, action, of);
        let found = site.denied(at, who, action);
        let found: Vec<&Verdict> = found
            .iter()
            .filter(|verdict| verdict.slice == said.slice)
            .collect();
        self.tries += 1;
        match said.allowed {
            true => assert_eq!(found, [&said; 0], "{at} has refused"),
            false => {
                assert_eq!(found.first(), Some(&&said), "{at} has not refused");
                self.refused
                    .entry(action)
                    .or_default()
                    .insert((at.clone(), who.clone()));
            }
        }
    }
}

fn vitals(node: &NodeId) -> Vitals {
    Vitals {
        node: node.clone(),
        memory: 1,
        queued: 0,
        unacknowledged: 0,
        unacknowledged_bytes: 0,
        certificate_s: 1,
    }
}

fn report(node: &NodeId) -> Control {
    Control::Reported {
        round: 7,
        epoch: 1,
        trained_for: 7,
        report: Report {
            node: node.clone(),
            samples: 1,
            loss: 1.0,
            steps: 1,
            learning_rate: 1.0,
            norm: 1.0,
            finite: true,
        },
        effort: Effort::default(),
    }
}

fn exported(node: &NodeId) -> Control {
    Control::Exported(Exported {
        round: 7,
        epoch: 1,
        region: RegionRef {
            owner: node.clone(),
            key: 1,
            len: 1,
        },
        samples: 1,
        loss: 1.0,
        steps: 1,
        learning_rate: 1.0,
        effort: Effort::default(),
    })
}

/// Tries everything in a federation of these rules.
fn attempt(rules: &str) -> Tried {
    let plan = plan(&format!("{COAST}\n{rules}"));
    let world = SimWorld::new(1);
    // Nobody ends its training: what is tried meets the first round.
    world.set_training(Duration::from_secs(3000), 0.0);
    let done = world.run(move |world| async move {
        let site = Site::start(world, &plan, &[]);
        site.world.sleep(Duration::from_secs(20)).await;
        let mut tried = Tried::default();
        let linked = connections(&site, &plan, &mut tried);
        orders(&site, &plan, &linked, &mut tried).await;
        models(&site, &plan, &linked, &mut tried).await;
        metrics(&site, &plan, &mut tried).await;
        tried
    });
    done.unwrap()
}

/// Every pair that the topology pairs: it has a link exactly if both sites let the other in. The pairs that have one.
fn connections(site: &Site, plan: &Plan, tried: &mut Tried) -> Vec<(NodeId, NodeId)> {
    let mut linked = Vec::new();
    for node in plan.nodes().map(|node| &node.id) {
        let peers = plan.peers(node);
        for peer in &peers {
            let denied = policy::reaches(plan, node, peer);
            assert_eq!(
                site.is_linked(node, peer),
                denied.is_none(),
                "{node} {peer}: {denied:?}"
            );
            tried.compare(site, plan, node, peer, Action::Join, node);
            match &denied {
                None => linked.push((node.clone(), peer.clone())),
                // By name on both sides.
                Some(verdict) => {
                    let why = verdict.to_string();
                    let refused = |event: &Event| {
                        matches!(event, Event::LinkRefused { node: of, peer: with, reason }
                        if of == node && with == peer && reason.contains("may not join") && reason.contains(&why[..why.find(':').unwrap_or(why.len())]))
                    };
                    let other = policy::reaches(plan, peer, node).unwrap();
                    let either = site.events().iter().any(refused) || *other != **verdict;
                    assert!(either, "{node} {peer}: {verdict}");
                }
            }
        }
        // Who has no link by the topology has no role in which it would join.
        for other in plan.nodes().map(|node| &node.id) {
            let paired = peers.iter().any(|peer| peer.domain() == other.domain());
            if other.domain() != node.domain() && !paired {
                let said = policy::of(plan, &other.domain(), node, Action::Join, other);
                assert!(!said.allowed, "{said}");
            }
        }
    }
    linked
}

/// Whoever has a link says what only a coordinator, a gateway or a member may say.
async fn orders(site: &Site, plan: &Plan, linked: &[(NodeId, NodeId)], tried: &mut Tried) {
    for (to, from) in linked {
        site.say(from, to, Control::Resync);
        if from.domain() == to.domain() {
            site.say(from, to, Control::Rejoin);
            site.say(from, to, exported(from));
        } else {
            site.say(from, to, Control::Recorded(Recorded::default()));
            for node in plan.domain(&from.domain()).unwrap().nodes.iter() {
                site.say(from, to, report(&node.id));
            }
        }
    }
    site.settle().await;
    for (at, from) in linked {
        tried.compare(site, plan, at, from, Action::Coordinate, at);
        let domain = at.domain();
        if from.domain() == domain {
            tried.compare(site, plan, at, from, Action::Aggregate, at);
            tried.compare(site, plan, at, from, Action::Train, from);
            continue;
        }
        tried.compare(site, plan, at, from, Action::Aggregate, from);
        for node in plan.domain(&from.domain()).unwrap().nodes.iter() {
            let speaks = policy::of(plan, &domain, from, Action::Aggregate, &node.id);
            match speaks.allowed {
                true => tried.compare(site, plan, at, &node.id, Action::Train, &node.id),
                // It is not even looked at whose update that is.
                false => tried.compare(site, plan, at, from, Action::Aggregate, &node.id),
            }
        }
    }
}

/// Whoever has a link asks for a model, and for a contribution.
async fn models(site: &Site, plan: &Plan, linked: &[(NodeId, NodeId)], tried: &mut Tried) {
    for (at, from) in linked {
        for (object, action) in [
            (Object::Outline(Hash([7; 32])), Action::ReadModel),
            (Object::Contribution(7, 0), Action::Coordinate),
        ] {
            let link = &site.crews[from].links[at];
            let answer = link.ask(|reply| link::Message::Fetch(object, reply)).await;
            // Neither is there.
            let why = answer.unwrap().map(drop).unwrap_err().to_string();
            let said = policy::of(plan, &at.domain(), from, action, at);
            let expected = match said.allowed {
                true => format!("is not on the shelf of {at}"),
                false => said.to_string(),
            };
            assert!(
                why.contains(&expected),
                "{from} asks {at}: {why}, expected {expected}"
            );
            tried.compare(site, plan, at, from, action, at);
        }
    }
}

/// Every node says how it does: its gateway hears it, and the coordinator, if its site lets them.
async fn metrics(site: &Site, plan: &Plan, tried: &mut Tried) {
    let view = View::first(plan);
    let told = |node: &NodeId| {
        let told = |event: &Event| matches!(event, Event::NodeMeasured(of) if of.node == *node);
        site.events().iter().any(told)
    };
    for (node, crew) in &site.crews {
        crew.node.post(node::Message::Vitals(vitals(node))).unwrap();
    }
    site.settle().await;
    for node in site.crews.keys() {
        let home = node.domain();
        let gateway = view.gateway(&home).unwrap();
        let heard = policy::of(plan, &home, gateway, Action::ReadMetrics, node);
        let passed = policy::of(plan, &home, &view.coordinator, Action::ReadMetrics, node);
        tried.compare(site, plan, node, gateway, Action::ReadMetrics, node);
        let reached = |a: &NodeId, b: &NodeId| a == b || site.is_linked(a, b);
        let reaches = reached(node, gateway) && reached(gateway, &view.coordinator);
        if heard.allowed && reached(node, gateway) {
            tried.compare(
                site,
                plan,
                gateway,
                &view.coordinator,
                Action::ReadMetrics,
                node,
            );
        }
        let speaks = policy::of(
            plan,
            &view.coordinator.domain(),
            gateway,
            Action::Aggregate,
            gateway,
        );
        let expected = heard.allowed && passed.allowed && reaches && speaks.allowed;
        assert_eq!(told(node), expected, "{node}: {heard}; {passed}");
    }
}

#[test]
fn without_rules_everybody_may_do_what_its_role_implies() {
    let tried = attempt("");
    assert!(tried.tries > 140, "{}", tried.tries);
    // Of those with a link there are always some who have no role for it.
    for action in [Action::Coordinate, Action::Aggregate] {
        assert!(tried.refused.contains_key(&action), "{action}");
    }
}

#[test]
fn what_is_granted_to_nobody_is_refused_to_everybody_everywhere() {
    for action in Action::ALL {
        let tried = attempt(&format!("{SELF}{}", everybody(&but(action))));
        let refused = tried.refused.get(&action).map_or(0, BTreeSet::len);
        assert!(refused > 3, "{action}: {refused}");
    }
}

/// Of each action, only what concerns one slice.
#[test]
fn what_is_granted_in_a_slice_is_granted_there_and_nowhere_else() {
    for action in Action::ALL {
        let slice = format!(
            "[[policy]]\nidentity = \"*\"\nactions = [{:?}]\nslices = [\"blue\"]\n",
            action.word()
        );
        let tried = attempt(&format!("{SELF}{}{slice}", everybody(&but(action))));
        assert!(tried.refused.contains_key(&action), "{action}");
    }
}

/// Each site goes by its own rules: plant grants hq nothing but to be seen, lab nothing to plant.
#[test]
fn each_site_goes_by_its_own_rules() {
    let rules = format!(
        "{SELF}[[policy]]\nsite = \"hq\"\nidentity = \"*\"\nactions = [\"join\", \"aggregate\", \"train\"]\nslices = [\"red\"]\n\
         [[policy]]\nsite = \"hq\"\nidentity = \"lab/gate\"\nactions = [\"join\", \"aggregate\", \"read-model\"]\n\
         [[policy]]\nsite = \"plant\"\nidentity = \"plant/*\"\nactions = [\"join\", \"train\", \"read-model\"]\n\
         [[policy]]\nsite = \"plant\"\nidentity = \"spiffe://hq.coast/node/gate\"\nactions = [\"join\", \"read-metrics\"]\n\
         [[policy]]\nsite = \"lab\"\nidentity = \"hq/gate\"\nactions = [\"join\", \"coordinate\"]\n\
         [[policy]]\nsite = \"lab\"\nidentity = \"lab/*\"\nactions = [\"join\", \"train\", \"aggregate\", \"read-model\", \"read-metrics\"]\n"
    );
    let tried = attempt(&rules);
    for action in Action::ALL {
        assert!(tried.refused.contains_key(&action), "{action}");
    }
}

/// Who has a certificate of a site and no place in the topology; who has one, and dials whom it has no link to; both are refused by name.
#[test]
fn strangers_are_refused_by_name_on_both_sides() {
    let all = plan(COAST);
    // A node more, or another coordinator: by that plan it dials hq/gate.
    let more = COAST.replace(
        "name = \"e\"",
        "name = \"e\"\n    [[domain.node]]\n    name = \"x\"",
    );
    let more = more.replace(
        "name = \"lab\"",
        "name = \"lab\"\n    gateways = [\"gate\", \"x\"]",
    );
    let stranger = plan(&more);
    let world = SimWorld::new(1);
    let done = world.run(move |world| async move {
        let (x, gate) = (n("lab/x"), n("hq/gate"));
        let site = Site::start(world, &all, &[(x.clone(), Arc::clone(&stranger))]);
        site.world.sleep(Duration::from_secs(20)).await;
        for at in [&gate, &n("lab/gate")] {
            let said = policy::of(&all, &at.domain(), &x, Action::Join, at);
            assert_eq!(site.denied(at, &x, Action::Join), std::slice::from_ref(&said));
            let heard = |event: &Event| matches!(event, Event::LinkRefused { node, peer, reason } if *node == x && peer == at && reason.contains(&said.why));
            assert!(site.events().iter().any(heard), "{at}");
            assert!(!site.is_linked(&x, at));
        }
    });
    done.unwrap();
}
