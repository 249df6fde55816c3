//! Who may do what, as a file says it.

use std::collections::BTreeSet;

use tombolo::topology::{config_hash, explicit};
use tombolo_core::policy::{self, Action, PolicyPlan, Who};
use tombolo_core::tensor::Hash;

use crate::good::{SMALL, read};

const ALL: &str = r#"["join", "train", "aggregate", "coordinate", "read-model", "read-metrics"]"#;

fn rule(rest: &str) -> String {
    format!("[[policy]]\nactions = {ALL}\n{rest}\n")
}

#[test]
fn rules_and_slices_reach_the_plan() {
    let text = SMALL.replace(
        "nodes = [\"gate\", \"c\", \"d\"]",
        "[[domain.node]]\nname = \"gate\"\n[[domain.node]]\nname = \"c\"\nslice = \"blue\"",
    );
    let plan = read(&format!(
        "{text}\n[[slice]]\nname = \"blue\"\n{}{}{}\n[[policy]]\nsite = \"plant\"\nidentity = \"hq/gate\"\nactions = [\"read-model\", \"train\"]\nslices = [\"blue\"]\n",
        rule("identity = \"*\""),
        rule("identity = \"plant/*\"\nsite = \"hq\""),
        rule("identity = \"spiffe://plant.harbour/node/c\""),
    ));
    let c = "plant/c".parse().unwrap();
    assert_eq!(
        plan.slice(&c).map(ToString::to_string),
        Some("blue".to_owned())
    );
    assert_eq!(plan.slice(&"plant/gate".parse().unwrap()), None);
    let rules = &plan.policy.rules;
    assert_eq!(rules[0].identity, Who::Everyone);
    assert_eq!((&rules[0].site, rules[0].slices.len()), (&None, 0));
    assert_eq!(rules[0].actions, BTreeSet::from(Action::ALL));
    assert_eq!(rules[1].identity, Who::Domain("plant".parse().unwrap()));
    assert_eq!(rules[1].site, Some("hq".parse().unwrap()));
    assert_eq!(rules[2].identity, Who::Node(c));
    assert_eq!(
        rules[3].actions,
        BTreeSet::from([Action::Train, Action::ReadModel])
    );
    assert_eq!(rules[3].slices, BTreeSet::from(["blue".parse().unwrap()]));
}

/// Nodes that go by other policies do not talk to each other; a run may go on with them all the same.
#[test]
fn policies_are_in_what_nodes_compare_and_not_in_what_a_run_is() {
    let plain = read(SMALL);
    assert_eq!(plain.policy, PolicyPlan::default());
    let configuration = Hash(config_hash(&plain));
    assert_eq!(policy::bind(configuration, &plain), configuration);
    let ruled = read(&format!("{SMALL}{}", rule("identity = \"*\"")));
    assert_eq!(Hash(config_hash(&ruled)), configuration);
    let other = read(&format!(
        "{SMALL}{}{}",
        rule("identity = \"*\""),
        rule("identity = \"hq/*\"")
    ));
    let hashes: BTreeSet<Hash> = [&plain, &ruled, &other]
        .map(|plan| policy::bind(configuration, plan))
        .into();
    assert_eq!(hashes.len(), 3);
}

#[test]
fn whom_policies_leave_out_is_a_warning() {
    let said = |rules: &str| {
        let told = explicit(&read(&format!("{SMALL}{rules}")));
        let policies = told.facts.iter().find(|(name, _)| *name == "policies");
        (policies.map(|(_, fact)| fact.clone()), told.warnings)
    };
    let (fact, before) = said("");
    assert_eq!(fact, None);
    let follows = "[[policy]]\nsite = \"plant\"\nidentity = \"*\"\nactions = [\"join\", \"aggregate\", \"coordinate\", \"read-model\"]\n\
                   [[policy]]\nsite = \"plant\"\nidentity = \"plant/gate\"\nactions = [\"train\"]\n\
                   [[policy]]\nsite = \"plant\"\nidentity = \"plant/x\"\nactions = [\"train\"]\n";
    let (fact, warnings) = said(follows);
    assert_eq!(
        fact.as_deref(),
        Some("3 rules; plant grant only what they say")
    );
    let new: Vec<&String> = warnings
        .iter()
        .filter(|warning| !before.contains(warning))
        .collect();
    assert_eq!(
        new,
        [
            "plant/c may not train at plant: plant has rules of its own, and none of them grants it; plant/c: it will only follow",
            "plant/d may not train at plant: plant has rules of its own, and none of them grants it; plant/d: it will only follow",
            "rule 3 grants something to plant/x, whom this topology does not have",
        ]
    );
}
