//! What a topology file may say, and what is answered when it may not.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod asynchronous;
mod broken;
mod caps;
mod faults;
mod good;
mod memories;
mod mutated;
mod plan_of_faults;
mod policies;
mod routes;
mod schema;
