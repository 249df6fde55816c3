//! The real protocol in virtual time, with faults.

#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod actors;
mod checkpoint;
mod crash_points;
mod dropout;
mod duplicate;
mod each;
mod faults;
mod membership;
mod nodes;
mod probe;
mod promotion;
mod restart;
mod seeds;
mod storm;
