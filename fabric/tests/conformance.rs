//! One suite, every provider: what a verbs provider must do, told in the order of a queue pair's life.
//!
//! A new provider adds one line to `on_every_provider` and one constructor to `World`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tombolo_fabric::memory::Memory;
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{
    CompletionError, Device, Endpoint, FabricError, QueuePair, Read, Region, RemoteRegion, State,
    Stats, VerbsProvider, read,
};

/// Long enough for a machine under load; only failures wait for it.
const WAIT: Duration = Duration::from_secs(30);

macro_rules! on_every_provider {
    ($($case:ident)*) => {
        mod shm { $(#[test] fn $case() { super::$case(&super::World::shm()); })* }
        mod memory { $(#[test] fn $case() { super::$case(&super::World::memory()); })* }
    };
}

on_every_provider! {
    a_region_is_zeroed_and_page_aligned_and_seen_as_bytes_or_elements
    impossible_regions_are_refused_with_limit_and_need
    a_wrong_token_or_name_is_denied
    a_revoked_peer_is_denied_and_its_queue_pair_dies
    a_new_grant_ends_the_old_one
    an_endpoint_of_another_provider_or_with_a_bad_address_is_refused
    names_are_bounded
    a_region_and_parts_of_it_arrive_as_written
    what_the_owner_writes_later_is_read_later
    a_read_of_nothing_succeeds_but_needs_a_key
    long_reads_are_split_by_read_and_refused_by_post
    completions_come_in_the_order_of_posting
    a_full_queue_gives_the_read_back_and_stays_usable
    read_wants_the_queue_pair_for_itself
    an_unknown_key_kills_the_queue_pair
    the_key_of_a_dropped_region_reaches_nothing_even_if_it_was_read_before
    ranges_outside_either_side_fail_also_if_their_sum_overflows
    a_remote_region_that_lies_about_its_length_is_found_out
    scratch_of_another_device_is_refused
    an_error_flushes_what_follows_and_what_is_posted_later
    a_failed_queue_pair_gives_scratch_back
    many_regions_can_be_read_again_and_again
    nine_devices_read_each_other_on_nine_threads
    a_closed_device_is_gone_for_its_peers_and_its_regions_stay_its_owners
    a_queue_pair_does_not_outlive_its_own_device
    nothing_is_left_when_all_is_dropped
}

fn a_region_is_zeroed_and_page_aligned_and_seen_as_bytes_or_elements(world: &World) {
    let device = world.open("hq/a");
    let mut region = device.allocate(4099).unwrap();
    assert!(region.bytes().iter().all(|&byte| byte == 0));
    assert_eq!(region.bytes().as_ptr() as usize % 4096, 0);
    assert_eq!((region.len(), region.bytes().len()), (4099, 4099));
    assert_eq!((region.f32s().len(), region.remote().len), (1024, 4099));
    region.f32s_mut()[1] = -2.5;
    assert_eq!(region.bytes()[4..8], (-2.5f32).to_ne_bytes());
    region.bytes_mut()[4098] = 9;
    assert_eq!(region.bytes()[4098], 9);
}

fn impossible_regions_are_refused_with_limit_and_need(world: &World) {
    let device = world.open("hq/a");
    assert!(matches!(device.allocate(0), Err(FabricError::EmptyRegion)));
    for bytes in [usize::MAX, device.limits().bytes_max as usize + 1] {
        match device.allocate(bytes) {
            Err(FabricError::Exhausted { needed, limit, .. }) => {
                assert_eq!((needed, limit), (bytes as u64, device.limits().bytes_max));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(device.stats(), Stats::default());
    assert!(device.allocate(1).is_ok());
}

fn a_wrong_token_or_name_is_denied(world: &World) {
    let (owner, peer, other) = (world.open("hq/a"), world.open("hq/b"), world.open("hq/c"));
    let for_peer = owner.grant("hq/b").unwrap();
    let for_other = owner.grant("hq/c").unwrap();
    let denied = |device: &Arc<dyn Device>, endpoint: &Endpoint| {
        matches!(
            device.connect("hq/a", endpoint),
            Err(FabricError::Denied { peer }) if peer == "hq/a"
        )
    };
    assert!(denied(&peer, &for_other), "token of another peer");
    assert!(denied(&other, &for_peer), "token of another peer");
    let mut bytes = for_peer.to_bytes();
    let first_of_token = 2 + for_peer.provider().len();
    for index in [first_of_token, first_of_token + 31] {
        bytes[index] ^= 1;
        let forged = Endpoint::from_bytes(&bytes).unwrap();
        assert!(denied(&peer, &forged), "token with byte {index} changed");
        bytes[index] ^= 1;
    }
    let same = Endpoint::from_bytes(&bytes).unwrap();
    assert!(peer.connect("hq/a", &same).is_ok());
}

fn a_revoked_peer_is_denied_and_its_queue_pair_dies(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    pair.read(&region.remote(), 0, 64).unwrap();
    pair.owner.revoke("hq/b");
    assert_eq!(
        pair.read_error(&region.remote(), 0, 64),
        CompletionError::Revoked
    );
    assert_eq!(pair.queue_pair.state(), State::Error);
    assert!(matches!(
        pair.peer.connect("hq/a", &pair.endpoint),
        Err(FabricError::Denied { .. })
    ));
    pair.owner.revoke("hq/nobody");
}

fn a_new_grant_ends_the_old_one(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let next = pair.owner.grant("hq/b").unwrap();
    assert_ne!(next, pair.endpoint);
    assert_eq!(
        pair.read_error(&region.remote(), 0, 64),
        CompletionError::Revoked
    );
    assert!(pair.peer.connect("hq/a", &pair.endpoint).is_err());
    pair.queue_pair = pair.peer.connect("hq/a", &next).unwrap();
    pair.read(&region.remote(), 0, 64).unwrap();
}

fn an_endpoint_of_another_provider_or_with_a_bad_address_is_refused(world: &World) {
    let (owner, peer) = (world.open("hq/a"), world.open("hq/b"));
    let endpoint = owner.grant("hq/b").unwrap();
    let name = endpoint.provider().len();
    let mut foreign = endpoint.to_bytes();
    foreign[2] = b'x';
    let foreign = Endpoint::from_bytes(&foreign).unwrap();
    assert!(matches!(
        peer.connect("hq/a", &foreign),
        Err(FabricError::Incompatible { .. })
    ));
    let mut short = endpoint.to_bytes()[..2 + name + 32].to_vec();
    short.extend_from_slice(b"\x03abc");
    let short = Endpoint::from_bytes(&short).unwrap();
    assert!(matches!(
        peer.connect("hq/a", &short),
        Err(FabricError::Malformed { .. })
    ));
}

fn names_are_bounded(world: &World) {
    let device = world.open("hq/a");
    for name in [String::new(), "n".repeat(129)] {
        assert!(matches!(
            world.provider.open(&name),
            Err(FabricError::Name { .. })
        ));
        assert!(matches!(device.grant(&name), Err(FabricError::Name { .. })));
    }
    let longest = "n".repeat(128);
    let peer = world.open(&longest);
    let endpoint = device.grant(&longest).unwrap();
    assert!(endpoint.to_bytes().len() <= Endpoint::LENGTH_MAX);
    assert!(peer.connect("hq/a", &endpoint).is_ok());
}

fn a_region_and_parts_of_it_arrive_as_written(world: &World) {
    let mut pair = Pair::new(world);
    let mut region = pair.owner.allocate(10_000).unwrap();
    fill(&mut region, 7);
    let whole = pair.read(&region.remote(), 0, 10_000).unwrap();
    assert_eq!(whole, region.bytes());
    for (offset, len) in [(0, 1), (1, 4096), (4095, 2), (9_999, 1), (8_192, 1_808)] {
        let part = pair.read(&region.remote(), offset as u64, len).unwrap();
        assert_eq!(part, region.bytes()[offset..offset + len], "{offset} {len}");
    }
    // Into the middle of the scratch, leaving its rest alone.
    let mut scratch = pair.peer.allocate(100).unwrap();
    scratch.bytes_mut().fill(0xee);
    read(
        &mut *pair.queue_pair,
        &mut scratch,
        30,
        &region.remote(),
        500,
        40,
        WAIT,
    )
    .unwrap();
    assert_eq!(scratch.bytes()[30..70], region.bytes()[500..540]);
    assert!(scratch.bytes()[..30].iter().all(|&byte| byte == 0xee));
    assert!(scratch.bytes()[70..].iter().all(|&byte| byte == 0xee));
}

fn what_the_owner_writes_later_is_read_later(world: &World) {
    let mut pair = Pair::new(world);
    let mut region = pair.owner.allocate(4096).unwrap();
    for value in 1..=5 {
        fill(&mut region, value);
        let seen = pair.read(&region.remote(), 0, 4096).unwrap();
        assert_eq!(seen, region.bytes());
        assert_eq!(seen[0], value);
    }
}

fn a_read_of_nothing_succeeds_but_needs_a_key(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(10).unwrap();
    for offset in [0, 10] {
        assert!(pair.read(&region.remote(), offset, 0).unwrap().is_empty());
    }
    let unknown = RemoteRegion {
        key: region.remote().key ^ (1 << 40),
        len: 10,
    };
    assert_eq!(
        pair.read_error(&unknown, 0, 0),
        CompletionError::RemoteKey { key: unknown.key }
    );
}

fn long_reads_are_split_by_read_and_refused_by_post(world: &World) {
    let mut pair = Pair::new(world);
    let max = pair.peer.limits().read_length_max;
    let mut region = pair.owner.allocate(2 * max + 3).unwrap();
    fill(&mut region, 3);
    let seen = pair.read(&region.remote(), 1, 2 * max + 2).unwrap();
    assert!(seen == region.bytes()[1..], "three pieces");

    let mut too_long = pair.to_post(1, &region.remote(), 0);
    too_long.len = max + 1;
    let refused = pair.queue_pair.post_read(too_long).unwrap_err();
    assert!(matches!(refused.error, FabricError::ReadTooLong { len, .. } if len == max + 1));
    assert_eq!(pair.queue_pair.state(), State::ReadyToSend);
}

fn completions_come_in_the_order_of_posting(world: &World) {
    let mut pair = Pair::new(world);
    let mut region = pair.owner.allocate(64).unwrap();
    fill(&mut region, 1);
    for id in 0..8 {
        let mut post = pair.to_post(id, &region.remote(), 1);
        post.offset = id;
        pair.queue_pair.post_read(post).unwrap();
    }
    assert_eq!(pair.queue_pair.pending(), 8);
    for id in 0..8 {
        let (completed, result, scratch) = pair.complete();
        assert_eq!((completed, result), (id, Ok(1)));
        assert_eq!(scratch.bytes()[0], region.bytes()[id as usize]);
    }
    assert!(pair.queue_pair.poll().is_none());
}

fn a_full_queue_gives_the_read_back_and_stays_usable(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let depth = pair.queue_pair.limits().queue_depth;
    for id in 0..depth {
        let post = pair.to_post(id as u64, &region.remote(), 8);
        pair.queue_pair.post_read(post).unwrap();
    }
    let one_more = pair.to_post(4711, &region.remote(), 8);
    let refused = pair.queue_pair.post_read(one_more).unwrap_err();
    assert!(matches!(refused.error, FabricError::QueueFull { depth: said, .. } if said == depth));
    assert_eq!((refused.read.id, refused.read.scratch.len()), (4711, 64));
    assert_eq!(pair.complete().1, Ok(8));
    pair.queue_pair.post_read(refused.read).unwrap();
    for _ in 0..depth {
        assert_eq!(pair.complete().1, Ok(8));
    }
    assert_eq!(pair.queue_pair.state(), State::ReadyToSend);
}

fn read_wants_the_queue_pair_for_itself(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let post = pair.to_post(1, &region.remote(), 8);
    pair.queue_pair.post_read(post).unwrap();
    let refused = pair.read(&region.remote(), 0, 8).unwrap_err();
    assert!(matches!(refused, FabricError::Pending { pending: 1, .. }));
    assert_eq!(pair.complete().1, Ok(8));
    pair.read(&region.remote(), 0, 8).unwrap();
}

fn an_unknown_key_kills_the_queue_pair(world: &World) {
    for key in [0, 1, 0xffff, u64::MAX, 0x1234_5678_0000] {
        let mut pair = Pair::new(world);
        let _region = pair.owner.allocate(64).unwrap();
        let unknown = RemoteRegion { key, len: 64 };
        assert_eq!(
            pair.read_error(&unknown, 0, 64),
            CompletionError::RemoteKey { key }
        );
        assert_eq!(pair.queue_pair.state(), State::Error);
    }
}

fn the_key_of_a_dropped_region_reaches_nothing_even_if_it_was_read_before(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let stale = region.remote();
    pair.read(&stale, 0, 64).unwrap();
    drop(region);
    let successor = pair.owner.allocate(64).unwrap();
    assert_ne!(successor.remote().key, stale.key);
    assert_eq!(
        pair.read_error(&stale, 0, 64),
        CompletionError::RemoteKey { key: stale.key }
    );
    pair.reconnect();
    pair.read(&successor.remote(), 0, 64).unwrap();
}

fn ranges_outside_either_side_fail_also_if_their_sum_overflows(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(100).unwrap();
    let remote = region.remote();
    for (offset, len) in [(100, 1), (37, 64), (u64::MAX, 64), (u64::MAX - 63, 64)] {
        assert_eq!(
            pair.read_error(&remote, offset, len),
            CompletionError::RemoteBounds {
                offset,
                len: len as u64,
                region: 100
            }
        );
        pair.reconnect();
    }
    for (scratch_offset, len) in [(64, 1), (1, 64), (usize::MAX, 2), (usize::MAX - 1, 2)] {
        let mut post = pair.to_post(1, &remote, len);
        post.scratch_offset = scratch_offset;
        pair.queue_pair.post_read(post).unwrap();
        assert_eq!(
            pair.complete().1,
            Err(CompletionError::LocalBounds {
                offset: scratch_offset as u64,
                len: len as u64,
                region: 64
            })
        );
        assert_eq!(pair.queue_pair.state(), State::Error);
        pair.reconnect();
    }
    let vacant = Read {
        scratch: Region::vacant(),
        ..pair.to_post(1, &remote, 0)
    };
    pair.queue_pair.post_read(vacant).unwrap();
    assert_eq!(pair.complete().1, Err(CompletionError::LocalKey));
}

fn a_remote_region_that_lies_about_its_length_is_found_out(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(100).unwrap();
    let lie = RemoteRegion {
        len: u64::MAX,
        ..region.remote()
    };
    assert!(matches!(
        pair.read_error(&lie, 90, 20),
        CompletionError::RemoteBounds { region: 100, .. }
    ));
    pair.reconnect();
    let modest = RemoteRegion {
        len: 10,
        ..region.remote()
    };
    assert!(matches!(
        pair.read_error(&modest, 0, 11),
        CompletionError::RemoteBounds { region: 10, .. }
    ));
}

fn scratch_of_another_device_is_refused(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let mut scratch = pair.owner.allocate(64).unwrap();
    let refused = read(
        &mut *pair.queue_pair,
        &mut scratch,
        0,
        &region.remote(),
        0,
        64,
        WAIT,
    );
    assert!(matches!(
        refused,
        Err(FabricError::Read {
            source: CompletionError::LocalKey,
            ..
        })
    ));
    assert_eq!(scratch.len(), 64, "the scratch is back");
}

fn an_error_flushes_what_follows_and_what_is_posted_later(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let good = region.remote();
    let bad = RemoteRegion { key: 1, len: 64 };
    for (id, remote) in [(1, good), (2, bad), (3, good), (4, good)] {
        let post = pair.to_post(id, &remote, 8);
        pair.queue_pair.post_read(post).unwrap();
    }
    let results: Vec<_> = (0..4)
        .map(|_| pair.complete())
        .map(|(id, result, scratch)| (id, result, scratch.len()))
        .collect();
    assert_eq!(
        results,
        [
            (1, Ok(8), 64),
            (2, Err(CompletionError::RemoteKey { key: 1 }), 64),
            (3, Err(CompletionError::Flushed), 64),
            (4, Err(CompletionError::Flushed), 64),
        ]
    );
    let post = pair.to_post(5, &good, 8);
    pair.queue_pair.post_read(post).unwrap();
    let (id, result, _) = pair.complete();
    assert_eq!((id, result), (5, Err(CompletionError::Flushed)));
    assert_eq!(
        pair.read_error(&good, 0, 8),
        CompletionError::Flushed,
        "no way back"
    );
    pair.reconnect();
    assert_eq!(pair.queue_pair.state(), State::ReadyToSend);
    pair.read(&good, 0, 8).unwrap();
}

fn a_failed_queue_pair_gives_scratch_back(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let post = pair.to_post(1, &region.remote(), 8);
    pair.queue_pair.post_read(post).unwrap();
    pair.queue_pair.fail();
    let (id, result, scratch) = pair.complete();
    assert_eq!(
        (id, result, scratch.len()),
        (1, Err(CompletionError::Flushed), 64)
    );
}

fn many_regions_can_be_read_again_and_again(world: &World) {
    let mut pair = Pair::new(world);
    // More than any reader keeps mapped.
    let mut regions: Vec<_> = (0..150)
        .map(|_| pair.owner.allocate(5000).unwrap())
        .collect();
    for (index, region) in regions.iter_mut().enumerate() {
        fill(region, index as u8);
    }
    for _ in 0..2 {
        for region in &regions {
            let seen = pair.read(&region.remote(), 100, 300).unwrap();
            assert_eq!(seen, region.bytes()[100..400]);
        }
    }
    assert_eq!(pair.owner.stats().bytes, 150 * 5000);
    let mut keys: Vec<_> = regions.iter().map(|region| region.remote().key).collect();
    keys.dedup();
    assert_eq!(keys.len(), 150);
}

fn nine_devices_read_each_other_on_nine_threads(world: &World) {
    const NODES: usize = 9;
    let names: Vec<_> = (0..NODES).map(|node| format!("hq/n{node}")).collect();
    let devices: Vec<_> = names.iter().map(|name| world.open(name)).collect();
    let regions: Vec<_> = devices
        .iter()
        .enumerate()
        .map(|(node, device)| {
            let mut region = device.allocate(100_000).unwrap();
            fill(&mut region, node as u8);
            region
        })
        .collect();
    let remotes: Vec<_> = regions.iter().map(Region::remote).collect();
    std::thread::scope(|scope| {
        for (reader, device) in devices.iter().enumerate() {
            let (names, devices, remotes, regions) = (&names, &devices, &remotes, &regions);
            scope.spawn(move || {
                let mut scratch = device.allocate(100_000).unwrap();
                for owner in (0..NODES).filter(|&owner| owner != reader) {
                    let endpoint = devices[owner].grant(&names[reader]).unwrap();
                    let mut queue_pair = device.connect(&names[owner], &endpoint).unwrap();
                    assert_eq!(queue_pair.peer(), names[owner]);
                    let remote = &remotes[owner];
                    read(&mut *queue_pair, &mut scratch, 0, remote, 0, 100_000, WAIT).unwrap();
                    assert!(scratch.bytes() == regions[owner].bytes());
                }
            });
        }
    });
    for device in &devices {
        assert_eq!((device.stats().regions, device.stats().queue_pairs), (1, 0));
    }
}

fn a_closed_device_is_gone_for_its_peers_and_its_regions_stay_its_owners(world: &World) {
    let mut pair = Pair::new(world);
    let mut region = pair.owner.allocate(64).unwrap();
    pair.read(&region.remote(), 0, 64).unwrap();
    let idle = world.open("hq/idle");
    pair.owner = idle;
    assert_eq!(
        pair.read_error(&region.remote(), 0, 64),
        CompletionError::PeerGone
    );
    assert!(matches!(
        pair.peer.connect("hq/a", &pair.endpoint),
        Err(FabricError::Unreachable { .. })
    ));
    region.bytes_mut()[63] = 5;
    assert_eq!(region.bytes()[63], 5);
}

fn a_queue_pair_does_not_outlive_its_own_device(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let post = pair.to_post(1, &region.remote(), 8);
    pair.peer = world.open("hq/idle");
    pair.queue_pair.post_read(post).unwrap();
    assert_eq!(pair.complete().1, Err(CompletionError::DeviceClosed));
}

fn nothing_is_left_when_all_is_dropped(world: &World) {
    let pair = Pair::new(world);
    let regions: Vec<_> = (1..=10)
        .map(|len| pair.peer.allocate(len * 1000).unwrap())
        .collect();
    let expected = Stats {
        regions: 10,
        bytes: 55_000,
        queue_pairs: 1,
    };
    assert_eq!(pair.peer.stats(), expected);
    drop(regions);
    let Pair {
        owner,
        peer,
        queue_pair,
        ..
    } = pair;
    drop(queue_pair);
    assert_eq!(owner.stats(), Stats::default());
    assert_eq!(peer.stats(), Stats::default());
    drop((owner, peer));
    assert_eq!(world.sockets(), 0);
}

/// A provider and the place where it keeps things.
struct World {
    provider: Box<dyn VerbsProvider>,
    place: Option<TempDir>,
}

impl World {
    fn shm() -> World {
        let place = tempfile::tempdir().unwrap();
        World {
            provider: Box::new(Shm::new(place.path().join("fabric"))),
            place: Some(place),
        }
    }

    fn memory() -> World {
        World {
            provider: Box::new(Memory::new()),
            place: None,
        }
    }

    fn open(&self, owner: &str) -> Arc<dyn Device> {
        self.provider.open(owner).unwrap()
    }

    fn sockets(&self) -> usize {
        self.place.as_ref().map_or(0, |place| {
            std::fs::read_dir(place.path().join("fabric"))
                .unwrap()
                .count()
        })
    }
}

/// `hq/a` owns, `hq/b` reads.
struct Pair {
    owner: Arc<dyn Device>,
    peer: Arc<dyn Device>,
    endpoint: Endpoint,
    queue_pair: Box<dyn QueuePair>,
}

impl Pair {
    fn new(world: &World) -> Pair {
        let (owner, peer) = (world.open("hq/a"), world.open("hq/b"));
        let endpoint = owner.grant("hq/b").unwrap();
        let queue_pair = peer.connect("hq/a", &endpoint).unwrap();
        assert_eq!(queue_pair.state(), State::ReadyToSend);
        Pair {
            owner,
            peer,
            endpoint,
            queue_pair,
        }
    }

    fn reconnect(&mut self) {
        self.queue_pair = self.peer.connect("hq/a", &self.endpoint).unwrap();
    }

    fn read(
        &mut self,
        remote: &RemoteRegion,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, FabricError> {
        let mut scratch = self.peer.allocate(len.max(1)).unwrap();
        read(
            &mut *self.queue_pair,
            &mut scratch,
            0,
            remote,
            offset,
            len,
            WAIT,
        )?;
        Ok(scratch.bytes()[..len].to_vec())
    }

    fn read_error(&mut self, remote: &RemoteRegion, offset: u64, len: usize) -> CompletionError {
        match self.read(remote, offset, len) {
            Err(FabricError::Read { source, peer }) if peer == "hq/a" => source,
            other => panic!("expected a failed read, found {other:?}"),
        }
    }

    fn to_post(&self, id: u64, remote: &RemoteRegion, len: usize) -> Read {
        Read {
            id,
            scratch: self.peer.allocate(64).unwrap(),
            scratch_offset: 0,
            remote: *remote,
            offset: 0,
            len,
        }
    }

    fn complete(&mut self) -> (u64, Result<usize, CompletionError>, Region) {
        loop {
            if let Some(completion) = self.queue_pair.poll() {
                return (completion.id, completion.result, completion.scratch);
            }
            assert!(self.queue_pair.pending() > 0, "nothing is posted");
            self.queue_pair.wait(WAIT);
        }
    }
}

/// A pattern that begins with `first` and repeats at no power of two.
fn fill(region: &mut Region, first: u8) {
    for (index, byte) in region.bytes_mut().iter_mut().enumerate() {
        *byte = first.wrapping_add((index % 251) as u8);
    }
}
