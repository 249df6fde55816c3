//! ROUND-1: the aggregate equals, bit for bit, the reference fold over exactly the counted updates. MODEL-2: each of them within the clip bound.
//!
//! A witness stands between the actors and their trainers and rule: it sees each update as it is made, the weights as they are fixed, and the
//! mean as the rule gets it. What lies between is the product's; here it is computed once more, in a few lines.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_actors::aggregate::Rule;
use tombolo_actors::coordinator::TrainerFactory;
use tombolo_actors::crew::RuleFactory;
use tombolo_core::aggregate::{AggregateError, Aggregator, BUILT_IN, Report, Weight};
use tombolo_core::event::{Event, RoundRecord};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::plan::{Clip, Plan};
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

use super::{Cx, Law};

/// Elements of all updates of a round that are kept: a check must not need the memory of the models that are simulated.
const ELEMENTS_MAX: usize = 1 << 24;

/// Sees what trainers and the rule are asked and answer; a handle.
#[derive(Clone, Default)]
pub struct Witness(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Every update of a node for a round that differs from those before.
    updates: BTreeMap<(Round, NodeId), Vec<Vec<f32>>>,
    /// What the rule was asked last, and said.
    weighed: Option<(Vec<Report>, Vec<Weight>)>,
    /// The last mean that the rule was given.
    mean: Option<Vec<f32>>,
}

impl Witness {
    /// A witness, unless the model is too large to watch.
    pub fn of(plan: &Plan, layout: &Layout) -> Option<Witness> {
        let elements = layout.len().saturating_mul(plan.nodes().count());
        (elements <= ELEMENTS_MAX).then(Witness::default)
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Trainers that are watched.
    pub fn trainers(&self, inner: TrainerFactory) -> TrainerFactory {
        let witness = self.clone();
        Arc::new(move |node| {
            Ok(Box::new(WatchedTrainer {
                inner: inner(node)?,
                witness: witness.clone(),
            }))
        })
    }

    /// The rule, watched. What a user's own actor decides is not seen.
    pub fn rule(&self, inner: RuleFactory) -> RuleFactory {
        let witness = self.clone();
        Arc::new(move || match inner() {
            Rule::Trait(rule) => Rule::Trait(Box::new(WatchedRule {
                inner: rule,
                witness: witness.clone(),
            })),
            actor => actor,
        })
    }
}

struct WatchedTrainer {
    inner: Box<dyn Trainer>,
    witness: Witness,
}

impl Trainer for WatchedTrainer {
    fn layout(&self) -> Layout {
        self.inner.layout()
    }

    fn initialize(&mut self, seed: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        self.inner.initialize(seed, parameters)
    }

    fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        let base = parameters.to_vec();
        let trained = self.inner.train(task, parameters)?;
        let pairs = parameters.iter().zip(&base);
        let update: Vec<f32> = pairs.map(|(local, base)| local - base).collect();
        let mut seen = self.witness.lock();
        let known = seen
            .updates
            .entry((task.round, task.node.clone()))
            .or_default();
        if !known.iter().any(|other| same_bits(other, &update)) {
            known.push(update);
        }
        Ok(trained)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.inner.evaluate(parameters)
    }
}

struct WatchedRule {
    inner: Box<dyn Aggregator>,
    witness: Witness,
}

impl Aggregator for WatchedRule {
    fn weigh(&mut self, reports: &[Report]) -> Result<Vec<Weight>, AggregateError> {
        let weights = self.inner.weigh(reports)?;
        self.witness.lock().weighed = Some((reports.to_vec(), weights.clone()));
        Ok(weights)
    }

    fn finish(&mut self, mean: &mut [f32]) -> Result<(), AggregateError> {
        self.witness.lock().mean = Some(mean.to_vec());
        self.inner.finish(mean)
    }
}

/// What was weighed in each round that is not over, and what the witness has seen.
pub(super) struct Fold {
    witness: Option<Witness>,
    weighed: BTreeMap<Round, Vec<Weight>>,
}

impl Fold {
    pub fn new(witness: Option<Witness>) -> Self {
        Fold {
            witness,
            weighed: BTreeMap::new(),
        }
    }

    fn on_weighed(&mut self, cx: &mut Cx<'_>, round: Round) {
        let weighed = self.witness.as_ref().and_then(|w| w.lock().weighed.take());
        let Some((reports, weights)) = weighed else {
            return;
        };
        check_bound(cx, round, &reports, &weights);
        self.weighed.insert(round, weights);
    }

    fn check_fold(&self, cx: &mut Cx<'_>, record: &RoundRecord, seen: &Seen) {
        let (Some(weights), Some(mean)) = (self.weighed.get(&record.round), &seen.mean) else {
            return;
        };
        let round = record.round;
        let mut counted = Vec::new();
        for node in &record.counted {
            let update = seen.updates.get(&(round, node.clone()));
            let weight = weights.iter().find(|weight| weight.node == *node);
            match (update.map(Vec::as_slice), weight) {
                // A trainer that does not repeat itself: nobody can tell which of its updates was taken.
                (Some([_, _, ..]), _) => return,
                (Some([update]), Some(weight)) => counted.push((weight, update)),
                _ => {
                    let what = format!(
                        "round {round} counts {node}, which was not seen to train or was not weighed"
                    );
                    return cx.violated("ROUND-1", what);
                }
            }
        }
        if !reference(cx.plan, &counted).is_some_and(|expected| same_bits(&expected, mean)) {
            let what = format!(
                "the mean of round {round} is not the fold over the {} counted updates",
                counted.len()
            );
            cx.violated("ROUND-1", what);
        }
    }
}

impl Law for Fold {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            Event::Weighed { round, .. } => self.on_weighed(cx, *round),
            Event::Round(record) => {
                let Some(witness) = self.witness.clone() else {
                    return;
                };
                let mut seen = witness.lock();
                if record.is_committed() {
                    self.check_fold(cx, record, &seen);
                }
                self.weighed.retain(|round, _| *round > record.round);
                seen.updates.retain(|(round, _), _| *round > record.round);
                seen.mean = None;
            }
            _ => {}
        }
    }
}

/// The second half of MODEL-2, for the rules whose clipping the plan describes.
fn check_bound(cx: &mut Cx<'_>, round: Round, reports: &[Report], weights: &[Weight]) {
    let built_in = BUILT_IN
        .iter()
        .any(|(kind, _)| *kind == cx.plan.aggregator.kind);
    let mut norms: Vec<f64> = reports.iter().map(|report| report.norm).collect();
    norms.sort_by(f64::total_cmp);
    let bound = match cx.plan.aggregator.clip {
        _ if !built_in || norms.is_empty() => return,
        Clip::None => return,
        Clip::Median => norms[(norms.len() - 1) / 2],
        Clip::Norm(bound) => bound,
    };
    for (report, weight) in reports.iter().zip(weights) {
        let counted = weight.clip * report.norm;
        if counted > bound * (1.0 + 1e-9) {
            let what = format!(
                "round {round} counts {} with norm {counted}, the bound is {bound}",
                report.node
            );
            cx.violated("MODEL-2", what);
        }
    }
}

/// The fold of `core/src/fold.rs`, as its first lines describe it.
fn reference(plan: &Plan, counted: &[(&Weight, &Vec<f32>)]) -> Option<Vec<f32>> {
    let domains: BTreeMap<_, _> = plan.domains.iter().map(|d| (&d.id, &d.nodes)).collect();
    let (mut global, mut total) = (None::<Vec<f32>>, 0.0f64);
    for nodes in domains.values() {
        let by_rank = nodes.iter().filter_map(|node| {
            let of_node = |(weight, _): &&(&Weight, &Vec<f32>)| weight.node == node.id;
            counted.iter().find(of_node)
        });
        let (mut sum, mut domain) = (None::<Vec<f32>>, 0.0f64);
        for (weight, update) in by_rank.filter(|(weight, _)| weight.weight > 0.0) {
            let factor = (weight.weight * weight.clip) as f32;
            add(&mut sum, update.iter().map(|element| factor * element));
            domain += weight.weight;
        }
        let Some(sum) = sum else { continue };
        let power = 2f32.powi(((domain.to_bits() >> 52) & 0x7FF) as i32 - 1023);
        add(
            &mut global,
            sum.iter().map(|element| element * (1.0 / power) * power),
        );
        total += domain;
    }
    let mut global = global?;
    global
        .iter_mut()
        .for_each(|element| *element /= total as f32);
    Some(global)
}

fn add(sum: &mut Option<Vec<f32>>, terms: impl Iterator<Item = f32>) {
    match sum {
        None => *sum = Some(terms.collect()),
        Some(sum) => sum
            .iter_mut()
            .zip(terms)
            .for_each(|(sum, term)| *sum += term),
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    a.len() == b.len() && a.iter().zip(b).all(equal)
}
