//! Nothing is left: descriptors, mappings, threads and files. Alone in its binary, since it counts what the whole process has.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "threads of the system end in real time"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use tombolo_fabric::ibverbs::Ibverbs;
use tombolo_fabric::memory::Memory;
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{RemoteRegion, VerbsProvider, read};

#[test]
fn a_mesh_of_devices_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let (shm, memory) = (Shm::new(folder.clone()), Memory::new());
    let rdma = rdma();
    let before = held();
    a_reader_lets_go_of_what_the_owner_dropped(&shm);
    assert_eq!(settled(before), before);
    let rdma = rdma.iter().map(|rdma| rdma as &dyn VerbsProvider);
    for provider in [&shm as &dyn VerbsProvider, &memory]
        .into_iter()
        .chain(rdma)
    {
        for _ in 0..3 {
            let (descriptors, mappings, threads) = mesh(provider);
            let (mapped, threaded) = match provider.name() {
                "memory" => (false, false),
                name => (name == "shm", true),
            };
            assert!(
                descriptors > before.0 || !threaded,
                "descriptors that are in use must be seen: {descriptors}"
            );
            assert!(mappings > before.1 || !mapped, "{mappings}");
            assert!(threads > before.2 || !threaded, "{threads}");
            assert_eq!(settled(before), before, "{}", provider.name());
            assert_eq!(entries(&folder), 0, "{}", provider.name());
        }
    }
}

/// A device of hardware, or of software; `None` where there is none, which the variable forbids. What its library opens for good is open
/// after this.
fn rdma() -> Option<Ibverbs> {
    let provider = Ibverbs::new().patience(Duration::from_secs(60));
    if let Err(reason) = provider.probe() {
        assert!(std::env::var_os("TOMBOLO_RDMA").is_none(), "{reason}");
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(provider)
}

/// Five devices that read each other's regions, some of which fail; returns what was held at the height of it.
fn mesh(provider: &dyn VerbsProvider) -> (usize, usize, usize) {
    let names = ["n0", "n1", "n2", "n3", "n4"];
    let devices = names.map(|name| provider.open(name).unwrap());
    let regions = devices
        .each_ref()
        .map(|device| device.allocate(10_000).unwrap());
    let mut queue_pairs = Vec::new();
    for (reader, device) in devices.iter().enumerate() {
        for (owner, region) in regions.iter().enumerate() {
            let endpoint = devices[owner].grant(names[reader]).unwrap();
            let mut scratch = device.allocate(10_000).unwrap();
            for remote in [region.remote(), RemoteRegion { key: 5, len: 1 }] {
                let mut queue_pair = device.connect(names[owner], &endpoint).unwrap();
                let wait = Duration::from_secs(30);
                let done = read(&mut *queue_pair, &mut scratch, 0, &remote, 0, 1, wait);
                assert_eq!(done.is_ok(), remote == region.remote());
                queue_pairs.push(queue_pair);
            }
        }
    }
    held()
}

fn a_reader_lets_go_of_what_the_owner_dropped(provider: &dyn VerbsProvider) {
    let [owner, reader] = ["n0", "n1"].map(|name| provider.open(name).unwrap());
    let endpoint = owner.grant("n1").unwrap();
    let mut queue_pair = reader.connect("n0", &endpoint).unwrap();
    let mut scratch = reader.allocate(1).unwrap();
    let [first, second] = [owner.allocate(1).unwrap(), owner.allocate(1).unwrap()];
    let mut read_byte = |remote| {
        let wait = Duration::from_secs(30);
        read(&mut *queue_pair, &mut scratch, 0, &remote, 0, 1, wait).unwrap();
    };
    read_byte(first.remote());
    let (_, with_one, _) = held();
    drop(first);
    read_byte(second.remote());
    let (_, with_other, _) = held();
    // One mapping less at the owner, and at the reader one for another.
    assert_eq!(with_other, with_one - 1);
}

/// What is held in the end. A thread that was joined is done, but the kernel may list it for a moment more: on a busy machine that was seen.
fn settled(expected: (usize, usize, usize)) -> (usize, usize, usize) {
    let began = Instant::now();
    loop {
        let now = held();
        if now == expected || began.elapsed() > Duration::from_secs(10) {
            return now;
        }
        std::thread::yield_now();
    }
}

/// Descriptors, mappings of ours, threads.
fn held() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (
        entries(Path::new("/proc/self/fd")),
        maps.matches("memfd:tombolo").count(),
        entries(Path::new("/proc/self/task")),
    )
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}
