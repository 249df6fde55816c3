//! Who is put out, who comes back, who succeeds a gateway.

use super::*;
use crate::event::Vitals;
use crate::membership::State;
use crate::plan::Durability;
use crate::view::Out as Gone;

/// Domain d1 has a second gateway.
fn pair(quorum: (usize, usize)) -> Plan {
    let mut plan = some(&[2, 3], quorum.0, quorum.1);
    plan.domains[1].gateways = vec![n("d1/n0"), n("d1/n1")];
    plan
}

fn standing(node: &str, word: Word) -> Message {
    let gateway = n(&format!("{}/n0", n(node).domain()));
    let node = n(node);
    Message::Domain(gateway, Control::Standing { node, word })
}

fn written(effects: &[Effect]) -> View {
    let mut views = effects.iter().filter_map(|effect| match effect {
        Effect::View(view) => Some(view.clone()),
        _ => None,
    });
    views.next().expect("a view is written")
}

impl Run {
    fn is_quiet(&self) -> bool {
        !self
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::View(_)))
    }

    fn view(&mut self, message: Message) -> View {
        let view = written(&self.tell(message));
        self.tell(Message::Viewed(view.epoch, Ok(())));
        view
    }
}

#[test]
fn a_view_is_written_before_it_holds_and_before_anybody_is_told() {
    let mut run = Run::open(pair((2, 1)));
    run.tell(Message::Up(n("d1/n0")));
    run.join(1);
    let effects = run.tell(standing("d1/n2", Word::Overdue));
    let view = written(&effects);
    assert_eq!(view.out, [(n("d1/n2"), Gone::Evicted(1))].into());
    assert_eq!(run.machine.view().epoch, 1);
    let effects = run.tell(Message::Viewed(2, Ok(())));
    assert_eq!(run.machine.view(), &view);
    for node in ["d0/n0", "d1/n0"] {
        let told = Effect::Send(n(node), Control::View(view.clone()));
        assert!(effects.contains(&told), "{node}");
    }
    assert!(run.events.contains(&Event::NodeEvicted {
        node: n("d1/n2"),
        epoch: 2,
        cooldown_ms: 10_000
    }));
}

#[test]
fn a_view_that_cannot_be_written_ends_the_run() {
    let mut run = Run::open(pair((2, 1)));
    run.join(1);
    run.tell(standing("d1/n2", Word::Overdue));
    let effects = run.tell(Message::Viewed(2, Err("disk full".into())));
    let Some(Effect::Finish(finished)) = effects.last() else {
        panic!("{effects:?}")
    };
    assert!(finished.reason.contains("disk full"), "{}", finished.reason);
}

#[test]
fn a_run_that_has_ended_does_not_end_again_for_a_view() {
    let mut run = Run::open(pair((2, 1)));
    run.join(1);
    run.tell(standing("d1/n2", Word::Overdue));
    run.tell(Message::Stop("interrupted".into()));
    assert_eq!(run.finished().reason, "interrupted");
    let effects = run.tell(Message::Viewed(2, Err("disk full".into())));
    assert_eq!(effects, []);
}

#[test]
fn the_open_round_goes_on_without_who_is_put_out_and_names_it() {
    let mut run = Run::open(pair((4, 2)));
    run.tell(Message::Up(n("d1/n0")));
    run.join(1);
    run.report("d1/n2");
    run.view(standing("d1/n2", Word::Overdue));
    run.report("d0/n0");
    run.report("d0/n1");
    run.report("d1/n0");
    let effects = run.report("d1/n1");
    let [Effect::Weigh(1, reports)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(reports.iter().all(|report| report.node != n("d1/n2")));
    run.report("d1/n2");
    assert!(matches!(
        run.events.last(),
        Some(Event::UpdateRefused { .. })
    ));
    run.weigh(&[
        ("d0/n0", 1.0),
        ("d0/n1", 1.0),
        ("d1/n0", 1.0),
        ("d1/n1", 1.0),
    ]);
    run.contribute(0, 0, &["d0/n0", "d0/n1"]);
    run.contribute(1, 0, &["d1/n0", "d1/n1"]);
    run.noted(0, 0);
    run.noted(1, 0);
    let effects = run.compute(0);
    let [Effect::Commit(record)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(record.state, RoundState::Degraded);
    assert_eq!((record.epoch, &record.late[..]), (1, &[n("d1/n2")][..]));
}

/// ROUND-4.
#[test]
fn who_is_in_a_noted_sum_is_put_out_after_the_round() {
    let mut run = Run::weighed(pair((2, 1)));
    run.contribute(1, 0, &["d1/n0", "d1/n1", "d1/n2"]);
    run.tell(standing("d1/n2", Word::Overdue));
    assert!(run.is_quiet(), "it is being noted");
    run.noted(1, 0);
    run.contribute(0, 0, &["d0/n0", "d0/n1"]);
    run.noted(0, 0);
    run.compute(0);
    assert!(run.is_quiet());
    let effects = run.tell(Message::Committed(1, Ok(())));
    assert!(written(&effects).is_out(&n("d1/n2")));
    assert!(run.opened(2));
    assert!(
        !run.machine
            .current
            .as_ref()
            .unwrap()
            .cohort
            .contains(&n("d1/n2"))
    );
}

#[test]
fn a_sum_with_somebody_who_was_put_out_meanwhile_is_not_taken() {
    let mut run = Run::weighed(pair((2, 1)));
    run.tell(standing("d1/n2", Word::Overdue));
    let effects = run.contribute(1, 0, &["d1/n0", "d1/n1", "d1/n2"]);
    assert_eq!(effects, [], "its gateway hears of the view and folds again");
    let effects = run.contribute(1, 1, &["d1/n0", "d1/n1"]);
    assert!(matches!(effects[..], [Effect::Note(_)]));
}

#[test]
fn a_lost_gateway_is_succeeded_by_the_next_one_that_can_be_reached() {
    let mut run = Run::weighed(pair((2, 1)));
    run.tell(Message::Up(n("d1/n0")));
    run.contribute(1, 0, &["d1/n0", "d1/n1", "d1/n2"]);
    run.noted(1, 0);
    let lost = Message::Watched(n("d1/n0"), Word::Restoring);
    run.tell(lost);
    assert!(run.is_quiet(), "the other one is not there either");
    let view = run.view(Message::Up(n("d1/n1")));
    assert_eq!(view.gateways[&d(1)], n("d1/n1"));
    assert!(
        view.out.is_empty(),
        "a lost gateway is not evicted for that"
    );
    let old = run.contribute(1, 1, &["d1/n0"]);
    assert_eq!(old, [], "who is not the gateway any more is not heard");
    let effects = run.tell(Message::Domain(n("d1/n1"), join_of(&layout())));
    let opens = effects.iter().find_map(|effect| match effect {
        Effect::Tell(_, Control::Open(open)) => Some(open),
        _ => None,
    });
    let open = opens.expect("it is told of the open round");
    assert_eq!(
        (open.epoch, open.attempt),
        (1, 1),
        "opening epoch, a new attempt"
    );
    let mut again = contribution(1, 1, &["d1/n1", "d1/n2"]);
    again.epoch = 1;
    let effects = run.tell(Message::Domain(n("d1/n1"), Control::Contribute(again)));
    assert!(matches!(effects[..], [Effect::Note(_)]), "{effects:?}");
}

/// What a gateway had contributed before it was lost is noted when another one acts already: the bytes are with neither.
#[test]
fn a_sum_that_is_noted_after_its_gateway_was_lost_is_waited_for_from_the_next_one() {
    let lose = |mut run: Run| {
        run.tell(Message::Up(n("d1/n0")));
        run.tell(Message::Up(n("d1/n1")));
        run.contribute(1, 0, &["d1/n0", "d1/n1", "d1/n2"]);
        run.contribute(0, 0, &["d0/n0", "d0/n1"]);
        run.noted(0, 0);
        run.view(Message::Watched(n("d1/n0"), Word::Restoring));
        run.noted(1, 0)
    };
    let effects = lose(Run::weighed(pair((5, 2))));
    let folds = |effects: &[Effect]| effects.iter().any(|e| matches!(e, Effect::Fold(..)));
    assert!(!folds(&effects), "{effects:?}");
    let mut kept = pair((5, 2));
    kept.round.durability = Durability::Journal;
    let effects = lose(Run::weighed(kept));
    assert!(folds(&effects), "the journal has its bytes: {effects:?}");
}

/// With a journal the bytes come before the note; a gateway that is lost in between takes nothing with it but time.
#[test]
fn a_sum_whose_bytes_are_lost_with_its_gateway_is_made_again_by_the_next_one() {
    let mut kept = pair((5, 2));
    kept.round.durability = Durability::Journal;
    let mut run = Run::weighed(kept);
    run.tell(Message::Up(n("d1/n0")));
    run.tell(Message::Up(n("d1/n1")));
    run.contribute(1, 0, &["d1/n0", "d1/n1", "d1/n2"]);
    run.contribute(0, 0, &["d0/n0", "d0/n1"]);
    run.noted(0, 0);
    let lost = Err(NoteError::Bytes("out of reach".into()));
    run.tell(Message::Noted(1, d(1), 0, lost));
    assert!(
        run.machine.current.is_some(),
        "there is no reason to give up"
    );
    run.view(Message::Watched(n("d1/n0"), Word::Restoring));
    let mut again = contribution(1, 1, &["d1/n0", "d1/n1", "d1/n2"]);
    again.epoch = 1;
    run.tell(Message::Domain(n("d1/n1"), Control::Contribute(again)));
    let effects = run.noted(1, 1);
    let folds = |effect: &Effect| matches!(effect, Effect::Fold(..));
    assert!(effects.iter().any(folds), "{effects:?}");
}

#[test]
fn a_returning_gateway_does_not_take_its_place_back() {
    let mut run = Run::open(pair((2, 1)));
    run.tell(Message::Up(n("d1/n0")));
    run.tell(Message::Up(n("d1/n1")));
    run.view(Message::Watched(n("d1/n0"), Word::Restoring));
    let before = run.effects.len();
    run.tell(Message::Up(n("d1/n0")));
    let after = run.effects.iter().skip(before);
    let sent: Vec<&Effect> = after.collect();
    assert!(
        matches!(sent[..], [Effect::Send(_, Control::View(_))]),
        "it hears of the view: {sent:?}"
    );
    assert_eq!(run.machine.view().gateways[&d(1)], n("d1/n1"));
}

/// VIEW-1: a coordinator that was restarted goes on from the view that was written down.
#[test]
fn a_restarted_coordinator_goes_on_from_its_last_view() {
    let mut view = View::first(&pair((2, 1)));
    view.epoch = 5;
    view.out.insert(n("d1/n2"), Gone::Evicted(2));
    let mut run = Run::new(pair((2, 1)));
    let view_of = Some(view.clone());
    let loaded = Committed {
        view: view_of,
        ..loaded(3)
    };
    run.tell(Message::Start(Box::new(loaded), None));
    assert_eq!(run.machine.view(), &view);
    let current = run.machine.current.as_ref().unwrap();
    assert_eq!((current.round, current.epoch), (4, 5));
    assert!(!current.cohort.contains(&n("d1/n2")));
}

/// ROUND-7.
#[test]
fn the_cool_down_is_waived_for_nodes_without_which_there_is_no_quorum() {
    let mut run = Run::open(pair((5, 2)));
    run.tell(Message::Up(n("d1/n0")));
    run.join(1);
    for node in ["d0/n0", "d0/n1", "d1/n0", "d1/n1", "d1/n2"] {
        run.tell(standing(node, Word::Active));
    }
    run.view(standing("d1/n2", Word::Overdue));
    let back = run.view(standing("d1/n2", Word::Active));
    assert!(back.out.is_empty());
    assert!(run.events.contains(&Event::NodeReadmitted {
        node: n("d1/n2"),
        epoch: 3
    }));
    assert!(
        !matches!(run.events.last(), Some(Event::Round(_))),
        "the open round waits for its deadline, the next one has everybody"
    );
}

/// ROUND-7: members that nobody leads are no quorum, however well they are.
#[test]
fn the_cool_down_is_waived_for_the_only_gateway_of_a_domain_without_which_there_is_no_quorum() {
    let all = plan(&[2, 3]);
    assert_eq!(all.round.quorum, crate::plan::Quorum::All);
    let plans = [
        (some(&[2, 3], 2, 2), true),
        (some(&[2, 3], 2, 1), false),
        (all, true),
    ];
    for (plan, is_waived) in plans {
        let quorum = plan.round.quorum;
        let mut run = Run::open(plan);
        run.tell(Message::Up(n("d1/n0")));
        run.join(1);
        for node in ["d1/n1", "d1/n2"] {
            run.tell(standing(node, Word::Active));
        }
        let out = run.view(Message::Watched(n("d1/n0"), Word::Overdue));
        assert_eq!(out.out, [(n("d1/n0"), Gone::Evicted(1))].into());
        let effects = run.tell(Message::Up(n("d1/n0")));
        let is_back = effects
            .iter()
            .any(|effect| matches!(effect, Effect::View(_)));
        assert_eq!(is_back, is_waived, "{quorum:?}");
    }
}

#[test]
fn a_user_may_lift_a_cool_down() {
    let mut run = Run::open(pair((2, 1)));
    run.join(1);
    run.view(standing("d1/n2", Word::Overdue));
    run.tell(standing("d1/n2", Word::Active));
    let entry = |run: &Run| {
        let mut entries = run.machine.membership().entries();
        entries
            .find(|(node, _)| **node == n("d1/n2"))
            .unwrap()
            .1
            .clone()
    };
    assert_eq!(entry(&run).state, State::Evicted);
    let effects = run.tell(Message::Readmit(n("d1/n2")));
    let lifted = Effect::Lifted(Ok(Duration::from_secs(10)));
    assert_eq!(effects.first(), Some(&lifted));
    let view = written(&effects);
    run.tell(Message::Viewed(view.epoch, Ok(())));
    assert_eq!(entry(&run).state, State::Active);
    let effects = run.tell(Message::Readmit(n("d1/n2")));
    let refused = NotLifted::NotEvicted(n("d1/n2"), State::Active);
    assert_eq!(effects, [Effect::Lifted(Err(refused))]);
}

#[test]
fn a_gateway_that_leaves_hands_over_at_once() {
    let mut run = Run::open(pair((2, 1)));
    run.tell(Message::Up(n("d1/n0")));
    run.join(1);
    run.tell(Message::Up(n("d1/n1")));
    let view = run.view(standing("d1/n0", Word::Left));
    assert_eq!(view.gateways[&d(1)], n("d1/n1"));
    assert_eq!(view.out, [(n("d1/n0"), Gone::Left)].into());
    let told = Effect::Send(n("d1/n0"), Control::View(view));
    assert!(
        run.effects.contains(&told),
        "it waits to hear that it may go"
    );
}

/// What a gateway said before its goodbye may come behind it.
#[test]
fn a_word_that_comes_behind_a_goodbye_brings_nobody_back() {
    let mut run = Run::open(pair((2, 1)));
    run.tell(Message::Up(n("d1/n0")));
    run.tell(Message::Watched(n("d1/n0"), Word::Left));
    run.join(1);
    assert!(run.machine.membership().is_expected(&n("d1/n1"), run.now));
    assert!(!run.machine.membership().is_expected(&n("d1/n0"), run.now));
    let effects = run.tell(Message::Up(n("d1/n0")));
    let asked = Effect::Tell(d(1), Control::Resync);
    assert!(effects.contains(&asked), "{effects:?}");
    run.join(1);
    assert!(run.machine.membership().is_expected(&n("d1/n0"), run.now));
}

#[test]
fn a_gateway_that_leaves_hands_over_once_its_sum_has_been_fetched() {
    let mut run = Run::weighed(pair((2, 1)));
    run.tell(Message::Up(n("d1/n0")));
    run.tell(Message::Up(n("d1/n1")));
    run.contribute(1, 0, &["d1/n0", "d1/n1", "d1/n2"]);
    run.noted(1, 0);
    run.contribute(0, 0, &["d0/n0", "d0/n1"]);
    run.noted(0, 0);
    run.tell(standing("d1/n0", Word::Left));
    assert!(run.is_quiet(), "it is being fetched");
    run.compute(0);
    let effects = run.tell(Message::Committed(1, Ok(())));
    let view = written(&effects);
    assert_eq!(view.gateways[&d(1)], n("d1/n1"));
    assert_eq!(view.out, [(n("d1/n0"), Gone::Left)].into());
    assert_eq!(run.last_record().counted.len(), 5);
}

/// LADDER-1: a successor that its own domain cannot reach is not let in because the coordinator can.
#[test]
fn how_a_successor_does_its_own_domain_says_as_long_as_anybody_speaks_for_it() {
    let mut run = Run::open(pair((2, 1)));
    run.tell(Message::Up(n("d1/n0")));
    run.join(1);
    run.view(standing("d1/n1", Word::Overdue));
    run.tell(Message::Up(n("d1/n1")));
    run.now = at(20_000);
    let effects = run.wake();
    let is_view = |effect: &Effect| matches!(effect, Effect::View(_));
    assert!(!effects.iter().any(is_view), "its gateway has not heard it");
    run.tell(Message::Watched(n("d1/n0"), Word::Restoring));
    let view = run.view(Message::Up(n("d1/n1")));
    assert!(view.out.is_empty(), "there is nobody else to ask");
}

/// Nothing is decided by it, so it must not fill the record: not more often than it is worth, and of the gateway's own nodes only.
#[test]
fn how_a_node_does_is_told_now_and_then_and_of_the_senders_own_domain() {
    let mut run = Run::open(pair((2, 1)));
    run.join(1);
    let said = |node: &str, memory| {
        let node = n(node);
        let vitals = Vitals {
            node,
            memory,
            ..crate::wire::samples::vitals()
        };
        Message::Domain(n("d1/n0"), Control::MemberVitals(vitals))
    };
    for (now, node, memory) in [
        (1_000, "d1/n2", 1),
        (1_000, "d1/n0", 2),
        (1_500, "d1/n2", 3),
        (5_999, "d1/n2", 4),
        (6_000, "d1/n2", 5),
        (6_000, "d1/n9", 6),
        (6_000, "d0/n1", 7),
    ] {
        run.now = at(now);
        assert_eq!(run.tell(said(node, memory)), [], "{memory}");
    }
    let told = run.events.iter().filter_map(|event| match event {
        Event::NodeMeasured(vitals) => Some(vitals.memory),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [1, 2, 5]);
}
