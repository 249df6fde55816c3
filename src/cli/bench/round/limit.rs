//! What a round is measured against: the same bytes through a plain TCP connection on loopback, without TLS, sums or files.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use super::super::measure::{Measurement, cpu_seconds, now};

/// Bytes of one write: large enough that calls cost nothing, small enough to stay in cache.
const PIECE: usize = 256 << 10;

/// Sends each node's update up and each node's step down, one after the other.
pub fn measure(nodes: usize, model_bytes: u64, rounds: u64) -> io::Result<Measurement> {
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
