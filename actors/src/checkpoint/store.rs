//! The folder's rules: which state counts, who may end a round, what may be removed.

use std::io;
use std::sync::Arc;

use super::promotion::Shared;
use super::{
    CheckpointError, CommitRecord, FORMAT, Found, LeavesOfRounds, Loaded, State, Tally, damaged,
    files_error, json, sealed, state,
};
use crate::env::Files;
use crate::slab::Pool;
use tombolo_core::event::RoundRecord;
use tombolo_core::ids::Round;
use tombolo_core::mutants;
use tombolo_core::record::Leaf;
use tombolo_core::tensor::{Hash, Layout};

/// Committed states that are kept whatever `checkpoint.every` says: the newest, and one to fall back on should its bytes rot.
pub(super) const STATES_KEPT: usize = 2;

/// Rounds whose leaves are read at once: their files are small.
const ROUNDS_AT_ONCE: usize = 256;

/// See the module. Every call blocks.
#[derive(Clone)]
pub struct Store {
    pub(super) files: Arc<dyn Files>,
    /// Of the topology with which the run began.
    pub(super) configuration: Hash,
    /// Of the topology by which it goes on.
    pub(super) topology: Hash,
    /// None where nobody knows it.
    run: Option<Hash>,
    pub(super) every: u64,
    pool: Pool,
    pub(super) shared: Option<Shared>,
}

impl Store {
    /// The state in `files` of the configuration with that hash; every `every`th state is kept.
    pub fn new(files: Arc<dyn Files>, configuration: Hash, every: u64, pool: Pool) -> Self {
        Store {
            files,
            configuration,
            topology: configuration,
            run: None,
            every,
            pool,
            shared: None,
        }
    }

    /// The same, for a run that goes on by another topology than it began with; see [`began_with`](super::began_with).
    #[must_use]
    pub fn going_by(mut self, topology: Hash) -> Self {
        self.topology = topology;
        self
    }

    /// The same, for a run that has a name; zeros are none.
    #[must_use]
    pub fn of_run(mut self, run: Hash) -> Self {
        self.run = (run != Hash::default()).then_some(run);
        self
    }

    /// The newest committed state, whole and verified, if there is one, and what is written down of the round after it. Removes what a crash
    /// left behind.
    ///
    /// An older state never takes the place of one that does not verify: the round that committed it was announced, and a run that went on
    /// from before it would take that back (STORE-2).
    ///
    /// # Errors
    /// Records that are not one history of this configuration, or a damaged state or note.
    pub fn load(&self, layout: &Layout) -> Result<Found, CheckpointError> {
        self.begin_term()?;
        // A record that a killed process did not live to synchronize counts from here on, so it must stay.
        self.settle("commits")?;
        let ended = self.ended()?;
        let last = (ended > 0).then(|| self.checked(ended)).transpose()?;
        let stated = self.newest_stated(ended)?;
        let loaded = match &stated {
            None => None,
            Some(stated) => {
                let read = self.read(stated, layout);
                Some(read.map_err(|error| self.fallback(error, stated))?)
            }
        };
        let overtaken = last.as_ref().map(|last| self.overtaken(&last.record));
        let overtaken = overtaken.unwrap_or_default();
        self.tidy(ended, overtaken.is_empty());
        let open = self.resumed(ended)?;
        let committed = last.map(|last| match loaded {
            Some(loaded) => Loaded { last, ..loaded },
            None => Loaded {
                last,
                round: 0,
                accuracy: 0.0,
                loss: 0.0,
                model: None,
                outer: Vec::new(),
            },
        });
        Ok(Found {
            committed,
            open,
            overtaken,
            view: self.last_view()?,
            paused: self.paused()?,
        })
    }

    fn read(&self, stated: &CommitRecord, layout: &Layout) -> Result<Loaded, CheckpointError> {
        let folder = folder_of(stated);
        let files = self.files.as_ref();
        let (model, outer) = state::read(files, &folder, &stated.record, layout, &self.pool)?;
        Ok(Loaded {
            last: stated.clone(),
            round: stated.record.round,
            accuracy: stated.record.accuracy,
            loss: stated.record.loss,
            model: Some(model),
            outer,
        })
    }

    /// Why the newest state cannot be used, and which one before it could be copied.
    fn fallback(&self, error: CheckpointError, newest: &CommitRecord) -> CheckpointError {
        let verifies = |round: &Round| {
            let record = self.checked(*round).ok();
            record.is_some_and(|record| {
                record.state.is_some()
                    && state::verify(self.files.as_ref(), &folder_of(&record), &record.record)
                        .is_ok()
            })
        };
        CheckpointError::Newest {
            round: newest.record.round,
            why: Box::new(error),
            intact: (1..newest.record.round).rev().find(verifies),
        }
    }

    /// Which run's, as far as that is known.
    fn run(&self) -> Option<Hash> {
        let shared = self.shared.as_ref();
        shared.and_then(|shared| shared.term.run()).or(self.run)
    }

    /// How many rounds have ended. Their records must be one history: rounds 1, 2, 3 without a gap. Only names are read, so that a start
    /// costs as little after a million rounds as after ten; a record that rotted in the middle is found by whoever verifies.
    pub(super) fn ended(&self) -> Result<Round, CheckpointError> {
        // Before the records: another coordinator may be writing, and writes a state only once the record before it is there.
        let states = self.list("states")?;
        let Recorded { rounds, strays } = self.recorded()?;
        if let Some((first, last)) = gaps(&rounds, &states).next() {
            return Err(missing(first, last));
        }
        match strays.into_iter().next() {
            Some(path) => Err(CheckpointError::Stray { path }),
            None => Ok(rounds.len() as Round),
        }
    }

    /// What the folder of records holds.
    pub(super) fn recorded(&self) -> Result<Recorded, CheckpointError> {
        let mut recorded = Recorded::default();
        for name in self.list("commits")? {
            let path = format!("commits/{name}");
            let round = name
                .strip_suffix(".json")
                .and_then(|round| round.parse().ok());
            match round.filter(|round| *round > 0 && record_path(*round) == path) {
                Some(round) => recorded.rounds.push(round),
                None => recorded.strays.push(path),
            }
        }
        // A round's number may have more digits than its name was padded to.
        recorded.rounds.sort_unstable();
        Ok(recorded)
    }

    /// A record that is what its name says, and of this run and configuration, with a state exactly if its round was committed.
    fn checked(&self, round: Round) -> Result<CommitRecord, CheckpointError> {
        let path = record_path(round);
        let record = self.record(round)?;
        if record.configuration != self.configuration {
            return Err(CheckpointError::OtherRun {
                expected: self.configuration,
                found: record.configuration,
            });
        }
        if let (Some(expected), Some(found)) = (self.run(), record.run)
            && expected != found
        {
            return Err(CheckpointError::ForeignRecord {
                path,
                expected,
                found,
            });
        }
        let checked = record.check(&format!("{round:06}.json"), round);
        checked.map_err(|reason| damaged(&path, reason))?;
        Ok(record)
    }

    /// The last round that was committed: behind it are only those that failed, few by `failed_limit`.
    pub(super) fn newest_stated(
        &self,
        ended: Round,
    ) -> Result<Option<CommitRecord>, CheckpointError> {
        for round in (1..=ended).rev() {
            let record = self.checked(round)?;
            if record.state.is_some() {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    pub(super) fn list(&self, folder: &str) -> Result<Vec<String>, CheckpointError> {
        self.files
            .list(folder)
            .map_err(|error| files_error(folder, &error))
    }

    pub(super) fn settle(&self, folder: &str) -> Result<(), CheckpointError> {
        self.files
            .settle(folder)
            .map_err(|error| files_error(folder, &error))
    }

    /// Writes a state and the record that names it, in this order.
    ///
    /// # Errors
    /// Nothing counts that was not recorded. [`CheckpointError::Taken`] if somebody else has ended the round.
    pub fn commit(&self, layout: &Layout, state: &State) -> Result<(), CheckpointError> {
        let round = state.record.round;
        self.check_acting()?;
        match self.record(round) {
            // Its state is named by the record and must not be touched. The same round by the same hand is an answer that got lost.
            Ok(known) => {
                let same =
                    known.record == state.record && known.configuration == self.configuration;
                return match same {
                    true => self.settle("commits"),
                    false => Err(CheckpointError::Taken(round)),
                };
            }
            Err(CheckpointError::Missing { .. }) => {}
            // There may be a record, and what it names would be overwritten.
            Err(error) => return Err(error),
        }
        let name = state::name(&state.record, self.term());
        let folder = format!("states/{name}");
        if mutants::is("record-first") {
            let leaves = state.leaves.clone();
            self.end(
                state.record.clone(),
                state.tally,
                Some(name.clone()),
                leaves,
            )?;
        }
        state::write(self.files.as_ref(), &folder, layout, state)?;
        let leaves = state.leaves.clone();
        self.end(state.record.clone(), state.tally, Some(name), leaves)
    }

    /// Records how a round ended.
    ///
    /// # Errors
    /// [`CheckpointError::Taken`] if somebody else has ended it.
    pub fn end(
        &self,
        record: RoundRecord,
        tally: Tally,
        state: Option<String>,
        leaves: Vec<String>,
    ) -> Result<(), CheckpointError> {
        let round = record.round;
        self.check_acting()?;
        let path = record_path(round);
        let commit = CommitRecord {
            format: FORMAT,
            configuration: self.configuration,
            run: self.run(),
            every: Some(self.every),
            record,
            state,
            tally,
            leaves,
        };
        let bytes = sealed::seal(&commit);
        match self.files.create(&path, &bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if self.record(round)? != commit {
                    return Err(CheckpointError::Taken(round));
                }
                self.settle("commits")
            }
            Err(error) => Err(files_error(&path, &error)),
        }
    }

    /// What the ends of these rounds add to the record, of as many as are read at once. Of a round that ended while none was kept, that it did.
    ///
    /// # Errors
    /// A round's record cannot be read.
    pub fn leaves(&self, first: Round, last: Round) -> Result<LeavesOfRounds, CheckpointError> {
        let leaves = (first..=last).take(ROUNDS_AT_ONCE).map(|round| {
            let found = self.record(round)?;
            let unrecorded = Leaf::Unrecorded {
                round,
                state: found.record.state,
                model: found.record.model_hash,
            };
            Ok(match found.leaves.is_empty() {
                true => (round, vec![unrecorded.line()]),
                false => (round, found.leaves),
            })
        });
        leaves.collect()
    }

    /// Removes what is not needed once a round has ended: its notes, and states that need not be kept. What cannot be removed is in nobody's
    /// way: that is logged, no more.
    pub fn retain(&self, ended: Round) {
        if self.record(ended).is_err() {
            return;
        }
        // A state of the next round may be another coordinator's, about to be recorded.
        let surplus = self.surplus(ended, ended, |round| round % self.every != 0, self.named());
        let Ok(mut surplus) = surplus.inspect_err(warn) else {
            return;
        };
        // Of the last good state nobody knows which one it is until the newest has been read back.
        if let Some(newest) = surplus.newest
            && surplus.removable.iter().any(|found| found.is_committed)
            && let Err(error) = self.record(newest).and_then(|newest| {
                state::verify(self.files.as_ref(), &folder_of(&newest), &newest.record)
            })
        {
            tracing::warn!(%error, "the newest state does not verify: the ones before it are kept");
            surplus.removable.retain(|found| !found.is_committed);
        }
        self.remove(surplus);
    }

    /// The same for all that earlier lives left behind, once the newest state was read. Of rounds whose state is kept no record is read
    /// unless there are two states of one.
    fn tidy(&self, ended: Round, with_notes: bool) {
        let states = self.list("states").unwrap_or_default();
        let of = |round: Round| {
            let same = |name: &&String| state::round_of(name) == Some(round);
            states.iter().filter(same).count()
        };
        let orphans = match self.shared {
            Some(_) => ended,
            None => ended + 1,
        };
        let looked_at =
            |round: Round| round > ended || !round.is_multiple_of(self.every) || of(round) > 1;
        if let Ok(mut surplus) = self
            .surplus(ended, orphans, looked_at, self.named())
            .inspect_err(warn)
        {
            if !with_notes {
                // Until somebody has told of them; they go with those of the next round.
                surplus
                    .removable
                    .retain(|found| !found.path.starts_with("notes/"));
            }
            self.remove(surplus);
        }
    }

    /// Whether a round's record names a state.
    fn named(&self) -> impl Fn(Round, &str) -> bool {
        |round, name| match self.record(round) {
            Ok(record) => record.state.as_deref() == Some(name),
            Err(CheckpointError::Missing { .. }) => false,
            // It may.
            Err(_) => true,
        }
    }

    fn remove(&self, surplus: Surplus) {
        for Removable { path, .. } in surplus.removable {
            if let Err(error) = self.files.remove(&path) {
                tracing::warn!(path, %error, "what is not needed any more could not be removed");
            }
        }
    }

    /// What may go once `ended` rounds have ended: of states those up to round `last` that no record names, and those that need not be kept.
    /// Of the rounds that `looked_at` leaves out every state stays.
    fn surplus(
        &self,
        ended: Round,
        last: Round,
        looked_at: impl Fn(Round) -> bool,
        named: impl Fn(Round, &str) -> bool,
    ) -> Result<Surplus, CheckpointError> {
        let mut surplus = Surplus::default();
        for name in self.list("notes")? {
            if state::round_of(&name).is_some_and(|round| round <= ended) {
                surplus.add(format!("notes/{name}"), false);
            }
        }
        let mut newest = 0;
        for name in self.list("states")?.iter().rev() {
            // What has no round in its name is not ours to judge.
            let Some(round) = state::round_of(name).filter(|round| *round <= last) else {
                continue;
            };
            if newest == STATES_KEPT && !looked_at(round) {
                continue;
            }
            let is_committed = named(round, name);
            let kept = if mutants::is("last-good-removed") {
                0
            } else {
                STATES_KEPT
            };
            if is_committed && newest < kept {
                newest += 1;
                surplus.newest = surplus.newest.max(Some(round));
            } else if !(is_committed && round.is_multiple_of(self.every)) {
                surplus.add(format!("states/{name}"), is_committed);
            }
        }
        Ok(surplus)
    }

    pub(super) fn record(&self, round: Round) -> Result<CommitRecord, CheckpointError> {
        json(self.files.as_ref(), &record_path(round))
    }
}

fn warn(error: &CheckpointError) {
    tracing::warn!(%error, "what is not needed any more was not removed");
}

/// The records that are there, by their names.
#[derive(Default, PartialEq)]
pub(super) struct Recorded {
    /// In order.
    pub(super) rounds: Vec<Round>,
    /// Paths of what is no record.
    pub(super) strays: Vec<String>,
}

/// First and last round of each run of records that are missing. A state is written only once the record before it is there.
pub(super) fn gaps<'a>(
    rounds: &'a [Round],
    states: &[String],
) -> impl Iterator<Item = (Round, Round)> + use<'a> {
    let stated = states.iter().filter_map(|name| state::round_of(name)).max();
    let mut before: Round = 0;
    let ends = rounds.iter().copied().chain(stated);
    ends.filter_map(move |round| {
        let gap = (before.saturating_add(1), round.saturating_sub(1));
        before = before.max(round);
        (gap.0 <= gap.1).then_some(gap)
    })
}

/// Says that records are missing, from one round to another.
pub(super) fn missing(first: Round, last: Round) -> CheckpointError {
    let path = record_path(first);
    if first == last {
        return CheckpointError::Missing { path };
    }
    let reason = format!("the records from here to {} are missing", record_path(last));
    damaged(&path, reason)
}

/// What may be removed.
#[derive(Default)]
struct Surplus {
    /// The newest committed round that has a state.
    newest: Option<Round>,
    removable: Vec<Removable>,
}

struct Removable {
    path: String,
    is_committed: bool,
}

impl Surplus {
    fn add(&mut self, path: String, is_committed: bool) {
        self.removable.push(Removable { path, is_committed });
    }
}
fn record_path(round: Round) -> String {
    format!("commits/{round:06}.json")
}

pub(super) fn folder_of(stated: &CommitRecord) -> String {
    let name = stated.state.as_deref().unwrap_or_default();
    format!("states/{name}")
}
