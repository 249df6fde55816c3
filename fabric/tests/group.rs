//! Groups for step mode: who gets in, what the ranks see of each other, and what each is told when one fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use tombolo_fabric::group::{Call, Founding, Group, GroupError, RANKS_MAX};
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{Endpoint, FabricError, VerbsProvider};

/// Long enough for a machine under load; only failures wait for it.
const WAIT: Duration = Duration::from_secs(30);

/// For what must run out.
const SHORT: Duration = Duration::from_millis(200);

const CALL: Call = Call { what: 7, count: 1 };

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    Place {
        path: folder.path().join("fabric"),
        _folder: folder,
    }
}

/// Founds a group of threads and gives each a rank.
fn ranks<T: Send>(count: usize, wait: Duration, run: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let place = place();
    let names: Vec<String> = (0..count).map(|rank| format!("hq/{rank}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let founding = Founding::new(&place.path, &names).unwrap();
    std::thread::scope(|scope| {
        let joining: Vec<_> = (1..count)
            .map(|rank| {
                let (path, name, run) = (&place.path, names[rank], &run);
                let invitation = founding.invitation(rank);
                scope.spawn(move || run(Group::join(path, name, &invitation, wait).unwrap()))
            })
            .collect();
        let first = run(founding.found(wait).unwrap());
        let rest = joining.into_iter().map(|rank| rank.join().unwrap());
        [first].into_iter().chain(rest).collect()
    })
}

#[test]
fn ranks_see_what_each_has_written_in_the_others_parts() {
    let seen = ranks(4, WAIT, |mut group| {
        let (rank, count) = (group.rank(), group.ranks());
        assert_eq!(group.names()[rank], format!("hq/{rank}"));
        // More than a huge page, and no multiple of a page.
        let len = (3 << 20) + 77;
        let mut buffer = group.allocate(len).unwrap();
        assert!(buffer.bytes().unwrap().iter().all(|&byte| byte == 0));
        let operation = group.begin(&mut buffer, CALL, 100 + rank as u64).unwrap();
        for other in 0..count {
            assert_eq!(operation.contribution(other), 100 + other as u64);
            operation.write(other, len - count + rank, &[rank as u8 + 1]);
        }
        operation.finish().unwrap();
        let end = buffer.bytes().unwrap()[len - count..].to_vec();
        // Before its next meeting a rank does with its part what it likes.
        buffer.bytes_mut().unwrap().fill(9);
        let mut operation = group.begin(&mut buffer, CALL, 0).unwrap();
        let mut byte = [0];
        operation.read((rank + 1) % count, 5, &mut byte);
        operation.meet().unwrap();
        operation.finish().unwrap();
        (end, byte)
    });
    assert_eq!(seen, vec![(vec![1, 2, 3, 4], [9]); 4]);
}

#[test]
fn a_group_of_one_waits_for_nobody() {
    let mut group = Founding::new(&place().path, &["alone"])
        .unwrap()
        .found(SHORT)
        .unwrap();
    for _ in 0..1000 {
        group.barrier().unwrap();
    }
    let mut buffer = group.allocate(1).unwrap();
    group.begin(&mut buffer, CALL, 0).unwrap().finish().unwrap();
    assert_eq!(buffer.bytes().unwrap(), [0]);
}

#[test]
fn nobody_gets_in_without_the_invitation_for_its_name() {
    let place = place();
    let names = ["hq/a", "hq/b", "hq/c"];
    let founding = Founding::new(&place.path, &names).unwrap();
    let (for_b, for_c) = (founding.invitation(1), founding.invitation(2));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| founding.found(WAIT));
        let join = |name: &str, invitation: &Endpoint| {
            Group::join(&place.path, name, invitation, WAIT).map(|_| ())
        };
        let denied = |refused: Result<(), GroupError>| {
            assert!(
                matches!(refused, Err(GroupError::Fabric(FabricError::Denied { .. }))),
                "{refused:?}"
            );
        };
        denied(join("hq/c", &for_b));
        denied(join("hq/x", &for_b));
        // The first rank has no door to go in by.
        denied(join("hq/a", &for_b));
        let mut guessed = for_b.to_bytes();
        // A byte of the secret.
        guessed[10] ^= 1;
        denied(join("hq/b", &Endpoint::from_bytes(&guessed).unwrap()));

        let second = scope.spawn(|| Group::join(&place.path, "hq/b", &for_b, WAIT).unwrap());
        let third = Group::join(&place.path, "hq/c", &for_c, WAIT).unwrap();
        assert_eq!(third.rank(), 2);
        assert_eq!(second.join().unwrap().rank(), 1);
        assert_eq!(first.join().unwrap().unwrap().names(), names);
    });
    assert_eq!(
        std::fs::read_dir(&place.path).unwrap().count(),
        0,
        "no trace"
    );
}

#[test]
fn an_endpoint_of_the_verbs_or_of_another_folder_is_no_invitation() {
    let (here, there) = (place(), place());
    let device = Shm::new(here.path.clone()).open("hq/a").unwrap();
    let endpoint = device.grant("hq/b").unwrap();
    let founding = Founding::new(&there.path, &["hq/a", "hq/b"]).unwrap();
    let elsewhere = founding.invitation(1);
    for endpoint in [endpoint, elsewhere] {
        let refused = Group::join(&here.path, "hq/b", &endpoint, WAIT).map(|_| ());
        assert!(
            matches!(
                refused,
                Err(GroupError::Fabric(FabricError::Incompatible { .. }))
            ),
            "{refused:?}"
        );
    }
    let invitation = founding.invitation(1);
    drop(founding);
    let refused = Group::join(&there.path, "hq/b", &invitation, WAIT).map(|_| ());
    assert!(
        matches!(
            refused,
            Err(GroupError::Fabric(FabricError::Unreachable { .. }))
        ),
        "{refused:?}"
    );
}

#[test]
fn names_that_make_no_group_are_refused() {
    let place = place();
    let new = |names: &[&str]| Founding::new(&place.path, names).map(|_| ()).unwrap_err();
    assert!(matches!(new(&[]), FabricError::Exhausted { .. }));
    let many: Vec<String> = (0..=RANKS_MAX).map(|rank| rank.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(matches!(new(&many), FabricError::Exhausted { .. }));
    assert!(matches!(new(&["a", ""]), FabricError::Name { .. }));
    let twice = new(&["a", "b", "a"]).to_string();
    assert!(twice.contains("\"a\" twice"), "{twice}");
}

#[test]
fn who_does_not_come_is_named_by_all_who_wait() {
    let place = place();
    let founding = Founding::new(&place.path, &["hq/a", "hq/b"]).unwrap();
    let refused = founding.found(SHORT).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("hq/b"), "{refused}");

    let told_already = AtomicUsize::new(0);
    let told = ranks(3, WAIT, |mut group| {
        group.set_wait(SHORT);
        while group.rank() == 1 && told_already.load(Ordering::Relaxed) < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = group.barrier();
        told_already.fetch_add(1, Ordering::Relaxed);
        told.map_err(|error| (error.rank(), error.to_string()))
    });
    for told in &told {
        let (rank, text) = told.as_ref().unwrap_err();
        assert_eq!(*rank, Some(1), "{text}");
        assert!(text.contains("hq/1") && text.contains("200ms"), "{text}");
    }
}

/// Somebody who hears of ranks in other ways knows sooner than any wait.
#[test]
fn who_is_doubted_is_waited_for_no_longer_and_who_has_come_cannot_be() {
    let told_already = AtomicUsize::new(0);
    let told = ranks(3, WAIT, |mut group| {
        while group.rank() == 1 && told_already.load(Ordering::Relaxed) < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        if group.rank() == 0 {
            // Of the last one, too, which comes.
            group.doubts().store(0b110, Ordering::Relaxed);
        }
        group.set_wait(Duration::from_secs(3600));
        let told = group.barrier();
        told_already.fetch_add(1, Ordering::Relaxed);
        told.map_err(|error| error.rank())
    });
    // A doubted rank that has not come yet is as good as one that never does.
    let blamed = told[0].as_ref().unwrap_err().unwrap();
    assert!(blamed == 1 || blamed == 2, "{told:?}");
    assert!(
        told.iter().all(|told| *told == Err(Some(blamed))),
        "{told:?}"
    );
}

#[test]
fn a_first_rank_that_has_other_things_to_look_after_gathers_the_others_bit_by_bit() {
    let place = place();
    let mut founding = Founding::new(&place.path, &["hq/a", "hq/b"]).unwrap();
    let missing = founding.gather(Duration::from_millis(20)).unwrap_err();
    assert!(missing.to_string().contains("hq/b"), "{missing}");
    let invitation = founding.invitation(1);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| Group::join(&place.path, "hq/b", &invitation, WAIT).map(drop));
        while founding.gather(Duration::from_millis(20)).is_err() {}
        assert_eq!(founding.found(WAIT).unwrap().ranks(), 2);
        other.join().unwrap().unwrap();
    });
}

#[test]
fn who_comes_for_something_else_is_named_by_all() {
    let told = ranks(3, WAIT, |mut group| {
        let mut buffer = group.allocate(10).unwrap();
        let count = if group.rank() == 2 { 5 } else { 4 };
        let call = Call { what: 7, count };
        let told = group.begin(&mut buffer, call, 0).map(|_| ());
        assert!(buffer.bytes().is_ok(), "nothing has happened to it");
        told
    });
    for told in told {
        assert!(
            matches!(
                &told,
                Err(GroupError::Mismatch { rank: 2, name, expected, found })
                    if name == "hq/2" && expected.count == 4 && found.count == 5
            ),
            "{told:?}"
        );
    }
}

#[test]
fn who_leaves_or_drops_an_operation_is_named_and_its_buffer_is_seen_no_more() {
    let told = ranks(3, WAIT, |mut group| {
        let mut buffer = group.allocate(10).unwrap();
        let rank = group.rank();
        let operation = group.begin(&mut buffer, CALL, 0).unwrap();
        if rank == 1 {
            drop(operation);
        } else {
            let failed = operation.finish().unwrap_err();
            assert!(
                matches!(failed, GroupError::Left { rank: 1, .. }),
                "{failed:?}"
            );
        }
        assert!(matches!(buffer.bytes(), Err(GroupError::Retired)));
        assert!(matches!(buffer.bytes_mut(), Err(GroupError::Retired)));
        let again = group.begin(&mut buffer, CALL, 0).map(|_| ());
        assert!(matches!(again, Err(GroupError::Retired)), "{again:?}");
        group.barrier().unwrap_err().rank()
    });
    assert_eq!(told, [Some(1); 3]);
}

#[test]
fn a_buffer_of_another_group_is_refused_before_anybody_meets() {
    let alone = |name| {
        let place = place();
        Founding::new(&place.path, &[name])
            .unwrap()
            .found(WAIT)
            .unwrap()
    };
    let (mut one, mut other) = (alone("a"), alone("a"));
    let mut buffer = one.allocate(10).unwrap();
    let refused = other.begin(&mut buffer, CALL, 0).map(|_| ());
    assert!(matches!(refused, Err(GroupError::Foreign)), "{refused:?}");
    one.begin(&mut buffer, CALL, 0).unwrap().finish().unwrap();
}

/// Field fault: shared memory is sized and reserved before use, with no bus error (nccl#290).
#[test]
fn a_buffer_that_the_machine_has_no_room_for_is_refused_to_all_and_the_group_goes_on() {
    let told = ranks(2, WAIT, |mut group| {
        let refused = group.allocate(1 << 47).map(|_| ()).unwrap_err();
        assert!(
            matches!(
                refused,
                GroupError::Fabric(FabricError::Exhausted { needed, .. }) if needed == 2 << 47
            ),
            "{refused:?}"
        );
        assert!(group.allocate(usize::MAX).is_err());
        assert!(matches!(
            group.allocate(0).map(|_| ()),
            Err(GroupError::Fabric(FabricError::EmptyRegion))
        ));
        group.allocate(100).is_ok()
    });
    assert_eq!(told, [true, true]);
}

#[test]
fn strangers_and_garbage_at_the_door_do_not_keep_a_rank_out() {
    let place = place();
    let founding = Founding::new(&place.path, &["hq/a", "hq/b"]).unwrap();
    let invitation = founding.invitation(1);
    let door = std::fs::read_dir(&place.path).unwrap().next().unwrap();
    let door = door.unwrap().path();
    let silent: Vec<OwnedFd> = (0..40).map(|_| knock(&door)).collect();
    for word in [&b"tbg1"[..], b"x", &[0xff; 5000]] {
        let socket = knock(&door);
        rustix::net::send(&socket, word, SendFlags::NOSIGNAL).unwrap();
    }
    std::thread::scope(|scope| {
        let first = scope.spawn(|| founding.found(WAIT).unwrap().rank());
        let second = Group::join(&place.path, "hq/b", &invitation, WAIT).unwrap();
        assert_eq!(second.rank(), 1);
        assert_eq!(first.join().unwrap(), 0);
    });
    drop(silent);
}

/// Field fault: descriptor needs are compared with the limit before joining, and the message gives limit and needed value (nccl-tests#206). In a
/// process of its own, since the limit is a process's.
#[test]
fn a_group_that_needs_more_descriptors_than_there_may_be_is_refused_with_limit_and_need() {
    const FEW: &str = "TOMBOLO_FABRIC_TEST_FEW_FILES";
    let name =
        "a_group_that_needs_more_descriptors_than_there_may_be_is_refused_with_limit_and_need";
    if std::env::var_os(FEW).is_none() {
        let alone = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(FEW, "yes")
            .status();
        assert!(alone.unwrap().success());
        return;
    }
    let place = place();
    let limit = |most| rustix::process::Rlimit {
        current: Some(most),
        maximum: rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum,
    };
    let set = |most| {
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit(most)).unwrap();
    };
    let names: Vec<String> = (0..60).map(|rank| rank.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    set(100);
    let refused = Founding::new(&place.path, &names).map(|_| ()).unwrap_err();
    assert!(
        matches!(
            refused,
            FabricError::Exhausted {
                limit: 100,
                needed: 124..200,
                ..
            }
        ),
        "{refused:?}"
    );
    // The limit may sink afterwards, or others open files. That ends the wait at once.
    let founding = Founding::new(&place.path, &names[..2]).unwrap();
    let door = std::fs::read_dir(&place.path).unwrap().next().unwrap();
    let _stranger = knock(&door.unwrap().path());
    let next = std::fs::File::open("/dev/null").unwrap();
    let next = std::os::fd::AsRawFd::as_raw_fd(&next);
    set(next as u64);
    let refused = founding.found(WAIT).map(|_| ()).unwrap_err();
    assert!(
        matches!(refused, GroupError::Fabric(FabricError::Exhausted { .. })),
        "{refused:?}"
    );
}

fn knock(door: &Path) -> OwnedFd {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(door).unwrap()).unwrap();
    socket
}
