//! How updates become one: the seam for aggregation rules.
//!
//! A rule looks at what is known of every update (its sender's word: rows and loss; its peers' measure: norm and finiteness) and fixes one
//! weight and one clip factor for each. For most rules the fold itself is the same, so the mean over a domain is made inside it and only
//! one sum per domain crosses the WAN. A rule that must see each update says so ([`Needs`]), gets them all, and folds them itself
//! ([`EachFold`]): one update per node crosses the WAN.
//!
//! The order of calls in a round: [`refusal`] on each report, then [`weigh`] on those that may be seen, then the fold, then
//! [`Aggregator::finish`] on the mean. A rule is one sibling file and one line in [`BUILT_IN`]; the laws in `laws.rs` then run on it.

mod centred_clipping;
mod clip;
mod dynamic_weighted;
mod each;
mod fedavg;
pub mod feedback;
mod krum;
#[cfg(test)]
mod laws;
mod median;
mod trimmed_mean;

use serde::{Deserialize, Serialize};

use crate::event::Objection;
use crate::fold;
use crate::ids::NodeId;
use crate::plan::{AggregatorPlan, BaseWeights, Clip};

pub use centred_clipping::CentredClipping;
pub use clip::{clip_factors, lower_median};
pub use dynamic_weighted::DynamicWeighted;
pub use each::{EachFold, fold_each};
pub use fedavg::FedAvg;
pub use krum::Krum;
pub use median::Median;
pub use trimmed_mean::TrimmedMean;

use each::by_element;

/// Makes a rule from its settings.
pub type Build = fn(&AggregatorPlan) -> Box<dyn Aggregator>;

/// The built-in rules by the name they have in `[aggregator] kind`.
pub const BUILT_IN: &[(&str, Build)] = &[
    ("centred-clipping", |plan| {
        Box::new(CentredClipping::new(plan))
    }),
    ("dynamic-weighted", |plan| {
        Box::new(DynamicWeighted::new(plan))
    }),
    ("fedavg", |plan| Box::new(FedAvg::new(plan))),
    ("krum", |plan| Box::new(Krum::new(plan))),
    ("median", |plan| Box::new(Median::new(plan))),
    ("multi-krum", |plan| Box::new(Krum::multi(plan))),
    ("trimmed-mean", |plan| Box::new(TrimmedMean::new(plan))),
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

impl Weight {
    /// Multiplies it, and says why.
    pub(crate) fn scale(&mut self, factor: f64, why: &str) {
        self.weight *= factor;
        if !self.reason.is_empty() {
            self.reason.push_str("; ");
        }
        self.reason.push_str(why);
    }
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
    /// Too few updates for a rule that must outvote the bad ones.
    #[error(
        "{updates} updates with a weight are too few: with its settings the rule needs {least}"
    )]
    TooFew {
        /// How many there were.
        updates: usize,
        /// How many it takes.
        least: usize,
    },
    /// A rule of the user's own failed.
    #[error("{0}")]
    Rule(String),
}

/// What a rule must be given of a round's updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Needs {
    /// Their weighted sum: one tensor per domain crosses the WAN.
    #[default]
    Sum,
    /// Each of them: one tensor per node crosses the WAN.
    Each,
    /// Each of them, and all of them looked at before the first is folded: the coordinator writes them down on their way.
    EachTwice,
}

/// An aggregation rule.
pub trait Aggregator: Send {
    /// What it must be given; the same in every round.
    fn needs(&self) -> Needs {
        Needs::Sum
    }

    /// The fewest updates with a weight that it can decide about.
    fn least(&self) -> usize {
        1
    }

    /// Fixes a weight and a clip factor for each report, in the order given. Reports are sorted by node; updates that are not finite have
    /// been refused before.
    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError>;

    /// Begins the fold over each update, for a rule that [`needs`](Self::needs) them: over those of `counted`, all with a weight and clipped, in that order.
    ///
    /// # Errors
    /// A rule that needs only the sum, or updates that it cannot decide about.
    fn each(&mut self, _counted: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        Err(AggregateError::Rule(
            "this rule has no fold over each update".into(),
        ))
    }

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

/// The weight one for every update that was made from rows: rules that ask which updates agree count every node alike.
fn equal_weights(clip: Clip, reports: &[Report]) -> Vec<Weight> {
    let base: Vec<f64> = reports
        .iter()
        .map(|report| base_weight(BaseWeights::Equal, report))
        .collect();
    let clips = clip_factors(clip, reports, &base);
    let weighed = reports.iter().zip(base.into_iter().zip(clips));
    weighed
        .map(|(report, (weight, clip))| Weight {
            node: report.node.clone(),
            weight,
            clip,
            reason: String::new(),
        })
        .collect()
}

/// These weights, if they are enough for the rule. None at all is another mistake, told by [`check`].
fn enough(rule: &dyn Aggregator, weights: Vec<Weight>) -> Result<Vec<Weight>, AggregateError> {
    let updates = weights.iter().filter(|weight| weight.weight > 0.0).count();
    if (1..rule.least()).contains(&updates) {
        let least = rule.least();
        return Err(AggregateError::TooFew { updates, least });
    }
    Ok(weights)
}

/// The first few names, for a message that stays short.
fn names<'a>(nodes: impl Iterator<Item = &'a NodeId>) -> String {
    let mut names: Vec<&str> = nodes.take(9).map(NodeId::as_str).collect();
    if names.len() > 8 {
        names[8] = "...";
    }
    format!("[{}]", names.join(", "))
}
