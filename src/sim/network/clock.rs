//! The clock of a simulation.
//!
//! Time is tokio's paused clock, in nanoseconds since the start. Tokio moves that clock in whole milliseconds to its next timer; the
//! network moves it to the exact nanosecond of its next event. Both see one time line: when every task waits, tokio calls
//! [`Network::on_idle`], which
//!
//! - moves the clock to the next event and fires it, if it lies inside the current millisecond;
//! - else asks the root future to keep a tokio timer at the start of that event's millisecond, and lets tokio go there by itself, past
//!   whichever timers of its own come before.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use super::{Inner, Network};
use crate::sim::nanos;
use crate::sim::skew::Clocks;

/// Tokio's timers lie on this grid, in nanoseconds.
const TICK: u64 = 1_000_000;

/// Where the clock stands.
pub enum Clock {
    Before,
    Running(Instant),
    Ended(u64),
}

impl Network {
    /// Starts the clock; false if it ran before. Within the paused runtime, before any time has passed on it.
    pub fn start(&self) -> bool {
        let mut inner = self.lock();
        let fresh = matches!(inner.clock, Clock::Before);
        if fresh {
            inner.clock = Clock::Running(tokio::time::Instant::now().into_std());
        }
        fresh
    }

    /// Stops the clock and drops whatever is on the way. Hash, events and statistics stay.
    pub fn end(&self) {
        let mut inner = self.lock();
        inner.clock = Clock::Ended(inner.now());
        let events = std::mem::take(&mut inner.events);
        let sockets = std::mem::take(&mut inner.sockets);
        let root = inner.root.take();
        drop(inner);
        // Wakers drop tasks, and those may call back.
        drop((events, sockets, root));
    }

    /// Nanoseconds from the start until `instant` of the runtime's clock. Never, once there is no such clock any more.
    pub fn since_start(&self, instant: Instant) -> u64 {
        match self.lock().clock {
            Clock::Running(base) => nanos(instant.saturating_duration_since(base)),
            Clock::Before | Clock::Ended(_) => u64::MAX,
        }
    }

    /// What a node's monotonic clock shows now, as an instant of the runtime's clock.
    pub fn instant(&self, clocks: &Clocks) -> Instant {
        let now = tokio::time::Instant::now().into_std();
        match self.lock().clock {
            Clock::Running(base) => {
                let here = clocks.monotonic(nanos(now.saturating_duration_since(base)));
                base + Duration::from_nanos(here)
            }
            Clock::Before | Clock::Ended(_) => now,
        }
    }

    /// Keeps the root future's waker and tells at which nanosecond, on tokio's grid, it must be woken.
    pub fn root_waits(&self, waker: &Waker) -> Option<u64> {
        let mut inner = self.lock();
        if !inner
            .root
            .as_ref()
            .is_some_and(|root| root.will_wake(waker))
        {
            inner.root = Some(waker.clone());
        }
        inner.awaited
    }

    /// Called by tokio when every task waits.
    pub fn on_idle(&self) {
        let mut woken = Vec::new();
        {
            let mut inner = self.lock();
            if !matches!(inner.clock, Clock::Running(_)) {
                return;
            }
            let now = inner.now();
            let Some((&(next, _), _)) = inner.events.first_key_value() else {
                return;
            };
            let tick_end = (now / TICK + 1) * TICK;
            if next < tick_end {
                move_clock(next.saturating_sub(now));
                inner.fire(next.max(now), &mut woken);
                // Whoever was woken may do nothing (its node is frozen, its datagram is lost): only a wake of the root is sure to bring tokio
                // back here for the event after this one.
                woken.extend(inner.root.clone());
            } else {
                let tick_start = next / TICK * TICK;
                if !now.is_multiple_of(TICK) {
                    // Tokio adds whole milliseconds to where the clock stands, and would pass its own timers.
                    move_clock(tick_end - now);
                }
                if inner.awaited != Some(tick_start) {
                    inner.awaited = Some(tick_start);
                    woken.extend(inner.root.clone());
                }
            }
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

impl Inner {
    pub fn now(&self) -> u64 {
        match self.clock {
            Clock::Before => 0,
            Clock::Running(base) => {
                let now = tokio::time::Instant::now().into_std();
                nanos(now.saturating_duration_since(base))
            }
            Clock::Ended(at) => at,
        }
    }
}

/// Moves the paused clock. The future does it at its first poll and then yields, which nobody waits for.
fn move_clock(nanos: u64) {
    if nanos > 0 {
        let mut advance = std::pin::pin!(tokio::time::advance(Duration::from_nanos(nanos)));
        let _ = advance
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
    }
}
