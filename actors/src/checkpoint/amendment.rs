//! By which topology a run goes on: `amendment.json` is there once a user has amended the one with which it began.
//!
//! A run keeps its name: everything in a store says the hash of the topology with which the run *began*, whatever was amended since, so nothing that
//! is written has to be written again. The amendment says which topology belongs to that name now; a process that comes with another one, the
//! first one among them, is refused. A node's own files say it as well, for what it remembers between rounds.

use serde::{Deserialize, Serialize};

use super::{CheckpointError, FORMAT, Store, damaged, files_error, json, other_format, sealed};
use crate::env::Files;
use tombolo_core::tensor::Hash;

/// The file.
const AMENDMENT: &str = "amendment.json";

/// An amendment as it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Written {
    format: u32,
    /// Hash of the topology with which the run began.
    configuration: Hash,
    /// Hash of the one by which it goes on.
    topology: Hash,
}

fn read(files: &dyn Files) -> Result<Option<Written>, CheckpointError> {
    let written: Written = match json(files, AMENDMENT) {
        Ok(written) => written,
        Err(CheckpointError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error.located(files)),
    };
    if written.format != FORMAT {
        let reason = other_format(written.format);
        return Err(damaged(AMENDMENT, reason).located(files));
    }
    Ok(Some(written))
}

/// The hash of the topology with which the run of these files began, for a process whose topology has the hash `topology`. Blocks.
///
/// # Errors
/// It cannot be read, or the run goes on by another topology.
pub fn began_with(files: &dyn Files, topology: Hash) -> Result<Hash, CheckpointError> {
    match read(files)? {
        None => Ok(topology),
        Some(written) if written.topology == topology => Ok(written.configuration),
        Some(written) => Err(CheckpointError::Amended {
            expected: written.topology,
            found: topology,
        }),
    }
}

/// Writes into a node's own files that the run which began with `configuration` goes on by `topology`. Blocks.
///
/// # Errors
/// It cannot be written.
pub fn amend(
    files: &dyn Files,
    configuration: Hash,
    topology: Hash,
) -> Result<(), CheckpointError> {
    let written = Written {
        format: FORMAT,
        configuration,
        topology,
    };
    match files.replace(AMENDMENT, &[&sealed::seal(&written)]) {
        Ok(()) => Ok(()),
        // It may be there all the same, and then it is what everybody finds.
        Err(_) if read(files).is_ok_and(|found| found == Some(written)) => Ok(()),
        Err(error) => Err(files_error(AMENDMENT, &error).located(files)),
    }
}

impl Store {
    /// Refuses the work of a process that goes by another topology than the run does now.
    pub(super) fn check_topology(&self) -> Result<(), CheckpointError> {
        match read(self.files.as_ref())? {
            Some(written) if written.topology != self.topology => Err(CheckpointError::Amended {
                expected: written.topology,
                found: self.topology,
            }),
            _ => Ok(()),
        }
    }

    /// Writes down that the run goes on by another topology. From here on this is so, whatever becomes of this process.
    pub(super) fn amend(&self, topology: Hash) -> Result<(), CheckpointError> {
        self.check_acting()?;
        amend(self.files.as_ref(), self.configuration, topology)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    #[test]
    fn a_run_keeps_the_name_with_which_it_began_and_takes_no_topology_but_the_last() {
        let files = Memory::default();
        let [first, second, third] = [1, 2, 3].map(|byte| Hash([byte; 32]));
        assert_eq!(began_with(&files, first).unwrap(), first);
        amend(&files, first, second).unwrap();
        assert_eq!(began_with(&files, second).unwrap(), first);
        amend(&files, first, third).unwrap();
        assert_eq!(began_with(&files, third).unwrap(), first);
        for stale in [first, second] {
            let refused = began_with(&files, stale).unwrap_err();
            assert_eq!(
                refused,
                CheckpointError::Amended {
                    expected: third,
                    found: stale,
                }
            );
        }
    }
}
