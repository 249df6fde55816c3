//! Writes events into `events.jsonl`, one object a line, off the arbiters.
//!
//! A file that has grown long is compressed (snappy's frame format, which `snzip -d` and every snappy library reads) to
//! `events.jsonl.1.sz`, then `.2.sz` and so on; the oldest goes when there are too many. So the log of a long run stays bounded.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::time::Micros;

use crate::bounded;
use crate::explain::{OLD_MAX, Past, RUN_RECORD, own_record};

/// Events that may wait for the disk; beyond that they are counted and left out, since a slow disk must not slow a round.
const WAITING_MAX: usize = 16 * 1024;

/// The file's size beyond which it is compressed and begun anew.
const BYTES_MAX: u64 = 16 << 20;

/// The writer's thread.
#[derive(Debug)]
struct Recorder {
    sender: RecorderSender,
    thread: JoinHandle<()>,
}

/// What a process writes down.
///
/// The run's record is the coordinator's: `events.jsonl`. A process without a coordinator keeps one of its own beside it, by its own clock,
/// under the name of its first node; if it becomes coordinator it keeps both.
#[derive(Debug, Default)]
pub(crate) struct Recorders {
    folder: PathBuf,
    run: Option<Recorder>,
    own: Option<Recorder>,
    is_closed: bool,
}

impl Recorders {
    /// Of a process with that first node.
    ///
    /// # Errors
    /// The run's record cannot be written. Without its own a process works as well.
    pub fn start(folder: &Path, first: &NodeId, hosts_coordinator: bool) -> io::Result<Self> {
        let mut recorders = Recorders {
            folder: folder.to_owned(),
            ..Recorders::default()
        };
        if hosts_coordinator {
            recorders.run = Some(Recorder::start(folder.join(RUN_RECORD))?);
            return Ok(recorders);
        }
        let own = std::fs::create_dir_all(folder);
        let own = own.and_then(|()| Recorder::start(folder.join(own_record(first))));
        recorders.own = told(own);
        Ok(recorders)
    }

    /// Records an event that happened so long after the process began; never waits.
    pub fn record(&mut self, at: Micros, event: &Event) {
        // One that was promoted in an earlier life says so by what it does.
        let coordinates = matches!(
            event,
            Event::CoordinatorPromoted { .. } | Event::RoundOpened { .. }
        );
        if coordinates && self.run.is_none() && !self.is_closed {
            self.run = told(Recorder::start(self.folder.join(RUN_RECORD)));
        }
        for recorder in [&self.run, &self.own].into_iter().flatten() {
            recorder.sender.record(at, event);
        }
    }

    /// Writes what waits and ends.
    pub fn close(&mut self) {
        self.is_closed = true;
        for recorder in [self.run.take(), self.own.take()].into_iter().flatten() {
            recorder.close();
        }
    }
}

fn told(started: io::Result<Recorder>) -> Option<Recorder> {
    let told = started.inspect_err(|error| tracing::error!(%error, "events are not recorded"));
    told.ok()
}

/// Hands events to the writer.
#[derive(Debug)]
struct RecorderSender {
    lines: mpsc::SyncSender<Option<Past>>,
    left_out: Arc<AtomicU64>,
}

impl RecorderSender {
    fn record(&self, at: Micros, event: &Event) {
        let past = Past {
            at: at.0 as f64 / 1e6,
            life: 0,
            event: event.clone(),
        };
        if self.lines.try_send(Some(past)).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Recorder {
    /// Opens the file for appending and starts the writer.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn start(path: PathBuf) -> io::Result<Self> {
        let file = bounded::open_regular(&path, OpenOptions::new().create(true).append(true));
        let file = file.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot write {}: {error}", path.display()),
            )
        })?;
        let (lines, receiver) = mpsc::sync_channel(WAITING_MAX);
        let left_out = Arc::new(AtomicU64::new(0));
        let sender = RecorderSender {
            lines,
            left_out: left_out.clone(),
        };
        let thread = crate::world::thread("tombolo-events", move || {
            if let Err(error) = write(&path, file, &receiver, &left_out, BYTES_MAX) {
                tracing::error!(%error, "events are no longer recorded");
            }
        })?;
        Ok(Recorder { sender, thread })
    }

    /// Writes what waits and ends.
    pub fn close(self) {
        let _ = self.sender.lines.send(None);
        if self.thread.join().is_err() {
            tracing::error!("the event writer panicked");
        }
    }
}

fn write(
    path: &Path,
    file: File,
    receiver: &mpsc::Receiver<Option<Past>>,
    left_out: &AtomicU64,
    bytes_max: u64,
) -> io::Result<()> {
    let mut size = file.metadata().map_or(0, |metadata| metadata.len());
    let mut file = BufWriter::new(file);
    loop {
        let waiting = receiver.try_recv().or_else(|_| {
            // What has happened can be read while it goes on, and outlives a kill.
            file.flush()?;
            receiver.recv().map_err(io::Error::other)
        });
        let Ok(Some(past)) = waiting else { break };
        if size > bytes_max {
            file.flush()?;
            rotate(path)?;
            file = BufWriter::new(create(path)?);
            size = 0;
        }
        let mut line = serde_json::to_vec(&past)?;
        line.push(b'\n');
        size += line.len() as u64;
        file.write_all(&line)?;
    }
    let missing = left_out.load(Ordering::Relaxed);
    if missing > 0 {
        tracing::warn!(missing, "events were left out of the record");
    }
    file.flush()
}

/// Begins a file anew.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    bounded::open_regular(path, options.create(true).write(true).truncate(true))
}

/// Compresses the file to `.1.sz`, after the older ones have moved up by one.
fn rotate(path: &Path) -> io::Result<()> {
    let old = |number: u32| path.with_extension(format!("jsonl.{number}.sz"));
    for number in (1..OLD_MAX).rev() {
        if old(number).exists() {
            std::fs::rename(old(number), old(number + 1))?;
        }
    }
    // Whole, or not there at all.
    let half = path.with_extension("jsonl.sz.tmp");
    let mut compressed = snap::write::FrameEncoder::new(create(&half)?);
    let mut log = bounded::open_regular(path, OpenOptions::new().read(true))?;
    io::copy(&mut log, &mut compressed)?;
    compressed.flush()?;
    std::fs::rename(half, old(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Chronicle;

    #[test]
    fn a_log_that_is_no_regular_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let refused = Recorder::start(path).unwrap_err().to_string();
        assert!(
            refused.contains("events.jsonl") && refused.contains("no regular file"),
            "{refused}"
        );
    }

    #[test]
    fn a_long_log_is_compressed_and_bounded_and_loses_nothing_that_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let (sender, receiver) = mpsc::sync_channel(4096);
        for round in 0..2000 {
            let past = Past {
                at: round as f64 / 1e3,
                life: 0,
                event: Event::QuorumReached { round },
            };
            sender.send(Some(past)).unwrap();
        }
        drop(sender);
        let file = File::create(&path).unwrap();
        write(&path, file, &receiver, &AtomicU64::new(0), 4000).unwrap();

        assert!(path.with_extension("jsonl.8.sz").exists());
        assert!(!path.with_extension("jsonl.9.sz").exists());
        let chronicle = Chronicle::open(folder.path()).unwrap();
        let rounds: Vec<u64> = chronicle
            .map(|past| match past {
                Past {
                    at,
                    life: 0,
                    event: Event::QuorumReached { round },
                } if at == round as f64 / 1e3 => round,
                other => panic!("{other:?}"),
            })
            .collect();
        let first = rounds[0];
        assert!(first > 0, "the oldest are gone");
        assert!(
            rounds.iter().copied().eq(first..2000),
            "the rest is complete and in order"
        );
    }

    /// What has happened can be read before a round ends, and outlives a kill of this process.
    #[test]
    fn nothing_waits_in_memory_while_nothing_happens() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(folder.path().join("events.jsonl")).unwrap();
        let event = Event::QuorumReached { round: 7 };
        recorder.sender.record(Micros(5), &event);
        let written = || Chronicle::open(folder.path()).unwrap().count() == 1;
        let waited = (0..1_000_000).any(|_| written() || (std::thread::yield_now(), false).1);
        assert!(waited, "it is not on the disk");
        recorder.close();
    }
}
