//! What a file system does, one call at a time.

use std::io;

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File,
    /// A folder.
    Folder,
}

/// A file system below one folder. Paths are relative to it and `/`-separated; the empty path is the folder itself.
///
/// Each call either happens or fails; its error names the path. After a power cut there is of each file what was there when it was last
/// synchronized, or anything in between, and of each folder's names likewise.
pub trait Disk: Send + Sync {
    /// Where people find a path, for messages.
    fn locate(&self, path: &str) -> String {
        path.to_owned()
    }

    /// The whole file; fails with `FileTooLarge`, before it is read, if it holds more than `bytes_max` bytes.
    fn read(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// The names in a folder, in any order.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// What is there, if anything.
    fn kind(&self, path: &str) -> io::Result<Option<Kind>>;

    /// Makes a file, readable by its owner only if `private`; fails with `AlreadyExists` if the name is taken.
    fn create(&self, path: &str, private: bool) -> io::Result<Box<dyn OpenFile>>;

    /// Makes a folder within one that is there; fails with `AlreadyExists` if the name is taken.
    fn make_folder(&self, path: &str) -> io::Result<()>;

    /// Gives a file or folder another name, in place of the file that has it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Gives a file a second name; fails with `AlreadyExists` if it is taken.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &str) -> io::Result<()>;

    /// Removes an empty folder.
    fn remove_folder(&self, path: &str) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn synchronize(&self, folder: &str) -> io::Result<()>;
}

/// A file being written.
pub trait OpenFile {
    /// Adds to its end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    fn synchronize(&mut self) -> io::Result<()>;
}
