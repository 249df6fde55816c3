//! A first topology for `tombolo new DIR`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Its file name.
const FILE_NAME: &str = "tombolo.toml";

/// What must not be committed: keys and state.
const IGNORED: &str = "/state/\n/certs/\n*.key\n";

/// A first topology could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewError {
    /// There is something already.
    #[error("{} is there already and not empty: name another folder or remove it first", .0.display())]
    NotEmpty(PathBuf),
    /// The disk refused.
    #[error("{} cannot be written: {source}; name a folder that you may write to", .path.display())]
    Io {
        /// The full path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A small commented topology that runs as it is: two domains of two nodes.
pub fn template() -> &'static str {
    include_str!("template.toml")
}

/// Writes [`template`] and a `.gitignore` into a folder, making it if it is missing, and names the topology written.
///
/// # Errors
///
/// If either file exists and is not empty, or cannot be written. Nothing is overwritten.
pub fn write_new(folder: &Path) -> Result<PathBuf, NewError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| NewError::Io { path, source }
    };
    let folder = std::path::absolute(folder).map_err(io(folder))?;
    std::fs::create_dir_all(&folder).map_err(io(&folder))?;
    let files = [(FILE_NAME, template()), (".gitignore", IGNORED)];
    for (name, _) in files {
        let path = folder.join(name);
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() && found.len() == 0 => {}
            Ok(_) => return Err(NewError::NotEmpty(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(&path)(error)),
        }
    }
    for (name, contents) in files {
        let path = folder.join(name);
        std::fs::File::create(&path)
            .and_then(|mut file| file.write_all(contents.as_bytes()))
            .map_err(io(&path))?;
    }
    Ok(folder.join(FILE_NAME))
}
