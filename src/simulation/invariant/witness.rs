//! ROUND-1: the aggregate equals, bit for bit, the reference fold over exactly the counted updates. MODEL-2: each of them within the clip bound.
//!
//! A witness stands between the actors and their trainers and rule: it sees each update as it is made, the weights as they are fixed, and the
//! mean as the rule gets it. What lies between is the product's; here it is computed once more, in a few lines.

mod again;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_actors::aggregate::Rule;
use tombolo_actors::coordinator::TrainerFactory;
use tombolo_actors::crew::RuleFactory;
use tombolo_core::aggregate::feedback::{self, Drift};
use tombolo_core::aggregate::{
    self, AggregateError, Aggregator, BUILT_IN, EachFold, Needs, Report, Weight,
};
use tombolo_core::event::{Event, RoundRecord};
use tombolo_core::ids::{DomainId, NodeId, Round};
use tombolo_core::pace;
use tombolo_core::plan::{Clip, Plan};
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Snapshot, Snapshots, Task, TrainError, Trained, Trainer};

use self::again::{Residuals, reference_of_each, same_bits};
use super::round::made_for;
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
    /// Where steps are balanced: how many each update counts as.
    counts_as: Option<u64>,
}

impl Witness {
    /// A witness, unless the model is too large to watch.
    pub fn of(plan: &Plan, layout: &Layout) -> Option<Witness> {
        let elements = layout.len().saturating_mul(plan.nodes().count());
        let witness = Witness::default();
        let equal = plan.sync_every.steps();
        witness.lock().counts_as = equal.filter(|_| plan.balance_steps);
        (elements <= ELEMENTS_MAX).then_some(witness)
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
        self.watch(task, parameters, |inner, parameters| {
            inner.train(task, parameters)
        })
    }

    fn train_from(
        &mut self,
        task: &Task,
        from: Option<Snapshot<'_>>,
        parameters: &mut [f32],
        snapshots: &mut dyn Snapshots,
    ) -> Result<Trained, TrainError> {
        self.watch(task, parameters, |inner, parameters| {
            inner.train_from(task, from, parameters, snapshots)
        })
    }

    fn state(&self) -> Vec<u8> {
        self.inner.state()
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), TrainError> {
        self.inner.restore(state)
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Result<Evaluation, TrainError> {
        self.inner.evaluate(parameters)
    }
}

impl WatchedTrainer {
    fn watch(
        &mut self,
        task: &Task,
        parameters: &mut [f32],
        train: impl FnOnce(&mut dyn Trainer, &mut [f32]) -> Result<Trained, TrainError>,
    ) -> Result<Trained, TrainError> {
        let base = parameters.to_vec();
        let trained = train(self.inner.as_mut(), parameters)?;
        let pairs = parameters.iter().zip(&base);
        let mut update: Vec<f32> = pairs.map(|(local, base)| local - base).collect();
        let mut seen = self.witness.lock();
        pace::stretch(&mut update, seen.counts_as, trained.steps);
        let known = seen
            .updates
            .entry((task.round, task.node.clone()))
            .or_default();
        if !known.iter().any(|other| same_bits(other, &update)) {
            known.push(update);
        }
        Ok(trained)
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

    fn needs(&self) -> Needs {
        self.inner.needs()
    }

    fn least(&self) -> usize {
        self.inner.least()
    }

    fn each(&mut self, counted: &[Weight]) -> Result<Box<dyn EachFold>, AggregateError> {
        self.inner.each(counted)
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
    residuals: Residuals,
    /// Who said since its last counted contribution that its residual is lost.
    lost: BTreeSet<DomainId>,
    /// What codecs have lost is not known any more.
    blind: bool,
}

impl Fold {
    pub fn new(witness: Option<Witness>) -> Self {
        Fold {
            witness,
            weighed: BTreeMap::new(),
            residuals: BTreeMap::new(),
            lost: BTreeSet::new(),
            blind: false,
        }
    }

    fn on_weighed(&mut self, cx: &mut Cx<'_>, round: Round, drifts: &[Drift]) {
        let weighed = self.witness.as_ref().and_then(|w| w.lock().weighed.take());
        let Some((reports, mut weights)) = weighed else {
            return;
        };
        check_bound(cx, round, &reports, &weights);
        // The rule knows of one round only.
        feedback::apply(drifts, &mut weights);
        self.weighed.insert(round, weights);
    }

    fn check_fold(&mut self, cx: &mut Cx<'_>, record: &RoundRecord, seen: &Seen) {
        let mut domains = cx.plan.domains.iter();
        let lossy = domains.any(|domain| !cx.plan.codec(&domain.id).is_lossless());
        let weights = self.weighed.get(&record.round).cloned();
        let (Some(weights), Some(mean), false) = (weights, &seen.mean, self.blind) else {
            self.blind |= lossy;
            return;
        };
        let round = record.round;
        let mut counted = Vec::new();
        let weights = discounted(cx.plan, record, weights);
        for node in &record.counted {
            let made = made_for(record, node);
            let update = seen.updates.get(&(made, node.clone()));
            let weight = weights.iter().find(|weight| weight.node == *node);
            match (update.map(Vec::as_slice), weight) {
                // A trainer that does not repeat itself: nobody can tell which of its updates was taken.
                (Some([_, _, ..]), _) => {
                    self.blind |= lossy;
                    return;
                }
                (Some([update]), Some(weight)) => counted.push((weight, update)),
                _ => {
                    let what = format!(
                        "round {round} counts {node}, which was not seen to train or was not weighed"
                    );
                    return cx.violated("ROUND-1", what);
                }
            }
        }
        let rule = &cx.plan.aggregator;
        let right = match (rule.needs, aggregate::build(rule)) {
            (Needs::Sum, _) => self.is_reference(cx.plan, &counted, mean),
            (_, Some(rule)) => {
                let expected = reference_of_each(cx.plan, rule, &counted);
                expected.is_some_and(|expected| same_bits(&expected, mean))
            }
            // How a user's own rule folds is not known here.
            (_, None) => return,
        };
        if !right {
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
            Event::Weighed { round, drifts, .. } => self.on_weighed(cx, *round, drifts),
            Event::ResidualLost { node, .. } => {
                self.lost.insert(node.domain());
            }
            Event::Round(record) => {
                let Some(witness) = self.witness.clone() else {
                    return;
                };
                let mut seen = witness.lock();
                if record.is_committed() {
                    self.check_fold(cx, record, &seen);
                }
                self.weighed.retain(|round, _| *round > record.round);
                forget(cx.plan, record, &mut seen);
                seen.mean = None;
            }
            _ => {}
        }
    }
}

/// Updates that no later round can count. In the asynchronous mode those that are older than the newest counted one of their node, too.
fn forget(plan: &Plan, record: &RoundRecord, seen: &mut Seen) {
    if plan.round.asynchronous.is_none() {
        return seen.updates.retain(|(round, _), _| *round > record.round);
    }
    for node in &record.counted {
        let made = made_for(record, node);
        seen.updates
            .retain(|(round, of), _| of != node || *round > made);
    }
}

/// What each update counts for: in the asynchronous mode by its age also, as the record has it.
fn discounted(plan: &Plan, record: &RoundRecord, mut weights: Vec<Weight>) -> Vec<Weight> {
    let (Some(plan), Some(version)) = (&plan.round.asynchronous, &record.version) else {
        return weights;
    };
    for (node, age) in record.counted.iter().zip(&version.staleness) {
        let weight = weights.iter_mut().find(|weight| weight.node == *node);
        if let Some(weight) = weight {
            weight.weight *= plan.staleness.weight.factor(*age);
        }
    }
    weights
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
        // It clips around a centre of its own, in the fold.
        _ if cx.plan.aggregator.kind == "centred-clipping" => return,
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tombolo_core::aggregate;
    use tombolo_core::event::RoundState;
    use tombolo_core::fold::{self, Counted};
    use tombolo_core::plan::SyncEvery;
    use tombolo_core::rng::Rng;
    use tombolo_core::tensor::Hash;
    use tombolo_core::time::Micros;

    use super::*;
    use crate::simulation::invariant::State;
    use crate::simulation::plan::FaultPlan;
    use crate::topology;

    const NODES: [&str; 4] = ["reef/a", "reef/b", "bay/gate", "bay/c"];

    fn plan() -> Plan {
        // In file order the domains are not in the order of their names.
        let text = r#"
            [federation]
            name = "f"
            [aggregator]
            kind = "fedavg"
            clip = 2.0
            [[domain]]
            name = "reef"
            nodes = ["a", "b"]
            [[domain]]
            name = "bay"
            nodes = ["gate", "c"]
        "#;
        topology::parse("f", text, Path::new(".")).unwrap()
    }

    /// Adds numbers of its own, and others each time if it does not repeat itself.
    struct Noise {
        rng: Rng,
        repeats: bool,
    }

    impl Trainer for Noise {
        fn layout(&self) -> Layout {
            Layout::new([("weight", vec![50])]).unwrap()
        }

        fn initialize(&mut self, _: u64, _: &mut [f32]) -> Result<(), TrainError> {
            Ok(())
        }

        fn train(&mut self, task: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
            if self.repeats {
                self.rng = Rng::derive(task.round, &[task.node.as_str().as_bytes()]);
            }
            for parameter in parameters {
                *parameter += self.rng.next_f64() as f32 - 0.3;
            }
            Ok(Trained {
                samples: 10,
                loss: 1.0,
                steps: 1,
                learning_rate: 0.1,
            })
        }

        fn evaluate(&mut self, _: &[f32]) -> Result<Evaluation, TrainError> {
            unreachable!("nobody evaluates here")
        }
    }

    /// A round as the actors would make it, seen by a witness.
    struct Stage {
        plan: Plan,
        fold: Fold,
        trainers: TrainerFactory,
        rule: Box<dyn Aggregator>,
        updates: BTreeMap<String, Vec<f32>>,
        weights: Vec<Weight>,
    }

    impl Stage {
        fn new(repeats: bool) -> Self {
            let plan = plan();
            let witness = Witness::default();
            let trainers = witness.trainers(Arc::new(move |_| {
                Ok(Box::new(Noise {
                    rng: Rng::new(7),
                    repeats,
                }))
            }));
            let settings = plan.aggregator.clone();
            let rule = witness.rule(Arc::new(move || {
                Rule::Trait(aggregate::build(&settings).unwrap())
            }));
            let Rule::Trait(rule) = rule() else {
                unreachable!("it was one")
            };
            let mut stage = Stage {
                plan,
                fold: Fold::new(Some(witness)),
                trainers,
                rule,
                updates: BTreeMap::new(),
                weights: Vec::new(),
            };
            NODES.iter().for_each(|name| stage.train(name));
            stage
        }

        fn train(&mut self, name: &str) {
            let node: NodeId = name.parse().unwrap();
            let mut trainer = (self.trainers)(&node).unwrap();
            let task = Task {
                node,
                round: 1,
                seed: 1,
                sync_every: SyncEvery::Steps(1),
                domain: tombolo_core::trainer::Domain::alone(),
            };
            let mut model = vec![0.25; 50];
            trainer.train(&task, &mut model).unwrap();
            let update = model.iter().map(|local| local - 0.25).collect();
            self.updates.insert(name.to_owned(), update);
        }

        fn weigh(&mut self) -> Vec<&'static str> {
            let report = |(name, update): (&String, &Vec<f32>)| Report {
                node: name.parse().unwrap(),
                samples: 10 * update.len() as u64 + name.len() as u64,
                loss: 1.0,
                steps: 1,
                learning_rate: 0.1,
                norm: update
                    .iter()
                    .map(|e| f64::from(*e).powi(2))
                    .sum::<f64>()
                    .sqrt(),
                finite: true,
            };
            let reports: Vec<Report> = self.updates.iter().map(report).collect();
            self.weights = self.rule.weigh(&reports).unwrap();
            self.tell(&Event::Weighed {
                reasons: Vec::new(),
                round: 1,
                nodes: Vec::new(),
                drifts: Vec::new(),
            })
        }

        /// The fold over some, as core does it.
        fn fold(&mut self, counted: &[&str], spoil: bool) {
            let terms = |names: [&str; 2]| -> Vec<Counted<'_>> {
                let names = names.into_iter().filter(|name| counted.contains(name));
                let term = |name: &str| {
                    let weight = self.weights.iter().find(|w| w.node.as_str() == name);
                    let weight = weight.unwrap();
                    Counted {
                        weight: weight.weight,
                        clip: weight.clip,
                        update: &self.updates[name],
                    }
                };
                names.map(term).collect()
            };
            let domains = [terms(["bay/gate", "bay/c"]), terms(["reef/a", "reef/b"])];
            let mut mean = fold::reference(&domains).unwrap();
            if spoil {
                mean[49] = f32::from_bits(mean[49].to_bits() ^ 1);
            }
            self.rule.finish(&mut mean).unwrap();
        }

        fn end(&mut self, counted: &[&str]) -> Vec<&'static str> {
            self.tell(&Event::Round(RoundRecord {
                round: 1,
                epoch: 1,
                state: RoundState::Committed,
                reason: String::new(),
                counted: counted.iter().map(|name| name.parse().unwrap()).collect(),
                late: Vec::new(),
                denied: Vec::new(),
                refused: Vec::new(),
                accuracy: 0.0,
                loss: 0.0,
                weight_norm: 0.0,
                bytes: 0,
                bytes_down: 0,
                bytes_up: 0,
                model_hash: Hash::default(),
                elapsed_s: 0.0,
                version: None,
                drifts: Vec::new(),
                balance: None,
            }))
        }

        fn tell(&mut self, event: &Event) -> Vec<&'static str> {
            let mut found = Vec::new();
            let mut cx = Cx {
                at: Micros::default(),
                plan: &self.plan,
                faults: &FaultPlan::default(),
                state: &State::default(),
                found: &mut found,
            };
            self.fold.on_event(&mut cx, event);
            found.iter().map(|violation| violation.law).collect()
        }
    }

    #[test]
    fn the_mean_is_the_fold_over_the_counted_to_the_last_bit() {
        let some = ["bay/c", "reef/a", "reef/b"];
        for (folded, told, spoil, broken) in [
            (&NODES[..], &NODES[..], false, false),
            (&some[..], &some[..], false, false),
            (&NODES[..], &NODES[..], true, true),
            (&NODES[..], &some[..], false, true),
            (&some[..], &NODES[..], false, true),
        ] {
            let mut stage = Stage::new(true);
            assert_eq!(stage.weigh(), [""; 0]);
            stage.fold(folded, spoil);
            let expected: &[&str] = if broken { &["ROUND-1"] } else { &[] };
            assert_eq!(stage.end(told), expected, "{folded:?} {told:?} {spoil}");
        }
    }

    #[test]
    fn who_was_not_seen_to_train_or_was_not_weighed_is_not_counted() {
        let mut stage = Stage::new(true);
        stage.weigh();
        stage.fold(&NODES, false);
        assert_eq!(stage.end(&["bay/c", "bay/z"]), ["ROUND-1"]);
    }

    /// A node that trains again makes the same update; a trainer that does not is not judged.
    #[test]
    fn a_second_training_changes_nothing_or_cannot_be_judged() {
        let mut stage = Stage::new(true);
        stage.weigh();
        stage.train("bay/c");
        stage.fold(&NODES, true);
        assert_eq!(stage.end(&NODES), ["ROUND-1"]);
        let mut stage = Stage::new(false);
        stage.weigh();
        // Another life of the node, with another generator.
        let node: NodeId = "bay/c".parse().unwrap();
        let task = Task {
            node: node.clone(),
            round: 1,
            seed: 1,
            sync_every: SyncEvery::Steps(1),
            domain: tombolo_core::trainer::Domain::alone(),
        };
        let mut trainer = (stage.trainers)(&node).unwrap();
        for _ in 0..2 {
            trainer.train(&task, &mut [0.25; 50]).unwrap();
        }
        stage.fold(&NODES, true);
        assert_eq!(stage.end(&NODES), [""; 0]);
    }

    #[test]
    fn what_is_counted_is_within_the_clip_bound() {
        let mut stage = Stage::new(true);
        for element in stage.updates.get_mut("bay/c").unwrap() {
            *element *= 100.0;
        }
        assert_eq!(stage.weigh(), [""; 0], "clipped");
        let witness = stage.fold.witness.clone().unwrap();
        stage.weigh();
        let report = Report {
            node: "bay/c".parse().unwrap(),
            samples: 1,
            loss: 1.0,
            steps: 1,
            learning_rate: 1.0,
            norm: 2.1,
            finite: true,
        };
        let weight = Weight {
            node: report.node.clone(),
            weight: 1.0,
            clip: 1.0,
            reason: String::new(),
        };
        witness.lock().weighed = Some((vec![report], vec![weight]));
        let weighed = Event::Weighed {
            reasons: Vec::new(),
            round: 2,
            nodes: Vec::new(),
            drifts: Vec::new(),
        };
        assert_eq!(stage.tell(&weighed), ["MODEL-2"]);
    }

    #[test]
    fn a_model_that_is_too_large_is_not_watched() {
        let layout = |len| Layout::new([("weight", vec![len])]).unwrap();
        assert!(Witness::of(&plan(), &layout(ELEMENTS_MAX / 4)).is_some());
        assert!(Witness::of(&plan(), &layout(ELEMENTS_MAX / 4 + 1)).is_none());
    }
}
