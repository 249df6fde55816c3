//! `tombolo preflight`: links measured over real sockets, and what it says of a peer that is not there. Each verdict by itself is tested in
//! `src/preflight/judge/tests.rs`.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::fixture::{Output, Workspace};

/// Two sites of one node each; lab dials hq.
const PAIR: &str = r#"
[federation]
name = "pair"
rounds = 1
sync_every = 2
coordinator = "hq/gate"
[model]
trainer = "digits-softmax"
[[domain]]
name = "hq"
HQ
[[domain]]
name = "lab"
LAB
"#;

const PLAIN: &str = "nodes = [\"gate\"]";

fn pair(hq: &str, lab: &str) -> String {
    PAIR.replace("HQ", hq).replace("LAB", lab)
}

fn at(listen: SocketAddr, advertise: SocketAddr) -> String {
    format!("[[domain.node]]\nname = \"gate\"\nlisten = \"{listen}\"\nadvertise = \"{advertise}\"")
}

/// An address that is free, as far as one can know.
fn free() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}

fn certified(topology: &str) -> Workspace {
    let workspace = Workspace::new(topology);
    workspace.run("certs init topology.toml").expect(0);
    workspace.run("certs issue topology.toml").expect(0);
    workspace
}

fn checks(output: &Output, check: &str) -> Vec<Value> {
    let all = output.events("preflight_check").into_iter();
    all.filter(|finding| finding["check"] == check).collect()
}

/// The one check of that name that failed.
#[track_caller]
fn failed(output: &Output, check: &str) -> Value {
    let mut found = checks(output, check);
    found.retain(|finding| finding["verdict"] == "fail");
    assert_eq!(found.len(), 1, "{output:#?}");
    found.remove(0)
}

#[track_caller]
fn says(finding: &Value, field: &str, parts: &[&str]) {
    let text = finding[field].as_str().unwrap();
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_link_is_found_as_the_file_emulates_it_and_a_run_begins_behind_it() {
    let topology = pair("nodes = [\"gate\", \"a\"]", PLAIN)
        + "[[link]]\nbetween = [\"hq\", \"lab\"]\n\
           emulate = { delay = \"40ms\", loss = \"1%\", rate = \"20 Mbit/s\" }\n\
           congestion = \"delay-gradient\"\n";
    let workspace = Workspace::new(&topology);
    let found = workspace.run("preflight topology.toml").expect(0);
    let links = found.events("preflight_link");
    assert_eq!(links.len(), 1, "{found:#?}");
    let link = &links[0];
    assert_eq!(
        (&link["from"], &link["to"]),
        (&"lab/gate".into(), &"hq/gate".into())
    );
    // Wide: this machine does much else. The way out is 40 ms each way, and never less.
    let median = link["round_trip_us"].as_u64().unwrap();
    assert!((80_000..200_000).contains(&median), "{link}");
    assert!(link["round_trip_p99_us"].as_u64().unwrap() >= median);
    let mut lost = 0;
    for way in ["there", "back"] {
        let way = &link[way];
        let (probes, came) = (
            way["probes"].as_u64().unwrap(),
            way["came"].as_u64().unwrap(),
        );
        assert!(came <= probes && probes > 400, "{link}");
        lost += probes - came;
        let rate = way["bits_per_s"].as_u64().unwrap();
        assert!((500_000..=21_000_000).contains(&rate), "{link}");
        assert_eq!(way["packet_bytes"], 1452, "{link}");
    }
    assert!((1..=60).contains(&lost), "{link}");
    // Both clocks are one; the bound holds what half of the round trip may hide.
    let offset = link["clock_offset_us"].as_i64().unwrap();
    let bound = link["clock_bound_us"].as_u64().unwrap();
    assert!(offset.unsigned_abs() <= bound && bound >= 40_000, "{link}");
    assert_eq!(
        checks(&found, "control links")[0]["found"],
        "1 of 1 reached"
    );
    assert_eq!(found.events("preflight")[0]["fail"], 0);
    // ucx#2718: what may be locked, and what is needed, before anybody joins.
    assert_eq!(checks(&found, "locked memory").len(), 1);
    let run = workspace.run("run topology.toml").expect(0);
    assert_eq!(run.events("finished")[0]["committed"], 1);
}

#[test]
fn two_processes_by_name_tell_the_same_of_their_link() {
    let workspace = certified(&pair(PLAIN, PLAIN));
    let hq = workspace.start("preflight topology.toml --name hq/gate");
    let lab = workspace.start("preflight topology.toml --name lab/gate --model-bytes 1000000");
    let (hq, lab) = (hq.end().expect(0), lab.end().expect(0));
    let link = hq.events("preflight_link");
    assert_eq!(link, lab.events("preflight_link"));
    assert!(
        link[0]["there"]["bits_per_s"].as_u64().unwrap() > 0,
        "{link:?}"
    );
    for check in ["reached", "loss", "bandwidth", "packet size", "clock"] {
        let both = checks(&hq, check);
        assert!(!both.is_empty() && both == checks(&lab, check), "{check}");
    }
    says(
        &checks(&lab, "round")[0],
        "found",
        &["976 KiB", "2 local steps"],
    );
    assert!(
        hq.errors().contains("hq/gate has reached lab/gate"),
        "{hq:#?}"
    );
    let left = std::fs::read_dir(workspace.path().join("state/run/addresses"));
    assert_eq!(left.unwrap().count(), 0, "nobody is to dial what has ended");
}

#[test]
fn a_peer_that_never_comes_fails_by_name_with_the_addresses_that_were_tried() {
    let (hq, lab) = (free(), free());
    let workspace = certified(&pair(&at(hq, hq), &at(lab, lab)));
    // The one that dials: a closed port says so by ICMP.
    let dialling = workspace
        .run("preflight topology.toml --name lab/gate --wait 2")
        .expect(1);
    let missing = failed(&dialling, "reached");
    says(
        &missing,
        "found",
        &["hq/gate never came", &hq.to_string(), "nothing listens"],
    );
    says(&missing, "fix", &["ICMP", "--name hq/gate"]);
    // The one that is dialled.
    let waiting = workspace
        .run("preflight topology.toml --name hq/gate --wait 6")
        .expect(1);
    let missing = failed(&waiting, "reached");
    says(
        &missing,
        "found",
        &["lab/gate is to dial hq/gate", &lab.to_string()],
    );
    assert!(
        waiting.errors().contains("hq/gate waits for lab/gate"),
        "{waiting:#?}"
    );
    assert_eq!(waiting.events("preflight")[0]["links"], 0);
    let unknown = workspace
        .run("preflight topology.toml --name lab/x")
        .expect(2);
    assert!(unknown.errors().contains("lab/x"), "{unknown:#?}");
}

#[test]
fn a_path_that_swallows_udp_is_told_from_a_port_where_nobody_is() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (hq, swallowed) = (free(), silent.local_addr().unwrap());
    let workspace = certified(&pair(&at(hq, swallowed), PLAIN));
    let there = workspace.start("preflight topology.toml --name hq/gate --wait 6");
    let here = workspace
        .run("preflight topology.toml --name lab/gate --wait 6")
        .expect(1);
    let missing = failed(&here, "reached");
    says(
        &missing,
        "found",
        &["hq/gate", &swallowed.to_string(), "does not answer"],
    );
    says(&missing, "fix", &["UDP is blocked on the way", "both ways"]);
    failed(&there.end().expect(1), "reached");
}

#[test]
fn certificates_of_another_authority_get_nobody_in_and_both_sides_say_so() {
    let hq = free();
    let topology = pair(&at(hq, hq), PLAIN);
    // Each has made all certificates by itself.
    let (one, other) = (certified(&topology), certified(&topology));
    let called = one.start("preflight topology.toml --name hq/gate --wait 8");
    let mut caller = other.start("preflight topology.toml --name lab/gate --wait 8");
    caller.until("its end", |seen| !seen.events("preflight").is_empty());
    let caller = caller.end().expect(1);
    let refused = failed(&caller, "reached");
    says(
        &refused,
        "found",
        &["hq/gate", &hq.to_string(), "certificate"],
    );
    let called = failed(&called.end().expect(1), "reached");
    says(
        &called,
        "found",
        &["lab/gate", "handshakes refused at hq/gate"],
    );
}

#[test]
fn a_node_at_work_turns_a_preflight_away_by_name_and_goes_on() {
    let workspace = certified(&pair(PLAIN, PLAIN));
    let mut hq = workspace.start("node topology.toml --name hq/gate");
    hq.until("its wait", |seen| {
        seen.lines.iter().any(|line| line.contains("lab/gate"))
    });
    let turned = workspace
        .run("preflight topology.toml --name lab/gate --wait 60")
        .expect(1);
    let refused = failed(&turned, "reached");
    says(&refused, "found", &["hq/gate is at work already"]);
    let twice = workspace
        .run("preflight topology.toml --name hq/gate")
        .expect(1);
    assert!(
        twice.errors().contains("hq/gate is at work already"),
        "{twice:#?}"
    );
    // The run has not been disturbed.
    let lab = workspace.run("node topology.toml --name lab/gate");
    assert_eq!(hq.end().expect(0).finished()["committed"], 1);
    lab.expect(0);
}

/// The other way round: a node that begins its run too early is not sent away for good.
#[test]
fn a_preflight_turns_a_node_away_and_the_node_comes_again() {
    let workspace = certified(&pair(PLAIN, PLAIN));
    let mut measuring = workspace.start("preflight topology.toml --name hq/gate --wait 60");
    measuring.until("its address", |seen| seen.errors().contains("listens on"));
    let lab = workspace.start("node topology.toml --name lab/gate");
    let measured = measuring.end().expect(1);
    let early = failed(&measured, "reached");
    says(&early, "found", &["lab/gate is at work already"]);
    let hq = workspace.run("node topology.toml --name hq/gate").expect(0);
    assert_eq!(hq.finished()["committed"], 1);
    lab.end().expect(0);
}

#[test]
fn another_topology_on_the_other_machine_is_told_before_anything_is_measured() {
    let workspace = certified(&pair(PLAIN, PLAIN));
    let other = pair(PLAIN, PLAIN).replace("rounds = 1", "rounds = 2");
    workspace.write("other.toml", &other);
    let hq = workspace.start("preflight topology.toml --name hq/gate --wait 60");
    let lab = workspace.start("preflight other.toml --name lab/gate --wait 60");
    for output in [hq.end().expect(1), lab.end().expect(1)] {
        let differs = failed(&output, "reached");
        says(&differs, "found", &["another topology"]);
        says(&differs, "fix", &["the same file"]);
    }
}

/// A path that passes datagrams of up to so many bytes on, both ways, and says nothing of the others.
struct Narrow {
    address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Narrow {
    fn to(server: SocketAddr, bytes_max: usize) -> Narrow {
        let ended = Arc::new(AtomicBool::new(false));
        let inner = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let outer = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = outer.local_addr().unwrap();
        inner.connect(server).unwrap();
        for socket in [&inner, &outer] {
            let moment = Some(Duration::from_millis(50));
            socket.set_read_timeout(moment).unwrap();
        }
        let client = Arc::new(std::sync::Mutex::new(None));
        let (there, back) = ((outer.clone(), inner.clone()), (inner, outer));
        let known = client.clone();
        relay(ended.clone(), bytes_max, move |buffer| {
            let (bytes, from) = there.0.recv_from(buffer).ok()?;
            *known.lock().unwrap() = Some(from);
            Some((bytes, there.1.clone(), None))
        });
        relay(ended.clone(), bytes_max, move |buffer| {
            let bytes = back.0.recv(buffer).ok()?;
            let client = *client.lock().unwrap();
            Some((bytes, back.1.clone(), client))
        });
        Narrow { address, ended }
    }
}

impl Drop for Narrow {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

type Received = Option<(usize, Arc<UdpSocket>, Option<SocketAddr>)>;

fn relay(
    ended: Arc<AtomicBool>,
    bytes_max: usize,
    mut receive: impl FnMut(&mut [u8]) -> Received + Send + 'static,
) {
    let work = move || {
        let mut buffer = vec![0; 1 << 16];
        while !ended.load(Ordering::Relaxed) {
            let Some((bytes, out, to)) = receive(&mut buffer) else {
                continue;
            };
            if bytes > bytes_max {
                continue;
            }
            // What cannot be sent is lost.
            let _ = match to {
                Some(to) => out.send_to(&buffer[..bytes], to),
                None => out.send(&buffer[..bytes]),
            };
        }
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a path between processes; no federation in this one"
    )]
    std::thread::spawn(work);
}

/// quinn#2791: a path that drops large packets without notice is measured to its end, and its packet size is visible, each way.
#[test]
fn a_path_that_drops_large_packets_is_measured_and_its_packet_size_is_told() {
    let hq = free();
    let path = Narrow::to(hq, 1300);
    let workspace = certified(&pair(&at(hq, path.address), PLAIN));
    let there = workspace.start("preflight topology.toml --name hq/gate");
    let here = workspace
        .run("preflight topology.toml --name lab/gate")
        .expect(0);
    there.end().expect(0);
    let link = &here.events("preflight_link")[0];
    assert_eq!(link["address"], path.address.to_string());
    for way in ["there", "back"] {
        let bytes = link[way]["packet_bytes"].as_u64().unwrap();
        assert!((1200..=1300).contains(&bytes), "{link}");
        assert!(link[way]["bits_per_s"].as_u64().unwrap() > 0, "{link}");
    }
    let sizes = checks(&here, "packet size");
    assert_eq!(sizes.len(), 2, "{here:#?}");
    for size in &sizes {
        assert_eq!(size["verdict"], "warn");
        says(size, "expected", &["1452"]);
        says(size, "fix", &["MTU"]);
    }
}
