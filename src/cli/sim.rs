//! `tombolo sim FILE`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::dashboard::Page;
use super::output::{Display, complain, fail, judge, print_line};
use super::report::write_trace;
use super::signals::Signals;
use super::{Common, Exit, Format, runtime};
use tombolo::Simulation;
use tombolo::explain::Past;
use tombolo::observe::{Bounds, Picture};
use tombolo::simulation::{
    Dose, Failure, FaultPlan, RUNS_MAX, SimulationError, SimulationReport, Violation,
};
use tombolo_core::event::Event;

/// Arguments of `sim`.
#[derive(Debug, Args)]
pub struct Sim {
    /// The topology.
    file: PathBuf,
    /// Seeds the simulated world; the topology's seed if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// What goes wrong: a file with a list of [[fault]], or `random` for faults of every kind in the first virtual minute, drawn from the seed.
    #[arg(long, value_name = "FAULTS.toml")]
    faults: Option<PathBuf>,
    /// With `--faults random`: how many begin in that minute.
    #[arg(long, value_name = "N", default_value_t = Dose::default().per_minute)]
    faults_per_minute: u32,
    /// How long a node's training takes in virtual time, give or take a fifth, such as 2s.
    #[arg(long, value_name = "SPAN", default_value = "40ms", value_parser = tombolo::topology::duration)]
    training: Duration,
    /// Write what goes wrong to this file, as `--faults` reads it; with `--shrink`, the smallest part of it that still fails.
    #[arg(long, value_name = "FILE")]
    faults_out: Option<PathBuf>,
    /// If the simulation fails, run it again with less and less going wrong, and show the smallest part that still fails.
    #[arg(long)]
    shrink: bool,
    #[command(flatten)]
    page: Page,
    /// Write what happened in each round, and when, to this file when the run is over: a Chrome trace, which Perfetto shows.
    #[arg(long, value_name = "OUT")]
    trace: Option<PathBuf>,
    /// Run it twice and compare: the same seed must take the same course.
    #[arg(long)]
    twice: bool,
}

impl Sim {
    /// Runs the simulation and shows its rounds.
    pub fn run(&self, common: &Common) -> Exit {
        let simulation = match self.simulation() {
            Ok(simulation) => simulation,
            Err(error) => return refuse(common, error),
        };
        if !self.write(common, &simulation.fault_plan()) {
            return Exit::Failed;
        }
        let run = match self.twice {
            true => simulation.clone().run_twice(),
            false => simulation.clone().run(),
        };
        let (exit, failure) = match run {
            Ok(report) => {
                let shown = || show(common, &simulation, &report, self.twice);
                match self.page.is_asked() {
                    false => shown(),
                    true => match self.serve(common, &simulation, &report, shown) {
                        Ok(()) => {}
                        Err(exit) => return exit,
                    },
                }
                let exit = judge(&report.finished);
                let exit = match &self.trace {
                    Some(out) => write_trace(out, &picture(&simulation, &report), exit),
                    None => exit,
                };
                (exit, report.failure())
            }
            Err(SimulationError::Failed(failure)) => {
                if common.format == Format::Json {
                    let message = failure.reasons.join("; ");
                    print_line(&serde_json::json!({ "event": "error", "message": message }));
                }
                (Exit::Failed, Some(*failure))
            }
            Err(error) => return refuse(common, error),
        };
        let Some(failure) = failure else { return exit };
        complain(&failure.to_string());
        if self.shrink {
            self.shrink(common, simulation, &failure);
        }
        Exit::Failed
    }

    fn simulation(&self) -> Result<Simulation, SimulationError> {
        let mut simulation = Simulation::from_path(&self.file)?.training(self.training);
        if let Some(seed) = self.seed {
            simulation = simulation.seed(seed);
        }
        let mut command = format!(
            "tombolo sim {} --seed {} --training {}",
            quoted(&self.file),
            simulation.world_seed(),
            format!("{:?}", self.training).replace('µ', "u"),
        );
        if let Some(faults) = &self.faults {
            command = format!("{command} --faults {}", quoted(faults));
            let per_minute = self.faults_per_minute;
            simulation = match faults.to_str() {
                Some("random") => {
                    command = format!("{command} --faults-per-minute {per_minute}");
                    let span = Dose::default().span;
                    simulation.random_faults(Dose { per_minute, span })
                }
                _ => simulation.faults_from_path(faults)?,
            };
        }
        if self.twice {
            command.push_str(" --twice");
        }
        Ok(simulation.replay(command))
    }

    /// Shows what has happened until somebody interrupts: virtual time is over before anybody could have looked.
    fn serve(
        &self,
        common: &Common,
        simulation: &Simulation,
        report: &SimulationReport,
        shown: impl FnOnce(),
    ) -> Result<(), Exit> {
        let picture = picture(simulation, report);
        let machine = |error: std::io::Error| {
            fail(common, &error.to_string());
            Exit::Failed
        };
        let runtime = runtime().map_err(machine)?;
        runtime.block_on(async {
            let mut signals = Signals::listen().map_err(machine)?;
            let page = self.page.show(common, picture).await?;
            // The address comes first: the run's last word is the last line.
            shown();
            signals.next().await;
            drop(page);
            Ok(())
        })
    }

    fn shrink(&self, common: &Common, simulation: Simulation, failure: &Failure) {
        complain!(
            "looking for the smallest part of {} faults that fails so, in at most {RUNS_MAX} runs",
            failure.faults.faults.len()
        );
        let smallest = match simulation.shrink(RUNS_MAX) {
            Ok(Some(smallest)) => smallest,
            Ok(None) => return complain("it did not fail again"),
            Err(error) => return complain(&error.to_string()),
        };
        let faults = smallest.faults.to_toml();
        match common.format {
            Format::Json => complain!("{faults}"),
            Format::Text => say!("{faults}"),
        }
        complain!("{}", smallest.reasons.join("\n"));
        self.write(common, &smallest.faults);
    }

    /// Writes a plan where it was asked for.
    fn write(&self, common: &Common, faults: &FaultPlan) -> bool {
        let Some(path) = &self.faults_out else {
            return true;
        };
        let written = std::fs::write(path, faults.to_toml());
        if let Err(error) = &written {
            fail(common, &format!("cannot write {}: {error}", path.display()));
        }
        written.is_ok()
    }
}

/// What happened in a simulation.
fn picture(simulation: &Simulation, report: &SimulationReport) -> Picture {
    let mut picture = Picture::of_plan(simulation.plan(), Bounds::REPORT);
    for (at, event) in &report.events {
        let (at, event) = (at.0 as f64 / 1e6, event.clone());
        picture.apply(&Past { at, life: 0, event });
    }
    picture
}

fn show(common: &Common, simulation: &Simulation, report: &SimulationReport, twice: bool) {
    let mut display = Display::new(common.format, simulation.plan().rounds);
    for (_, event) in &report.events {
        if !matches!(event, Event::Finished(_)) {
            display.on_event(event);
        }
    }
    let trace = format!("{:016x}", report.trace_hash);
    match common.format {
        Format::Text => {
            display.finish(&report.finished);
            say!(
                "virtual time {:.1} s; trace {trace}{}; {} violations",
                report.virtual_time.as_secs_f64(),
                if twice { ", twice" } else { "" },
                report.violations.len()
            );
        }
        Format::Json => {
            for Violation { law, at, what } in &report.violations {
                let at_s = at.0 as f64 / 1e6;
                let line = serde_json::json!({ "event": "violation", "law": law, "at_s": at_s, "what": what });
                print_line(&line);
            }
            let mut line =
                serde_json::to_value(Event::Finished(report.finished.clone())).unwrap_or_default();
            line["trace_hash"] = trace.into();
            line["violations"] = report.violations.len().into();
            print_line(&line);
        }
    }
}

/// Shows why a simulation could not be run.
fn refuse(common: &Common, error: SimulationError) -> Exit {
    match error {
        SimulationError::Topology(diagnosis) | SimulationError::FaultPlan(diagnosis) => {
            super::output::refuse(common, tombolo::FederationError::Topology(diagnosis))
        }
        SimulationError::Fault(error) => {
            fail(common, &error.to_string());
            Exit::Usage
        }
        error => {
            fail(common, &error.to_string());
            Exit::Failed
        }
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,=@".contains(c);
    match text.chars().all(plain) && !text.is_empty() {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}
