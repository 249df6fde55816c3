//! The two worlds behind `Env`: the simulated one on real quinn, and what the real one promises.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests of the seam itself compare it with what it hides"
)]

mod congestion;
mod determinism;
mod echo;
mod faults;
mod files;
mod limits;
mod real;
mod time;
mod trouble;

use tombolo_core::ids::NodeId;

/// A node's id.
fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}
