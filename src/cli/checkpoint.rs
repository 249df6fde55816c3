//! `tombolo checkpoint list|verify|restore FILE`: what the coordinator has written down, also while a run is at work.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use super::output::{bytes, complain, fail, print_line, refuse};
use super::{Common, Exit, Format};
use tombolo::FederationError;
use tombolo::actors::checkpoint::{CheckpointError, Kept, MODEL, Store, Survey, Surveyed};
use tombolo::federation::state_word;
use tombolo_core::ids::Round;

/// Arguments of `checkpoint`.
#[derive(Debug, Args)]
pub struct Checkpoint {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show every round: its model's hash, accuracy and size, and whether its files are what they were.
    List(Where),
    /// Read every file back; fails if one is not what it was, and names it.
    Verify(Where),
    /// Copy the model of a round out, as a safetensors file.
    Restore(Restore),
}

#[derive(Debug, Args)]
struct Where {
    /// The topology whose state folder is looked at.
    file: PathBuf,
}

#[derive(Debug, Args)]
struct Restore {
    /// The topology whose state folder is looked at.
    file: PathBuf,
    /// Of which round; default: the newest whose files are what they were.
    #[arg(long)]
    round: Option<Round>,
    /// The file to write, or a folder to write `model.safetensors` into.
    #[arg(long, value_name = "PATH")]
    to: PathBuf,
    /// Replace the file if there is one.
    #[arg(long)]
    overwrite: bool,
}

impl Checkpoint {
    /// Looks, verifies or copies.
    pub fn run(&self, common: &Common) -> Exit {
        let file = match &self.what {
            What::List(place) | What::Verify(place) => &place.file,
            What::Restore(restore) => &restore.file,
        };
        let opened = super::run::open(common, file, false).and_then(|federation| {
            let store = federation.store()?;
            let (what, advice) = match federation.plan().checkpoint.store {
                Some(_) => ("store", "give the topology whose `store` it is"),
                None => ("state folder", "name another folder with --state"),
            };
            let place = federation.store_place();
            let nothing = format!("no round has ended in the {what} {place} yet; {advice}");
            Ok((store, nothing))
        });
        let (store, nothing) = match opened {
            Ok(opened) => opened,
            Err(error) => return refuse(common, error),
        };
        let found = match store.survey() {
            Ok(found) if found.rounds.is_empty() && found.strays.is_empty() => {
                return refuse(common, FederationError::Machine(nothing));
            }
            Ok(found) => found,
            Err(error) => {
                fail(common, &error.to_string());
                return Exit::Failed;
            }
        };
        match &self.what {
            What::List(_) => list(common, &found.rounds),
            What::Verify(_) => verify(common, &found),
            What::Restore(restore) => restore.run(common, &store, &found.rounds),
        }
    }
}

fn list(common: &Common, found: &[Surveyed]) -> Exit {
    if common.format == Format::Json {
        found.iter().for_each(|round| print_line(&line(round)));
        return Exit::Done;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["round", "state", "model", "accuracy", "size", "files"]);
    for round in found {
        let files = match &round.kept {
            Kept::Nothing => "none: the model stayed".to_owned(),
            Kept::Removed => "not kept".to_owned(),
            Kept::Verified(_) => "verified".to_owned(),
            Kept::Damaged(error) => error.to_string(),
        };
        let size = match round.kept {
            Kept::Verified(size) => bytes(size),
            _ => String::new(),
        };
        match round.record.as_ref().map(|record| &record.record) {
            Some(record) => table.add_row([
                record.round.to_string(),
                state_word(record.state).to_owned(),
                record.model_hash.to_string()[..16].to_owned(),
                format!("{:.4}", record.accuracy),
                size,
                files,
            ]),
            None => table.add_row([
                round.round.to_string(),
                "?".to_owned(),
                String::new(),
                String::new(),
                size,
                files,
            ]),
        };
    }
    for column in [0, 3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    say!("{table}");
    Exit::Done
}

fn line(found: &Surveyed) -> Value {
    let mut line = json!({ "event": "checkpoint", "round": found.round });
    if let Some(record) = found.record.as_ref().map(|record| &record.record) {
        line["state"] = json!(state_word(record.state));
        line["model_hash"] = json!(record.model_hash);
        line["accuracy"] = json!(record.accuracy);
    }
    match &found.kept {
        Kept::Nothing | Kept::Removed => line["kept"] = json!(false),
        Kept::Verified(size) => {
            line["kept"] = json!(true);
            line["bytes"] = json!(size);
            line["verified"] = json!(true);
        }
        Kept::Damaged(error) => {
            line["kept"] = json!(true);
            line["verified"] = json!(false);
            line["reason"] = json!(error.to_string());
        }
    }
    line
}

fn damage(found: &Surveyed) -> Option<&CheckpointError> {
    match &found.kept {
        Kept::Damaged(error) => Some(error),
        _ => None,
    }
}

fn verify(common: &Common, survey: &Survey) -> Exit {
    let found = &survey.rounds;
    let damaged = found.iter().filter_map(damage).chain(&survey.strays);
    let damaged: Vec<&CheckpointError> = damaged.collect();
    let verified = found.iter();
    let verified = verified.filter(|round| matches!(round.kept, Kept::Verified(_)));
    match common.format {
        Format::Json => found
            .iter()
            .filter(|round| matches!(round.kept, Kept::Verified(_) | Kept::Damaged(_)))
            .for_each(|round| print_line(&line(round))),
        Format::Text => say!(
            "{} rounds; of {} the state is kept and verified",
            found.len(),
            verified.count()
        ),
    }
    damaged
        .iter()
        .for_each(|error| complain(&error.to_string()));
    match damaged.is_empty() {
        true => Exit::Done,
        false => Exit::Failed,
    }
}

impl Restore {
    fn run(&self, common: &Common, store: &Store, found: &[Surveyed]) -> Exit {
        let restored = self.choose(found).and_then(|chosen| {
            let round = chosen.round;
            let model = store.model(round).map_err(|error| error.to_string())?;
            let path = self.write(&model)?;
            Ok((round, model.len(), path))
        });
        match restored {
            Ok((round, size, path)) => {
                let path = path.display().to_string();
                match common.format {
                    Format::Json => print_line(&json!({
                        "event": "restored",
                        "round": round,
                        "path": path,
                        "bytes": size,
                    })),
                    Format::Text => say!("the model of round {round} is in {path}"),
                }
                Exit::Done
            }
            Err(reason) => {
                fail(common, &reason);
                Exit::Failed
            }
        }
    }

    /// The round to copy. What is passed over is named.
    fn choose<'a>(&self, found: &'a [Surveyed]) -> Result<&'a Surveyed, String> {
        let kept = found
            .iter()
            .filter(|round| matches!(round.kept, Kept::Verified(_)));
        let Some(wanted) = self.round else {
            let newest = kept.max_by_key(|round| round.round);
            let newest = newest.ok_or("no state verifies; `checkpoint list` says why")?;
            let newer = found.iter().filter(|round| round.round > newest.round);
            for error in newer.filter_map(damage) {
                complain(&format!("passed over: {error}"));
            }
            return Ok(newest);
        };
        let newest = found.last().map_or(0, |round| round.round);
        // Of rounds whose records are missing only the first is listed.
        let round = found.iter().rfind(|round| round.round <= wanted);
        let round = round.filter(|_| wanted <= newest);
        let round = round.ok_or_else(|| format!("round {wanted} has not ended"))?;
        match &round.kept {
            Kept::Verified(_) => Ok(round),
            Kept::Damaged(error) => Err(error.to_string()),
            Kept::Nothing => Err(format!(
                "round {wanted} was aborted and left the model as it was; choose an earlier round"
            )),
            Kept::Removed => {
                let kept: Vec<String> = kept.map(|round| round.round.to_string()).collect();
                Err(format!(
                    "the state of round {wanted} was not kept; there are those of rounds {}",
                    kept.join(", ")
                ))
            }
        }
    }

    fn write(&self, model: &[u8]) -> Result<PathBuf, String> {
        let path = match self.to.is_dir() {
            true => self.to.join(MODEL),
            false => self.to.clone(),
        };
        let failed = |error: io::Error| format!("cannot write {}: {error}", path.display());
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(model)
            .and_then(|()| file.as_file().sync_all())
            .map_err(failed)?;
        let written = match self.overwrite {
            true => file.persist(&path),
            false => file.persist_noclobber(&path),
        };
        match written {
            Ok(_) => Ok(path),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(format!(
                "{} exists; give --overwrite to replace it, or another --to",
                path.display()
            )),
            Err(error) => Err(failed(error.error)),
        }
    }
}
