//! A trainer that has warmed up asks for no memory.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tombolo::learn::DigitsTrainer;
use tombolo_core::plan::SyncEvery;
use tombolo_core::trainer::{Task, Trainer};

use crate::topology::defaults;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[test]
fn training_and_judging_allocate_nothing_once_warm() {
    let plan = defaults();
    let node = plan.coordinator.clone();
    let mut trainer = DigitsTrainer::new(&plan, &node).unwrap();
    let mut parameters = vec![0.0; trainer.layout().len()];
    trainer.initialize(plan.seed, &mut parameters).unwrap();
    let mut task = Task {
        node,
        round: 1,
        seed: plan.seed,
        sync_every: SyncEvery::Epochs(1),
        domain: tombolo_core::trainer::Domain::alone(),
    };
    // The counters see the other tests of this process, too: one quiet round proves that a round needs none.
    let quiet = (0..2000).any(|_| {
        let region = Region::new(ALLOCATOR);
        trainer.train(&task, &mut parameters).unwrap();
        trainer.evaluate(&parameters).unwrap();
        task.round += 1;
        region.change().allocations == 0
    });
    assert!(quiet, "each of 2000 rounds allocated");
}
