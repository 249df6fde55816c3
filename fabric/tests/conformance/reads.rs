//! Reads that succeed, and posts that are refused without harm.

use tombolo_fabric::{CompletionError, FabricError, RemoteRegion, State, read};

use crate::fixture::{Pair, WAIT, World, fill};

pub fn a_region_and_parts_of_it_arrive_as_written(world: &World) {
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

pub fn what_the_owner_writes_later_is_read_later(world: &World) {
    let mut pair = Pair::new(world);
    let mut region = pair.owner.allocate(4096).unwrap();
    for value in 1..=5 {
        fill(&mut region, value);
        let seen = pair.read(&region.remote(), 0, 4096).unwrap();
        assert_eq!(seen, region.bytes());
        assert_eq!(seen[0], value);
    }
}

pub fn a_read_of_nothing_succeeds_but_needs_a_key(world: &World) {
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

pub fn long_reads_are_split_by_read_and_refused_by_post(world: &World) {
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

pub fn completions_come_in_the_order_of_posting(world: &World) {
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

pub fn a_full_queue_gives_the_read_back_and_stays_usable(world: &World) {
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

pub fn read_wants_the_queue_pair_for_itself(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let post = pair.to_post(1, &region.remote(), 8);
    pair.queue_pair.post_read(post).unwrap();
    let refused = pair.read(&region.remote(), 0, 8).unwrap_err();
    assert!(matches!(refused, FabricError::Pending { pending: 1, .. }));
    assert_eq!(pair.complete().1, Ok(8));
    pair.read(&region.remote(), 0, 8).unwrap();
}
