//! Asks whoever serves in a state folder.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use super::{Request, Response, Status, short_path};

/// How long a process may take to answer: clients before us may each take their time.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The longest answer read: hundreds of thousands of links.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The most processes asked.
const PROCESSES_MAX: usize = 4096;

/// A process that could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// It is there and does not answer.
    #[error(
        "the process behind {} does not answer: {reason}; is it stopped, or another user's?",
        path.display()
    )]
    Silent {
        /// Its socket.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// It answers something else.
    #[error(
        "the process behind {} answers {reason}; use the same version of tombolo as it",
        path.display()
    )]
    Incompatible {
        /// Its socket.
        path: PathBuf,
        /// What.
        reason: String,
    },
}

/// The status of every process that runs in a state folder, by its first node's name. Sockets of dead processes are passed over.
pub fn processes(state: &Path) -> Vec<Result<Status, ControlError>> {
    let path = std::path::absolute(state)
        .unwrap_or_else(|_| state.to_owned())
        .join("run");
    let (Ok(folder), Ok(entries)) = (File::open(&path), std::fs::read_dir(&path)) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("control-") && name.ends_with(".sock"))
        .take(PROCESSES_MAX)
        .collect();
    names.sort_unstable();
    let asked = names
        .iter()
        .map(|name| ask(&folder, name, &path.join(name)));
    asked.filter_map(Result::transpose).collect()
}

/// `None` if nobody is behind the socket.
fn ask(folder: &File, name: &str, path: &Path) -> Result<Option<Status>, ControlError> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let silent = |error: std::io::Error| ControlError::Silent {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    // A process that does not accept has a full queue some day; connecting must not wait for it.
    let connect = || -> std::io::Result<UnixStream> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(short_path(folder, name))?)?;
        socket.set_nonblocking(false)?;
        Ok(UnixStream::from(OwnedFd::from(socket)))
    };
    let mut stream = match connect() {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => return Ok(None),
        Err(error) => return Err(silent(error)),
    };
    stream
        .set_read_timeout(Some(ANSWER_LIMIT))
        .map_err(silent)?;
    stream
        .set_write_timeout(Some(ANSWER_LIMIT))
        .map_err(silent)?;
    let mut line = serde_json::to_vec(&Request::Status).expect("plain data");
    line.push(b'\n');
    stream.write_all(&line).map_err(silent)?;
    let mut answer = Vec::new();
    let mut reader = BufReader::new(stream.take(ANSWER_BYTES_MAX));
    reader.read_until(b'\n', &mut answer).map_err(silent)?;
    if answer.is_empty() {
        // It ended between our connecting and its accepting.
        return Ok(None);
    }
    let incompatible = |reason: String| ControlError::Incompatible {
        path: path.to_owned(),
        reason,
    };
    match serde_json::from_slice(&answer) {
        Ok(Response::Status(status)) => Ok(Some(*status)),
        Ok(Response::Error { message }) => Err(incompatible(message)),
        Err(error) => Err(incompatible(error.to_string())),
    }
}
