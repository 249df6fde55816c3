//! `tombolo bench learn`: what rules, codecs and retries do for a model, on handwritten digits.
//!
//! Ten islands of one node each train digits-mlp; most runs are whole federations in virtual time, so a seed tells every figure again. Three
//! studies: rules against bad nodes, accuracy against bytes, and the claims of the articles whose rule `dynamic-weighted` is.

mod bad;
mod claims;
mod codecs;
mod findings;
mod plain;
mod plot;
mod rules;
mod setting;

use std::error::Error;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde_json::Value;

use super::measure;
use crate::cli::output::{complain, fail, print_line};
use crate::cli::{Common, Exit, Format};

use findings::Findings;

/// Seeds of a study; so many tell a spread, and more would take hours.
const SEEDS_MAX: u64 = 100;

/// What a study gives, or why it does not.
type Outcome<T> = Result<T, Box<dyn Error>>;

/// Arguments of `bench learn`.
#[derive(Debug, Args)]
pub struct Learn {
    /// Which studies; all of them if none is named.
    what: Vec<What>,
    /// Seeds of each run: 1 to this number.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Only what must hold after every change: the default and a plain mean under updates that are too long or no numbers.
    #[arg(long)]
    short: bool,
    /// Folder for tables, plots and a line for each run.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Aggregation rules when two of ten nodes are bad.
    Rules,
    /// Accuracy against uplink bytes: codecs, and more local steps.
    Codecs,
    /// What the articles claim of retries and weights, beside ours.
    Claims,
}

/// What all studies need.
struct Study {
    seeds: u64,
    short: bool,
    bar: ProgressBar,
}

impl Study {
    fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.seeds
    }

    /// One run.
    fn step<T>(&self, run: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let outcome = run();
        self.bar.inc(1);
        outcome
    }

    /// One number of each seed.
    fn over_seeds(&self, mut run: impl FnMut(u64) -> Outcome<f64>) -> Outcome<Vec<f64>> {
        self.seeds().map(|seed| self.step(|| run(seed))).collect()
    }
}

impl Learn {
    /// Runs the studies and shows what they find.
    pub fn run(&self, common: &Common) -> Exit {
        if !(1..=SEEDS_MAX).contains(&self.seeds) {
            fail(
                common,
                &format!("--seeds {}: expected 1 to {SEEDS_MAX}", self.seeds),
            );
            return Exit::Usage;
        }
        match self.find() {
            Ok(findings) => self.show(common, &findings),
            Err(error) => {
                fail(common, &format!("the study cannot be run: {error}"));
                Exit::Failed
            }
        }
    }

    fn wants(&self, what: What) -> bool {
        match self.short {
            true => what == What::Rules,
            false => self.what.is_empty() || self.what.contains(&what),
        }
    }

    fn find(&self) -> Outcome<Findings> {
        let mut study = Study {
            seeds: self.seeds,
            short: self.short,
            bar: ProgressBar::hidden(),
        };
        let parts = [
            (What::Rules, rules::runs(&study)),
            (What::Codecs, codecs::runs(&study)),
            (What::Claims, claims::runs(&study)),
        ];
        let wanted = parts.iter().filter(|(what, _)| self.wants(*what));
        // It draws itself on a terminal only.
        study.bar = ProgressBar::new(wanted.map(|(_, runs)| runs).sum());
        let mut findings = Findings::default();
        for (what, _) in parts.iter().filter(|(what, _)| self.wants(*what)) {
            match what {
                What::Rules => rules::run(&study, &mut findings)?,
                What::Codecs => codecs::run(&study, &mut findings)?,
                What::Claims => claims::run(&study, &mut findings)?,
            }
        }
        study.bar.finish_and_clear();
        if let Some(folder) = &self.out {
            findings.write(folder, &self.command())?;
        }
        Ok(findings)
    }

    /// The command that finds the same.
    fn command(&self) -> String {
        let mut command = format!("tombolo bench learn --seeds {}", self.seeds);
        for what in &self.what {
            let what = what.to_possible_value().expect("no study is skipped");
            command.push_str(&format!(" {}", what.get_name()));
        }
        if self.short {
            command.push_str(" --short");
        }
        command
    }

    fn show(&self, common: &Common, findings: &Findings) -> Exit {
        match common.format {
            Format::Json => findings.rows.iter().for_each(print_line),
            Format::Text => {
                for table in findings.tables() {
                    let lines: Vec<Value> = table.iter().cloned().map(Value::Object).collect();
                    say!("{}\n", measure::table(&lines));
                }
            }
        }
        let refuted: Vec<String> = findings
            .refuted()
            .map(|row| row["claim"].to_string())
            .collect();
        if refuted.is_empty() {
            return Exit::Done;
        }
        complain(&format!("this does not hold: {}", refuted.join("; ")));
        Exit::Failed
    }
}
