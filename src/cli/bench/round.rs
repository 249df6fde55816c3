//! `tombolo bench round`: rounds of a federation that does no training.
//!
//! The coordinator has a domain and a process of its own, and takes part in no round: `peak_rss` is that process's. Every other node is a
//! domain of its own, so that all updates and all steps cross QUIC; all of them live in a second process. The third, which measures, only
//! listens. Training adds numbers that `f32` adds exactly, so that the model of each round is known beforehand.

mod limit;
pub mod trainer;

use std::io;
use std::path::Path;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::sync::broadcast::error::RecvError;

use super::child::{child, folder};
use super::measure::{self, Measurement, cpu_seconds, now, peak_rss, show, within};
use crate::cli::output::{fail, print_line, refuse};
use crate::cli::signals::Signals;
use crate::cli::{Common, Exit, processes, runtime};
use tombolo::federation::Interrupt;
use tombolo::{Federation, FederationError};
use tombolo_core::event::{Event, RoundState};
use tombolo_core::ids::NodeId;

use trainer::{Addition, ELEMENTS_MAX, ROUNDS_MAX};

/// Domains that a federation may have here: each is a node with threads and sockets of its own in one process.
const NODES_MAX: usize = 64;

/// Arguments of `bench round`.
#[derive(Debug, Args)]
pub struct Round {
    /// Nodes that contribute, each a domain of its own.
    #[arg(long, default_value_t = 2)]
    nodes: usize,
    /// Numbers in the model, of four bytes each.
    #[arg(long, default_value_t = 25_600_000)]
    elements: usize,
    /// Rounds that are measured; one before them is not.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Set by the measuring process: which part of the federation this one is.
    #[arg(long, hide = true, requires = "child_of")]
    part: Option<Part>,
    /// Set by the measuring process, which this one must not outlive.
    #[arg(long, hide = true, value_name = "PID")]
    child_of: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Coordinator,
    Members,
}

/// What the coordinator's process says of a round, and at its end of itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Round { right: bool, wan_bytes: u64 },
    End { peak_rss: u64, reason: String },
}

impl Round {
    /// Measures, or is a part of what is measured.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || match (self.part, &common.state) {
            (Some(part), Some(state)) => Ok(self.take_part(common, part, state)),
            _ => folder(common).and_then(|folder| self.measure(common, folder.path())),
        })
    }

    fn check(&self) -> Result<(), String> {
        within("nodes", self.nodes as u64, NODES_MAX as u64)?;
        within("elements", self.elements as u64, ELEMENTS_MAX as u64)?;
        within("rounds", self.rounds, ROUNDS_MAX)
    }

    fn rounds_in_all(&self) -> u64 {
        self.rounds + 1
    }

    fn model_bytes(&self) -> u64 {
        self.elements as u64 * 4
    }

    fn topology(&self) -> String {
        let rounds = self.rounds_in_all();
        let absent: Vec<String> = (1..=rounds)
            .map(|round| format!("{{ round = {round}, nodes = [\"hub/gate\"] }}"))
            .collect();
        let mut text = format!(
            "[federation]\nname = \"bench\"\nrounds = {rounds}\nsync_every = 1\n\
             [round]\nquorum = \"all\"\ndeadline = \"10min\"\nfailed_limit = 1\nabsent = [{}]\n\
             [aggregator]\nkind = \"fedavg\"\nweights = \"equal\"\nclip = \"none\"\n\
             [[domain]]\nname = \"hub\"\nnodes = [\"gate\"]\n",
            absent.join(", ")
        );
        for node in 1..=self.nodes {
            text.push_str(&format!(
                "[[domain]]\nname = \"site-{node}\"\nnodes = [\"gate\"]\n"
            ));
        }
        text
    }

    fn federation(&self, folder: &Path) -> Result<Federation, FederationError> {
        let (elements, last) = (self.elements, self.rounds_in_all());
        let federation = Federation::from_toml(&self.topology(), folder)?;
        Ok(federation
            .state(folder.join("state"))
            .trainer(move |_| Addition::new(elements, last)))
    }

    fn measure(&self, common: &Common, folder: &Path) -> io::Result<Exit> {
        let (nodes, bytes, rounds) = (self.nodes, self.model_bytes(), self.rounds);
        let plain = limit::tcp(nodes, bytes, rounds)?;
        let secured = limit::quic(&folder.join("limit"), nodes, bytes, rounds)?;
        let prepared = self
            .federation(folder)
            .and_then(|federation| federation.prepare());
        if let Err(error) = prepared {
            return Ok(refuse(common, error));
        }
        let ours = runtime()?.block_on(async {
            let mut signals = Signals::listen()?;
            tokio::select! {
                biased;
                why = signals.next() => Ok(Err(why)),
                ours = self.listen(folder) => ours.map(Ok),
            }
        })?;
        Ok(match ours {
            Ok(ours) => show(common, &[ours, plain, secured]),
            Err(Interrupt::Interrupted) => Exit::Interrupted,
            Err(Interrupt::Terminated) => Exit::Terminated,
        })
    }

    fn start(&self, part: Part, folder: &Path) -> io::Result<Child> {
        let part = part.to_possible_value().expect("no part is skipped");
        child("round", folder)?
            .args(["--part", part.get_name()])
            .args(["--nodes", &self.nodes.to_string()])
            .args(["--elements", &self.elements.to_string()])
            .args(["--rounds", &self.rounds.to_string()])
            .spawn()
    }

    /// Starts the two processes, and takes the time when the coordinator's says that a round has ended.
    async fn listen(&self, folder: &Path) -> io::Result<Measurement> {
        let mut coordinator = self.start(Part::Coordinator, folder)?;
        let mut members = self.start(Part::Members, folder)?;
        let ids = [coordinator.id(), members.id()].map(Option::unwrap_or_default);
        let out = coordinator.stdout.take().expect("it was asked for");
        let mut lines = BufReader::new(out).lines();
        let (mut ends, mut cpu, mut wan_bytes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut right, mut end) = (true, None);
        let mut members_live = true;
        loop {
            let line = tokio::select! {
                biased;
                line = lines.next_line() => line?,
                status = members.wait(), if members_live => {
                    members_live = false;
                    match status? {
                        status if status.success() => continue,
                        status => return Err(io::Error::other(format!("the members' process ended: {status}"))),
                    }
                }
            };
            let Some(line) = line else { break };
            match serde_json::from_str(&line) {
                Ok(Word::Round {
                    right: this,
                    wan_bytes: bytes,
                }) => {
                    ends.push(now());
                    cpu.push(ids.into_iter().map(cpu_seconds).sum::<io::Result<f64>>()?);
                    wan_bytes.push(bytes);
                    right &= this;
                }
                Ok(Word::End { peak_rss, reason }) => end = Some((peak_rss, reason)),
                // What went wrong; it is on standard error as well.
                Err(_) => right = false,
            }
        }
        let status = coordinator.wait().await?;
        if members_live {
            members.wait().await?;
        }
        let Some((peak_rss, reason)) = end else {
            let message = format!("the coordinator's process ended without a last word: {status}");
            return Err(io::Error::other(message));
        };
        if !reason.is_empty() {
            return Err(io::Error::other(reason));
        }
        let seconds: Vec<f64> = ends
            .windows(2)
            .map(|pair| pair[1].duration_since(pair[0]).as_secs_f64())
            .collect();
        let measured = seconds.len() as u64;
        let used = cpu
            .last()
            .zip(cpu.first())
            .map_or(0.0, |(last, first)| last - first);
        let crossed: u64 = wan_bytes.iter().skip(1).sum();
        let more = json!({
            "wan_bytes": crossed / measured.max(1),
            "wan_bytes_min": 2 * self.nodes as u64 * self.model_bytes(),
            "peak_rss": peak_rss,
        });
        let more = more.as_object().cloned().unwrap_or_default();
        Ok(Measurement {
            group: "round",
            peer: "tombolo",
            case: "no training, TLS".into(),
            n: self.nodes,
            bytes: self.model_bytes(),
            seconds,
            cpu_s_per_op: used / measured.max(1) as f64,
            ok: right && measured == self.rounds,
            more,
        })
    }

    /// Is one of the two processes of the federation.
    fn take_part(&self, common: &Common, part: Part, folder: &Path) -> Exit {
        let outcome = (|| {
            if let Some(parent) = self.child_of
                && !processes::die_with(parent)?
            {
                return Ok(Exit::Failed);
            }
            let federation = match self.federation(folder) {
                Ok(federation) => federation,
                Err(error) => return Ok(refuse(common, error)),
            };
            runtime()?.block_on(self.follow(common, part, federation))
        })();
        outcome.unwrap_or_else(|error: io::Error| {
            fail(common, &error.to_string());
            Exit::Failed
        })
    }

    async fn follow(
        &self,
        common: &Common,
        part: Part,
        federation: Federation,
    ) -> io::Result<Exit> {
        let coordinator = federation.plan().coordinator.clone();
        let is_coordinator = part == Part::Coordinator;
        let nodes: Vec<NodeId> = federation
            .plan()
            .nodes()
            .map(|node| node.id.clone())
            .filter(|node| (*node == coordinator) == is_coordinator)
            .collect();
        let running = match federation.spawn_nodes(nodes).await {
            Ok(running) => running,
            Err(error) => return Ok(refuse(common, error)),
        };
        let (mut events, ledger) = (running.events(), running.ledger());
        let mut told = 0;
        let mut tell = || {
            for record in ledger.rounds_from(told) {
                told += 1;
                print_line(&Word::Round {
                    right: record.state == RoundState::Committed
                        && record.counted.len() == self.nodes
                        && record.accuracy == 1.0
                        && record.loss == record.round as f64,
                    wan_bytes: record.bytes,
                });
            }
        };
        let mut run = std::pin::pin!(running.run());
        let report = loop {
            tokio::select! {
                biased;
                event = events.recv(), if is_coordinator => match event {
                    Ok(Event::Round(_)) | Err(RecvError::Lagged(_)) => tell(),
                    Ok(_) => {}
                    Err(RecvError::Closed) => break run.as_mut().await,
                },
                report = &mut run => break report,
            }
        };
        let report = match report {
            Ok(report) => report,
            Err(error) => return Ok(refuse(common, error)),
        };
        if is_coordinator {
            tell();
            print_line(&Word::End {
                peak_rss: peak_rss()?,
                reason: report.finished.reason,
            });
        }
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: usize, elements: usize, rounds: u64) -> Round {
        Round {
            nodes,
            elements,
            rounds,
            part: None,
            child_of: None,
        }
    }

    #[test]
    fn the_topology_is_one_and_the_coordinator_is_asked_in_no_round() {
        let round = of(3, 8, 2);
        let federation = round.federation(Path::new("folder")).unwrap();
        let plan = federation.plan();
        assert_eq!(plan.nodes().count(), 4);
        assert_eq!(plan.rounds, 3);
        assert_eq!(plan.coordinator.as_str(), "hub/gate");
        assert_eq!(plan.round.absent.len(), 3);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        assert_eq!(of(64, 1, 1).check(), Ok(()));
        for (round, name) in [
            (of(0, 1, 1), "--nodes 0"),
            (of(65, 1, 1), "--nodes 65"),
            (of(1, 0, 1), "--elements 0"),
            (of(1, 1, 0), "--rounds 0"),
            (of(1, 1, ROUNDS_MAX + 1), "--rounds"),
        ] {
            assert!(round.check().unwrap_err().starts_with(name));
        }
    }
}
