//! The record goes on whatever becomes of certificates: files on disk, time virtual.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use tombolo::identity::files::DomainFiles;
use tombolo::identity::rollover::{self, Step};
use tombolo::identity::{NodeIdentity, lifecycle, pki};
use tombolo::sim::SimWorld;
use tombolo::topology;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::time::Micros;
use tombolo_fabric::memory::Memory;

use crate::stand::{self, Log, clock_of};

const BEGIN: u64 = 1_767_225_600;

const SITES: &str = r#"
    [federation]
    name = "small"
    rounds = 99999
    sync_every = 1
    coordinator = "hq/gate"
    [model]
    trainer = "digits-softmax"
    [round]
    quorum = "all"
    deadline = "10s"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate"]
    [heartbeat]
    every = "500ms"
"#;

/// A certificate for a key of another kind: good for TLS, and no signature of the record can be made with it.
fn other_kind(certs: &Path) {
    let read = |name: &str| std::fs::read_to_string(certs.join(name)).unwrap();
    let root = KeyPair::from_pem(&read("hq.key")).unwrap();
    let root = Issuer::from_ca_cert_pem(&read("hq.pem"), root).unwrap();
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    let uri = "spiffe://hq.small/node/gate".try_into().unwrap();
    params.subject_alt_names = vec![SanType::URI(uri)];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.not_before = rcgen::date_time_ymd(2025, 12, 1);
    params.not_after = rcgen::date_time_ymd(2026, 12, 1);
    let leaf = params.signed_by(&key, &root).unwrap();
    std::fs::write(certs.join("hq/gate.key"), key.serialize_pem()).unwrap();
    std::fs::write(certs.join("hq/gate.pem"), leaf.pem()).unwrap();
}

/// The coordinator gets a key that cannot sign the record; a root is retired and comes back. Every round is told and signed all the same.
#[test]
fn a_swap_that_the_record_cannot_tell_is_named_and_the_record_goes_on() {
    let site = tempfile::tempdir().unwrap();
    let plan = Arc::new(topology::parse("small.toml", SITES, site.path()).unwrap());
    pki::ensure_dev_pki(&plan, BEGIN).unwrap();
    let certs = site.path().join("certs");
    let nodes = ["hq/gate", "plant/gate"].map(|name| name.parse::<NodeId>().unwrap());
    let plant = nodes[1].domain();
    let world = SimWorld::new(1);
    world.set_training(Duration::from_millis(200), 0.0);
    let outcome = world.run(|world| async move {
        let (log, memory) = (Log::default(), Memory::new());
        let envs = nodes.each_ref().map(|node| world.env(node));
        let start = |at: usize, port: u16| {
            let identity = NodeIdentity::load(&plan, &nodes[at], clock_of(&envs[at])).unwrap();
            let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            stand::start_as(&envs[at], &plan, identity, &memory, listen, &log)
        };
        let _crews = [start(0, 4433), start(1, 4434)];
        let signed = |since: Micros| {
            let is_signed = |event: &Event| {
                matches!(event, Event::RecordSigned { by, behind, .. } if by.len() == 1 && behind.is_empty())
            };
            log.of(since, is_signed).len()
        };
        let refused = |since: Micros| {
            let is_refused = |event: &Event| matches!(event, Event::RecordRefused { .. });
            log.of(since, is_refused)
        };
        world.sleep(Duration::from_secs(20)).await;
        assert!(signed(Micros::default()) > 3);
        assert_eq!(refused(Micros::default()), []);

        let since = world.now();
        other_kind(&certs);
        world.sleep(Duration::from_secs(20)).await;
        let found = refused(since);
        let [(_, Event::RecordRefused { node, by, reason })] = &found[..] else {
            panic!("{found:#?}");
        };
        assert_eq!((node, by), (&nodes[0], &nodes[0]));
        assert!(reason.contains("Ed25519") && reason.contains("key before"), "{reason}");
        let since = world.now();
        world.sleep(Duration::from_secs(10)).await;
        assert!(signed(since) > 1, "the record stands still");

        let files = DomainFiles::of_plan(&plan.domains[1]);
        let old = ["plant.pem", "plant.key", "plant/gate.pem", "plant/gate.key"];
        let old = old.map(|name| (certs.join(name), std::fs::read(certs.join(name)).unwrap()));
        let since = world.now();
        let step = |step| {
            rollover::step(&plan, &plant, step, &pki::Terms::root(BEGIN + 50)).unwrap();
        };
        step(Step::Next);
        world.sleep(Duration::from_secs(5)).await;
        step(Step::Switch);
        lifecycle::rotate(&files, "small", &nodes[1], &pki::Terms::leaf(BEGIN + 55)).unwrap();
        world.sleep(Duration::from_secs(5)).await;
        step(Step::Retire);
        world.sleep(Duration::from_secs(10)).await;
        for (path, bytes) in &old {
            std::fs::write(path, bytes).unwrap();
        }
        world.sleep(Duration::from_secs(20)).await;
        assert_eq!(refused(since), []);
        let since = world.now();
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(refused(since), []);
        assert!(signed(since) > 1, "the record stands still");
    });
    outcome.unwrap();
}
