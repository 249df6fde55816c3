//! `tombolo pause [FILE]`, `tombolo resume [FILE]`, `tombolo stop [FILE] [--now]`, `tombolo amend FILE`.

use std::path::PathBuf;

use clap::Args;
use tombolo::federation::hashes;
use tombolo_core::coordinator::{Obeyed, Paused, Wish};

use super::output::{fail, names, print_line, refuse};
use super::status::state_folder;
use super::{Common, Exit, Format};
use tombolo::control::{OrderError, order};

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct Pause {
    #[command(flatten)]
    run: Which,
}

/// Arguments of `stop`.
#[derive(Debug, Args)]
pub struct Stop {
    #[command(flatten)]
    run: Which,
    /// Give the open round up; `--resume` runs it again.
    #[arg(long)]
    now: bool,
}

/// Arguments of `amend`.
#[derive(Debug, Args)]
pub struct Amend {
    /// The topology as it is to be; every node's machine has it already, under the name with which the node was started.
    file: PathBuf,
    /// Who asks, for status and the record; default: the name of the user.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// Which run, and who asks.
#[derive(Debug, Args)]
struct Which {
    /// The topology whose state folder the coordinator's process runs in; default: ./state.
    file: Option<PathBuf>,
    /// Who asks, for status and the record; default: the name of the user.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

impl Pause {
    /// Asks the coordinator to open no round after the open one, or to go on.
    pub fn run(&self, common: &Common, wish: Wish) -> Exit {
        self.run.ask(common, wish)
    }
}

impl Stop {
    /// Asks the coordinator to end the run.
    pub fn run(&self, common: &Common) -> Exit {
        let wish = if self.now { Wish::StopNow } else { Wish::Stop };
        self.run.ask(common, wish)
    }
}

impl Amend {
    /// Asks the coordinator to go on by the file as it is now.
    pub fn run(self, common: &Common) -> Exit {
        let federation = match super::run::open(common, &self.file, true) {
            Ok(federation) => federation,
            Err(error) => return refuse(common, error),
        };
        let amendment = hashes(federation.plan());
        let run = Which {
            file: Some(self.file),
            by: self.by,
        };
        run.ask(common, Wish::Amend(amendment))
    }
}

impl Which {
    fn ask(&self, common: &Common, wish: Wish) -> Exit {
        let folder = match state_folder(common, self.file.as_deref()) {
            Ok(folder) => folder,
            Err(error) => return refuse(common, error),
        };
        let named = || {
            ["USER", "LOGNAME"]
                .into_iter()
                .find_map(|name| std::env::var(name).ok())
        };
        let by = self.by.clone().or_else(named).unwrap_or_default();
        match order(&folder, wish, &by) {
            Ok(obeyed) => {
                match common.format {
                    Format::Json => print_line(&told(&obeyed)),
                    Format::Text => say!("{}", words(&obeyed)),
                }
                Exit::Done
            }
            Err(error) => {
                let advice = match &error {
                    OrderError::NoCoordinator { .. } => {
                        "; run this where it runs, or name its state folder with --state"
                    }
                    _ => "",
                };
                fail(common, &format!("{error}{advice}"));
                Exit::Failed
            }
        }
    }
}

/// The answer as an object of JSON.
fn told(obeyed: &Obeyed) -> serde_json::Value {
    match obeyed {
        Obeyed::Paused {
            paused,
            open,
            already,
        } => serde_json::json!({
            "event": "paused", "by": paused.by, "since": paused.since, "open": open, "already": already,
        }),
        Obeyed::Resumed { paused } => serde_json::json!({
            "event": "resumed", "by": paused.by, "since": paused.since,
        }),
        Obeyed::Stopping { open, already } => serde_json::json!({
            "event": "stopping", "open": open, "already": already,
        }),
        Obeyed::Amended {
            topology,
            nodes,
            away,
            open,
        } => serde_json::json!({
            "event": "amending", "topology": topology, "nodes": nodes, "away": away, "open": open,
        }),
    }
}

/// The answer for people.
fn words(obeyed: &Obeyed) -> String {
    let behind = |open: &Option<u64>| match open {
        Some(round) => format!("behind round {round}, which still comes to its end"),
        None => "at once".to_owned(),
    };
    match obeyed {
        Obeyed::Paused {
            paused: Paused { by, .. },
            open,
            already,
        } => {
            let was = if *already {
                "was paused before, "
            } else {
                "is paused "
            };
            format!(
                "the run {was}by {by}, {}; `tombolo resume` goes on",
                behind(open)
            )
        }
        Obeyed::Resumed { paused } => {
            format!("the run goes on; {} had paused it", paused.by)
        }
        Obeyed::Amended {
            topology,
            nodes,
            away,
            open,
        } => {
            let away = match away.len() {
                0 => String::new(),
                _ => format!("; {} must have that file when they come back", names(away)),
            };
            format!(
                "{nodes} nodes agree: all begin again by the topology {topology:?} {}{away}",
                behind(open)
            )
        }
        Obeyed::Stopping { open, .. } => format!(
            "the run ends {}; what is committed is kept, and --resume goes on with it",
            behind(open)
        ),
    }
}
