//! All-reduce among processes of this machine, beside OpenMPI, MPICH and Gloo: in place and in private memory, passes interleaved.
//!
//! A ratio is good only within one run. Each pass runs ours and every rival once in each size; a row is the median over the passes. OpenMPI's and
//! MPICH's programs are compiled here with their own compilers' wrappers; Gloo is that of a torch which the system's python3 can import. What is not
//! installed is left out, and said to be.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Figures, Settings, Variables, object, peers};

pub const VARIABLES: Variables = &[
    ("TOMBOLO_PASSES", "3"),
    ("TOMBOLO_RANKS", "2 4 8"),
    ("TOMBOLO_COUNTS", "25600000 250000 1024"),
];

/// How long a program may take.
const SECONDS_MAX: &str = "120";

/// What OpenMPI is told: memory shared among its ranks, and the processor given away by who waits, since there may be more ranks than processors.
const OPENMPI: &str = "--oversubscribe --mca btl vader,self --mca mpi_yield_when_idle 1 --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm";

const GLOO: &str = "gloo";

/// At most this share of a rival's time is aimed at.
struct Target {
    /// Of ours.
    peer: &'static str,
    elements: u64,
    ranks: &'static [u64],
    /// Beginnings of the names of those it is held against, of whom the best counts.
    beside: &'static [&'static str],
    share: f64,
}

const ALL: &[&str] = &["openmpi", "mpich", GLOO];

const TARGETS: &[Target] = &[
    Target::of("tombolo", 25_600_000, &[2], ALL, 1.0 / 5.0),
    Target::of("tombolo", 25_600_000, &[4, 8], ALL, 1.0 / 3.0),
    Target::of("tombolo", 250_000, &[2], ALL, 1.0 / 4.0),
    Target::of("tombolo", 250_000, &[4], ALL, 1.0 / 2.0),
    Target::of("tombolo", 1024, &[2], &["openmpi", "mpich"], 1.0),
    Target::of("tombolo", 1024, &[4, 8], &["openmpi"], 1.0),
    Target::of("tombolo", 1024, &[2, 4, 8], &[GLOO], 1.0 / 100.0),
    Target::of("tombolo-private", 25_600_000, &[2, 4, 8], ALL, 0.6),
];

impl Target {
    const fn of(
        peer: &'static str,
        elements: u64,
        ranks: &'static [u64],
        beside: &'static [&'static str],
        share: f64,
    ) -> Target {
        Target {
            peer,
            elements,
            ranks,
            beside,
            share,
        }
    }
}

/// One size among so many ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    elements: u64,
    ranks: u64,
}

impl Case {
    /// Operations in a batch, and batches.
    fn batches(self) -> (u64, u64) {
        match self.elements {
            1_000_000.. => (1, 9),
            20_000.. => (10, 11),
            _ => (100, 11),
        }
    }

    /// The numbers that every program takes last.
    fn arguments(self, (per, batches): (u64, u64)) -> String {
        format!("{} {per} {batches}", self.elements)
    }
}

/// What the passes of one contestant found, or one pass.
#[derive(Clone, Debug)]
struct Row {
    peer: String,
    case: Case,
    passes: usize,
    median_s: f64,
    min_s: f64,
    max_s: f64,
    cpu_s: f64,
}

/// Builds ours, and what rivals need to be measured.
pub fn prepare(root: &Path) -> Result<()> {
    peers::build(root)?;
    for (compiler, program) in [
        ("mpicc.openmpi", "mpi_openmpi"),
        ("mpicc.mpich", "mpi_mpich"),
    ] {
        if let Err(error) = peers::compile(root, compiler, "mpi_allreduce.c", program) {
            eprintln!("{program}: left out: {error:#}");
        }
    }
    Ok(())
}

/// A row for each contestant, then a line for each target.
pub fn lines(root: &Path, settings: &Settings) -> Result<Vec<Figures>> {
    let passes = settings.number("TOMBOLO_PASSES")?;
    let counts = settings.numbers("TOMBOLO_COUNTS")?;
    let ranks = settings.numbers("TOMBOLO_RANKS")?;
    let cases: Vec<Case> = counts
        .iter()
        .flat_map(|&elements| ranks.iter().map(move |&ranks| Case { elements, ranks }))
        .collect();
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    for pass in 1..=passes {
        for &case in &cases {
            eprintln!("pass {pass} of {passes}: {case:?}");
            found.extend(ours(root, case)?);
            for rival in rivals(root, case) {
                match rival.run(root, case) {
                    Ok(row) => found.push(row),
                    Err(error) => {
                        eprintln!("{}: left out of this pass: {error:#}", rival.name);
                        left_out.push(object(json!({
                            "left_out": rival.name,
                            "n": case.ranks,
                            "bytes": case.elements * 4,
                            "pass": pass,
                            "why": format!("{error:#}"),
                        })));
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
    lines.extend(targets(&rows));
    Ok(lines)
}

/// Ours in place and in private memory, and the limit.
fn ours(root: &Path, case: Case) -> Result<Vec<Row>> {
    let (per, batches) = case.batches();
    let Case { elements, ranks } = case;
    let command = format!(
        "bench allreduce --nodes {ranks} --elements {elements} --per {per} --batches {batches}"
    );
    let mut rows = Vec::new();
    for (more, name) in [("", "tombolo"), (" --private", "tombolo-private")] {
        let command = format!("{command}{more}");
        let lines = peers::tombolo(root, &command).with_context(|| format!("tombolo {command}"))?;
        for line in &lines {
            let mut row = Row::read(line, case)?;
            match &row.peer[..] {
                "tombolo" => row.peer = name.to_owned(),
                // The limit is measured each time, and said once.
                _ if name != "tombolo" => continue,
                _ => {}
            }
            rows.push(row);
        }
    }
    if rows.len() < 2 {
        bail!("tombolo {command} says nothing of itself");
    }
    Ok(rows)
}

/// A program of others.
struct Rival {
    name: String,
    command: Vec<OsString>,
    environment: Vec<(&'static str, String)>,
}

impl Rival {
    fn run(&self, root: &Path, case: Case) -> Result<Row> {
        let lines = peers::program(root, &self.command, &self.environment)?;
        let line = lines.iter().find(|line| line.contains_key("median_s"));
        Row::read(line.context("it ended without a result")?, case)
    }
}

/// Those that are installed, each with the algorithms that suit the size.
fn rivals(root: &Path, case: Case) -> Vec<Rival> {
    let mut rivals = Vec::new();
    let pri = peers::scripts(root).join("pri.sh");
    let ranks = case.ranks.to_string();
    if let Some(program) = compiled(root, "mpi_openmpi") {
        let algorithms: &[u64] = match case.elements {
            1_000_000.. => &[0, 4, 5],
            20_000.. => &[0, 4, 6],
            _ => &[0, 3],
        };
        for algorithm in algorithms {
            let name = format!("openmpi-alg{algorithm}");
            let mut command = words(&[&pri, Path::new("timeout")]);
            command.extend([SECONDS_MAX, "mpirun.openmpi", "-n", &ranks].map(OsString::from));
            command.extend(OPENMPI.split(' ').map(OsString::from));
            command.push(algorithm.to_string().into());
            command.extend(words(&[&program, Path::new(&name)]));
            let arguments = case.arguments(case.batches());
            command.extend(arguments.split(' ').map(OsString::from));
            rivals.push(Rival {
                name,
                command,
                environment: vec![
                    ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
                    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
                ],
            });
        }
    }
    if let Some(program) = compiled(root, "mpi_mpich") {
        // It never gives the processor away: with more ranks than there are an operation takes slices of the scheduler.
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        let batches = match case.batches() {
            (per, _) if per > 1 && case.ranks > processors => (2, 5),
            batches => batches,
        };
        let intra = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM";
        let posix = "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM";
        let algorithms: &[(&str, &str)] = match case.elements {
            1_000_000.. => &[(intra, "auto"), (intra, "reduce_scatter_allgather")],
            20_000.. => &[
                (intra, "auto"),
                (intra, "reduce_scatter_allgather"),
                (posix, "release_gather"),
            ],
            _ => &[
                (intra, "auto"),
                (intra, "recursive_doubling"),
                (posix, "release_gather"),
            ],
        };
        for &(variable, algorithm) in algorithms {
            let name = format!("mpich-{algorithm}");
            // Its ranks are in sessions of their own, so each is raised by itself.
            let start = ["timeout", SECONDS_MAX, "mpirun.mpich", "-n", &ranks];
            let mut command: Vec<OsString> = start.map(OsString::from).into();
            command.extend(words(&[&pri, &program, Path::new(&name)]));
            let arguments = case.arguments(batches);
            command.extend(arguments.split(' ').map(OsString::from));
            rivals.push(Rival {
                name,
                command,
                environment: vec![(variable, algorithm.to_owned())],
            });
        }
    }
    if peers::has_module("torch") {
        let (per, batches) = case.batches();
        let script = peers::scripts(root).join("py/gloo_allreduce.py");
        let mut command = words(&[&pri, Path::new("timeout")]);
        command.extend([SECONDS_MAX, "python3"].map(OsString::from));
        command.push(script.into());
        let arguments = format!("{} {ranks} {per} {batches}", case.elements);
        command.extend(arguments.split(' ').map(OsString::from));
        rivals.push(Rival {
            name: GLOO.to_owned(),
            command,
            environment: Vec::new(),
        });
    }
    rivals
}

fn compiled(root: &Path, program: &str) -> Option<PathBuf> {
    Some(peers::compiled(root, program)).filter(|path| path.exists())
}

fn words(paths: &[&Path]) -> Vec<OsString> {
    paths
        .iter()
        .map(|path| path.as_os_str().to_owned())
        .collect()
}

impl Row {
    /// One pass, with the fields of `tombolo bench`.
    fn read(line: &Figures, case: Case) -> Result<Row> {
        if line.get("ok") != Some(&Value::Bool(true)) {
            bail!("its result is wrong, so its times mean nothing");
        }
        let real = |name: &str| {
            let value = line.get(name).and_then(Value::as_f64);
            value.with_context(|| format!("no number {name:?} in what it says"))
        };
        if (real("n")? as u64, real("bytes")? as u64) != (case.ranks, case.elements * 4) {
            bail!("it measured something else than {case:?}: {line:?}");
        }
        let peer = line.get("peer").and_then(Value::as_str);
        Ok(Row {
            peer: peer.context("it does not say who it is")?.to_owned(),
            case,
            passes: 1,
            median_s: real("median_s")?,
            min_s: real("min_s")?,
            max_s: real("max_s")?,
            cpu_s: real("cpu_s_per_op")?,
        })
    }

    /// Whether it is another pass of the same.
    fn is_of(&self, other: &Row) -> bool {
        (&self.peer, self.case) == (&other.peer, other.case)
    }

    fn line(&self) -> Figures {
        object(json!({
            "peer": self.peer,
            "n": self.case.ranks,
            "bytes": self.case.elements * 4,
            "passes": self.passes,
            "median_us": micros(self.median_s),
            "min_us": micros(self.min_s),
            "max_us": micros(self.max_s),
            "cpu_us_per_op": micros(self.cpu_s),
        }))
    }
}

/// The passes of one contestant in one.
fn merged(found: &[Row], of: &Row) -> Row {
    let passes: Vec<&Row> = found.iter().filter(|row| row.is_of(of)).collect();
    let all = |of: fn(&Row) -> f64| {
        let mut values: Vec<f64> = passes.iter().map(|row| of(row)).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let median = |values: Vec<f64>| {
        let middle = values.len() / 2;
        match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        }
    };
    Row {
        passes: passes.len(),
        median_s: median(all(|row| row.median_s)),
        min_s: all(|row| row.min_s)[0],
        max_s: all(|row| -row.max_s)[0].abs(),
        cpu_s: median(all(|row| row.cpu_s)),
        ..of.clone()
    }
}

/// Each target beside what was found, of wall time and of processor time. Without a rival it is not known whether one holds.
fn targets(rows: &[Row]) -> Vec<Figures> {
    let mut lines = Vec::new();
    for target in TARGETS {
        let sizes = rows.iter().filter(|row| {
            row.peer == target.peer
                && row.case.elements == target.elements
                && target.ranks.contains(&row.case.ranks)
        });
        for ours in sizes {
            for (name, of) in [
                ("wall", (|row| row.median_s) as fn(&Row) -> f64),
                ("cpu", |row| row.cpu_s),
            ] {
                let is_beside =
                    |row: &&Row| target.beside.iter().any(|it| row.peer.starts_with(it));
                let best = rows
                    .iter()
                    .filter(|row| row.case == ours.case)
                    .filter(is_beside)
                    .min_by(|a, b| of(a).total_cmp(&of(b)));
                let ratio = best.map(|best| of(ours) / of(best));
                lines.push(object(json!({
                    "target": name,
                    "of": target.peer,
                    "n": ours.case.ranks,
                    "bytes": ours.case.elements * 4,
                    "ours_us": micros(of(ours)),
                    "beside": best.map(|best| &best.peer),
                    "theirs_us": best.map(|best| micros(of(best))),
                    "ratio": ratio.map(|ratio| (ratio * 1000.0).round() / 1000.0),
                    "at_most": (target.share * 1000.0).round() / 1000.0,
                    "holds": ratio.map(|ratio| ratio <= target.share),
                })));
            }
        }
    }
    lines
}

/// Microseconds, to a hundredth.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e8).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(peer: &str, elements: u64, ranks: u64, wall: f64, cpu: f64) -> Row {
        Row {
            peer: peer.into(),
            case: Case { elements, ranks },
            passes: 1,
            median_s: wall,
            min_s: wall / 2.0,
            max_s: wall * 2.0,
            cpu_s: cpu,
        }
    }

    #[test]
    fn a_target_is_held_against_the_best_of_those_it_names() {
        let rows = [
            row("tombolo", 1024, 4, 10e-6, 30e-6),
            row("mpich-auto", 1024, 4, 5e-6, 5e-6),
            row("openmpi-alg0", 1024, 4, 20e-6, 25e-6),
            row("openmpi-alg3", 1024, 4, 18e-6, 40e-6),
            row("limit-threads", 1024, 4, 1e-6, 1e-6),
        ];
        let lines = targets(&rows);
        let found: Vec<_> = lines
            .iter()
            .map(|line| (line["beside"].clone(), line["holds"].clone()))
            .collect();
        // Against OpenMPI, of wall and processor; there is no Gloo.
        assert_eq!(
            found,
            [
                (json!("openmpi-alg3"), json!(true)),
                (json!("openmpi-alg0"), json!(false)),
                (Value::Null, Value::Null),
                (Value::Null, Value::Null),
            ]
        );
        assert_eq!(
            (&lines[0]["ratio"], &lines[0]["ours_us"]),
            (&json!(0.556), &json!(10.0))
        );
    }

    #[test]
    fn private_memory_has_a_target_of_its_own() {
        let rows = [
            row("tombolo", 25_600_000, 2, 0.010, 0.02),
            row("tombolo-private", 25_600_000, 2, 0.031, 0.06),
            row("mpich-auto", 25_600_000, 2, 0.050, 0.1),
        ];
        let lines = targets(&rows);
        let of = |peer: &str| {
            let line = lines
                .iter()
                .find(|line| line["of"] == peer && line["target"] == "wall");
            line.unwrap()["holds"].clone()
        };
        assert_eq!(
            (of("tombolo"), of("tombolo-private")),
            (json!(true), json!(false))
        );
    }

    #[test]
    fn passes_become_a_row_of_medians() {
        let passes: Vec<Row> = [3.0, 1.0, 2.0]
            .map(|wall| row("tombolo", 4, 2, wall, wall * 10.0))
            .into();
        let line = merged(&passes, &passes[0]).line();
        assert_eq!(
            (&line["passes"], &line["median_us"]),
            (&json!(3), &json!(2e6))
        );
        assert_eq!(
            (&line["min_us"], &line["max_us"]),
            (&json!(5e5), &json!(6e6))
        );
        assert_eq!(line["cpu_us_per_op"], 2e7);
    }

    #[test]
    fn what_is_wrong_or_of_another_size_is_no_row() {
        let said = r#"{"peer":"x","n":2,"bytes":16,"median_s":3,"min_s":2.5,"max_s":4,"cpu_s_per_op":1.25,"ok":true}"#;
        let said = super::super::figures(said).unwrap();
        let case = Case {
            elements: 4,
            ranks: 2,
        };
        assert_eq!(Row::read(&said, case).unwrap().cpu_s, 1.25);
        for (name, value) in [("ok", json!(false)), ("n", json!(3)), ("bytes", json!(8))] {
            let mut bad = said.clone();
            bad.insert(name.into(), value);
            assert!(Row::read(&bad, case).is_err(), "{bad:?}");
        }
    }
}
