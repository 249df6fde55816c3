//! Files and folders, each as it is seen and as it would be found after a power cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::error;
use crate::files::{Kind, split};

/// The folder that all others are in.
const ROOT: u64 = 0;

/// Names that may be taken before memory is given back: looking for it walks through all folders.
const TAKEN_MAX: u32 = 64;

/// See the module. Names point to numbers, as on a real disk, so that one file may have two names and a folder may lose a name that another
/// folder still has.
pub struct Tree {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    /// Names taken since memory was last given back.
    taken: u32,
}

enum Inode {
    File(Twice<Arc<Vec<u8>>>),
    Folder(Twice<BTreeMap<String, u64>>),
}

#[derive(Default)]
struct Twice<T> {
    seen: T,
    durable: T,
}

impl Tree {
    pub fn new() -> Self {
        Tree {
            inodes: BTreeMap::from([(ROOT, Inode::Folder(Twice::default()))]),
            next: ROOT + 1,
            taken: 0,
        }
    }

    /// Bytes of all files that a name leads to.
    pub fn size(&self) -> u64 {
        let named = self.named(|entries| entries.seen.values().copied().collect());
        let sizes = named.iter().map(|inode| match &self.inodes[inode] {
            Inode::File(file) => file.seen.len() as u64,
            Inode::Folder(_) => 0,
        });
        sizes.sum()
    }

    pub fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        match self.find(path)?.map(|inode| &self.inodes[&inode]) {
            Some(Inode::File(file)) => Ok(file.seen.to_vec()),
            Some(Inode::Folder(_)) => Err(error(ErrorKind::IsADirectory, path)),
            None => Err(error(ErrorKind::NotFound, path)),
        }
    }

    pub fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        match self.find(folder)?.map(|inode| &self.inodes[&inode]) {
            Some(Inode::Folder(entries)) => Ok(entries.seen.keys().cloned().collect()),
            Some(Inode::File(_)) => Err(error(ErrorKind::NotADirectory, folder)),
            None => Err(error(ErrorKind::NotFound, folder)),
        }
    }

    pub fn kind(&self, path: &str) -> io::Result<Option<Kind>> {
        let found = self.find(path)?.map(|inode| &self.inodes[&inode]);
        Ok(found.map(|inode| match inode {
            Inode::File(_) => Kind::File,
            Inode::Folder(_) => Kind::Folder,
        }))
    }

    pub fn create(&mut self, path: &str) -> io::Result<u64> {
        self.add(path, Inode::File(Twice::default()))
    }

    pub fn make_folder(&mut self, path: &str) -> io::Result<()> {
        self.add(path, Inode::Folder(Twice::default())).map(drop)
    }

    /// Adds to an open file; one that was removed meanwhile takes it as well.
    pub fn append(&mut self, inode: u64, bytes: &[u8]) {
        if let Some(Inode::File(file)) = self.inodes.get_mut(&inode) {
            Arc::make_mut(&mut file.seen).extend_from_slice(bytes);
        }
    }

    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        if to == from || to.starts_with(&format!("{from}/")) {
            return Err(error(ErrorKind::InvalidInput, to));
        }
        let moved = self.find(from)?;
        let moved = moved.ok_or_else(|| error(ErrorKind::NotFound, from))?;
        match self.kind(to)? {
            Some(Kind::Folder) => return Err(error(ErrorKind::IsADirectory, to)),
            Some(Kind::File) if matches!(self.inodes[&moved], Inode::Folder(_)) => {
                return Err(error(ErrorKind::NotADirectory, to));
            }
            _ => {}
        }
        let (folder, name) = self.folder_of(to)?;
        folder.insert(name.to_owned(), moved);
        let (folder, name) = self.folder_of(from)?;
        folder.remove(name);
        self.name_taken();
        Ok(())
    }

    pub fn link(&mut self, from: &str, to: &str) -> io::Result<()> {
        let linked = self.find(from)?;
        let linked = linked.ok_or_else(|| error(ErrorKind::NotFound, from))?;
        let (folder, name) = self.folder_of(to)?;
        if folder.contains_key(name) {
            return Err(error(ErrorKind::AlreadyExists, to));
        }
        folder.insert(name.to_owned(), linked);
        Ok(())
    }

    pub fn remove(&mut self, path: &str, kind: Kind) -> io::Result<()> {
        match self.kind(path)? {
            None => return Err(error(ErrorKind::NotFound, path)),
            Some(found) if found != kind => return Err(error(ErrorKind::InvalidInput, path)),
            Some(Kind::Folder) if !self.list(path)?.is_empty() => {
                return Err(error(ErrorKind::DirectoryNotEmpty, path));
            }
            Some(_) => {}
        }
        let (folder, name) = self.folder_of(path)?;
        folder.remove(name);
        self.name_taken();
        Ok(())
    }

    pub fn synchronize(&mut self, folder: &str) -> io::Result<()> {
        let found = self.find(folder)?;
        match found.and_then(|inode| self.inodes.get_mut(&inode)) {
            Some(Inode::Folder(entries)) => entries.durable = entries.seen.clone(),
            _ => return Err(error(ErrorKind::NotFound, folder)),
        }
        Ok(())
    }

    pub fn synchronize_file(&mut self, inode: u64) {
        if let Some(Inode::File(file)) = self.inodes.get_mut(&inode) {
            file.durable = file.seen.clone();
        }
    }

    /// A power cut. `keeps` decides of each name that was not synchronized, and whether a file's contents that were not are there to the
    /// `share` that was written of them.
    pub fn lose(&mut self, keeps: &mut dyn FnMut(&str) -> bool, share: f64) {
        for inode in self.inodes.values_mut() {
            match inode {
                Inode::Folder(entries) => {
                    let names = entries.seen.keys().chain(entries.durable.keys());
                    let names: BTreeSet<String> = names.cloned().collect();
                    for name in names {
                        let (seen, durable) = (entries.seen.get(&name), entries.durable.get(&name));
                        let found = match seen == durable || keeps(&name) {
                            true => seen.copied(),
                            false => durable.copied(),
                        };
                        match found {
                            Some(inode) => entries.durable.insert(name, inode),
                            None => entries.durable.remove(&name),
                        };
                    }
                    entries.seen = entries.durable.clone();
                }
                Inode::File(file) if file.seen != file.durable => {
                    let before = file.durable.len();
                    let added = file.seen.len().saturating_sub(before) as f64;
                    let kept = (before + (added * share) as usize).min(file.seen.len());
                    file.durable = Arc::new(file.seen[..kept].to_vec());
                    file.seen = file.durable.clone();
                }
                Inode::File(_) => {}
            }
        }
    }

    fn add(&mut self, path: &str, inode: Inode) -> io::Result<u64> {
        let number = self.next;
        let (folder, name) = self.folder_of(path)?;
        if folder.contains_key(name) {
            return Err(error(ErrorKind::AlreadyExists, path));
        }
        folder.insert(name.to_owned(), number);
        self.inodes.insert(number, inode);
        self.next += 1;
        Ok(number)
    }

    fn find(&self, path: &str) -> io::Result<Option<u64>> {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            match &self.inodes[&at] {
                Inode::Folder(entries) => match entries.seen.get(name) {
                    Some(next) => at = *next,
                    None => return Ok(None),
                },
                Inode::File(_) => return Err(error(ErrorKind::NotADirectory, path)),
            }
        }
        Ok(Some(at))
    }

    /// The names of the folder that a path is in, and the path's own.
    fn folder_of<'a>(
        &mut self,
        path: &'a str,
    ) -> io::Result<(&mut BTreeMap<String, u64>, &'a str)> {
        let (folder, name) = split(path);
        let found = self.find(folder)?;
        match found.and_then(|inode| self.inodes.get_mut(&inode)) {
            Some(Inode::Folder(entries)) => Ok((&mut entries.seen, name)),
            Some(Inode::File(_)) => Err(error(ErrorKind::NotADirectory, folder)),
            None => Err(error(ErrorKind::NotFound, folder)),
        }
    }

    /// Now and then gives back the memory of what no name leads to, neither now nor after a power cut.
    fn name_taken(&mut self) {
        self.taken += 1;
        if self.taken < TAKEN_MAX {
            return;
        }
        self.taken = 0;
        let named = self.named(|entries| {
            let both = entries.seen.values().chain(entries.durable.values());
            both.copied().collect()
        });
        self.inodes.retain(|inode, _| named.contains(inode));
    }

    fn named(&self, names: impl Fn(&Twice<BTreeMap<String, u64>>) -> Vec<u64>) -> BTreeSet<u64> {
        let mut named = BTreeSet::new();
        let mut open = vec![ROOT];
        while let Some(inode) = open.pop() {
            if named.insert(inode)
                && let Some(Inode::Folder(entries)) = self.inodes.get(&inode)
            {
                open.extend(names(entries));
            }
        }
        named
    }
}
