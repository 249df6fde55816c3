//! Whatever counts for nothing, or not in full, has an answer of its own, and is counted as what it is.

use super::*;
use crate::aggregate::Needs;
use crate::event::Objection;

impl Run {
    /// The objections that a message meets.
    fn objections(&mut self, message: Message) -> Vec<Objection> {
        let before = self.events.len();
        self.tell(message);
        let new = self.events[before..].iter();
        new.filter_map(Event::objection).collect()
    }
}

fn told(node: &str, round: Round, epoch: Epoch) -> Message {
    let report = report(node);
    let domain = usize::from(node.starts_with("d1"));
    dom(
        domain,
        Control::Reported {
            round,
            epoch,
            trained_for: round,
            report,
            effort: Effort::default(),
        },
    )
}

/// openfl#441, NVFlare#1607: late is answered, and its sender stays a member.
#[test]
fn a_report_of_another_round_is_late_or_replayed_and_its_sender_stays() {
    let mut run = Run::open(some(&[2, 1], 2, 2));
    run.join(1);
    run.report("d0/n0");
    run.report("d1/n0");
    run.now = at(1000);
    run.wake();
    run.weigh(&[("d0/n0", 1.0), ("d1/n0", 1.0)]);
    assert_eq!(run.objections(told("d0/n1", 1, 1)), [Objection::Late]);
    run.contribute(0, 0, &["d0/n0"]);
    run.contribute(1, 0, &["d1/n0"]);
    run.noted(0, 0);
    run.noted(1, 0);
    run.compute(0);
    run.tell(Message::Committed(1, Ok(())));
    assert!(run.opened(2));
    assert_eq!(run.objections(told("d0/n1", 1, 1)), [Objection::Late]);
    assert_eq!(run.objections(told("d0/n0", 1, 1)), [Objection::Replayed]);
    let again = dom(0, Control::Contribute(contribution(0, 0, &["d0/n0"])));
    assert_eq!(run.objections(again), [Objection::Replayed]);
    let other = dom(0, Control::Contribute(contribution(0, 7, &["d0/n0"])));
    assert_eq!(run.objections(other), [Objection::Late]);
    assert_eq!(run.objections(told("d0/n1", 2, 1)), []);
}

#[test]
fn the_same_again_another_epoch_and_the_unasked_are_told_apart() {
    let mut plan = plan(&[2, 1]);
    plan.round.absent.insert(1, vec![n("d0/n1")]);
    let mut run = Run::open(plan);
    run.join(1);
    assert_eq!(run.objections(told("d0/n0", 1, 1)), []);
    assert_eq!(run.objections(told("d0/n0", 1, 1)), [Objection::Duplicate]);
    assert_eq!(run.objections(told("d1/n0", 1, 2)), [Objection::WrongEpoch]);
    assert_eq!(run.objections(told("d0/n1", 1, 1)), [Objection::NotAsked]);
}

/// tensorflow-federated#742, MediSwarm#566.
#[test]
fn what_is_not_finite_is_refused_and_what_is_too_long_is_clipped() {
    let mut run = Run::open(some(&[2, 1], 2, 2));
    run.join(1);
    let mut bad = report("d0/n1");
    bad.finite = false;
    let bad = dom(0, reported(1, bad));
    assert_eq!(run.objections(bad), [Objection::NotFinite]);
    run.report("d0/n0");
    run.report("d1/n0");
    let mut long = weight_of("d0/n0", 1.0);
    long.clip = 0.25;
    run.tell(Message::Weighed(1, Ok(vec![long, weight_of("d1/n0", 1.0)])));
    assert_eq!(
        run.objections(Message::Fixed(1, Ok(()))),
        [Objection::OverNorm]
    );
    assert!(run.events.contains(&Event::UpdateClipped {
        round: 1,
        node: n("d0/n0"),
        factor: 0.25
    }));
}

#[test]
fn an_older_start_of_a_fold_behind_a_newer_one_is_reordered() {
    let mut run = Run::weighed(plan(&[1, 1]));
    run.contribute(1, 3, &["d1/n0"]);
    run.noted(1, 3);
    let contribute = |attempt| dom(1, Control::Contribute(contribution(1, attempt, &["d1/n0"])));
    assert_eq!(run.objections(contribute(2)), [Objection::Reordered]);
    assert_eq!(run.objections(contribute(3)), [Objection::Duplicate]);
    let mut other = contribution(1, 4, &["d1/n0"]);
    other.epoch = 9;
    let effects = run.tell(dom(1, Control::Contribute(other)));
    assert!(matches!(
        effects[..],
        [Effect::Tell(
            _,
            Control::Answer {
                answer: Answer::Refused(_),
                ..
            }
        )]
    ));
}

#[test]
fn a_rule_that_sees_each_update_is_due_the_chunks_of_every_member() {
    let mut plan = some(&[1, 2], 1, 1);
    plan.aggregator.needs = Needs::Each;
    for (chunks, expected) in [
        (1, "1 chunks where 2 are due"),
        (2, ""),
        (3, "3 chunks where 2"),
    ] {
        let mut run = Run::weighed(plan.clone());
        let mut offered = contribution(1, 0, &["d1/n0", "d1/n1"]);
        offered.chunks = vec![hash(9); chunks];
        let effects = run.domain(1, Control::Contribute(offered));
        match &effects[0] {
            Effect::Note(noted) => assert_eq!((noted.chunks.len(), expected), (2, "")),
            Effect::Tell(
                _,
                Control::Answer {
                    answer: Answer::Refused(reason),
                    ..
                },
            ) => {
                assert!(
                    reason.contains(expected) && !expected.is_empty(),
                    "{reason}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A gateway that lies about its members: names that it makes up, or takes from another domain, are kept nowhere and tell nobody anything.
#[test]
fn a_gateway_speaks_of_the_nodes_of_its_domain_and_of_nobody_else() {
    let round = 1;
    for name in ["d1/made-up", "d0/n0"] {
        let mut run = Run::open(some(&[1, 2], 2, 2));
        run.join(1);
        let node = n(name);
        let reason: crate::text::Text = "it says so".into();
        let divergence = crate::wire::Divergence {
            round,
            model: 0,
            expected: Hash::default(),
            found: Hash([1; 32]),
        };
        let lies = [
            Control::Standing {
                node: node.clone(),
                word: crate::membership::Word::Overdue,
            },
            Control::MemberDiverged(node.clone(), divergence),
            Control::Stale {
                round,
                node: node.clone(),
                trained_for: 0,
            },
            Control::TrainingFailed {
                round,
                node: node.clone(),
                reason: reason.clone(),
            },
            Control::Unreachable {
                round,
                node: node.clone(),
                reason,
            },
            Control::Reported {
                round,
                epoch: 1,
                trained_for: round,
                report: report(name),
                effort: Effort::default(),
            },
        ];
        let before = run.events.len();
        for lie in lies {
            assert_eq!(run.domain(1, lie.clone()), [], "{lie:?}");
        }
        assert_eq!(run.events[before..], [], "{name}");
        let open = run.machine.current.as_ref().expect("the round is open");
        assert!(open.failed.is_empty() && open.unreachable.is_empty() && open.reports.is_empty());
    }
}
