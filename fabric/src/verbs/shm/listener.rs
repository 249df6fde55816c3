//! The owner's thread: admits readers and hands out descriptors. Everything it holds is bounded, and nobody can make it wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::message::{self, REQUEST_LENGTH, Reply, Request};
use super::table::{Pass, Shared};

/// Admitted connections in all and of one peer. A pair needs one; a reconnect may overlap.
const ADMITTED_MAX: usize = 512;
const ADMITTED_MAX_PER_PEER: usize = 32;

/// Connections that have not said who they are. The oldest makes room, so strangers cannot shut out a peer: it greets at once.
const STRANGERS_MAX: usize = 32;

/// How long a stranger may stay silent.
const GREETING_WAIT: Duration = Duration::from_secs(2);

/// How long to leave new connections alone when there is no descriptor for them.
const SHED_PAUSE: Duration = Duration::from_millis(100);

struct Connection {
    socket: OwnedFd,
    standing: Standing,
}

enum Standing {
    Stranger { until: Instant },
    Admitted { peer: String, pass: Pass },
}

/// Whether a connection stays.
#[derive(PartialEq, Eq)]
enum Fate {
    Keep,
    Close,
}

/// Serves until the device is closed.
pub(super) fn run(shared: &Arc<Shared>, socket: &OwnedFd) {
    let mut connections: Vec<Connection> = Vec::new();
    let mut paused_until: Option<Instant> = None;
    while !shared.is_closed() {
        let ready = wait(shared, socket, &connections, paused_until);
        let now = Instant::now();
        paused_until = paused_until.filter(|&until| until > now);
        if ready.wake {
            let _ = rustix::io::read(shared.wake_file(), &mut [0; 8]);
        }
        let mut index = 0;
        let admitted = census(&connections);
        connections.retain_mut(|connection| {
            let readable = ready.connections.get(index).copied().unwrap_or(false);
            index += 1;
            serve(shared, connection, readable, now, &admitted) == Fate::Keep
        });
        if ready.listener {
            match accept(shared, socket, &mut connections, now) {
                Ok(()) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    paused_until = Some(now + SHED_PAUSE);
                }
                // The reader was gone before it was accepted, or a signal came.
                Err(_) => {}
            }
        }
    }
}

struct Ready {
    wake: bool,
    listener: bool,
    connections: Vec<bool>,
}

fn wait(
    shared: &Shared,
    socket: &OwnedFd,
    connections: &[Connection],
    paused_until: Option<Instant>,
) -> Ready {
    let until = connections
        .iter()
        .filter_map(|connection| match connection.standing {
            Standing::Stranger { until } => Some(until),
            Standing::Admitted { .. } => None,
        })
        .chain(paused_until)
        .min();
    let timeout = until.map(|until| {
        // One millisecond more than the rest, so that it is over when we look.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(left).expect("a wait of seconds fits")
    });
    let accepting = if paused_until.is_none() {
        PollFlags::IN
    } else {
        PollFlags::empty()
    };
    let mut files = vec![
        PollFd::new(shared.wake_file(), PollFlags::IN),
        PollFd::new(socket, accepting),
    ];
    files.extend(
        connections
            .iter()
            .map(|connection| PollFd::new(&connection.socket, PollFlags::IN)),
    );
    // An interrupted wait is one in which nothing is ready.
    let _ = rustix::event::poll(&mut files, timeout.as_ref());
    let mut ready = files.iter().map(|file| !file.revents().is_empty());
    Ready {
        wake: ready.next().unwrap_or(false),
        listener: ready.next().unwrap_or(false),
        connections: ready.collect(),
    }
}

/// Names of the admitted, one each.
fn census(connections: &[Connection]) -> Vec<String> {
    connections
        .iter()
        .filter_map(|connection| match &connection.standing {
            Standing::Admitted { peer, .. } => Some(peer.clone()),
            Standing::Stranger { .. } => None,
        })
        .collect()
}

/// Takes at most one request, so that all have their turn.
fn serve(
    shared: &Shared,
    connection: &mut Connection,
    readable: bool,
    now: Instant,
    admitted: &[String],
) -> Fate {
    let fits = match &connection.standing {
        Standing::Stranger { until } => *until > now,
        Standing::Admitted { peer, pass } => shared.holds(peer, *pass),
    };
    if !fits {
        return Fate::Close;
    }
    if !readable {
        return Fate::Keep;
    }
    let mut buffer = [0; REQUEST_LENGTH + 1];
    let request = match message::receive_request(&connection.socket, &mut buffer) {
        Ok(length) => Request::from_bytes(&buffer[..length]),
        Err(Errno::AGAIN | Errno::INTR) => return Fate::Keep,
        Err(_) => None,
    };
    match (&connection.standing, request) {
        (Standing::Stranger { .. }, Some(Request::Hello { name, token })) => {
            let Some(pass) = shared.admit(&name, &token) else {
                let _ = message::send_reply(&connection.socket, Reply::Denied, None);
                return Fate::Close;
            };
            let of_peer = admitted.iter().filter(|peer| **peer == name).count();
            if admitted.len() >= ADMITTED_MAX || of_peer >= ADMITTED_MAX_PER_PEER {
                let _ = message::send_reply(&connection.socket, Reply::Busy, None);
                return Fate::Close;
            }
            connection.standing = Standing::Admitted { peer: name, pass };
            let welcome = Reply::Welcome {
                seat: pass.seat,
                grant: pass.grant,
            };
            fate(message::send_reply(
                &connection.socket,
                welcome,
                Some(shared.board_file()),
            ))
        }
        (Standing::Admitted { .. }, Some(Request::Map { key })) => match shared.region(key) {
            Some((len, file)) => fate(message::send_reply(
                &connection.socket,
                Reply::Memory { key, len },
                Some(file.as_fd()),
            )),
            None => fate(message::send_reply(
                &connection.socket,
                Reply::NoRegion { key },
                None,
            )),
        },
        // Gone, malformed, or out of turn.
        _ => Fate::Close,
    }
}

fn fate(sent: Result<(), Errno>) -> Fate {
    match sent {
        Ok(()) => Fate::Keep,
        Err(_) => Fate::Close,
    }
}

/// Takes one new connection, if it is this user's.
fn accept(
    shared: &Shared,
    socket: &OwnedFd,
    connections: &mut Vec<Connection>,
    now: Instant,
) -> Result<(), Errno> {
    let accepted = rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    let user = rustix::net::sockopt::socket_peercred(&accepted)?.uid;
    if user != rustix::process::geteuid() {
        return Ok(());
    }
    let mut connection = Connection {
        socket: accepted,
        standing: Standing::Stranger {
            until: now + GREETING_WAIT,
        },
    };
    let admitted = census(connections);
    if serve(shared, &mut connection, true, now, &admitted) == Fate::Close {
        return Ok(());
    }
    let is_stranger =
        |connection: &Connection| matches!(connection.standing, Standing::Stranger { .. });
    if is_stranger(&connection)
        && connections
            .iter()
            .filter(|other| is_stranger(other))
            .count()
            >= STRANGERS_MAX
        && let Some(oldest) = connections.iter().position(is_stranger)
    {
        connections.remove(oldest);
    }
    connections.push(connection);
    Ok(())
}
