//! Every domain ends with the same record, whatever becomes of coordinators and gateways (RECORD-1 looks at each simulated run besides).

use std::collections::BTreeSet;

use tombolo::simulation::{Simulation, SimulationReport, crash, millis, promote, restart, secs};
use tombolo_core::event::Event;
use tombolo_core::mutants;

use crate::dropout::COAST;

fn coast(seed: u64) -> Simulation {
    coast_of(12, seed)
}

fn coast_of(rounds: u64, seed: u64) -> Simulation {
    let text = COAST.replace("rounds = 12", &format!("rounds = {rounds}"));
    let text = text.replace("[round]", "standby = [\"plant/gate\"]\n    [round]");
    let text = format!(
        "{text}\n[heartbeat]\nretry = [\"200ms\", \"400ms\"]\nrestore_limit = \"2s\"\ncooldown = {{ first = \"1s\", cap = \"1s\" }}"
    );
    let text = text.replace("deadline = \"30s\"", "deadline = \"4s\"");
    Simulation::from_toml(&text)
        .unwrap()
        .seed(seed)
        .limit(secs(900))
}

/// No law was broken, and the copies of these gateways are one and the same.
#[track_caller]
fn one_record(report: &SimulationReport, gateways: &[&str]) {
    assert_eq!(report.violations, []);
    let records = &report.copies;
    let heads: BTreeSet<_> = gateways.iter().map(|gate| records.get(*gate)).collect();
    assert_eq!(heads.len(), 1, "{records:?}");
    let size = heads.first().unwrap().expect("there is a record").0;
    // Each round is five leaves at least, and the first ones tell who takes part.
    assert!(size > 5 * report.rounds().len() as u64, "{size} leaves");
}

/// Who had not cosigned the head of a round before, round by round.
fn behind(report: &SimulationReport) -> Vec<(u64, usize, usize)> {
    let signed = report.events.iter().filter_map(|(_, event)| match event {
        Event::RecordSigned {
            round, by, behind, ..
        } => Some((*round, by.len(), behind.len())),
        _ => None,
    });
    signed.collect()
}

const GATES: [&str; 3] = ["hq/gate", "plant/gate", "lab/gate"];

#[test]
fn every_domain_cosigns_each_head_before_the_next_one() {
    for seed in 0..3 {
        let report = coast(seed).run().unwrap();
        one_record(&report, &GATES);
        let expected: Vec<_> = (2..=12).map(|round| (round, 2, 0)).collect();
        assert_eq!(
            behind(&report),
            expected,
            "cosigning lags by more than a round"
        );
    }
}

#[test]
fn a_coordinator_that_is_killed_goes_on_with_the_record_where_it_was() {
    for seed in 0..4 {
        let report = coast(seed)
            .at(millis(700 + 450 * seed), crash("hq/gate"))
            .at(secs(4), restart("hq/gate"))
            .run()
            .unwrap();
        one_record(&report, &GATES);
        assert_eq!(report.finished.reason, "");
    }
}

#[test]
fn a_standby_that_was_promoted_goes_on_with_the_record() {
    for seed in 0..4 {
        let report = coast(seed)
            .at(millis(900 + 400 * seed), crash("hq/gate"))
            .at(secs(5), promote("plant/gate"))
            .run()
            .unwrap();
        one_record(&report, &GATES[1..]);
        let by = |(_, event): &_| matches!(event, Event::RecordSigned { by, .. } if by.iter().any(|node| node.as_str() == "lab/gate"));
        assert!(report.events.iter().any(by));
    }
}

/// It asks for what it lacks, from nothing on if its disk is another one.
#[test]
fn a_gateway_that_was_away_catches_up() {
    for (seed, lost) in [(0, false), (1, true), (2, true)] {
        let back = match lost {
            true => tombolo::simulation::restart_without_disk("lab/gate"),
            false => restart("lab/gate"),
        };
        let longer = coast_of(40, seed);
        let report = longer
            .at(millis(700), crash("lab/gate"))
            .at(secs(4), back)
            .run()
            .unwrap();
        one_record(&report, &GATES);
        assert_eq!(
            report.rounds().last().unwrap().counted.len(),
            9,
            "seed {seed}: it is back"
        );
    }
}

/// A domain that was told another history from the first round on names the coordinator, with proof, before the third has ended.
pub fn histories(seed: u64) -> Option<String> {
    let text = COAST.replace("rounds = 12", "rounds = 4");
    let report = Simulation::from_toml(&text)
        .unwrap()
        .seed(seed)
        .run()
        .unwrap();
    let ended = |event: &Event| matches!(event, Event::Round(record) if record.round == 3);
    let events = report.events.iter().map(|(_, event)| event);
    let mut proofs = events
        .take_while(|event| !ended(event))
        .filter_map(|event| match event {
            Event::RecordForked { node, by, reason } if node != by => {
                (by.as_str() == "hq/gate").then(|| format!("{node}: {reason}"))
            }
            _ => None,
        });
    proofs.next()
}

#[test]
fn a_coordinator_that_tells_two_histories_is_named_with_proof() {
    let planted = mutants::plant("two-histories");
    let found = histories(1).expect("somebody holds the proof");
    drop(planted);
    assert!(found.contains("two histories"), "{found}");
    assert_eq!(histories(1), None);
}
