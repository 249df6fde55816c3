//! `tombolo report RUNDIR`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{complain, fail, print_line};
use super::records::Records;
use super::status::run_folder;
use super::{Common, Exit, Format};
use tombolo::explain::ExplainError;
use tombolo::federation::StateFolder;
use tombolo::observe::{Bounds, Picture, report, tensorboard};

/// The file's name in the run's folder, unless told otherwise.
const NAME: &str = "report.html";

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// The state folder of the run, and those of its other sites if they are at hand; default: the one of --state, or ./state.
    folders: Vec<PathBuf>,
    /// Where to write; default: report.html in the first folder, or with --tensorboard the folder tensorboard in it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write loss, accuracy, norm, bytes and time of each round for TensorBoard instead: an event file in a folder for `tensorboard --logdir`.
    #[arg(long)]
    tensorboard: bool,
}

/// The folder for TensorBoard in the run's, unless told otherwise.
const TENSORBOARD: &str = "tensorboard";

/// A name that TensorBoard takes for an event file. The same each time: a newer report takes the place of the one before.
const EVENT_FILE: &str = "events.out.tfevents.0.tombolo";

impl Report {
    /// Reads the record and writes the file.
    pub fn run(&self, common: &Common) -> Exit {
        let folders = run_folders(common, &self.folders);
        let picture = match picture(&folders) {
            Ok(picture) => picture,
            Err(error) => {
                fail(common, &error.to_string());
                return Exit::Failed;
            }
        };
        let (out, written) = match self.tensorboard {
            false => {
                let out = self.out.clone().unwrap_or_else(|| folders[0].join(NAME));
                let written = std::fs::write(&out, report(&picture));
                (out, written)
            }
            true => {
                let logs = self.out.clone();
                let logs = logs.unwrap_or_else(|| folders[0].join(TENSORBOARD));
                let out = logs.join(EVENT_FILE);
                let file = tensorboard(&picture, began(&folders[0], picture.at));
                let written = std::fs::create_dir_all(&logs);
                let written = written.and_then(|()| std::fs::write(&out, file));
                (out, written)
            }
        };
        if let Err(error) = written {
            let message = format!(
                "cannot write {}: {error}; name another file with --out",
                out.display()
            );
            fail(common, &message);
            return Exit::Failed;
        }
        let path = std::path::absolute(&out).unwrap_or(out);
        let rounds = picture.totals.committed + picture.totals.degraded + picture.totals.aborted;
        match common.format {
            Format::Json => print_line(&serde_json::json!({
                "event": "report",
                "file": path,
                "rounds": rounds,
            })),
            Format::Text => say!("{rounds} rounds are shown by {}", path.display()),
        }
        Exit::Done
    }
}

/// Writes the trace of a run that has ended so, where it was asked for.
pub fn write_trace_of(out: Option<&Path>, folder: PathBuf, exit: Exit) -> Exit {
    match out {
        // One that did not begin has nothing to tell.
        Some(out) if exit != Exit::Usage => match picture(&[folder]) {
            Ok(picture) => write_trace(out, &picture, exit),
            Err(_) => exit,
        },
        _ => exit,
    }
}

/// When the run began, in seconds since 1970, as far as its record tells: it was written last at its last event.
fn began(folder: &Path, lasted: f64) -> f64 {
    let written = std::fs::metadata(folder.join("events.jsonl"));
    let written = written.and_then(|about| about.modified()).ok();
    let since = written.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    since.map_or(0.0, |since| (since.as_secs_f64() - lasted).max(0.0))
}

/// Writes the rounds of a picture as a Chrome trace; what goes wrong is said, and the exit is that of the run otherwise.
pub fn write_trace(out: &Path, picture: &Picture, exit: Exit) -> Exit {
    match std::fs::write(out, tombolo::observe::trace(picture)) {
        Ok(()) => exit,
        Err(error) => {
            // The run's last word has been said.
            complain(&format!("cannot write {}: {error}", out.display()));
            match exit {
                Exit::Done => Exit::Failed,
                exit => exit,
            }
        }
    }
}

/// The named folders, or the one that is meant if none is.
pub fn run_folders(common: &Common, named: &[PathBuf]) -> Vec<PathBuf> {
    match named {
        [] => vec![run_folder(common, None)],
        named => named
            .iter()
            .map(|folder| run_folder(common, Some(folder)))
            .collect(),
    }
}

/// What the records of state folders tell, on the coordinator's clock.
pub fn picture(folders: &[PathBuf]) -> Result<Picture, ExplainError> {
    let mut records = Records::open(folders)?;
    let title = folders.iter().find_map(|folder| StateFolder::title(folder));
    let mut picture = Picture::of_title(title, Bounds::REPORT);
    for past in records.by_ref() {
        picture.apply(&past);
    }
    for (node, bound) in records.bounds() {
        if let Some(bound) = bound {
            picture.place(&node, bound);
        }
    }
    records.complain();
    Ok(picture)
}
