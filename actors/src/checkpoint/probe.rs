//! `probe.json`: whose store this is, and the proof that it can be what a store must be.
//!
//! The coordinator creates it before its first round. Whoever is to take its place reads it back first: who cannot, looks at another store.

use std::io;

use serde::{Deserialize, Serialize};

use super::{CheckpointError, FORMAT, Store, damaged, files_error, json, other_format, sealed};
use tombolo_core::tensor::Hash;

pub(super) const PROBE: &str = "probe.json";

/// What is written into a store before anything else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    format: u32,
    configuration: Hash,
    /// Drawn when the run began.
    pub run: Hash,
}

impl Store {
    /// Whose store it is; none if nobody's yet. Blocks.
    ///
    /// # Errors
    /// It cannot be read, or belongs to another configuration.
    pub fn probe(&self) -> Result<Option<Probe>, CheckpointError> {
        let probe: Probe = match json(self.files.as_ref(), PROBE) {
            Err(CheckpointError::Missing { .. }) => return Ok(None),
            probe => probe.map_err(|error| error.located(self.files.as_ref()))?,
        };
        if probe.format != FORMAT {
            let reason = other_format(probe.format);
            return Err(damaged(PROBE, reason).located(self.files.as_ref()));
        }
        if probe.configuration != self.configuration {
            return Err(CheckpointError::OtherRun {
                expected: self.configuration,
                found: probe.configuration,
            });
        }
        Ok(Some(probe))
    }

    /// Makes the store this run's, and finds out whether it creates only what is absent. Blocks.
    ///
    /// # Errors
    /// It does not, another run was quicker, or it cannot be written and read back.
    pub fn claim(&self, run: Hash) -> Result<(), CheckpointError> {
        let probe = Probe {
            format: FORMAT,
            configuration: self.configuration,
            run,
        };
        let bytes = sealed::seal(&probe);
        let mut there = false;
        // The second time it must be there, whoever made it.
        for _ in 0..2 {
            match self.files.create(PROBE, &bytes) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => there = true,
                created => {
                    created.map_err(|error| files_error(PROBE, &error))?;
                    there = false;
                }
            }
        }
        let path = self.files.locate(PROBE);
        if !there {
            return Err(CheckpointError::Replaces { path });
        }
        match self.probe()? {
            // Perhaps of a life that was killed before it was synchronized.
            Some(found) if found == probe => self.settle(""),
            Some(_) => Err(damaged(&path, "it is of another run".into())),
            None => Err(CheckpointError::Missing { path }),
        }
    }
}
