//! The federation's clock: the coordinator's, as the others reckon it.

use std::time::Duration;

use super::Estimate;
use crate::time::Micros;

/// A clock that came out ahead runs so much slower until the truth has caught up: one part in so many.
const SLOWER: u64 = 4;

/// A clock that never steps back, and steps forward only where it was behind by more than its own bound.
#[derive(Debug, Clone, Copy, Default)]
pub struct FederationClock {
    last: Option<(Micros, Micros)>,
}

impl FederationClock {
    /// The federation's time at `now` of our clock, given what is known of the coordinator's. Ask in the order of time.
    pub fn read(&mut self, now: Micros, estimate: &Estimate) -> Micros {
        let target = Micros(now.0.saturating_add_signed(estimate.offset_us));
        let Some((asked, told)) = self.last.replace((now, target)) else {
            return target;
        };
        let passed = now.since(asked);
        let steady = told + passed;
        let read = if target >= steady {
            target
        } else {
            // Ahead: slower, but on.
            let slowest = told + (passed - passed / SLOWER as u32);
            target.max(slowest)
        };
        self.last = Some((now, read));
        read
    }

    /// How far the last reading was ahead of what is known to be the time.
    pub fn ahead(&self, estimate: &Estimate) -> Duration {
        self.last.map_or(Duration::ZERO, |(asked, told)| {
            told.since(Micros(asked.0.saturating_add_signed(estimate.offset_us)))
        })
    }
}
