//! Which of several paths to a peer is taken: the direct one, or one through a relay.
//!
//! Each path is probed alike, from end to end, and has a score between 0 and 1: how short it is beside the shortest one, how much it has carried
//! beside the widest one, how little it loses; each of them normalised before it is weighted, since they have no common unit.
//!
//! The direct path is taken while it is usable, unless another one is clearly better; it is gone back to when it is about as good again. Between the
//! two there is a band in which nothing changes, and what has changed stays for a while: so paths of equal scores are never swapped to and fro. Only
//! a path on which nothing comes back is left at once.

use std::time::Duration;

use crate::plan::Weights;
use crate::time::Micros;

/// The weight of the newest sight: after two of them a path is seen as it has become, for the most part.
const NEWEST: f64 = 0.5;

/// A path that loses such a share is as bad as one that loses more, and not usable.
const LOSS_MAX: f64 = 0.1;

/// The weight of the newest probe in the share that is lost: a single loss says little, and several in a row are told by themselves.
const LOST: f64 = 1.0 / 64.0;

/// So many probes in a row without an answer: nothing comes through.
pub const SILENT_MAX: u32 = 4;

/// A probe that has not come back after so many round trips is lost, as far as can be said.
const PATIENCE: f64 = 4.0;

/// No probe is waited for any longer.
const PATIENCE_MAX: Duration = Duration::from_secs(3);

/// By how much a path must be better than the direct one.
const CLEARLY: f64 = 0.2;

/// By how much the direct path may be worse and is gone back to; and by how much one relay must be better than another.
const ABOUT: f64 = 0.1;

/// How many looks in a row another path must be the one to take.
const LOOKS: u32 = 2;

/// How long a change stays, unless nothing comes through.
const REST: Duration = Duration::from_secs(5);

/// What is known of a path.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Path {
    round_trip_us: Option<f64>,
    loss: f64,
    /// Probes in a row without an answer.
    silent: u32,
    bits_per_s: Option<f64>,
}

impl Path {
    fn is_dead(&self) -> bool {
        self.silent >= SILENT_MAX
    }

    /// Nothing was measured yet.
    fn is_unknown(&self) -> bool {
        self.round_trip_us.is_none()
    }

    fn carries(&self) -> bool {
        !self.is_dead() && !self.is_unknown()
    }

    fn is_usable(&self) -> bool {
        self.carries() && self.loss < LOSS_MAX
    }
}

/// Paths to one peer, and which one is taken. The first is the direct one.
#[derive(Debug, Clone)]
pub struct Chooser {
    weights: Weights,
    paths: Vec<Path>,
    /// The path that the link leads.
    taken: usize,
    /// The path that it is to lead, once it does.
    wanted: usize,
    /// When another one was wanted last, and when it was asked for last.
    since: Micros,
    asked: Micros,
    /// At the last look nothing came through the path that the link leads.
    died: bool,
    /// The path that would be wanted, and for how many looks.
    next: (usize, u32),
}

/// What a look at all paths comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// The link goes over to the path that is wanted; the one that it leads still carries.
    Move,
    /// Nothing comes through the path that it leads: it is given up, and dialled anew.
    Leave,
}

impl Chooser {
    /// Of so many paths, at least one; the direct one is taken.
    pub fn new(weights: Weights, paths: usize) -> Self {
        Chooser {
            weights,
            paths: vec![Path::default(); paths.max(1)],
            taken: 0,
            wanted: 0,
            since: Micros::default(),
            asked: Micros::default(),
            died: false,
            next: (0, 0),
        }
    }

    /// The path that is wanted: it is tried first.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// The link leads that path from now on, whether it was wanted or was the first that answered.
    pub fn took(&mut self, path: usize, now: Micros) {
        if path < self.paths.len() {
            (self.taken, self.wanted, self.since) = (path, path, now);
            self.next = (path, 0);
        }
    }

    /// A probe has come back.
    pub fn answered(&mut self, path: usize, round_trip: Duration) {
        let Some(path) = self.paths.get_mut(path) else {
            return;
        };
        let new = round_trip.as_micros() as f64;
        let known = path.round_trip_us.filter(|_| path.silent < SILENT_MAX);
        path.round_trip_us = Some(known.map_or(new, |old| old + NEWEST * (new - old)));
        // What was cut and is whole again is another path.
        path.loss = if path.is_dead() {
            0.0
        } else {
            path.loss * (1.0 - LOST)
        };
        path.silent = 0;
    }

    /// A probe has not come back in time.
    pub fn unanswered(&mut self, path: usize) {
        if let Some(path) = self.paths.get_mut(path) {
            path.loss += LOST * (1.0 - path.loss);
            path.silent = path.silent.saturating_add(1);
        }
    }

    /// How long a probe of a path is waited for, if one leaves in each `period`: a few round trips.
    pub fn patience(&self, path: usize, period: Duration) -> Duration {
        let round_trip = self.paths.get(path).and_then(|path| path.round_trip_us);
        let usual = round_trip.map(|us| Duration::from_micros((us * PATIENCE) as u64));
        usual
            .unwrap_or(PATIENCE_MAX)
            .clamp(period, PATIENCE_MAX.max(period))
    }

    /// A path has carried that much, in bits per second, while there was more to carry.
    pub fn carried(&mut self, path: usize, bits_per_s: f64) {
        if let Some(path) = self.paths.get_mut(path).filter(|_| bits_per_s > 0.0) {
            let old = path.bits_per_s.unwrap_or(bits_per_s);
            path.bits_per_s = Some(old + NEWEST * (bits_per_s - old));
        }
    }

    /// How good a path is: 0 to 1, and 0 if nothing comes through.
    pub fn score(&self, path: usize) -> f64 {
        let Some(seen) = self.paths.get(path).filter(|path| path.carries()) else {
            return 0.0;
        };
        let living = || self.paths.iter().filter(|path| path.carries());
        let shortest = living().filter_map(|path| path.round_trip_us);
        let shortest = shortest.fold(f64::INFINITY, f64::min).max(1.0);
        let widest = living().filter_map(|path| path.bits_per_s);
        let widest = widest.fold(0.0, f64::max);
        let latency = seen
            .round_trip_us
            .map_or(0.0, |own| shortest / own.max(shortest));
        // What nobody has measured counts for nobody and against nobody.
        let bandwidth = seen.bits_per_s.map_or(1.0, |own| own / widest);
        let loss = 1.0 - (seen.loss / LOSS_MAX).min(1.0);
        let Weights {
            latency: wl,
            bandwidth: wb,
            loss: ws,
        } = self.weights;
        let sum = wl + wb + ws;
        if sum <= 0.0 {
            return 1.0;
        }
        (wl * latency + wb * bandwidth + ws * loss) / sum
    }

    /// Looks at all paths; says what is to be done, if anything. What was advised and has not happened is advised again after a while.
    pub fn look(&mut self, now: Micros) -> Option<Advice> {
        let best = self.best();
        let looks = if self.next.0 == best {
            self.next.1.saturating_add(1)
        } else {
            1
        };
        self.next = (best, looks);
        let is_dead = self.paths[self.taken].is_dead();
        let settles = looks < LOOKS || now < self.since + REST;
        if best != self.wanted && (is_dead || !settles) {
            (self.wanted, self.since) = (best, now);
            self.asked = Micros::default();
        }
        let dies = is_dead && !self.died;
        self.died = is_dead;
        let again = self.asked == Micros::default() || now >= self.asked + REST;
        if self.wanted == self.taken || !(again || dies) {
            return None;
        }
        self.asked = now;
        Some(if is_dead { Advice::Leave } else { Advice::Move })
    }

    fn best(&self) -> usize {
        let score = |path: usize| self.score(path);
        let relays = 1..self.paths.len();
        let better = |best: usize, path: usize| {
            if score(path) > score(best) {
                path
            } else {
                best
            }
        };
        let Some(relay) = relays.reduce(better) else {
            return 0;
        };
        let (now, direct) = (self.wanted, self.paths[0]);
        if !self.paths[relay].carries() {
            // Nothing is known of any of them: whoever dials tries all.
            return if direct.is_dead() { now } else { 0 };
        }
        if now == 0 {
            // What nobody has measured yet is no worse than it was.
            if direct.is_unknown() && !direct.is_dead() {
                return 0;
            }
            let margin = if direct.is_usable() { CLEARLY } else { 0.0 };
            return if score(relay) > score(0) + margin {
                relay
            } else {
                0
            };
        }
        if direct.is_usable() && score(0) + ABOUT >= score(relay) {
            return 0;
        }
        match self.paths[now].is_dead() || score(relay) > score(now) + ABOUT {
            true => relay,
            false => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::RoutePlan;
    use crate::rng::Rng;

    const PERIOD: Duration = Duration::from_millis(250);

    struct Run {
        chooser: Chooser,
        now: Micros,
        changes: Vec<(Micros, usize)>,
        advice: Vec<Advice>,
    }

    impl Run {
        fn new(paths: usize) -> Self {
            Run {
                chooser: Chooser::new(RoutePlan::default().weights, paths),
                now: Micros(0),
                changes: Vec::new(),
                advice: Vec::new(),
            }
        }

        /// Probes for so long; `see` gives the round trip in milliseconds of each path, none if the probe is lost.
        fn go(&mut self, span: Duration, mut see: impl FnMut(usize) -> Option<f64>) {
            let until = self.now + span;
            while self.now < until {
                self.now = self.now + PERIOD;
                for path in 0..self.chooser.paths.len() {
                    match see(path) {
                        Some(ms) => self
                            .chooser
                            .answered(path, Duration::from_micros((ms * 1000.0) as u64)),
                        None => self.chooser.unanswered(path),
                    }
                }
                if let Some(advice) = self.chooser.look(self.now) {
                    let path = self.chooser.wanted();
                    self.chooser.took(path, self.now);
                    self.changes.push((self.now, path));
                    self.advice.push(advice);
                }
            }
        }
    }

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_direct_path_is_taken_while_it_is_usable() {
        let mut run = Run::new(3);
        run.go(s(60), |path| Some([60.0, 55.0, 50.0][path]));
        assert_eq!(run.changes, []);
        // The score has no unit: seconds instead of milliseconds change nothing.
        let mut run = Run::new(3);
        run.go(s(60), |path| Some([600.0, 550.0, 500.0][path]));
        assert_eq!(run.changes, []);
    }

    #[test]
    fn a_path_that_turns_bad_is_left_within_two_seconds_and_gone_back_to_when_it_is_good_again() {
        for bad in [Some(800.0), None] {
            let mut run = Run::new(2);
            run.go(s(20), |path| Some([40.0, 90.0][path]));
            run.go(s(20), |path| if path == 0 { bad } else { Some(90.0) });
            let (at, path) = run.changes[0];
            assert_eq!(path, 1);
            assert!(at <= Micros(0) + s(22), "{bad:?}: {at:?}");
            assert_eq!(run.changes.len(), 1);
            run.go(s(20), |path| Some([40.0, 90.0][path]));
            assert_eq!(run.changes.len(), 2);
            assert_eq!(run.changes[1].1, 0);
        }
    }

    #[test]
    fn a_path_that_loses_much_is_not_usable() {
        let mut run = Run::new(2);
        let mut rng = Rng::new(7);
        run.go(s(20), |path| Some([40.0, 90.0][path]));
        run.go(s(60), |path| {
            (path == 1 || rng.below(10) >= 4).then_some([40.0, 90.0][path])
        });
        assert_eq!(run.changes.first().map(|(_, path)| *path), Some(1));
    }

    /// Field fault: random loss causes no lasting slowdown (quinn#2212). An hour of it, on every way, moves nothing.
    #[test]
    fn random_loss_moves_nothing() {
        for seed in 0..10 {
            let mut rng = Rng::new(seed);
            let mut run = Run::new(2);
            run.go(s(3600), |path| {
                // There and back over one hop, or over two.
                let lost = (0..2 * (path + 1)).any(|_| rng.below(100) == 0);
                (!lost).then_some([40.0, 80.0][path])
            });
            assert!(run.changes.len() <= 2, "{seed}: {:?}", run.changes);
        }
    }

    /// A way that was advised and has not been taken is advised again, and not in each look; what nobody has measured is not left.
    #[test]
    fn advice_is_repeated_until_it_is_taken() {
        let mut chooser = Chooser::new(RoutePlan::default().weights, 2);
        let mut advised = Vec::new();
        for period in 1..=100_u64 {
            let now = Micros(period * 250_000);
            chooser.answered(1, Duration::from_millis(90));
            if period > 20 {
                chooser.answered(0, Duration::from_millis(900));
            }
            if chooser.look(now).is_some() {
                advised.push(period);
            }
        }
        assert!(advised[0] > 20, "{advised:?}");
        assert!(advised.len() >= 3, "{advised:?}");
        let gaps = advised.windows(2).all(|pair| pair[1] - pair[0] >= 20);
        assert!(gaps, "{advised:?}");
    }

    /// Whatever jitter and chance do to paths that are equally good, none is swapped for another.
    #[test]
    fn equal_paths_are_never_swapped() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut run = Run::new(4);
            // Of the relays, too: begin on one of them, since the direct path is dead.
            run.go(s(10), |path| (path > 0).then_some(50.0));
            assert_eq!(run.changes.len(), 1);
            run.go(s(600), |path| {
                (path > 0).then(|| 50.0 + rng.below(10) as f64)
            });
            assert_eq!(run.changes.len(), 1, "{seed}: {:?}", run.changes);
        }
    }

    /// A path may be as bad as it likes, and change as often: the way changes no more than once in the time that a change stays.
    #[test]
    fn a_path_that_comes_and_goes_is_not_followed_each_time() {
        let mut run = Run::new(2);
        let mut looks = 0;
        run.go(s(300), |path| {
            looks += 1;
            let is_bad = path == 0 && looks / 4 % 2 == 0;
            Some(if is_bad { 2000.0 } else { 50.0 })
        });
        assert!(run.changes.len() <= 60, "{}", run.changes.len());
    }

    #[test]
    fn what_is_wider_counts_once_it_was_measured() {
        let mut run = Run::new(2);
        run.go(s(10), |_| Some(50.0));
        run.chooser.carried(0, 5e6);
        assert_eq!(run.chooser.score(0), run.chooser.score(1));
        run.chooser.carried(1, 100e6);
        assert!(run.chooser.score(1) > run.chooser.score(0) + CLEARLY);
        run.go(s(2), |_| Some(50.0));
        assert_eq!(run.changes.first().map(|(_, path)| *path), Some(1));
    }

    #[test]
    fn scores_are_between_nothing_and_one() {
        let mut rng = Rng::new(3);
        let mut run = Run::new(3);
        for _ in 0..2000 {
            run.go(PERIOD, |_| (rng.below(3) > 0).then(|| rng.next_f64() * 1e4));
            for path in 0..3 {
                let score = run.chooser.score(path);
                assert!((0.0..=1.0).contains(&score), "{score}");
            }
        }
    }
}
