//! A user pauses a run, goes on with it, or ends it, whatever befalls the coordinator meanwhile (ROUND-8).

use std::time::Duration;

use tombolo::simulation::{
    Simulation, SimulationReport, crash, millis, pause, promote, secs, stop, stop_now,
};
use tombolo_core::event::Event;

use crate::dropout::COAST;

fn coast(seed: u64) -> Simulation {
    let text = COAST
        .replace("rounds = 12", "rounds = 40")
        .replace("[round]", "standby = [\"plant/gate\"]\n    [round]")
        .replace("deadline = \"30s\"", "deadline = \"3s\"");
    Simulation::from_toml(&text)
        .unwrap()
        .seed(seed)
        .limit(secs(600))
}

/// When each round opened.
fn opened(report: &SimulationReport) -> impl Iterator<Item = u64> {
    let events = report.events.iter();
    events.filter_map(|(at, event)| match event {
        Event::RoundOpened { .. } => Some(at.0),
        _ => None,
    })
}

/// Paused for a minute soon after the start.
pub fn paused(seed: u64) -> SimulationReport {
    coast(seed)
        .between(secs(2), secs(62), pause())
        .run()
        .unwrap()
}

fn in_pause(at: &u64) -> bool {
    (2_500_000..62_000_000).contains(at)
}

#[test]
fn a_paused_run_opens_no_round_and_goes_on_where_it_was() {
    let plain = coast(3).run().unwrap();
    let report = paused(3);
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    assert_eq!(opened(&report).filter(in_pause).count(), 0);
    assert_eq!(opened(&report).count(), 40);
    assert_eq!(report.finished.model_hash, plain.finished.model_hash);
}

/// Neither a restart of the coordinator nor a promotion ends a pause.
#[test]
fn a_pause_outlives_the_coordinator_and_the_next_one_keeps_it() {
    let restarted = coast(3)
        .between(secs(2), secs(62), pause())
        .between(secs(10), secs(15), crash("hq/gate"))
        .run()
        .unwrap();
    let promoted = coast(3)
        .between(secs(2), secs(62), pause())
        .at(secs(10), crash("hq/gate"))
        .at(secs(20), promote("plant/gate"))
        .run()
        .unwrap();
    for report in [restarted, promoted] {
        assert_eq!(report.violations, []);
        assert_eq!(report.finished.reason, "");
        assert_eq!(opened(&report).filter(in_pause).count(), 0);
        let told = report.events.iter();
        let told = told.filter(|(_, event)| matches!(event, Event::RunPaused { .. }));
        assert_eq!(told.count(), 2, "each coordinator says so");
    }
}

/// What was open when the run was paused comes to its end, though its coordinator is another one by then.
#[test]
fn a_round_that_was_weighed_before_a_pause_ends_in_it_after_a_restart() {
    let weighed = |report: &SimulationReport, round: u64| {
        let mut events = report.events.iter();
        let found = events
            .find(|(_, event)| matches!(event, Event::Weighed { round: of, .. } if *of == round));
        found.map(|(at, _)| Duration::from_micros(at.0))
    };
    let at = weighed(&coast(3).run().unwrap(), 5).unwrap();
    let report = coast(3)
        .between(at - millis(20), secs(62), pause())
        .between(at + millis(3), at + secs(5), crash("hq/gate"))
        .run()
        .unwrap();
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    let mut resumed = report.events.iter();
    let resumed = resumed.find(|(_, event)| matches!(event, Event::RoundResumed { round: 5, .. }));
    let resumed = resumed.expect("the round was weighed").0;
    let mut ended = report.events.iter();
    let ended = ended.find(|(_, event)| matches!(event, Event::Round(ended) if ended.round == 5));
    let ended = ended.expect("it ends").0;
    assert!(resumed < ended && ended.0 < 30_000_000, "{ended:?}");
    let next = opened(&report).find(|opened| *opened > ended.0);
    assert!(next.is_some_and(|next| next >= 62_000_000), "{next:?}");
}

#[test]
fn a_stopped_run_has_not_failed_and_every_site_holds_its_last_model() {
    let report = coast(3).at(secs(2), stop()).run().unwrap();
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "stopped by a user");
    let last = report.rounds().last().unwrap().round;
    assert!((1..40).contains(&last), "{last}");
    let holds = |of: u64| {
        let events = report.events.iter();
        let adopted = events.filter(
            |(_, event)| matches!(event, Event::ModelAdopted { round, .. } if *round == of),
        );
        adopted.count()
    };
    assert_eq!(holds(last), 9);
}

#[test]
fn a_run_that_is_stopped_now_gives_its_open_round_up() {
    let report = coast(3).at(secs(2), stop_now()).run().unwrap();
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "stopped by a user");
    let last = report.rounds().last().map_or(0, |record| record.round);
    assert_eq!(opened(&report).count() as u64, last + 1);
}
