//! What keeps a machine from running nodes, and what mends it: `tombolo doctor`.
//!
//! [`probe`] looks at the machine and gives [`Facts`]; [`judge`] is pure and says of each what it means. So every verdict is tested without the
//! trouble that it is about.

mod probe;
mod udp;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tombolo_core::text::span;

pub use probe::{Question, limits, probe};
pub use udp::Answer;
pub(crate) use udp::ask as ask_address;

/// `memfd` with seals against writing came with this version of Linux: an update is exported so.
const KERNEL_LEAST: (u32, u32) = (5, 1);

/// Before this one, several faults of UDP segmentation and of memory limits are open.
const KERNEL_GOOD: (u32, u32) = (5, 10);

/// No clock that is right is before this: the first day of this version, 2025-01-01.
const MADE: u64 = 1_735_689_600;

/// Certificates that end sooner are worth a word.
const CERTIFICATE_SOON: u64 = 14 * 24 * 3600;

/// Room on a disk below which the next commits may fail.
const ROOM_LEAST: u64 = 64 << 20;

/// Room on a disk below which somebody should look.
const ROOM_GOOD: u64 = 1 << 30;

/// A disk that needs longer to synchronize a small file makes each commit late.
const SYNC_GOOD: Duration = Duration::from_millis(100);

/// A disk that needs longer is broken, or is none.
const SYNC_MOST: Duration = Duration::from_secs(2);

/// The payload of a packet that QUIC needs.
const PAYLOAD_LEAST: u16 = 1200;

/// The payload of ordinary Ethernet, IPv6.
const PAYLOAD_GOOD: u16 = 1452;

/// How it is about one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// It works, but not as well as it could, or not for long.
    Warn,
    /// A node would not start, or would be reached by nobody.
    Fail,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Pass => "PASS",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        })
    }
}

/// What is said of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which.
    pub check: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it; empty if nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// A machine as it was found. What is about a topology is empty without one.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The kernel's release, `6.1.0-25-amd64` for instance.
    pub kernel: String,
    /// Whether memory can be made, sealed and shared; or why not.
    pub memfd: Result<(), String>,
    /// What this process may use, and what the nodes here need.
    pub limits: Limits,
    /// Whether something keeps the wall clock; none if nobody says.
    pub synchronized: Option<bool>,
    /// The wall clock, seconds since 1970.
    pub unix: u64,
    /// When this program was made, seconds since 1970: no clock is before it.
    pub made: u64,
    /// Certificates that are here.
    pub certificates: Vec<Certificate>,
    /// The state folder.
    pub state: State,
    /// Ports on which nodes of this machine listen.
    pub ports: Vec<Port>,
    /// Bytes of a socket's buffers: asked for, granted to receive, granted to send.
    pub buffers: (usize, usize, usize),
    /// How many datagrams the kernel takes at once.
    pub segments: usize,
    /// What the nodes of this machine tell others to dial.
    pub own: Vec<Own>,
    /// Whom the nodes of this machine dial.
    pub peers: Vec<Peer>,
}

/// What a process may use, and what the nodes here need.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Free bytes of `/dev/shm`; none if it is not there.
    pub shm: Option<u64>,
    /// Descriptors: what may be open, and to what that can be raised.
    pub descriptors: (u64, u64),
    /// Descriptors that the nodes here need at most.
    pub descriptors_needed: u64,
    /// Bytes that may be locked; none if there is no limit.
    pub locked: Option<u64>,
    /// Bytes that an RDMA fabric of the topology would lock here; none if it has none.
    pub locked_needed: Option<u64>,
    /// Bytes that this control group may use; none if there is no limit.
    pub memory: Option<u64>,
    /// Bytes that the nodes here need at least.
    pub memory_needed: u64,
}

/// A certificate on disk.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// Its file.
    pub path: PathBuf,
    /// Seconds until it ends; zero if it has.
    pub remaining: u64,
    /// What is wrong, each with what to do about it.
    pub problems: Vec<String>,
}

/// A state folder.
#[derive(Debug, Clone)]
pub struct State {
    /// Where.
    pub path: PathBuf,
    /// How long a small file took to reach the disk; or why none could be written.
    pub sync: Result<Duration, String>,
    /// Bytes that are free.
    pub free: u64,
}

/// A port on which a node listens.
#[derive(Debug, Clone)]
pub struct Port {
    /// Which node.
    pub node: String,
    /// Where.
    pub address: SocketAddr,
    /// Whether it can be had.
    pub bound: Bound,
}

/// Whether a port can be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// It is free.
    Free,
    /// The node itself runs, and has it.
    Running,
    /// Somebody else has it, or it cannot be had for this reason.
    Refused(String),
}

/// What a node tells others to dial.
#[derive(Debug, Clone)]
pub struct Own {
    /// Which node.
    pub node: String,
    /// `host:port`.
    pub host: String,
    /// What that stands for here, and whether a datagram sent there comes back; or why the name stands for nothing.
    pub addresses: Result<Vec<(SocketAddr, bool)>, String>,
}

/// A peer that is dialled.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Which.
    pub node: String,
    /// `host:port`.
    pub host: String,
    /// Whether the topology has it on another machine.
    pub is_elsewhere: bool,
    /// What that stands for here, and what came back from it; or why the name stands for nothing.
    pub addresses: Result<Vec<(SocketAddr, Answer)>, String>,
}

/// When this program was made, as far as is known without asking a clock: when its version was.
fn made() -> u64 {
    MADE
}

/// A moment as people read it.
fn date(unix: u64) -> String {
    let moment = i64::try_from(unix)
        .ok()
        .and_then(|unix| time::OffsetDateTime::from_unix_timestamp(unix).ok());
    let text = moment.and_then(|moment| {
        moment
            .format(&time::format_description::well_known::Rfc3339)
            .ok()
    });
    text.unwrap_or_else(|| format!("{unix} s after 1970"))
}

/// What these facts mean, in the order in which one would look.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![kernel(&facts.kernel), memfd(&facts.memfd)];
    findings.extend(judge_limits(&facts.limits));
    findings.extend([
        clock(facts),
        state(&facts.state),
        room(&facts.state),
        buffers(facts.buffers),
        segments(facts.segments),
    ]);
    findings.extend(facts.certificates.iter().map(certificate));
    findings.extend(facts.ports.iter().map(port));
    findings.extend(facts.own.iter().map(own));
    findings.extend(facts.peers.iter().map(peer));
    findings
}

/// The part of it that is about limits.
pub fn judge_limits(limits: &Limits) -> [Finding; 4] {
    [
        shm(limits.shm),
        descriptors(limits.descriptors, limits.descriptors_needed),
        locked(limits.locked, limits.locked_needed),
        memory(limits.memory, limits.memory_needed),
    ]
}

fn pass(check: &'static str, found: impl Into<String>) -> Finding {
    finding(check, Verdict::Pass, found, "")
}

fn warn(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
    finding(check, Verdict::Warn, found, fix)
}

fn fail(check: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Finding {
    finding(check, Verdict::Fail, found, fix)
}

fn finding(
    check: &'static str,
    verdict: Verdict,
    found: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    Finding {
        check,
        verdict,
        found: found.into(),
        fix: fix.into(),
    }
}

/// Bytes as people read them.
pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// A limit as people read it.
fn limit(bytes_most: Option<u64>) -> String {
    bytes_most.map_or("no limit".to_owned(), bytes)
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    let found = format!("Linux {release}");
    let least = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    match version {
        None => warn(
            "kernel",
            found,
            "its version could not be read; Linux 5.10 or newer is tested",
        ),
        Some(version) if version < KERNEL_LEAST => fail(
            "kernel",
            found,
            format!(
                "upgrade to Linux {} or newer: updates are exported in memory that this one cannot seal",
                least(KERNEL_GOOD)
            ),
        ),
        Some(version) if version < KERNEL_GOOD => {
            let fix = format!(
                "upgrade to Linux {} or newer when you can",
                least(KERNEL_GOOD)
            );
            warn("kernel", found, fix)
        }
        Some(_) => pass("kernel", found),
    }
}

fn memfd(made: &Result<(), String>) -> Finding {
    match made {
        Ok(()) => pass("memfd", "memory can be made, sealed and shared"),
        Err(reason) => fail(
            "memfd",
            reason,
            "allow the system calls memfd_create and fcntl with F_ADD_SEALS (a seccomp profile forbids them?); sealed memory carries a domain's tensors",
        ),
    }
}

fn shm(free: Option<u64>) -> Finding {
    // Memory of ours needs no name there.
    match free {
        Some(free) => pass("/dev/shm", format!("{} free; not used", bytes(free))),
        None => pass("/dev/shm", "not there; not used"),
    }
}

fn descriptors((soft, hard): (u64, u64), needed: u64) -> Finding {
    let found = format!("{soft} may be open, {needed} are needed at most");
    let raise = match hard >= needed {
        true => format!("`ulimit -n {needed}`, or LimitNOFILE={needed} in the systemd unit"),
        false => format!(
            "LimitNOFILE={needed} in the systemd unit, or `nofile` in limits.conf: a user may only ask for {hard}"
        ),
    };
    match soft {
        _ if soft >= needed => pass("descriptors", found),
        // Links beyond the limit are shed and come back: slow, not broken.
        _ if soft >= needed / 2 => warn("descriptors", found, raise),
        _ => fail("descriptors", found, raise),
    }
}

fn locked(most: Option<u64>, needed: Option<u64>) -> Finding {
    let check = "locked memory";
    let Some(needed) = needed else {
        return pass(
            check,
            format!("{}; no fabric of RDMA needs any", limit(most)),
        );
    };
    let found = format!("{}, the fabric locks {}", limit(most), bytes(needed));
    match most {
        Some(most) if most < needed => fail(
            check,
            found,
            "LimitMEMLOCK=infinity in the systemd unit, or `memlock` in limits.conf; or fabric = \"shm\"",
        ),
        _ => pass(check, found),
    }
}

fn memory(most: Option<u64>, needed: u64) -> Finding {
    let found = format!(
        "{}, the nodes here need {} at least",
        limit(most),
        bytes(needed)
    );
    match most {
        Some(most) if most < needed => fail(
            "memory limit",
            found,
            "raise the limit of the container or the unit (MemoryMax): the kernel would kill the node in its first round",
        ),
        Some(most) if most < needed.saturating_mul(2) => warn(
            "memory limit",
            found,
            "twice as much leaves room for training and for healing",
        ),
        _ => pass("memory limit", found),
    }
}

fn clock(facts: &Facts) -> Finding {
    let now = date(facts.unix);
    if facts.unix < facts.made {
        return fail(
            "clock",
            format!("it says {now}, which is before this program was made"),
            "set the clock: certificates would be refused as not yet valid, here or by every peer",
        );
    }
    match facts.synchronized {
        Some(true) => pass("clock", format!("{now}, kept by a time service")),
        Some(false) => warn(
            "clock",
            format!("{now}, and nothing keeps it"),
            "start chrony or systemd-timesyncd: rounds go by monotonic time, but certificates go by this clock",
        ),
        None => warn(
            "clock",
            format!("{now}; whether anything keeps it this machine does not say"),
            "see that chrony or another time service runs, on the host if this is a container",
        ),
    }
}

fn state(state: &State) -> Finding {
    let path = state.path.display();
    match &state.sync {
        Err(reason) => fail(
            "state folder",
            format!("{path}: {reason}"),
            "make it writable for this user, or give another one with --state",
        ),
        Ok(took) if *took > SYNC_MOST => fail(
            "state folder",
            format!("{path}: a small file took {took:.1?} to reach the disk"),
            "put it on another disk: each commit waits for several such writes",
        ),
        Ok(took) if *took > SYNC_GOOD => warn(
            "state folder",
            format!("{path}: a small file took {took:.0?} to reach the disk"),
            "a faster disk makes each commit sooner",
        ),
        Ok(took) => pass(
            "state folder",
            format!("{path}: a small file took {took:.1?} to reach the disk"),
        ),
    }
}

fn room(state: &State) -> Finding {
    let found = format!("{} free for {}", bytes(state.free), state.path.display());
    match state.free {
        free if free < ROOM_LEAST => fail(
            "disk",
            found,
            "make room, or give another folder with --state: a commit that cannot be written ends the run",
        ),
        free if free < ROOM_GOOD => warn(
            "disk",
            found,
            "make room; `checkpoint.every` says how many states are kept",
        ),
        _ => pass("disk", found),
    }
}

fn buffers((asked, receive, send): (usize, usize, usize)) -> Finding {
    let granted = receive.min(send);
    let found = format!(
        "{} to receive and {} to send are granted, {} are asked for",
        bytes(receive as u64),
        bytes(send as u64),
        bytes(asked as u64)
    );
    match granted < asked {
        true => warn(
            "socket buffers",
            found,
            format!(
                "`sysctl -w net.core.rmem_max={asked} net.core.wmem_max={asked}`, and in /etc/sysctl.d: bursts on fast links are lost without"
            ),
        ),
        false => pass("socket buffers", found),
    }
}

fn segments(segments: usize) -> Finding {
    match segments {
        0 | 1 => warn(
            "segmentation",
            "the kernel takes one datagram at a time (no UDP GSO)",
            "a newer kernel or another network driver: sending costs twice the processor time without",
        ),
        many => pass(
            "segmentation",
            format!("the kernel takes {many} datagrams at once"),
        ),
    }
}

fn certificate(certificate: &Certificate) -> Finding {
    let path = certificate.path.display();
    if !certificate.problems.is_empty() {
        return fail(
            "certificate",
            format!("{path}: {}", certificate.problems.join("; ")),
            "`tombolo certs show FILE` has all of it",
        );
    }
    let left = span(certificate.remaining);
    match certificate.remaining < CERTIFICATE_SOON {
        true => warn(
            "certificate",
            format!("{path} ends in {left}"),
            "issue a new one before that",
        ),
        false => pass("certificate", format!("{path}, {left} left")),
    }
}

fn port(port: &Port) -> Finding {
    let head = format!("{} on {}", port.node, port.address);
    match &port.bound {
        Bound::Free => pass("port", format!("{head} is free")),
        Bound::Running => pass("port", format!("{head}: the node runs and has it")),
        Bound::Refused(reason) => fail(
            "port",
            format!("{head}: {reason}"),
            format!(
                "free the port (`ss -ulpn`), or change `listen` of {}",
                port.node
            ),
        ),
    }
}

fn own(own: &Own) -> Finding {
    let head = format!("{} tells others to dial {}", own.node, own.host);
    let addresses = match &own.addresses {
        Ok(addresses) => addresses,
        Err(reason) => {
            return fail(
                "advertised address",
                format!("{head}: {reason}"),
                format!("correct `advertise` of {}, or the name's record", own.node),
            );
        }
    };
    let lost = addresses.iter().filter(|(_, came)| !came);
    let lost: Vec<String> = lost.map(|(address, _)| address.to_string()).collect();
    match lost.is_empty() {
        true => pass(
            "advertised address",
            format!("{head}: a datagram comes back"),
        ),
        // A translation of addresses may refuse to turn around what it lets through from outside.
        false => warn(
            "advertised address",
            format!(
                "{head}: no datagram that is sent to {} comes back",
                lost.join(", ")
            ),
            "if this is behind a translation of addresses, ask another machine with `tombolo doctor`; else allow UDP to this port in the firewall",
        ),
    }
}

fn peer(peer: &Peer) -> Finding {
    let head = format!("{} at {}", peer.node, peer.host);
    let addresses = match &peer.addresses {
        Ok(addresses) => addresses,
        Err(reason) => {
            return fail(
                "peer",
                format!("{head}: {reason}"),
                format!(
                    "correct `advertise` of {}, the name's record, or this machine's resolver",
                    peer.node
                ),
            );
        }
    };
    if let Some((address, _)) = addresses
        .iter()
        .find(|(address, _)| peer.is_elsewhere && address.ip().to_canonical().is_loopback())
    {
        return fail(
            "peer",
            format!("{head}: here that is {address}, this very machine"),
            "correct /etc/hosts or the name's record: the peer is on another machine",
        );
    }
    let worst = addresses.iter().map(|(_, answer)| answer.payload()).max();
    let said: Vec<String> = addresses
        .iter()
        .map(|(address, answer)| format!("{address} {answer}"))
        .collect();
    let found = format!("{head}: {}", said.join(", "));
    let all = |of: fn(&Answer) -> bool| addresses.iter().all(|(_, answer)| of(answer));
    match worst.flatten() {
        _ if addresses
            .iter()
            .any(|(_, answer)| matches!(answer, Answer::Absent))
            && worst.flatten().is_none() =>
        {
            warn(
                "peer",
                found,
                format!("{} does not run yet, or listens elsewhere", peer.node),
            )
        }
        None if all(|answer| matches!(answer, Answer::Unreachable(_))) => fail(
            "peer",
            found,
            "see that this machine has a route there (`ip route get`)",
        ),
        None => fail(
            "peer",
            found,
            "allow UDP to that port in every firewall on the way, both ways; or start the peer",
        ),
        Some(payload) if payload < PAYLOAD_LEAST => fail(
            "peer",
            found,
            "raise the MTU on the way (a tunnel?): QUIC needs packets of 1,200 bytes",
        ),
        Some(payload) if payload < PAYLOAD_GOOD => warn(
            "peer",
            found,
            "large packets are lost on the way (a tunnel?): it works, with more packets",
        ),
        Some(_) => pass("peer", found),
    }
}

#[cfg(test)]
mod tests;
