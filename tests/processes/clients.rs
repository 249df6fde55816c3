//! Many nodes that lose the coordinator at once are all back, and it is none the worse for it: certificates, QUIC and actors are real, the
//! coordinator a process of its own. And a coordinator that has no descriptor left takes no harm from it.
//!
//! `TOMBOLO_CLIENTS=500` takes as many nodes. The test prints one line of figures.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit, setrlimit};
use serde_json::json;
use tombolo::federation::Running;
use tombolo::{Federation, core::ids::NodeId};

use crate::fixture::{Output, Process, now};
use crate::fleet::{Fleet, from_environment};

/// Between two looks at all links.
const LOOK: Duration = Duration::from_millis(10);

/// Looks until everybody must be there. Only failures look so often.
const LOOKS: u32 = 30_000;

/// What the coordinator's process may hold beside what it holds for each node, in KiB: libraries, the digits, models, caches of the allocator.
const MEMORY_BASE: u64 = 64 << 10;

/// What it may hold for each node: a link, a heartbeat, a connection with its buffers.
const MEMORY_EACH: u64 = 192;

/// Lines that a coordinator may say while everybody comes back, however many they are.
const LINES_MAX: usize = 20;

/// Pairs of nodes, each with its own link to the coordinator.
fn pairs(clients: u64, rounds: u64) -> String {
    let mut text = format!(
        r#"
    [federation]
    name = "many"
    rounds = {rounds}
    sync_every = 1
    [round]
    quorum = "all"
    deadline = "10min"
    close_limit = "5min"
    failed_limit = 1000
    [model]
    trainer = "digits-softmax"
    partition = {{ kind = "iid" }}
    [heartbeat]
    every = "1s"
    restore_limit = "10min"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
"#
    );
    for pair in 0..clients / 2 {
        writeln!(
            text,
            "    [[domain]]\n    name = \"d{pair}\"\n    nodes = [\"a\", \"b\"]\n    gateways = [\"a\", \"b\"]"
        )
        .unwrap();
    }
    text
}

/// A value of a process's status, in KiB.
fn memory(process: u32, key: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether a node has a link to the coordinator whose two sides have shaken hands.
fn is_linked(clients: &Running, node: &NodeId) -> bool {
    let wires = &clients.crew(node).unwrap().wires;
    wires[&clients.plan().coordinator].agreed().is_some()
}

/// Waits until all nodes are linked.
async fn until_linked(clients: &Running) {
    let mut missing: Vec<NodeId> = clients.nodes().cloned().collect();
    for _ in 0..LOOKS {
        missing.retain(|node| !is_linked(clients, node));
        if missing.is_empty() {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("{} are not linked: {missing:?}", missing.len());
}

/// Waits for another round with everybody in it.
fn until_complete(coordinator: &mut Process, nodes: u64) {
    let complete = |seen: &Output| {
        let rounds = seen.events("round").into_iter();
        let counted = rounds.map(|round| round["counted"].as_array().unwrap().len() as u64);
        counted.filter(|counted| *counted == nodes).count()
    };
    let before = complete(coordinator.listen(Duration::ZERO));
    coordinator.until("a complete round", |seen| complete(seen) > before);
}

/// The coordinator's process, which says only what somebody must know.
fn coordinator(fleet: &Fleet) -> Process {
    let node = format!("node --name {} topology.toml --resume", fleet.coordinator());
    fleet.workspace.start_with(&node, "warn")
}

async fn clients(fleet: &Fleet) -> Running {
    let federation = Federation::from_path(fleet.workspace.path().join("topology.toml")).unwrap();
    let coordinator = federation.plan().coordinator.clone();
    let nodes = federation.plan().nodes().map(|node| node.id.clone());
    let nodes: Vec<NodeId> = nodes.filter(|node| *node != coordinator).collect();
    federation.spawn_nodes(nodes).await.unwrap()
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(test)
}

/// The largest part of them that came within a tenth of the time in which all came.
fn largest_tenth(moments: &[Duration]) -> f64 {
    let last = moments.iter().max().unwrap().as_secs_f64();
    let mut tenths = [0.0; 10];
    for moment in moments {
        let tenth = (moment.as_secs_f64() / last * 10.0) as usize;
        tenths[tenth.min(9)] += 1.0 / moments.len() as f64;
    }
    tenths.into_iter().fold(0.0, f64::max)
}

/// Field fault: reconnects spread at random over the backoff window, the log stays quiet and service recovers. teleport#6889,
/// swarm-plugin#163, rust-payjoin#1608. (The spread itself: `reconnects_spread_over_the_window` in `actors/src/link/redial.rs`.)
#[test]
fn many_nodes_that_lose_the_coordinator_at_once_are_all_back() {
    let count = from_environment("TOMBOLO_CLIENTS", 60) / 2 * 2;
    // Each of them has files of its own, and this process has all of them.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: most,
            maximum: most,
        },
    )
    .unwrap();
    let fleet = Fleet::idle(&pairs(count, 900_000));
    let mut first = coordinator(&fleet);
    block_on(async {
        let clients = clients(&fleet).await;
        until_linked(&clients).await;
        until_complete(&mut first, count + 1);
        let before = memory(first.id(), "VmRSS");
        first.signal(Signal::KILL);
        let quiet = first.end();
        let lost = now();
        let mut second = coordinator(&fleet);
        // Not all at the same moment find that it is gone.
        let back = until_back(&clients, lost).await;
        until_complete(&mut second, count + 1);
        let (after, peak) = (memory(second.id(), "VmRSS"), memory(second.id(), "VmHWM"));
        second.signal(Signal::INT);
        let lively = second.end();
        assert_eq!(lively.code(), 130);
        clients.run().await.unwrap();
        let bound = MEMORY_BASE + count * MEMORY_EACH;
        let last = back.iter().max().unwrap();
        println!(
            "{}",
            json!({
                "proof": "clients", "clients": count, "back": back.len(), "all_back_s": last.as_secs_f64(),
                "largest_tenth": largest_tenth(&back), "rss_before_kib": before, "rss_after_kib": after, "rss_peak_kib": peak,
                "rss_bound_kib": bound, "log_lines": quiet.errors.len() + lively.errors.len(),
                "wall_s": (now() - lost).as_secs_f64(),
            })
        );
        assert!(
            peak <= bound,
            "{peak} KiB for {count} nodes, at most {bound}"
        );
        for output in [quiet, lively] {
            assert!(output.errors.len() <= LINES_MAX, "{:#?}", output.errors);
        }
    });
}

/// When each node has a link with the coordinator's next life, counted from the end of the life before.
async fn until_back(clients: &Running, lost: std::time::Instant) -> Vec<Duration> {
    let ports = |node: &NodeId| {
        let wires = &clients.crew(node).unwrap().wires;
        let agreed = wires[&clients.plan().coordinator].agreed();
        agreed.map(|agreed| agreed.connection.remote_address())
    };
    let mut missing: Vec<(NodeId, _)> = clients
        .nodes()
        .map(|node| (node.clone(), ports(node)))
        .collect();
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        let before = missing.len();
        missing.retain(|(node, old)| {
            let new = ports(node);
            new.is_none() || new == *old
        });
        found.extend((missing.len()..before).map(|_| now() - lost));
        if missing.is_empty() {
            return found;
        }
        tokio::time::sleep(LOOK).await;
    }
    panic!("{} are not back: {missing:?}", missing.len());
}

/// Descriptors that the coordinator may still open: for the files of a round, not for a crowd.
const SPARE: u64 = 12;

/// Field fault: at the descriptor limit new links are shed, the log stays quiet and service recovers. tokio#3529, rust-payjoin#1608. A link
/// between nodes needs no descriptor, so those come back; questions do, one at a time, so most of a crowd is shed, and rounds go on.
#[test]
fn at_the_descriptor_limit_links_come_back_a_crowd_is_shed_and_rounds_go_on() {
    let fleet = Fleet::idle(&pairs(4, 900_000));
    let mut process = coordinator(&fleet);
    block_on(async {
        let first = clients(&fleet).await;
        until_linked(&first).await;
        until_complete(&mut process, 5);
        let open = std::fs::read_dir(format!("/proc/{}/fd", process.id())).unwrap();
        let limit = Rlimit {
            current: Some(open.count() as u64 + SPARE),
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        prlimit(Pid::from_raw(process.id() as i32), Resource::Nofile, limit).unwrap();
        let socket = fleet
            .workspace
            .path()
            .join("state/run/control-hq.gate.sock");
        let crowd = (0..200).map(|_| connect(&socket));
        let crowd: Vec<_> = crowd.filter_map(Result::ok).collect();
        assert!(
            !crowd.is_empty() && crowd.len() < 100,
            "{} got in",
            crowd.len()
        );
        // As a crash: nobody says goodbye.
        drop(first);
        let second = clients(&fleet).await;
        until_linked(&second).await;
        until_complete(&mut process, 5);
        drop(crowd);
        fleet.workspace.run("status topology.toml").expect(0);
        process.signal(Signal::INT);
        let output = process.end();
        assert_eq!(output.code(), 130, "{output:#?}");
        second.run().await.unwrap();
        assert!(output.errors.len() <= LINES_MAX, "{:#?}", output.errors);
    });
}

/// Connects to a socket, or not; waits for nobody.
fn connect(path: &std::path::Path) -> rustix::io::Result<std::os::fd::OwnedFd> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}
