//! Ctrl-C and SIGTERM.

use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
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
    // Nobody reads from it, so the run hangs when it opens its record; only the second signal can end it.
    let state = workspace.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, state.join("events.jsonl"), FileType::Fifo, mode, 0).unwrap();
    let mut process = workspace.start_with("run topology.toml", "info");
    process.until("the certificates", |seen| seen.errors().contains("made "));
    process.signal(Signal::INT);
    // Two signals of a kind become one if the first was not taken yet.
    let ended = (0..400).any(|_| {
        process.signal(Signal::INT);
        process.ended_within(Duration::from_millis(50))
    });
    assert!(ended, "it takes no second signal");
    process.end().expect(130);
}
