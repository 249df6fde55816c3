//! How far a peer's clock is from ours, how fast it runs, and how wrong that may be.
//!
//! Each pair of heartbeats that cross gives four stamps ([`Exchange`]; RFC 5905, section 8) and with them one sight of the offset,
//! `((t2 - t1) + (t3 - t4)) / 2`. It is off by at most half of the round trip, and by no more than half of what the round trip exceeds the
//! shortest one by, as far as the path is the same both ways. So a line is drawn through the sights of the last two minutes, each with the
//! weight that its excess deserves: a slow one, or one that was slow in one direction, hardly pulls.
//!
//! The bound needs no such belief: it is what the best sight proves, whatever the path. Where the two ways differ for good, half of the
//! difference is an error that no clock filter can see; the bound holds it, and [`Estimate::bound`] is therefore never below half of the
//! shortest round trip.
//!
//! Only monotonic clocks are read. Nobody's wall clock is written.

mod federation;

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Micros;
use crate::wire::Exchange;

pub use federation::FederationClock;

/// Sights that are kept: two minutes of heartbeats at their default period.
const SIGHTS: usize = 256;

/// A sight that is older by this much counts for a third as much: crystals keep their rate for longer.
const MEMORY_US: f64 = 60e6;

/// What a sight is off by even on an idle path: timers and wake-ups.
const FLOOR_US: f64 = 20.0;

/// The best of so many sights were themselves not on their way for the shortest time possible: by about what the best differ among each
/// other.
const BEST: usize = 16;

/// How far apart two clocks run that nobody has looked at: most crystals are better.
const RATE_GUESS: f64 = 100e-6;

/// How far apart two sound clocks can run, at the most: each is off by no more than 500 ppm (RFC 5905 takes the same number). The bound
/// rests on it.
pub const RATE_MAX: f64 = 1000e-6;

/// A stamp is a whole number: two of them are off by as much.
const QUANTUM_US: f64 = 2.0;

/// What is known of a peer's clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Add it to our clock to get the peer's, in microseconds.
    pub offset_us: i64,
    /// How much faster the peer's clock runs, in millionths.
    pub rate_ppm: f64,
    /// The offset is off by no more, if neither clock runs wrong by more than 500 ppm.
    pub bound: Duration,
    /// The shortest round trip of late. Half of how unequal its two ways are is an error that cannot be seen.
    pub round_trip: Duration,
}

/// One exchange, read.
#[derive(Debug, Clone, Copy)]
struct Sight {
    /// Half-way, by our clock.
    at: Micros,
    /// The peer's clock less ours at that moment, in microseconds.
    offset: f64,
    /// How long we waited, by our clock.
    waited: f64,
    /// How much of it the peer held our heartbeat back, by its own clock.
    held: f64,
}

/// A clock filter for one peer. Give it exchanges as they come; ask it at any time.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    sights: VecDeque<Sight>,
    seen: Option<Seen>,
    resets: u64,
}

/// What all sights say together, at the moment of the newest.
#[derive(Debug, Clone, Copy)]
struct Seen {
    at: Micros,
    /// On the line through them.
    offset: f64,
    rate: f64,
    /// The shortest round trip.
    shortest: f64,
    /// Between which offsets the truth lies, whatever the path did.
    limits: (f64, f64),
}

impl Filter {
    /// A filter that knows nothing.
    pub fn new() -> Self {
        Filter::default()
    }

    /// Takes in one exchange. One whose stamps contradict each other is passed over.
    pub fn on_exchange(&mut self, exchange: Exchange) {
        let Some(sight) = Sight::new(exchange) else {
            return;
        };
        if self.contradicts(&sight) {
            // The peer's clock is another one now, or one of the two was set.
            self.sights.clear();
            self.seen = None;
            self.resets += 1;
        }
        if self.sights.len() == SIGHTS {
            self.sights.pop_front();
        }
        self.sights.push_back(sight);
        self.seen = self.look(sight.at);
    }

    /// How often everything had to be forgotten because a clock had jumped.
    pub fn resets(&self) -> u64 {
        self.resets
    }

    /// What is known now; nothing before the first exchange.
    pub fn estimate(&self, now: Micros) -> Option<Estimate> {
        let seen = self.seen?;
        let (low, high) = seen.limits(now);
        let offset = seen.offset + seen.rate * signed(now, seen.at);
        let offset = offset.clamp(low, high);
        let bound = (high - offset).max(offset - low) + 1.0;
        Some(Estimate {
            offset_us: offset.round() as i64,
            rate_ppm: seen.rate * 1e6,
            bound: Duration::from_micros(bound.ceil() as u64),
            round_trip: Duration::from_micros(seen.shortest as u64),
        })
    }

    /// Once an exchange, so that asking costs nothing.
    fn look(&self, at: Micros) -> Option<Seen> {
        // The peer's clock measured part of each round trip: with its rate known, the excesses are.
        let (_, rate, _) = self.line(at, 0.0)?;
        let (offset, rate, shortest) = self.line(at, rate)?;
        let limits = self.sights.iter().map(|sight| {
            let spread = sight.spread(at);
            (sight.offset - spread, sight.offset + spread)
        });
        let limits = limits.fold((f64::MIN, f64::MAX), |(low, high), (least, most)| {
            (low.max(least), high.min(most))
        });
        Some(Seen {
            at,
            offset,
            rate,
            shortest,
            limits,
        })
    }

    /// The weighted line through all sights: its value at a moment and its slope; and the shortest round trip.
    fn line(&self, at: Micros, rate: f64) -> Option<(f64, f64, f64)> {
        let round_trips = self.sights.iter().map(|sight| sight.round_trip(rate));
        let mut round_trips: Vec<f64> = round_trips.collect();
        round_trips.sort_unstable_by(f64::total_cmp);
        let shortest = *round_trips.first()?;
        let rank = (round_trips.len() / BEST).clamp(1, round_trips.len().max(2) - 1);
        let near = round_trips.get(rank).map_or(0.0, |near| near - shortest);
        let floor = near.max(FLOOR_US);
        // Around the newest sight, so that nothing is lost to large numbers.
        let origin = self.sights.back()?.offset;
        let (mut w, mut wx, mut wxx, mut wy, mut wxy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for sight in &self.sights {
            let x = signed(sight.at, at);
            let y = sight.offset - origin;
            // Equally likely anywhere within half of the excess.
            let excess = sight.round_trip(rate) - shortest + floor;
            let weight = libm::exp(x / MEMORY_US) * 12.0 / (excess * excess);
            w += weight;
            wx += weight * x;
            wxx += weight * x * x;
            wy += weight * y;
            wxy += weight * x * y;
        }
        // Before it was seen, the slope is near zero.
        wxx += 1.0 / (RATE_GUESS * RATE_GUESS);
        let slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
        let slope = slope.clamp(-RATE_MAX, RATE_MAX);
        Some((origin + (wy - slope * wx) / w, slope, shortest))
    }

    /// Whether no offset of two sound clocks explains this sight and those before it.
    fn contradicts(&self, sight: &Sight) -> bool {
        let limits = self.seen.map(|seen| seen.limits(sight.at));
        let (low, high) = limits.unwrap_or((f64::MIN, f64::MAX));
        let spread = sight.spread(sight.at);
        sight.offset + spread < low || sight.offset - spread > high
    }
}

impl Seen {
    /// The limits some time later: two clocks drift apart.
    fn limits(&self, now: Micros) -> (f64, f64) {
        let drift = signed(now, self.at).abs() * RATE_MAX;
        (self.limits.0 - drift, self.limits.1 + drift)
    }
}

impl Sight {
    fn new(exchange: Exchange) -> Option<Self> {
        let Exchange { t1, t2, t3, t4 } = exchange;
        let (waited, held) = (signed(t4, t1), signed(t3, t2));
        // The peer's clock may run fast while it holds a heartbeat that takes no time on its way.
        let is_possible =
            waited >= 0.0 && held >= 0.0 && held <= waited * (1.0 + RATE_MAX) + QUANTUM_US;
        is_possible.then(|| Sight {
            at: t1 + t4.since(t1) / 2,
            offset: (signed(t2, t1) + signed(t3, t4)) / 2.0,
            waited,
            held,
        })
    }

    /// The time on the way, if the peer's clock runs faster by `rate`.
    fn round_trip(&self, rate: f64) -> f64 {
        (self.waited - self.held / (1.0 + rate)).max(0.0)
    }

    /// How far the offset can be from what was seen, some time later.
    fn spread(&self, now: Micros) -> f64 {
        let uncertain = signed(now, self.at).abs() + self.held;
        self.round_trip(0.0) / 2.0 + QUANTUM_US + uncertain * RATE_MAX
    }
}

/// `a - b` in microseconds.
fn signed(a: Micros, b: Micros) -> f64 {
    a.0.wrapping_sub(b.0).cast_signed() as f64
}

#[cfg(test)]
mod tests;
