//! What another life of the coordinator goes on from. NVFlare#242, flower#599, openfl#1229.

use super::*;

// ---- before the first gate ----

#[test]
fn a_restarted_coordinator_runs_the_open_round_again_and_takes_what_is_still_there() {
    let mut run = Run::new(plan(&[1]));
    run.tell(Message::Start(Box::new(loaded(4)), None));
    assert_eq!(
        run.domain(0, join_of(&layout())),
        [Effect::Tell(d(0), open(5, 4, &["d0/n0"]))]
    );
    let early = Contribution {
        round: 5,
        ..contribution(0, 2, &["d0/n0"])
    };
    assert_eq!(
        run.domain(0, Control::Contribute(early.clone())),
        [],
        "asked for again once weighed"
    );
    run.domain(0, reported(5, report("d0/n0")));
    run.tell(Message::Weighed(5, Ok(vec![weight_of("d0/n0", 1.0)])));
    run.tell(Message::Fixed(5, Ok(())));
    assert_eq!(
        run.domain(0, Control::Contribute(early.clone())),
        [Effect::Note(early)]
    );
}

#[test]
fn a_restart_after_the_last_round_only_hands_out_the_model() {
    let mut run = Run::new(plan(&[1]));
    assert_eq!(run.tell(Message::Start(Box::new(loaded(10)), None)), []);
    let effects = run.domain(0, join_of(&layout()));
    assert!(matches!(
        effects[..],
        [Effect::Tell(_, Control::Commit(Commit { round: 10, .. }))]
    ));
    run.domain(
        0,
        Control::Adopted {
            round: 10,
            hash: hash(10),
            nodes: vec![],
        },
    );
    assert_eq!(run.finished().reason, "");
}

// ---- what is fixed is written down ----

#[test]
fn nobody_is_told_of_weights_before_they_are_written_down() {
    let mut run = Run::open(plan(&[1, 1]));
    run.join(1);
    run.report("d0/n0");
    run.report("d1/n0");
    let weights = vec![weight_of("d0/n0", 1.0), weight_of("d1/n0", 2.0)];
    let effects = run.tell(Message::Weighed(1, Ok(weights.clone())));
    let weighing = Weighing {
        weights,
        ..fixed(&["d0/n0", "d1/n0"])
    };
    assert_eq!(effects, [Effect::Fix(Box::new(weighing))]);
    assert_eq!(run.contribute(0, 0, &["d0/n0"]), [], "it is not asked yet");
    let told = run.tell(Message::Fixed(1, Ok(())));
    assert!(matches!(
        told[..],
        [
            Effect::Tell(_, Control::Weigh { .. }),
            Effect::Tell(_, Control::Weigh { .. })
        ]
    ));
}

#[test]
fn weights_that_cannot_be_written_down_abort_the_round_with_the_reason() {
    let mut run = Run::open(plan(&[1]));
    run.report("d0/n0");
    run.tell(Message::Weighed(1, Ok(vec![weight_of("d0/n0", 1.0)])));
    run.tell(Message::Fixed(1, Err("notes: no space left".into())));
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Aborted);
    assert!(record.reason.contains("no space left"), "{}", record.reason);
}

// ---- the same round goes on ----

#[test]
fn a_round_goes_on_behind_its_first_gate_with_the_same_weights() {
    let mut run = resumed(&[1, 1], &[]);
    assert!(matches!(
        run.events[..],
        [
            Event::RoundOpened { round: 1, .. },
            Event::RoundResumed { round: 1, .. }
        ]
    ));
    let told = run.domain(1, join_of(&layout()));
    let weigh = Control::Weigh {
        round: 1,
        weights: vec![weight_of("d1/n0", 1.0)],
        norms: vec![2.0],
    };
    assert_eq!(
        told,
        [
            Effect::Tell(d(1), open(1, 0, &["d1/n0"])),
            Effect::Tell(d(1), weigh)
        ]
    );
    assert_eq!(run.report("d1/n0"), [], "it is weighed already");
    run.contribute(1, 0, &["d1/n0"]);
    run.noted(1, 0);
    run.contribute(0, 0, &["d0/n0"]);
    assert!(matches!(run.noted(0, 0)[..], [_, Effect::Fold(1, 0, _)]));
}

/// ROUND-3: what was acknowledged is folded once its sender offers the same bytes again.
#[test]
fn an_acknowledged_contribution_waits_until_it_is_offered_again() {
    let mut run = resumed(&[1, 1], &[noted(0, false), noted(1, false)]);
    assert_eq!(
        run.contribute(1, 0, &["d1/n0"]),
        [answer(1, 0, Answer::Duplicate)]
    );
    let both = vec![
        contribution(0, 0, &["d0/n0"]),
        contribution(1, 0, &["d1/n0"]),
    ];
    assert_eq!(
        run.contribute(0, 0, &["d0/n0"]),
        [answer(0, 0, Answer::Duplicate), Effect::Fold(1, 0, both)]
    );
}

#[test]
fn another_sum_under_the_same_number_is_not_the_acknowledged_one() {
    let mut run = resumed(&[1, 1], &[noted(0, true), noted(1, false)]);
    let mut other = contribution(1, 0, &["d1/n0"]);
    other.chunks = vec![hash(3)];
    let effects = run.domain(1, Control::Contribute(other));
    assert_eq!(effects, [answer(1, 0, Answer::Duplicate)]);
}

/// The gateway was restarted as well: it folds anew, above every number that was noted.
#[test]
fn a_newer_sum_takes_the_place_of_one_whose_bytes_are_gone() {
    let mut run = resumed(&[1, 1], &[noted(0, true), noted(1, false)]);
    let told = run.domain(1, join_of(&layout()));
    let [Effect::Tell(_, Control::Open(open)), _] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!(open.attempt, 1);
    run.contribute(1, 1, &["d1/n0"]);
    let sums = vec![
        contribution(0, 0, &["d0/n0"]),
        contribution(1, 1, &["d1/n0"]),
    ];
    assert_eq!(
        run.noted(1, 1),
        [answer(1, 1, Answer::Acknowledged), Effect::Fold(1, 0, sums)]
    );
}

/// A gateway that was restarted with the coordinator finds its members one after another.
#[test]
fn a_newer_sum_with_less_in_it_is_waited_for_to_grow() {
    let whole = contribution(1, 0, &["d1/n0", "d1/n1"]);
    let noted = [
        noted(0, true),
        Noted {
            contribution: whole,
            kept: false,
        },
    ];
    let mut run = resumed_with(some(&[1, 2], 1, 1), &noted);
    run.contribute(1, 1, &["d1/n0"]);
    assert_eq!(run.noted(1, 1), [answer(1, 1, Answer::Acknowledged)]);
    run.now = at(4999);
    assert_eq!(run.wake(), []);
    run.contribute(1, 2, &["d1/n0", "d1/n1"]);
    assert!(matches!(run.noted(1, 2)[..], [_, Effect::Fold(1, 0, _)]));
}

#[test]
fn with_the_journal_nobody_is_asked_again() {
    let run = resumed(&[1, 1], &[noted(0, true), noted(1, true)]);
    assert!(matches!(run.effects.back(), Some(Effect::Fold(1, 0, sums)) if sums.len() == 2));
}

/// ROUND-3, the other half.
#[test]
fn if_the_sender_is_gone_too_the_round_ends_degraded_and_names_it() {
    let mut run = resumed_with(some(&[1, 1], 1, 1), &[noted(0, false), noted(1, false)]);
    run.contribute(0, 0, &["d0/n0"]);
    run.now = at(4999);
    assert_eq!(run.wake(), [], "longer than the grace");
    let effects = run.tell(Message::Watched(n("d1/n0"), Word::Restoring));
    assert_eq!(
        effects,
        [Effect::Fold(1, 0, vec![contribution(0, 0, &["d0/n0"])])]
    );
    run.compute(0);
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Degraded);
    assert_eq!(record.late, [n("d1/n0")]);
    assert!(
        record.reason.contains("d1: its acknowledged"),
        "{}",
        record.reason
    );
}

#[test]
fn a_sender_that_does_not_come_back_is_waited_for_as_long_as_closing_may_take() {
    let mut run = resumed_with(some(&[1, 1], 1, 1), &[noted(0, true), noted(1, false)]);
    run.now = at(4999);
    assert_eq!(run.wake(), []);
    run.now = at(5000);
    assert_eq!(run.wake(), [], "now the grace runs");
    run.now = at(6000);
    assert!(matches!(run.wake()[..], [Effect::Fold(1, 0, _)]));
}

#[test]
fn without_the_quorum_that_was_acknowledged_the_round_is_aborted_naming_who_is_gone() {
    let mut run = resumed(&[1, 1], &[noted(0, false), noted(1, false)]);
    run.contribute(0, 0, &["d0/n0"]);
    run.now = at(10_000);
    run.wake();
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Aborted);
    assert!(
        record.reason.ends_with("missing: d1/n0"),
        "{}",
        record.reason
    );
}

#[test]
fn notes_of_another_round_or_model_are_not_gone_on_from() {
    for (round, base) in [(2, 0), (1, 5)] {
        let mut weighing = fixed(&["d0/n0"]);
        (weighing.round, weighing.base) = (round, hash(base));
        let mut run = Run::new(plan(&[1]));
        let noted = Vec::new();
        run.tell(Message::Start(
            Box::new(loaded(0)),
            Some(Box::new(Resumed { weighing, noted })),
        ));
        assert!(matches!(run.events[..], [Event::RoundOpened { .. }]));
        assert!(matches!(run.report("d0/n0")[..], [Effect::Weigh(1, _)]));
    }
}

/// A note of one life may land after the next has put a member out (an object store's late write). ROUND-4 holds for it, too.
#[test]
fn a_noted_sum_that_holds_somebody_who_is_out_is_made_again_without_them() {
    let plan = plan(&[1, 2]);
    let mut view = View::first(&plan);
    view.epoch = 2;
    view.out.insert(n("d1/n1"), crate::view::Out::Left);
    let sum = |members: &[&str]| Noted {
        contribution: contribution(1, 0, members),
        kept: true,
    };
    for (members, stands) in [(&["d1/n0", "d1/n1"][..], false), (&["d1/n0"][..], true)] {
        let resumed = Resumed {
            weighing: fixed(&["d0/n0", "d1/n0", "d1/n1"]),
            noted: vec![sum(members)],
        };
        let committed = Committed {
            view: Some(view.clone()),
            ..loaded(0)
        };
        let mut run = Run::new(plan.clone());
        run.tell(join());
        run.tell(Message::Start(Box::new(committed), Some(Box::new(resumed))));
        let known = run.machine.current.as_ref().unwrap();
        assert_eq!(known.noted.contains_key(&d(1)), stands, "{members:?}");
        assert!(known.away.is_empty());
        assert!(!known.cohort.contains(&n("d1/n1")));
    }
}

/// The life before may have been writing its commit of that sum: it would count a node that was put out before it (ROUND-4).
#[test]
fn who_is_in_a_sum_of_a_life_before_is_put_out_after_the_round_even_if_the_domain_folds_again_without_them()
 {
    let sum = contribution(1, 0, &["d1/n0", "d1/n1"]);
    let resumed = Resumed {
        weighing: fixed(&["d0/n0", "d1/n0", "d1/n1"]),
        noted: vec![Noted {
            contribution: sum,
            kept: true,
        }],
    };
    let mut run = Run::new(some(&[1, 2], 2, 2));
    run.tell(join());
    run.join(1);
    run.tell(Message::Start(Box::new(loaded(0)), Some(Box::new(resumed))));
    run.contribute(1, 1, &["d1/n0"]);
    run.noted(1, 1);
    let is_view = |effect: &Effect| matches!(effect, Effect::View(_));
    let word = Control::Standing {
        node: n("d1/n1"),
        word: Word::Left,
    };
    let effects = run.domain(1, word);
    assert!(!effects.iter().any(is_view), "{effects:?}");
    run.contribute(0, 0, &["d0/n0"]);
    run.noted(0, 0);
    run.now = at(5000);
    run.wake();
    run.now = at(6000);
    run.wake();
    let effects = run.compute(0);
    assert!(!effects.iter().any(is_view), "{effects:?}");
    let record = run.last_record();
    assert_eq!(record.counted, [n("d0/n0"), n("d1/n0")]);
    let effects = run.tell(Message::Committed(1, Ok(())));
    assert!(effects.iter().any(is_view), "{effects:?}");
}

/// The gateway of the topology is gone, and another has long taken its place.
#[test]
fn a_domain_is_not_lost_for_the_silence_of_who_was_its_gateway_once() {
    for (acting, is_lost) in [("d1/n1", false), ("d1/n0", true)] {
        let mut plan = some(&[1, 2], 1, 1);
        plan.domains[1].gateways = vec![n("d1/n0"), n("d1/n1")];
        let mut view = View::first(&plan);
        view.epoch = 2;
        view.gateways.insert(d(1), n(acting));
        let committed = Committed {
            view: Some(view),
            ..loaded(0)
        };
        let mut run = Run::new(plan);
        run.tell(Message::Watched(n("d1/n0"), Word::Overdue));
        run.tell(Message::Start(Box::new(committed), None));
        assert_eq!(run.machine.domains[&d(1)].lost, is_lost, "{acting}");
    }
}

// ---- helpers ----

fn resumed(sizes: &[usize], noted: &[Noted]) -> Run {
    resumed_with(plan(sizes), noted)
}

/// Everybody was weighed when the life before ended.
fn resumed_with(plan: Plan, noted: &[Noted]) -> Run {
    let nodes: Vec<NodeId> = plan.nodes().map(|node| node.id.clone()).collect();
    let nodes: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
    let resumed = Resumed {
        weighing: fixed(&nodes),
        noted: noted.to_vec(),
    };
    let mut run = Run::new(plan);
    run.tell(join());
    run.tell(Message::Start(Box::new(loaded(0)), Some(Box::new(resumed))));
    run
}

fn fixed(nodes: &[&str]) -> Weighing {
    Weighing {
        round: 1,
        epoch: 1,
        base: hash(0),
        cohort: nodes.iter().map(|node| n(node)).collect(),
        reports: nodes.iter().map(|node| report(node)).collect(),
        refused: Vec::new(),
        weights: nodes.iter().map(|node| weight_of(node, 1.0)).collect(),
        trained_for: Vec::new(),
        steps: Vec::new(),
        efforts: Vec::new(),
    }
}

fn noted(domain: usize, kept: bool) -> Noted {
    let node = format!("d{domain}/n0");
    Noted {
        contribution: contribution(domain, 0, &[&node]),
        kept,
    }
}

/// The journal may have the bytes of the newer sum before those of the older one: whatever is on disk last must be what was acknowledged last.
#[test]
fn sums_of_one_domain_are_noted_one_after_another() {
    let mut run = Run::weighed(plan(&[3]));
    let notes = |effects: Vec<Effect>| -> Vec<Attempt> {
        let attempt = |effect| match effect {
            Effect::Note(contribution) => Some(contribution.attempt),
            _ => None,
        };
        effects.into_iter().filter_map(attempt).collect()
    };
    assert_eq!(notes(run.contribute(0, 1, &["d0/n0"])), [1]);
    assert!(notes(run.contribute(0, 2, &["d0/n0", "d0/n1"])).is_empty());
    assert!(notes(run.contribute(0, 3, &["d0/n1", "d0/n2"])).is_empty());
    let effects = run.noted(0, 1);
    assert_eq!(effects.len(), 1, "only the newest is answered: {effects:?}");
    assert_eq!(notes(effects), [3]);
    let effects = run.noted(0, 3);
    assert!(matches!(
        effects[0],
        Effect::Tell(
            _,
            Control::Answer {
                attempt: 3,
                answer: Answer::Acknowledged,
                ..
            }
        )
    ));
}

/// ROUND-3, for a life that did not know that its round was over.
#[test]
fn what_was_acknowledged_in_vain_is_named_by_the_next_life() {
    let mut before = last_round(&[1]);
    before.tell(Message::Stop("enough".into()));
    let nodes = |names: &[&str]| names.iter().map(|name| n(name)).collect();
    let record = |state, counted: &[&str], late: &[&str]| RoundRecord {
        round: 4,
        state,
        counted: nodes(counted),
        late: nodes(late),
        ..before.last_record()
    };
    let sum = |domain, members: &[&str]| Contribution {
        round: 4,
        ..contribution(domain, 0, members)
    };
    let noted = [sum(0, &["d0/n0"]), sum(1, &["d1/n0", "d1/n1"])];
    let aborted = record(RoundState::Aborted, &[], &["d0/n0", "d1/n0"]);
    let overtaken = overtaken(&aborted, noted.clone());
    assert_eq!(overtaken, noted[1..]);
    let degraded = record(RoundState::Degraded, &["d0/n0", "d1/n0"], &["d1/n1"]);
    assert_eq!(super::overtaken(&degraded, noted.clone()), []);
    let of_another_round = RoundRecord {
        round: 5,
        ..aborted
    };
    assert_eq!(super::overtaken(&of_another_round, noted), []);

    let mut run = Run::new(plan(&[1, 2]));
    let committed = Committed {
        overtaken,
        ..loaded(4)
    };
    run.tell(Message::Start(Box::new(committed), None));
    let said = run.events.iter().find_map(|event| match event {
        Event::DomainDropped {
            round: 4,
            domain,
            reason,
        } => Some((domain, reason)),
        _ => None,
    });
    let (domain, reason) = said.expect("it is told");
    assert_eq!(*domain, d(1));
    assert!(reason.contains("d1/n0, d1/n1"), "{reason}");
}
