//! The second, faster level of simulation: whole federations of the machines of `core/` alone, in virtual time, in storms.
//!
//! Three hundred seeds, each a federation of 2 to 7 domains and up to 33 nodes with its real machines (coordinator, gateways, members, links'
//! memories, heartbeats and ladders) in two minutes of storm with a fault a second, and then in calm weather; the invariants of
//! ARCHITECTURE.md are checked at every step ([`check`]), by one who sees all of it and by one who hears only what users do ([`witness`]). The
//! tests of the tests are in [`mutants`].
//!
//! Set for more, or to look at one seed: `TOMBOLO_SEEDS` (a count, or `from..to`), `TOMBOLO_MINUTES` (of storm, for each seed),
//! `TOMBOLO_FAULTS` (a minute), `TOMBOLO_NODES` (at most), `TOMBOLO_THREADS` (default: the processors; the outcome is the same).

mod check;
mod disk;
mod lives;
mod mutants;
mod net;
#[path = "../../src/plan/samples.rs"]
mod samples;
mod storm;
mod witness;
mod work;
mod world;

use std::collections::BTreeSet;
use std::ops::{AddAssign, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo_core::aggregate::Needs;
use tombolo_core::collective;
use tombolo_core::event::RoundState;
use tombolo_core::ids::{self, DomainId, NodeId};
use tombolo_core::plan::{self, Plan, Quorum};
use tombolo_core::rng::Rng;
use tombolo_core::tensor;
use tombolo_core::view::Out;

use storm::{Fault, Weather};
use world::World;

/// Seeds that are too few to ask of them that everything happens.
const FEW: u64 = 50;

/// Why the runs end.
const ENOUGH: &str = "the storm is over";

/// What somebody set for this run of the tests.
fn set<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    let Ok(value) = text.parse() else {
        panic!("{name}={text} is not understood; see the head of core/tests/federation/main.rs");
    };
    Some(value)
}

fn seeds(default: u64) -> Range<u64> {
    let Ok(text) = std::env::var("TOMBOLO_SEEDS") else {
        return 0..default;
    };
    match text.split_once("..") {
        None => 0..text.parse().expect("TOMBOLO_SEEDS is a count, or from..to"),
        Some((from, to)) => {
            let bound = |text: &str| text.parse().expect("TOMBOLO_SEEDS is from..to");
            bound(from)..bound(to)
        }
    }
}

fn weather() -> Weather {
    let full = Weather::FULL;
    Weather {
        minutes: set("TOMBOLO_MINUTES").unwrap_or(full.minutes),
        faults_a_minute: set("TOMBOLO_FAULTS").unwrap_or(full.faults_a_minute),
        nodes: set("TOMBOLO_NODES").unwrap_or(full.nodes),
    }
}

/// What seeds brought about, to see that something was tested.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    steps: u64,
    commits: u64,
    degraded: u64,
    aborted: u64,
    resumed: u64,
    evicted: u64,
    succeeded: u64,
    started_over: u64,
    older: u64,
    unequal: u64,
    too_stale: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.steps += other.steps;
        self.commits += other.commits;
        self.degraded += other.degraded;
        self.aborted += other.aborted;
        self.resumed += other.resumed;
        self.evicted += other.evicted;
        self.succeeded += other.succeeded;
        self.started_over += other.started_over;
        self.older += other.older;
        self.unequal += other.unequal;
        self.too_stale += other.too_stale;
    }
}

impl Tally {
    /// The figures of so many seeds in a line, for `cargo xtask soak core`.
    fn to_json(self, seeds: u64) -> String {
        let Weather {
            minutes,
            faults_a_minute,
            nodes,
        } = weather();
        let Tally {
            steps,
            commits,
            degraded,
            aborted,
            resumed,
            evicted,
            succeeded,
            started_over,
            older,
            unequal,
            too_stale,
        } = self;
        format!(
            r#"{{"seeds":{seeds},"minutes_of_storm_each":{minutes},"faults_a_minute":{faults_a_minute},"nodes_at_most":{nodes},"steps":{steps},"committed":{commits},"degraded":{degraded},"aborted":{aborted},"rounds_gone_on_with":{resumed},"evictions":{evicted},"successions":{succeeded},"started_over":{started_over},"counted_stale":{older},"unequal_steps":{unequal},"too_stale":{too_stale},"violations":0}}"#
        )
    }

    fn of(world: &World) -> Tally {
        let check = &world.check;
        let states = |state| check.outcomes.values().filter(move |o| o.1 == state);
        let mut tally = Tally {
            steps: world.steps,
            commits: states(RoundState::Committed).count() as u64,
            degraded: states(RoundState::Degraded).count() as u64,
            aborted: states(RoundState::Aborted).count() as u64,
            resumed: check.resumed as u64,
            started_over: check.over as u64,
            older: check.older as u64,
            unequal: check.unequal as u64,
            too_stale: check.too_stale as u64,
            ..Tally::default()
        };
        for views in check.views.windows(2) {
            tally.evicted += u64::from(views[1].out.len() > views[0].out.len());
            tally.succeeded += u64::from(views[1].gateways != views[0].gateways);
        }
        tally
    }
}

#[test]
fn no_storm_breaks_an_invariant() {
    let seeds = seeds(300);
    let count = seeds.end - seeds.start;
    let tally = all(seeds, weather());
    println!("{}", tally.to_json(count));
    // A few seeds that somebody looks at need not show everything.
    let enough = |what: u64, each: u64| count < FEW || what >= count * each;
    assert!(
        enough(tally.commits + tally.degraded, 8) && enough(tally.succeeded * 2, 1),
        "{tally:?}: nothing was tested"
    );
    assert!(
        enough(tally.resumed * 2, 1) && enough(tally.evicted, 1),
        "{tally:?}: nothing was tested"
    );
    assert!(
        enough(tally.older, 1) && enough(tally.too_stale * 4, 1),
        "{tally:?}: nothing asynchronous was tested"
    );
    assert!(
        enough(tally.unequal, 1),
        "{tally:?}: no steps were balanced"
    );
}

/// One node of six trains for a minute: nobody waits for it, and what it made counts for what it is worth.
#[test]
fn asynchronous_rounds_do_not_wait_for_anybody() {
    for seed in 0..10 {
        let mut plan = samples::plan(&[3, 1, 2]);
        (plan.rounds, plan.seed) = (40, 1);
        storm::make_asynchronous(&mut plan, &mut Rng::new(seed));
        let mut world = World::new(plan, seed, Vec::new(), 0);
        run(&mut world);
        let finished = world.finished.as_ref().expect("it ended");
        let all = (finished.committed, finished.aborted, &finished.reason[..]);
        assert_eq!(all, (40, 0, ""), "{}", world.check.tail());
    }
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
        let mut world = World::new(plan, seed, Vec::new(), 0);
        run(&mut world);
        let finished = world.finished.as_ref().expect("it ended");
        assert_eq!(
            (finished.committed, finished.aborted),
            (4, 0),
            "{}",
            world.check.tail()
        );
        assert_eq!(finished.reason, "");
    }
}

/// Members hold their updates, and contribute through the next gateway of the list: nobody is left out.
#[test]
fn who_loses_its_gateway_contributes_through_the_next_one() {
    let succeeded: usize = (0..40).map(|seed| succession(seed).unwrap()).sum();
    assert!(succeeded >= 20, "{succeeded} successions");
}

/// A gateway's process ends once, and begins again after its succession, in a federation with time to spare.
fn succession(seed: u64) -> Result<usize, String> {
    let mut rng = Rng::derive(seed, &[b"succession"]);
    let mut plan = samples::plan(&[2, 4]);
    (plan.rounds, plan.seed) = (8, 1);
    let nodes = plan.domains[1].nodes.iter();
    plan.domains[1].gateways = nodes.take(2).map(|node| node.id.clone()).collect();
    plan.round.deadline = plan::Deadline::Fixed(Duration::from_secs(60));
    // Without a journal the bytes are gone with a gateway that ends in the last moment, and the round is aborted and says so.
    plan.round.durability = plan::Durability::Journal;
    let gateway = plan.domains[1].gateways[0].clone();
    let crash = Fault::Crash {
        node: gateway,
        down: 12_000 + rng.below(5_000),
        disk: true,
    };
    let at_ms = 1000 + rng.below(4_000);
    let mut world = World::new(plan, seed, vec![(at_ms, crash)], at_ms + 20_000);
    world.storm = false;
    let tried = caught(&mut world, |world| {
        run(world);
        let finished = world.finished.as_ref().expect("it ended");
        let all = (finished.committed, finished.aborted, &finished.reason[..]);
        assert_eq!(all, (8, 0, ""), "somebody was left out");
        let everybody = |outcome: &(_, RoundState)| outcome.1 == RoundState::Committed;
        assert!(world.check.outcomes.values().all(everybody));
    });
    tried.map(|()| Tally::of(&world).succeeded as usize)
}

/// A member and a gateway are told to leave, one in each run: each is out by its own word and not missed, and comes back as the same node.
#[test]
fn who_is_told_to_leave_is_out_by_its_own_word_and_comes_back() {
    for seed in 0..20 {
        let mut plan = samples::plan(&[2, 4]);
        plan.rounds = 1_000_000;
        let nodes = plan.domains[1].nodes.iter();
        plan.domains[1].gateways = nodes.take(2).map(|node| node.id.clone()).collect();
        let node = plan.domains[1].nodes[if seed % 2 == 0 { 0 } else { 3 }]
            .id
            .clone();
        let leave = Fault::Leave {
            node: node.clone(),
            down: 2000,
        };
        let mut world = World::new(plan, seed, vec![(3000, leave)], 15_000);
        world.storm = false;
        let tried = caught(&mut world, |world| {
            run(world);
            let out = world.check.views.iter().map(|view| view.out.get(&node));
            let out: Vec<Option<&Out>> = out.collect();
            assert!(out.contains(&Some(&Out::Left)), "{out:?}");
            let evicted = |out: &Option<&Out>| matches!(out, Some(Out::Evicted(_)));
            assert!(!out.iter().any(evicted), "it was missed: {out:?}");
            assert_eq!(out.last(), Some(&None), "it is not back");
        });
        tried.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

#[test]
fn the_same_seed_takes_the_same_course() {
    let course = |seed| {
        let weather = Weather {
            minutes: 1,
            ..Weather::FULL
        };
        let mut world = stormy(seed, weather);
        run(&mut world);
        (world.now, world.steps, world.check.models)
    };
    assert_eq!(course(5), course(5));
    assert_ne!(course(5), course(6));
}

/// Failing seeds that are looked for: the first tells why, the others whether a mending of it is enough.
const FAILING_MAX: usize = 10;

/// Runs seeds until some fail; what comes out does not depend on the number of threads.
fn all(seeds: Range<u64>, weather: Weather) -> Tally {
    let failed = Mutex::new(BTreeSet::new());
    let enough = |seed| {
        let failed = failed.lock().expect("nobody panics with it");
        failed.range(..seed).count() >= FAILING_MAX
    };
    let results = on_all_processors(seeds, |seed| {
        if enough(seed) {
            return Ok(Tally::default());
        }
        attempt(seed, weather, None).map_err(|why| {
            eprintln!("seed {seed} {}", why.lines().next().unwrap_or_default());
            let mut failed = failed.lock().expect("nobody panics with it");
            failed.insert(seed);
            (seed, why)
        })
    });
    let mut tally = Tally::default();
    for result in results {
        match result {
            Ok(one) => tally += one,
            Err((seed, why)) => explain(seed, weather, &why),
        }
    }
    tally
}

/// Does something for each number, on all processors; the results are in order.
fn on_all_processors<R: Send>(numbers: Range<u64>, work: impl Fn(u64) -> R + Sync) -> Vec<R> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let threads = set("TOMBOLO_THREADS").unwrap_or(processors);
    let next = AtomicU64::new(numbers.start);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= numbers.end {
                        return;
                    }
                    let result = work(number);
                    results
                        .lock()
                        .expect("nobody panics with it")
                        .push((number, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("nobody panicked with it");
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs one seed, with all of its faults or with those of the list.
fn attempt(seed: u64, weather: Weather, faults: Option<&[(u64, Fault)]>) -> Result<Tally, String> {
    let mut world = stormy(seed, weather);
    if let Some(faults) = faults {
        let plan = world.plan.clone();
        world = World::new(plan, seed, faults.to_vec(), weather.until_ms());
    }
    let tried = caught(&mut world, |world| {
        run(world);
        judge(world);
    });
    tried.map(|()| Tally::of(&world))
}

/// Does something with a world; if an invariant is broken, says which and what came before.
fn caught(world: &mut World, course: impl FnOnce(&mut World)) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(|| course(world)));
    result.map_err(|panic| {
        let why = panic.downcast_ref::<String>().cloned();
        let why = why.or_else(|| panic.downcast_ref::<&str>().map(|why| why.to_string()));
        let (why, at) = (why.unwrap_or_default(), world.now.0 / 1000);
        format!("at {at} ms: {why}\n{}", world.check.tail())
    })
}

/// Says what went wrong in a seed, with no more faults than it takes, and how to see it again.
fn explain(seed: u64, weather: Weather, why: &str) -> ! {
    let plan = storm::plan(seed, weather);
    let mut faults = storm::faults(seed, &plan, weather);
    let mut why = why.to_owned();
    // Ever smaller parts are left out, as long as it still fails.
    let mut part = faults.len().div_ceil(2);
    let mut tries = 0;
    while part > 0 && tries < TRIES_MAX {
        let mut from = 0;
        while from < faults.len() && tries < TRIES_MAX {
            let mut fewer = faults.clone();
            fewer.drain(from..(from + part).min(faults.len()));
            tries += 1;
            match attempt(seed, weather, Some(&fewer)) {
                Err(reason) => (faults, why) = (fewer, reason),
                Ok(_) => from += part,
            }
        }
        part /= 2;
    }
    let faults: Vec<String> = faults.iter().map(|fault| format!("{fault:?}")).collect();
    let Weather {
        minutes,
        faults_a_minute,
        nodes,
    } = weather;
    panic!(
        "seed {seed} {why}\nit takes these faults:\n{}\nagain: TOMBOLO_SEEDS={seed}..{} TOMBOLO_MINUTES={minutes} \
         TOMBOLO_FAULTS={faults_a_minute} TOMBOLO_NODES={nodes} cargo test -p tombolo-core --test federation no_storm",
        faults.join("\n"),
        seed + 1
    );
}

/// Runs of a failing seed in search of fewer faults.
const TRIES_MAX: usize = 300;

fn stormy(seed: u64, weather: Weather) -> World {
    let plan = storm::plan(seed, weather);
    let faults = storm::faults(seed, &plan, weather);
    World::new(plan, seed, faults, weather.until_ms())
}

fn run(world: &mut World) {
    while world.step() {
        let hours = world.now.0 / 3_600_000_000;
        assert_eq!(hours, 0, "the run does not end");
    }
    check::look(world);
}

/// What must hold at the end.
fn judge(world: &World) {
    let finished = world.finished.as_ref();
    let finished = finished.expect("nothing is left to do, and the run has not ended");
    assert_eq!(finished.reason, ENOUGH);
    let well = world.calm_since;
    // The round in which the faults stop may be beyond help; the next one that can have a quorum is not.
    let mut after = world.check.outcomes.iter().filter(|(round, (at, _))| {
        *at > well && can_have_quorum(&world.plan, &world.check.cohorts[*round])
    });
    let _ = after.next();
    let deadline = world.check.deadline;
    let first = after.find(|(_, (_, state))| *state != RoundState::Aborted);
    let (round, (at, _)) = first.expect("ROUND-7: no round commits after the storm");
    let outcomes = world.check.outcomes.iter();
    let since: Vec<_> = outcomes.filter(|(_, (at, _))| *at > well).take(5).collect();
    assert!(
        *at <= well + deadline * 2,
        "ROUND-7: round {round} at {at:?}, all is well since {well:?}; outcomes: {since:?}"
    );
    // What was committed long before the end is where it belongs.
    let old = world.now - Duration::from_secs(8);
    let mut outcomes = world.check.outcomes.iter().rev();
    let settled = outcomes.find(|(_, (at, state))| *at < old && *state != RoundState::Aborted);
    let settled = settled.map_or(0, |(round, _)| *round);
    // Who was let in again a moment ago has not had the time.
    let out = |id: &NodeId| {
        let back = world.check.back.get(id);
        world.is_out(id) || back.is_some_and(|back| *back > old)
    };
    for (id, node) in &world.nodes {
        // A domain whose only gateway is out waits.
        let gateway = node.seen.view().gateway(&id.domain()).cloned();
        let waits = gateway.is_none_or(|gateway| out(&gateway));
        let out = node.seen.view().is_out(id) || out(id) || waits;
        let held = node.member.as_ref().map_or(0, |member| member.model().0);
        assert!(
            out || held >= settled,
            "{id} holds the model of round {held}, {settled} was committed long ago"
        );
    }
}

/// Whether those who are asked, and have a weight, are enough.
fn can_have_quorum(plan: &Plan, cohort: &[NodeId]) -> bool {
    let mut usable = cohort.to_vec();
    usable.retain(|node| work::samples(node, plan.seed) > 0);
    could_meet(plan, &usable)
}

/// Whether these nodes are enough for a round.
fn could_meet(plan: &Plan, nodes: &[NodeId]) -> bool {
    let domains: BTreeSet<DomainId> = nodes.iter().map(|node| node.domain()).collect();
    match plan.round.quorum {
        Quorum::All => !nodes.is_empty(),
        Quorum::AtLeast {
            nodes: enough,
            domains: from,
        } => nodes.len() >= enough && domains.len() >= from,
    }
}
