//! What every actor has around it: bounded queues however one sends, timers that stay punctual, and lives after a panic.
#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod alarm;
mod bounds;
mod fairness;
mod stand;
mod supervision;
mod waits;
