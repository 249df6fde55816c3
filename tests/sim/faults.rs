//! One fault at a time: the run feels it, copes, and everybody is back afterwards.

use std::collections::BTreeSet;

use tombolo::Round;
use tombolo::simulation::{
    Fault, Simulation, SimulationReport, Stale, clock_back, clock_drift, clock_forward, crash,
    delay, disk_full, duplicate, freeze, heal, loss, millis, mtu_black_hole, panic, partition,
    rate_limit, rebind, reorder, restart, restart_without_disk, secs, slow, stale_certificate,
    torn_write,
};
use tombolo_core::event::Event;

use crate::dropout::COAST;
use crate::probe::Probe;

/// Nine nodes, and rounds of about a second.
fn coast() -> Simulation {
    Simulation::from_toml(COAST)
        .unwrap()
        .trainer(Probe::new)
        .training(secs(1))
        .limit(secs(600))
}

/// A run under a fault from second 2.3 on, in the middle of a training: sound, with a commit in every round and everybody in the last one.
fn under(until: u64, fault: Fault) -> SimulationReport {
    let name = format!("{fault:?}");
    cope(&name, coast().between(millis(2300), millis(until), fault))
}

fn at_once(fault: Fault) -> SimulationReport {
    let name = format!("{fault:?}");
    cope(&name, coast().at(millis(2300), fault))
}

fn cope(name: &str, simulation: Simulation) -> SimulationReport {
    let report = simulation.run().unwrap_or_else(|error| panic!("{error}"));
    let report = report.sound().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.finished.reason, "", "{name}");
    let rounds = report.rounds();
    assert_eq!(rounds.len(), 12, "{name}");
    assert!(
        rounds.iter().all(Round::is_committed),
        "{name}: {rounds:#?}"
    );
    assert_eq!(rounds[11].counted.len(), 9, "{name}: {:#?}", rounds[11]);
    report
}

fn starts(report: &SimulationReport, name: &str) -> usize {
    let starts = |(_, event): &&(_, Event)| match event {
        Event::NodeStarted { node, .. } => node.as_str() == name,
        _ => false,
    };
    report.events.iter().filter(starts).count()
}

/// Who was left out of a round, ever.
fn left_out(report: &SimulationReport) -> BTreeSet<&str> {
    let late = report.rounds().iter().flat_map(|round| &round.late);
    late.map(|node| node.as_str()).collect()
}

fn suspected(report: &SimulationReport, name: &str) -> bool {
    let suspected = |(_, event): &(_, Event)| match event {
        Event::PeerSuspected { peer, .. } => peer.as_str() == name,
        _ => false,
    };
    report.events.iter().any(suspected)
}

#[test]
fn a_node_that_stops_in_any_way_is_missed_and_comes_back() {
    for (fault, lives) in [
        (crash("plant/c"), 2),
        (freeze("plant/c"), 1),
        (slow("plant/c", 20.0), 1),
    ] {
        let name = format!("{fault:?}");
        let report = under(7000, fault);
        assert!(left_out(&report).contains("plant/c"), "{name}");
        assert_eq!(starts(&report, "plant/c"), lives, "{name}");
        let silent = !name.contains("Slow");
        assert_eq!(suspected(&report, "plant/c"), silent, "{name}");
    }
    let restarted = at_once(restart("plant/c"));
    assert_eq!(starts(&restarted, "plant/c"), 2);
    let replaced = at_once(restart_without_disk("plant/c"));
    assert_eq!(starts(&replaced, "plant/c"), 2);
}

/// STORE-1: the coordinator dies in the middle of a write, and goes on from what it had said was done.
#[test]
fn a_write_that_is_torn_costs_nothing_that_was_acknowledged() {
    let report = under(5000, torn_write("hq/gate"));
    assert_eq!(starts(&report, "hq/gate"), 2);
    // It writes at the end of each round, long before the fault ends.
    let dead = report
        .events
        .iter()
        .filter(|(at, _)| at.0 > 4_000_000 && at.0 < 5_000_000);
    assert!(
        !dead
            .clone()
            .any(|(_, event)| matches!(event, Event::Round(_)))
    );
}

/// A full disk at the coordinator ends the run with a reason that names it, and what was committed stays.
#[test]
fn a_full_disk_ends_the_run_with_a_reason_or_is_not_felt() {
    let full = coast().at(millis(2300), disk_full("hq/gate"));
    let report = full
        .run()
        .unwrap()
        .sound()
        .unwrap_or_else(|failure| panic!("{failure}"));
    let reason = &report.finished.reason;
    assert!(reason.contains("no storage space"), "{reason}");
    assert!(
        report.finished.committed >= 1 && report.rounds().len() < 12,
        "{:#?}",
        report.finished
    );
    // Who writes nothing does not feel it.
    let report = under(6000, disk_full("plant/c"));
    assert!(left_out(&report).is_empty());
}

#[test]
fn partitions_leave_out_whom_they_cut_off() {
    let lab = ["lab/e", "lab/f", "lab/gate"];
    let report = under(9000, partition(["hq"], ["lab"]));
    assert_eq!(left_out(&report), lab.into());
    let report = under(9000, partition(["lab"], ["hq"]).one_way());
    assert_eq!(left_out(&report), lab.into());
    let report = under(9000, partition(["plant/c"], []));
    assert!(left_out(&report).contains("plant/c"));
    let lifted = coast()
        .at(millis(2300), partition(["hq"], ["lab"]))
        .at(secs(9), heal(["hq"], ["lab"]));
    assert_eq!(left_out(&cope("heal", lifted)), lab.into());
}

/// quinn#2791, quinn#2212: large datagrams that vanish without notice, and random loss, do not stop a run.
#[test]
fn paths_that_lose_double_shuffle_delay_or_narrow_datagrams_are_coped_with() {
    let undisturbed = cope("nothing", coast());
    for fault in [
        loss(["hq"], [], 0.2),
        duplicate(["hq"], [], 0.5),
        reorder(["hq"], [], millis(80)),
        delay(["hq"], ["plant"], millis(700)),
        mtu_black_hole(["hq"], [], 1250),
        rate_limit(["hq"], ["plant", "lab"], 150_000),
    ] {
        let name = format!("{fault:?}");
        let report = under(9000, fault);
        assert_ne!(report.trace_hash, undisturbed.trace_hash, "{name}");
    }
}

/// quinn#1160, trafficserver#4326, erlang_quic#255: a node whose port changes in the eyes of its peers, in the middle of whatever it sends or is
/// sent, keeps its place, the round and its update.
#[test]
fn a_change_of_ports_in_mid_transfer_costs_nothing() {
    let narrow = || coast().at(secs(1), rate_limit(["hq"], [], 400_000));
    let undisturbed = cope("narrow", narrow());
    assert!(left_out(&undisturbed).is_empty());
    for name in ["hq/gate", "plant/gate", "lab/gate", "plant/c"] {
        for moment in (0..4).map(|step| millis(4000 + 500 * step)) {
            let said = format!("{name} at {moment:?}");
            let report = cope(&said, narrow().at(moment, rebind(name)));
            assert_ne!(report.trace_hash, undisturbed.trace_hash, "{said}");
            assert_eq!(
                report.finished.model_hash, undisturbed.finished.model_hash,
                "{said}"
            );
            assert!(
                left_out(&report).is_empty(),
                "{said}: {:?}",
                left_out(&report)
            );
        }
    }
}

/// CLOCK-1. xen-api#5700, hazelcast#4226, cockroach#7326: an hour either way, or a clock that runs wrong, changes nothing at all.
#[test]
fn wall_clocks_change_nothing() {
    let undisturbed = cope("nothing", coast());
    for name in ["hq/gate", "plant/gate", "lab/f"] {
        for fault in [
            clock_forward(name, secs(3600)),
            clock_back(name, secs(3600)),
            clock_drift(name, -1e5, 0.0),
        ] {
            let report = under(6000, fault.clone());
            assert_eq!(report.trace_hash, undisturbed.trace_hash, "{fault:?}");
        }
    }
    let report = under(6000, clock_drift("hq/gate", 0.0, 500.0));
    assert_ne!(report.trace_hash, undisturbed.trace_hash);
    assert_eq!(report.finished.model_hash, undisturbed.finished.model_hash);
}

/// IDENT-1. istio#32176: who shows a certificate that does not count is not talked to, the reason says so, and a good one mends it.
#[test]
fn a_stale_certificate_keeps_a_node_out_until_it_has_a_good_one() {
    for (stale, said) in [
        (Stale::Expired, "expired"),
        (Stale::NotYetValid, "not yet valid"),
    ] {
        // A connection that stands is not asked again, so it is broken.
        let simulation = coast()
            .between(millis(2300), secs(9), stale_certificate("lab/gate", stale))
            .at(millis(2400), panic("lab/gate", "Link"));
        let report = cope(said, simulation);
        let told = report.events.iter().any(|(_, event)| match event {
            Event::LinkRefused { reason, .. } => reason.contains(said),
            _ => false,
        });
        assert!(told, "{said}");
        assert!(left_out(&report).contains("lab/e"), "{said}");
    }
}

/// IDENT-1: what a process sent before its end, and what is long on its way, does not make its next life a duplicate.
#[test]
fn a_late_word_of_a_dead_process_speaks_for_nobody() {
    for moment in (0..40).map(|step| millis(4000 + 25 * step)) {
        let simulation = coast()
            .between(
                millis(2300),
                moment + millis(10),
                reorder(["plant/d"], ["plant"], millis(200)),
            )
            .at(moment, restart_without_disk("plant/d"));
        cope(&format!("restarted at {moment:?}"), simulation);
    }
}
