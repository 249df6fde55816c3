//! What the machine can do: threads of one process, each of which adds its part of all buffers in plain loops and stores the sum into all.
//!
//! Nobody can die here, and nothing is checked on the way; so this is what an all-reduce in place is measured against.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::{number, own_cpu_seconds, place, total};
use crate::cli::bench::measure::now;

/// Elements that are added at a time: they stay in the nearest cache.
const BLOCK: usize = 1024;

/// Looks for the others before the processor is given away.
const SPINS: usize = 20_000;

#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub threads: usize,
    pub elements: usize,
    pub per: usize,
    pub batches: usize,
}

pub struct Found {
    /// Of an operation in each batch.
    pub seconds: Vec<f64>,
    pub cpu_s: f64,
    pub right: bool,
}

pub fn measure(asked: Asked) -> Found {
    let Asked {
        threads, elements, ..
    } = asked;
    let fill = |owner: usize| (0..elements).map(move |at| number(owner, at) as f32);
    let mut buffers: Vec<Vec<f32>> = (0..threads).map(|owner| fill(owner).collect()).collect();
    // Part t of every buffer goes to thread t.
    let each = elements.div_ceil(threads).next_multiple_of(64);
    let mut parts: Vec<Vec<&mut [f32]>> = (0..threads).map(|_| Vec::new()).collect();
    for buffer in &mut buffers {
        let mut rest = &mut buffer[..];
        for part in &mut parts {
            let (taken, more) = rest.split_at_mut(each.min(rest.len()));
            part.push(taken);
            rest = more;
        }
    }
    let (meeting, right) = (Meeting::new(threads), AtomicBool::new(true));
    let (seconds, cpu_s) = std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (thread, part) in parts.into_iter().enumerate() {
            let (meeting, right) = (&meeting, &right);
            let run = move || take_part(asked, thread, part, meeting, right);
            running.push(scope.spawn(run));
        }
        let mut found = running.into_iter().map(|it| it.join());
        let first = found.next().expect("there is a first thread");
        first.expect("it only adds")
    });
    Found {
        seconds,
        cpu_s,
        right: right.into_inner(),
    }
}

fn take_part(
    asked: Asked,
    thread: usize,
    mut part: Vec<&mut [f32]>,
    meeting: &Meeting,
    right: &AtomicBool,
) -> (Vec<f64>, f64) {
    let threads = asked.threads;
    place::take(thread, threads);
    let start = thread * asked.elements.div_ceil(threads).next_multiple_of(64);
    add(&mut part);
    let sum = |at: usize| total(threads, start + at) as f32;
    let is_right = |values: &&mut [f32]| {
        let mut values = values.iter().enumerate();
        values.all(|(at, it)| *it == sum(at))
    };
    if !part.iter().all(is_right) {
        right.store(false, Ordering::Relaxed);
    }
    for values in &mut part {
        values.fill(0.0);
    }
    meeting.meet();
    let used = own_cpu_seconds();
    let mut seconds = Vec::new();
    for _ in 0..asked.batches {
        let began = now();
        for _ in 0..asked.per {
            meeting.meet();
            add(&mut part);
            meeting.meet();
        }
        seconds.push((now() - began).as_secs_f64() / asked.per as f64);
    }
    (seconds, own_cpu_seconds() - used)
}

/// Puts the sum of all buffers' parts into each.
fn add(part: &mut [&mut [f32]]) {
    let len = part[0].len();
    let mut sums = [0.0; BLOCK];
    for start in (0..len).step_by(BLOCK) {
        let range = start..len.min(start + BLOCK);
        let sums = &mut sums[..range.len()];
        sums.copy_from_slice(&part[0][range.clone()]);
        for values in &part[1..] {
            for (sum, value) in sums.iter_mut().zip(&values[range.clone()]) {
                *sum += value;
            }
        }
        for values in &mut *part {
            values[range.clone()].copy_from_slice(sums);
        }
    }
}

/// Where threads wait for each other: a spin, then they give the processor away.
struct Meeting {
    threads: usize,
    arrived: AtomicUsize,
    turn: AtomicUsize,
}

impl Meeting {
    fn new(threads: usize) -> Meeting {
        Meeting {
            threads,
            arrived: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    fn meet(&self) {
        let turn = self.turn.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.turn.store(turn + 1, Ordering::Release);
            return;
        }
        let mut looks = 0;
        while self.turn.load(Ordering::Acquire) == turn {
            looks += 1;
            match looks < SPINS {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_what_all_have_and_a_part_may_be_empty() {
        for (threads, elements) in [(1, 100), (3, 5000), (4, 65)] {
            let found = measure(Asked {
                threads,
                elements,
                per: 2,
                batches: 3,
            });
            assert!(found.right, "{threads} {elements}");
            assert_eq!(found.seconds.len(), 3);
        }
        let (mut one, mut other) = ([1.0, 2.0], [10.0, 20.0]);
        add(&mut [&mut one, &mut other]);
        assert_eq!((one, other), ([11.0, 22.0], [11.0, 22.0]));
    }
}
