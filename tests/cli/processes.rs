//! One process a node: who dies, and who notices.

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Process, Workspace, kill, pinned, process_of};

/// Endless, with a default quorum and a heartbeat that notices soon.
fn endless() -> String {
    let text = pinned(900_000).replace("quorum = \"all\"", "grace = \"100ms\"")
        + "\n[heartbeat]\nevery = \"100ms\"\nretry = [\"50ms\", \"50ms\", \"50ms\"]\n";
    assert!(text.contains("grace"));
    text
}

/// Every link that status shows.
fn links(workspace: &Workspace) -> Vec<Value> {
    let output = workspace.run("status topology.toml");
    let statuses = output.events("status").into_iter();
    let links = statuses.filter_map(|status| status["links"].as_array().cloned());
    links.flatten().collect()
}

fn is_of(link: &Value, node: &str, peer: &str) -> bool {
    link["node"] == node && link["peer"] == peer
}

/// Waits until both have heard of each other: nobody is missed before the first contact, and members meet while rounds go on.
fn until_met(run: &mut Process, workspace: &Workspace, one: &str, other: &str) {
    for rounds in 1..400 {
        let mut links = links(workspace);
        links.retain(|link| link["rung"] == "alive");
        let sees = |node, peer| links.iter().any(|link| is_of(link, node, peer));
        if sees(one, other) && sees(other, one) {
            return;
        }
        run.until_rounds(rounds);
    }
    panic!("{one} and {other} have not met");
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
    // A slow machine may leave out somebody else before.
    let names_it = |round: &serde_json::Value| {
        round["state"] == "degraded" && round["late"] == serde_json::json!(["plant/d"])
    };
    run.until("a degraded round that names it", |seen| {
        seen.events("round").iter().any(names_it)
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
    let degraded = output.events("round").into_iter().find(names_it);
    let degraded = degraded.unwrap();
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

/// A process that was stopped finds nobody dead when it goes on, although it has heard of nobody since; its peers, who had given it up, are
/// back at once. sp1-cluster#163, ray#28562.
#[test]
fn a_stopped_process_suspects_nobody_when_it_goes_on() {
    let patience = "retry = [\"50ms\"]\nrestore_limit = \"1s\"";
    let workspace = Workspace::new(&format!("{}\n[heartbeat]\n{patience}\n", pinned(900_000)));
    let mut run =
        workspace.start_with("run topology.toml --processes", "tombolo::federation=debug");
    for peer in ["plant/gate", "plant/d"] {
        until_met(&mut run, &workspace, "plant/c", peer);
    }
    let stopped = process_of(&workspace, "plant/c");
    let said =
        |event: &str, node: &str, peer: &str| format!("{event} {{ node: {node}, peer: {peer}");
    kill(stopped, Signal::STOP);
    for node in ["plant/gate", "plant/d"] {
        let overdue = said("PeerOverdue", node, "plant/c");
        run.until(&overdue, |seen| seen.errors().contains(&overdue));
    }
    kill(stopped, Signal::CONT);
    for node in ["plant/gate", "plant/d"] {
        let back = said("PeerRecovered", node, "plant/c");
        run.until(&back, |seen| seen.errors().contains(&back));
    }
    // At the end of the run everybody leaves everybody, so this is asked before.
    run.until("an answer", |seen| {
        let suspects = |peer| {
            seen.errors()
                .contains(&said("PeerSuspected", "plant/c", peer))
        };
        assert!(!suspects("plant/gate") && !suspects("plant/d"), "{seen:#?}");
        true
    });
    run.signal(Signal::INT);
    run.end().expect(130);
}

/// Status shows of each peer how far it has climbed, why, and how long it has left.
#[test]
fn status_shows_who_is_missed_and_how_long_it_may_stay_away() {
    let workspace = Workspace::new(&endless());
    let mut run = workspace.start("run topology.toml --processes");
    until_met(&mut run, &workspace, "plant/c", "plant/d");
    kill(process_of(&workspace, "plant/d"), Signal::KILL);
    // On a machine that is busy it is long until somebody is missed.
    let missed = (0..2000).find_map(|_| {
        let mut links = links(&workspace).into_iter();
        links.find(|link| is_of(link, "plant/c", "plant/d") && link["rung"] == "restoring")
    });
    let missed = missed.unwrap_or_else(|| panic!("{:#?}", workspace.run("status topology.toml")));
    assert_eq!(missed["state"], "lost");
    let left = missed["left_s"].as_f64().unwrap();
    assert!((0.0..=60.0).contains(&left), "{missed:#}");
    assert!(missed["phi"].as_f64().unwrap() >= 8.0, "{missed:#}");
    let reason = missed["reason"].as_str().unwrap();
    assert!(reason.starts_with("no sign of life for "), "{reason}");
    let text = workspace.text("status topology.toml").lines.join("\n");
    assert!(
        text.contains("plant/c to plant/d: no sign of life for "),
        "{text}"
    );
    run.signal(Signal::INT);
    run.end();
}

/// "A cancel leaves no process behind." FATE#683, FATE#4040
#[test]
fn a_stopped_coordinator_does_not_keep_a_terminated_run_alive() {
    let topology = endless().replace("\"10min\"", "\"10min\"\nclose_limit = \"1s\"");
    let workspace = Workspace::new(&topology);
    let mut run = workspace.start("run topology.toml --processes");
    run.until_rounds(1);
    let coordinator = process_of(&workspace, "hq/gate");
    kill(coordinator, Signal::STOP);
    run.signal(Signal::TERM);
    // Every child holds the parent's standard error: its end is theirs.
    let output = run.end().expect(143);
    assert!(!output.lines.is_empty());
    let children = std::fs::read_dir("/proc").unwrap();
    let left = children.filter_map(|entry| {
        let words = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        let words = String::from_utf8_lossy(&words).into_owned();
        words
            .contains(&workspace.path().display().to_string())
            .then_some(words)
    });
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
}
