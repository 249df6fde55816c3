//! How long a round may take: from how long the last ones took.
//!
//! Three times the 95th percentile of the arrivals of the last five rounds, growing by at most one half a round, and by one half after a
//! missed quorum; within 5 s and 30 min. The first round gets 30 min: nothing is known yet.

use std::collections::VecDeque;
use std::time::Duration;

const ROUNDS: usize = 5;
const LEAST: Duration = Duration::from_secs(5);
const MOST: Duration = Duration::from_secs(30 * 60);

/// See the module.
#[derive(Debug, Default)]
pub struct Adaptive {
    rounds: VecDeque<Vec<Duration>>,
    last: Option<Duration>,
}

impl Adaptive {
    /// The span for the next round.
    pub fn span(&self) -> Duration {
        self.last.unwrap_or(MOST)
    }

    /// Takes the arrivals of a round, late ones at their real time.
    pub fn on_round(&mut self, arrivals: Vec<Duration>) {
        if arrivals.is_empty() {
            return;
        }
        self.rounds.push_back(arrivals);
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
        let mut all: Vec<Duration> = self.rounds.iter().flatten().copied().collect();
        all.sort_unstable();
        let p95 = all[(all.len() * 95).div_ceil(100) - 1];
        let bound = self.last.map_or(MOST, |last| last.mul_f64(1.5));
        self.last = Some(p95.saturating_mul(3).min(bound).clamp(LEAST, MOST));
    }

    /// The quorum was not there in time.
    pub fn on_missed(&mut self) {
        self.last = Some(self.span().mul_f64(1.5).min(MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_round_has_half_an_hour_and_later_ones_follow_the_arrivals() {
        let mut deadline = Adaptive::default();
        assert_eq!(deadline.span(), seconds(1800));
        deadline.on_round(vec![seconds(10); 20]);
        assert_eq!(deadline.span(), seconds(30));
        // Two stragglers in forty are beyond the 95th percentile, three are not.
        deadline.on_round([vec![seconds(10); 17], vec![seconds(100); 3]].concat());
        assert_eq!(deadline.span(), seconds(45), "at most one half more");
    }

    #[test]
    fn it_stays_within_five_seconds_and_half_an_hour() {
        let mut deadline = Adaptive::default();
        deadline.on_round(vec![Duration::from_millis(1)]);
        assert_eq!(deadline.span(), seconds(5));
        for _ in 0..40 {
            deadline.on_missed();
        }
        assert_eq!(deadline.span(), seconds(1800));
    }
}
