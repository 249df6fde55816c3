//! Rules, outer and inner optimizers against the numbers of `tests/reference/rules.py`.

use serde::Deserialize;
use tombolo_core::aggregate::{self, Report};
use tombolo_core::fold::{self, Counted};
use tombolo_core::inner::Inner;
use tombolo_core::outer;
use tombolo_core::plan::{
    AggregatorPlan, BaseWeights, Clip, InnerKind, InnerPlan, OuterKind, OuterPlan,
};
use tombolo_core::staleness::{Discount, Past};

use crate::schedule::norm;
use crate::topology;

#[derive(Deserialize)]
struct Numbers {
    rules: Vec<RuleCase>,
    outers: Vec<OuterCase>,
    eaches: Vec<EachCase>,
    adaptives: Vec<AdaptiveCase>,
    asynchronous: Vec<AsyncCase>,
    inners: Vec<InnerCase>,
}

#[derive(Deserialize)]
struct AsyncCase {
    exponent: f64,
    rounds: Vec<AsyncRound>,
}

/// Without updates it was aborted.
#[derive(Deserialize)]
struct AsyncRound {
    round: u64,
    updates: Vec<Late>,
    #[serde(default)]
    staleness: Vec<u64>,
    #[serde(default)]
    weights: Vec<f64>,
    #[serde(default)]
    mean: Vec<f64>,
}

#[derive(Deserialize)]
struct Late {
    node: usize,
    trained_for: u64,
    samples: u64,
    update: Vec<f32>,
}

#[derive(Deserialize)]
struct InnerCase {
    optimizer: String,
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    begun: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    after: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct EachCase {
    settings: EachSettings,
    norms: Vec<f64>,
    updates: Vec<Vec<f32>>,
    clips: Vec<f64>,
    result: Vec<f64>,
}

#[derive(Deserialize)]
struct EachSettings {
    kind: String,
    clip: serde_json::Value,
    faulty: usize,
    iterations: u32,
}

#[derive(Deserialize)]
struct AdaptiveCase {
    optimizer: String,
    learning_rate: f64,
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    means: Vec<Vec<f32>>,
    steps: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct RuleCase {
    settings: Settings,
    reports: Vec<Told>,
    updates: Vec<Vec<f32>>,
    weights: Vec<f64>,
    clips: Vec<f64>,
    mean: Vec<f64>,
}

#[derive(Deserialize)]
struct Settings {
    kind: String,
    weights: String,
    clip: serde_json::Value,
    loss_limit: f64,
    norm_limit: f64,
    penalty: f64,
    relative: bool,
}

#[derive(Deserialize)]
struct Told {
    samples: u64,
    loss: f64,
    steps: u64,
    learning_rate: f64,
    norm: f64,
}

#[derive(Deserialize)]
struct OuterCase {
    optimizer: String,
    learning_rate: f64,
    momentum: f64,
    means: Vec<Vec<f32>>,
    steps: Vec<Vec<f64>>,
}

fn numbers() -> Numbers {
    serde_json::from_str(&topology::file("rules.json")).unwrap()
}

/// Within 1e-5 of the largest expected number: single elements may nearly cancel.
fn close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    let scale = expected
        .iter()
        .fold(0.0, |largest: f64, e| largest.max(e.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() <= 1e-5 * scale,
            "{found} {expected}"
        );
    }
}

fn clip(told: &serde_json::Value) -> Clip {
    match (told.as_str(), told.as_f64()) {
        (Some("none"), _) => Clip::None,
        (Some("median"), _) => Clip::Median,
        (_, norm) => Clip::Norm(norm.unwrap()),
    }
}

fn widened(elements: &[f32]) -> Vec<f64> {
    elements.iter().copied().map(f64::from).collect()
}

#[test]
fn rules_give_the_weights_and_means_calculated_outside() {
    let cases = numbers().rules;
    assert_eq!(cases.len(), 8);
    for case in cases {
        let settings = case.settings;
        let plan = AggregatorPlan {
            kind: settings.kind,
            weights: match settings.weights.as_str() {
                "samples" => BaseWeights::Samples,
                _ => BaseWeights::Equal,
            },
            clip: clip(&settings.clip),
            loss_limit: settings.loss_limit,
            norm_limit: settings.norm_limit,
            penalty: settings.penalty,
            relative: settings.relative,
            ..AggregatorPlan::default()
        };
        let told: Vec<f64> = case.reports.iter().map(|report| report.norm).collect();
        let norms: Vec<f64> = case.updates.iter().map(|update| norm(update)).collect();
        close(&norms, &told);
        let reports: Vec<Report> = case
            .reports
            .iter()
            .zip(norms)
            .enumerate()
            .map(|(index, (told, norm))| Report {
                node: format!("hq/n{index}").parse().unwrap(),
                samples: told.samples,
                loss: told.loss,
                steps: told.steps,
                learning_rate: told.learning_rate,
                norm,
                finite: norm.is_finite(),
            })
            .collect();
        let mut rule = aggregate::build(&plan).unwrap();
        let weights = aggregate::weigh(rule.as_mut(), &reports).unwrap();
        let found: Vec<f64> = weights.iter().map(|weight| weight.weight).collect();
        close(&found, &case.weights);
        let found: Vec<f64> = weights.iter().map(|weight| weight.clip).collect();
        close(&found, &case.clips);

        let counted = weights.iter().zip(&case.updates);
        let counted: Vec<Counted<'_>> = counted
            .map(|(weight, update)| Counted {
                weight: weight.weight,
                clip: weight.clip,
                update,
            })
            .collect();
        // The mean does not depend on who shares a domain, but for the last bits.
        let (one, two) = counted.split_at(2);
        close(
            &widened(&fold::reference(&[one.to_vec(), two.to_vec()]).unwrap()),
            &case.mean,
        );
        close(&widened(&fold::reference(&[counted]).unwrap()), &case.mean);
    }
}

#[test]
fn older_updates_have_the_ages_and_weights_calculated_outside() {
    let cases = numbers().asynchronous;
    assert_eq!(cases.len(), 3);
    let (mut aborted, mut oldest) = (0, 0);
    for AsyncCase { exponent, rounds } in cases {
        let (discount, mut past) = (Discount::Polynomial { exponent }, Past::default());
        for round in rounds {
            if round.updates.is_empty() {
                aborted += 1;
                continue;
            }
            let updates = round.updates.iter();
            let ages: Vec<u64> = updates
                .clone()
                .map(|late| past.staleness(late.trained_for))
                .collect();
            assert_eq!(ages, round.staleness, "round {}", round.round);
            oldest = oldest.max(*ages.iter().max().unwrap());
            let pairs = updates.clone().zip(&ages);
            let weights: Vec<f64> = pairs
                .map(|(late, age)| late.samples as f64 * discount.factor(*age))
                .collect();
            close(&weights, &round.weights);
            let counted = updates.clone().zip(&weights);
            let counted: Vec<Counted<'_>> = counted
                .map(|(late, weight)| Counted {
                    weight: *weight,
                    clip: 1.0,
                    update: &late.update,
                })
                .collect();
            let mean = fold::reference(&[counted]).unwrap();
            close(&widened(&mean), &round.mean);
            let made = updates.map(|late| {
                let node = format!("hq/n{}", late.node).parse().unwrap();
                (node, late.trained_for)
            });
            past.on_commit(round.round, made, 10);
        }
    }
    assert!(aborted > 0 && oldest > 2, "{aborted} {oldest}");
}

#[test]
fn outer_optimizers_make_the_steps_calculated_outside() {
    let cases = numbers().outers;
    assert_eq!(cases.len(), 5);
    for case in cases {
        let plan = OuterPlan {
            optimizer: match case.optimizer.as_str() {
                "sgd" => OuterKind::Sgd,
                "momentum" => OuterKind::Momentum,
                _ => OuterKind::Nesterov,
            },
            learning_rate: case.learning_rate,
            momentum: case.momentum,
            ..OuterPlan::default()
        };
        let mut optimizer = outer::build(&plan, case.means[0].len());
        for (mean, expected) in case.means.into_iter().zip(&case.steps) {
            let mut step = mean;
            optimizer.step(0, &mut step).unwrap();
            optimizer.accept();
            close(&widened(&step), expected);
        }
    }
}

#[test]
fn rules_that_see_each_update_give_the_results_calculated_outside() {
    let cases = numbers().eaches;
    assert_eq!(cases.len(), 11);
    for case in cases {
        let settings = case.settings;
        let plan = AggregatorPlan {
            clip: clip(&settings.clip),
            kind: settings.kind,
            faulty: settings.faulty,
            iterations: settings.iterations,
            ..AggregatorPlan::default()
        };
        let reports: Vec<Report> = case
            .norms
            .iter()
            .enumerate()
            .map(|(index, norm)| Report {
                node: format!("hq/n{index}").parse().unwrap(),
                samples: 7,
                loss: 1.0,
                steps: 10,
                learning_rate: 0.1,
                norm: *norm,
                finite: true,
            })
            .collect();
        let mut rule = aggregate::build(&plan).unwrap();
        let weights = aggregate::weigh(rule.as_mut(), &reports).unwrap();
        let clips: Vec<f64> = weights.iter().map(|weight| weight.clip).collect();
        close(&clips, &case.clips);
        let clipped: Vec<Vec<f32>> = case
            .updates
            .iter()
            .zip(&clips)
            .map(|(update, clip)| {
                update
                    .iter()
                    .map(|element| element * *clip as f32)
                    .collect()
            })
            .collect();
        let updates: Vec<&[f32]> = clipped.iter().map(Vec::as_slice).collect();
        let found = aggregate::fold_each(rule.as_mut(), &weights, &updates).unwrap();
        close(&widened(&found), &case.result);
    }
}

#[test]
fn adaptive_optimizers_make_the_steps_calculated_outside() {
    let cases = numbers().adaptives;
    assert_eq!(cases.len(), 6);
    for case in cases {
        let plan = OuterPlan {
            optimizer: match case.optimizer.as_str() {
                "adam" => OuterKind::Adam,
                "yogi" => OuterKind::Yogi,
                _ => OuterKind::Adagrad,
            },
            learning_rate: case.learning_rate,
            beta1: case.beta1,
            beta2: case.beta2,
            epsilon: case.epsilon,
            ..OuterPlan::default()
        };
        let mut optimizer = outer::build(&plan, case.means[0].len());
        for (mean, expected) in case.means.into_iter().zip(&case.steps) {
            let mut step = mean;
            optimizer.step(0, &mut step).unwrap();
            optimizer.accept();
            close(&widened(&step), expected);
        }
    }
}

#[test]
fn inner_optimizers_make_the_steps_calculated_outside() {
    let cases = numbers().inners;
    assert_eq!(cases.len(), 4);
    for case in cases {
        let plan = InnerPlan {
            optimizer: match case.optimizer.as_str() {
                "adamw" => InnerKind::AdamW,
                _ => InnerKind::Sgd,
            },
            beta1: case.beta1,
            beta2: case.beta2,
            epsilon: case.epsilon,
            weight_decay: case.weight_decay,
        };
        let mut parameters = case.begun;
        let mut inner = Inner::new(&plan, case.learning_rate, parameters.len());
        for (gradient, after) in case.gradients.iter().zip(&case.after) {
            inner.step(gradient, &mut parameters);
            close(&widened(&parameters), after);
        }
    }
}
