//! How updates become one: the seam for aggregation rules.
//!
//! A rule looks at what is known of every update (its sender's word: rows and loss; its peers' measure: norm and finiteness) and fixes one
//! weight and one clip factor for each. The fold itself is the same for every rule, so the mean over a domain is made inside it and only
//! one sum per domain crosses the WAN.

use serde::{Deserialize, Serialize};

use crate::ids::NodeId;

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
    /// Its weight before normalisation: finite, not negative. Zero: ignored.
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
        "the rule gave {node} the weight {weight}, which is not a finite number of at least zero"
    )]
    InvalidWeight {
        /// Whose.
        node: NodeId,
        /// As text.
        weight: String,
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
