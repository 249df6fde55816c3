//! Regions, grants and endpoints: what happens before a queue pair.

use std::sync::Arc;

use tombolo_fabric::{CompletionError, Device, Endpoint, FabricError, State, Stats};

use crate::fixture::{Pair, World};

pub fn a_region_is_zeroed_and_page_aligned_and_seen_as_bytes_or_elements(world: &World) {
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

pub fn impossible_regions_are_refused_with_limit_and_need(world: &World) {
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

pub fn a_wrong_token_or_name_is_denied(world: &World) {
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

pub fn a_revoked_peer_is_denied_and_its_queue_pair_dies(world: &World) {
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

pub fn a_new_grant_ends_the_old_one(world: &World) {
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

pub fn an_endpoint_of_another_provider_or_with_a_bad_address_is_refused(world: &World) {
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

pub fn names_are_bounded(world: &World) {
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
