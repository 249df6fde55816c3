//! A node as a service of its machine: what its supervisor hears, what a hangup does, and what becomes of a disk that takes nothing any more.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::fixture::{Output, Process, Workspace, hash_of, now};
use crate::fleet::Fleet;

/// Only failures wait so long.
const PATIENCE: Duration = Duration::from_secs(120);

fn alone(rounds: u64, sync_every: u64) -> String {
    format!(
        r#"
    [federation]
    name = "alone"
    rounds = {rounds}
    sync_every = {sync_every}
    [round]
    quorum = "all"
    [model]
    trainer = "digits-softmax"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
"#
    )
}

/// The words of `sd_notify(3)`, from a real node.
#[test]
fn a_supervisor_hears_that_a_node_is_there_lives_and_leaves() {
    let fleet = Fleet::idle(&alone(900_000, 50));
    let path = fleet.workspace.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command
        .args(["node", "--name", "hq/gate", "topology.toml"])
        .args(["--format", "json"])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000")
        .env_remove("WATCHDOG_PID")
        .current_dir(fleet.workspace.path());
    let node = Process::spawn(command);
    let hear = || {
        let mut buffer = [0; 512];
        let bytes = socket.recv(&mut buffer).expect("a word in time");
        String::from_utf8(buffer[..bytes].to_vec()).unwrap()
    };
    assert_eq!(hear(), "READY=1\nSTATUS=hq/gate");
    for _ in 0..5 {
        assert_eq!(hear(), "WATCHDOG=1");
    }
    node.signal(Signal::TERM);
    let until = now() + PATIENCE;
    let mut last = hear();
    while last == "WATCHDOG=1" && now() < until {
        last = hear();
    }
    assert_eq!(last, "STOPPING=1");
    let ended = node.end();
    assert_eq!(ended.finished()["reason"], "terminated", "{ended:#?}");
}

/// lance#8456, nats.go#1363: a hangup ends nothing, and the renewed certificate is the one that is shown.
#[test]
fn a_hangup_picks_up_a_renewed_certificate_and_ends_nothing() {
    let two = alone(900_000, 50) + "[[domain]]\nname = \"plant\"\nnodes = [\"gate\"]\n";
    let mut fleet = Fleet::start(&two);
    fleet.more_rounds(1);
    let said = |fleet: &mut Fleet, what: &str| {
        let output = fleet.process("hq/gate").listen(Duration::ZERO);
        output
            .errors
            .iter()
            .filter(|line| line.contains(what))
            .count()
    };
    for turn in 1..=3 {
        fleet
            .workspace
            .run("certs rotate topology.toml --node hq/gate")
            .expect(0);
        fleet.signal("hq/gate", Signal::HUP);
        fleet.until_true("the new certificate", |fleet| {
            said(fleet, "CertificateRotated") == turn
        });
        fleet.more_rounds(1);
    }
    assert_eq!(said(&mut fleet, "LinkDown"), 0);
    fleet.stop();
}

/// Where a user may mount something over a folder of its own.
fn may_mount() -> bool {
    let tried = Command::new("unshare")
        .args(["-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"])
        .output();
    let may = tried.is_ok_and(|tried| tried.status.success());
    if !may {
        println!("a small disk cannot be had here: no mounts in a namespace of one's own");
    }
    may
}

/// What a script says that runs the program, `$0`, over a disk of its own at `state`; after each run a line with its code.
fn over_a_disk(workspace: &Workspace, script: &str) -> Output {
    let mut command = Command::new("unshare");
    command
        .args(["-rm", "bash", "-c", script, env!("CARGO_BIN_EXE_tombolo")])
        .env("NO_COLOR", "1")
        .current_dir(workspace.path());
    Process::spawn(command).end()
}

/// The run ended by itself, said why, and kept what it had committed; then it went on to the model of a run that nobody disturbed.
#[track_caller]
fn ended_and_went_on(output: &Output, why: &str, topology: &str) {
    let codes: Vec<Value> = output
        .events("code")
        .into_iter()
        .map(|code| code["code"].clone())
        .collect();
    assert_eq!(codes, [1, 0, 0], "{output:#?}");
    let finished = output.events("finished");
    let [stopped, whole] = &finished[..] else {
        panic!("{output:#?}");
    };
    let reason = stopped["reason"].as_str().unwrap();
    assert!(
        reason.contains(why) && reason.contains("round "),
        "{reason}"
    );
    assert!(stopped["committed"].as_u64().unwrap() >= 3, "{stopped}");
    let place = output
        .errors
        .iter()
        .find(|line| line.contains("error: ") && line.contains(why));
    assert!(
        place.is_some_and(|line| line.contains("state/")),
        "{output:#?}"
    );
    assert_eq!(whole["reason"], Value::Null, "{whole}");
    assert_eq!(whole["model_hash"], *hash_of(topology), "{whole}");
}

/// CellBender#253, dddd_trainer#36: a full disk gives a clear error, the last checkpoint is whole, and with room the run goes on from it.
#[test]
fn a_full_disk_ends_the_run_with_its_name_and_with_room_it_goes_on() {
    if !may_mount() {
        return;
    }
    let topology = alone(120, 1);
    let workspace = Workspace::new(&topology);
    let output = over_a_disk(
        &workspace,
        r#"
        code() { echo "{\"event\":\"code\",\"code\":$?}"; }
        mkdir state && mount -t tmpfs -o size=900k tmpfs state || exit 1
        "$0" run topology.toml --format json; code
        "$0" checkpoint verify topology.toml --format json; code
        mount -o remount,size=64m state
        "$0" run topology.toml --resume --format json; code
        "#,
    );
    ended_and_went_on(&output, "No space left on device", &topology);
}

/// A disk that its kernel makes read-only under a run.
#[test]
fn a_disk_that_becomes_read_only_ends_the_run_with_its_name_and_writable_it_goes_on() {
    if !may_mount() {
        return;
    }
    let topology = alone(60, 400);
    let workspace = Workspace::new(&topology);
    let output = over_a_disk(
        &workspace,
        r#"
        code() { echo "{\"event\":\"code\",\"code\":$?}"; }
        mkdir state && mount -t tmpfs -o size=64m tmpfs state || exit 1
        "$0" run topology.toml --format json &
        for look in $(seq 6000); do
            [ -e state/nodes/hq.gate/commits/000003.json ] && break
            sleep 0.02
        done
        mount --bind state state && mount -o remount,ro,bind state
        wait $!; code
        "$0" checkpoint verify topology.toml --format json; code
        umount state
        "$0" run topology.toml --resume --format json; code
        "#,
    );
    ended_and_went_on(&output, "Read-only file system", &topology);
}
