//! The owner's thread: admits readers, makes queue pairs that serve them, and tells where regions are. READs do not pass here: devices
//! serve them. Everything it holds is bounded, and nobody can make it wait.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::message::{
    self, Card, Frame, Nonce, Proof, REQUEST_LENGTH, Received, Reply, Request, Side, Window,
};
use super::objects::{Pair, Route};
use super::table::Shared;
use crate::folder::random;

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
    stream: TcpStream,
    request: Frame<REQUEST_LENGTH>,
    standing: Standing,
}

enum Standing {
    Stranger {
        nonce: Nonce,
        until: Instant,
    },
    Admitted {
        peer: String,
        grant: u64,
        pair: Arc<Pair>,
    },
}

impl Connection {
    fn is_stranger(&self) -> bool {
        matches!(self.standing, Standing::Stranger { .. })
    }
}

/// Whether a connection stays.
#[derive(PartialEq, Eq)]
enum Fate {
    Keep,
    Close,
}

/// Serves until the device is closed.
pub(super) fn run(shared: &Arc<Shared>, socket: &TcpListener) {
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
            let fate = serve(shared, connection, readable, now, &admitted);
            if fate == Fate::Close
                && let Standing::Admitted { pair, .. } = &connection.standing
            {
                shared.dismiss(pair);
            }
            fate == Fate::Keep
        });
        if ready.listener {
            match accept(socket, &mut connections, now) {
                Ok(()) => {}
                // The reader was gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => paused_until = Some(now + SHED_PAUSE),
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
    socket: &TcpListener,
    connections: &[Connection],
    paused_until: Option<Instant>,
) -> Ready {
    let until = connections
        .iter()
        .filter_map(|connection| match connection.standing {
            Standing::Stranger { until, .. } => Some(until),
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
            .map(|connection| PollFd::new(&connection.stream, PollFlags::IN)),
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
    match &connection.standing {
        Standing::Stranger { until, .. } if *until <= now => return Fate::Close,
        Standing::Admitted { peer, grant, .. } if !shared.holds(peer, *grant) => {
            // A closed device is gone for all, and has revoked nobody.
            if !shared.is_closed() {
                let _ = reply(connection, Reply::Revoked);
            }
            return Fate::Close;
        }
        _ => {}
    }
    if !readable {
        return Fate::Keep;
    }
    let request = match connection.request.receive(&mut connection.stream) {
        Received::Whole(bytes) => Request::from_bytes(&bytes),
        Received::Part => return Fate::Keep,
        Received::Gone => None,
    };
    match (&connection.standing, request) {
        (
            Standing::Stranger { nonce, .. },
            Some(Request::Hello {
                name,
                card,
                nonce: theirs,
                proof,
            }),
        ) => {
            let greeting = Greeting {
                nonces: [*nonce, theirs],
                name,
                card,
                proof,
            };
            let of_peer = |peer: &str| admitted.iter().filter(|other| *other == peer).count();
            let is_full =
                admitted.len() >= ADMITTED_MAX || of_peer(&greeting.name) >= ADMITTED_MAX_PER_PEER;
            greet(shared, connection, greeting, is_full)
        }
        (Standing::Admitted { .. }, Some(Request::Locate { key })) => {
            let said = shared
                .region(key)
                .map_or(Reply::NoRegion { key }, |window: Window| Reply::Region {
                    key,
                    window,
                });
            reply(connection, said)
        }
        // Gone, malformed, or out of turn.
        _ => Fate::Close,
    }
}

struct Greeting {
    nonces: [Nonce; 2],
    name: String,
    card: Card,
    proof: Proof,
}

fn greet(shared: &Shared, connection: &mut Connection, greeting: Greeting, is_full: bool) -> Fate {
    let Greeting {
        nonces: [ours, theirs],
        name,
        card,
        proof,
    } = greeting;
    let refuse = |connection: &mut Connection, reason| {
        let _ = reply(connection, reason);
        Fate::Close
    };
    let Some((grant, token)) = shared.granted(&name) else {
        return refuse(connection, Reply::Denied);
    };
    let expected = message::prove(&token, Side::Reader, [&ours, &theirs], &name, card);
    if !message::is_same(&expected, &proof) {
        return refuse(connection, Reply::Denied);
    }
    if is_full {
        return refuse(connection, Reply::Busy);
    }
    // What fails here is the device's want of something, or a card that does not fit its tables.
    let Ok((pair, own)) = ready_pair(shared, card) else {
        return refuse(connection, Reply::Busy);
    };
    if !shared.serve(&name, grant, &pair) {
        return refuse(connection, Reply::Denied);
    }
    connection.standing = Standing::Admitted {
        peer: name.clone(),
        grant,
        pair,
    };
    let proof = message::prove(&token, Side::Owner, [&ours, &theirs], &name, own);
    reply(connection, Reply::Welcome { card: own, proof })
}

/// A queue pair that can answer the reader with this card.
fn ready_pair(shared: &Shared, reader: Card) -> io::Result<(Arc<Pair>, Card)> {
    let gid = shared
        .port
        .gid_towards(&reader.gid)
        .ok_or(io::ErrorKind::AddrNotAvailable)?;
    let pair = shared.server()?;
    let own = Card {
        gid: gid.bytes,
        number: pair.number(),
        sequence: sequence()?,
        message_max: shared.link.message_max,
        mtu: shared.link.mtu,
        reads: shared.link.reads_served,
    };
    pair.connect(&Route {
        port: shared.port.number,
        source_index: gid.index,
        target: reader.gid,
        number: reader.number,
        sequences: (own.sequence, reader.sequence),
        mtu: own.mtu.min(reader.mtu),
        reads: own.reads.min(reader.reads),
    })?;
    Ok((pair, own))
}

/// Where the packets of a new queue pair begin to count: at random, so that none of an earlier one fits.
pub(super) fn sequence() -> io::Result<u32> {
    Ok(u32::from_le_bytes(random::<4>()?) >> 8)
}

fn reply(connection: &mut Connection, reply: Reply) -> Fate {
    match message::send(&mut connection.stream, &reply.to_bytes()) {
        Ok(()) => Fate::Keep,
        Err(_) => Fate::Close,
    }
}

/// Takes one new connection.
fn accept(socket: &TcpListener, connections: &mut Vec<Connection>, now: Instant) -> io::Result<()> {
    let (stream, _) = socket.accept()?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let nonce = random()?;
    let mut connection = Connection {
        stream,
        request: Frame::new(),
        standing: Standing::Stranger {
            nonce,
            until: now + GREETING_WAIT,
        },
    };
    if reply(&mut connection, Reply::Challenge { nonce }) == Fate::Close {
        return Ok(());
    }
    let strangers = connections.iter().filter(|other| other.is_stranger());
    if strangers.count() >= STRANGERS_MAX
        && let Some(oldest) = connections.iter().position(Connection::is_stranger)
    {
        connections.remove(oldest);
    }
    connections.push(connection);
    Ok(())
}
