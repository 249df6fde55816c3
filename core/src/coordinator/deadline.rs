//! How long a round may take: from how long the last ones took.
//!
//! Of each node the last report of a round counts, at the time at which it came, and also if it came too late.
//!
//! Three times the 95th percentile of the arrivals of the last five rounds, growing by at most one half a round, and by one half after a
//! missed quorum; within 5 s and 30 min. The first round gets 30 min: nothing is known yet.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::ids::{NodeId, Round};
use crate::time::Micros;

const ROUNDS: usize = 5;
const LEAST: Duration = Duration::from_secs(5);
/// The longest span, and that of the first round.
pub const DEADLINE_MOST: Duration = Duration::from_secs(30 * 60);

/// See the module.
#[derive(Debug, Default)]
pub struct Adaptive {
    rounds: VecDeque<Measured>,
    last: Option<Duration>,
}

/// When the reports of a round came, by node.
#[derive(Debug)]
struct Measured {
    round: Round,
    opened: Micros,
    arrivals: BTreeMap<NodeId, Duration>,
}

impl Adaptive {
    /// The span for the next round.
    pub fn span(&self) -> Duration {
        self.last.unwrap_or(DEADLINE_MOST)
    }

    /// Takes the arrivals of a round that was opened then.
    pub fn on_round(&mut self, round: Round, opened: Micros, arrivals: BTreeMap<NodeId, Duration>) {
        if arrivals.is_empty() {
            return;
        }
        self.rounds.push_back(Measured {
            round,
            opened,
            arrivals,
        });
        if self.rounds.len() > ROUNDS {
            self.rounds.pop_front();
        }
        let rounds = self.rounds.iter();
        let mut all: Vec<Duration> = rounds
            .flat_map(|round| round.arrivals.values().copied())
            .collect();
        all.sort_unstable();
        let p95 = all[(all.len() * 95).div_ceil(100) - 1];
        let bound = self.last.map_or(DEADLINE_MOST, |last| last.mul_f64(1.5));
        self.last = Some(p95.saturating_mul(3).min(bound).clamp(LEAST, DEADLINE_MOST));
    }

    /// A report came after its round was over: it counts as long as it took, from the next round on.
    pub fn on_late(&mut self, round: Round, node: NodeId, now: Micros) {
        let measured = self.rounds.iter_mut().rfind(|known| known.round == round);
        if let Some(measured) = measured {
            let took = now.since(measured.opened);
            measured.arrivals.entry(node).or_insert(took);
        }
    }

    /// The quorum was not there in time.
    pub fn on_missed(&mut self) {
        self.last = Some(self.span().mul_f64(1.5).min(DEADLINE_MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn arrivals(spans: Vec<Duration>) -> BTreeMap<NodeId, Duration> {
        let numbered = spans.into_iter().enumerate();
        numbered
            .map(|(index, span)| (format!("a/n{index}").parse().unwrap(), span))
            .collect()
    }

    #[test]
    fn the_first_round_has_half_an_hour_and_later_ones_follow_the_arrivals() {
        let mut deadline = Adaptive::default();
        assert_eq!(deadline.span(), seconds(1800));
        deadline.on_round(1, Micros(0), arrivals(vec![seconds(10); 20]));
        assert_eq!(deadline.span(), seconds(30));
        // Two stragglers in forty are beyond the 95th percentile, three are not.
        let more = [vec![seconds(10); 17], vec![seconds(100); 3]].concat();
        deadline.on_round(2, Micros(0), arrivals(more));
        assert_eq!(deadline.span(), seconds(45), "at most one half more");
    }

    #[test]
    fn who_comes_too_late_lengthens_the_rounds_that_follow() {
        let mut deadline = Adaptive::default();
        deadline.on_round(1, Micros(0), arrivals(vec![seconds(10); 3]));
        let late = Micros(14_000_000);
        deadline.on_late(1, "a/late".parse().unwrap(), late);
        deadline.on_late(1, "a/late".parse().unwrap(), late + seconds(900));
        deadline.on_late(7, "a/late".parse().unwrap(), late);
        assert_eq!(deadline.span(), seconds(30));
        deadline.on_round(2, late, arrivals(vec![seconds(10); 3]));
        assert_eq!(deadline.span(), seconds(42));
    }

    #[test]
    fn it_stays_within_five_seconds_and_half_an_hour() {
        let mut deadline = Adaptive::default();
        deadline.on_round(1, Micros(0), arrivals(vec![Duration::from_millis(1)]));
        assert_eq!(deadline.span(), seconds(5));
        for _ in 0..40 {
            deadline.on_missed();
        }
        assert_eq!(deadline.span(), seconds(1800));
    }
}
