//! A folder with a topology, and the program at work in it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub const PINNED: &str = include_str!("../fixtures/pinned.toml");

/// For what should take a second or two, on a machine that does much else. Only failures wait so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// `pinned.toml` with another number of rounds.
pub fn pinned(rounds: u64) -> String {
    let text = PINNED.replace("rounds = 3", &format!("rounds = {rounds}"));
    assert!(text.contains(&format!("rounds = {rounds}")));
    text
}

/// A folder with `topology.toml`.
pub struct Workspace(TempDir);

impl Workspace {
    pub fn new(topology: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("topology.toml"), topology).unwrap();
        Workspace(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// Starts the program with `--format json` and these arguments, separated by spaces.
    pub fn start(&self, arguments: &str) -> Process {
        self.start_with(arguments, "warn")
    }

    pub fn start_with(&self, arguments: &str, log: &str) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command
            .args(arguments.split_whitespace())
            .args(["--format", "json"])
            .env("TOMBOLO_LOG", log)
            .env("NO_COLOR", "1")
            .current_dir(self.path());
        Process::spawn(command)
    }

    /// Runs it to its end.
    pub fn run(&self, arguments: &str) -> Output {
        self.start(arguments).end()
    }

    /// Runs it with output for people.
    pub fn text(&self, arguments: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command
            .args(arguments.split_whitespace())
            .env("NO_COLOR", "1")
            .current_dir(self.path());
        Process::spawn(command).end()
    }
}

enum Line {
    Out(String),
    Err(String),
}

/// The program at work. Killed when dropped.
pub struct Process {
    child: Child,
    lines: Receiver<Line>,
    seen: Output,
}

/// What it said and how it ended.
#[derive(Debug, Default)]
pub struct Output {
    pub lines: Vec<String>,
    pub errors: Vec<String>,
    pub status: Option<ExitStatus>,
}

impl Output {
    pub fn code(&self) -> i32 {
        let code = self.status.and_then(|status| status.code());
        code.unwrap_or_else(|| panic!("no exit code: {self:#?}"))
    }

    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "{self:#?}");
        self
    }

    pub fn errors(&self) -> String {
        self.errors.join("\n")
    }

    /// The objects of one event.
    pub fn events(&self, event: &str) -> Vec<Value> {
        let parsed = self.lines.iter().map(|line| {
            serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("no JSON: {line}"))
        });
        parsed.filter(|value| value["event"] == event).collect()
    }

    #[track_caller]
    pub fn finished(&self) -> Value {
        let finished = self.events("finished");
        assert_eq!(finished.len(), 1, "{self:#?}");
        finished[0].clone()
    }

    #[track_caller]
    pub fn hash(&self) -> String {
        self.finished()["model_hash"].as_str().unwrap().to_owned()
    }
}

impl Process {
    pub fn spawn(mut command: Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        read(child.stdout.take().unwrap(), sender.clone(), Line::Out);
        read(child.stderr.take().unwrap(), sender, Line::Err);
        Process {
            child,
            lines,
            seen: Output::default(),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.child.id(), signal);
    }

    /// Takes the next line of output; false once there is none and nobody is left who could write one.
    fn step(&mut self, patience: Duration) -> Result<bool, RecvTimeoutError> {
        match self.lines.recv_timeout(patience) {
            Ok(Line::Out(line)) => self.seen.lines.push(line),
            Ok(Line::Err(line)) => self.seen.errors.push(line),
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Reads on until something holds of what was said.
    #[track_caller]
    pub fn until(&mut self, what: &str, holds: impl Fn(&Output) -> bool) {
        while !holds(&self.seen) {
            match self.step(PATIENCE) {
                Ok(true) => {}
                Ok(false) => panic!("it ended before {what}: {:#?}", self.seen),
                Err(_) => panic!("it hangs before {what}: {:#?}", self.seen),
            }
        }
    }

    #[track_caller]
    pub fn until_rounds(&mut self, rounds: usize) {
        self.until("its rounds", |seen| {
            seen.lines
                .iter()
                .filter(|line| line.contains("\"round\","))
                .count()
                >= rounds
        });
    }

    /// Waits a moment for more to be said; all of it so far.
    pub fn listen(&mut self, moment: Duration) -> &Output {
        let mut patience = moment;
        while let Ok(true) = self.step(patience) {
            patience = Duration::ZERO;
        }
        &self.seen
    }

    /// Waits a moment for more to be said; true once it has ended.
    pub fn ended_within(&mut self, moment: Duration) -> bool {
        matches!(self.step(moment), Ok(false))
    }

    /// Waits for its end and for that of everybody who inherited its output.
    #[track_caller]
    pub fn end(mut self) -> Output {
        loop {
            match self.step(PATIENCE) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => panic!("it does not end: {:#?}", self.seen),
            }
        }
        self.seen.status = Some(self.child.wait().unwrap());
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(stream: impl Read + Send + 'static, sender: Sender<Line>, kind: fn(String) -> Line) {
    let pump = move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            if sender.send(kind(line)).is_err() {
                return;
            }
        }
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "reads a pipe; no federation in this process"
    )]
    std::thread::spawn(pump);
}

pub fn kill(id: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
    // It may have ended by itself.
    let _ = kill_process(pid, signal);
}

/// The process that hosts a node, once it can be asked.
#[track_caller]
pub fn process_of(workspace: &Workspace, node: &str) -> u32 {
    let output = workspace.run("status topology.toml").expect(0);
    let status = output.events("status");
    let found = status.iter().find(|status| {
        let nodes = status["nodes"].as_array().unwrap();
        nodes.iter().any(|entry| entry["node"] == node)
    });
    let found = found.unwrap_or_else(|| panic!("nobody hosts {node}: {status:#?}"));
    u32::try_from(found["process"].as_u64().unwrap()).unwrap()
}

pub fn hash_of(topology: &str) -> String {
    Workspace::new(topology)
        .run("run topology.toml")
        .expect(0)
        .hash()
}

#[expect(clippy::disallowed_methods, reason = "measures another process")]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}
