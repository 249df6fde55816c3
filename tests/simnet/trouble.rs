//! What can befall a path or a node for a while: each does what it says, and no more, and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo::sim::{LinkStatistics, PathFault, SimWorld, TraceKind};
use tombolo_actors::env::{Class, Work};
use tombolo_core::ids::NodeId;
use tombolo_core::time::Micros;

use crate::echo::{Seen, dial, serve, tls};
use crate::node;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A server and a client that talk.
async fn talk(world: &SimWorld) -> (NodeId, NodeId, Arc<Seen>) {
    let (server, client) = (node("a/gate"), node("b/gate"));
    let tls = tls();
    serve(&world.env(&server), &server, "0.0.0.0:4433", &tls);
    world.sleep(millis(1)).await;
    let seen = dial(&world.env(&client), &server, &tls);
    (server, client, seen)
}

/// What happens from client to server in ten seconds under a fault, after ten seconds without.
fn under(fault: PathFault) -> (LinkStatistics, u64) {
    let outcome = SimWorld::new(11).run(move |world| async move {
        let (server, client, seen) = talk(&world).await;
        world.sleep(seconds(10)).await;
        let (before, echoes) = (world.statistics(&client, &server), seen.echoes());
        assert_eq!(before.lost + before.duplicated + before.reordered, 0);
        assert_eq!(before.queue_full + before.cut, 0);
        let (from, to) = ([client.clone()], [server.clone()]);
        world.impair(3, &from, &to, fault);
        world.sleep(seconds(10)).await;
        let during = world.statistics(&client, &server);
        let heard = seen.echoes() - echoes;
        world.mend(3);
        world.sleep(seconds(10)).await;
        let (last, back) = (world.statistics(&client, &server), seen.echoes());
        world.sleep(seconds(10)).await;
        let after = world.statistics(&client, &server);
        let troubles = |s: LinkStatistics| (s.lost, s.duplicated, s.reordered, s.too_large, s.cut);
        assert_eq!(troubles(last), troubles(after), "{fault:?} has ended");
        assert!(seen.echoes() >= back + 18, "{fault:?} has ended");
        let mut found = during;
        found.sent -= before.sent;
        found.too_large -= before.too_large;
        (found, heard)
    });
    outcome.unwrap()
}

#[test]
fn each_trouble_of_a_path_does_what_it_says_and_ends() {
    let (found, heard) = under(PathFault::Cut);
    assert_eq!((found.cut, heard), (found.sent, 0));

    let (found, heard) = under(PathFault::Loss(0.4));
    let share = found.lost as f64 / found.sent as f64;
    assert!((0.2..0.6).contains(&share), "{share}");
    assert!((5..18).contains(&heard), "{heard}");

    let (found, heard) = under(PathFault::Duplicate(0.4));
    let share = found.duplicated as f64 / found.sent as f64;
    assert!((0.2..0.6).contains(&share), "{share}");
    // QUIC sees to it that nothing is heard twice.
    assert!((18..=21).contains(&heard), "{heard}");

    let (found, _) = under(PathFault::Reorder(seconds(2)));
    assert!(found.reordered > 5, "{found:?}");
    assert_eq!(found.lost + found.duplicated, 0);

    // A connection that has found a larger MTU goes on with a smaller one.
    let (found, heard) = under(PathFault::Mtu(1250));
    assert_eq!(found.lost, 0);
    assert!((18..=21).contains(&heard), "{heard} {found:?}");
    // Acknowledgements pass, what is larger does not.
    let (found, heard) = under(PathFault::Mtu(60));
    assert_eq!((found.too_large, heard), (20, 0), "{found:?}");
}

#[test]
fn a_delay_and_a_rate_are_felt_to_the_microsecond() {
    let took = |fault: Option<PathFault>| {
        let outcome = SimWorld::new(12).run(move |world| async move {
            let (a, b) = (node("a/x"), node("b/x"));
            let (env, to) = (world.env(&a), world.env(&b));
            let sender = env.bind("[::]:1".parse().unwrap()).unwrap().0;
            let (receiver, _) = to.bind("[::]:2".parse().unwrap()).unwrap();
            let mut model = tombolo::sim::LinkModel::wan();
            model.jitter = Duration::ZERO;
            world.link(&a, &b, model);
            if let Some(fault) = fault {
                world.impair(1, &[a], &[b], fault);
            }
            let transmit = quinn::udp::Transmit {
                destination: receiver.local_addr().unwrap(),
                ecn: None,
                contents: &[0; 972],
                segment_size: None,
                src_ip: None,
            };
            sender.try_send(&transmit).unwrap();
            let mut bytes = [0; 1500];
            let mut meta = [quinn::udp::RecvMeta::default()];
            std::future::poll_fn(|context| {
                let mut buffers = [std::io::IoSliceMut::new(&mut bytes)];
                receiver.poll_recv(context, &mut buffers, &mut meta)
            })
            .await
            .unwrap();
            world.now().0
        });
        outcome.unwrap()
    };
    assert_eq!(took(None), 20_000);
    assert_eq!(took(Some(PathFault::Delay(millis(250)))), 270_000);
    // A thousand bytes with their headers, at eight kilobits a second.
    assert_eq!(took(Some(PathFault::Rate(8_000))), 1_020_000);
}

#[test]
fn a_frozen_node_does_nothing_and_then_goes_on_where_it_was() {
    SimWorld::new(13)
        .run(|world| async move {
            let (server, client, seen) = talk(&world).await;
            let ticks = Arc::new(AtomicU64::new(0));
            let (env, count) = (world.env(&client), ticks.clone());
            env.clone().spawn(
                Class::Node,
                Box::new(move || {
                    Box::pin(async move {
                        loop {
                            env.sleep(millis(100)).await;
                            // tokio's own timers stop, too, and so do tasks of tasks.
                            let inner = tokio::time::sleep(millis(100));
                            tokio::task::spawn_local(inner).await.unwrap();
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                }),
            );
            world.sleep(seconds(10)).await;
            let (before, heard) = (ticks.load(Ordering::Relaxed), seen.echoes());
            assert_eq!(before, 50);
            world.freeze(&client);
            world.sleep(seconds(2)).await;
            assert_eq!(ticks.load(Ordering::Relaxed), before);
            let sent = world.statistics(&client, &server).sent;
            world.sleep(millis(100)).await;
            assert_eq!(world.statistics(&client, &server).sent, sent);
            world.thaw(&client);
            world.sleep(seconds(10)).await;
            // It goes on with the sleep that it was in, not with those it missed; its connection lives.
            let after = ticks.load(Ordering::Relaxed);
            assert!((48..=51).contains(&(after - before)), "{after} {before}");
            assert!(seen.echoes() >= heard + 18);
            assert_eq!(seen.log.lock().unwrap().len(), 1);
            // Longer than the idle timeout of the others: they have given it up, and it dials anew.
            world.freeze(&client);
            world.sleep(seconds(20)).await;
            world.thaw(&client);
            world.sleep(seconds(10)).await;
            let log = seen.log.lock().unwrap().clone();
            assert_eq!(log.last().unwrap().1, "up", "{log:?}");
            assert!(log.len() > 2);
            // A crash ends a freeze.
            world.freeze(&client);
            world.crash(&client);
            let again = dial(&world.restart(&client), &server, &tls());
            world.sleep(seconds(1)).await;
            assert_eq!(again.log.lock().unwrap().len(), 1);
            let kinds: Vec<TraceKind> = world.events().iter().map(|event| event.kind).collect();
            assert!(kinds.contains(&TraceKind::Crash));
        })
        .unwrap();
}

#[test]
fn clocks_that_drift_move_a_nodes_own_time_and_nobody_elses() {
    SimWorld::new(14)
        .run(|world| async move {
            let (server, client, seen) = talk(&world).await;
            world.sleep(seconds(10)).await;
            let env = world.env(&client);
            let unix = env.unix_time();
            world.drift_clocks(&client, 100_000.0, 500.0);
            let (before, heard) = (world.now(), seen.echoes());
            env.sleep(seconds(100)).await;
            let passed = world.now().since(before);
            assert!(passed < millis(99_951) && passed > millis(99_949));
            assert_eq!(env.now(), before + seconds(100));
            assert_eq!(world.env(&server).now(), world.now());
            assert!((unix + 108..unix + 111).contains(&env.unix_time()));
            // QUIC's own timers follow it as well, and it still talks to those whose clocks are right.
            assert!((197..=201).contains(&(seen.echoes() - heard)));
            assert_eq!(seen.log.lock().unwrap().len(), 1);
            world.drift_clocks(&client, 0.0, 0.0);
            let before = env.now();
            world.sleep(seconds(10)).await;
            assert_eq!(env.now().since(before), seconds(10));
        })
        .unwrap();
}

#[test]
fn all_work_of_a_slow_node_is_slow() {
    let took = |factor: f64, work: Work| {
        let world = SimWorld::new(15);
        world.set_training(millis(100), 0.0);
        let outcome = world.run(move |world| async move {
            let name = node("d/a");
            world.slow(&name, factor);
            let env = world.env(&name);
            env.offload(work, Box::new(|| ())).await.unwrap();
            env.now()
        });
        outcome.unwrap()
    };
    for (factor, training, reading) in [(1.0, 100_000, 1_000), (8.0, 800_000, 8_000)] {
        assert_eq!(took(factor, Work::Train), Micros(training));
        assert_eq!(took(factor, Work::Bytes(4_000_000)), Micros(reading));
    }
}
