//! What is written down of the open round: what its first gate has fixed, and the contributions that were acknowledged. If there is a
//! journal, their bytes were written before, chunk by chunk. All of it goes once the round has ended.
//!
//! Each coordinator notes in a folder of its own term. Whoever takes over reads those of the last term, and writes them down as its own.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::store::Store;
use super::{CheckpointError, FORMAT, damaged, files_error, json, sealed};
use crate::env::Files;
use tombolo_core::coordinator::{Noted, Resumed, Weighing, overtaken};
use tombolo_core::event::RoundRecord;
use tombolo_core::ids::{Epoch, Round};
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
        self.check_acting()?;
        let folder = folder(weighing.round, self.term());
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
        self.check_acting()?;
        let folder = folder(contribution.round, self.term());
        let path = format!("{folder}/{CONTRIBUTION}{}.json", contribution.domain);
        let before = json::<Contribution>(self.files.as_ref(), &path).ok();
        self.write(&path, contribution)?;
        if let Some(before) = before.filter(|before| before.attempt != contribution.attempt) {
            let path = journal(&before, self.term());
            if let Err(error) = self.files.remove(&path) {
                tracing::warn!(path, %error, "what is not needed any more could not be removed");
            }
        }
        Ok(())
    }

    /// The round after `ended`, if its first gate was passed.
    pub(super) fn resumed(&self, ended: Round) -> Result<Option<Resumed>, CheckpointError> {
        let round = ended + 1;
        let Some(shared) = &self.shared else {
            return self.noted(&folder(round, 0), round, 0);
        };
        let names = self.list("notes")?;
        let terms = names.iter().filter_map(|name| term_of(name, round));
        let mut terms: Vec<Epoch> = terms.collect();
        terms.sort_unstable();
        for term in terms.into_iter().rev() {
            let Some(mut found) = self.noted(&folder(round, term), round, term)? else {
                continue;
            };
            if term != shared.term.epoch() {
                self.fix(found.weighing.clone())?;
                for noted in &mut found.noted {
                    self.note(&noted.contribution)?;
                    // The bytes are still in the other folder, which goes by another name.
                    noted.kept = false;
                }
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// What is noted for the round of a record, in any term, although the record does not tell of it. Nothing depends on it but what is said, so
    /// what cannot be read is left alone.
    pub(super) fn overtaken(&self, record: &RoundRecord) -> Vec<Contribution> {
        let names = self.list("notes").unwrap_or_default();
        let folders = names
            .iter()
            .filter_map(|name| Some((format!("notes/{name}"), term_of(name, record.round)?)));
        let found = folders.filter_map(|(folder, term)| {
            let found = self.noted(&folder, record.round, term);
            found
                .inspect_err(|error| tracing::warn!(folder, %error, "notes of the last round cannot be read"))
                .ok()
                .flatten()
        });
        let noted = found.flat_map(|found| found.noted);
        overtaken(record, noted.map(|noted| noted.contribution))
    }

    fn noted(
        &self,
        folder: &str,
        round: Round,
        term: Epoch,
    ) -> Result<Option<Resumed>, CheckpointError> {
        // What was not answered counts from here on, so it must stay.
        self.settle(folder)?;
        let path = format!("{folder}/{WEIGHING}");
        let fixed: Fixed = match json(self.files.as_ref(), &path) {
            Err(CheckpointError::Missing { .. }) => return Ok(None),
            fixed => fixed?,
        };
        if fixed.format != FORMAT || fixed.weighing.round != round {
            return Err(damaged(
                &path,
                format!(
                    "it is about (format, round) {:?}, expected {:?}",
                    (fixed.format, fixed.weighing.round),
                    (FORMAT, round)
                ),
            ));
        }
        if fixed.configuration != self.configuration {
            return Err(CheckpointError::OtherRun {
                expected: self.configuration,
                found: fixed.configuration,
            });
        }
        let names = self.list(folder)?;
        let is_note = |name: &&String| name.ends_with(".json") && *name != WEIGHING;
        let mut noted = Vec::new();
        for name in names.iter().filter(is_note) {
            let path = format!("{folder}/{name}");
            let contribution: Contribution = json(self.files.as_ref(), &path)?;
            let right = format!("{CONTRIBUTION}{}.json", contribution.domain);
            if *name != right || contribution.round != round {
                let reason = format!(
                    "it is about {} in round {}",
                    contribution.domain, contribution.round
                );
                return Err(damaged(&path, reason));
            }
            let kept = is_kept(self.files.as_ref(), &contribution, term);
            noted.push(Noted { contribution, kept });
        }
        Ok(Some(Resumed {
            weighing: fixed.weighing,
            noted,
        }))
    }

    fn write(&self, path: &str, value: &impl Serialize) -> Result<(), CheckpointError> {
        let bytes = sealed::seal(value);
        self.files
            .replace(path, &[&bytes])
            .map_err(|error| files_error(path, &error))
    }
}

/// Whether the journal has all of a contribution. Blocks.
pub(crate) fn is_kept(files: &dyn Files, contribution: &Contribution, term: Epoch) -> bool {
    let chunks = files.list(&journal(contribution, term));
    let there = chunks.map_or(0, |chunks| chunks.len());
    there > 0 && there == contribution.chunks.len()
}

/// Empties a [`journal`] that is written anew: a life that died before its note may have left chunks of another contribution there. Blocks.
pub(crate) fn clear_journal(files: &dyn Files, journal: &str) -> Result<(), CheckpointError> {
    let chunks = files.list(journal);
    let chunks = chunks.map_err(|error| files_error(journal, &error))?;
    if chunks.is_empty() {
        return Ok(());
    }
    let removed = files.remove(journal);
    removed.map_err(|error| files_error(journal, &error))
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

fn folder(round: Round, term: Epoch) -> String {
    match term {
        0 => format!("notes/{round:06}"),
        term => format!("notes/{round:06}-{term:06}"),
    }
}

/// The term in the name of a folder of that round's notes.
fn term_of(name: &str, round: Round) -> Option<Epoch> {
    let (of, term) = name.split_once('-').unwrap_or((name, "0"));
    (of.parse() == Ok(round)).then(|| term.parse().ok())?
}

/// The folder of a contribution's bytes.
pub(crate) fn journal(contribution: &Contribution, term: Epoch) -> String {
    let Contribution {
        round,
        domain,
        attempt,
        ..
    } = contribution;
    let folder = folder(*round, term);
    format!("{folder}/{CONTRIBUTION}{domain}.{attempt}")
}

fn chunk(journal: &str, index: usize) -> String {
    format!("{journal}/{index:06}.f32")
}

#[cfg(test)]
mod tests {
    use tombolo_core::compress::Codec;
    use tombolo_core::wire::Encoding;

    /// A note that a build without lossless stages left on disk is read by this one.
    #[test]
    fn an_encoding_that_names_no_lossless_stage_has_none() {
        let old = r#"{"codec":"Fp16","sizes":[8,9]}"#;
        let read: Encoding = serde_json::from_str(old).unwrap();
        assert_eq!(read, Encoding::new(Codec::Fp16.into(), vec![8, 9]));
    }
}
