//! `tombolo policy explain`: what it prints is what the one function decides.

use serde_json::Value;
use tombolo_core::policy::{self, Action, Verdict};

use crate::fixture::Workspace;

const COAST: &str = r#"
[federation]
name = "coast"
[[slice]]
name = "blue"
[[domain]]
name = "hq"
nodes = ["gate", "a"]
[[domain]]
name = "plant"
[[domain.node]]
name = "gate"
[[domain.node]]
name = "c"
slice = "blue"
[[policy]]
site = "plant"
identity = "*"
actions = ["join", "coordinate", "read-model"]
[[policy]]
site = "plant"
identity = "plant/*"
actions = ["train", "aggregate"]
[[policy]]
site = "plant"
identity = "hq/gate"
actions = ["read-metrics"]
slices = ["blue"]
"#;

#[test]
fn every_verdict_is_printed_as_it_is_decided() {
    let workspace = Workspace::new(COAST);
    let plan = tombolo::topology::load(&workspace.path().join("topology.toml")).unwrap();
    let printed = workspace.run("policy explain topology.toml").expect(0);
    let verdicts = printed.events("verdict");
    // Two sites, four nodes, no slice and one, six actions.
    assert_eq!(verdicts.len(), 2 * 4 * 2 * 6);
    let mut allowed = 0;
    for line in verdicts {
        let told: Verdict = serde_json::from_value(without_words(line.clone())).unwrap();
        let slice = told.slice.as_ref();
        let said = policy::decide(&plan, &told.site, &told.identity, told.action, slice);
        assert_eq!(told, said);
        assert_eq!(line["says"], said.to_string());
        allowed += usize::from(said.allowed);
    }
    assert!((20..70).contains(&allowed), "{allowed}");
}

/// Only what the verdict itself holds.
fn without_words(mut line: Value) -> Value {
    let fields = line.as_object_mut().unwrap();
    fields.retain(|name, _| !["event", "says"].contains(&name.as_str()));
    line
}

#[test]
fn one_question_is_answered_by_a_sentence_and_all_by_a_table() {
    let workspace = Workspace::new(COAST);
    let says = |arguments: &str| {
        let output = workspace.text(&format!("policy explain topology.toml {arguments}"));
        output.expect(0).lines.join("\n").trim_end().to_owned()
    };
    assert_eq!(
        says(
            "--site plant --identity spiffe://hq.coast/node/gate --action read-metrics --slice blue"
        ),
        "hq/gate may read metrics at plant in slice blue: rule 3 of the file grants it to hq/gate"
    );
    assert_eq!(
        says("--site plant --identity hq/gate --action read-metrics --slice -"),
        "hq/gate may not read metrics at plant: plant has rules of its own, and none of them grants it"
    );
    assert_eq!(
        says("--site hq --identity hq/x --action join --slice -"),
        "hq/x may not join at hq: hq/x is no node of the topology"
    );
    let table = says("");
    for line in [
        "site   identity    slice  join         train        aggregate    coordinate   read-model   read-metrics",
        "plant  plant/c     -      yes, rule 1  yes, rule 2  -            -            yes, rule 1  -",
        "plant  hq/gate     -      yes, rule 1  -            -            yes, rule 1  yes, rule 1  NO",
    ] {
        let has = table.lines().any(|found| words(found) == words(line));
        assert!(has, "{line}\nin\n{table}");
    }
    assert!(
        table.contains("granted by default at a site without rules (hq)"),
        "{table}"
    );
    assert!(
        table.contains("rule 3: at plant, hq/gate may read-metrics, in slices blue"),
        "{table}"
    );
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn a_question_about_what_is_not_there_is_refused_by_name() {
    let workspace = Workspace::new(COAST);
    for (arguments, said) in [
        ("--site moon", "no site moon; it has hq, plant"),
        ("--slice red", "no slice \"red\"; it has blue"),
        ("--identity plant", "\"plant\" is no identity"),
        ("--action fly", "join, train, aggregate, coordinate"),
    ] {
        let output = workspace.run(&format!("policy explain topology.toml {arguments}"));
        let output = output.expect(2);
        assert!(
            output.errors().contains(said),
            "{arguments}: {}",
            output.errors()
        );
    }
    assert_eq!(Action::ALL.len(), 6);
}
