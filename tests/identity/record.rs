//! The record with real keys: whose signature counts, and how long a long one takes to verify.
//!
//! `TOMBOLO_LEAVES=1000000` in the environment asks for more than a change needs: `cargo xtask soak record`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use tombolo::actors::identity::Identity;
use tombolo::actors::record::log::segment_path;
use tombolo::audit;
use tombolo::core::event::RoundState;
use tombolo::core::ids::{DomainId, NodeId};
use tombolo::core::record::{
    Der, FORMAT, Head, Leaf, Note, Signer, Tree, Verifier, origin, signer_name,
};
use tombolo::core::tensor::Hash;
use tombolo::core::view::View;
use tombolo::identity::notary::Notary;

use crate::world::{NOW, World, node};

type Roots = BTreeMap<DomainId, Vec<Vec<u8>>>;

fn roots(identity: &Arc<dyn Identity>) -> Roots {
    let mut roots = Roots::new();
    for (domain, root) in identity.roots() {
        roots.entry(domain).or_default().push(root);
    }
    roots
}

#[test]
fn a_signature_counts_under_the_certificate_of_its_node_and_no_other() {
    let world = World::new();
    let (hq, plant) = (
        world.load("hq/gate").unwrap(),
        world.load("plant/gate").unwrap(),
    );
    let known = roots(&hq);
    assert_eq!(known.len(), 2);
    let (holder, key) = Notary.holder("harbour", &known, &hq.certificate()).unwrap();
    assert_eq!(holder, node("hq/gate"));
    let (signed_by, signature) = hq.sign(b"so it was").unwrap();
    assert_eq!(signed_by, key);
    assert!(Notary.verify(&key, b"so it was", &signature));
    assert!(!Notary.verify(&key, b"so it was not", &signature));
    let (_, other) = Notary
        .holder("harbour", &known, &plant.certificate())
        .unwrap();
    assert!(!Notary.verify(&other, b"so it was", &signature));

    // One domain's root proves nothing of another one.
    let swapped: Roots = known
        .keys()
        .cloned()
        .zip(known.values().rev().cloned())
        .collect();
    assert!(
        Notary
            .holder("harbour", &swapped, &hq.certificate())
            .is_err()
    );
    assert!(Notary.holder("harbor", &known, &hq.certificate()).is_err());
    assert!(
        Notary
            .holder("harbour", &known, &hq.certificate()[1..])
            .is_err()
    );
    let (domain, root) = hq.roots().remove(0);
    assert!(plant.pins(&domain, &root), "both pin the same roots");
    assert!(!plant.pins(&"plant".parse().unwrap(), &root));
}

/// What was signed while the certificate was valid stays signed.
#[test]
fn a_certificate_proves_a_key_also_after_its_end() {
    let world = World::new();
    let hq = world.load("hq/gate").unwrap();
    assert!(
        world.load_at("hq/gate", NOW + 400 * 86_400).is_err(),
        "its time is over"
    );
    assert!(
        Notary
            .holder("harbour", &roots(&hq), &hq.certificate())
            .is_ok()
    );
}

/// A record of so many leaves: rounds of two domains, signed by both gateways.
fn keep(folders: [&Path; 2], identities: [&Arc<dyn Identity>; 2], leaves: u64) {
    let plan = ["hq", "plant"].map(|domain| domain.parse::<DomainId>().unwrap());
    let gates = ["hq/gate", "plant/gate"].map(node);
    let run = Hash([9; 32]);
    let mut all = vec![Leaf::Begun {
        format: FORMAT,
        federation: "harbour".into(),
        run,
        configuration: Hash([1; 32]),
        coordinators: vec![gates[0].clone()],
    }];
    all.extend(
        identities[0]
            .roots()
            .into_iter()
            .map(|(domain, root)| Leaf::Root {
                domain,
                certificate: Der(root),
            }),
    );
    all.extend(
        gates
            .iter()
            .zip(identities)
            .map(|(node, identity)| Leaf::Certificate {
                node: node.clone(),
                certificate: Der(identity.certificate()),
            }),
    );
    let view = View {
        epoch: 1,
        coordinator: gates[0].clone(),
        gateways: plan.iter().cloned().zip(gates.iter().cloned()).collect(),
        out: BTreeMap::new(),
    };
    all.push(Leaf::Membership { view });
    let members = |domain: &DomainId| ["gate", "a"].map(|name| NodeId::new(domain, name).unwrap());
    for round in 1_u64.. {
        if all.len() as u64 >= leaves {
            break;
        }
        let hash = Hash::of_bytes(&round.to_le_bytes());
        for domain in &plan {
            all.extend(members(domain).map(|node| Leaf::Update {
                round,
                node,
                weight: 16.5,
                clip: 1.0,
            }));
        }
        for domain in &plan {
            all.push(Leaf::Contribution {
                round,
                epoch: 1,
                domain: domain.clone(),
                attempt: 0,
                weight: 33.0,
                hash,
                members: members(domain).into(),
            });
        }
        let (state, reason) = (RoundState::Committed, String::new());
        all.push(Leaf::Round {
            round,
            epoch: 1,
            state,
            reason,
            model: hash,
        });
    }
    let lines: Vec<String> = all.iter().map(Leaf::line).collect();
    let mut tree = Tree::default();
    lines.iter().for_each(|line| tree.push(line));
    for ((folder, identity), gate) in folders.into_iter().zip(identities).zip(&gates) {
        let head = Head {
            origin: origin("harbour", &run),
            size: tree.size(),
            root: tree.root(),
        };
        let mut note = Note::new(head);
        let coordinator: &dyn Signer = identities[0].as_ref();
        note.sign(coordinator).unwrap();
        note.cosign(identity.as_ref(), signer_name("harbour", gate), NOW)
            .unwrap();
        std::fs::create_dir_all(folder.join("record")).unwrap();
        for (at, lines) in lines.chunks(256).enumerate() {
            std::fs::write(folder.join(segment_path(at)), lines.join("\n") + "\n").unwrap();
        }
        std::fs::write(folder.join("record/checkpoint"), note.text()).unwrap();
    }
}

#[test]
fn a_long_record_of_two_domains_is_verified() {
    let leaves = std::env::var("TOMBOLO_LEAVES").map_or(1_000, |text| text.parse().unwrap());
    let world = World::new();
    let (hq, plant) = (
        world.load("hq/gate").unwrap(),
        world.load("plant/gate").unwrap(),
    );
    let state = tempfile::tempdir().unwrap();
    let folders = ["hq.gate", "plant.gate"].map(|name| state.path().join("nodes").join(name));
    keep([&folders[0], &folders[1]], [&hq, &plant], leaves);

    let begun = now();
    let one = audit::places(&folders[0]).unwrap();
    let report = audit::verify(&one).unwrap();
    let took = now().duration_since(begun);
    assert_eq!(report.findings, []);
    assert!(report.copies[0].size >= leaves);
    assert_eq!(report.copies[0].node, Some(node("hq/gate")));
    let figures = json!({
        "leaves": report.copies[0].size,
        "rounds": report.copies[0].account.round(),
        "wall_s": (took.as_secs_f64() * 100.0).round() / 100.0,
    });
    println!("{figures}");

    let both = audit::places(state.path()).unwrap();
    assert_eq!(both.len(), 2);
    assert_eq!(audit::verify(&both).unwrap().findings, []);
    assert_eq!(audit::unpinned(&world.plan, &report).unwrap(), []);
    // A byte in the middle, with everything else as it was.
    let middle = folders[1].join(segment_path(usize::try_from(leaves).unwrap() / 512));
    let text = std::fs::read_to_string(&middle).unwrap();
    std::fs::write(&middle, text.replacen("\"clip\":1.0", "\"clip\":0.9", 1)).unwrap();
    let found = audit::verify(&both).unwrap().findings;
    assert!(
        found.iter().any(|found| found.copy.ends_with("plant.gate")),
        "{found:?}"
    );
    // A federation of the same names with other roots.
    let other = World::new();
    assert_eq!(audit::unpinned(&other.plan, &report).unwrap().len(), 2);
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long it takes is about the real world"
)]
fn now() -> Instant {
    Instant::now()
}
