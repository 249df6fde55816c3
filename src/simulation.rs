//! A federation in virtual time, with faults, from a seed: what users test their own code with.
//!
//! The nodes' actors, links, QUIC and TLS are the real ones; only the network, the clock, the disk and the shared memory are simulated.
//! Equal seeds give equal traces, so a failure is replayed by its seed.
//!
//! ```
//! use tombolo::simulation::{Simulation, crash, partition, restart, secs};
//! use tombolo::Round;
//!
//! let report = Simulation::from_toml(
//!     r#"
//!     [federation]
//!     name = "coast"
//!     rounds = 4
//!     sync_every = 5
//!     [round]
//!     quorum = { nodes = 2, domains = 1 }
//!     deadline = "20s"
//!     [model]
//!     trainer = "digits-softmax"
//!     [[domain]]
//!     name = "hq"
//!     nodes = ["gate", "a"]
//!     [[domain]]
//!     name = "plant"
//!     nodes = ["gate", "c"]
//!     "#,
//! )?
//! .seed(7)
//! .at(secs(1), crash("plant/c"))
//! .at(secs(8), restart("plant/c"))
//! .between(secs(10), secs(12), partition(["hq"], ["plant"]))
//! .run()?;
//! assert!(report.rounds().iter().all(Round::is_committed));
//! # Ok::<(), tombolo::simulation::SimulationError>(())
//! ```

mod failure;
mod fault;
pub mod flows;
mod inflict;
mod invariant;
pub mod plan;
mod report;
mod shrink;
mod theatre;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_actors::aggregate::Weigh;
use tombolo_actors::identity::IdentityError;
use tombolo_actors::record::log;
use tombolo_actors::shell::Census;
use tombolo_core::aggregate::Aggregator;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::record::audit::{self, Report};
use tombolo_core::trainer::Trainer;
use tombolo_fabric::memory::Memory;

use crate::federation::{Blueprint, Built, Source};
use crate::identity::notary::Notary;
use crate::identity::papers::Papers;
use crate::sim::{SimError, SimWorld};
use crate::topology::{self, Diagnosis};
use invariant::{Checker, STEPS_PER_LOOK, Witness};
use plan::{FaultError, TimedFault};
use theatre::{Crews, Record, Theatre};

pub use failure::Failure;
pub use fault::*;
pub use invariant::Violation;
pub use plan::{Dose, Fault, FaultPlan, Stale};
pub use report::SimulationReport;
pub use shrink::RUNS_MAX;

/// Virtual time after which a run that has not ended is given up, unless told otherwise.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// How much the time of a node's training varies.
const TRAINING_SPREAD: f64 = 0.2;

/// So many seconds.
pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// So many milliseconds.
pub fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A simulation that cannot begin or did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// The topology.
    #[error("the topology has mistakes:\n{0}")]
    Topology(Box<Diagnosis>),
    /// A file with a plan of faults.
    #[error("the plan of faults has mistakes:\n{0}")]
    FaultPlan(Box<Diagnosis>),
    /// A fault that cannot happen.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// The trainer.
    #[error("the trainer of {node} cannot be made: {reason}")]
    Trainer {
        /// Whose.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// A node's identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A node could not be started.
    #[error("{0}")]
    Start(String),
    /// It did not come to its end.
    #[error(transparent)]
    Failed(#[from] Box<Failure>),
    /// It could not be run.
    #[error(transparent)]
    World(SimError),
}

impl From<Diagnosis> for SimulationError {
    fn from(diagnosis: Diagnosis) -> Self {
        SimulationError::Topology(Box::new(diagnosis))
    }
}

/// Builds a simulation; see the module for an example.
#[derive(Clone)]
pub struct Simulation {
    blueprint: Blueprint,
    seed: u64,
    faults: FaultPlan,
    random: Option<Dose>,
    limit: Duration,
    training: Option<Duration>,
    failing_sends: f64,
    ahead: BTreeMap<NodeId, Duration>,
    is_observed: bool,
    replay: Option<String>,
}

impl Simulation {
    /// Reads a topology file.
    ///
    /// # Errors
    /// [`SimulationError::Topology`] with every mistake.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, SimulationError> {
        Self::from_source(Source::read(path.as_ref())?)
    }

    /// Reads a topology from text. Files that it names resolve against the current folder.
    ///
    /// # Errors
    /// [`SimulationError::Topology`] with every mistake.
    pub fn from_toml(text: &str) -> Result<Self, SimulationError> {
        Self::from_source(Source::text(text, "."))
    }

    fn from_source(source: Source) -> Result<Self, SimulationError> {
        let blueprint = Blueprint::read(source)?;
        Ok(Simulation {
            seed: blueprint.plan.seed,
            blueprint,
            faults: FaultPlan::default(),
            random: None,
            limit: LIMIT,
            training: None,
            failing_sends: 0.0,
            ahead: BTreeMap::new(),
            is_observed: false,
            replay: None,
        })
    }

    /// Seeds the network, jitter and delays of the world; the federation's own seed stays the topology's.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What seeds the world.
    pub fn world_seed(&self) -> u64 {
        self.seed
    }

    /// Lets a fault happen at an instant of virtual time. One that could end lasts as long as the run.
    #[must_use]
    pub fn at(mut self, at: Duration, fault: Fault) -> Self {
        self.faults.faults.push(TimedFault {
            at,
            until: None,
            fault,
        });
        self
    }

    /// Lets a fault begin and end.
    #[must_use]
    pub fn between(mut self, from: Duration, until: Duration, fault: Fault) -> Self {
        self.faults.faults.push(TimedFault {
            at: from,
            until: Some(until),
            fault,
        });
        self
    }

    /// Lets everything of a plan happen, too.
    #[must_use]
    pub fn faults(mut self, plan: FaultPlan) -> Self {
        self.faults.faults.extend(plan.faults);
        self
    }

    /// Lets everything of a plan happen, too, that is written as TOML: a list of `[[fault]]`.
    ///
    /// # Errors
    /// [`SimulationError::FaultPlan`] with every mistake.
    pub fn faults_from_toml(self, text: &str) -> Result<Self, SimulationError> {
        let plan = topology::parse_faults("faults", text, self.plan());
        Ok(self.faults(plan.map_err(|diagnosis| SimulationError::FaultPlan(diagnosis.into()))?))
    }

    /// Lets everything of a plan in a file happen, too.
    ///
    /// # Errors
    /// [`SimulationError::FaultPlan`] with every mistake.
    pub fn faults_from_path(self, path: impl AsRef<Path>) -> Result<Self, SimulationError> {
        let plan = topology::load_faults(path.as_ref(), self.plan());
        Ok(self.faults(plan.map_err(|diagnosis| SimulationError::FaultPlan(diagnosis.into()))?))
    }

    /// Lets faults of every kind happen at random, too, drawn from the seed; all of them are over when the dose's span is.
    #[must_use]
    pub fn random_faults(mut self, dose: Dose) -> Self {
        self.random = Some(dose);
        self
    }

    /// Everything that will happen, as it stands.
    pub fn fault_plan(&self) -> FaultPlan {
        let mut plan = self.faults.clone();
        if let Some(dose) = self.random {
            let random = FaultPlan::random(self.plan(), self.seed, dose);
            plan.faults.extend(random.faults);
        }
        plan
    }

    /// How long a node's training takes in virtual time, give or take a fifth; 40 ms unless told otherwise.
    #[must_use]
    pub fn training(mut self, span: Duration) -> Self {
        self.training = Some(span);
        self
    }

    /// Lets each send of a contribution fail with this chance, 0 to 1: its connection breaks when it is sent, all through the run. What the
    /// ladder's retries make of that is to be seen in the rounds.
    #[must_use]
    pub fn failing_sends(mut self, share: f64) -> Self {
        self.failing_sends = share;
        self
    }

    /// Lets a node's monotonic clock be ahead of the others', as if its machine had been started so much earlier. A node that does not exist
    /// has no clock.
    #[must_use]
    pub fn clock_ahead(mut self, node: &NodeId, by: Duration) -> Self {
        self.ahead.insert(node.clone(), by);
        self
    }

    /// Looks at links and clocks every two seconds, as a process of a real run does, and keeps what each node's own process would have
    /// recorded: [`SimulationReport::records`].
    #[must_use]
    pub fn observed(mut self) -> Self {
        self.is_observed = true;
        self
    }

    /// Trains with trainers of your own instead of the built-in model.
    #[must_use]
    pub fn trainer<T: Trainer + 'static>(
        mut self,
        make: impl Fn(&NodeId) -> T + Send + Sync + 'static,
    ) -> Self {
        self.blueprint.trainer(move |node| Ok(make(node)));
        self
    }

    /// Registers an aggregation rule under the name that `[aggregator] kind` uses.
    #[must_use]
    pub fn aggregator<A: Aggregator + 'static>(
        mut self,
        name: &str,
        make: impl Fn() -> A + Send + Sync + 'static,
    ) -> Self {
        self.blueprint.aggregator(name, make);
        self
    }

    /// Registers an actix actor of your own as aggregation rule.
    #[must_use]
    pub fn aggregator_actor(
        mut self,
        name: &str,
        start: impl Fn() -> actix::Recipient<Weigh> + Send + Sync + 'static,
    ) -> Self {
        self.blueprint.aggregator_actor(name, start);
        self
    }

    /// Gives the run up after so much virtual time (six hours unless told otherwise).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// What a failure names as the command that replays it.
    #[must_use]
    pub fn replay(mut self, command: impl Into<String>) -> Self {
        self.replay = Some(command.into());
        self
    }

    /// The topology as it stands.
    pub fn plan(&self) -> &Plan {
        &self.blueprint.plan
    }

    /// Runs to the end of the federation's run.
    ///
    /// # Errors
    /// See [`SimulationError`]. A run that ends with a reason of its own (quorum never met, for instance) is no error: see
    /// [`SimulationReport::finished`]; nor is one that violates an invariant: see [`SimulationReport::sound`].
    pub fn run(self) -> Result<SimulationReport, SimulationError> {
        let faults = self.fault_plan();
        self.prepare(&faults)?;
        match self.play(faults)? {
            Ending::Report(report) => Ok(*report),
            Ending::Failed(failure) => Err(failure.into()),
            Ending::Panicked(failure, panic) => {
                eprintln!("{failure}");
                resume_unwind(panic)
            }
        }
    }

    /// Runs twice. If the two runs differ, the report has a violation of SEED-1 that says where.
    ///
    /// # Errors
    /// As [`Simulation::run`].
    pub fn run_twice(self) -> Result<SimulationReport, SimulationError> {
        let mut report = self.clone().run()?;
        let again = self.run()?;
        report
            .violations
            .extend(invariant::differs(&report, &again));
        Ok(report)
    }

    /// Runs, and if that fails makes the plan of faults smaller by running again and again, at most `runs_max` times ([`RUNS_MAX`] is enough for most),
    /// as long as it fails in the same way. Returns the smallest failure; `None` if there is none.
    ///
    /// # Errors
    /// It could not be run at all.
    pub fn shrink(self, runs_max: usize) -> Result<Option<Failure>, SimulationError> {
        let faults = self.fault_plan();
        self.prepare(&faults)?;
        let Some(first) = self.play(faults.clone())?.failure() else {
            return Ok(None);
        };
        let mut smallest = first.clone();
        // A plan of our own from here on: the command that draws the large one does not replay a small one.
        let again = Simulation {
            replay: None,
            random: None,
            ..self
        };
        shrink::shrink(faults, runs_max, |plan| {
            let failure = again.play(plan.clone()).ok().and_then(Ending::failure);
            let same = failure.filter(|failure| failure.law == first.law);
            let fails = same.is_some();
            smallest = same.unwrap_or_else(|| smallest.clone());
            fails
        });
        Ok(Some(smallest))
    }

    /// Whether all of it can be.
    fn prepare(&self, faults: &FaultPlan) -> Result<(), SimulationError> {
        self.blueprint.check_rules()?;
        self.blueprint
            .check_mode()
            .map_err(SimulationError::Start)?;
        if self.plan().model.data_parallel {
            let reason = "nodes that step together (data_parallel in [model]) block their threads while they wait for each other, which virtual time cannot: \
                          remove the key, or run the federation in real time";
            return Err(SimulationError::Start(reason.to_owned()));
        }
        Ok(faults.check(self.plan())?)
    }
}

/// What is left of the record on the gateways' disks.
fn audited(world: &SimWorld, plan: &Plan) -> Report {
    let keepers = plan.nodes().map(|node| &node.id);
    let keepers = keepers.filter(|node| plan.may_be_gateway(node) || plan.may_coordinate(node));
    let disks: Vec<_> = keepers.map(|node| (node, world.files(node))).collect();
    let kept = disks
        .iter()
        .filter(|(_, files)| files.list(log::FOLDER).is_ok_and(|names| !names.is_empty()));
    let copies = kept.filter_map(|(node, files)| log::copy(files.as_ref(), node.to_string()).ok());
    audit::audit(copies.collect(), &Notary)
}

/// How a run ended.
enum Ending {
    Report(Box<SimulationReport>),
    /// It hung, or stood still.
    Failed(Box<Failure>),
    /// The simulation itself panicked.
    Panicked(Box<Failure>, Box<dyn Any + Send>),
}

impl Ending {
    fn failure(self) -> Option<Failure> {
        match self {
            Ending::Report(report) => report.failure(),
            Ending::Failed(failure) | Ending::Panicked(failure, _) => Some(*failure),
        }
    }
}

impl Simulation {
    /// One run.
    fn play(&self, faults: FaultPlan) -> Result<Ending, SimulationError> {
        let stage = Arc::new(self.stage(&faults)?);
        let world = SimWorld::new(self.seed);
        world.set_limit(self.limit);
        if let Some(training) = self.training {
            world.set_training(training, TRAINING_SPREAD);
        }
        world.set_failing_sends(self.failing_sends);
        let crews = Crews::default();
        let look = {
            let (stage, world, crews) = (stage.clone(), world.clone(), crews.clone());
            Box::new(move || stage.look(&world, &crews))
        };
        let (scene, plan) = (stage.clone(), faults.clone());
        let run = AssertUnwindSafe(|| {
            let play = |world| async move { scene.play(&world, &crews, &plan).await };
            world.run_watched(play, STEPS_PER_LOOK, look)
        });
        let outcome = catch_unwind(run);
        let failed = |law: &str, reason: String| {
            let mut events = Failure::last(&stage.record.log().events);
            events.extend(world.events().iter().map(ToString::to_string));
            Box::new(Failure {
                seed: self.seed,
                faults: faults.clone(),
                law: law.to_owned(),
                reasons: vec![reason],
                events,
                replay: self.replay_command(),
            })
        };
        let finished = match outcome {
            Ok(Ok(finished)) => finished?,
            Ok(Err(SimError::Limit { limit, .. })) => {
                let reason = format!(
                    "hang: it did not end within {limit:?} of virtual time; raise the limit, or find who waits for what never comes"
                );
                return Ok(Ending::Failed(failed("hang", reason)));
            }
            Ok(Err(SimError::Stalled { at, .. })) => {
                let reason = format!(
                    "standstill: from {at:?} on tasks wake each other without waiting for anything"
                );
                return Ok(Ending::Failed(failed("standstill", reason)));
            }
            Ok(Err(error)) => return Err(SimulationError::World(error)),
            Err(panic) => {
                let reason = format!(
                    "panic: {}",
                    tombolo_actors::shell::panic_text(panic.as_ref())
                );
                return Ok(Ending::Panicked(failed("panic", reason), panic));
            }
        };
        let left = stage.leftovers(&world);
        let mut log = stage.record.log();
        log.checker.on_leftovers(world.now(), &left);
        let audited = audited(&world, self.plan());
        log.checker.on_copies(world.now(), &audited);
        Ok(Ending::Report(Box::new(SimulationReport {
            finished,
            rounds: stage.record.ledger.rounds_from(0),
            trace_hash: report::trace_hash(world.trace_hash(), &log.events),
            virtual_time: Duration::from_micros(world.now().0),
            copies: report::copies(&audited),
            violations: log.checker.violations(),
            events: std::mem::take(&mut log.events),
            records: std::mem::take(&mut log.records),
            seed: self.seed,
            faults: faults.clone(),
            replay: self.replay_command(),
        })))
    }

    fn stage(&self, faults: &FaultPlan) -> Result<Theatre, SimulationError> {
        let first = self.plan().coordinator.clone();
        let built = self.blueprint.clone().build(&first);
        let Built {
            plan,
            configuration,
            layout,
            trainer,
            rule,
        } = built.map_err(|reason| SimulationError::Trainer {
            node: first,
            reason,
        })?;
        let witness = Witness::of(&plan, &layout);
        let (trainer, rule) = match &witness {
            Some(witness) => (witness.trainers(trainer), witness.rule(rule)),
            None => (trainer, rule),
        };
        let checker = Checker::new(plan.clone(), faults.clone(), witness);
        let papers = |node: &tombolo_core::plan::NodePlan| (node.id.clone(), Papers::default());
        Ok(Theatre {
            configuration,
            rule,
            seed: self.seed,
            memory: Memory::new(),
            census: Census::default(),
            record: Arc::new(Record::new(checker)),
            ahead: self.ahead.clone(),
            is_observed: self.is_observed,
            papers: plan.nodes().map(papers).collect(),
            machines: Default::default(),
            looks: Default::default(),
            plan,
            trainer,
            layout,
        })
    }

    fn replay_command(&self) -> String {
        if let Some(command) = &self.replay {
            return command.clone();
        }
        let seed = self.seed;
        let faults = self.random.is_some() || !self.faults.faults.is_empty();
        match self.blueprint.path() {
            Some(path) => {
                let with = if faults {
                    " --faults FILE, where FILE holds what was made to go wrong"
                } else {
                    ""
                };
                format!("tombolo sim {path} --seed {seed}{with}")
            }
            None => {
                let with = if faults {
                    " and .faults_from_toml() of what was made to go wrong"
                } else {
                    ""
                };
                format!("the same Simulation with .seed({seed}){with}")
            }
        }
    }
}
