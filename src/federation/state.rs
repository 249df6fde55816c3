//! The state folder of a run: who uses it, and what it is about.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Report;
use crate::bounded::{self, ReadError};
use crate::topology::SharedKeys;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::tensor::Hash;
use tombolo_core::text::clip_to;

const RUN: &str = "run.json";
const LOCK: &str = "run.lock";
const FORMAT: u32 = 1;

/// The largest `run.json`: every key of the largest topology, several times over.
const RUN_BYTES_MAX: usize = 16 << 20;

/// Bytes of another version's name that are shown.
const VERSION_BYTES_MAX: usize = 32;

/// Keys that differ shown at most.
const KEYS_SHOWN_MAX: usize = 8;

/// A state folder that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another process uses it.
    #[error("the state folder {} is in use by another process; stop it, or give --state another folder", .0.display())]
    InUse(PathBuf),
    /// There is a run in it.
    #[error("the state folder {} holds a run already; give --resume to go on with it, or --state another folder", .0.display())]
    Occupied(PathBuf),
    /// It is about something else.
    #[error(
        "the state folder {} holds a run of another configuration; the topology differs in {differences}; give the file of that run, which `tombolo amend` changes while it is at work, or --state another folder",
        folder.display()
    )]
    OtherRun {
        /// Which.
        folder: PathBuf,
        /// The keys that differ.
        differences: String,
    },
    /// Another version of the program wrote it.
    #[error(
        "the state folder {} was begun by tombolo {by} in format {found}, this is tombolo {}, which reads format {FORMAT}; {}",
        folder.display(),
        env!("CARGO_PKG_VERSION"),
        if *found > FORMAT { "upgrade this program" } else { "go on with that version, or give --state another folder" }
    )]
    OtherFormat {
        /// Which.
        folder: PathBuf,
        /// Version of the program that began it.
        by: String,
        /// Its format.
        found: u32,
    },
    /// The file system said no.
    #[error("cannot {action} {}: {reason}", path.display())]
    Files {
        /// What was tried.
        action: &'static str,
        /// On what, fully resolved.
        path: PathBuf,
        /// Its words.
        reason: String,
    },
}

/// What `run.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Version of the file.
    pub format: u32,
    /// Drawn when the run began.
    pub run: uuid::Uuid,
    /// Hash of everything in the configuration that decides the outcome, as the run began.
    pub configuration: Hash,
    /// Version of the program that began it.
    pub version: String,
    /// What the configuration is now, key by key, so that a difference can be named.
    #[serde(default)]
    pub keys: SharedKeys,
}

/// What every format of `run.json` says, and nothing else that may differ.
#[derive(Deserialize)]
struct Origin {
    format: u32,
    version: String,
}

/// What a state folder says of its run before anything has happened in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Title {
    /// The federation's name.
    pub name: String,
    /// How many rounds it was begun with.
    pub rounds: u64,
    /// Who coordinates it, until a view says otherwise.
    pub coordinator: NodeId,
    /// Who holds each site's links to others, until a view says otherwise.
    pub gateways: BTreeMap<DomainId, NodeId>,
}

/// A state folder that this process uses alone.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    run: uuid::Uuid,
    _lock: File,
}

impl StateFolder {
    /// Which federation's run a folder holds; none if this version cannot tell.
    pub fn title(folder: &Path) -> Option<Title> {
        let run = understood(folder, &read_run(folder).ok()??).ok()?;
        Some(Title {
            // Strings are written with quotes.
            name: serde_json::from_str(run.keys.value("federation.name")?).ok()?,
            rounds: run.keys.value("federation.rounds")?.parse().ok()?,
            coordinator: run.keys.value("federation.coordinator")?.parse().ok()?,
            gateways: run.keys.gateways().collect(),
        })
    }

    /// Takes a folder for a run, making it if it is missing. A run that goes on `began_with` the topology of that hash, which may have been
    /// amended since.
    ///
    /// # Errors
    /// Another process has it, it holds a run and `resume` is not set, or that run has another configuration.
    pub fn open(
        folder: &Path,
        keys: &SharedKeys,
        began_with: Hash,
        resume: bool,
    ) -> Result<Self, StateError> {
        let (folder, lock, found) = take(folder, keys, began_with, resume, settle)?;
        let write = |run: &Run| {
            let bytes = serde_json::to_vec_pretty(run).expect("plain data");
            let path = folder.join(RUN);
            replace(&path, &bytes).map_err(failed("write", &path))
        };
        let run = match found {
            // The topology was amended since: whoever reads the folder is to know.
            Some(run) if run.keys != *keys => {
                let keys = keys.clone();
                let run = Run { keys, ..run };
                write(&run)?;
                run
            }
            Some(run) => run,
            None => {
                if resume {
                    let folder = folder.display();
                    tracing::warn!(
                        "nothing to go on from in {folder}: this is a new run, from round 1"
                    );
                }
                let run = Run {
                    format: FORMAT,
                    run: random_uuid(),
                    configuration: began_with,
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    keys: keys.clone(),
                };
                write(&run)?;
                run
            }
        };
        Ok(StateFolder {
            folder,
            run: run.run,
            _lock: lock,
        })
    }

    /// Names the run.
    pub fn run(&self) -> Hash {
        Hash::of_bytes(self.run.as_bytes())
    }

    /// Whether [`StateFolder::open`] would work, without beginning a run.
    ///
    /// # Errors
    /// As there.
    pub fn check(
        folder: &Path,
        keys: &SharedKeys,
        began_with: Hash,
        resume: bool,
    ) -> Result<(), StateError> {
        take(folder, keys, began_with, resume, settle).map(drop)
    }

    /// Writes `report.json`.
    ///
    /// # Errors
    /// [`StateError::Files`].
    pub fn write_report(&self, report: &Report) -> Result<(), StateError> {
        let path = self.folder.join("report.json");
        let bytes = serde_json::to_vec_pretty(report).expect("plain data");
        replace(&path, &bytes).map_err(|error| StateError::Files {
            action: "write",
            path,
            reason: error.to_string(),
        })
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::Files {
        action,
        path,
        reason: error.to_string(),
    }
}

/// Makes the names in a folder durable. The file was synchronized before it got its name.
fn settle(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The folder's full path, its lock, and the run in it, if that run may be gone on with. It is made durable by `settle` before anybody relies
/// on it: a process that was killed over it may have left a name that a power cut takes away, and with it the run that nodes have joined.
fn take(
    folder: &Path,
    keys: &SharedKeys,
    began_with: Hash,
    resume: bool,
    settle: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(PathBuf, File, Option<Run>), StateError> {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    fs::create_dir_all(&folder).map_err(failed("make the state folder", &folder))?;
    let lock_path = folder.join(LOCK);
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true);
    let lock = bounded::open_regular(&lock_path, options);
    let lock = lock.map_err(failed("write", &lock_path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StateError::InUse(folder)),
        Err(TryLockError::Error(error)) => return Err(failed("lock", &lock_path)(error)),
    }
    let Some(bytes) = read_run(&folder)? else {
        return Ok((folder, lock, None));
    };
    if !resume {
        return Err(StateError::Occupied(folder));
    }
    let run = understood(&folder, &bytes)?;
    if run.configuration != began_with {
        let differences = differences(&run.keys, keys);
        return Err(StateError::OtherRun {
            folder,
            differences,
        });
    }
    settle(&folder).map_err(failed("synchronize", &folder))?;
    Ok((folder, lock, Some(run)))
}

/// The bytes of `run.json`, if there is one.
fn read_run(folder: &Path) -> Result<Option<Vec<u8>>, StateError> {
    let path = folder.join(RUN);
    let file = bounded::open_regular(&path, OpenOptions::new().read(true));
    let read = file.map_err(ReadError::from);
    match read.and_then(|file| bounded::read_open(&file, RUN_BYTES_MAX)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(ReadError::Io(error)) => Err(failed("read", &path)(error)),
        Err(error) => Err(StateError::Files {
            action: "read",
            path,
            reason: format!("it {error}"),
        }),
    }
}

/// What `run.json` says, if this version can read it.
fn understood(folder: &Path, bytes: &[u8]) -> Result<Run, StateError> {
    let unclear = |error: serde_json::Error| StateError::Files {
        action: "understand",
        path: folder.join(RUN),
        reason: format!("{error}; restore it from a copy, or give --state another folder"),
    };
    let origin: Origin = serde_json::from_slice(bytes).map_err(unclear)?;
    if origin.format != FORMAT {
        return Err(StateError::OtherFormat {
            folder: folder.to_owned(),
            by: clip_to(origin.version, VERSION_BYTES_MAX),
            found: origin.format,
        });
    }
    serde_json::from_slice(bytes).map_err(unclear)
}

/// The first few keys that differ, for a message that stays short.
fn differences(theirs: &SharedKeys, ours: &SharedKeys) -> String {
    if *theirs == SharedKeys::default() {
        return format!("something that its {RUN} does not tell");
    }
    let keys = theirs.differences(ours);
    let (shown, more) = keys.split_at(keys.len().min(KEYS_SHOWN_MAX));
    match more.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more keys", shown.join(", ")),
    }
}

fn random_uuid() -> uuid::Uuid {
    let mut bytes = [0; 16];
    // Without random numbers an identifier of zeros is still an identifier; nothing secret hangs on it.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("part");
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(true).write(true);
    let mut file = bounded::open_regular(&partial, options)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    settle(path.parent().unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_by_name() {
        for name in [LOCK, RUN, "run.part"] {
            let folder = tempfile::tempdir().unwrap();
            std::os::unix::fs::symlink("/dev/null", folder.path().join(name)).unwrap();
            let refused = StateFolder::open(
                folder.path(),
                &SharedKeys::default(),
                SharedKeys::default().hash(),
                false,
            );
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{name}: {refused}");
            assert!(
                refused.contains(name.split('.').next().unwrap()),
                "{refused}"
            );
        }
    }

    /// A name that is seen need not be there after a power cut.
    #[test]
    fn a_run_is_gone_on_with_only_once_its_file_is_durable() {
        let folder = tempfile::tempdir().unwrap();
        let (path, keys) = (folder.path(), SharedKeys::default());
        let never = |_: &Path| -> io::Result<()> { panic!("there is nothing to make durable") };
        let hash = keys.hash();
        let (.., found) = take(path, &keys, hash, true, never).unwrap();
        assert_eq!(found, None);
        let begun = StateFolder::open(path, &keys, hash, false).unwrap().run();
        let ill = |_: &Path| Err(io::Error::other("the disk is ill"));
        let refused = take(path, &keys, hash, true, ill).unwrap_err().to_string();
        assert!(refused.starts_with("cannot synchronize"), "{refused}");
        assert!(refused.ends_with("the disk is ill"), "{refused}");
        let opened = StateFolder::open(path, &keys, hash, true).unwrap();
        assert_eq!(opened.run(), begun);
    }
}
