//! What can fail between the fold and the record, and what it costs.

use super::*;

#[test]
fn what_cannot_be_computed_aborts_its_round_with_the_reason_and_the_run_goes_on() {
    let mut run = Run::folding(plan(&[1]));
    run.tell(Message::Folded(1, 0, Ok(())));
    let reason = "evaluation: the loss is NaN".to_owned();
    run.tell(Message::Computed(1, Err(reason.clone())));
    let record = run.last_record();
    assert_eq!(
        (record.state, &record.reason),
        (RoundState::Aborted, &reason)
    );
    assert_eq!(record.model_hash, hash(0), "the model stays");
    let reason = reason.into();
    assert!(run.told(0, &Control::Abort { round: 1, reason }));
    run.tell(Message::Recorded(1, Ok(())));
    assert!(run.opened(2) && run.is_running());
}

#[test]
fn computing_that_takes_longer_than_the_limit_is_given_up_and_its_result_is_stale() {
    let mut run = Run::folding(plan(&[1]));
    run.tell(Message::Folded(1, 0, Ok(())));
    assert_eq!(run.wake_at, Some(at(5000)));
    run.now = at(4999);
    assert_eq!(run.wake(), []);
    run.now = at(5000);
    run.wake();
    assert!(run.last_record().reason.contains("close_limit"));
    assert_eq!(run.tell(Message::Computed(1, Ok(outcome(1)))), []);
}

#[test]
fn what_is_being_written_has_no_deadline() {
    let mut run = Run::committing(plan(&[1]));
    run.now = at(60_000);
    assert_eq!(run.wake(), []);
    run.tell(Message::Committed(1, Ok(())));
    assert!(run.opened(2));
}

/// The next round must not open on a past that a restart would not find.
#[test]
fn an_abort_that_cannot_be_recorded_ends_the_run() {
    let mut run = Run::open(plan(&[1]));
    run.now = at(10_000);
    run.wake();
    assert!(!run.opened(2));
    run.tell(Message::Recorded(1, Err("disk full".into())));
    let finished = run.finished();
    assert!(
        finished
            .reason
            .contains("the end of round 1 could not be recorded: disk full")
    );
    assert_eq!((finished.rounds, finished.aborted), (0, 0));
    assert!(!run.opened(2));
}

/// FLIP#1001: a run that dies at its start shows as failed at once, everywhere.
#[test]
fn a_run_that_cannot_begin_sends_everybody_away_whenever_they_come() {
    let finish = Control::Finish {
        reason: "damaged".into(),
    };
    let mut run = Run::new(plan(&[1, 1]));
    run.tell(Message::Up(n("d1/n0")));
    run.tell(Message::Fail("damaged".into()));
    assert_eq!(run.finished().reason, "damaged");
    assert!(run.told(0, &finish) && run.told(1, &finish));
    for late in [
        Message::Up(n("d1/n0")),
        Message::Domain(n("d1/n0"), join_of(&layout())),
    ] {
        let effects = run.tell(late);
        assert!(
            effects.contains(&Effect::Tell(d(1), finish.clone())),
            "{effects:?}"
        );
    }
    assert!(!run.opened(1));
}
