//! What only the `ibverbs` provider must stand: owners that die or stop while their device goes on, strangers at the socket, limits of the
//! system. Skipped where there is no device; `cargo xtask vm` runs it on a device of software.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::disallowed_methods,
    reason = "other processes live in real time"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Signal, WaitOptions};
use tombolo_fabric::ibverbs::Ibverbs;
use tombolo_fabric::{
    CompletionError, Device, Endpoint, FabricError, QueuePair, Region, RemoteRegion, VerbsProvider,
    read,
};

/// Long enough for a machine under load; only failures wait for it.
const WAIT: Duration = Duration::from_secs(60);

/// Tells the test binary that it is a process of its own, and which.
const ROLE: &str = "TOMBOLO_FABRIC_TEST_ROLE";

#[test]
fn without_a_device_the_program_starts_and_says_what_is_missing() {
    let said = match Ibverbs::on("no-such-device").probe() {
        Ok(found) => panic!("{found}"),
        Err(reason) => reason.to_string(),
    };
    let reasons = ["rdma-core", "kernel", "no RDMA device"];
    assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
    match Ibverbs::on("no-such-device").open("hq/a") {
        Err(FabricError::NoRdma(reason)) => assert_eq!(reason.to_string(), said),
        other => panic!("{:?}", other.map(|device| device.stats())),
    }
}

#[test]
fn a_killed_owner_is_noticed_at_once_and_the_scratch_comes_back() {
    if be_an_owner() {
        return;
    }
    let Some(reader) = device("hq/b") else { return };
    let mut owner = Owner::start("a_killed_owner_is_noticed_at_once_and_the_scratch_comes_back");
    let mut queue_pair = reader.connect("hq/a", &owner.endpoint).unwrap();
    let mut scratch = reader.allocate(5000).unwrap();
    read_all(&mut queue_pair, &mut scratch, &owner.region, WAIT).unwrap();
    assert!(scratch.bytes().iter().all(|&byte| byte == 0xa5));

    owner.child.kill().unwrap();
    owner.child.wait().unwrap();
    let asked = Instant::now();
    let failed = read_all(&mut queue_pair, &mut scratch, &owner.region, WAIT);
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
    assert!(
        asked.elapsed() < WAIT / 2,
        "a device alone would repeat for long"
    );
    assert_eq!(scratch.len(), 5000, "the scratch is back");
    assert!(matches!(
        reader.connect("hq/a", &owner.endpoint),
        Err(FabricError::Unreachable { .. })
    ));
}

#[test]
fn a_stopped_owners_device_serves_what_is_known_and_nothing_new() {
    if be_an_owner() {
        return;
    }
    let Some(reader) = device("hq/b") else { return };
    let owner = Owner::start("a_stopped_owners_device_serves_what_is_known_and_nothing_new");
    let mut queue_pair = reader.connect("hq/a", &owner.endpoint).unwrap();
    let mut scratch = reader.allocate(5000).unwrap();
    read_all(&mut queue_pair, &mut scratch, &owner.region, WAIT).unwrap();
    let process = Pid::from_child(&owner.child);
    rustix::process::kill_process(process, Signal::STOP).unwrap();
    // It has stopped only when the kernel says so.
    rustix::process::waitpid(Some(process), WaitOptions::UNTRACED).unwrap();

    scratch.bytes_mut().fill(0);
    read_all(&mut queue_pair, &mut scratch, &owner.region, WAIT).unwrap();
    assert!(scratch.bytes().iter().all(|&byte| byte == 0xa5));
    let wait = Duration::from_millis(200);
    let unknown = RemoteRegion {
        key: owner.region.key + 1,
        len: 5000,
    };
    let failed = read_all(&mut queue_pair, &mut scratch, &unknown, wait);
    assert!(
        matches!(&failed, Err(FabricError::TimedOut { wait: said, .. }) if *said == wait),
        "{failed:?}"
    );
    assert_eq!(scratch.len(), 5000, "the scratch is back");
    rustix::process::kill_process(process, Signal::CONT).unwrap();
    let mut queue_pair = reader.connect("hq/a", &owner.endpoint).unwrap();
    read_all(&mut queue_pair, &mut scratch, &owner.region, WAIT).unwrap();
}

#[test]
fn strangers_at_the_socket_neither_hold_a_peer_up_nor_get_in() {
    let Some(owner) = device("hq/a") else { return };
    let reader = device("hq/b").unwrap();
    let endpoint = owner.grant("hq/b").unwrap();
    let place = place(&endpoint);
    // More than the owner keeps, each with another way to be of no use.
    let mut strangers: Vec<TcpStream> = (0..70)
        .map(|_| TcpStream::connect(place).unwrap())
        .collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        // The owner may have closed on it already.
        let _ = match index % 3 {
            0 => Ok(()),
            1 => stranger.write_all(&[0xff; 4096]),
            _ => stranger.write_all(b"tbr1\x01"),
        };
    }
    let mut region = owner.allocate(5000).unwrap();
    region.bytes_mut().fill(7);
    let mut queue_pair = reader.connect("hq/a", &endpoint).unwrap();
    let mut scratch = reader.allocate(5000).unwrap();
    read_all(&mut queue_pair, &mut scratch, &region.remote(), WAIT).unwrap();
    assert!(scratch.bytes().iter().all(|&byte| byte == 7));
    drop(strangers);
    assert_eq!(owner.stats().queue_pairs, 0);
}

#[test]
fn a_peer_with_a_grant_of_another_device_of_the_machine_reads_nothing_of_it() {
    let Some(owner) = device("hq/a") else { return };
    let (other, reader) = (device("hq/c").unwrap(), device("hq/b").unwrap());
    let mut secret = owner.allocate(64).unwrap();
    secret.bytes_mut().fill(9);
    let endpoint = other.grant("hq/b").unwrap();
    let mut queue_pair = reader.connect("hq/c", &endpoint).unwrap();
    let mut scratch = reader.allocate(64).unwrap();
    let failed = read_all(&mut queue_pair, &mut scratch, &secret.remote(), WAIT);
    assert!(
        matches!(
            failed,
            Err(FabricError::Read {
                source: CompletionError::RemoteKey { .. },
                ..
            })
        ),
        "{failed:?}"
    );
}

// nccl-tests#206, cudf-spark#7632, libfabric#7368, ucx#2718: the kernel's own word is "cannot allocate memory".
#[test]
fn a_limit_on_locked_memory_is_told_with_limit_and_need() {
    if std::env::var_os(ROLE).is_some_and(|role| role == "limited") {
        return be_limited();
    }
    if device("hq/a").is_none() {
        return;
    }
    let name = "a_limit_on_locked_memory_is_told_with_limit_and_need";
    let status = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ROLE, "limited")
        .status()
        .unwrap();
    assert!(status.success());
}

/// In a process of its own, since what it gives up it does not get back.
fn be_limited() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let device = device("hq/a").unwrap();
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let limit = rustix::process::Rlimit {
        current: Some(1 << 20),
        maximum: Some(1 << 20),
    };
    rustix::process::setrlimit(Resource::Memlock, limit).unwrap();
    let kept = device.allocate(512 << 10).unwrap();
    match device.allocate(1 << 20) {
        Err(FabricError::Exhausted {
            needed,
            limit,
            what,
            advice,
        }) => {
            assert_eq!(limit, 1 << 20);
            assert!(needed >= (1 << 20) + (512 << 10), "{needed}");
            assert!(what.contains("MEMLOCK") && advice.contains("ulimit -l"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(device.stats().regions, 1);
    drop(kept);
    assert!(
        device.allocate(512 << 10).is_ok(),
        "what was given back counts no more"
    );
}

// Where the variable names the interface of the first device, since who pulls a cable must know whose it is.
#[test]
fn a_cut_cable_costs_no_more_than_the_wait_and_is_told_from_a_dead_peer() {
    let Ok(interface) = std::env::var("TOMBOLO_RDMA_CUT") else {
        eprintln!("skipped: TOMBOLO_RDMA_CUT names no interface that may lose what is sent");
        return;
    };
    let [near, far] = ["rxe0", "rxe1"].map(|name| Ibverbs::on(name).patience(WAIT));
    let (reader, owner) = (near.open("hq/b").unwrap(), far.open("hq/a").unwrap());
    let mut region = owner.allocate(5000).unwrap();
    region.bytes_mut().fill(3);
    let endpoint = owner.grant("hq/b").unwrap();
    let connect = || reader.connect("hq/a", &endpoint).unwrap();
    let (mut impatient, mut patient) = (connect(), connect());
    let mut scratch = reader.allocate(5000).unwrap();
    for queue_pair in [&mut impatient, &mut patient] {
        read_all(queue_pair, &mut scratch, &region.remote(), WAIT).unwrap();
        assert!(scratch.bytes().iter().all(|&byte| byte == 3));
    }
    let cable = |what: &str| {
        let mut command = Command::new("tc");
        let device = ["qdisc", what, "dev", &interface, "root"];
        let loss = ["netem", "loss", "100%"];
        let loss = loss.iter().filter(|_| what == "add");
        let status = command.args(device).args(loss).status();
        assert!(status.unwrap().success());
    };

    cable("add");
    let wait = Duration::from_millis(300);
    let failed = read_all(&mut impatient, &mut scratch, &region.remote(), wait);
    let came_back = scratch.len();
    // The device repeats for seconds, then gives up; the owner can still be asked.
    let told = read_all(&mut patient, &mut scratch, &region.remote(), WAIT);
    cable("del");
    assert!(
        matches!(&failed, Err(FabricError::TimedOut { wait: said, .. }) if *said == wait),
        "{failed:?}"
    );
    assert_eq!(came_back, 5000, "the scratch is back");
    assert!(
        matches!(
            &told,
            Err(FabricError::Read { source: CompletionError::Device(said), .. }) if said.contains("does not answer")
        ),
        "{told:?}"
    );
}

/// A device of this machine; `None` where there is none, which the variable forbids.
fn device(owner: &str) -> Option<Arc<dyn Device>> {
    let provider = Ibverbs::new().patience(WAIT);
    if let Err(reason) = provider.probe() {
        assert!(std::env::var_os("TOMBOLO_RDMA").is_none(), "{reason}");
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(provider.open(owner).unwrap())
}

fn read_all(
    queue_pair: &mut Box<dyn QueuePair>,
    scratch: &mut Region,
    remote: &RemoteRegion,
    wait: Duration,
) -> Result<(), FabricError> {
    read(
        &mut **queue_pair,
        scratch,
        0,
        remote,
        0,
        5000.min(remote.len as usize),
        wait,
    )
}

/// Where the owner of an endpoint listens: its last 18 bytes are an address and a port.
fn place(endpoint: &Endpoint) -> std::net::SocketAddr {
    let bytes = endpoint.to_bytes();
    let (gid, port) = bytes[bytes.len() - 18..].split_first_chunk::<16>().unwrap();
    let port = u16::from_le_bytes(port.try_into().unwrap());
    let address = std::net::Ipv6Addr::from(*gid);
    let address = address
        .to_ipv4_mapped()
        .expect("the device has an IPv4 address");
    (address, port).into()
}

/// `hq/a` in a process of its own, with a region of 5,000 bytes of 0xa5 that `hq/b` may READ.
struct Owner {
    child: Child,
    endpoint: Endpoint,
    region: RemoteRegion,
    /// It ends when this does.
    _stdin: ChildStdin,
}

impl Owner {
    /// `test` is who calls, and calls `be_an_owner` first.
    fn start(test: &str) -> Owner {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(ROLE, "owner")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("owner: ")?.1.to_owned()))
            .expect("the owner says where it is");
        let mut words = told.split(' ');
        let key = words.next().unwrap().parse().unwrap();
        let endpoint = words.map(|byte| byte.parse().unwrap()).collect::<Vec<u8>>();
        Owner {
            endpoint: Endpoint::from_bytes(&endpoint).unwrap(),
            region: RemoteRegion { key, len: 5000 },
            _stdin: child.stdin.take().unwrap(),
            child,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side of [`Owner`]: whether this process is one, and has been.
fn be_an_owner() -> bool {
    if std::env::var_os(ROLE).is_none_or(|role| role != "owner") {
        return false;
    }
    let device = device("hq/a").unwrap();
    let mut region = device.allocate(5000).unwrap();
    region.bytes_mut().fill(0xa5);
    let endpoint = device.grant("hq/b").unwrap().to_bytes();
    let bytes: Vec<String> = endpoint.iter().map(u8::to_string).collect();
    println!("owner: {} {}", region.remote().key, bytes.join(" "));
    let _ = std::io::stdin().read_line(&mut String::new());
    true
}
