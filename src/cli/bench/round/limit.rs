//! What a round is measured against: the same bytes over loopback without sums, hashes or files, through a plain TCP connection, and through
//! the QUIC and TLS that a round uses.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path as Folder;

use super::super::link::{Path, Taken, object, passes, quic::Quic};
use super::super::measure::{Measurement, cpu_seconds, now};

/// Bytes of one write: large enough that calls cost nothing, small enough to stay in cache.
const PIECE: usize = 256 << 10;

/// One connection, over which each node's update goes up and each node's model down, one after the other.
struct Round {
    connection: Quic,
    transfers: usize,
}

impl Path for Round {
    fn pass(&mut self, is_first: bool) -> io::Result<bool> {
        let mut right = true;
        for _ in 0..self.transfers {
            right &= self.connection.pass(is_first)?;
        }
        Ok(right)
    }
}

/// By QUIC, with TLS, as nodes are connected: what moving the bytes alone costs.
pub fn quic(
    folder: &Folder,
    nodes: usize,
    model_bytes: u64,
    rounds: u64,
) -> io::Result<Measurement> {
    let object = object(model_bytes as usize);
    let mut round = Round {
        connection: Quic::open(folder, &object, Taken::InPieces, u16::MAX)?,
        transfers: 2 * nodes,
    };
    let measurement = passes("limit-quic", &mut round, model_bytes, rounds as usize)?;
    Ok(Measurement {
        group: "round",
        case: "the same bytes, TLS".into(),
        n: nodes,
        ..measurement
    })
}

/// By plain TCP: sends each node's update up and each node's model down, one after the other.
pub fn tcp(nodes: usize, model_bytes: u64, rounds: u64) -> io::Result<Measurement> {
    let piece: Vec<u8> = (0..PIECE).map(|at| (at % 251) as u8).collect();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    sender.set_nodelay(true)?;
    let (mut receiver, _) = listener.accept()?;
    let bytes = 2 * nodes as u64 * model_bytes;
    let (mut seconds, mut ok) = (Vec::new(), true);
    let before = cpu_seconds(std::process::id())?;
    for _ in 0..rounds {
        let began = now();
        ok &= std::thread::scope(|scope| {
            let received = scope.spawn(|| receive(&mut receiver, &piece, bytes));
            send(&mut sender, &piece, bytes)?;
            received.join().unwrap_or(Ok(false))
        })?;
        seconds.push((now() - began).as_secs_f64());
    }
    let used = cpu_seconds(std::process::id())? - before;
    Ok(Measurement {
        group: "round",
        peer: "limit-tcp",
        case: "the same bytes, plain".into(),
        n: nodes,
        bytes: model_bytes,
        seconds,
        cpu_s_per_op: used / rounds as f64,
        ok,
        more: serde_json::Map::new(),
    })
}

fn send(stream: &mut TcpStream, piece: &[u8], bytes: u64) -> io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let part = &piece[..left.min(PIECE as u64) as usize];
        stream.write_all(part)?;
        left -= part.len() as u64;
    }
    Ok(())
}

/// Whether what comes is what was sent.
fn receive(stream: &mut TcpStream, piece: &[u8], bytes: u64) -> io::Result<bool> {
    let (mut left, mut ok) = (bytes, true);
    let mut found = vec![0; PIECE];
    while left > 0 {
        let length = left.min(PIECE as u64) as usize;
        stream.read_exact(&mut found[..length])?;
        ok &= found[..length] == piece[..length];
        left -= length as u64;
    }
    Ok(ok)
}
