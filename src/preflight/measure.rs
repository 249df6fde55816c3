//! Measures one link, from either end of its connection.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quinn::Connection;
use tombolo_actors::env::Env;
use tombolo_actors::link::stripes::{Forming, Writer};
use tombolo_actors::quic;
use tombolo_core::clock::Filter;
use tombolo_core::ids::NodeId;
use tombolo_core::time::Micros;
use tombolo_core::wire::{Exchange, codec};

use super::talk::{
    Echo, Echoed, FLOW_BYTES_MAX, FLOW_LIMIT, Flow, Hello, Link, PROBES_MAX, Probe, Side, Talk,
    Way, Word, flow,
};
use crate::world::unix_micros;

/// Probes of one link: enough that one lost in a hundred shows.
const PROBES: u32 = 500;

/// Between two probes: all of them take two seconds, and next to nothing of a path.
const PROBE_EVERY: Duration = Duration::from_millis(4);

/// How long the last echo is waited for, at least.
const ECHO_LIMIT: Duration = Duration::from_secs(1);

/// Until what a flow has left in the queues of the path is gone, at least.
const REST: Duration = Duration::from_millis(300);

/// A flow that does not even begin within that time is given up.
const FLOW_START_LIMIT: Duration = Duration::from_secs(10);

/// What the sender hands to QUIC at a time.
const PIECE: usize = 128 << 10;

/// Moments of a flow that are kept; of a faster one every so many pieces are added up.
const MOMENTS_MAX: usize = 8192;

/// A peer that was met: both have said hello, and it is the one that the plan means.
pub struct Met {
    /// This node.
    pub node: NodeId,
    /// The other.
    pub peer: NodeId,
    /// Whether this node has dialled, and so leads.
    pub leads: bool,
    pub connection: Connection,
    pub talk: Talk,
    /// The other's hello.
    pub theirs: Hello,
    /// This node's.
    pub ours: Hello,
}

impl Met {
    /// Asks for something, as the leader.
    async fn ask(&mut self, word: &Word) -> Result<Word, String> {
        self.talk.say(word).await?;
        self.talk.hear().await
    }

    fn side(&self) -> Side {
        let path = self.connection.stats().path;
        Side {
            packet_bytes: path.current_mtu,
            black_holes: path.black_holes_detected,
        }
    }

    /// Measures everything, as the leader, and hands the other its copy.
    pub async fn lead(&mut self, env: &dyn Env) -> Result<Link, String> {
        // Flows first: a law that has seen nothing but small packets for seconds no longer looks for the pace of the path.
        self.talk.say(&Word::Send).await?;
        let back = take_flow(&self.connection, env).await?;
        self.rest(env).await;
        self.talk.say(&Word::Take).await?;
        send_flow(&self.connection, env).await?;
        let Word::Took(there) = self.talk.hear().await? else {
            return Err(self.misspoken());
        };
        self.rest(env).await;
        let probed = self.probe(env).await?;
        let Word::Side(theirs) = self.ask(&Word::Look).await? else {
            return Err(self.misspoken());
        };
        let link = Link {
            from: self.node.clone(),
            to: self.peer.clone(),
            address: self.connection.remote_address(),
            round_trip_us: probed.round_trip_us,
            offset_us: probed.offset_us,
            bound_us: probed.bound_us,
            there: Way {
                probes: PROBES,
                came: probed.there,
                flow: there,
                side: self.side(),
                buffers: (self.ours.buffers.1, self.theirs.buffers.0),
            },
            back: Way {
                probes: probed.there,
                came: probed.back,
                flow: back,
                side: theirs,
                buffers: (self.theirs.buffers.1, self.ours.buffers.0),
            },
        };
        match self.ask(&Word::Measured(Box::new(link.clone()))).await? {
            Word::Noted => Ok(link),
            _ => Err(self.misspoken()),
        }
    }

    /// Does what the leader asks for, until it has handed over what came of it.
    pub async fn follow(&mut self, env: &Arc<dyn Env>) -> Result<Link, String> {
        let came = Rc::new(Cell::new(0));
        let echoing = echo(self.connection.clone(), env.clone(), came.clone());
        let _echoing = tombolo_actors::shell::AbortOnDrop(tokio::task::spawn_local(echoing));
        // A peer that asks twice gets no second flow.
        let (mut may_send, mut may_take) = (true, true);
        loop {
            match self.talk.hear().await? {
                Word::Probed => {
                    let echoed = Echoed {
                        came: came.get(),
                        now: env.now(),
                        unix_us: unix_micros(),
                    };
                    self.talk.say(&Word::Echoed(echoed)).await?;
                }
                Word::Send if std::mem::take(&mut may_send) => {
                    send_flow(&self.connection, env.as_ref()).await?;
                }
                Word::Take if std::mem::take(&mut may_take) => {
                    let took = take_flow(&self.connection, env.as_ref()).await?;
                    self.talk.say(&Word::Took(took)).await?;
                }
                Word::Look => {
                    let side = self.side();
                    self.talk.say(&Word::Side(side)).await?;
                }
                Word::Measured(link) if link.from == self.peer && link.to == self.node => {
                    self.talk.say(&Word::Noted).await?;
                    return Ok(*link);
                }
                _ => return Err(self.misspoken()),
            }
        }
    }

    fn misspoken(&self) -> String {
        let peer = &self.peer;
        format!("{peer} says something that is not its turn to say; is it another version?")
    }

    async fn rest(&self, env: &dyn Env) {
        env.sleep(REST + 4 * self.connection.rtt()).await;
    }

    async fn probe(&mut self, env: &dyn Env) -> Result<Probed, String> {
        let mut filter = Filter::new();
        let mut round_trips: Vec<Option<u64>> = vec![None; PROBES as usize];
        let connection = self.connection.clone();
        let sending = async {
            for number in 0..PROBES {
                let probe = Probe {
                    number,
                    t1: env.now(),
                };
                let bytes = codec::encode(&probe).map_err(|error| error.to_string())?;
                let sent = connection.send_datagram(bytes.into());
                sent.map_err(|error| error.to_string())?;
                env.sleep(PROBE_EVERY).await;
            }
            env.sleep(ECHO_LIMIT.max(3 * connection.rtt())).await;
            Ok::<(), String>(())
        };
        let receiving = async {
            loop {
                let read = connection.read_datagram().await;
                let bytes = match read {
                    Ok(bytes) => bytes,
                    Err(error) => return error.to_string(),
                };
                let t4 = env.now();
                let Ok(Echo { number, t1, t2, t3 }) = codec::decode(&bytes) else {
                    continue;
                };
                let Some(place) = round_trips.get_mut(number as usize) else {
                    continue;
                };
                let exchange = Exchange { t1, t2, t3, t4 };
                let spent = exchange.round_trip().as_micros();
                if place.is_none() {
                    *place = Some(u64::try_from(spent).unwrap_or(u64::MAX));
                    filter.on_exchange(exchange);
                }
            }
        };
        tokio::select! {
            biased;
            broken = receiving => return Err(broken),
            sent = sending => sent?,
        }
        let Word::Echoed(echoed) = self.ask(&Word::Probed).await? else {
            return Err(self.misspoken());
        };
        let (now, unix_us) = (env.now(), unix_micros());
        let mut came: Vec<u64> = round_trips.into_iter().flatten().collect();
        came.sort_unstable();
        let rank = |share: usize| came.get((came.len() * share / 100).min(came.len().max(1) - 1));
        let (Some(median), Some(late)) = (rank(50), rank(99)) else {
            return Err(format!(
                "none of {PROBES} datagrams came back, though streams do"
            ));
        };
        let known = filter.estimate(now);
        let known = known.ok_or("the stamps of the two clocks contradict each other")?;
        // How far the wall clock is ahead of the monotonic one, there and here.
        let ahead = |unix_us: u64, now: Micros| i128::from(unix_us) - i128::from(now.0);
        let offset = ahead(echoed.unix_us, echoed.now) - ahead(unix_us, now);
        let offset = offset + i128::from(known.offset_us);
        Ok(Probed {
            round_trip_us: (*median, *late),
            there: echoed.came.min(PROBES),
            back: u32::try_from(came.len()).unwrap_or(u32::MAX),
            offset_us: i64::try_from(offset).unwrap_or(i64::MAX),
            bound_us: u64::try_from(known.bound.as_micros()).unwrap_or(u64::MAX),
        })
    }
}

/// What probes have shown.
struct Probed {
    round_trip_us: (u64, u64),
    there: u32,
    back: u32,
    offset_us: i64,
    bound_us: u64,
}

/// Sends probes back as they come, up to a bound. Other datagrams only keep the connection alive.
async fn echo(connection: Connection, env: Arc<dyn Env>, came: Rc<Cell<u32>>) {
    while let Ok(bytes) = connection.read_datagram().await {
        let t2 = env.now();
        let Ok(Probe { number, t1 }) = codec::decode(&bytes) else {
            continue;
        };
        if came.get() >= PROBES_MAX {
            return;
        }
        came.set(came.get() + 1);
        let t3 = env.now();
        let echo = codec::encode(&Echo { number, t1, t2, t3 });
        // One that cannot be sent is one that is lost.
        let _ = echo.map(|echo| connection.send_datagram(echo.into()));
    }
}

/// Sends until the receiver has enough, the bytes are out, or the time is up. A flow goes over as many streams as a large object.
async fn send_flow(connection: &Connection, env: &dyn Env) -> Result<(), String> {
    let stripes = quic::stripes(env.carries(connection.remote_address()));
    let mut stream = Writer::open(connection, 0, FLOW_BYTES_MAX, stripes, None).await?;
    let piece = Bytes::from_static(&[0; PIECE]);
    let writing = async {
        for _ in 0..FLOW_BYTES_MAX / PIECE as u64 {
            // The receiver has seen enough.
            if stream.write(piece.clone()).await.is_err() {
                return;
            }
        }
        // Fails only if the receiver has seen enough.
        let _ = stream.finish().await;
    };
    tokio::select! {
        biased;
        () = writing => {}
        () = env.sleep(FLOW_LIMIT + FLOW_START_LIMIT) => {}
    }
    stream.reset();
    Ok(())
}

/// Takes a flow for as long as one may last.
async fn take_flow(connection: &Connection, env: &dyn Env) -> Result<Flow, String> {
    let mut forming = Forming::default();
    let beginning = async {
        loop {
            let stream = connection.accept_uni().await;
            let stream = stream.map_err(|error| error.to_string())?;
            if let Some((_, reader)) = forming.begin(stream).await? {
                return Ok(reader);
            }
        }
    };
    let began = tokio::select! {
        biased;
        stream = beginning => stream,
        () = env.sleep(FLOW_START_LIMIT) => Err(format!("no flow began within {FLOW_START_LIMIT:?}")),
    };
    let mut stream = began?;
    let mut came: Vec<(Micros, u64)> = Vec::new();
    let mut bytes = 0_u64;
    let reading = async {
        let mut since = 0_u64;
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX).await {
            bytes += chunk.len() as u64;
            since += chunk.len() as u64;
            if came.is_empty() || since >= FLOW_BYTES_MAX / MOMENTS_MAX as u64 {
                since = 0;
                came.push((env.now(), bytes));
            }
            if bytes >= FLOW_BYTES_MAX {
                break;
            }
        }
    };
    tokio::select! {
        biased;
        () = reading => {}
        () = env.sleep(FLOW_LIMIT) => {}
    }
    // Whoever sends learns that it is enough.
    drop(stream);
    came.push((env.now(), bytes));
    Ok(flow(&came))
}
