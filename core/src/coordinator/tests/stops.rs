//! A user ends the run: what is waited for, and what is dropped.

use super::*;

#[test]
fn a_stop_before_the_start_ends_the_run_at_the_start() {
    let mut run = Run::new(plan(&[1]));
    run.tell(Message::Stop("interrupted".into()));
    assert!(run.is_running());
    run.tell(Message::Start(Box::new(loaded(3)), None));
    assert_eq!(run.finished().reason, "interrupted");
    assert!(!run.opened(4));
}

#[test]
fn a_stop_drops_the_open_round_in_every_phase_without_an_outcome() {
    let reports = Run::open(plan(&[1]));
    let mut weighing = Run::open(plan(&[1]));
    weighing.report("d0/n0");
    let mut noting = Run::weighed(plan(&[1]));
    noting.contribute(0, 0, &["d0/n0"]);
    let folding = Run::folding(plan(&[1]));
    let mut computing = Run::folding(plan(&[1]));
    computing.tell(Message::Folded(1, 0, Ok(())));
    for mut run in [reports, weighing, noting, folding, computing] {
        run.tell(Message::Stop("interrupted".into()));
        let finished = run.finished();
        assert_eq!(
            (finished.rounds, finished.reason.as_str()),
            (0, "interrupted")
        );
        assert!(run.told(
            0,
            &Control::Abort {
                round: 1,
                reason: "the run ends".into()
            }
        ));
        assert!(run.told(
            0,
            &Control::Finish {
                reason: "interrupted".into()
            }
        ));
        assert!(
            !run.effects
                .iter()
                .any(|effect| matches!(effect, Effect::Record(_)))
        );
    }
}

#[test]
fn a_stop_waits_for_the_commit_that_is_being_written() {
    let mut run = Run::committing(plan(&[1]));
    run.tell(Message::Stop("interrupted".into()));
    assert!(run.is_running(), "its record may exist already");
    run.tell(Message::Committed(1, Ok(())));
    let finished = run.finished();
    assert_eq!((finished.committed, finished.model_hash), (1, hash(1)));
    assert!(!run.opened(2));
}

#[test]
fn a_stop_waits_for_the_record_of_an_abort() {
    let mut run = Run::open(plan(&[1]));
    run.now = at(10_000);
    run.wake();
    run.tell(Message::Stop("interrupted".into()));
    assert!(
        run.is_running(),
        "the run ends after its last round's record"
    );
    run.tell(Message::Recorded(1, Ok(())));
    let finished = run.finished();
    assert_eq!(
        (finished.aborted, finished.reason.as_str()),
        (1, "interrupted")
    );
    assert!(!run.opened(2));
}

#[test]
fn a_commit_that_never_ends_does_not_hold_up_a_stop_for_ever() {
    let mut run = Run::committing(plan(&[1]));
    run.tell(Message::Stop("interrupted".into()));
    run.now = run.wake_at.expect("it looks again");
    run.wake();
    assert!(
        run.finished()
            .reason
            .contains("round 1 was still being committed")
    );
}

#[test]
fn a_stop_while_stragglers_are_waited_for_ends_the_wait() {
    let mut run = last_round(&[1, 1]);
    run.tell(Message::Stop("interrupted".into()));
    assert_eq!(run.finished().reason, "", "all rounds were run");
}
