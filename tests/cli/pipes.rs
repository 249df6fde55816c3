//! Topologies that are no plain files: pipes, devices, and what has no end.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::fixture::{Output, Process, Workspace, hash_of, pinned};

/// Runs `tombolo` as a shell would with `FILE` from a process substitution: `$(cat topology.toml)` through `/dev/fd/N`.
fn piped(workspace: &Workspace, arguments: &str) -> Output {
    let script = format!(
        "exec \"$0\" {} --format json",
        arguments.replace("PIPE", "<(cat topology.toml)")
    );
    let mut command = Command::new("bash");
    command
        .args(["-c", &script, env!("CARGO_BIN_EXE_tombolo")])
        .env("NO_COLOR", "1")
        .current_dir(workspace.path());
    Process::spawn(command).end()
}

/// siphon-sip#177: relative paths start where the file lies; a pipe lies nowhere, so they start where the command runs.
#[test]
fn a_topology_may_come_through_a_pipe_to_every_command() {
    let workspace = Workspace::new(&pinned(2));
    let checked = piped(&workspace, "check PIPE").expect(0);
    let state = workspace.path().join("state").display().to_string();
    assert_eq!(checked.events("checked")[0]["facts"]["state"], state);
    piped(&workspace, "certs init PIPE").expect(0);
    assert!(workspace.path().join("certs/hq.pem").exists());
    piped(&workspace, "sim PIPE").expect(0);
    let here = piped(&workspace, "run PIPE").expect(0);
    assert_eq!(here.hash(), hash_of(&pinned(2)));
    let apart = piped(&workspace, "run PIPE --processes --state apart").expect(0);
    assert_eq!(apart.hash(), here.hash());
    piped(&workspace, "node --name hq/z PIPE").expect(2);
    piped(&workspace, "status PIPE").expect(1);
}

#[test]
fn a_topology_on_standard_input_is_one_too() {
    let workspace = Workspace::new("");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command
        .args(["check", "/dev/stdin", "--format", "json"])
        .current_dir(workspace.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(pinned(2).as_bytes()).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn a_device_without_an_end_is_refused_at_once_by_every_command() {
    let workspace = Workspace::new("");
    for command in [
        "check /dev/zero",
        "run /dev/zero",
        "run /dev/zero --processes",
        "node --name hq/a /dev/zero",
        "sim /dev/zero",
        "certs show /dev/zero",
        "status /dev/zero",
    ] {
        let output = workspace.run(command).expect(2);
        let said = output.lines.join("\n");
        assert!(
            said.contains("the topology /dev/zero is larger than 4194304 bytes"),
            "{command}: {output:#?}"
        );
    }
    let nothing = workspace.run("check /dev/null").expect(2);
    let said = nothing.lines.join("\n");
    assert!(said.contains("nothing came out of it"), "{said}");
}
