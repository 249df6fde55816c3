//! Memory shared with a neighbour or a NIC.
//!
//! The model is that of RDMA verbs, cut down to what a pull-only protocol needs. An owner opens a [`Device`], allocates registered
//! [`Region`]s and writes into them. For each peer it makes one [`Endpoint`], which travels over a link that has already authenticated
//! both sides. The peer connects with it, gets a [`QueuePair`], and READs out of the owner's regions by their [`RemoteRegion`] into
//! scratch regions of its own. Nobody ever writes into memory of another.
//!
//! Providers are siblings behind [`VerbsProvider`]: [`ibverbs`] joins machines that have RDMA devices, [`shm`] joins processes of one
//! machine, [`memory`] is a world within one process for simulation. All keep the hard semantics of a NIC (bounded queues, completions in
//! order, an error that kills the queue pair and flushes what follows), so that code which runs here does not meet them first on hardware.
//! `tests/conformance/` holds them to it.
//!
//! ```
//! use std::time::Duration;
//! use tombolo_fabric::{VerbsProvider, memory::Memory, read};
//!
//! # fn main() -> Result<(), tombolo_fabric::FabricError> {
//! let fabric = Memory::new();
//! let (owner, reader) = (fabric.open("hq/a")?, fabric.open("hq/b")?);
//! let mut update = owner.allocate(4 * 1000)?;
//! update.f32s_mut()[999] = 0.5;
//! // The endpoint and the remote region travel over the control link.
//! let endpoint = owner.grant("hq/b")?;
//! let mut queue_pair = reader.connect("hq/a", &endpoint)?;
//! let mut scratch = reader.allocate(4 * 10)?;
//! let wait = Duration::from_secs(1);
//! read(&mut *queue_pair, &mut scratch, 0, &update.remote(), 4 * 990, 40, wait)?;
//! assert_eq!(scratch.f32s()[9], 0.5);
//! # Ok(())
//! # }
//! ```
//!
//! Beside it stands [`group`], for step mode: ranks of one machine that do write into each other's memory, at that memory's speed.
//!
//! All `unsafe` code is in `pages.rs`, `group/slab.rs`, `group/buffer.rs`, and `ffi.rs` and `objects.rs` of `verbs/ibverbs/`. Three promises
//! carry it: memory that we hand out as a slice is written by nobody else (the kernel's seals see to that, in a group the meetings of its
//! ranks), memory of somebody else is never seen through a reference, only copied, and memory that a device may write belongs to the queue
//! until the device has given it back.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod dial;
mod error;
mod folder;
pub mod group;
#[expect(
    unsafe_code,
    reason = "mapped memory is reached through raw pointers; every other module is safe"
)]
mod pages;
mod region;
mod verbs;

pub use error::{CompletionError, FabricError, NoRdma};
pub use region::{Element, Region, RegionMut, RemoteRegion};
pub use verbs::{
    Completion, Device, Endpoint, Limits, QueuePair, Read, Refused, State, Stats, VerbsProvider,
    ibverbs, memory, read, shm,
};
