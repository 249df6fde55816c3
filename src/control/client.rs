//! Asks whoever serves in a state folder.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use super::{NotPromoted, Promoted, Request, Response, Status, short_path};
use tombolo_core::coordinator::{NotObeyed, Obeyed, Wish};
use tombolo_core::ids::NodeId;
use tombolo_core::membership::NotLifted;

/// How long a process may take to answer: clients before us may each take their time.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The same for a promotion or an order: the store is asked meanwhile.
const STORE_LIMIT: Duration = Duration::from_secs(25);

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
    /// It will not or cannot.
    #[error("the process behind {} says: {message}", path.display())]
    Refused {
        /// Its socket.
        path: PathBuf,
        /// Its words.
        message: String,
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

/// Why a cool-down was not lifted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadmitError {
    /// No process of the state folder hosts the coordinator.
    #[error("no coordinator runs in the state folder {}{}", folder.display(), found.as_ref().map_or_else(String::new, |node| format!(": it is {node}, elsewhere")))]
    NoCoordinator {
        /// Where it was looked for.
        folder: PathBuf,
        /// Who it is, by the word of a process that does run there.
        found: Option<NodeId>,
    },
    /// There is none to lift.
    #[error(transparent)]
    NotLifted(NotLifted),
    /// A process could not be asked.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// The status of every process that runs in a state folder, by its first node's name. Sockets of dead processes are passed over.
pub fn processes(state: &Path) -> Vec<Result<Status, ControlError>> {
    let Some(sockets) = Sockets::of(state) else {
        return Vec::new();
    };
    let asked = sockets.names.iter().map(|name| sockets.status(name));
    asked.filter_map(Result::transpose).collect()
}

/// Lifts the cool-down of a node, through the process of the state folder that hosts the coordinator; says how many seconds were left of it.
///
/// # Errors
/// See [`ReadmitError`].
pub fn readmit(state: &Path, node: &NodeId) -> Result<f64, ReadmitError> {
    match Sockets::coordinators(state)? {
        Ok((sockets, name)) => sockets.readmit(&name, node),
        Err(Nowhere { folder, found }) => Err(ReadmitError::NoCoordinator { folder, found }),
    }
}

/// Why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// No process of the state folder hosts the coordinator.
    #[error("no coordinator runs in the state folder {}{}", folder.display(), found.as_ref().map_or_else(String::new, |node| format!(": it is {node}, elsewhere")))]
    NoCoordinator {
        /// Where it was looked for.
        folder: PathBuf,
        /// Who it is, by the word of a process that does run there.
        found: Option<NodeId>,
    },
    /// It was given, and is not carried out.
    #[error(transparent)]
    NotObeyed(NotObeyed),
    /// A process could not be asked.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Pauses a run, goes on with it or ends it, through the process of the state folder that hosts the coordinator.
///
/// # Errors
/// See [`OrderError`].
pub fn order(state: &Path, wish: Wish, by: &str) -> Result<Obeyed, OrderError> {
    let (sockets, name) = match Sockets::coordinators(state)? {
        Ok(found) => found,
        Err(Nowhere { folder, found }) => return Err(OrderError::NoCoordinator { folder, found }),
    };
    let by = by.to_owned();
    match sockets.ask_within(&name, &Request::Order { wish, by }, STORE_LIMIT)? {
        Some(Response::Obeyed { how }) => Ok(how),
        Some(Response::NotObeyed { reason }) => Err(OrderError::NotObeyed(reason)),
        Some(other) => Err(sockets.unexpected(&name, other).into()),
        None => Err(sockets.ended(&name).into()),
    }
}

/// Why nobody was promoted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromoteError {
    /// No process of the state folder hosts the node.
    #[error("{node} does not run in the state folder {}; start it, or name its state folder with --state", folder.display())]
    Elsewhere {
        /// Who.
        node: NodeId,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// It was asked, and is not.
    #[error(transparent)]
    NotPromoted(NotPromoted),
    /// A process could not be asked.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Makes a standby the coordinator, through the process of the state folder that hosts it; gives the epoch from which on it is.
///
/// # Errors
/// See [`PromoteError`].
pub fn promote(state: &Path, node: &NodeId) -> Result<Promoted, PromoteError> {
    let sockets = Sockets::of(state);
    let folder = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
    let elsewhere = PromoteError::Elsewhere {
        node: node.clone(),
        folder,
    };
    let Some(sockets) = sockets else {
        return Err(elsewhere);
    };
    let mut silent = None;
    // Its own first: the lost coordinator's process may be there and answer nobody.
    let own = super::socket_name(node);
    let (own, others): (Vec<_>, Vec<_>) = sockets.names.iter().partition(|name| **name == own);
    for name in own.into_iter().chain(others) {
        let request = Request::Promote { node: node.clone() };
        match sockets.ask_within(name, &request, STORE_LIMIT) {
            Ok(Some(Response::Promoted { epoch, already, .. })) => {
                return Ok(Promoted { epoch, already });
            }
            // Whoever it is, another process may host it.
            Ok(Some(Response::NotPromoted {
                reason: NotPromoted::Elsewhere { .. },
            }))
            | Ok(None) => {}
            Ok(Some(Response::NotPromoted { reason })) => {
                return Err(PromoteError::NotPromoted(reason));
            }
            Ok(Some(other)) => return Err(sockets.unexpected(name, other).into()),
            // It may be the one.
            Err(error) => silent = Some(error),
        }
    }
    Err(silent.map_or(elsewhere, PromoteError::from))
}

/// The control sockets of a state folder.
struct Sockets {
    folder: File,
    path: PathBuf,
    names: Vec<String>,
}

/// The coordinator is in no process of a state folder.
struct Nowhere {
    folder: PathBuf,
    /// Who it is, by the word of a process that does run there.
    found: Option<NodeId>,
}

impl Sockets {
    /// The socket of the process that hosts the coordinator.
    fn coordinators(state: &Path) -> Result<Result<(Sockets, String), Nowhere>, ControlError> {
        let (mut silent, mut found) = (None, None);
        if let Some(sockets) = Sockets::of(state) {
            for name in &sockets.names {
                match sockets.status(name) {
                    Ok(Some(status)) if status.nodes.iter().any(|node| node.coordinator) => {
                        let name = name.clone();
                        return Ok(Ok((sockets, name)));
                    }
                    Ok(Some(status)) => found = Some(status.membership.coordinator),
                    Ok(None) => {}
                    // It may be the coordinator's.
                    Err(error) => silent = Some(error),
                }
            }
        }
        if let Some(error) = silent {
            return Err(error);
        }
        let folder = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
        Ok(Err(Nowhere { folder, found }))
    }

    fn ended(&self, name: &str) -> ControlError {
        ControlError::Silent {
            path: self.path.join(name),
            reason: "it has just ended".into(),
        }
    }

    fn of(state: &Path) -> Option<Self> {
        let path = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
        let path = path.join("run");
        let (folder, entries) = (File::open(&path).ok()?, std::fs::read_dir(&path).ok()?);
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("control-") && name.ends_with(".sock"))
            .take(PROCESSES_MAX)
            .collect();
        names.sort_unstable();
        Some(Sockets {
            folder,
            path,
            names,
        })
    }

    fn ask(&self, name: &str, request: &Request) -> Result<Option<Response>, ControlError> {
        self.ask_within(name, request, ANSWER_LIMIT)
    }

    fn ask_within(
        &self,
        name: &str,
        request: &Request,
        limit: Duration,
    ) -> Result<Option<Response>, ControlError> {
        ask(&self.folder, name, &self.path.join(name), request, limit)
    }

    fn status(&self, name: &str) -> Result<Option<Status>, ControlError> {
        match self.ask(name, &Request::Status)? {
            None => Ok(None),
            Some(Response::Status(status)) => Ok(Some(*status)),
            Some(other) => Err(self.unexpected(name, other)),
        }
    }

    fn readmit(&self, name: &str, node: &NodeId) -> Result<f64, ReadmitError> {
        match self.ask(name, &Request::Readmit { node: node.clone() })? {
            Some(Response::Readmitted { left_s, .. }) => Ok(left_s),
            Some(Response::NotLifted { reason }) => Err(ReadmitError::NotLifted(reason)),
            Some(other) => Err(self.unexpected(name, other).into()),
            None => Err(self.ended(name).into()),
        }
    }

    fn unexpected(&self, name: &str, response: Response) -> ControlError {
        let path = self.path.join(name);
        match response {
            Response::Error { message } => ControlError::Refused { path, message },
            other => ControlError::Incompatible {
                path,
                reason: format!("{other:?}"),
            },
        }
    }
}

/// `None` if nobody is behind the socket.
fn ask(
    folder: &File,
    name: &str,
    path: &Path,
    request: &Request,
    limit: Duration,
) -> Result<Option<Response>, ControlError> {
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
    stream.set_read_timeout(Some(limit)).map_err(silent)?;
    stream
        .set_write_timeout(Some(ANSWER_LIMIT))
        .map_err(silent)?;
    let mut line = serde_json::to_vec(request).expect("plain data");
    line.push(b'\n');
    stream.write_all(&line).map_err(silent)?;
    let mut answer = Vec::new();
    let mut reader = BufReader::new(stream.take(ANSWER_BYTES_MAX));
    reader.read_until(b'\n', &mut answer).map_err(silent)?;
    if answer.is_empty() {
        // It ended between our connecting and its accepting.
        return Ok(None);
    }
    match serde_json::from_slice(&answer) {
        Ok(response) => Ok(Some(response)),
        Err(error) => Err(ControlError::Incompatible {
            path: path.to_owned(),
            reason: error.to_string(),
        }),
    }
}
