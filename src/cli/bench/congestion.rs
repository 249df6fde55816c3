//! `tombolo bench congestion`: what the laws of links make of a path, in virtual time: ours beside quinn's cubic and BBR.
//!
//! All of it is simulated but the laws, QUIC and TLS, so every figure but processor time is the same each time and everywhere; seconds are virtual. A
//! transfer lasts from the opening of its stream until its last byte has arrived: the start counts. `share` is the payload's part of the path's
//! rate, `queue_ms` the mean wait of a packet in the path's queue, `dropped` the packets that found it full. Where something is aimed at, `meets`
//! says whether it is reached, and `missed` what is not. A transfer that never ended has no share, and says why as `failed`.

mod cells;
mod sharing;

use std::io;

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};

use super::measure::{self, Measurement, judge, own_cpu_seconds, table};
use crate::cli::output::print_line;
use crate::cli::{Common, Exit, Format};
use cells::Cell;
use tombolo::sim::LinkStatistics;
use tombolo_core::congestion::Law;
use tombolo_core::congestion::delay_gradient::Settings;

/// Of all simulated paths: what they lose at random.
const SEED: u64 = 7;

/// Arguments of `bench congestion`.
#[derive(Debug, Args)]
pub struct Congestion {
    /// Over which paths one object is moved.
    #[arg(long, value_enum, default_value_t = Cells::Ci)]
    cells: Cells,
    /// Over paths of 1 Gbit/s as well.
    #[arg(long)]
    gigabit: bool,
    /// Only paths whose names have this in them, and nothing of several flows.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cells {
    /// Six paths, and less than 100 MB where that takes long.
    Ci,
    /// 20, 60, 150 and 300 ms, 0, 0.1 and 1 % loss, 5, 50 and 200 Mbit/s: 100 MB over each.
    All,
}

/// A law, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peer {
    Ours,
    Cubic,
    Bbr,
}

impl Peer {
    fn law(self) -> Law {
        match self {
            Peer::Ours => Law::DelayGradient(Settings::default()),
            Peer::Cubic => Law::Cubic,
            Peer::Bbr => Law::Bbr,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Peer::Ours => "tombolo",
            Peer::Cubic => "cubic",
            Peer::Bbr => "bbr",
        }
    }
}

/// What was found of one law on one path.
#[derive(Debug, Clone)]
struct Found {
    peer: Peer,
    case: String,
    flows: usize,
    bytes: u64,
    seconds: f64,
    /// Why it never ended, if it did not.
    failed: Option<String>,
    cpu_s: f64,
    more: Map<String, Value>,
}

impl Found {
    /// Says whether what was aimed at is reached: a name for each aim.
    fn aim<const N: usize>(&mut self, aims: [(&str, bool); N]) {
        let missed = aims.iter().filter(|(_, met)| !met).map(|(name, _)| *name);
        let missed: Vec<&str> = missed.collect();
        self.more.insert("meets".into(), missed.is_empty().into());
        self.more.insert("missed".into(), missed.join(", ").into());
    }

    fn line(mut self) -> Value {
        let ok = self.failed.is_none();
        if let Some(failed) = self.failed {
            self.more.insert("failed".into(), failed.into());
        }
        let measurement = Measurement {
            group: "congestion",
            peer: self.peer.name(),
            case: self.case,
            n: self.flows,
            bytes: self.bytes,
            seconds: vec![self.seconds],
            cpu_s_per_op: self.cpu_s,
            ok,
            more: self.more,
        };
        measurement.to_json()
    }
}

impl Congestion {
    /// Measures.
    pub fn run(&self, common: &Common) -> Exit {
        let cells = self.cells();
        let checked = match (cells.is_empty(), &self.only) {
            (true, Some(only)) => Err(format!("--only {only:?}: no path has that in its name")),
            _ => Ok(()),
        };
        measure::run(common, checked, || {
            // It draws itself on a terminal only.
            let bar = ProgressBar::new(cells.len() as u64 + sharing::STEPS);
            let mut lines = Vec::new();
            let mut show = |found: Vec<Found>| {
                for found in found {
                    let line = found.line();
                    // As soon as it is known: all of them may take long.
                    if common.format == Format::Json {
                        print_line(&line);
                    }
                    lines.push(line);
                }
                bar.inc(1);
            };
            for cell in cells {
                show(cells::measure(cell)?);
            }
            if self.only.is_none() {
                sharing::measure(&mut show)?;
            }
            bar.finish_and_clear();
            if common.format == Format::Text {
                say!("{}", table(&lines));
            }
            Ok(judge(&lines))
        })
    }

    fn cells(&self) -> Vec<Cell> {
        let mut cells = match self.cells {
            Cells::Ci => cells::CI.to_vec(),
            Cells::All => cells::matrix(&[5, 50, 200]),
        };
        if self.gigabit {
            cells.extend(cells::matrix(&[1000]));
        }
        if let Some(only) = &self.only {
            cells.retain(|cell| cell.name().contains(only.as_str()));
        }
        cells
    }
}

/// Processor seconds of what it does.
fn timed<T>(run: impl FnOnce() -> io::Result<T>) -> io::Result<(T, f64)> {
    let before = own_cpu_seconds();
    let found = run()?;
    Ok((found, own_cpu_seconds() - before))
}

/// The queue's part of a line: the mean wait in ms of the packets that it took, and the share of those that it did not.
fn queue(seen: &LinkStatistics) -> (f64, f64) {
    let taken = (seen.sent - seen.queue_full).max(1);
    let wait = seen.queue_delay_total.as_secs_f64() * 1000.0 / taken as f64;
    (wait, seen.queue_full as f64 / seen.sent.max(1) as f64)
}

/// Fields of one line.
fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Rounded as people read it: more digits are noise of the model.
fn rounded(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}
