//! The promises of [`Files`] on a file system that promises little.
//!
//! A [`Disk`] is what a file system does, one call at a time: what is written may be gone after a power cut until the file is synchronized,
//! and a name may be gone until its folder is. [`FolderFiles`] makes of it files that are whole and stay. Everything new is first written
//! under `.partial` and synchronized, then given its name in one step: by `rename` to replace, by `link` to create (which fails if the name
//! is taken), so a name never shows a part. Then the folder is synchronized. The real disk (`world`) and the simulated one (`sim`), which
//! can lose what was not synchronized, run the same code here.

mod disk;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_actors::env::Files;
use tombolo_core::mutants;

pub use disk::{Disk, Kind, OpenFile};

/// Where parts are written.
const PARTIAL: &str = ".partial";

/// A folder of files, which this process alone changes unless it is [shared](FolderFiles::share).
pub struct FolderFiles {
    disk: Arc<dyn Disk>,
    partial: String,
    next: AtomicU64,
    /// Folders whose names are known to stay: one that is found may have been made by a life that was killed before it synchronized.
    settled: Mutex<BTreeSet<String>>,
}

impl FolderFiles {
    /// Takes a disk into use, and clears what a crash has left half written.
    ///
    /// # Errors
    /// What the disk says, with the path.
    pub fn open(disk: Arc<dyn Disk>) -> io::Result<Self> {
        let files = FolderFiles::look(disk);
        files.clear()?;
        Ok(files)
    }

    /// A disk that others change, too: what this one has half written is kept apart by the name, which no other life bears.
    pub fn share(disk: Arc<dyn Disk>, name: &str) -> Self {
        let files = FolderFiles {
            partial: format!("{PARTIAL}.{name}"),
            ..FolderFiles::look(disk)
        };
        // What cannot be cleared now is in the way of the first change, which says so.
        let _ = files.clear();
        files
    }

    /// Clears what a crash has left half written.
    fn clear(&self) -> io::Result<()> {
        match self.disk.kind(&self.partial)? {
            Some(_) => self.discard(&self.partial),
            None => Ok(()),
        }
    }

    /// A disk that somebody else may be using: for reading.
    pub fn look(disk: Arc<dyn Disk>) -> Self {
        FolderFiles {
            disk,
            partial: PARTIAL.to_owned(),
            next: AtomicU64::new(0),
            settled: Mutex::default(),
        }
    }

    /// As `create`, readable by the owner only.
    ///
    /// # Errors
    /// As `create`.
    pub fn create_private(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.create_with(path, contents, true)
    }

    fn settled(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of a path, made if it is missing, with a name that stays.
    fn folder_of<'a>(&self, path: &'a str) -> io::Result<&'a str> {
        let (folder, _) = split(path);
        self.make_folder(folder)?;
        Ok(folder)
    }

    fn make_folder(&self, folder: &str) -> io::Result<()> {
        if folder.is_empty() {
            return Ok(());
        }
        let there = self.disk.kind(folder)?;
        if there == Some(Kind::Folder) && self.settled().contains(folder) {
            return Ok(());
        }
        let (parent, _) = split(folder);
        self.make_folder(parent)?;
        match there {
            Some(Kind::Folder) => {}
            Some(Kind::File) => {
                let message = format!("failed to make folder {folder}: there is a file");
                return Err(io::Error::new(ErrorKind::NotADirectory, message));
            }
            None => match self.disk.make_folder(folder) {
                // Another thread was quicker; whether it has synchronized is not known.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made?,
            },
        }
        self.disk.synchronize(parent)?;
        self.settled().insert(folder.to_owned());
        Ok(())
    }

    fn partial(&self) -> io::Result<String> {
        // Its name need not stay: what is in it is nothing yet, or nothing any more.
        if self.disk.kind(&self.partial)?.is_none() {
            match self.disk.make_folder(&self.partial) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(format!("{}/{nth}", self.partial))
    }

    /// Writes a part and hands it to `publish`; whatever happens, no part is left.
    fn written(
        &self,
        parts: &[&[u8]],
        private: bool,
        publish: impl FnOnce(&str) -> io::Result<()>,
    ) -> io::Result<()> {
        let partial = self.partial()?;
        let write = || {
            let mut file = self.disk.create(&partial, private)?;
            for part in parts {
                file.write(part)?;
            }
            match mutants::is("no-fsync") {
                true => Ok(()),
                false => file.synchronize(),
            }
        };
        let result = write().and_then(|()| publish(&partial));
        // Gone already after a rename.
        let _ = self.disk.remove_file(&partial);
        result
    }

    fn create_with(&self, path: &str, contents: &[u8], private: bool) -> io::Result<()> {
        check_path(path)?;
        let folder = self.folder_of(path)?;
        self.written(&[contents], private, |partial| {
            self.disk.link(partial, path)
        })?;
        self.names_stay(folder)
    }

    /// What a folder lists is there after a power cut, too.
    fn names_stay(&self, folder: &str) -> io::Result<()> {
        match mutants::is("no-folder-fsync") {
            true => Ok(()),
            false => self.disk.synchronize(folder),
        }
    }

    /// Removes a file, or a folder with everything in it.
    fn discard(&self, path: &str) -> io::Result<()> {
        if self.disk.kind(path)? != Some(Kind::Folder) {
            return self.disk.remove_file(path);
        }
        for name in self.disk.list(path)? {
            self.discard(&format!("{path}/{name}"))?;
        }
        self.disk.remove_folder(path)
    }
}

impl Files for FolderFiles {
    fn locate(&self, path: &str) -> String {
        self.disk.locate(path)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.read_small(path, usize::MAX)
    }

    fn read_small(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        check_path(path)?;
        self.disk.read(path, bytes_max)
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
        check_path(path)?;
        let folder = self.folder_of(path)?;
        self.written(parts, false, |partial| self.disk.rename(partial, path))?;
        self.names_stay(folder)
    }

    fn create(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.create_with(path, contents, false)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        check_folder(folder)?;
        if !folder.is_empty() && self.disk.kind(folder)?.is_none() {
            return Ok(Vec::new());
        }
        let mut names = self.disk.list(folder)?;
        // What begins with a dot was not made through this interface.
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        Ok(names)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        check_path(path)?;
        if self.disk.kind(path)?.is_none() {
            return Ok(());
        }
        // Out of sight in one step first: a folder half removed would look like one half written.
        let partial = self.partial()?;
        match self.disk.rename(path, &partial) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        let below = format!("{path}/");
        self.settled()
            .retain(|folder| folder != path && !folder.starts_with(&below));
        self.disk.synchronize(split(path).0)?;
        self.discard(&partial)
    }

    fn settle(&self, folder: &str) -> io::Result<()> {
        check_folder(folder)?;
        if !folder.is_empty() && self.disk.kind(folder)?.is_none() || mutants::is("not-settled") {
            return Ok(());
        }
        self.make_folder(folder)?;
        self.disk.synchronize(folder)
    }
}

/// Splits off the last component; the root is empty.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn refused(path: &str, why: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidInput,
        format!("path {path:?} is refused: {why}"),
    )
}

/// Refuses what does not name something below the folder. Names that begin with a dot are the folder's own.
fn check_path(path: &str) -> io::Result<()> {
    if path.starts_with('/') {
        return Err(refused(path, "it is not relative"));
    }
    for name in path.split('/') {
        if name.is_empty() {
            return Err(refused(path, "a component is empty"));
        }
        if name.starts_with('.') {
            return Err(refused(path, "a component begins with a dot"));
        }
        if name.contains(['\\', '\0']) {
            return Err(refused(path, "it holds a backslash or a zero byte"));
        }
    }
    Ok(())
}

/// The same for a folder, where the empty path is the root.
fn check_folder(path: &str) -> io::Result<()> {
    if path.is_empty() {
        Ok(())
    } else {
        check_path(path)
    }
}
