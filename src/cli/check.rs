//! `tombolo check FILE`.

use std::path::PathBuf;

use clap::Args;

use super::output::{print_line, refuse};
use super::{Common, Exit, Format};
use tombolo::topology;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct Check {
    /// The topology.
    file: PathBuf,
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
        Exit::Done
    }
}
