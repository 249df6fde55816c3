//! Texts of users, however long, make no message too long and hide nobody else's.

use super::*;
use crate::plan::NodePlan;
use crate::text::TEXT_BYTES_MAX;
use crate::wire::{CONTROL_BYTES_MAX, codec};

/// Longer than any message may be.
fn long() -> String {
    "é".repeat(CONTROL_BYTES_MAX)
}

/// The largest domain that a topology may declare, each node with the longest name.
const NODES: usize = 1024;

fn name(rank: usize) -> String {
    format!("d0/{rank:0>32}")
}

/// A coordinator that has asked the rule about every node of the largest domain.
fn weighing() -> Run {
    let mut plan = plan(&[1]);
    let node = plan.domains[0].nodes[0].clone();
    let nodes = (0..NODES).map(|rank| NodePlan {
        id: n(&name(rank)),
        ..node.clone()
    });
    plan.domains[0].nodes = nodes.collect();
    let mut run = Run::new(plan);
    run.tell(join());
    run.tell(Message::Start(Box::new(loaded(0)), None));
    for rank in 0..NODES {
        run.report(&name(rank));
    }
    run
}

/// Every message that was sent travels.
fn assert_sent(run: &Run, messages: usize) {
    let sent = run.effects.iter().filter_map(|effect| match effect {
        Effect::Tell(_, control) => Some(control),
        _ => None,
    });
    let lens: Vec<usize> = sent
        .map(|control| codec::encode(control).expect("it fits").len())
        .collect();
    assert!(lens.len() >= messages, "{lens:?}");
}

#[test]
fn the_longest_reasons_for_weights_of_the_largest_domain_fit_into_a_message() {
    let mut run = weighing();
    let reason = "é".repeat(CONTROL_BYTES_MAX / NODES);
    let weights = (0..NODES).map(|rank| Weight {
        reason: reason.clone(),
        ..weight_of(&name(rank), 1.0)
    });
    run.tell(Message::Weighed(1, Ok(weights.collect())));
    let effects = run.tell(Message::Fixed(1, Ok(())));
    let [Effect::Tell(_, Control::Weigh { weights, .. })] = &effects[..] else {
        panic!("{} effects", effects.len());
    };
    assert!(
        weights
            .iter()
            .all(|weight| weight.reason.len() <= TEXT_BYTES_MAX)
    );
    assert_sent(&run, 2);
}

#[test]
fn a_rule_and_an_evaluation_that_fail_at_length_abort_their_round_in_a_few_words() {
    let mut weighed = Run::open(plan(&[1]));
    weighed.report("d0/n0");
    weighed.tell(Message::Weighed(1, Err(long())));
    let mut computed = Run::folding(plan(&[1]));
    computed.tell(Message::Folded(1, 0, Ok(())));
    computed.tell(Message::Computed(1, Err(long())));
    let mut stopped = Run::open(plan(&[1]));
    stopped.tell(Message::Stop(long()));
    for run in [&weighed, &computed] {
        assert!(run.last_record().reason.len() <= TEXT_BYTES_MAX);
    }
    assert!(stopped.finished().reason.len() <= TEXT_BYTES_MAX);
    for run in [&weighed, &computed, &stopped] {
        assert_sent(run, 2);
    }
}

/// flower#1400: the record names each failed node, though the first has a lot to say.
#[test]
fn one_long_reason_hides_no_other() {
    let mut run = Run::open(some(&[3], 1, 1));
    for (rank, reason) in [long(), "no rows".to_owned(), long()]
        .into_iter()
        .enumerate()
    {
        run.tell(dom(
            0,
            Control::TrainingFailed {
                round: 1,
                node: n(&format!("d0/n{rank}")),
                reason: reason.into(),
            },
        ));
    }
    let reason = run.last_record().reason;
    assert!(reason.len() <= TEXT_BYTES_MAX);
    for part in ["d0/n0: é", "d0/n1: no rows", "d0/n2: é"] {
        assert!(reason.contains(part), "{reason}");
    }
}
