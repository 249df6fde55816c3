//! Whether the run is paused: `pause.json` is there while it is. Not part of the run's history: it decides when rounds open, and nothing of what
//! comes of them.

use serde::{Deserialize, Serialize};

use super::{CheckpointError, FORMAT, Store, files_error, json, other_format, sealed};
use tombolo_core::coordinator::{Held, Paused};
use tombolo_core::tensor::Hash;

/// The file.
const PAUSE: &str = "pause.json";

/// A pause as it is written down.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    format: u32,
    configuration: Hash,
    paused: Paused,
}

impl Store {
    /// The pause that is in force.
    ///
    /// # Errors
    /// It cannot be read, or is not what it should be: who may open rounds is not guessed.
    pub(super) fn paused(&self) -> Result<Option<Paused>, CheckpointError> {
        let written: Written = match json(self.files.as_ref(), PAUSE) {
            Ok(written) => written,
            Err(CheckpointError::Missing { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if written.format != FORMAT {
            return Err(super::damaged(PAUSE, other_format(written.format)));
        }
        if written.configuration != self.configuration {
            return Err(CheckpointError::OtherRun {
                expected: self.configuration,
                found: written.configuration,
            });
        }
        Ok(Some(written.paused))
    }

    /// Writes down that the run is paused, or that it is not any more. If that fails, what stands written is read back: it may have been done.
    ///
    /// # Errors
    /// Nobody knows what stands written, or somebody else is the coordinator.
    pub fn hold(&self, paused: Option<Paused>) -> Result<Held, CheckpointError> {
        self.check_acting()?;
        let Err(error) = self.write_pause(paused.as_ref()) else {
            let failed = None;
            return Ok(Held { paused, failed });
        };
        let found = self.paused().map_err(|_| error.clone())?;
        // It is there, and stays if its name does.
        let is_done = found == paused && self.settle("").is_ok();
        let failed = (!is_done).then(|| error.to_string());
        let paused = found;
        Ok(Held { paused, failed })
    }

    fn write_pause(&self, paused: Option<&Paused>) -> Result<(), CheckpointError> {
        let Some(paused) = paused else {
            let removed = self.files.remove(PAUSE);
            return removed.map_err(|error| files_error(PAUSE, &error));
        };
        let written = Written {
            format: FORMAT,
            configuration: self.configuration,
            paused: paused.clone(),
        };
        let replaced = self.files.replace(PAUSE, &[&sealed::seal(&written)]);
        replaced.map_err(|error| files_error(PAUSE, &error))
    }
}
