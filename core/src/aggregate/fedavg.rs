//! Federated averaging: every update counts by its rows (or all alike), bounded by the round's clip.

use super::{AggregateError, Aggregator, Report, Weight, base_weight, clip_factors};
use crate::plan::{AggregatorPlan, BaseWeights, Clip};

/// McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017.
#[derive(Debug, Clone)]
pub struct FedAvg {
    weights: BaseWeights,
    clip: Clip,
}

impl FedAvg {
    /// The rule with these settings; thresholds are not looked at.
    pub fn new(plan: &AggregatorPlan) -> Self {
        FedAvg {
            weights: plan.weights,
            clip: plan.clip,
        }
    }
}

impl Aggregator for FedAvg {
    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        let weights = reports
            .iter()
            .map(|report| base_weight(self.weights, report));
        let weights: Vec<f64> = weights.collect();
        let clips = clip_factors(self.clip, reports, &weights);
        Ok(reports
            .iter()
            .zip(weights.into_iter().zip(clips))
            .map(|(report, (weight, clip))| Weight {
                node: report.node.clone(),
                weight,
                clip,
                reason: String::new(),
            })
            .collect())
    }
}
