//! The model: where it comes from, and who holds it.

use super::*;

#[test]
fn a_domain_that_only_looks_on_hears_of_models_and_fetches_none() {
    let mut hq = Domain::started();
    hq.machine = Domain::started().machine.looks_on();
    let seen = Effect::Tell(Control::Adopted {
        round: 1,
        hash: hash(1),
        nodes: vec![],
    });
    let seen = [seen];
    assert_eq!(hq.commit(1, 0), seen);
    assert_eq!(hq.commit(1, 0), [], "once");
    hq.tell(Message::CoordinatorUp);
    assert_eq!(hq.commit(1, 0), seen, "another life has not heard it");
}

#[test]
fn a_commit_is_taken_from_the_coordinator_if_the_model_before_is_at_hand_and_healed_otherwise() {
    let mut hq = Domain::joined();
    let (round, base) = (1, Some(hash(0)));
    assert_eq!(
        hq.commit(1, 0),
        [Effect::Obtain {
            round,
            base,
            hash: hash(1)
        }]
    );
    let mut late = Domain::joined();
    let (round, base) = (7, None);
    assert_eq!(
        late.commit(7, 6),
        [Effect::Obtain {
            round,
            base,
            hash: hash(7)
        }]
    );
}
