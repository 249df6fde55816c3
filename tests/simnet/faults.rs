//! Crashes, partitions and narrow paths, on real quinn.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo::sim::{LinkModel, SimWorld, TraceKind};
use tombolo_actors::env::{Class, Env};
use tombolo_core::ids::NodeId;

use crate::echo::{connect, dial, endpoint, serve, tls};
use crate::node;

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A node with a task, a task of that task, an actor, and an endpoint. The result counts what of it is alive.
fn busy(env: &Arc<dyn Env>) -> Arc<()> {
    let alive = Arc::new(());
    let (tokens, run) = ([alive.clone(), alive.clone(), alive.clone()], env.clone());
    env.spawn(
        Class::Node,
        Box::new(move || {
            Box::pin(async move {
                let [outer, inner, actor] = tokens;
                let _socket = endpoint(&*run, "0.0.0.0:4433", Some(tls().server));
                let _address = actix::Actor::start(Ticking { _alive: actor });
                tokio::task::spawn_local(async move {
                    std::future::pending::<()>().await;
                    drop(inner);
                });
                std::future::pending::<()>().await;
                drop(outer);
            })
        }),
    );
    alive
}

struct Ticking {
    _alive: Arc<()>,
}

impl actix::Actor for Ticking {
    type Context = actix::Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        use actix::AsyncContext;
        context.run_interval(Duration::from_millis(10), |_, _| ());
    }
}

#[test]
fn a_crash_ends_exactly_that_nodes_tasks_and_a_restart_begins_anew() {
    SimWorld::new(1)
        .run(|world| async move {
            let (a, b) = (node("d/a"), node("d/b"));
            let (old, other) = (world.env(&a), world.env(&b));
            let (mine, theirs) = (busy(&old), busy(&other));
            world.sleep(seconds(1)).await;
            assert_eq!(
                (Arc::strong_count(&mine), Arc::strong_count(&theirs)),
                (4, 4)
            );
            old.files().replace("kept", &[b"1"]).unwrap();
            world.crash(&a);
            world.sleep(Duration::from_micros(1)).await;
            assert_eq!(
                (Arc::strong_count(&mine), Arc::strong_count(&theirs)),
                (1, 4)
            );
            // The dead view is of no use, and does no harm.
            assert!(old.bind("0.0.0.0:1".parse().unwrap()).is_err());
            assert!(old.files().replace("kept", &[b"2"]).is_err());
            assert!(old.advertise(&a, "[::1]:1".parse().unwrap()).is_err());
            let late = busy(&old);
            world.sleep(seconds(1)).await;
            assert_eq!(Arc::strong_count(&late), 1);
            // The port is free again, and the disk is as it was.
            let fresh = world.restart(&a);
            let again = busy(&fresh);
            world.sleep(seconds(1)).await;
            assert_eq!(Arc::strong_count(&again), 4);
            assert_eq!(fresh.files().read("kept").unwrap(), b"1");
            world.forget(&a);
            assert!(fresh.files().read("kept").is_err());
            assert!(
                world
                    .events()
                    .iter()
                    .any(|event| event.kind == TraceKind::Crash)
            );
        })
        .unwrap();
}

#[test]
fn a_restarted_server_is_noticed_within_a_round_trip_and_serves_again() {
    SimWorld::new(2)
        .run(|world| async move {
            let (server, client) = (node("a/gate"), node("b/gate"));
            let tls = tls();
            serve(&world.env(&server), &server, "0.0.0.0:4433", &tls);
            world.sleep(Duration::from_millis(1)).await;
            let seen = dial(&world.env(&client), &server, &tls);
            world.sleep(seconds(10)).await;
            let before = seen.echoes();
            assert!(before >= 18, "{before}");
            world.crash(&server);
            world.sleep(seconds(1)).await;
            serve(&world.restart(&server), &server, "0.0.0.0:4433", &tls);
            world.sleep(seconds(9)).await;
            let log = seen.log.lock().unwrap().clone();
            let [up, lost, again] = &log[..] else {
                panic!("{log:?}");
            };
            assert_eq!((up.1.as_str(), again.1.as_str()), ("up", "up"));
            // Half a second until the next datagram, and a round trip of 42 ms at most, until the next send sees it.
            assert!(
                lost.1.contains("reset") || lost.1.contains("lost"),
                "{log:?}"
            );
            assert!(lost.0 < Duration::from_millis(12_100), "{log:?}");
            assert!(seen.echoes() > before + 10);
        })
        .unwrap();
}

#[test]
fn partitions_stop_traffic_each_way_and_heal() {
    SimWorld::new(3)
        .run(|world| async move {
            let (server, client) = (node("a/gate"), node("b/gate"));
            let (servers, clients) = ([server.clone()], [client.clone()]);
            let tls = tls();
            serve(&world.env(&server), &server, "0.0.0.0:4433", &tls);
            world.sleep(Duration::from_millis(1)).await;
            let seen = dial(&world.env(&client), &server, &tls);
            let received = |from: &NodeId, to: &NodeId| world.statistics(from, to).received;
            for both in [true, false] {
                world.sleep(seconds(10)).await;
                let before = seen.echoes();
                assert!(before > 0);
                if both {
                    world.partition(&servers, &clients);
                } else {
                    world.cut(&servers, &clients);
                }
                let counts = (received(&client, &server), received(&server, &client));
                world.sleep(seconds(10)).await;
                assert_eq!(seen.echoes(), before, "no echo passes");
                assert_eq!(received(&server, &client), counts.1);
                assert_eq!(
                    received(&client, &server) == counts.0,
                    both,
                    "the other way"
                );
                world.heal(&servers, &clients);
                world.sleep(seconds(10)).await;
                assert!(seen.echoes() >= before + 10, "{} {before}", seen.echoes());
            }
        })
        .unwrap();
}

#[test]
fn a_stream_fills_a_path_with_a_rate_to_within_five_percent() {
    for rate in [5_000_000u64, 50_000_000] {
        let world = SimWorld::new(4);
        world
            .run(move |world| async move {
                let (server, client) = (node("a/gate"), node("b/gate"));
                let model = LinkModel {
                    rate: Some(rate),
                    latency: Duration::from_millis(10),
                    jitter: Duration::ZERO,
                    queue: 256 << 10,
                    ..LinkModel::wan()
                };
                world.link(&server, &client, model);
                let tls = tls();
                let read = serve(&world.env(&server), &server, "0.0.0.0:4433", &tls);
                world.sleep(Duration::from_millis(1)).await;
                let env = world.env(&client);
                let (run, to) = (env.clone(), server.clone());
                env.spawn(
                    Class::Gateway,
                    Box::new(move || {
                        Box::pin(async move {
                            let endpoint = endpoint(&*run, "0.0.0.0:0", None);
                            let connection = connect(&run, &endpoint, &to, &tls).await.unwrap();
                            let mut stream = connection.open_uni().await.unwrap();
                            let block = vec![1; 64 << 10];
                            while stream.write_all(&block).await.is_ok() {}
                        })
                    }),
                );
                // Past slow start.
                world.sleep(seconds(5)).await;
                let (bytes, before) = (
                    read.load(Ordering::Relaxed),
                    world.statistics(&client, &server),
                );
                world.sleep(seconds(20)).await;
                let after = world.statistics(&client, &server);
                let wire = (after.received_bytes - before.received_bytes)
                    + 28 * (after.received - before.received);
                let share = (wire * 8) as f64 / 20.0 / rate as f64;
                assert!(
                    (0.95..=1.0001).contains(&share),
                    "{share} of {rate} on the wire"
                );
                let goodput = ((read.load(Ordering::Relaxed) - bytes) * 8) as f64 / 20.0;
                // Headers of IP, UDP and QUIC take four percent.
                assert!(goodput > 0.9 * rate as f64, "{goodput} of {rate}");
            })
            .unwrap();
    }
}

#[test]
fn ports_belong_to_one_socket_and_addresses_to_one_name() {
    SimWorld::new(5)
        .run(|world| async move {
            let (a, b) = (world.env(&node("d/a")), world.env(&node("d/b")));
            let bound = |env: &Arc<dyn Env>, at: &str| env.bind(at.parse().unwrap());
            let first = bound(&a, "0.0.0.0:5").unwrap();
            let taken = bound(&a, "127.0.0.1:5").unwrap_err();
            assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
            let local = first.0.local_addr().unwrap();
            assert_ne!(
                local.ip(),
                bound(&b, "0.0.0.0:5").unwrap().0.local_addr().unwrap().ip()
            );
            drop(first);
            assert_eq!(bound(&a, "[::]:5").unwrap().0.local_addr().unwrap(), local);
            let (one, two) = (bound(&a, "[::]:0").unwrap(), bound(&a, "[::]:0").unwrap());
            assert_ne!(one.0.local_addr().unwrap(), two.0.local_addr().unwrap());
            let unknown = a.resolve(&node("d/b")).await.unwrap_err();
            assert_eq!(unknown.kind(), std::io::ErrorKind::NotFound);
        })
        .unwrap();
}
