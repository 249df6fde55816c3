//! How much memory this process holds at most, between one moment and another.

use std::alloc::System;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use tracking_allocator::{AllocationGroupId, AllocationRegistry, AllocationTracker, Allocator};

#[global_allocator]
static GLOBAL: Allocator<System> = Allocator::system();

static HELD: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

struct Ledger;

impl AllocationTracker for Ledger {
    fn allocated(&self, _: usize, size: usize, _: usize, _: AllocationGroupId) {
        let size = size.cast_signed();
        let held = HELD.fetch_add(size, Ordering::Relaxed) + size;
        MOST.fetch_max(held, Ordering::Relaxed);
    }

    fn deallocated(
        &self,
        _: usize,
        size: usize,
        _: usize,
        _: AllocationGroupId,
        _: AllocationGroupId,
    ) {
        HELD.fetch_sub(size.cast_signed(), Ordering::Relaxed);
    }
}

/// As long as a test holds it, no other one runs: all of them look at the whole process. Each has a thread of its own, so its futures may hold it, too.
pub struct Alone {
    _guard: MutexGuard<'static, ()>,
}

/// Waits for one's turn.
pub fn alone() -> Alone {
    static ALONE: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        AllocationRegistry::set_global_tracker(Ledger).unwrap();
        AllocationRegistry::enable_tracking();
        let before = begin();
        drop(std::hint::black_box(vec![1_u8; 1 << 20]));
        assert!(most_since(before) >= 1 << 20, "the ledger counts");
    });
    Alone {
        _guard: ALONE.lock().unwrap_or_else(PoisonError::into_inner),
    }
}

/// From here on.
#[derive(Clone, Copy)]
pub struct Since(isize);

pub fn begin() -> Since {
    let held = HELD.load(Ordering::Relaxed);
    MOST.store(held, Ordering::Relaxed);
    Since(held)
}

/// The most that was held beyond what was held then.
pub fn most_since(since: Since) -> usize {
    (MOST.load(Ordering::Relaxed) - since.0)
        .max(0)
        .cast_unsigned()
}
