//! What a simulation is played on: one world, one fabric, and the nodes' real actors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
use super::invariant::{Checker, Leftovers, Look};
use super::plan::FaultPlan;
use crate::explain::Past;
use crate::federation::{LINKS_LOOK, Ledger, Paths};
use crate::identity::NodeIdentity;
use crate::identity::papers::Papers;
use crate::sim::SimWorld;

/// How long nodes may take, in virtual time, to hear that the run is over.
const LEAVE_LIMIT: Duration = Duration::from_secs(10);

/// How often it is looked, in virtual time, whether anybody is left.
const LOOK: Duration = Duration::from_secs(10);

/// Nodes that one look is at. Steps of the clock grow with the federation, and so do looks: each at everybody would take longer than all else.
const LOOKED_AT: usize = 32;

/// Where every node listens, until it is replaced by a new machine.
const PORT: u16 = 7000;

/// What happened, and what of it broke a law, as it happens.
pub(super) struct Record {
    log: Mutex<Log>,
    pub ledger: Ledger,
}

pub(super) struct Log {
    pub events: Vec<(Micros, Event)>,
    /// By node, if that is kept: the world's time, and what its process would have recorded by its own.
    pub records: BTreeMap<NodeId, Vec<(Micros, Past)>>,
    pub checker: Checker,
}

impl Record {
    pub fn new(checker: Checker) -> Self {
        Record {
            log: Mutex::new(Log {
                events: Vec::new(),
                records: BTreeMap::new(),
                checker,
            }),
            ledger: Ledger::default(),
        }
    }

    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a node's process would have recorded at a time of its own.
    fn keep(&self, at: Micros, node: &NodeId, own: Micros, event: &Event) {
        let past = Past {
            at: own.0 as f64 / 1e6,
            life: 0,
            event: event.clone(),
        };
        let mut log = self.log();
        log.records
            .entry(node.clone())
            .or_default()
            .push((at, past));
    }

    fn take(&self, at: Micros, event: Event) {
        self.ledger.record(&event);
        let mut log = self.log();
        log.checker.on_event(at, &event);
        log.events.push((at, event));
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
    /// How often each node was replaced by a new machine.
    pub machines: Mutex<BTreeMap<NodeId, u16>>,
    /// How often it was looked at.
    pub looks: AtomicUsize,
    /// How far the clocks of some nodes are ahead when they start.
    pub ahead: BTreeMap<NodeId, Duration>,
    /// Whether links and clocks are measured, and what each node records is kept.
    pub is_observed: bool,
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
        if !self.is_observed {
            return self.perform(world, crews, faults).await;
        }
        let observe = async {
            loop {
                world.sleep(LINKS_LOOK).await;
                self.measure(world, crews);
            }
        };
        let finished = tokio::select! {
            biased;
            finished = self.perform(world, crews, faults) => finished,
            () = observe => unreachable!("it has no end"),
        };
        self.measure(world, crews);
        finished
    }

    /// What a process of a real run says now and then of its links and of its peers' clocks.
    fn measure(&self, world: &SimWorld, crews: &Crews) {
        let now = world.now();
        for (node, crew) in crews.borrow().iter().filter(|(node, _)| world.is_up(node)) {
            let own = crew.now();
            let paths = Paths::new(std::iter::once(crew), |_| true);
            let links = paths.measured(own).map(Event::LinkMeasured);
            for event in links.chain(paths.offsets(own).map(Event::ClockMeasured)) {
                self.record.keep(now, node, own, &event);
                self.record.take(now, event);
            }
        }
    }

    async fn perform(
        &self,
        world: &SimWorld,
        crews: &Crews,
        faults: &FaultPlan,
    ) -> Result<Finished, SimulationError> {
        for node in self.plan.nodes() {
            world.env(&node.id);
            if node.outbound_only {
                world.shut(&node.id);
            }
        }
        let ahead = self.ahead.iter();
        for (node, by) in ahead.filter(|(node, _)| self.plan.node(node).is_some()) {
            world.start_clock_ahead(node, *by);
        }
        world.link_as_planned(&self.plan);
        if self.plan.shares_store() {
            world.keep_records_of(&self.plan.coordinator);
        }
        self.mourn(world);
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
            self.record
                .log()
                .checker
                .on_fault(world.now(), fault, phase);
            match phase {
                Phase::Begins => weather.begin(nth, fault)?,
                Phase::Ends => weather.end(nth)?,
            }
        }
        let finished = tokio::select! {
            biased;
            finished = self.record.ledger.finished() => finished,
            () = self.abandoned(world, crews) => {
                let reason = "the coordinator is gone, and everybody else has given up";
                Finished::without_rounds(reason.to_owned())
            }
        };
        let now = world.now();
        self.record.log().checker.on_end(now, &finished);
        self.leave(world, crews).await;
        Ok(finished)
    }

    /// Ends once nobody is left who could say that the run is over: the coordinator is down, and every other node is, too, or has ended.
    async fn abandoned(&self, world: &SimWorld, crews: &Crews) {
        loop {
            world.sleep(LOOK).await;
            let has_ended = |(node, crew): (&NodeId, &Crew)| {
                let gave_up = *node != self.plan.coordinator && crew.left.borrow().is_some();
                gave_up || !world.is_up(node)
            };
            if crews.borrow().iter().all(has_ended) {
                return;
            }
        }
    }

    /// When a node's power goes, its neighbours cannot READ its memory any more, and its disk is all that is left of it.
    fn mourn(&self, world: &SimWorld) {
        let (memory, record, clock) = (self.memory.clone(), self.record.clone(), world.clock());
        world.on_crash(move |node, disk| {
            memory.crash(node.as_str());
            record.log().checker.on_power_cut(clock(), node, disk);
        });
    }

    /// How full everything is; of a large federation a part, another one each time.
    pub fn look(&self, world: &SimWorld, crews: &Crews) {
        let crews = crews.borrow();
        let parts = crews.len().div_ceil(LOOKED_AT).max(1);
        let part = self.looks.fetch_add(1, Ordering::Relaxed) % parts;
        let mut look = Look::default();
        if part == 0 {
            look.network = world.load();
        }
        for (node, crew) in crews.iter().skip(part).step_by(parts) {
            look.queues.insert(node.clone(), crew.longest_queue());
            let fullest = crew.outboxes.values().map(|outbox| outbox.waiting()).max();
            look.outboxes
                .insert(node.clone(), fullest.unwrap_or_default());
            look.fabric.insert(node.clone(), crew.fabric.stats());
            for (peer, clock) in &crew.clocks {
                let (Some(other), Some((life, estimate))) =
                    (crews.get(peer), clock.estimate(crew.now()))
                else {
                    continue;
                };
                if other.incarnation == life {
                    let truth = other.now().0 as i64 - crew.now().0 as i64;
                    let bound = estimate.bound.as_micros() as u64;
                    let error = estimate.offset_us.abs_diff(truth);
                    look.clocks
                        .insert((node.clone(), peer.clone()), (error, bound));
                }
            }
        }
        self.record.log().checker.on_look(world.now(), &look);
    }

    /// What is left of a world that is over.
    pub fn leftovers(&self, world: &SimWorld) -> Leftovers {
        let (sockets, timers) = world.living();
        let (devices, regions) = self.memory.in_use();
        Leftovers {
            actors: self.census.counts(),
            // One is ours.
            reporters: Arc::strong_count(&self.record) - 1,
            sockets,
            timers,
            devices,
            regions,
        }
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
        let machine = self.machines().get(node).copied().unwrap_or(0);
        let identity = NodeIdentity::seeded_with(&self.plan, node, self.seed, clock, papers)?;
        let device = self
            .memory
            .open(node.as_str())
            .map_err(|error| SimulationError::Start(error.to_string()))?;
        let sink = {
            // The world's clock and not the node's, which may drift: what happened first stands first.
            let (record, clock) = (self.record.clone(), world.clock());
            let (node, env) = (node.clone(), env.clone());
            let is_observed = self.is_observed;
            Arc::new(move |event: Event| {
                if is_observed {
                    record.keep(clock(), &node, env.now(), &event);
                }
                record.take(clock(), event);
            })
        };
        let stage = Stage {
            node: node.clone(),
            env,
            plan: self.plan.clone(),
            events: sink,
            census: self.census.clone(),
            denials: Default::default(),
        };
        Crew::start(Kit {
            stage,
            identity,
            device,
            layout: self.layout.clone(),
            trainer: self.trainer.clone(),
            rule: self.rule.clone(),
            configuration: self.configuration,
            topology: self.configuration,
            ahead: None,
            meeting: None,
            run: Hash::of_bytes(&self.seed.to_le_bytes()),
            told: Some(self.record.ledger.last_round()),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT.saturating_add(machine))),
        })
        .map_err(|error| SimulationError::Start(error.to_string()))
    }

    /// From now on the node is another machine, which listens elsewhere.
    pub fn replace(&self, node: &NodeId) {
        *self.machines().entry(node.clone()).or_default() += 1;
    }

    fn machines(&self) -> MutexGuard<'_, BTreeMap<NodeId, u16>> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
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
