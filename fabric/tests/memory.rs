//! What only the `memory` provider does: crashes, cuts, torn reads, and the same run twice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use tombolo_fabric::memory::Memory;
use tombolo_fabric::{
    CompletionError, Device, FabricError, QueuePair, Region, VerbsProvider, read,
};

fn try_read(
    device: &Arc<dyn Device>,
    queue_pair: &mut Box<dyn QueuePair>,
    region: &Region,
) -> Result<(), CompletionError> {
    let mut scratch = device.allocate(region.len()).unwrap();
    let len = region.len();
    let done = read(
        &mut **queue_pair,
        &mut scratch,
        0,
        &region.remote(),
        0,
        len,
        Duration::ZERO,
    );
    match done {
        Ok(()) => Ok(()),
        Err(FabricError::Read { source, .. }) => Err(source),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_crashed_node_is_gone_until_it_is_opened_anew_and_old_handles_stay_dead() {
    let memory = Memory::new();
    let (owner, peer) = (memory.open("hq/a").unwrap(), memory.open("hq/b").unwrap());
    let region = owner.allocate(16).unwrap();
    let endpoint = owner.grant("hq/b").unwrap();
    let mut queue_pair = peer.connect("hq/a", &endpoint).unwrap();
    let mut own = owner.connect("hq/b", &peer.grant("hq/a").unwrap()).unwrap();
    let (kept, of_peer) = (owner.allocate(16).unwrap(), peer.allocate(16).unwrap());

    memory.clone().crash("hq/a");
    assert_eq!(
        try_read(&peer, &mut queue_pair, &region),
        Err(CompletionError::PeerGone)
    );
    assert!(matches!(owner.allocate(1), Err(FabricError::Closed { .. })));
    assert!(matches!(
        owner.grant("hq/b"),
        Err(FabricError::Closed { .. })
    ));
    assert!(matches!(
        peer.connect("hq/a", &endpoint),
        Err(FabricError::Unreachable { .. })
    ));
    let mut scratch = kept;
    assert!(matches!(
        read(
            &mut *own,
            &mut scratch,
            0,
            &of_peer.remote(),
            0,
            16,
            Duration::ZERO
        ),
        Err(FabricError::Read {
            source: CompletionError::DeviceClosed,
            ..
        })
    ));
    assert_eq!(region.bytes(), [0; 16], "its local view is still memory");

    let reborn = memory.open("hq/a").unwrap();
    assert!(peer.connect("hq/a", &endpoint).is_err());
    let successor = reborn.allocate(16).unwrap();
    let endpoint = reborn.grant("hq/b").unwrap();
    let mut queue_pair = peer.connect("hq/a", &endpoint).unwrap();
    assert_eq!(try_read(&peer, &mut queue_pair, &successor), Ok(()));
    drop((owner, region));
    assert_eq!(reborn.stats().regions, 1, "the dead leave the living alone");
}

#[test]
fn a_cut_stops_both_ways_and_healing_lets_new_queue_pairs_through() {
    let memory = Memory::new();
    let (a, b, c) = (
        memory.open("hq/a").unwrap(),
        memory.open("hq/b").unwrap(),
        memory.open("hq/c").unwrap(),
    );
    let region = a.allocate(16).unwrap();
    let endpoint = a.grant("hq/b").unwrap();
    let mut through = b.connect("hq/a", &endpoint).unwrap();
    let mut untouched = c.connect("hq/a", &a.grant("hq/c").unwrap()).unwrap();
    memory.cut("hq/b", "hq/a");
    assert_eq!(
        try_read(&b, &mut through, &region),
        Err(CompletionError::PeerGone)
    );
    assert!(matches!(
        b.connect("hq/a", &endpoint),
        Err(FabricError::Unreachable { .. })
    ));
    assert!(a.connect("hq/b", &b.grant("hq/a").unwrap()).is_err());
    assert_eq!(try_read(&c, &mut untouched, &region), Ok(()));
    memory.heal("hq/a", "hq/b");
    assert_eq!(
        try_read(&b, &mut through, &region),
        Err(CompletionError::Flushed)
    );
    let mut again = b.connect("hq/a", &endpoint).unwrap();
    assert_eq!(try_read(&b, &mut again, &region), Ok(()));
}

#[test]
fn a_read_while_the_owner_writes_is_reported_as_torn() {
    let memory = Memory::new();
    let (a, b) = (memory.open("hq/a").unwrap(), memory.open("hq/b").unwrap());
    let mut region = a.allocate(16).unwrap();
    let remote = region.remote();
    let endpoint = a.grant("hq/b").unwrap();
    let mut queue_pair = b.connect("hq/a", &endpoint).unwrap();
    let mut scratch = b.allocate(16).unwrap();
    let mut read_now = |queue_pair: &mut Box<dyn QueuePair>| {
        read(
            &mut **queue_pair,
            &mut scratch,
            0,
            &remote,
            0,
            16,
            Duration::ZERO,
        )
    };
    let mut writing = region.bytes_mut();
    writing[0] = 1;
    assert!(matches!(
        read_now(&mut queue_pair),
        Err(FabricError::Read {
            source: CompletionError::Torn { key },
            ..
        }) if key == remote.key
    ));
    drop(writing);
    let mut queue_pair = b.connect("hq/a", &endpoint).unwrap();
    read_now(&mut queue_pair).unwrap();
    assert_eq!(scratch.bytes()[0], 1);
}

#[test]
fn equal_runs_give_equal_keys_and_tokens_and_no_two_are_equal_in_a_run() {
    let run = || {
        let memory = Memory::new();
        let (a, b) = (memory.open("hq/a").unwrap(), memory.open("hq/b").unwrap());
        let regions = [a.allocate(8).unwrap(), b.allocate(8).unwrap()];
        let keys = regions.each_ref().map(|region| region.remote().key);
        let endpoints = [a.grant("hq/b"), a.grant("hq/c"), b.grant("hq/a")];
        (keys, endpoints.map(|endpoint| endpoint.unwrap().to_bytes()))
    };
    let (keys, endpoints) = run();
    assert_eq!(run(), (keys, endpoints.clone()));
    assert_ne!(keys[0], keys[1]);
    assert_ne!(endpoints[0], endpoints[1]);
    assert_ne!(endpoints[0], endpoints[2]);
}

#[test]
fn the_numbers_of_regions_and_grants_are_bounded() {
    let device = Memory::new().open("hq/a").unwrap();
    let max = device.limits().regions_max;
    let mut regions: Vec<_> = (0..max).map(|_| device.allocate(1).unwrap()).collect();
    assert!(matches!(
        device.allocate(1),
        Err(FabricError::Exhausted { what: "regions", limit, .. }) if limit == max as u64
    ));
    regions.pop();
    assert!(device.allocate(1).is_ok());
    let refused = (0..10_000)
        .map(|peer| device.grant(&format!("hq/n{peer}")))
        .find_map(Result::err);
    assert!(matches!(
        refused,
        Some(FabricError::Exhausted { what: "grants", .. })
    ));
    assert!(device.grant("hq/n0").is_ok(), "a renewal needs no room");
}
