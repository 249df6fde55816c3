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

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tombolo_actors::aggregate::Weigh;
use tombolo_actors::crew::{Crew, Kit};
use tombolo_actors::identity::IdentityError;
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::aggregate::Aggregator;
use tombolo_core::event::{Event, Finished, RoundRecord};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::trainer::Trainer;
use tombolo_fabric::VerbsProvider;
use tombolo_fabric::memory::Memory;

use crate::federation::{Blueprint, Built, Ledger, Source};
use crate::identity::NodeIdentity;
use crate::sim::{SimError, SimWorld};
use crate::topology::Diagnosis;

pub use fault::{Fault, Window, crash, forget, heal, panic, partition, restart, slow};

/// How long nodes may take, in virtual time, to hear that the run is over.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// Virtual time after which a run that has not ended is given up, unless told otherwise.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

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
    /// A fault names what the topology does not have.
    #[error("a fault names {0:?}, which is no node or domain of the topology")]
    Unknown(String),
    /// A fault that cannot happen.
    #[error("{0}")]
    Fault(String),
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
    faults: Vec<(Duration, Fault)>,
    limit: Duration,
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
            faults: Vec::new(),
            limit: LIMIT,
        })
    }

    /// Seeds the network, jitter and delays of the world; the federation's own seed stays the topology's.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Lets a fault happen at an instant of virtual time.
    #[must_use]
    pub fn at(mut self, at: Duration, fault: Fault) -> Self {
        self.faults.push((at, fault));
        self
    }

    /// Lets a fault begin and end.
    #[must_use]
    pub fn between(mut self, from: Duration, until: Duration, window: Window) -> Self {
        self.faults.push((from, window.begin));
        self.faults.push((until, window.end));
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
        for (_, fault) in &self.faults {
            fault.check(self.plan())?;
        }
        let first = self.plan().coordinator.clone();
        let built = self.blueprint.build(&first);
        let built = built.map_err(|reason| SimulationError::Trainer {
            node: first,
            reason,
        })?;
        let stage = Arc::new(Theatre {
            built,
            seed: self.seed,
            memory: Memory::new(),
            census: Census::default(),
            record: Arc::default(),
        });
        let world = SimWorld::new(self.seed);
        world.set_limit(self.limit);
        let mut faults = self.faults;
        faults.sort_by_key(|(at, _)| *at);
        let scene = stage.clone();
        let outcome = world.run(move |world| async move { scene.play(&world, faults).await })?;
        let finished = outcome?;
        let events = std::mem::take(
            &mut *stage
                .record
                .events
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let violations = check::violations(&stage.built.plan, &events);
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

#[derive(Default)]
struct Record {
    events: Mutex<Vec<(Micros, Event)>>,
    ledger: Ledger,
}

/// What all nodes of a simulation share.
struct Theatre {
    built: Built,
    seed: u64,
    memory: Memory,
    census: Census,
    record: Arc<Record>,
}

type Crews = Rc<RefCell<BTreeMap<NodeId, Crew>>>;

impl Theatre {
    fn start(&self, world: &SimWorld, node: &NodeId) -> Result<Crew, SimulationError> {
        let env = world.env(node);
        let clock = {
            let env = env.clone();
            Arc::new(move || env.unix_time())
        };
        let identity = NodeIdentity::seeded(&self.built.plan, node, self.seed, clock)?;
        let device = self
            .memory
            .open(node.as_str())
            .map_err(|error| SimulationError::Start(error.to_string()))?;
        let sink = {
            let (record, env) = (self.record.clone(), env.clone());
            Arc::new(move |event: Event| {
                record.ledger.record(&event);
                record
                    .events
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push((env.now(), event));
            })
        };
        let stage = Stage {
            node: node.clone(),
            env,
            plan: self.built.plan.clone(),
            events: sink,
            census: self.census.clone(),
        };
        Crew::start(Kit {
            stage,
            identity,
            device,
            layout: self.built.layout.clone(),
            trainer: self.built.trainer.clone(),
            rule: self.built.rule.clone(),
            configuration: self.built.configuration,
            run: Hash::of_bytes(&self.seed.to_le_bytes()),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        })
        .map_err(|error| SimulationError::Start(error.to_string()))
    }

    async fn play(
        &self,
        world: &SimWorld,
        faults: Vec<(Duration, Fault)>,
    ) -> Result<Finished, SimulationError> {
        for node in self.built.plan.nodes() {
            world.env(&node.id);
        }
        world.link_as_planned(&self.built.plan);
        let memory = self.memory.clone();
        world.on_crash(move |node| memory.crash(node.as_str()));
        let crews: Crews = Rc::default();
        for node in self.built.plan.nodes() {
            let crew = self.start(world, &node.id)?;
            crews.borrow_mut().insert(node.id.clone(), crew);
        }
        for (at, fault) in faults {
            let wait = (Micros::default() + at).since(world.now());
            tokio::select! {
                biased;
                _ = self.record.ledger.finished() => break,
                () = world.sleep(wait) => self.inflict(world, &crews, &fault)?,
            }
        }
        let finished = self.record.ledger.finished().await;
        self.leave(world, &crews).await;
        Ok(finished)
    }

    fn inflict(
        &self,
        world: &SimWorld,
        crews: &Crews,
        fault: &Fault,
    ) -> Result<(), SimulationError> {
        match fault {
            Fault::Crash(node) => {
                let node = fault::node(node);
                world.crash(&node);
                crews.borrow_mut().remove(&node);
            }
            Fault::Restart(node) => {
                let node = fault::node(node);
                crews.borrow_mut().remove(&node);
                world.restart(&node);
                let crew = self.start(world, &node)?;
                crews.borrow_mut().insert(node, crew);
            }
            Fault::Forget(node) => world.forget(&fault::node(node)),
            Fault::Slow(node, factor) => world.slow(&fault::node(node), *factor),
            Fault::Partition(a, b) => {
                let (a, b) = (
                    fault::nodes(&self.built.plan, a),
                    fault::nodes(&self.built.plan, b),
                );
                world.partition(&a, &b);
                self.each_pair(&a, &b, |a, b| self.memory.cut(a.as_str(), b.as_str()));
            }
            Fault::Heal(a, b) => {
                let (a, b) = (
                    fault::nodes(&self.built.plan, a),
                    fault::nodes(&self.built.plan, b),
                );
                world.heal(&a, &b);
                self.each_pair(&a, &b, |a, b| self.memory.heal(a.as_str(), b.as_str()));
            }
            Fault::Panic(node, actor) => {
                if let Some(crew) = crews.borrow().get(&fault::node(node)) {
                    // A full queue has trouble enough.
                    let _ = crew.inject_panic(actor, "a fault of the simulation");
                }
            }
        }
        Ok(())
    }

    fn each_pair(&self, a: &[NodeId], b: &[NodeId], act: impl Fn(&NodeId, &NodeId)) {
        for a in a {
            for b in b.iter().filter(|b| b.domain() == a.domain()) {
                act(a, b);
            }
        }
    }

    /// Gives every node that still runs the time to hear that the run is over.
    async fn leave(&self, world: &SimWorld, crews: &Crews) {
        let left: Vec<_> = crews
            .borrow()
            .values()
            .map(|crew| crew.left.clone())
            .collect();
        let everyone = async {
            for mut left in left {
                let _ = left.wait_for(Option::is_some).await;
            }
        };
        tokio::select! {
            biased;
            () = everyone => {}
            () = world.sleep(LEAVE_LIMIT) => {}
        }
    }
}
