use super::*;
use crate::machine::Outcome;

fn node() -> NodeId {
    "hq/a".parse().unwrap()
}

fn model(round: Round) -> ModelRef {
    let region = RegionRef {
        owner: "hq/gate".parse().unwrap(),
        key: round,
        len: 64,
    };
    ModelRef {
        round,
        hash: Hash([round as u8; 32]),
        region,
    }
}

fn train(round: Round) -> Train {
    Train {
        token: 3,
        run: Hash::default(),
        round,
        epoch: 1,
        model: model(round - 1),
        sync_every: SyncEvery::Steps(1),
        counts_as: None,
        seed: 7,
        oldest: None,
    }
}

fn member() -> Member {
    Member::new(
        node(),
        Layout::new([("w", vec![4])]).unwrap(),
        0,
        model(0).hash,
    )
}

fn tell(member: &mut Member, message: Message) -> Vec<Effect> {
    let mut out = Outcome::default();
    member.handle(message, &mut Context::new(crate::time::Micros(0), &mut out));
    out.effects.into()
}

fn trained() -> Result<(Trained, RegionRef, Effort), String> {
    let region = RegionRef {
        owner: node(),
        key: 9,
        len: 80,
    };
    Ok((
        Trained {
            samples: 10,
            loss: 1.0,
            steps: 1,
            learning_rate: 0.1,
        },
        region,
        Effort::default(),
    ))
}

#[test]
fn a_node_trains_from_the_model_it_holds_and_exports_once() {
    let mut member = member();
    assert_eq!(
        tell(&mut member, Message::Train(train(1))),
        [Effect::Train(train(1))]
    );
    assert_eq!(
        tell(&mut member, Message::Train(train(1))),
        [],
        "already at it"
    );
    let effects = tell(&mut member, Message::Trained(1, trained()));
    let [Effect::Tell(Control::Exported(exported))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(exported.round, 1);
    let again = tell(&mut member, Message::Train(train(1)));
    assert_eq!(again, effects, "asked again, the same update");
}

/// Killed after training: the update is there, and nothing is trained again.
/// What is told of an update's steps goes with its length: the rules divide one by the other.
#[test]
fn an_update_of_a_balanced_share_is_told_as_what_it_counts_as() {
    let mut member = member();
    let order = Train {
        sync_every: SyncEvery::Steps(20),
        counts_as: Some(50),
        ..train(1)
    };
    tell(&mut member, Message::Train(order.clone()));
    let effort = Effort {
        steps: 20,
        micros: 700,
    };
    let done = trained().map(|(trained, region, _)| (trained, region, effort));
    let effects = tell(&mut member, Message::Trained(1, done));
    let [Effect::Tell(Control::Exported(exported))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((exported.steps, exported.effort), (50, effort));
    // Another share is another training.
    let other = Train {
        sync_every: SyncEvery::Steps(21),
        ..order.clone()
    };
    assert_eq!(tell(&mut member, Message::Train(order)), effects);
    assert_eq!(
        tell(&mut member, Message::Train(other.clone())),
        [Effect::Train(other)]
    );
}

#[test]
fn an_update_of_an_earlier_life_answers_the_same_order_and_no_other() {
    let mut before = member();
    tell(&mut before, Message::Train(train(1)));
    let effects = tell(&mut before, Message::Trained(1, trained()));
    let [Effect::Tell(Control::Exported(exported))] = &effects[..] else {
        panic!("{effects:?}")
    };
    let export = Export {
        run: Hash::default(),
        base: model(0).hash,
        work: (SyncEvery::Steps(1), None),
        exported: exported.clone(),
    };
    let mut order = train(1);
    for (same, change) in [
        (true, (|_| ()) as fn(&mut Train)),
        (false, |train| train.run = Hash([1; 32])),
        (false, |train| train.epoch = 2),
        (false, |train| train.model.hash = Hash([9; 32])),
        (false, |train| train.round = 2),
        (false, |train| train.sync_every = SyncEvery::Steps(2)),
        (false, |train| train.counts_as = Some(2)),
    ] {
        let mut member = member();
        member.restore(export.clone());
        change(&mut order);
        let answered = tell(&mut member, Message::Train(order.clone())) == effects;
        assert_eq!(answered, same, "{order:?}");
        order = train(1);
    }
}

#[test]
fn a_node_that_missed_a_commit_heals_before_it_trains() {
    let mut member = member();
    assert_eq!(
        tell(&mut member, Message::Train(train(3))),
        [Effect::Adopt(model(2))]
    );
    let effects = tell(&mut member, Message::Adopted(model(2), Ok(())));
    assert_eq!(effects.last(), Some(&Effect::Train(train(3))));
}

#[test]
fn a_straggler_finishes_its_work_and_takes_the_newest_order() {
    let mut member = member();
    tell(&mut member, Message::Train(train(1)));
    assert_eq!(tell(&mut member, Message::Adopt(model(1))), []);
    assert_eq!(tell(&mut member, Message::Train(train(2))), []);
    assert_eq!(tell(&mut member, Message::Adopt(model(2))), []);
    assert_eq!(tell(&mut member, Message::Train(train(3))), []);
    let effects = tell(&mut member, Message::Trained(1, trained()));
    assert_eq!(
        effects.last(),
        Some(&Effect::Adopt(model(2))),
        "rounds 1 and 2 are over: {effects:?}"
    );
}

#[test]
fn a_node_that_leaves_says_so_to_every_gateway_and_begins_no_work() {
    let mut member = member();
    tell(&mut member, Message::Train(train(1)));
    let goodbye = || Effect::Tell(Control::Departing);
    assert_eq!(tell(&mut member, Message::Leave), [goodbye()]);
    assert_eq!(tell(&mut member, Message::GatewayUp), [goodbye()]);
    assert_eq!(tell(&mut member, Message::Train(train(2))), [goodbye()]);
    let effects = tell(&mut member, Message::Trained(1, trained()));
    assert!(
        matches!(effects[..], [Effect::Tell(Control::Exported(_))]),
        "what it had begun may still count: {effects:?}"
    );
}

#[test]
fn echoes_of_the_past_bring_back_no_old_model_and_no_old_round() {
    let mut member = member();
    tell(&mut member, Message::Adopt(model(5)));
    tell(&mut member, Message::Adopted(model(5), Ok(())));
    assert_eq!(tell(&mut member, Message::Adopt(model(4))), []);
    let holds = Effect::Tell(Control::Holds {
        round: 5,
        hash: model(5).hash,
    });
    assert_eq!(tell(&mut member, Message::Train(train(5))), [holds]);
}

#[test]
fn the_same_round_from_another_base_is_trained_again() {
    let mut member = member();
    tell(&mut member, Message::Train(train(1)));
    tell(&mut member, Message::Trained(1, trained()));
    let mut other = train(1);
    other.model.hash = Hash([9; 32]);
    let effects = tell(&mut member, Message::Train(other.clone()));
    assert_eq!(effects, [Effect::Adopt(other.model)]);
}

#[test]
fn a_model_that_cannot_be_read_is_reported_and_not_retried_alone() {
    let mut member = member();
    tell(&mut member, Message::Train(train(2)));
    let effects = tell(
        &mut member,
        Message::Adopted(model(1), Err("stale key".into())),
    );
    assert_eq!(
        effects,
        [Effect::Tell(Control::Failed {
            round: 2,
            token: Some(3),
            reason: "stale key".into()
        })]
    );
}

/// A bit of it flipped since it was read.
#[test]
fn a_copy_that_is_not_the_model_any_more_is_told_read_anew_and_trained_from() {
    let mut member = member();
    tell(&mut member, Message::Train(train(1)));
    let found = Hash([0x5A; 32]);
    let divergence = Divergence {
        round: 1,
        model: 0,
        expected: model(0).hash,
        found,
    };
    let told = Effect::Tell(Control::Diverged(divergence));
    assert_eq!(
        tell(&mut member, Message::Diverged(1, found)),
        [told, Effect::Adopt(model(0))]
    );
    let effects = tell(&mut member, Message::Adopted(model(0), Ok(())));
    assert_eq!(effects.last(), Some(&Effect::Train(train(1))));
}

#[test]
fn memory_that_never_keeps_a_model_fails_the_training_and_is_tried_again_in_the_next_round() {
    let mut member = member();
    tell(&mut member, Message::Train(train(1)));
    for _ in 0..REREADS_MAX {
        let effects = tell(&mut member, Message::Diverged(1, Hash([0x5A; 32])));
        assert_eq!(effects.last(), Some(&Effect::Adopt(model(0))));
        tell(&mut member, Message::Adopted(model(0), Ok(())));
    }
    let effects = tell(&mut member, Message::Diverged(1, Hash([0x5A; 32])));
    let [
        Effect::Tell(_),
        Effect::Tell(Control::Failed { round, token, .. }),
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!((*round, *token), (1, Some(3)));
    assert_eq!(
        tell(&mut member, Message::Train(train(2))),
        [Effect::Adopt(model(1))]
    );
}

/// The first order's model lies in memory of a gateway that is no more; the second says where it lies now.
#[test]
fn an_order_that_came_since_is_tried_where_the_one_before_failed() {
    let mut member = member();
    tell(&mut member, Message::Train(train(2)));
    let mut again = train(2);
    (again.token, again.model.region.key) = (4, 77);
    assert_eq!(tell(&mut member, Message::Train(again.clone())), []);
    let stale = Message::Adopted(model(1), Err("stale key".into()));
    let failed = Control::Failed {
        round: 1,
        token: None,
        reason: "stale key".into(),
    };
    assert_eq!(
        tell(&mut member, stale),
        [Effect::Tell(failed), Effect::Adopt(again.model)]
    );
}

#[test]
fn who_asks_last_is_told_that_the_training_failed() {
    let mut member = member();
    tell(&mut member, Message::Train(train(1)));
    let again = Train {
        token: 4,
        ..train(1)
    };
    assert_eq!(tell(&mut member, Message::Train(again)), []);
    assert_eq!(
        tell(&mut member, Message::Trained(1, Err("no rows".into()))),
        [Effect::Tell(Control::Failed {
            round: 1,
            token: Some(4),
            reason: "no rows".into()
        })]
    );
}

// ---- the asynchronous mode ----

fn train_with(round: Round, base: Round, oldest: Round) -> Message {
    let train = Train {
        oldest: Some(oldest),
        model: model(base),
        ..train(round)
    };
    Message::Train(train)
}

fn trained_in(key: u64) -> Result<(Trained, RegionRef, Effort), String> {
    let (trained, region, effort) = trained()?;
    Ok((trained, RegionRef { key, ..region }, effort))
}

fn exports(effects: &[Effect]) -> Vec<Round> {
    let exports = effects.iter().filter_map(|effect| match effect {
        Effect::Tell(Control::Exported(exported)) => Some(exported.round),
        _ => None,
    });
    exports.collect()
}

fn begins(effects: &[Effect]) -> Option<Round> {
    let mut trains = effects.iter().filter_map(|effect| match effect {
        Effect::Train(train) => Some(train.round),
        _ => None,
    });
    trains.next_back()
}

/// Versions come while it trains; what it makes is still wanted, and it begins nothing else before.
#[test]
fn a_slow_node_ends_what_it_began_and_offers_it_in_a_later_round() {
    let mut member = member();
    assert_eq!(begins(&tell(&mut member, train_with(1, 0, 1))), Some(1));
    tell(&mut member, Message::Adopt(model(1)));
    assert_eq!(tell(&mut member, train_with(2, 1, 1)), []);
    let effects = tell(&mut member, Message::Trained(1, trained()));
    assert_eq!(exports(&effects), [1]);
    tell(&mut member, Message::Adopted(model(1), Ok(())));
    let effects = tell(&mut member, train_with(2, 1, 1));
    assert_eq!(exports(&effects), [1], "asked again, the same update");
    assert_eq!(begins(&effects), Some(2), "and there is a newer model");
}

#[test]
fn the_next_update_waits_in_silence_until_the_one_before_has_counted() {
    let mut member = member();
    tell(&mut member, train_with(1, 0, 1));
    tell(&mut member, Message::Trained(1, trained_in(9)));
    tell(&mut member, Message::Adopt(model(1)));
    tell(&mut member, Message::Adopted(model(1), Ok(())));
    tell(&mut member, train_with(2, 1, 1));
    assert_eq!(member.held().map(|held| held.key), Some(9));
    let effects = tell(&mut member, Message::Trained(2, trained_in(10)));
    assert_eq!(exports(&effects), [0; 0]);
    // A third would need a third region.
    tell(&mut member, Message::Adopt(model(2)));
    tell(&mut member, Message::Adopted(model(2), Ok(())));
    let effects = tell(&mut member, train_with(3, 2, 1));
    assert_eq!((exports(&effects), begins(&effects)), (vec![1], None));
    let effects = tell(&mut member, train_with(3, 2, 2));
    assert_eq!((exports(&effects), begins(&effects)), (vec![2], Some(3)));
    assert_eq!(member.held().map(|held| held.key), Some(10));
}

#[test]
fn nothing_is_trained_twice_from_one_model() {
    let mut member = member();
    tell(&mut member, train_with(1, 0, 1));
    tell(&mut member, Message::Trained(1, trained()));
    // Round 1 was aborted.
    let effects = tell(&mut member, train_with(2, 0, 1));
    assert_eq!((exports(&effects), begins(&effects)), (vec![1], None));
    // It cannot be used: then it is.
    let effects = tell(&mut member, train_with(3, 0, 2));
    assert_eq!((exports(&effects), begins(&effects)), (vec![], Some(3)));
}

#[test]
fn what_ended_too_late_is_told_and_the_newest_order_begun() {
    let mut member = member();
    tell(&mut member, train_with(1, 0, 1));
    tell(&mut member, Message::Adopt(model(5)));
    assert_eq!(tell(&mut member, train_with(6, 5, 4)), []);
    let effects = tell(&mut member, Message::Trained(1, trained()));
    assert_eq!(
        exports(&effects),
        [1],
        "whoever asked hears that it is there"
    );
    let effects = tell(&mut member, Message::Adopted(model(5), Ok(())));
    assert_eq!(begins(&effects), Some(6));
}
