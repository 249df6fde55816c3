//! A coordinator that is restarted in the middle of a round finishes that round: what it acknowledged is in the aggregate, or the round
//! names it (ROUND-3). NVFlare#242, flower#599, openfl#1229.

use std::collections::BTreeSet;
use std::time::Duration;

use tombolo::Round;
use tombolo::simulation::{Simulation, SimulationReport, crash, kill, millis, restart, secs};
use tombolo_core::event::{Event, RoundState};
use tombolo_core::ids::NodeId;
use tombolo_core::time::Micros;

use crate::dropout::COAST;

/// The round in which it happens.
const ROUND: u64 = 5;

fn coast(durability: &str) -> Simulation {
    let text = COAST.replace(
        "grace = \"1s\"",
        &format!("grace = \"1s\"\n    durability = \"{durability}\""),
    );
    Simulation::from_toml(&text).unwrap().limit(secs(600))
}

/// When something happened in the round.
fn moments(report: &SimulationReport, what: impl Fn(&Event) -> bool) -> Vec<Duration> {
    let happened = report.events.iter().filter(|(_, event)| what(event));
    happened
        .map(|(at, _)| at.since(Micros::default()))
        .collect()
}

fn acknowledged_in(round: u64) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::Acknowledged { round: of, .. } if *of == round)
}

/// Nodes of the domains that were acknowledged before that moment.
fn promised(report: &SimulationReport, before: Duration) -> BTreeSet<NodeId> {
    let mut promised = BTreeSet::new();
    for (at, event) in &report.events {
        if let Event::Acknowledged { round, domain, .. } = event
            && *round == ROUND
            && at.since(Micros::default()) <= before
        {
            let cohort = ["hq", "plant", "lab"].map(|domain| match domain {
                "hq" => ["hq/gate", "hq/a", "hq/b"],
                "plant" => ["plant/gate", "plant/c", "plant/d"],
                _ => ["lab/gate", "lab/e", "lab/f"],
            });
            let nodes = cohort
                .iter()
                .flatten()
                .map(|node| node.parse::<NodeId>().unwrap());
            promised.extend(nodes.filter(|node| node.domain() == *domain));
        }
    }
    promised
}

fn resumed(report: &SimulationReport) -> usize {
    let is = |event: &Event| matches!(event, Event::RoundResumed { round: ROUND, .. });
    report.events.iter().filter(|(_, event)| is(event)).count()
}

fn round(report: &SimulationReport) -> &Round {
    let rounds = report.rounds().iter();
    rounds
        .into_iter()
        .find(|round| round.round == ROUND)
        .unwrap()
}

fn well(report: &SimulationReport) {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    assert_eq!(report.rounds().len(), 12);
    assert!(
        report.rounds().iter().all(Round::is_committed),
        "{:#?}",
        report.rounds()
    );
}

/// From the first gate to the record, at every moment at which something happened.
#[test]
fn whenever_it_ends_the_coordinator_finishes_the_same_round() {
    for durability in ["resend", "journal"] {
        let undisturbed = coast(durability).run().unwrap();
        let weighed = moments(&undisturbed, |event| {
            matches!(event, Event::Weighed { round: ROUND, .. })
        });
        let ended = moments(
            &undisturbed,
            |event| matches!(event, Event::Round(record) if record.round == ROUND),
        );
        let between = |at: &Duration| (weighed[0]..ended[0]).contains(at);
        let mut all = moments(&undisturbed, |_| true);
        all.retain(between);
        all.dedup();
        assert!(all.len() >= 4, "{all:?}");
        for moment in all {
            let moment = moment + Duration::from_micros(1);
            let report = coast(durability)
                .at(moment, crash("hq/gate"))
                .at(moment + millis(700), restart("hq/gate"))
                .run()
                .unwrap();
            well(&report);
            let replay = format!("{durability} at {moment:?}");
            assert_eq!(resumed(&report), 1, "{replay}");
            // Everybody is there again, and no weight was fixed anew: the same bits.
            assert_eq!(
                round(&report).counted.len(),
                9,
                "{replay}: {:#?}",
                round(&report)
            );
            assert_eq!(
                report.finished.model_hash, undisturbed.finished.model_hash,
                "{replay}"
            );
        }
    }
}

/// Whichever change on its disk is the coordinator's last, no round is missing among those that are told: one that was recorded by a process
/// that did not live to say so is told by the next.
#[test]
fn a_round_that_a_killed_coordinator_recorded_is_told_by_its_next_process() {
    let undisturbed = coast("resend").run().unwrap();
    let opens = |event: &Event| matches!(event, Event::RoundOpened { round: ROUND, .. });
    let opened = moments(&undisturbed, opens)[0];
    // A round is 80 changes, the copy of the record among them; its own record is created in the last of them.
    let mut late = 0;
    for changes in 66..86 {
        let report = coast("resend")
            .between(opened, opened + secs(20), kill("hq/gate", changes))
            .run()
            .unwrap();
        well(&report);
        let told = report.rounds().iter().map(|round| round.round);
        assert!(told.eq(1..=12), "killed at change {changes}");
        let ended = moments(&report, |event| matches!(event, Event::Round(_)));
        let starts = moments(
            &report,
            |event| matches!(event, Event::NodeStarted { node, .. } if node.as_str() == "hq/gate"),
        );
        // Nothing ends within a millisecond of a start.
        let at_start = |at: &&Duration| {
            starts
                .get(1)
                .is_some_and(|start| (*start..*start + millis(1)).contains(*at))
        };
        late += ended.iter().filter(at_start).count();
    }
    assert!(late > 0, "no kill came between the record and its telling");
}

/// With the coordinator a sender is gone: without the journal it is named, with the journal it is counted.
#[test]
fn if_a_sender_is_gone_too_it_is_named_or_the_journal_has_its_bytes() {
    for (durability, counted) in [("resend", 6), ("journal", 9)] {
        let undisturbed = coast(durability).run().unwrap();
        let last = *moments(&undisturbed, acknowledged_in(ROUND))
            .last()
            .unwrap();
        let moment = last + Duration::from_micros(1);
        let report = coast(durability)
            .at(moment, crash("hq/gate"))
            .at(moment, crash("plant/gate"))
            .at(moment + millis(700), restart("hq/gate"))
            .at(moment + secs(60), restart("plant/gate"))
            .run()
            .unwrap();
        well(&report);
        assert_eq!(resumed(&report), 1, "{durability}");
        let record = round(&report);
        let counted_nodes: BTreeSet<NodeId> = record.counted.iter().cloned().collect();
        assert_eq!(counted_nodes.len(), counted, "{durability}: {record:#?}");
        let promised = promised(&undisturbed, moment);
        assert_eq!(promised.len(), 9);
        let missing: Vec<&NodeId> = promised.difference(&counted_nodes).collect();
        assert_eq!(missing, record.late.iter().collect::<Vec<_>>());
        if durability == "resend" {
            assert_eq!(record.state, RoundState::Degraded);
            assert!(
                record.reason.contains("plant: its acknowledged"),
                "{}",
                record.reason
            );
        }
    }
}
