//! Federations of real processes, one a node, that are killed, stopped, told to leave and started again.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod amend;
mod certificates;
mod chaos;
mod clients;
#[allow(dead_code, reason = "shared with another test")]
#[path = "../cli/fixture.rs"]
mod fixture;
mod fleet;
mod growth;
mod journal;
mod kills;
mod leave;
mod promotion;
mod replay;
mod service;
mod together;
