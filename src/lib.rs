//! Tombolo joins islands of compute into one training federation.

#![forbid(unsafe_code)]

pub mod identity;
pub mod learn;
pub mod sim;
pub mod topology;
pub mod world;
