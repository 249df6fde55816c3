//! `tombolo status` and the socket behind it.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;

use crate::fixture::{Output, Workspace, pinned};

/// "Waiting for nodes is never silent: status shows have / need / time left." flower#4147, FLIP#992
#[test]
fn status_says_that_rounds_are_asynchronous_and_how_many_updates_close_one() {
    let mode = "quorum = { nodes = 2 }\nmode = \"async\"\nbuffer = 3";
    let workspace = Workspace::new(&pinned(999_999).replace("quorum = \"all\"", mode));
    let mut run = workspace.start("run topology.toml");
    run.until_rounds(1);
    let told = |output: &Output| {
        let rounds = output.events("status")[0]["rounds"].clone();
        assert_eq!(rounds["mode"], "async", "{rounds}");
        rounds["open"]["buffer"] == 3
    };
    // Between two rounds none is open.
    let found = (0..200).any(|_| told(&workspace.run("status topology.toml").expect(0)));
    assert!(found);
    let text = workspace.text("status topology.toml").expect(0);
    let says = |line: &String| line.contains("asynchronous");
    assert!(text.lines.iter().any(says), "{text:#?}");
    run.signal(Signal::INT);
    run.end().expect(130);
}

#[test]
fn status_shows_what_runs() {
    // Calm enough that no peer is suspected on a machine that does much else.
    let calm = "\n[heartbeat]\nevery = \"5s\"\n";
    let workspace = Workspace::new(&(pinned(999_999) + calm));
    let nothing = workspace.run("status topology.toml").expect(1);
    let full = workspace.path().join("state").display().to_string();
    assert!(
        nothing
            .errors()
            .contains(&format!("nothing runs in the state folder {full}"))
    );

    let mut run = workspace.start("run topology.toml");
    run.until_rounds(2);
    let output = workspace.run("status topology.toml").expect(0);
    let status = &output.events("status")[..];
    assert_eq!(status.len(), 1);
    let status = &status[0];
    assert_eq!(status["process"], run.id());
    assert_eq!(status["rounds"]["mode"], "sync");
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 9);
    assert!(
        nodes
            .iter()
            .all(|node| node["certificate_s"].as_u64().unwrap() > 6 * 86_400)
    );
    assert_eq!(
        nodes
            .iter()
            .filter(|node| node["coordinator"] == true)
            .count(),
        1
    );
    let links = status["links"].as_array().unwrap();
    // In each of three domains three pairs, and two domains to the coordinator's; each seen from both ends.
    assert_eq!(links.len(), 2 * (3 * 3 + 2));
    assert!(links.iter().all(|link| link["state"] == "up"), "{links:#?}");
    for link in links {
        assert_eq!(link["rung"], "alive", "{link:#}");
        assert_eq!(link["reason"], serde_json::Value::Null, "{link:#}");
        assert!(link["phi"].as_f64().unwrap() < 8.0, "{link:#}");
        assert!(link["packet_bytes"].as_u64().unwrap() >= 1200, "{link:#}");
    }
    assert_eq!(status["actors"]["Link"], 22);
    assert_eq!(status["actors"]["Coordinator"], 1);
    assert_eq!(status["rounds"]["planned"], 999_999);
    assert!(status["rounds"]["ended"].as_u64().unwrap() >= 2);
    assert!(status["rounds"]["accuracy"].as_f64().unwrap() > 0.5);

    let text = workspace
        .text("status --state state")
        .expect(0)
        .lines
        .join("\n");
    assert!(
        text.contains("of 999999 rounds done; accuracy 0."),
        "{text}"
    );
    assert!(
        text.contains(" h left") && text.contains("plant/gate"),
        "{text}"
    );
    run.signal(Signal::TERM);
    run.end().expect(143);
    workspace.run("status topology.toml").expect(1);
}

#[test]
fn a_node_alone_shows_what_it_waits_for() {
    let workspace = Workspace::new(&pinned(2));
    workspace.run("certs init topology.toml").expect(0);
    workspace
        .run("certs issue topology.toml --node hq/gate")
        .expect(0);
    // Longer than a socket address can hold.
    let state = format!("{}/{}", "long".repeat(30), "state".repeat(20));
    let mut run = workspace.start_with(
        &format!("node --name hq/gate topology.toml --state {state}"),
        "tombolo::federation=debug",
    );
    run.until("an open round", |seen| {
        seen.errors().contains("RoundOpened")
    });
    run.until("what it waits for", |seen| {
        seen.lines
            .iter()
            .any(|line| line.contains("\"node_waits\""))
    });
    // The round's opening is told a moment before it can be seen.
    let shown = (0..100).any(|_| {
        let text = workspace
            .text(&format!("status --state {state}"))
            .lines
            .join("\n");
        text.contains("round 1: ") && text.contains(" of 9 reports, ")
    });
    assert!(shown, "status does not show the open round");
    let status = workspace.run(&format!("status --state {state}"));
    let waits = &status.events("status")[0]["nodes"][0]["waits"];
    assert_eq!(waits["missing"].as_array().unwrap().len(), 4, "{waits}");
    assert_eq!(waits["missing"][0]["node"], "hq/a");
    assert_eq!((&waits["have"], &waits["need"]), (&0.into(), &4.into()));
    assert_eq!(waits["round"], 1);
    assert!((1..600).contains(&waits["left_s"].as_u64().unwrap()));
    run.signal(Signal::INT);
    let output = run.end().expect(130);
    let said = &output.events("node_waits")[0];
    assert_eq!(said["missing"], waits["missing"], "{said}");
}

#[test]
fn the_socket_is_its_owners_and_refuses_what_it_does_not_know() {
    let workspace = Workspace::new(&pinned(999_999));
    let mut run = workspace.start("run topology.toml");
    run.until_rounds(1);
    let path = workspace.path().join("state/run/control-hq.a.sock");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let long = format!("{{\"request\":\"status\"{}}}\n", " ".repeat(5000));
    for request in [
        "nonsense\n",
        "{\"request\":\"stop\"}\n",
        "\n",
        long.as_str(),
    ] {
        let mut stream = UnixStream::connect(&path).unwrap();
        // It may stop reading before we are done.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let refused = answer.starts_with("{\"response\":\"error\"");
        // Unread bytes make the kernel drop the answer to a request that is too long.
        assert!(
            refused || (answer.is_empty() && request.len() > 4096),
            "{request}: {answer}"
        );
    }
    // One that says nothing is sent away and holds nobody up for long.
    let _silent = UnixStream::connect(&path).unwrap();
    workspace.run("status topology.toml").expect(0);
    run.signal(Signal::INT);
    run.end().expect(130);
}
