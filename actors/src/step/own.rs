//! All-reduce of memory that no other rank can reach: through small slots of shared memory. Slower than in place, and what a rank does wrong there can
//! only make bytes wrong.
//!
//! A pipeline of three: while a chunk is copied in, the one before is folded, and the result of the one before that is copied out. One meeting a chunk.
//! The slice that a rank folds itself is neither copied in nor out: nobody else wants its part, and the result lies at hand.
//!
//! Much is copied past the caches. A line that one core has changed and another wants comes two to three times slower from the first core's cache
//! than from memory, on processors whose cores do not share one; where they do it makes no difference.

use std::cell::RefCell;
use std::ops::Range;

use tombolo_core::collective::{Collective, Element, Operation, Shape, schedule, slices};
use tombolo_fabric::group::Operation as Running;

use super::{Plan, Reduction, Step, StepError, call, folder};

/// Bytes of a chunk. Larger ones meet less often, smaller ones take less memory; beyond this little is gained.
const CHUNK_BYTES: usize = 1 << 20;

/// From so many bytes on it is faster past the caches.
const STREAMED_BYTES_MIN: usize = 2 << 20;

/// Two chunks on their way in, and two on their way out.
const SLOTS: usize = 4;

impl Step {
    /// Reduces every rank's values into every rank's, always in the direct shape.
    ///
    /// # Errors
    ///
    /// Names the rank that is to blame; the group has failed, and `values` is part old, part new: compute the step again.
    pub fn all_reduce_own<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), StepError> {
        if self.slots.is_none() {
            self.slots = Some(self.group.allocate(SLOTS * CHUNK_BYTES)?);
        }
        let slots = self.slots.as_mut().expect("it was just made");
        let (rank, ranks) = (self.group.rank(), self.group.ranks());
        let plan = Plan {
            collective: Collective::AllReduce,
            shape: Shape::Direct,
            elements: values.len(),
        };
        let call = call::<T>(plan, reduction.operation, true);
        let folder = folder::<T>(&mut self.folders);
        let weights = &mut self.weights;
        let mut running = self.group.begin(slots, call, reduction.weight.to_bits())?;
        if reduction.operation == Operation::WeightedSum {
            for (rank, weight) in weights.iter_mut().enumerate() {
                *weight = f64::from_bits(running.contribution(rank));
            }
        }
        let chunks = Chunks {
            each: CHUNK_BYTES / size_of::<T>(),
            elements: values.len(),
        };
        let past_caches = size_of_val(values) >= STREAMED_BYTES_MIN;
        for turn in 0..chunks.count() + 2 {
            if turn > 0 {
                running.meet()?;
            }
            let write = |at: usize, bytes: &[u8]| match past_caches {
                true => running.stream(rank, at, bytes),
                false => running.write(rank, at, bytes),
            };
            if let Some(chunk) = chunks.range(turn) {
                for (_, slice) in others(chunk.len(), ranks, rank) {
                    let part = &values[chunk.clone()][slice.clone()];
                    let at = slot(turn) + slice.start * size_of::<T>();
                    write(at, bytemuck::cast_slice(part));
                }
            }
            if let Some(chunk) = turn.checked_sub(1).and_then(|turn| chunks.range(turn)) {
                let (from, into) = (slot(turn - 1), slot(turn - 1) + 2 * CHUNK_BYTES);
                let steps = schedule(
                    Collective::ReduceScatter,
                    Shape::Direct,
                    ranks,
                    rank,
                    chunk.len(),
                );
                let own = RefCell::new(&mut values[chunk]);
                for it in steps.iter().flatten() {
                    let read = |of: usize, at: usize, block: &mut [T]| {
                        if of == rank {
                            block.copy_from_slice(&own.borrow()[at..at + block.len()]);
                        } else {
                            let at = from + at * size_of::<T>();
                            running.read(of, at, bytemuck::cast_slice_mut(block));
                        }
                    };
                    let write = |_: usize, at: usize, block: &[T]| {
                        write(into + at * size_of::<T>(), bytemuck::cast_slice(block));
                        own.borrow_mut()[at..at + block.len()].copy_from_slice(block);
                    };
                    folder.perform(reduction.operation, weights, it, read, write);
                }
            }
            if let Some(chunk) = turn.checked_sub(2).and_then(|turn| chunks.range(turn)) {
                let from = slot(turn - 2) + 2 * CHUNK_BYTES;
                copy_out(
                    &running,
                    from,
                    &mut values[chunk],
                    (ranks, rank),
                    past_caches,
                );
            }
        }
        Ok(running.finish()?)
    }
}

/// What the other ranks fold of so many elements.
fn others(
    elements: usize,
    ranks: usize,
    rank: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let slices = slices(elements, ranks).into_iter().enumerate();
    slices.filter(move |(of, _)| *of != rank)
}

/// The result of a chunk: each rank's slice lies in that rank's slot.
fn copy_out<T: Element>(
    running: &Running<'_>,
    from: usize,
    values: &mut [T],
    (ranks, own): (usize, usize),
    past_caches: bool,
) {
    for (rank, slice) in others(values.len(), ranks, own) {
        let at = from + slice.start * size_of::<T>();
        let target = bytemuck::cast_slice_mut(&mut values[slice]);
        match past_caches {
            true => running.read_streaming(rank, at, target),
            false => running.read(rank, at, target),
        }
    }
}

/// Where a chunk comes in.
fn slot(turn: usize) -> usize {
    turn % 2 * CHUNK_BYTES
}

struct Chunks {
    each: usize,
    elements: usize,
}

impl Chunks {
    fn count(&self) -> usize {
        self.elements.div_ceil(self.each)
    }

    fn range(&self, index: usize) -> Option<Range<usize>> {
        let start = index.checked_mul(self.each)?;
        (start < self.elements).then(|| start..(start + self.each).min(self.elements))
    }
}
