//! `tombolo audit`: what the record of a real run says, what changes of it are found, and the proof of one leaf.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::fixture::{Output, Workspace, pinned};

/// Three rounds, run.
fn ran() -> Workspace {
    let workspace = Workspace::new(&pinned(3));
    workspace.run("run topology.toml").expect(0);
    workspace
}

fn node(workspace: &Workspace, node: &str) -> PathBuf {
    workspace.path().join("state/nodes").join(node)
}

/// Changes a text in a file, which must be there.
#[track_caller]
fn edit(path: PathBuf, from: &str, to: &str) {
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

fn findings(output: &Output) -> Vec<(String, String)> {
    let found = output.events("finding").into_iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    found
        .map(|found| (text(&found["copy"]), text(&found["reason"])))
        .collect()
}

#[test]
fn a_run_leaves_one_record_with_every_domain_that_verifies() {
    let workspace = ran();
    let verified = workspace
        .run("audit verify state --topology topology.toml")
        .expect(0);
    let copies = verified.events("audited");
    assert_eq!(copies.len(), 3, "{verified:#?}");
    // The run may end before the others have the last round's leaves; what they have is a beginning of the coordinator's.
    let rounds = copies.iter().map(|copy| copy["rounds"].as_u64().unwrap());
    let rounds: Vec<u64> = rounds.collect();
    assert_eq!(rounds.iter().max(), Some(&3), "{verified:#?}");
    assert!(rounds.iter().all(|rounds| *rounds >= 2), "{verified:#?}");
    let end = &verified.events("verified")[0];
    assert_eq!(
        (&end["findings"], &end["pinned"]),
        (&Value::from(0), &Value::from(true))
    );
    assert!(end["states"].as_u64().unwrap() >= 2, "{end}");

    let shown = workspace.run("audit show state").expect(0).events("leaf");
    assert_eq!(shown[0]["says"]["leaf"], "begun");
    assert_eq!(shown.last().unwrap()["says"]["leaf"], "round");
    let of_round = workspace
        .run("audit show state --round 2")
        .expect(0)
        .events("leaf");
    let kinds: Vec<&str> = of_round
        .iter()
        .map(|leaf| leaf["says"]["leaf"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds.iter().filter(|kind| **kind == "contribution").count(),
        3,
        "{kinds:?}"
    );
    let text = workspace.text("audit show state").expect(0);
    assert!(
        text.lines
            .iter()
            .any(|line| line.contains("committed in view 1")),
        "{text:#?}"
    );
}

#[test]
fn an_edit_a_cut_and_another_model_are_found_and_named() {
    let workspace = ran();
    let (hq, other) = (node(&workspace, "hq.gate"), node(&workspace, "plant.gate"));
    let leaves = other.join("record/leaves-000000.jsonl");
    let whole = std::fs::read_to_string(&leaves).unwrap();
    edit(leaves.clone(), "\"clip\":", "\"clip\": ");
    let found = findings(&workspace.run("audit verify state").expect(1));
    assert!(
        found
            .iter()
            .any(|(copy, reason)| copy.contains("plant.gate") && reason.contains("not written as")),
        "{found:?}"
    );
    assert!(
        !found
            .iter()
            .any(|(_, reason)| reason.contains("two histories")),
        "{found:?}"
    );

    let lines: Vec<&str> = whole.lines().collect();
    std::fs::write(&leaves, lines[..lines.len() - 1].join("\n") + "\n").unwrap();
    let found = findings(&workspace.run("audit verify state").expect(1));
    assert!(
        found
            .iter()
            .any(|(copy, reason)| copy.contains("plant.gate") && reason.contains("cut off")),
        "{found:?}"
    );
    std::fs::write(&leaves, whole).unwrap();
    workspace.run("audit verify state").expect(0);

    let states = hq.join("states").read_dir().unwrap();
    let state = states
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_str().unwrap().contains("000003-"))
        .unwrap();
    let model = state.join("model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    let found = findings(&workspace.run("audit verify state").expect(1));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.contains("of round 3"), "{found:?}");
}

#[test]
fn one_leaf_is_proven_with_nothing_but_the_checkpoint() {
    let workspace = ran();
    let proof = workspace
        .run("audit prove state --round 2 --node plant/c")
        .expect(0);
    workspace.write("proof.json", &proof.lines[0]);
    let checkpoint = "state/nodes/hq.gate/record/checkpoint";
    let verify = format!("audit verify --proof proof.json --checkpoint {checkpoint}");
    let proven = workspace.run(&verify).expect(0).events("proven");
    assert!(
        proven[0]["leaf"].as_str().unwrap().contains("plant/c"),
        "{proven:?}"
    );
    workspace.write("proof.json", &proof.lines[0].replace("plant/c", "plant/d"));
    let refused = workspace.run(&verify).expect(1);
    assert!(
        refused.errors().contains("not under the checkpoint's root"),
        "{refused:#?}"
    );
    workspace.run("audit prove state --round 9").expect(1);
    workspace.run("audit verify nowhere").expect(1);
}

/// A run of so many rounds whose gateways keep what they sent, with a rule and an outer optimizer.
fn retaining(rule: &str, settings: &str) -> Workspace {
    let topology = pinned(4);
    assert!(!topology.contains("[checkpoint]") && !topology.contains("[outer]"));
    let topology = topology.replace("kind = \"fedavg\"", &format!("kind = \"{rule}\""));
    assert!(topology.contains(rule), "{topology}");
    let workspace = Workspace::new(&format!("{topology}\n{settings}"));
    workspace.run("run topology.toml").expect(0);
    workspace
}

const RECOMPUTE: &str = "audit recompute state --topology topology.toml";

fn outcomes(output: &Output) -> Vec<(u64, String)> {
    let rounds = output.events("recomputed").into_iter();
    let pair = |round: Value| {
        let outcome = round["outcome"].as_str().unwrap().to_owned();
        (round["round"].as_u64().unwrap(), outcome)
    };
    rounds.map(pair).collect()
}

/// The files of what a gateway has retained, the oldest first.
fn retained(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.join("retained").read_dir().unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn models_come_out_again_from_what_gateways_have_retained() {
    let keeps = "[checkpoint]\nretain_contributions = 9";
    let outer = "[outer]\noptimizer = \"nesterov\"\nlearning_rate = 0.7\n";
    for (rule, outer) in [("fedavg", outer), ("median", "")] {
        let workspace = retaining(rule, &format!("{outer}{keeps}"));
        let output = workspace.run(RECOMPUTE).expect(0);
        let rounds = outcomes(&output);
        assert!(rounds.len() >= 3, "{output:#?}");
        assert!(
            rounds.iter().all(|(_, outcome)| outcome == "same"),
            "{output:#?}"
        );
        let text = workspace.text(RECOMPUTE).expect(0).lines.join("\n");
        assert!(text.contains("round 2: the same model"), "{text}");
    }
}

#[test]
fn a_contribution_that_was_changed_since_is_named_with_its_domain() {
    let workspace = retaining("fedavg", "[checkpoint]\nretain_contributions = 2");
    // Of the last two rounds only.
    let output = workspace.run(RECOMPUTE).expect(0);
    let words: Vec<String> = outcomes(&output).into_iter().map(|(_, it)| it).collect();
    assert_eq!(words[..2], ["missing", "missing"], "{output:#?}");
    assert!(words[2..].iter().all(|word| word == "same"), "{output:#?}");
    let absent = &output.events("recomputed")[0];
    assert_eq!(absent["domains"].as_array().unwrap().len(), 3, "{absent}");

    let plant = node(&workspace, "plant.gate");
    let files = retained(&plant);
    assert_eq!(files.len(), 2, "{files:?}");
    let whole = std::fs::read(&files[0]).unwrap();
    let of_third = format!("{RECOMPUTE} --round 3");
    let head = whole.iter().position(|byte| *byte == b'\n').unwrap();
    let other = |from: &str, to: &str| {
        let text = String::from_utf8(whole[..head].to_vec()).unwrap();
        assert!(text.contains(from), "{text}");
        let mut changed = text.replacen(from, to, 1).into_bytes();
        changed.extend_from_slice(&whole[head..]);
        changed
    };
    let mut bit = whole.clone();
    bit[head + 1000] ^= 1;
    for (what, bytes) in [
        ("a bit", bit),
        ("an end", whole[..whole.len() - 4].to_vec()),
        ("more", [&whole[..], &[0]].concat()),
        ("a weight", other("\"weight\":", "\"weight\":1")),
        ("an exponent", other("\"exponent\":", "\"exponent\":1")),
        ("nothing that reads", b"nothing".to_vec()),
    ] {
        std::fs::write(&files[0], bytes).unwrap();
        let output = workspace.run(&of_third).expect(1);
        let found = &output.events("recomputed")[0];
        assert_eq!(found["outcome"], "differs", "{what}: {output:#?}");
        assert_eq!(
            found["domains"],
            serde_json::json!(["plant"]),
            "{what}: {output:#?}"
        );
    }
    std::fs::remove_file(&files[0]).unwrap();
    let found = &workspace.run(&of_third).expect(1).events("recomputed")[0].clone();
    assert_eq!(
        (&found["outcome"], &found["domains"]),
        (&"missing".into(), &serde_json::json!(["plant"]))
    );
    std::fs::write(&files[0], &whole).unwrap();
    workspace.run(&of_third).expect(0);
}
