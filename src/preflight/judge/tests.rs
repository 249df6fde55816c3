use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use super::super::places;
use super::super::talk::{Flow, Side};
use super::*;
use crate::doctor::Answer;

const TOPOLOGY: &str = r#"
[federation]
name = "harbour"
coordinator = "hq/gate"
[round]
deadline = "10s"
[[domain]]
name = "hq"
nodes = ["gate", "a"]
[[domain]]
name = "lab"
nodes = ["gate"]
[[link]]
between = ["hq", "lab"]
emulate = { delay = "40ms", rate = "20 Mbit/s" }
codec = "int8"
"#;

fn plan(text: &str) -> Plan {
    crate::topology::parse("harbour.toml", text, Path::new(".")).unwrap()
}

fn way() -> Way {
    Way {
        probes: 500,
        came: 500,
        flow: Flow {
            bytes: 6 << 20,
            micros: 3_000_000,
            bits_per_s: 18_000_000,
        },
        side: Side {
            packet_bytes: 1452,
            black_holes: 0,
        },
        buffers: (4 << 20, 4 << 20),
    }
}

fn good() -> Link {
    Link {
        from: "lab/gate".parse().unwrap(),
        to: "hq/gate".parse().unwrap(),
        address: "192.0.2.1:4600".parse().unwrap(),
        round_trip_us: (81_000, 83_000),
        offset_us: -300,
        bound_us: 40_500,
        there: way(),
        back: way(),
    }
}

const MODEL: u64 = 400_000;

/// What is not as it should be, once something is changed.
fn troubles(text: &str, change: impl FnOnce(&mut Link)) -> Vec<Finding> {
    let mut measured = good();
    change(&mut measured);
    let all = link(&plan(text), true, Some(MODEL), &measured);
    let found = all
        .into_iter()
        .filter(|finding| finding.verdict != Verdict::Pass);
    let found: Vec<Finding> = found.collect();
    for finding in &found {
        assert!(
            !finding.fix.is_empty() && !finding.expected.is_empty(),
            "{finding:?} says nothing of what was expected or what to do"
        );
    }
    found
}

#[track_caller]
fn trouble(change: impl FnOnce(&mut Link)) -> Finding {
    let mut found = troubles(TOPOLOGY, change);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn a_link_as_the_topology_says_passes_and_each_check_is_there_once_a_direction() {
    assert_eq!(troubles(TOPOLOGY, |_| {}), []);
    let all = link(&plan(TOPOLOGY), true, Some(MODEL), &good());
    let count = |check| all.iter().filter(|finding| finding.check == check).count();
    for check in ["reached", "round trip", "clock", "round"] {
        assert_eq!(count(check), 1, "{check}");
    }
    for check in ["loss", "bandwidth", "packet size", "socket buffers"] {
        assert_eq!(count(check), 2, "{check}");
    }
}

#[test]
fn each_trouble_is_one_line_of_its_check_with_its_direction() {
    type Change = fn(&mut Link);
    let cases: [(Change, &str, &str, Verdict, &str); 10] = [
        (
            |link| link.round_trip_us = (300_000, 1_500_000),
            "round trip",
            "lab/gate - hq/gate",
            Verdict::Warn,
            "[heartbeat]",
        ),
        (
            |link| link.there.came = 490,
            "loss",
            "lab/gate -> hq/gate",
            Verdict::Warn,
            "delay-gradient",
        ),
        (
            |link| link.back.came = 350,
            "loss",
            "hq/gate -> lab/gate",
            Verdict::Fail,
            "mtr",
        ),
        (
            |link| link.back.flow.bits_per_s = 9_000_000,
            "bandwidth",
            "hq/gate -> lab/gate",
            Verdict::Warn,
            "who else uses the line",
        ),
        (
            |link| link.there.side.packet_bytes = 1300,
            "packet size",
            "lab/gate -> hq/gate",
            Verdict::Warn,
            "MTU",
        ),
        // quinn#2791: packet size and black holes are visible for each link.
        (
            |link| link.back.side.black_holes = 2,
            "packet size",
            "hq/gate -> lab/gate",
            Verdict::Warn,
            "MTU",
        ),
        (
            |link| link.there.buffers = (4 << 20, 100_000),
            "socket buffers",
            "lab/gate -> hq/gate",
            Verdict::Warn,
            "on the machine of hq/gate",
        ),
        (
            |link| link.back.buffers = (100_000, 4 << 20),
            "socket buffers",
            "hq/gate -> lab/gate",
            Verdict::Warn,
            "on the machine of hq/gate",
        ),
        (
            |link| link.offset_us = -3_000_000,
            "clock",
            "lab/gate - hq/gate",
            Verdict::Warn,
            "chrony",
        ),
        (
            |link| link.offset_us = i64::MIN,
            "clock",
            "lab/gate - hq/gate",
            Verdict::Warn,
            "chrony",
        ),
    ];
    for (change, check, subject, verdict, fix) in cases {
        let found = trouble(change);
        assert_eq!(
            (found.check, found.subject.as_str(), found.verdict),
            (check, subject, verdict),
            "{found:?}"
        );
        assert!(found.fix.contains(fix), "{found:?}");
    }
    // An offset that the bound may explain is none.
    assert_eq!(
        troubles(TOPOLOGY, |link| {
            link.offset_us = 1_900_000;
            link.bound_us = 950_000;
        }),
        []
    );
}

#[test]
fn a_line_that_loses_holds_cubic_back_and_another_law_bears_it() {
    let lossy = |link: &mut Link| {
        link.there.came = 494;
        link.there.flow.bits_per_s = 2_000_000;
    };
    let cubic = troubles(TOPOLOGY, lossy);
    assert_eq!(cubic.len(), 2, "{cubic:#?}");
    assert!(
        cubic
            .iter()
            .all(|finding| finding.fix.contains("delay-gradient"))
    );
    let text = TOPOLOGY.replace("codec =", "congestion = \"delay-gradient\"\ncodec =");
    let gradient = troubles(&text, |link| link.there.came = 494);
    assert_eq!(gradient.len(), 1, "{gradient:#?}");
    assert!(gradient[0].fix.contains("delay-gradient bears it"));
}

#[test]
fn a_cap_is_what_a_line_is_held_to_and_without_one_a_real_line_is_held_to_nothing() {
    let text = TOPOLOGY.replace("codec =", "cap = \"100 Mbit/s\"\ncodec =");
    let capped = plan(&text);
    let found = |is_emulated| {
        let all = link(&capped, is_emulated, None, &good());
        let of = |finding: &Finding| finding.check == "bandwidth";
        let each = all.into_iter().filter(of);
        each.map(|finding| (finding.subject, finding.verdict, finding.expected))
            .collect::<Vec<_>>()
    };
    // A cap holds for both directions unless the file says otherwise.
    for (subject, verdict, expected) in found(false) {
        assert_eq!(verdict, Verdict::Warn, "{subject}");
        assert!(expected.contains("cap of 100.0 Mbit/s"), "{expected}");
    }
    let free = link(&plan(TOPOLOGY), false, None, &good());
    let free: Vec<_> = free
        .iter()
        .filter(|finding| finding.check == "bandwidth")
        .map(|finding| finding.verdict)
        .collect();
    assert_eq!(free, [Verdict::Pass, Verdict::Pass]);
    assert!(found(true).iter().all(
        |(_, verdict, expected)| *verdict == Verdict::Pass && expected.contains("20.0 Mbit/s")
    ));
}

/// 400 kB down at 18 Mbit/s are 178 ms; 100 kB up 44 ms; four round trips 324 ms.
#[test]
fn a_round_is_predicted_from_the_model_the_codec_and_the_round_trip() {
    let round = |text: &str, model: Option<u64>| {
        let all = link(&plan(text), true, model, &good());
        let found = all.into_iter().find(|finding| finding.check == "round");
        found.unwrap()
    };
    let found = round(TOPOLOGY, Some(MODEL));
    for part in [
        "546.2 ms",
        "177.8 ms",
        "44.4 ms",
        "324.0 ms",
        "codec int8",
        "not in it: 50 local steps",
    ] {
        assert!(found.found.contains(part), "{part}: {}", found.found);
    }
    assert_eq!(found.verdict, Verdict::Pass);
    assert!(found.expected.contains("10.0 s"), "{}", found.expected);
    assert_eq!(round(TOPOLOGY, Some(MODEL * 25)).verdict, Verdict::Warn);
    assert_eq!(round(TOPOLOGY, Some(MODEL * 100)).verdict, Verdict::Fail);
    assert_eq!(round(TOPOLOGY, Some(u64::MAX)).verdict, Verdict::Fail);
    assert_eq!(round(TOPOLOGY, None).verdict, Verdict::Warn);
    let adaptive = TOPOLOGY.replace("deadline = \"10s\"", "");
    assert_eq!(round(&adaptive, Some(MODEL * 100)).verdict, Verdict::Pass);
    // Each update by itself, for a rule that must see it.
    let median = format!("{TOPOLOGY}[aggregator]\nkind = \"median\"\n")
        .replace("codec = \"int8\"", "")
        .replace(
            "name = \"lab\"\nnodes = [\"gate\"]",
            "name = \"lab\"\nnodes = [\"gate\", \"b\"]",
        );
    let all = round(&median, Some(MODEL));
    assert!(all.found.contains("2 updates"), "{}", all.found);
    assert!(all.found.contains("781 KiB"), "{}", all.found);
}

#[test]
fn a_link_that_carries_nothing_fails_and_is_no_reason_to_panic() {
    let found = troubles(TOPOLOGY, |link| {
        link.there = Way::default();
        link.back = Way::default();
        link.round_trip_us = (u64::MAX, u64::MAX);
        link.bound_us = u64::MAX;
    });
    let failed = found
        .iter()
        .filter(|finding| finding.verdict == Verdict::Fail);
    let failed: BTreeSet<&str> = failed.map(|finding| finding.check).collect();
    assert_eq!(failed, BTreeSet::from(["bandwidth", "loss", "round"]));
    troubles(TOPOLOGY, |link| {
        link.there.flow.bits_per_s = u64::MAX;
        link.back.flow.bits_per_s = u64::MAX;
    });
}

#[test]
fn links_that_do_not_end_at_the_coordinator_have_no_round() {
    let mut measured = good();
    measured.to = "hq/a".parse().unwrap();
    let all = link(&plan(TOPOLOGY), true, Some(MODEL), &measured);
    assert!(all.iter().all(|finding| finding.check != "round"));
}

/// The planner's table where it has the codec; the entropy of the positions where it does not.
#[test]
fn what_a_codec_sends_is_what_the_table_says_or_near_it() {
    let top = |share| Coding {
        codec: Codec::TopK {
            share,
            halves: true,
        },
        lossless: Lossless::None,
    };
    assert!((bytes_of(top(10_000)) - 0.03).abs() < 1e-9);
    let next = bytes_of(top(10_001));
    assert!((0.0295..0.031).contains(&next), "{next}");
    assert!((bytes_of(top(1_000_000)) - 2.0).abs() < 1e-9);
    let coding = |codec| Coding {
        codec,
        lossless: Lossless::Zstd,
    };
    for (codec, least, most) in [
        (Codec::None, 3.5, 4.0),
        (Codec::Fp16, 1.5, 2.0),
        (Codec::Bf16, 1.5, 2.0),
        (Codec::Int8, 0.9, 1.0),
    ] {
        let bytes = bytes_of(coding(codec));
        assert!((least..=most).contains(&bytes), "{codec:?}: {bytes}");
    }
}

fn silent(why: Why, answers: Vec<Option<Answer>>) -> Absent {
    let address: SocketAddr = "192.0.2.7:4600".parse().unwrap();
    Absent {
        node: "hq/gate".parse().unwrap(),
        peer: "lab/gate".parse().unwrap(),
        leads: true,
        why,
        addresses: Ok(answers
            .into_iter()
            .map(|answer| (address, answer))
            .collect()),
        refusals: Vec::new(),
        waited: Duration::from_secs(60),
    }
}

#[test]
fn a_peer_that_is_not_there_fails_with_its_addresses_and_with_what_its_silence_means() {
    let missed = || Why::Missed("no handshake within 4s".into());
    let refused = || Why::Refused("certificate has expired".into());
    let cases = [
        (
            silent(missed(), vec![Some(Answer::Silent)]),
            "no handshake within 4s",
            "UDP is blocked on the way",
        ),
        (
            silent(missed(), vec![Some(Answer::Absent)]),
            "nothing listens",
            "ICMP",
        ),
        (
            silent(missed(), vec![Some(Answer::Unreachable("no route".into()))]),
            "no route",
            "ip route get",
        ),
        (
            silent(missed(), vec![Some(Answer::Quic(1200))]),
            "1200 bytes",
            "certificate",
        ),
        (
            silent(missed(), vec![Some(Answer::Silent), Some(Answer::Absent)]),
            "nothing listens",
            "ICMP",
        ),
        (
            silent(Why::AtWork, vec![None]),
            "lab/gate is at work already",
            "before the run",
        ),
        (
            silent(Why::AnotherTopology, vec![None]),
            "another topology",
            "same file",
        ),
        (
            silent(refused(), vec![None]),
            "certificate has expired",
            "certs show",
        ),
        (
            silent(Why::Broke("timed out".into()), vec![None]),
            "timed out",
            "start both again",
        ),
    ];
    for (case, found, fix) in cases {
        let finding = absent(&case);
        assert_eq!(finding.verdict, Verdict::Fail);
        for part in [found, "lab/gate", "192.0.2.7:4600"] {
            assert!(finding.found.contains(part), "{part}: {finding:?}");
        }
        assert!(finding.fix.contains(fix), "{finding:?}");
    }
    let mut waited = silent(missed(), Vec::new());
    waited.leads = false;
    waited.addresses = Err("lab/gate has no address".into());
    waited.refusals = vec!["the cryptographic handshake failed".into()];
    let finding = absent(&waited);
    for part in ["is to dial hq/gate", "has no address", "handshakes refused"] {
        assert!(finding.found.contains(part), "{part}: {finding:?}");
    }
    assert!(finding.fix.contains("--name lab/gate"), "{finding:?}");
}

/// ray#37461, torchft#329: an address of this machine alone is never told to another one without an error.
#[test]
fn loopback_is_never_advertised_to_another_machine_without_an_error() {
    let own = |host: &str, is_loopback, elsewhere: Option<&str>| Own {
        node: "hq/gate".parse().unwrap(),
        host: Some((host.to_owned(), is_loopback)),
        elsewhere: elsewhere.map(|node| node.parse().unwrap()),
    };
    let verdict = |own: &Own| advertised(own).map(|finding| finding.verdict);
    let lost = own("127.0.0.1:4600", true, Some("lab/gate"));
    assert_eq!(verdict(&lost), Some(Verdict::Fail));
    assert!(advertised(&lost).unwrap().fix.contains("`advertise`"));
    let sound = own("hq.example:4600", false, Some("lab/gate"));
    assert_eq!(verdict(&sound), Some(Verdict::Pass));
    assert_eq!(verdict(&own("127.0.0.1:4600", true, None)), None);
}

#[test]
fn a_domain_whose_neighbours_are_not_all_reached_fails() {
    let domain: DomainId = "hq".parse().unwrap();
    assert_eq!(control(&domain, 3, 0).verdict, Verdict::Pass);
    let short = control(&domain, 2, 1);
    assert_eq!(short.verdict, Verdict::Fail);
    assert_eq!(short.found, "2 of 3 reached");
}

/// Trees as recorded of machines: two sockets, a device on the second.
mod recorded {
    use std::fs;

    use super::*;

    const ROUTES: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
        ens1\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
        ens2\t00004D0A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
    const ROUTES6: &str = "20010db8000000000000000000000000 20 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     ens2\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n";

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Two nodes of eight processors each; `ens2` is on node 1.
        fn new(interrupts: [&str; 2], own: &str) -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            tree.write("proc/net/route", ROUTES);
            tree.write("proc/net/ipv6_route", ROUTES6);
            tree.write("sys/devices/system/node/node0/cpulist", "0-3,8-11\n");
            tree.write("sys/devices/system/node/node1/cpulist", "4-7,12-15\n");
            tree.write("sys/devices/system/node/possible", "0-1\n");
            tree.write("sys/class/net/ens2/device/numa_node", "1\n");
            for (number, list) in ["141", "142"].into_iter().zip(interrupts) {
                tree.write(
                    &format!("sys/class/net/ens2/device/msi_irqs/{number}"),
                    "msix\n",
                );
                tree.write(&format!("proc/irq/{number}/smp_affinity_list"), "0-15\n");
                tree.write(&format!("proc/irq/{number}/effective_affinity_list"), list);
            }
            let status = format!("Name:\ttombolo\nCpus_allowed:\tff\nCpus_allowed_list:\t{own}\n");
            tree.write("proc/self/status", &status);
            tree
        }

        fn find(&self, peer: &str) -> Places {
            places::find(self.0.path(), peer.parse().unwrap())
        }

        fn judge(&self, peer: &str) -> Option<Finding> {
            let (node, other) = ("hq/gate".parse().unwrap(), "lab/gate".parse().unwrap());
            super::places(&node, &other, &self.find(peer))
        }
    }

    #[test]
    fn the_device_is_that_of_the_narrowest_route_and_everything_has_its_node() {
        let tree = Tree::new(["5\n", "12\n"], "4-7");
        let found = tree.find("10.77.0.2");
        assert_eq!(found.device.as_deref(), Some("ens2"));
        assert_eq!(found.device_node, Some(1));
        assert_eq!(found.nodes, BTreeSet::from([0, 1]));
        assert_eq!(found.interrupt_nodes, BTreeSet::from([1]));
        assert_eq!(found.own_nodes, BTreeSet::from([1]));
        assert_eq!(tree.find("198.51.100.1").device.as_deref(), Some("ens1"));
        assert_eq!(tree.find("2001:db8::7").device.as_deref(), Some("ens2"));
        assert_eq!(tree.find("2001:db9::7").device, None);
        assert_eq!(tree.find("127.0.0.1").device.as_deref(), Some("lo"));
    }

    #[test]
    fn device_interrupts_and_gateway_on_different_nodes_are_a_warning_with_the_way_out() {
        let together = Tree::new(["5\n", "12\n"], "4-7")
            .judge("10.77.0.2")
            .unwrap();
        assert_eq!(together.verdict, Verdict::Pass);
        let spread = Tree::new(["5\n", "12\n"], "0-15")
            .judge("10.77.0.2")
            .unwrap();
        assert_eq!(spread.verdict, Verdict::Pass, "it may run there");
        let apart = Tree::new(["5\n", "12\n"], "0-3")
            .judge("10.77.0.2")
            .unwrap();
        assert_eq!(apart.verdict, Verdict::Warn);
        assert!(apart.fix.contains("numactl --cpunodebind=1"), "{apart:?}");
        assert!(!apart.fix.contains("smp_affinity_list"), "{apart:?}");
        let stray = Tree::new(["1\n", "2\n"], "4-7").judge("10.77.0.2").unwrap();
        assert_eq!(stray.verdict, Verdict::Warn);
        assert!(stray.fix.contains("smp_affinity_list"), "{stray:?}");
        let both = Tree::new(["1\n", "2\n"], "0").judge("10.77.0.2").unwrap();
        assert!(both.fix.contains("numactl") && both.fix.contains("smp_affinity_list"));
    }

    #[test]
    fn without_nodes_a_device_or_a_place_nothing_is_said() {
        let tree = Tree::new(["5\n", "12\n"], "0-3");
        assert_eq!(tree.judge("198.51.100.1"), None);
        assert_eq!(tree.judge("127.0.0.1"), None);
        tree.write("sys/class/net/ens2/device/numa_node", "-1\n");
        assert_eq!(tree.judge("10.77.0.2"), None);
        let small = Tree::new(["5\n", "12\n"], "0-3");
        let second = small.0.path().join("sys/devices/system/node/node1");
        fs::remove_dir_all(second).unwrap();
        assert_eq!(small.judge("10.77.0.2"), None);
        let empty = Tree(tempfile::tempdir().unwrap());
        assert_eq!(empty.find("10.77.0.2"), Places::default());
        let odd = Tree::new(["x-y,-3,9-1,4294967295\n", "\n"], "9-99999999");
        odd.write("proc/net/route", "\n\nens2 zz\nens2\t00000000\n");
        odd.write("proc/net/ipv6_route", "zz 99 x\n\n");
        assert_eq!(odd.judge("10.77.0.2"), None);
        assert_eq!(odd.find("2001:db8::7").device, None);
    }
}
