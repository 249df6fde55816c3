//! `tombolo bench clock`: what a node knows of a peer's clock, beside the truth.
//!
//! Two processes exchange heartbeats over loopback QUIC, with the machine and the filter that nodes have. Each process has a clock of its own,
//! which began when it did; both go by the machine's monotonic clock, so the true offset between them is known to a fraction of a
//! microsecond. The seconds of a line are how far what was stated is from it, after each exchange. Beside the filter stands what the
//! newest exchange alone would say.

mod beats;

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use quinn::Connection;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use tokio::sync::watch;

use super::child::{child, folder};
use super::link::quic::End;
use super::measure::{self, Measurement, own_cpu_seconds, show, within};
use crate::cli::output::print_line;
use crate::cli::{Common, Exit};
use beats::{Beats, Look, Report};
use tombolo::actors::env::Env;
use tombolo::actors::identity::Purpose;
use tombolo::actors::quic;
use tombolo::topology;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

/// What heartbeats may be apart, in ms: the shortest period that a topology may have, and more than which an hour would be too short.
const EVERY_MS: std::ops::RangeInclusive<u64> = 10..=5_000;

/// More tells nothing new: the filter forgets after two minutes.
const SECONDS_MAX: u64 = 3_600;

/// How long the processes may take to find each other, and to part.
const LIMIT: Duration = Duration::from_secs(20);

/// Readings of two clocks that are taken to compare them.
const READINGS: usize = 10_000;

/// What is not known of the truth, in microseconds: rounding.
const TRUTH_US: f64 = 1.0;

/// Arguments of `bench clock`.
#[derive(Debug, Args)]
pub struct Clock {
    /// How long heartbeats are exchanged.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Milliseconds from heartbeat to heartbeat; nodes have 500 by default.
    #[arg(long, default_value_t = 50)]
    every_ms: u64,
    /// Set by the measuring process, with which this one, the other node, ends: its input is closed then.
    #[arg(long, hide = true, value_name = "PID")]
    child_of: Option<u32>,
}

/// How far a look was from the truth, in one way to tell.
type ErrorOf = fn(&Look) -> f64;

/// What the other process says first.
#[derive(Debug, Serialize, Deserialize)]
struct Here {
    address: SocketAddr,
    /// Its clock less the machine's, in microseconds.
    ahead_us: f64,
}

/// What it says last.
#[derive(Debug, Serialize, Deserialize)]
struct Part {
    cpu_s: f64,
    sent: u64,
}

impl Clock {
    /// Measures, or is the other node.
    pub fn run(&self, common: &Common) -> Exit {
        measure::run(common, self.check(), || {
            match (self.child_of, &common.state) {
                (Some(_), Some(folder)) => {
                    self.take_part(folder)?;
                    Ok(Exit::Done)
                }
                _ => {
                    let folder = folder(common)?;
                    Ok(show(common, &self.measure(folder.path())?))
                }
            }
        })
    }

    fn check(&self) -> Result<(), String> {
        within("seconds", self.seconds, SECONDS_MAX)?;
        match EVERY_MS.contains(&self.every_ms) {
            true => Ok(()),
            false => {
                let (least, most) = EVERY_MS.into_inner();
                let found = self.every_ms;
                Err(format!("--every-ms {found}: expected {least} to {most}"))
            }
        }
    }

    fn plan(&self, folder: &Path) -> io::Result<Plan> {
        let text = format!(
            "[federation]\nname = \"bench\"\n[heartbeat]\nevery = \"{}ms\"\n\
             [[domain]]\nname = \"from\"\nnodes = [\"gate\"]\n\
             [[domain]]\nname = \"to\"\nnodes = [\"gate\"]\n",
            self.every_ms
        );
        topology::parse("bench", &text, folder).map_err(io::Error::other)
    }

    fn measure(&self, folder: &Path) -> io::Result<Vec<Measurement>> {
        let plan = self.plan(folder)?;
        let end = End::new(&plan, folder, "from/gate")?;
        let mut other = Other::start(self, folder)?;
        let here: Here = other.line()?;
        let truth_us = here.ahead_us - ahead_us(&*end.env);
        let connection = dial(&end, &plan, here.address)?;
        let (stop, stopped) = watch::channel(());
        let (tell, told) = mpsc::sync_channel(1);
        let beats = Beats::new(&plan, &end.env, connection.clone(), Some(truth_us));
        end.run(move || async move {
            // Fails only if nobody measures any more.
            let _ = tell.send(beats.run(stopped).await);
        });
        let wait = || match told.recv_timeout(Duration::from_secs(self.seconds) / 2) {
            Ok(early) => early.and_then(|_| {
                let reason = connection.close_reason().map(|reason| reason.to_string());
                Err(io::Error::other(reason.unwrap_or_default()))
            }),
            Err(_) => Ok(()),
        };
        // In the first half the connection also finds out how large its packets may be.
        wait()?;
        let before = Spent::now(&connection);
        wait()?;
        let spent = Spent::now(&connection).since(&before);
        drop(stop);
        let report = told.recv_timeout(LIMIT).map_err(io::Error::other)??;
        let part = other.end()?;
        Ok(self.found(&report, &part, &spent))
    }

    fn found(&self, report: &Report, part: &Part, spent: &Spent) -> Vec<Measurement> {
        let half = self.seconds as f64 / 2.0;
        let exchanges = report.looks.len().max(1) as f64;
        let bytes = (spent.bytes as f64 / (exchanges / 2.0)).round() as u64;
        let holds = |look: &Look| look.error_us <= look.bound_us + TRUTH_US;
        let ok = report.resets == 0 && part.sent > 0 && report.looks.iter().all(holds);
        let bound = sorted(report.looks.iter().map(|look| look.bound_us));
        let round_trip = sorted(report.looks.iter().map(|look| look.round_trip_us));
        let ways: [(&'static str, ErrorOf); 2] = [
            ("tombolo", |look| look.error_us),
            ("last-exchange", |look| look.raw_us),
        ];
        let lines = ways.map(|(peer, error_us)| {
            let errors = sorted(report.looks.iter().map(error_us));
            let mut more = Map::new();
            more.insert("p99_s".into(), json!(at(&errors, 0.99) * 1e-6));
            more.insert("exchanges".into(), json!(report.looks.len()));
            more.insert("round_trip_us".into(), json!(at(&round_trip, 0.5)));
            if peer == "tombolo" {
                more.insert("bound_median_s".into(), json!(at(&bound, 0.5) * 1e-6));
                more.insert("bound_last_s".into(), json!(report.bound_us * 1e-6));
                more.insert("rate_ppm".into(), json!(report.rate_ppm));
                more.insert("bytes_per_s".into(), json!(spent.bytes as f64 / half));
                more.insert("cpu_share".into(), json!(spent.cpu_s / half));
            }
            Measurement {
                group: "clock",
                peer,
                case: format!("two processes, a heartbeat every {} ms", self.every_ms),
                n: 2,
                bytes,
                seconds: errors.iter().map(|error| error * 1e-6).collect(),
                cpu_s_per_op: (2.0 * spent.cpu_s + part.cpu_s) / exchanges,
                ok,
                more,
            }
        });
        lines.into()
    }

    /// Is the other node, until its input ends.
    fn take_part(&self, folder: &Path) -> io::Result<()> {
        let plan = self.plan(folder)?;
        let end = End::new(&plan, folder, "to/gate")?;
        print_line(&Here {
            address: end.endpoint.local_addr()?,
            ahead_us: ahead_us(&*end.env),
        });
        let (stop, stopped) = watch::channel(());
        let (tell, told) = mpsc::sync_channel(1);
        let (endpoint, env) = (end.endpoint.clone(), end.env.clone());
        end.run(move || async move {
            let accepted = async { endpoint.accept().await?.await.ok() };
            if let Some(connection) = accepted.await {
                let beats = Beats::new(&plan, &env, connection, None);
                let used = own_cpu_seconds();
                let report = beats.run(stopped).await;
                // Fails only if nobody measures any more.
                let _ = tell.send(report.map(|report| (report, own_cpu_seconds() - used)));
            }
        });
        io::stdin().read_to_end(&mut Vec::new())?;
        drop(stop);
        let (report, cpu_s) = told.recv_timeout(LIMIT).map_err(io::Error::other)??;
        print_line(&Part {
            cpu_s,
            sent: report.sent,
        });
        Ok(())
    }
}

/// Connects as nodes do.
fn dial(end: &End, plan: &Plan, address: SocketAddr) -> io::Result<Connection> {
    let peer: NodeId = "to/gate".parse().map_err(io::Error::other)?;
    let carries = end.env.carries(address);
    let (config, name) = quic::dialling(plan, end.identity.as_ref(), &peer, carries, Purpose::Link);
    let (connected, connection) = mpsc::sync_channel(1);
    let endpoint = end.endpoint.clone();
    end.run(move || async move {
        let connecting = endpoint.connect_with(config, address, &name);
        let found = match connecting {
            Ok(connecting) => connecting.await.map_err(io::Error::other),
            Err(error) => Err(io::Error::other(error)),
        };
        // Fails only if nobody measures any more.
        let _ = connected.send(found);
    });
    connection.recv_timeout(LIMIT).map_err(io::Error::other)?
}

/// What one end has used: UDP payload both ways, and processor time.
struct Spent {
    bytes: u64,
    cpu_s: f64,
}

impl Spent {
    fn now(connection: &Connection) -> Spent {
        let stats = connection.stats();
        Spent {
            bytes: stats.udp_tx.bytes + stats.udp_rx.bytes,
            cpu_s: own_cpu_seconds(),
        }
    }

    fn since(&self, before: &Spent) -> Spent {
        Spent {
            bytes: self.bytes - before.bytes,
            cpu_s: self.cpu_s - before.cpu_s,
        }
    }
}

/// How far a node's clock is ahead of the machine's, in microseconds: between what all readings of both allow.
fn ahead_us(env: &dyn Env) -> f64 {
    let machine = || {
        let now = clock_gettime(ClockId::Monotonic);
        now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 * 1e-3
    };
    let (mut low, mut high) = (f64::MIN, f64::MAX);
    for _ in 0..READINGS {
        let (before, now, after) = (machine(), env.now().0 as f64, machine());
        // It shows whole microseconds.
        low = low.max(now - after);
        high = high.min(now + 1.0 - before);
    }
    f64::midpoint(low, high)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn at(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let found = sorted.get((last as f64 * share).round() as usize);
    found.copied().unwrap_or_default()
}

/// The other node's process, which ends with this value.
struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(clock: &Clock, folder: &Path) -> io::Result<Other> {
        let mut command = child("clock", folder)?.into_std();
        command.args(["--seconds", &clock.seconds.to_string()]);
        command.args(["--every-ms", &clock.every_ms.to_string()]);
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or_else(|| io::Error::other("a process without output"))?;
        Ok(Other {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn line<T: for<'a> Deserialize<'a>>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).map_err(io::Error::other)
    }

    fn end(&mut self) -> io::Result<Part> {
        self.input = None;
        self.line()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It has ended, or it is not wanted any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
