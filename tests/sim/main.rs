//! The real protocol in virtual time, with faults.

#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod actors;
mod checkpoint;
mod crash_points;
mod crowd;
mod dropout;
mod duplicate;
mod evictions;
mod faults;
mod membership;
mod mutants;
mod nodes;
mod partitions;
mod probe;
mod restart;
mod seeds;
mod sends;
mod storm;
