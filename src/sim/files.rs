//! A disk in memory. It outlives crashes; every write is durable at once.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use tombolo_actors::env::Files;
use tombolo_core::ids::NodeId;

use super::env::check_alive;
use crate::world::files::{check_folder, check_path};

type Folder = BTreeMap<String, Entry>;

enum Entry {
    File(Vec<u8>),
    Folder(Folder),
}

/// One node's disk.
pub struct MemoryFiles {
    root: Mutex<Folder>,
}

impl MemoryFiles {
    pub fn new() -> Self {
        MemoryFiles {
            root: Mutex::new(Folder::new()),
        }
    }

    pub fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Folder> {
        self.root.lock().expect("no code under this lock panics")
    }
}

fn error(kind: ErrorKind, path: &str) -> io::Error {
    io::Error::new(kind, format!("{path}: {kind}"))
}

/// Splits off the last component.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The folder of that path; `Ok(None)` if there is none.
fn find<'a>(root: &'a mut Folder, folder: &str) -> io::Result<Option<&'a mut Folder>> {
    let mut at = root;
    for name in folder.split('/').filter(|name| !name.is_empty()) {
        match at.get_mut(name) {
            Some(Entry::Folder(inner)) => at = inner,
            Some(Entry::File(_)) => return Err(error(ErrorKind::NotADirectory, folder)),
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

/// The folder of that path, made if it is missing.
fn make<'a>(root: &'a mut Folder, folder: &str) -> io::Result<&'a mut Folder> {
    let mut at = root;
    for name in folder.split('/').filter(|name| !name.is_empty()) {
        let entry = at
            .entry(name.to_owned())
            .or_insert_with(|| Entry::Folder(Folder::new()));
        match entry {
            Entry::Folder(inner) => at = inner,
            Entry::File(_) => return Err(error(ErrorKind::NotADirectory, folder)),
        }
    }
    Ok(at)
}

impl Files for MemoryFiles {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        check_path(path)?;
        let (folder, name) = split(path);
        match find(&mut self.lock(), folder)?.and_then(|folder| folder.get(name)) {
            Some(Entry::File(contents)) => Ok(contents.clone()),
            Some(Entry::Folder(_)) => Err(error(ErrorKind::IsADirectory, path)),
            None => Err(error(ErrorKind::NotFound, path)),
        }
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
        check_path(path)?;
        let (folder, name) = split(path);
        let mut root = self.lock();
        let folder = make(&mut root, folder)?;
        if let Some(Entry::Folder(_)) = folder.get(name) {
            return Err(error(ErrorKind::IsADirectory, path));
        }
        folder.insert(name.to_owned(), Entry::File(parts.concat()));
        Ok(())
    }

    fn create(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        check_path(path)?;
        let (folder, name) = split(path);
        let mut root = self.lock();
        let folder = make(&mut root, folder)?;
        if folder.contains_key(name) {
            return Err(error(ErrorKind::AlreadyExists, path));
        }
        folder.insert(name.to_owned(), Entry::File(contents.to_vec()));
        Ok(())
    }

    fn append(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        check_path(path)?;
        let (folder, name) = split(path);
        let mut root = self.lock();
        let folder = make(&mut root, folder)?;
        let entry = folder
            .entry(name.to_owned())
            .or_insert_with(|| Entry::File(Vec::new()));
        match entry {
            Entry::File(file) => {
                file.extend_from_slice(contents);
                Ok(())
            }
            Entry::Folder(_) => Err(error(ErrorKind::IsADirectory, path)),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        check_folder(folder)?;
        let mut root = self.lock();
        let found = find(&mut root, folder)?;
        Ok(found.map_or(Vec::new(), |folder| folder.keys().cloned().collect()))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        check_path(path)?;
        let (folder, name) = split(path);
        if let Some(folder) = find(&mut self.lock(), folder)? {
            folder.remove(name);
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        check_path(from)?;
        check_path(to)?;
        if to == from || to.starts_with(&format!("{from}/")) {
            return Err(error(ErrorKind::InvalidInput, to));
        }
        let mut root = self.lock();
        let (from_folder, from_name) = split(from);
        match find(&mut root, from_folder)?.and_then(|folder| folder.get(from_name)) {
            Some(Entry::Folder(_)) => {}
            Some(Entry::File(_)) => return Err(error(ErrorKind::NotADirectory, from)),
            None => return Err(error(ErrorKind::NotFound, from)),
        }
        let (to_folder, to_name) = split(to);
        match make(&mut root, to_folder)?.get(to_name) {
            Some(Entry::Folder(target)) if !target.is_empty() => {
                return Err(error(ErrorKind::DirectoryNotEmpty, to));
            }
            Some(Entry::File(_)) => return Err(error(ErrorKind::NotADirectory, to)),
            Some(Entry::Folder(_)) | None => {}
        }
        let moved = find(&mut root, from_folder)?
            .and_then(|folder| folder.remove(from_name))
            .expect("it was there above, under the same lock");
        make(&mut root, to_folder)?.insert(to_name.to_owned(), moved);
        Ok(())
    }
}

/// A disk as one life of its node sees it: out of reach once that life has ended.
pub struct DiskOfLife {
    pub files: Arc<MemoryFiles>,
    pub alive: Arc<AtomicBool>,
    pub node: NodeId,
}

impl DiskOfLife {
    fn disk(&self) -> io::Result<&MemoryFiles> {
        check_alive(&self.alive, &self.node)?;
        Ok(&self.files)
    }
}

impl Files for DiskOfLife {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        self.disk()?.read(path)
    }

    fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
        self.disk()?.replace(path, parts)
    }

    fn create(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.disk()?.create(path, contents)
    }

    fn append(&self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.disk()?.append(path, contents)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.disk()?.list(folder)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk()?.remove(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk()?.rename(from, to)
    }
}
