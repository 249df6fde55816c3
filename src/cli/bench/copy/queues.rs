//! Queues from threads to one thread: a mutex, a bounded channel of tokio, the lock-free ring of the standard library; one by one, and in
//! batches. What actors have is the channel, taken in batches.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, json};
use tokio::sync::mpsc;

use super::super::measure::{Measurement, now, own_cpu_seconds};

/// As many as an actor's queue holds, and as it takes at once.
const ROOM: usize = 1024;
const BATCH: usize = 16;

const PRODUCERS: [u64; 3] = [1, 4, 16];

pub fn measure(items: u64, repeat: usize) -> io::Result<Vec<Measurement>> {
    let mut measured = Vec::new();
    for producers in PRODUCERS {
        let count = (items / producers).max(1);
        for (peer, case, run) in WAYS {
            let (mut seconds, mut ok, mut before) = (Vec::new(), true, own_cpu_seconds());
            for turn in 0..=repeat {
                let began = now();
                let found = run(producers, count);
                let took = (now() - began).as_secs_f64();
                ok &= found == Some(producers * (count * (count + 1) / 2));
                match turn {
                    0 => before = own_cpu_seconds(),
                    _ => seconds.push(took),
                }
            }
            let used = own_cpu_seconds() - before;
            let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
            let mut more = Map::new();
            let per = (producers * count) as f64;
            more.insert("ns_each".into(), json!(least / per * 1e9));
            measured.push(Measurement {
                group: "queue",
                peer,
                case: case.to_owned(),
                n: producers as usize,
                bytes: producers * count * 8,
                seconds,
                cpu_s_per_op: used / repeat as f64,
                ok,
                more,
            });
        }
    }
    Ok(measured)
}

/// Lets so many threads put the numbers from 1 to a count in, and takes all of them out: their sum.
type Run = fn(u64, u64) -> Option<u64>;

const WAYS: [(&str, &str, Run); 6] = [
    ("mutex", "one by one", mutex_one),
    ("mutex", "all at once", mutex_all),
    ("tokio-mpsc", "one by one", tokio_one),
    ("tombolo", "tokio-mpsc, up to 16 at once", tokio_batch),
    ("lock-free", "std's ring, one by one", ring_one),
    ("lock-free", "std's ring, 16 as one", ring_batch),
];

/// Runs producers, each with its own way in, beside the one who takes.
fn beside<W: Clone + Send>(
    producers: u64,
    way_in: W,
    produce: impl Fn(W) + Sync,
    take: impl FnOnce() -> Option<u64>,
) -> Option<u64> {
    let produce = &produce;
    std::thread::scope(|scope| {
        for _ in 0..producers {
            let way_in = way_in.clone();
            scope.spawn(move || produce(way_in));
        }
        // Who takes knows that nothing more comes when all ways in are gone.
        drop(way_in);
        take()
    })
}

/// A queue behind a lock.
struct Locked {
    inside: Mutex<VecDeque<u64>>,
    has_room: Condvar,
    has_some: Condvar,
}

impl Locked {
    fn new() -> Arc<Locked> {
        Arc::new(Locked {
            inside: Mutex::new(VecDeque::with_capacity(ROOM)),
            has_room: Condvar::new(),
            has_some: Condvar::new(),
        })
    }

    fn put(&self, number: u64) {
        let mut inside = self.lock();
        while inside.len() == ROOM {
            let woken = self.has_room.wait(inside);
            inside = woken.unwrap_or_else(PoisonError::into_inner);
        }
        inside.push_back(number);
        drop(inside);
        self.has_some.notify_one();
    }

    /// At least one number, at most so many.
    fn take(&self, most: usize, taken: &mut VecDeque<u64>) {
        let mut inside = self.lock();
        while inside.is_empty() {
            let woken = self.has_some.wait(inside);
            inside = woken.unwrap_or_else(PoisonError::into_inner);
        }
        match most < inside.len() {
            true => taken.extend(inside.drain(..most)),
            false => std::mem::swap(&mut *inside, taken),
        }
        drop(inside);
        self.has_room.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mutex(producers: u64, count: u64, most: usize) -> Option<u64> {
    let queue = Locked::new();
    let produce = |queue: Arc<Locked>| (1..=count).for_each(|number| queue.put(number));
    beside(producers, queue.clone(), produce, move || {
        let (mut left, mut sum) = (producers * count, 0);
        let mut taken = VecDeque::with_capacity(ROOM);
        while left > 0 {
            queue.take(most, &mut taken);
            left -= taken.len() as u64;
            sum += taken.drain(..).sum::<u64>();
        }
        Some(sum)
    })
}

fn mutex_one(producers: u64, count: u64) -> Option<u64> {
    mutex(producers, count, 1)
}

fn mutex_all(producers: u64, count: u64) -> Option<u64> {
    mutex(producers, count, ROOM)
}

fn fill_channel(count: u64) -> impl Fn(mpsc::Sender<u64>) + Sync {
    move |sender| {
        for number in 1..=count {
            // Fails only if nobody takes any more, which the sum shows.
            let _ = sender.blocking_send(number);
        }
    }
}

fn tokio_one(producers: u64, count: u64) -> Option<u64> {
    let (sender, mut receiver) = mpsc::channel(ROOM);
    beside(producers, sender, fill_channel(count), move || {
        let mut sum = 0;
        while let Some(number) = receiver.blocking_recv() {
            sum += number;
        }
        Some(sum)
    })
}

fn tokio_batch(producers: u64, count: u64) -> Option<u64> {
    let (sender, mut receiver) = mpsc::channel(ROOM);
    beside(producers, sender, fill_channel(count), move || {
        let (mut sum, mut taken) = (0, Vec::with_capacity(BATCH));
        while receiver.blocking_recv_many(&mut taken, BATCH) > 0 {
            sum += taken.drain(..).sum::<u64>();
        }
        Some(sum)
    })
}

fn ring_one(producers: u64, count: u64) -> Option<u64> {
    let (sender, receiver): (SyncSender<u64>, Receiver<u64>) = sync_channel(ROOM);
    let produce = |sender: SyncSender<u64>| {
        for number in 1..=count {
            // As for the channel.
            let _ = sender.send(number);
        }
    };
    beside(producers, sender, produce, move || {
        Some(receiver.iter().sum())
    })
}

fn ring_batch(producers: u64, count: u64) -> Option<u64> {
    let (sender, receiver): (SyncSender<Vec<u64>>, Receiver<Vec<u64>>) = sync_channel(ROOM / BATCH);
    let produce = |sender: SyncSender<Vec<u64>>| {
        for first in (1..=count).step_by(BATCH) {
            let batch = (first..=count).take(BATCH).collect();
            // As for the channel.
            let _ = sender.send(batch);
        }
    };
    beside(producers, sender, produce, move || {
        Some(receiver.iter().flatten().sum())
    })
}
