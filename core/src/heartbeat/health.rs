//! Who is late doubts itself first (Dadgar, Phillips, Currey: "Lifeguard: local health awareness for more accurate failure detection", 2018).
//!
//! A node whose own timers come late, because its processor is taken or because it was stopped, would find everybody else silent. So each
//! late timer makes it more patient with others, up to a limit, and each one in time a step less.

pub use crate::wire::HEALTH_MAX as MAX;

/// How late this node's timers come: 0 is on time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Health(u8);

impl Health {
    /// A timer came so many periods late.
    pub fn late(&mut self, periods: u128) {
        let worse = u128::from(self.0).saturating_add(periods.saturating_add(1));
        self.0 = u8::try_from(worse).unwrap_or(MAX).min(MAX);
    }

    /// A timer came in time.
    pub fn in_time(&mut self) {
        self.0 = self.0.saturating_sub(1);
    }

    /// 0 to [`MAX`]: what others are told.
    pub fn score(self) -> u8 {
        self.0
    }

    /// How many times as long a silence must be.
    pub fn stretch(self) -> u32 {
        1 + u32::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_timers_stretch_patience_to_a_limit_and_timers_in_time_bring_it_back() {
        let mut health = Health::default();
        assert_eq!(health.stretch(), 1);
        health.late(0);
        assert_eq!(health.stretch(), 2);
        health.late(u128::MAX);
        assert_eq!((health.score(), health.stretch()), (MAX, 9));
        for _ in 0..MAX {
            health.in_time();
        }
        assert_eq!(health, Health::default());
        health.in_time();
        assert_eq!(health, Health::default());
    }
}
