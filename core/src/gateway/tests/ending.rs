//! The end of a round, and of the run.

use super::*;

#[test]
fn an_aborted_round_is_dropped_by_everybody_and_only_that_one() {
    let mut hq = Domain::contributed();
    let abort = |round| Control::Abort {
        round,
        reason: "why".into(),
    };
    assert_eq!(hq.coordinator(abort(7)), []);
    let effects = hq.coordinator(abort(1));
    assert_eq!(effects.len(), 3);
    assert!(
        effects
            .iter()
            .all(|effect| matches!(effect, Effect::Member(_, Control::Drop { round: 1, .. })))
    );
    assert_eq!(hq.machine.offered(), None);
    assert_eq!(hq.weigh(&["a"]), [], "what still comes of it is stale");
    assert_eq!(hq.gathered(0), []);
    assert_eq!(
        hq.open(2, 0).len(),
        3,
        "the next round trains from the same model"
    );
}

#[test]
fn the_end_reaches_every_member_also_one_that_comes_later() {
    let mut hq = Domain::joined();
    hq.tell(Message::MemberLost(n("c")));
    let effects = hq.coordinator(Control::Finish { reason: "".into() });
    let leave = |node| Effect::Member(n(node), Control::Leave { reason: "".into() });
    assert_eq!(
        effects,
        [leave("a"), leave("b"), Effect::Finished(String::new())]
    );
    assert_eq!(hq.member("c", join(0)), [leave("c")]);
}

#[test]
fn what_a_domain_has_done_is_told_step_by_step() {
    let mut hq = Domain::exported();
    hq.weigh(&["a", "b", "c"]);
    hq.fold_all(0);
    hq.gathered(0);
    hq.commit(1, 0);
    hq.obtained(1);
    let domain: DomainId = "hq".parse().unwrap();
    let obtained = |round| Event::ModelObtained {
        domain: domain.clone(),
        round,
    };
    let measured = |node| Event::UpdateMeasured {
        node: n(node),
        round: 1,
    };
    let (round, attempt) = (1, 0);
    let expected = [
        obtained(0),
        measured("a"),
        measured("b"),
        measured("c"),
        Event::FoldStarted {
            round,
            attempt,
            domain: domain.clone(),
        },
        Event::Contributed {
            round,
            attempt,
            domain: domain.clone(),
        },
        obtained(1),
    ];
    assert_eq!(hq.events, expected);
}
