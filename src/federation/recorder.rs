//! Writes events into `events.jsonl`, one object a line, off the arbiters.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tombolo_core::event::Event;

/// Events that may wait for the disk; beyond that they are counted and left out, since a slow disk must not slow a round.
const WAITING_MAX: usize = 16 * 1024;

/// The file's size beyond which only round records are written.
const BYTES_MAX: u64 = 64 << 20;

/// The writer's thread.
#[derive(Debug)]
pub struct Recorder {
    sender: RecorderSender,
    thread: JoinHandle<()>,
}

/// Hands events to the writer.
#[derive(Debug, Clone)]
pub struct RecorderSender {
    lines: mpsc::SyncSender<Option<Event>>,
    left_out: Arc<AtomicU64>,
}

impl RecorderSender {
    /// Records an event; never waits.
    pub fn record(&self, event: &Event) {
        if self.lines.try_send(Some(event.clone())).is_err() {
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
        let file = OpenOptions::new().create(true).append(true).open(&path);
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
        let thread =
            crate::world::thread("tombolo-events", move || write(file, &receiver, &left_out))?;
        Ok(Recorder { sender, thread })
    }

    /// A sender.
    pub fn sender(&self) -> RecorderSender {
        self.sender.clone()
    }

    /// Writes what waits and ends.
    pub fn close(self) {
        let _ = self.sender.lines.send(None);
        if self.thread.join().is_err() {
            tracing::error!("the event writer panicked");
        }
    }
}

fn write(file: File, receiver: &mpsc::Receiver<Option<Event>>, left_out: &AtomicU64) {
    let mut size = file.metadata().map_or(0, |metadata| metadata.len());
    let mut file = BufWriter::new(file);
    while let Ok(Some(event)) = receiver.recv() {
        let important = matches!(event, Event::Round(_) | Event::Finished(_));
        if size > BYTES_MAX && !important {
            left_out.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let Ok(mut line) = serde_json::to_vec(&event) else {
            continue;
        };
        line.push(b'\n');
        size += line.len() as u64;
        let written = file
            .write_all(&line)
            .and_then(|()| if important { file.flush() } else { Ok(()) });
        if let Err(error) = written {
            tracing::error!(%error, "events are no longer recorded");
            return;
        }
    }
    let missing = left_out.load(Ordering::Relaxed);
    if missing > 0 {
        tracing::warn!(missing, "events were left out of the record");
    }
    let _ = file.flush();
}
