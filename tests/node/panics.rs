//! Every type of actor panics in the middle of rounds, on every kind of node: it is rebuilt, the rounds commit with everyone, and the model
//! ends as if nothing had happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

use tombolo_actors::crew::Crew;
use tombolo_actors::shell::TellError;
use tombolo_core::event::{Event, RoundState};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::Task;

use crate::stand::{LIMIT, PINNED, Prank, Tiny, federation, node, run, topology, within_limit};

/// Which actor panics: type, node, and the peer if there is one per peer.
#[derive(Debug, Clone)]
struct Victim {
    actor: &'static str,
    node: NodeId,
    peer: Option<NodeId>,
}

impl Victim {
    fn key(&self) -> String {
        match &self.peer {
            Some(peer) => format!("{} {peer}", self.node),
            None => self.node.to_string(),
        }
    }

    fn panic(&self, crews: &BTreeMap<NodeId, Crew>) -> Result<(), TellError> {
        let crew = &crews[&self.node];
        match (self.actor, &self.peer) {
            ("Link", Some(peer)) => crew.links[peer].inject_panic("injected"),
            ("Heartbeat", Some(peer)) => crew.heartbeats[peer].inject_panic("injected"),
            ("ClockSync", Some(peer)) => crew.clock_syncs[peer].inject_panic("injected"),
            (actor, _) => crew.inject_panic(actor, "injected"),
        }
    }
}

fn victim(actor: &'static str, of: &str) -> Victim {
    Victim {
        actor,
        node: node(of),
        peer: None,
    }
}

const EACH: [&str; 5] = ["Node", "Quic", "Verbs", "Collective", "Checkpoint"];

/// The coordinator's node, another gateway, an inner node; and links of every kind from both of their ends.
fn one_of_each_kind() -> Vec<Victim> {
    let mut victims = vec![
        victim("Coordinator", "hq/gate"),
        victim("Aggregate", "hq/gate"),
    ];
    for of in ["hq/gate", "plant/gate", "plant/c"] {
        victims.extend(EACH.map(|actor| victim(actor, of)));
    }
    let pairs = [
        ("hq/gate", "plant/gate"),
        ("plant/gate", "hq/gate"),
        ("plant/gate", "plant/c"),
        ("plant/c", "plant/gate"),
        ("plant/c", "plant/d"),
    ];
    for (of, peer) in pairs {
        for actor in ["Link", "Heartbeat", "ClockSync"] {
            let peer = Some(node(peer));
            victims.push(Victim {
                peer,
                ..victim(actor, of)
            });
        }
    }
    victims
}

/// In each round one victim panics, when `moment` is first true of an event of that round.
fn rounds_survive(victims: &[Victim], moment: fn(&Event) -> Option<Round>) {
    // The first one may have had its moment before anybody listens; the last one is undisturbed.
    let rounds = victims.len() as Round + 2;
    let toml = topology(rounds, PINNED);
    let (undisturbed, _) = run(&toml, |_| Tiny::new());
    assert!(undisturbed.succeeded());

    let (_folder, federation) = federation(&toml);
    let (mut told, gate) = (Told::default(), Gate::default());
    let prank = gate.clone().prank();
    let (report, restarted, done) = within_limit(async {
        let federation = federation.trainer(move |_| Tiny::with(prank.clone()));
        let running = federation.spawn().await.unwrap();
        let mut events = running.events();
        let crews: BTreeMap<NodeId, Crew> = running
            .nodes()
            .map(|node| (node.clone(), running.crew(node).unwrap().clone()))
            .collect();
        let (mut restarted, mut done, mut last) = (Vec::new(), 0, 0);
        let inject = async {
            gate.open(1);
            loop {
                let event = events.recv().await.expect("the listener keeps up");
                told.hear(&event);
                match event {
                    Event::ActorRestarted {
                        actor, key, reason, ..
                    } => {
                        restarted.push((actor, key, reason));
                        if restarted.len() == victims.len() {
                            gate.open(Round::MAX);
                        } else if restarted.len() == done {
                            gate.open(last + 1);
                        }
                    }
                    Event::Finished(_) => return,
                    event => {
                        let Some(round) = moment(&event).filter(|round| *round > last) else {
                            continue;
                        };
                        if let Some(victim) = victims.get(done) {
                            victim.panic(&crews).unwrap();
                            (done, last) = (done + 1, round);
                        }
                    }
                }
            }
        };
        let (report, ()) = tokio::join!(running.run(), inject);
        (report.unwrap(), restarted, done)
    });
    assert_eq!(done, victims.len(), "enough rounds had their moment");
    for victim in victims {
        let expected = (victim.actor.to_owned(), victim.key(), "injected".to_owned());
        assert!(restarted.contains(&expected), "{victim:?}: {restarted:?}");
    }
    assert_eq!(restarted.len(), victims.len(), "nothing else panicked");
    let ends = |report: &tombolo::federation::Report| -> Vec<(Round, RoundState, Hash)> {
        let records = report.rounds.iter();
        records
            .map(|record| (record.round, record.state, record.model_hash))
            .collect()
    };
    assert_eq!(ends(&report), ends(&undisturbed), "{:?}", report.rounds);
    assert_eq!(report.finished.model_hash, undisturbed.finished.model_hash);
}

/// The last round that may be trained. The next one waits until the victim of this one has been rebuilt: however late its listener runs, a
/// test is not overtaken by the federation.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<Round>, Condvar)>);

impl Gate {
    fn open(&self, round: Round) {
        *self.0.0.lock().unwrap() = round;
        self.0.1.notify_all();
    }

    fn prank(self) -> Prank {
        Arc::new(move |task: &Task, _: &mut [f32]| {
            let (last, opened) = &*self.0;
            let closed = |last: &mut Round| *last < task.round;
            let last = last.lock().unwrap();
            drop(opened.wait_timeout_while(last, LIMIT, closed).unwrap());
            Ok(None)
        })
    }
}

/// What happened last, for a test that fails.
#[derive(Default)]
struct Told(std::collections::VecDeque<String>);

impl Told {
    fn hear(&mut self, event: &Event) {
        if self.0.len() == 60 {
            self.0.pop_front();
        }
        self.0.push_back(format!("{event:?}"));
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|event| eprintln!("{event}"));
        }
    }
}

#[test]
fn while_nodes_train() {
    rounds_survive(&one_of_each_kind(), |event| match event {
        Event::TrainingStarted { round, .. } => Some(*round),
        _ => None,
    });
}

#[test]
fn while_updates_are_measured() {
    rounds_survive(&one_of_each_kind(), |event| match event {
        Event::UpdateExported { round, .. } => Some(*round),
        _ => None,
    });
}

#[test]
fn while_reports_come_in() {
    rounds_survive(&one_of_each_kind(), |event| match event {
        Event::Reported { round, .. } => Some(*round),
        _ => None,
    });
}

#[test]
fn while_updates_are_folded() {
    rounds_survive(&one_of_each_kind(), |event| match event {
        Event::Weighed { round, .. } => Some(*round),
        _ => None,
    });
}

#[test]
fn while_the_round_is_closed() {
    rounds_survive(&one_of_each_kind(), |event| match event {
        Event::Acknowledged { round, .. } => Some(*round),
        _ => None,
    });
}

#[test]
fn while_the_next_model_goes_out() {
    rounds_survive(&one_of_each_kind(), |event| match event {
        Event::ModelAdopted { round, .. } => Some(*round),
        _ => None,
    });
}

#[test]
fn every_single_actor_may_panic() {
    let (_folder, federation) = federation(&topology(1, PINNED));
    let plan = federation.plan().clone();
    let mut victims = Vec::new();
    for planned in plan.nodes() {
        let of = planned.id.as_str();
        victims.extend(EACH.map(|actor| victim(actor, of)));
        for peer in plan.peers(&planned.id) {
            for actor in ["Link", "Heartbeat", "ClockSync"] {
                let peer = Some(peer.clone());
                victims.push(Victim {
                    peer,
                    ..victim(actor, of)
                });
            }
        }
    }
    assert_eq!(victims.len(), 6 * 5 + 3 * 14);
    rounds_survive(&victims, |event| match event {
        Event::RoundOpened { round, .. } => Some(*round),
        _ => None,
    });
}
