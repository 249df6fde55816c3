//! A node's durable state: committed models, commit records, noted contributions.
//!
//! ```text
//! commits/000012.json            how round 12 ended; created if absent, so two coordinators cannot both end it
//! states/000012-<hash>/          model.safetensors, outer.safetensors (if the outer optimizer has state), manifest.json
//! probe.json                     whose store it is; created at the first start, unless it is the coordinator's own folder
//! notes/000013/weighing.json     what the open round's first gate has fixed: reports, weights, clip factors
//! notes/000013/contribution-<domain>.json    acknowledged; with a folder of its bytes if `durability = "journal"`
//! pause.json                     while a user has paused the run
//! views/000002.json              who takes part, from epoch 2 on; created if absent
//! ```
//!
//! A state is written and synchronised first, then the record that names it: a crash between the two leaves an orphan, which the next load
//! removes. Every JSON file carries its own hash but the manifest, whose every member is compared with the record or with what it names.
//! Files are read, written whole, created if absent, listed and removed, nothing else: what every object store can do as well. All IO runs
//! off the arbiters.

mod amendment;
mod notes;
mod pause;
mod probe;
mod promotion;
mod sealed;
mod state;
mod store;
mod survey;
mod views;

use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use crate::env::{Files, Work, work};
use crate::shell::{Actor, Cx, Reply, Stage, pause};
use crate::slab::{Pool, Slab};
use tombolo_core::coordinator::{Held, Paused, Resumed, Weighing};
use tombolo_core::event::RoundRecord;
use tombolo_core::ids::{Epoch, NodeId, Round};
use tombolo_core::outer::OuterOptimizer;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::view::View;
use tombolo_core::wire::Contribution;

pub use amendment::{amend, began_with};
pub(crate) use notes::{clear_journal, is_kept, journal, read_chunk, write_chunk};
pub use probe::Probe;
pub use promotion::Term;
pub use state::{MODEL, Manifest};
pub use store::Store;
pub use survey::{Kept, Survey, Surveyed};

/// The version of the folder's layout and files.
pub const FORMAT: u32 = 1;

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
    /// There is no such file.
    #[error("{path}: it is missing; restore it from a copy, or start anew in another state folder")]
    Missing {
        /// Which file.
        path: String,
    },
    /// A file is not what its manifest or format says.
    #[error("{path}: {reason}; restore it from a copy, or start anew in another state folder")]
    Damaged {
        /// Which file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// What lies among the records is none, so it may be one that lost its name.
    #[error(
        "{path}: it is no record of a round; remove it, or give it back the name it had (000012.json)"
    )]
    Stray {
        /// Which file.
        path: String,
    },
    /// The newest committed state is damaged.
    #[error(
        "the state of round {round} cannot be used: {why}; {}, which is not gone on from by itself, since round {round} was announced",
        fallback(*intact)
    )]
    Newest {
        /// The round that committed it.
        round: Round,
        /// What is wrong.
        why: Box<CheckpointError>,
        /// The newest one before it that verifies.
        intact: Option<Round>,
    },
    /// The state belongs to another run.
    #[error(
        "the state folder belongs to another configuration ({found:?}, this one is {expected:?}); give --state another folder, or `store` another URL"
    )]
    OtherRun {
        /// Ours.
        expected: Hash,
        /// Theirs.
        found: Hash,
    },
    /// The run goes on by another topology than this process comes with.
    #[error(
        "the run goes on by the topology {expected:?}, and the file here is {found:?}: give this node the amended file, which the others have"
    )]
    Amended {
        /// The run's.
        expected: Hash,
        /// This process's.
        found: Hash,
    },
    /// The store makes no difference between creating and replacing.
    #[error(
        "{path}: it was there and has been created once more: this store cannot create an object only if it is absent, so two coordinators could both commit a round; use another store"
    )]
    Replaces {
        /// Which file.
        path: String,
    },
    /// A record is of another run of the same configuration.
    #[error(
        "{path}: it is of run {found:?}, this is run {expected:?}; restore the run.json that belongs to it from a copy, or start anew in another state folder"
    )]
    ForeignRecord {
        /// Which file.
        path: String,
        /// Ours.
        expected: Hash,
        /// Its.
        found: Hash,
    },
    /// Another coordinator has ended the round.
    #[error("round {0} was ended by another coordinator")]
    Taken(Round),
    /// Another coordinator has decided what follows the view before.
    #[error("membership view {0} was written by another coordinator")]
    TakenView(Epoch),
    /// This node is not the coordinator, or not any more.
    #[error("{by} is the coordinator since membership view {epoch}")]
    Superseded {
        /// Who is.
        by: NodeId,
        /// Since which view.
        epoch: Epoch,
    },
    /// Somebody else was promoted, and whoever asks may not know.
    #[error(
        "{by} was made coordinator by membership view {epoch}; if it is lost, too, promote once more to take over from it"
    )]
    Meanwhile {
        /// Who is.
        by: NodeId,
        /// By which view.
        epoch: Epoch,
    },
    /// This node sees another store than the coordinator.
    #[error(
        "{path}: the coordinator's probe is not there, so this node looks at another store than the coordinator, which writes it before its first round; give both the same store"
    )]
    NoProbe {
        /// Which file.
        path: String,
    },
}

impl CheckpointError {
    /// The same with its file's full path: of many nodes' folders it may be in any.
    fn located(self, files: &dyn Files) -> Self {
        match self {
            CheckpointError::Missing { path } => CheckpointError::Missing {
                path: files.locate(&path),
            },
            CheckpointError::Damaged { path, reason } => CheckpointError::Damaged {
                path: files.locate(&path),
                reason,
            },
            CheckpointError::Stray { path } => CheckpointError::Stray {
                path: files.locate(&path),
            },
            CheckpointError::Replaces { path } => CheckpointError::Replaces {
                path: files.locate(&path),
            },
            CheckpointError::Newest { round, why, intact } => CheckpointError::Newest {
                round,
                why: Box::new(why.located(files)),
                intact,
            },
            CheckpointError::ForeignRecord {
                path,
                expected,
                found,
            } => CheckpointError::ForeignRecord {
                path: files.locate(&path),
                expected,
                found,
            },
            // The files' own words name the file in full already.
            CheckpointError::Files { .. } => self,
            CheckpointError::OtherRun { .. }
            | CheckpointError::Amended { .. }
            | CheckpointError::Taken(_)
            | CheckpointError::TakenView(_)
            | CheckpointError::Superseded { .. }
            | CheckpointError::Meanwhile { .. }
            | CheckpointError::NoProbe { .. } => self,
        }
    }
}

/// What is wrong with a file of another format, and whom to upgrade.
fn other_format(found: u32) -> String {
    let advice = match found > FORMAT {
        true => "upgrade this program",
        false => "go on with the version that wrote it",
    };
    format!("format {found}, this version reads {FORMAT}: {advice}")
}

fn fallback(intact: Option<Round>) -> String {
    match intact {
        Some(round) => format!(
            "`tombolo checkpoint restore` copies the model of round {round}, the newest that is intact"
        ),
        None => "no state before it is intact".to_owned(),
    }
}

/// Rounds ended so far: with everyone, with some, without a commit.
pub type Tally = (u64, u64, u64);

/// The outer optimizer's state: flat slices by name.
pub type OuterState = Vec<(String, Vec<f32>)>;

/// How a round ended, durably.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// [`FORMAT`].
    pub format: u32,
    /// Hash of everything in the configuration that decides the outcome.
    pub configuration: Hash,
    /// The run. Versions that do not know it leave it out, and pass over it where it is: neither side needs the other's upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Hash>,
    /// `checkpoint.every` when it was written: it may be another when a run goes on, and says which states were to stay. Versions before
    /// leave it out, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// The round as reported.
    pub record: RoundRecord,
    /// The folder of the state after it; none if it was aborted.
    pub state: Option<String>,
    /// The tally after it.
    pub tally: Tally,
    /// What its end adds to the record that every domain keeps, line by line. Versions before know of none, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaves: Vec<String>,
}

impl CommitRecord {
    /// Whether it is what is due under this name as the record of this round.
    fn check(&self, name: &str, round: Round) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(other_format(self.format));
        }
        if name != format!("{round:06}.json") || self.record.round != round {
            return Err(format!(
                "it says round {}, the record of round {round} is due",
                self.record.round
            ));
        }
        if self.state.is_some() != self.record.is_committed() {
            return Err("a committed round has a state, an aborted one has none".into());
        }
        let (committed, degraded, aborted) = self.tally;
        let sum = committed
            .checked_add(degraded)
            .and_then(|sum| sum.checked_add(aborted));
        if sum != Some(round) {
            return Err(format!(
                "its tally {:?} does not add up to {round} rounds",
                self.tally
            ));
        }
        Ok(())
    }
}

/// What a folder holds.
pub struct Found {
    /// How far the run has come; none if no round has ended.
    pub committed: Option<Loaded>,
    /// The round after that, if its first gate was passed.
    pub open: Option<Resumed>,
    /// What was acknowledged in vain for the last round that has ended.
    pub overtaken: Vec<Contribution>,
    /// The last view that was written down; none in a run whose membership never changed.
    pub view: Option<View>,
    /// A pause that is in force.
    pub paused: Option<Paused>,
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
    pub tally: Tally,
    /// What its end adds to the record.
    pub leaves: Vec<String>,
    /// The model after it.
    pub model: Slab,
    /// The outer optimizer after it.
    pub outer: SharedOuter,
}

/// The last view that was written down, and the run that the store's probe names.
pub type Standing = (View, Option<Hash>);

/// What the ends of rounds add to the record, in order.
pub type LeavesOfRounds = Vec<(Round, Vec<String>)>;

/// What it takes.
pub enum Message {
    /// Whose the store's rounds are, if anybody was promoted: the last view, and the run.
    Look(Reply<Result<Option<Standing>, CheckpointError>>),
    /// Make the store this run's, or find that it is.
    Claim(Hash, Reply<Result<(), CheckpointError>>),
    /// Make this node the coordinator by the next view, if that one is it now; the answer also names the run.
    Appoint(NodeId, Reply<Result<(View, Hash), CheckpointError>>),
    /// Load the newest committed state and the notes of the round after it; remove orphans.
    Load(Layout, Reply<Result<Found, CheckpointError>>),
    /// Write a state and its commit record. Asked again, it finds its own work done.
    Commit(Layout, Arc<State>, Reply<Result<(), CheckpointError>>),
    /// Record that a round ended without a commit.
    Abort(
        RoundRecord,
        Tally,
        Vec<String>,
        Reply<Result<(), CheckpointError>>,
    ),
    /// What the ends of these rounds, first and last, add to the record; of some of them at most, in order.
    Leaves(Round, Round, Reply<Result<LeavesOfRounds, CheckpointError>>),
    /// Write a view down. Asked again, it finds its own work done.
    View(View, Reply<Result<(), CheckpointError>>),
    /// Write down that the run is paused, or that it is not any more. Asked again, it finds its own work done.
    Hold(Option<Paused>, Reply<Result<Held, CheckpointError>>),
    /// Write down that the run goes on by the topology with that hash. Asked again, it finds its own work done.
    Amend(Hash, Reply<Result<(), CheckpointError>>),
    /// Write down what a round's first gate has fixed, before anybody is told.
    Fix(Weighing, Reply<Result<(), CheckpointError>>),
    /// Note a contribution before it is acknowledged.
    Note(Contribution, Reply<Result<(), CheckpointError>>),
}

/// See the module.
pub struct Checkpoint {
    stage: Stage,
    store: Store,
}

impl Checkpoint {
    /// An actor over the federation's store. `configuration` is the hash of everything that decides the outcome.
    pub fn new(stage: Stage, configuration: Hash, pool: Pool) -> Self {
        let files = stage.env.store();
        Checkpoint::on(stage, files, configuration, pool)
    }

    /// As [`Checkpoint::new`], over other files.
    pub fn on(stage: Stage, files: Arc<dyn Files>, configuration: Hash, pool: Pool) -> Self {
        let every = stage.plan.checkpoint.every;
        Checkpoint {
            store: Store::new(files, configuration, every, pool),
            stage,
        }
    }

    /// The same for a run that goes on by another topology than it began with.
    #[must_use]
    pub fn going_by(mut self, topology: Hash) -> Self {
        self.store = self.store.going_by(topology);
        self
    }

    /// The same in a store that coordinators share, one after the other.
    #[must_use]
    pub fn shared(mut self, term: Term) -> Self {
        self.store = self.store.shared(self.stage.node.clone(), term);
        self
    }

    /// Its records are those of a run, and no other's.
    #[must_use]
    pub fn of_run(mut self, run: Hash) -> Self {
        self.store = self.store.of_run(run);
        self
    }

    /// Lets the store work and answers; what takes no answer may follow before the next message is taken.
    fn run<R: Send + 'static>(
        &self,
        cx: &mut Cx<Self>,
        bytes: usize,
        reply: Reply<Result<R, CheckpointError>>,
        job: impl FnOnce(&Store) -> Result<R, CheckpointError> + Send + 'static,
        after: impl FnOnce(&Store) + Send + 'static,
    ) {
        let (store, env) = (self.store.clone(), self.stage.env.clone());
        let bytes = Work::Bytes(bytes as u64);
        let job = work(env.as_ref(), bytes, {
            let store = store.clone();
            move || job(&store).map_err(|error| error.located(store.files.as_ref()))
        });
        let answered = async move {
            if let Ok(result) = job.await {
                reply.send(result);
            }
            work(env.as_ref(), Work::Bytes(0), move || after(&store)).await
        };
        pause(cx, answered, |_, _, _| {});
    }
}

impl Actor for Checkpoint {
    type Message = Message;
    const NAME: &'static str = "Checkpoint";

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match message {
            Message::Look(reply) => self.run(cx, 0, reply, Store::look, |_| {}),
            Message::Claim(run, reply) => {
                self.run(cx, 0, reply, move |store| store.claim(run), |_| {});
            }
            Message::Appoint(after, reply) => {
                let plan = self.stage.plan.clone();
                let job = move |store: &Store| store.appoint(&plan, &after);
                self.run(cx, 0, reply, job, |_| {});
            }
            Message::Load(layout, reply) => {
                let (bytes, plan) = (layout.len() * 4, self.stage.plan.clone());
                let job = move |store: &Store| {
                    store.go_on(&plan)?;
                    store.load(&layout)
                };
                self.run(cx, bytes, reply, job, |_| {});
            }
            Message::Commit(layout, state, reply) => {
                let (bytes, round) = (layout.len() * 4, state.record.round);
                let job = move |store: &Store| store.commit(&layout, &state);
                self.run(cx, bytes, reply, job, move |store| store.retain(round));
            }
            Message::Leaves(first, last, reply) => {
                let job = move |store: &Store| store.leaves(first, last);
                self.run(cx, 0, reply, job, |_| {});
            }
            Message::Abort(record, tally, leaves, reply) => {
                let round = record.round;
                let job = move |store: &Store| store.end(record, tally, None, leaves);
                self.run(cx, 0, reply, job, move |store| store.retain(round));
            }
            Message::View(view, reply) => {
                self.run(cx, 0, reply, move |store| store.write_view(&view), |_| {});
            }
            Message::Hold(paused, reply) => {
                self.run(cx, 0, reply, move |store| store.hold(paused), |_| {});
            }
            Message::Amend(topology, reply) => {
                self.run(cx, 0, reply, move |store| store.amend(topology), |_| {});
            }
            Message::Fix(weighing, reply) => {
                self.run(cx, 0, reply, move |store| store.fix(weighing), |_| {});
            }
            Message::Note(contribution, reply) => {
                self.run(cx, 0, reply, move |store| store.note(&contribution), |_| {});
            }
        }
    }
}

/// The longest record, view, note or manifest: of 100,000 nodes it is a tenth.
const JSON_BYTES_MAX: usize = 128 << 20;

/// Reads a record, a manifest, a note or a view of a state folder.
///
/// # Errors
/// It is none, or its bytes are not those that were sealed.
pub fn unseal<T: Serialize + serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    sealed::open(bytes)
}

fn json<T: Serialize + serde::de::DeserializeOwned>(
    files: &dyn Files,
    path: &str,
) -> Result<T, CheckpointError> {
    let bytes = files
        .read_small(path, JSON_BYTES_MAX)
        .map_err(|error| files_error(path, &error))?;
    unseal(&bytes).map_err(|reason| damaged(path, reason))
}

fn damaged(path: &str, reason: String) -> CheckpointError {
    CheckpointError::Damaged {
        path: path.to_owned(),
        reason,
    }
}

fn files_error(path: &str, error: &std::io::Error) -> CheckpointError {
    let path = path.to_owned();
    match error.kind() {
        std::io::ErrorKind::NotFound => CheckpointError::Missing { path },
        _ => CheckpointError::Files {
            path,
            reason: error.to_string(),
        },
    }
}
