//! How suspicious is a silence?
//!
//! phi = -log10 of the chance that a living peer stays silent for so long: at 8, one silence in 10^8 of that length is a false alarm
//! (Hayashibara, Défago, Yared, Katayama: "The phi accrual failure detector", 2004). The paper takes the times between arrivals as normal,
//! so that a lost heartbeat looks like enormous jitter. Here heartbeats are counted by their sender and losses are known as such: what a
//! loss tears open is taken out of the times, which leaves jitter, and the chance that k heartbeats in a row get lost comes in as what it
//! is. So a quiet link is judged by its period and its jitter alone, and a lossy one gets the patience that its losses ask for, no more.

use std::collections::VecDeque;
use std::time::Duration;

/// Arrivals that are remembered, two minutes at the default period: on a link that loses one heartbeat in twenty, a window without any
/// loss, which would make the next two in a row look like death, comes once in 500,000.
const WINDOW: usize = 256;

/// The highest suspicion that is told apart.
const PHI_MAX: f64 = 100.0;

/// Longest time between arrivals that is remembered, in periods: a freeze of the peer must not blind us for the next two minutes.
const PERIODS_MAX: u32 = 4;

/// More losses in a row are an outage, not a property of the link.
const LOST_MAX: u32 = 16;

/// Chances below this make no difference to any suspicion.
const LEAST: f64 = 1e-102;

/// No link that is good for anything loses more.
const LOSS_MAX: f64 = 0.5;

/// What was seen of a peer's arrivals.
#[derive(Debug)]
pub struct Arrivals {
    /// The period that is expected.
    expected: Duration,
    /// The period in which the peer sends.
    every: Duration,
    window: VecDeque<Arrival>,
    sum: u64,
    squares: u128,
    lost: u64,
}

#[derive(Debug, Clone, Copy)]
struct Arrival {
    /// Microseconds since the arrival before, less what is explained by losses.
    interval: u32,
    /// Heartbeats lost in between.
    lost: u32,
}

impl Arrivals {
    /// Nothing was seen of a peer that sends in one period and is expected in another, the slower of both sides'.
    pub fn new(expected: Duration, every: Duration) -> Self {
        Arrivals {
            expected,
            every,
            window: VecDeque::new(),
            sum: 0,
            squares: 0,
            lost: 0,
        }
    }

    /// Whether it is about these periods.
    pub fn is_of(&self, expected: Duration, every: Duration) -> bool {
        (self.expected, self.every) == (expected, every)
    }

    /// A heartbeat arrived so long after the one before, with so many lost in between.
    pub fn push(&mut self, interval: Duration, lost: u64) {
        if self.window.len() == WINDOW
            && let Some(oldest) = self.window.pop_front()
        {
            self.sum -= u64::from(oldest.interval);
            self.squares -= u128::from(oldest.interval).pow(2);
            self.lost -= u64::from(oldest.lost);
        }
        let lost = u32::try_from(lost).unwrap_or(u32::MAX);
        let jittered = interval
            .saturating_sub(self.every.saturating_mul(lost))
            .min(self.expected * PERIODS_MAX);
        let arrival = Arrival {
            interval: u32::try_from(jittered.as_micros()).unwrap_or(u32::MAX),
            lost: lost.min(LOST_MAX),
        };
        self.sum += u64::from(arrival.interval);
        self.squares += u128::from(arrival.interval).pow(2);
        self.lost += u64::from(arrival.lost);
        self.window.push_back(arrival);
    }

    /// A heartbeat that was taken for lost arrived after all.
    pub fn forgive(&mut self) {
        let last = self
            .window
            .iter_mut()
            .rev()
            .find(|arrival| arrival.lost > 0);
        if let Some(arrival) = last {
            arrival.lost -= 1;
            self.lost -= 1;
        }
    }

    /// The share of heartbeats that got lost lately.
    pub fn loss(&self) -> f64 {
        self.lost as f64 / (self.lost as f64 + self.window.len() as f64).max(1.0)
    }

    /// The suspicion after so long a silence, at most [`PHI_MAX`].
    pub fn phi(&self, silent: Duration) -> f64 {
        let (mean, deviation) = self.normal();
        let loss = self.loss().min(LOSS_MAX);
        let silent = silent.as_secs_f64();
        // The k-th heartbeat from now is the first that gets through, and comes later than this.
        let (mut later, mut all_lost, mut due) = (0.0, 1.0, 0.0);
        while all_lost > LEAST {
            due += mean;
            later += all_lost * (1.0 - loss) * beyond((silent - due) / deviation);
            all_lost *= loss;
        }
        if later <= 0.0 {
            return PHI_MAX;
        }
        (-libm::log10(later)).clamp(0.0, PHI_MAX)
    }

    /// No shorter silence reaches the suspicion that is so many [`deviations`] off; on a link without losses this one does.
    pub fn earliest(&self, deviations: f64) -> Duration {
        let (mean, deviation) = self.normal();
        // Rounded up to what the clock can tell.
        Duration::from_micros((1e6 * (mean + deviation * deviations)) as u64 + 1)
    }

    /// Mean and standard deviation of the times between arrivals, in seconds. Neither is taken for less than the agreed period warrants: the
    /// deviation not for less than a quarter of it.
    fn normal(&self) -> (f64, f64) {
        let expected = self.expected.as_secs_f64();
        let count = self.window.len().max(1) as f64;
        let mean = self.sum as f64 / count;
        let variance = (self.squares as f64 / count - mean * mean).max(0.0);
        (
            (mean / 1e6).max(expected),
            (libm::sqrt(variance) / 1e6).max(expected / 4.0),
        )
    }
}

/// The chance that a normal variable lies further than so many deviations above its mean.
fn beyond(deviations: f64) -> f64 {
    0.5 * libm::erfc(deviations / std::f64::consts::SQRT_2)
}

/// How many deviations above the mean a normal variable reaches a suspicion.
pub fn deviations(phi: f64) -> f64 {
    let chance = libm::pow(10.0, -phi.min(PHI_MAX));
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if beyond(middle) > chance {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const PERIOD: Duration = Duration::from_millis(500);

    fn arrivals() -> Arrivals {
        Arrivals::new(PERIOD, PERIOD)
    }

    /// The first silence, to the millisecond, that reaches a suspicion.
    fn reaches(arrivals: &Arrivals, phi: f64) -> u64 {
        (0..)
            .find(|ms| arrivals.phi(Duration::from_millis(*ms)) >= phi)
            .unwrap()
    }

    #[test]
    fn phi_is_the_chance_of_a_normal_variable() {
        // Tables of the normal distribution: beyond 1, 2, 3 and 6 deviations.
        for (deviation, chance) in [
            (1.0, 0.158_655),
            (2.0, 0.022_750),
            (3.0, 0.001_349_9),
            (6.0, 9.865_9e-10),
        ] {
            assert!(
                (beyond(deviation) / chance - 1.0).abs() < 1e-4,
                "{deviation}"
            );
        }
        for phi in [1.0, 4.0, 8.0, 50.0, 100.0] {
            assert!((-libm::log10(beyond(deviations(phi))) - phi).abs() < 1e-6);
        }
        assert_eq!(arrivals().phi(Duration::from_secs(3600)), PHI_MAX);
        assert!(arrivals().phi(Duration::ZERO) < 1e-4);
    }

    #[test]
    fn on_a_quiet_link_the_period_alone_decides() {
        let mut quiet = arrivals();
        assert_eq!(reaches(&quiet, 8.0), 1202, "before anything was seen");
        for _ in 0..2 * WINDOW {
            quiet.push(PERIOD, 0);
        }
        assert_eq!(reaches(&quiet, 8.0), 1202);
        let earliest = quiet.earliest(deviations(8.0));
        assert_eq!(earliest.as_millis(), 1201);
        assert!(quiet.phi(earliest) >= 8.0);
    }

    #[test]
    fn jitter_and_losses_are_given_the_patience_that_they_ask_for() {
        let mut jittery = arrivals();
        for turn in 0..WINDOW {
            jittery.push(
                Duration::from_millis(if turn % 2 == 0 { 200 } else { 800 }),
                0,
            );
        }
        // A deviation of 300 ms.
        assert_eq!(reaches(&jittery, 8.0), 2184);
        let mut lossy = arrivals();
        for turn in 0..WINDOW as u64 {
            lossy.push(
                PERIOD * if turn % 19 == 0 { 2 } else { 1 },
                u64::from(turn % 19 == 0),
            );
        }
        assert!((lossy.loss() - 0.05).abs() < 0.003, "{}", lossy.loss());
        // Six in a row are a matter of chance: 0.05^6 is more than 10^-8.
        assert!(
            (3300..=4000).contains(&reaches(&lossy, 8.0)),
            "{}",
            reaches(&lossy, 8.0)
        );
    }

    #[test]
    fn a_link_that_is_quiet_again_is_judged_as_one() {
        let mut arrivals = arrivals();
        for _ in 0..WINDOW {
            arrivals.push(PERIOD * 3, 2);
        }
        assert!(reaches(&arrivals, 8.0) > 5000);
        for _ in 0..WINDOW {
            arrivals.push(PERIOD, 0);
        }
        assert_eq!((reaches(&arrivals, 8.0), arrivals.loss()), (1202, 0.0));
    }

    #[test]
    fn one_freeze_of_the_peer_does_not_blind_us() {
        let mut arrivals = arrivals();
        for _ in 0..WINDOW {
            arrivals.push(PERIOD, 0);
        }
        arrivals.push(Duration::from_secs(3600), 0);
        assert!(
            reaches(&arrivals, 8.0) <= 1500,
            "{}",
            reaches(&arrivals, 8.0)
        );
    }

    #[test]
    fn whatever_a_peer_claims_to_have_sent_stays_within_bounds() {
        let mut arrivals = arrivals();
        let mut rng = Rng::new(1);
        for _ in 0..10 * WINDOW {
            let lost = rng.next_u64() >> rng.below(64);
            arrivals.push(Duration::from_micros(rng.next_u64() >> rng.below(64)), lost);
            assert!(arrivals.window.len() <= WINDOW);
            let phi = arrivals.phi(Duration::from_millis(rng.below(100_000)));
            assert!((0.0..=PHI_MAX).contains(&phi), "{phi}");
        }
        assert!(
            reaches(&arrivals, 8.0) < 60_000,
            "the dead are found all the same"
        );
    }

    #[test]
    fn no_shorter_silence_than_the_earliest_is_suspicious() {
        let mut rng = Rng::new(2);
        for _ in 0..200 {
            let mut arrivals = arrivals();
            let (jitter, loss) = (rng.below(700), rng.below(5));
            for _ in 0..rng.below(300) {
                let lost = u64::from(rng.below(10) < loss);
                arrivals.push(
                    PERIOD * (1 + lost as u32) + Duration::from_millis(rng.below(jitter + 1)),
                    lost,
                );
            }
            for phi in [1.0, 8.0, 20.0] {
                let earliest = arrivals.earliest(deviations(phi));
                let before = earliest.saturating_sub(Duration::from_micros(2));
                assert!(arrivals.phi(before) < phi, "{phi} at {before:?}");
            }
        }
    }
}
