//! Whole federations of real machines in virtual time: three hundred seeds of crashes, restarts, cut links, duplicates, stragglers and
//! failures, and the invariants of ARCHITECTURE.md after each of them.

mod check;
mod faults;
#[path = "../../src/plan/samples.rs"]
mod samples;
mod work;
mod world;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use tombolo_core::aggregate::Needs;
use tombolo_core::event::RoundState;
use tombolo_core::ids::{self, DomainId, NodeId};
use tombolo_core::plan::{self, Durability, Plan, Quorum};
use tombolo_core::rng::Rng;
use tombolo_core::tensor;
use tombolo_core::time::Micros;

use world::{Happening, World};

const SEEDS: u64 = 300;

#[test]
fn no_fault_breaks_an_invariant_and_every_run_ends() {
    let (mut commits, mut evicted, mut succeeded, mut resumed) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let check = replay(seed).check;
        commits += check.commits();
        resumed += check.resumed;
        for views in check.views.windows(2) {
            evicted += usize::from(views[1].out.len() > views[0].out.len());
            succeeded += usize::from(views[1].gateways != views[0].gateways);
        }
    }
    assert!(
        resumed > SEEDS as usize / 4,
        "only {resumed} rounds went on with what was acknowledged"
    );
    assert!(
        commits > SEEDS as usize * 3,
        "only {commits} commits: nothing was tested"
    );
    assert!(
        evicted > 20 && succeeded > 20,
        "{evicted} evictions and {succeeded} successions: nothing was tested"
    );
}

#[test]
fn without_faults_everybody_is_counted_in_every_round() {
    for seed in 0..10 {
        let mut plan = samples::plan(&[3, 1, 2]);
        plan.rounds = 4;
        plan.seed = 1;
        plan.aggregator.needs = match seed % 2 {
            0 => Needs::Sum,
            _ => Needs::Each,
        };
        let mut world = World::new(plan, seed);
        world.faults = false;
        run(&mut world);
        let finished = world.finished.as_ref().expect("it ended");
        assert_eq!(
            (finished.committed, finished.aborted),
            (4, 0),
            "{}",
            world.check.tail()
        );
        assert_eq!(world.check.behind, [""; 0]);
    }
}

#[test]
fn the_same_seed_takes_the_same_course() {
    let course = |seed| {
        let mut world = stormy(seed);
        run(&mut world);
        (world.now, world.check.models)
    };
    assert_eq!(course(5), course(5));
    assert_ne!(course(5), course(6));
}

/// Runs one seed.
fn replay(seed: u64) -> World {
    let mut world = stormy(seed);
    let result = catch_unwind(AssertUnwindSafe(|| {
        run(&mut world);
        judge(&world);
    }));
    if let Err(panic) = result {
        eprintln!("seed {seed} at {} ms; its last events:", world.now.0 / 1000);
        eprintln!("{}", world.check.tail());
        resume_unwind(panic);
    }
    world
}

fn stormy(seed: u64) -> World {
    let mut rng = Rng::derive(seed, &[b"plan"]);
    let mut world = World::new(random_plan(&mut rng), seed);
    let until = 2000 + rng.below(50_000);
    world.after(300, 3000, Happening::Fault);
    world.after(until, until, Happening::FaultsEnd);
    world.check.faults_end = Micros(until * 1000);
    world
}

fn random_plan(rng: &mut Rng) -> Plan {
    let domains = 1 + rng.below(3) as usize;
    let sizes: Vec<usize> = (0..domains).map(|_| 1 + rng.below(3) as usize).collect();
    let total: usize = sizes.iter().sum();
    let mut plan = samples::plan(&sizes);
    plan.seed = rng.below(10);
    plan.rounds = 6 + rng.below(30);
    if plan.seed % 3 == 1 {
        plan.aggregator.needs = Needs::Each;
    }
    if rng.below(2) == 0 {
        plan.round.quorum = Quorum::AtLeast {
            nodes: (total / 2).max(1),
            domains: domains / 2 + 1,
        };
    }
    for domain in &mut plan.domains[1..] {
        let successors = 1 + rng.below(domain.nodes.len() as u64) as usize;
        domain.gateways = domain.nodes[..successors]
            .iter()
            .map(|node| node.id.clone())
            .collect();
    }
    plan.round.grace = Duration::from_millis(rng.below(3000));
    if rng.below(2) == 0 {
        plan.round.durability = Durability::Journal;
    }
    for _ in 0..rng.below(3) {
        let round = 1 + rng.below(plan.rounds);
        let gone = &plan.domains[rng.below(domains as u64) as usize];
        let gone = gone.nodes.iter().take(1 + rng.below(3) as usize);
        let gone = gone.map(|node| node.id.clone()).collect();
        plan.round.absent.insert(round, gone);
    }
    plan
}

fn run(world: &mut World) {
    while world.step() {
        let hours = world.now.0 / 3_600_000_000;
        assert_eq!(hours, 0, "the run does not end");
    }
}

/// What must hold at the end.
fn judge(world: &World) {
    let finished = world
        .finished
        .as_ref()
        .expect("nothing is left to do, and the run has not ended");
    assert_eq!(finished.reason, "");
    assert_eq!(finished.rounds, world.plan.rounds);
    assert_eq!(world.check.outcomes.len() as u64, world.plan.rounds);
    let well = world.check.faults_end;
    // A straggler of the bad times may still be training.
    if world.now > well + Duration::from_secs(18) {
        assert_eq!(
            world.check.behind, [""; 0],
            "everybody holds the last model"
        );
    }
    // The round in which the faults stop may be beyond help; the next one that can have a quorum is not.
    let mut after = world
        .check
        .outcomes
        .iter()
        .filter(|(round, (at, _))| {
            *at > well && can_have_quorum(&world.plan, &world.check.cohorts[*round])
        })
        .skip(1);
    if let Some((round, (at, state))) = after.next() {
        assert_ne!(*state, RoundState::Aborted, "ROUND-7: round {round}");
        assert!(
            *at <= well + world.check.deadline * 2,
            "ROUND-7: round {round} at {at:?}"
        );
    }
}

/// Whether those who are asked, and have a weight, are enough.
fn can_have_quorum(plan: &Plan, cohort: &[NodeId]) -> bool {
    let mut usable = cohort.to_vec();
    usable.retain(|node| work::samples(node, plan.seed) > 0);
    let domains: BTreeSet<DomainId> = usable.iter().map(|node| node.domain()).collect();
    match plan.round.quorum {
        Quorum::All => !usable.is_empty(),
        Quorum::AtLeast {
            nodes,
            domains: from,
        } => usable.len() >= nodes && domains.len() >= from,
    }
}
