//! The events of a state folder, oldest first.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::vec::IntoIter;

use serde::{Deserialize, Serialize};
use tombolo_core::event::Event;

use super::ExplainError;

/// The longest line that is read; the recorder's are far shorter.
const LINE_BYTES_MAX: u64 = 16 << 20;

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

/// Reads the events of a state folder, one by one; memory does not grow with their number.
pub struct Chronicle {
    files: IntoIter<PathBuf>,
    open: Option<Box<dyn BufRead>>,
    path: PathBuf,
    life: u64,
    last: f64,
    unreadable: u64,
}

impl Chronicle {
    /// Opens what `run`, `node` or `sim` recorded in this state folder.
    ///
    /// # Errors
    /// There is nothing.
    pub fn open(folder: &Path) -> Result<Self, ExplainError> {
        let now = folder.join("events.jsonl");
        let old = (1..).map(|number: u32| folder.join(format!("events.jsonl.{number}.sz")));
        let mut files: Vec<PathBuf> = old.take_while(|path| path.exists()).collect();
        files.reverse();
        files.extend(now.exists().then_some(now));
        if files.is_empty() {
            return Err(ExplainError::Nothing(folder.display().to_string()));
        }
        Ok(Chronicle {
            files: files.into_iter(),
            open: None,
            path: PathBuf::new(),
            life: 0,
            last: 0.0,
            unreadable: 0,
        })
    }

    /// Lines so far that are no events of this version.
    pub fn unreadable(&self) -> u64 {
        self.unreadable
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
            if !line.is_empty() {
                return Ok(Some(line));
            }
            self.open = None;
        }
    }
}

impl Iterator for Chronicle {
    type Item = Result<Past, ExplainError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = match self.line() {
                Ok(line) => line?,
                Err(error) => {
                    (self.open, self.files) = (None, Vec::new().into_iter());
                    return Some(Err(ExplainError::Unreadable {
                        path: self.path.display().to_string(),
                        reason: error.to_string(),
                    }));
                }
            };
            // The last line may be half written: a process was killed, or writes just now.
            let Ok(mut past) = serde_json::from_slice::<Past>(&line) else {
                self.unreadable += 1;
                continue;
            };
            if past.at < self.last {
                self.life += 1;
            }
            self.last = past.at;
            past.life = self.life;
            return Some(Ok(past));
        }
    }
}
