//! Nothing is left: descriptors, mappings, threads and files. Alone in its binary, since it counts what the whole process has.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use tombolo_fabric::memory::Memory;
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{RemoteRegion, VerbsProvider, read};

#[test]
fn a_mesh_of_devices_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let (shm, memory) = (Shm::new(folder.clone()), Memory::new());
    let before = held();
    a_reader_lets_go_of_what_the_owner_dropped(&shm);
    assert_eq!(held(), before);
    for provider in [&shm as &dyn VerbsProvider, &memory] {
        for _ in 0..3 {
            let during = mesh(provider);
            if provider.name() == "shm" {
                let (descriptors, mappings, threads) = during;
                assert!(
                    descriptors > before.0 && mappings > before.1 && threads > before.2,
                    "the counters must see what is in use: {during:?}"
                );
            }
            assert_eq!(held(), before, "{}", provider.name());
            assert_eq!(entries(&folder), 0, "{}", provider.name());
        }
    }
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
