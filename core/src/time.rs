//! The unit of the monotonic clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A monotonic instant: microseconds since the process (or the simulation) began. Only differences mean anything.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Micros(pub u64);

impl Micros {
    /// An instant that never comes.
    pub const NEVER: Micros = Micros(u64::MAX);

    /// The time from `earlier` until `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Micros) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Saturates at [`Micros::NEVER`].
impl Add<Duration> for Micros {
    type Output = Micros;

    fn add(self, span: Duration) -> Micros {
        Micros(
            self.0
                .saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

/// Saturates at zero.
impl Sub<Duration> for Micros {
    type Output = Micros;

    fn sub(self, span: Duration) -> Micros {
        Micros(
            self.0
                .saturating_sub(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)),
        )
    }
}

impl fmt::Debug for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Micros::NEVER {
            f.write_str("never")
        } else {
            write!(f, "{:.6}s", self.0 as f64 / 1e6)
        }
    }
}
