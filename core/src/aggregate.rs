//! How updates become one: the seam for aggregation rules.
//!
//! A rule looks at what is known of every update (its sender's word: rows and loss; its peers' measure: norm and finiteness) and fixes one
//! weight and one clip factor for each. The fold itself is the same for every rule, so the mean over a domain is made inside it and only
//! one sum per domain crosses the WAN.
//!
//! The order of calls in a round: [`refusal`] on each report, then [`weigh`] on those that may be seen, then the fold, then
//! [`Aggregator::finish`] on the mean. A rule is one sibling file and one line in [`BUILT_IN`]; the laws in `laws.rs` then run on it.

mod clip;
mod dynamic_weighted;
mod fedavg;
#[cfg(test)]
mod laws;

use serde::{Deserialize, Serialize};

use crate::event::Objection;
use crate::fold;
use crate::ids::NodeId;
use crate::plan::{AggregatorPlan, BaseWeights};

pub use clip::{clip_factors, lower_median};
pub use dynamic_weighted::DynamicWeighted;
pub use fedavg::FedAvg;

/// Makes a rule from its settings.
pub type Build = fn(&AggregatorPlan) -> Box<dyn Aggregator>;

/// The built-in rules by the name they have in `[aggregator] kind`.
pub const BUILT_IN: &[(&str, Build)] = &[
    ("dynamic-weighted", |plan| {
        Box::new(DynamicWeighted::new(plan))
    }),
    ("fedavg", |plan| Box::new(FedAvg::new(plan))),
];

/// The built-in rule that `plan.kind` names; `None` if there is none of that name.
pub fn build(plan: &AggregatorPlan) -> Option<Box<dyn Aggregator>> {
    let (_, build) = BUILT_IN.iter().find(|(kind, _)| *kind == plan.kind)?;
    Some(build(plan))
}

/// What is known of one update when weights are fixed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Whose update it is.
    pub node: NodeId,
    /// Rows trained on; the node's own word.
    pub samples: u64,
    /// Mean training loss; the node's own word.
    pub loss: f64,
    /// Local steps taken; the node's own word.
    pub steps: u64,
    /// Local learning rate; the node's own word.
    pub learning_rate: f64,
    /// L2 norm of the update, measured by its peers.
    pub norm: f64,
    /// Whether every element is finite, measured by its peers.
    pub finite: bool,
}

/// What one update counts for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Weight {
    /// Whose update it is.
    pub node: NodeId,
    /// Its weight before normalisation: not negative, of an exponent that [`fold::exponent`] takes. Zero: ignored.
    pub weight: f64,
    /// The factor on the update itself, 0 to 1, that bounds its norm.
    pub clip: f64,
    /// Why the weight is not the base weight, in words for people; empty if it is.
    pub reason: String,
}

/// A round that cannot be aggregated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AggregateError {
    /// Nobody reported.
    #[error("no update to aggregate")]
    Empty,
    /// Every weight is zero (or every update was refused).
    #[error("all {updates} updates have weight zero")]
    AllZero {
        /// How many there were.
        updates: usize,
    },
    /// A rule gave a weight that cannot be used.
    #[error(
        "the rule gave {node} the weight {weight}, which is neither zero nor a positive number that the fold can use"
    )]
    InvalidWeight {
        /// Whose.
        node: NodeId,
        /// As text.
        weight: String,
    },
    /// A rule gave a clip factor that cannot be used.
    #[error("the rule gave {node} the clip factor {clip}, which is not within 0 to 1")]
    InvalidClip {
        /// Whose.
        node: NodeId,
        /// As text.
        clip: String,
    },
    /// A rule did not answer report by report.
    #[error(
        "the rule answered with weights for {found}, not for {expected}: one for each report, in their order"
    )]
    Mismatch {
        /// The nodes of the reports.
        expected: String,
        /// The nodes of the weights.
        found: String,
    },
    /// A rule of the user's own failed.
    #[error("{0}")]
    Rule(String),
}

/// An aggregation rule.
pub trait Aggregator: Send {
    /// Fixes a weight and a clip factor for each report, in the order given. Reports are sorted by node; updates that are not finite have
    /// been refused before.
    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError>;

    /// Last word on the mean of the round, in place. Most rules leave it alone.
    fn finish(&mut self, _mean: &mut [f32]) -> Result<(), AggregateError> {
        Ok(())
    }
}

/// Asks a rule for its weights and checks them: the one way to call any rule, a user's own included.
///
/// # Errors
/// No report at all, a rule that fails, weights that cannot be used, or all of them zero.
pub fn weigh(rule: &mut dyn Aggregator, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
    if reports.is_empty() {
        return Err(AggregateError::Empty);
    }
    let weights = rule.weigh(reports)?;
    check(reports, &weights)?;
    Ok(weights)
}

/// Checks a rule's answer.
///
/// # Errors
/// Weights for other nodes than reported, a weight that is negative, not finite or beyond what the fold can scale, a clip factor outside 0 to 1, or all weights zero.
pub fn check(reports: &[Report], weights: &[Weight]) -> Result<(), AggregateError> {
    let expected = reports.iter().map(|report| &report.node);
    let found = weights.iter().map(|weight| &weight.node);
    if !expected.clone().eq(found.clone()) {
        return Err(AggregateError::Mismatch {
            expected: names(expected),
            found: names(found),
        });
    }
    for weight in weights {
        let usable = weight.weight == 0.0 || fold::exponent(weight.weight).is_ok();
        if !usable {
            return Err(AggregateError::InvalidWeight {
                node: weight.node.clone(),
                weight: weight.weight.to_string(),
            });
        }
        if !(0.0..=1.0).contains(&weight.clip) {
            return Err(AggregateError::InvalidClip {
                node: weight.node.clone(),
                clip: weight.clip.to_string(),
            });
        }
    }
    if weights.iter().all(|weight| weight.weight == 0.0) {
        return Err(AggregateError::AllZero {
            updates: weights.len(),
        });
    }
    Ok(())
}

/// Why no rule may see a report; `None` if one may. One NaN in a mean is a NaN model, and no comparison finds it: `NaN > limit` is false.
pub fn refusal(report: &Report) -> Option<(Objection, String)> {
    if !report.finite {
        let reason = "the update has an element that is not finite".into();
        return Some((Objection::NotFinite, reason));
    }
    let not_negative = |number: f64| number.is_finite() && number >= 0.0;
    if !not_negative(report.norm) {
        let reason = format!("the update's norm is {}", report.norm);
        return Some((Objection::NotFinite, reason));
    }
    if !report.loss.is_finite() {
        let reason = format!("the reported loss is {}", report.loss);
        return Some((Objection::Unusable, reason));
    }
    if !not_negative(report.learning_rate) {
        let reason = format!("the reported learning rate is {}", report.learning_rate);
        return Some((Objection::Unusable, reason));
    }
    None
}

/// What a report weighs before any rule. An update made from no rows counts for nothing, also under equal weights.
pub fn base_weight(base: BaseWeights, report: &Report) -> f64 {
    match base {
        _ if report.samples == 0 => 0.0,
        BaseWeights::Samples => report.samples as f64,
        BaseWeights::Equal => 1.0,
    }
}

/// The first few names, for a message that stays short.
fn names<'a>(nodes: impl Iterator<Item = &'a NodeId>) -> String {
    let mut names: Vec<&str> = nodes.take(9).map(NodeId::as_str).collect();
    if names.len() > 8 {
        names[8] = "...";
    }
    format!("[{}]", names.join(", "))
}
