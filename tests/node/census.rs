//! Exactly the actors of the design's table, and none of them left behind.

use std::collections::BTreeMap;

use tombolo::federation::{Federation, Interrupt};
use tombolo_core::event::Event;

use crate::stand::within_limit;

#[test]
fn one_actor_per_node_link_and_peer_and_none_when_it_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let topology = folder.path().join("harbour.toml");
    std::fs::copy(
        concat!(env!("CARGO_MANIFEST_DIR"), "/examples/harbour.toml"),
        &topology,
    )
    .unwrap();
    let federation = Federation::from_path(&topology)
        .unwrap()
        .state(folder.path().join("state"));
    within_limit(async {
        let running = federation.spawn().await.unwrap();
        let (census, plan, mut events) = (
            running.census().clone(),
            running.plan().clone(),
            running.events(),
        );
        let seen = census.clone();
        let mut counts = BTreeMap::new();
        let counted = async {
            while !matches!(events.recv().await, Ok(Event::Round(_))) {}
            counts = seen.counts();
            Interrupt::Interrupted
        };
        running.run_until(counted).await.unwrap();

        let nodes = plan.nodes().count();
        let pairs: usize = plan.nodes().map(|node| plan.peers(&node.id).len()).sum();
        let mut expected = BTreeMap::from([
            ("Node", nodes),
            ("Coordinator", 1),
            ("Link", pairs),
            ("Heartbeat", pairs),
            ("ClockSync", pairs),
            ("Quic", nodes),
            ("Verbs", nodes),
            ("Collective", nodes),
            ("Aggregate", 1),
            ("Checkpoint", nodes),
            ("Record", nodes),
            ("Credentials", nodes),
        ]);
        assert_eq!(counts, expected);
        // The same in numbers, so that a plan that lost its peers would be noticed: in each of three domains of three everyone has two
        // neighbours, and the coordinator has a link to the gateway of each other domain and to its successor, seen from both ends.
        expected.insert("Node", 9);
        expected.insert("Link", 3 * 3 * 2 + 2 * 4);
        assert_eq!(counts, expected);
        assert!(census.counts().is_empty(), "{:?}", census.counts());
    });
}
