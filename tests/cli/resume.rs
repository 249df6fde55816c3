//! A state folder that cannot be gone on with: refused at once, saying what does not fit.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use crate::fixture::{Process, Workspace, hash_of, now, pinned};

/// Much more than a refusal takes, and less than nodes are given to hear that a run is over.
const AT_ONCE: Duration = Duration::from_millis(4500);
const TRIES: usize = 3;

/// A folder in which a run of two rounds came to its end.
fn ended() -> Workspace {
    let workspace = Workspace::new(&pinned(2));
    workspace.run("run topology.toml").expect(0);
    workspace
}

fn edit(workspace: &Workspace, change: impl Fn(&mut Value)) {
    let path = workspace.path().join("state/run.json");
    let mut run: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut run);
    std::fs::write(&path, run.to_string()).unwrap();
}

/// PhotoLabellerServer#11, northstar#254: both versions are shown, and which side to upgrade.
#[test]
fn a_run_of_another_format_is_refused_naming_both_versions() {
    let workspace = ended();
    for (format, advice) in [(9, "upgrade this program"), (0, "go on with that version")] {
        edit(&workspace, |run| {
            run["format"] = format.into();
            run["version"] = "7.8.9".into();
            // What this version needs may be gone.
            run.as_object_mut().unwrap().remove("configuration");
        });
        for mode in ["", "--processes"] {
            let command = format!("run topology.toml --resume {mode}");
            let said = workspace.run(&command).expect(2).errors();
            let ours = env!("CARGO_PKG_VERSION");
            for part in [
                "tombolo 7.8.9",
                &format!("format {format}"),
                ours,
                "format 1",
                advice,
            ] {
                assert!(said.contains(part), "{part}: {said}");
            }
        }
    }
}

#[test]
fn where_there_is_nothing_to_go_on_from_a_new_run_says_so() {
    let workspace = Workspace::new(&pinned(2));
    let said = workspace
        .run("run topology.toml --resume")
        .expect(0)
        .errors();
    assert!(
        said.contains("nothing to go on from") && said.contains("state"),
        "{said}"
    );
    let said = workspace
        .run("run topology.toml --resume")
        .expect(0)
        .errors();
    assert!(!said.contains("nothing to go on from"), "{said}");
}

#[test]
fn another_configuration_names_the_keys_that_differ() {
    let workspace = ended();
    let other = pinned(5)
        .replace("seed = 7", "seed = 8")
        .replace("quorum = \"all\"", "quorum = { nodes = 9 }");
    workspace.write("other.toml", &other);
    let refused = workspace.run("run other.toml --resume").expect(2).errors();
    let keys = "federation.rounds, federation.seed, round.quorum";
    assert!(
        refused.contains(&format!("differs in {keys};")),
        "{refused}"
    );
    // Written before there were keys in it.
    edit(&workspace, |run| {
        drop(run.as_object_mut().unwrap().remove("keys"))
    });
    let refused = workspace.run("run other.toml --resume").expect(2).errors();
    assert!(refused.contains("run.json does not tell"), "{refused}");
}

/// "A run that dies after submission shows as failed at once." FLIP#1001
#[test]
fn a_damaged_state_is_refused_at_once_naming_the_file_in_full() {
    let workspace = ended();
    let node = workspace.path().join("state/nodes/hq.gate");
    let states = std::fs::read_dir(node.join("states")).unwrap();
    let states: Vec<PathBuf> = states.map(|entry| entry.unwrap().path()).collect();
    for state in &states {
        std::fs::write(state.join("model.safetensors"), "nonsense").unwrap();
    }
    for mode in ["", "--processes"] {
        let refuse = || {
            let asked = now();
            let refused = workspace.run(&format!("run topology.toml --resume {mode}"));
            (now().duration_since(asked), refused.expect(1).errors())
        };
        // The machine may be busy with something else: the best of a few tries counts.
        let (mut took, said) = refuse();
        for _ in 1..TRIES {
            if took >= AT_ONCE {
                took = refuse().0;
            }
        }
        assert!(took < AT_ONCE, "{took:?} to refuse");
        let newest = states.iter().map(|state| state.join("model.safetensors"));
        let mut named = newest.map(|file| file.display().to_string());
        assert!(named.any(|file| said.contains(&file)), "{said}");
    }
    let refused = workspace.text("run topology.toml --resume").expect(1);
    assert_eq!(refused.lines, [""; 0], "it did not begin");
}

/// What keeps the report from being written hides nothing: whoever waits for it must still hear how the run ended.
#[test]
fn a_report_that_cannot_be_written_hides_no_other_reason() {
    let hurried = "\"300ms\"\nfailed_limit = 2\nclose_limit = \"1s\"";
    let far = "\n[[link]]\nbetween = [\"hq\", \"plant\"]\nemulate = { delay = \"5s\" }\n";
    let failing = pinned(5).replace("\"10min\"", hurried) + far;
    for (topology, code) in [(pinned(2), 1), (failing, 3)] {
        for arguments in ["--format json", "--format json --processes", ""] {
            let workspace = Workspace::new(&topology);
            std::fs::create_dir(workspace.path().join("state")).unwrap();
            let full = workspace.path().join("state/report.part");
            std::os::unix::fs::symlink("/dev/full", full).unwrap();
            let output = workspace.text(&format!("run topology.toml {arguments}"));
            let output = output.expect(code);
            let said = output.errors();
            let file = workspace.path().join("state/report.json");
            assert!(said.contains(&file.display().to_string()), "{output:#?}");
            assert!(said.contains("it is no regular file"), "{output:#?}");
            if code == 3 {
                assert!(said.contains("2 rounds in a row failed"), "{output:#?}");
            }
            let shown = output.lines.join("\n");
            let ended = shown.contains("\"event\":\"finished\"") || shown.contains("2 rounds: ");
            assert!(ended, "{output:#?}");
        }
    }
}

/// Field fault: a disk that takes nothing gives a clear error and follows the policy. It ends the run, naming the file; what was committed
/// stays, and once there is room the run goes on from it to the undisturbed model. pytorch-lightning#688, CellBender#253.
#[test]
fn a_disk_that_takes_nothing_ends_the_run_by_name_and_the_run_goes_on_later() {
    let workspace = Workspace::new(&pinned(90));
    let script = |before: &str, command: &str| {
        let mut shell = Command::new("bash");
        // Without the signal the write itself fails.
        let script = format!("trap '' XFSZ; {before} exec \"$0\" {command} --format json");
        shell
            .args(["-c", &script, env!("CARGO_BIN_EXE_tombolo")])
            .current_dir(workspace.path());
        Process::spawn(shell)
    };
    let state = workspace.path().join("state").display().to_string();
    let mut run = script("", "run topology.toml");
    // Once all shared memory is there: the limit would count that as files, too.
    run.until_rounds(5);
    let none = Rlimit {
        current: Some(0),
        maximum: None,
    };
    let pid = Pid::from_raw(run.id() as i32);
    prlimit(pid, Resource::Fsize, none).unwrap();
    let output = run.end().expect(1);
    let committed = output.events("round").len();
    assert!(committed < 90, "{output:#?}");
    let reason = output.finished()["reason"].as_str().unwrap().to_owned();
    for part in ["could not be ", &state, "File too large"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    let rest = workspace.run("run topology.toml --resume").expect(0);
    assert_eq!(rest.finished()["committed"], 90);
    assert_eq!(rest.hash(), hash_of(&pinned(90)));

    // Before anybody joins it is no different.
    std::fs::remove_dir_all(&state).unwrap();
    let output = script("ulimit -f 0;", "run topology.toml").end().expect(1);
    let said = output.errors();
    assert!(
        said.contains(&state) && said.contains("File too large"),
        "{said}"
    );
    assert_eq!(output.events("round").len(), 0);
}

/// Who knows a node's reset key can end its connections.
#[test]
fn a_reset_key_that_others_can_read_is_refused() {
    let workspace = ended();
    let key = workspace.path().join("state/nodes/plant.c/reset-key");
    let set = |mode| std::fs::set_permissions(&key, PermissionsExt::from_mode(mode)).unwrap();
    for mode in [0o640, 0o604, 0o620] {
        set(mode);
        let refused = workspace.run("run topology.toml --resume").expect(1);
        let said = refused.errors();
        let file = key.display().to_string();
        for part in [&file, &format!("mode is {mode:04o}"), "chmod 600"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    set(0o600);
    workspace.run("run topology.toml --resume").expect(0);
}
