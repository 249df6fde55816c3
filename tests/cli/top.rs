//! `tombolo top`: of a run that is over, of one that goes on, and in a terminal.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use crate::fixture::{Workspace, kill, now, pinned};

/// Only failures wait so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn of_a_run_that_is_over_it_tells_how_it_ended() {
    let workspace = Workspace::new(&pinned(3));
    let said = workspace.text("top state").expect(1).errors();
    assert!(said.contains("state"), "{said}");
    workspace.run("run topology.toml").expect(0);
    let shown = workspace.text("top state").expect(0).lines.join("\n");
    for part in [
        "ended",
        "3 committed, 0 degraded, 0 aborted",
        "round 3 committed",
        "accuracy 0.",
        "hq/gate",
        "plant/c",
        "hq/gate - plant/gate",
        "active",
    ] {
        assert!(shown.contains(part), "{part}:\n{shown}");
    }
    let picture = workspace.run("top state").expect(0).lines.join("");
    let picture: Value = serde_json::from_str(&picture).unwrap();
    assert_eq!(picture["totals"]["committed"], 3);
    // What nobody says in the record, the state folder does: so what came over a link is told of that one.
    assert_eq!(picture["coordinator"], "hq/gate");
    assert_eq!(picture["domains"]["plant"]["gateway"], "plant/gate");
    let links = picture["links"].as_array().unwrap();
    let with_sums = links
        .iter()
        .filter(|link| link["b_to_a"]["sums"]["plain"] != 0);
    let ends: Vec<_> = with_sums.map(|link| [&link["a"], &link["b"]]).collect();
    assert_eq!(ends, [["hq/gate", "lab/gate"], ["hq/gate", "plant/gate"]]);
}

/// The program in a terminal of its own.
struct Screen {
    child: Child,
    terminal: File,
    seen: String,
}

impl Screen {
    fn start(workspace: &Workspace, arguments: &str) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = Winsize {
            ws_row: 30,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&terminal, size).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap();
        let inside = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            Stdio::from(options.open(name.to_str().unwrap()).unwrap())
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        let command = command.args(arguments.split_whitespace());
        let command = command.current_dir(workspace.path());
        let command = command.stdin(inside()).stdout(inside()).stderr(inside());
        Screen {
            child: command.spawn().unwrap(),
            terminal: File::from(terminal),
            seen: String::new(),
        }
    }

    /// Reads what is drawn until it holds these words.
    #[track_caller]
    fn until(&mut self, words: &str) {
        let end = now() + PATIENCE;
        while !self.seen.contains(words) {
            assert!(now() < end, "{words}: {}", self.seen);
            self.read()
                .unwrap_or_else(|| panic!("{words}: {}", self.seen));
        }
    }

    /// None once nobody holds the other side any more.
    fn read(&mut self) -> Option<()> {
        let mut bytes = [0; 4096];
        let count = self
            .terminal
            .read(&mut bytes)
            .ok()
            .filter(|&count| count > 0)?;
        self.seen += &String::from_utf8_lossy(&bytes[..count]);
        Some(())
    }

    /// The exit code; reads on meanwhile, so that nobody waits for a full terminal.
    fn end(mut self) -> (Option<i32>, String) {
        while self.read().is_some() {}
        let code = self.child.wait().unwrap().code();
        (code, std::mem::take(&mut self.seen))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

#[test]
fn in_a_terminal_it_follows_the_run_until_a_key_or_a_signal_and_gives_the_terminal_back() {
    const LEAVES: &str = "\u{1b}[?1049l";
    let workspace = Workspace::new(&pinned(60));
    let mut run = workspace.start("run topology.toml");
    run.until_rounds(1);
    let mut screen = Screen::start(&workspace, "top state");
    screen.until("plant/c");
    screen.until("open for");
    screen.terminal.write_all(b"\tjjkq").unwrap();
    let (code, seen) = Screen::end(screen);
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains(LEAVES), "{seen}");
    let mut screen = Screen::start(&workspace, "top state");
    screen.until("plant/c");
    kill(screen.child.id(), Signal::TERM);
    let (code, seen) = Screen::end(screen);
    assert_eq!(code, Some(143), "{seen}");
    assert!(seen.contains(LEAVES), "{seen}");
    run.signal(Signal::INT);
    run.end().expect(130);
}
