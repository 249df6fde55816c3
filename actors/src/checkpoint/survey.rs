//! A look at everything that was written down, by whoever wants to know, also while a run is at work. It changes nothing and refuses nothing:
//! each file is judged for itself.

use super::store::{Store, folder_of};
use super::{CheckpointError, CommitRecord, damaged, json, state};
use tombolo_core::event::RoundRecord;
use tombolo_core::ids::Round;

/// One round, as it is on disk.
#[derive(Debug)]
pub struct Surveyed {
    /// Which.
    pub round: Round,
    /// How it ended, unless its record cannot be used.
    pub record: Option<RoundRecord>,
    /// What there is of its state.
    pub kept: Kept,
}

/// What there is of a round's state.
#[derive(Debug)]
pub enum Kept {
    /// The round was aborted.
    Nothing,
    /// It was not to be kept.
    Removed,
    /// Every byte is what it was; so many.
    Verified(u64),
    /// It, or the record that names it, is not what it was.
    Damaged(CheckpointError),
}

impl Store {
    /// Every round that has ended, and whether its files are what they were. Blocks.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn survey(&self) -> Result<Vec<Surveyed>, CheckpointError> {
        let names = self.list("commits")?;
        let mut found = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let (path, round) = (format!("commits/{name}"), index as Round + 1);
            let record: Result<CommitRecord, _> = json(self.files.as_ref(), &path);
            let record = record.and_then(|record| match record.check(name, round) {
                Ok(()) => Ok(record),
                Err(reason) => Err(damaged(&path, reason)),
            });
            found.push(match record {
                Ok(record) => Surveyed {
                    round,
                    kept: self.kept(&record)?,
                    record: Some(record.record),
                },
                Err(error) => Surveyed {
                    round,
                    record: None,
                    kept: Kept::Damaged(error),
                },
            });
        }
        // Of the newest committed round the state is always kept.
        if let Some(newest) = found
            .iter_mut()
            .rfind(|found| !matches!(found.kept, Kept::Nothing))
            && matches!(newest.kept, Kept::Removed)
        {
            let path = format!("states/{:06}-", newest.round);
            newest.kept = Kept::Damaged(CheckpointError::Missing { path });
        }
        Ok(found)
    }

    fn kept(&self, record: &CommitRecord) -> Result<Kept, CheckpointError> {
        let Some(name) = &record.state else {
            return Ok(Kept::Nothing);
        };
        let verified = state::verify(self.files.as_ref(), &folder_of(record), &record.record);
        Ok(match verified {
            Ok((size, _)) => Kept::Verified(size),
            // A run that is at work removes what need not be kept.
            Err(_) if !self.list("states")?.contains(name) => Kept::Removed,
            Err(error) => Kept::Damaged(error),
        })
    }

    /// The file of the model that a round has committed, verified. Blocks.
    ///
    /// # Errors
    /// The round has no state, or it is damaged.
    pub fn model(&self, round: Round) -> Result<Vec<u8>, CheckpointError> {
        let record = self.record(round)?;
        let verified = state::verify(self.files.as_ref(), &folder_of(&record), &record.record);
        verified.map(|(_, model)| model)
    }
}
