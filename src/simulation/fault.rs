//! How a program says what goes wrong: one function a fault.
//!
//! A fault begins by [`at`](super::Simulation::at), and if it is one that can end it lasts as long as the run then; by
//! [`between`](super::Simulation::between) it has an end.

use std::time::Duration;

use super::plan::{Fault, Paths, Stale};

/// A power cut at a node: tasks, sockets and memory are gone, and of the disk what was not synchronized. With an end, it starts again then.
pub fn crash(node: &str) -> Fault {
    Fault::Crash { node: node.into() }
}

/// A power cut in the middle of the node's next write to its disk. With an end, it starts again then, with half of that write there.
pub fn torn_write(node: &str) -> Fault {
    Fault::TornWrite { node: node.into() }
}

/// A process is killed at the first change of its disk after so many more, as by `SIGKILL`: what it has written is there, synchronized or not. With
/// an end, it starts again then.
pub fn kill(node: &str, changes: u64) -> Fault {
    Fault::Kill {
        node: node.into(),
        changes,
    }
}

/// A node starts again; if it is up it is cut off first.
pub fn restart(node: &str) -> Fault {
    Fault::Restart {
        node: node.into(),
        without_disk: false,
    }
}

/// A node starts again with an empty disk: a new machine of the same name, which listens elsewhere.
pub fn restart_without_disk(node: &str) -> Fault {
    Fault::Restart {
        node: node.into(),
        without_disk: true,
    }
}

/// A node's tasks and timers stop where they are, as under `SIGSTOP`; at the end they go on.
pub fn freeze(node: &str) -> Fault {
    Fault::Freeze { node: node.into() }
}

/// A node's blocking work (training, reading, hashing, folding) takes so many times as long.
pub fn slow(node: &str, factor: f64) -> Fault {
    Fault::Slow {
        node: node.into(),
        factor,
    }
}

/// Two groups of nodes or domains cannot reach each other; [`Fault::one_way`]: the first cannot reach the second.
pub fn partition<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
) -> Fault {
    Fault::Partition { paths: paths(a, b) }
}

/// Two groups can reach each other again.
pub fn heal<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
) -> Fault {
    Fault::Heal { paths: paths(a, b) }
}

/// This share of datagrams between two groups is lost.
pub fn loss<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
    share: f64,
) -> Fault {
    let paths = paths(a, b);
    Fault::Loss { paths, share }
}

/// This share of datagrams between two groups arrives twice.
pub fn duplicate<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
    share: f64,
) -> Fault {
    let paths = paths(a, b);
    Fault::Duplicate { paths, share }
}

/// Each datagram between two groups is late by a time of its own, up to `within`, and later ones overtake it.
pub fn reorder<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
    within: Duration,
) -> Fault {
    let paths = paths(a, b);
    Fault::Reorder { paths, within }
}

/// Every datagram between two groups is late by `by`.
pub fn delay<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
    by: Duration,
) -> Fault {
    let paths = paths(a, b);
    Fault::Delay { paths, by }
}

/// Datagrams between two groups with more than so many bytes of payload vanish without notice. QUIC needs 1,200.
pub fn mtu_black_hole<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
    bytes: u64,
) -> Fault {
    let paths = paths(a, b);
    Fault::MtuBlackHole { paths, bytes }
}

/// What a node sends to peers that it dials comes from other ports from then on, as behind a translation of addresses that has forgotten it; what
/// is under way to the ports before is lost.
pub fn rebind(node: &str) -> Fault {
    Fault::Rebind { node: node.into() }
}

/// No more than so many bits per second pass between two groups, on each path and each way.
pub fn rate_limit<'a>(
    a: impl IntoIterator<Item = &'a str>,
    b: impl IntoIterator<Item = &'a str>,
    rate: u64,
) -> Fault {
    let paths = paths(a, b);
    Fault::RateLimit { paths, rate }
}

/// A node's wall clock is set forward; with an end, back again then.
pub fn clock_forward(node: &str, by: Duration) -> Fault {
    let node = node.into();
    Fault::ClockForward { node, by }
}

/// A node's wall clock is set back; with an end, forward again then.
pub fn clock_back(node: &str, by: Duration) -> Fault {
    let node = node.into();
    Fault::ClockBack { node, by }
}

/// A node's clocks run too fast (below zero: too slow), by so many millionths: its wall clock by up to 100,000, its monotonic one by up to 500.
pub fn clock_drift(node: &str, wall_ppm: f64, monotonic_ppm: f64) -> Fault {
    Fault::ClockDrift {
        node: node.into(),
        wall_ppm,
        monotonic_ppm,
    }
}

/// Nothing more fits on a node's disk; at the end there is room again.
pub fn disk_full(node: &str) -> Fault {
    Fault::DiskFull { node: node.into() }
}

/// A node's certificate has expired, or is not yet valid, in all handshakes to come.
pub fn stale_certificate(node: &str, stale: Stale) -> Fault {
    let node = node.into();
    Fault::StaleCertificate { node, stale }
}

/// A user makes a standby coordinator, as `tombolo promote` does. Nothing else ever does.
pub fn promote(node: &str) -> Fault {
    Fault::Promote { node: node.into() }
}

/// A user pauses the run, as `tombolo pause` does, and at the end goes on with it. Without an end the run never ends.
pub fn pause() -> Fault {
    Fault::Pause
}

/// A user ends the run behind the open round, as `tombolo stop` does.
pub fn stop() -> Fault {
    Fault::Stop { now: false }
}

/// A user ends the run and gives the open round up, as `tombolo stop --now` does.
pub fn stop_now() -> Fault {
    Fault::Stop { now: true }
}

/// An actor of a node panics: one of [`ACTORS`](super::plan::ACTORS), or at the coordinator `Coordinator` or `Aggregate`; of those
/// of each peer all.
pub fn panic(node: &str, actor: &str) -> Fault {
    Fault::Panic {
        node: node.into(),
        actor: actor.into(),
    }
}

/// A bit of the model that a node holds flips in its memory, before it trains from it next.
pub fn bit_flip(node: &str) -> Fault {
    Fault::BitFlip { node: node.into() }
}

/// Two actors of a node wait for each other and take no message any more: two of [`ENTANGLED`](super::plan::ENTANGLED).
pub fn deadlock(node: &str, actor: &str, other: &str) -> Fault {
    Fault::Deadlock {
        node: node.into(),
        actor: actor.into(),
        other: other.into(),
    }
}

fn paths<'a>(a: impl IntoIterator<Item = &'a str>, b: impl IntoIterator<Item = &'a str>) -> Paths {
    let owned = |group: &mut dyn Iterator<Item = &'a str>| group.map(str::to_owned).collect();
    Paths {
        from: owned(&mut a.into_iter()),
        to: owned(&mut b.into_iter()),
        one_way: false,
    }
}
