//! The gate under every order in which ranks can act (loom), and under many of them on real words.

use std::sync::atomic::AtomicU32;

use loom::sync::atomic::{AtomicU32 as ModelWord, AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

use super::*;

/// A word whose sleepers wait for a bell: without an end, so that one who is not woken stops the model.
struct Modelled {
    value: ModelWord,
    sleepers: Mutex<()>,
    bell: Condvar,
}

impl Modelled {
    fn new() -> Modelled {
        Modelled {
            value: ModelWord::new(0),
            sleepers: Mutex::new(()),
            bell: Condvar::new(),
        }
    }
}

impl Word for Modelled {
    fn load(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    fn store(&self, value: u32) {
        self.value.store(value, Ordering::Release);
    }

    fn add(&self, value: u32) -> u32 {
        self.value.fetch_add(value, Ordering::AcqRel)
    }

    fn exchange(&self, expected: u32, value: u32) -> Result<(), u32> {
        self.value
            .compare_exchange(expected, value, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    fn sleep(&self, expected: u32, _: Duration) {
        let sleeping = self.sleepers.lock().unwrap();
        // As the kernel does: under its lock, what is newest.
        if self.value.fetch_add(0, Ordering::AcqRel) == expected {
            drop(self.bell.wait(sleeping).unwrap());
        }
    }

    fn wake(&self) {
        drop(self.sleepers.lock().unwrap());
        self.bell.notify_all();
    }
}

struct World {
    phase: Modelled,
    arrived: Modelled,
    ranks: u32,
    /// What each rank has written.
    written: Vec<AtomicUsize>,
}

impl World {
    fn new(ranks: u32) -> Arc<World> {
        Arc::new(World {
            phase: Modelled::new(),
            arrived: Modelled::new(),
            ranks,
            written: (0..ranks).map(|_| AtomicUsize::new(0)).collect(),
        })
    }

    fn gate(&self) -> Gate<'_, Modelled> {
        Gate {
            phase: &self.phase,
            arrived: &self.arrived,
            ranks: self.ranks,
        }
    }

    /// Arrives and waits as long as it takes.
    fn meet(&self, turn: u16) -> Turn {
        let gate = self.gate();
        let mut seen = gate.arrive(turn, || None);
        while seen == Turn::Waiting {
            gate.sleep(turn, Duration::MAX);
            seen = gate.look(turn);
        }
        seen
    }

    /// Writes, and sees what others wrote before the meeting and nothing of after the next one.
    fn work(&self, rank: usize) {
        self.written[rank].store(1, Ordering::Relaxed);
        assert_eq!(self.meet(0), Turn::Passed);
        for other in &self.written {
            assert_eq!(other.load(Ordering::Relaxed), 1);
        }
        assert_eq!(self.meet(1), Turn::Passed);
        self.written[rank].store(2, Ordering::Relaxed);
    }
}

fn model(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

#[test]
fn whoever_comes_last_all_pass_and_see_what_was_written_before() {
    model(2, || {
        let world = World::new(2);
        let other = loom::thread::spawn({
            let world = world.clone();
            move || world.work(1)
        });
        world.work(0);
        other.join().unwrap();
    });
}

#[test]
fn three_ranks_all_wake() {
    model(1, || {
        let world = World::new(3);
        let meet = |turn| {
            let world = world.clone();
            loom::thread::spawn(move || world.meet(turn))
        };
        let others = [meet(0), meet(0)];
        assert_eq!(world.meet(0), Turn::Passed);
        for other in others {
            assert_eq!(other.join().unwrap(), Turn::Passed);
        }
    });
}

#[test]
fn a_turn_that_somebody_gives_up_is_passed_by_all_or_by_none() {
    model(3, || {
        let world = World::new(2);
        let failure = Failure {
            reason: Reason::Late,
            rank: 1,
        };
        let late = loom::thread::spawn({
            let world = world.clone();
            move || world.meet(0)
        });
        let gate = world.gate();
        let impatient = match gate.arrive(0, || None) {
            Turn::Waiting => gate.fail(0, failure),
            ended => ended,
        };
        assert_ne!(impatient, Turn::Waiting);
        assert_eq!(late.join().unwrap(), impatient);
    });
}

#[test]
fn the_first_reason_stays_and_who_comes_later_learns_it() {
    let (phase, arrived) = (AtomicU32::new(0), AtomicU32::new(0));
    let gate = Gate {
        phase: &phase,
        arrived: &arrived,
        ranks: 3,
    };
    assert_eq!(gate.arrive(0, || None), Turn::Waiting);
    let dead = Failure {
        reason: Reason::Dead,
        rank: 63,
    };
    assert_eq!(gate.fail(0, dead), Turn::Failed(dead));
    let left = Failure {
        reason: Reason::Left,
        rank: 0,
    };
    assert_eq!(gate.fail(0, left), Turn::Failed(dead));
    assert_eq!(gate.arrive(0, || None), Turn::Failed(dead));
}

#[test]
fn the_last_to_come_may_find_a_fault() {
    let (phase, arrived) = (AtomicU32::new(0), AtomicU32::new(0));
    let gate = Gate {
        phase: &phase,
        arrived: &arrived,
        ranks: 2,
    };
    let mismatch = Failure {
        reason: Reason::Mismatch,
        rank: 1,
    };
    let unasked = || unreachable!("not all are here");
    assert_eq!(gate.arrive(0, unasked), Turn::Waiting);
    assert_eq!(gate.arrive(0, || Some(mismatch)), Turn::Failed(mismatch));
    assert_eq!(gate.look(0), Turn::Failed(mismatch));
}

#[test]
fn turns_go_around_and_none_is_taken_for_another() {
    let (phase, arrived) = (AtomicU32::new(0), AtomicU32::new(0));
    let gate = Gate {
        phase: &phase,
        arrived: &arrived,
        ranks: 1,
    };
    let mut turn = 0u16;
    for _ in 0..70_000 {
        assert_eq!(gate.look(turn), Turn::Waiting);
        assert_eq!(gate.arrive(turn, || None), Turn::Passed);
        turn = turn.wrapping_add(1);
    }
}

#[test]
fn real_ranks_meet_on_real_words() {
    let (phase, arrived) = (AtomicU32::new(0), AtomicU32::new(0));
    let sum = AtomicU32::new(0);
    const RANKS: u32 = 3;
    std::thread::scope(|scope| {
        for _ in 0..RANKS {
            scope.spawn(|| {
                let gate = Gate {
                    phase: &phase,
                    arrived: &arrived,
                    ranks: RANKS,
                };
                for turn in 0..2000u16 {
                    sum.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let mut seen = gate.arrive(turn, || None);
                    while seen == Turn::Waiting {
                        gate.sleep(turn, Duration::from_secs(60));
                        seen = gate.look(turn);
                    }
                    assert_eq!(seen, Turn::Passed);
                    let found = sum.load(std::sync::atomic::Ordering::Relaxed);
                    let least = RANKS * (u32::from(turn) + 1);
                    assert!((least..least + RANKS).contains(&found), "{found} in {turn}");
                }
            });
        }
    });
}
