//! Who takes part, what is refused as what, and work that stands still.

use super::*;

#[test]
fn the_coordinator_hears_how_members_do_once_each_time() {
    let mut hq = Domain::joined();
    hq.standings.clear();
    hq.tell(Message::MemberSilent(n("b")));
    hq.tell(Message::MemberSilent(n("b")));
    hq.tell(Message::MemberLost(n("b")));
    hq.tell(Message::MemberOverdue(n("b")));
    hq.member("b", join(0));
    hq.member("b", Control::Departing);
    let words = [
        Word::Suspect,
        Word::Restoring,
        Word::Overdue,
        Word::Active,
        Word::Left,
    ];
    assert_eq!(hq.standings, words.map(|word| (n("b"), word)));
    hq.standings.clear();
    hq.coordinator(Control::Resync);
    assert_eq!(
        hq.standings,
        [(n("b"), Word::Left)],
        "whoever asks may know nothing"
    );
}

#[test]
fn who_is_put_out_leaves_the_fold_and_the_sum_that_waits_for_an_answer() {
    let mut hq = Domain::exported();
    hq.weigh(&["a", "b", "c"]);
    let effects = hq.tell(Message::View(without("b")));
    let folds: Vec<&Fold> = effects.iter().filter_map(try_fold_of).collect();
    assert!(
        folds
            .iter()
            .all(|fold| fold.attempt == 1 && fold.terms.len() == 2)
    );
    assert!(!folds.is_empty());

    let mut hq = Domain::contributed();
    let effects = hq.tell(Message::View(without("b")));
    assert!(
        effects.iter().filter_map(try_fold_of).count() > 0,
        "{effects:?}"
    );
    assert_eq!(hq.machine.offered(), None);
    let effects = hq.member("b", exported("b"));
    assert!(
        matches!(effects[..], [Effect::Tell(Control::TrainingFailed { .. })]),
        "its update is not even measured: {effects:?}"
    );
}

#[test]
fn who_is_out_is_heard_but_given_nothing_to_do_until_it_is_in_again() {
    let mut hq = Domain::joined();
    hq.tell(Message::View(without("b")));
    hq.standings.clear();
    assert_eq!(hq.member("b", join(0)), []);
    assert_eq!(hq.standings, [], "that it is here was known");
    assert_eq!(hq.open(1, 0).len(), 2);
    let back = hq.tell(Message::View(View {
        epoch: 3,
        out: Default::default(),
        ..without("b")
    }));
    assert_eq!(back, [Effect::Member(n("b"), Control::Rejoin)]);
}

/// ultralytics#9554, flower#1427: what has another shape is refused as that.
#[test]
fn an_export_of_another_epoch_or_shape_is_answered_as_what_it_is() {
    use crate::event::Objection;
    let mut hq = Domain::training();
    let mut objection = |export: Exported| {
        hq.events.clear();
        hq.member("a", Control::Exported(export));
        let found: Vec<Objection> = hq.events.iter().filter_map(Event::objection).collect();
        found
    };
    let Control::Exported(right) = exported("a") else {
        unreachable!("it is an export")
    };
    let mut epoch = right.clone();
    epoch.epoch = 2;
    assert_eq!(objection(epoch), [Objection::WrongEpoch]);
    let mut shape = right.clone();
    shape.region.len -= 4;
    assert_eq!(objection(shape), [Objection::WrongShape]);
    let mut late = right.clone();
    late.round = 7;
    assert_eq!(objection(late), [Objection::Late]);
    assert_eq!(objection(right.clone()), []);
    assert_eq!(objection(right), [Objection::Duplicate]);
}

/// pccl#13, torchft#164: a member that lives and does not work holds nobody up for ever.
#[test]
fn work_that_stands_still_is_told_as_a_chain_and_given_to_others() {
    let patience = std::time::Duration::from_secs(6);
    let mut hq = Domain::exported();
    hq.machine = hq.machine.patient(patience);
    let wake = |hq: &mut Domain, seconds: u64| {
        let mut out = Out::default();
        let now = Micros(seconds * 1_000_000);
        hq.machine.on_wake(&mut Context::new(now, &mut out));
        hq.events.extend(out.events);
        (Vec::from(out.effects), out.wake_at)
    };
    hq.weigh(&["a", "b", "c"]);
    hq.folded("a", 0, &[0]);
    hq.folded("c", 0, &[2]);
    let (effects, at) = wake(&mut hq, 5);
    assert_eq!((effects.len(), at), (0, Some(Micros(6_000_000))));
    let (effects, at) = wake(&mut hq, 6);
    assert_eq!(at, Some(Micros(12_000_000)), "it is watched on");
    let chain = hq.events.iter().find_map(|event| match event {
        Event::Stalled { chain, .. } => Some(chain.clone()),
        _ => None,
    });
    assert_eq!(
        chain.unwrap(),
        ["hq/b is to fold slices 1 of the regions of hq/a, hq/b, hq/c (attempt 0)"]
    );
    let [Effect::Member(rank, Control::Fold(fold))] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((rank, &fold.slices[..]), (&n("c"), &[1][..]));
    assert_eq!(hq.folded("b", 0, &[1]), [], "it is not asked any more");
    assert!(matches!(hq.folded("c", 0, &[1])[..], [Effect::Gather(_)]));
    // The gateway's own part of the work is watched, too.
    wake(&mut hq, 7);
    let (effects, at) = wake(&mut hq, 13);
    assert_eq!((effects.len(), at), (0, Some(Micros(19_000_000))));
    let mut chains = hq.events.iter().rev().filter_map(|event| match event {
        Event::Stalled { chain, .. } => Some(chain.join("")),
        _ => None,
    });
    assert_eq!(
        chains.next().unwrap(),
        "the gateway is to gather slices 0, 1, 2 (attempt 0)"
    );
}
