//! Certificates that change under a federation at work: processes, files and QUIC are real.
//!
//! `TOMBOLO_ROTATIONS=30` swaps as many pairs. The test prints one line of figures.

use std::time::Duration;

use serde_json::json;

use crate::fixture::now;
use crate::fleet::{Fleet, from_environment};

/// Endless; a round needs everybody.
const COAST: &str = r#"
    [federation]
    name = "coast"
    rounds = 900000
    sync_every = 200
    [round]
    quorum = "all"
    deadline = "60s"
    grace = "30s"
    [model]
    trainer = "digits-softmax"
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
"#;

/// How often a node's process has told of something.
fn said(fleet: &mut Fleet, node: &str, what: &str) -> usize {
    let output = fleet.process(node).listen(Duration::ZERO);
    let lines = output.errors.iter();
    lines.filter(|line| line.contains(what)).count()
}

/// lance#8456, nats.go#1363: pairs are swapped and a root takes the place of another, and no round misses anybody.
#[test]
fn rotations_and_a_rollover_drop_no_round() {
    let rotations = from_environment("TOMBOLO_ROTATIONS", 4);
    let mut fleet = Fleet::start(COAST);
    let nodes = fleet.nodes();
    for node in &nodes {
        fleet.until_state(node, "active");
    }
    fleet.more_rounds(1);
    let began = now();
    for turn in 0..rotations {
        let node = &nodes[turn as usize % nodes.len()];
        let before = said(&mut fleet, node, "CertificateRotated");
        let rotate = format!("certs rotate topology.toml --node {node}");
        fleet.workspace.run(&rotate).expect(0);
        fleet.until_true("the new certificate", |fleet| {
            said(fleet, node, "CertificateRotated") > before
        });
        fleet.more_rounds(1);
    }
    let rollover = |fleet: &mut Fleet, step: &str, heard: &str| {
        let command = format!("certs rollover topology.toml --domain plant --step {step}");
        fleet.workspace.run(&command).expect(0);
        for node in &nodes {
            if !heard.is_empty() {
                fleet.until_true(heard, |fleet| said(fleet, node, heard) > 0);
            }
        }
        fleet.more_rounds(1);
    };
    rollover(&mut fleet, "next", "RootAdded");
    rollover(&mut fleet, "switch", "");
    let early = "certs rollover topology.toml --domain plant --step retire";
    let early = fleet.workspace.run(early).expect(2);
    assert!(early.errors().contains("plant/gate"), "{early:#?}");
    for node in ["plant/gate", "plant/c"] {
        let before = said(&mut fleet, node, "CertificateRotated");
        let rotate = format!("certs rotate topology.toml --node {node}");
        fleet.workspace.run(&rotate).expect(0);
        fleet.until_true("a certificate of the new root", |fleet| {
            said(fleet, node, "CertificateRotated") > before
        });
    }
    fleet.more_rounds(1);
    rollover(&mut fleet, "retire", "RootRetired");
    fleet.more_rounds(2);
    let rounds = fleet.rounds();
    let whole = |round: &&serde_json::Value| {
        round["state"] == "committed" && round["counted"].as_array().unwrap().len() == nodes.len()
    };
    let dropped = rounds.iter().filter(|round| !whole(round)).count();
    let mut renewed = 0;
    for node in &nodes {
        renewed += said(&mut fleet, node, "LinkRenewed");
        for trouble in ["LinkDown", "PeerSuspected", "LinkRefused", "RecordRefused"] {
            assert_eq!(said(&mut fleet, node, trouble), 0, "{node} {trouble}");
        }
    }
    println!(
        "{}",
        json!({
            "proof": "rotations", "rotations": rotations + 2, "rollovers": 1, "rounds": rounds.len(), "dropped": dropped,
            "connections_replaced": renewed / 2, "wall_s": (now() - began).as_secs_f64(),
        })
    );
    assert_eq!(dropped, 0, "{rounds:#?}");
    assert!(renewed as u64 >= rotations + 2, "{renewed}");
    fleet.stop();
    // The record has it all, and every domain has signed it.
    let shown = fleet.workspace.run("audit show state").expect(0);
    let leaves = shown.lines.join("\n");
    for kind in ["root", "retired", "certificate"] {
        assert!(
            leaves.contains(&format!("\"leaf\":\"{kind}\"")),
            "{kind}: {leaves}"
        );
    }
    fleet.workspace.run("audit verify state").expect(0);
}

/// Revoked by its domain, a node is cut off by everybody while it runs, and back with a new certificate.
#[test]
fn a_revoked_node_is_cut_off_and_comes_back_with_a_new_certificate() {
    let coast = COAST.replace("quorum = \"all\"", "quorum = { nodes = 3, domains = 2 }");
    let coast = coast.replace("grace = \"30s\"", "grace = \"1s\"");
    let mut fleet = Fleet::start(&coast);
    fleet.until_state("plant/c", "active");
    fleet.more_rounds(1);
    fleet
        .workspace
        .run("certs revoke topology.toml --node plant/c")
        .expect(0);
    for node in ["plant/gate", "plant/c"] {
        fleet.until_true("the cut", |fleet| {
            said(fleet, node, "was revoked by its domain") > 0
        });
    }
    fleet.until("its absence", |status| {
        let entry = crate::fleet::entry(status, "plant/c");
        entry.is_some_and(|entry| entry["state"] != "active")
    });
    fleet.more_rounds(1);
    let last = fleet.rounds().pop().unwrap();
    let counted = last["counted"].as_array().unwrap();
    assert!(!counted.iter().any(|node| node == "plant/c"), "{last:#}");
    fleet
        .workspace
        .run("certs rotate topology.toml --node plant/c")
        .expect(0);
    fleet.until_state("plant/c", "active");
    fleet.stop();
}
