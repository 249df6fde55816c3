//! What a domain revokes is known everywhere and cut within a heartbeat, though only one site has the file: certificates on disk, time virtual.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo::identity::rollover::{self, Step};
use tombolo::identity::{NodeIdentity, lifecycle, pki};
use tombolo::sim::SimWorld;
use tombolo::topology;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;
use tombolo_fabric::memory::Memory;

use crate::stand::{self, Log, clock_of};

/// When simulations begin.
const BEGIN: u64 = 1_767_225_600;

/// `plant/c` talks to nobody but `plant/gate`.
const SITES: &str = r#"
    [federation]
    name = "small"
    rounds = 99999
    coordinator = "hq/gate"
    [round]
    quorum = { nodes = 2, domains = 2 }
    deadline = "1h"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
    [heartbeat]
    every = "500ms"
"#;

fn plan(folder: &Path) -> Arc<Plan> {
    Arc::new(topology::parse("small.toml", SITES, folder).unwrap())
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => _ = std::fs::copy(entry.path(), target).unwrap(),
        }
    }
}

#[test]
fn a_revoked_node_is_cut_within_a_heartbeat_wherever_the_file_is() {
    let sites = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let plans = sites.each_ref().map(|site| plan(site.path()));
    pki::ensure_dev_pki(&plans[0], BEGIN).unwrap();
    for site in &sites[1..] {
        copy(&sites[0].path().join("certs"), &site.path().join("certs"));
    }
    let nodes = ["hq/gate", "plant/gate", "plant/c"].map(|name| name.parse::<NodeId>().unwrap());
    let world = SimWorld::new(1);
    world.set_training(Duration::from_secs(3600), 0.0);
    let outcome = world.run(|world| async move {
        let (log, memory) = (Log::default(), Memory::new());
        let envs = nodes.each_ref().map(|node| world.env(node));
        let start = |at: usize, port: u16| {
            let identity = NodeIdentity::load(&plans[at], &nodes[at], clock_of(&envs[at])).unwrap();
            let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            stand::start_as(&envs[at], &plans[at], identity, &memory, listen, &log)
        };
        let _crews = [start(0, 4433), start(1, 4434), start(2, 4435)];
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(log.troubles(), []);

        let since = world.now();
        lifecycle::revoke(&plans[0], &nodes[2], BEGIN + 20).unwrap();
        world.sleep(Duration::from_secs(10)).await;
        // The site that has the file looks once a heartbeat; from then on a message is on its way.
        let heard = |by: &NodeId| {
            let by = by.clone();
            let heard = log.first(since, move |event| {
                matches!(event, Event::CertificatesRevoked { node, .. } if *node == by)
            });
            heard.unwrap_or_else(|| panic!("not heard")).0
        };
        let heartbeat = Duration::from_millis(500);
        assert!(heard(&nodes[0]).since(since) <= heartbeat);
        assert!(heard(&nodes[1]).since(since) <= heartbeat + Duration::from_millis(100));
        let down = |at: &NodeId| {
            let at = at.clone();
            move |event: &Event| matches!(event, Event::LinkDown { node, peer, .. } if *node == at && (peer.name() != "gate" || node.name() == "c"))
        };
        for node in &nodes[1..] {
            let (at, event) = log.first(since, down(node)).expect("it is cut");
            let Event::LinkDown { reason, .. } = event else {
                unreachable!("that is what was looked for");
            };
            assert!(at.since(heard(&nodes[0])) <= heartbeat, "{at:?}");
            assert!(reason.contains("revoked by its domain"), "{reason}");
        }
        // Refused by name on both sides from then on, and on no other link.
        let refused = |event: &Event| {
            matches!(event, Event::LinkRefused { reason, .. } if reason.contains("spiffe://plant.small/node/c"))
        };
        let sides: std::collections::BTreeSet<NodeId> = log
            .of(since, refused)
            .into_iter()
            .filter_map(|(_, event)| match event {
                Event::LinkRefused { node, .. } => Some(node),
                _ => None,
            })
            .collect();
        assert_eq!(sides, nodes[1..].iter().cloned().collect());
        let up = |event: &Event| matches!(event, Event::LinkUp { .. });
        assert_eq!(log.of(since, up), []);
        let between = |event: &Event| {
            matches!(event, Event::LinkDown { node, peer, .. } if [node.as_str(), peer.as_str()].contains(&"hq/gate"))
        };
        assert_eq!(log.of(since, between), []);

        // A new certificate, on the node alone: it is back.
        let again = world.now();
        let files = tombolo::identity::files::DomainFiles::of_plan(&plans[2].domains[1]);
        let terms = pki::Terms::leaf(BEGIN + 30);
        lifecycle::rotate(&files, "small", &nodes[2], &terms).unwrap();
        world.sleep(Duration::from_secs(10)).await;
        let up = |event: &Event| matches!(event, Event::LinkUp { node, .. } if node.name() == "c");
        assert!(log.first(again, up).is_some(), "{:#?}", log.of(again, |_| true));
        assert!(log.first(Micros::default(), up).is_some());
    });
    outcome.unwrap();
}

/// A list may come before the root that has signed it: it is no offence, and counts once the root is there.
#[test]
fn a_list_that_comes_before_its_root_is_taken_with_it() {
    let sites = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let plans = sites.each_ref().map(|site| plan(site.path()));
    pki::ensure_dev_pki(&plans[0], BEGIN).unwrap();
    let certs = sites.each_ref().map(|site| site.path().join("certs"));
    copy(&certs[0], &certs[1]);
    let nodes = ["hq/gate", "plant/gate"].map(|name| name.parse::<NodeId>().unwrap());
    let (plant, c) = (nodes[1].domain(), "plant/c".parse::<NodeId>().unwrap());
    let world = SimWorld::new(1);
    world.set_training(Duration::from_secs(3600), 0.0);
    let outcome = world.run(|world| async move {
        let (log, memory) = (Log::default(), Memory::new());
        let envs = nodes.each_ref().map(|node| world.env(node));
        let start = |at: usize, port: u16| {
            let identity = NodeIdentity::load(&plans[at], &nodes[at], clock_of(&envs[at])).unwrap();
            let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            stand::start_as(&envs[at], &plans[at], identity, &memory, listen, &log)
        };
        let _crews = [start(0, 4433), start(1, 4434)];
        world.sleep(Duration::from_secs(20)).await;

        // Roots and lists of one domain, at one site only: more lists than anybody may send of wrong ones.
        let since = world.now();
        for step in [Step::Next, Step::Switch] {
            rollover::step(&plans[0], &plant, step, &pki::Terms::root(BEGIN + 20)).unwrap();
        }
        world.sleep(Duration::from_secs(2)).await;
        let files = tombolo::identity::files::DomainFiles::of_plan(&plans[0].domains[1]);
        let lists = 12;
        for _ in 0..lists {
            lifecycle::rotate(&files, "small", &c, &pki::Terms::leaf(BEGIN + 20)).unwrap();
            lifecycle::revoke(&plans[0], &c, BEGIN + 20).unwrap();
            world.sleep(Duration::from_secs(2)).await;
        }
        let heard = |node: &NodeId| {
            let of = |event: &Event| {
                matches!(event, Event::CertificatesRevoked { node: by, .. } if by == node)
            };
            log.of(since, of).len()
        };
        // Of the first turn's two the one is the old root's.
        assert_eq!((heard(&nodes[0]), heard(&nodes[1])), (lists + 1, 1));
        std::fs::copy(certs[0].join("plant.pem"), certs[1].join("plant.pem")).unwrap();
        world.sleep(Duration::from_secs(2)).await;
        let newest = log.of(since, |event| {
            matches!(event, Event::CertificatesRevoked { node, .. } if *node == nodes[1])
        });
        let Some((_, Event::CertificatesRevoked { count, .. })) = newest.last() else {
            panic!("{newest:?}");
        };
        assert_eq!(*count, lists as u64, "{newest:?}");
    });
    outcome.unwrap();
}
