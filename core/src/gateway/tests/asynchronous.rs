//! A domain in an asynchronous federation: updates of earlier rounds are taken as long as they are fresh.

use super::*;
use crate::staleness::Fresh;

/// Round 4 is open, from the model of round 3.
fn domain() -> Domain {
    let mut hq = Domain::joined();
    hq.coordinator(Control::Open(open_of(1, 0)));
    hq.coordinator(Control::Abort {
        round: 1,
        reason: "quorum not met".into(),
    });
    hq.coordinator(Control::Open(fresh(open_of(4, 3))));
    hq
}

fn fresh(open: Open) -> Open {
    Open {
        fresh: Some(Fresh {
            oldest: 2,
            spent: vec![(n("a"), 3)],
        }),
        ..open
    }
}

fn exported_for(node: &str, round: Round) -> Control {
    Control::Exported(Exported {
        round,
        ..export_of(node)
    })
}

#[test]
fn members_are_told_which_of_their_updates_would_do() {
    let mut hq = domain();
    let effects = hq.obtained(3);
    let trains = effects.iter().filter_map(|effect| match effect {
        Effect::Member(node, Control::Train(train)) => Some((node.name(), train.oldest)),
        _ => None,
    });
    let trains: Vec<_> = trains.collect();
    assert_eq!(trains, [("a", Some(4)), ("b", Some(2)), ("c", Some(2))]);
}

#[test]
fn an_update_of_an_earlier_round_is_measured_and_reported_as_what_it_is() {
    let mut hq = domain();
    hq.obtained(3);
    let effects = hq.member("b", exported_for("b", 2));
    let [Effect::Member(_, Control::Measure(measure)), ..] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((measure.round, measure.epoch), (2, 1), "as its region says");
    let mut reported = Vec::new();
    for (rank, slice) in [("a", 0), ("b", 1), ("c", 2)] {
        reported = hq.measured_for("b", 2, rank, slice);
    }
    let [
        Effect::Tell(Control::Reported {
            round: 4,
            trained_for: 2,
            ..
        }),
    ] = &reported[..]
    else {
        panic!("{reported:?}")
    };
    let effects = hq.coordinator(Control::Weigh {
        round: 4,
        weights: weights(&["b"]),
        norms: vec![6.0],
    });
    let fold = fold_of(&effects[0]);
    assert_eq!((fold.round, fold.terms[0].round), (4, 2));
}

#[test]
fn what_has_counted_or_is_too_old_is_answered_and_its_member_goes_on() {
    let mut hq = domain();
    hq.obtained(3);
    let effects = hq.member("b", exported_for("b", 1));
    let stale = Effect::Tell(Control::Stale {
        round: 4,
        node: n("b"),
        trained_for: 1,
    });
    assert_eq!(effects[0], stale);
    assert!(matches!(
        effects[1],
        Effect::Member(_, Control::Train(Train { round: 4, .. }))
    ));
    let effects = hq.member("a", exported_for("a", 3));
    assert!(matches!(
        effects[..],
        [Effect::Member(_, Control::Train(_))]
    ));
    let echo = hq.member("b", exported_for("b", 5));
    assert_eq!(echo, [], "of no round that was opened");
}

/// The member goes on with its next update, which may fail.
#[test]
fn a_training_that_fails_takes_nothing_from_the_update_that_the_round_has() {
    let mut hq = domain();
    hq.obtained(3);
    hq.member("b", exported_for("b", 2));
    let failed = Control::Failed {
        round: 4,
        token: None,
        reason: "no rows".into(),
    };
    assert_eq!(hq.member("b", failed.clone()), []);
    let effects = hq.member("c", failed);
    assert!(matches!(
        effects[..],
        [Effect::Member(_, Control::Train(_))]
    ));
}

impl Domain {
    fn measured_for(&mut self, node: &str, round: Round, rank: &str, slice: u32) -> Vec<Effect> {
        let token = self.token(&format!("measure hq/{node}"));
        let measure = SliceMeasure {
            slice,
            squares: 12.0,
            checksum: Hash([slice as u8; 32]),
        };
        self.member(
            rank,
            Control::Measured(Measured {
                token,
                round,
                node: n(node),
                result: Ok(vec![measure]),
            }),
        )
    }
}
