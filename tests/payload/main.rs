//! What a round in steady state costs: no memory of a tensor's size, and no copy but each trainer's own. And what a run leaves behind:
//! nothing.
#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

use std::alloc::System;
use std::backtrace::Backtrace;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo::federation::Federation;
use tombolo_actors::slab::bytes_copied;
use tombolo_core::event::{Event, RoundState};
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};
use tracking_allocator::{AllocationGroupId, AllocationRegistry, AllocationTracker, Allocator};

#[global_allocator]
static GLOBAL: Allocator<System> = Allocator::system();

static LARGE: AtomicU64 = AtomicU64::new(0);

/// Counts what may hold a good part of a tensor. One kind is not counted: when whoever reads a stream falls behind the network, quinn puts
/// the many small pieces that wait together into one of at most the stream's window, so that they do not hold the larger buffers in which
/// they came. That is how its memory stays bounded, and it is not ours to change.
struct Large;

const LARGE_BYTES: usize = 1 << 20;

impl AllocationTracker for Large {
    fn allocated(&self, _: usize, object_size: usize, _: usize, _: AllocationGroupId) {
        if object_size >= LARGE_BYTES
            && !Backtrace::force_capture()
                .to_string()
                .contains("Assembler::defragment")
        {
            LARGE.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn deallocated(
        &self,
        _: usize,
        _: usize,
        _: usize,
        _: AllocationGroupId,
        _: AllocationGroupId,
    ) {
    }
}

/// 16 MiB, and not a multiple of a chunk, a slice or a READ.
const ELEMENTS: usize = (4 << 20) + 77;

const TOPOLOGY: &str = r#"
[federation]
name = "heavy"
rounds = 9
sync_every = 1
coordinator = "hq/gate"
seed = 7

[round]
quorum = "all"
deadline = "10min"

[aggregator]
kind = "fedavg"
clip = "none"

[outer]
optimizer = "nesterov"
learning_rate = 0.7

[[domain]]
name = "hq"
nodes = ["gate", "a"]

[[domain]]
name = "plant"
nodes = ["gate", "b"]
"#;

const NODES: u64 = 4;

/// The first rounds make what the later ones use again.
const WARM_UP: usize = 4;

struct Heavy;

impl Trainer for Heavy {
    fn layout(&self) -> Layout {
        Layout::new([("weight", vec![ELEMENTS])]).unwrap()
    }

    fn initialize(&mut self, _: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        parameters.fill(1.0);
        Ok(())
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let pull = 0.001 * (task.round as f32 + task.node.as_str().len() as f32);
        parameters
            .iter_mut()
            .for_each(|parameter| *parameter -= pull * *parameter);
        Ok(Trained {
            samples: 10,
            loss: 0.5,
            steps: 1,
            learning_rate: 0.1,
        })
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: f64::from(parameters[ELEMENTS - 1]),
            loss: 0.5,
        })
    }
}

/// What this process holds: descriptors and threads, by kind.
fn held() -> Vec<String> {
    let mut held = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        if let Ok(target) = std::fs::read_link(&path) {
            let text = target.to_string_lossy();
            // This very listing, and the numbers of sockets and pipes, differ each time.
            let kind = text.split(":[").next().unwrap();
            if !kind.contains("/proc/") {
                held.push(kind.to_owned());
            }
        }
    }
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let name = std::fs::read_to_string(entry.unwrap().path().join("comm"));
        held.push(name.unwrap_or_default());
    }
    held.sort();
    held
}

/// One test, because both halves look at the whole process.
#[test]
fn a_round_copies_and_allocates_no_tensor_and_a_run_leaves_nothing_behind() {
    AllocationRegistry::set_global_tracker(Large).unwrap();
    AllocationRegistry::enable_tracking();
    drop(std::hint::black_box(vec![1_u8; LARGE_BYTES]));
    assert_eq!(LARGE.load(Ordering::Relaxed), 1, "the counter counts");

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let before = held();
    let seen = runtime.block_on(async {
        tokio::time::timeout(Duration::from_secs(180), run())
            .await
            .expect("the federation hangs")
    });
    assert_eq!(held(), before, "descriptors and threads");

    let model_bytes = ELEMENTS as u64 * 4;
    let steady = &seen[WARM_UP..];
    assert!(steady.len() >= 3);
    for pair in steady.windows(2) {
        let ((allocated, copied), (allocated_then, copied_then)) = (pair[0], pair[1]);
        assert_eq!(
            allocated_then, allocated,
            "allocations of 1 MiB or more: {seen:?}"
        );
        // Each trainer's working copy.
        assert_eq!(
            copied_then - copied,
            NODES * model_bytes,
            "bytes copied: {seen:?}"
        );
    }
}

/// Large allocations and copied bytes so far, at the end of each round.
async fn run() -> Vec<(u64, u64)> {
    let folder = tempfile::tempdir().unwrap();
    let running = Federation::from_toml(TOPOLOGY, folder.path())
        .unwrap()
        .state(folder.path().join("state"))
        .trainer(|_| Heavy)
        .spawn()
        .await
        .unwrap();
    let mut events = running.events();
    let mut seen = Vec::new();
    let watch = async {
        loop {
            match events.recv().await.expect("the listener keeps up") {
                Event::Round(record) => {
                    assert_eq!(record.state, RoundState::Committed, "{record:?}");
                    seen.push((LARGE.load(Ordering::Relaxed), bytes_copied()));
                }
                Event::Finished(_) => return,
                _ => {}
            }
        }
    };
    let (report, ()) = tokio::join!(running.run(), watch);
    assert!(report.unwrap().succeeded());
    seen
}
