//! One measurement: times, processor seconds, whether the result was right; and how it is printed.

use std::io;
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::cli::output::{bytes, complain, fail, print_line};
use crate::cli::{Common, Exit, Format};

/// Columns that are no numbers.
const TEXTS: &[&str] = &[
    "group", "peer", "case", "study", "rule", "outer", "codec", "with", "claim", "found", "missed",
    "failed",
];

/// One measurement.
#[derive(Debug)]
pub struct Measurement {
    /// What is measured.
    pub group: &'static str,
    /// Who does it: `tombolo`, or the limit's name.
    pub peer: &'static str,
    /// Which case of the group.
    pub case: String,
    /// How many take part: nodes, or threads.
    pub n: usize,
    /// Bytes of what is moved or made, once.
    pub bytes: u64,
    /// Seconds of each operation.
    pub seconds: Vec<f64>,
    /// Processor seconds of an operation, of all processes.
    pub cpu_s_per_op: f64,
    /// Whether the result was right.
    pub ok: bool,
    /// Fields of this group alone.
    pub more: Map<String, Value>,
}

impl Measurement {
    /// Least, median and greatest time; none without an operation.
    fn times(&self) -> Option<(f64, f64, f64)> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some((first, median, last))
    }

    /// The line that stands for it.
    pub fn to_json(&self) -> Value {
        let times = self.times();
        let mut line = json!({
            "group": self.group,
            "peer": self.peer,
            "case": self.case,
            "n": self.n,
            "bytes": self.bytes,
            "median_s": times.map(|times| times.1),
            "min_s": times.map(|times| times.0),
            "max_s": times.map(|times| times.2),
            "cpu_s_per_op": self.cpu_s_per_op,
            "ok": self.ok && times.is_some(),
        });
        for (name, value) in &self.more {
            line[name] = value.clone();
        }
        line
    }
}

/// Prints measurements. Failed if one of them has a wrong result.
pub fn show(common: &Common, measurements: &[Measurement]) -> Exit {
    let lines: Vec<Value> = measurements.iter().map(Measurement::to_json).collect();
    show_lines(common, &lines)
}

/// Prints measurements that are lines already. Failed if one of them has a wrong result.
pub fn show_lines(common: &Common, lines: &[Value]) -> Exit {
    match common.format {
        Format::Json => lines.iter().for_each(print_line),
        Format::Text => say!("{}", table(lines)),
    }
    judge(lines)
}

/// Failed if one of these measurements, which have been printed, has a wrong result.
pub fn judge(lines: &[Value]) -> Exit {
    let wrong: Vec<String> = lines
        .iter()
        .filter(|line| line["ok"] != true)
        .map(|line| format!("{} {}", line["peer"], line["case"]))
        .collect();
    if wrong.is_empty() {
        return Exit::Done;
    }
    complain(&format!(
        "the result is wrong or missing, so these times mean nothing: {}",
        wrong.join(", ")
    ));
    Exit::Failed
}

/// Measures what was asked for, unless its options cannot be.
pub fn run(
    common: &Common,
    checked: Result<(), String>,
    measure: impl FnOnce() -> io::Result<Exit>,
) -> Exit {
    if let Err(reason) = checked {
        fail(common, &reason);
        return Exit::Usage;
    }
    measure().unwrap_or_else(|error| {
        fail(common, &error.to_string());
        Exit::Failed
    })
}

/// Seconds of an operation, each time; once before that it is not measured. And processor seconds of one.
pub fn repeated(repeat: usize, mut operation: impl FnMut()) -> io::Result<(Vec<f64>, f64)> {
    operation();
    let before = cpu_seconds(std::process::id())?;
    let seconds = (0..repeat).map(|_| {
        let began = now();
        operation();
        (now() - began).as_secs_f64()
    });
    let seconds: Vec<f64> = seconds.collect();
    let used = cpu_seconds(std::process::id())? - before;
    Ok((seconds, used / repeat as f64))
}

/// Whether an option is one of 1 to `most`; why not, if not.
pub fn within(name: &str, found: u64, most: u64) -> Result<(), String> {
    match (1..=most).contains(&found) {
        true => Ok(()),
        false => Err(format!("--{name} {found}: expected 1 to {most}")),
    }
}

/// A column for each field that any line has.
pub fn table(lines: &[Value]) -> Table {
    let mut names: Vec<&String> = Vec::new();
    for name in lines
        .iter()
        .filter_map(Value::as_object)
        .flat_map(Map::keys)
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(names.iter().map(|name| name.replace('_', " ")));
    for line in lines {
        table.add_row(names.iter().map(|name| cell(name, &line[name.as_str()])));
    }
    for (index, name) in names.iter().enumerate() {
        let is_text = TEXTS.contains(&name.as_str());
        if let Some(column) = table.column_mut(index)
            && !is_text
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn cell(name: &str, value: &Value) -> String {
    let is_bytes = name.contains("bytes") || name == "peak_rss";
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) if is_bytes => bytes(whole),
            (None, Some(real)) => format!("{real:.6}"),
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark is about the real world"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Processor seconds that a process and its threads have used.
///
/// # Errors
/// There is no such process.
pub fn cpu_seconds(process: u32) -> io::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name, in brackets, may hold anything; the fields behind it are numbers but for the first.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Processor seconds of this process, finer than the system's table of processes has them.
pub fn own_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The most memory that this process has had, in bytes.
///
/// # Errors
/// The system does not say it.
pub fn peak_rss() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))
        .and_then(|kilobytes| kilobytes.trim().parse::<u64>().ok());
    let unknown = || io::Error::other("the system does not say how much memory is used");
    Ok(peak.ok_or_else(unknown)? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(seconds: &[f64], ok: bool) -> Value {
        Measurement {
            group: "g",
            peer: "p",
            case: "c".into(),
            n: 1,
            bytes: 4,
            seconds: seconds.to_vec(),
            cpu_s_per_op: 0.5,
            ok,
            more: Map::new(),
        }
        .to_json()
    }

    #[test]
    fn the_median_is_the_middle_and_of_two_middles_the_mean() {
        let odd = measurement(&[3.0, 1.0, 2.0], true);
        assert_eq!(
            (&odd["min_s"], &odd["median_s"]),
            (&json!(1.0), &json!(2.0))
        );
        assert_eq!(odd["max_s"], 3.0);
        assert_eq!(measurement(&[4.0, 1.0, 2.0, 3.0], true)["median_s"], 2.5);
    }

    #[test]
    fn what_was_never_done_is_not_right() {
        assert_eq!(measurement(&[], true)["ok"], false);
        assert_eq!(measurement(&[1.0], true)["ok"], true);
        assert_eq!(measurement(&[1.0], false)["ok"], false);
    }

    #[test]
    fn this_process_uses_memory_and_can_be_asked_for_its_time() {
        assert!(peak_rss().unwrap() > 1 << 20);
        assert!(cpu_seconds(std::process::id()).unwrap() >= 0.0);
        assert!(cpu_seconds(u32::MAX).is_err());
    }
}
