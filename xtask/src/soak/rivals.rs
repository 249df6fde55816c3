//! Rounds without training beside those of Flower and NVFlare, of one model and on one machine, passes interleaved.
//!
//! A ratio is good only within one run. Each pass runs ours and every rival once, so that what else the machine does meets all of them; a row is
//! the median over the passes.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Figures, Settings, Variables, object, peers};

pub const VARIABLES: Variables = &[("TOMBOLO_PASSES", "3"), ("TOMBOLO_RIVAL_NODES", "2")];

/// What a user would pick instead: environment, script, and what the script is told besides.
const RIVALS: [(&str, &str, &str); 3] = [
    ("flower", "flower_round.py", ""),
    ("flower-grpc", "flower_round.py", ""),
    ("nvflare", "nvflare_round.py", "poc"),
];

/// 102.4 MB of `f32`, and 100 KB.
const MODELS: [Model; 2] = [
    Model {
        elements: 25_600_000,
        rounds: 5,
        targets: &[
            Target::Wall(0.1),
            Target::Cpu(1.0 / 6.0),
            Target::Bytes(1.02),
            Target::Memory,
        ],
    },
    Model {
        elements: 25_000,
        rounds: 100,
        targets: &[Target::Wall(1.0 / 200.0)],
    },
];

/// Federations whose coordinator's memory is looked at, whether or not a rival runs in that size.
const MEMORY_NODES: [u64; 3] = [2, 4, 8];

/// Rounds of a rival: the first is not measured.
const RIVAL_ROUNDS: u64 = 5;

/// How long a rival may take for all its rounds.
const RIVAL_SECONDS_MAX: u64 = 600;

struct Model {
    elements: u64,
    /// Rounds of ours that are measured.
    rounds: u64,
    targets: &'static [Target],
}

#[derive(Clone, Copy)]
enum Target {
    /// Seconds of a round, at most this share of the best rival's.
    Wall(f64),
    /// Processor seconds of a round, likewise.
    Cpu(f64),
    /// Bytes between sites, at most so many times the fewest possible.
    Bytes(f64),
    /// The coordinator's peak, at most 2.5 models and 64 MiB.
    Memory,
}

/// What the passes of one contestant found, or one pass.
#[derive(Clone, Debug)]
struct Row {
    peer: String,
    nodes: u64,
    bytes: u64,
    passes: usize,
    median_s: f64,
    min_s: f64,
    max_s: f64,
    cpu_s: f64,
    wan_bytes: Option<u64>,
    wan_bytes_min: Option<u64>,
    peak_rss: Option<u64>,
}

/// Builds ours and installs the rivals.
pub fn prepare(root: &Path) -> Result<()> {
    peers::build(root)?;
    for (environment, _, _) in RIVALS {
        peers::prepare(root, environment);
    }
    Ok(())
}

/// A row for each contestant, then a line for each target.
pub fn lines(root: &Path, settings: &Settings) -> Result<Vec<Figures>> {
    let passes = settings.number("TOMBOLO_PASSES")?;
    let rival_nodes = settings.numbers("TOMBOLO_RIVAL_NODES")?;
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for pass in 1..=passes {
        for model in &MODELS {
            for nodes in nodes_of(model, &rival_nodes) {
                eprintln!(
                    "pass {pass} of {passes}: {nodes} nodes, {} elements",
                    model.elements
                );
                found.extend(ours(root, model, nodes)?);
                if !rival_nodes.contains(&nodes) {
                    continue;
                }
                for rival in RIVALS {
                    match theirs(root, rival, model, nodes) {
                        Ok(row) => found.push(row),
                        Err(error) => {
                            eprintln!("{}: left out of this pass: {error:#}", rival.0);
                            left_out.push(absence(rival.0, model, nodes, pass, &error));
                        }
                    }
                }
            }
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for row in &found {
        if !rows.iter().any(|other| other.is_of(row)) {
            rows.push(merged(&found, row));
        }
    }
    let mut lines: Vec<Figures> = rows.iter().map(Row::line).collect();
    lines.extend(left_out);
    lines.extend(targets(&rows, &rival_nodes));
    Ok(lines)
}

fn nodes_of(model: &Model, rival_nodes: &[u64]) -> Vec<u64> {
    let is_heavy = model.targets.iter().any(|it| matches!(it, Target::Memory));
    let more: &[u64] = if is_heavy { &MEMORY_NODES } else { &[] };
    let mut nodes = [rival_nodes, more].concat();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Ours, and the limit that is measured with it.
fn ours(root: &Path, model: &Model, nodes: u64) -> Result<Vec<Row>> {
    let Model {
        elements, rounds, ..
    } = model;
    let command = format!("bench round --nodes {nodes} --elements {elements} --rounds {rounds}");
    let lines = peers::tombolo(root, &command).with_context(|| format!("tombolo {command}"))?;
    let rows: Result<Vec<Row>> = lines.iter().map(Row::read).collect();
    let rows = rows?;
    match rows.iter().any(|row| row.peer == "tombolo") {
        true => Ok(rows),
        false => bail!("tombolo {command} says nothing of itself"),
    }
}

fn theirs(
    root: &Path,
    (environment, script, more): (&str, &str, &str),
    model: &Model,
    nodes: u64,
) -> Result<Row> {
    let python = peers::python(root, environment).context("it is not installed")?;
    let elements = model.elements;
    let arguments = format!("{nodes} {elements} {RIVAL_ROUNDS} {RIVAL_SECONDS_MAX} {more}");
    let lines = peers::script(root, &python, script, &arguments)?;
    let line = lines.iter().find(|line| line.contains_key("median_s"));
    Row::read(line.context("it ended without a result")?)
}

fn absence(rival: &str, model: &Model, nodes: u64, pass: u64, error: &anyhow::Error) -> Figures {
    object(json!({
        "left_out": rival,
        "n": nodes,
        "bytes": model.elements * 4,
        "pass": pass,
        "why": error.to_string(),
    }))
}

impl Row {
    /// One pass, with the fields of `tombolo bench`.
    fn read(line: &Figures) -> Result<Row> {
        if line.get("ok") != Some(&Value::Bool(true)) {
            bail!("its result is wrong, so its times mean nothing");
        }
        let real = |name: &str| {
            let value = line.get(name).and_then(Value::as_f64);
            value.with_context(|| format!("no number {name:?} in what it says"))
        };
        // Some count as real numbers.
        let whole = |name: &str| real(name).ok().map(|value| value as u64);
        let peer = line.get("peer").and_then(Value::as_str);
        Ok(Row {
            peer: peer.context("it does not say who it is")?.to_owned(),
            nodes: real("n")? as u64,
            bytes: real("bytes")? as u64,
            passes: 1,
            median_s: real("median_s")?,
            min_s: real("min_s")?,
            max_s: real("max_s")?,
            cpu_s: real("cpu_s_per_op")?,
            wan_bytes: whole("wan_bytes"),
            wan_bytes_min: whole("wan_bytes_min"),
            peak_rss: whole("peak_rss"),
        })
    }

    /// Whether it is another pass of the same.
    fn is_of(&self, other: &Row) -> bool {
        (&self.peer, self.nodes, self.bytes) == (&other.peer, other.nodes, other.bytes)
    }

    fn is_rival(&self) -> bool {
        self.peer != "tombolo" && !self.peer.starts_with("limit-")
    }

    fn line(&self) -> Figures {
        object(json!({
            "peer": self.peer,
            "n": self.nodes,
            "bytes": self.bytes,
            "passes": self.passes,
            "median_s": rounded(self.median_s),
            "min_s": rounded(self.min_s),
            "max_s": rounded(self.max_s),
            "cpu_s_per_op": rounded(self.cpu_s),
            "wan_bytes": self.wan_bytes,
            "peak_rss": self.peak_rss,
        }))
    }
}

/// The passes of one contestant in one: medians, but of bytes and memory the most.
fn merged(found: &[Row], of: &Row) -> Row {
    let passes: Vec<&Row> = found.iter().filter(|row| row.is_of(of)).collect();
    let all = |of: fn(&Row) -> f64| passes.iter().map(|row| of(row)).collect::<Vec<f64>>();
    let most = |of: fn(&Row) -> Option<u64>| passes.iter().filter_map(|row| of(row)).max();
    Row {
        passes: passes.len(),
        median_s: median(all(|row| row.median_s)),
        min_s: all(|row| row.min_s)
            .into_iter()
            .fold(f64::INFINITY, f64::min),
        max_s: all(|row| row.max_s).into_iter().fold(0.0, f64::max),
        cpu_s: median(all(|row| row.cpu_s)),
        wan_bytes: most(|row| row.wan_bytes),
        peak_rss: most(|row| row.peak_rss),
        ..of.clone()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        0 => f64::midpoint(values[middle - 1], values[middle]),
        _ => values[middle],
    }
}

/// Each target beside what was found. Where all rivals were left out, it is not known whether one holds.
fn targets(rows: &[Row], rival_nodes: &[u64]) -> Vec<Figures> {
    let mut lines = Vec::new();
    for ours in rows.iter().filter(|row| row.peer == "tombolo") {
        let model = MODELS.iter().find(|it| it.elements * 4 == ours.bytes);
        let has_rivals = rival_nodes.contains(&ours.nodes);
        for target in model.map_or(&[][..], |model| model.targets) {
            if has_rivals || !target.is_of_rivals() {
                lines.extend(target.line(ours, rows));
            }
        }
    }
    lines
}

impl Target {
    fn is_of_rivals(self) -> bool {
        matches!(self, Target::Wall(_) | Target::Cpu(_))
    }

    /// None if ours does not say what is asked.
    fn line(self, ours: &Row, rows: &[Row]) -> Option<Figures> {
        let beside = |of: fn(&Row) -> f64| {
            let rivals = rows.iter().filter(|row| row.is_rival());
            rivals
                .filter(|row| (row.nodes, row.bytes) == (ours.nodes, ours.bytes))
                .map(|row| (row.peer.clone(), of(row)))
                .min_by(|a, b| a.1.total_cmp(&b.1))
        };
        let memory = 2.5 * ours.bytes as f64 + (64 << 20) as f64;
        let (name, own, other, at_most) = match self {
            Target::Wall(share) => ("wall_s", ours.median_s, beside(|row| row.median_s), share),
            Target::Cpu(share) => ("cpu_s", ours.cpu_s, beside(|row| row.cpu_s), share),
            Target::Bytes(times) => {
                let least = ours
                    .wan_bytes_min
                    .map(|least| ("the fewest".into(), least as f64));
                ("wan_bytes", ours.wan_bytes? as f64, least, times)
            }
            Target::Memory => {
                let bound = Some(("2.5 models and 64 MiB".into(), memory));
                ("peak_rss", ours.peak_rss? as f64, bound, 1.0)
            }
        };
        let ratio = other.as_ref().map(|(_, other)| own / other);
        Some(object(json!({
            "target": name,
            "n": ours.nodes,
            "bytes": ours.bytes,
            "ours": rounded(own),
            "beside": other.as_ref().map(|(name, _)| name),
            "theirs": other.as_ref().map(|(_, other)| rounded(*other)),
            "ratio": ratio.map(rounded),
            "at_most": rounded(at_most),
            "holds": ratio.map(|ratio| ratio <= at_most),
        })))
    }
}

/// To a millionth; whole numbers as such.
fn rounded(value: f64) -> Value {
    let value = (value * 1e6).round() / 1e6;
    match value.fract() == 0.0 && value.abs() < 9e15 {
        true => json!(value as i64),
        false => json!(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u64 = 102_400_000;

    fn row(peer: &str, nodes: u64, bytes: u64, wall: f64, cpu: f64) -> Row {
        let ours = peer == "tombolo";
        Row {
            peer: peer.into(),
            nodes,
            bytes,
            passes: 1,
            median_s: wall,
            min_s: wall / 2.0,
            max_s: wall * 2.0,
            cpu_s: cpu,
            wan_bytes: Some(2 * nodes * bytes + 1000),
            wan_bytes_min: ours.then_some(2 * nodes * bytes),
            peak_rss: Some(bytes),
        }
    }

    /// The line of a target: what it is held against, and whether it holds.
    fn verdict(lines: &[Figures], target: &str, bytes: u64) -> (Value, Value) {
        let of = |line: &&Figures| line["target"] == target && line["bytes"] == bytes;
        let mut found = lines.iter().filter(of);
        let line = found.next().expect("there is one");
        assert!(found.next().is_none(), "{target} twice: {lines:?}");
        (line["beside"].clone(), line["holds"].clone())
    }

    #[test]
    fn passes_become_a_row_of_medians_and_of_memory_the_most() {
        let mut passes = Vec::new();
        for (wall, peak) in [(3.0, 7), (1.0, 9), (2.0, 8)] {
            let mut pass = row("tombolo", 2, LARGE, wall, wall * 10.0);
            pass.peak_rss = Some(peak);
            passes.extend([pass, row("flower", 2, LARGE, 50.0, 50.0)]);
        }
        passes.push(row("tombolo", 4, LARGE, 99.0, 99.0));
        let line = merged(&passes, &passes[0]).line();
        assert_eq!((&line["passes"], &line["median_s"]), (&json!(3), &json!(2)));
        assert_eq!((&line["min_s"], &line["max_s"]), (&json!(0.5), &json!(6)));
        assert_eq!(line["cpu_s_per_op"], 20);
        assert_eq!(line["peak_rss"], 9);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }

    #[test]
    fn each_target_is_held_against_the_rival_that_is_best_in_it() {
        let rows = [
            row("tombolo", 2, LARGE, 0.5, 1.5),
            // Neither of them is a rival of that size.
            row("limit-tcp", 2, LARGE, 0.1, 0.1),
            row("quick", 4, LARGE, 0.1, 0.1),
            row("quick", 2, LARGE, 5.0, 20.0),
            row("frugal", 2, LARGE, 8.0, 8.9),
            row("tombolo", 2, 100_000, 0.012, 1.0),
            row("quick", 2, 100_000, 2.5, 0.1),
        ];
        let lines = targets(&rows, &[2]);
        let holds = |holds: bool, beside: &str| (json!(beside), json!(holds));
        assert_eq!(verdict(&lines, "wall_s", LARGE), holds(true, "quick"));
        assert_eq!(verdict(&lines, "cpu_s", LARGE), holds(false, "frugal"));
        assert_eq!(verdict(&lines, "wall_s", 100_000), holds(true, "quick"));
        assert_eq!(lines.len(), 5, "{lines:?}");
    }

    #[test]
    fn bytes_and_memory_are_held_against_bounds_of_the_model() {
        let mut ours = row("tombolo", 8, LARGE, 0.5, 1.5);
        let lines = targets(std::slice::from_ref(&ours), &[2]);
        assert_eq!(verdict(&lines, "wan_bytes", LARGE).1, true);
        assert_eq!(verdict(&lines, "peak_rss", LARGE).1, true);
        assert_eq!(lines.len(), 2, "no rival was asked for: {lines:?}");
        ours.wan_bytes = ours.wan_bytes_min.map(|least| least + least / 40);
        ours.peak_rss = Some(LARGE * 5 / 2 + (64 << 20) + 1);
        let lines = targets(&[ours], &[2]);
        assert_eq!(verdict(&lines, "wan_bytes", LARGE).1, false);
        assert_eq!(verdict(&lines, "peak_rss", LARGE).1, false);
    }

    #[test]
    fn without_any_rival_it_is_not_known_whether_a_ratio_holds() {
        let lines = targets(&[row("tombolo", 2, LARGE, 0.5, 1.5)], &[2]);
        assert_eq!(verdict(&lines, "wall_s", LARGE), (Value::Null, Value::Null));
        assert_eq!(verdict(&lines, "cpu_s", LARGE), (Value::Null, Value::Null));
    }

    #[test]
    fn a_result_that_is_wrong_or_not_whole_is_no_row() {
        let said = r#"{"peer":"flower","n":2,"bytes":4,"median_s":3,"min_s":2.5,"max_s":4,"cpu_s_per_op":1.25,"wan_bytes":77.0,"ok":true}"#;
        let said = super::super::figures(said).unwrap();
        let row = Row::read(&said).unwrap();
        assert_eq!((row.nodes, row.bytes, row.cpu_s), (2, 4, 1.25));
        assert_eq!((row.wan_bytes, row.peak_rss), (Some(77), None));
        for (name, value) in [
            ("ok", json!(false)),
            ("ok", Value::Null),
            ("median_s", Value::Null),
        ] {
            let mut bad = said.clone();
            bad.insert(name.into(), value);
            assert!(Row::read(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn memory_is_looked_at_in_more_sizes_than_the_rivals_run_in() {
        assert_eq!(nodes_of(&MODELS[0], &[2]), [2, 4, 8]);
        assert_eq!(nodes_of(&MODELS[0], &[3, 4]), [2, 3, 4, 8]);
        assert_eq!(nodes_of(&MODELS[1], &[2]), [2]);
    }
}
