//! Who acts in a Tombolo federation.
//!
//! Each file of this crate is one actor: a machine of `tombolo-core` in a mailbox, which performs what the machine decides through an
//! [`env::Env`] and decides nothing itself. [`step`] is no actor: what a rank does in step mode, on the thread that trains. [`shell`] is what all of them have around them (queue, permits, supervision), [`crew`] puts the
//! actors of one node together; [`waits`] notices actors that wait for each other.

#![forbid(unsafe_code)]

pub mod aggregate;
pub mod checkpoint;
pub mod clock_sync;
pub mod collective;
pub mod coordinator;
pub mod credentials;
pub mod crew;
pub mod env;
pub mod heartbeat;
pub mod identity;
pub mod link;
pub mod node;
pub mod quic;
pub mod record;
pub mod residual;
pub mod shell;
pub mod slab;
pub mod step;
#[cfg(test)]
mod testing;
pub mod verbs;
mod waits;

/// Tests inside the crate share their stage with those outside.
#[cfg(test)]
extern crate self as tombolo_actors;
