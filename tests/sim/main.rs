//! The real protocol in virtual time, with faults.

#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod checkpoint;
mod crash_points;
mod dropout;
mod membership;
mod nodes;
mod restart;
mod seeds;
mod storm;
