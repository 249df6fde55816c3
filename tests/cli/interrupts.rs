//! Ctrl-C and SIGTERM.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::ioctl_fionread;
use rustix::process::Signal;

use crate::fixture::{Workspace, hash_of, now, pinned};

/// Rounds enough that a signal after the first one always comes before the last.
const ROUNDS: u64 = 60;

/// Much more than leaving takes on a machine that does much else, much less than hanging.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_signal_ends_a_run_cleanly_and_resume_ends_with_the_undisturbed_model() {
    let topology = pinned(ROUNDS);
    let undisturbed = hash_of(&topology);
    for (signal, code, mode) in [
        (Signal::INT, 130, ""),
        (Signal::TERM, 143, ""),
        (Signal::INT, 130, "--processes"),
        (Signal::TERM, 143, "--processes"),
    ] {
        let workspace = Workspace::new(&topology);
        let mut process = workspace.start(&format!("run topology.toml {mode}"));
        process.until_rounds(1);
        process.signal(signal);
        let asked = now();
        let first = process.end().expect(code);
        let took = now().duration_since(asked);
        assert!(took < SOON, "{took:?} to leave");
        let committed = first.finished()["committed"].as_u64().unwrap();
        assert!((1..ROUNDS).contains(&committed), "{first:#?}");
        let rest = workspace
            .run(&format!("run topology.toml --resume {mode}"))
            .expect(0);
        assert_eq!(rest.hash(), undisturbed, "{signal:?} {mode}");
        let resumed = rest.events("round")[0]["round"].as_u64().unwrap();
        assert_eq!(resumed, committed + 1);
    }
}

#[test]
fn the_second_signal_ends_at_once() {
    let workspace = Workspace::new(&pinned(3));
    workspace.run("certs init topology.toml").expect(0);
    // A certificate that comes through a pipe and not to its end: the run waits for it, and only the second signal can end it before the
    // pipe is given up.
    let path = workspace.path().join("certs/hq.pem");
    std::fs::remove_file(&path).unwrap();
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut pipe = File::options().read(true).write(true).open(&path).unwrap();
    pipe.write_all(b"-----BEGIN").unwrap();
    let mut process = workspace.start("run topology.toml");
    let taken = (0..2400).any(|_| {
        let moment = Duration::from_millis(50);
        ioctl_fionread(&pipe).unwrap() == 0 || process.ended_within(moment)
    });
    assert!(taken, "it does not read its certificates");
    process.signal(Signal::INT);
    // Two signals of a kind become one if the first was not taken yet.
    let ended = (0..400).any(|_| {
        process.signal(Signal::INT);
        process.ended_within(Duration::from_millis(50))
    });
    assert!(ended, "it takes no second signal");
    process.end().expect(130);
}
