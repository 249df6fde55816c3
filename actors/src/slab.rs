//! Pooled memory for tensors that leave or enter over QUIC.
//!
//! A slab is written once, then shared by reference count, also as `Bytes` inside quinn's send buffers; when the last holder lets go, its
//! memory goes back to the pool. So a round in steady state allocates nothing of a tensor's size.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tombolo_core::tensor::bytes_of;

/// Free slabs kept; a node holds no more than a model, a step, a sum and what is still being sent.
const FREE_MAX: usize = 8;

/// Gives slabs and takes them back.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Vec<Vec<f32>>>>);

impl Pool {
    /// A slab of `len` elements for writing. Its contents are arbitrary numbers of earlier use in this process.
    pub fn take(&self, len: usize) -> SlabMut {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = free.iter().position(|elements| elements.len() == len);
        let elements = fitting.map(|index| free.swap_remove(index));
        TAKEN.fetch_add(1, Ordering::Relaxed);
        SlabMut(Memory {
            elements: elements.unwrap_or_else(|| {
                MADE.fetch_add(1, Ordering::Relaxed);
                vec![0.0; len]
            }),
            pool: self.clone(),
        })
    }
}

#[derive(Debug)]
struct Memory {
    elements: Vec<f32>,
    pool: Pool,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < FREE_MAX {
            free.push(std::mem::take(&mut self.elements));
        }
    }
}

/// A slab that only its holder sees.
#[derive(Debug)]
pub struct SlabMut(Memory);

impl SlabMut {
    /// Ends writing.
    pub fn freeze(self) -> Slab {
        Slab(Arc::new(self.0))
    }
}

impl Deref for SlabMut {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0.elements
    }
}

impl DerefMut for SlabMut {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0.elements
    }
}

/// A slab that nobody writes any more.
#[derive(Debug, Clone)]
pub struct Slab(Arc<Memory>);

impl Slab {
    /// The elements as they travel, without a copy.
    pub fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }
}

impl Deref for Slab {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0.elements
    }
}

impl AsRef<[u8]> for Slab {
    fn as_ref(&self) -> &[u8] {
        bytes_of(&self.0.elements)
    }
}

/// Copies tensor elements, and counts: the one place where a payload is copied. In a round in steady state that is each trainer's working
/// copy of the model, and nothing else; what arrives is folded, not copied.
pub fn copy(source: &[f32], target: &mut [f32]) {
    target.copy_from_slice(source);
    COPIED.fetch_add(size_of_val(source) as u64, Ordering::Relaxed);
}

/// Bytes that [`copy`] has copied in this process.
pub fn bytes_copied() -> u64 {
    COPIED.load(Ordering::Relaxed)
}

static COPIED: AtomicU64 = AtomicU64::new(0);

/// What all pools of this process have given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Slabs in all.
    pub taken: u64,
    /// Those for which memory had to be allocated.
    pub made: u64,
}

/// What all pools of this process have given so far.
pub fn given() -> Given {
    Given {
        taken: TAKEN.load(Ordering::Relaxed),
        made: MADE.load(Ordering::Relaxed),
    }
}

static TAKEN: AtomicU64 = AtomicU64::new(0);
static MADE: AtomicU64 = AtomicU64::new(0);
