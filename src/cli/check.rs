//! `tombolo check FILE`.

use std::path::PathBuf;

use clap::Args;
use tombolo_core::plan::Plan;

use super::output::{fail, print_line, refuse, show_fabrics};
use super::{Common, Exit, Format};
use tombolo::learn;
use tombolo::topology;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The topology.
    file: PathBuf,

    /// Also show which node trains on how many rows of which kind.
    #[arg(long)]
    partition: bool,
}

impl Check {
    /// Checks, and shows what the file means.
    pub fn run(&self, common: &Common) -> Exit {
        let plan = match topology::load(&self.file) {
            Ok(plan) => plan,
            Err(diagnosis) => return refuse(common, diagnosis.into()),
        };
        let explicit = topology::explicit(&plan);
        match common.format {
            Format::Text => say!("{explicit}"),
            Format::Json => print_line(&explicit.to_json()),
        }
        // A machine that checks need not be one that runs nodes: what cannot be had here is no mistake.
        for missing in show_fabrics(common, &plan) {
            complain!("note: {missing}");
        }
        match self.partition {
            true => show_partition(common, &plan),
            false => Exit::Done,
        }
    }
}

fn show_partition(common: &Common, plan: &Plan) -> Exit {
    match learn::dealt(plan) {
        Ok(dealt) => {
            match common.format {
                Format::Text => say!("\n{dealt}"),
                Format::Json => print_line(&dealt.to_json()),
            }
            Exit::Done
        }
        Err(error) => {
            fail(common, &error.to_string());
            Exit::Failed
        }
    }
}
