//! The ladder: what a silent peer goes through before it is out, as one node sees it.
//!
//! ```text
//!          life                 silence             timeout           timeout
//!  Unmet ───────▶ Alive ─────────────────▶ Suspect ─────────▶ Retry 1 ───────▶ … Retry n
//!                   ▲                         │                  │                  │ timeout
//!                   │                         │                  │                  ▼
//!                   ◀─────────────────────────◀──────────────────◀──────────── Restoring
//!                   │                     life                                      │ timeout
//!                   │                                                               ▼
//!                   ◀─────────────────────────────────────────────────────────── Overdue
//! ```
//!
//! A peer that says that it leaves is off the ladder, whatever its rung, until there is life again: nobody is missed who said goodbye.
//!
//! At each retry the link dials anew, at a random moment of that retry's wait (full jitter), so that peers which lost the same gateway do
//! not come back in step. When the retries are exhausted the round no longer waits for the peer; it may still come back, from its own
//! snapshot or healed by others, until it is overdue. Then the coordinator is told, who alone evicts.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::mutants;
use crate::rng::Rng;
use crate::time::Micros;

/// Where a peer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rung {
    /// It said that it leaves.
    Left,
    /// Never heard of: nobody is missed before the first contact.
    Unmet,
    /// Heard lately.
    Alive,
    /// Silent for the heartbeat limit.
    Suspect,
    /// The link has dialled anew so many times.
    Retry(usize),
    /// Out of the round. It may come back.
    Restoring,
    /// Silent for too long: the coordinator may evict it.
    Overdue,
}

/// What makes a peer change its rung.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Something came from it.
    Life,
    /// Its silence is suspicious.
    Silence,
    /// The time of its rung is over.
    Timeout,
    /// It says that it leaves.
    Goodbye,
}

impl Rung {
    /// The table: the next rung, if the step leads anywhere.
    pub fn next(self, step: Step, retries: usize) -> Option<Rung> {
        match (self, step) {
            (Rung::Alive, Step::Life) | (Rung::Left, Step::Goodbye) => None,
            (_, Step::Life) => Some(Rung::Alive),
            (_, Step::Goodbye) => Some(Rung::Left),
            (Rung::Alive, Step::Silence) => Some(Rung::Suspect),
            (Rung::Suspect, Step::Timeout) if retries > 0 && !mutants::is("rung-skipped") => {
                Some(Rung::Retry(1))
            }
            (Rung::Retry(tried), Step::Timeout) if tried < retries => Some(Rung::Retry(tried + 1)),
            (Rung::Suspect | Rung::Retry(_), Step::Timeout) => Some(Rung::Restoring),
            (Rung::Restoring, Step::Timeout) => Some(Rung::Overdue),
            _ => None,
        }
    }

    /// Whether the round does not wait for a peer there.
    pub fn is_lost(self) -> bool {
        self >= Rung::Restoring
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rung::Left => f.write_str("left"),
            Rung::Unmet => f.write_str("unmet"),
            Rung::Alive => f.write_str("alive"),
            Rung::Suspect => f.write_str("suspect"),
            Rung::Retry(tried) => write!(f, "retry {tried}"),
            Rung::Restoring => f.write_str("restoring"),
            Rung::Overdue => f.write_str("overdue"),
        }
    }
}

/// One peer's place on the ladder and when it moves on.
#[derive(Debug)]
pub struct Ladder {
    retry: Vec<Duration>,
    restore_limit: Duration,
    rng: Rng,
    rung: Rung,
    /// The rungs to come and when, decided when the climb begins.
    due: VecDeque<Micros>,
}

impl Ladder {
    /// A ladder for a peer that was never heard of. `rng` spreads the retries.
    pub fn new(retry: Vec<Duration>, restore_limit: Duration, rng: Rng) -> Self {
        Ladder {
            retry,
            restore_limit,
            rng,
            rung: Rung::Unmet,
            due: VecDeque::new(),
        }
    }

    /// Where the peer stands.
    pub fn rung(&self) -> Rung {
        self.rung
    }

    /// When it moves on by itself.
    pub fn until(&self) -> Option<Micros> {
        self.due.front().copied()
    }

    /// Something came from the peer. True if that changed its rung.
    pub fn on_life(&mut self) -> bool {
        self.due.clear();
        self.step(Step::Life).is_some()
    }

    /// The peer leaves. True if that changed its rung.
    pub fn on_goodbye(&mut self) -> bool {
        self.due.clear();
        self.step(Step::Goodbye).is_some()
    }

    /// The peer is suspected from now on. True if that changed its rung.
    pub fn on_silence(&mut self, now: Micros) -> bool {
        if self.step(Step::Silence).is_none() {
            return false;
        }
        let mut window = now;
        for wait in &self.retry {
            self.due
                .push_back(window + wait.mul_f64(self.rng.next_f64()));
            window = window + *wait;
        }
        self.due.push_back(window);
        self.due.push_back(window + self.restore_limit);
        true
    }

    /// The next rung that the time until `now` leads to; call it until there is none.
    pub fn on_time(&mut self, now: Micros) -> Option<Rung> {
        if now < self.until()? {
            return None;
        }
        self.due.pop_front();
        self.step(Step::Timeout)
    }

    /// Moves everything that is to come: for a span in which this node itself did not run.
    pub fn postpone(&mut self, span: Duration) {
        for due in &mut self.due {
            *due = *due + span;
        }
    }

    fn step(&mut self, step: Step) -> Option<Rung> {
        let next = self.rung.next(step, self.retry.len())?;
        self.rung = next;
        Some(next)
    }
}

/// How long an evicted node stays out: longer each time, up to a limit, so that a node which comes and goes does not take the others with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cooldown {
    /// The first time.
    pub first: Duration,
    /// At most.
    pub cap: Duration,
}

impl Cooldown {
    /// How long after the n-th eviction in a row, counted from 1: doubled each time.
    pub fn span(self, nth: u32) -> Duration {
        let doubled = 1u32.checked_shl(nth.saturating_sub(1));
        doubled
            .and_then(|times| self.first.checked_mul(times))
            .map_or(self.cap, |span| span.min(self.cap))
    }

    /// How long a node must have been a member for its earlier evictions to be forgiven: as long as it could be kept out at most.
    pub fn forgiven_after(self) -> Duration {
        self.cap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRY: [u64; 3] = [1, 2, 4];
    const LIMIT: Duration = Duration::from_secs(60);

    fn ladder(seed: u64) -> Ladder {
        let mut ladder = Ladder::new(
            RETRY.map(Duration::from_secs).to_vec(),
            LIMIT,
            Rng::new(seed),
        );
        assert!(ladder.on_life());
        ladder
    }

    fn second(second: u64) -> Micros {
        Micros(second * 1_000_000)
    }

    #[test]
    fn these_are_all_transitions() {
        let rungs = [
            Rung::Left,
            Rung::Unmet,
            Rung::Alive,
            Rung::Suspect,
            Rung::Retry(1),
            Rung::Retry(2),
            Rung::Restoring,
            Rung::Overdue,
        ];
        let mut found = Vec::new();
        for from in rungs {
            for step in [Step::Life, Step::Silence, Step::Timeout, Step::Goodbye] {
                if let Some(to) = from.next(step, 2) {
                    found.push(format!("{from}: {step:?} -> {to}"));
                }
            }
        }
        assert_eq!(
            found,
            [
                "left: Life -> alive",
                "unmet: Life -> alive",
                "unmet: Goodbye -> left",
                "alive: Silence -> suspect",
                "alive: Goodbye -> left",
                "suspect: Life -> alive",
                "suspect: Timeout -> retry 1",
                "suspect: Goodbye -> left",
                "retry 1: Life -> alive",
                "retry 1: Timeout -> retry 2",
                "retry 1: Goodbye -> left",
                "retry 2: Life -> alive",
                "retry 2: Timeout -> restoring",
                "retry 2: Goodbye -> left",
                "restoring: Life -> alive",
                "restoring: Timeout -> overdue",
                "restoring: Goodbye -> left",
                "overdue: Life -> alive",
                "overdue: Goodbye -> left",
            ]
        );
        assert_eq!(Rung::Suspect.next(Step::Timeout, 0), Some(Rung::Restoring));
    }

    /// LADDER-1: the rungs come in order, each in its time.
    #[test]
    fn a_peer_that_stays_silent_climbs_every_rung_in_its_time() {
        for seed in 0..100 {
            let mut ladder = ladder(seed);
            assert_eq!((ladder.until(), ladder.on_time(second(1000))), (None, None));
            assert!(ladder.on_silence(second(10)));
            assert!(!ladder.on_silence(second(10)), "it is suspected already");
            let mut seen = Vec::new();
            while let Some(until) = ladder.until() {
                assert_eq!(ladder.on_time(until - Duration::from_micros(1)), None);
                seen.push((ladder.on_time(until).unwrap(), until));
            }
            let (rungs, times): (Vec<Rung>, Vec<Micros>) = seen.into_iter().unzip();
            let [one, two, three] = [1, 2, 3].map(Rung::Retry);
            assert_eq!(rungs, [one, two, three, Rung::Restoring, Rung::Overdue]);
            for (time, [from, to]) in times.iter().zip([[10, 11], [11, 13], [13, 17]]) {
                assert!((second(from)..second(to)).contains(time), "{times:?}");
            }
            assert_eq!(times[3..], [second(17), second(77)]);
        }
    }

    #[test]
    fn life_ends_the_climb_on_every_rung() {
        for rungs in 0..=5 {
            let mut ladder = ladder(1);
            ladder.on_silence(second(10));
            for _ in 0..rungs {
                ladder.on_time(second(1000)).unwrap();
            }
            assert!(ladder.on_life());
            assert_eq!((ladder.rung(), ladder.until()), (Rung::Alive, None));
            assert_eq!(ladder.on_time(second(1000)), None);
        }
    }

    #[test]
    fn who_left_climbs_no_further() {
        let mut ladder = ladder(1);
        ladder.on_silence(second(10));
        assert!(ladder.on_goodbye());
        assert_eq!((ladder.rung(), ladder.until()), (Rung::Left, None));
        assert!(!ladder.on_silence(second(1000)));
        assert!(ladder.on_life(), "it is back");
    }

    #[test]
    fn time_in_which_this_node_did_not_run_does_not_count() {
        let mut ladder = ladder(1);
        ladder.on_silence(second(10));
        ladder.postpone(Duration::from_secs(100));
        assert_eq!(ladder.on_time(second(110) - Duration::from_micros(1)), None);
        while let Some(until) = ladder.until() {
            ladder.on_time(until);
            if ladder.rung() == Rung::Restoring {
                assert_eq!(until, second(117));
            }
        }
    }

    /// teleport#6889: peers that lose the same gateway at the same moment do not dial it in the same moment.
    #[test]
    fn the_retries_of_five_hundred_peers_spread_over_their_waits() {
        const PEERS: usize = 500;
        let mut dials: Vec<Vec<u64>> = vec![Vec::new(); RETRY.len()];
        for seed in 0..PEERS as u64 {
            let mut ladder = ladder(seed);
            ladder.on_silence(Micros(0));
            for dials in &mut dials {
                let until = ladder.until().unwrap();
                dials.push(until.0 / 1000);
                ladder.on_time(until);
            }
        }
        let mut from = 0;
        for (dials, wait) in dials.iter().zip(RETRY) {
            // In each tenth of the wait a tenth of the peers: 50, of which chance makes 25 to 80.
            for tenth in 0..10 {
                let part = from + tenth * wait * 100..from + (tenth + 1) * wait * 100;
                let count = dials.iter().filter(|at| part.contains(at)).count();
                assert!(
                    (25..80).contains(&count),
                    "{count} dials within {part:?} ms"
                );
            }
            from += wait * 1000;
        }
    }

    #[test]
    fn the_cooldown_doubles_to_its_cap() {
        let cooldown = Cooldown {
            first: Duration::from_secs(10),
            cap: Duration::from_secs(600),
        };
        let spans: Vec<u64> = (1..=9).map(|nth| cooldown.span(nth).as_secs()).collect();
        assert_eq!(spans, [10, 20, 40, 80, 160, 320, 600, 600, 600]);
        assert_eq!(cooldown.span(0), cooldown.first);
        assert_eq!(cooldown.span(u32::MAX), cooldown.cap);
        let long = Cooldown {
            first: Duration::MAX,
            cap: Duration::MAX,
        };
        assert_eq!(long.span(40), Duration::MAX);
    }
}
