use super::*;

fn good() -> Facts {
    Facts {
        kernel: "6.1.0-25-amd64".into(),
        memfd: Ok(()),
        limits: Limits {
            shm: Some(1 << 30),
            descriptors: (1024, 4096),
            descriptors_needed: 256,
            locked: Some(8 << 20),
            locked_needed: None,
            memory: None,
            memory_needed: 100 << 20,
        },
        synchronized: Some(true),
        unix: 1_800_000_000,
        made: 1_700_000_000,
        certificates: vec![Certificate {
            path: "certs/hq/gate.pem".into(),
            remaining: 90 * 24 * 3600,
            problems: Vec::new(),
        }],
        state: State {
            path: "/var/lib/tombolo".into(),
            sync: Ok(Duration::from_millis(3)),
            free: 100 << 30,
        },
        ports: vec![Port {
            node: "hq/gate".into(),
            address: address("0.0.0.0:4600"),
            bound: Bound::Free,
        }],
        buffers: (4 << 20, 4 << 20, 4 << 20),
        segments: 64,
        own: vec![Own {
            node: "hq/gate".into(),
            host: "hq.example:4600".into(),
            addresses: Ok(vec![(address("192.0.2.1:4600"), true)]),
        }],
        peers: vec![Peer {
            node: "plant/gate".into(),
            host: "plant.example:4600".into(),
            is_elsewhere: true,
            addresses: Ok(vec![(address("192.0.2.2:4600"), Answer::Quic(1472))]),
        }],
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// The one thing that is not as it should be, once something is changed.
#[track_caller]
fn trouble(change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = good();
    change(&mut facts);
    let mut found: Vec<Finding> = judge(&facts)
        .into_iter()
        .filter(|finding| finding.verdict != Verdict::Pass)
        .collect();
    assert_eq!(found.len(), 1, "{found:#?}");
    let finding = found.remove(0);
    assert!(
        !finding.fix.is_empty(),
        "{finding:?} says nothing of what to do"
    );
    finding
}

#[track_caller]
fn is(finding: &Finding, check: &str, verdict: Verdict, found: &str, fix: &str) {
    assert_eq!(
        (finding.check, finding.verdict),
        (check, verdict),
        "{finding:?}"
    );
    assert!(finding.found.contains(found), "{finding:?}");
    assert!(finding.fix.contains(fix), "{finding:?}");
}

use Verdict::{Fail, Warn};

#[test]
fn where_all_is_well_nothing_is_said_of_it() {
    let findings = judge(&good());
    assert!(
        findings
            .iter()
            .all(|finding| finding.verdict == Verdict::Pass && finding.fix.is_empty()),
        "{findings:#?}"
    );
    assert_eq!(findings.len(), 15);
}

#[test]
fn a_kernel_that_is_too_old_or_unknown_is_named() {
    let old = |release: &'static str| trouble(|facts| facts.kernel = release.into());
    is(&old("4.19.0-27"), "kernel", Fail, "4.19", "5.10");
    is(&old("5.4.0-150-generic"), "kernel", Warn, "5.4", "5.10");
    is(&old("strange"), "kernel", Warn, "strange", "5.10");
}

#[test]
fn memory_that_cannot_be_sealed_or_is_scarce_is_named() {
    let finding = trouble(|facts| facts.memfd = Err("EPERM".into()));
    is(&finding, "memfd", Fail, "EPERM", "seccomp");
    let limit = |bytes| trouble(|facts| facts.limits.memory = Some(bytes));
    is(
        &limit(64 << 20),
        "memory limit",
        Fail,
        "64 MiB",
        "MemoryMax",
    );
    is(&limit(150 << 20), "memory limit", Warn, "150 MiB", "twice");
}

#[test]
fn limits_of_descriptors_and_locked_memory_are_compared_with_the_need() {
    let open = |soft, hard| trouble(|facts| facts.limits.descriptors = (soft, hard));
    is(&open(64, 4096), "descriptors", Fail, "64", "ulimit -n 256");
    is(&open(200, 4096), "descriptors", Warn, "200", "ulimit");
    is(&open(64, 64), "descriptors", Fail, "64", "limits.conf");
    let finding = trouble(|facts| facts.limits.locked_needed = Some(1 << 30));
    is(&finding, "locked memory", Fail, "1.0 GiB", "LimitMEMLOCK");
}

#[test]
fn a_clock_that_is_off_or_that_nobody_keeps_is_named() {
    let finding = trouble(|facts| facts.unix = 1_600_000_000);
    is(&finding, "clock", Fail, "2020-09-13", "not yet valid");
    let finding = trouble(|facts| facts.synchronized = Some(false));
    is(&finding, "clock", Warn, "nothing keeps it", "chrony");
    let finding = trouble(|facts| facts.synchronized = None);
    is(&finding, "clock", Warn, "does not say", "host");
}

#[test]
fn a_disk_that_is_full_slow_or_read_only_is_named() {
    let finding = trouble(|facts| facts.state.sync = Err("Read-only file system".into()));
    is(&finding, "state folder", Fail, "Read-only", "--state");
    let slow = |millis| trouble(|facts| facts.state.sync = Ok(Duration::from_millis(millis)));
    is(&slow(250), "state folder", Warn, "250ms", "faster disk");
    is(&slow(5000), "state folder", Fail, "5.0s", "another disk");
    let room = |free| trouble(|facts| facts.state.free = free);
    is(&room(1 << 20), "disk", Fail, "1 MiB", "ends the run");
    is(
        &room(500 << 20),
        "disk",
        Warn,
        "500 MiB",
        "checkpoint.every",
    );
}

#[test]
fn a_certificate_that_is_wrong_or_ends_soon_is_named() {
    let finding = trouble(|facts| {
        facts.certificates[0].problems = vec!["it expired".into(), "it is of domain lab".into()]
    });
    is(
        &finding,
        "certificate",
        Fail,
        "it expired; it is of domain lab",
        "certs show",
    );
    let finding = trouble(|facts| facts.certificates[0].remaining = 3 * 24 * 3600);
    is(
        &finding,
        "certificate",
        Warn,
        "hq/gate.pem ends in",
        "new one",
    );
}

#[test]
fn a_port_that_is_taken_is_named_unless_the_node_itself_has_it() {
    let finding = trouble(|facts| facts.ports[0].bound = Bound::Refused("address in use".into()));
    is(
        &finding,
        "port",
        Fail,
        "hq/gate on 0.0.0.0:4600: address in use",
        "`listen` of hq/gate",
    );
    let mut facts = good();
    facts.ports[0].bound = Bound::Running;
    assert!(
        judge(&facts)
            .iter()
            .all(|finding| finding.verdict == Verdict::Pass)
    );
}

#[test]
fn sockets_that_could_do_better_are_named() {
    let finding = trouble(|facts| facts.buffers.1 = 212_992);
    is(
        &finding,
        "socket buffers",
        Warn,
        "208 KiB",
        "net.core.rmem_max=4194304",
    );
    let finding = trouble(|facts| facts.segments = 1);
    is(&finding, "segmentation", Warn, "one datagram", "kernel");
}

#[test]
fn an_own_address_that_leads_nowhere_is_named() {
    let finding = trouble(|facts| facts.own[0].addresses = Err("no such name".into()));
    is(
        &finding,
        "advertised address",
        Fail,
        "hq.example:4600: no such name",
        "`advertise` of hq/gate",
    );
    let finding =
        trouble(|facts| facts.own[0].addresses = Ok(vec![(address("198.51.100.7:4600"), false)]));
    is(
        &finding,
        "advertised address",
        Warn,
        "198.51.100.7",
        "firewall",
    );
}

/// ray#37461, nccl#913: an address that means this machine is never taken for a peer's.
#[test]
fn a_peer_that_does_not_answer_is_named_with_the_likely_cause() {
    let peer = |answer: Answer| {
        trouble(|facts| facts.peers[0].addresses = Ok(vec![(address("192.0.2.2:4600"), answer)]))
    };
    is(
        &peer(Answer::Silent),
        "peer",
        Fail,
        "does not answer",
        "firewall",
    );
    is(
        &peer(Answer::Absent),
        "peer",
        Warn,
        "nothing listens",
        "does not run yet",
    );
    let unreachable = Answer::Unreachable("Network is unreachable".into());
    is(
        &peer(unreachable),
        "peer",
        Fail,
        "Network is unreachable",
        "ip route",
    );
    is(
        &peer(Answer::Quic(1200)),
        "peer",
        Warn,
        "1200 bytes",
        "tunnel",
    );
    let finding = trouble(|facts| facts.peers[0].addresses = Err("no such name".into()));
    is(&finding, "peer", Fail, "no such name", "resolver");
    let finding = trouble(|facts| {
        facts.peers[0].addresses = Ok(vec![(address("127.0.1.1:4600"), Answer::Absent)]);
    });
    is(&finding, "peer", Fail, "this very machine", "/etc/hosts");
}

/// hyper#1316: one address that answers is enough.
#[test]
fn a_peer_needs_one_address_that_answers() {
    let mut facts = good();
    facts.peers[0].addresses = Ok(vec![
        (address("[2001:db8::2]:4600"), Answer::Silent),
        (address("192.0.2.2:4600"), Answer::Quic(1472)),
    ]);
    assert!(
        judge(&facts)
            .iter()
            .all(|finding| finding.verdict == Verdict::Pass)
    );
}
