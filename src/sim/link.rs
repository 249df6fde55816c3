//! One direction of a simulated path: what it does to each datagram.

mod fault;

use std::time::Duration;

use tombolo_core::plan::Emulate;
use tombolo_core::rng::Rng;

use super::nanos;
use fault::Troubles;

pub use fault::PathFault;

/// What IPv4 and UDP add to each datagram on a path with a rate.
pub const HEADER_BYTES: u64 = 28;

/// The most bytes on the way at once, whatever the queue: far above any window of ours, far below what a machine holds.
pub const IN_FLIGHT_BYTES_MAX: u64 = 256 << 20;

/// How a path behaves, one way.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkModel {
    /// One-way delay.
    pub latency: Duration,
    /// Uniform extra delay, below this.
    pub jitter: Duration,
    /// Whether jitter may change the order of datagrams.
    pub reorder: bool,
    /// Share of datagrams lost, 0 to 1.
    pub loss: f64,
    /// Share of datagrams that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// Bits per second, headers included; `None` is without limit.
    pub rate: Option<u64>,
    /// How many bytes wait for a path with a rate before the newest are dropped.
    pub queue: u64,
    /// The largest UDP payload that passes; larger ones vanish without notice.
    pub mtu: usize,
}

impl LinkModel {
    /// The default between nodes of one domain.
    pub fn lan() -> Self {
        LinkModel {
            latency: Duration::from_micros(100),
            jitter: Duration::from_micros(20),
            reorder: false,
            loss: 0.0,
            duplicate: 0.0,
            rate: None,
            queue: 1 << 20,
            mtu: 1472,
        }
    }

    /// The default between domains.
    pub fn wan() -> Self {
        LinkModel {
            latency: Duration::from_millis(20),
            jitter: Duration::from_millis(1),
            ..LinkModel::lan()
        }
    }
}

/// The queue of a path with this rate: what it carries in 100 ms, at least 64 KiB.
fn queue_of(rate: u64) -> u64 {
    rate.div_ceil(80).max(64 << 10)
}

impl From<Emulate> for LinkModel {
    fn from(emulate: Emulate) -> Self {
        LinkModel {
            latency: emulate.delay,
            jitter: emulate.jitter,
            loss: emulate.loss,
            rate: emulate.rate,
            queue: queue_of(emulate.rate.unwrap_or(0)),
            ..LinkModel::lan()
        }
    }
}

/// What has happened on a path, one way. Bytes are UDP payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkStatistics {
    /// Datagrams given to the path.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Datagrams that came out, copies included.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Lost at random.
    pub lost: u64,
    /// Sent twice at random.
    pub duplicated: u64,
    /// Sent later than one that arrives after it.
    pub reordered: u64,
    /// Dropped because the queue was full.
    pub queue_full: u64,
    /// Dropped because they were larger than the path's MTU.
    pub too_large: u64,
    /// Dropped by a partition.
    pub cut: u64,
    /// Arrived where nothing listens.
    pub unreachable: u64,
    /// The longest wait in the queue.
    pub queue_delay_max: Duration,
    /// All waits in the queue together: divided by those that were taken, the mean.
    pub queue_delay_total: Duration,
}

/// What the path does to one datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at this time, and perhaps a copy at another.
    Arrives(u64, Option<u64>),
    /// Lost at random.
    Lost,
    /// The queue is full.
    QueueFull,
    /// Above the MTU.
    TooLarge,
    /// The path is cut.
    Cut,
}

/// A path's model and state. Times are nanoseconds of the simulation.
#[derive(Debug)]
pub struct Link {
    usual: LinkModel,
    troubles: Troubles,
    /// The usual model under the troubles of now.
    model: LinkModel,
    cut: bool,
    pub statistics: LinkStatistics,
    in_flight: u64,
    free_at: u64,
    last_arrival: u64,
    chance: Rng,
}

impl Link {
    pub fn new(model: LinkModel, chance: Rng) -> Self {
        Link {
            usual: model.clone(),
            troubles: Troubles::default(),
            model,
            cut: false,
            statistics: LinkStatistics::default(),
            in_flight: 0,
            free_at: 0,
            last_arrival: 0,
            chance,
        }
    }

    /// Sets how the path behaves without troubles.
    pub fn behave(&mut self, model: LinkModel) {
        self.usual = model;
        self.reckon();
    }

    /// Lets a trouble begin; `id` names it.
    pub fn befall(&mut self, id: u64, fault: PathFault) {
        self.troubles.add(id, fault);
        self.reckon();
    }

    /// Ends a trouble, if the path has one of that name.
    pub fn mend(&mut self, id: u64) -> Option<PathFault> {
        let ended = self.troubles.remove(id);
        self.reckon();
        ended
    }

    /// Ends every cut.
    pub fn heal(&mut self) {
        self.troubles.remove_cuts();
        self.reckon();
    }

    /// Whether nothing passes.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Bytes on the way.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    fn reckon(&mut self) {
        let before = std::mem::replace(&mut self.model, self.troubles.over(&self.usual));
        self.cut = self.troubles.cut();
        // Who comes after a change of pace does not stand in the queue of the time before: a trouble that has ended delays nobody.
        if before.rate != self.model.rate {
            self.free_at = 0;
        }
        let takes = |model: &LinkModel| (model.latency, model.jitter, model.rate, model.reorder);
        if takes(&before) != takes(&self.model) {
            self.last_arrival = 0;
        }
    }

    /// Decides about one datagram given to the path at `now`.
    pub fn send(&mut self, now: u64, size: usize) -> Fate {
        let bytes = size as u64;
        self.statistics.sent += 1;
        self.statistics.sent_bytes += bytes;
        if self.cut {
            self.statistics.cut += 1;
            return Fate::Cut;
        }
        if size > self.model.mtu {
            self.statistics.too_large += 1;
            return Fate::TooLarge;
        }
        let Some(departure) = self.enqueue(now, bytes) else {
            self.statistics.queue_full += 1;
            return Fate::QueueFull;
        };
        if self.happens(self.model.loss) {
            self.statistics.lost += 1;
            return Fate::Lost;
        }
        let arrival = self.arrival(departure);
        self.in_flight += bytes;
        let copy = self.happens(self.model.duplicate).then(|| {
            self.statistics.duplicated += 1;
            self.in_flight += bytes;
            self.arrival(departure)
        });
        Fate::Arrives(arrival, copy)
    }

    /// Notes that a datagram left the path at its far end.
    pub fn leave(&mut self, size: usize) {
        self.in_flight -= size as u64;
    }

    /// When the last bit has left, or `None` if there is no room.
    fn enqueue(&mut self, now: u64, bytes: u64) -> Option<u64> {
        if self.in_flight + bytes > IN_FLIGHT_BYTES_MAX {
            return None;
        }
        let Some(rate) = self.model.rate else {
            return Some(now);
        };
        let rate = u128::from(rate.max(1));
        let wait = self.free_at.saturating_sub(now);
        let waiting = u128::from(wait) * rate / 8_000_000_000;
        if waiting + u128::from(bytes) > u128::from(self.model.queue) {
            return None;
        }
        let wait_span = Duration::from_nanos(wait);
        let longest = &mut self.statistics.queue_delay_max;
        *longest = (*longest).max(wait_span);
        self.statistics.queue_delay_total += wait_span;
        let sending = u128::from(bytes + HEADER_BYTES) * 8_000_000_000 / rate;
        self.free_at =
            (now.max(self.free_at)).saturating_add(u64::try_from(sending).unwrap_or(u64::MAX));
        Some(self.free_at)
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.chance.next_f64() < share
    }

    fn arrival(&mut self, departure: u64) -> u64 {
        let jitter = self.chance.below(nanos(self.model.jitter));
        let mut at = departure
            .saturating_add(nanos(self.model.latency))
            .saturating_add(jitter);
        if !self.model.reorder {
            at = at.max(self.last_arrival);
        } else if at < self.last_arrival {
            self.statistics.reordered += 1;
        }
        self.last_arrival = self.last_arrival.max(at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(change: impl FnOnce(&mut LinkModel)) -> Link {
        let mut model = LinkModel {
            jitter: Duration::ZERO,
            ..LinkModel::lan()
        };
        change(&mut model);
        Link::new(model, Rng::new(1))
    }

    fn arrivals(link: &mut Link, count: u64) -> Vec<u64> {
        (0..count)
            .map(|at| match link.send(at, 100) {
                Fate::Arrives(arrival, _) => arrival,
                fate => panic!("{fate:?}"),
            })
            .collect()
    }

    #[test]
    fn a_plain_path_only_delays() {
        assert_eq!(link(|_| ()).send(5, 1472), Fate::Arrives(100_005, None));
    }

    #[test]
    fn jitter_keeps_the_order_unless_told_otherwise() {
        for reorder in [false, true] {
            let mut link = link(|model| {
                model.jitter = Duration::from_millis(1);
                model.reorder = reorder;
            });
            assert_eq!(arrivals(&mut link, 100).is_sorted(), !reorder);
            assert_eq!(link.statistics.reordered > 0, reorder);
        }
    }

    #[test]
    fn a_rate_spaces_datagrams_and_a_full_queue_drops_the_newest() {
        // 100 bytes and 28 of headers at 8 Mbit/s: 128 us each.
        let mut link = link(|model| {
            model.rate = Some(8_000_000);
            model.queue = 400;
        });
        let fates: Vec<Fate> = (0..5).map(|_| link.send(0, 100)).collect();
        let arrives = |nth: u64| Fate::Arrives(100_000 + nth * 128_000, None);
        assert_eq!(
            fates,
            [
                arrives(1),
                arrives(2),
                arrives(3),
                Fate::QueueFull,
                Fate::QueueFull
            ]
        );
        assert_eq!(
            link.statistics.queue_delay_max,
            Duration::from_nanos(256_000)
        );
        assert_eq!(link.send(384_000, 100), Fate::Arrives(612_000, None));
    }

    #[test]
    fn loss_and_duplication_take_their_share() {
        let mut link = link(|model| {
            model.loss = 0.1;
            model.duplicate = 0.2;
        });
        for at in 0..10_000 {
            link.send(at, 10);
        }
        assert!((900..1100).contains(&link.statistics.lost));
        assert!((1650..1950).contains(&link.statistics.duplicated));
    }

    #[test]
    fn large_datagrams_and_those_on_a_cut_path_vanish() {
        let mut link = link(|_| ());
        assert_eq!(link.send(0, 1473), Fate::TooLarge);
        link.befall(7, PathFault::Cut);
        assert_eq!(link.send(0, 10), Fate::Cut);
        assert_eq!((link.statistics.too_large, link.statistics.cut), (1, 1));
    }

    #[test]
    fn a_trouble_that_has_ended_delays_nobody() {
        for fault in [
            PathFault::Delay(Duration::from_secs(9)),
            PathFault::Reorder(Duration::from_secs(9)),
            PathFault::Rate(1_000),
        ] {
            let mut link = link(|model| model.rate = Some(8_000_000));
            link.befall(1, fault);
            for at in 0..100 {
                link.send(at, 100);
            }
            link.mend(1);
            // A second later: 128 bytes at 8 Mbit/s, and the usual way.
            let sent = 1_000_000_000;
            assert_eq!(
                link.send(sent, 100),
                Fate::Arrives(sent + 128_000 + 100_000, None),
                "{fault:?}"
            );
        }
    }

    #[test]
    fn troubles_add_up_and_end_one_by_one() {
        let mut link = link(|_| ());
        let usual = link.model.clone();
        for (id, fault) in [
            (1, PathFault::Cut),
            (2, PathFault::Cut),
            (3, PathFault::Loss(0.5)),
            (4, PathFault::Loss(0.5)),
            (5, PathFault::Delay(Duration::from_millis(3))),
            (6, PathFault::Delay(Duration::from_millis(4))),
            (7, PathFault::Mtu(1300)),
            (8, PathFault::Rate(8_000_000)),
            (9, PathFault::Rate(80_000_000)),
            (10, PathFault::Duplicate(0.25)),
            (11, PathFault::Reorder(Duration::from_millis(9))),
        ] {
            link.befall(id, fault);
        }
        let troubled = LinkModel {
            latency: usual.latency + Duration::from_millis(7),
            jitter: Duration::from_millis(9),
            reorder: true,
            loss: 0.75,
            duplicate: 0.25,
            rate: Some(8_000_000),
            queue: 100_000,
            mtu: 1300,
        };
        assert_eq!((&link.model, link.is_cut()), (&troubled, true));
        assert_eq!(link.mend(1), Some(PathFault::Cut));
        assert!(link.is_cut(), "the other partition still lasts");
        for id in 2..=11 {
            link.mend(id);
        }
        assert_eq!((&link.model, link.is_cut()), (&usual, false));
        assert_eq!(link.mend(2), None);
        // What a path usually does may change while it is in trouble.
        link.befall(1, PathFault::Loss(1.0));
        link.behave(LinkModel::wan());
        link.mend(1);
        assert_eq!(link.model, LinkModel::wan());
    }

    #[test]
    fn what_is_on_the_way_is_bounded() {
        let mut link = link(|model| model.mtu = 1 << 30);
        assert_ne!(link.send(0, 200 << 20), Fate::QueueFull);
        assert_eq!(link.send(0, 100 << 20), Fate::QueueFull);
        link.leave(200 << 20);
        assert_ne!(link.send(0, 100 << 20), Fate::QueueFull);
    }
}
