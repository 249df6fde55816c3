//! What happened in a simulation, folded into one number, with the last events in full.
//!
//! The hash covers time, kind, size and ends of every event but no contents: TLS key shares are drawn by the cryptography provider and
//! differ from run to run, yet change no size and no time.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// How many events a failure report shows.
const KEPT: usize = 64;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceKind {
    /// A datagram was given to a path.
    Send,
    /// A datagram arrived.
    Receive,
    /// A datagram was lost at random.
    Lost,
    /// A datagram found the path's queue or the receiver's buffer full.
    QueueFull,
    /// A datagram was larger than the path's MTU.
    TooLarge,
    /// A datagram met a partition.
    Cut,
    /// A datagram arrived where nothing listens.
    Unreachable,
    /// A path was cut.
    Partition,
    /// A path was healed.
    Heal,
    /// A node was crashed.
    Crash,
    /// A node was started.
    Start,
    /// Trouble of another kind began on a path.
    Impair,
    /// It ended.
    Mend,
    /// A node's tasks were stopped.
    Freeze,
    /// They go on.
    Thaw,
    /// What a node sends comes from other ports.
    Rebind,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceEvent {
    /// Virtual time since the start.
    pub at: Duration,
    /// What happened.
    pub kind: TraceKind,
    /// The datagram's size; 0 for others.
    pub size: usize,
    /// Where from, `domain/node:port`.
    pub from: String,
    /// Where to.
    pub to: String,
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TraceEvent {
            at,
            kind,
            size,
            from,
            to,
        } = self;
        let seconds = at.as_secs();
        let nanos = at.subsec_nanos();
        write!(f, "{seconds:6}.{nanos:09} {kind:?} {size} {from} -> {to}")
    }
}

/// An event as it is noted: names are looked up only when somebody reads it.
#[derive(Debug, Clone, Copy)]
pub struct Noted {
    pub at: u64,
    pub kind: TraceKind,
    pub size: usize,
    pub from: SocketAddr,
    pub to: SocketAddr,
}

#[derive(Debug)]
pub struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<Noted>,
}

impl Trace {
    pub fn new() -> Self {
        Trace {
            hash: 0xCBF2_9CE4_8422_2325,
            count: 0,
            last: VecDeque::with_capacity(KEPT),
        }
    }

    pub fn note(&mut self, noted: Noted) {
        self.count += 1;
        self.mix(noted.at);
        self.mix(noted.kind as u64 + 1);
        self.mix(noted.size as u64);
        for end in [noted.from, noted.to] {
            let octets = match end {
                SocketAddr::V4(end) => end.ip().to_ipv6_mapped().to_bits(),
                SocketAddr::V6(end) => end.ip().to_bits(),
            };
            self.mix(octets as u64);
            self.mix((octets >> 64) as u64);
            self.mix(u64::from(end.port()));
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(noted);
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn last(&self) -> impl Iterator<Item = &Noted> {
        self.last.iter()
    }

    fn mix(&mut self, value: u64) {
        self.hash = (self.hash ^ value)
            .wrapping_mul(0x0000_0100_0000_01B3)
            .rotate_left(29);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted() -> Noted {
        Noted {
            at: 7,
            kind: TraceKind::Send,
            size: 1200,
            from: "[fd00::1]:1".parse().unwrap(),
            to: "[fd00::2]:2".parse().unwrap(),
        }
    }

    fn hash(of: &[Noted]) -> u64 {
        let mut trace = Trace::new();
        of.iter().for_each(|noted| trace.note(*noted));
        trace.hash()
    }

    #[test]
    fn every_part_of_an_event_and_the_order_change_the_hash() {
        let same = hash(&[noted()]);
        assert_eq!(same, hash(&[noted()]));
        let mut others: Vec<Noted> = vec![noted(); 6];
        others[0].at = 8;
        others[1].kind = TraceKind::Receive;
        others[2].size = 1201;
        others[3].from.set_port(3);
        others[4].to = "[fd00::3]:2".parse().unwrap();
        others[5].to = "[fd01::2]:2".parse().unwrap();
        for other in &others {
            assert_ne!(same, hash(&[*other]), "{other:?}");
        }
        assert_ne!(
            hash(&others),
            hash(&others.iter().rev().copied().collect::<Vec<_>>())
        );
    }

    #[test]
    fn only_the_last_events_are_kept() {
        let mut trace = Trace::new();
        for at in 0..1000 {
            trace.note(Noted { at, ..noted() });
        }
        assert_eq!(trace.count(), 1000);
        assert_eq!(trace.last().count(), KEPT);
        assert_eq!(trace.last().last().map(|noted| noted.at), Some(999));
    }
}
