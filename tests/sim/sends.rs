//! Sends that fail at random: how many contributions are missing, with the ladder's retries and without.
//!
//! `TOMBOLO_ROUNDS` in the environment asks for more than a change needs: `cargo xtask soak sends`.

use serde_json::json;
use tombolo::core::mutants;
use tombolo::simulation::{Simulation, SimulationReport, secs};

use crate::probe::Probe;
use crate::seeds::number;

/// Besides the coordinator's, whose contribution takes no link.
const DOMAINS: u64 = 8;

/// Of the sends of a contribution.
const FAILING: f64 = 0.12;

fn fleet(rounds: u64) -> Simulation {
    let mut text = format!(
        r#"
        [federation]
        name = "fleet"
        rounds = {rounds}
        sync_every = 5
        [round]
        quorum = {{ nodes = 2, domains = 2 }}
        deadline = "20s"
        grace = "2s"
        failed_limit = 30
        [[domain]]
        name = "hq"
        nodes = ["gate"]
        "#
    );
    for domain in 0..DOMAINS {
        text += &format!("[[domain]]\nname = \"d{domain}\"\nnodes = [\"n\"]\n");
    }
    let simulation = Simulation::from_toml(&text).unwrap().trainer(Probe::new);
    simulation.training(secs(1)).limit(secs(60 * rounds))
}

/// The share of contributions that are in no sum.
fn failed(report: SimulationReport, rounds: u64) -> f64 {
    let report = report.sound().unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(report.finished.reason, "");
    assert_eq!(report.rounds().len() as u64, rounds);
    let counted = report.rounds().iter().flat_map(|round| &round.counted);
    let counted = counted
        .filter(|node| node.domain().as_str() != "hq")
        .count();
    1.0 - counted as f64 / (DOMAINS * rounds) as f64
}

#[test]
fn retries_bring_failed_contributions_from_the_share_of_failed_sends_to_almost_none() {
    let rounds = number("TOMBOLO_ROUNDS", 60);
    let run = |simulation: Simulation| {
        let report = simulation.run().unwrap_or_else(|error| panic!("{error}"));
        failed(report, rounds)
    };
    let undisturbed = run(fleet(rounds));
    let with = run(fleet(rounds).failing_sends(FAILING));
    let without = {
        let _planted = mutants::plant("sent-once");
        run(fleet(rounds).failing_sends(FAILING))
    };
    for (ladder, sends, failed) in [
        ("on", 0.0, undisturbed),
        ("off", FAILING, without),
        ("on", FAILING, with),
    ] {
        let percent = |share: f64| (share * 100_000.0).round() / 1000.0;
        let line = json!({
            "ladder": ladder,
            "failing_sends_percent": percent(sends),
            "contributions": DOMAINS * rounds,
            "failed_contributions_percent": percent(failed),
        });
        println!("{line}");
    }
    assert_eq!(undisturbed, 0.0);
    assert!(
        without > FAILING / 2.0,
        "{without}: without retries it would be felt"
    );
    assert!(with < 0.005, "{with}");
}
