//! Six domains, cut in two in every way, and one way in every way: never two commits of a round (ROUND-5), and when the cut is healed, a commit
//! within two deadlines (ROUND-7), and soon everybody.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tombolo::Round;
use tombolo::core::event::{Event, RoundRecord};
use tombolo::core::time::Micros;
use tombolo::simulation::{Fault, Simulation, SimulationReport, millis, partition, secs};

use crate::crowd;
use crate::probe::Probe;

const DOMAINS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Ways to cut six domains in two parts of which none is empty.
const BIPARTITIONS: u64 = 31;

const DEADLINE: Duration = Duration::from_secs(5);
const CUT: Duration = Duration::from_millis(3300);
/// Long enough for the ladder to be climbed to its end, so that views change, too.
const HEALED: Duration = Duration::from_secs(22);

fn six_domains() -> Simulation {
    let mut text = r#"
        [federation]
        name = "delta"
        rounds = 36
        sync_every = 5
        [round]
        quorum = { nodes = 4, domains = 4 }
        deadline = "5s"
        grace = "500ms"
        failed_limit = 30
        [heartbeat]
        retry = ["200ms", "400ms"]
        restore_limit = "3s"
        cooldown = { first = "4s", cap = "1min" }
    "#
    .to_owned();
    for domain in DOMAINS {
        text += &format!("[[domain]]\nname = \"{domain}\"\nnodes = [\"gate\"]\n");
    }
    Simulation::from_toml(&text)
        .unwrap()
        .trainer(Probe::new)
        .training(millis(700))
        .limit(secs(600))
}

/// The domains of both sides; the first domain, where the coordinator is, is always in the first.
fn sides(number: u64) -> (Vec<&'static str>, Vec<&'static str>) {
    let inside = |index: &usize| *index == 0 || number >> (index - 1) & 1 == 0;
    let (with, without): (Vec<usize>, Vec<usize>) = (0..DOMAINS.len()).partition(inside);
    let names = |indices: Vec<usize>| indices.into_iter().map(|index| DOMAINS[index]).collect();
    (names(with), names(without))
}

fn cut(fault: Fault) -> SimulationReport {
    let name = format!("{fault:?}");
    let report = six_domains().between(CUT, HEALED, fault).run();
    let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
    let report = report.sound().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.finished.reason, "", "{name}");
    report
}

fn commits(report: &SimulationReport) -> Vec<(Micros, &RoundRecord)> {
    let events = report.events.iter();
    let commits = events.filter_map(|(at, event)| match event {
        Event::Round(record) if record.is_committed() => Some((*at, record)),
        _ => None,
    });
    commits.collect()
}

/// How long after the cut was healed a round was committed.
fn judge(report: &SimulationReport, name: &str) -> Duration {
    let commits = commits(report);
    let rounds: BTreeSet<_> = commits.iter().map(|(_, record)| record.round).collect();
    assert_eq!(rounds.len(), commits.len(), "{name}: ROUND-5");
    let healed = Micros::default() + HEALED;
    let first = commits.iter().find(|(at, _)| *at >= healed);
    let (at, _) = first.unwrap_or_else(|| panic!("{name}: it was over before it was healed"));
    let took = at.since(healed);
    assert!(took <= DEADLINE * 2, "{name}: ROUND-7: {took:?}");
    let last = report.rounds().last().unwrap();
    assert_eq!(last.counted.len(), 6, "{name}: {last:#?}");
    took
}

#[test]
fn however_six_domains_are_cut_no_round_is_committed_twice_and_all_heals() {
    for ways in [
        "both",
        "towards the coordinator",
        "away from the coordinator",
    ] {
        let took = crowd::each(1..BIPARTITIONS + 1, |number| {
            let (with, without) = sides(number);
            assert!(!without.is_empty());
            let name = format!("{with:?} | {without:?}, {ways}");
            let fault = match ways {
                "both" => partition(with.clone(), without.clone()),
                "towards the coordinator" => partition(without.clone(), with.clone()).one_way(),
                _ => partition(with.clone(), without.clone()).one_way(),
            };
            let report = cut(fault);
            // Was anything tested? Who is cut off is missing, and without a quorum nothing is committed.
            let healed = Micros::default() + HEALED;
            let during = report.events.iter().filter_map(|(at, event)| match event {
                Event::Round(record)
                    if *at > Micros::default() + CUT + DEADLINE * 2 && *at < healed =>
                {
                    Some(record)
                }
                _ => None,
            });
            let during: Vec<&RoundRecord> = during.collect();
            assert!(!during.is_empty(), "{name}");
            for record in during {
                let missing = record
                    .counted
                    .iter()
                    .all(|node| !without.contains(&node.domain().as_str()));
                assert!(missing, "{name}: {record:#?}");
                assert_eq!(
                    Round::is_committed(record),
                    with.len() >= 4,
                    "{name}: {record:#?}"
                );
            }
            judge(&report, &name)
        });
        let slowest = took.iter().max().unwrap();
        println!(
            "{}",
            json!({
                "cut": ways,
                "bipartitions": took.len(),
                "commits_of_a_round_at_most": 1,
                "committed_after_healing_within_ms": slowest.as_millis() as u64,
                "two_deadlines_ms": (DEADLINE * 2).as_millis() as u64,
            })
        );
    }
}
