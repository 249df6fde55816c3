//! What runs here? Each process that hosts nodes answers over a UNIX socket in the state folder, readable by its owner only.
//!
//! One request, one answer, each a line of JSON; then the connection is closed. [`Control`] is the serving side, [`processes`] asks everyone
//! who serves in a folder.

mod client;
mod status;

pub use client::{
    ControlError, OrderError, PromoteError, ReadmitError, order, processes, promote, readmit,
};
pub use status::{
    LinkState, LinkStatus, MemberStatus, MembershipStatus, NodeStatus, NotPromoted, Open, Request,
    Response, RoundMode, RoundsStatus, Status,
};
pub use tombolo_actors::coordinator::Promoted;

pub(crate) use status::{History, Sources};

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use tombolo_actors::coordinator;
use tombolo_actors::env::Class;
use tombolo_core::coordinator::{Order, Wish};
use tombolo_core::ids::NodeId;
use tombolo_core::text::clip_to;

/// The longest request: a word and its braces need far less.
const REQUEST_BYTES_MAX: u64 = 4096;

/// How long a client may take to ask and to read; clients are served one after another.
const CLIENT_LIMIT: Duration = Duration::from_millis(500);

/// How long an actor may take to answer what a client asked of it.
const ACTOR_LIMIT: Duration = Duration::from_secs(2);

/// How long an order may take: a pause is written to the store first.
const ORDER_LIMIT: Duration = Duration::from_secs(20);

/// The longest name of one who gives an order, in bytes.
const NAME_MAX: usize = 64;

/// How long a promotion may take: the store is asked a few times.
const PROMOTION_LIMIT: Duration = Duration::from_secs(20);

/// Clients that may wait meanwhile.
const BACKLOG: i32 = 16;

/// Serves until it is dropped.
pub(crate) struct Control {
    folder: File,
    name: String,
}

impl Control {
    /// Begins to serve in the state folder, under the name of this process's first node.
    pub fn serve(state: &Path, first: &NodeId, sources: Sources) -> io::Result<Control> {
        let path = state.join("run");
        let name = socket_name(first);
        let named = |error: io::Error| {
            let path = path.join(&name);
            io::Error::new(
                error.kind(),
                format!("cannot serve status at {}: {error}", path.display()),
            )
        };
        std::fs::create_dir_all(&path).map_err(named)?;
        let folder = File::open(&path).map_err(named)?;
        let socket = bind(&folder, &name).map_err(|error| named(error.into()))?;
        let socket = std::os::unix::net::UnixListener::from(socket);
        let env = sources.env.clone();
        env.spawn(
            Class::Node,
            Box::new(move || Box::pin(serve(socket, sources))),
        );
        Ok(Control { folder, name })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // What is left over is found to be dead by whoever connects.
        let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}

/// The socket of a process by its first node.
fn socket_name(first: &NodeId) -> String {
    format!("control-{}.{}.sock", first.domain(), first.name())
}

/// A listening socket at `name` in `folder`. The path to it is short however long the folder's own is: a socket address holds 107 bytes.
fn bind(folder: &File, name: &str) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before the name exists, so that there is no moment in which others could connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    // The first node's own folder is locked by this process: a socket that is there belongs to the dead.
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    let address = SocketAddrUnix::new(short_path(folder, name))?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn short_path(folder: &File, name: &str) -> String {
    format!("/proc/self/fd/{}/{name}", folder.as_raw_fd())
}

async fn serve(socket: std::os::unix::net::UnixListener, sources: Sources) {
    let listener = match UnixListener::from_std(socket) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "status is not served"),
    };
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                if let Err(error) = attend(client, &sources).await {
                    tracing::debug!(%error, "a client of the control socket went away");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a client of the control socket was not accepted");
                sources.env.sleep(CLIENT_LIMIT).await;
            }
        }
    }
}

async fn attend(mut client: UnixStream, sources: &Sources) -> io::Result<()> {
    let uid = client.peer_cred()?.uid();
    let (reader, mut writer) = client.split();
    let mut line = Vec::new();
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX));
    tokio::time::timeout(CLIENT_LIMIT, reader.read_until(b'\n', &mut line)).await??;
    let response = match serde_json::from_slice::<Request>(&line) {
        Ok(Request::Status) => Response::Status(Box::new(sources.status())),
        Ok(Request::Readmit { node }) => readmitted(node, sources).await,
        Ok(Request::Promote { node }) => promoted(node, sources).await,
        Ok(Request::Order { wish, by }) => ordered(wish, &by, uid, sources).await,
        Err(error) => Response::Error {
            message: format!(
                "expected one line of at most {REQUEST_BYTES_MAX} bytes, {{\"request\":\"status\"}} for instance: {error}"
            ),
        },
    };
    let mut bytes = serde_json::to_vec(&response)?;
    bytes.push(b'\n');
    let written = async {
        writer.write_all(&bytes).await?;
        writer.shutdown().await
    };
    tokio::time::timeout(CLIENT_LIMIT, written).await?
}

async fn promoted(node: NodeId, sources: &Sources) -> Response {
    let coordinator = match sources.standby(&node) {
        Ok(coordinator) => coordinator,
        Err(reason) => return Response::NotPromoted { reason },
    };
    let asked = coordinator.ask(coordinator::Message::Promote);
    match tokio::time::timeout(PROMOTION_LIMIT, asked).await {
        Ok(Ok(Ok(Promoted { epoch, already }))) => Response::Promoted {
            node,
            epoch,
            already,
        },
        Ok(Ok(Err(reason))) => Response::NotPromoted {
            reason: NotPromoted::Refused { node, reason },
        },
        Ok(Err(error)) => Response::Error {
            message: format!("{node} does not answer: {error}"),
        },
        Err(_) => Response::Error {
            message: format!(
                "{node} did not answer within {PROMOTION_LIMIT:?} and may still become coordinator; `tombolo status` shows whether it did: does the store answer?"
            ),
        },
    }
}

/// Asks the coordinator for something that concerns the whole run. Who asks may say a name; whose process it is the kernel says.
async fn ordered(wish: Wish, by: &str, uid: u32, sources: &Sources) -> Response {
    let Some(coordinator) = sources.coordinator() else {
        let message = "the coordinator is not in this process".to_owned();
        return Response::Error { message };
    };
    let by = match clip_to(by, NAME_MAX) {
        name if name.is_empty() => format!("user {uid}"),
        name => format!("{name} (user {uid})"),
    };
    let unix = sources.env.unix_time();
    let order = Order { wish, by, unix };
    let question = |reply| coordinator::Message::Order(order, reply);
    let answer = tokio::time::timeout(ORDER_LIMIT, coordinator.ask(question)).await;
    match answer {
        Ok(Ok(Ok(how))) => Response::Obeyed { how },
        Ok(Ok(Err(reason))) => Response::NotObeyed { reason },
        Ok(Err(error)) => Response::Error {
            message: format!("the coordinator does not answer: {error}"),
        },
        Err(_) => Response::Error {
            message: format!(
                "the coordinator did not answer within {ORDER_LIMIT:?} and may still obey; `tombolo status` shows whether it did: does the store answer?"
            ),
        },
    }
}

async fn readmitted(node: NodeId, sources: &Sources) -> Response {
    let Some(coordinator) = sources.coordinator() else {
        let message = "the coordinator is not in this process".to_owned();
        return Response::Error { message };
    };
    let question = |reply| coordinator::Message::Readmit(node.clone(), reply);
    let answer = tokio::time::timeout(ACTOR_LIMIT, coordinator.ask(question)).await;
    match answer {
        Ok(Ok(Ok(left))) => Response::Readmitted {
            left_s: left.as_secs_f64(),
            node,
        },
        Ok(Ok(Err(reason))) => Response::NotLifted { reason },
        Ok(Err(error)) => Response::Error {
            message: format!("the coordinator does not answer: {error}"),
        },
        Err(_) => Response::Error {
            message: format!("the coordinator did not answer within {ACTOR_LIMIT:?}"),
        },
    }
}
