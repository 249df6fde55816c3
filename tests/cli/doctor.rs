//! `tombolo doctor`: a machine as it is, and with trouble made on purpose. Each verdict by itself is tested in `src/doctor/tests.rs`.

use std::net::UdpSocket;

use serde_json::Value;

use crate::fixture::{Output, Workspace, pinned};

fn check(output: &Output, check: &str, verdict: &str) -> Option<Value> {
    let mut all = output.events("check").into_iter();
    all.find(|finding| finding["check"] == check && finding["verdict"] == verdict)
}

#[test]
fn a_machine_that_can_run_nodes_passes_and_one_that_cannot_is_told_why() {
    let workspace = Workspace::new(&pinned(1));
    workspace.run("certs init topology.toml").expect(0);
    workspace
        .run("certs issue topology.toml --node hq/gate")
        .expect(0);
    let sound = workspace.run("doctor topology.toml").expect(0);
    for name in ["kernel", "memfd", "descriptors", "disk", "certificate"] {
        assert!(check(&sound, name, "fail").is_none(), "{sound:#?}");
        assert!(
            check(&sound, name, "pass")
                .or(check(&sound, name, "warn"))
                .is_some(),
            "{sound:#?}"
        );
    }
    assert_eq!(sound.events("doctor")[0]["fail"], 0);
    let text = workspace.text("doctor topology.toml");
    assert!(
        text.lines
            .iter()
            .any(|line| line.starts_with("PASS  kernel")),
        "{text:#?}"
    );
    workspace.run("doctor").expect(0);

    // caikit#87, NVFlare#2952: the port, the folder and the certificate by name, before anybody joins.
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let tables = format!(
        "name = \"lab\"\n[[domain.node]]\nname = \"gate\"\nlisten = \"{address}\"\n[[domain.node]]\nname = \"e\"\n[[domain.node]]\nname = \"f\"\n"
    );
    let text = pinned(1).replace(
        "name = \"lab\"\nnodes = [\"gate\", \"e\", \"f\"]\n",
        &tables,
    );
    assert_ne!(text, pinned(1));
    workspace.write("topology.toml", &text);
    workspace.write("file", "");
    let troubled = workspace
        .run("doctor topology.toml --name lab/gate --state file")
        .expect(1);
    for (name, word) in [
        ("port", address.to_string()),
        ("state folder", "file".into()),
    ] {
        let found = check(&troubled, name, "fail").unwrap_or_else(|| panic!("{troubled:#?}"));
        assert!(found["found"].as_str().unwrap().contains(&word), "{found}");
        assert!(!found["fix"].as_str().unwrap().is_empty());
    }
    // The one that has the port says nothing: a peer that is silent.
    let dialled = workspace
        .run("doctor topology.toml --name hq/gate")
        .expect(0);
    assert!(check(&dialled, "peer", "fail").is_none(), "{dialled:#?}");
    let dialling = workspace.run("doctor topology.toml --name lab/e").expect(1);
    let silent = check(&dialling, "peer", "fail").unwrap_or_else(|| panic!("{dialling:#?}"));
    assert!(
        silent["found"]
            .as_str()
            .unwrap()
            .contains("does not answer"),
        "{silent}"
    );
    let unknown = workspace.run("doctor topology.toml --name lab/x").expect(2);
    assert!(unknown.errors().contains("lab/x"), "{unknown:#?}");
}
