//! What only the `shm` provider must stand: other processes that die or stop, strangers at the socket, and owners that lie.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time"
)]

use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use rustix::process::{Pid, Signal, WaitOptions};
use tombolo_fabric::shm::Shm;
use tombolo_fabric::{
    CompletionError, Device, Endpoint, FabricError, QueuePair, Region, RemoteRegion, VerbsProvider,
    read,
};

/// Long enough for a machine under load; only failures wait for it.
const WAIT: Duration = Duration::from_secs(30);

/// Tells the test binary that it runs as an owner, and where.
const OWNER_FOLDER: &str = "TOMBOLO_FABRIC_TEST_FOLDER";

#[test]
fn a_killed_owner_leaves_what_is_mapped_readable_and_fails_what_is_new() {
    if be_an_owner() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let provider = Shm::new(folder.clone());
    let survivor = provider.open("hq/b").unwrap();
    let mut owner = Owner::start(
        "a_killed_owner_leaves_what_is_mapped_readable_and_fails_what_is_new",
        &folder,
    );
    let mut queue_pair = survivor.connect("hq/a", &owner.endpoint).unwrap();
    let mut second = survivor.connect("hq/a", &owner.endpoint).unwrap();
    let mut scratch = survivor.allocate(5000).unwrap();
    read_all(&mut queue_pair, &mut scratch, &owner.first, WAIT).unwrap();
    assert!(scratch.bytes().iter().all(|&byte| byte == 0xa5));

    owner.child.kill().unwrap();
    owner.child.wait().unwrap();
    scratch.bytes_mut().fill(0);
    read_all(&mut queue_pair, &mut scratch, &owner.first, WAIT).unwrap();
    assert!(scratch.bytes().iter().all(|&byte| byte == 0xa5));
    for queue_pair in [&mut queue_pair, &mut second] {
        let asked = Instant::now();
        let failed = read_all(queue_pair, &mut scratch, &owner.second, WAIT);
        assert!(
            matches!(
                failed,
                Err(FabricError::Read {
                    source: CompletionError::PeerGone,
                    ..
                })
            ),
            "{failed:?}"
        );
        assert!(asked.elapsed() < WAIT / 2);
    }
    assert_eq!(scratch.len(), 5000, "the scratch is back");
    assert!(matches!(
        survivor.connect("hq/a", &owner.endpoint),
        Err(FabricError::Unreachable { .. })
    ));

    assert_eq!(sockets(&folder).len(), 2, "the dead owner's is still there");
    let _next = Shm::new(folder.clone());
    assert_eq!(sockets(&folder).len(), 1, "the survivor's stays");
    let other = provider.open("hq/c").unwrap();
    let endpoint = survivor.grant("hq/c").unwrap();
    assert!(other.connect("hq/b", &endpoint).is_ok());
}

#[test]
fn a_stopped_owner_costs_no_more_than_the_wait() {
    if be_an_owner() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let reader = Shm::new(folder.clone()).open("hq/b").unwrap();
    let owner = Owner::start("a_stopped_owner_costs_no_more_than_the_wait", &folder);
    let mut queue_pair = reader.connect("hq/a", &owner.endpoint).unwrap();
    let mut scratch = reader.allocate(5000).unwrap();
    let process = Pid::from_child(&owner.child);
    rustix::process::kill_process(process, Signal::STOP).unwrap();
    // It has stopped only when the kernel says so.
    rustix::process::waitpid(Some(process), WaitOptions::UNTRACED).unwrap();

    let asked = Instant::now();
    let wait = Duration::from_millis(50);
    let failed = read_all(&mut queue_pair, &mut scratch, &owner.first, wait);
    let took = asked.elapsed();
    assert!(
        matches!(&failed, Err(FabricError::TimedOut { wait: said, .. }) if *said == wait),
        "{failed:?}"
    );
    assert!(wait <= took && took < WAIT / 2, "{took:?}");
    assert_eq!(scratch.len(), 5000, "the scratch is back");
    let again = reader.connect("hq/a", &owner.endpoint);
    assert!(matches!(again, Err(FabricError::TimedOut { .. })));
    drop(queue_pair);
    rustix::process::kill_process(process, Signal::CONT).unwrap();
    let mut queue_pair = reader.connect("hq/a", &owner.endpoint).unwrap();
    read_all(&mut queue_pair, &mut scratch, &owner.first, WAIT).unwrap();
    assert_eq!(scratch.bytes()[4999], 0xa5);
}

#[test]
fn a_flood_of_strangers_and_garbage_does_not_keep_a_peer_out() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let provider = Shm::new(folder.clone());
    let owner = provider.open("hq/a").unwrap();
    let socket = folder.join(&sockets(&folder)[0]);
    let peer = provider.open("hq/b").unwrap();
    let endpoint = owner.grant("hq/b").unwrap();
    let region = owner.allocate(5000).unwrap();
    let mut before = peer.connect("hq/a", &endpoint).unwrap();
    let stop = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&socket, &stop));
        let mut scratch = peer.allocate(5000).unwrap();
        for _ in 0..50 {
            let mut queue_pair = peer.connect("hq/a", &endpoint).unwrap();
            read_all(&mut queue_pair, &mut scratch, &region.remote(), WAIT).unwrap();
            let fresh = owner.allocate(5000).unwrap();
            read_all(&mut before, &mut scratch, &fresh.remote(), WAIT).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap()
    });
    assert!(sent > 100, "only {sent} messages were sent");
    assert_eq!(owner.stats().regions, 1);
}

/// Sends all that is not a right greeting, and leaves connections open in silence. Returns how many messages went out.
fn flood(socket: &Path, stop: &AtomicBool) -> usize {
    const REQUEST_LENGTH: usize = 168;
    let mut greeting = [0; REQUEST_LENGTH];
    greeting[..6].copy_from_slice(b"tbf1\x01\x04");
    greeting[40..44].copy_from_slice(b"hq/b");
    let mut ask = [0; REQUEST_LENGTH];
    ask[..5].copy_from_slice(b"tbf1\x02");
    let messages: [&[u8]; 7] = [
        &greeting,
        &ask,
        &[0; REQUEST_LENGTH],
        &[0xff; REQUEST_LENGTH],
        &greeting[..7],
        &[0x41; 60_000],
        &[],
    ];
    let mut silent = std::collections::VecDeque::new();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        for message in messages {
            let stranger = connect_raw(socket);
            for _ in 0..3 {
                sent +=
                    usize::from(rustix::net::send(&stranger, message, SendFlags::NOSIGNAL).is_ok());
            }
        }
        silent.push_back(connect_raw(socket));
        if silent.len() > 100 {
            silent.pop_front();
        }
    }
    sent
}

#[test]
fn a_stranger_gets_one_refusal_and_then_the_end() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let owner = Shm::new(folder.clone()).open("hq/a").unwrap();
    owner.grant("hq/b").unwrap();
    let stranger = connect_raw(&folder.join(&sockets(&folder)[0]));
    let mut greeting = [0; 168];
    greeting[..6].copy_from_slice(b"tbf1\x01\x04");
    greeting[40..44].copy_from_slice(b"hq/b");
    rustix::net::send(&stranger, &greeting, SendFlags::NOSIGNAL).unwrap();
    let mut reply = [0; 64];
    let (length, _) = rustix::net::recv(&stranger, &mut reply, RecvFlags::empty()).unwrap();
    assert_eq!((length, &reply[..5]), (24, &b"tbf1\x02"[..]));
    let (length, _) = rustix::net::recv(&stranger, &mut reply, RecvFlags::empty()).unwrap();
    assert_eq!(length, 0, "closed");
}

#[test]
fn the_oldest_of_too_many_strangers_makes_room_for_the_newest() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let _owner = Shm::new(folder.clone()).open("hq/a").unwrap();
    let socket = folder.join(&sockets(&folder)[0]);
    let strangers: Vec<_> = (0..33).map(|_| connect_raw(&socket)).collect();
    let mut reply = [0; 64];
    let (length, _) = rustix::net::recv(&strangers[0], &mut reply, RecvFlags::empty()).unwrap();
    assert_eq!(length, 0, "the oldest is closed");
    let mut greeting = [0; 168];
    greeting[..6].copy_from_slice(b"tbf1\x01\x04");
    greeting[40..44].copy_from_slice(b"hq/b");
    rustix::net::send(&strangers[32], &greeting, SendFlags::NOSIGNAL).unwrap();
    let (length, _) = rustix::net::recv(&strangers[32], &mut reply, RecvFlags::empty()).unwrap();
    assert_eq!(length, 24, "the newest is answered");
}

#[test]
fn an_owner_that_lies_or_keeps_silent_is_found_out() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .unwrap();
    let name = format!("{}.sock", "ab".repeat(16));
    let listener = socket();
    rustix::net::bind(&listener, &SocketAddrUnix::new(folder.join(&name)).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let stat = std::fs::metadata(&folder).unwrap();
    let mut blob = b"\x01\x03shm".to_vec();
    blob.extend_from_slice(&[7; 32]);
    blob.push(16 + name.len() as u8);
    blob.extend_from_slice(&stat.dev().to_le_bytes());
    blob.extend_from_slice(&stat.ino().to_le_bytes());
    blob.extend_from_slice(name.as_bytes());
    let endpoint = Endpoint::from_bytes(&blob).unwrap();
    let reader = Shm::new(folder).open("hq/b").unwrap();

    let mut welcome = *b"tbf1\x01...........\0\0\0\0\0\0\0\0";
    welcome[5..16].fill(1);
    let unsealed = rustix::fs::memfd_create(c"liar", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 16_392).unwrap();
    let lies: [(&[u8], Option<&OwnedFd>); 4] = [
        (&welcome, Some(&unsealed)),
        (&welcome, None),
        (&welcome[..10], None),
        (&[0x55; 200], Some(&unsealed)),
    ];
    for (reply, file) in lies {
        let answered = std::thread::scope(|scope| {
            let liar = scope.spawn(|| {
                let accepted = accept_greeting(&listener);
                answer(&accepted, reply, file);
                accepted
            });
            let answered = reader.connect("hq/a", &endpoint).map(|_| ());
            drop(liar.join().unwrap());
            answered
        });
        assert!(
            matches!(answered, Err(FabricError::Distrusted { .. })),
            "{answered:?}"
        );
    }
    let silent = reader.connect("hq/a", &endpoint).map(|_| ());
    assert!(
        matches!(silent, Err(FabricError::TimedOut { .. })),
        "{silent:?}"
    );
    assert_eq!(reader.stats().queue_pairs, 0);
}

#[test]
fn providers_with_different_folders_say_so() {
    let place = tempfile::tempdir().unwrap();
    let owner = Shm::new(place.path().join("one")).open("hq/a").unwrap();
    let reader = Shm::new(place.path().join("two")).open("hq/b").unwrap();
    let refused = reader.connect("hq/a", &owner.grant("hq/b").unwrap());
    assert!(matches!(refused, Err(FabricError::Incompatible { .. })));
}

#[test]
fn two_runs_in_one_folder_do_not_collide() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("fabric");
    let runs: Vec<(Arc<dyn Device>, Region)> = (0..2)
        .map(|run| {
            let device = Shm::new(folder.clone()).open("hq/a").unwrap();
            let mut region = device.allocate(100).unwrap();
            region.bytes_mut().fill(run);
            (device, region)
        })
        .collect();
    let reader = Shm::new(folder).open("hq/b").unwrap();
    for (device, region) in &runs {
        let endpoint = device.grant("hq/b").unwrap();
        let mut queue_pair = reader.connect("hq/a", &endpoint).unwrap();
        let mut scratch = reader.allocate(100).unwrap();
        read_all(&mut queue_pair, &mut scratch, &region.remote(), WAIT).unwrap();
        assert_eq!(scratch.bytes(), region.bytes());
    }
    assert_ne!(runs[0].1.remote().key, runs[1].1.remote().key);
}

fn read_all(
    queue_pair: &mut Box<dyn QueuePair>,
    scratch: &mut Region,
    remote: &RemoteRegion,
    wait: Duration,
) -> Result<(), FabricError> {
    let len = scratch.len();
    read(&mut **queue_pair, scratch, 0, remote, 0, len, wait)
}

fn sockets(folder: &Path) -> Vec<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn socket() -> OwnedFd {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap()
}

fn connect_raw(path: &Path) -> OwnedFd {
    let socket = socket();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Takes connections until one greets: those that only ask whether somebody lives here close at once.
fn accept_greeting(listener: &OwnedFd) -> OwnedFd {
    loop {
        let accepted = rustix::net::accept(listener).unwrap();
        let (length, _) = rustix::net::recv(&accepted, &mut [0; 256], RecvFlags::empty()).unwrap();
        if length > 0 {
            return accepted;
        }
    }
}

fn answer(socket: &OwnedFd, reply: &[u8], file: Option<&OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(reply)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
}

/// The length of each of the owner's regions.
const OWNED_BYTES: usize = 5000;

/// This test binary, run again as the owner `hq/a` with two regions of [`OWNED_BYTES`] of 0xa5. Killed when dropped.
struct Owner {
    child: Child,
    endpoint: Endpoint,
    first: RemoteRegion,
    second: RemoteRegion,
}

impl Owner {
    fn start(test: &str, folder: &Path) -> Owner {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(OWNER_FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once("owner: ")?.1.to_owned()))
            .unwrap();
        let [endpoint, first, second] = said.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{said}")
        };
        let region = |key: &str| RemoteRegion {
            key: key.parse().unwrap(),
            len: OWNED_BYTES as u64,
        };
        Owner {
            child,
            endpoint: Endpoint::from_bytes(&from_hex(endpoint)).unwrap(),
            first: region(first),
            second: region(second),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the child process: owns until the parent is gone. Returns whether this is the child.
fn be_an_owner() -> bool {
    let Some(folder) = std::env::var_os(OWNER_FOLDER) else {
        return false;
    };
    let device = Shm::new(folder.into()).open("hq/a").unwrap();
    let regions = [(); 2].map(|()| {
        let mut region = device.allocate(OWNED_BYTES).unwrap();
        region.bytes_mut().fill(0xa5);
        region
    });
    let endpoint = device.grant("hq/b").unwrap();
    let [first, second] = regions.each_ref().map(|region| region.remote().key);
    println!("owner: {} {first} {second}", to_hex(&endpoint.to_bytes()));
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
    true
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).unwrap())
        .collect()
}
