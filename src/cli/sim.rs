//! `tombolo sim FILE`.

use std::path::PathBuf;

use clap::Args;

use super::output::{Display, complain, fail, judge, print_line};
use super::{Common, Exit, Format};
use tombolo::Simulation;
use tombolo::simulation::SimulationError;
use tombolo_core::event::Event;

/// Arguments of `sim`.
#[derive(Debug, Args)]
pub struct Sim {
    /// The topology.
    file: PathBuf,
    /// Seeds the simulated world; the topology's seed if it is not given.
    #[arg(long)]
    seed: Option<u64>,
}

impl Sim {
    /// Runs the simulation and shows its rounds.
    pub fn run(&self, common: &Common) -> Exit {
        let simulation = Simulation::from_path(&self.file).map(|simulation| match self.seed {
            Some(seed) => simulation.seed(seed),
            None => simulation,
        });
        let rounds = simulation
            .as_ref()
            .map_or(0, |simulation| simulation.plan().rounds);
        let report = match simulation.and_then(Simulation::run) {
            Ok(report) => report,
            Err(SimulationError::Topology(diagnosis)) => {
                return super::output::refuse(
                    common,
                    tombolo::FederationError::Topology(diagnosis),
                );
            }
            Err(error) => {
                fail(common, &error.to_string());
                return Exit::Failed;
            }
        };
        let mut display = Display::new(common.format, rounds);
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
                    "virtual time {:.1} s; trace {trace}; {} violations",
                    report.virtual_time.as_secs_f64(),
                    report.violations.len()
                );
            }
            Format::Json => {
                let mut line = serde_json::to_value(Event::Finished(report.finished.clone()))
                    .unwrap_or_default();
                line["trace_hash"] = trace.into();
                line["violations"] = report.violations.len().into();
                print_line(&line);
            }
        }
        for violation in &report.violations {
            complain(violation);
        }
        let exit = judge(&report.finished);
        if report.violations.is_empty() {
            exit
        } else {
            Exit::Failed
        }
    }
}
