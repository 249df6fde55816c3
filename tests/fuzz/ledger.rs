//! How much memory a thread holds at most, between one moment and another.

use std::alloc::System;
use std::cell::Cell;

use tracking_allocator::{AllocationGroupId, AllocationRegistry, AllocationTracker, Allocator};

#[global_allocator]
static GLOBAL: Allocator<System> = Allocator::system();

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

struct Ledger;

impl AllocationTracker for Ledger {
    fn allocated(&self, _: usize, size: usize, _: usize, _: AllocationGroupId) {
        let held = HELD.get() + size.cast_signed();
        HELD.set(held);
        MOST.set(MOST.get().max(held));
    }

    fn deallocated(
        &self,
        _: usize,
        size: usize,
        _: usize,
        _: AllocationGroupId,
        _: AllocationGroupId,
    ) {
        HELD.set(HELD.get() - size.cast_signed());
    }
}

/// Counts from here on.
pub fn open() {
    AllocationRegistry::set_global_tracker(Ledger).unwrap();
    AllocationRegistry::enable_tracking();
    begin();
    drop(std::hint::black_box(vec![1_u8; 12_345]));
    assert_eq!(most(), 12_345, "the ledger counts");
}

/// This thread holds nothing that counts.
pub fn begin() {
    HELD.set(0);
    MOST.set(0);
}

/// What this thread has held at most since then.
pub fn most() -> usize {
    MOST.get().max(0).cast_unsigned()
}
