//! `tombolo new DIR`.

use std::path::PathBuf;

use clap::Args;

use super::output::{fail, print_line};
use super::{Common, Exit, Format};
use tombolo::topology;

/// Arguments of `new`.
#[derive(Debug, Args)]
pub struct New {
    /// The folder to make.
    folder: PathBuf,
}

impl New {
    /// Writes the topology.
    pub fn run(&self, common: &Common) -> Exit {
        match topology::write_new(&self.folder) {
            Ok(file) => {
                let file = file.display().to_string();
                match common.format {
                    Format::Text => say!("made {file}; now: tombolo run {file}"),
                    Format::Json => {
                        print_line(&serde_json::json!({ "event": "made", "file": file }))
                    }
                }
                Exit::Done
            }
            Err(error) => {
                fail(common, &error.to_string());
                Exit::Usage
            }
        }
    }
}
