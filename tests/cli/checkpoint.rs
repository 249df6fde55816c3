//! `tombolo checkpoint`: what is listed, what is found out, and what is copied.

use std::path::PathBuf;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use crate::fixture::{Output, Workspace, pinned};

/// Three rounds, run.
fn ran() -> Workspace {
    let workspace = Workspace::new(&pinned(3));
    workspace.run("run topology.toml").expect(0);
    workspace
}

fn model(workspace: &Workspace, round: u64) -> PathBuf {
    let states = workspace.path().join("state/nodes/hq.gate/states");
    let mut states = std::fs::read_dir(states).unwrap();
    let begins = format!("{round:06}-");
    let state = states
        .find_map(|state| {
            let state = state.unwrap();
            let is = state.file_name().to_str().unwrap().starts_with(&begins);
            is.then(|| state.path())
        })
        .unwrap();
    state.join("model.safetensors")
}

/// Changes one bit of a round's model.
fn damage(workspace: &Workspace, round: u64) {
    let path = model(workspace, round);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn rounds(output: &Output) -> Vec<(u64, bool)> {
    let lines = output.events("checkpoint");
    let of = |line: &Value| (line["round"].as_u64().unwrap(), line["verified"] == true);
    lines.iter().map(of).collect()
}

#[test]
fn every_round_is_listed_with_its_model_and_copied_out() {
    let workspace = ran();
    let listed = workspace.run("checkpoint list topology.toml").expect(0);
    assert_eq!(rounds(&listed), [(1, true), (2, true), (3, true)]);
    let last = listed.events("checkpoint").pop().unwrap();
    assert_eq!(last["state"], "committed");
    assert!(last["bytes"].as_u64().unwrap() > 1000, "{last}");
    workspace.run("checkpoint verify topology.toml").expect(0);

    let copied = workspace.run("checkpoint restore topology.toml --to out.safetensors");
    assert_eq!(copied.expect(0).events("restored")[0]["round"], 3);
    let bytes = |path: PathBuf| std::fs::read(path).unwrap();
    let out = workspace.path().join("out.safetensors");
    assert_eq!(bytes(out.clone()), bytes(model(&workspace, 3)));

    // Nothing is overwritten unless that is asked for.
    let again = "checkpoint restore topology.toml --round 1 --to out.safetensors";
    let refused = workspace.run(again).expect(1);
    assert!(refused.errors().contains("--overwrite"), "{refused:#?}");
    assert_eq!(bytes(out.clone()), bytes(model(&workspace, 3)));
    workspace.run(&format!("{again} --overwrite")).expect(0);
    assert_eq!(bytes(out), bytes(model(&workspace, 1)));

    std::fs::create_dir(workspace.path().join("folder")).unwrap();
    workspace
        .run("checkpoint restore topology.toml --round 2 --to folder")
        .expect(0);
    let inside = workspace.path().join("folder/model.safetensors");
    assert_eq!(bytes(inside), bytes(model(&workspace, 2)));
}

/// cosmos-rl#232, robots#3165, pytorch#126952: the newest is the newest that verifies, and what is passed over is named with the reason.
#[test]
fn a_damaged_state_is_named_and_the_one_before_it_is_copied_but_not_resumed_from() {
    let workspace = ran();
    damage(&workspace, 3);
    let named = |output: &Output| {
        let said = output.errors();
        said.contains("states/000003-") && said.contains("hash")
    };
    let listed = workspace.run("checkpoint list topology.toml").expect(0);
    assert_eq!(rounds(&listed), [(1, true), (2, true), (3, false)]);
    let verified = workspace.run("checkpoint verify topology.toml").expect(1);
    assert!(named(&verified), "{verified:#?}");

    let copied = workspace
        .run("checkpoint restore topology.toml --to .")
        .expect(0);
    assert_eq!(copied.events("restored")[0]["round"], 2);
    assert!(named(&copied), "{copied:#?}");
    let asked = workspace.run("checkpoint restore topology.toml --round 3 --to three");
    assert!(named(&asked.expect(1)));

    // STORE-2: round 3 was announced; no run goes on from before it.
    let resumed = workspace.run("run topology.toml --resume").expect(1);
    let said = resumed.errors();
    assert!(
        said.contains("the state of round 3") && said.contains("the model of round 2"),
        "{said}"
    );
}

/// What is no file of ours is named; nothing waits for what never comes through it.
#[test]
fn a_pipe_in_the_state_folder_is_refused_by_name() {
    let workspace = ran();
    let state = workspace.path().join("state");
    let pipe = |path: PathBuf| {
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    };
    let record = pipe(state.join("nodes/hq.gate/commits/000002.json"));
    for (command, code) in [("list", 0), ("verify", 1)] {
        let output = workspace.run(&format!("checkpoint {command} topology.toml"));
        let said = format!("{:?}", output.expect(code));
        assert!(
            said.contains("000002.json") && said.contains("no regular file"),
            "{said}"
        );
    }
    std::fs::remove_file(record).unwrap();
    for name in ["events.jsonl", "run.json", "run.lock"] {
        pipe(state.join(name));
        let refused = workspace.run("run topology.toml --resume");
        let said = refused.errors();
        assert_ne!(refused.code(), 0);
        assert!(
            said.contains(name) && said.contains("no regular file"),
            "{said}"
        );
    }
}

/// Of records that are missing the first is listed; whoever asks for another one is told of the gap.
#[test]
fn a_round_within_a_gap_has_ended_and_its_record_is_missing() {
    let workspace = ran();
    let commits = workspace.path().join("state/nodes/hq.gate/commits");
    for round in [1, 2] {
        std::fs::remove_file(commits.join(format!("00000{round}.json"))).unwrap();
    }
    for (round, said) in [(1, "missing"), (2, "missing"), (4, "has not ended")] {
        let restored = workspace.run(&format!(
            "checkpoint restore topology.toml --round {round} --to out"
        ));
        let errors = restored.expect(1).errors();
        assert!(errors.contains(said), "{round}: {errors}");
    }
}

#[test]
fn a_folder_without_a_round_is_said_to_be_one() {
    let workspace = Workspace::new(&pinned(3));
    let refused = workspace.run("checkpoint list topology.toml").expect(1);
    assert!(
        refused.errors().contains("no round has ended"),
        "{refused:#?}"
    );
}
