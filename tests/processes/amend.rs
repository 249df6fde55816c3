//! `tombolo amend`: nodes and domains join a run at work, once every machine has the file that says so.

use std::collections::BTreeMap;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fleet::{Fleet, entry};

const BAY: &str = r#"
    [federation]
    name = "bay"
    rounds = 900000
    sync_every = 1000
    [round]
    quorum = "all"
    deadline = "1min"
    [model]
    trainer = "digits-softmax"
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
    [heartbeat]
    every = "200ms"
"#;

/// One more node at the plant, and a whole domain more.
fn wider() -> String {
    let more = BAY.replace(
        "name = \"plant\"\n    nodes = [\"gate\", \"c\"]",
        "name = \"plant\"\n    nodes = [\"gate\", \"c\", \"d\"]\n    [[domain]]\n    name = \"port\"\n    nodes = [\"gate\", \"x\"]",
    );
    assert!(more.contains("port"));
    more
}

/// The certificates, roots and keys of all sites.
fn papers(fleet: &Fleet) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(fleet.workspace.path().join("certs")).unwrap() {
        let path = entry.unwrap().path();
        // What was issued is written down behind what was issued before.
        if path
            .extension()
            .is_some_and(|kind| kind == "pem" || kind == "key")
        {
            let bytes = std::fs::read(&path).unwrap();
            found.insert(path.display().to_string(), bytes);
        }
    }
    assert!(!found.is_empty());
    found
}

/// Writes the wider file and makes what is missing of certificates.
fn widen(fleet: &Fleet) {
    fleet.workspace.write("topology.toml", &wider());
    fleet.workspace.run("certs init topology.toml").expect(0);
    fleet.workspace.run("certs issue topology.toml").expect(0);
}

fn processes(fleet: &Fleet) -> BTreeMap<String, u64> {
    let said = fleet.workspace.run("status topology.toml");
    let each = said.events("status").into_iter().map(|status| {
        let node = status["nodes"][0]["node"].as_str().unwrap().to_owned();
        (node, status["process"].as_u64().unwrap())
    });
    each.collect()
}

fn counted(round: &Value) -> usize {
    round["counted"].as_array().unwrap().len()
}

/// All rounds one after the other, each told once.
fn assert_whole(rounds: &[Value]) {
    for (index, round) in rounds.iter().enumerate() {
        assert_eq!(round["round"], json!(index + 1), "{round:#}");
    }
}

/// New nodes join at the next epoch; a new domain touches nobody's keys; no round is lost to it, and each process stays the one that it was.
#[test]
fn nodes_and_a_domain_join_a_run_at_work() {
    let mut fleet = Fleet::start(BAY);
    fleet.more_rounds(3);
    let (keys, before) = (papers(&fleet), processes(&fleet));
    widen(&fleet);
    let now = papers(&fleet);
    for (path, bytes) in &keys {
        assert_eq!(now.get(path), Some(bytes), "{path} was touched");
    }
    // They wait until they are taken in.
    for node in ["plant/d", "port/gate", "port/x"] {
        fleet.begin(node);
    }
    fleet.more_rounds(1);
    let amended = fleet
        .workspace
        .run("amend topology.toml --by ada")
        .expect(0);
    assert_eq!(amended.events("amending")[0]["nodes"], 4);
    for node in ["plant/d", "port/gate", "port/x"] {
        fleet.until_state(node, "active");
    }
    fleet.more_rounds(3);
    let after = processes(&fleet);
    for (node, process) in &before {
        assert_eq!(after.get(node), Some(process), "{node} is another process");
    }
    let status = fleet.until("the epoch", |_| true);
    assert_eq!(status["membership"]["epoch"], 2, "{status:#}");
    let rounds = fleet.rounds();
    assert_whole(&rounds);
    assert!(
        rounds.iter().all(|round| round["state"] == "committed"),
        "{rounds:#?}"
    );
    assert_eq!(rounds.last().map(counted), Some(7), "{rounds:#?}");
    let joined = rounds.iter().position(|round| counted(round) == 7).unwrap();
    assert!(rounds[..joined].iter().all(|round| counted(round) == 4));
    for (node, output) in fleet.stop() {
        assert_eq!(output.code(), 130, "{node}: {output:#?}");
    }
    let verified = fleet
        .workspace
        .run("audit verify state --topology topology.toml");
    verified.expect(0);
    let shown = fleet.workspace.text("audit show state").expect(0);
    let shown = shown.lines.join("\n");
    assert!(shown.contains("the run goes on by the topology"), "{shown}");
    assert!(shown.contains("root of port"), "{shown}");
}

/// A site agrees by its own file, and by nothing else; what may not change is refused by name, and the run never notices.
#[test]
fn one_machine_without_the_file_is_enough_to_refuse_it() {
    let mut fleet = Fleet::idle(BAY);
    fleet.workspace.write("plant.toml", BAY);
    fleet.begin("hq/gate");
    fleet.begin("hq/a");
    fleet.begin_with("plant/gate", "plant.toml");
    fleet.begin_with("plant/c", "plant.toml");
    fleet.more_rounds(2);
    let refused = |fleet: &Fleet| {
        let said = fleet.workspace.run("amend topology.toml").expect(1);
        said.errors()
    };
    let same = refused(&fleet);
    assert!(same.contains("goes by that topology already"), "{same}");

    widen(&fleet);
    let theirs = refused(&fleet);
    assert!(theirs.contains("(2 do)"), "{theirs}");
    for node in ["plant/c", "plant/gate"] {
        let expected = format!("{node}: its file is still that of the run");
        assert!(theirs.contains(&expected), "{theirs}");
    }

    let slower = wider().replace("[model]", "[model]\n    learning_rate = 0.05");
    fleet.workspace.write("topology.toml", &slower);
    fleet.workspace.write("plant.toml", &slower);
    let model = refused(&fleet);
    assert!(
        model.contains("hq/gate: its file changes model.learning_rate"),
        "{model}"
    );

    // A machine without the new domain's root could not begin again.
    fleet.workspace.write("topology.toml", &wider());
    fleet.workspace.write("plant.toml", &wider());
    let root = fleet.workspace.path().join("certs/port.pem");
    let aside = fleet.workspace.path().join("certs/aside");
    std::fs::rename(&root, &aside).unwrap();
    let rootless = refused(&fleet);
    assert!(
        rootless.contains("hq/a: it could not begin by its file") && rootless.contains("port"),
        "{rootless}"
    );
    std::fs::rename(&aside, &root).unwrap();

    fleet.workspace.write("topology.toml", "rounds = 3");
    let broken = fleet.workspace.run("amend topology.toml").expect(2);
    assert!(!broken.events("mistake").is_empty(), "{broken:#?}");
    fleet.workspace.write("topology.toml", &wider());
    fleet.more_rounds(2);
    let rounds = fleet.rounds();
    assert_whole(&rounds);
    assert!(rounds.iter().all(|round| counted(round) == 4));

    fleet.workspace.write("plant.toml", &wider());
    fleet.workspace.run("amend topology.toml").expect(0);
    fleet.until("the next epoch", |status| {
        status["membership"]["epoch"] == 2
    });
    // A process that begins again only when the others have gone home would wait for them.
    for node in ["hq/a", "plant/gate", "plant/c"] {
        fleet.until_state(node, "active");
    }
    fleet.stop();
}

/// Once everybody agrees it is so, whoever dies next: a coordinator that is killed at that moment goes on by the amended file, and those who
/// were not told find out.
#[test]
fn a_coordinator_that_is_killed_right_after_an_amendment_goes_on_by_it() {
    let mut fleet = Fleet::start(&BAY.replace("\"all\"", "{ nodes = 2, domains = 1 }"));
    fleet.more_rounds(2);
    let wider = wider().replace("\"all\"", "{ nodes = 2, domains = 1 }");
    widen(&fleet);
    fleet.workspace.write("topology.toml", &wider);
    fleet.workspace.run("amend topology.toml").expect(0);
    fleet.signal("hq/gate", Signal::KILL);
    fleet.end("hq/gate");
    fleet.begin("hq/gate");
    for node in ["plant/d", "port/gate", "port/x"] {
        fleet.begin(node);
    }
    for node in ["hq/a", "plant/gate", "plant/c", "plant/d", "port/x"] {
        fleet.until_state(node, "active");
    }
    let all = |status: &Value| {
        let nodes = fleet_nodes(status);
        nodes == 7 && entry(status, "port/gate").is_some_and(|entry| entry["state"] == "active")
    };
    fleet.until("all seven", all);
    fleet.until_true("a round of all seven", |fleet| {
        fleet.rounds().iter().any(|round| counted(round) == 7)
    });
    // The first file is none of this run's any more.
    fleet.stop();
    fleet.workspace.write(
        "topology.toml",
        &BAY.replace("\"all\"", "{ nodes = 2, domains = 1 }"),
    );
    let refused = fleet
        .workspace
        .run("node --name hq/gate topology.toml --resume")
        .expect(1);
    assert!(
        refused.errors().contains("the run goes on by the topology"),
        "{refused:#?}"
    );
}

fn fleet_nodes(status: &Value) -> usize {
    status["membership"]["nodes"].as_array().map_or(0, Vec::len)
}
