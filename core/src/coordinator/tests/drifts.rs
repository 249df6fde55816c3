//! Feedback over rounds: what a round's record says of who drifts, and what the next weights are.

use super::*;
use crate::plan::FeedbackPlan;

fn with_feedback(sizes: &[usize]) -> Plan {
    let mut plan = plan(sizes);
    plan.aggregator.feedback = Some(FeedbackPlan {
        memory: 0.8,
        limit: 2.0,
        floor: 0.1,
    });
    plan
}

/// Three nodes, of which the last one's update is far too long; everybody weighs one. Round 1 is about to be committed.
fn strayed(plan: Plan) -> Run {
    let mut run = Run::open(plan);
    (1..3).for_each(|domain| run.join(domain));
    run.report("d0/n0");
    run.report("d1/n0");
    let long = Report {
        norm: 60.0,
        ..report("d2/n0")
    };
    run.tell(Message::Domain(n("d2/n0"), reported(1, long)));
    run.weigh(&[("d0/n0", 1.0), ("d1/n0", 1.0), ("d2/n0", 1.0)]);
    for domain in 0..3 {
        run.contribute(domain, 0, &[&format!("d{domain}/n0")]);
        run.noted(domain, 0);
    }
    run.compute(0);
    run
}

fn drifted(factor: f64) -> Vec<Drift> {
    vec![Drift {
        node: n("d1/n0"),
        share: 0.5,
        factor,
        reason: "round 3: loss 9.0 times the round's median".into(),
    }]
}

/// A round of another life's, in which everybody has reported.
fn restarted() -> Run {
    let mut run = Run::new(with_feedback(&[1, 1]));
    let loaded = Committed {
        drifts: drifted(0.25),
        ..loaded(0)
    };
    run.tell(join());
    run.tell(Message::Start(Box::new(loaded), None));
    run.join(1);
    run.report("d0/n0");
    run.report("d1/n0");
    run
}

#[test]
fn a_record_says_who_drifted_and_the_next_round_goes_on_from_it() {
    let mut run = strayed(with_feedback(&[1, 1, 1]));
    let record = run.last_record();
    assert_eq!(record.drifts.len(), 1, "{record:?}");
    let Drift {
        node,
        share,
        factor,
        reason,
    } = &record.drifts[0];
    assert_eq!(*node, n("d2/n0"));
    assert!((share - 0.2).abs() < 1e-12 && (factor - 0.82).abs() < 1e-12);
    assert_eq!(
        reason,
        "round 1: gradient norm 30.0 times the round's median"
    );
    // Only a commit makes it count.
    assert_eq!(run.machine.committed.as_ref().unwrap().drifts, []);
    run.tell(Message::Committed(1, Ok(())));
    assert_eq!(
        run.machine.committed.as_ref().unwrap().drifts,
        record.drifts
    );
}

#[test]
fn without_the_key_nobody_drifts() {
    let run = strayed(plan(&[1, 1, 1]));
    assert_eq!(run.last_record().drifts, []);
}

/// NVFlare#242, flower#599, openfl#1229: a restart loses no state of the rule.
#[test]
fn a_restarted_coordinator_weighs_by_what_the_last_record_says() {
    let mut run = restarted();
    run.weigh(&[("d0/n0", 8.0), ("d1/n0", 8.0)]);
    let weights = run.machine.weights();
    assert_eq!(weights[0].weight, 8.0);
    assert_eq!(weights[0].reason, "");
    assert_eq!(weights[1].weight, 2.0);
    assert!(weights[1].reason.contains("times 0.25"), "{weights:?}");
    assert!(run.says("Weighed") && run.says("loss 9.0 times"));
}

#[test]
fn a_round_without_a_commit_teaches_nothing_and_forgets_nothing() {
    let mut run = restarted();
    run.tell(Message::Weighed(1, Err("no weights today".into())));
    let record = run.last_record();
    assert_eq!(record.state, RoundState::Aborted);
    assert_eq!(record.drifts, drifted(0.25));
    run.tell(Message::Recorded(1, Ok(())));
    assert_eq!(
        run.machine.committed.as_ref().unwrap().drifts,
        drifted(0.25)
    );
}
