//! What users bring along: trainers and rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use tombolo_actors::aggregate::{Rule, Weigh};
use tombolo_actors::coordinator::TrainerFactory;
use tombolo_actors::crew::RuleFactory;
use tombolo_core::aggregate::Aggregator;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::trainer::Trainer;

use crate::learn::DigitsTrainer;
use crate::topology::Options;

type UserTrainer = Arc<dyn Fn(&NodeId) -> Box<dyn Trainer> + Send + Sync>;

/// A user's trainers and rules, where they replace the built-in ones.
#[derive(Default)]
pub(crate) struct Plugins {
    trainer: Option<UserTrainer>,
    rules: BTreeMap<String, RuleFactory>,
}

impl Plugins {
    pub fn trainer<T: Trainer + 'static>(
        &mut self,
        make: impl Fn(&NodeId) -> T + Send + Sync + 'static,
    ) {
        self.trainer = Some(Arc::new(move |node| Box::new(make(node))));
    }

    pub fn aggregator<A: Aggregator + 'static>(
        &mut self,
        name: &str,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) {
        let rule: RuleFactory = Arc::new(move || Rule::Trait(Box::new(make())));
        self.rules.insert(name.to_owned(), rule);
    }

    pub fn aggregator_actor(
        &mut self,
        name: &str,
        start: impl Fn() -> actix::Recipient<Weigh> + Send + Sync + 'static,
    ) {
        let rule: RuleFactory = Arc::new(move || Rule::Actor(start()));
        self.rules.insert(name.to_owned(), rule);
    }

    /// The names that a topology may use.
    pub fn options(&self) -> Options {
        Options {
            registered: self.rules.keys().cloned().collect(),
        }
    }

    /// The registered rule of the plan, or the built-in one.
    pub fn rule_factory(&self, plan: &Plan) -> RuleFactory {
        if let Some(rule) = self.rules.get(&plan.aggregator.kind) {
            return rule.clone();
        }
        let settings = plan.aggregator.clone();
        Arc::new(move || {
            let rule = tombolo_core::aggregate::build(&settings);
            Rule::Trait(rule.expect("the topology was checked for unknown rules"))
        })
    }

    /// The user's trainers, or the built-in ones.
    pub fn trainer_factory(&self, plan: Arc<Plan>) -> TrainerFactory {
        match self.trainer.clone() {
            Some(user) => Arc::new(move |node| Ok(user(node))),
            None => Arc::new(move |node| {
                let trainer = DigitsTrainer::new(&plan, node).map_err(|error| error.to_string())?;
                Ok(Box::new(trainer))
            }),
        }
    }
}
