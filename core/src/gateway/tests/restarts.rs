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
