//! Whole federations on this machine: real actors, real QUIC, real shared memory; what runs, what survives, who is blamed.
#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod blocking;
mod census;
mod evaluation;
mod farewell;
mod faults;
mod panics;
mod stand;
mod texts;
