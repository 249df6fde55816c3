//! Who lives, who is silent, who is back: heartbeats and the ladder between real actors over real QUIC, in virtual time and on this machine.
#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

mod machine;
mod record;
mod revocation;
mod stand;
mod virtual_time;
