//! When to dial again: waits that double, each with jitter of its own, so that peers which lost the same gateway do not come back in step.

use std::time::Duration;

use tombolo_core::rng::Rng;

/// The first wait; doubled each time up to [`MOST`].
const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(2);

/// With its jitter, the longest time until a peer that is there again is dialled anew.
pub const REDIAL_MOST: Duration = Duration::from_secs(3);

/// One chain of attempts: however often another one is asked for, at most one is waited for.
pub(super) struct Redial {
    rng: Rng,
    wait: Duration,
    waiting: bool,
}

impl Redial {
    /// Nothing was tried yet.
    pub fn new(rng: Rng) -> Self {
        Redial {
            rng,
            wait: FIRST,
            waiting: false,
        }
    }

    /// How long to wait before the next attempt; none if one is waited for already.
    pub fn later(&mut self) -> Option<Duration> {
        if std::mem::replace(&mut self.waiting, true) {
            return None;
        }
        let wait = self.wait.mul_f64(0.5 + self.rng.next_f64());
        self.wait = (self.wait * 2).min(MOST);
        Some(wait)
    }

    /// The wait is over.
    pub fn due(&mut self) {
        self.waiting = false;
    }

    /// The peer was reached: the next loss is tried again soon.
    pub fn reset(&mut self) {
        self.wait = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redial() -> Redial {
        Redial::new(Rng::new(7))
    }

    /// Field fault: reconnects spread at random over the backoff window. teleport#6889, swarm-plugin#163. Of five hundred peers that lost
    /// the same node, no more than twice their share comes in any tenth of the window, from the first attempt to the last.
    #[test]
    fn reconnects_spread_over_the_window() {
        let mut peers: Vec<Redial> = (0..500u32)
            .map(|peer| Redial::new(Rng::derive(7, &[b"redial", &peer.to_le_bytes()])))
            .collect();
        for _ in 0..8 {
            let nominal = peers[0].wait;
            let mut tenths = [0; 10];
            for peer in &mut peers {
                let share = peer.later().unwrap().div_duration_f64(nominal) - 0.5;
                tenths[((share * 10.0) as usize).min(9)] += 1;
                peer.due();
            }
            assert!(
                tenths.iter().all(|count| (25..=100).contains(count)),
                "{tenths:?}"
            );
        }
    }

    #[test]
    fn failures_that_come_together_start_one_attempt() {
        let mut redial = redial();
        let mut started = 0;
        for _ in 0..10 {
            // A dial that failed, a session that ended, an outbox that was full.
            started += (0..3).filter(|_| redial.later().is_some()).count();
            redial.due();
        }
        assert_eq!(started, 10);
    }

    #[test]
    fn every_wait_has_jitter_of_its_own_and_they_grow_to_a_limit() {
        let mut redial = redial();
        let mut nominal = FIRST;
        let mut jitters = std::collections::BTreeSet::new();
        for _ in 0..20 {
            let jitter = redial.later().unwrap().div_duration_f64(nominal);
            assert!((0.49..=1.51).contains(&jitter), "{jitter}");
            jitters.insert((jitter * 1000.0) as u64);
            redial.due();
            nominal = (nominal * 2).min(MOST);
        }
        assert!(jitters.len() > 15, "{jitters:?}");
        redial.reset();
        assert!(redial.later().unwrap() < FIRST * 2);
    }
}
