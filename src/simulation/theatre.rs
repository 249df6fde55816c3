//! What a simulation is played on: one world, one fabric, and the nodes' real actors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tombolo_actors::coordinator::TrainerFactory;
use tombolo_actors::crew::{Crew, Kit, RuleFactory};
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::event::{Event, Finished};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::time::Micros;
use tombolo_fabric::VerbsProvider;
use tombolo_fabric::memory::Memory;

use super::SimulationError;
use super::inflict::{Phase, Weather, timeline};
use super::plan::FaultPlan;
use crate::federation::Ledger;
use crate::identity::NodeIdentity;
use crate::identity::papers::Papers;
use crate::sim::SimWorld;

/// How long nodes may take, in virtual time, to hear that the run is over.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// What happened, as it happens.
#[derive(Default)]
pub(super) struct Record {
    events: Mutex<Vec<(Micros, Event)>>,
    pub ledger: Ledger,
}

impl Record {
    pub fn events(&self) -> MutexGuard<'_, Vec<(Micros, Event)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all nodes of a simulation share.
pub(super) struct Theatre {
    pub plan: Arc<Plan>,
    pub configuration: Hash,
    pub layout: Layout,
    pub trainer: TrainerFactory,
    pub rule: RuleFactory,
    pub seed: u64,
    pub memory: Memory,
    pub census: Census,
    pub record: Arc<Record>,
    /// The certificates that nodes show.
    pub papers: BTreeMap<NodeId, Papers>,
}

/// The actors of each node that was started; of one that is down, its last ones.
pub(super) type Crews = Rc<RefCell<BTreeMap<NodeId, Crew>>>;

impl Theatre {
    /// Plays a run to its end, with everything that goes wrong in it.
    pub async fn play(
        &self,
        world: &SimWorld,
        crews: &Crews,
        faults: &FaultPlan,
    ) -> Result<Finished, SimulationError> {
        for node in self.plan.nodes() {
            world.env(&node.id);
        }
        world.link_as_planned(&self.plan);
        let memory = self.memory.clone();
        world.on_crash(move |node| memory.crash(node.as_str()));
        for node in self.plan.nodes() {
            self.start(world, crews, &node.id)?;
        }
        let mut weather = Weather::new(self, world, crews);
        for (at, nth, phase) in timeline(faults) {
            let wait = (Micros::default() + at).since(world.now());
            tokio::select! {
                biased;
                _ = self.record.ledger.finished() => break,
                () = world.sleep(wait) => {}
            }
            let fault = &faults.faults[nth].fault;
            match phase {
                Phase::Begins => weather.begin(nth, fault)?,
                Phase::Ends => weather.end(nth)?,
            }
        }
        let finished = self.record.ledger.finished().await;
        self.leave(world, crews).await;
        Ok(finished)
    }

    /// Starts a node's actors on the view of the world that it has now.
    pub fn start(
        &self,
        world: &SimWorld,
        crews: &Crews,
        node: &NodeId,
    ) -> Result<(), SimulationError> {
        let crew = self.crew(world, node)?;
        crews.borrow_mut().insert(node.clone(), crew);
        Ok(())
    }

    fn crew(&self, world: &SimWorld, node: &NodeId) -> Result<Crew, SimulationError> {
        let env = world.env(node);
        let clock = {
            let env = env.clone();
            Arc::new(move || env.unix_time())
        };
        let papers = self.papers[node].clone();
        let identity = NodeIdentity::seeded_with(&self.plan, node, self.seed, clock, papers)?;
        let device = self
            .memory
            .open(node.as_str())
            .map_err(|error| SimulationError::Start(error.to_string()))?;
        let sink = {
            // The world's clock and not the node's, which may drift: what happened first stands first.
            let (record, clock) = (self.record.clone(), world.clock());
            Arc::new(move |event: Event| {
                record.ledger.record(&event);
                record.events().push((clock(), event));
            })
        };
        let stage = Stage {
            node: node.clone(),
            env,
            plan: self.plan.clone(),
            events: sink,
            census: self.census.clone(),
        };
        Crew::start(Kit {
            stage,
            identity,
            device,
            layout: self.layout.clone(),
            trainer: self.trainer.clone(),
            rule: self.rule.clone(),
            configuration: self.configuration,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        })
        .map_err(|error| SimulationError::Start(error.to_string()))
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
