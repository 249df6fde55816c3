//! A node's two clocks against the world's: the wall clock, which may be stepped and run at any rate, and the monotonic one, whose crystal is
//! a little off at most.

use std::sync::{Arc, Mutex, MutexGuard};

/// Parts per million by which a monotonic clock may be off: what the worst crystals are, and far below what timers of ours notice.
pub const MONOTONIC_PPM_MAX: f64 = 500.0;

/// Parts per million by which a wall clock may be off: a clock that somebody slews runs a tenth too fast or slow.
pub const WALL_PPM_MAX: f64 = 100_000.0;

const BILLION: i128 = 1_000_000_000;

/// One node's clocks. A handle; all lives of a node share it, as they share the machine.
#[derive(Debug, Clone, Default)]
pub struct Clocks(Arc<Mutex<Both>>);

#[derive(Debug, Default)]
struct Both {
    monotonic: Line,
    wall: Line,
}

/// A straight line from an instant of the world on: nanoseconds there to nanoseconds here.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    since: i128,
    shows: i128,
    ppb: i128,
}

impl Clocks {
    fn lock(&self) -> MutexGuard<'_, Both> {
        self.0.lock().expect("no code under this lock panics")
    }

    /// What the monotonic clock shows when the world's shows `world`.
    pub fn monotonic(&self, world: u64) -> u64 {
        to_u64(self.lock().monotonic.at(world.into()))
    }

    /// The first instant of the world at which the monotonic clock shows `here` or more.
    pub fn world(&self, here: u64) -> u64 {
        if here == u64::MAX {
            return here;
        }
        to_u64(self.lock().monotonic.inverse(here.into()))
    }

    /// What the wall clock shows, in nanoseconds since it showed the start; less than none if it was moved before it.
    pub fn wall(&self, world: u64) -> i128 {
        self.lock().wall.at(world.into())
    }

    /// Sets the monotonic clock forward: of a machine that ran for so much longer. Only before anybody has read it.
    pub fn start_ahead(&self, nanos: u64) {
        self.lock().monotonic.shows += i128::from(nanos);
    }

    /// Moves the wall clock.
    pub fn step(&self, nanos: i128) {
        self.lock().wall.shows += nanos;
    }

    /// Lets the clocks run too fast or slow by so many parts per million from now on, within what each may.
    pub fn drift(&self, world: u64, wall_ppm: f64, monotonic_ppm: f64) {
        let mut both = self.lock();
        let within = |ppm: f64, most: f64| ppm.clamp(-most, most);
        let monotonic_ppm = within(monotonic_ppm, MONOTONIC_PPM_MAX);
        both.monotonic.turn(world, monotonic_ppm);
        both.wall.turn(world, within(wall_ppm, WALL_PPM_MAX));
    }
}

impl Line {
    fn at(&self, world: i128) -> i128 {
        let passed = world - self.since;
        self.shows + passed + (passed * self.ppb).div_euclid(BILLION)
    }

    fn inverse(&self, here: i128) -> i128 {
        let rest = here - self.shows;
        if rest <= 0 {
            return self.since;
        }
        let mut passed = rest * BILLION / (BILLION + self.ppb);
        // Rounded twice, so it may be a nanosecond or two early; a timer must not be.
        while self.at(self.since + passed) < here {
            passed += 1;
        }
        self.since + passed
    }

    fn turn(&mut self, world: u64, ppm: f64) {
        *self = Line {
            shows: self.at(world.into()),
            since: world.into(),
            ppb: (ppm * 1000.0) as i128,
        };
    }
}

fn to_u64(nanos: i128) -> u64 {
    u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_with_the_world_until_they_drift() {
        let clocks = Clocks::default();
        for nanos in [0, 1, 999, u64::from(u32::MAX), u64::MAX / 2] {
            assert_eq!(clocks.monotonic(nanos), nanos);
            assert_eq!(clocks.world(nanos), nanos);
            assert_eq!(clocks.wall(nanos), i128::from(nanos));
        }
        assert_eq!(clocks.world(u64::MAX), u64::MAX);
    }

    /// A timer that is armed for the instant given must find that its time has come, and one nanosecond earlier that it has not.
    #[test]
    fn an_instant_of_the_node_is_the_first_of_the_world_that_shows_it() {
        let clocks = Clocks::default();
        let mut world = 0;
        for (ppm, span) in [
            (500.0, 7_000_000_001),
            (-500.0, 3),
            (0.333, 999_999_937),
            (-1.0, 1),
        ] {
            clocks.drift(world, 0.0, ppm);
            let here = clocks.monotonic(world);
            for ahead in [0, 1, 2, 1999, 2000, 2001, 1_000_003, 60_000_000_007] {
                let at = clocks.world(here + ahead);
                assert!(clocks.monotonic(at) >= here + ahead, "{ppm} {ahead}");
                assert!(
                    at == world || clocks.monotonic(at - 1) < here + ahead,
                    "{ppm} {ahead}"
                );
            }
            world += span;
        }
    }

    #[test]
    fn a_drift_begins_and_ends_without_a_jump() {
        let clocks = Clocks::default();
        clocks.drift(1_000_000_000, 100_000.0, 100.0);
        assert_eq!(clocks.monotonic(1_000_000_000), 1_000_000_000);
        assert_eq!(clocks.monotonic(11_000_000_000), 11_001_000_000);
        assert_eq!(clocks.wall(11_000_000_000), 12_000_000_000);
        clocks.drift(11_000_000_000, 0.0, 0.0);
        assert_eq!(clocks.monotonic(21_000_000_000), 21_001_000_000);
        clocks.step(-30_000_000_000);
        assert_eq!(clocks.wall(21_000_000_000), -8_000_000_000);
        // No crystal is worse than this.
        clocks.drift(21_000_000_000, f64::MAX, f64::MIN);
        assert_eq!(clocks.monotonic(22_000_000_000), 22_000_500_000);
        assert_eq!(clocks.wall(22_000_000_000), -6_900_000_000);
    }
}
