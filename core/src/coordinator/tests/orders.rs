//! A user pauses the run, goes on with it, or stops it.

use super::*;

fn order(wish: Wish) -> Order {
    Order {
        wish,
        by: "ada".into(),
        unix: 1_700_000_000,
    }
}

fn paused() -> Paused {
    Paused {
        by: "ada".into(),
        since: 1_700_000_000,
    }
}

/// The pause is.
fn written() -> Held {
    Held {
        paused: Some(paused()),
        failed: None,
    }
}

impl Run {
    /// The order's answer, if it needs nothing written.
    fn order(&mut self, number: u64, wish: Wish) -> OrderAnswer {
        let effects = self.tell(Message::Order(number, order(wish)));
        answer(&effects, number)
    }

    /// The run is paused, and that is written down.
    fn pause(&mut self) -> OrderAnswer {
        let effects = self.tell(Message::Order(1, order(Wish::Pause)));
        assert_eq!(effects, [Effect::Hold(1, Some(paused()))]);
        answer(&self.tell(Message::Held(1, Ok(written()))), 1)
    }
}

#[track_caller]
fn answer(effects: &[Effect], number: u64) -> OrderAnswer {
    let mut answers = effects.iter().filter_map(|effect| match effect {
        Effect::Ordered(of, answer) if *of == number => Some(answer.clone()),
        _ => None,
    });
    answers.next().unwrap_or_else(|| panic!("{effects:?}"))
}

/// The round that is committed now is over.
fn close(run: &mut Run) {
    run.tell(Message::Committed(1, Ok(())));
}

#[test]
fn a_pause_lets_the_open_round_end_and_opens_no_other() {
    let mut run = Run::committing(plan(&[1]));
    let obeyed = Obeyed::Paused {
        paused: paused(),
        open: Some(1),
        already: false,
    };
    assert_eq!(run.pause(), Ok(obeyed));
    assert!(run.says("RunPaused { by: \"ada\", since: 1700000000, open: Some(1) }"));
    close(&mut run);
    assert!(!run.opened(2) && run.is_running());
    run.now = at(3_600_000);
    run.wake();
    assert!(!run.opened(2), "time does not end it");
    assert_eq!(run.machine.paused(), Some(&paused()));

    let effects = run.tell(Message::Order(2, order(Wish::Resume)));
    assert_eq!(effects, [Effect::Hold(2, None)]);
    assert!(!run.opened(2), "its end is written down first");
    let effects = run.tell(Message::Held(2, Ok(Held::default())));
    assert_eq!(
        answer(&effects, 2),
        Ok(Obeyed::Resumed { paused: paused() })
    );
    assert!(run.opened(2) && run.says("RunResumed"));
}

#[test]
fn no_round_opens_while_a_pause_is_being_written() {
    let mut run = Run::committing(plan(&[1]));
    run.tell(Message::Order(1, order(Wish::Pause)));
    close(&mut run);
    assert!(!run.opened(2) && !run.says("RunPaused"));
    assert_eq!(run.order(2, Wish::Pause), Err(NotObeyed::Busy));
    run.tell(Message::Held(2, Ok(written())));
    assert!(!run.says("RunPaused"), "that is another order's");
    run.tell(Message::Held(1, Ok(written())));
    assert!(run.says("RunPaused { by: \"ada\", since: 1700000000, open: None }"));
}

#[test]
fn what_cannot_be_written_leaves_the_run_as_it_was() {
    let full = || Err("disk full".to_owned());
    let unwritten = |paused| {
        let reason = "disk full".into();
        Err(NotObeyed::Unwritten { reason, paused })
    };
    let mut run = Run::committing(plan(&[1]));
    run.tell(Message::Order(1, order(Wish::Pause)));
    close(&mut run);
    assert_eq!(
        answer(&run.tell(Message::Held(1, full())), 1),
        unwritten(false)
    );
    assert!(run.opened(2) && run.machine.paused().is_none());

    let mut run = Run::committing(plan(&[1]));
    run.pause().unwrap();
    close(&mut run);
    run.tell(Message::Order(2, order(Wish::Resume)));
    assert_eq!(
        answer(&run.tell(Message::Held(2, full())), 2),
        unwritten(true)
    );
    assert!(!run.opened(2), "it is paused as before");
}

/// A write that failed may have been made all the same: what the next coordinator would find is what this one goes by.
#[test]
fn what_stands_written_counts_whatever_the_store_has_said() {
    let found = |paused| Held {
        paused,
        failed: Some("input/output error".into()),
    };
    let unwritten = |paused| {
        let reason = "input/output error".into();
        Err(NotObeyed::Unwritten { reason, paused })
    };
    let mut run = Run::committing(plan(&[1]));
    run.tell(Message::Order(1, order(Wish::Pause)));
    close(&mut run);
    let effects = run.tell(Message::Held(1, Ok(found(Some(paused())))));
    assert_eq!(answer(&effects, 1), unwritten(true));
    assert!(!run.opened(2) && run.says("RunPaused"));

    run.tell(Message::Order(2, order(Wish::Resume)));
    let effects = run.tell(Message::Held(2, Ok(found(None))));
    assert_eq!(answer(&effects, 2), unwritten(false));
    assert!(run.opened(2) && run.says("RunResumed"));
}

#[test]
fn what_makes_no_difference_is_said() {
    let mut run = Run::open(plan(&[1]));
    assert_eq!(run.order(7, Wish::Resume), Err(NotObeyed::NotPaused));
    run.pause().unwrap();
    let already = Obeyed::Paused {
        paused: paused(),
        open: Some(1),
        already: true,
    };
    assert_eq!(run.order(8, Wish::Pause), Ok(already));
    let mut run = Run::new(plan(&[1]));
    assert_eq!(run.order(1, Wish::Pause), Err(NotObeyed::NotBegun));
    assert_eq!(run.order(2, Wish::Stop), Err(NotObeyed::NotBegun));
}

#[test]
fn a_coordinator_that_is_started_anew_finds_the_run_paused() {
    let mut run = Run::new(plan(&[1]));
    let mut before = loaded(3);
    before.paused = Some(paused());
    run.tell(join());
    run.tell(Message::Start(Box::new(before), None));
    assert!(!run.opened(4) && run.says("RunPaused"));
    run.tell(Message::Order(1, order(Wish::Resume)));
    run.tell(Message::Held(1, Ok(Held::default())));
    assert!(run.opened(4));
}

#[test]
fn a_stop_lets_the_open_round_end_and_every_domain_hold_its_model() {
    let mut run = Run::committing(plan(&[1]));
    let stopping = |already| {
        let open = Some(1);
        Ok(Obeyed::Stopping { open, already })
    };
    assert_eq!(run.order(1, Wish::Stop), stopping(false));
    assert_eq!(run.order(2, Wish::Stop), stopping(true));
    assert!(matches!(
        run.order(3, Wish::Pause),
        Err(NotObeyed::Ends { .. })
    ));
    close(&mut run);
    assert!(run.is_running() && !run.opened(2), "d0 is behind");
    run.domain(0, adopted());
    let finished = run.finished();
    assert_eq!(
        (finished.committed, finished.reason.as_str()),
        (1, "stopped by ada")
    );
    assert!(finished.was_stopped());
    let reason = "stopped by ada".into();
    assert!(run.told(0, &Control::Finish { reason }));
}

#[test]
fn a_stop_of_a_paused_run_ends_it_at_once() {
    let mut run = Run::committing(plan(&[1]));
    run.pause().unwrap();
    close(&mut run);
    run.domain(0, adopted());
    let stopping = Obeyed::Stopping {
        open: None,
        already: false,
    };
    assert_eq!(run.order(2, Wish::Stop), Ok(stopping));
    assert_eq!(run.finished().reason, "stopped by ada");
}

#[test]
fn a_stop_now_gives_the_open_round_up_even_behind_a_stop() {
    let mut run = Run::folding(plan(&[1]));
    run.order(1, Wish::Stop).unwrap();
    let stopping = Obeyed::Stopping {
        open: None,
        already: true,
    };
    assert_eq!(run.order(2, Wish::StopNow), Ok(stopping));
    let finished = run.finished();
    assert_eq!(
        (finished.rounds, finished.reason.as_str()),
        (0, "stopped by ada")
    );
    let reason = "the run ends".into();
    assert!(run.told(0, &Control::Abort { round: 1, reason }));
}

#[test]
fn a_stop_now_waits_for_a_commit_that_is_being_written() {
    let mut run = Run::committing(plan(&[1]));
    let stopping = Obeyed::Stopping {
        open: Some(1),
        already: false,
    };
    assert_eq!(run.order(1, Wish::StopNow), Ok(stopping));
    assert!(run.is_running());
    close(&mut run);
    assert_eq!(run.finished().committed, 1);
}

#[test]
fn the_last_round_ends_a_stopped_run_as_any_other() {
    let mut plan = plan(&[1]);
    plan.rounds = 1;
    let mut run = Run::committing(plan);
    run.order(1, Wish::Stop).unwrap();
    close(&mut run);
    run.domain(0, adopted());
    assert_eq!(run.finished().reason, "");
}
