//! How much may leave a site over a link: a token bucket (RFC 2697 calls its size the committed burst), and by which clock its rate changes.
//!
//! A bucket may be overdrawn by what is sent at once, and is then closed until that is paid back, so over any time it lets through no more than
//! its rate times that time, its size, and one batch.

use serde::{Deserialize, Serialize};

/// Time that a full bucket covers.
const DEPTH_NANOS: u64 = 5_000_000;

/// The least that fits in: a batch of two ordinary datagrams, so that a low rate is met, too.
const DEPTH_BYTES_MIN: u64 = 2 * 1500;

const NANOS: i128 = 1_000_000_000;

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// What may pass in a direction of a link, or out of a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    /// Bits per second.
    pub rate: u64,
    /// When another rate holds; where several do, the first.
    pub hours: Vec<Hours>,
    /// What gives way when more is to be sent.
    pub overload: Overload,
}

/// A part of every day in which another rate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hours {
    /// From this minute of the day on, UTC.
    pub from: u16,
    /// Up to this one, which may be of the next day.
    pub to: u16,
    /// Bits per second.
    pub rate: u64,
}

/// What gives way when more is to be sent over a link than its cap lets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Overload {
    /// The sender: it waits, and so does whoever hands it bytes. Nothing is lost.
    #[default]
    Delay,
    /// The datagram: it is dropped, as a site's policer would, and the congestion law takes that for a full path.
    Drop,
    /// The rate: while the path behind the cap shows a queue or loses, less than the cap is sent, so that others on it have room.
    Adapt,
}

impl Cap {
    /// A rate that always holds.
    pub fn of(rate: u64) -> Cap {
        Cap {
            rate,
            hours: Vec::new(),
            overload: Overload::Delay,
        }
    }

    /// The rate at a moment of Unix time, in seconds.
    pub fn rate_at(&self, unix_s: u64) -> u64 {
        let minute = (unix_s / 60 % u64::from(DAY)) as u16;
        let hours = self.hours.iter().find(|hours| hours.hold(minute));
        hours.map_or(self.rate, |hours| hours.rate)
    }

    /// The lowest rate that may ever hold.
    pub fn least(&self) -> u64 {
        let hours = self.hours.iter().map(|hours| hours.rate);
        let least = hours.chain([self.rate]).min().unwrap_or(self.rate);
        match self.overload {
            Overload::Adapt => (least / FLOOR).max(1),
            Overload::Delay | Overload::Drop => least,
        }
    }
}

impl Hours {
    fn hold(&self, minute: u16) -> bool {
        match self.from <= self.to {
            true => (self.from..self.to).contains(&minute),
            false => minute >= self.from || minute < self.to,
        }
    }
}

/// A token bucket, by a monotonic clock in nanoseconds.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Bits per second.
    rate: u64,
    /// What may be sent at once, in bits times nanoseconds per second; below zero it is overdrawn.
    level: i128,
    at: u64,
}

impl Bucket {
    /// A full one of so many bits per second, at least one.
    pub fn new(rate: u64, now: u64) -> Bucket {
        let rate = rate.max(1);
        Bucket {
            rate,
            level: depth(rate),
            at: now,
        }
    }

    /// Bits per second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Changes the rate from now on.
    pub fn set_rate(&mut self, rate: u64, now: u64) {
        self.refill(now);
        self.rate = rate.max(1);
        self.level = self.level.min(depth(self.rate));
    }

    /// Takes what so many bytes need.
    ///
    /// # Errors
    /// It is overdrawn; when it will not be.
    pub fn take(&mut self, bytes: usize, now: u64) -> Result<(), u64> {
        self.refill(now);
        if self.level < 0 {
            let rate = i128::from(self.rate);
            let wait = (-self.level + rate - 1) / rate;
            return Err(now.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)));
        }
        self.level -= cost(bytes);
        Ok(())
    }

    /// Takes what so many bytes need, and says when they may leave: now, or in turn behind all that was reserved before.
    pub fn reserve(&mut self, bytes: usize, now: u64) -> u64 {
        match self.take(bytes, now) {
            Ok(()) => now,
            Err(at) => {
                self.level -= cost(bytes);
                at
            }
        }
    }

    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        let level = self.level + i128::from(self.rate) * i128::from(passed);
        self.level = level.min(depth(self.rate));
    }
}

fn cost(bytes: usize) -> i128 {
    8 * NANOS * i128::try_from(bytes).unwrap_or(i128::MAX / (16 * NANOS))
}

fn depth(rate: u64) -> i128 {
    let covered = i128::from(rate) * i128::from(DEPTH_NANOS);
    covered.max(8 * NANOS * i128::from(DEPTH_BYTES_MIN))
}

/// How many datagrams of that size may leave at once: what a bucket of that rate holds, at least one.
pub fn batch(rate: u64, datagram: u16) -> usize {
    let bytes = (depth(rate.max(1)) / (8 * NANOS)).max(1);
    let whole = bytes / i128::from(datagram.max(1));
    usize::try_from(whole.max(1)).unwrap_or(usize::MAX)
}

/// What the connections over a link have seen since they were looked at last.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Seen {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams lost of them.
    pub lost: u64,
    /// The round trip now, in seconds.
    pub round_trip: f64,
}

/// The rate of [`Overload::Adapt`]: a quarter less when the path shows a queue or loses, then upwards again by a fiftieth of the cap each look
/// (additive increase, multiplicative decrease).
#[derive(Debug, Clone)]
pub struct Adaptive {
    rate: u64,
    /// The shortest round trip seen, in seconds; it is forgotten slowly, since routes change.
    shortest: f64,
    /// Looks for which the last cut is waited for to show.
    pause: u32,
}

/// Round trips longer than the shortest by this share of it, and by at least so many seconds, show a queue.
const QUEUE: f64 = 0.5;
const QUEUE_SECONDS_MIN: f64 = 0.01;

/// More than this share lost is no chance.
const LOSS: f64 = 0.02;

/// Looks after a cut at which nothing is changed: the queue must drain first.
const PAUSE: u32 = 3;

/// By how much the shortest round trip grows each look.
const FORGET: f64 = 1.002;

/// It never sinks below this share of the cap.
const FLOOR: u64 = 8;

impl Adaptive {
    /// At the cap.
    pub fn new(cap: u64) -> Adaptive {
        Adaptive {
            rate: cap,
            shortest: f64::INFINITY,
            pause: 0,
        }
    }

    /// The rate after another look.
    pub fn look(&mut self, cap: u64, seen: Seen) -> u64 {
        let round_trip = seen.round_trip;
        if round_trip <= 0.0 {
            // Nobody is connected, so nothing is known.
            self.rate = self.rate.clamp((cap / FLOOR).max(1), cap.max(1));
            return self.rate;
        }
        self.shortest = (self.shortest * FORGET).min(round_trip);
        // What the bucket itself makes a batch wait is no queue of the path.
        let own = depth(self.rate.max(1)) as f64 / NANOS as f64 / self.rate.max(1) as f64;
        let queue = round_trip - self.shortest - 2.0 * own;
        let queues = queue > QUEUE * self.shortest && queue > QUEUE_SECONDS_MIN;
        let loses = seen.sent > 0 && seen.lost as f64 > LOSS * seen.sent as f64;
        let rate = match queues || loses {
            _ if self.pause > 0 => {
                self.pause -= 1;
                self.rate
            }
            true => {
                self.pause = PAUSE;
                self.rate / 4 * 3
            }
            false => self.rate.saturating_add(cap / 50),
        };
        self.rate = rate.clamp((cap / FLOOR).max(1), cap.max(1));
        self.rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MBIT: u64 = 1_000_000;

    /// Sends batches whenever the bucket lets it, for so long; the bytes.
    fn greedy(bucket: &mut Bucket, batch: usize, from: u64, until: u64) -> u64 {
        let (mut now, mut sent) = (from, 0);
        while now < until {
            match bucket.take(batch, now) {
                Ok(()) => sent += batch as u64,
                Err(at) => {
                    assert!(at > now);
                    now = at;
                }
            }
        }
        sent
    }

    #[test]
    fn ten_seconds_of_a_greedy_sender_are_the_rate_within_a_hundredth() {
        for (rate, batch) in [
            (MBIT, 1452),
            (20 * MBIT, 14_520),
            (200 * MBIT, 64_000),
            (10_000 * MBIT, 64_000),
        ] {
            let sent = greedy(&mut Bucket::new(rate, 0), batch, 0, 10_000_000_000);
            let share = sent as f64 * 8.0 / (10.0 * rate as f64);
            assert!((0.99..=1.01).contains(&share), "{rate}: {share}");
        }
    }

    proptest! {
        #[test]
        fn no_time_lets_more_pass_than_rate_size_and_one_batch(
            rate in 1_000u64..10_000_000_000,
            steps in prop::collection::vec((0u64..50_000_000, 1usize..65_000), 1..200),
        ) {
            let (mut bucket, mut now) = (Bucket::new(rate, 0), 0);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (wait, bytes) in steps {
                now += wait;
                if bucket.take(bytes, now).is_ok() {
                    taken.push((now, bytes as u64));
                }
            }
            let (size, batch) = ((depth(rate) / (8 * NANOS)) as u64, 65_000);
            for (first, &(from, _)) in taken.iter().enumerate() {
                let mut sum = 0;
                for &(at, bytes) in &taken[first..] {
                    sum += bytes;
                    let covered = (u128::from(rate) * u128::from(at - from) / 8_000_000_000) as u64;
                    prop_assert!(sum <= covered + size + batch + 1, "{sum} in {} ns", at - from);
                }
            }
        }

        #[test]
        fn what_is_refused_passes_at_the_moment_told_and_not_before(
            rate in 1_000u64..10_000_000_000,
            bytes in 1usize..65_000,
        ) {
            let mut bucket = Bucket::new(rate, 0);
            while bucket.take(bytes, 0).is_ok() {}
            let at = bucket.take(bytes, 0).unwrap_err();
            prop_assert!(bucket.clone().take(bytes, at - 1).is_err());
            prop_assert!(bucket.take(bytes, at).is_ok());
        }
    }

    #[test]
    fn a_rate_that_changes_holds_from_then_on() {
        let mut bucket = Bucket::new(100 * MBIT, 0);
        greedy(&mut bucket, 1500, 0, 1_000_000_000);
        bucket.set_rate(10 * MBIT, 1_000_000_000);
        let sent = greedy(&mut bucket, 1500, 1_000_000_000, 11_000_000_000);
        assert!((0.99..=1.01).contains(&(sent as f64 * 8.0 / (100.0 * MBIT as f64))));
    }

    /// Who asks first when it is time is not served first: each has its turn, and nobody waits for more than one batch of each other.
    #[test]
    fn whoever_waits_has_a_turn_of_its_own() {
        let mut bucket = Bucket::new(20 * MBIT, 0);
        let mut turns = [0, 0];
        let mut sent = [0_u64; 2];
        while turns.iter().min() < Some(&10_000_000_000) {
            // The first one asks whenever both may.
            let next = usize::from(turns[1] < turns[0]);
            let bytes = [14_520, 1200][next];
            turns[next] = bucket.reserve(bytes, turns[next]).max(turns[next] + 1);
            sent[next] += 1;
        }
        let [many, few] = sent;
        assert!(few * 10 >= many * 9, "{sent:?}");
        let bits = 8 * (many * 14_520 + few * 1200);
        assert!((0.99..=1.01).contains(&(bits as f64 / (200.0 * MBIT as f64))));
    }

    /// A clock that is asked out of order gives nothing away.
    #[test]
    fn time_that_goes_back_fills_nothing() {
        let mut bucket = Bucket::new(MBIT, 1_000_000_000);
        while bucket.take(1500, 1_000_000_000).is_ok() {}
        assert!(bucket.take(1500, 0).is_err());
        assert!(bucket.take(1500, 1_000_000_000).is_err());
    }

    #[test]
    fn the_hours_of_a_day_have_their_own_rates_over_midnight_too() {
        let cap = Cap {
            rate: 200 * MBIT,
            hours: vec![
                Hours {
                    from: 8 * 60,
                    to: 18 * 60,
                    rate: 20 * MBIT,
                },
                Hours {
                    from: 22 * 60 + 30,
                    to: 5 * 60,
                    rate: 900 * MBIT,
                },
            ],
            overload: Overload::Delay,
        };
        let at = |hour: u64, minute: u64| 20_000 * 86_400 + hour * 3600 + minute * 60;
        for (hour, minute, rate) in [
            (7, 59, 200),
            (8, 0, 20),
            (17, 59, 20),
            (18, 0, 200),
            (22, 29, 200),
            (22, 30, 900),
            (23, 59, 900),
            (0, 0, 900),
            (4, 59, 900),
            (5, 0, 200),
        ] {
            let found = cap.rate_at(at(hour, minute));
            assert_eq!(found, rate * MBIT, "{hour}:{minute}");
        }
        assert_eq!(cap.least(), 20 * MBIT);
    }

    #[test]
    fn a_batch_is_what_the_bucket_holds_and_at_least_a_datagram() {
        assert_eq!(batch(MBIT, 1452), 2);
        assert_eq!(batch(MBIT, 65_000), 1);
        assert_eq!(batch(200 * MBIT, 1452), 86);
    }

    #[test]
    fn a_rate_that_adapts_sinks_while_the_path_queues_or_loses_and_comes_back() {
        let cap = 100 * MBIT;
        let mut adaptive = Adaptive::new(cap);
        assert_eq!(adaptive.look(cap, Seen::default()), cap, "nobody is there");
        let quiet = Seen {
            sent: 1000,
            lost: 0,
            round_trip: 0.04,
        };
        assert_eq!(adaptive.look(cap, quiet), cap);
        let queued = Seen {
            round_trip: 0.09,
            ..quiet
        };
        assert_eq!(adaptive.look(cap, queued), 75 * MBIT);
        let lossy = Seen { lost: 50, ..quiet };
        for _ in 0..PAUSE {
            assert_eq!(adaptive.look(cap, lossy), 75 * MBIT, "not at once again");
        }
        assert!(adaptive.look(cap, lossy) < 57 * MBIT);
        for _ in 0..100 {
            adaptive.look(cap, queued);
        }
        assert!(adaptive.rate >= cap / FLOOR);
        for _ in 0..100 {
            adaptive.look(cap, quiet);
        }
        assert_eq!(adaptive.rate, cap);
    }
}
