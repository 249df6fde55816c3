//! A reduce among four processes in the shape of a round: each folds its slice of everybody's update in the order of ranks, then reads the
//! others' slices of the result. What each has at the end is, bit for bit, what one thread computes alone. Prints what a READ takes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time"
)]

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tombolo_fabric::ibverbs::Ibverbs;
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{Device, Endpoint, QueuePair, Region, RemoteRegion, VerbsProvider, read};

const RANKS: usize = 4;

/// A slice of each rank is not a multiple of a page, nor of what one READ carries.
const ELEMENTS: usize = 1_000_004;

/// For processes of a slow guest; only failures wait so long.
const WAIT: Duration = Duration::from_secs(60);

/// Tells the test binary that it is a rank, of which provider, and which: `shm 2`.
const RANK: &str = "TOMBOLO_FABRIC_TEST_RANK";

/// Where the sockets of `shm` are.
const FOLDER: &str = "TOMBOLO_FABRIC_TEST_FOLDER";

#[test]
fn four_processes_reduce_to_the_reference_bit_for_bit_over_shm() {
    if be_a_rank() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let name = "four_processes_reduce_to_the_reference_bit_for_bit_over_shm";
    reduce("shm", name, &place.path().join("fabric"));
}

#[test]
fn four_processes_reduce_to_the_reference_bit_for_bit_over_ibverbs() {
    if be_a_rank() {
        return;
    }
    match Ibverbs::new().probe() {
        Ok(found) => println!("ibverbs: {found}; figures of that device only"),
        Err(reason) => {
            assert!(std::env::var_os("TOMBOLO_RDMA").is_none(), "{reason}");
            eprintln!("skipped: {reason}");
            return;
        }
    }
    let name = "four_processes_reduce_to_the_reference_bit_for_bit_over_ibverbs";
    reduce("ibverbs", name, &PathBuf::new());
}

/// Starts the ranks, introduces them to each other, and compares what they end with.
fn reduce(provider: &str, test: &str, folder: &std::path::Path) {
    let mut ranks: Vec<Rank> = (0..RANKS)
        .map(|rank| Rank::start(provider, test, rank, folder))
        .collect();
    let told: Vec<String> = ranks.iter_mut().map(|rank| rank.line("here: ")).collect();
    for rank in &mut ranks {
        rank.tell(&told.join(";"));
    }
    for step in ["update is written", "slice is folded"] {
        for rank in &mut ranks {
            assert_eq!(rank.line("done: "), step);
        }
        for rank in &mut ranks {
            rank.tell("go on");
        }
    }
    let expected = checksum(&reference());
    for rank in &mut ranks {
        assert_eq!(rank.line("sum: "), expected.to_string());
    }
    for rank in &mut ranks {
        rank.tell("go on");
    }
    println!("{provider}: {}", ranks[0].line("took: "));
    for rank in &mut ranks {
        rank.tell("end");
        assert!(rank.child.wait().unwrap().success());
    }
}

struct Rank {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(provider: &str, test: &str, rank: usize, folder: &std::path::Path) -> Rank {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(RANK, format!("{provider} {rank}"))
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Rank {
            stdin: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    /// What follows `mark` in the next line that has it.
    fn line(&mut self, mark: &str) -> String {
        let lines = self.lines.by_ref().map_while(Result::ok);
        let mut found = lines.filter_map(|line| Some(line.split_once(mark)?.1.to_owned()));
        found.next().expect("the rank says so before it ends")
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side of [`Rank`]: whether this process is one, and has been.
fn be_a_rank() -> bool {
    let Ok(role) = std::env::var(RANK) else {
        return false;
    };
    let (provider, rank) = role.split_once(' ').unwrap();
    let own: usize = rank.parse().unwrap();
    let provider: Box<dyn VerbsProvider> = match provider {
        "shm" => Box::new(Shm::new(std::env::var_os(FOLDER).unwrap().into())),
        _ => Box::new(device_of(own)),
    };
    let device = provider.open(&name(own)).unwrap();
    // The update, and room for this rank's slice of the result.
    let mut update = device.allocate(4 * ELEMENTS).unwrap();
    let mut result = device.allocate(4 * ELEMENTS).unwrap();
    let mut peers = Peers::meet(&*device, own, &update, &result);

    for (element, value) in update.f32s_mut().iter_mut().enumerate() {
        *value = value_of(own, element);
    }
    done("update is written");
    let began = Instant::now();
    let slice = slice(own);
    let mut scratch = device.allocate(4 * slice.len()).unwrap();
    for rank in 0..RANKS {
        peers.read(
            rank,
            Which::Update,
            &mut scratch,
            4 * slice.start,
            4 * slice.len(),
        );
        let (mut sums, terms) = (result.f32s_mut(), scratch.f32s());
        for (sum, term) in sums[slice.clone()].iter_mut().zip(terms) {
            *sum += term;
        }
    }
    let folded = began.elapsed();
    done("slice is folded");
    let began = Instant::now();
    for rank in (0..RANKS).filter(|&rank| rank != own) {
        let slice = self::slice(rank);
        let mut part = device.allocate(4 * slice.len()).unwrap();
        peers.read(
            rank,
            Which::Result,
            &mut part,
            4 * slice.start,
            4 * slice.len(),
        );
        result.f32s_mut()[slice].copy_from_slice(part.f32s());
    }
    let gathered = began.elapsed();
    println!("sum: {}", checksum(result.f32s()));
    // The others rest while the first measures.
    assert_eq!(next_line(), "go on");
    if own == 0 {
        println!("took: {}", peers.figures(&mut scratch, folded + gathered));
    }
    assert_eq!(next_line(), "end");
    true
}

/// Where a machine has two devices, ranks take turns, so that half of the reads go from one to the other.
fn device_of(rank: usize) -> Ibverbs {
    let devices = ["rxe0", "rxe1"].map(|name| Ibverbs::on(name).patience(WAIT));
    let [here, there] = devices.each_ref().map(|device| device.probe().is_ok());
    match here && there {
        true => devices[rank % 2].clone(),
        false => Ibverbs::new().patience(WAIT),
    }
}

#[derive(Clone, Copy)]
enum Which {
    Update,
    Result,
}

/// The way into everybody's memory, one's own too.
struct Peers {
    pairs: Vec<Box<dyn QueuePair>>,
    regions: Vec<[RemoteRegion; 2]>,
}

impl Peers {
    fn meet(device: &dyn Device, own: usize, update: &Region, result: &Region) -> Peers {
        let grants: Vec<String> = (0..RANKS)
            .map(|rank| words(&device.grant(&name(rank)).unwrap().to_bytes()))
            .collect();
        let keys = [update.remote().key, result.remote().key];
        println!("here: {} {}|{}", keys[0], keys[1], grants.join("|"));
        let mut peers = Peers {
            pairs: Vec::new(),
            regions: Vec::new(),
        };
        for (rank, told) in next_line().split(';').enumerate() {
            let parts: Vec<&str> = told.split('|').collect();
            let endpoint: Vec<u8> = numbers(parts[1 + own]);
            let endpoint = Endpoint::from_bytes(&endpoint).unwrap();
            peers
                .pairs
                .push(device.connect(&name(rank), &endpoint).unwrap());
            let len = 4 * ELEMENTS as u64;
            let keys: Vec<u64> = numbers(parts[0]);
            peers.regions.push([0, 1].map(|which| RemoteRegion {
                key: keys[which],
                len,
            }));
        }
        peers
    }

    fn read(&mut self, rank: usize, which: Which, into: &mut Region, offset: usize, len: usize) {
        let remote = self.regions[rank][which as usize];
        let pair = self.pairs[rank].as_mut();
        read(pair, into, 0, &remote, offset as u64, len, WAIT).unwrap();
    }

    /// What READs from the second rank take.
    fn figures(&mut self, scratch: &mut Region, reduce: Duration) -> String {
        let mut small: Vec<Duration> = (0..200)
            .map(|_| {
                let began = Instant::now();
                self.read(1, Which::Update, scratch, 0, 8);
                began.elapsed()
            })
            .collect();
        small.sort();
        let len = scratch.len();
        let began = Instant::now();
        for _ in 0..4 {
            self.read(1, Which::Update, scratch, 0, len);
        }
        let rate = (4 * len) as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20);
        format!(
            "reduce of {} elements among {RANKS} processes {:.1} ms; READ of 8 bytes p50 {:.1} us, p99 {:.1} us; READ of {} bytes {rate:.0} MiB/s",
            ELEMENTS,
            reduce.as_secs_f64() * 1e3,
            small[100].as_secs_f64() * 1e6,
            small[198].as_secs_f64() * 1e6,
            len
        )
    }
}

fn done(step: &str) {
    println!("done: {step}");
    assert_eq!(next_line(), "go on");
}

fn next_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn name(rank: usize) -> String {
    format!("hq/n{rank}")
}

fn words(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().map(u8::to_string).collect();
    words.join(" ")
}

fn numbers<T: std::str::FromStr>(words: &str) -> Vec<T> {
    words
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn slice(rank: usize) -> std::ops::Range<usize> {
    rank * ELEMENTS / RANKS..(rank + 1) * ELEMENTS / RANKS
}

/// Values whose sum depends on the order of the terms.
fn value_of(rank: usize, element: usize) -> f32 {
    let mixed = (element * RANKS + rank).wrapping_mul(0x9e37_79b9) as u32;
    f32::from_bits(0x3f80_0000 | mixed >> 9) * [1e-3, 1.0, 1e3, -1e3][rank]
}

fn reference() -> Vec<f32> {
    (0..ELEMENTS)
        .map(|element| {
            let terms = (0..RANKS).map(|rank| value_of(rank, element));
            terms.fold(0.0, |sum, term| sum + term)
        })
        .collect()
}

/// Of all bits, in order.
fn checksum(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |sum, value| {
        (sum ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
