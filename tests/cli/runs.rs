//! Runs to their end.

use serde_json::Value;

use crate::fixture::{PINNED, Workspace, hash_of, pinned};

const HARBOUR: &str = include_str!("../../examples/harbour.toml");

/// The contract's fields, and what we add: `bytes` split, the epoch, the model's hash, the time.
const ROUND: [&str; 14] = [
    "event",
    "round",
    "epoch",
    "state",
    "counted",
    "late",
    "accuracy",
    "loss",
    "weight_norm",
    "bytes",
    "bytes_down",
    "bytes_up",
    "model_hash",
    "elapsed_s",
];

const FINISHED: [&str; 9] = [
    "event",
    "rounds",
    "committed",
    "degraded",
    "aborted",
    "accuracy",
    "loss",
    "model_hash",
    "wall_s",
];

/// Two sites that let nobody in, over real sockets: the same model, by way of a third one; and without one to meet at the file is refused.
#[test]
fn two_gateways_that_can_only_dial_out_train_through_a_third_domain() {
    let text = |shut: &str, relay: &str| {
        format!(
            r#"
            [federation]
            name = "bay"
            rounds = 3
            [round]
            quorum = "all"
            deadline = "120s"
            [route]
            relay = [{relay}]
            [[domain]]
            name = "hq"
            [[domain.node]]
            name = "gate"
            {shut}
            [[domain]]
            name = "plant"
            [[domain.node]]
            name = "gate"
            {shut}
            [[domain]]
            name = "lab"
            nodes = ["gate"]
        "#
        )
    };
    let open = hash_of(&text("", ""));
    let workspace = Workspace::new(&text("outbound_only = true", "\"lab\""));
    assert_eq!(workspace.run("run topology.toml").expect(0).hash(), open);
    let record = std::fs::read_to_string(workspace.path().join("state/events.jsonl")).unwrap();
    let relayed: Vec<&str> = record
        .lines()
        .filter(|line| line.contains("link_routed"))
        .collect();
    assert_eq!(relayed.len(), 2, "both ends say so: {relayed:?}");
    let alone = Workspace::new(&text("outbound_only = true", ""));
    let told = alone.run("check topology.toml").expect(2).lines.join("");
    assert!(
        told.contains("in [route]: its gateway joins them"),
        "{told}"
    );
}

#[test]
fn harbour_learns_and_its_json_has_the_documented_fields() {
    let workspace = Workspace::new(HARBOUR);
    let output = workspace.run("run topology.toml").expect(0);
    let rounds = output.events("round");
    let finished = output.finished();
    assert_eq!(rounds.len() + 1, output.lines.len(), "{output:#?}");
    let fields = |value: &serde_json::Value| {
        let keys = value.as_object().unwrap().keys();
        keys.map(String::as_str).collect::<Vec<_>>().join(" ")
    };
    for (number, round) in (1..).zip(&rounds) {
        // A reason is given for what was not committed, and for nothing else.
        let reason = round["state"] != "committed";
        let names = round.as_object().unwrap();
        assert_eq!(names.contains_key("reason"), reason, "{round}");
        let mut plain = round.clone();
        plain.as_object_mut().unwrap().shift_remove("reason");
        assert_eq!(fields(&plain), ROUND.join(" "), "{round}");
        assert_eq!(round["round"], number);
        let split = round["bytes_down"].as_u64().unwrap() + round["bytes_up"].as_u64().unwrap();
        assert_eq!(round["bytes"], split);
    }
    assert_eq!(fields(&finished), FINISHED.join(" "), "{finished}");
    assert_eq!(finished["rounds"], 20);
    assert_eq!(finished["accuracy"], rounds[19]["accuracy"]);
    assert!(finished["accuracy"].as_f64().unwrap() > 0.93, "{finished}");
    explains(&workspace);
}

/// What the record of a run of twenty rounds tells afterwards.
fn explains(workspace: &Workspace) {
    let told = workspace
        .run("explain round 20 topology.toml")
        .expect(0)
        .events("explanation");
    let story = &told[0];
    let nodes = story["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 9);
    for node in nodes {
        let at = |key: &str| node[key].as_f64().unwrap();
        assert!(at("began_s") <= at("trained_s"), "{node}");
        assert!(at("trained_s") <= at("reported_s"), "{node}");
        let fate = node["fate"].as_str().unwrap();
        assert!(["counted", "lessened"].contains(&fate), "{node}");
        assert_eq!(node["why"] == "", fate == "counted", "{node}");
    }
    let steps = story["steps"].as_array().unwrap().iter();
    let sum: f64 = steps.map(|step| step["seconds"].as_f64().unwrap()).sum();
    assert!((sum - story["seconds"].as_f64().unwrap()).abs() < 1e-6);
    let node = workspace.text("explain node lab/e topology.toml").expect(0);
    let asked = "lab/e: asked in 20 rounds, counted in 20";
    assert!(node.lines[0].starts_with(asked), "{node:#?}");
    let link = workspace.run("explain link lab/gate hq/gate topology.toml");
    assert!(link.expect(0).events("explanation")[0]["up"].as_u64() >= Some(2));
    let unknown = workspace.run("explain round 99 topology.toml").expect(2);
    let known = "round 99 is not in the record; it tells of rounds 1 to 20";
    assert!(unknown.errors().contains(known), "{unknown:#?}");
}

/// In one process, and in one a node.
#[test]
fn asynchronous_rounds_say_how_old_each_counted_update_is() {
    let mode = "quorum = { nodes = 2 }\nmode = \"async\"\nbuffer = 3";
    let text = pinned(6).replace("quorum = \"all\"", mode);
    let workspace = Workspace::new(&text);
    for arguments in [
        "run topology.toml",
        "run topology.toml --processes --state apart",
    ] {
        let output = workspace.run(arguments).expect(0);
        let rounds = output.events("round");
        assert_eq!(rounds.len(), 6, "{output:#?}");
        let mut updates = std::collections::BTreeSet::new();
        for round in &rounds {
            let list = |key: &str| round[key].as_array().unwrap().clone();
            let (counted, made) = (list("counted"), list("trained_for"));
            assert!(counted.len() >= 3, "{round}");
            let ages = list("staleness")
                .iter()
                .map(Value::as_u64)
                .collect::<Vec<_>>();
            assert_eq!(
                (made.len(), ages.len()),
                (counted.len(), counted.len()),
                "{round}"
            );
            assert!(
                ages.iter().all(|age| age.is_some_and(|age| age <= 10)),
                "{round}"
            );
            assert!(round["past"].is_null(), "{round}");
            for update in counted.iter().zip(&made) {
                assert!(
                    updates.insert(format!("{update:?}")),
                    "{update:?} counts twice"
                );
            }
        }
    }
    let text = workspace.text("checkpoint verify topology.toml --state apart");
    assert_eq!(text.code(), 0, "{}", text.errors());
    let more = text_of(&workspace, "run topology.toml --state told");
    assert!(more.contains(", staleness "), "{more}");
}

fn text_of(workspace: &Workspace, arguments: &str) -> String {
    workspace.text(arguments).expect(0).lines.join("\n")
}

#[test]
fn a_pinned_file_gives_the_same_model_again_and_as_processes() {
    let workspace = Workspace::new(PINNED);
    let first = workspace.run("run topology.toml").expect(0);
    let again = workspace.run("run topology.toml --state again").expect(0);
    let apart = workspace
        .run("run topology.toml --processes --state apart")
        .expect(0);
    assert_eq!(first.hash(), again.hash());
    assert_eq!(first.hash(), apart.hash());
    assert_eq!(apart.events("round").len(), 3, "{apart:#?}");
    let other = PINNED.replace("seed = 7", "seed = 8");
    let other = Workspace::new(&other).run("run topology.toml").expect(0);
    assert_ne!(first.hash(), other.hash());
}

/// What packs without loss changes no model, whoever runs the file: and what it packs is lossy or not, up or down.
#[test]
fn a_lossless_stage_gives_the_same_model_however_the_file_is_run() {
    let link = |codec: &str, down: &str| {
        let link = "\n[[link]]\nbetween = [\"hq\", \"plant\"]\n";
        PINNED.to_owned() + link + &format!("codec = \"{codec}\"\nlossless_down = \"{down}\"\n")
    };
    let plain = Workspace::new(&link("fp16", "none"));
    let plain = plain.run("run topology.toml").expect(0);
    let packed = Workspace::new(&link("fp16+zstd", "lz4"));
    let together = packed.run("run topology.toml").expect(0);
    let apart = packed
        .run("run topology.toml --processes --state apart")
        .expect(0);
    let simulated = packed.run("sim topology.toml --seed 1").expect(0);
    for output in [&together, &apart, &simulated] {
        assert_eq!(output.hash(), plain.hash(), "{output:#?}");
    }
}

#[test]
fn what_people_read_ends_with_a_table() {
    let output = Workspace::new(&pinned(2))
        .text("run topology.toml")
        .expect(0);
    let text = output.lines.join("\n");
    assert!(text.contains("round   2 committed: accuracy"), "{text}");
    assert!(
        text.contains("2 rounds: 2 committed, 0 degraded, 0 aborted"),
        "{text}"
    );
}
