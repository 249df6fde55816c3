//! What every built-in rule must hold, whatever its settings. A new rule is tested here by its line in [`BUILT_IN`](super::BUILT_IN).

use proptest::prelude::*;

use super::*;
use crate::plan::Clip;

fn reports() -> impl Strategy<Value = Vec<Report>> {
    let one = (
        0u64..400,
        0.0f64..6.0,
        1u64..200,
        0.001f64..1.0,
        prop_oneof![1 => Just(0.0), 9 => 0.0f64..60.0],
    );
    prop::collection::vec(one, 1..12).prop_map(|rows| {
        let numbered = rows.into_iter().enumerate();
        numbered
            .map(
                |(index, (samples, loss, steps, learning_rate, norm))| Report {
                    node: format!("a/n{index}").parse().unwrap(),
                    samples,
                    loss,
                    steps,
                    learning_rate,
                    norm,
                    finite: true,
                },
            )
            .collect()
    })
}

fn plan() -> impl Strategy<Value = AggregatorPlan> {
    (
        prop::sample::select(BUILT_IN.iter().map(|(kind, _)| *kind).collect::<Vec<_>>()),
        prop_oneof![Just(BaseWeights::Samples), Just(BaseWeights::Equal)],
        prop_oneof![
            Just(Clip::None),
            Just(Clip::Median),
            (0.0f64..50.0).prop_map(Clip::Norm)
        ],
        0.0f64..=1.0,
        any::<bool>(),
        0usize..3,
        1u32..5,
    )
        .prop_map(
            |(kind, weights, clip, penalty, relative, faulty, iterations)| AggregatorPlan {
                kind: kind.into(),
                weights,
                clip,
                penalty,
                relative,
                faulty,
                iterations,
                ..AggregatorPlan::default()
            },
        )
}

fn weights(plan: &AggregatorPlan, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
    weigh(build(plan).unwrap().as_mut(), reports)
}

/// The rule's answer; none if it takes more updates than there are.
fn answer(plan: &AggregatorPlan, reports: &[Report]) -> Option<Vec<Weight>> {
    let mut rule = build(plan).unwrap();
    let counted = reports.iter().filter(|report| report.samples > 0).count();
    match rule.weigh(reports) {
        Ok(weights) => Some(weights),
        Err(error) => {
            let (updates, least) = (counted, rule.least());
            assert!(updates < least);
            assert_eq!(error, AggregateError::TooFew { updates, least });
            None
        }
    }
}

proptest! {
    #[test]
    fn weights_are_usable_and_in_the_order_of_the_reports(plan in plan(), reports in reports()) {
        let Some(weights) = answer(&plan, &reports) else { return Ok(()) };
        match check(&reports, &weights) {
            Ok(()) => {}
            Err(AggregateError::AllZero { .. }) => prop_assert!(
                plan.penalty == 0.0 || reports.iter().all(|report| report.samples == 0)
            ),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn permuted_reports_give_permuted_weights(plan in plan(), reports in reports(), seed: u64) {
        let mut order: Vec<usize> = (0..reports.len()).collect();
        crate::rng::Rng::new(seed).shuffle(&mut order);
        let permuted: Vec<Report> = order.iter().map(|at| reports[*at].clone()).collect();
        let expected = weights(&plan, &reports)
            .map(|weights| order.iter().map(|at| weights[*at].clone()).collect());
        prop_assert_eq!(weights(&plan, &permuted), expected);
    }

    #[test]
    fn equal_reports_give_equal_weights_in_every_round(plan in plan(), reports in reports()) {
        let mut rule = build(&plan).unwrap();
        let first = weigh(rule.as_mut(), &reports);
        prop_assert_eq!(&weigh(rule.as_mut(), &reports), &first);
        prop_assert_eq!(&weights(&plan, &reports), &first);
    }

    #[test]
    fn a_report_without_rows_changes_nothing(plan in plan(), reports in reports(), idle in reports()) {
        let mut idle = idle[0].clone();
        idle.node = "z/idle".parse().unwrap();
        idle.samples = 0;
        let without = answer(&plan, &reports);
        let all: Vec<Report> = reports.into_iter().chain([idle]).collect();
        let with = answer(&plan, &all);
        let (Some(without), Some(mut with)) = (&without, with.clone()) else {
            prop_assert_eq!(with, without);
            return Ok(());
        };
        prop_assert_eq!(with.pop().unwrap().weight, 0.0);
        prop_assert_eq!(&with, without);
    }

    #[test]
    fn one_update_alone_is_counted(plan in plan(), reports in reports()) {
        let mut one = reports[0].clone();
        one.samples = one.samples.max(1);
        prop_assume!(plan.penalty > 0.0 && build(&plan).unwrap().least() == 1);
        let weights = weights(&plan, std::slice::from_ref(&one)).unwrap();
        prop_assert!(weights[0].weight > 0.0);
        if plan.clip == Clip::Median {
            prop_assert_eq!(weights[0].clip, 1.0);
        }
    }

    #[test]
    fn all_zero_is_one_error_for_every_rule(plan in plan(), mut reports in reports()) {
        reports.iter_mut().for_each(|report| report.samples = 0);
        let updates = reports.len();
        prop_assert_eq!(weights(&plan, &reports), Err(AggregateError::AllZero { updates }));
        prop_assert_eq!(weights(&plan, &[]), Err(AggregateError::Empty));
    }

    #[test]
    fn what_is_counted_stays_within_the_bound(plan in plan(), reports in reports()) {
        let Some(weights) = answer(&plan, &reports) else { return Ok(()) };
        let limit = match plan.clip {
            // It clips around a centre of its own, in the fold.
            _ if plan.kind == "centred-clipping" => None,
            Clip::None => None,
            Clip::Norm(limit) => Some(limit),
            Clip::Median => {
                lower_median(reports.iter().filter(|r| r.samples > 0).map(|r| r.norm))
            }
        };
        for (report, weight) in reports.iter().zip(&weights) {
            match limit {
                None => prop_assert_eq!(weight.clip, 1.0),
                Some(limit) => prop_assert!(report.norm * weight.clip <= limit * (1.0 + 1e-12)),
            }
        }
    }
}

/// Rules that fold each update, with updates of two blocks and a bit, and where to cut them.
fn each() -> impl Strategy<Value = (AggregatorPlan, Vec<Vec<f32>>, Vec<usize>)> {
    let size = prop_oneof![Just(1e-3), Just(1.0), Just(1e6)];
    let cuts = prop_oneof![Just(vec![]), Just(vec![1]), Just(vec![2]), Just(vec![1, 2])];
    (plan(), 1usize..10, any::<u64>(), size, cuts)
        .prop_filter("sums only", |(plan, ..)| {
            build(plan).unwrap().needs() != Needs::Sum
        })
        .prop_map(|(plan, count, seed, size, cuts)| {
            let mut rng = crate::rng::Rng::new(seed);
            let mut number = || (rng.next_f64() as f32 - 0.4) * size;
            let len = 2 * fold::BLOCK + 37;
            let updates = (0..count).map(|_| (0..len).map(|_| number()).collect());
            let cuts = cuts.into_iter().map(|cut: usize| cut * fold::BLOCK);
            (plan, updates.collect(), cuts.collect())
        })
}

/// The fold at once; none if the rule takes more updates than these.
fn folded(plan: &AggregatorPlan, updates: &[Vec<f32>]) -> Option<Vec<f32>> {
    let weights: Vec<Weight> = (0..updates.len())
        .map(|index| weight(&format!("a/n{index}"), 1.0, 1.0))
        .collect();
    let updates: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
    let mut rule = build(plan).unwrap();
    match fold_each(rule.as_mut(), &weights, &updates) {
        Ok(folded) => Some(folded),
        Err(error) => {
            let (updates, least) = (updates.len(), rule.least());
            assert!(updates < least);
            assert_eq!(error, AggregateError::TooFew { updates, least });
            None
        }
    }
}

fn near(found: f32, expected: f32, size: f32) -> bool {
    (found - expected).abs() <= 1e-5 * size
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_streamed_fold_is_the_one_at_once_bit_for_bit((plan, updates, cuts) in each()) {
        let Some(expected) = folded(&plan, &updates) else { return Ok(()) };
        let len = expected.len();
        let borders: Vec<usize> = [0].into_iter().chain(cuts).chain([len]).collect();
        let weights: Vec<Weight> = updates.iter().map(|_| weight("a/a", 1.0, 1.0)).collect();
        let mut rule = build(&plan).unwrap();
        let mut fold = rule.each(&weights).unwrap();
        let chunk = |border: &[usize]| -> Vec<&[f32]> {
            updates.iter().map(|update| &update[border[0]..border[1]]).collect()
        };
        if rule.needs() == Needs::EachTwice {
            borders.windows(2).for_each(|border| fold.look(&chunk(border)));
        }
        fold.decide().unwrap();
        let mut out = vec![f32::NAN; len];
        for border in borders.windows(2) {
            fold.fold(&chunk(border), &mut out[border[0]..border[1]]);
        }
        prop_assert_eq!(&out, &expected);
        prop_assert_eq!(folded(&plan, &updates), Some(expected));
    }

    #[test]
    fn who_comes_first_does_not_matter((plan, mut updates, _) in each(), seed: u64) {
        // Of three updates two are each other's nearest and score the same: the name decides between them.
        prop_assume!(!(plan.kind.ends_with("krum") && updates.len() == 3));
        let Some(expected) = folded(&plan, &updates) else { return Ok(()) };
        crate::rng::Rng::new(seed).shuffle(&mut updates);
        let found = folded(&plan, &updates).unwrap();
        let size = expected.iter().fold(0.0, |largest: f32, e| largest.max(e.abs()));
        for (found, expected) in found.into_iter().zip(expected) {
            prop_assert!(near(found, expected, size), "{} {}", found, expected);
        }
    }

    #[test]
    fn no_element_leaves_the_range_of_the_updates((plan, updates, _) in each()) {
        let Some(found) = folded(&plan, &updates) else { return Ok(()) };
        for (index, found) in found.into_iter().enumerate() {
            let column = || updates.iter().map(|update| update[index]);
            let (mut low, mut high) = (
                column().fold(f32::INFINITY, f32::min),
                column().fold(f32::NEG_INFINITY, f32::max),
            );
            if plan.kind == "centred-clipping" {
                // Its centre begins at zero.
                (low, high) = (low.min(0.0), high.max(0.0));
            }
            let slack = 1e-6 * low.abs().max(high.abs());
            prop_assert!((low - slack..=high + slack).contains(&found), "{} {}..{}", found, low, high);
        }
    }

    #[test]
    fn updates_that_agree_are_taken_as_they_are((mut plan, updates, _) in each()) {
        plan.clip = Clip::Median;
        let same = vec![updates[0].clone(); updates.len()];
        let Some(found) = folded(&plan, &same) else { return Ok(()) };
        for (found, expected) in found.into_iter().zip(&updates[0]) {
            prop_assert!(near(found, *expected, expected.abs()), "{} {}", found, expected);
        }
    }

    #[test]
    fn one_bad_update_of_many_moves_a_robust_rule_no_further_than_the_others_lie_apart(
        (mut plan, mut updates, _) in each(),
        huge in prop_oneof![Just(30.0f32), Just(1e9), Just(1e30)],
    ) {
        plan.faulty = 1;
        plan.clip = Clip::Median;
        prop_assume!(updates.len() >= 7);
        let honest = updates.split_off(1);
        let found = folded(&plan, &[vec![vec![huge; honest[0].len()]], honest.clone()].concat());
        for (index, found) in found.unwrap().into_iter().enumerate() {
            let numbers = honest.iter().map(|update| update[index].abs());
            let largest = numbers.fold(0.0, f32::max);
            // Clipping lets through one part of the radius; the others let through nothing.
            let limit = match plan.kind.as_str() {
                "centred-clipping" => honest.iter().flatten().fold(0.0, |most: f32, e| most.max(e.abs())),
                _ => largest,
            };
            prop_assert!(found.abs() <= limit * 1.0001, "{}: {} {}", plan.kind, found, limit);
        }
    }
}

#[test]
fn a_rule_for_sums_has_no_fold_over_each_update() {
    for (kind, build) in BUILT_IN {
        let mut rule = build(&AggregatorPlan::default());
        let fold = fold_each(rule.as_mut(), &[weight("a/a", 1.0, 1.0)], &[&[1.0]]);
        let sums = rule.needs() == Needs::Sum;
        assert_eq!(sums, matches!(fold, Err(AggregateError::Rule(_))), "{kind}");
    }
}

#[test]
fn updates_of_another_length_are_refused_and_so_is_nothing() {
    let plan = AggregatorPlan {
        kind: "median".into(),
        ..AggregatorPlan::default()
    };
    let mut rule = build(&plan).unwrap();
    let weights = [weight("a/a", 1.0, 1.0), weight("a/b", 1.0, 1.0)];
    let error = fold_each(rule.as_mut(), &weights, &[&[1.0], &[1.0, 2.0]]).unwrap_err();
    assert!(error.to_string().contains("2 elements where 1"), "{error}");
    assert_eq!(
        fold_each(rule.as_mut(), &[], &[]),
        Err(AggregateError::Empty)
    );
}

fn report(node: &str) -> Report {
    Report {
        node: node.parse().unwrap(),
        samples: 10,
        loss: 1.0,
        steps: 5,
        learning_rate: 0.1,
        norm: 1.0,
        finite: true,
    }
}

fn weight(node: &str, weight: f64, clip: f64) -> Weight {
    Weight {
        node: node.parse().unwrap(),
        weight,
        clip,
        reason: String::new(),
    }
}

#[test]
fn a_name_that_no_rule_has_builds_nothing() {
    let plan = AggregatorPlan {
        kind: "fedavgs".into(),
        ..AggregatorPlan::default()
    };
    assert!(build(&plan).is_none());
    assert!(BUILT_IN.is_sorted_by_key(|(kind, _)| *kind));
}

#[test]
fn answers_that_cannot_be_used_name_the_node() {
    let reports = [report("a/a"), report("a/b")];
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let answer = [weight("a/a", 1.0, 1.0), weight("a/b", bad, 1.0)];
        let error = check(&reports, &answer).unwrap_err();
        assert!(matches!(error, AggregateError::InvalidWeight { .. }));
        assert!(error.to_string().contains("a/b"), "{error}");
    }
    for bad in [-0.1, 1.1, f64::NAN] {
        let answer = [weight("a/a", 1.0, bad), weight("a/b", 1.0, 1.0)];
        let error = check(&reports, &answer).unwrap_err();
        assert!(matches!(error, AggregateError::InvalidClip { .. }));
        assert!(error.to_string().contains("a/a"), "{error}");
    }
    for answer in [
        &[weight("a/a", 1.0, 1.0)][..],
        &[weight("a/b", 1.0, 1.0), weight("a/a", 1.0, 1.0)],
    ] {
        assert!(matches!(
            check(&reports, answer),
            Err(AggregateError::Mismatch { .. })
        ));
    }
    let zero = [weight("a/a", 0.0, 1.0), weight("a/b", 0.0, 1.0)];
    assert_eq!(
        check(&reports, &zero),
        Err(AggregateError::AllZero { updates: 2 })
    );
}

#[test]
fn what_is_not_finite_is_refused_with_a_reason() {
    type Spoil = fn(&mut Report);
    let spoiled: [(&str, Spoil); 7] = [
        ("not finite", |r| r.finite = false),
        ("norm is NaN", |r| r.norm = f64::NAN),
        ("norm is -1", |r| r.norm = -1.0),
        ("loss is inf", |r| r.loss = f64::INFINITY),
        ("loss is NaN", |r| r.loss = f64::NAN),
        ("learning rate is NaN", |r| r.learning_rate = f64::NAN),
        ("learning rate is -0.1", |r| r.learning_rate = -0.1),
    ];
    for (reason, spoil) in spoiled {
        let mut bad = report("a/bad");
        spoil(&mut bad);
        let (_, refused) = refusal(&bad).unwrap();
        assert!(refused.contains(reason), "{refused}");
    }
    assert_eq!(refusal(&report("a/a")), None);
}
