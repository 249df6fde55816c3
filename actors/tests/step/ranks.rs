//! Processes that are ranks: this test's own binary, told by lines on standard input what to do.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tombolo_actors::step::{Reduction, Step};
use tombolo_core::collective::Shape;
use tombolo_fabric::Endpoint;
use tombolo_fabric::group::{Founding, Group};

use super::calculation::{carried_out, every_case};

/// Tells the binary that it runs as a rank, and in which folder.
const FOLDER: &str = "TOMBOLO_STEP_TEST_FOLDER";

/// Longer than a slice of any cache level, so that a kill can come in the middle.
const ELEMENTS: usize = 100_000;

/// How long ranks wait for each other to join.
const JOINING: Duration = Duration::from_secs(60);

/// How long a line may take to come: only failures wait for it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Processes, and the lines they say.
pub struct Ranks {
    place: tempfile::TempDir,
    processes: Mutex<Vec<Process>>,
}

pub struct Process {
    name: String,
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    pub fn hear(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ranks {
    /// So many processes that are in no group yet.
    pub fn start(count: usize) -> Ranks {
        let ranks = Ranks {
            place: tempfile::tempdir().unwrap(),
            processes: Mutex::new(Vec::new()),
        };
        for index in 0..count {
            ranks.add(&format!("hq/{index}"));
        }
        ranks
    }

    /// One more, the last.
    pub fn add(&self, name: &str) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "ranks::a_rank_of_another_test", "--nocapture"])
            .env(FOLDER, self.place.path().join("fabric"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test's harness says lines of its own.
                if let Some((_, line)) = line.split_once("rank: ")
                    && said.send(line.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        self.processes.lock().unwrap().push(Process {
            name: name.to_owned(),
            input: child.stdin.take().unwrap(),
            child,
            lines,
        });
    }

    /// Makes a group of all, the first of which founds it; `wait` is how long each then waits for others at a meeting.
    pub fn found(&self, wait: Duration) {
        let count = self.processes.lock().unwrap().len();
        let names: Vec<String> = (0..count).map(|index| self.name(index)).collect();
        self.tell(
            0,
            &format!("found {} {}", wait.as_millis(), names.join(" ")),
        );
        for (index, name) in names.iter().enumerate().skip(1) {
            let invitation = self.hear(0);
            let line = format!("join {} {name} {invitation}", wait.as_millis());
            self.tell(index, &line);
        }
        for index in 0..count {
            assert_eq!(self.hear(index), "in the group");
        }
    }

    pub fn name(&self, index: usize) -> String {
        self.processes.lock().unwrap()[index].name.clone()
    }

    pub fn process(&self, index: usize) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.processes.lock().unwrap()[index].child)
    }

    pub fn tell(&self, index: usize, line: &str) {
        let input = &mut self.processes.lock().unwrap()[index].input;
        writeln!(input, "{line}").unwrap();
        input.flush().unwrap();
    }

    pub fn hear(&self, index: usize) -> String {
        self.processes.lock().unwrap()[index].hear()
    }

    /// Takes a process out; those behind it move up.
    pub fn take(&self, index: usize) -> Process {
        self.processes.lock().unwrap().remove(index)
    }

    /// Ends a process at once.
    pub fn kill(&self, index: usize) -> String {
        self.take(index).name.clone()
    }

    /// Lets the first be the last.
    pub fn rotate(&self) {
        self.processes.lock().unwrap().rotate_left(1);
    }
}

#[test]
fn a_rank_of_another_test() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let folder = Path::new(&folder);
    let before = held();
    let mut step: Option<Step> = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["found", wait, ref names @ ..] => {
                let founding = Founding::new(folder, names).unwrap();
                for rank in 1..names.len() {
                    say(&hex(&founding.invitation(rank).to_bytes()));
                }
                step = Some(in_group(founding.found(JOINING).unwrap(), wait));
            }
            ["join", wait, name, invitation] => {
                let invitation = Endpoint::from_bytes(&unhex(invitation)).unwrap();
                let group = Group::join(folder, name, &invitation, JOINING);
                step = Some(in_group(group.unwrap(), wait));
            }
            ["cases"] => {
                let mut running = step.take().unwrap();
                let mut hasher = blake3::Hasher::new();
                for case in every_case(running.group().ranks()) {
                    let bytes;
                    (running, bytes) = carried_out(running, case, false).unwrap();
                    hasher.update(&bytes);
                }
                step = Some(running);
                say(&format!("cases {}", hasher.finalize()));
            }
            // So many steps, or until it fails; then out of the group.
            ["steps", count] => {
                let said = match steps(step.take().unwrap(), count.parse().unwrap()) {
                    Ok(()) => "done".to_owned(),
                    Err(failed) => failed,
                };
                say(&said);
            }
            // Buffers one after the other until it fails; then out of the group.
            ["allocations"] => {
                let mut step = step.take().unwrap();
                say("ready");
                let failed = loop {
                    if let Err(error) = step.allocate::<f32>(1000) {
                        break error;
                    }
                };
                drop(step);
                say(&failed.to_string());
            }
            ["held"] => {
                assert_eq!(held(), before, "descriptors and mappings of groups");
                say("nothing more than before");
            }
            ref other => panic!("{other:?}"),
        }
    }
}

fn in_group(group: Group, wait: &str) -> Step {
    let mut step = Step::new(group);
    step.set_wait(Duration::from_millis(wait.parse().unwrap()));
    say("in the group");
    step
}

/// Steps of training, each checked; the shapes take turns, and so does memory of its own. An error says in which step, and whom it names.
fn steps(mut step: Step, count: u64) -> Result<(), String> {
    let (rank, ranks) = (step.group().rank(), step.group().ranks());
    let mut shared = step
        .allocate::<f32>(ELEMENTS)
        .map_err(|error| error.to_string())?;
    let mut own = vec![0f32; ELEMENTS];
    say("ready");
    for number in 0..count {
        let value = |rank: usize, at: usize| (rank as u64 + number % 1000) as f32 + (at % 8) as f32;
        let in_own_memory = number % 6 == 5;
        let values = match in_own_memory {
            true => &mut own[..],
            false => shared.values_mut().unwrap(),
        };
        for (at, it) in values.iter_mut().enumerate() {
            *it = value(rank, at);
        }
        let done = if in_own_memory {
            step.all_reduce_own(&mut own, Reduction::SUM)
        } else {
            step.set_shape(Shape::ALL[number as usize % 6]);
            step.all_reduce(&mut shared, Reduction::SUM)
        };
        if let Err(error) = done {
            // Either nobody had begun, or nothing of it can be seen.
            let untouched = |values: &[f32]| {
                let mut values = values.iter().enumerate();
                values.all(|(at, it)| *it == value(rank, at))
            };
            assert!(in_own_memory || shared.values().map_or(true, untouched));
            return Err(format!("failed in {number}: {error}"));
        }
        let values = match in_own_memory {
            true => &own[..],
            false => shared.values().unwrap(),
        };
        for (at, it) in values.iter().enumerate() {
            let expected: f32 = (0..ranks).map(|rank| value(rank, at)).sum();
            assert_eq!(*it, expected, "step {number}, element {at}");
        }
    }
    Ok(())
}

fn say(line: &str) {
    println!("rank: {line}");
}

/// Descriptors, and mappings of groups' memory.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mappings = maps.lines().filter(|line| line.contains("tombolo-step"));
    (descriptors, mappings.count())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}
