//! One object over one path, under each law.

use std::io;
use std::time::Duration;

use serde_json::json;

use super::{Found, Peer, SEED, fields, queue, rounded, timed};
use tombolo::simulation::flows::{Flows, path};

/// What ours must have of a path's rate.
const SHARE_LEAST: f64 = 0.85;
/// And of what the better of the others has.
const BEST_LEAST: f64 = 0.9;
/// The longest mean wait in the queue, in ms; a fifth of BBR's is enough where that is more.
const QUEUE_MOST: f64 = 8.0;

/// A path, and what is moved over it.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    round_trip_ms: u64,
    loss: f64,
    megabits: u64,
    bytes: u64,
}

const fn cell(round_trip_ms: u64, loss: f64, megabits: u64, bytes: u64) -> Cell {
    Cell {
        round_trip_ms,
        loss,
        megabits,
        bytes,
    }
}

/// Six that differ in everything. They move some ten thousand packets each, and yet so many that the start is a small part.
pub const CI: [Cell; 6] = [
    cell(20, 0.0, 5, 2_500_000),
    cell(20, 0.01, 50, 25_000_000),
    cell(60, 0.001, 50, 25_000_000),
    cell(60, 0.0, 200, 40_000_000),
    cell(150, 0.01, 50, 50_000_000),
    cell(300, 0.001, 5, 12_500_000),
];

/// 100 MB over each path of these rates.
pub fn matrix(megabits: &[u64]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for round_trip in [20, 60, 150, 300] {
        for loss in [0.0, 0.001, 0.01] {
            for rate in megabits {
                cells.push(cell(round_trip, loss, *rate, 100_000_000));
            }
        }
    }
    cells
}

/// What was found of one transfer.
#[derive(Debug, Clone, Copy)]
struct Transfer {
    seconds: f64,
    share: f64,
    queue_ms: f64,
    dropped: f64,
    cpu_s: f64,
}

pub fn measure(cell: Cell) -> io::Result<Vec<Found>> {
    let named = |peer: Peer| {
        let name = peer.name();
        move |error: io::Error| io::Error::other(format!("{name}, {}: {error}", cell.name()))
    };
    let moved = |peer| transfer(peer, cell).map_err(named(peer));
    let (ours, cubic, bbr) = (moved(Peer::Ours)?, moved(Peer::Cubic)?, moved(Peer::Bbr)?);
    let best = cubic.share.max(bbr.share);
    let queue_most = (bbr.queue_ms / 5.0).max(QUEUE_MOST);
    let mut found = cell.found(Peer::Ours, ours);
    found.aim([
        ("share", ours.share >= SHARE_LEAST),
        ("best of the others", ours.share >= BEST_LEAST * best),
        ("queue", ours.queue_ms <= queue_most),
    ]);
    let others = [cell.found(Peer::Cubic, cubic), cell.found(Peer::Bbr, bbr)];
    Ok([found].into_iter().chain(others).collect())
}

impl Cell {
    pub fn name(self) -> String {
        format!(
            "{} ms, {} % loss, {} Mbit/s",
            self.round_trip_ms,
            self.loss * 100.0,
            self.megabits
        )
    }

    fn found(self, peer: Peer, transfer: Transfer) -> Found {
        Found {
            peer,
            case: self.name(),
            flows: 1,
            bytes: self.bytes,
            seconds: transfer.seconds,
            cpu_s: transfer.cpu_s,
            more: fields(json!({
                "share": rounded(transfer.share),
                "queue_ms": rounded(transfer.queue_ms),
                "dropped": rounded(transfer.dropped),
            })),
        }
    }
}

fn transfer(peer: Peer, cell: Cell) -> io::Result<Transfer> {
    let rate = cell.megabits * 1_000_000;
    let path = path(Duration::from_millis(cell.round_trip_ms), cell.loss, rate);
    let ((seconds, seen), cpu_s) = timed(|| {
        Flows::run(SEED, path, 1, move |flows| async move {
            let flow = flows.open(peer.law()).await?;
            let began = flows.now();
            flow.send(cell.bytes);
            flows.until(0, cell.bytes).await?;
            Ok(((flows.now() - began).as_secs_f64(), flows.statistics()))
        })
    })?;
    let (queue_ms, dropped) = queue(&seen);
    Ok(Transfer {
        seconds,
        share: cell.bytes as f64 * 8.0 / seconds / rate as f64,
        queue_ms,
        dropped,
        cpu_s,
    })
}
