//! What stops a start: FIELD_FAULTS, "Configuration".

use std::net::UdpSocket;

use crate::fixture::{Workspace, pinned};

/// "Port taken: exit within seconds, before joining, naming the port." caikit#87, NVFlare#2952, CorfuDB#1860
#[test]
fn a_taken_port_is_named_and_no_run_is_left_behind() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let nodes = format!(
        "[[domain.node]]\nname = \"gate\"\n[[domain.node]]\nname = \"a\"\nlisten = \"{address}\""
    );
    let topology = pinned(2).replace("nodes = [\"gate\", \"a\", \"b\"]", &nodes);
    let workspace = Workspace::new(&topology);
    for command in ["run topology.toml", "run topology.toml --processes"] {
        let output = workspace.run(command).expect(1);
        let said = output.errors();
        assert!(said.contains(&address) && said.contains("hq/a"), "{said}");
        assert_eq!(output.events("error").len(), 1, "{output:#?}");
    }
    drop(taken);
    workspace.run("run topology.toml").expect(0);
}

/// "State folder not writable: ... naming the folder." caikit#87, NVFlare#2952, CorfuDB#1860
#[test]
fn a_state_folder_that_cannot_be_made_is_named_in_full() {
    let workspace = Workspace::new(&pinned(2));
    workspace.write("file", "");
    for command in ["run topology.toml", "run topology.toml --processes"] {
        let output = workspace
            .run(&format!("{command} --state file/state"))
            .expect(1);
        let full = workspace.path().join("file/state").display().to_string();
        assert!(output.errors().contains(&full), "{output:#?}");
    }
}

/// "File missing: ... naming the full resolved path." caikit#87, NVFlare#2952, CorfuDB#1860
#[test]
fn a_missing_topology_is_named_in_full() {
    let workspace = Workspace::new("");
    for command in ["run no.toml", "node --name hq/a no.toml", "status no.toml"] {
        let output = workspace.run(command).expect(2);
        let full = workspace.path().join("no.toml").display().to_string();
        assert!(output.lines.join("").contains(&full), "{output:#?}");
    }
}

/// "An unknown, misplaced or repeated TOML key stops the start." telemt#760, moraine#34, amppackager#130
#[test]
fn a_mistake_in_the_topology_is_exit_2_everywhere() {
    let workspace = Workspace::new(&pinned(2).replace("rounds =", "round ="));
    for command in [
        "run topology.toml",
        "run topology.toml --processes",
        "node --name hq/a topology.toml",
        "check topology.toml",
        "certs show topology.toml",
    ] {
        let output = workspace.run(command).expect(2);
        assert!(output.lines.join("").contains("rounds"), "{output:#?}");
    }
    workspace.run("run").expect(2);
}

#[test]
fn a_folder_in_use_or_with_another_run_is_refused() {
    let workspace = Workspace::new(&pinned(100_000));
    workspace.write("other.toml", &pinned(2));
    let mut first = workspace.start("run topology.toml");
    first.until_rounds(1);
    for command in [
        "run topology.toml",
        "run topology.toml --resume --processes",
    ] {
        let second = workspace.run(command).expect(2);
        assert!(second.errors().contains("in use"), "{second:#?}");
    }
    first.signal(rustix::process::Signal::INT);
    let first = first.end().expect(130);
    let before = first.events("round").len();
    let again = workspace.run("run topology.toml").expect(2);
    assert!(again.errors().contains("--resume"), "{again:#?}");
    let other = workspace.run("run other.toml --resume").expect(2);
    assert!(
        other.errors().contains("another configuration"),
        "{other:#?}"
    );
    let report = std::fs::read_to_string(workspace.path().join("state/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["rounds"].as_array().unwrap().len(), before);
}

/// Exit 3 is a word of the run and not of the command, and the last line of JSON is `finished` however a run ends.
#[test]
fn a_quorum_that_never_comes_is_exit_3_of_every_command() {
    let far = "\n[[link]]\nbetween = [\"hq\", \"plant\"]\nemulate = { delay = \"5s\" }\n";
    let limits = "\"1s\"\nfailed_limit = FAILS\nclose_limit = \"1s\"";
    for (fails, reason) in [(1, true), (9, false)] {
        let limits = limits.replace("FAILS", &fails.to_string());
        let workspace = Workspace::new(&(pinned(2).replace("\"10min\"", &limits) + far));
        for command in [
            "sim topology.toml",
            "run topology.toml --state one",
            "run topology.toml --processes --state two",
        ] {
            let output = workspace.run(command).expect(3);
            assert_eq!(output.finished().get("reason").is_some(), reason);
            let last = output.lines.last().unwrap();
            assert!(last.contains("\"event\":\"finished\""), "{output:#?}");
            let said = output.errors();
            assert!(said.contains("no round met its quorum"), "{output:#?}");
        }
    }
}

/// "Waiting for nodes is never silent or endless: at the deadline the exit is non-zero." flower#4147, FLIP#992
#[test]
fn a_quorum_that_never_comes_is_exit_3() {
    let topology = pinned(2).replace(
        "\"10min\"",
        "\"300ms\"\nfailed_limit = 2\nclose_limit = \"1s\"",
    );
    let workspace = Workspace::new(&topology);
    let none = workspace.run("node --name hq/gate topology.toml").expect(1);
    assert!(none.errors().contains("hq"), "{none:#?}");
    workspace.run("certs init topology.toml").expect(0);
    workspace
        .run("certs issue topology.toml --node hq/gate")
        .expect(0);
    let alone = workspace.run("node --name hq/gate topology.toml").expect(3);
    assert_eq!(alone.finished()["aborted"], 2);
    assert_eq!(alone.events("round")[0]["state"], "aborted");
    assert!(
        alone.errors().contains("no round met its quorum"),
        "{alone:#?}"
    );
    let text = workspace
        .text("node --name hq/gate topology.toml --state other")
        .expect(3);
    assert!(
        text.errors().contains("no address of hq/gate, hq/a") && text.errors().contains("listen ="),
        "{text:#?}"
    );
    let unknown = workspace.run("node --name hq/z topology.toml").expect(2);
    assert!(unknown.errors().contains("hq/z"), "{unknown:#?}");
}

#[test]
fn a_partition_is_shown_before_anybody_trains_on_it() {
    for (partition, is_skewed) in [
        ("kind = \"iid\"", false),
        ("kind = \"shards\"", true),
        ("kind = \"dirichlet\", alpha = 0.1", true),
        (
            "kind = \"clients\", file = \"clients.csv\", column = \"client_id\"",
            false,
        ),
    ] {
        let workspace = Workspace::new(&pinned(2).replace("kind = \"iid\"", partition));
        let clients: Vec<String> = (0..1797)
            .map(|row| format!("{row},c{}\n", row % 40))
            .collect();
        let column = format!("row,client_id\n{}", clients.concat());
        workspace.write("clients.csv", &column);
        let told = workspace.run("check topology.toml --partition").expect(0);
        let dealt: serde_json::Value = serde_json::from_str(told.lines.last().unwrap()).unwrap();
        assert_eq!(dealt["event"], "partition");
        let nodes = dealt["nodes"].as_array().unwrap();
        let rows = nodes.iter().map(|node| node["rows"].as_u64().unwrap());
        assert_eq!((nodes.len(), rows.sum()), (9, 1438), "{dealt}");
        let skew = dealt["skew"].as_f64().unwrap();
        assert_eq!(skew > 0.3, is_skewed, "{partition}: {skew}");
    }
}
