//! Two processes of one identity, and one that comes back from elsewhere: identity is name and certificate, not address.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo::identity::NodeIdentity;
use tombolo::learn::DigitsTrainer;
use tombolo::sim::SimWorld;
use tombolo::simulation::{Simulation, millis, secs};
use tombolo_actors::aggregate::Rule;
use tombolo_actors::coordinator::TrainerFactory;
use tombolo_actors::crew::{Crew, Kit};
use tombolo_actors::shell::{Census, Stage};
use tombolo_core::event::{Event, RoundRecord};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_fabric::VerbsProvider;
use tombolo_fabric::memory::Memory;

use crate::dropout::COAST;

const SEED: u64 = 7;

/// A heartbeat's period, unless a topology says otherwise.
const PERIOD: Duration = Duration::from_millis(500);

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// A world in which processes may be anybody, anywhere.
#[derive(Clone)]
struct Theatre {
    world: SimWorld,
    plan: Arc<Plan>,
    memory: Memory,
    trainer: TrainerFactory,
    /// When, in the process of which place, what.
    events: Arc<Mutex<Vec<(Micros, NodeId, Event)>>>,
}

impl Theatre {
    fn new(world: SimWorld) -> Self {
        let text = COAST.replace("rounds = 12", "rounds = 900000");
        let plan = Arc::new(Simulation::from_toml(&text).unwrap().plan().clone());
        let of = plan.clone();
        Theatre {
            world,
            memory: Memory::new(),
            trainer: Arc::new(move |node| {
                let made = DigitsTrainer::new(&of, node).map_err(|error| error.to_string())?;
                Ok(Box::new(made))
            }),
            plan,
            events: Arc::default(),
        }
    }

    fn start_everybody(&self) {
        for planned in self.plan.nodes() {
            self.start(planned.id.as_str(), planned.id.as_str());
        }
    }

    /// Starts a process with the certificate of `name` at a place of its own.
    fn start(&self, name: &str, place: &str) -> Crew {
        let (name, place) = (node(name), node(place));
        let env = self.world.restart(&place);
        let clock = {
            let env = env.clone();
            Arc::new(move || env.unix_time())
        };
        let (events, at) = (self.events.clone(), env.clone());
        let stage = Stage {
            node: name.clone(),
            env,
            plan: self.plan.clone(),
            events: Arc::new(move |event| {
                let mut events = events.lock().unwrap();
                events.push((at.now(), place.clone(), event));
            }),
            census: Census::default(),
            denials: Default::default(),
        };
        let rule = self.plan.aggregator.clone();
        Crew::start(Kit {
            identity: NodeIdentity::seeded(&self.plan, &name, SEED, clock).unwrap(),
            stage,
            device: self.memory.open(name.as_str()).unwrap(),
            layout: (self.trainer)(&name).unwrap().layout(),
            trainer: self.trainer.clone(),
            rule: Arc::new(move || Rule::Trait(tombolo_core::aggregate::build(&rule).unwrap())),
            configuration: Hash::default(),
            topology: Hash::default(),
            ahead: None,
            meeting: None,
            run: Hash::default(),
            told: None,
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        })
        .unwrap()
    }

    fn crash(&self, place: &str) {
        self.world.crash(&node(place));
    }

    async fn until(&self, at: Duration) {
        let wait = (Micros::default() + at).since(self.world.now());
        self.world.sleep(wait).await;
    }

    /// What the process of a place reported from then on.
    fn said(&self, place: &str, from: Duration) -> Vec<(Micros, Event)> {
        let (events, place) = (self.events.lock().unwrap(), node(place));
        let said = events
            .iter()
            .filter(|(at, of, _)| *of == place && *at >= Micros::default() + from);
        said.map(|(at, _, event)| (*at, event.clone())).collect()
    }

    /// When the process of a place had a link to a peer, from then on.
    fn up(&self, place: &str, to: &str, from: Duration) -> Option<Duration> {
        let said = self.said(place, from).into_iter();
        let mut ups = said
            .filter(|(_, event)| matches!(event, Event::LinkUp { peer, .. } if *peer == node(to)));
        ups.next().map(|(at, _)| Duration::from_micros(at.0))
    }

    /// Whether the process of a place was refused as a duplicate by a peer, from then on.
    fn is_refused(&self, place: &str, by: &str, from: Duration) -> bool {
        self.said(place, from).iter().any(|(_, event)| match event {
            Event::LinkRefused { peer, reason, .. } => {
                *peer == node(by) && reason.contains("two have the same certificate")
            }
            _ => false,
        })
    }

    fn is_down(&self, place: &str, from: Duration) -> bool {
        let said = self.said(place, from);
        said.iter()
            .any(|(_, event)| matches!(event, Event::LinkDown { .. }))
    }

    /// Every round that ended: nobody counts twice in any.
    fn rounds(&self) -> Vec<RoundRecord> {
        let said = self.said("hq/gate", Duration::ZERO).into_iter();
        let rounds: Vec<RoundRecord> = said
            .filter_map(|(_, event)| match event {
                Event::Round(record) => Some(record),
                _ => None,
            })
            .collect();
        for round in &rounds {
            assert!(round.is_committed(), "{round:#?}");
            let once: BTreeSet<&NodeId> = round.counted.iter().collect();
            assert_eq!(once.len(), round.counted.len(), "{round:#?}");
        }
        rounds
    }
}

fn play<F: Future<Output = ()> + 'static>(seed: u64, scene: impl FnOnce(Theatre) -> F) {
    let world = SimWorld::new(seed);
    let inside = world.clone();
    let played = world.run(move |_| scene(Theatre::new(inside)));
    played.unwrap();
}

/// NVFlare#1590, arcadedb#4696, kubernetes#79268, ractor#103: the first one stays, whoever comes later waits until it is dead; none of them
/// is counted twice, and nobody flaps.
#[test]
fn a_duplicate_of_a_live_node_is_refused_until_that_is_dead() {
    of_a_live_node(SEED);
}

/// The same in any world.
pub fn of_a_live_node(seed: u64) {
    play(seed, |theatre| async move {
        theatre.start_everybody();
        theatre.until(secs(3)).await;
        let twin = theatre.start("plant/d", "plant/twin");
        theatre.until(secs(10)).await;
        for by in ["plant/gate", "plant/c"] {
            assert!(theatre.is_refused("plant/twin", by, secs(3)), "{by}");
            assert_eq!(theatre.up("plant/twin", by, secs(3)), None, "{by}");
        }
        assert!(!theatre.is_down("plant/d", secs(0)), "the first one stays");
        let before = theatre.rounds();
        assert!(before.iter().all(|round| round.counted.len() == 9));

        theatre.crash("plant/d");
        theatre.memory.crash("plant/d");
        drop(twin);
        let twin = theatre.start("plant/d", "plant/twin");
        theatre.until(secs(20)).await;
        let up = theatre.up("plant/twin", "plant/gate", secs(10));
        let up = up.expect("the dead make room");
        assert!(up < secs(10) + PERIOD + millis(500), "{up:?}");
        assert_eq!(theatre.rounds().last().unwrap().counted.len(), 9);

        // Now the first one is the duplicate.
        theatre.start("plant/d", "plant/d");
        theatre.until(secs(30)).await;
        assert!(theatre.is_refused("plant/d", "plant/gate", secs(20)));
        assert_eq!(theatre.up("plant/d", "plant/gate", secs(20)), None);
        assert!(!theatre.is_down("plant/twin", secs(20)));
        assert_eq!(theatre.rounds().last().unwrap().counted.len(), 9);
        drop(twin);
    });
}

/// A node that is started again within the handshake of its life before has no duplicate: that life is dead.
#[test]
fn a_node_that_is_restarted_twice_at_once_is_no_duplicate_of_itself() {
    play(SEED, |theatre| async move {
        theatre.start_everybody();
        let mut at = secs(2);
        for gap in (0..40).map(millis) {
            theatre.until(at).await;
            for start in [at, at + gap] {
                theatre.until(start).await;
                theatre.crash("plant/d");
                theatre.memory.crash("plant/d");
                theatre.start("plant/d", "plant/d");
            }
            theatre.until(at + secs(2)).await;
            for by in ["plant/gate", "plant/c"] {
                let refuses = |(_, event): &(Micros, Event)| matches!(event, Event::LinkRefused { peer, .. } if *peer == node("plant/d"));
                let said = theatre.said(by, at);
                assert!(!said.iter().any(refuses), "{by}, {gap:?} apart: {said:?}");
                assert!(theatre.up("plant/d", by, at + gap).is_some(), "{gap:?}");
            }
            at += secs(2);
        }
    });
}

/// A refused duplicate goes on asking, and so takes over by itself.
#[test]
fn a_duplicate_that_waits_takes_over_when_the_other_dies() {
    play(SEED, |theatre| async move {
        theatre.start_everybody();
        theatre.until(secs(2)).await;
        theatre.start("plant/gate", "plant/twin");
        theatre.until(secs(8)).await;
        assert!(theatre.is_refused("plant/twin", "hq/gate", secs(2)));
        assert!(!theatre.is_down("plant/gate", secs(0)));
        // Its memory stays: the simulated fabric knows owners by name, and would take the twin's as well.
        theatre.crash("plant/gate");
        theatre.until(secs(20)).await;
        // At most the longest wait between two attempts and a period.
        let up = theatre.up("plant/twin", "hq/gate", secs(8));
        let up = up.expect("it took over");
        assert!(up < secs(8) + secs(3) + PERIOD, "{up:?}");
        assert_eq!(theatre.rounds().last().unwrap().counted.len(), 9);
    });
}

/// flower#3308: a node that comes back from a new address is the same node; its peers notice within a heartbeat, wherever they had met it.
#[test]
fn a_node_that_comes_back_from_a_new_address_is_the_same_node() {
    play(SEED, |theatre| async move {
        theatre.start_everybody();
        theatre.until(secs(2)).await;
        // One that dials, and one that is dialled and whose name must be resolved anew.
        for (name, place, from) in [
            ("plant/d", "elsewhere/d", secs(2)),
            ("plant/gate", "elsewhere/gate", secs(12)),
        ] {
            theatre.until(from).await;
            theatre.crash(name);
            theatre.memory.crash(name);
            theatre.start(name, place);
            theatre.until(from + secs(8)).await;
            let up = theatre.up("plant/c", name, from);
            let up = up.expect("its neighbour has it back") - from;
            assert!(up < PERIOD * 4 + secs(1), "{name}: {up:?}");
            let last = theatre.rounds().pop().unwrap();
            assert_eq!((last.counted.len(), last.epoch), (9, 1), "{last:#?}");
        }
    });
}
