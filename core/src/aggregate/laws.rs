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
    )
        .prop_map(|(kind, weights, clip, penalty, relative)| AggregatorPlan {
            kind: kind.into(),
            weights,
            clip,
            loss_limit: 2.0,
            norm_limit: 5.0,
            penalty,
            relative,
        })
}

fn weights(plan: &AggregatorPlan, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
    weigh(build(plan).unwrap().as_mut(), reports)
}

proptest! {
    #[test]
    fn weights_are_usable_and_in_the_order_of_the_reports(plan in plan(), reports in reports()) {
        let weights = build(&plan).unwrap().weigh(&reports).unwrap();
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
        let without = build(&plan).unwrap().weigh(&reports).unwrap();
        let all: Vec<Report> = reports.into_iter().chain([idle]).collect();
        let mut with = build(&plan).unwrap().weigh(&all).unwrap();
        prop_assert_eq!(with.pop().unwrap().weight, 0.0);
        prop_assert_eq!(with, without);
    }

    #[test]
    fn one_update_alone_is_counted(plan in plan(), reports in reports()) {
        let mut one = reports[0].clone();
        one.samples = one.samples.max(1);
        prop_assume!(plan.penalty > 0.0);
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
        let weights = build(&plan).unwrap().weigh(&reports).unwrap();
        let limit = match plan.clip {
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
        weights: BaseWeights::Samples,
        clip: Clip::None,
        loss_limit: 2.0,
        norm_limit: 5.0,
        penalty: 0.3,
        relative: false,
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
