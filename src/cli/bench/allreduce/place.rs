//! A processor of its own for each of so many threads or processes.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds this thread to the processor of its number, if there is one for each; else it stays where the system puts it.
pub fn take(number: usize, of: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor));
    if allowed.clone().count() < of {
        return;
    }
    if let Some(processor) = allowed.nth(number) {
        let mut one = CpuSet::new();
        one.set(processor);
        // Where that is not allowed, it is measured without.
        let _ = sched_setaffinity(None, &one);
    }
}
