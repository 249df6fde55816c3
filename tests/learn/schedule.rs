//! Rounds in a plain loop: what a federation computes, without one.

use std::collections::BTreeMap;

use tombolo::learn::DigitsTrainer;
use tombolo_core::aggregate::{self, Aggregator, Report, Weight};
use tombolo_core::fold::{self, Counted, Squares};
use tombolo_core::ids::NodeId;
use tombolo_core::outer::{self, OuterOptimizer};
use tombolo_core::plan::Plan;
use tombolo_core::tensor::bytes_of;
use tombolo_core::trainer::{Task, Trainer};

/// All that takes part in a run.
pub struct Schedule {
    /// The committed parameters.
    pub model: Vec<f32>,
    plan: Plan,
    trainers: BTreeMap<NodeId, DigitsTrainer>,
    rule: Box<dyn Aggregator>,
    outer: Box<dyn OuterOptimizer>,
    round: u64,
}

/// The committed model after a round.
#[derive(Debug)]
pub struct State {
    pub accuracy: f64,
    pub loss: f64,
    pub weight_norm: f64,
}

impl Schedule {
    pub fn new(plan: Plan) -> Self {
        let mut trainers = BTreeMap::new();
        for node in plan.nodes() {
            let trainer = DigitsTrainer::new(&plan, &node.id).unwrap();
            trainers.insert(node.id.clone(), trainer);
        }
        let first = trainers.values_mut().next().unwrap();
        let mut model = vec![0.0; first.layout().len()];
        first.initialize(plan.seed, &mut model).unwrap();
        Schedule {
            rule: aggregate::build(&plan.aggregator).unwrap(),
            outer: outer::build(&plan.outer, model.len()),
            round: 0,
            model,
            trainers,
            plan,
        }
    }

    /// One round with everybody who is not absent.
    pub fn round(&mut self) -> State {
        self.round += 1;
        let cohort = self.plan.cohort(self.round);
        let mut reports = Vec::new();
        let mut updates = BTreeMap::new();
        for node in cohort {
            let (report, update) = self.train(&node);
            reports.push(report);
            updates.insert(node, update);
        }
        reports.sort_by(|one, two| one.node.cmp(&two.node));
        assert!(reports.iter().all(|it| aggregate::refusal(it).is_none()));
        let weights = aggregate::weigh(self.rule.as_mut(), &reports).unwrap();
        let weights: BTreeMap<&NodeId, &Weight> = weights.iter().map(|w| (&w.node, w)).collect();

        let mut domains: Vec<_> = self.plan.domains.iter().collect();
        domains.sort_by(|one, two| one.id.cmp(&two.id));
        let counted: Vec<Vec<Counted<'_>>> = domains
            .into_iter()
            .map(|domain| {
                let present = domain.nodes.iter().filter_map(|node| {
                    let weight = weights.get(&node.id)?;
                    Some(Counted {
                        weight: weight.weight,
                        clip: weight.clip,
                        update: &updates[&node.id],
                    })
                });
                present.collect()
            })
            .collect();
        let mut step = fold::reference(&counted).unwrap();
        self.rule.finish(&mut step).unwrap();
        self.outer.step(0, &mut step).unwrap();
        self.outer.accept();
        outer::adopt(&mut self.model, &step);
        self.judge()
    }

    fn train(&mut self, node: &NodeId) -> (Report, Vec<f32>) {
        let mut local = self.model.clone();
        let task = Task {
            node: node.clone(),
            round: self.round,
            seed: self.plan.seed,
            sync_every: self.plan.sync_every,
            domain: tombolo_core::trainer::Domain::alone(),
        };
        let trained = self
            .trainers
            .get_mut(node)
            .unwrap()
            .train(&task, &mut local)
            .unwrap();
        for (parameter, global) in local.iter_mut().zip(&self.model) {
            *parameter -= global;
        }
        let norm = norm(&local);
        let report = Report {
            node: node.clone(),
            samples: trained.samples,
            loss: trained.loss,
            steps: trained.steps,
            learning_rate: trained.learning_rate,
            norm,
            finite: norm.is_finite(),
        };
        (report, local)
    }

    fn judge(&mut self) -> State {
        let judge = self.trainers.values_mut().next().unwrap();
        let evaluation = judge.evaluate(&self.model).unwrap();
        State {
            accuracy: evaluation.accuracy,
            loss: evaluation.loss,
            weight_norm: norm(&self.model),
        }
    }
}

/// The L2 norm of an update or a model.
pub fn norm(elements: &[f32]) -> f64 {
    let mut squares = Squares::default();
    squares.add(bytes_of(elements));
    squares.sum().sqrt()
}
