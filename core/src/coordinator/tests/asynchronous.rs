//! The asynchronous mode: a version closes with a full buffer, and older updates count for less, once, or not at all.

use super::*;
use crate::event::Objection;
use crate::staleness::{AsyncPlan, Discount, Fresh, Staleness};

/// Two domains of two; two updates make a version, and they may be two versions old.
fn plan_of(sizes: &[usize], buffer: usize) -> Plan {
    let mut plan = some(sizes, 1, 1);
    plan.round.asynchronous = Some(AsyncPlan {
        buffer,
        staleness: Staleness {
            weight: Discount::Polynomial { exponent: 0.5 },
            limit: 2,
        },
    });
    plan
}

fn run() -> Run {
    let mut run = Run::open(plan_of(&[2, 2], 2));
    run.join(1);
    run
}

fn reported_for(round: Round, node: &str, trained_for: Round) -> Message {
    let report = report(node);
    let domain = usize::from(node.starts_with("d1"));
    dom(
        domain,
        Control::Reported {
            round,
            epoch: 1,
            trained_for,
            report,
            effort: Effort::default(),
        },
    )
}

impl Run {
    /// A version of these updates, each by its node and the round that it was trained for; all weigh one before they are discounted.
    fn version(&mut self, round: Round, updates: &[(&str, Round)]) {
        let mut weights = Vec::new();
        for (node, trained_for) in updates {
            self.tell(reported_for(round, node, *trained_for));
            weights.push(weight_of(node, 1.0));
        }
        self.tell(Message::Weighed(round, Ok(weights)));
        self.tell(Message::Fixed(round, Ok(())));
        let fixed = self.machine.weights().to_vec();
        for domain in 0..2 {
            let inside = fixed.iter().filter(|w| w.node.domain() == d(domain));
            let inside: Vec<&Weight> = inside.collect();
            if inside.is_empty() {
                continue;
            }
            let weight = inside.iter().map(|weight| weight.weight).sum();
            let sum = Contribution {
                round,
                members: inside.iter().map(|weight| weight.node.clone()).collect(),
                weight,
                exponent: crate::fold::exponent(weight).unwrap(),
                ..contribution(domain, 0, &[inside[0].node.as_str()])
            };
            self.domain(domain, Control::Contribute(sum));
            self.tell(Message::Noted(round, d(domain), 0, Ok(())));
        }
        self.tell(Message::Folded(round, 0, Ok(())));
        self.tell(Message::Computed(round, Ok(outcome(round))));
        self.tell(Message::Committed(round, Ok(())));
    }

    fn objects(&mut self, message: Message) -> Option<Objection> {
        let before = self.events.len();
        self.tell(message);
        let mut new = self.events[before..].iter();
        new.find_map(Event::objection)
    }

    fn staleness(&self) -> Vec<u64> {
        let version = self.last_record().version;
        version.expect("it is asynchronous").staleness
    }
}

#[test]
fn a_full_buffer_closes_the_first_gate_and_nobody_else_is_waited_for() {
    let mut run = run();
    assert_eq!(run.report("d0/n0"), []);
    assert!(matches!(run.report("d1/n1")[..], [Effect::Weigh(1, _)]));
    run.tell(Message::Weighed(
        1,
        Ok(vec![weight_of("d0/n0", 1.0), weight_of("d1/n1", 1.0)]),
    ));
    run.tell(Message::Fixed(1, Ok(())));
    // It may be in a later version, so nothing is late about it.
    assert_eq!(run.objects(reported_for(1, "d0/n1", 1)), None);
}

#[test]
fn a_buffer_that_counts_for_nothing_is_not_full() {
    let mut run = run();
    run.report("d0/n0");
    let mut empty = report("d1/n0");
    empty.samples = 0;
    assert_eq!(run.tell(dom(1, reported(1, empty))), []);
    assert!(matches!(run.report("d1/n1")[..], [Effect::Weigh(1, _)]));
}

#[test]
fn a_buffer_that_is_not_full_in_time_is_committed_if_there_is_a_quorum() {
    let mut run = run();
    run.report("d0/n0");
    // Long after the grace, and a quarter of the round's time before the deadline.
    run.now = at(7000);
    assert_eq!(run.wake(), []);
    run.now = at(7500);
    assert!(matches!(run.wake()[..], [Effect::Weigh(1, _)]));
}

/// ROUND-6.
#[test]
fn without_a_quorum_a_version_is_aborted_at_its_deadline_and_not_before() {
    let mut run = run();
    run.now = at(9_999);
    assert_eq!(run.wake(), []);
    let is_over = |event: &Event| matches!(event, Event::Round(_));
    assert!(!run.events.iter().any(is_over), "it may still come");
    run.now = at(10_000);
    run.wake();
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Aborted);
    assert!(record.reason.starts_with("quorum not met"), "{record:?}");
    assert_eq!(record.late, [], "nothing was promised to anybody");
    // Updates that would fill the buffer come behind it, and the timer behind them.
    let mut late = self::run();
    late.now = at(10_001);
    late.report("d0/n0");
    late.report("d1/n0");
    assert_eq!(late.last_record().state, RoundState::Aborted);
}

#[test]
fn an_update_counts_for_less_the_more_versions_it_is_old() {
    let mut run = run();
    run.version(1, &[("d0/n0", 1), ("d1/n0", 1)]);
    assert_eq!(run.staleness(), [0, 0]);
    assert_eq!(run.last_record().state, RoundState::Committed);
    run.version(2, &[("d0/n0", 2), ("d1/n1", 1)]);
    assert_eq!(run.staleness(), [0, 1]);
    run.version(3, &[("d0/n1", 1), ("d1/n0", 2)]);
    assert_eq!(run.staleness(), [2, 1]);
    let mut discounted = run.effects.iter().filter_map(|effect| match effect {
        Effect::Fix(weighing) => Some(&weighing.weights),
        _ => None,
    });
    let last = discounted.next_back().unwrap();
    let weights: Vec<f64> = last.iter().map(|weight| weight.weight).collect();
    assert_eq!(weights, [1.0 / 3f64.sqrt(), 1.0 / 2f64.sqrt()]);
    assert_eq!(last[0].reason, "2 versions old: times 0.5774");
    assert_eq!(
        run.last_record().version.unwrap().trained_for,
        [1, 2],
        "in the order of the counted nodes"
    );
}

/// ROUND-2.
#[test]
fn an_update_that_is_in_a_version_is_in_no_other() {
    let mut run = run();
    run.version(1, &[("d0/n0", 1), ("d1/n0", 1)]);
    let again = reported_for(2, "d0/n0", 1);
    assert_eq!(run.objects(again), Some(Objection::Replayed));
    let mut opened = run.effects.iter().filter_map(|effect| match effect {
        Effect::Tell(to, Control::Open(open)) if *to == d(0) => Some(open),
        _ => None,
    });
    let fresh = Fresh {
        oldest: 1,
        spent: vec![(n("d0/n0"), 1)],
    };
    assert_eq!(
        opened.next_back().unwrap().fresh,
        Some(fresh),
        "its node is told"
    );
    // The same in the next life of the coordinator, which knows what the record says.
    let version = run.last_record().version.unwrap();
    let mut next = Run::new(plan_of(&[2, 2], 2));
    next.tell(join());
    let committed = Committed {
        past: version.past.unwrap(),
        ..loaded(1)
    };
    next.tell(Message::Start(Box::new(committed), None));
    let again = reported_for(2, "d0/n0", 1);
    assert_eq!(next.objects(again), Some(Objection::Replayed));
    assert_eq!(next.objects(reported_for(2, "d0/n1", 1)), None);
}

#[test]
fn an_update_beyond_the_limit_is_answered_and_named_and_its_node_still_waited_for() {
    let mut run = run();
    for round in 1..=3 {
        run.version(round, &[("d0/n0", round), ("d1/n0", round)]);
    }
    let old = reported_for(4, "d1/n1", 1);
    assert_eq!(run.objects(old), Some(Objection::TooStale));
    let told = dom(
        0,
        Control::Stale {
            round: 4,
            node: n("d0/n1"),
            trained_for: 1,
        },
    );
    assert_eq!(run.objects(told), Some(Objection::TooStale));
    let stale = |event: &&Event| matches!(event, Event::StaleAnswered { staleness: 3, .. });
    assert_eq!(run.events.iter().filter(stale).count(), 2);
    run.version(4, &[("d0/n0", 4), ("d1/n0", 4)]);
    let record = run.last_record();
    assert_eq!(record.late, [n("d0/n1"), n("d1/n1")]);
    assert_eq!(record.state, RoundState::Committed, "nobody waits for them");
}

#[test]
fn an_update_that_was_refused_is_not_asked_for_again() {
    let mut run = run();
    run.version(1, &[("d0/n0", 1), ("d1/n0", 1)]);
    let mut broken = report("d0/n1");
    broken.finite = false;
    let told = Control::Reported {
        round: 2,
        epoch: 1,
        trained_for: 1,
        report: broken,
        effort: Effort::default(),
    };
    assert_eq!(run.objects(dom(0, told)), Some(Objection::NotFinite));
    run.version(2, &[("d0/n0", 2), ("d1/n0", 2)]);
    let again = reported_for(3, "d0/n1", 1);
    assert_eq!(run.objects(again), Some(Objection::Replayed));
    assert_eq!(run.objects(reported_for(3, "d0/n1", 3)), None);
}

/// Where many nodes train side by side, the buffer is full many times at once, and then nothing comes for as long as a training takes.
#[test]
fn updates_that_wait_do_not_shorten_the_deadline_of_those_that_are_made() {
    let mut plan = plan_of(&[8, 8], 2);
    plan.round.deadline = Deadline::Adaptive;
    plan.round.asynchronous.as_mut().unwrap().staleness.limit = 10;
    let mut run = Run::open(plan);
    run.join(1);
    run.now = at(8000);
    for round in 1..=7 {
        let index = round - 1;
        let nodes = [format!("d0/n{index}"), format!("d1/n{index}")];
        run.version(round, &[(nodes[0].as_str(), 1), (nodes[1].as_str(), 1)]);
    }
    let mut opened = run.events.iter().filter_map(|event| match event {
        Event::RoundOpened {
            round, deadline_ms, ..
        } => Some((*round, *deadline_ms)),
        _ => None,
    });
    let (round, deadline_ms) = opened.next_back().unwrap();
    assert_eq!(round, 8);
    assert!(deadline_ms >= 24_000, "{deadline_ms}");
}

#[test]
fn in_the_synchronous_mode_an_update_of_another_round_is_late() {
    let mut run = Run::open(plan(&[2, 1]));
    assert_eq!(
        run.objects(reported_for(1, "d0/n1", 0)),
        Some(Objection::Late)
    );
}
