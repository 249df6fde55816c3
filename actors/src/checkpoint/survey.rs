//! A look at everything that was written down, by whoever wants to know, also while a run is at work. It changes nothing and refuses nothing:
//! each file is judged for itself.

use std::collections::BTreeSet;

use super::store::{STATES_KEPT, Store, folder_of, gaps, missing};
use super::{CheckpointError, CommitRecord, OuterState, damaged, json, state};
use tombolo_core::ids::Round;

/// Everything that was written down.
#[derive(Debug)]
pub struct Survey {
    /// In order.
    pub rounds: Vec<Surveyed>,
    /// What lies among the records and is none.
    pub strays: Vec<CheckpointError>,
}

/// One round, as it is on disk.
#[derive(Debug)]
pub struct Surveyed {
    /// Which; the first of several that follow each other and whose records are missing.
    pub round: Round,
    /// How it ended, unless its record cannot be used.
    pub record: Option<CommitRecord>,
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
    pub fn survey(&self) -> Result<Survey, CheckpointError> {
        // Before the records: a run that is at work writes a state only once the record before it is there.
        let states = self.list("states")?;
        let recorded = self.recorded()?;
        let mut rounds = Vec::new();
        for (first, last) in gaps(&recorded.rounds, &states) {
            rounds.push(Surveyed {
                round: first,
                record: None,
                kept: Kept::Damaged(missing(first, last)),
            });
        }
        for round in &recorded.rounds {
            let name = format!("{round:06}.json");
            let path = format!("commits/{name}");
            let record: Result<CommitRecord, _> = json(self.files.as_ref(), &path);
            let record = record.and_then(|record| match record.check(&name, *round) {
                Ok(()) => Ok(record),
                Err(reason) => Err(damaged(&path, reason)),
            });
            rounds.push(match record {
                Ok(record) => Surveyed {
                    round: *round,
                    kept: self.kept(&record)?,
                    record: Some(record),
                },
                Err(error) => Surveyed {
                    round: *round,
                    record: None,
                    kept: Kept::Damaged(error),
                },
            });
        }
        rounds.sort_by_key(|found| found.round);
        // Of a run that is at work other states are the newest by now.
        let stands_still = self.recorded()? == recorded;
        self.miss(&mut rounds, stands_still);
        let strays = recorded.strays.into_iter();
        Ok(Survey {
            rounds,
            strays: strays.map(|path| CheckpointError::Stray { path }).collect(),
        })
    }

    /// Finds states that are not there and should be: those of the newest committed rounds, if the folder stands still, and those of rounds
    /// that every `checkpoint.every` from their time on divides. Where a record does not say what it was, nothing before is expected.
    fn miss(&self, rounds: &mut [Surveyed], stands_still: bool) {
        let mut every = BTreeSet::from([self.every]);
        let (mut is_known, mut newer) = (true, 0);
        for found in rounds.iter_mut().rev() {
            let Some(record) = &found.record else {
                // How many committed rounds are lost here nobody knows.
                newer = STATES_KEPT;
                continue;
            };
            match record.every {
                Some(of_record) => _ = every.insert(of_record),
                None => is_known = false,
            }
            let Some(name) = &record.state else {
                continue;
            };
            let is_newest = stands_still && newer < STATES_KEPT;
            let stays = is_known && every.iter().all(|every| found.round.is_multiple_of(*every));
            newer += 1;
            if matches!(found.kept, Kept::Removed) && (is_newest || stays) {
                let path = format!("states/{name}");
                found.kept = Kept::Damaged(CheckpointError::Missing { path });
            }
        }
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

    /// The model that a round has committed, element by element, and the outer optimizer's state after it, verified. Blocks.
    ///
    /// # Errors
    /// The round has no state, or it is damaged.
    pub fn state(&self, round: Round) -> Result<(Vec<f32>, OuterState), CheckpointError> {
        let record = self.record(round)?;
        state::whole(self.files.as_ref(), &folder_of(&record), &record.record)
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
