//! What a preflight means: pure, from what was measured and what the topology says.

mod absent;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tombolo_core::aggregate::Needs;
use tombolo_core::compress::planner::PRICES;
use tombolo_core::compress::{Codec, Coding, Lossless};
use tombolo_core::congestion::Law;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::{Deadline, Plan, SyncEvery};

use super::places::Places;
use super::talk::{Link, Way};
use crate::doctor::{self, Verdict};

pub use absent::{Absent, Why, absent};

/// Lost probes of a thousand from which on somebody should look.
const LOSS_MOST: u64 = 5;

/// The same at which heartbeats and rounds suffer whatever the law.
const LOSS_BROKEN: u64 = 200;

/// The payload of ordinary Ethernet, IPv6.
const PACKET_GOOD: u16 = 1452;

/// Two wall clocks that are further apart are worth a word, in microseconds.
const OFFSET_MOST: u64 = 1_000_000;

/// The share of the expected bandwidth, in hundredths, below which a link is slower than the topology says.
const RATE_LEAST: u64 = 60;

/// Round trips of a round beside its bytes: open and train, reports and weights, contribution and acknowledgement, commit and model.
const ROUND_TRIPS: u64 = 4;

/// What a socket is asked for: no more helps.
const BUFFER_MOST: u64 = 4 << 20;

/// What is said of one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which.
    pub check: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// Of whom: a node, a link `A - B`, a direction `A -> B`, a domain.
    pub subject: String,
    /// What it should be.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub expected: String,
    /// What was found.
    pub found: String,
    /// What to do about it; empty if nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

/// What a node's machine looks like from its place in the federation.
#[derive(Debug, Clone)]
pub struct Own {
    /// The node.
    pub node: NodeId,
    /// What it tells others to dial, and whether that names this very machine; none if the topology gives no address.
    pub host: Option<(String, bool)>,
    /// A peer that the topology has on another machine.
    pub elsewhere: Option<NodeId>,
}

/// What a model weighs in this federation, in bytes of `f32`; none if it is not known.
pub type ModelBytes = Option<u64>;

/// A link between sites.
pub fn link(plan: &Plan, is_emulated: bool, model: ModelBytes, link: &Link) -> Vec<Finding> {
    let mut findings = vec![reached(link), round_trip(plan, is_emulated, link)];
    let pairs = [(link, true), (link, false)];
    findings.extend(pairs.map(|(link, there)| loss(plan, link, there)));
    findings.extend(pairs.map(|(link, there)| bandwidth(plan, is_emulated, link, there)));
    findings.extend(pairs.map(|(link, there)| packets(link, there)));
    findings.extend(pairs.map(|(link, there)| buffers(link, there)));
    findings.push(clock(link));
    findings.extend(round(plan, model, link));
    findings
}

fn finding(
    check: &'static str,
    subject: String,
    verdict: Verdict,
    expected: impl Into<String>,
    found: impl Into<String>,
    fix: impl Into<String>,
) -> Finding {
    let fix = match verdict {
        Verdict::Pass => String::new(),
        _ => fix.into(),
    };
    Finding {
        check,
        verdict,
        subject,
        expected: expected.into(),
        found: found.into(),
        fix,
    }
}

fn both(link: &Link) -> String {
    format!("{} - {}", link.from, link.to)
}

/// One direction: who sends, who receives, and what was measured of it.
fn way(link: &Link, there: bool) -> (&NodeId, &NodeId, &Way) {
    match there {
        true => (&link.from, &link.to, &link.there),
        false => (&link.to, &link.from, &link.back),
    }
}

fn directed(link: &Link, there: bool) -> String {
    let (from, to, _) = way(link, there);
    format!("{from} -> {to}")
}

/// Bits a second as people read them.
pub fn rate(bits_per_s: u64) -> String {
    match bits_per_s {
        0..1_000_000 => format!("{} kbit/s", bits_per_s / 1000),
        1_000_000..1_000_000_000 => format!("{:.1} Mbit/s", bits_per_s as f64 / 1e6),
        _ => format!("{:.2} Gbit/s", bits_per_s as f64 / 1e9),
    }
}

/// Microseconds as people read them.
pub fn micros(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} us"),
        1000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        _ => format!("{:.1} s", micros as f64 / 1e6),
    }
}

fn reached(link: &Link) -> Finding {
    finding(
        "reached",
        both(link),
        Verdict::Pass,
        "UDP gets through, and both prove who they are",
        format!("{} dials {} at {}", link.from, link.to, link.address),
        "",
    )
}

fn round_trip(plan: &Plan, is_emulated: bool, link: &Link) -> Finding {
    let (median, late) = link.round_trip_us;
    let period = u64::try_from(plan.heartbeat.every.as_micros()).unwrap_or(u64::MAX);
    let (from, to) = (link.from.domain(), link.to.domain());
    let delay = plan.link(&from, &to).filter(|_| is_emulated);
    let delay = delay.map_or(Duration::ZERO, |link| 2 * link.emulate.delay);
    let expected = match delay.is_zero() {
        true => format!("less than a heartbeat's period, {}", micros(period)),
        false => format!(
            "about {delay:.0?} as the file emulates it, less than a heartbeat's period, {}",
            micros(period)
        ),
    };
    finding(
        "round trip",
        both(link),
        if late < period {
            Verdict::Pass
        } else {
            Verdict::Warn
        },
        expected,
        format!("median {}, p99 {}", micros(median), micros(late)),
        "set `every` in [heartbeat] to more than a round trip, on all machines: peers that are only far away look lost else",
    )
}

/// Lost probes of a thousand.
fn lost(way: &Way) -> u64 {
    let lost = u64::from(way.probes.saturating_sub(way.came)) * 1000;
    lost.checked_div(u64::from(way.probes)).unwrap_or(1000)
}

fn law(plan: &Plan, link: &Link) -> Law {
    let planned = plan.link(&link.from.domain(), &link.to.domain());
    planned.map_or(Law::Cubic, |link| link.congestion)
}

fn loss(plan: &Plan, link: &Link, there: bool) -> Finding {
    let (_, _, way) = way(link, there);
    let lost = lost(way);
    let verdict = match lost {
        LOSS_BROKEN.. => Verdict::Fail,
        LOSS_MOST.. => Verdict::Warn,
        _ => Verdict::Pass,
    };
    let fix = match (verdict, law(plan, link)) {
        (Verdict::Fail, _) => {
            "a fault of the line, a full path or a policer: measure hop by hop (`mtr`); a run would lose peers".to_owned()
        }
        (_, Law::Cubic) => format!(
            "{}, which does not take each loss for a full path; and look for the hop that loses (`mtr`)",
            of_link(link, "congestion = \"delay-gradient\"")
        ),
        (_, law) => format!("{law} bears it; look for the hop that loses (`mtr`)"),
    };
    finding(
        "loss",
        directed(link, there),
        verdict,
        format!("less than {:.1} %", LOSS_MOST as f64 / 10.0),
        format!(
            "{:.1} %: {} of {} probes",
            lost as f64 / 10.0,
            way.probes.saturating_sub(way.came),
            way.probes
        ),
        fix,
    )
}

/// Where a key of a link belongs.
fn of_link(link: &Link, key: &str) -> String {
    let (from, to) = (link.from.domain(), link.to.domain());
    format!("write {key} in the [[link]] between {from} and {to}")
}

/// What a direction ought to carry by the topology, and by which of its words.
fn stated(
    plan: &Plan,
    is_emulated: bool,
    from: &DomainId,
    to: &DomainId,
) -> Option<(u64, &'static str)> {
    let cap = plan.cap(from, to).map(|cap| (cap.least(), "cap"));
    let path = plan.link(from, to).filter(|_| is_emulated);
    let path = path.and_then(|link| link.emulate.rate);
    let path = path.map(|rate| (rate, "emulated rate"));
    cap.into_iter().chain(path).min()
}

fn bandwidth(plan: &Plan, is_emulated: bool, link: &Link, there: bool) -> Finding {
    let (from, to, way) = way(link, there);
    let found = way.flow.bits_per_s;
    let law = law(plan, link);
    let stated = stated(plan, is_emulated, &from.domain(), &to.domain());
    let expected = match stated {
        Some((most, word)) => format!("near the {word} of {}", rate(most)),
        None => "as much as the line is sold for; the file states nothing".to_owned(),
    };
    let is_slow = stated.is_some_and(|(most, _)| found < most / 100 * RATE_LEAST);
    let is_held_back = law == Law::Cubic && lost(way).max(lost_other(link, there)) >= 1;
    let (verdict, fix) = match (found, is_slow) {
        (0, _) => (
            Verdict::Fail,
            "nothing came of a flow: see whether a firewall ends long UDP flows".to_owned(),
        ),
        (_, true) if is_held_back => (
            Verdict::Warn,
            format!(
                "cubic takes each loss for a full path: {}",
                of_link(link, "congestion = \"delay-gradient\"")
            ),
        ),
        (_, true) => (
            Verdict::Warn,
            "see who else uses the line, and what the socket buffers are; or state what it carries"
                .to_owned(),
        ),
        (_, false) => (Verdict::Pass, String::new()),
    };
    let found = format!(
        "{} with {law}: {} in {}",
        rate(found),
        doctor::bytes(way.flow.bytes),
        micros(way.flow.micros)
    );
    finding(
        "bandwidth",
        directed(link, there),
        verdict,
        expected,
        found,
        fix,
    )
}

fn lost_other(link: &Link, there: bool) -> u64 {
    lost(way(link, !there).2)
}

fn packets(link: &Link, there: bool) -> Finding {
    let (_, _, way) = way(link, there);
    let side = way.side;
    let vanished = match side.black_holes {
        0 => String::new(),
        times => format!("; larger ones vanished without a word {times} times"),
    };
    let is_good = side.packet_bytes >= PACKET_GOOD && side.black_holes == 0;
    finding(
        "packet size",
        directed(link, there),
        if is_good {
            Verdict::Pass
        } else {
            Verdict::Warn
        },
        format!("{PACKET_GOOD} bytes of payload or more"),
        format!(
            "{} bytes of payload get through{vanished}",
            side.packet_bytes
        ),
        "a tunnel or a smaller MTU on the way, and routers that do not tell: it works, with more packets; raise the MTU there, or let ICMP `fragmentation needed` pass",
    )
}

fn buffers(link: &Link, there: bool) -> Finding {
    let (from, to, way) = way(link, there);
    let product = u128::from(way.flow.bits_per_s) / 8 * u128::from(link.round_trip_us.0);
    let product = u64::try_from(product / 1_000_000).unwrap_or(u64::MAX);
    let needed = product.min(BUFFER_MOST);
    let (send, receive) = way.buffers;
    let granted = send.min(receive);
    let who = if send < receive { from } else { to };
    finding(
        "socket buffers",
        directed(link, there),
        if granted >= needed {
            Verdict::Pass
        } else {
            Verdict::Warn
        },
        format!(
            "{}: what is on the way at this pace and round trip is {}, and more than {} is never asked for",
            doctor::bytes(needed),
            doctor::bytes(product),
            doctor::bytes(BUFFER_MOST)
        ),
        format!(
            "{} to send and {} to receive are granted",
            doctor::bytes(send),
            doctor::bytes(receive)
        ),
        format!(
            "on the machine of {who}: `sysctl -w net.core.rmem_max={BUFFER_MOST} net.core.wmem_max={BUFFER_MOST}`, and in /etc/sysctl.d"
        ),
    )
}

fn clock(link: &Link) -> Finding {
    let apart = link.offset_us.unsigned_abs();
    let side = match link.offset_us {
        0.. => "ahead of",
        _ => "behind",
    };
    let verdict = match apart.saturating_sub(link.bound_us) > OFFSET_MOST {
        true => Verdict::Warn,
        false => Verdict::Pass,
    };
    finding(
        "clock",
        both(link),
        verdict,
        format!("wall clocks within {}", micros(OFFSET_MOST)),
        format!(
            "{} is {} {side} {}, give or take {}",
            link.to,
            micros(apart),
            link.from,
            micros(link.bound_us)
        ),
        "start chrony or another time service on both: rounds go by monotonic time, but certificates go by these clocks",
    )
}

/// Bytes that travel for one element: what the planner's table says, else what follows from the codec.
fn bytes_of(coding: Coding) -> f64 {
    let stated = |wanted: Coding| PRICES.iter().find(|price| price.coding == wanted);
    let plain = Coding {
        lossless: Lossless::None,
        ..coding
    };
    if let Some(price) = stated(coding).or_else(|| stated(plain)) {
        return price.bytes;
    }
    match coding.codec {
        Codec::TopK { share, halves } => {
            let kept = (f64::from(share) / 1e6).clamp(1e-6, 1.0);
            let rest = 1.0 - kept;
            // The entropy of which elements are sent, and their values.
            let which = match rest > 0.0 {
                true => -(kept * kept.log2() + rest * rest.log2()) / 8.0,
                false => 0.0,
            };
            which + kept * if halves { 2.0 } else { 4.0 }
        }
        Codec::Fp16 | Codec::Bf16 => 2.0,
        Codec::Int8 => 1.0,
        Codec::None => 4.0,
    }
}

/// What a round's bytes take on a link to the coordinator; none elsewhere.
fn round(plan: &Plan, model: ModelBytes, link: &Link) -> Option<Finding> {
    let home = &plan.coordinator;
    let there = match (&link.from == home, &link.to == home) {
        (false, true) => true,
        (true, false) => false,
        _ => return None,
    };
    let (gateway, _, up) = way(link, there);
    let (_, _, down) = way(link, !there);
    let check = "round";
    let subject = both(link);
    let Some(model) = model else {
        let fix = "give --model-bytes BYTES";
        let found = "nobody here knows the size of the model";
        let expected = "a known size";
        return Some(finding(check, subject, Verdict::Warn, expected, found, fix));
    };
    let domain = gateway.domain();
    let coding = plan.codec(&domain);
    let updates = match plan.aggregator.needs {
        Needs::Sum => 1,
        _ => plan.domain(&domain).map_or(1, |domain| domain.nodes.len()),
    };
    let upload = (model as f64 / 4.0 * bytes_of(coding)) as u64 * updates as u64;
    let span = |bytes: u64, way: &Way| {
        let bits = u128::from(bytes) * 8 * 1_000_000;
        let micros = bits.checked_div(u128::from(way.flow.bits_per_s));
        micros.and_then(|micros| u64::try_from(micros).ok())
    };
    let (Some(down_us), Some(up_us)) = (span(model, down), span(upload, up)) else {
        let found = "the link carries nothing, so a round never ends";
        let fix = "mend what the lines on bandwidth name";
        let expected = "an end";
        return Some(finding(check, subject, Verdict::Fail, expected, found, fix));
    };
    let trips = link.round_trip_us.0.saturating_mul(ROUND_TRIPS);
    let total = down_us.saturating_add(up_us).saturating_add(trips);
    let steps = match plan.sync_every {
        SyncEvery::Steps(steps) => format!("{steps} local steps"),
        SyncEvery::Epochs(epochs) => format!("{epochs} passes over a node's rows"),
    };
    let found = format!(
        "{} of network: the model down ({}) {}, {} up ({}, codec {coding}) {}, {ROUND_TRIPS} round trips {}; not in it: {steps}, evaluation, disks, lossless stages on the way down, other sites on the same line",
        micros(total),
        doctor::bytes(model),
        micros(down_us),
        match updates {
            1 => "a sum".to_owned(),
            many => format!("{many} updates"),
        },
        doctor::bytes(upload),
        micros(up_us),
        micros(trips),
    );
    let (verdict, expected) = match plan.round.deadline {
        Deadline::Adaptive => (
            Verdict::Pass,
            "no fixed deadline: it follows the rounds".to_owned(),
        ),
        Deadline::Fixed(limit) => {
            let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
            let verdict = match total {
                total if total >= limit_us => Verdict::Fail,
                total if total > limit_us / 2 => Verdict::Warn,
                _ => Verdict::Pass,
            };
            let expected = format!(
                "less than half of the deadline of {}: training is to have the rest",
                micros(limit_us)
            );
            (verdict, expected)
        }
    };
    let fix = format!(
        "a longer `deadline` in [round], or fewer bytes: {}",
        of_link(link, "codec = \"int8\" or \"topk\"")
    );
    Some(finding(check, subject, verdict, expected, found, fix))
}

/// The control links of a domain: those that were reached, of those that were to be.
pub fn control(domain: &DomainId, reached: usize, missing: usize) -> Finding {
    let all = reached + missing;
    let verdict = match missing {
        0 => Verdict::Pass,
        _ => Verdict::Fail,
    };
    finding(
        "control links",
        domain.to_string(),
        verdict,
        format!("all {all} reached"),
        format!("{reached} of {all} reached"),
        "each that is missing has a line of its own",
    )
}

/// An address of this machine alone that is told to others.
pub fn advertised(own: &Own) -> Option<Finding> {
    let (host, is_loopback) = own.host.as_ref()?;
    let elsewhere = own.elsewhere.as_ref()?;
    let verdict = match is_loopback {
        true => Verdict::Fail,
        false => Verdict::Pass,
    };
    Some(finding(
        "advertised address",
        own.node.to_string(),
        verdict,
        format!("one that {elsewhere}, on another machine, can dial"),
        format!("{} tells others to dial {host}", own.node),
        format!(
            "`advertise` of {} in the topology: a name or an address that others reach",
            own.node
        ),
    ))
}

/// Where device, interrupts and gateway sit; none where there is one node, or none known.
pub fn places(node: &NodeId, peer: &NodeId, places: &Places) -> Option<Finding> {
    let device = places.device.as_ref()?;
    let at = places.device_node?;
    if places.nodes.len() < 2 {
        return None;
    }
    let named = |nodes: &BTreeSet<u32>| match nodes.is_empty() {
        true => "unknown".to_owned(),
        false => {
            let each: Vec<String> = nodes.iter().map(u32::to_string).collect();
            each.join(", ")
        }
    };
    let strays = |nodes: &BTreeSet<u32>| !nodes.is_empty() && !nodes.contains(&at);
    let mut fixes = Vec::new();
    if strays(&places.interrupt_nodes) {
        fixes.push(format!(
            "bind the interrupts of {device} to processors of node {at} (/proc/irq/*/smp_affinity_list, or irqbalance)"
        ));
    }
    if strays(&places.own_nodes) {
        fixes.push(format!(
            "start {node} on node {at}: `numactl --cpunodebind={at} --membind={at}`, or CPUAffinity= and NUMAMask={at} in the unit"
        ));
    }
    let verdict = match fixes.is_empty() {
        true => Verdict::Pass,
        false => Verdict::Warn,
    };
    Some(finding(
        "NUMA",
        node.to_string(),
        verdict,
        format!("device, interrupts and gateway on one node, {at}"),
        format!(
            "{device}, on the way to {peer}, is on node {at}; its interrupts go to {}; {node} may run on {}",
            named(&places.interrupt_nodes),
            named(&places.own_nodes)
        ),
        fixes.join("; "),
    ))
}

/// What `doctor` says of this machine's limits.
pub fn limit(host: &str, found: doctor::Finding) -> Finding {
    finding(
        found.check,
        host.to_owned(),
        found.verdict,
        "",
        found.found,
        found.fix,
    )
}

#[cfg(test)]
mod tests;
