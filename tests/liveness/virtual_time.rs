//! In virtual time: how soon the dead are missed, and what does not make anybody look dead.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tombolo::identity::papers::{Papers, Standing};
use tombolo::sim::{LinkModel, SimWorld};
use tombolo_actors::crew::Crew;
use tombolo_actors::link;
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::ladder::Rung;
use tombolo_core::plan::Plan;
use tombolo_core::time::Micros;
use tombolo_fabric::memory::Memory;

use crate::stand::{self, Log, hq, link_down, link_up, plan, plant, suspected};

const DEFAULT: &str = "every = \"500ms\"";

/// A round trip between domains, at most.
const ROUND_TRIP: Duration = Duration::from_millis(42);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Two gateways in a simulated world. They train for an hour, so that nothing but heartbeats passes between them.
struct Strait {
    world: SimWorld,
    plans: [Arc<Plan>; 2],
    memory: Memory,
    log: Log,
    /// The certificates that both show.
    papers: [Papers; 2],
}

impl Strait {
    fn node(&self, index: usize) -> NodeId {
        [hq(), plant()][index].clone()
    }

    fn start(&self, index: usize, port: u16) -> Crew {
        let node = self.node(index);
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let env = self.world.env(&node);
        stand::start(
            &env,
            &self.plans[index],
            &node,
            &self.memory,
            listen,
            &self.log,
            &self.papers[index],
        )
    }

    fn crash(&self, index: usize) {
        self.world.crash(&self.node(index));
        self.memory.crash(self.node(index).as_str());
    }

    fn restart(&self, index: usize, port: u16) -> Crew {
        self.crash(index);
        self.world.restart(&self.node(index));
        self.start(index, port)
    }
}

/// Starts both, with these `[heartbeat]` tables, waits until they are connected, and lets the scenario go on.
fn strait<F: Future<Output = ()> + 'static>(
    seed: u64,
    tables: [&str; 2],
    scenario: impl FnOnce(Arc<Strait>, [Crew; 2]) -> F + 'static,
) {
    strait_showing(seed, tables, Default::default(), scenario);
}

/// The same with certificates that go stale.
fn strait_showing<F: Future<Output = ()> + 'static>(
    seed: u64,
    tables: [&str; 2],
    papers: [Papers; 2],
    scenario: impl FnOnce(Arc<Strait>, [Crew; 2]) -> F + 'static,
) {
    let plans = tables.map(plan);
    let world = SimWorld::new(seed);
    world.set_training(Duration::from_secs(3600), 0.0);
    let outcome = world.run(|world| async move {
        let strait = Arc::new(Strait {
            world,
            plans,
            memory: Memory::new(),
            log: Log::default(),
            papers,
        });
        strait.world.env(&hq());
        strait.world.env(&plant());
        let crews = [strait.start(0, 4433), strait.start(1, 4434)];
        strait.world.sleep(Duration::from_secs(20)).await;
        assert_eq!(strait.log.troubles(), []);
        scenario(strait, crews).await;
    });
    outcome.unwrap();
}

/// "A dead member leaves the count after the heartbeat limit": torchft#63, hivemind#525.
#[test]
fn on_a_quiet_link_the_dead_are_suspected_within_three_periods_of_their_last_heartbeat() {
    for seed in 0..10 {
        strait(seed, [DEFAULT; 2], move |strait, _crews| async move {
            strait.world.sleep(ms(97 * seed)).await;
            let died = strait.world.now();
            strait.crash(1);
            strait.world.sleep(ms(1500) + ROUND_TRIP).await;
            let (at, event) = strait.log.first(died, suspected(hq())).unwrap();
            let Event::PeerSuspected { silent_ms, .. } = event else {
                panic!("{event:?}");
            };
            assert!(
                (1000..=1500).contains(&silent_ms),
                "{silent_ms} ms, seed {seed}"
            );
            assert!(at.since(died) <= ms(1500), "{at:?}, died at {died:?}");
        });
    }
}

#[test]
fn who_stays_away_is_lost_then_overdue_and_who_comes_back_is_told_so() {
    let limits = "restore_limit = \"10s\"";
    strait(1, [limits; 2], |strait, [crew, _]| async move {
        let died = strait.world.now();
        strait.crash(1);
        strait.world.sleep(Duration::from_secs(60)).await;
        let is_lost = |event: &Event| matches!(event, Event::PeerLost { .. });
        let is_overdue = |event: &Event| matches!(event, Event::PeerOverdue { .. });
        let (suspected, _) = strait.log.first(died, suspected(hq())).unwrap();
        let (lost, _) = strait.log.first(died, is_lost).unwrap();
        let (overdue, _) = strait.log.first(died, is_overdue).unwrap();
        assert_eq!(lost.since(suspected).as_secs(), 7);
        assert_eq!(overdue.since(lost).as_secs(), 10);
        let rung = || crew.liveness[&plant()].lock().unwrap().rung();
        assert_eq!(rung(), Rung::Overdue);
        let back = strait.world.now();
        let _crew = strait.restart(1, 4434);
        strait.world.sleep(Duration::from_secs(1)).await;
        let recovered = |event: &Event| matches!(event, Event::PeerRecovered { lost: true, silent_ms, .. } if *silent_ms > 60_000);
        assert!(
            strait.log.first(back, recovered).is_some(),
            "{:?}",
            strait.log.troubles()
        );
        assert_eq!(rung(), Rung::Alive);
    });
}

/// xen-api#5700, hazelcast#4226: a step of the wall clock, an hour either way, makes nobody look dead and costs no connection.
#[test]
fn steps_of_the_wall_clock_evict_nobody() {
    strait(2, [DEFAULT; 2], |strait, _crews| async move {
        for seconds in [3600, -3600, -3600, 3600] {
            for node in [hq(), plant()] {
                strait.world.step_clock(&node, seconds as f64);
                strait.world.sleep(Duration::from_secs(15)).await;
            }
        }
        assert_eq!(strait.log.troubles(), []);
    });
}

/// flower#775, flower#2515, flower#4300: hours without other traffic, and periods that differ between the two, cut nobody off.
#[test]
fn periods_that_differ_are_agreed_upon_and_long_training_cuts_nobody_off() {
    let (fast, slow) = ("every = \"100ms\"", "every = \"20s\"");
    for tables in [[fast, slow], [slow, fast], [slow, slow]] {
        strait(3, tables, |strait, _crews| async move {
            strait.world.sleep(Duration::from_secs(3000)).await;
            assert_eq!(strait.log.troubles(), []);
            let died = strait.world.now();
            strait.crash(1);
            strait.world.sleep(Duration::from_secs(60)).await;
            let (at, _) = strait.log.first(died, suspected(hq())).unwrap();
            assert!(
                at.since(died) > Duration::from_secs(20),
                "the slower one counts: {at:?}"
            );
        });
    }
}

#[test]
fn a_path_with_losses_and_jitter_makes_nobody_look_dead() {
    strait(4, [DEFAULT; 2], |strait, [crew, _]| async move {
        let model = LinkModel {
            loss: 0.05,
            jitter: ms(200),
            reorder: true,
            ..LinkModel::wan()
        };
        strait.world.link(&hq(), &plant(), model);
        strait.world.sleep(Duration::from_secs(3600 - 60)).await;
        let standing = crew.liveness[&plant()]
            .lock()
            .unwrap()
            .standing(strait.world.now());
        // quinn does not send a lost datagram again.
        assert!((0.01..0.15).contains(&standing.loss), "{standing:?}");
        assert!(
            strait.log.troubles().len() <= 1,
            "{:?}",
            strait.log.troubles()
        );
    });
}

/// "A restart takes over within a heartbeat": a node that is there again answers packets of its former life with a stateless reset.
#[test]
fn a_restarted_peer_is_noticed_with_the_next_packet() {
    for index in [0, 1] {
        strait(5, [DEFAULT; 2], move |strait, _crews| async move {
            let (restarted, port, other) = (
                strait.world.now(),
                [4433, 4434][index],
                strait.node(1 - index),
            );
            let _crew = strait.restart(index, port);
            strait.world.sleep(Duration::from_secs(3)).await;
            let (down, event) = strait
                .log
                .first(restarted, link_down(other.clone()))
                .unwrap();
            // The next heartbeat is at most a period away; whoever dials is met sooner.
            assert!(
                down.since(restarted) <= ms(500) + 2 * ROUND_TRIP,
                "{down:?}: {event:?}"
            );
            let (up, _) = strait.log.first(down, link_up(other.clone())).unwrap();
            assert!(
                up.since(restarted) <= ms(1000),
                "{up:?}, restarted at {restarted:?}"
            );
            assert_eq!(strait.log.first(restarted, suspected(other)), None);
            let Event::LinkDown { reason, .. } = event else {
                panic!("{event:?}");
            };
            assert!(reason.contains("reset"), "{reason}");
        });
    }
}

/// flower#3308, NVFlare#1590, arcadedb#4696: the same node on a new address is found at the first retries, long before the old connection
/// would time out, since names are resolved anew at each attempt.
#[test]
fn a_peer_that_comes_back_on_another_address_is_dialled_there() {
    strait(6, [DEFAULT; 2], |strait, _crews| async move {
        let restarted = strait.world.now();
        let _crew = strait.restart(0, 5544);
        strait.world.sleep(Duration::from_secs(10)).await;
        let (suspicion, _) = strait.log.first(restarted, suspected(plant())).unwrap();
        let (up, _) = strait.log.first(suspicion, link_up(plant())).unwrap();
        // With the period in which the process that was there before could still answer.
        assert!(
            up.since(suspicion) <= ms(1500) + 3 * ROUND_TRIP,
            "{up:?}, suspected at {suspicion:?}"
        );
    });
}

/// A connection that carries nothing is let go when its peer is lost, long before it would time out: whoever comes back later is dialled.
#[test]
fn a_lost_peer_that_comes_back_on_another_address_is_dialled_there() {
    let slow = "every = \"20s\"";
    strait(7, [slow; 2], |strait, _crews| async move {
        strait.crash(0);
        strait.world.sleep(Duration::from_secs(100)).await;
        let restarted = strait.world.now();
        let _crew = strait.restart(0, 5544);
        strait.world.sleep(Duration::from_secs(20)).await;
        let (up, _) = strait.log.first(restarted, link_up(plant())).unwrap();
        assert!(
            up.since(restarted) <= Duration::from_secs(8),
            "{up:?}, restarted at {restarted:?}"
        );
    });
}

/// No connection outlives a certificate with which it was made, whichever side's it is; and it is back once there is a good one.
#[test]
fn a_connection_is_cut_at_the_end_of_a_certificate_and_dialled_anew() {
    for side in [0, 1] {
        let papers: [Papers; 2] = Default::default();
        papers[side].show(Standing::Brief);
        let shown = papers[side].clone();
        strait_showing(
            side as u64,
            [DEFAULT; 2],
            papers,
            move |strait, _crews| async move {
                let ends = Micros(60_000_000);
                strait.world.sleep(Duration::from_secs(50)).await;
                for node in [hq(), plant()] {
                    let down = strait.log.first(Micros::default(), link_down(node));
                    let (at, event) = down.expect("it is cut");
                    let Event::LinkDown { reason, .. } = event else {
                        unreachable!("that is what was looked for");
                    };
                    assert!(reason.contains("has expired"), "{reason}");
                    // Its last second belongs to it.
                    assert!(at > ends && at <= ends + ms(1200), "{at:?}");
                }
                let refused = |event: &Event| matches!(event, Event::LinkRefused { reason, .. } if reason.contains("has expired"));
                assert!(strait.log.first(ends, refused).is_some());
                let since = strait.world.now();
                assert!(strait.log.first(ends, link_up(hq())).is_none());
                shown.show(Standing::Good);
                strait.world.sleep(Duration::from_secs(5)).await;
                for node in [hq(), plant()] {
                    assert!(strait.log.first(since, link_up(node)).is_some());
                }
            },
        );
    }
}

/// nats.go#1363, lance#8456: a node that has another certificate replaces its connections, whichever side dials, and nobody misses anything.
#[test]
fn connections_are_replaced_without_a_gap_when_a_certificate_changes() {
    for (seed, side) in [(1, 0), (2, 1), (3, 0), (4, 1)] {
        let papers: [Papers; 2] = Default::default();
        papers[side].show(Standing::Brief);
        let shown = papers[side].clone();
        strait_showing(
            seed,
            [DEFAULT; 2],
            papers,
            move |strait, crews| async move {
                let since = strait.world.now();
                shown.show(Standing::Good);
                let crew = &crews[side];
                for link in crew.links.values() {
                    link.post(link::Message::Renew(Duration::ZERO)).unwrap();
                }
                // Long after the old certificate has ended.
                strait.world.sleep(Duration::from_secs(120)).await;
                assert_eq!(strait.log.troubles(), []);
                let renewed = |event: &Event| matches!(event, Event::LinkRenewed { .. });
                assert_eq!(strait.log.of(since, renewed).len(), 2);
                let until = crew.wires.values().map(|wire| wire.until());
                assert!(until.min().unwrap() > 2_000_000_000);
            },
        );
    }
}
