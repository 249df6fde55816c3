mod asynchronous;
mod each;
mod ending;
mod large;
mod models;
mod restarts;
mod views;

use super::*;
use crate::machine::Outcome as Out;
use crate::pace::Effort;
use crate::plan::samples::layout;
use crate::time::Micros;
use crate::wire::DomainJoin;
use crate::wire::{Answer, Fold, Folded, Measure, Measured, REGION_HEADER_BYTES};

// ---- joining ----

#[test]
fn a_gateway_says_where_its_domain_stands_when_the_coordinator_comes_or_asks() {
    let mut hq = Domain::joined();
    let nodes = vec![n("a"), n("b"), n("c")];
    let said = [
        Effect::Tell(Control::DomainJoin(DomainJoin {
            layout: layout(),
            round: 0,
            hash: hash(0),
            members: nodes.clone(),
        })),
        Effect::Tell(Control::Adopted {
            round: 0,
            hash: hash(0),
            nodes,
        }),
    ];
    assert_eq!(hq.tell(Message::CoordinatorUp), said);
    assert_eq!(
        hq.coordinator(Control::Resync),
        said,
        "a restarted coordinator knows nothing"
    );
}

#[test]
fn a_member_is_asked_to_join_and_given_the_model_it_lacks() {
    let mut hq = Domain::started();
    assert_eq!(
        hq.tell(Message::MemberUp(n("a"))),
        [Effect::Member(n("a"), Control::Rejoin)]
    );
    hq.obtained(3);
    let effects = hq.member("a", join(0));
    assert_eq!(effects, [Effect::Member(n("a"), Control::Adopt(model(3)))]);
    assert_eq!(
        hq.member("a", join(9)),
        [],
        "it holds more than a restarted gateway"
    );
}

#[test]
fn a_member_with_another_model_leaves_with_the_difference() {
    let mut hq = Domain::started();
    let layout = Layout::new([("v", vec![4])]).unwrap();
    let other = Control::Join(Join {
        layout,
        round: 0,
        hash: hash(0),
    });
    let effects = hq.member("a", other);
    let [Effect::Member(_, Control::Leave { reason })] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(reason.contains("another model"));
}

#[test]
fn a_stranger_is_not_heard() {
    assert_eq!(Domain::joined().member("z", join(0)), []);
}

// ---- the model ----

#[test]
fn an_open_round_brings_its_base_and_then_the_orders_to_train() {
    let mut hq = Domain::joined();
    let (round, base) = (4, None);
    assert_eq!(
        hq.open(5, 4),
        [Effect::Obtain {
            round,
            base,
            hash: hash(4)
        }]
    );
    let effects = hq.obtained(4);
    assert_eq!(effects.len(), 6);
    for node in ["a", "b", "c"] {
        assert!(effects.contains(&Effect::Member(n(node), Control::Adopt(model(4)))));
        assert!(effects.contains(&Effect::Member(n(node), Control::Train(train(5, 4)))));
    }
}

#[test]
fn a_step_that_does_not_come_is_replaced_by_the_whole_model_a_few_times() {
    let mut hq = Domain::joined();
    hq.open(5, 4);
    let (round, base) = (4, None);
    for _ in 0..TRIES_MAX {
        let again = hq.tell(Message::Obtained(4, Err("cut".into())));
        assert_eq!(
            again,
            [Effect::Obtain {
                round,
                base,
                hash: hash(4)
            }]
        );
    }
    let effects = hq.tell(Message::Obtained(4, Err("cut".into())));
    assert_eq!(effects.len(), 3);
    assert!(effects.iter().all(|effect| matches!(
        effect,
        Effect::Tell(Control::Unreachable { round: 5, reason, .. }) if reason.contains("cut")
    )));
    assert_eq!(
        hq.open(5, 4),
        [Effect::Obtain {
            round,
            base,
            hash: hash(4)
        }],
        "asked again, it tries again"
    );
}

#[test]
fn echoes_of_the_past_bring_no_old_model_and_open_no_old_round() {
    let mut hq = Domain::joined();
    hq.commit(7, 6);
    hq.obtained(7);
    assert_eq!(hq.commit(6, 5), []);
    assert_eq!(hq.open(7, 6), []);
    assert!(hq.machine.current.is_none());
}

#[test]
fn everybody_holding_the_model_is_told_once() {
    let mut hq = Domain::joined();
    hq.commit(1, 0);
    hq.obtained(1);
    let holds = Control::Holds {
        round: 1,
        hash: hash(1),
    };
    assert_eq!(hq.member("a", holds.clone()), []);
    assert_eq!(hq.member("b", holds.clone()), []);
    let nodes = vec![n("a"), n("b"), n("c")];
    let adopted = Effect::Tell(Control::Adopted {
        round: 1,
        hash: hash(1),
        nodes,
    });
    assert_eq!(hq.member("c", holds.clone()), [adopted]);
    assert_eq!(hq.member("c", holds), []);
}

#[test]
fn a_lost_member_does_not_keep_the_domain_from_holding_the_model() {
    let mut hq = Domain::joined();
    hq.commit(1, 0);
    hq.obtained(1);
    let holds = Control::Holds {
        round: 1,
        hash: hash(1),
    };
    hq.member("a", holds.clone());
    hq.member("b", holds);
    let effects = hq.tell(Message::MemberLost(n("c")));
    assert!(matches!(
        effects[..],
        [Effect::Tell(Control::Adopted { round: 1, .. })]
    ));
}

#[test]
fn a_member_that_cannot_read_the_model_is_not_asked_for_ever() {
    let mut hq = Domain::joined();
    hq.commit(1, 0);
    hq.obtained(1);
    let failed = Control::Failed {
        round: 1,
        token: None,
        reason: "stale key".into(),
    };
    for _ in 0..TRIES_MAX {
        let again = hq.member("a", failed.clone());
        assert_eq!(again, [Effect::Member(n("a"), Control::Adopt(model(1)))]);
    }
    assert_eq!(hq.member("a", failed), []);
}

// ---- measuring ----

#[test]
fn each_slice_of_an_update_is_measured_by_its_rank_and_the_norm_reported() {
    let mut hq = Domain::training();
    let effects = hq.member("a", exported("a"));
    assert_eq!(
        effects,
        [
            measure("a", "a", &[0]),
            measure("b", "a", &[1]),
            measure("c", "a", &[2])
        ]
    );
    assert_eq!(hq.measured("a", "a", &[0]), []);
    assert_eq!(hq.measured("b", "a", &[1]), []);
    let effects = hq.measured("c", "a", &[2]);
    let [
        Effect::Tell(Control::Reported {
            round: 1, report, ..
        }),
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (&report.node, report.norm, report.finite),
        (&n("a"), 6.0, true)
    );
}

#[test]
fn an_export_is_taken_once_and_only_if_it_is_one() {
    let mut hq = Domain::training();
    hq.member("a", exported("a"));
    assert_eq!(hq.member("a", exported("a")), []);
    assert!(matches!(
        hq.events.last(),
        Some(Event::DuplicateAnswered { round: 1, .. })
    ));
    let Control::Exported(good) = exported("b") else {
        unreachable!()
    };
    let mut short = good.clone();
    short.region.len -= 4;
    let mut stolen = good.clone();
    stolen.region.owner = n("a");
    for bad in [short, stolen] {
        let effects = hq.member("b", Control::Exported(bad));
        assert!(matches!(
            effects[..],
            [Effect::Tell(Control::TrainingFailed { .. })]
        ));
    }
    let stale = Exported { round: 9, ..good };
    assert_eq!(hq.member("b", Control::Exported(stale)), []);
    assert!(matches!(
        hq.events.last(),
        Some(Event::LateAnswered { round: 9, .. })
    ));
}

#[test]
fn a_silent_rank_leaves_its_slices_to_the_next_one() {
    let mut hq = Domain::training();
    hq.member("a", exported("a"));
    let effects = hq.tell(Message::MemberSilent(n("b")));
    assert_eq!(effects, [measure("c", "a", &[1])]);
    hq.measured("a", "a", &[0]);
    hq.measured("c", "a", &[1]);
    assert!(matches!(
        hq.measured("c", "a", &[2])[..],
        [Effect::Tell(Control::Reported { .. })]
    ));
    assert_eq!(
        hq.measured("b", "a", &[1]),
        [],
        "it wakes and is not needed"
    );
}

/// A rank that was rebuilt has forgotten what it was asked.
#[test]
fn a_rank_that_introduces_itself_again_is_asked_again() {
    let mut hq = Domain::training();
    hq.member("a", exported("a"));
    let effects = hq.member("b", join(0));
    assert!(effects.contains(&measure("b", "a", &[1])), "{effects:?}");
}

#[test]
fn an_update_that_one_rank_cannot_read_is_read_by_another_before_its_owner_is_blamed() {
    let mut hq = Domain::training();
    hq.member("a", exported("a"));
    assert_eq!(hq.unmeasured("b", "a"), [measure("c", "a", &[1])]);
    assert_eq!(
        hq.unmeasured("c", "a"),
        [Effect::Member(n("a"), Control::Train(train(1, 0)))]
    );
}

#[test]
fn a_member_that_keeps_failing_is_reported_failed_with_the_last_reason() {
    let mut hq = Domain::training();
    for _ in 0..TRIES_MAX {
        let again = hq.fails("a", "no rows");
        assert_eq!(again, [Effect::Member(n("a"), Control::Train(train(1, 0)))]);
    }
    let effects = hq.fails("a", "no rows");
    let [
        Effect::Tell(Control::TrainingFailed {
            round: 1,
            node,
            reason,
        }),
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    assert!(*node == n("a") && reason.contains("no rows"), "{reason}");
}

#[test]
fn a_lost_member_is_reported_and_trains_again_when_it_returns() {
    let mut hq = Domain::training();
    let effects = hq.tell(Message::MemberLost(n("a")));
    assert!(matches!(
        effects[0],
        Effect::Tell(Control::Unreachable { round: 1, .. })
    ));
    let effects = hq.member("a", join(0));
    assert_eq!(
        effects.last(),
        Some(&Effect::Member(n("a"), Control::Train(train(1, 0))))
    );
}

#[test]
fn a_coordinator_that_opens_the_round_again_hears_again_what_is_known() {
    let mut hq = Domain::training();
    hq.export("a");
    let effects = hq.open(1, 0);
    assert!(matches!(
        effects[0],
        Effect::Tell(Control::Reported { round: 1, .. })
    ));
    assert_eq!(effects.len(), 3, "b and c are asked once more: {effects:?}");
}

// ---- folding ----

#[test]
fn weighed_updates_are_folded_slice_by_slice_gathered_and_announced() {
    let mut hq = Domain::exported();
    let effects = hq.weigh(&["a", "b", "c"]);
    let orders: Vec<&Fold> = effects.iter().map(fold_of).collect();
    assert_eq!(orders.len(), 3);
    assert_eq!(orders[0].terms.len(), 3);
    assert_eq!((orders[0].attempt, &orders[0].slices[..]), (0, &[0][..]));
    assert_eq!(hq.folded("a", 0, &[0]), []);
    assert_eq!(hq.folded("b", 0, &[1]), []);
    let effects = hq.folded("c", 0, &[2]);
    let [Effect::Gather(gather)] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (gather.attempt, gather.exponent, gather.parts.len()),
        (0, 1, 3)
    );
    assert_eq!(hq.gathered(0), [contribute(0, &["a", "b", "c"])]);
    assert_eq!(hq.machine.offered(), Some((1, 0)));
}

#[test]
fn the_same_part_twice_gathers_once() {
    let mut hq = Domain::exported();
    hq.weigh(&["a", "b", "c"]);
    hq.fold_all(0);
    assert_eq!(hq.folded("c", 0, &[2]), []);
    hq.gathered(0);
    assert_eq!(hq.gathered(0), []);
}

#[test]
fn a_term_that_cannot_be_read_is_left_out_and_its_member_asked_again() {
    let mut hq = Domain::exported();
    hq.weigh(&["a", "b", "c"]);
    let effects = hq.unfolded("a", 0, &[0], "b");
    assert_eq!(
        effects[0],
        Effect::Member(n("b"), Control::Train(train(1, 0)))
    );
    assert!(
        effects[1..]
            .iter()
            .all(|effect| fold_of(effect).attempt == 1)
    );
    assert!(matches!(
        hq.events.last(),
        Some(Event::Regrouped { attempt: 1, .. })
    ));
    hq.fold_all(1);
    assert_eq!(
        hq.gathered(1),
        [contribute(1, &["a", "c"])],
        "b may still come: nobody is told it will not"
    );
    assert_eq!(
        hq.folded("b", 0, &[1]),
        [],
        "an answer to the older attempt"
    );
}

#[test]
fn an_update_that_comes_back_makes_the_sum_grow_once_the_last_one_is_answered() {
    let mut hq = Domain::without_b();
    let effects = hq.export("b");
    assert!(
        matches!(effects[..], [Effect::Tell(Control::Reported { .. })]),
        "not before the answer"
    );
    let effects = hq.answer(1, Answer::Acknowledged);
    assert!(effects.iter().all(|effect| fold_of(effect).attempt == 2) && !effects.is_empty());
    assert_eq!(
        hq.machine.offered(),
        Some((1, 1)),
        "the older one stands until then"
    );
    hq.fold_all(2);
    assert_eq!(hq.gathered(2), [contribute(2, &["a", "b", "c"])]);
}

#[test]
fn after_late_or_refused_nothing_grows() {
    for answer in [Answer::Late, Answer::Refused("why".into())] {
        let mut hq = Domain::without_b();
        hq.answer(1, answer);
        assert!(matches!(
            hq.export("b")[..],
            [Effect::Tell(Control::Reported { .. })]
        ));
    }
}

#[test]
fn a_member_that_vanishes_takes_nothing_from_a_sum_that_stands() {
    let mut hq = Domain::without_b();
    hq.answer(1, Answer::Acknowledged);
    hq.export("b");
    // The sum would grow by b, but c is gone: two members again, and those of the standing one are as good.
    let effects = hq.unfolded("a", 2, &[0], "c");
    assert_eq!(
        effects,
        [Effect::Member(n("c"), Control::Train(train(1, 0)))]
    );
    assert_eq!(hq.machine.offered(), Some((1, 1)));
}

#[test]
fn a_lost_member_whose_update_is_inside_is_not_reported() {
    let mut hq = Domain::contributed();
    assert_eq!(hq.tell(Message::MemberLost(n("a"))), []);
}

#[test]
fn a_lost_member_whose_update_is_outside_is_reported() {
    let mut hq = Domain::without_b();
    let effects = hq.tell(Message::MemberLost(n("b")));
    assert!(matches!(
        effects[..],
        [Effect::Tell(Control::Unreachable { round: 1, .. })]
    ));
}

#[test]
fn a_rank_that_fails_leaves_its_slices_to_another_and_works_again_in_the_next_round() {
    let mut hq = Domain::exported();
    hq.weigh(&["a", "b"]);
    let effects = hq.unfolded("c", 0, &[2], "c");
    assert!(matches!(&effects[..], [Effect::Member(rank, Control::Fold(_))] if *rank == n("a")));
    hq.commit(1, 0);
    hq.obtained(1);
    hq.open(2, 1);
    let effects = hq.member(
        "a",
        Control::Exported(Exported {
            round: 2,
            ..export_of("a")
        }),
    );
    assert_eq!(effects.len(), 3, "all three measure: {effects:?}");
}

#[test]
fn where_steps_are_balanced_each_member_is_told_its_own() {
    let mut hq = Domain::joined();
    let mut open = open_of(1, 0);
    open.sync_every = SyncEvery::Steps(50);
    open.steps = [("a", 80), ("b", 50), ("c", 20)]
        .map(|(of, steps)| (n(of), steps))
        .to_vec();
    let orders = |effects: &[Effect]| -> Vec<(SyncEvery, Option<u64>)> {
        let orders = effects.iter().filter_map(|effect| match effect {
            Effect::Member(_, Control::Train(train)) => Some((train.sync_every, train.counts_as)),
            _ => None,
        });
        orders.collect()
    };
    let first = orders(&hq.coordinator(Control::Open(open.clone())));
    assert_eq!(
        first,
        [80, 50, 20].map(|steps| (SyncEvery::Steps(steps), Some(50)))
    );
    // A coordinator that deals anew has other updates in mind.
    open.steps[0].1 = 79;
    let again = orders(&hq.coordinator(Control::Open(open)));
    assert_eq!(again[0], (SyncEvery::Steps(79), Some(50)));
}

#[test]
fn a_gateway_alone_that_fails_at_its_own_work_tries_again_and_then_says_so() {
    let mut hq = Domain::alone();
    for attempt in 0..FAILURES_MAX - 1 {
        hq.folded("a", attempt, &[0]);
        let gone = Message::Gathered(1, attempt, Err((n("a"), "no memory".into())));
        assert_eq!(fold_of(&hq.tell(gone)[0]).attempt, attempt + 1);
    }
    let last = FAILURES_MAX - 1;
    hq.folded("a", last, &[0]);
    let effects = hq.tell(Message::Gathered(
        1,
        last,
        Err((n("a"), "no memory".into())),
    ));
    let [Effect::Tell(Control::TrainingFailed { reason, .. })] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert!(reason.contains("no memory"), "{reason}");
}

#[test]
fn an_update_that_is_not_the_weighed_one_is_refused() {
    let mut hq = Domain::exported();
    let effects = hq.weigh_with(&["a", "b", "c"], 5.0);
    assert_eq!(effects.len(), 3);
    assert!(effects.iter().all(|effect| matches!(
        effect,
        Effect::Tell(Control::TrainingFailed { reason, .. }) if reason.contains("weighed")
    )));
}

#[test]
fn a_node_without_weight_is_not_folded() {
    let mut hq = Domain::exported();
    let mut weights = weights(&["a", "b"]);
    weights[1].weight = 0.0;
    let effects = hq.coordinator(Control::Weigh {
        round: 1,
        weights,
        norms: vec![6.0, 6.0],
    });
    assert_eq!(fold_of(&effects[0]).terms.len(), 1);
}

// ---- helpers ----

/// The domain `hq` of `a`, `b` and `c`; one slice each, every slice's squares 12, so every norm is 6.
struct Domain {
    machine: Gateway,
    events: Vec<Event>,
    /// The token of the last order of each kind, which effects are shown without.
    tokens: BTreeMap<String, u64>,
    /// What the coordinator was told of members, apart from all else.
    standings: Vec<(NodeId, Word)>,
}

impl Domain {
    fn started() -> Self {
        Domain::of(&["a", "b", "c"])
    }

    fn of(ranks: &[&str]) -> Self {
        let ranks = ranks.iter().map(|rank| n(rank)).collect();
        Domain::in_life(ranks, 1)
    }

    /// One whose orders carry the tokens of that life.
    fn in_life(ranks: Vec<NodeId>, seed: u64) -> Self {
        let machine = Gateway::new("hq".parse().unwrap(), ranks, layout(), Rng::new(seed));
        Domain {
            machine,
            tokens: BTreeMap::new(),
            events: Vec::new(),
            standings: Vec::new(),
        }
    }

    /// Another life of the gateway, of the same domain, in the same round.
    fn again(seed: u64) -> Self {
        let ranks = ["a", "b", "c"].map(n).to_vec();
        let mut hq = Domain::in_life(ranks, seed).join();
        assert_eq!(hq.open(1, 0).len(), 3);
        hq
    }

    /// Everybody is there and holds the initial model.
    fn joined() -> Self {
        Domain::started().join()
    }

    fn join(mut self) -> Self {
        let hq = &mut self;
        hq.obtained(0);
        for node in ["a", "b", "c"] {
            hq.member(node, join(0));
        }
        self
    }

    /// Round 1 is open.
    fn training() -> Self {
        let mut hq = Domain::joined();
        assert_eq!(hq.open(1, 0).len(), 3);
        hq
    }

    /// All updates are reported.
    fn exported() -> Self {
        let mut hq = Domain::training();
        for node in ["a", "b", "c"] {
            hq.export(node);
        }
        hq
    }

    /// All three are in a contribution.
    fn contributed() -> Self {
        let mut hq = Domain::exported();
        hq.weigh(&["a", "b", "c"]);
        hq.fold_all(0);
        hq.gathered(0);
        hq
    }

    /// The first attempt lost b's update, the second is announced without it.
    fn without_b() -> Self {
        let mut hq = Domain::exported();
        hq.weigh(&["a", "b", "c"]);
        hq.unfolded("a", 0, &[0], "b");
        hq.fold_all(1);
        assert_eq!(hq.gathered(1), [contribute(1, &["a", "c"])]);
        hq
    }

    /// A domain of one node, whose update is being folded.
    fn alone() -> Self {
        let mut hq = Domain::of(&["a"]);
        hq.obtained(0);
        hq.member("a", join(0));
        hq.open(1, 0);
        hq.member("a", exported("a"));
        hq.measured("a", "a", &[0]);
        let norms = vec![12f64.sqrt()];
        hq.coordinator(Control::Weigh {
            round: 1,
            weights: weights(&["a"]),
            norms,
        });
        hq
    }

    fn tell(&mut self, message: Message) -> Vec<Effect> {
        let mut out = Out::default();
        self.machine
            .handle(message, &mut Context::new(Micros(0), &mut out));
        self.events.extend(out.events);
        out.effects
            .iter_mut()
            .for_each(|effect| self.take_token(effect));
        let (standings, effects): (Vec<Effect>, Vec<Effect>) = out
            .effects
            .into_iter()
            .partition(|effect| matches!(effect, Effect::Tell(Control::Standing { .. })));
        self.standings
            .extend(standings.into_iter().map(|effect| match effect {
                Effect::Tell(Control::Standing { node, word }) => (node, word),
                _ => unreachable!("filtered above"),
            }));
        effects
    }

    fn take_token(&mut self, effect: &mut Effect) {
        let (about, token) = match effect {
            Effect::Member(_, Control::Train(train)) => ("train".into(), &mut train.token),
            Effect::Member(_, Control::Measure(measure)) => {
                (format!("measure {}", measure.node), &mut measure.token)
            }
            Effect::Member(_, Control::Fold(fold)) => {
                (format!("fold {}", fold.attempt), &mut fold.token)
            }
            _ => return,
        };
        assert_ne!(*token, 0);
        self.tokens.insert(about, std::mem::take(token));
    }

    /// The token of the last order about that; one that was never given, if there is none.
    fn token(&self, about: &str) -> u64 {
        self.tokens.get(about).copied().unwrap_or(1)
    }

    fn coordinator(&mut self, control: Control) -> Vec<Effect> {
        self.tell(Message::Coordinator(control))
    }

    /// A member could not train.
    fn fails(&mut self, node: &str, reason: &str) -> Vec<Effect> {
        let failed = Control::Failed {
            round: 1,
            token: Some(self.token("train")),
            reason: reason.into(),
        };
        self.member(node, failed)
    }

    fn member(&mut self, node: &str, control: Control) -> Vec<Effect> {
        self.tell(Message::Member(n(node), control))
    }

    fn obtained(&mut self, round: Round) -> Vec<Effect> {
        self.tell(Message::Obtained(round, Ok(model(round))))
    }

    fn open(&mut self, round: Round, base: Round) -> Vec<Effect> {
        self.coordinator(Control::Open(open_of(round, base)))
    }

    fn commit(&mut self, round: Round, base: Round) -> Vec<Effect> {
        let (base, hash) = (hash(base), hash(round));
        self.coordinator(Control::Commit(Commit {
            round,
            base,
            hash,
            contributions: vec![],
        }))
    }

    fn measured(&mut self, rank: &str, node: &str, slices: &[u32]) -> Vec<Effect> {
        let slice = |slice: &u32| SliceMeasure {
            slice: *slice,
            squares: 12.0,
            checksum: Hash([*slice as u8; 32]),
        };
        let result = Ok(slices.iter().map(slice).collect());
        self.member(
            rank,
            Control::Measured(Measured {
                token: self.token(&format!("measure hq/{node}")),
                round: 1,
                node: n(node),
                result,
            }),
        )
    }

    fn unmeasured(&mut self, rank: &str, node: &str) -> Vec<Effect> {
        let result = Err("gone".into());
        self.member(
            rank,
            Control::Measured(Measured {
                token: self.token(&format!("measure hq/{node}")),
                round: 1,
                node: n(node),
                result,
            }),
        )
    }

    /// A member exports, its peers measure; what the last answer brings about.
    fn export(&mut self, node: &str) -> Vec<Effect> {
        self.member(node, exported(node));
        self.measured("a", node, &[0]);
        self.measured("b", node, &[1]);
        self.measured("c", node, &[2])
    }

    fn weigh(&mut self, nodes: &[&str]) -> Vec<Effect> {
        self.weigh_with(nodes, 6.0)
    }

    fn weigh_with(&mut self, nodes: &[&str], norm: f64) -> Vec<Effect> {
        let norms = vec![norm; nodes.len()];
        self.coordinator(Control::Weigh {
            round: 1,
            weights: weights(nodes),
            norms,
        })
    }

    fn folded(&mut self, rank: &str, attempt: Attempt, slices: &[u32]) -> Vec<Effect> {
        let (slices, result) = (slices.to_vec(), Ok(region(rank, 2)));
        self.member(
            rank,
            Control::Folded(Folded {
                token: self.token(&format!("fold {attempt}")),
                round: 1,
                attempt,
                slices,
                result,
            }),
        )
    }

    fn unfolded(
        &mut self,
        rank: &str,
        attempt: Attempt,
        slices: &[u32],
        blamed: &str,
    ) -> Vec<Effect> {
        let (slices, result) = (slices.to_vec(), Err((n(blamed), "gone".into())));
        self.member(
            rank,
            Control::Folded(Folded {
                token: self.token(&format!("fold {attempt}")),
                round: 1,
                attempt,
                slices,
                result,
            }),
        )
    }

    fn fold_all(&mut self, attempt: Attempt) {
        self.folded("a", attempt, &[0]);
        self.folded("b", attempt, &[1]);
        assert!(matches!(
            self.folded("c", attempt, &[2])[..],
            [Effect::Gather(_)]
        ));
    }

    fn gathered(&mut self, attempt: Attempt) -> Vec<Effect> {
        self.tell(Message::Gathered(1, attempt, Ok(vec![hash(9)].into())))
    }

    fn answer(&mut self, attempt: Attempt, answer: Answer) -> Vec<Effect> {
        self.coordinator(Control::Answer {
            round: 1,
            attempt,
            answer,
        })
    }
}

fn without(name: &str) -> View {
    View {
        epoch: 2,
        coordinator: n("a"),
        gateways: [(n("a").domain(), n("a"))].into(),
        out: [(n(name), crate::view::Out::Evicted(1))].into(),
    }
}

fn try_fold_of(effect: &Effect) -> Option<&Fold> {
    match effect {
        Effect::Member(_, Control::Fold(fold)) => Some(fold),
        _ => None,
    }
}

fn n(name: &str) -> NodeId {
    format!("hq/{name}").parse().unwrap()
}

fn hash(round: Round) -> Hash {
    Hash([round as u8 + 1; 32])
}

fn region(owner: &str, key: u64) -> RegionRef {
    let len = (REGION_HEADER_BYTES + layout().len() * 4) as u64;
    RegionRef {
        owner: n(owner),
        key,
        len,
    }
}

fn model(round: Round) -> ModelRef {
    ModelRef {
        round,
        hash: hash(round),
        region: region("a", 3),
    }
}

fn join(round: Round) -> Control {
    Control::Join(Join {
        layout: layout(),
        round,
        hash: hash(round),
    })
}

fn open_of(round: Round, base: Round) -> Open {
    Open {
        run: Hash::default(),
        round,
        epoch: 1,
        base_round: base,
        base: hash(base),
        cohort: ["a", "b", "c"].map(n).to_vec(),
        attempt: 0,
        sync_every: SyncEvery::Steps(1),
        steps: Vec::new(),
        seed: 7,
        fresh: None,
    }
}

fn train(round: Round, base: Round) -> Train {
    Train {
        token: 0,
        run: Hash::default(),
        round,
        epoch: 1,
        model: model(base),
        sync_every: SyncEvery::Steps(1),
        counts_as: None,
        seed: 7,
        oldest: None,
    }
}

fn export_of(node: &str) -> Exported {
    Exported {
        round: 1,
        epoch: 1,
        region: region(node, 1),
        samples: 10,
        loss: 1.0,
        steps: 1,
        learning_rate: 0.1,
        effort: Effort::default(),
    }
}

fn exported(node: &str) -> Control {
    Control::Exported(export_of(node))
}

fn measure(rank: &str, node: &str, slices: &[u32]) -> Effect {
    let measure = Measure {
        token: 0,
        round: 1,
        epoch: 1,
        node: n(node),
        region: region(node, 1),
        slices: slices.to_vec(),
    };
    Effect::Member(n(rank), Control::Measure(measure))
}

fn weights(nodes: &[&str]) -> Vec<Weight> {
    let weight = |node: &&str| Weight {
        node: n(node),
        weight: 1.0,
        clip: 1.0,
        reason: String::new(),
    };
    nodes.iter().map(weight).collect()
}

fn fold_of(effect: &Effect) -> &Fold {
    match effect {
        Effect::Member(_, Control::Fold(fold)) => fold,
        other => panic!("{other:?} is no fold"),
    }
}

fn contribute(attempt: Attempt, members: &[&str]) -> Effect {
    let weight = members.len() as f64;
    Effect::Tell(Control::Contribute(Contribution {
        round: 1,
        epoch: 1,
        attempt,
        domain: "hq".parse().unwrap(),
        members: members.iter().map(|node| n(node)).collect(),
        weight,
        exponent: fold::exponent(weight).unwrap(),
        chunks: vec![hash(9)],
        encoding: Default::default(),
    }))
}
