//! What a gateway that was restarted, or whose coordinator was, goes on with.

use super::*;

#[test]
fn a_coordinator_that_weighs_the_same_again_gets_the_same_contribution() {
    let mut hq = Domain::contributed();
    assert_eq!(
        hq.weigh(&["a", "b", "c"]),
        [contribute(0, &["a", "b", "c"])]
    );
}

#[test]
fn other_weights_start_the_fold_anew_under_a_number_of_its_own() {
    let mut hq = Domain::contributed();
    let effects = hq.weigh(&["a", "b"]);
    assert!(
        effects
            .iter()
            .all(|effect| fold_of(effect).attempt == 1 && fold_of(effect).terms.len() == 2)
    );
}

#[test]
fn a_restarted_gateway_begins_above_the_attempts_that_are_noted() {
    let mut hq = Domain::joined();
    let open = Open {
        attempt: 5,
        ..open_of(1, 0)
    };
    hq.coordinator(Control::Open(open));
    // The weights may be here before the updates: then they are folded as they come.
    assert_eq!(hq.weigh(&["a", "b", "c"]), []);
    let effects = hq.export("a");
    assert!(matches!(effects[0], Effect::Tell(Control::Reported { .. })));
    assert_eq!(
        (
            fold_of(&effects[1]).attempt,
            fold_of(&effects[1]).terms.len()
        ),
        (5, 1)
    );
    let effects = hq.export("b");
    assert_eq!(
        (
            fold_of(&effects[1]).attempt,
            fold_of(&effects[1]).terms.len()
        ),
        (6, 2)
    );
}

/// The answers that the ranks owe an earlier life come after its orders were given anew under the same round and attempt.
#[test]
fn only_orders_of_this_life_are_answered() {
    let (mut before, mut hq) = (Domain::exported(), Domain::again(2));
    before.weigh(&["a", "b", "c"]);
    for node in ["a", "b", "c"] {
        hq.export(node);
    }
    hq.weigh(&["a", "b"]);
    let (now, then) = (hq.token("fold 0"), before.token("fold 0"));
    assert_ne!(now, then);
    let folded = |rank: &str, slice, token| {
        Control::Folded(Folded {
            token,
            round: 1,
            attempt: 0,
            slices: vec![slice],
            result: Ok(region(rank, 2)),
        })
    };
    let ranks = [("a", 0), ("b", 1), ("c", 2)];
    for (rank, slice) in ranks {
        assert_eq!(hq.member(rank, folded(rank, slice, then)), []);
    }
    let effects: Vec<Effect> = ranks
        .iter()
        .flat_map(|(rank, slice)| hq.member(rank, folded(rank, *slice, now)))
        .collect();
    let [Effect::Gather(gather)] = &effects[..] else {
        panic!("{effects:?}")
    };
    // Whoever of the ranks folds for the earlier life after that overwrites its part, and is found out by the header.
    assert_eq!(gather.token, now);
}

#[test]
fn what_was_measured_for_another_life_or_of_a_replaced_update_is_not_this_one() {
    let (mut before, mut hq) = (Domain::training(), Domain::again(2));
    before.member("a", exported("a"));
    hq.member("a", exported("a"));
    let measured = |token| {
        let slice = SliceMeasure {
            slice: 0,
            squares: 1.0,
            checksum: hash(7),
        };
        Control::Measured(Measured {
            token,
            round: 1,
            node: n("a"),
            result: Ok(vec![slice]),
        })
    };
    let mut stale = vec![before.token("measure hq/a"), hq.token("measure hq/a")];
    // The member was rebuilt and has trained again, into the same memory.
    let other = Exported {
        loss: 2.0,
        ..export_of("a")
    };
    hq.member("a", Control::Exported(other));
    stale.dedup();
    assert_eq!(stale.len(), 2);
    for token in stale {
        hq.member("a", measured(token));
    }
    hq.measured("b", "a", &[1]);
    assert_eq!(hq.measured("c", "a", &[2]), [], "slice 0 is missing");
    assert!(matches!(
        hq.measured("a", "a", &[0])[..],
        [Effect::Tell(Control::Reported { .. })]
    ));
}

#[test]
fn a_member_that_could_not_train_for_an_earlier_life_has_not_failed_in_this_one() {
    let (before, mut hq) = (Domain::training(), Domain::again(2));
    let failed = Control::Failed {
        round: 1,
        token: Some(before.token("train")),
        reason: "stale key".into(),
    };
    hq.export("a");
    assert_eq!(hq.member("a", failed), []);
    assert!(matches!(
        hq.open(1, 0)[0],
        Effect::Tell(Control::Reported { .. })
    ));
}
