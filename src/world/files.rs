//! A folder on a real disk. One process owns it at a time.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::bounded;
use crate::files::{Disk, FolderFiles, Kind, OpenFile};
use tombolo_actors::env::too_large;

/// Held while a process uses the folder.
const LOCK: &str = ".lock";

/// How long the one before is given for what it is writing when it ends.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Folders above a node's own that may have been made together with it.
const FOLDERS_ABOVE: usize = 3;

/// Takes a folder, made if it is missing, and clears what a crash has left half written.
///
/// # Errors
/// `ResourceBusy` if another process (or another part of this one) has it; or what the system says, with the path.
pub fn open(root: &Path) -> io::Result<FolderFiles> {
    fs::create_dir_all(root).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => io::Error::new(
            ErrorKind::NotADirectory,
            format!("a file is where folder {} is needed", root.display()),
        ),
        _ => named(error, "make folder", root),
    })?;
    for above in root.ancestors().skip(1).take(FOLDERS_ABOVE) {
        settle(above)?;
    }
    let lock_path = root.join(LOCK);
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true);
    let lock = bounded::open_regular(&lock_path, options)
        .map_err(|error| named(error, "open", &lock_path))?;
    take(&lock, &lock_path, root)?;
    FolderFiles::open(Arc::new(Folder {
        root: root.to_owned(),
        _lock: Some(lock),
    }))
}

/// Locks a folder. Who has just been told to end may still be writing there: it is waited for a moment.
fn take(lock: &File, path: &Path, root: &Path) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(named(error, "lock", path)),
            Err(TryLockError::WouldBlock) if start.elapsed() < LAST_WRITES => {
                std::thread::sleep(LAST_WRITES / 50);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    ErrorKind::ResourceBusy,
                    format!(
                        "folder {} is in use by another running node: stop it or choose another state folder",
                        root.display()
                    ),
                ));
            }
        }
    }
}

/// A folder that other processes change, too. It is not made: whose it is, that one makes it.
pub fn share(root: &Path, name: &str) -> FolderFiles {
    let folder = Arc::new(Folder {
        root: root.to_owned(),
        _lock: None,
    });
    FolderFiles::share(folder, name)
}

/// A folder that another process may own, for reading.
pub fn look(root: &Path) -> FolderFiles {
    FolderFiles::look(Arc::new(Folder {
        root: root.to_owned(),
        _lock: None,
    }))
}

/// Makes the names in a folder durable, if it may be read: who may only pass through it has made nothing in it.
fn settle(folder: &Path) -> io::Result<()> {
    // The parent of a relative path's first component is written as nothing.
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        settled => settled.map_err(|error| named(error, "synchronize", folder)),
    }
}

/// Puts path and advice into an error that names neither.
fn named(error: io::Error, doing: &str, path: &Path) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("failed to {doing} {}: {error}", path.display()),
    )
}

struct Folder {
    root: PathBuf,
    /// Locked until dropped.
    _lock: Option<File>,
}

impl Folder {
    fn full(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }
}

impl Disk for Folder {
    fn locate(&self, path: &str) -> String {
        let full = self.full(path);
        let full = std::path::absolute(&full).unwrap_or(full);
        full.display().to_string()
    }

    fn read(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        let full = self.full(path);
        let mut bytes = Vec::new();
        bounded::open_regular(&full, OpenOptions::new().read(true))
            .and_then(|mut file| {
                let size = file.metadata()?.len();
                if size > bytes_max as u64 {
                    return Err(too_large(size, bytes_max));
                }
                // At once as many as there are, for a model is large.
                bytes.try_reserve_exact(size.try_into().unwrap_or(usize::MAX))?;
                file.read_to_end(&mut bytes)
            })
            .map_err(|error| named(error, "read", &full))?;
        Ok(bytes)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let full = self.full(folder);
        let failed = |error| named(error, "list", &full);
        let mut names = Vec::new();
        for entry in fs::read_dir(&full).map_err(failed)? {
            // What is not UTF-8 was not made through this interface.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn kind(&self, path: &str) -> io::Result<Option<Kind>> {
        let full = self.full(path);
        match fs::symlink_metadata(&full) {
            Ok(metadata) if metadata.is_dir() => Ok(Some(Kind::Folder)),
            Ok(_) => Ok(Some(Kind::File)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(named(error, "look at", &full)),
        }
    }

    fn create(&self, path: &str, private: bool) -> io::Result<Box<dyn OpenFile>> {
        let full = self.full(path);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(if private { 0o600 } else { 0o644 })
            .open(&full);
        match file {
            Ok(file) => Ok(Box::new(Writing::new(file, full))),
            Err(error) => Err(named(error, "make", &full)),
        }
    }

    fn make_folder(&self, path: &str) -> io::Result<()> {
        let full = self.full(path);
        fs::create_dir(&full).map_err(|error| named(error, "make folder", &full))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.full(from), self.full(to));
        let failed = |error| named(error, &format!("move {} to", from.display()), &to);
        fs::rename(&from, &to).map_err(failed)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let full = self.full(to);
        fs::hard_link(self.full(from), &full).map_err(|error| named(error, "create", &full))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let full = self.full(path);
        fs::remove_file(&full).map_err(|error| named(error, "remove", &full))
    }

    fn remove_folder(&self, path: &str) -> io::Result<()> {
        let full = self.full(path);
        fs::remove_dir(&full).map_err(|error| named(error, "remove", &full))
    }

    fn synchronize(&self, folder: &str) -> io::Result<()> {
        let full = self.full(folder);
        // Nothing but a folder is opened: a pipe would be waited for.
        let folder = OFlags::DIRECTORY.bits().cast_signed();
        let folder = OpenOptions::new()
            .read(true)
            .custom_flags(folder)
            .open(&full);
        folder
            .and_then(|folder| folder.sync_all())
            .map_err(|error| named(error, "synchronize", &full))
    }
}

/// What is written past the page cache at once, and where it must lie in memory for that.
const BLOCK: usize = 1 << 19;
const ALIGNED: usize = 4096;

/// A file that grows. Whole blocks go to the disk without a copy in the page cache: a model that is read again only after a crash would push
/// out what is needed, and copying it there costs more than everything else that is done to write it (`open(2)`, `O_DIRECT`).
struct Writing {
    file: File,
    path: PathBuf,
    /// What came since the last whole block, behind `start`.
    block: Vec<u8>,
    start: usize,
    /// Whether the block lies where it must.
    aligned: bool,
    direct: bool,
    /// Whether the file system does it.
    able: bool,
}

impl Writing {
    fn new(file: File, path: PathBuf) -> Self {
        Writing {
            file,
            path,
            block: Vec::new(),
            start: 0,
            aligned: false,
            direct: false,
            able: true,
        }
    }

    /// Where a block of which something has come may take what follows.
    fn room(&mut self, coming: usize) -> usize {
        let held = self.block.len() - self.start;
        // A small file is written as it is.
        if !self.aligned && held + coming >= BLOCK {
            let mut aligned: Vec<u8> = Vec::with_capacity(BLOCK + ALIGNED);
            self.aligned = true;
            self.start = aligned.as_ptr().align_offset(ALIGNED).min(ALIGNED);
            aligned.resize(self.start, 0);
            aligned.extend_from_slice(&self.block);
            self.block = aligned;
        }
        BLOCK - held
    }

    fn flush(&mut self) -> io::Result<()> {
        let whole = self.block.len() - self.start == BLOCK;
        self.set_direct(whole)?;
        let mut done = self.start;
        while done < self.block.len() {
            match self.file.write(&self.block[done..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // This file system, or what a part of a block left, wants it the ordinary way.
                Err(error) if error.kind() == ErrorKind::InvalidInput && self.direct => {
                    self.able = false;
                    self.set_direct(false)?;
                }
                Err(error) => return Err(error),
            }
        }
        self.block.truncate(self.start);
        Ok(())
    }

    fn set_direct(&mut self, direct: bool) -> io::Result<()> {
        let direct = direct && self.able;
        if direct != self.direct {
            let flags = fcntl_getfl(&self.file)? - OFlags::DIRECT;
            let wanted = if direct {
                flags | OFlags::DIRECT
            } else {
                flags
            };
            match fcntl_setfl(&self.file, wanted) {
                Ok(()) => self.direct = direct,
                Err(_) if direct => self.able = false,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn add(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = self.room(bytes.len());
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = rest;
            if now.len() == room {
                self.flush()?;
            }
        }
        Ok(())
    }
}

impl OpenFile for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.add(bytes);
        written.map_err(|error| named(error, "write", &self.path))
    }

    fn synchronize(&mut self) -> io::Result<()> {
        let written = self.flush();
        written.map_err(|error| named(error, "write", &self.path))?;
        let synchronized = self.file.sync_all();
        synchronized.map_err(|error| named(error, "synchronize", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tombolo_actors::env::Files;

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("commits")).unwrap();
        symlink("/dev/null", folder.path().join("commits/000003.json")).unwrap();
        let refused = look(folder.path()).read("commits/000003.json").unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("000003.json") && refused.contains("no regular file"),
            "{refused}"
        );
        // A file with a hole costs who made it nothing, and is not read.
        let huge = File::create(folder.path().join("commits/000004.json")).unwrap();
        huge.set_len(1 << 40).unwrap();
        let refused = look(folder.path()).read_small("commits/000004.json", 1000);
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
        assert!(refused.to_string().contains("000004.json"), "{refused}");
        symlink("/dev/null", folder.path().join(LOCK)).unwrap();
        let refused = open(folder.path()).map(drop).unwrap_err().to_string();
        assert!(
            refused.contains(LOCK) && refused.contains("no regular file"),
            "{refused}"
        );
    }
    #[test]
    fn who_is_just_ending_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let before = open(folder.path()).unwrap();
        std::thread::scope(|scope| {
            let after = scope.spawn(|| open(folder.path()).map(drop));
            std::thread::sleep(LAST_WRITES / 10);
            drop(before);
            after.join().unwrap().unwrap();
        });
    }

    #[test]
    fn whatever_its_length_and_its_pieces_a_file_holds_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let files = open(folder.path()).unwrap();
        let bytes: Vec<u8> = (0..3 * BLOCK + 5).map(|at| ((at * 7) >> 3) as u8).collect();
        for len in [
            0,
            1,
            ALIGNED,
            BLOCK - 1,
            BLOCK,
            BLOCK + 1,
            3 * BLOCK,
            3 * BLOCK + 5,
        ] {
            for head in [0, 1, 77, ALIGNED, BLOCK] {
                let (head, body) = bytes[..len].split_at(head.min(len));
                files.replace("it", &[head, body]).unwrap();
                assert!(files.read("it").unwrap() == bytes[..len], "{len}");
            }
        }
    }

    #[test]
    fn a_large_file_passes_the_page_cache_by() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it");
        let mut file = Writing::new(File::create(&path).unwrap(), path.clone());
        let probe = fcntl_setfl(&file.file, OFlags::DIRECT);
        file.write(&vec![1; BLOCK + 1]).unwrap();
        // Not every file system can; this one says whether it can.
        assert_eq!(file.direct, probe.is_ok());
        file.synchronize().unwrap();
        assert!(!file.direct);
        assert_eq!(fs::metadata(&path).unwrap().len() as usize, BLOCK + 1);
    }
}
