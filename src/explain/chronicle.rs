//! The events of a state folder, oldest first.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use serde::{Deserialize, Serialize};
use tombolo_core::event::Event;
use tombolo_core::ids::{NodeId, Round};

use super::ExplainError;

/// Records that are read beside each other: as many processes as a picture shows nodes.
const RECORDS_MAX: usize = 4_096;

/// Compressed files that a recorder keeps.
pub(crate) const OLD_MAX: u32 = 8;

/// The record of the run: the coordinator's.
pub(crate) const RUN_RECORD: &str = "events.jsonl";

/// The record that a process without a coordinator keeps, by its first node.
pub(crate) fn own_record(first: &NodeId) -> String {
    format!("events.{}.{}.jsonl", first.domain(), first.name())
}

/// The longest line that is read; the recorder's are far shorter.
pub(crate) const LINE_BYTES_MAX: u64 = 16 << 20;

/// No process lives for longer, in seconds: thirty years.
const AT_MAX: f64 = 1e9;

/// An event and when it was recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Past {
    /// Seconds since the recording process began, monotonic.
    #[serde(default)]
    pub at: f64,
    /// How often the process had been started anew before; not recorded, but counted when read.
    #[serde(skip)]
    pub life: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

impl Past {
    /// Reads a line of a record; nothing if that is no event of this version.
    pub fn read(line: &[u8]) -> Option<Past> {
        let past = serde_json::from_slice::<Past>(line).ok()?;
        (0.0..=AT_MAX).contains(&past.at).then_some(past)
    }
}

/// Counts the lives of the process that recorded what is read.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    life: u64,
    last: f64,
}

impl Lives {
    /// Reads the next line; nothing if that is no event of this version.
    pub fn read(&mut self, line: &[u8]) -> Option<Past> {
        let mut past = Past::read(line)?;
        // Each life counts its seconds from zero.
        if past.at < self.last {
            self.life += 1;
        }
        self.last = past.at;
        past.life = self.life;
        Some(past)
    }
}

/// Reads the events of a state folder, one by one; memory does not grow with their number.
pub struct Chronicle {
    files: IntoIter<PathBuf>,
    open: Option<Box<dyn BufRead>>,
    path: PathBuf,
    lives: Lives,
    unreadable: u64,
    damaged: Vec<String>,
}

/// The last round of whose end the record in a state folder tells, 0 if of none; or that there is no record.
pub(crate) fn last_told(folder: &Path) -> Option<Round> {
    let files = files(&folder.join(RUN_RECORD));
    if files.is_empty() {
        return None;
    }
    let ended = |past: Past| match past.event {
        Event::Round(record) => Some(record.round),
        _ => None,
    };
    let newest_first = files.into_iter().rev();
    let told = newest_first.map(|file| Chronicle::of(vec![file]).filter_map(ended).max());
    Some(told.flatten().next().unwrap_or(0))
}

/// A record's files, oldest first. Anything else than a file might never end.
fn files(record: &Path) -> Vec<PathBuf> {
    let old = (1..=OLD_MAX).rev();
    let old = old.map(|number| record.with_extension(format!("jsonl.{number}.sz")));
    let now = record.to_owned();
    old.chain([now]).filter(|path| path.is_file()).collect()
}

/// The records of a state folder: the run's first, then by name those of processes without a coordinator.
fn records(folder: &Path) -> Vec<PathBuf> {
    let is_own = |name: &str| {
        let middle = name.strip_prefix("events.");
        let middle = middle.and_then(|rest| rest.strip_suffix(".jsonl"));
        middle.is_some_and(|node| node.contains('.'))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let entries = entries.map(|entry| entry.path());
    let name = |path: &PathBuf| path.file_name()?.to_str().map(is_own);
    let mut own: Vec<PathBuf> = entries.filter(|path| name(path) == Some(true)).collect();
    own.sort();
    own.truncate(RECORDS_MAX);
    let run = folder.join(RUN_RECORD);
    let run = [run].into_iter().filter(|run| !files(run).is_empty());
    run.chain(own).collect()
}

impl Chronicle {
    /// Opens what `run`, `node` or `sim` recorded in this state folder.
    ///
    /// # Errors
    /// There is nothing.
    pub fn open(folder: &Path) -> Result<Self, ExplainError> {
        let files = files(&folder.join(RUN_RECORD));
        if files.is_empty() {
            return Err(ExplainError::Nothing(folder.display().to_string()));
        }
        Ok(Chronicle::of(files))
    }

    /// Opens every record of these state folders: the run's, and those of processes without a coordinator, each by its own clock.
    ///
    /// # Errors
    /// A folder has none.
    pub fn open_each(folders: &[PathBuf]) -> Result<Vec<Self>, ExplainError> {
        let mut all = Vec::new();
        for folder in folders {
            let found = records(folder);
            if found.is_empty() {
                return Err(ExplainError::Nothing(folder.display().to_string()));
            }
            all.extend(found.iter().map(|record| Chronicle::of(files(record))));
        }
        Ok(all)
    }

    /// The part of a record that is finished: the compressed files of a state folder.
    pub(crate) fn of_finished(folder: &Path) -> Self {
        let finished = |path: &PathBuf| path.extension().is_some_and(|end| end == "sz");
        let files = files(&folder.join(RUN_RECORD)).into_iter();
        Chronicle::of(files.filter(finished).collect())
    }

    /// The lives that it has seen so far.
    pub(crate) fn into_lives(self) -> Lives {
        self.lives
    }

    fn of(files: Vec<PathBuf>) -> Self {
        Chronicle {
            files: files.into_iter(),
            open: None,
            path: PathBuf::new(),
            lives: Lives::default(),
            unreadable: 0,
            damaged: Vec::new(),
        }
    }

    /// Lines so far that are no events of this version.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Files so far that could not be read to their end, and why.
    pub fn damaged(&self) -> &[String] {
        &self.damaged
    }

    fn line(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(path) = self.files.next() else {
                    return Ok(None);
                };
                self.path = path;
                let file = BufReader::new(File::open(&self.path)?);
                self.open = Some(match self.path.extension() {
                    Some(end) if end == "sz" => {
                        Box::new(BufReader::new(snap::read::FrameDecoder::new(file)))
                    }
                    _ => Box::new(file),
                });
                continue;
            };
            let mut line = Vec::new();
            open.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            if line.len() as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
                // Its rest is no line of its own.
                open.skip_until(b'\n')?;
            }
            if !line.is_empty() {
                return Ok(Some(line));
            }
            self.open = None;
        }
    }
}

impl Iterator for Chronicle {
    type Item = Past;

    fn next(&mut self) -> Option<Past> {
        loop {
            let line = match self.line() {
                Ok(line) => line?,
                Err(error) => {
                    self.open = None;
                    let path = self.path.display();
                    self.damaged.push(format!("{path}: {error}"));
                    continue;
                }
            };
            // The last line may be half written: a process was killed, or writes just now.
            match self.lives.read(&line) {
                Some(past) => return Some(past),
                None => self.unreadable += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anybody may have written it: what stands behind a line that is too long to be read is a part of that line, whatever it says.
    #[test]
    fn the_rest_of_a_line_that_is_too_long_is_no_event() {
        let folder = tempfile::tempdir().unwrap();
        let event = r#"{"at":1,"event":"quorum_reached","round":7}"#;
        let mut text = " ".repeat(LINE_BYTES_MAX as usize);
        text += &format!("{event}\n{}\n", event.replace('7', "8"));
        std::fs::write(folder.path().join(RUN_RECORD), text).unwrap();
        let mut chronicle = Chronicle::open(folder.path()).unwrap();
        let rounds = chronicle.by_ref().map(|past| match past.event {
            Event::QuorumReached { round } => round,
            other => panic!("{other:?}"),
        });
        assert_eq!(rounds.collect::<Vec<_>>(), [8]);
        assert_eq!(chronicle.unreadable(), 1);
    }
}
