//! What is written down of the open round: what its first gate has fixed, and the contributions that were acknowledged. If there is a
//! journal, their bytes were written before, chunk by chunk. All of it goes once the round has ended.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::store::Store;
use super::{CheckpointError, FORMAT, damaged, files_error, json};
use crate::env::Files;
use tombolo_core::coordinator::{Noted, Resumed, Weighing};
use tombolo_core::ids::Round;
use tombolo_core::tensor::Hash;
use tombolo_core::wire::Contribution;

const WEIGHING: &str = "weighing.json";
/// Before a domain's name, so that no domain can be called as another file is.
const CONTRIBUTION: &str = "contribution-";

/// `weighing.json`.
#[derive(Serialize, Deserialize)]
struct Fixed {
    format: u32,
    configuration: Hash,
    weighing: Weighing,
}

impl Store {
    /// Writes down what a round's first gate has fixed.
    ///
    /// # Errors
    /// It may be lost.
    pub fn fix(&self, weighing: Weighing) -> Result<(), CheckpointError> {
        let folder = folder(weighing.round);
        // Contributions to other weights are of no use.
        self.files
            .remove(&folder)
            .map_err(|error| files_error(&folder, &error))?;
        let fixed = Fixed {
            format: FORMAT,
            configuration: self.configuration,
            weighing,
        };
        self.write(&format!("{folder}/{WEIGHING}"), &fixed)
    }

    /// Notes a contribution of the open round, in place of an earlier one of its domain.
    ///
    /// # Errors
    /// It is not noted, or may be lost.
    pub fn note(&self, contribution: &Contribution) -> Result<(), CheckpointError> {
        let folder = folder(contribution.round);
        let path = format!("{folder}/{CONTRIBUTION}{}.json", contribution.domain);
        let before = json::<Contribution>(self.files.as_ref(), &path).ok();
        self.write(&path, contribution)?;
        if let Some(before) = before.filter(|before| before.attempt != contribution.attempt) {
            let path = journal(&before);
            if let Err(error) = self.files.remove(&path) {
                tracing::warn!(path, %error, "what is not needed any more could not be removed");
            }
        }
        Ok(())
    }

    /// The round after `ended`, if its first gate was passed.
    pub(super) fn resumed(&self, ended: Round) -> Result<Option<Resumed>, CheckpointError> {
        let folder = folder(ended + 1);
        // What was not answered counts from here on, so it must stay.
        self.settle(&folder)?;
        let path = format!("{folder}/{WEIGHING}");
        let fixed: Fixed = match json(self.files.as_ref(), &path) {
            Err(CheckpointError::Missing { .. }) => return Ok(None),
            fixed => fixed?,
        };
        if fixed.format != FORMAT || fixed.weighing.round != ended + 1 {
            return Err(damaged(
                &path,
                format!(
                    "it is about (format, round) {:?}, expected {:?}",
                    (fixed.format, fixed.weighing.round),
                    (FORMAT, ended + 1)
                ),
            ));
        }
        if fixed.configuration != self.configuration {
            return Err(CheckpointError::OtherRun {
                expected: self.configuration,
                found: fixed.configuration,
            });
        }
        let names = self.list(&folder)?;
        let is_note = |name: &&String| name.ends_with(".json") && *name != WEIGHING;
        let mut noted = Vec::new();
        for name in names.iter().filter(is_note) {
            let path = format!("{folder}/{name}");
            let contribution: Contribution = json(self.files.as_ref(), &path)?;
            let right = format!("{CONTRIBUTION}{}.json", contribution.domain);
            if *name != right || contribution.round != ended + 1 {
                let reason = format!(
                    "it is about {} in round {}",
                    contribution.domain, contribution.round
                );
                return Err(damaged(&path, reason));
            }
            let kept = is_kept(self.files.as_ref(), &contribution);
            noted.push(Noted { contribution, kept });
        }
        Ok(Some(Resumed {
            weighing: fixed.weighing,
            noted,
        }))
    }

    fn write(&self, path: &str, value: &impl Serialize) -> Result<(), CheckpointError> {
        let bytes = serde_json::to_vec(value).expect("a note is plain data");
        self.files
            .replace(path, &[&bytes])
            .map_err(|error| files_error(path, &error))
    }
}

/// Whether the journal has all of a contribution. Blocks.
pub(crate) fn is_kept(files: &dyn Files, contribution: &Contribution) -> bool {
    let chunks = files.list(&journal(contribution));
    let there = chunks.map_or(0, |chunks| chunks.len());
    there > 0 && there == contribution.chunks.len()
}

/// Writes one chunk of a contribution into its [`journal`]. Blocks.
pub(crate) fn write_chunk(
    files: &dyn Files,
    journal: &str,
    index: usize,
    pieces: &[Bytes],
) -> Result<(), CheckpointError> {
    let path = chunk(journal, index);
    let pieces: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
    files
        .replace(&path, &pieces)
        .map_err(|error| files_error(&path, &error))
}

/// One chunk of a contribution from its [`journal`]; its hash is still to be verified. Blocks.
pub(crate) fn read_chunk(
    files: &dyn Files,
    journal: &str,
    index: usize,
) -> Result<Bytes, CheckpointError> {
    let path = chunk(journal, index);
    let bytes = files.read(&path).map(Bytes::from);
    bytes.map_err(|error| files_error(&path, &error))
}

fn folder(round: Round) -> String {
    format!("notes/{round:06}")
}

/// The folder of a contribution's bytes.
pub(crate) fn journal(contribution: &Contribution) -> String {
    let Contribution {
        round,
        domain,
        attempt,
        ..
    } = contribution;
    format!("{}/{CONTRIBUTION}{domain}.{attempt}", folder(*round))
}

fn chunk(journal: &str, index: usize) -> String {
    format!("{journal}/{index:06}.f32")
}
