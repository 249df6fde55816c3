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
#[derive(Debug)]
struct Transfer {
    seconds: f64,
    /// Why it never ended, if it did not.
    failed: Option<String>,
    share: f64,
    queue_ms: f64,
    dropped: f64,
    cpu_s: f64,
}

pub fn measure(cell: Cell) -> io::Result<Vec<Found>> {
    let (ours, cubic, bbr) = (
        transfer(Peer::Ours, cell)?,
        transfer(Peer::Cubic, cell)?,
        transfer(Peer::Bbr, cell)?,
    );
    let best = cubic.share.max(bbr.share);
    let queue_most = (bbr.queue_ms / 5.0).max(QUEUE_MOST);
    let aims = [
        ("share", ours.share >= SHARE_LEAST),
        ("best of the others", ours.share >= BEST_LEAST * best),
        ("queue", ours.queue_ms <= queue_most),
    ];
    let mut found = cell.found(Peer::Ours, ours);
    found.aim(aims);
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
            failed: transfer.failed,
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
    let ((seconds, failed, seen), cpu_s) = timed(|| {
        Flows::run(SEED, path, 1, move |flows| async move {
            let flow = flows.open(peer.law()).await?;
            let began = flows.now();
            flow.send(cell.bytes);
            let failed = flows.until(0, cell.bytes).await.err();
            let seconds = (flows.now() - began).as_secs_f64();
            Ok((seconds, failed, flows.statistics()))
        })
    })?;
    let (queue_ms, dropped) = queue(&seen);
    let share = cell.bytes as f64 * 8.0 / seconds / rate as f64;
    Ok(Transfer {
        seconds,
        share: if failed.is_none() { share } else { 0.0 },
        failed: failed.map(|error| error.to_string()),
        queue_ms,
        dropped,
        cpu_s,
    })
}
