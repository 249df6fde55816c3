//! Processes that are a federation together, in one state folder.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tombolo::Federation;

use crate::fixture::{Output, Process, Workspace};

/// Every event of a process appears on its standard error.
const LOG: &str = "warn,tombolo::federation=debug";

/// Between two looks at what processes say.
const MOMENT: Duration = Duration::from_millis(50);

/// Looks until something that is waited for must have come. Only failures look so often.
const LOOKS: u32 = 1200;

/// The nodes' processes, by name.
pub struct Fleet {
    pub workspace: Workspace,
    processes: BTreeMap<String, Process>,
}

impl Fleet {
    /// Every node of the topology at work.
    pub fn start(topology: &str) -> Self {
        let fleet = Fleet::idle(topology);
        let nodes = fleet.nodes();
        nodes.iter().fold(fleet, |mut fleet, node| {
            fleet.begin(node);
            fleet
        })
    }

    /// With certificates, and nobody at work.
    pub fn idle(topology: &str) -> Self {
        let workspace = Workspace::new(topology);
        let file = workspace.path().join("topology.toml");
        Federation::from_path(file).unwrap().prepare().unwrap();
        Fleet {
            workspace,
            processes: BTreeMap::new(),
        }
    }

    fn federation(&self) -> Federation {
        Federation::from_path(self.workspace.path().join("topology.toml")).unwrap()
    }

    pub fn nodes(&self) -> Vec<String> {
        let federation = self.federation();
        let nodes = federation.plan().nodes();
        nodes.map(|node| node.id.to_string()).collect()
    }

    pub fn coordinator(&self) -> String {
        self.federation().plan().coordinator.to_string()
    }

    /// Starts a node, again if it has been there before.
    pub fn begin(&mut self, node: &str) {
        self.begin_with(node, "topology.toml");
    }

    /// The same with a file of its own.
    pub fn begin_with(&mut self, node: &str, file: &str) {
        let resume = match self.coordinator() == node {
            true => "--resume",
            false => "",
        };
        let process = self
            .workspace
            .start_with(&format!("node --name {node} {file} {resume}"), LOG);
        self.processes.insert(node.to_owned(), process);
    }

    pub fn signal(&self, node: &str, signal: Signal) {
        self.processes[node].signal(signal);
    }

    pub fn process(&mut self, node: &str) -> &mut Process {
        self.processes.get_mut(node).unwrap()
    }

    /// Waits for the end of a node's process.
    #[track_caller]
    pub fn end(&mut self, node: &str) -> Output {
        self.processes.remove(node).unwrap().end()
    }

    /// Waits until the coordinator's process shows what holds of the status.
    #[track_caller]
    pub fn until(&mut self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..LOOKS {
            for status in self.workspace.run("status topology.toml").events("status") {
                if status["nodes"][0]["coordinator"] == true {
                    if holds(&status) {
                        return status;
                    }
                    last = status;
                }
            }
            let coordinator = self.coordinator();
            self.process(&coordinator).listen(MOMENT);
        }
        panic!("{what} does not come: {last:#}");
    }

    /// The same of another node that has become coordinator.
    #[track_caller]
    pub fn until_of(&mut self, node: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..LOOKS {
            for status in self.workspace.run("status topology.toml").events("status") {
                let own = &status["nodes"][0];
                if own["node"] == node && own["coordinator"] == true {
                    if holds(&status) {
                        return status;
                    }
                    last = status;
                }
            }
            self.process(node).listen(MOMENT);
        }
        panic!("{what} does not come: {last:#}");
    }

    /// Reads on what everybody says until something holds.
    #[track_caller]
    pub fn until_true(&mut self, what: &str, holds: impl Fn(&mut Self) -> bool) {
        for _ in 0..LOOKS {
            if holds(self) {
                return;
            }
            for process in self.processes.values_mut() {
                process.listen(Duration::ZERO);
            }
            let coordinator = self.coordinator();
            self.process(&coordinator).listen(MOMENT);
        }
        panic!("{what} does not come");
    }

    /// Waits until a node stands so.
    #[track_caller]
    pub fn until_state(&mut self, node: &str, state: &str) -> Value {
        let what = format!("{node} {state}");
        let status = self.until(&what, |status| {
            entry(status, node).is_some_and(|entry| entry["state"] == state)
        });
        entry(&status, node).unwrap().clone()
    }

    /// Waits for so many more rounds.
    #[track_caller]
    pub fn more_rounds(&mut self, rounds: u64) {
        let ended = |status: &Value| status["rounds"]["ended"].as_u64().unwrap();
        let now = ended(&self.until("the rounds", |_| true));
        self.until("more rounds", |status| ended(status) >= now + rounds);
    }

    /// The rounds that the coordinator's process has seen end.
    pub fn rounds(&mut self) -> Vec<Value> {
        let coordinator = self.coordinator();
        self.process(&coordinator).listen(MOMENT).events("round")
    }

    /// Ends the run and waits for everybody.
    pub fn stop(&mut self) -> BTreeMap<String, Output> {
        let coordinator = self.coordinator();
        self.signal(&coordinator, Signal::INT);
        let nodes: Vec<String> = self.processes.keys().cloned().collect();
        nodes
            .into_iter()
            .map(|node| {
                let output = self.end(&node);
                (node, output)
            })
            .collect()
    }
}

/// A number that a longer run of the same test sets in its environment.
pub fn from_environment(variable: &str, default: u64) -> u64 {
    let set = std::env::var(variable).ok();
    set.map_or(default, |number| number.parse().unwrap())
}

/// What a status says of a node.
pub fn entry<'a>(status: &'a Value, node: &str) -> Option<&'a Value> {
    let nodes = status["membership"]["nodes"].as_array()?;
    nodes.iter().find(|entry| entry["node"] == node)
}
