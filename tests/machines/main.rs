//! Nine machines in three sites: one process each, in network namespaces of their own, as far as one computer can have them.
//!
//! The three of a site share memory, as the fabric of a domain needs; state folders are one a site, and the coordinator's records are where
//! standbys can read them, as on a file server. Where namespaces cannot be made the test says why and is content.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "shared with another test")]
#[path = "../cli/fixture.rs"]
mod fixture;
mod net;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use fixture::{Output, Process, Workspace};
use net::{Net, SITES};

/// A machine that trains slowly enough to be disturbed; else as `tests/fixtures/pinned.toml`: whoever comes and goes, the model is the same.
fn topology() -> String {
    let mut text = format!(
        "[federation]\nname = \"machines\"\nrounds = {ROUNDS}\nsync_every = 1200\nseed = 7\n\
         standby = [\"plant/gate\", \"lab/gate\"]\n\
         [run]\nkernels = \"portable\"\n\
         [round]\nquorum = \"all\"\ndeadline = \"10min\"\nclose_limit = \"60s\"\n\
         [model]\ntrainer = \"digits-softmax\"\ninit = \"zeros\"\norder = \"sequential\"\npartition = {{ kind = \"iid\" }}\n\
         [aggregator]\nkind = \"fedavg\"\nclip = \"none\"\n"
    );
    for (site, nodes) in SITES {
        text.push_str(&format!(
            "[[domain]]\nname = \"{site}\"\nfabric = \"shm\"\n"
        ));
        for name in nodes {
            let listen = if name == "gate" {
                "[::]:4600"
            } else {
                "0.0.0.0:4600"
            };
            text.push_str(&format!(
                "[[domain.node]]\nname = \"{name}\"\nlisten = \"{listen}\"\nadvertise = \"{site}-{name}:4600\"\n"
            ));
        }
    }
    text
}

/// More than ever come: a user stops the run.
const ROUNDS: u64 = 900_000;

/// Between two looks.
const MOMENT: Duration = Duration::from_millis(50);

/// Looks until something must have come. Only failures look so often.
const LOOKS: u32 = 1500;

struct Machines {
    // Before the folder that they write to, and the network that they are on.
    processes: BTreeMap<String, Process>,
    net: Net,
    workspace: Workspace,
}

impl Machines {
    fn new(topology: &str) -> Result<Self, String> {
        let workspace = Workspace::new(topology);
        let net = Net::new(workspace.path())?;
        workspace.run("certs init topology.toml").expect(0);
        for (site, nodes) in SITES {
            for name in nodes {
                let issue = format!("certs issue topology.toml --node {site}/{name}");
                workspace.run(&issue).expect(0);
            }
        }
        let machines = Machines {
            processes: BTreeMap::new(),
            net,
            workspace,
        };
        for (site, _) in SITES {
            std::fs::create_dir_all(machines.records(site)).unwrap();
        }
        Ok(machines)
    }

    fn state(&self, site: &str) -> PathBuf {
        self.workspace.path().join(site)
    }

    /// Where a site sees the coordinator's records.
    fn records(&self, site: &str) -> PathBuf {
        self.state(site).join("nodes/hq.gate")
    }

    fn begin(&mut self, node: &str, resume: bool) {
        let (site, _) = node.split_once('/').unwrap();
        let mut program: Vec<OsString> = vec![env!("CARGO_BIN_EXE_tombolo").into()];
        program
            .extend(["node", "--format", "json", "--name", node, "--state", site].map(Into::into));
        program.extend(resume.then(|| "--resume".into()));
        program.push("topology.toml".into());
        let mut mounts = Vec::new();
        if site != "hq" {
            mounts.push((self.records("hq"), self.records(site)));
        }
        let mut command = self.net.on(node, &mounts, &program);
        command
            .env(
                "TOMBOLO_LOG",
                "warn,tombolo::federation=debug,tombolo_actors::quic=debug",
            )
            .env("NO_COLOR", "1")
            .current_dir(self.workspace.path());
        self.processes
            .insert(node.to_owned(), Process::spawn(command));
    }

    fn kill(&mut self, node: &str) {
        self.processes[node].signal(Signal::KILL);
        self.processes.remove(node).unwrap().end();
    }

    fn tombolo(&self, site: &str, arguments: &str) -> Output {
        self.workspace.run(&format!("{arguments} --state {site}"))
    }

    /// Waits until the process of whoever coordinates shows what holds of its status.
    #[track_caller]
    fn until(&mut self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..LOOKS {
            for (site, _) in SITES {
                for status in self.tombolo(site, "status").events("status") {
                    if status["nodes"][0]["coordinator"] == true {
                        if holds(&status) {
                            return status;
                        }
                        last = status;
                    }
                }
            }
            for process in self.processes.values_mut() {
                process.listen(Duration::ZERO);
            }
            self.processes.values_mut().next().unwrap().listen(MOMENT);
        }
        let said: Vec<_> = self
            .processes
            .iter_mut()
            .map(|(node, process)| {
                let errors = &process.listen(Duration::ZERO).errors;
                let from = errors.len().saturating_sub(12);
                (node.clone(), errors[from..].to_vec())
            })
            .collect();
        panic!("{what} does not come: {last:#}\n{said:#?}");
    }

    #[track_caller]
    fn more_rounds(&mut self, what: &str, rounds: u64) {
        let now = ended(&self.until(what, |_| true));
        self.until(what, |status| ended(status) >= now + rounds);
    }
}

fn ended(status: &Value) -> u64 {
    status["rounds"]["ended"].as_u64().unwrap()
}

fn from_environment(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |number| number.parse().unwrap())
}

/// flower#3308, NVFlare#1590, ray#37461, hyper#1316: nodes on machines of their own, of which the inner ones are reached by nobody outside; one comes
/// back at another address, the coordinator is killed and restarted, an uplink is cut, two standbys are promoted at once. Every round counts
/// everybody, and the model is that of one process.
#[test]
fn nine_machines_end_with_the_model_of_one_whatever_befalls_them() {
    let cycles = from_environment("TOMBOLO_CYCLES", 1);
    let cut = Duration::from_secs(from_environment("TOMBOLO_CUT_S", 30));
    let topology = topology();
    let mut machines = match Machines::new(&topology) {
        Ok(machines) => machines,
        Err(why) => return println!("skipped: no machines here: {why}"),
    };
    let nodes: Vec<String> = SITES
        .iter()
        .flat_map(|(site, nodes)| nodes.map(|name| format!("{site}/{name}")))
        .collect();
    for node in &nodes {
        machines.begin(node, false);
    }
    machines.until("its first rounds", |status| ended(status) >= 2);

    let mut coordinator = "hq/gate".to_owned();
    for cycle in 0..cycles {
        // A node is killed and comes back on another address.
        machines.kill("plant/c");
        let elsewhere = 100 + u8::try_from(cycle % 100).unwrap();
        machines.net.moves("plant/c", elsewhere);
        machines.begin("plant/c", false);
        machines.more_rounds("rounds after a node has moved", 2);

        // The coordinator is killed and goes on.
        machines.kill(&coordinator);
        machines.begin(&coordinator, true);
        machines.more_rounds("rounds after the coordinator was restarted", 2);

        // An uplink is cut: nobody is given up, and the round waits.
        machines.net.uplink("lab", "down");
        let before = ended(&machines.until("the cut", |_| true));
        for _ in 0..cut.as_millis() / MOMENT.as_millis() {
            machines
                .processes
                .values_mut()
                .next()
                .unwrap()
                .listen(MOMENT);
        }
        let during = ended(&machines.until("the cut", |_| true));
        assert!(during <= before + 1, "{before} to {during} without the lab");
        machines.net.uplink("lab", "up");
        machines.more_rounds("rounds after the uplink is back", 2);

        // The coordinator is lost, and two others are promoted at once: one of them is it.
        machines.kill(&coordinator);
        let standbys = nodes.iter().filter(|node| {
            ["hq/gate", "plant/gate", "lab/gate"].contains(&node.as_str()) && **node != coordinator
        });
        let asked: Vec<(&String, Process)> = standbys
            .map(|node| {
                let (site, _) = node.split_once('/').unwrap();
                let arguments = format!("promote {node} topology.toml --state {site}");
                (node, machines.workspace.start(&arguments))
            })
            .collect();
        let answers: Vec<(&String, Output)> = asked
            .into_iter()
            .map(|(node, process)| (node, process.end()))
            .collect();
        let promoted: Vec<&String> = answers
            .iter()
            .filter(|(_, answer)| answer.code() == 0)
            .map(|(node, _)| *node)
            .collect();
        assert_eq!(promoted.len(), 1, "{answers:#?}");
        let lost = std::mem::replace(&mut coordinator, promoted[0].clone());
        machines.begin(&lost, true);
        machines.more_rounds("rounds after a promotion", 2);
    }

    let (site, _) = coordinator.split_once('/').unwrap();
    machines.tombolo(site, "stop topology.toml").expect(0);
    let told = machines.processes.remove(&coordinator).unwrap();
    let told = told.end().expect(0);
    for (_, process) in std::mem::take(&mut machines.processes) {
        process.end().expect(0);
    }
    let verified = machines.tombolo("hq", "checkpoint verify topology.toml");
    verified.expect(0);
    let finished = told.finished();
    let rounds = finished["rounds"].as_u64().unwrap();
    assert_eq!(finished["committed"], rounds, "{finished}");
    // As many rounds of the same file in one process, at addresses of one machine.
    let alone = topology.replace(&format!("rounds = {ROUNDS}"), &format!("rounds = {rounds}"));
    let alone: Vec<&str> = alone
        .lines()
        .filter(|line| !line.starts_with("listen") && !line.starts_with("advertise"))
        .collect();
    assert_eq!(told.hash(), fixture::hash_of(&alone.join("\n")));
    println!(
        "{}",
        serde_json::json!({ "cycles": cycles, "cut_s": cut.as_secs(), "rounds": rounds })
    );
}
