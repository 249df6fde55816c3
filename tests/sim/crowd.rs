//! Many seeds, on as many threads as there are cores. A simulation is one thread's, so what each seed does is the same however many there are.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs each seed; gives what came of them, in order. Behind one that fails no other is begun.
pub fn each<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(Vec::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            match catch_unwind(AssertUnwindSafe(|| run(seed))) {
                Ok(result) => found.lock().unwrap().push((seed, result)),
                Err(panic) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    resume_unwind(panic);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(seed, _)| *seed);
    found.into_iter().map(|(_, result)| result).collect()
}
