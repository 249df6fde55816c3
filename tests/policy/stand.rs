//! All nodes of a topology in one simulated world, and what they report.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo::identity::NodeIdentity;
use tombolo::identity::papers::Papers;
use tombolo::sim::SimWorld;
use tombolo::topology;
use tombolo_actors::aggregate::Rule;
use tombolo_actors::crew::{Crew, Kit, RuleFactory};
use tombolo_actors::link;
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::aggregate;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::policy::{Action, Verdict};
use tombolo_core::tensor::{Hash, Layout};
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};
use tombolo_core::wire::Control;
use tombolo_fabric::VerbsProvider;
use tombolo_fabric::memory::Memory;

pub fn n(text: &str) -> NodeId {
    text.parse().unwrap()
}

pub fn plan(text: &str) -> Arc<Plan> {
    Arc::new(
        topology::parse("coast.toml", text, Path::new("."))
            .unwrap_or_else(|error| panic!("{error}")),
    )
}

/// Nodes at work in a world.
pub struct Site {
    pub world: SimWorld,
    pub crews: BTreeMap<NodeId, Crew>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Site {
    /// Starts all nodes of a plan, and those of `strangers`, each of whom goes by a plan of its own in which it is a node.
    pub fn start(world: SimWorld, plan: &Arc<Plan>, strangers: &[(NodeId, Arc<Plan>)]) -> Site {
        let (memory, events) = (Memory::new(), Arc::default());
        let mut crews = BTreeMap::new();
        let all = plan.nodes().map(|node| (node.id.clone(), plan.clone()));
        for (at, (node, plan)) in all.chain(strangers.iter().cloned()).enumerate() {
            let port = 4433 + u16::try_from(at).unwrap();
            let crew = start(&world, &plan, &node, &memory, port, &events);
            crews.insert(node, crew);
        }
        Site {
            world,
            crews,
            events,
        }
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// What a node has refused somebody at its own site. The coordinator also says whom other sites keep out of rounds.
    pub fn denied(&self, at: &NodeId, who: &NodeId, action: Action) -> Vec<Verdict> {
        let events = self.events().into_iter();
        let denied = events.filter_map(|event| match event {
            Event::PolicyDenied { node, verdict } if node == *at => Some(*verdict),
            _ => None,
        });
        denied
            .filter(|verdict| {
                verdict.site == at.domain() && verdict.identity == *who && verdict.action == action
            })
            .collect()
    }

    /// Whether two nodes have a link.
    pub fn is_linked(&self, a: &NodeId, b: &NodeId) -> bool {
        let crew = &self.crews[a];
        crew.wires
            .get(b)
            .is_some_and(|wire| wire.connection().is_some())
    }

    /// Says something to a peer, whatever this node thinks of it.
    pub fn say(&self, from: &NodeId, to: &NodeId, control: Control) {
        let link = &self.crews[from].links[to];
        link.post(link::Message::Send(control)).unwrap();
    }

    /// Waits until everything that was said is acknowledged.
    pub async fn settle(&self) {
        self.world.sleep(Duration::from_secs(5)).await;
        for (node, crew) in &self.crews {
            for (peer, outbox) in &crew.outboxes {
                if self.is_linked(node, peer) {
                    assert_eq!(outbox.waiting().0, 0, "{node} to {peer}");
                }
            }
        }
    }
}

fn start(
    world: &SimWorld,
    plan: &Arc<Plan>,
    node: &NodeId,
    memory: &Memory,
    port: u16,
    events: &Arc<Mutex<Vec<Event>>>,
) -> Crew {
    let env = world.env(node);
    let clock = {
        let env = env.clone();
        Arc::new(move || env.unix_time())
    };
    let sink = {
        let events = events.clone();
        Arc::new(move |event| events.lock().unwrap().push(event))
    };
    let rule: RuleFactory = {
        let plan = plan.clone();
        Arc::new(move || Rule::Trait(aggregate::build(&plan.aggregator).unwrap()))
    };
    Crew::start(Kit {
        stage: Stage {
            node: node.clone(),
            env,
            plan: plan.clone(),
            events: sink,
            census: Census::default(),
            denials: Default::default(),
        },
        identity: NodeIdentity::seeded_with(plan, node, 1, clock, Papers::default()).unwrap(),
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
        listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
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
