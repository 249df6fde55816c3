//! Tombolo joins islands of compute into one training federation.
//!
//! * [`Federation`]: the way in. Reads a topology, starts its nodes, follows the run.
//! * [`Simulation`]: the same federation in virtual time, with faults, from a seed.
//! * [`explain`]: why a round, a node or a link went as it did.
//! * [`observe`]: one picture of a federation, made of its events: metrics, a page, a report.
//! * [`control`]: what runs here, over a local socket.
//! * [`doctor`]: what keeps a machine from running nodes, and what mends it.
//! * [`preflight`]: what the links of a topology are like before anything trains.
//! * [`fabric`]: what carries tensors inside a domain, on this machine.
//! * [`topology`]: one TOML file, checked; every mistake at once.
//! * [`identity`]: certificates and who may speak for whom.
//! * [`learn`]: the built-in data, models and partitions.
//! * [`store`]: where the coordinator's records lie, a folder or an object store.
//! * [`world`] and [`sim`]: the two worlds in which the same actors live, real and simulated.

#![forbid(unsafe_code)]

pub mod audit;
mod bounded;
pub mod control;
pub mod doctor;
pub mod explain;
pub mod fabric;
pub mod federation;
pub(crate) mod files;
pub mod identity;
pub mod learn;
pub mod observe;
pub mod preflight;
pub mod sim;
pub mod simulation;
pub mod store;
pub mod topology;
pub mod world;

pub use federation::{Federation, FederationError, Report, Running};
pub use simulation::Simulation;
pub use tombolo_core as core;
pub use tombolo_core::event::RoundRecord as Round;

pub use tombolo_actors as actors;

/// The code of README.md is compiled and run like any example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
