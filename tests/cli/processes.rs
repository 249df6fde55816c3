//! One process a node: who dies, and who notices.

use rustix::process::Signal;

use crate::fixture::{Workspace, kill, pinned, process_of};

/// Endless, with a default quorum and a heartbeat that notices soon.
fn endless() -> String {
    let text = pinned(900_000).replace("quorum = \"all\"", "grace = \"100ms\"")
        + "\n[heartbeat]\nevery = \"100ms\"\nretry = [\"50ms\", \"50ms\", \"50ms\"]\n";
    assert!(text.contains("grace"));
    text
}

#[test]
fn rounds_go_on_without_a_killed_node_and_name_it() {
    let workspace = Workspace::new(&endless());
    let mut run = workspace.start("run topology.toml --processes");
    run.until_rounds(1);
    kill(process_of(&workspace, "plant/d"), Signal::KILL);
    run.until("its death", |seen| {
        seen.lines.iter().any(|line| line.contains("process_ended"))
    });
    run.until("a degraded round", |seen| {
        seen.lines
            .iter()
            .any(|line| line.contains("\"degraded\"") && line.contains("\"event\":\"round\""))
    });
    run.signal(Signal::INT);
    let output = run.end().expect(130);
    let ended = output.events("process_ended");
    assert_eq!(ended.len(), 1, "{ended:#?}");
    assert_eq!(ended[0]["node"], "plant/d");
    assert!(
        ended[0]["status"].as_str().unwrap().contains("SIGKILL"),
        "{ended:#?}"
    );
    let degraded = output
        .events("round")
        .into_iter()
        .find(|round| round["state"] == "degraded");
    let degraded = degraded.unwrap();
    assert_eq!(degraded["late"], serde_json::json!(["plant/d"]));
    assert_eq!(degraded["counted"].as_array().unwrap().len(), 8);
}

/// "A failure reaches every node and leaves no process behind." FATE#683, FATE#4040
#[test]
fn no_process_outlives_its_parent() {
    let workspace = Workspace::new(&endless());
    let mut run = workspace.start("run topology.toml --processes");
    run.until_rounds(1);
    run.signal(Signal::KILL);
    // Every child holds the parent's standard error: its end is theirs.
    run.end();
    workspace.run("status topology.toml").expect(1);
    workspace.write("topology.toml", &endless().replace("seed = 7", "seed = 8"));
    let other = workspace.run("run topology.toml --resume").expect(2);
    assert!(
        other.errors().contains("another configuration"),
        "{other:#?}"
    );
}

#[test]
fn the_death_of_the_coordinators_process_ends_the_run() {
    let workspace = Workspace::new(&endless());
    let mut run = workspace.start("run topology.toml --processes");
    run.until_rounds(1);
    kill(process_of(&workspace, "hq/gate"), Signal::KILL);
    let output = run.end().expect(1);
    let said = output.errors();
    assert!(
        said.contains("hq/gate") && said.contains("SIGKILL"),
        "{said}"
    );
    assert!(said.contains("--resume"), "{said}");
}
