//! `tombolo bench train`: a federation that trains the built-in network, beside plain loops that take the same steps.
//!
//! Each case has a process of its own. In it all nodes first train by themselves, a thread each, then together: over loopback QUIC and TLS
//! between domains, over shared memory within. The first round of both is not measured. Where a round's time goes follows from events. One
//! more process has the plain loops gather their batches, and has them gathered ahead.

mod plain;
mod prefetch;
mod timeline;

use std::io;
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::broadcast::error::RecvError;

use super::child::{child, folder};
use super::measure::{self, Measurement, cpu_seconds, peak_rss, show_lines, within};
use crate::cli::output::{print_line, refuse};
use crate::cli::signals::Signals;
use crate::cli::{Common, Exit, processes, runtime};
use plain::{Plain, Rows};
use timeline::{Share, Timeline};
use tombolo::explain::Chronicle;
use tombolo::federation::Interrupt;
use tombolo::{Federation, FederationError};
use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::plan::Plan;

/// Nodes of all domains: one process trains so many at a time, and plain loops are to have no more threads.
const NODES_MAX: u64 = 32;

/// The most hidden units that a topology may ask for.
const HIDDEN_MAX: u64 = 4096;

/// The most passes that a topology may ask for in a round.
const EPOCHS_MAX: u64 = 1000;

/// More rounds tell nothing new.
const ROUNDS_MAX: u64 = 1000;

/// One way to train.
struct Case {
    name: &'static str,
    /// What it adds to `[model]`.
    model: &'static str,
}

/// The first is what the others are compared with.
const CASES: [Case; 3] = [
    Case {
        name: "f32",
        model: "",
    },
    Case {
        name: "f32, accumulate 4",
        model: "accumulate = 4\n",
    },
    Case {
        name: "bf16",
        model: "precision = \"bf16\"\n",
    },
];

/// Arguments of `bench train`.
#[derive(Debug, Args)]
pub struct Train {
    /// Domains of the federation.
    #[arg(long, default_value_t = 3)]
    domains: u64,
    /// Nodes of each domain.
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    /// Rounds that are measured; one before them is not.
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// How often a node goes through its rows in a round.
    #[arg(long, default_value_t = 10)]
    epochs: u64,
    /// Hidden units of the network.
    #[arg(long, default_value_t = 64)]
    hidden: u64,
    /// Set by the measuring process: which case this one measures; the one behind the last is prefetching.
    #[arg(long, hide = true, requires = "child_of")]
    case: Option<usize>,
    /// Set by the measuring process, which this one must not outlive.
    #[arg(long, hide = true, value_name = "PID")]
    child_of: Option<u32>,
}

impl Train {
    /// Measures, or is the process of one case.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || match (self.case, &common.state) {
            (Some(case), Some(state)) => self.measure_case(common, case, state),
            _ => folder(common).and_then(|folder| self.measure(common, folder.path())),
        })
    }

    fn check(&self) -> Result<(), String> {
        within("domains", self.domains, NODES_MAX)?;
        within("nodes", self.nodes, NODES_MAX / self.domains)?;
        within("rounds", self.rounds, ROUNDS_MAX)?;
        within("epochs", self.epochs, EPOCHS_MAX)?;
        within("hidden", self.hidden, HIDDEN_MAX)
    }

    fn topology(&self, case: &Case) -> String {
        let mut text = format!(
            "[federation]\nname = \"bench\"\nrounds = {}\nsync_every = \"{} epochs\"\n\
             [round]\nquorum = \"all\"\ndeadline = \"10min\"\nfailed_limit = 1\n\
             [model]\nhidden = {}\npartition = {{ kind = \"iid\" }}\n{}",
            self.rounds + 1,
            self.epochs,
            self.hidden,
            case.model
        );
        let names: Vec<String> = (1..=self.nodes)
            .map(|node| format!("\"node-{node}\""))
            .collect();
        for domain in 1..=self.domains {
            text.push_str(&format!(
                "[[domain]]\nname = \"site-{domain}\"\nnodes = [{}]\n",
                names.join(", ")
            ));
        }
        text
    }

    fn federation(&self, case: &Case, folder: &Path) -> Result<Federation, FederationError> {
        let federation = Federation::from_toml(&self.topology(case), folder)?;
        Ok(federation.state(folder.join("state")))
    }

    /// Has each case measured.
    fn measure(&self, common: &Common, folder: &Path) -> io::Result<Exit> {
        let lines = runtime()?.block_on(async {
            let mut signals = Signals::listen()?;
            tokio::select! {
                biased;
                why = signals.next() => Ok(Err(why)),
                lines = self.cases(folder) => lines.map(Ok),
            }
        })?;
        Ok(match lines {
            Ok(mut lines) => {
                // Lines of one form stand together; within them the order of the cases stays.
                lines.sort_by_key(|line| line["peer"] != "tombolo");
                show_lines(common, &lines)
            }
            Err(Interrupt::Interrupted) => Exit::Interrupted,
            Err(Interrupt::Terminated) => Exit::Terminated,
        })
    }

    /// One process after the other, so that none takes another's time.
    async fn cases(&self, folder: &Path) -> io::Result<Vec<Value>> {
        let mut lines = Vec::new();
        for case in 0..=CASES.len() {
            let folder = folder.join(case.to_string());
            std::fs::create_dir(&folder)?;
            let mut process = child("train", &folder)?
                .args(["--case", &case.to_string()])
                .args(["--domains", &self.domains.to_string()])
                .args(["--nodes", &self.nodes.to_string()])
                .args(["--rounds", &self.rounds.to_string()])
                .args(["--epochs", &self.epochs.to_string()])
                .args(["--hidden", &self.hidden.to_string()])
                .spawn()?;
            let out = process.stdout.take().expect("it was asked for");
            let mut out = BufReader::new(out).lines();
            while let Some(line) = out.next_line().await? {
                let line: Option<Value> = serde_json::from_str(&line).ok();
                // What went wrong is on standard error as well.
                lines.extend(line.filter(|line| line["group"].is_string()));
            }
            let status = process.wait().await?;
            if !status.success() {
                let name = CASES.get(case).map_or("prefetch", |case| case.name);
                let message = format!("the process that measures {name:?} ended: {status}");
                return Err(io::Error::other(message));
            }
        }
        Ok(lines)
    }

    /// Is the process of one case.
    fn measure_case(&self, common: &Common, case: usize, folder: &Path) -> io::Result<Exit> {
        if let Some(parent) = self.child_of
            && !processes::die_with(parent)?
        {
            return Ok(Exit::Failed);
        }
        let (case, prefetches) = match CASES.get(case) {
            Some(case) => (case, false),
            None => (&CASES[0], true),
        };
        let federation = match self.federation(case, folder) {
            Ok(federation) => federation,
            Err(error) => return Ok(refuse(common, error)),
        };
        let plan = federation.plan().clone();
        if prefetches {
            return self.prefetch(&plan);
        }
        let nodes = plan.nodes().count();
        let plain = plain::measure(&plan, nodes, self.epochs, Rows::InPlace)?;
        let alone_rss = peak_rss()?;
        match runtime()?.block_on(self.together(&plan, case, federation, &plain)) {
            Ok(ours) => print_line(&ours.to_json()),
            Err(error) => return Ok(refuse(common, error)),
        }
        let own = json!({ "peak_rss": alone_rss });
        print_line(&plain.line(case.name, own));
        Ok(Exit::Done)
    }

    /// One node's plain loop that gathers each batch, and one that has it gathered ahead. One, so that a second core is free to gather; of
    /// each the fastest round beside that of a loop that reads rows where they lie, because whatever else runs here only makes rounds longer.
    fn prefetch(&self, plan: &Plan) -> io::Result<Exit> {
        let measure = |rows| plain::measure(plan, 1, self.epochs, rows);
        let in_place_s = measure(Rows::InPlace)?.fastest_s();
        for (case, rows) in [
            ("f32, prefetch off", Rows::Gathered),
            ("f32, prefetch on", Rows::Prefetched),
        ] {
            let found = measure(rows)?;
            let own = json!({ "fastest_ratio": in_place_s / found.fastest_s() });
            print_line(&found.line(case, own));
        }
        Ok(Exit::Done)
    }

    /// Trains together.
    async fn together(
        &self,
        plan: &Plan,
        case: &Case,
        federation: Federation,
        plain: &Plain,
    ) -> Result<Measurement, FederationError> {
        let machine = |error: io::Error| FederationError::Machine(error.to_string());
        let running = federation.spawn().await?;
        let mut events = running.events();
        // Of this process, at the end of each round.
        let mut cpu = Vec::new();
        let mut note = |event| match event {
            Event::Round(_) => cpu_seconds(std::process::id()).map(|seconds| cpu.push(seconds)),
            _ => Ok(()),
        };
        let mut run = std::pin::pin!(running.run());
        let report = loop {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Ok(event) => note(event).map_err(machine)?,
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => break run.as_mut().await?,
                },
                report = &mut run => break report?,
            }
        };
        while let Ok(event) = events.try_recv() {
            note(event).map_err(machine)?;
        }
        if !report.finished.reason.is_empty() {
            return Err(FederationError::Machine(report.finished.reason));
        }
        let nodes = plan.nodes().count();
        let is_whole = |record: &&RoundRecord| {
            record.state == RoundState::Committed && record.counted.len() == nodes
        };
        let whole = report.rounds.iter().filter(is_whole).count() as u64;
        let loss = |record: Option<&RoundRecord>| record.map_or(f64::NAN, |record| record.loss);
        let has_learned = loss(report.rounds.last()) < loss(report.rounds.first());
        // What was recorded has the time at which it happened, whatever this thread was kept from.
        let mut timeline = Timeline::of(plan);
        let past = Chronicle::open(&plan.checkpoint.folder);
        for past in past.map_err(|error| FederationError::Machine(error.to_string()))? {
            timeline.on_event(past.at, &past.event);
        }
        let spent = timeline.spent(2..=plan.rounds);
        let is_seen = spent.is_some() && cpu.len() as u64 >= plan.rounds;
        let spent = spent.unwrap_or_default();
        let used = cpu.last().zip(cpu.first());
        let used = used.map_or(0.0, |(last, first)| last - first);
        let samples_per_s = (spent.rows * self.epochs) as f64 / spent.rounds_s.iter().sum::<f64>();
        let more = json!({
            "mean_s": spent.mean_s(),
            "compute_s": spent.share_s(Share::Compute),
            "fabric_s": spent.share_s(Share::Fabric),
            "wan_s": spent.share_s(Share::Wan),
            "waiting_s": spent.share_s(Share::Waiting),
            "sync_p99_s": spent.sync_p99_s(),
            "samples_per_s": samples_per_s,
            "ratio": samples_per_s / plain.samples_per_s,
            "accuracy": report.finished.accuracy,
            "peak_rss": peak_rss().map_err(machine)?,
        });
        Ok(Measurement {
            group: "train",
            peer: "tombolo",
            case: case.name.into(),
            n: nodes,
            bytes: plain.model_bytes,
            seconds: spent.rounds_s,
            cpu_s_per_op: used / self.rounds as f64,
            ok: whole == plan.rounds && has_learned && is_seen,
            more: more.as_object().cloned().unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::plan::{Precision, SyncEvery};

    fn of(domains: u64, nodes: u64) -> Train {
        Train {
            domains,
            nodes,
            rounds: 2,
            epochs: 3,
            hidden: 8,
            case: None,
            child_of: None,
        }
    }

    #[test]
    fn each_case_is_a_topology_that_differs_in_what_it_says() {
        let plans = CASES.each_ref().map(|case| {
            let federation = of(2, 3).federation(case, Path::new("folder")).unwrap();
            federation.plan().clone()
        });
        for plan in &plans {
            assert_eq!((plan.nodes().count(), plan.domains.len()), (6, 2));
            assert_eq!(plan.rounds, 3, "one more than is measured");
            assert_eq!(plan.sync_every, SyncEvery::Epochs(3));
            assert_eq!(plan.model.hidden, 8);
        }
        let models = plans.map(|plan| (plan.model.accumulate, plan.model.precision));
        let [f32, bf16] = [Precision::F32, Precision::Bf16];
        assert_eq!(models, [(1, f32), (4, f32), (1, bf16)]);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        assert_eq!(of(8, 4).check(), Ok(()));
        for (train, name) in [
            (of(0, 1), "--domains 0"),
            (of(33, 1), "--domains 33"),
            (of(1, 0), "--nodes 0"),
            (of(8, 5), "--nodes 5: expected 1 to 4"),
        ] {
            assert!(train.check().unwrap_err().starts_with(name));
        }
    }
}
