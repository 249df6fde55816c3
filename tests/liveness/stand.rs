//! The gateways of two domains, `plant/gate` dials `hq/gate`, and what they report of each other.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tombolo::identity::papers::Papers;
use tombolo::identity::{Clock, NodeIdentity};
use tombolo::topology;
use tombolo_actors::aggregate::Rule;
use tombolo_actors::crew::{Crew, Kit, RuleFactory};
use tombolo_actors::env::Env;
use tombolo_actors::identity::Identity;
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::aggregate;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::time::Micros;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};
use tombolo_fabric::VerbsProvider;
use tombolo_fabric::memory::Memory;

pub fn hq() -> NodeId {
    "hq/gate".parse().unwrap()
}

pub fn plant() -> NodeId {
    "plant/gate".parse().unwrap()
}

/// Both nodes, and a `[heartbeat]` table of theirs.
pub fn plan(heartbeat: &str) -> Arc<Plan> {
    let text = format!(
        "[federation]\nname = \"small\"\nrounds = 99999\ncoordinator = \"hq/gate\"\n\
         [round]\nquorum = \"all\"\ndeadline = \"1h\"\n[aggregator]\nkind = \"fedavg\"\n\
         [[domain]]\nname = \"hq\"\nnodes = [\"gate\"]\n\
         [[domain]]\nname = \"plant\"\nnodes = [\"gate\"]\n[heartbeat]\n{heartbeat}\n"
    );
    Arc::new(topology::parse("small.toml", &text, Path::new(".")).unwrap())
}

/// What was reported, by whichever node, and when.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<(Micros, Event)>>>);

impl Log {
    /// When something was first reported since then.
    pub fn first(&self, since: Micros, wanted: impl Fn(&Event) -> bool) -> Option<(Micros, Event)> {
        let events = self.0.lock().unwrap();
        let mut later = events.iter().filter(|(at, _)| *at >= since);
        later.find(|(_, event)| wanted(event)).cloned()
    }

    /// Every word about a peer that is not there.
    pub fn troubles(&self) -> Vec<(Micros, Event)> {
        let trouble = |event: &Event| {
            matches!(
                event,
                Event::PeerSuspected { .. }
                    | Event::PeerLost { .. }
                    | Event::PeerOverdue { .. }
                    | Event::LinkDown { .. }
                    | Event::LinkRefused { .. }
            )
        };
        let events = self.0.lock().unwrap();
        let found = events.iter().filter(|(_, event)| trouble(event));
        found.cloned().collect()
    }
}

/// Every event of a node since then.
impl Log {
    pub fn of(&self, since: Micros, wanted: impl Fn(&Event) -> bool) -> Vec<(Micros, Event)> {
        let events = self.0.lock().unwrap();
        let later = events.iter().filter(|(at, _)| *at >= since);
        later.filter(|(_, event)| wanted(event)).cloned().collect()
    }
}

pub fn suspected(by: NodeId) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::PeerSuspected { node, .. } if *node == by)
}

pub fn link_down(at: NodeId) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::LinkDown { node, .. } if *node == at)
}

pub fn link_up(at: NodeId) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::LinkUp { node, .. } if *node == at)
}

/// Starts a node.
pub fn start(
    env: &Arc<dyn Env>,
    plan: &Arc<Plan>,
    node: &NodeId,
    memory: &Memory,
    listen: SocketAddr,
    log: &Log,
    papers: &Papers,
) -> Crew {
    let identity = NodeIdentity::seeded_with(plan, node, 1, clock_of(env), papers.clone()).unwrap();
    start_as(env, plan, identity, memory, listen, log)
}

/// The wall clock of a node.
pub fn clock_of(env: &Arc<dyn Env>) -> Clock {
    let env = env.clone();
    Arc::new(move || env.unix_time())
}

/// Starts a node with an identity of its own.
pub fn start_as(
    env: &Arc<dyn Env>,
    plan: &Arc<Plan>,
    identity: Arc<dyn Identity>,
    memory: &Memory,
    listen: SocketAddr,
    log: &Log,
) -> Crew {
    let node = &identity.node().clone();
    let sink = {
        let (log, env) = (log.clone(), env.clone());
        Arc::new(move |event| log.0.lock().unwrap().push((env.now(), event)))
    };
    let rule: RuleFactory = {
        let plan = plan.clone();
        Arc::new(move || Rule::Trait(aggregate::build(&plan.aggregator).unwrap()))
    };
    Crew::start(Kit {
        stage: Stage {
            node: node.clone(),
            env: env.clone(),
            plan: plan.clone(),
            events: sink,
            census: Census::default(),
            denials: Default::default(),
        },
        identity,
        device: memory.open(node.as_str()).unwrap(),
        layout: One.layout(),
        trainer: Arc::new(|_| Ok(Box::new(One) as Box<dyn Trainer>)),
        rule,
        configuration: Hash(topology::config_hash(plan)),
        topology: Hash(topology::config_hash(plan)),
        ahead: None,
        meeting: None,
        run: Hash::default(),
        told: None,
        listen,
    })
    .unwrap()
}

/// A model of one parameter.
struct One;

impl Trainer for One {
    fn layout(&self) -> Layout {
        Layout::new([("one", vec![1])]).unwrap()
    }

    fn initialize(&mut self, _: u64, _: &mut [f32]) -> Result<(), TrainError> {
        Ok(())
    }

    fn train(&mut self, _: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        parameters[0] += 1.0;
        Ok(Trained {
            samples: 1,
            loss: 1.0,
            steps: 1,
            learning_rate: 1.0,
        })
    }

    fn evaluate(&mut self, _: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: 1.0,
            loss: 1.0,
        })
    }
}
