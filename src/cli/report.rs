//! `tombolo report RUNDIR`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{complain, fail, print_line};
use super::status::run_folder;
use super::{Common, Exit, Format};
use tombolo::explain::{Chronicle, ExplainError};
use tombolo::federation::StateFolder;
use tombolo::observe::{Bounds, Picture, report};

/// The file's name in the run's folder, unless told otherwise.
const NAME: &str = "report.html";

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct Report {
    /// The state folder of the run; default: the one of --state, or ./state.
    folder: Option<PathBuf>,
    /// Where to write; default: report.html in that folder.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Report {
    /// Reads the record and writes the file.
    pub fn run(&self, common: &Common) -> Exit {
        let folder = run_folder(common, self.folder.as_deref());
        let picture = match picture(&folder) {
            Ok(picture) => picture,
            Err(error) => {
                fail(common, &error.to_string());
                return Exit::Failed;
            }
        };
        let out = self.out.clone().unwrap_or_else(|| folder.join(NAME));
        if let Err(error) = std::fs::write(&out, report(&picture)) {
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

/// What the record of a state folder tells.
pub fn picture(folder: &Path) -> Result<Picture, ExplainError> {
    let mut chronicle = Chronicle::open(folder)?;
    let mut picture = Picture::new(Bounds::REPORT);
    if let Some((name, rounds)) = StateFolder::title(folder) {
        (picture.federation, picture.planned) = (name, rounds);
    }
    for past in &mut chronicle {
        picture.apply(&past);
    }
    for damaged in chronicle.damaged() {
        complain!("a part of the record is left out, {damaged}");
    }
    let unreadable = chronicle.unreadable();
    if unreadable > 0 {
        complain!("{unreadable} lines of the record are no events of this version");
    }
    Ok(picture)
}
