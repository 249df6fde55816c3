//! A disk in memory that forgets and fails as real ones do.
//!
//! It outlives crashes. What was not synchronized is kept apart from what was, so that a power cut can take it; and every change has a
//! number, so that a test can let each of them fail, one after another.

mod tree;

use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use tombolo_actors::env::too_large;
use tombolo_core::ids::NodeId;
use tombolo_core::rng::Rng;

use super::env::check_alive;
use crate::files::{Disk, Kind, OpenFile};
use tree::Tree;

/// What becomes of what was not synchronized when a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of it stays: the process was killed, the system lives.
    Nothing,
    /// All of it is gone: the power was cut.
    Everything,
    /// Names stay, files are half there: the power was cut when names were written and contents were not.
    Contents,
    /// Of each name and each file chance decides.
    Some {
        /// Whose chance.
        seed: u64,
    },
}

/// What goes wrong at a change of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The node's life ends at it. A write is half done, everything else is not begun.
    Crash(Loss),
    /// It fails with this error, and the node lives on. A write is half done, everything else is not begun.
    Error(ErrorKind),
    /// The same, and so does every later one, until [`MemoryDisk::set_broken`] mends it.
    Break(ErrorKind),
}

/// One node's disk.
pub struct MemoryDisk {
    state: Mutex<State>,
}

struct State {
    tree: Tree,
    changes: u64,
    fails: Option<(u64, Failure)>,
    ended: Option<Loss>,
    capacity: Option<u64>,
    broken: Option<ErrorKind>,
}

impl MemoryDisk {
    /// An empty disk.
    pub(crate) fn new() -> Self {
        MemoryDisk {
            state: Mutex::new(State {
                tree: Tree::new(),
                changes: 0,
                fails: None,
                ended: None,
                capacity: None,
                broken: None,
            }),
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.lock().tree = Tree::new();
    }

    /// Changes that were begun so far: files and folders made, writes, names given and taken, synchronizations.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Lets the change of that number (the next one is [`MemoryDisk::changes`]) go wrong.
    pub fn fail_at(&self, change: u64, failure: Failure) {
        self.lock().fails = Some((change, failure));
    }

    /// From now on every change fails so: `ReadOnlyFilesystem`, or an error of the device; `None` mends it.
    pub fn set_broken(&self, error: Option<ErrorKind>) {
        self.lock().broken = error;
    }

    /// Sets how many bytes its files may have together; a write that would exceed it is cut short and fails with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity = bytes;
    }

    /// Bytes in all files.
    pub fn size(&self) -> u64 {
        self.lock().tree.size()
    }

    /// Whether a [`Failure::Crash`] has happened that the node has not been restarted after.
    pub fn has_ended(&self) -> bool {
        self.lock().ended.is_some()
    }

    /// A life ends (unless a failure has ended it already, in its own way), and the disk is ready for the next one.
    pub(crate) fn end_life(&self, loss: Loss) {
        let mut state = self.lock();
        match state.ended.take().unwrap_or(loss) {
            Loss::Nothing => {}
            Loss::Everything => state.tree.lose(&mut |_| false, 0.0),
            Loss::Contents => state.tree.lose(&mut |_| true, 0.5),
            Loss::Some { seed } => {
                let mut rng = Rng::derive(seed, &[b"power cut"]);
                let kept = rng.next_f64();
                state.tree.lose(&mut |_| rng.next_f64() < 0.5, kept);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }
}

impl State {
    fn check(&self, path: &str) -> io::Result<()> {
        match self.ended {
            None => Ok(()),
            Some(_) => Err(error(ErrorKind::NotConnected, path)),
        }
    }

    /// Whether the next change may happen.
    fn begin(&mut self, path: &str) -> io::Result<()> {
        self.check(path)?;
        let nth = self.changes;
        self.changes += 1;
        let failure = self.fails.take_if(|(change, _)| *change == nth);
        match failure.map(|(_, failure)| failure) {
            Some(Failure::Crash(loss)) => {
                self.ended = Some(loss);
                Err(error(ErrorKind::NotConnected, path))
            }
            Some(Failure::Error(kind)) => Err(error(kind, path)),
            Some(Failure::Break(kind)) => {
                self.broken = Some(kind);
                Err(error(kind, path))
            }
            None => match self.broken {
                Some(kind) => Err(error(kind, path)),
                None => Ok(()),
            },
        }
    }

    fn write(&mut self, path: &str, inode: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(path)?;
        let begun = self.begin(path);
        if begun.is_err() {
            self.tree.append(inode, &bytes[..bytes.len() / 2]);
            return begun;
        }
        let free = match self.capacity {
            Some(capacity) => capacity.saturating_sub(self.tree.size()),
            None => u64::MAX,
        };
        let fits = usize::try_from(free).map_or(bytes.len(), |free| free.min(bytes.len()));
        self.tree.append(inode, &bytes[..fits]);
        match fits == bytes.len() {
            true => Ok(()),
            false => Err(error(ErrorKind::StorageFull, path)),
        }
    }
}

fn error(kind: ErrorKind, path: &str) -> io::Error {
    io::Error::new(kind, format!("{path}: {kind}"))
}

/// A disk as one life of its node sees it: out of reach once that life has ended.
pub(crate) struct DiskOfLife {
    pub disk: Arc<MemoryDisk>,
    pub alive: Arc<AtomicBool>,
    pub node: NodeId,
}

impl DiskOfLife {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        check_alive(&self.alive, &self.node)?;
        Ok(self.disk.lock())
    }

    /// For reading.
    fn seen(&self, path: &str) -> io::Result<MutexGuard<'_, State>> {
        let state = self.state()?;
        state.check(path)?;
        Ok(state)
    }

    /// For a change.
    fn begun(&self, path: &str) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state()?;
        state.begin(path)?;
        Ok(state)
    }
}

impl Disk for DiskOfLife {
    fn read(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        let bytes = self.seen(path)?.tree.read(path)?;
        match bytes.len() > bytes_max {
            true => Err(too_large(bytes.len() as u64, bytes_max)),
            false => Ok(bytes),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.seen(folder)?.tree.list(folder)
    }

    fn kind(&self, path: &str) -> io::Result<Option<Kind>> {
        self.seen(path)?.tree.kind(path)
    }

    fn create(&self, path: &str, _: bool) -> io::Result<Box<dyn OpenFile>> {
        let inode = self.begun(path)?.tree.create(path)?;
        Ok(Box::new(Writing {
            disk: self.disk.clone(),
            alive: self.alive.clone(),
            node: self.node.clone(),
            path: path.to_owned(),
            inode,
        }))
    }

    fn make_folder(&self, path: &str) -> io::Result<()> {
        self.begun(path)?.tree.make_folder(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.begun(to)?.tree.rename(from, to)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        self.begun(to)?.tree.link(from, to)
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        self.begun(path)?.tree.remove(path, Kind::File)
    }

    fn remove_folder(&self, path: &str) -> io::Result<()> {
        self.begun(path)?.tree.remove(path, Kind::Folder)
    }

    fn synchronize(&self, folder: &str) -> io::Result<()> {
        self.begun(folder)?.tree.synchronize(folder)
    }
}

struct Writing {
    disk: Arc<MemoryDisk>,
    alive: Arc<AtomicBool>,
    node: NodeId,
    path: String,
    inode: u64,
}

impl OpenFile for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        check_alive(&self.alive, &self.node)?;
        self.disk.lock().write(&self.path, self.inode, bytes)
    }

    fn synchronize(&mut self) -> io::Result<()> {
        check_alive(&self.alive, &self.node)?;
        let mut state = self.disk.lock();
        state.begin(&self.path)?;
        state.tree.synchronize_file(self.inode);
        Ok(())
    }
}
