//! What a round's end adds to the record, and what the run's end waits for.

use super::*;
use crate::record::{Der, Leaf};

fn told(first: Vec<Leaf>) -> Message {
    Message::Told(Some(Told {
        first,
        ..Told::default()
    }))
}

fn kinds(leaves: &[Leaf]) -> Vec<String> {
    let line = |leaf: &Leaf| serde_json::from_str::<serde_json::Value>(&leaf.line()).unwrap();
    let kind = |leaf: &Leaf| line(leaf)["leaf"].as_str().unwrap().to_owned();
    leaves.iter().map(kind).collect()
}

#[test]
fn a_committed_round_tells_who_takes_part_what_was_counted_and_the_model() {
    let mut run = Run::weighed(plan(&[1, 1]));
    run.tell(told(Vec::new()));
    run.tell(Message::Certified(n("d1/n0"), vec![1]));
    for domain in 0..2 {
        run.contribute(domain, 0, &[&format!("d{domain}/n0")]);
        run.noted(domain, 0);
    }
    run.compute(0);
    let record = run.last_record();
    let leaves = run.machine.leaves(&record);
    let expected = [
        "certificate",
        "membership",
        "update",
        "update",
        "contribution",
        "contribution",
        "checkpoint",
        "round",
    ];
    assert_eq!(kinds(&leaves), expected);
    assert!(
        matches!(&leaves[5], Leaf::Contribution { round: 1, domain, weight, members, .. }
            if (domain, *weight) == (&d(1), 1.0) && *members == [n("d1/n0")]),
        "{:?}",
        leaves[5]
    );
    assert!(matches!(&leaves[7], Leaf::Round { model, .. } if *model == hash(1)));
    // What was told is not told again; a certificate is if it is another one.
    run.tell(Message::Committed(1, Ok(())));
    run.tell(Message::Certified(n("d1/n0"), vec![2]));
    run.now = at(60_000);
    run.wake();
    let leaves = run.machine.leaves(&run.last_record());
    assert_eq!(kinds(&leaves), ["certificate", "round"]);
    assert!(matches!(&leaves[1], Leaf::Round { round: 2, model, .. } if *model == hash(1)));
}

#[test]
fn without_a_record_nothing_is_told_and_nobody_waits_for_signatures() {
    let mut run = last_round(&[1, 1]);
    assert_eq!(run.machine.leaves(&run.last_record()), []);
    run.tell(Message::Told(None));
    run.domain(0, adopted());
    run.domain(1, adopted());
    run.finished();
}

#[test]
fn the_run_ends_once_the_last_round_is_signed_or_a_moment_later() {
    let mut run = last_round(&[1, 1]);
    run.tell(told(Vec::new()));
    run.domain(0, adopted());
    run.domain(1, adopted());
    assert!(run.is_running());
    run.tell(Message::Cosigned(1, Vec::new()));
    assert!(run.is_running(), "d1 has not signed");
    run.tell(Message::Cosigned(1, vec![n("d1/n0")]));
    assert_eq!(run.finished().reason, "");

    let mut run = last_round(&[1, 1]);
    run.tell(told(Vec::new()));
    run.domain(0, adopted());
    let begun = run.now;
    run.domain(1, adopted());
    run.now = begun + Duration::from_millis(1999);
    run.wake();
    assert!(run.is_running());
    run.now = begun + Duration::from_secs(2);
    run.wake();
    assert_eq!(
        run.finished().reason,
        "",
        "a gateway that does not sign is only named"
    );
}

fn told_policy(policy: Option<Hash>) -> Message {
    Message::Told(Some(Told {
        policy,
        ..Told::default()
    }))
}

/// A run that goes on with other policies tells them before its next round, and once.
#[test]
fn policies_are_told_first_and_again_once_they_are_other_ones() {
    let rules = |count: usize| {
        let mut plan = plan(&[1, 1]);
        let rule = crate::policy::Rule {
            site: None,
            identity: "*".parse().unwrap(),
            actions: crate::policy::Action::ALL.into(),
            slices: Default::default(),
        };
        plan.policy.rules = vec![rule; count];
        plan
    };
    let leaves = |plan: Plan, policy: Option<Hash>| {
        let mut run = Run::weighed(plan);
        run.tell(told_policy(policy));
        for domain in 0..2 {
            run.contribute(domain, 0, &[&format!("d{domain}/n0")]);
            run.noted(domain, 0);
        }
        run.compute(0);
        let record = run.last_record();
        let told = run.machine.leaves(&record);
        let again = run.machine.leaves(&record);
        assert!(!kinds(&again).contains(&"policy".to_owned()), "told once");
        told
    };
    let is_told = |leaves: &[Leaf]| {
        leaves
            .iter()
            .any(|leaf| matches!(leaf, Leaf::Policy { .. }))
    };
    let (none, some) = (
        crate::policy::hash(&rules(0)),
        crate::policy::hash(&rules(1)),
    );
    assert!(
        !is_told(&leaves(rules(0), None)),
        "a run without any tells none"
    );
    let begun = leaves(rules(1), None);
    assert!(
        matches!(&begun[0], Leaf::Policy { hash, rules } if *hash == some && rules.len() == 1),
        "{begun:?}"
    );
    assert!(!is_told(&leaves(rules(1), Some(some))));
    let gone = leaves(rules(0), Some(some));
    assert!(matches!(&gone[0], Leaf::Policy { hash, rules } if *hash == none && rules.is_empty()));
}

fn rooted(root: u8) -> Message {
    Message::Rooted(d(1), vec![root])
}

fn unrooted(root: u8) -> Message {
    Message::Unrooted(d(1), vec![root])
}

/// What the end of the next round tells before the round itself.
fn next(run: &mut Run) -> Vec<Leaf> {
    let mut leaves = run.machine.leaves(&run.last_record());
    leaves.retain(|leaf| {
        !matches!(
            leaf,
            Leaf::Round { .. }
                | Leaf::Membership { .. }
                | Leaf::Update { .. }
                | Leaf::Contribution { .. }
                | Leaf::Checkpoint { .. }
        )
    });
    leaves
}

#[test]
fn a_root_that_comes_back_is_told_again() {
    let mut run = Run::committing(plan(&[1, 1]));
    run.tell(told(Vec::new()));
    run.tell(rooted(1));
    run.tell(rooted(1));
    assert_eq!(kinds(&next(&mut run)), ["root"]);
    // Gone and back within a round is as if nothing had been.
    run.tell(unrooted(1));
    run.tell(rooted(1));
    assert_eq!(next(&mut run), []);
    run.tell(unrooted(1));
    assert_eq!(kinds(&next(&mut run)), ["retired"]);
    run.tell(rooted(1));
    run.tell(Message::Certified(n("d1/n0"), vec![9]));
    assert_eq!(kinds(&next(&mut run)), ["root", "certificate"]);
}

/// However much comes of a domain in one round: no certificate is told whose root is not, and another domain's list is.
#[test]
fn what_is_too_much_for_one_round_leaves_no_certificate_without_its_root() {
    let mut run = Run::committing(plan(&[1, 1]));
    run.tell(told(Vec::new()));
    for root in 0..100 {
        run.tell(rooted(root));
        run.tell(unrooted(root));
    }
    run.tell(Message::Rooted(d(0), vec![200]));
    run.tell(Message::Revoked(d(0), vec![0]));
    for list in 0..100 {
        run.tell(Message::Revoked(d(1), vec![1, list]));
    }
    run.tell(rooted(100));
    run.tell(Message::Certified(n("d1/n0"), vec![100]));
    let leaves = next(&mut run);
    let of = |domain, wanted: &dyn Fn(&Leaf) -> bool| {
        let is_of = |leaf: &&Leaf| {
            wanted(leaf)
                && matches!(leaf, Leaf::Root { domain: of, .. } | Leaf::Revoked { domain: of, .. } if *of == d(domain))
        };
        leaves.iter().filter(is_of).cloned().collect::<Vec<_>>()
    };
    let lists = |leaf: &Leaf| matches!(leaf, Leaf::Revoked { .. });
    assert_eq!(of(0, &lists).len(), 1);
    assert!(of(1, &lists).len() < 64);
    let certificate = Der(vec![1, 99]);
    let newest =
        matches!(of(1, &lists).last(), Some(Leaf::Revoked { list, .. }) if *list == certificate);
    assert!(newest, "the newest list is among them");
    let last =
        |leaf: &Leaf| matches!(leaf, Leaf::Root { certificate, .. } if certificate.0 == [100]);
    let certified = leaves
        .iter()
        .any(|leaf| matches!(leaf, Leaf::Certificate { .. }));
    assert!(of(1, &last).len() == 1 && certified);
    // The root of a certificate that waits is crowded out: neither is told, until the node shows it again.
    for root in 101..200 {
        if root == 101 {
            run.tell(Message::Certified(n("d1/n0"), vec![101]));
        }
        run.tell(rooted(root));
    }
    let leaves = next(&mut run);
    assert!(
        !leaves
            .iter()
            .any(|leaf| matches!(leaf, Leaf::Certificate { .. }))
    );
    run.tell(rooted(101));
    run.tell(Message::Certified(n("d1/n0"), vec![101]));
    assert_eq!(kinds(&next(&mut run)), ["root", "certificate"]);
}
