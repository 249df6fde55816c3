mod amend;
mod asynchronous;
mod balance;
mod closing;
mod drifts;
mod leaves;
mod misfits;
mod objections;
mod orders;
mod restart;
mod stops;
mod texts;
mod views;

use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use crate::aggregate::Report;
use crate::aggregate::feedback::Drift;
use crate::event::{Finished, RoundRecord, RoundState};
use crate::ids::{Attempt, Epoch};
use crate::machine::Outcome as Out;
use crate::membership::NotLifted;
use crate::pace::Effort;
use crate::plan::Quorum;
use crate::plan::samples::{layout, plan};
use crate::wire::{Answer, Contribution};

// ---- opening ----

#[test]
fn nothing_opens_before_the_state_is_loaded() {
    let mut run = Run::new(plan(&[2, 2]));
    assert_eq!(run.tell(join()), []);
    let opens = run.tell(Message::Start(Box::new(loaded(0)), None));
    assert_eq!(opens, [Effect::Tell(d(0), open(1, 0, &["d0/n0", "d0/n1"]))]);
    assert!(matches!(
        run.events[..],
        [Event::RoundOpened { round: 1, .. }]
    ));
}

#[test]
fn a_domain_that_joins_later_gets_the_open_round() {
    let mut run = Run::open(plan(&[1, 1]));
    assert_eq!(
        run.tell(Message::Up(n("d1/n0"))),
        [Effect::Tell(d(1), Control::Resync)]
    );
    assert_eq!(
        run.domain(1, join_of(&layout())),
        [Effect::Tell(d(1), open(1, 0, &["d1/n0"]))]
    );
}

#[test]
fn a_domain_with_another_model_is_sent_away_with_the_difference() {
    let mut run = Run::open(plan(&[1, 1]));
    let other = Layout::new([("v", vec![4])]).unwrap();
    let effects = run.domain(1, join_of(&other));
    let [Effect::Tell(_, Control::Finish { reason })] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(reason.contains("another model"), "{reason}");
}

#[test]
fn a_domain_of_absent_nodes_is_not_asked_but_gets_the_last_model() {
    let mut plan = plan(&[1, 1]);
    plan.round.absent.insert(1, vec![n("d1/n0")]);
    let mut run = Run::open(plan);
    let effects = run.domain(1, join_of(&layout()));
    assert!(matches!(
        effects[..],
        [Effect::Tell(_, Control::Commit(Commit { round: 0, .. }))]
    ));
    run.commit(&["d0/n0"]);
    assert_eq!(
        run.last_record().state,
        RoundState::Committed,
        "who is absent is not missed"
    );
}

#[test]
fn an_empty_cohort_ends_the_round_and_the_run_goes_on() {
    let mut plan = plan(&[1, 1]);
    plan.round.absent.insert(1, vec![n("d0/n0"), n("d1/n0")]);
    let mut run = Run::open(plan);
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Aborted);
    assert!(
        record.reason.starts_with("empty cohort"),
        "{}",
        record.reason
    );
    assert!(!run.opened(2), "the record comes before the next opening");
    run.tell(Message::Recorded(1, Ok(())));
    assert!(run.opened(2));
}

// ---- reports ----

#[test]
fn with_all_reports_weights_are_asked_for_at_once() {
    let mut run = Run::open(plan(&[1, 1]));
    assert_eq!(run.report("d0/n0"), []);
    assert_eq!(
        run.report("d1/n0"),
        [Effect::Weigh(1, vec![report("d0/n0"), report("d1/n0")])]
    );
}

#[test]
fn at_the_quorum_the_grace_runs_and_then_the_weights_are_asked_for() {
    let mut run = Run::open(some(&[2, 2], 2, 2));
    run.report("d0/n0");
    assert_eq!(run.report("d1/n0"), []);
    assert_eq!(run.events.last(), Some(&Event::QuorumReached { round: 1 }));
    assert_eq!(run.wake_at, Some(at(1000)));
    run.now = at(999);
    assert_eq!(run.wake(), []);
    run.now = at(1000);
    assert!(matches!(run.wake()[..], [Effect::Weigh(1, _)]));
}

#[test]
fn a_late_quorum_leaves_time_for_the_second_gate() {
    let mut run = Run::open(some(&[2, 2], 2, 2));
    run.now = at(7000);
    run.report("d0/n0");
    run.report("d1/n0");
    assert_eq!(
        run.wake_at,
        Some(at(7500)),
        "a quarter of the deadline is kept"
    );
    let mut run = Run::open(some(&[2, 2], 2, 2));
    run.now = at(9000);
    run.report("d0/n0");
    assert!(
        matches!(run.report("d1/n0")[..], [Effect::Weigh(1, _)]),
        "no time for grace"
    );
}

#[test]
fn nobody_waits_for_a_node_that_failed_is_unreachable_or_of_a_lost_domain() {
    for message in [
        dom(
            1,
            Control::TrainingFailed {
                round: 1,
                node: n("d1/n1"),
                reason: "ill".into(),
            },
        ),
        dom(
            1,
            Control::Unreachable {
                round: 1,
                node: n("d1/n1"),
                reason: "gone".into(),
            },
        ),
        Message::Watched(n("d1/n0"), Word::Restoring),
    ] {
        let mut run = Run::open(some(&[1, 2], 2, 2));
        run.report("d0/n0");
        run.report("d1/n0");
        assert!(matches!(run.tell(message)[..], [Effect::Weigh(1, _)]));
    }
}

#[test]
fn a_report_is_taken_once_and_only_from_whom_it_concerns() {
    let mut run = Run::open(plan(&[2, 1]));
    run.report("d0/n0");
    run.report("d0/n0");
    assert!(matches!(
        run.events.last(),
        Some(Event::DuplicateAnswered { round: 1, .. })
    ));
    let stranger = run.events.len();
    run.tell(dom(1, reported(1, report("d0/n1"))));
    assert_eq!(
        run.events.len(),
        stranger,
        "a gateway speaks for its own domain only"
    );
    run.tell(dom(0, reported(7, report("d0/n1"))));
    assert!(matches!(
        run.events.last(),
        Some(Event::LateAnswered { round: 7, .. })
    ));
}

#[test]
fn a_node_that_trained_again_replaces_its_report_until_it_is_weighed() {
    let mut run = Run::open(plan(&[2]));
    run.report("d0/n0");
    let mut newer = report("d0/n0");
    newer.norm = 9.0;
    run.tell(dom(0, reported(1, newer.clone())));
    let effects = run.report("d0/n1");
    assert_eq!(effects, [Effect::Weigh(1, vec![newer, report("d0/n1")])]);
}

#[test]
fn an_update_that_is_not_finite_is_refused_by_name_and_the_rest_goes_on() {
    let mut run = Run::open(some(&[2, 1], 2, 2));
    let mut bad = report("d0/n1");
    bad.finite = false;
    run.tell(dom(0, reported(1, bad)));
    assert!(matches!(
        run.events.last(),
        Some(Event::UpdateRefused { round: 1, .. })
    ));
    run.commit(&["d0/n0", "d1/n0"]);
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Degraded);
    assert_eq!(record.refused[0].0, n("d0/n1"));
    assert_eq!(record.late, []);
}

#[test]
fn a_refused_update_ends_a_round_that_needs_everybody() {
    let mut run = Run::open(plan(&[2]));
    let mut bad = report("d0/n1");
    bad.norm = f64::NAN;
    run.tell(dom(0, reported(1, bad)));
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Aborted);
    assert!(record.reason.contains("d0/n1: "), "{}", record.reason);
}

#[test]
fn a_round_without_a_quorum_is_aborted_at_its_deadline_naming_who_is_missing() {
    let mut run = Run::open(plan(&[1, 1]));
    run.report("d0/n0");
    run.now = at(9999);
    assert_eq!(run.wake(), []);
    run.now = at(10_000);
    run.wake();
    let record = run.last_record();
    assert_eq!(
        (record.state, &record.late[..]),
        (RoundState::Aborted, &[n("d0/n0"), n("d1/n0")][..])
    );
    assert!(
        record.reason.ends_with("missing: d1/n0"),
        "{}",
        record.reason
    );
    assert!(run.told(
        0,
        &Control::Abort {
            round: 1,
            reason: record.reason.into()
        }
    ));
}

#[test]
fn after_the_deadline_nothing_is_accepted_though_the_timer_is_late() {
    let mut run = Run::open(plan(&[1, 1]));
    run.report("d0/n0");
    run.now = at(10_001);
    run.report("d1/n0");
    assert_eq!(run.last_record().state, RoundState::Aborted);
}

#[test]
fn when_all_fail_the_round_is_aborted_at_once_and_the_limit_ends_the_run() {
    let mut plan = plan(&[1]);
    plan.round.failed_limit = 2;
    let mut run = Run::open(plan);
    for round in 1..=2 {
        let reason = "no rows".into();
        run.tell(dom(
            0,
            Control::TrainingFailed {
                round,
                node: n("d0/n0"),
                reason,
            },
        ));
        assert_eq!(run.last_record().round, round);
        run.tell(Message::Recorded(round, Ok(())));
    }
    let finished = run.finished();
    assert_eq!((finished.rounds, finished.aborted), (2, 2));
    assert!(
        finished.reason.contains("the limit is 2"),
        "{}",
        finished.reason
    );
}

// ---- weighing ----

#[test]
fn weights_go_to_each_domain_with_the_norms_they_were_fixed_for() {
    let mut run = Run::open(plan(&[1, 1]));
    run.join(1);
    run.report("d0/n0");
    run.report("d1/n0");
    let effects = run.weigh(&[("d0/n0", 1.0), ("d1/n0", 2.0)]);
    let weigh = |node, weight| Control::Weigh {
        round: 1,
        weights: vec![weight_of(node, weight)],
        norms: vec![2.0],
    };
    assert_eq!(
        effects,
        [
            Effect::Tell(d(0), weigh("d0/n0", 1.0)),
            Effect::Tell(d(1), weigh("d1/n0", 2.0))
        ]
    );
}

#[test]
fn weights_that_cannot_be_used_abort_the_round() {
    for weights in [
        &[("d0/n0", 0.0)][..],
        &[("d0/n0", f64::NAN)],
        &[("d0/n0", 1e-40)],
        &[("d0/n1", 1.0)],
        &[],
    ] {
        let mut run = Run::open(plan(&[1]));
        run.report("d0/n0");
        run.weigh(weights);
        assert_eq!(run.last_record().state, RoundState::Aborted, "{weights:?}");
    }
    let mut run = Run::open(plan(&[1]));
    run.report("d0/n0");
    run.tell(Message::Weighed(1, Err("a rule of mine".into())));
    assert_eq!(run.last_record().reason, "a rule of mine");
}

#[test]
fn a_rule_that_never_answers_costs_one_round() {
    let mut run = Run::open(plan(&[1]));
    run.report("d0/n0");
    assert_eq!(run.wake_at, Some(at(5000)));
    run.now = at(5000);
    run.wake();
    let reason = run.last_record().reason;
    assert!(reason.contains("close_limit"), "{reason}");
    assert!(reason.contains("the aggregator \"fedavg\""), "{reason}");
}

/// What weighing may take is not taken from what comes after it.
#[test]
fn after_the_weighing_the_rest_of_the_round_has_its_time() {
    let mut run = Run::weighed(plan(&[1]));
    run.now = at(9000);
    run.contribute(0, 0, &["d0/n0"]);
    run.tell(Message::Noted(1, d(0), 0, Ok(())));
    assert_eq!(
        run.wake_at,
        Some(at(14_000)),
        "close_limit from the fold on"
    );
}

#[test]
fn a_report_behind_the_weighing_is_late() {
    let mut run = Run::open(some(&[2], 1, 1));
    run.report("d0/n0");
    run.now = at(1000);
    run.wake();
    run.report("d0/n1");
    assert!(matches!(
        run.events.last(),
        Some(Event::LateAnswered { round: 1, .. })
    ));
}

#[test]
fn a_node_without_weight_is_not_needed_even_if_everybody_is() {
    let mut run = Run::open(plan(&[2]));
    run.report("d0/n0");
    run.report("d0/n1");
    run.weigh(&[("d0/n0", 1.0), ("d0/n1", 0.0)]);
    run.contribute(0, 0, &["d0/n0"]);
    assert!(matches!(
        run.noted(0, 0)[..],
        [Effect::Tell(..), Effect::Fold(1, 0, _)]
    ));
}

// ---- contributions ----

#[test]
fn a_contribution_is_acknowledged_once_it_is_noted_and_the_last_one_starts_the_fold() {
    let mut run = Run::weighed(plan(&[1, 1]));
    let first = contribution(0, 0, &["d0/n0"]);
    assert_eq!(
        run.contribute(0, 0, &["d0/n0"]),
        [Effect::Note(first.clone())]
    );
    assert_eq!(run.noted(0, 0), [answer(0, 0, Answer::Acknowledged)]);
    run.contribute(1, 0, &["d1/n0"]);
    let both = vec![first, contribution(1, 0, &["d1/n0"])];
    assert_eq!(
        run.noted(1, 0),
        [answer(1, 0, Answer::Acknowledged), Effect::Fold(1, 0, both)]
    );
}

#[test]
fn the_same_contribution_is_a_duplicate_while_it_is_noted_and_afterwards() {
    let mut run = Run::weighed(plan(&[1, 1]));
    run.contribute(0, 0, &["d0/n0"]);
    assert_eq!(
        run.contribute(0, 0, &["d0/n0"]),
        [answer(0, 0, Answer::Duplicate)]
    );
    run.noted(0, 0);
    assert_eq!(
        run.contribute(0, 0, &["d0/n0"]),
        [answer(0, 0, Answer::Duplicate)]
    );
}

#[test]
fn a_newer_attempt_takes_the_place_of_the_older_one() {
    let mut run = Run::weighed(plan(&[2]));
    run.contribute(0, 0, &["d0/n0"]);
    assert_eq!(run.noted(0, 0), [answer(0, 0, Answer::Acknowledged)]);
    run.contribute(0, 1, &["d0/n0", "d0/n1"]);
    let whole = vec![contribution(0, 1, &["d0/n0", "d0/n1"])];
    assert_eq!(
        run.noted(0, 1),
        [
            answer(0, 1, Answer::Acknowledged),
            Effect::Fold(1, 0, whole)
        ]
    );
}

#[test]
fn a_gateway_that_was_restarted_is_told_which_attempts_are_taken() {
    let mut run = Run::weighed(plan(&[1, 1]));
    run.contribute(0, 4, &["d0/n0"]);
    run.noted(0, 4);
    let effects = run.domain(0, join_of(&layout()));
    let [
        Effect::Tell(_, Control::Open(open)),
        Effect::Tell(_, Control::Weigh { .. }),
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(open.attempt, 5);
}

#[test]
fn what_is_not_acceptable_is_refused_and_nobody_waits_for_it() {
    let good = contribution(1, 0, &["d1/n0", "d1/n1"]);
    type Spoil = fn(&mut Contribution);
    let spoiled: [(&str, Spoil); 8] = [
        ("it says it is from d0", |c| c.domain = d(0)),
        ("was not weighed", |c| c.members.push(n("d1/n2"))),
        ("twice or out of rank order", |c| c.members.swap(0, 1)),
        ("twice or out of rank order", |c| c.members[1] = n("d1/n0")),
        ("its members weigh", |c| c.members.clear()),
        ("its members weigh", |c| c.weight += 1.0),
        ("exponent 7", |c| c.exponent = 7),
        ("0 chunks where 1 are due", |c| c.chunks.clear()),
    ];
    for (reason, spoil) in spoiled {
        let mut run = Run::weighed(some(&[1, 2], 1, 1));
        run.contribute(0, 0, &["d0/n0"]);
        run.noted(0, 0);
        let mut bad = good.clone();
        spoil(&mut bad);
        let effects = run.domain(1, Control::Contribute(bad));
        let [
            Effect::Tell(
                _,
                Control::Answer {
                    answer: Answer::Refused(found),
                    ..
                },
            ),
            rest,
        ] = &effects[..]
        else {
            panic!("{reason}: {effects:?}")
        };
        assert!(found.contains(reason), "{found}");
        assert!(matches!(rest, Effect::Fold(..)), "{reason}");
    }
}

#[test]
fn a_contribution_that_cannot_be_noted_is_refused_with_the_reason() {
    let mut run = Run::weighed(some(&[1, 1], 1, 1));
    run.contribute(0, 0, &["d0/n0"]);
    let effects = run.tell(Message::Noted(
        1,
        d(0),
        0,
        Err(NoteError::Disk("disk full".into())),
    ));
    let [
        Effect::Tell(
            _,
            Control::Answer {
                answer: Answer::Refused(reason),
                ..
            },
        ),
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert!(reason.contains("disk full"));
    assert!(
        !run.contribute(0, 0, &["d0/n0"]).is_empty(),
        "it may be offered again"
    );
}

#[test]
fn a_contribution_is_late_for_another_round_and_once_folding_has_begun() {
    let mut run = Run::weighed(some(&[1, 1], 1, 1));
    let mut old = contribution(1, 0, &["d1/n0"]);
    old.round = 9;
    let effects = run.domain(1, Control::Contribute(old));
    assert!(matches!(
        &effects[..],
        [Effect::Tell(
            _,
            Control::Answer {
                answer: Answer::Late,
                ..
            }
        )]
    ));
    run.contribute(0, 0, &["d0/n0"]);
    run.noted(0, 0);
    run.now = at(1000);
    assert!(
        matches!(run.wake()[..], [Effect::Fold(1, 0, _)]),
        "quorum and grace"
    );
    assert_eq!(
        run.contribute(1, 0, &["d1/n0"]),
        [answer(1, 0, Answer::Late)]
    );
}

#[test]
fn a_note_that_comes_after_the_fold_began_is_answered_late() {
    let mut run = Run::weighed(some(&[1, 1], 1, 1));
    run.contribute(0, 0, &["d0/n0"]);
    run.noted(0, 0);
    run.contribute(1, 0, &["d1/n0"]);
    run.now = at(10_000);
    assert!(matches!(run.wake()[..], [Effect::Fold(1, 0, _)]));
    assert_eq!(run.noted(1, 0), [answer(1, 0, Answer::Late)]);
}

#[test]
fn without_a_quorum_of_contributions_the_round_is_aborted_at_the_deadline() {
    let mut run = Run::weighed(plan(&[1, 1]));
    run.contribute(0, 0, &["d0/n0"]);
    run.noted(0, 0);
    run.now = at(10_000);
    run.wake();
    let record = run.last_record();
    assert!(
        record.reason.contains("contributions of 1 of 2 nodes"),
        "{}",
        record.reason
    );
    assert_eq!(
        record.late,
        [n("d0/n0"), n("d1/n0")],
        "who was acknowledged is named"
    );
}

#[test]
fn a_weighed_node_that_fails_for_good_ends_a_round_that_needs_it_before_the_deadline() {
    let mut run = Run::weighed(plan(&[1, 1]));
    let reason = "lost".into();
    run.domain(
        1,
        Control::TrainingFailed {
            round: 1,
            node: n("d1/n0"),
            reason,
        },
    );
    assert!(run.last_record().reason.contains("cannot be met"));
}

#[test]
fn a_smaller_contribution_undoes_the_quorum_and_its_grace() {
    let mut run = Run::weighed(some(&[2, 1], 2, 1));
    run.contribute(0, 0, &["d0/n0", "d0/n1"]);
    run.noted(0, 0);
    assert_eq!(run.wake_at, Some(at(1000)));
    run.contribute(0, 1, &["d0/n0"]);
    run.noted(0, 1);
    assert_eq!(run.wake_at, Some(at(10_000)));
}

// ---- folding and committing ----

#[test]
fn a_commit_is_recorded_announced_and_followed_by_the_next_round() {
    let mut run = Run::weighed(plan(&[1, 1]));
    run.contribute(0, 0, &["d0/n0"]);
    run.noted(0, 0);
    run.contribute(1, 0, &["d1/n0"]);
    run.noted(1, 0);
    let effects = run.compute(0);
    let [Effect::Commit(record)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (record.state, record.counted.len()),
        (RoundState::Committed, 2)
    );
    let effects = run.tell(Message::Committed(1, Ok(())));
    let commit = Control::Commit(Commit {
        round: 1,
        base: hash(0),
        hash: hash(1),
        contributions: vec![(d(0), 0), (d(1), 0)],
    });
    assert_eq!(
        effects[..4],
        [
            Effect::Offer(d(0), 1),
            Effect::Tell(d(0), commit.clone()),
            Effect::Offer(d(1), 1),
            Effect::Tell(d(1), commit)
        ]
    );
    assert_eq!(effects[4], Effect::Tell(d(0), open(2, 1, &["d0/n0"])));
}

#[test]
fn answers_of_another_start_or_round_change_nothing() {
    let mut run = Run::folding(plan(&[1]));
    let before = run.events.len();
    for message in [
        Message::Folded(1, 3, Ok(())),
        Message::Folded(2, 0, Ok(())),
        Message::Computed(1, Ok(outcome(1))),
        Message::Committed(1, Ok(())),
        Message::Recorded(1, Ok(())),
        Message::Weighed(1, Ok(vec![])),
        Message::Fixed(1, Ok(())),
        Message::Noted(1, d(0), 0, Ok(())),
    ] {
        assert_eq!(run.tell(message), []);
    }
    assert_eq!(run.events.len(), before);
}

#[test]
fn what_is_heard_of_a_node_is_told_once_but_not_that_it_has_come() {
    let mut run = Run::folding(plan(&[1, 1]));
    assert!(!run.says("StandingChanged"));
    let node = n("d1/n0");
    let told = |run: &Run| {
        let events = run.events.iter();
        let states = events.filter_map(|event| match event {
            Event::StandingChanged {
                node: of, state, ..
            } if *of == n("d1/n0") => Some(*state),
            _ => None,
        });
        states.collect::<Vec<_>>()
    };
    for word in [
        Word::Active,
        Word::Suspect,
        Word::Suspect,
        Word::Restoring,
        Word::Active,
    ] {
        run.tell(Message::Watched(node.clone(), word));
    }
    use crate::membership::State;
    assert_eq!(
        told(&run),
        [State::Suspect, State::Restoring, State::Active]
    );
}

#[test]
fn it_is_told_when_all_contributions_are_folded() {
    let mut run = Run::folding(plan(&[1]));
    let folded = Event::ContributionsFolded { round: 1 };
    assert!(!run.events.contains(&folded));
    run.tell(Message::Folded(1, 0, Ok(())));
    assert_eq!(run.events.last(), Some(&folded));
}

#[test]
fn a_contribution_that_cannot_be_had_is_left_out_and_named() {
    let mut run = Run::folding(some(&[1, 1], 1, 1));
    let lost = Err(FoldError::Domain(d(1), "its gateway is gone".into()));
    let effects = run.tell(Message::Folded(1, 0, lost));
    assert_eq!(
        effects,
        [Effect::Fold(1, 1, vec![contribution(0, 0, &["d0/n0"])])]
    );
    let effects = run.compute(1);
    let [Effect::Commit(record)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (record.state, &record.late[..]),
        (RoundState::Degraded, &[n("d1/n0")][..])
    );
    assert!(
        record.reason.contains("d1: its gateway is gone"),
        "{}",
        record.reason
    );
}

#[test]
fn without_it_the_round_is_aborted_if_the_quorum_needs_it() {
    let mut run = Run::folding(plan(&[1, 1]));
    let lost = Err(FoldError::Domain(d(1), "its gateway is gone".into()));
    run.tell(Message::Folded(1, 0, lost));
    let record = run.last_record();
    assert!(
        record
            .reason
            .contains("the acknowledged contribution of d1 was lost")
    );
    assert_eq!(record.counted, []);
}

#[test]
fn a_fold_that_takes_longer_than_the_limit_is_given_up() {
    let mut run = Run::folding(plan(&[1]));
    assert_eq!(run.wake_at, Some(at(5000)));
    run.now = at(5000);
    run.wake();
    assert!(run.last_record().reason.contains("close_limit"));
    assert_eq!(
        run.tell(Message::Folded(1, 0, Ok(()))),
        [],
        "its result is stale"
    );
}

#[test]
fn what_cannot_be_written_ends_the_run() {
    let mut run = Run::folding(plan(&[1]));
    run.compute(0);
    run.tell(Message::Committed(1, Err("disk full".into())));
    let finished = run.finished();
    assert!(
        finished
            .reason
            .contains("round 1 could not be committed: disk full")
    );
    assert_eq!((finished.rounds, finished.model_hash), (0, hash(0)));
}

// ---- the end ----

#[test]
fn the_run_ends_once_every_domain_holds_the_last_model() {
    let mut run = last_round(&[1, 1]);
    assert!(run.is_running());
    run.domain(0, adopted());
    assert!(run.is_running());
    run.domain(1, adopted());
    let finished = run.finished();
    assert_eq!((finished.committed, finished.reason.as_str()), (1, ""));
    assert!(run.told(0, &Control::Finish { reason: "".into() }));
}

#[test]
fn nobody_waits_for_a_lost_domain_and_it_is_said() {
    let mut run = last_round(&[1, 1]);
    run.domain(0, adopted());
    run.tell(Message::Watched(n("d1/n0"), Word::Restoring));
    run.finished();
    assert!(run.says("does not hold the last model: its gateway gives no sign of life"));
}

#[test]
fn a_domain_that_only_looks_on_needs_no_last_model_and_nobody_waits_for_it() {
    let mut plan = some(&[1, 1], 1, 1);
    plan.rounds = 1;
    plan.round.absent.insert(1, vec![n("d1/n0")]);
    let mut run = Run::open(plan);
    run.join(1);
    run.commit(&["d0/n0"]);
    run.domain(0, adopted());
    assert_eq!(run.finished().reason, "");
    assert!(!run.says("does not hold the last model"));
    assert!(run.told(1, &Control::Finish { reason: "".into() }));
}

#[test]
fn a_domain_that_never_came_or_lags_is_waited_for_no_longer_than_the_limit() {
    let mut plan = some(&[1, 1, 1], 1, 1);
    plan.rounds = 1;
    let mut run = Run::open(plan);
    run.join(1);
    run.commit(&["d0/n0"]);
    run.domain(0, adopted());
    assert!(run.is_running());
    let until = run.wake_at.expect("it looks again");
    assert_eq!(until.since(run.now), Duration::from_secs(5));
    run.now = until;
    run.wake();
    assert_eq!(run.finished().reason, "");
    assert!(run.says("d1") && run.says("it did not adopt it in time"));
    assert!(run.says("d2") && run.says("it never joined"));
    // Whoever comes now is told that it is over.
    let effects = run.domain(2, join_of(&layout()));
    assert!(matches!(
        effects.last(),
        Some(Effect::Tell(_, Control::Finish { .. }))
    ));
}

// ---- helpers ----

struct Run {
    machine: Coordinator,
    now: Micros,
    wake_at: Option<Micros>,
    effects: VecDeque<Effect>,
    events: Vec<Event>,
}

impl Run {
    fn new(plan: Plan) -> Self {
        Run {
            machine: Coordinator::new(plan, layout()),
            now: at(0),
            wake_at: None,
            effects: VecDeque::new(),
            events: Vec::new(),
        }
    }

    /// Round 1 is open, d0 has joined.
    fn open(plan: Plan) -> Self {
        let mut run = Run::new(plan);
        run.tell(join());
        run.tell(Message::Start(Box::new(loaded(0)), None));
        run
    }

    /// Everybody has joined and reported and weighs one.
    fn weighed(plan: Plan) -> Self {
        let nodes: Vec<NodeId> = plan.nodes().map(|node| node.id.clone()).collect();
        let domains = plan.domains.len();
        let mut run = Run::open(plan);
        (1..domains).for_each(|domain| run.join(domain));
        for node in &nodes {
            run.report(node.as_str());
        }
        let weights: Vec<(&str, f64)> = nodes.iter().map(|node| (node.as_str(), 1.0)).collect();
        run.weigh(&weights);
        run
    }

    /// Everybody has contributed.
    fn folding(plan: Plan) -> Self {
        let domains = plan.domains.clone();
        let mut run = Run::weighed(plan);
        for (index, domain) in domains.iter().enumerate() {
            let members: Vec<&str> = domain.nodes.iter().map(|node| node.id.as_str()).collect();
            run.contribute(index, 0, &members);
        }
        for index in 0..domains.len() {
            run.noted(index, 0);
        }
        assert!(matches!(run.effects.back(), Some(Effect::Fold(1, 0, _))));
        run
    }

    fn committing(plan: Plan) -> Self {
        let mut run = Run::folding(plan);
        assert!(matches!(run.compute(0)[..], [Effect::Commit(_)]));
        run
    }

    fn step(&mut self, message: Option<Message>) -> Vec<Effect> {
        let mut out = Out::default();
        let mut cx = Context::new(self.now, &mut out);
        match message {
            Some(message) => self.machine.handle(message, &mut cx),
            None => self.machine.on_wake(&mut cx),
        }
        self.events.extend(out.events);
        self.effects.extend(out.effects.clone());
        // As the actor has it: a wish stands until there is a newer one.
        self.wake_at = out.wake_at.or(self.wake_at);
        out.effects.into()
    }

    fn tell(&mut self, message: Message) -> Vec<Effect> {
        self.step(Some(message))
    }

    fn wake(&mut self) -> Vec<Effect> {
        self.step(None)
    }

    fn domain(&mut self, domain: usize, control: Control) -> Vec<Effect> {
        self.tell(dom(domain, control))
    }

    fn join(&mut self, domain: usize) {
        self.domain(domain, join_of(&layout()));
    }

    fn report(&mut self, node: &str) -> Vec<Effect> {
        let gateway = n(&format!("{}/n0", n(node).domain()));
        self.tell(Message::Domain(gateway, reported(1, report(node))))
    }

    fn weigh(&mut self, weights: &[(&str, f64)]) -> Vec<Effect> {
        let weights = weights
            .iter()
            .map(|(node, weight)| weight_of(node, *weight))
            .collect();
        let effects = self.tell(Message::Weighed(1, Ok(weights)));
        match effects[..] {
            [Effect::Fix(_)] => self.tell(Message::Fixed(1, Ok(()))),
            _ => effects,
        }
    }

    fn contribute(&mut self, domain: usize, attempt: Attempt, members: &[&str]) -> Vec<Effect> {
        self.domain(
            domain,
            Control::Contribute(contribution(domain, attempt, members)),
        )
    }

    fn noted(&mut self, domain: usize, attempt: Attempt) -> Vec<Effect> {
        self.tell(Message::Noted(1, d(domain), attempt, Ok(())))
    }

    /// The fold of that start is done, and so is the outer step.
    fn compute(&mut self, start: u32) -> Vec<Effect> {
        let effects = self.tell(Message::Folded(1, start, Ok(())));
        assert_eq!(effects, [Effect::Compute(1)]);
        self.tell(Message::Computed(1, Ok(outcome(1))))
    }

    /// Round 1 is committed with these nodes, all of whom weigh one.
    fn commit(&mut self, nodes: &[&str]) {
        for node in nodes {
            self.report(node);
        }
        self.now = self.now + Duration::from_secs(1);
        self.wake();
        self.weigh(&nodes.iter().map(|node| (*node, 1.0)).collect::<Vec<_>>());
        for (domain, node) in nodes.iter().enumerate() {
            self.contribute(domain, 0, &[node]);
            self.noted(domain, 0);
        }
        self.compute(0);
        self.tell(Message::Committed(1, Ok(())));
    }

    fn last_record(&self) -> RoundRecord {
        let mut records = self.effects.iter().filter_map(|effect| match effect {
            Effect::Commit(record) | Effect::Record(record) => Some(record.as_ref().clone()),
            _ => None,
        });
        records.next_back().expect("a round ended")
    }

    fn opened(&self, number: Round) -> bool {
        let is =
            |event: &Event| matches!(event, Event::RoundOpened { round, .. } if *round == number);
        self.events.iter().any(is)
    }

    fn told(&self, domain: usize, control: &Control) -> bool {
        let told = Effect::Tell(d(domain), control.clone());
        self.effects.contains(&told)
    }

    fn says(&self, what: &str) -> bool {
        self.events
            .iter()
            .any(|event| format!("{event:?}").contains(what))
    }

    fn is_running(&self) -> bool {
        !self
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Finish(_)))
    }

    fn finished(&self) -> Finished {
        let finished = self.effects.iter().filter_map(|effect| match effect {
            Effect::Finish(finished) => Some(finished.clone()),
            _ => None,
        });
        let finished: Vec<Finished> = finished.collect();
        assert_eq!(finished.len(), 1, "a run ends once");
        finished[0].clone()
    }
}

/// The only round is committed by all, and nobody has adopted it yet.
fn last_round(sizes: &[usize]) -> Run {
    let mut plan = plan(sizes);
    plan.rounds = 1;
    let mut run = Run::committing(plan);
    run.tell(Message::Committed(1, Ok(())));
    run
}

fn some(sizes: &[usize], nodes: usize, domains: usize) -> Plan {
    let mut plan = plan(sizes);
    plan.round.quorum = Quorum::AtLeast { nodes, domains };
    plan
}

fn at(ms: u64) -> Micros {
    Micros(ms * 1000)
}

fn d(index: usize) -> DomainId {
    format!("d{index}").parse().unwrap()
}

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn hash(round: Round) -> Hash {
    Hash([round as u8 + 1; 32])
}

fn loaded(round: Round) -> Committed {
    Committed {
        run: Hash::default(),
        ended: round,
        round,
        hash: hash(round),
        tally: (round, 0, 0),
        accuracy: 0.0,
        loss: 0.0,
        view: None,
        past: Default::default(),
        drifts: Vec::new(),
        paces: Vec::new(),
        overtaken: Vec::new(),
        paused: None,
    }
}

fn outcome(round: Round) -> Outcome {
    Outcome {
        hash: hash(round),
        accuracy: 0.5,
        loss: 1.0,
    }
}

fn adopted() -> Control {
    Control::Adopted {
        round: 1,
        hash: hash(1),
        nodes: vec![],
    }
}

fn dom(domain: usize, control: Control) -> Message {
    Message::Domain(n(&format!("d{domain}/n0")), control)
}

fn join() -> Message {
    dom(0, join_of(&layout()))
}

fn join_of(layout: &Layout) -> Control {
    Control::DomainJoin(DomainJoin {
        layout: layout.clone(),
        round: 0,
        hash: hash(0),
        members: vec![],
    })
}

fn open(round: Round, base: Round, cohort: &[&str]) -> Control {
    Control::Open(Open {
        run: Hash::default(),
        round,
        epoch: 1,
        base_round: base,
        base: hash(base),
        cohort: cohort.iter().map(|node| n(node)).collect(),
        attempt: 0,
        sync_every: crate::plan::SyncEvery::Steps(1),
        steps: Vec::new(),
        seed: 7,
        fresh: None,
    })
}

fn report(node: &str) -> Report {
    Report {
        node: n(node),
        samples: 10,
        loss: 1.0,
        steps: 1,
        learning_rate: 0.1,
        norm: 2.0,
        finite: true,
    }
}

fn reported(round: Round, report: Report) -> Control {
    Control::Reported {
        round,
        epoch: 1,
        trained_for: round,
        report,
        effort: Effort::default(),
    }
}

fn weight_of(node: &str, weight: f64) -> Weight {
    Weight {
        node: n(node),
        weight,
        clip: 1.0,
        reason: String::new(),
    }
}

fn contribution(domain: usize, attempt: Attempt, members: &[&str]) -> Contribution {
    let weight = members.len() as f64;
    Contribution {
        round: 1,
        epoch: 1,
        attempt,
        domain: d(domain),
        members: members.iter().map(|node| n(node)).collect(),
        weight,
        exponent: crate::fold::exponent(weight).unwrap(),
        chunks: vec![hash(9)],
        encoding: Default::default(),
    }
}

fn answer(domain: usize, attempt: Attempt, answer: Answer) -> Effect {
    Effect::Tell(
        d(domain),
        Control::Answer {
            round: 1,
            attempt,
            answer,
        },
    )
}

/// flower#7645: a node without rows makes no quorum that the second gate could not meet.
#[test]
fn who_weighs_nothing_does_not_close_the_first_gate_while_others_may_come() {
    let mut run = Run::open(some(&[2, 2], 2, 2));
    let mut empty = report("d1/n0");
    empty.samples = 0;
    run.report("d0/n0");
    run.tell(dom(1, reported(1, empty)));
    assert!(
        !run.events.contains(&Event::QuorumReached { round: 1 }),
        "one of the two has no rows"
    );
    run.report("d1/n1");
    assert!(run.events.contains(&Event::QuorumReached { round: 1 }));
}
