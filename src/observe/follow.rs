//! The picture of a run that goes on in another process, from the record in its state folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::picture::{Bounds, Picture};
use crate::bounded;
use crate::explain::{Chronicle, ExplainError, LINE_BYTES_MAX, Lives};
use crate::federation::StateFolder;

/// What is read of the record at once.
const READ_MAX: u64 = 4 << 20;

/// A picture that keeps up with the record of a state folder.
pub struct Follower {
    folder: PathBuf,
    bounds: Bounds,
    picture: Picture,
    file: File,
    read: u64,
    /// The beginning of a line whose end is not written yet.
    half: Vec<u8>,
    /// That line is longer than any of ours: what is left of it is not looked at.
    is_long: bool,
    lives: Lives,
}

impl Follower {
    /// Reads what a folder's record tells so far.
    ///
    /// # Errors
    /// There is no record, or it cannot be read.
    pub fn open(folder: &Path, bounds: Bounds) -> Result<Self, ExplainError> {
        let nothing = || ExplainError::Nothing(folder.display().to_string());
        let file = open(folder).map_err(|_| nothing())?;
        let mut follower = Follower {
            folder: folder.to_owned(),
            bounds,
            picture: Picture::of_title(StateFolder::title(folder), bounds),
            file,
            read: 0,
            half: Vec::new(),
            is_long: false,
            lives: Lives::default(),
        };
        let mut finished = Chronicle::of_finished(folder);
        for past in &mut finished {
            follower.picture.apply(&past);
        }
        follower.lives = finished.into_lives();
        while follower.look().map_err(|_| nothing())? {}
        Ok(follower)
    }

    /// How the federation stands, by what was read.
    pub fn picture(&self) -> &Picture {
        &self.picture
    }

    /// Reads what has been written since; whether there was anything.
    ///
    /// # Errors
    /// The record cannot be read any more.
    pub fn look(&mut self) -> io::Result<bool> {
        if self.file.metadata()?.len() < self.read {
            // It has been begun anew, and what was missed of it is in a finished part.
            let again = Follower::open(&self.folder, self.bounds);
            *self = again.map_err(|error| io::Error::other(error.to_string()))?;
            return Ok(true);
        }
        self.file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        let file = &mut self.file;
        self.read += file.take(READ_MAX).read_to_end(&mut bytes)? as u64;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.half.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.half);
                if std::mem::take(&mut self.is_long) {
                    continue;
                }
                // Another version may have written lines that this one does not know.
                if let Some(past) = self.lives.read(&line) {
                    self.picture.apply(&past);
                }
            } else if self.half.len() as u64 > LINE_BYTES_MAX {
                self.half.clear();
                self.is_long = true;
            }
        }
        Ok(!bytes.is_empty())
    }
}

fn open(folder: &Path) -> io::Result<File> {
    let path = folder.join("events.jsonl");
    bounded::open_regular(&path, OpenOptions::new().read(true))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::explain::Past;
    use tombolo_core::event::Event;

    fn line(at: f64, round: u64) -> String {
        let from = "lab/a".parse().unwrap();
        let event = Event::LateAnswered { round, from };
        let past = Past { at, life: 0, event };
        serde_json::to_string(&past).unwrap() + "\n"
    }

    fn events(follower: &Follower) -> u64 {
        follower.picture().totals.events
    }

    #[test]
    fn it_keeps_up_with_lines_halves_of_lines_and_a_record_that_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Follower::open(folder.path(), Bounds::LIVE).is_err());
        let path = folder.path().join("events.jsonl");
        let mut record = File::create(&path).unwrap();
        record.write_all(line(1.0, 1).as_bytes()).unwrap();
        let mut follower = Follower::open(folder.path(), Bounds::LIVE).unwrap();
        assert_eq!(events(&follower), 1);
        assert!(!follower.look().unwrap());
        let next = line(2.0, 2);
        let (head, tail) = next.split_at(9);
        record.write_all(head.as_bytes()).unwrap();
        follower.look().unwrap();
        assert_eq!(events(&follower), 1);
        record.write_all(tail.as_bytes()).unwrap();
        record.write_all(b"what is this\n").unwrap();
        follower.look().unwrap();
        assert_eq!(events(&follower), 2);
        assert!((follower.picture().at - 2.0).abs() < 1e-9);
        // A new process counts its seconds from zero; the picture's go on.
        record.write_all(line(0.5, 3).as_bytes()).unwrap();
        follower.look().unwrap();
        assert!((follower.picture().at - 2.5).abs() < 1e-9);
        // As the recorder does: the old part is compressed, the file begun anew.
        let old = std::fs::read(&path).unwrap();
        let finished = File::create(folder.path().join("events.jsonl.1.sz")).unwrap();
        let mut finished = snap::write::FrameEncoder::new(finished);
        finished.write_all(&old).unwrap();
        finished.flush().unwrap();
        std::fs::write(&path, line(0.75, 4)).unwrap();
        assert!(follower.look().unwrap());
        assert_eq!(events(&follower), 4);
        assert!((follower.picture().at - 2.75).abs() < 1e-9);
    }
}
