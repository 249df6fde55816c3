//! Dynamic weights: an update that looks wrong (its training loss or its gradients are large) counts less.
//!
//! The loss is a node's own word, the norm is measured by its peers. Absolute limits fit one model: a loss of 2.0 is about ln 10, where every
//! honest ten-class model begins. Relative ones are multiples of the round's median and fit any.

use super::{AggregateError, Aggregator, Report, Weight, base_weight, clip_factors, lower_median};
use crate::plan::{AggregatorPlan, BaseWeights, Clip};

/// Base weights, times a penalty for a loss or a gradient norm above its limit (once, also if both are).
#[derive(Debug, Clone)]
pub struct DynamicWeighted {
    weights: BaseWeights,
    clip: Clip,
    loss_limit: f64,
    norm_limit: f64,
    penalty: f64,
    is_relative: bool,
}

impl DynamicWeighted {
    /// The rule with these settings.
    pub fn new(plan: &AggregatorPlan) -> Self {
        DynamicWeighted {
            weights: plan.weights,
            clip: plan.clip,
            loss_limit: plan.loss_limit,
            norm_limit: plan.norm_limit,
            penalty: plan.penalty,
            is_relative: plan.relative,
        }
    }

    /// A limit of this round, and how it is told.
    fn limit(&self, limit: f64, counted: impl Iterator<Item = f64>) -> (f64, &'static str) {
        if !self.is_relative {
            return (limit, "");
        }
        // Multiples of a median of zero or below order nothing, so then there is no limit.
        let median = lower_median(counted).filter(|median| *median > 0.0);
        (
            median.map_or(f64::INFINITY, |median| limit * median),
            " (relative to the round's median)",
        )
    }
}

impl Aggregator for DynamicWeighted {
    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        let base: Vec<f64> = reports
            .iter()
            .map(|report| base_weight(self.weights, report))
            .collect();
        let clips = clip_factors(self.clip, reports, &base);
        let counted = || {
            let pairs = reports.iter().zip(&base);
            pairs
                .filter(|(_, base)| **base > 0.0)
                .map(|(report, _)| report)
        };
        let (loss_limit, relative) =
            self.limit(self.loss_limit, counted().map(|report| report.loss));
        let (norm_limit, _) = self.limit(self.norm_limit, counted().map(gradient_norm));

        let weigh = |(report, (base, clip)): (&Report, (&f64, f64))| {
            let mut reasons = Vec::new();
            let norm = gradient_norm(report);
            if *base > 0.0 && report.loss > loss_limit {
                reasons.push(format!(
                    "loss {:.4} is above {loss_limit:.4}{relative}",
                    report.loss
                ));
            }
            if *base > 0.0 && norm > norm_limit {
                reasons.push(format!(
                    "gradient norm {norm:.4} is above {norm_limit:.4}{relative}"
                ));
            }
            Weight {
                node: report.node.clone(),
                weight: if reasons.is_empty() {
                    *base
                } else {
                    base * self.penalty
                },
                clip,
                reason: reasons.join("; "),
            }
        };
        Ok(reports
            .iter()
            .zip(base.iter().zip(clips))
            .map(weigh)
            .collect())
    }
}

/// `|u| / (learning rate * steps)`. An update that no step can have made is above every limit.
pub(super) fn gradient_norm(report: &Report) -> f64 {
    if report.norm == 0.0 {
        return 0.0;
    }
    report.norm / (report.learning_rate * report.steps as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(relative: bool) -> AggregatorPlan {
        AggregatorPlan {
            kind: "dynamic-weighted".into(),
            weights: BaseWeights::Samples,
            clip: Clip::Median,
            loss_limit: 2.0,
            norm_limit: 5.0,
            penalty: 0.3,
            relative,
            ..AggregatorPlan::default()
        }
    }

    fn report(name: &str, samples: u64, loss: f64, norm: f64) -> Report {
        Report {
            node: name.parse().unwrap(),
            samples,
            loss,
            steps: 50,
            learning_rate: 0.1,
            norm,
            finite: true,
        }
    }

    fn weigh(relative: bool, reports: &[Report]) -> Vec<(f64, f64)> {
        let weights = DynamicWeighted::new(&plan(relative))
            .weigh(reports)
            .unwrap();
        weights.iter().map(|w| (w.weight, w.clip)).collect()
    }

    #[test]
    fn loss_and_gradient_norm_above_their_limit_cost_one_penalty() {
        // Gradient norms are a fifth of the norms here.
        let reports = [
            report("a/a", 100, 2.0, 25.0),
            report("a/b", 100, 2.1, 1.0),
            report("a/c", 100, 0.1, 26.0),
            report("a/d", 100, 9.0, 50.0),
        ];
        assert_eq!(
            weigh(false, &reports),
            [(100.0, 1.0), (30.0, 1.0), (30.0, 25.0 / 26.0), (30.0, 0.5)]
        );
        let weights = DynamicWeighted::new(&plan(false)).weigh(&reports).unwrap();
        let reasons: Vec<&str> = weights.iter().map(|w| w.reason.as_str()).collect();
        assert_eq!(
            reasons,
            [
                "",
                "loss 2.1000 is above 2.0000",
                "gradient norm 5.2000 is above 5.0000",
                "loss 9.0000 is above 2.0000; gradient norm 10.0000 is above 5.0000"
            ]
        );
    }

    #[test]
    fn relative_limits_are_multiples_of_the_lower_median() {
        let reports = [
            report("a/a", 10, 3.0, 1.0),
            report("a/b", 10, 4.0, 1.0),
            report("a/c", 10, 6.1, 1.0),
            report("a/d", 10, 5.0, 5.1),
            report("a/e", 0, 0.001, 0.001),
        ];
        // Lower medians of those with a weight: loss 4, norm 1; so the limits are 8 and 5 (as gradient norms: a fifth).
        let weights: Vec<f64> = weigh(true, &reports).iter().map(|w| w.0).collect();
        assert_eq!(weights, [10.0, 10.0, 10.0, 3.0, 0.0]);
        let alone = [report("a/a", 10, 0.0, 0.0), report("a/b", 10, 7.0, 0.0)];
        let weights: Vec<f64> = weigh(true, &alone).iter().map(|w| w.0).collect();
        assert_eq!(weights, [10.0, 10.0]);
    }

    #[test]
    fn an_update_without_steps_is_above_every_limit_unless_it_is_nothing() {
        let mut moved = report("a/a", 10, 0.1, 0.001);
        moved.steps = 0;
        let mut still = report("a/b", 10, 0.1, 0.0);
        still.steps = 0;
        let weights: Vec<f64> = weigh(false, &[moved, still]).iter().map(|w| w.0).collect();
        assert_eq!(weights, [3.0, 10.0]);
        // It counts as a gradient of zero in the median: 0, 1 and 9 give a limit of 5.
        let mut still = report("a/a", 10, 0.1, 0.0);
        still.steps = 0;
        let (slow, fast) = (report("a/b", 10, 0.1, 5.0), report("a/c", 10, 0.1, 45.0));
        let weights: Vec<f64> = weigh(true, &[still, slow, fast])
            .iter()
            .map(|w| w.0)
            .collect();
        assert_eq!(weights, [10.0, 10.0, 3.0]);
    }
}
