//! What a terminal would obey never reaches one, wherever it stood: in the file, in its name, in an argument.

use std::process::Command;

use crate::fixture::{Output, Process, Workspace, pinned};

fn is_hidden(c: char) -> bool {
    c.is_control() || c == '\u{202e}'
}

fn run(workspace: &Workspace, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command
        .args(arguments)
        .env("NO_COLOR", "1")
        .current_dir(workspace.path());
    Process::spawn(command).end()
}

#[track_caller]
fn assert_visible(output: &Output) {
    for line in output.lines.iter().chain(&output.errors) {
        assert!(!line.contains(is_hidden), "{output:#?}");
    }
}

#[test]
fn a_hostile_topology_is_shown_and_not_obeyed() {
    let clear = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\u{0}\r";
    for text in [
        format!("{clear} = 1\n"),
        format!("# {clear}\n[federation]\nname = \"{}\"\n", "\\u009b2J"),
        pinned(2).replace("rounds = 2", &format!("rouns = 2 # {clear}")),
        pinned(2).replace("kind = \"fedavg\"", "kind = \"\\u001b[2J\\u009b\""),
        pinned(2).replace("\"gate\", \"c\"", "\"gate\", \"\\u202ec\\u001b\\u009b\""),
    ] {
        let workspace = Workspace::new(&text);
        for command in ["check", "run", "sim"] {
            for format in ["text", "json"] {
                let output = run(&workspace, &[command, "topology.toml", "--format", format]);
                let output = output.expect(2);
                assert_visible(&output);
                if format == "json" {
                    assert!(!output.events("mistake").is_empty(), "{output:#?}");
                } else {
                    assert!(output.errors().contains("topology.toml"), "{output:#?}");
                }
            }
        }
    }
}

#[test]
fn hostile_names_of_files_and_arguments_are_shown_and_not_obeyed() {
    let workspace = Workspace::new("");
    let name = "a\u{1b}[2J\u{9b}b\nerror: owned.toml";
    workspace.write(name, &pinned(2));
    for (arguments, code) in [
        (&["check", name][..], 0),
        (&["check", "no\u{1b}[2J.toml"], 2),
        (&["certs", "show", name], 1),
        (
            &[
                "run",
                name,
                "--state",
                "\u{1b}[2J\u{0}".trim_end_matches('\u{0}'),
                "--resume\u{1b}",
            ],
            2,
        ),
        (&["run", "--\u{1b}[2J", name], 2),
        (&["node", "--name", "\u{1b}[2J", name], 2),
        (&["sim", name, "--seed", "\u{9b}1"], 2),
    ] {
        for format in ["text", "json"] {
            let output = run(&workspace, &[arguments, &["--format", format]].concat());
            assert_visible(&output.expect(code));
        }
    }
    let checked = run(&workspace, &["check", name]).expect(0);
    assert!(checked.lines.join("").contains("pinned"), "{checked:#?}");
}

/// What a peer or a library says reaches the log, too.
#[test]
fn the_log_is_visible_as_well() {
    let workspace = Workspace::new(&pinned(1));
    let state = "\u{1b}[2J\u{9b}state";
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command
        .args(["run", "topology.toml", "--state", state])
        .env("TOMBOLO_LOG", "debug")
        .env("NO_COLOR", "1")
        .current_dir(workspace.path());
    let output = Process::spawn(command).end().expect(0);
    assert!(output.errors().contains("\\u{1b}[2J"), "{output:#?}");
    assert_visible(&output);
}
