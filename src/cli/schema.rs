//! `tombolo schema`.

use clap::Args;

use super::Exit;
use tombolo::topology;

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub struct Schema {}

impl Schema {
    /// Prints the schema.
    pub fn run(&self) -> Exit {
        say!("{:#}", topology::schema());
        Exit::Done
    }
}
