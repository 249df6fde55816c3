//! What becomes of certificates while nodes run: swapped, called back, asked for, of another root.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CrlDistributionPoint,
    CrlIssuingDistributionPoint, CrlScope, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use time::OffsetDateTime;
use tombolo::identity::lifecycle::{self, Asked};
use tombolo::identity::pki::Terms;
use tombolo::identity::rollover::{self, Step};
use tombolo::identity::show::show_plan;
use tombolo_actors::identity::{Change, Identity, Unlisted};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::world::*;

fn rotate(world: &World, name: &str, now: u64) {
    let id = node(name);
    let files = world.files(id.domain().as_str());
    lifecycle::rotate(&files, "harbour", &id, &Terms::leaf(now)).unwrap();
}

fn rotated(changes: &[Change]) -> usize {
    let is_rotation = |change: &&Change| matches!(change, Change::Rotated(_));
    changes.iter().filter(is_rotation).count()
}

async fn meets(dialler: &Arc<dyn Identity>, answerer: &Arc<dyn Identity>) -> Met {
    let peer = answerer.node().to_string();
    meet(answers(answerer), dials(dialler, &peer)).await
}

/// lance#8456, nats.go#1363: the next handshake shows the new pair, whichever side the node is on.
#[tokio::test]
async fn a_new_pair_is_shown_from_the_next_handshake_on() {
    let world = World::new();
    let (gate, a) = (world.load("hq/gate").unwrap(), world.load("hq/a").unwrap());
    assert_eq!(gate.refresh(), Default::default());
    let before = gate.own();
    rotate(&world, "hq/gate", NOW + MINUTE);
    let found = gate.refresh();
    assert_eq!((rotated(&found.changes), found.kept), (1, None));
    let after = gate.own();
    assert_ne!(before.sha256, after.sha256);
    assert_eq!(gate.refresh(), Default::default(), "said once");
    for met in [meets(&a, &gate).await, meets(&gate, &a).await] {
        assert!(met.is_accepted());
    }
    let met = meets(&a, &gate).await;
    let seen = a.recheck(met.client.as_ref().unwrap().peer_identity());
    assert_eq!(seen.unwrap(), after);
}

/// lance#8456, nats.go#1363: while certificate and key do not match, or the new pair is wrong in any way, the old pair stays, and why is said.
#[tokio::test]
async fn what_is_wrong_with_a_new_pair_keeps_the_old_one() {
    let world = World::new();
    let (gate, a) = (world.load("hq/gate").unwrap(), world.load("hq/a").unwrap());
    let other = World::new();
    let own = gate.own();
    let (pem, key) = (world.path("hq/gate.pem"), world.path("hq/gate.key"));
    let good = fs::read(&pem).unwrap();
    for (what, bytes, said) in [
        ("no certificate", b"nothing".to_vec(), "found 0"),
        (
            "of another node",
            fs::read(world.path("hq/a.pem")).unwrap(),
            "does not match",
        ),
        (
            "of another authority",
            fs::read(other.path("hq/gate.pem")).unwrap(),
            "does not match",
        ),
        ("half of one", good[..good.len() / 2].to_vec(), "expected"),
    ] {
        fs::write(&pem, bytes).unwrap();
        let found = gate.refresh();
        let kept = found.kept.unwrap_or_default();
        assert!(kept.contains(said), "{what}: {kept}");
        assert_eq!((found.changes, gate.own()), (vec![], own.clone()), "{what}");
        assert!(meets(&a, &gate).await.is_accepted(), "{what}");
    }
    fs::write(&pem, &good).unwrap();
    fs::remove_file(&key).unwrap();
    assert!(gate.refresh().kept.unwrap().contains("found no file"));
    assert_eq!(gate.own(), own);
    // A whole pair that has ended is none either.
    let terms = Terms {
        lifetime: Duration::from_secs(MINUTE),
        ..Terms::leaf(NOW - 5 * MINUTE)
    };
    lifecycle::rotate(&world.files("hq"), "harbour", &node("hq/gate"), &terms).unwrap();
    assert!(gate.refresh().kept.unwrap().contains("has expired"));
    assert_eq!(gate.own(), own);
    rotate(&world, "hq/gate", NOW);
    let found = gate.refresh();
    assert_eq!((rotated(&found.changes), found.kept), (1, None));
}

/// However often a pair is swapped, whoever reads at any moment finds the one or the other whole.
#[test]
fn a_reader_finds_either_pair_whole() {
    let world = World::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::Relaxed) {
                world.load("hq/gate").unwrap();
                reads += 1;
            }
            reads
        });
        for turn in 0..40 {
            rotate(&world, "hq/gate", NOW + turn);
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
    assert!(!world.path("hq/gate.next.key").exists());
}

/// A swap that was interrupted before its end, at either place, leaves a pair.
#[test]
fn an_interrupted_swap_leaves_a_pair() {
    let world = World::new();
    let (pem, key) = (world.path("hq/gate.pem"), world.path("hq/gate.key"));
    let old = [&pem, &key].map(|path| fs::read(path).unwrap());
    rotate(&world, "hq/gate", NOW);
    let new = [&pem, &key].map(|path| fs::read(path).unwrap());
    let next = world.path("hq/gate.next.key");
    for (certificate, is) in [(&old[0], 0), (&new[0], 1)] {
        fs::write(&pem, certificate).unwrap();
        fs::write(&key, &old[1]).unwrap();
        fs::write(&next, &new[1]).unwrap();
        private(&next);
        world.load("hq/gate").unwrap();
        rotate(&world, "hq/gate", NOW + 1 + is);
        world.load("hq/gate").unwrap();
        assert!(!next.exists());
    }
}

#[tokio::test]
async fn what_a_domain_has_revoked_is_refused_by_name_on_both_sides() {
    let world = World::new();
    let load = |name: &str| world.load(name).unwrap();
    let (gate, a, plant) = (load("hq/gate"), load("hq/a"), load("plant/gate"));
    assert!(meets(&a, &gate).await.is_accepted());
    let revoked = lifecycle::revoke(&world.plan, &node("hq/a"), NOW).unwrap();
    assert_eq!((revoked.number, revoked.serials.len()), (NOW, 1));
    let found = gate.refresh();
    let [Change::Revoked(list)] = &found.changes[..] else {
        panic!("{found:?}");
    };
    assert_eq!((list.number, list.count), (NOW, 1));
    // Whoever hears of it takes it, once, from anybody.
    assert_eq!(plant.revoke(&list.list).unwrap().unwrap(), *list);
    assert_eq!(plant.revoke(&list.list), Ok(None));
    assert!(plant.own_fault().is_none());
    for (dialler, answerer) in [(&a, &gate), (&gate, &a), (&a, &plant)] {
        let met = meets(dialler, answerer).await;
        let said = [met.client.as_ref().err(), met.server.as_ref().err()];
        let said: Vec<&String> = said.into_iter().flatten().collect();
        assert!(!said.is_empty());
        let all = said
            .iter()
            .map(|said| said.as_str())
            .collect::<Vec<_>>()
            .join("; ");
        let said = format!("was revoked by its domain (list {NOW})");
        assert!(all.contains(&said), "{all}");
        assert!(all.contains("spiffe://hq.harbour/node/a"), "{all}");
    }
    // Its own side finds it too, and does not start with it.
    a.refresh();
    assert!(a.own_fault().unwrap().contains("was revoked"));
    assert!(world.load_error("hq/a").contains("was revoked"));
    // A new certificate counts; the list stays, and grows with the next one.
    rotate(&world, "hq/a", NOW);
    assert_eq!(rotated(&a.refresh().changes), 1);
    assert!(meets(&a, &gate).await.is_accepted());
    let again = lifecycle::revoke(&world.plan, &node("hq/a"), NOW).unwrap();
    assert_eq!((again.number, again.serials.len()), (NOW + 1, 1));
    let found = gate.refresh();
    assert!(matches!(&found.changes[..], [Change::Revoked(list)] if list.count == 2));
    assert!(meets(&a, &gate).await.client.is_err() || meets(&a, &gate).await.server.is_err());
    let none = lifecycle::revoke(&world.plan, &node("hq/a"), NOW).unwrap_err();
    assert!(
        none.to_string().contains("no certificate to revoke"),
        "{none}"
    );
    // A file that is taken away, or an older one, brings nothing back.
    fs::remove_file(world.path("hq.crl.pem")).unwrap();
    assert_eq!(gate.refresh().changes, []);
    assert!(meets(&a, &gate).await.server.is_err());
}

#[test]
fn a_list_that_no_pinned_root_has_signed_is_not_taken() {
    let (world, other) = (World::new(), World::new());
    lifecycle::revoke(&other.plan, &node("hq/a"), NOW).unwrap();
    let stranger = other.load("hq/gate").unwrap();
    let list = stranger.revocations().remove(0);
    let gate = world.load("hq/gate").unwrap();
    assert_eq!(gate.revoke(&list), Err(Unlisted::Unrooted));
    let mut bent = list.clone();
    for place in 0..bent.len() {
        bent[place] ^= 1;
        assert!(gate.revoke(&bent).is_err(), "byte {place}");
        assert!(stranger.revoke(&bent) != Ok(None) || bent == list);
        bent[place] ^= 1;
    }
    // A file of it says nothing, and does not stop the node.
    fs::copy(other.path("hq.crl.pem"), world.path("hq.crl.pem")).unwrap();
    assert_eq!(gate.refresh(), Default::default());
    fs::write(world.path("hq.crl.pem"), "nothing").unwrap();
    let kept = gate.refresh().kept.unwrap();
    assert!(kept.contains("hq.crl.pem: expected lists"), "{kept}");
}

/// A file that is not sound keeps nobody from what is: another domain's list, and this node's own new pair.
#[test]
fn one_domains_broken_file_keeps_no_other_change_out() {
    let world = World::new();
    let gate = world.load("hq/gate").unwrap();
    let roots = gate.roots();
    fs::write(world.path("plant.pem"), "no certificate").unwrap();
    lifecycle::revoke(&world.plan, &node("hq/a"), NOW).unwrap();
    rotate(&world, "hq/gate", NOW);
    let found = gate.refresh();
    let kept = found.kept.unwrap();
    assert!(kept.contains("plant.pem"), "{kept}");
    assert_eq!(rotated(&found.changes), 1, "{:?}", found.changes);
    let is_list = |change: &Change| matches!(change, Change::Revoked(_));
    assert!(found.changes.iter().any(is_list), "{:?}", found.changes);
    assert_eq!(gate.roots(), roots, "what was known of plant holds");
}

/// Two files in one, an older list before the newer one, and a ledger that ends in half a line: nothing that was revoked counts again.
#[test]
fn what_was_revoked_stays_so_whatever_the_files_went_through() {
    let world = World::new();
    let revoke = || lifecycle::revoke(&world.plan, &node("hq/a"), NOW).unwrap();
    revoke();
    let list = world.path("hq.crl.pem");
    let first = fs::read(&list).unwrap();
    rotate(&world, "hq/a", NOW);
    revoke();
    let both = [first, fs::read(&list).unwrap()].concat();
    fs::write(&list, both).unwrap();
    let ledger = world.path("hq.issued.jsonl");
    let whole = fs::read(&ledger).unwrap();
    fs::write(&ledger, [&whole[..], b"{\"node\": \"hq/"].concat()).unwrap();
    rotate(&world, "hq/a", NOW + 1);
    assert_eq!(revoke().number, NOW + 2);
    let gate = world.load("hq/gate").unwrap();
    let revoked = gate.revocations().remove(0);
    let (_, revoked) = CertificateRevocationList::from_der(&revoked).unwrap();
    assert_eq!(revoked.iter_revoked_certificates().count(), 3);
}

/// RFC 5280, 5.2.5: the newest list of an authority may be one of other certificates than ours.
#[test]
fn a_list_of_some_of_a_roots_certificates_is_not_taken_for_one_of_all() {
    let world = World::new();
    let read = |name: &str| fs::read_to_string(world.path(name)).unwrap();
    let key = KeyPair::from_pem(&read("hq.key")).unwrap();
    let root = Issuer::from_ca_cert_pem(&read("hq.pem"), key).unwrap();
    let list = |scope| {
        let day = rcgen::date_time_ymd(2030, 1, 1);
        let params = CertificateRevocationListParams {
            this_update: day,
            next_update: rcgen::date_time_ymd(2031, 1, 1),
            crl_number: SerialNumber::from(7),
            issuing_distribution_point: scope,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&root).unwrap().der().to_vec()
    };
    let gate = world.load("hq/gate").unwrap();
    let scope = CrlIssuingDistributionPoint {
        distribution_point: CrlDistributionPoint {
            uris: vec!["http://ca.example/ca.crl".to_owned()],
        },
        scope: Some(CrlScope::CaCertsOnly),
    };
    let error = gate.revoke(&list(Some(scope))).unwrap_err().to_string();
    assert!(error.contains("expected one for all of them"), "{error}");
    assert_eq!(gate.revoke(&list(None)).unwrap().unwrap().number, 7);
}

/// However many revoke at once, nobody's certificate is missing on the list that counts in the end, and no two lists have one number.
#[test]
fn whoever_revokes_is_alone() {
    let world = World::new();
    let ids = ["hq/a", "hq/gate"];
    let (turns, numbers) = (8, Mutex::new(BTreeSet::new()));
    for _ in 0..turns {
        for id in ids {
            rotate(&world, id, NOW);
        }
        let start = Barrier::new(ids.len());
        std::thread::scope(|scope| {
            for id in ids {
                let (world, start, numbers) = (&world, &start, &numbers);
                scope.spawn(move || {
                    start.wait();
                    let revoked = lifecycle::revoke(&world.plan, &node(id), NOW).unwrap();
                    assert!(numbers.lock().unwrap().insert(revoked.number));
                });
            }
        });
    }
    rotate(&world, "hq/gate", NOW);
    let gate = world.load("hq/gate").unwrap();
    let list = gate.revocations().remove(0);
    let (_, list) = CertificateRevocationList::from_der(&list).unwrap();
    // The first turn's first certificates are on it, too.
    let count = list.iter_revoked_certificates().count();
    assert_eq!(count, (turns + 1) * ids.len());
    assert!(numbers.lock().unwrap().iter().all(|number| *number >= NOW));
}

/// A root that has signed another's key vouches for what that key has signed, and for nothing that it has called back.
#[tokio::test]
async fn a_chain_past_the_root_that_has_signed_leads_past_no_list() {
    let world = World::new();
    let read = |name: &str| fs::read_to_string(world.path(name)).unwrap();
    let own = KeyPair::from_pem(&read("hq.key")).unwrap();
    let own = Issuer::from_ca_cert_pem(&read("hq.pem"), own).unwrap();
    let date = |unix: u64| OffsetDateTime::from_unix_timestamp(unix as i64).unwrap();
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        let names = rcgen::DistinguishedName::new();
        params.distinguished_name = names;
        let names = &mut params.distinguished_name;
        names.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = date(NOW - DAY);
        params.not_after = date(NOW + DAY);
        params
    };
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let second = authority("second").self_signed(&key).unwrap();
    let cross = authority("second").signed_by(&key, &own).unwrap();
    let second_issuer = Issuer::new(authority("second"), key);
    fs::write(
        world.path("hq.pem"),
        format!("{}{}", read("hq.pem"), second.pem()),
    )
    .unwrap();
    let leaf_key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut leaf = CertificateParams::default();
    leaf.serial_number = Some(SerialNumber::from(4711));
    leaf.subject_alt_names = vec![SanType::URI(
        "spiffe://hq.harbour/node/a".try_into().unwrap(),
    )];
    leaf.not_before = date(NOW - DAY);
    leaf.not_after = date(NOW + DAY);
    let leaf = leaf.signed_by(&leaf_key, &second_issuer).unwrap();
    fs::write(world.path("hq/a.key"), leaf_key.serialize_pem()).unwrap();
    fs::write(
        world.path("hq/a.pem"),
        format!("{}{}", leaf.pem(), cross.pem()),
    )
    .unwrap();
    let load = |name: &str| world.load(name).unwrap();
    let (a, gate) = (load("hq/a"), load("hq/gate"));
    assert!(meets(&a, &gate).await.is_accepted());
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from(4711),
        revocation_time: date(NOW),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: date(NOW),
        next_update: date(NOW + DAY),
        crl_number: SerialNumber::from(7),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = params.signed_by(&second_issuer).unwrap();
    assert_eq!(gate.revoke(list.der()).unwrap().unwrap().count, 1);
    for met in [meets(&a, &gate).await, meets(&gate, &a).await] {
        let said = [met.client.err(), met.server.err()];
        let all = said.into_iter().flatten().collect::<Vec<_>>().join("; ");
        assert!(all.contains("was revoked by its domain (list 7)"), "{all}");
    }
}

#[test]
fn a_request_is_signed_by_whoever_has_compared_its_key() {
    let home = World::new();
    let id = node("hq/a");
    let before = fs::read(home.path("hq/a.key")).unwrap();
    let asked = lifecycle::request(&home.plan, &id).unwrap();
    assert_eq!(fs::read(home.path("hq/a.key")).unwrap(), before);
    assert_eq!(asked.key, home.path("hq/a.next.key"));
    assert_eq!(mode(&asked.key), 0o600);
    let again = lifecycle::request(&home.plan, &id).unwrap();
    assert_eq!(again.key_sha256, asked.key_sha256, "the same key");
    let file = home.path("a.csr");
    lifecycle::write_request(&file, &asked).unwrap();
    let read = Asked::read(&home.plan, &file).unwrap();
    assert_eq!((read.node(), read.key_sha256()), (&id, &*asked.key_sha256));
    let out = home.path("a.approved.pem");
    let terms = Terms::leaf(NOW);
    let entry = read.approve(&home.plan, &terms, &out).unwrap();
    assert_eq!(entry.spiffe_id, "spiffe://hq.harbour/node/a");
    let running = home.load("hq/a").unwrap();
    lifecycle::install(&home.plan, &id, &out, NOW).unwrap();
    assert_eq!(rotated(&running.refresh().changes), 1);
    assert_eq!(running.own().sha256, entry.sha256);
    assert!(!asked.key.exists(), "it has the old one's name");
    // For another node, or without its key, it is not put in place.
    for (name, said) in [
        ("hq/gate", "expected a certificate of"),
        ("hq/a", "another key"),
    ] {
        if name == "hq/a" {
            rotate(&home, "hq/a", NOW + 1);
        }
        let error = lifecycle::install(&home.plan, &node(name), &out, NOW).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[test]
fn a_request_for_more_than_a_node_gets_is_refused() {
    let world = World::new();
    let uri = |text: &str| SanType::URI(text.try_into().unwrap());
    let own = "spiffe://hq.harbour/node/a";
    let asked = |change: &dyn Fn(&mut CertificateParams)| {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![uri(own)];
        change(&mut params);
        let request = params.serialize_request(&key).unwrap();
        fs::write(world.path("x.csr"), request.pem().unwrap()).unwrap();
        Asked::read(&world.plan, &world.path("x.csr")).map(|asked| asked.node().clone())
    };
    assert_eq!(asked(&|_| {}).unwrap(), node("hq/a"));
    type Change<'a> = &'a dyn Fn(&mut CertificateParams);
    let cases: [(Change<'_>, &str); 7] = [
        (&|it| it.subject_alt_names = vec![], "expected one name"),
        (
            &|it| {
                it.subject_alt_names
                    .push(uri("spiffe://hq.harbour/node/gate"))
            },
            "expected one name",
        ),
        (
            &|it| it.subject_alt_names = vec![uri("spiffe://hq.other/node/a")],
            "federation",
        ),
        (
            &|it| it.subject_alt_names = vec![uri("spiffe://hq.harbour/node/z")],
            "of this topology",
        ),
        (
            &|it| it.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
            "authority",
        ),
        (
            &|it| it.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning],
            "purposes",
        ),
        (
            &|it| it.key_usages = vec![KeyUsagePurpose::KeyCertSign],
            "key usage",
        ),
    ];
    for (change, said) in cases {
        let error = asked(change).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
    // Its own key must have signed it.
    asked(&|_| {}).unwrap();
    let text = fs::read_to_string(world.path("x.csr")).unwrap();
    let middle = text.len() / 2;
    let other = if &text[middle..=middle] == "A" {
        "B"
    } else {
        "A"
    };
    let bent = format!("{}{other}{}", &text[..middle], &text[middle + 1..]);
    fs::write(world.path("x.csr"), bent).unwrap();
    assert!(Asked::read(&world.plan, &world.path("x.csr")).is_err());
}

#[tokio::test]
async fn a_root_takes_the_place_of_another_and_nobody_is_cut_off() {
    let world = World::new();
    let load = |name: &str| world.load(name).unwrap();
    let (gate, a, plant) = (load("hq/gate"), load("hq/a"), load("plant/gate"));
    let everybody = [&gate, &a, &plant];
    let hq = "hq".parse().unwrap();
    let step = |step| rollover::step(&world.plan, &hq, step, &Terms::root(NOW));
    for early in [Step::Switch, Step::Retire] {
        step(early).unwrap_err();
    }
    let stand = step(Step::Next).unwrap();
    assert_eq!((stand.roots.len(), &stand.signs), (2, &stand.roots[0]));
    assert_eq!(step(Step::Next).unwrap(), stand, "twice is once");
    for identity in everybody {
        let found = identity.refresh();
        assert!(
            matches!(&found.changes[..], [Change::RootAdded { .. }]),
            "{found:?}"
        );
    }
    step(Step::Retire).unwrap_err();
    let stand = step(Step::Switch).unwrap();
    assert_eq!(stand.signs, stand.roots[1]);
    assert_eq!(step(Step::Switch).unwrap(), stand);
    rotate(&world, "hq/a", NOW);
    a.refresh();
    for met in [
        meets(&a, &gate).await,
        meets(&gate, &a).await,
        meets(&a, &plant).await,
    ] {
        assert!(met.is_accepted(), "old and new side by side");
    }
    // Lists of the old root are still signed.
    let error = step(Step::Retire).unwrap_err().to_string();
    assert!(
        error.contains("hq/gate still has a certificate of the old root"),
        "{error}"
    );
    rotate(&world, "hq/gate", NOW);
    gate.refresh();
    let stand = step(Step::Retire).unwrap();
    assert_eq!(stand.roots, [stand.signs]);
    for identity in everybody {
        let found = identity.refresh();
        assert!(
            matches!(&found.changes[..], [Change::RootRetired { .. }]),
            "{found:?}"
        );
        assert_eq!(found.kept, None);
    }
    assert!(meets(&a, &gate).await.is_accepted());
    assert!(meets(&gate, &plant).await.is_accepted());
    assert!(!world.path("hq.old.key").exists() && !world.path("hq.next.key").exists());
}

/// Several pins: of the roots in the file only those count.
#[test]
fn pins_may_name_both_roots() {
    let mut world = World::new();
    let hq = "hq".parse().unwrap();
    let stand = rollover::step(&world.plan, &hq, Step::Next, &Terms::root(NOW)).unwrap();
    let pins: Vec<[u8; 32]> = stand.roots.iter().map(|hex| bytes(hex)).collect();
    world.plan.domains[0].root_sha256 = pins.clone();
    assert_eq!(world.load("hq/gate").unwrap().roots().len(), 3);
    world.plan.domains[0].root_sha256 = vec![pins[0]];
    assert_eq!(world.load("hq/gate").unwrap().roots().len(), 2);
}

/// SPIRE, or the authority of a company: an intermediate that issues, keys of other kinds, no common name.
#[tokio::test]
async fn certificates_of_other_authorities_count() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let world = World::new();
        let date = |unix: u64| OffsetDateTime::from_unix_timestamp(unix as i64).unwrap();
        let make = |name: &str, days: u64| {
            let mut params = CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            if !name.is_empty() {
                params
                    .distinguished_name
                    .push(rcgen::DnType::CommonName, name);
            }
            params.not_before = date(NOW - DAY);
            params.not_after = date(NOW + days * DAY);
            params
        };
        let key = || KeyPair::generate_for(algorithm).unwrap();
        let (root_key, middle_key, leaf_key) = (key(), key(), key());
        let mut root = make("company", 365);
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let root_pem = root.self_signed(&root_key).unwrap().pem();
        let root = Issuer::new(root, root_key);
        let mut middle = make("department", 30);
        middle.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        middle.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let middle_pem = middle.signed_by(&middle_key, &root).unwrap().pem();
        let middle = Issuer::new(middle, middle_key);
        let mut leaf = make("", 60);
        leaf.subject_alt_names = vec![SanType::URI(
            "spiffe://hq.harbour/node/a".try_into().unwrap(),
        )];
        leaf.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let leaf_pem = leaf.signed_by(&leaf_key, &middle).unwrap().pem();
        // Both roots are there: the company's vouches for a, the domain's own for its gateway.
        let own = fs::read_to_string(world.path("hq.pem")).unwrap();
        fs::write(world.path("hq.pem"), format!("{own}{root_pem}")).unwrap();
        fs::write(world.path("hq/a.key"), leaf_key.serialize_pem()).unwrap();
        fs::write(world.path("hq/a.pem"), &leaf_pem).unwrap();
        let error = world.load_error("hq/a");
        assert!(
            error.contains("UnknownIssuer"),
            "without the intermediate: {error}"
        );
        fs::write(world.path("hq/a.pem"), format!("{leaf_pem}{middle_pem}")).unwrap();
        let load = |name: &str| world.load(name).unwrap();
        let (a, gate, plant) = (load("hq/a"), load("hq/gate"), load("plant/gate"));
        for met in [
            meets(&a, &gate).await,
            meets(&gate, &a).await,
            meets(&a, &plant).await,
        ] {
            assert!(met.is_accepted());
        }
        // The intermediate ends before the leaf.
        assert_eq!(a.own().not_after, NOW + 30 * DAY);
        let entries = show_plan(&world.plan, NOW).unwrap();
        let problems: Vec<_> = entries.iter().flat_map(|entry| &entry.problems).collect();
        assert!(problems.is_empty(), "{problems:?}");
    }
}

fn bytes(hex: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    bytes
}
