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

mod check;
mod fault;
mod inflict;
pub mod plan;
mod theatre;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tombolo_actors::aggregate::Weigh;
use tombolo_actors::identity::IdentityError;
use tombolo_actors::shell::Census;
use tombolo_core::aggregate::Aggregator;
use tombolo_core::event::{Event, Finished, RoundRecord};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;
use tombolo_core::trainer::Trainer;
use tombolo_fabric::memory::Memory;

use crate::federation::{Blueprint, Built, Source};
use crate::identity::papers::Papers;
use crate::sim::{SimError, SimWorld};
use crate::topology::Diagnosis;
use plan::{Dose, FaultError, FaultPlan, TimedFault};
use theatre::{Crews, Theatre};

pub use fault::*;
pub use plan::Fault;

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
    World(#[from] SimError),
}

impl From<Diagnosis> for SimulationError {
    fn from(diagnosis: Diagnosis) -> Self {
        SimulationError::Topology(Box::new(diagnosis))
    }
}

/// Builds a simulation; see the module for an example.
pub struct Simulation {
    blueprint: Blueprint,
    seed: u64,
    faults: FaultPlan,
    random: Option<Dose>,
    limit: Duration,
    training: Option<Duration>,
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
        })
    }

    /// Seeds the network, jitter and delays of the world; the federation's own seed stays the topology's.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
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

    /// Trains with trainers of your own instead of the built-in model.
    #[must_use]
    pub fn trainer<T: Trainer + 'static>(
        mut self,
        make: impl Fn(&NodeId) -> T + Send + Sync + 'static,
    ) -> Self {
        self.blueprint.trainer(make);
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

    /// The plan as it stands.
    pub fn plan(&self) -> &Plan {
        &self.blueprint.plan
    }

    /// Runs to the end of the federation's run.
    ///
    /// # Errors
    /// See [`SimulationError`]. A run that ends with a reason of its own (quorum never met, for instance) is no error: see
    /// [`SimulationReport::finished`].
    pub fn run(self) -> Result<SimulationReport, SimulationError> {
        self.blueprint.check_rules()?;
        let faults = self.fault_plan();
        faults.check(self.plan())?;
        let stage = Arc::new(self.stage()?);
        let world = SimWorld::new(self.seed);
        world.set_limit(self.limit);
        if let Some(training) = self.training {
            world.set_training(training, TRAINING_SPREAD);
        }
        let scene = stage.clone();
        let crews = Crews::default();
        let cast = crews.clone();
        let outcome =
            world.run(move |world| async move { scene.play(&world, &cast, &faults).await })?;
        let finished = outcome?;
        let events = std::mem::take(&mut *stage.record.events());
        let violations = check::violations(&stage.plan, &events);
        Ok(SimulationReport {
            finished,
            rounds: stage.record.ledger.rounds_from(0),
            trace_hash: trace_hash(world.trace_hash(), &events),
            virtual_time: Duration::from_micros(world.now().0),
            violations,
            events,
        })
    }
}

impl Simulation {
    fn stage(&self) -> Result<Theatre, SimulationError> {
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
        let papers = |node: &tombolo_core::plan::NodePlan| (node.id.clone(), Papers::default());
        Ok(Theatre {
            configuration,
            rule,
            seed: self.seed,
            memory: Memory::new(),
            census: Census::default(),
            record: Arc::default(),
            papers: plan.nodes().map(papers).collect(),
            plan,
            trainer,
            layout,
        })
    }
}

/// One hash over everything that happened: packets (time, kind, size, ends) and events.
fn trace_hash(packets: u64, events: &[(Micros, Event)]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&packets.to_le_bytes());
    for (at, event) in events {
        hasher.update(&at.0.to_le_bytes());
        hasher.update(&serde_json::to_vec(event).unwrap_or_default());
    }
    u64::from_le_bytes(
        hasher.finalize().as_bytes()[..8]
            .try_into()
            .expect("a hash has 32 bytes"),
    )
}

/// What came of a simulation.
#[derive(Debug, Clone)]
pub struct SimulationReport {
    /// The last line.
    pub finished: Finished,
    /// Every round that ended, in order.
    pub rounds: Vec<RoundRecord>,
    /// Equal for equal seeds, topologies and versions.
    pub trace_hash: u64,
    /// How long it took in virtual time.
    pub virtual_time: Duration,
    /// Invariants that were violated, in words; none unless there is a bug.
    pub violations: Vec<String>,
    /// Everything that was reported, with its virtual time.
    pub events: Vec<(Micros, Event)>,
}

impl SimulationReport {
    /// Every round that ended, in order.
    pub fn rounds(&self) -> &[RoundRecord] {
        &self.rounds
    }
}
