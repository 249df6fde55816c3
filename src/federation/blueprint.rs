//! What every way to run a federation begins with: a topology, and what its user brings along.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::Source;
use crate::learn::DigitsTrainer;
use crate::topology::{self, Diagnosis, Options};
use tombolo_actors::aggregate::{Rule, Weigh};
use tombolo_actors::coordinator::TrainerFactory;
use tombolo_actors::crew::RuleFactory;
use tombolo_core::aggregate::{Aggregator, Needs};
use tombolo_core::collective::RANKS_MAX;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::trainer::Trainer;

/// A topology with a user's trainers and rules, where they replace the built-in ones.
#[derive(Clone)]
pub(crate) struct Blueprint {
    source: Source,
    pub plan: Plan,
    trainer: Option<TrainerFactory>,
    rules: BTreeMap<String, Registered>,
}

/// A rule that the program registered.
#[derive(Clone)]
struct Registered {
    make: RuleFactory,
    /// Asks one what it must be given.
    needs: Arc<dyn Fn() -> Needs + Send + Sync>,
}

/// What the nodes of a federation share.
#[derive(Clone)]
pub(crate) struct Built {
    pub plan: Arc<Plan>,
    /// Hash of everything in the configuration that decides the outcome.
    pub configuration: Hash,
    pub layout: Layout,
    pub trainer: TrainerFactory,
    pub rule: RuleFactory,
}

impl Blueprint {
    /// The text of a topology that came through a pipe.
    pub fn piped(&self) -> Option<&str> {
        let file = &self.source.0;
        file.is_pipe.then_some(file.text.as_str())
    }

    /// The full path of the file that the topology came from, if it lies in one.
    pub fn path(&self) -> Option<&str> {
        let file = &self.source.0;
        let lies = !file.is_pipe && Path::new(&file.name).is_absolute();
        lies.then_some(file.name.as_str())
    }

    /// The rules that the program registered.
    pub fn registered(&self) -> Vec<String> {
        self.rules.keys().cloned().collect()
    }

    /// Reads a topology. The rule that it names may still be registered.
    pub fn read(source: Source) -> Result<Self, Diagnosis> {
        let plan = source.load(&Options {
            registered: source.named_rule(),
        })?;
        Ok(Blueprint {
            source,
            plan,
            trainer: None,
            rules: BTreeMap::new(),
        })
    }

    pub fn trainer<T: Trainer + 'static>(
        &mut self,
        make: impl Fn(&NodeId) -> Result<T, String> + Send + Sync + 'static,
    ) {
        self.trainer = Some(Arc::new(move |node| Ok(Box::new(make(node)?))));
    }

    pub fn aggregator<A: Aggregator + 'static>(
        &mut self,
        name: &str,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) {
        let make = Arc::new(make);
        let asked = make.clone();
        let rule = Registered {
            make: Arc::new(move || Rule::Trait(Box::new(make()))),
            needs: Arc::new(move || asked().needs()),
        };
        self.rules.insert(name.to_owned(), rule);
    }

    pub fn aggregator_actor(
        &mut self,
        name: &str,
        start: impl Fn() -> actix::Recipient<Weigh> + Send + Sync + 'static,
    ) {
        let rule = Registered {
            make: Arc::new(move || Rule::Actor(start())),
            needs: Arc::new(Needs::default),
        };
        self.rules.insert(name.to_owned(), rule);
    }

    /// Only at the start it is known which rules are registered; one that is not can then be shown in its place in the file.
    pub fn check_rules(&self) -> Result<(), Diagnosis> {
        let registered = self.registered();
        self.source.load(&Options { registered }).map(drop)
    }

    /// What a registered rule is like the file does not tell: asynchronous rounds need one that weighs updates.
    pub fn check_mode(&self) -> Result<(), String> {
        let crowded = self
            .plan
            .domains
            .iter()
            .find(|domain| domain.nodes.len() > RANKS_MAX);
        if let Some(domain) = crowded.filter(|_| self.plan.model.data_parallel) {
            return Err(format!(
                "domain {} has {} nodes, and at most {RANKS_MAX} can take steps together (data_parallel in [model]): make two domains of it, or remove the key",
                domain.id,
                domain.nodes.len()
            ));
        }
        let kind = &self.plan.aggregator.kind;
        let needs = self.rules.get(kind).map(|rule| (rule.needs)());
        if self.plan.round.asynchronous.is_none() || needs.is_none_or(|needs| needs == Needs::Sum) {
            return Ok(());
        }
        Err(format!(
            "the rule {kind:?} must see each update, and asynchronous rounds need one that weighs them, so that older ones count for less: \
             write mode = \"sync\" in [round], or choose another rule"
        ))
    }

    /// Makes one trainer for the layout of the model: that of `first`, which is named if it cannot be made.
    pub fn build(mut self, first: &NodeId) -> Result<Built, String> {
        let rule = self.rules.get(&self.plan.aggregator.kind).cloned();
        if let Some(rule) = &rule {
            self.plan.aggregator.needs = (rule.needs)();
        }
        let plan = Arc::new(self.plan);
        let trainer: TrainerFactory = match self.trainer {
            Some(user) => user,
            None => {
                let plan = plan.clone();
                Arc::new(move |node| {
                    let trainer = DigitsTrainer::new(&plan, node);
                    Ok(Box::new(trainer.map_err(|error| error.to_string())?))
                })
            }
        };
        Ok(Built {
            configuration: Hash(topology::config_hash(&plan)),
            layout: trainer(first)?.layout(),
            rule: rule.map_or_else(|| built_in(&plan), |rule| rule.make),
            trainer,
            plan,
        })
    }
}

fn built_in(plan: &Plan) -> RuleFactory {
    let settings = plan.aggregator.clone();
    Arc::new(move || {
        let rule = tombolo_core::aggregate::build(&settings);
        Rule::Trait(rule.expect("the topology was checked for unknown rules"))
    })
}
