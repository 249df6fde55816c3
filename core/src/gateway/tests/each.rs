//! A domain under a rule that must see each update: nothing is folded, every update is handed on.

use super::*;
use crate::aggregate::Needs;

fn domain() -> Domain {
    let mut hq = Domain::exported();
    hq.machine = hq.machine.for_rule(Needs::Each);
    hq
}

fn collect(effect: &Effect) -> &Collect {
    match effect {
        Effect::Collect(collect) => collect,
        other => panic!("{other:?} collects nothing"),
    }
}

fn members(collect: &Collect) -> Vec<&str> {
    collect.terms.iter().map(|term| term.node.name()).collect()
}

#[test]
fn weighed_updates_are_collected_clipped_but_not_weighed_and_announced_together() {
    let mut hq = domain();
    let mut weights = weights(&["a", "b", "c"]);
    (weights[1].weight, weights[1].clip) = (3.0, 0.5);
    let effects = hq.coordinator(Control::Weigh {
        round: 1,
        weights,
        norms: vec![6.0; 3],
    });
    let [effect] = &effects[..] else {
        panic!("{effects:?}")
    };
    let collect = collect(effect);
    assert_eq!(
        (collect.attempt, members(collect)),
        (0, vec!["a", "b", "c"])
    );
    let factors: Vec<f32> = collect.terms.iter().map(|term| term.factor).collect();
    assert_eq!(factors, [1.0, 0.5, 1.0]);
    assert!(collect.terms.iter().all(|term| term.checksums.len() == 3));
    let chunks = vec![hash(7), hash(8), hash(9)];
    let effects = hq.tell(Message::Gathered(1, 0, Ok(chunks.clone().into())));
    let [Effect::Tell(Control::Contribute(contribution))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(contribution.tensors(Needs::Each), 3);
    assert_eq!((contribution.weight, &contribution.chunks), (5.0, &chunks));
    assert_eq!(hq.machine.offered(), Some((1, 0)));
}

#[test]
fn an_update_that_cannot_be_read_is_left_out_and_its_member_asked_again() {
    let mut hq = domain();
    hq.weigh(&["a", "b", "c"]);
    let effects = hq.tell(Message::Gathered(1, 0, Err((n("b"), "gone".into()))));
    assert_eq!(
        effects[0],
        Effect::Member(n("b"), Control::Train(train(1, 0)))
    );
    let again = collect(&effects[1]);
    assert_eq!((again.attempt, members(again)), (1, vec!["a", "c"]));
}

#[test]
fn nobody_is_asked_to_fold_whoever_comes_and_goes() {
    let mut hq = domain();
    hq.weigh(&["a", "b", "c"]);
    for message in [Message::MemberSilent(n("c")), Message::MemberUp(n("c"))] {
        let effects = hq.tell(message);
        let folds = |effect: &Effect| matches!(effect, Effect::Member(_, Control::Fold(_)));
        assert!(!effects.iter().any(folds), "{effects:?}");
    }
}
