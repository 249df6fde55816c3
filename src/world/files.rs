//! A folder on a real disk, with the promises of [`Files`].
//!
//! Everything new is first written under `.partial` and synchronized, then given its name in one step: by `rename` to replace, by `link` to
//! create (which fails if the name is taken), so a name never shows a part. Then the folder itself is synchronized. One process owns the
//! folder at a time; it clears what its predecessor left in `.partial`.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_actors::env::Files;

/// Where parts are written.
const PARTIAL: &str = ".partial";

/// Held while a process uses the folder.
const LOCK: &str = ".lock";

/// A folder on disk, owned by this process.
#[derive(Debug)]
pub struct FolderFiles {
    root: PathBuf,
    next: AtomicU64,
    /// Locked until dropped.
    _lock: File,
}

/// Puts path and advice into an error that names neither.
fn named(error: io::Error, doing: &str, path: &Path) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("failed to {doing} {}: {error}", path.display()),
    )
}

fn refused(path: &str, why: &str) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidInput,
        format!("path {path:?} is refused: {why}"),
    )
}

/// Refuses what does not name something below the folder. Names that begin with a dot are the folder's own.
pub fn check_path(path: &str) -> io::Result<()> {
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
pub fn check_folder(path: &str) -> io::Result<()> {
    if path.is_empty() {
        Ok(())
    } else {
        check_path(path)
    }
}

fn synchronize(folder: &Path) -> io::Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| named(error, "synchronize", folder))
}

/// Makes a folder and those above it, durably.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = folder.parent().ok_or(error)?;
            make_folder(parent)?;
            // Somebody else may make it at the same time.
            match fs::create_dir(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(named(error, "make folder", folder));
                }
                _ => {}
            }
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(io::Error::new(
                ErrorKind::NotADirectory,
                format!("{} is a file where a folder is needed", folder.display()),
            ));
        }
        Err(error) => return Err(named(error, "make folder", folder)),
    }
    folder.parent().map_or(Ok(()), synchronize_made)
}

/// As [`synchronize`]; the parent of a relative path's first component is written as nothing.
fn synchronize_made(parent: &Path) -> io::Result<()> {
    if parent.as_os_str().is_empty() {
        synchronize(Path::new("."))
    } else {
        synchronize(parent)
    }
}

impl FolderFiles {
    /// Takes a folder, made if it is missing, and clears what a crash has left half written.
    ///
    /// # Errors
    /// `ResourceBusy` if another process (or another part of this one) has it; or what the system says, with the path.
    pub fn open(root: &Path) -> io::Result<Self> {
        make_folder(root)?;
        let lock_path = root.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|error| named(error, "open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(
                    ErrorKind::ResourceBusy,
                    format!(
                        "folder {} is in use by another running node: stop it or choose another state folder",
                        root.display()
                    ),
                ));
            }
            Err(TryLockError::Error(error)) => return Err(named(error, "lock", &lock_path)),
        }
        let partial = root.join(PARTIAL);
        match fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(named(error, "clear", &partial));
            }
            _ => {}
        }
        make_folder(&partial)?;
        Ok(FolderFiles {
            root: root.to_owned(),
            next: AtomicU64::new(0),
            _lock: lock,
        })
    }

    /// As `create`, readable by the owner only.
    pub fn create_private(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.create_with(path, contents, 0o600)
    }

    fn full(&self, path: &str) -> io::Result<PathBuf> {
        check_path(path)?;
        Ok(self.root.join(path))
    }

    fn partial(&self) -> PathBuf {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        self.root.join(PARTIAL).join(nth.to_string())
    }

    /// The folder of a path, made if it is missing.
    fn folder_of<'a>(&self, full: &'a Path) -> io::Result<&'a Path> {
        let folder = full.parent().expect("a checked path lies below the root");
        make_folder(folder)?;
        Ok(folder)
    }

    /// Writes a part and hands it to `publish`; whatever happens, no part is left.
    fn written(
        &self,
        parts: &[&[u8]],
        mode: u32,
        publish: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let partial = self.partial();
        let write = || {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&partial)?;
            for part in parts {
                file.write_all(part)?;
            }
            file.sync_all()
        };
        let result = write()
            .map_err(|error| named(error, "write", &partial))
            .and_then(|()| publish(&partial));
        // Gone already after a rename.
        let _ = fs::remove_file(&partial);
        result
    }

    fn create_with(&self, path: &str, contents: &[u8], mode: u32) -> io::Result<()> {
        let full = self.full(path)?;
        let folder = self.folder_of(&full)?;
        self.written(&[contents], mode, |partial| {
            fs::hard_link(partial, &full).map_err(|error| named(error, "create", &full))
        })?;
        synchronize(folder)
    }
}

impl Files for FolderFiles {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let full = self.full(path)?;
        fs::read(&full).map_err(|error| named(error, "read", &full))
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
        let full = self.full(path)?;
        let folder = self.folder_of(&full)?;
        self.written(parts, 0o644, |partial| {
            fs::rename(partial, &full).map_err(|error| named(error, "replace", &full))
        })?;
        synchronize(folder)
    }

    fn create(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.create_with(path, contents, 0o644)
    }

    fn append(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        let full = self.full(path)?;
        let folder = self.folder_of(&full)?;
        let fresh = !full.exists();
        let append = || {
            let mut file = OpenOptions::new().append(true).create(true).open(&full)?;
            let before = file.metadata()?.len();
            let result = file.write_all(contents).and_then(|()| file.sync_data());
            if result.is_err() {
                // A full disk must not leave half a record that the next one is glued to.
                let _ = file.set_len(before);
            }
            result
        };
        append().map_err(|error| named(error, "append to", &full))?;
        if fresh {
            synchronize(folder)?;
        }
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        check_folder(folder)?;
        let full = self.root.join(folder);
        let entries = match fs::read_dir(&full) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| named(error, "list", &full))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| named(error, "list", &full))?;
            // What is not UTF-8 or begins with a dot was not made through this interface.
            if let Ok(name) = entry.file_name().into_string()
                && !name.starts_with('.')
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let full = self.full(path)?;
        // Out of sight in one step first: a folder half removed would look like one half written.
        let partial = self.partial();
        match fs::rename(&full, &partial) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(named(error, "remove", &full)),
        }
        synchronize(full.parent().expect("a checked path lies below the root"))?;
        let removed = if partial.is_dir() {
            fs::remove_dir_all(&partial)
        } else {
            fs::remove_file(&partial)
        };
        removed.map_err(|error| named(error, "remove", &partial))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.full(from)?, self.full(to)?);
        let kind = fs::metadata(&from).map_err(|error| named(error, "rename", &from))?;
        if !kind.is_dir() {
            return Err(io::Error::new(
                ErrorKind::NotADirectory,
                format!("failed to rename {}: it is not a folder", from.display()),
            ));
        }
        if to.starts_with(&from) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("failed to rename {} into itself", from.display()),
            ));
        }
        let folder = self.folder_of(&to)?;
        fs::rename(&from, &to).map_err(|error| named(error, "rename to", &to))?;
        synchronize(folder)?;
        synchronize(from.parent().expect("a checked path lies below the root"))
    }
}
