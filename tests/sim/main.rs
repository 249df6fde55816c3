//! The real protocol in virtual time, with faults.

#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod abandoned;
mod actors;
mod asynchronous;
mod balance;
mod caps;
mod causes;
mod checkpoint;
mod codec;
mod collective;
mod congestion;
mod crash_points;
mod crowd;
mod cuts;
mod dropout;
mod duplicate;
mod each;
mod evictions;
mod faults;
mod feedback;
mod heal;
mod membership;
mod mutants;
mod node_crash_points;
mod nodes;
mod orders;
mod partitions;
mod probe;
mod promotion;
mod record;
mod relay;
mod restart;
mod seeds;
mod sends;
mod storm;
mod timeline;
mod watch;
mod wide;
