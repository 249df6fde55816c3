//! Measurements that need a process of their own: so that its memory and its processor seconds are nothing else's.

use std::io;
use std::path::Path;
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

use crate::cli::Common;

/// A process of this program for `bench` of that name. It keeps its state in the folder and prints lines of JSON; told by `--child-of` whose it
/// is, it must end with this one.
pub fn child(what: &str, folder: &Path) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["bench", what, "--format", "json"])
        .args(["--child-of", &std::process::id().to_string()])
        .arg("--state")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        // A terminal's Ctrl-C reaches the measuring process only.
        .process_group(0);
    Ok(command)
}

/// A folder for what the federation that is measured writes; gone when it is dropped.
pub fn folder(common: &Common) -> io::Result<TempDir> {
    match &common.state {
        Some(state) => std::fs::create_dir_all(state).and_then(|()| tempfile::tempdir_in(state)),
        None => tempfile::tempdir(),
    }
}
