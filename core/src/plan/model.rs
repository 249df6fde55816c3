//! The built-in model and its data, as the file has them.

use std::collections::BTreeMap;

use crate::ids::NodeId;

/// `[model]`: the built-in trainers.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPlan {
    /// Which one.
    pub trainer: TrainerKind,
    /// Hidden units of the MLP.
    pub hidden: usize,
    /// Local learning rate.
    pub learning_rate: f64,
    /// What makes a step of a gradient.
    pub inner: InnerPlan,
    /// Rows in a batch.
    pub batch: usize,
    /// Batches whose gradients are added up before a step is made of them.
    pub accumulate: usize,
    /// What weights and activations are rounded to while a gradient is made.
    pub precision: Precision,
    /// How strongly local training is pulled back to the model that the round began with.
    pub proximal: f64,
    /// Whether the nodes of a domain take each step together, by the mean of all their gradients.
    pub data_parallel: bool,
    /// The first weights.
    pub init: Init,
    /// The order of batches.
    pub order: Order,
    /// Who holds which rows.
    pub partition: Partition,
}

/// What a topology means that says nothing of it.
impl Default for ModelPlan {
    fn default() -> Self {
        ModelPlan {
            trainer: TrainerKind::DigitsMlp,
            hidden: 64,
            learning_rate: 0.1,
            inner: InnerPlan::default(),
            batch: 32,
            accumulate: 1,
            precision: Precision::F32,
            proximal: 0.0,
            data_parallel: false,
            init: Init::Seed(7),
            order: Order::Shuffled,
            partition: Partition::Dirichlet { alpha: 0.5 },
        }
    }
}

/// The inner optimizer of `[model]`.
#[derive(Debug, Clone, PartialEq)]
pub struct InnerPlan {
    /// Which one.
    pub optimizer: InnerKind,
    /// How slowly the mean of the gradients follows.
    pub beta1: f64,
    /// How slowly the mean of their squares follows.
    pub beta2: f64,
    /// What is added to the root that divides the step.
    pub epsilon: f64,
    /// The share of each weight, times the learning rate, that a step takes off.
    pub weight_decay: f64,
}

/// What a topology means that says nothing of it.
impl Default for InnerPlan {
    fn default() -> Self {
        InnerPlan {
            optimizer: InnerKind::Sgd,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
        }
    }
}

/// What makes a local step of a gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InnerKind {
    /// The gradient itself.
    Sgd,
    /// Means of gradients and of their squares, and a decay of their own for the weights.
    AdamW,
}

/// A built-in trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainerKind {
    /// Softmax regression on the digits.
    DigitsSoftmax,
    /// A network with one hidden layer on the digits.
    DigitsMlp,
}

/// The numbers that a gradient is made of. Models, updates and steps are `f32` either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// 24 bits of each number.
    F32,
    /// Of weights, activations and their derivatives 8 bits; products are added up in `f32`.
    Bf16,
}

/// The first weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// Drawn from a seed.
    Seed(u64),
}

/// The order in which a node sees its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Shuffled anew for each (seed, node, round).
    Shuffled,
    /// In file order.
    Sequential,
}

/// Who holds which training rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Partition {
    /// Shuffled and dealt out evenly.
    Iid,
    /// Sorted by label and cut into two shards a node.
    Shards,
    /// Label shares drawn from a Dirichlet distribution.
    Dirichlet {
        /// Concentration: small is skewed.
        alpha: f64,
    },
    /// The rows of each client, numbers of the whole file. Whole clients are dealt out.
    Clients(BTreeMap<String, Vec<usize>>),
    /// Given row by row, numbers of the whole file.
    Rows(BTreeMap<NodeId, Vec<usize>>),
}
