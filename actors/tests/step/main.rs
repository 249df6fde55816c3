//! Step mode among real ranks: threads and processes get the bits of the pure calculation, and what dies, stops or lies among them is named.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time"
)]

mod bits;
mod calculation;
mod faults;
mod ranks;
