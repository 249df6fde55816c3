//! Reads that fail: what the completion says and what becomes of the queue pair.

use tombolo_fabric::{CompletionError, FabricError, Read, Region, RemoteRegion, State, read};

use crate::fixture::{Pair, WAIT, World};

pub fn an_unknown_key_kills_the_queue_pair(world: &World) {
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

pub fn the_key_of_a_dropped_region_reaches_nothing_even_if_it_was_read_before(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let stale = region.remote();
    pair.read(&stale, 0, 64).unwrap();
    drop(region);
    let gone = CompletionError::RemoteKey { key: stale.key };
    assert_eq!(pair.read_error(&stale, 0, 64), gone);
    pair.reconnect();
    let successor = pair.owner.allocate(64).unwrap();
    assert_ne!(successor.remote().key, stale.key);
    assert_eq!(pair.read_error(&stale, 0, 64), gone);
    pair.reconnect();
    pair.read(&successor.remote(), 0, 64).unwrap();
}

pub fn ranges_outside_either_side_fail_also_if_their_sum_overflows(world: &World) {
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

pub fn a_remote_region_that_lies_about_its_length_is_found_out(world: &World) {
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

pub fn scratch_of_another_device_is_refused(world: &World) {
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

pub fn an_error_flushes_what_follows_and_what_is_posted_later(world: &World) {
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

pub fn a_failed_queue_pair_gives_scratch_back(world: &World) {
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
