//! Several flows over one path: two that last, and many that begin at once.

use std::io;
use std::time::Duration;

use serde_json::json;

use super::{Found, Peer, SEED, fields, queue, rounded, timed};
use tombolo::simulation::flows::{Flows, path};

/// How many times something is shown.
pub const STEPS: u64 = 6;

/// The path of two flows.
const TWO_ROUND_TRIP: Duration = Duration::from_millis(60);
const TWO_RATE: u64 = 20_000_000;
/// When the second begins, in ms: where the first one then is in its own rhythm decides much, so there are several.
const TWO_STARTS_MS: [u64; 5] = [2000, 2400, 2800, 3200, 3600];
/// From when on both are looked at, and for how long.
const TWO_SETTLED: Duration = Duration::from_secs(20);
const TWO_LOOKED_AT: Duration = Duration::from_secs(20);

/// How even two of ours must be (Jain's index), and what ours must have of the path beside another.
const JAIN_LEAST: f64 = 0.9;
const BESIDE_CUBIC: f64 = 0.35;
const BESIDE_BBR: f64 = 0.3;

/// Many at once: the contributions of eight sites to one.
const MANY: usize = 8;
const MANY_BYTES: u64 = 10_000_000;
const MANY_RATE: u64 = 200_000_000;
const MANY_ROUND_TRIPS_MS: [u64; 2] = [20, 60];
/// How much longer than the path's rate they may take.
const MANY_MOST: f64 = 1.15;

pub fn measure(show: &mut impl FnMut(Vec<Found>)) -> io::Result<()> {
    let mut even = two(Peer::Ours, Peer::Ours)?;
    even.found.aim([("evenness", even.jain >= JAIN_LEAST)]);
    show(vec![even.found]);
    for (rival, least) in [(Peer::Cubic, BESIDE_CUBIC), (Peer::Bbr, BESIDE_BBR)] {
        let mut beside = two(rival, Peer::Ours)?;
        beside.found.aim([("share", beside.share >= least)]);
        show(vec![beside.found]);
    }
    // What users have there today.
    show(vec![two(Peer::Bbr, Peer::Cubic)?.found]);
    for round_trip_ms in MANY_ROUND_TRIPS_MS {
        let mut ours = many(Peer::Ours, round_trip_ms)?;
        let cubic = many(Peer::Cubic, round_trip_ms)?;
        ours.found.aim([
            ("time", ours.ideal_ratio <= MANY_MOST),
            ("drops", ours.drops < cubic.drops || cubic.drops == 0),
        ]);
        let bbr = many(Peer::Bbr, round_trip_ms)?;
        show(vec![ours.found, cubic.found, bbr.found]);
    }
    Ok(())
}

/// A flow beside another one, which was there before; means over all starts.
struct Two {
    found: Found,
    /// What it has of the path.
    share: f64,
    jain: f64,
}

fn two(first: Peer, second: Peer) -> io::Result<Two> {
    let most = TWO_RATE as f64 * TWO_LOOKED_AT.as_secs_f64() / 8.0;
    let (starts, cpu_s) = timed(|| {
        let starts = TWO_STARTS_MS.iter();
        let starts = starts.map(|start| begun_at([first, second], *start));
        starts.collect::<io::Result<Vec<[u64; 2]>>>()
    })?;
    let shares: Vec<[f64; 2]> = starts
        .iter()
        .map(|arrived| arrived.map(|bytes| bytes as f64 / most))
        .collect();
    let mean = |of: fn(&[f64; 2]) -> f64| shares.iter().map(of).sum::<f64>() / shares.len() as f64;
    let (other, share) = (mean(|shares| shares[0]), mean(|shares| shares[1]));
    let jain = mean(|[a, b]| (a + b).powi(2) / (2.0 * (a * a + b * b)));
    let least = shares.iter().map(|[_, share]| *share);
    let case = match first == second {
        true => "two alike".to_owned(),
        false => format!("beside {}", first.name()),
    };
    let found = Found {
        peer: second,
        case: format!("{case}, 60 ms, 20 Mbit/s"),
        flows: 2,
        bytes: starts.iter().map(|[_, bytes]| bytes).sum(),
        seconds: TWO_LOOKED_AT.as_secs_f64(),
        failed: None,
        cpu_s,
        more: fields(json!({
            "share": rounded(share),
            "share_least": rounded(least.fold(1.0, f64::min)),
            "share_other": rounded(other),
            "jain": rounded(jain),
        })),
    };
    Ok(Two { found, share, jain })
}

/// What both have got through while they were looked at.
fn begun_at(peers: [Peer; 2], start_ms: u64) -> io::Result<[u64; 2]> {
    let path = path(TWO_ROUND_TRIP, 0.0, TWO_RATE);
    Flows::run(SEED, path, 2, move |flows| async move {
        let mut open = Vec::new();
        for peer in peers {
            let flow = flows.open(peer.law()).await?;
            // More than the path carries in all of that time.
            flow.send(1 << 30);
            open.push(flow);
            flows.sleep(Duration::from_millis(start_ms)).await;
        }
        flows.sleep(TWO_SETTLED).await;
        let before = [0, 1].map(|flow| flows.arrived(flow));
        flows.sleep(TWO_LOOKED_AT).await;
        Ok([0, 1].map(|flow| flows.arrived(flow) - before[flow]))
    })
}

/// Many flows that begin at once.
struct Many {
    found: Found,
    /// The time that they take, as a multiple of what the path's rate allows.
    ideal_ratio: f64,
    drops: u64,
}

fn many(peer: Peer, round_trip_ms: u64) -> io::Result<Many> {
    let path = path(Duration::from_millis(round_trip_ms), 0.0, MANY_RATE);
    let ((seconds, seen), cpu_s) = timed(|| {
        Flows::run(SEED, path, MANY, move |flows| async move {
            let mut open = Vec::new();
            for _ in 0..MANY {
                open.push(flows.open(peer.law()).await?);
            }
            let began = flows.now();
            for flow in &open {
                flow.send(MANY_BYTES);
            }
            for flow in 0..MANY {
                flows.until(flow, MANY_BYTES).await?;
            }
            Ok(((flows.now() - began).as_secs_f64(), flows.statistics()))
        })
    })?;
    let bytes = MANY as u64 * MANY_BYTES;
    let share = bytes as f64 * 8.0 / seconds / MANY_RATE as f64;
    let (queue_ms, dropped) = queue(&seen);
    let found = Found {
        peer,
        case: format!("incast, {round_trip_ms} ms, 200 Mbit/s"),
        flows: MANY,
        bytes,
        seconds,
        failed: None,
        cpu_s,
        more: fields(json!({
            "share": rounded(share),
            "queue_ms": rounded(queue_ms),
            "dropped": rounded(dropped),
            "drops": seen.queue_full,
            "ideal_ratio": rounded(1.0 / share),
        })),
    };
    Ok(Many {
        found,
        ideal_ratio: 1.0 / share,
        drops: seen.queue_full,
    })
}
