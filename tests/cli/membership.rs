//! Who takes part, as `status` shows it and `readmit` changes it.

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Process, Workspace, kill, pinned, process_of};

/// Endless; who is silent for about two seconds is put out for ten minutes.
fn endless() -> String {
    let text = pinned(900_000).replace("quorum = \"all\"", "grace = \"100ms\"");
    assert!(text.contains("grace"));
    text + "\n[heartbeat]\nevery = \"100ms\"\nretry = [\"50ms\", \"50ms\"]\nrestore_limit = \"1s\"\n\
            cooldown = { first = \"10min\", cap = \"10min\" }\n"
}

/// What the process that hosts the coordinator says of the membership.
fn membership(workspace: &Workspace) -> Value {
    let output = workspace.run("status topology.toml");
    let mut all = output.events("status").into_iter();
    let knows = |status: &Value| status["nodes"][0]["coordinator"] == true;
    all.find(knows).expect("the coordinator's")["membership"].clone()
}

fn entry(membership: &Value, node: &str) -> Value {
    let nodes = membership["nodes"].as_array().unwrap();
    let found = nodes.iter().find(|entry| entry["node"] == node);
    found.unwrap_or_else(|| panic!("{membership:#}")).clone()
}

/// Asks again and again, while rounds go on.
#[track_caller]
fn until(run: &mut Process, workspace: &Workspace, node: &str, state: &str) -> Value {
    for rounds in 1..400 {
        let found = entry(&membership(workspace), node);
        if found["state"] == state {
            return found;
        }
        run.until_rounds(rounds);
    }
    panic!(
        "{node} does not become {state}: {:#}",
        membership(workspace)
    );
}

/// horovod#3319, hivemind#137: reason and end of a cool-down are visible, and the command line lifts it.
#[test]
fn status_shows_who_is_out_and_why_and_readmit_lets_it_in_again() {
    let workspace = Workspace::new(&endless());
    let mut run = workspace.start("run topology.toml --processes");
    run.until_rounds(1);
    let before = membership(&workspace);
    assert_eq!(before["epoch"], 1);
    assert_eq!(before["coordinator"], "hq/gate");
    assert_eq!(before["gateways"]["plant"], "plant/gate");
    assert_eq!(before["nodes"].as_array().unwrap().len(), 9);

    kill(process_of(&workspace, "plant/d"), Signal::KILL);
    let out = until(&mut run, &workspace, "plant/d", "evicted");
    let left = out["left_s"].as_f64().unwrap();
    assert!((500.0..=600.0).contains(&left), "{out:#}");
    let reason = out["reason"].as_str().unwrap();
    assert!(reason.contains("whole ladder"), "{reason}");
    let text = workspace.text("status topology.toml").lines.join("\n");
    assert!(
        text.contains("epoch 2; coordinator hq/gate; gateways ") && text.contains(" s left"),
        "{text}"
    );

    let unknown = workspace
        .run("readmit plant/z topology.toml")
        .expect(2)
        .errors();
    assert!(unknown.contains("no node plant/z"), "{unknown}");
    let active = workspace
        .run("readmit hq/a topology.toml")
        .expect(1)
        .errors();
    assert!(active.contains("hq/a is active, not evicted"), "{active}");

    let mut back = workspace.start("node --name plant/d topology.toml");
    let lifted = workspace.run("readmit plant/d topology.toml").expect(0);
    assert_eq!(lifted.events("readmitted")[0]["node"], "plant/d");
    until(&mut run, &workspace, "plant/d", "active");
    let again = workspace.run("readmit plant/d topology.toml").expect(1);
    assert!(again.errors().contains("not evicted"), "{again:#?}");
    assert!(!back.ended_within(std::time::Duration::ZERO));
    run.signal(Signal::INT);
    run.end().expect(130);
    back.end();
}

#[test]
fn readmit_says_where_the_coordinator_is_not() {
    let workspace = Workspace::new(&endless());
    let nobody = workspace
        .run("readmit plant/d topology.toml")
        .expect(1)
        .errors();
    assert!(nobody.contains("no coordinator runs in"), "{nobody}");
    workspace.run("certs init topology.toml").expect(0);
    workspace
        .run("certs issue topology.toml --node plant/c")
        .expect(0);
    let mut node = workspace.start_with(
        "node --name plant/c topology.toml",
        "tombolo::federation=debug",
    );
    node.until("its start", |seen| seen.errors().contains("NodeStarted"));
    let told = (0..100).find_map(|_| {
        let said = workspace
            .run("readmit plant/d topology.toml")
            .expect(1)
            .errors();
        said.contains("it is hq/gate, elsewhere").then_some(said)
    });
    let told = told.expect("its process says who coordinates");
    assert!(told.contains("run this where it runs"), "{told}");
    node.signal(Signal::INT);
    node.end().expect(130);
}
