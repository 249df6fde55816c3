//! A node's durable state: committed models, commit records, noted contributions.
//!
//! ```text
//! commits/000012.json            how round 12 ended; created if absent, so two coordinators cannot both end it
//! states/000012-<hash>/          model.safetensors, outer.safetensors (if the outer optimizer has state), manifest.json
//! notes/000013.jsonl             contributions of the open round that were acknowledged
//! views/000002.json              who takes part, from epoch 2 on; created if absent
//! ```
//!
//! A state is written and synchronised first, then the record that names it: a crash between the two leaves an orphan, which the next load
//! removes. All IO runs off the arbiters.

mod views;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::env::{Files, Work, work};
use crate::shell::{Actor, Cx, Reply, Stage, pause};
use crate::slab::{Pool, Slab};
use tombolo_core::event::RoundRecord;
use tombolo_core::ids::{Epoch, Round};
use tombolo_core::outer::OuterOptimizer;
use tombolo_core::tensor::{Hash, Layout, bytes_of};
use tombolo_core::view::View;
use tombolo_core::wire::Contribution;

/// The version of the folder's layout and files.
pub const FORMAT: u32 = 1;

const MODEL: &str = "model.safetensors";
const OUTER: &str = "outer.safetensors";
const MANIFEST: &str = "manifest.json";

/// State that cannot be used or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system said no.
    #[error("{path}: {reason}")]
    Files {
        /// Which file.
        path: String,
        /// Its words.
        reason: String,
    },
    /// A file is not what its manifest or format says.
    #[error("{path}: {reason}; restore it from a copy, or start anew in another state folder")]
    Damaged {
        /// Which file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The state belongs to another run.
    #[error(
        "the state folder belongs to another configuration ({found:?}, this one is {expected:?}); give --state another folder"
    )]
    OtherRun {
        /// Ours.
        expected: Hash,
        /// Theirs.
        found: Hash,
    },
    /// Another coordinator has ended the round.
    #[error("round {0} was ended by another coordinator")]
    Taken(Round),
    /// Another coordinator has decided what follows the view before.
    #[error("membership view {0} was written by another coordinator")]
    TakenView(Epoch),
}

/// The outer optimizer's state: flat slices by name.
pub type OuterState = Vec<(String, Vec<f32>)>;

/// How a round ended, durably.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// [`FORMAT`].
    pub format: u32,
    /// Hash of everything in the configuration that decides the outcome.
    pub configuration: Hash,
    /// The round as reported.
    pub record: RoundRecord,
    /// The folder of the state after it; none if it was aborted.
    pub state: Option<String>,
    /// Rounds ended so far: with everyone, with some, without a commit.
    pub tally: (u64, u64, u64),
}

/// What a state folder holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The round that committed it.
    pub round: Round,
    /// The model's hash.
    pub model: Hash,
    /// BLAKE3 of each file.
    pub files: BTreeMap<String, Hash>,
}

/// The newest committed state.
pub struct Loaded {
    /// How the last round ended.
    pub last: CommitRecord,
    /// The round that committed the model.
    pub round: Round,
    /// The evaluation of the model.
    pub accuracy: f64,
    /// The evaluation of the model.
    pub loss: f64,
    /// Its elements; none if every round so far was aborted, so that the model is still the initial one.
    pub model: Option<Slab>,
    /// The outer optimizer's state by name.
    pub outer: OuterState,
}

/// An outer optimizer that is written while nobody steps it.
pub type SharedOuter = Arc<Mutex<Box<dyn OuterOptimizer>>>;

/// A state to be written.
pub struct State {
    /// How the round ended.
    pub record: RoundRecord,
    /// The tally after it.
    pub tally: (u64, u64, u64),
    /// The model after it.
    pub model: Slab,
    /// The outer optimizer after it.
    pub outer: SharedOuter,
}

/// What it takes.
pub enum Message {
    /// Load the newest committed state, if there is one; remove orphans.
    Load(Layout, Reply<Result<Option<Loaded>, CheckpointError>>),
    /// Write a state and its commit record. Asked again, it finds its own work done.
    Commit(Layout, Arc<State>, Reply<Result<(), CheckpointError>>),
    /// Record that a round ended without a commit.
    Abort(
        RoundRecord,
        (u64, u64, u64),
        Reply<Result<(), CheckpointError>>,
    ),
    /// The last view that was written down.
    LastView(Reply<Result<Option<View>, CheckpointError>>),
    /// Write a view down. Asked again, it finds its own work done.
    View(View, Reply<Result<(), CheckpointError>>),
    /// Note a contribution before it is acknowledged.
    Note(Contribution, Reply<Result<(), CheckpointError>>),
}

/// See the module.
pub struct Checkpoint {
    stage: Stage,
    store: Store,
}

#[derive(Clone)]
struct Store {
    files: Arc<dyn Files>,
    configuration: Hash,
    every: u64,
    pool: Pool,
}

impl Checkpoint {
    /// An actor over the node's files. `configuration` is the hash of everything that decides the outcome.
    pub fn new(stage: Stage, configuration: Hash, pool: Pool) -> Self {
        let files = stage.env.files();
        Checkpoint::on(stage, files, configuration, pool)
    }

    /// As [`Checkpoint::new`], over other files than the node's own.
    pub fn on(stage: Stage, files: Arc<dyn Files>, configuration: Hash, pool: Pool) -> Self {
        let every = stage.plan.checkpoint.every;
        Checkpoint {
            stage,
            store: Store {
                files,
                configuration,
                every,
                pool,
            },
        }
    }

    fn run<R: Send + 'static>(
        &self,
        cx: &mut Cx<Self>,
        bytes: usize,
        reply: Reply<R>,
        job: impl FnOnce(&Store) -> R + Send + 'static,
    ) {
        let store = self.store.clone();
        let (env, bytes) = (self.stage.env.as_ref(), Work::Bytes(bytes as u64));
        pause(cx, work(env, bytes, move || job(&store)), |_, done, _| {
            // If the work panicked the reply is dropped, which tells the asker.
            if let Ok(result) = done {
                reply.send(result);
            }
        });
    }
}

impl Actor for Checkpoint {
    type Message = Message;
    const NAME: &'static str = "Checkpoint";

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Load(layout, reply) => self.run(cx, layout.len() * 4, reply, move |store| {
                store.load(&layout)
            }),
            Message::Commit(layout, state, reply) => {
                self.run(cx, layout.len() * 4, reply, move |store| {
                    store.commit(&layout, &state)
                });
            }
            Message::Abort(record, tally, reply) => {
                self.run(cx, 0, reply, move |store| store.end(record, tally, None))
            }
            Message::LastView(reply) => self.run(cx, 0, reply, Store::last_view),
            Message::View(view, reply) => {
                self.run(cx, 0, reply, move |store| store.write_view(&view))
            }
            Message::Note(contribution, reply) => {
                self.run(cx, 0, reply, move |store| store.note(&contribution))
            }
        }
    }
}

impl Store {
    fn load(&self, layout: &Layout) -> Result<Option<Loaded>, CheckpointError> {
        let mut history = self.history()?;
        let stated = history.iter().rposition(|record| record.state.is_some());
        let stated = stated.map(|index| history[index].clone());
        self.remove_orphans(history.len() as Round)?;
        let Some(last) = history.pop() else {
            return Ok(None);
        };
        let Some(stated) = stated else {
            return Ok(Some(Loaded {
                last,
                round: 0,
                accuracy: 0.0,
                loss: 0.0,
                model: None,
                outer: Vec::new(),
            }));
        };
        let folder = format!(
            "states/{}",
            stated.state.as_deref().expect("filtered above")
        );
        let (model, outer) = self.read_state(&folder, &stated.record, layout)?;
        Ok(Some(Loaded {
            round: stated.record.round,
            accuracy: stated.record.accuracy,
            loss: stated.record.loss,
            last,
            model: Some(model),
            outer,
        }))
    }

    /// The commit records, which must be one history: rounds 1, 2, 3 without a gap, each what its name says, each with a state exactly if it
    /// was committed.
    fn history(&self) -> Result<Vec<CommitRecord>, CheckpointError> {
        let names = self
            .files
            .list("commits")
            .map_err(|error| files_error("commits", &error))?;
        let mut history = Vec::new();
        for (index, name) in names.iter().enumerate() {
            let (path, round) = (format!("commits/{name}"), index as Round + 1);
            let damaged = |reason: String| CheckpointError::Damaged {
                path: path.clone(),
                reason,
            };
            let record: CommitRecord = self.json(&path)?;
            if record.format != FORMAT {
                return Err(damaged(format!(
                    "format {}, this version reads {FORMAT}",
                    record.format
                )));
            }
            if record.configuration != self.configuration {
                return Err(CheckpointError::OtherRun {
                    expected: self.configuration,
                    found: record.configuration,
                });
            }
            if *name != format!("{round:06}.json") || record.record.round != round {
                return Err(damaged(format!(
                    "it says round {}, the record of round {round} is due",
                    record.record.round
                )));
            }
            if record.state.is_some() != record.record.is_committed() {
                return Err(damaged(
                    "a committed round has a state, an aborted one has none".into(),
                ));
            }
            let (committed, degraded, aborted) = record.tally;
            let tally = committed
                .checked_add(degraded)
                .and_then(|sum| sum.checked_add(aborted));
            if tally != Some(round) {
                return Err(damaged(format!(
                    "its tally {:?} does not add up to {round} rounds",
                    record.tally
                )));
            }
            history.push(record);
        }
        Ok(history)
    }

    /// Removes what a crash before the record of the next round left behind. Anything else that no record names is not ours to judge: if
    /// records are missing, it may be all that is left of a run.
    fn remove_orphans(&self, ended: Round) -> Result<(), CheckpointError> {
        for name in self
            .files
            .list("states")
            .map_err(|error| files_error("states", &error))?
        {
            let path = format!("states/{name}");
            let round = name
                .split('-')
                .next()
                .and_then(|number| number.parse::<Round>().ok());
            match round {
                Some(round) if round <= ended => {}
                Some(round) if round > ended + 1 => {
                    let reason = format!(
                        "a state of round {round}, but commits/ ends with round {ended}: records are missing"
                    );
                    return Err(CheckpointError::Damaged { path, reason });
                }
                _ if round.is_some() || name.starts_with("partial-") => self
                    .files
                    .remove(&path)
                    .map_err(|error| files_error(&path, &error))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn json<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, CheckpointError> {
        let bytes = self
            .files
            .read(path)
            .map_err(|error| files_error(path, &error))?;
        serde_json::from_slice(&bytes).map_err(|error| CheckpointError::Damaged {
            path: path.into(),
            reason: error.to_string(),
        })
    }

    fn read_state(
        &self,
        folder: &str,
        record: &RoundRecord,
        layout: &Layout,
    ) -> Result<(Slab, OuterState), CheckpointError> {
        let path = format!("{folder}/{MANIFEST}");
        let manifest: Manifest = self.json(&path)?;
        let expected = (FORMAT, record.round, record.model_hash);
        let found = (manifest.format, manifest.round, manifest.model);
        if found != expected {
            let reason = format!(
                "it is about (format, round, model) {found:?}, the commit record about {expected:?}"
            );
            return Err(CheckpointError::Damaged { path, reason });
        }
        let verified = |name: &str| -> Result<Vec<u8>, CheckpointError> {
            let path = format!("{folder}/{name}");
            let bytes = self
                .files
                .read(&path)
                .map_err(|error| files_error(&path, &error))?;
            let (found, expected) = (Hash::of_bytes(&bytes), manifest.files.get(name));
            if expected != Some(&found) {
                let expected = expected.map_or_else(|| "nothing of it".to_owned(), Hash::to_string);
                let reason = format!("its hash is {found}, {MANIFEST} says {expected}");
                return Err(CheckpointError::Damaged { path, reason });
            }
            Ok(bytes)
        };
        let bytes = verified(MODEL)?;
        let damaged = |reason: String| CheckpointError::Damaged {
            path: format!("{folder}/{MODEL}"),
            reason,
        };
        let tensors =
            SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
        let mut model = self.pool.take(layout.len());
        for tensor in layout.tensors() {
            let view = tensors
                .tensor(&tensor.name)
                .map_err(|error| damaged(error.to_string()))?;
            if view.dtype() != Dtype::F32 || view.shape() != tensor.shape {
                let reason = format!(
                    "tensor {:?} is {:?} {:?}, the model has F32 {:?}",
                    tensor.name,
                    view.dtype(),
                    view.shape(),
                    tensor.shape
                );
                return Err(damaged(reason));
            }
            decode_elements(
                view.data(),
                &mut model[tensor.offset..tensor.offset + tensor.len()],
            );
        }
        let mut outer = Vec::new();
        if manifest.files.contains_key(OUTER) {
            let bytes = verified(OUTER)?;
            let damaged = |reason: String| CheckpointError::Damaged {
                path: format!("{folder}/{OUTER}"),
                reason,
            };
            let tensors =
                SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
            let mut names: Vec<String> =
                tensors.names().into_iter().map(ToOwned::to_owned).collect();
            names.sort();
            for name in names {
                let view = tensors
                    .tensor(&name)
                    .map_err(|error| damaged(error.to_string()))?;
                let mut elements = vec![0.0; view.data().len() / 4];
                decode_elements(view.data(), &mut elements);
                outer.push((name, elements));
            }
        }
        Ok((model.freeze(), outer))
    }

    fn commit(&self, layout: &Layout, state: &State) -> Result<(), CheckpointError> {
        let round = state.record.round;
        let path = format!("commits/{round:06}.json");
        if self.files.read(&path).is_ok() {
            // Its state is named by the record and must not be touched. The same round by the same hand is an answer that got lost.
            let known: CommitRecord = self.json(&path)?;
            let same = known.record == state.record && known.configuration == self.configuration;
            return if same {
                Ok(())
            } else {
                Err(CheckpointError::Taken(round))
            };
        }
        let name = format!("{round:06}-{}", &state.record.model_hash.to_string()[..16]);
        let folder = format!("states/{name}");
        let temporary = format!("states/partial-{name}");
        let result = self.write_state(layout, state, &temporary, &folder);
        if let Err(error) = result {
            let _ = self.files.remove(&temporary);
            return Err(error);
        }
        self.end(state.record.clone(), state.tally, Some(name))?;
        tidied(self.retain(round));
        Ok(())
    }

    fn write_state(
        &self,
        layout: &Layout,
        state: &State,
        temporary: &str,
        folder: &str,
    ) -> Result<(), CheckpointError> {
        self.files
            .remove(temporary)
            .map_err(|error| files_error(temporary, &error))?;
        // Left behind by a crash before the record: the same bytes, or of no worth.
        self.files
            .remove(folder)
            .map_err(|error| files_error(folder, &error))?;
        let mut files = BTreeMap::new();
        let mut write = |name: &str,
                         tensors: Vec<(String, TensorInfo)>,
                         parts: &[&[u8]]|
         -> Result<(), CheckpointError> {
            let header = safetensors_header(tensors)?;
            let mut all: Vec<&[u8]> = vec![&header];
            all.extend(parts);
            let mut hasher = blake3::Hasher::new();
            all.iter().for_each(|part| {
                hasher.update(part);
            });
            files.insert(name.to_owned(), Hash(*hasher.finalize().as_bytes()));
            let path = format!("{temporary}/{name}");
            self.files
                .replace(&path, &all)
                .map_err(|error| files_error(&path, &error))
        };
        let info = |shape: &[usize], begin: usize, len: usize| TensorInfo {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            data_offsets: (begin * 4, (begin + len) * 4),
        };
        let tensors = layout.tensors().iter().map(|tensor| {
            (
                tensor.name.clone(),
                info(&tensor.shape, tensor.offset, tensor.len()),
            )
        });
        write(MODEL, tensors.collect(), &[state.model.as_ref()])?;
        let outer = state.outer.lock().unwrap_or_else(PoisonError::into_inner);
        let slices = outer.state();
        if !slices.is_empty() {
            let mut begin = 0;
            let mut tensors = Vec::new();
            for (name, elements) in &slices {
                let len = elements.len();
                tensors.push(((*name).to_owned(), info(&[len], begin, len)));
                begin += len;
            }
            let parts: Vec<&[u8]> = slices
                .iter()
                .map(|(_, elements)| bytes_of(elements))
                .collect();
            write(OUTER, tensors, &parts)?;
        }
        let manifest = Manifest {
            format: FORMAT,
            round: state.record.round,
            model: state.record.model_hash,
            files,
        };
        let path = format!("{temporary}/{MANIFEST}");
        let bytes = serde_json::to_vec_pretty(&manifest).expect("a manifest is plain data");
        self.files
            .replace(&path, &[&bytes])
            .map_err(|error| files_error(&path, &error))?;
        self.files
            .rename(temporary, folder)
            .map_err(|error| files_error(folder, &error))
    }

    fn end(
        &self,
        record: RoundRecord,
        tally: (u64, u64, u64),
        state: Option<String>,
    ) -> Result<(), CheckpointError> {
        let round = record.round;
        let path = format!("commits/{round:06}.json");
        let commit = CommitRecord {
            format: FORMAT,
            configuration: self.configuration,
            record,
            state,
            tally,
        };
        let bytes = serde_json::to_vec_pretty(&commit).expect("a record is plain data");
        match self.files.create(&path, &bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if self.json::<CommitRecord>(&path)? != commit {
                    return Err(CheckpointError::Taken(round));
                }
            }
            Err(error) => return Err(files_error(&path, &error)),
        }
        let notes = format!("notes/{round:06}.jsonl");
        let removed = self.files.remove(&notes);
        tidied(removed.map_err(|error| files_error(&notes, &error)));
        Ok(())
    }

    /// Removes states that are not to be kept: all but the newest and every `every`th.
    fn retain(&self, newest: Round) -> Result<(), CheckpointError> {
        for name in self
            .files
            .list("states")
            .map_err(|error| files_error("states", &error))?
        {
            let round = name
                .split('-')
                .next()
                .and_then(|number| number.parse::<Round>().ok());
            if round.is_some_and(|round| round != newest && !round.is_multiple_of(self.every)) {
                let path = format!("states/{name}");
                self.files
                    .remove(&path)
                    .map_err(|error| files_error(&path, &error))?;
            }
        }
        Ok(())
    }

    fn note(&self, contribution: &Contribution) -> Result<(), CheckpointError> {
        #[derive(Serialize)]
        struct Note<'a> {
            domain: &'a str,
            epoch: u64,
            attempt: u32,
            weight: f64,
            hash: Hash,
            members: &'a [tombolo_core::ids::NodeId],
        }
        let path = format!("notes/{:06}.jsonl", contribution.round);
        let note = Note {
            domain: contribution.domain.as_str(),
            epoch: contribution.epoch,
            attempt: contribution.attempt,
            weight: contribution.weight,
            hash: contribution.hash(),
            members: &contribution.members,
        };
        let mut line = serde_json::to_vec(&note).expect("a note is plain data");
        line.push(b'\n');
        self.files
            .append(&path, &line)
            .map_err(|error| files_error(&path, &error))
    }
}

/// The record is on stable storage: what is only in the way afterwards must not make it look as if it were not.
fn tidied(result: Result<(), CheckpointError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a file that is not needed any more could not be removed");
    }
}

fn decode_elements(bytes: &[u8], into: &mut [f32]) {
    for (element, bytes) in into.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *element = f32::from_le_bytes(*bytes);
    }
}

/// The head of a safetensors file whose tensors follow in the order given.
fn safetensors_header(tensors: Vec<(String, TensorInfo)>) -> Result<Vec<u8>, CheckpointError> {
    let invalid = |reason: String| CheckpointError::Damaged {
        path: MODEL.into(),
        reason,
    };
    let metadata = Metadata::new(None, tensors).map_err(|error| invalid(error.to_string()))?;
    let mut json = serde_json::to_vec(&metadata).map_err(|error| invalid(error.to_string()))?;
    // The format wants the data aligned.
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

fn files_error(path: &str, error: &io::Error) -> CheckpointError {
    CheckpointError::Files {
        path: path.to_owned(),
        reason: error.to_string(),
    }
}
