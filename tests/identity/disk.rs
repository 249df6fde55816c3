//! What lies on disk, and what is refused there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use tombolo::identity::bundle::{Bundle, Role};
use tombolo::identity::files::DomainFiles;
use tombolo::identity::pki::{Outcome, Terms, ensure_dev_pki, init_domain, issue};
use tombolo::identity::show::{Kind, show_plan};
use tombolo_actors::identity::{IdentityError, MaterialFault};

use crate::world::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn outcomes(world: &World, now: u64) -> Vec<Outcome> {
    let report = ensure_dev_pki(&world.plan, now).unwrap();
    assert!(
        report.iter().all(|it| it.entry.problems.is_empty()),
        "{report:?}"
    );
    report.into_iter().map(|it| it.outcome).collect()
}

#[test]
fn the_first_run_makes_everything_and_the_next_finds_it() {
    let world = World::empty();
    assert_eq!(outcomes(&world, NOW), [Outcome::Made; 6]);
    let before = fs::read(world.path("hq/gate.pem")).unwrap();
    assert_eq!(outcomes(&world, NOW + DAY), [Outcome::Found; 6]);
    assert_eq!(fs::read(world.path("hq/gate.pem")).unwrap(), before);
}

#[test]
fn only_the_owner_can_read_keys() {
    let world = World::new();
    for (file, expected) in [
        ("hq.pem", 0o644),
        ("hq.key", 0o600),
        ("hq/gate.pem", 0o600),
        ("hq/gate.key", 0o600),
    ] {
        assert_eq!(mode(&world.path(file)), expected, "{file}");
    }
    let names: Vec<_> = fs::read_dir(world.path("hq"))
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 4, "nothing temporary stays: {names:?}");
}

#[test]
fn files_open_to_others_are_refused() {
    for (file, bad, good) in [
        ("hq/gate.key", 0o640, 0o600),
        ("hq/gate.key", 0o604, 0o600),
        ("hq/gate.pem", 0o666, 0o600),
        ("plant.pem", 0o646, 0o644),
    ] {
        let world = World::new();
        set_mode(&world.path(file), bad);
        let error = world.load_error("hq/gate");
        let expected = format!("mode is {bad:04o}");
        assert!(
            error.contains(&expected) && error.contains("chmod"),
            "{error}"
        );
        assert!(error.contains(file), "{error}");
        let error = ensure_dev_pki(&world.plan, NOW).unwrap_err().to_string();
        assert!(error.contains(&expected), "{error}");
        set_mode(&world.path(file), good);
        world.load("hq/gate").unwrap();
    }
    let world = World::new();
    set_mode(&world.path("hq.key"), 0o644);
    let error = ensure_dev_pki(&world.plan, NOW).unwrap_err().to_string();
    assert!(error.contains("hq.key: mode is 0644"), "{error}");
}

#[test]
fn a_key_of_another_certificate_is_found_out() {
    let world = World::new();
    fs::copy(world.path("hq/a.key"), world.path("hq/gate.key")).unwrap();
    let error = world.load_error("hq/gate");
    assert!(error.contains("does not match the certificate"), "{error}");
    assert!(
        error.contains("hq/gate.key") && error.contains("hq/gate.pem"),
        "{error}"
    );
    let error = ensure_dev_pki(&world.plan, NOW).unwrap_err();
    assert!(
        matches!(
            &error,
            IdentityError::Material {
                fault: MaterialFault::KeyMismatch { .. },
                ..
            }
        ),
        "{error}"
    );
    let entries = show_plan(&world.plan, NOW).unwrap();
    let problems: Vec<_> = entries.iter().flat_map(|it| &it.problems).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("does not match"), "{problems:?}");

    let world = World::new();
    fs::copy(world.path("plant.key"), world.path("hq.key")).unwrap();
    let error = ensure_dev_pki(&world.plan, NOW).unwrap_err().to_string();
    assert!(error.contains("hq.key: this key does not match"), "{error}");
}

#[test]
fn a_neighbours_certificate_or_a_foreign_one_is_not_ours() {
    let world = World::new();
    for ext in ["pem", "key"] {
        let file = |name: &str| world.path(&format!("{name}.{ext}"));
        fs::copy(file("hq/a"), file("hq/gate")).unwrap();
    }
    let error = world.load_error("hq/gate");
    assert!(
        error.contains(r#"expected a certificate of "spiffe://hq.harbour/node/gate""#)
            && error.contains("spiffe://hq.harbour/node/a"),
        "{error}"
    );

    let other = World::new();
    for ext in ["pem", "key"] {
        let file = format!("hq/gate.{ext}");
        fs::copy(other.path(&file), world.path(&file)).unwrap();
    }
    let error = world.load_error("hq/gate");
    assert!(
        error.contains("does not verify against") && error.contains("hq.pem"),
        "{error}"
    );
    let error = ensure_dev_pki(&world.plan, NOW).unwrap_err().to_string();
    assert!(error.contains("does not verify against"), "{error}");
}

#[test]
fn a_root_must_match_its_pin() {
    let mut world = World::new();
    let entries = show_plan(&world.plan, NOW).unwrap();
    let plant = entries
        .iter()
        .find(|it| it.path.ends_with("plant.pem"))
        .unwrap();
    let mut pin = [0; 32];
    for (byte, pair) in pin.iter_mut().zip(plant.sha256.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    world.plan.domains[1].root_sha256 = vec![pin];
    world.load("hq/gate").unwrap();
    assert_eq!(outcomes(&world, NOW), [Outcome::Found; 6]);

    pin[0] ^= 1;
    world.plan.domains[1].root_sha256 = vec![pin];
    let error = world.load_error("hq/gate");
    assert!(
        error.contains("plant.pem: expected a root with sha256"),
        "{error}"
    );
    assert!(error.contains(&plant.sha256), "{error}");
    assert!(ensure_dev_pki(&world.plan, NOW).is_err());

    fs::remove_file(world.path("plant.pem")).unwrap();
    let error = ensure_dev_pki(&world.plan, NOW).unwrap_err().to_string();
    assert!(
        error.contains("a new one would not match the pin"),
        "{error}"
    );
    assert!(!world.path("plant.pem").exists());
}

#[test]
fn two_domains_cannot_share_a_root() {
    let world = World::new();
    fs::copy(world.path("hq.pem"), world.path("plant.pem")).unwrap();
    let error = world.load_error("hq/gate");
    assert!(
        error.contains("plant.pem: domain plant has the same root as domain hq"),
        "{error}"
    );
}

#[test]
fn a_root_that_is_no_root_is_refused() {
    let world = World::new();
    fs::copy(world.path("plant/a.pem"), world.path("plant.pem")).unwrap();
    let error = world.load_error("hq/gate");
    assert!(
        error.contains("plant.pem: expected the certificate of an authority"),
        "{error}"
    );
    fs::write(world.path("plant.pem"), "no certificate").unwrap();
    let error = world.load_error("hq/gate");
    assert!(
        error.contains("expected 1 to 8 certificates in PEM, found 0"),
        "{error}"
    );
    fs::write(world.path("plant.pem"), vec![b'x'; 100_000]).unwrap();
    assert!(world.load_error("hq/gate").contains("at most 65536 bytes"));
    fs::remove_file(world.path("plant.pem")).unwrap();
    let error = world.load_error("hq/gate");
    assert!(
        error.contains("the root certificate of domain plant, found no file"),
        "{error}"
    );
}

/// Bytes from a peer never panic, and no single bit of a certificate can be turned without notice.
#[test]
fn a_certificate_with_any_bit_turned_is_refused() {
    let world = World::new();
    let bundle = Bundle::load(&world.plan).unwrap();
    let good = world.certificate("hq/gate");
    let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
    let verify = |bytes: Vec<u8>, role| bundle.verify(&bytes.into(), &[], now, role);
    for role in [Role::Client, Role::Server] {
        assert_eq!(verify(good.to_vec(), role).unwrap(), node("hq/gate"));
        for bit in 0..good.len() * 8 {
            let mut bytes = good.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(bytes, role).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(verify(good[..length].to_vec(), role).is_err(), "{length}");
        }
    }
}

#[test]
fn nothing_is_overwritten_unless_asked() {
    let world = World::new();
    let read = |file: &str| fs::read(world.path(file)).unwrap();
    let files = ["hq.pem", "hq.key", "hq/gate.pem", "hq/gate.key"];
    let before = files.map(read);
    let hq = world.files("hq");
    for error in [
        init_domain(&hq, "harbour", &Terms::root(NOW)).unwrap_err(),
        issue(&hq, "harbour", &node("hq/gate"), &Terms::leaf(NOW)).unwrap_err(),
    ] {
        assert!(
            matches!(
                error,
                IdentityError::Material {
                    fault: MaterialFault::Exists,
                    ..
                }
            ),
            "{error}"
        );
    }
    assert_eq!(files.map(read), before);

    world.reissue("hq/gate", NOW);
    assert_eq!(
        files[..2].iter().map(|it| read(it)).collect::<Vec<_>>(),
        before[..2]
    );
    assert_ne!(read("hq/gate.pem"), before[2]);
    assert_ne!(read("hq/gate.key"), before[3]);
    world.load("hq/gate").unwrap();
}

#[test]
fn a_certificate_is_renewed_in_its_last_third() {
    let world = World::new();
    let key = fs::read(world.path("hq/gate.key")).unwrap();
    assert_eq!(outcomes(&world, NOW + 4 * DAY), [Outcome::Found; 6]);
    let (found, renewed) = (Outcome::Found, Outcome::Renewed);
    let expected = [found, renewed, renewed, found, renewed, renewed];
    assert_eq!(outcomes(&world, NOW + 5 * DAY), expected);
    assert!(world.load_at("hq/gate", NOW + 11 * DAY).is_ok());
    // Long after its end, too.
    assert_eq!(outcomes(&world, NOW + 100 * DAY), expected);
    assert_eq!(fs::read(world.path("hq/gate.key")).unwrap(), key);
}

#[test]
fn a_certificate_never_outlives_its_root() {
    let world = World::new();
    let late = NOW + 362 * DAY;
    let report = ensure_dev_pki(&world.plan, late).unwrap();
    assert_eq!(report[0].entry.not_after, "2028-01-15T08:00:00Z");
    assert_eq!(report[1].entry.not_after, "2028-01-15T08:00:00Z");
    let error = ensure_dev_pki(&world.plan, NOW + 366 * DAY)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("hq.pem: has expired: valid until 2028-01-15T08:00:00Z"),
        "{error}"
    );
}

#[test]
fn without_the_roots_key_nothing_can_be_made_and_good_things_stay() {
    let world = World::new();
    fs::remove_file(world.path("hq.key")).unwrap();
    assert_eq!(outcomes(&world, NOW), [Outcome::Found; 6]);
    // In the last third it is kept, with a warning, as long as it lives.
    let report = ensure_dev_pki(&world.plan, NOW + 6 * DAY).unwrap();
    assert_eq!(report[1].outcome, Outcome::Found);
    assert_eq!(
        report[1].entry.problems,
        ["less than a third of its life is left; renew it"]
    );
    for (now, lost) in [(NOW + 8 * DAY, None), (NOW, Some("hq/gate.pem"))] {
        if let Some(file) = lost {
            fs::remove_file(world.path(file)).unwrap();
        }
        let error = ensure_dev_pki(&world.plan, now).unwrap_err().to_string();
        assert!(
            error.contains("hq.key: expected the key of domain hq's root, found no file; issue where that key is kept"),
            "{error}"
        );
        assert!(!world.path("hq.key").exists());
    }
}

/// A crash between the two writes of a pair leaves the key, which is written first.
#[test]
fn a_key_without_its_certificate_is_taken_up() {
    let world = World::new();
    for (certificate, key) in [("hq.pem", "hq.key"), ("hq/gate.pem", "hq/gate.key")] {
        let before = fs::read(world.path(key)).unwrap();
        fs::remove_file(world.path(certificate)).unwrap();
        assert_eq!(
            outcomes(&world, NOW)
                .iter()
                .filter(|it| **it == Outcome::Made)
                .count(),
            1
        );
        assert_eq!(fs::read(world.path(key)).unwrap(), before);
        world.load("hq/gate").unwrap();
    }
    fs::remove_file(world.path("hq/gate.key")).unwrap();
    let error = ensure_dev_pki(&world.plan, NOW).unwrap_err().to_string();
    assert!(
        error.contains("the private key of node hq/gate, found no file"),
        "{error}"
    );
}

#[test]
fn our_own_certificate_out_of_time_is_told_apart() {
    let world = World::new();
    for (now, expected) in [
        (
            NOW + 7 * DAY + 1,
            "has expired: valid until 2027-01-22T08:00:00Z, now 2027-01-22T08:00:01Z",
        ),
        (
            NOW - HOUR,
            "not yet valid: valid from 2027-01-15T07:50:00Z, now 2027-01-15T07:00:00Z",
        ),
    ] {
        let error = world.load_at("hq/gate", now).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn wrong_arguments_are_refused_before_anything_is_written() {
    let world = World::empty();
    let hq = world.files("hq");
    let life = |seconds| Terms {
        lifetime: Duration::from_secs(seconds),
        ..Terms::leaf(NOW)
    };
    for error in [
        init_domain(&hq, "Harbour!", &Terms::root(NOW)),
        init_domain(&hq, "harbour", &life(3_651 * DAY)),
        init_domain(&hq, "harbour", &Terms::root(u64::MAX)),
        issue(&hq, "harbour", &node("plant/gate"), &life(DAY)),
        issue(&hq, "harbour", &node("hq/gate"), &life(91 * DAY)),
        issue(&hq, "harbour", &node("hq/gate"), &life(0)),
    ] {
        assert!(
            matches!(error, Err(IdentityError::Configuration(_))),
            "{error:?}"
        );
    }
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 0);
    let error = world.load_error("hq/nobody");
    assert!(
        error.contains("the topology has no node hq/nobody"),
        "{error}"
    );
}

#[test]
fn show_lists_roots_and_nodes_with_what_is_wrong() {
    let world = World::new();
    let entries = show_plan(&world.plan, NOW).unwrap();
    let summary: Vec<_> = entries
        .iter()
        .map(|it| (it.kind, it.spiffe_id.as_str(), it.problems.len()))
        .collect();
    assert_eq!(
        summary,
        [
            (Kind::Root, "", 0),
            (Kind::Node, "spiffe://hq.harbour/node/gate", 0),
            (Kind::Node, "spiffe://hq.harbour/node/a", 0),
            (Kind::Root, "", 0),
            (Kind::Node, "spiffe://plant.harbour/node/gate", 0),
            (Kind::Node, "spiffe://plant.harbour/node/a", 0),
        ]
    );
    let gate = &entries[1];
    assert_eq!(gate.remaining_s, 7 * DAY);
    assert_eq!(gate.not_before, "2027-01-15T07:50:00Z");
    assert_eq!(entries[0].subject, "O=harbour, OU=tombolo root, CN=hq");
    assert_eq!(gate.sha256.len(), 64);
    let text = gate.to_string();
    assert!(text.contains("(7 d 0 h left)"), "{text}");

    fs::write(world.path("hq/a.pem"), "rubbish").unwrap();
    fs::copy(world.path("plant/a.pem"), world.path("plant/gate.pem")).unwrap();
    let problems = |now| {
        let entries = show_plan(&world.plan, now).unwrap();
        entries
            .into_iter()
            .map(|it| it.problems.join("; "))
            .collect::<Vec<_>>()
    };
    let found = problems(NOW + 8 * DAY);
    assert_eq!(found[0], "");
    assert!(
        found[2].contains("expected the node's certificate in PEM"),
        "{found:?}"
    );
    assert!(
        found[1].contains("has expired: now 2027-01-23T08:00:00Z"),
        "{found:?}"
    );
    assert!(
        found[4].contains("expected spiffe://plant.<federation>/node/gate"),
        "{found:?}"
    );
    assert!(problems(NOW - DAY)[1].contains("not yet valid"));
    assert!(problems(NOW + 360 * DAY)[0].contains("less than a third"));
}

#[test]
fn no_key_is_ever_printed() {
    let world = World::new();
    let secret = fs::read_to_string(world.path("hq/gate.key")).unwrap();
    let line = secret.lines().nth(1).unwrap();
    let mut said = format!("{:?}", show_plan(&world.plan, NOW).unwrap());
    // Mistaken for a certificate, and as a key that cannot be parsed.
    fs::copy(world.path("hq/gate.key"), world.path("plant.pem")).unwrap();
    set_mode(&world.path("plant.pem"), 0o644);
    said += &world.load_error("hq/gate");
    fs::write(world.path("hq/a.key"), &secret[..secret.len() - 30]).unwrap();
    said += &ensure_dev_pki(&world.plan, NOW).unwrap_err().to_string();
    assert!(
        said.contains("a.key: expected a private key in PEM"),
        "{said}"
    );
    assert!(!said.contains(&line[..16]), "{said}");
}

#[test]
fn a_root_named_like_a_key_does_not_collide_with_it() {
    let mut domain = World::empty().plan.domains.remove(0);
    domain.root = "certs/odd.key".into();
    let files = DomainFiles::of_plan(&domain);
    assert_ne!(files.root_key(), files.root());
    domain.root = "certs/odd.crt".into();
    let files = DomainFiles::of_plan(&domain);
    assert_eq!(files.root_key(), Path::new("certs/odd.key"));
    assert_eq!(files.leaf("gate"), Path::new("certs/hq/gate.pem"));
}
