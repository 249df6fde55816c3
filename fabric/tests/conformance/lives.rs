//! Many of everything, and the ends of devices.

use tombolo_fabric::{CompletionError, FabricError, Region, Stats, read};

use crate::fixture::{Pair, WAIT, World, fill};

pub fn many_regions_can_be_read_again_and_again(world: &World) {
    let mut pair = Pair::new(world);
    // More than any reader keeps mapped.
    let mut regions: Vec<_> = (0..150)
        .map(|_| pair.owner.allocate(5000).unwrap())
        .collect();
    for (index, region) in regions.iter_mut().enumerate() {
        fill(region, index as u8);
    }
    let some_again = [0, 1, 0, 2, 1, 0].map(|index| &regions[index]);
    for _ in 0..2 {
        for region in some_again.into_iter().chain(&regions) {
            let seen = pair.read(&region.remote(), 100, 300).unwrap();
            assert_eq!(seen, region.bytes()[100..400]);
        }
    }
    assert_eq!(pair.owner.stats().bytes, 150 * 5000);
    let mut keys: Vec<_> = regions.iter().map(|region| region.remote().key).collect();
    keys.dedup();
    assert_eq!(keys.len(), 150);
}

pub fn nine_devices_read_each_other_on_nine_threads(world: &World) {
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

pub fn a_closed_device_is_gone_for_its_peers_and_its_regions_stay_its_owners(world: &World) {
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

pub fn a_queue_pair_does_not_outlive_its_own_device(world: &World) {
    let mut pair = Pair::new(world);
    let region = pair.owner.allocate(64).unwrap();
    let post = pair.to_post(1, &region.remote(), 8);
    pair.peer = world.open("hq/idle");
    pair.queue_pair.post_read(post).unwrap();
    assert_eq!(pair.complete().1, Err(CompletionError::DeviceClosed));
}

pub fn nothing_is_left_when_all_is_dropped(world: &World) {
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
