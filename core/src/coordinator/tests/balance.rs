//! Balanced steps: what nodes are given, what a round's record says of it, and who is told first.

use super::*;
use crate::pace::{Balance, Pace};
use crate::plan::SyncEvery;

fn balanced(sizes: &[usize]) -> Plan {
    let mut plan = plan(sizes);
    plan.balance_steps = true;
    plan.sync_every = SyncEvery::Steps(50);
    plan
}

/// A report of so many steps that took as long each.
fn worked(node: &str, steps: u64, step_ms: u64) -> Message {
    let mut told = reported(1, report(node));
    if let Control::Reported { effort, .. } = &mut told {
        *effort = Effort {
            steps,
            micros: steps * step_ms * 1000,
        };
    }
    Message::Domain(n(node), told)
}

/// What each domain's node was given, of the effects that open a round.
fn given(effects: &[Effect]) -> Vec<(NodeId, u64)> {
    let opens = effects.iter().filter_map(|effect| match effect {
        Effect::Tell(_, Control::Open(open)) => Some(open.steps.clone()),
        _ => None,
    });
    opens.flatten().collect()
}

fn shares(nodes: &[(&str, u64)]) -> Vec<(NodeId, u64)> {
    let pairs = nodes.iter().map(|(node, steps)| (n(node), *steps));
    pairs.collect()
}

/// Two nodes of which the second is four times as slow: round 1 is committed.
fn committed() -> Run {
    let mut run = Run::open(balanced(&[1, 1]));
    run.join(1);
    run.tell(worked("d0/n0", 50, 10));
    run.tell(worked("d1/n0", 50, 40));
    run.weigh(&[("d0/n0", 1.0), ("d1/n0", 1.0)]);
    for domain in 0..2 {
        run.contribute(domain, 0, &[&format!("d{domain}/n0")]);
        run.noted(domain, 0);
    }
    run.compute(0);
    run
}

fn balance(record: &RoundRecord) -> &Balance {
    record.balance.as_ref().expect("steps are balanced")
}

#[test]
fn a_round_says_what_each_was_given_and_the_next_one_follows_from_it() {
    let mut run = committed();
    let record = run.last_record();
    let said = balance(&record).clone();
    assert_eq!(said.steps, shares(&[("d0/n0", 50), ("d1/n0", 50)]));
    let known: Vec<u64> = said.paces.iter().map(|pace| pace.step_ns).collect();
    assert_eq!(known, [10_000_000, 40_000_000]);
    let effects = run.tell(Message::Committed(1, Ok(())));
    let mut told = given(&effects);
    told.sort();
    assert_eq!(told, shares(&[("d0/n0", 80), ("d1/n0", 20)]));

    // Another life deals the same from what stands in the record.
    let mut next = Run::new(balanced(&[1, 1]));
    let loaded = Committed {
        paces: said.paces,
        ..loaded(1)
    };
    next.tell(join());
    let mut again = given(&next.tell(Message::Start(Box::new(loaded), None)));
    again.extend(given(&next.domain(1, join_of(&layout()))));
    again.sort();
    again.dedup();
    assert_eq!(again, told);
}

#[test]
fn who_was_too_slow_for_a_round_that_failed_is_given_less() {
    let mut run = Run::open(balanced(&[1, 1]));
    let Control::DomainJoin(mut join) = join_of(&layout()) else {
        unreachable!("it is one")
    };
    join.members = vec![n("d1/n0")];
    run.domain(1, Control::DomainJoin(join));
    run.tell(worked("d0/n0", 50, 10));
    // The deadline: all were to come, and one did not.
    run.now = at(10_000);
    run.wake();
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Aborted);
    let slow = Pace {
        node: n("d1/n0"),
        step_ns: 200_000_000,
        delay_ns: 0,
    };
    assert_eq!(balance(&record).paces[1], slow);
    let effects = run.tell(Message::Recorded(1, Ok(())));
    let told = given(&effects);
    assert!(told.contains(&(n("d1/n0"), 13)), "{told:?}");
}

#[test]
fn a_round_behind_its_first_gate_keeps_what_was_given_and_learnt() {
    let mut run = Run::open(balanced(&[1, 1]));
    run.join(1);
    run.tell(worked("d0/n0", 50, 10));
    run.tell(worked("d1/n0", 50, 40));
    let current = run.machine.current.as_ref().expect("the round is open");
    let weighing = current.weighing(hash(0));
    let text = serde_json::to_string(&weighing).unwrap();
    let weighing: Weighing = serde_json::from_str(&text).unwrap();
    let mut again = Current::new(1, 1, Vec::new(), at(0), at(1), at(1));
    again.resume(Resumed {
        weighing,
        noted: Vec::new(),
    });
    assert_eq!(again.steps, current.steps);
    assert_eq!(again.efforts, current.efforts);
    assert_eq!(again.efforts.len(), 2);
}

#[test]
fn without_the_key_all_make_the_same_and_nothing_is_said_of_it() {
    let mut plan = balanced(&[1, 1]);
    plan.balance_steps = false;
    let mut run = Run::open(plan);
    assert_eq!(given(&run.domain(1, join_of(&layout()))), []);
    run.tell(worked("d0/n0", 50, 10));
    run.tell(worked("d1/n0", 50, 40));
    run.weigh(&[("d0/n0", 1.0), ("d1/n0", 1.0)]);
    for domain in 0..2 {
        run.contribute(domain, 0, &[&format!("d{domain}/n0")]);
        run.noted(domain, 0);
    }
    run.compute(0);
    assert_eq!(run.last_record().balance, None);
    // Who is slow is told first all the same.
    let effects = run.tell(Message::Committed(1, Ok(())));
    let firsts = effects.iter().filter_map(|effect| match effect {
        Effect::Offer(domain, 1) | Effect::Tell(domain, Control::Open(_)) => Some(domain.clone()),
        _ => None,
    });
    assert_eq!(firsts.collect::<Vec<_>>(), [d(1), d(0), d(1), d(0)]);
}
