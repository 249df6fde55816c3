//! The state folder of a run: who uses it, and what it is about.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Report;
use crate::bounded::{self, ReadError};
use tombolo_core::tensor::Hash;

const RUN: &str = "run.json";
const LOCK: &str = "run.lock";
const FORMAT: u32 = 1;

/// The largest `run.json`: far above what is written.
const RUN_BYTES_MAX: usize = 1 << 20;

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
        "the state folder {} holds a run of another configuration ({found}, this one is {expected}); give --state another folder",
        folder.display()
    )]
    OtherRun {
        /// Which.
        folder: PathBuf,
        /// Ours.
        expected: Hash,
        /// Theirs.
        found: Hash,
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
    /// Hash of everything in the configuration that decides the outcome.
    pub configuration: Hash,
    /// Version of the program that began it.
    pub version: String,
}

/// A state folder that this process uses alone.
#[derive(Debug)]
pub struct StateFolder {
    folder: PathBuf,
    run: uuid::Uuid,
    _lock: File,
}

impl StateFolder {
    /// Takes a folder for a run, making it if it is missing.
    ///
    /// # Errors
    /// Another process has it, it holds a run and `resume` is not set, or that run has another configuration.
    pub fn open(folder: &Path, configuration: Hash, resume: bool) -> Result<Self, StateError> {
        let (folder, lock, found) = take(folder, configuration, resume)?;
        let run = match found {
            Some(run) => run,
            None => {
                let run = Run {
                    format: FORMAT,
                    run: random_uuid(),
                    configuration,
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                };
                let bytes = serde_json::to_vec_pretty(&run).expect("plain data");
                let path = folder.join(RUN);
                replace(&path, &bytes).map_err(failed("write", &path))?;
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
    pub fn check(folder: &Path, configuration: Hash, resume: bool) -> Result<(), StateError> {
        take(folder, configuration, resume).map(drop)
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

/// The folder's full path, its lock, and the run in it, if that run may be gone on with.
fn take(
    folder: &Path,
    configuration: Hash,
    resume: bool,
) -> Result<(PathBuf, File, Option<Run>), StateError> {
    let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    fs::create_dir_all(&folder).map_err(failed("make the state folder", &folder))?;
    let lock_path = folder.join(LOCK);
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path);
    let lock = lock.map_err(failed("write", &lock_path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(StateError::InUse(folder)),
        Err(TryLockError::Error(error)) => return Err(failed("lock", &lock_path)(error)),
    }
    let path = folder.join(RUN);
    let run: Run = match bounded::read(&path, RUN_BYTES_MAX) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| StateError::Files {
            action: "understand",
            path: path.clone(),
            reason: error.to_string(),
        })?,
        Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            return Ok((folder, lock, None));
        }
        Err(ReadError::Io(error)) => return Err(failed("read", &path)(error)),
        Err(error) => {
            return Err(StateError::Files {
                action: "read",
                path,
                reason: format!("it {error}"),
            });
        }
    };
    if !resume {
        return Err(StateError::Occupied(folder));
    }
    if run.configuration != configuration {
        return Err(StateError::OtherRun {
            folder,
            expected: configuration,
            found: run.configuration,
        });
    }
    Ok((folder, lock, Some(run)))
}

fn random_uuid() -> uuid::Uuid {
    let mut bytes = [0; 16];
    // Without random numbers an identifier of zeros is still an identifier; nothing secret hangs on it.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("part");
    let mut file = File::create(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}
