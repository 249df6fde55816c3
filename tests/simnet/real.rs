//! The real world: threads, sockets and addresses.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use tombolo::world::{World, WorldOptions};
use tombolo_actors::env::{Class, Env, LocalFuture, OffloadPanicked, Work};
use tombolo_core::plan::{Emulate, LinkPlan, NodePlan};

use crate::echo::{connect, endpoint, serve, tls};
use crate::node;

/// Longer than anything here takes; only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(state: &Path) -> WorldOptions {
    WorldOptions {
        state: state.to_owned(),
        nodes: Vec::new(),
        links: Vec::new(),
        seed: 1,
    }
}

/// Runs a future on a node's arbiter and waits for what it gives.
fn on<T: Send + 'static>(
    env: &Arc<dyn Env>,
    class: Class,
    task: impl FnOnce(Arc<dyn Env>) -> std::pin::Pin<Box<dyn Future<Output = T>>> + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let run = env.clone();
    env.spawn(
        class,
        Box::new(move || {
            let future = task(run);
            Box::pin(async move {
                sender.send(future.await).unwrap();
            }) as LocalFuture
        }),
    );
    receiver.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn each_class_has_a_thread_and_blocking_work_another() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    let env = world.env(&node("d/a")).unwrap();
    let thread = |class| -> ThreadId {
        on(&env, class, |_| {
            Box::pin(async { std::thread::current().id() })
        })
    };
    let (gateway, others) = (thread(Class::Gateway), thread(Class::Node));
    let network = thread(Class::Network);
    assert!(gateway != others && network != gateway && network != others);
    assert_eq!(gateway, thread(Class::Gateway));
    let blocking = on(&env, Class::Node, |env| {
        Box::pin(async move {
            let (sender, receiver) = mpsc::channel();
            let report = move || sender.send(std::thread::current().id()).unwrap();
            env.offload(Work::Train, Box::new(report)).await.unwrap();
            receiver.recv().unwrap()
        })
    });
    assert!(![network, gateway, others].contains(&blocking));
    let panicked = on(&env, Class::Node, |env| {
        Box::pin(async move {
            env.offload(Work::Bytes(1), Box::new(|| panic!("disk on fire")))
                .await
        })
    });
    assert_eq!(panicked, Err(OffloadPanicked("disk on fire".to_owned())));
}

#[test]
fn training_does_not_hold_up_other_work_and_is_bounded() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    let env = world.env(&node("d/a")).unwrap();
    // More trainings than there are threads, all waiting for the gate.
    let (gate, waits) = mpsc::channel::<()>();
    let waits = Arc::new(std::sync::Mutex::new(waits));
    let (started, starts) = mpsc::channel();
    for _ in 0..100 {
        let (waits, started, run) = (waits.clone(), started.clone(), env.clone());
        env.spawn(
            Class::Node,
            Box::new(move || {
                Box::pin(async move {
                    let train = move || {
                        started.send(()).unwrap();
                        let _ = waits.lock().unwrap().recv();
                    };
                    run.offload(Work::Train, Box::new(train)).await.unwrap();
                })
            }),
        );
    }
    for _ in 0..32 {
        starts.recv_timeout(PATIENCE).unwrap();
    }
    on(&env, Class::Gateway, |env| {
        Box::pin(async move { env.offload(Work::Bytes(1), Box::new(|| ())).await.unwrap() })
    });
    assert!(starts.try_recv().is_err(), "a thirty-third training runs");
    drop(gate);
    for _ in 32..100 {
        starts.recv_timeout(PATIENCE).unwrap();
    }
}

#[test]
fn stopping_a_node_ends_all_that_it_started_and_nothing_else() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    let (a, b) = (
        world.env(&node("d/a")).unwrap(),
        world.env(&node("d/b")).unwrap(),
    );
    let start = |env: &Arc<dyn Env>| {
        let alive = Arc::new(());
        for class in [Class::Network, Class::Gateway, Class::Node] {
            let token = alive.clone();
            on(env, class, |env| {
                Box::pin(async move {
                    let endpoint = endpoint(&*env, "127.0.0.1:0", Some(tls().server));
                    // Not through the Env, and still the node's.
                    actix::spawn(async move {
                        let _held = (token, endpoint);
                        std::future::pending::<()>().await;
                    });
                })
            });
        }
        alive
    };
    let (mine, theirs) = (start(&a), start(&b));
    assert_eq!(
        (Arc::strong_count(&mine), Arc::strong_count(&theirs)),
        (4, 4)
    );
    let waiting = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    waiting.block_on(world.stop(&node("d/a")));
    assert_eq!(
        (Arc::strong_count(&mine), Arc::strong_count(&theirs)),
        (1, 4)
    );
    // A new life works; the old view stays dead.
    let again = world.env(&node("d/a")).unwrap();
    assert_eq!(on(&again, Class::Node, |_| Box::pin(async { 7 })), 7);
    let (sender, receiver) = mpsc::channel::<()>();
    a.spawn(
        Class::Node,
        Box::new(move || Box::pin(async move { drop(sender) })),
    );
    assert!(receiver.recv_timeout(PATIENCE).is_err());
    drop(world);
    assert_eq!(Arc::strong_count(&theirs), 1, "the world ends every node");
}

#[test]
fn a_world_may_be_dropped_on_its_own_threads() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    let env = world.env(&node("d/a")).unwrap();
    on(&env, Class::Node, |_| Box::pin(async move { drop(world) }));
}

#[test]
fn the_reset_key_is_made_once_and_readable_by_the_owner_only() {
    let state = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let world = World::new(options(state.path())).unwrap();
        world.env(&node(name)).map(|env| env.reset_key())
    };
    let first = key("d/a").unwrap();
    assert_ne!(first, [0; 64]);
    assert_eq!(first, key("d/a").unwrap());
    assert_ne!(first, key("d/b").unwrap());
    let file = state.path().join("nodes/d.a/reset-key");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    std::fs::write(&file, b"short").unwrap();
    let error = key("d/a").unwrap_err().to_string();
    assert!(
        error.contains("reset-key") && error.contains("5 bytes"),
        "{error}"
    );
}

#[test]
fn a_node_that_comes_back_on_another_port_is_found_by_another_process() {
    let state = tempfile::tempdir().unwrap();
    // Two worlds on one state folder stand for two processes.
    let (ours, theirs) = (
        World::new(options(state.path())).unwrap(),
        World::new(options(state.path())).unwrap(),
    );
    let (server, client) = (node("a/gate"), node("b/gate"));
    let tls = tls();
    let peer = theirs.env(&client).unwrap();
    let waiting = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut ports = Vec::new();
    for _ in 0..2 {
        serve(&ours.env(&server).unwrap(), &server, "127.0.0.1:0", &tls);
        let (to, tls) = (server.clone(), tls.clone());
        let last = ports.last().copied();
        let port = on(&peer, Class::Gateway, move |env| {
            Box::pin(async move {
                let endpoint = endpoint(&*env, "127.0.0.1:0", None);
                loop {
                    // The server may not have written its address yet.
                    match connect(&env, &endpoint, &to, &tls).await {
                        Ok(connection) if Some(connection.remote_address().port()) != last => {
                            return connection.remote_address().port();
                        }
                        _ => env.sleep(Duration::from_millis(5)).await,
                    }
                }
            })
        });
        ports.push(port);
        waiting.block_on(ours.stop(&server));
    }
    assert_ne!(ports[0], ports[1]);
}

#[test]
fn addresses_of_the_topology_are_looked_up_and_win() {
    let state = tempfile::tempdir().unwrap();
    let mut options = options(state.path());
    options.nodes.push(NodePlan {
        id: node("a/gate"),
        listen: Some("127.0.0.1:4000".parse().unwrap()),
        advertise: Some("localhost:4711".to_owned()),
        outbound_only: false,
        slice: None,
    });
    let world = World::new(options).unwrap();
    let env = world.env(&node("a/gate")).unwrap();
    env.advertise(&node("a/gate"), "127.0.0.1:9".parse().unwrap())
        .unwrap();
    let found = on(&env, Class::Node, |env| {
        Box::pin(async move { env.resolve(&node("a/gate")).await.unwrap() })
    });
    assert!(!found.is_empty());
    assert!(
        found
            .iter()
            .all(|at| at.port() == 4711 && at.ip().is_loopback()),
        "{found:?}"
    );
    let missing = on(&env, Class::Node, |env| {
        Box::pin(async move { env.resolve(&node("a/none")).await.unwrap_err().to_string() })
    });
    assert!(
        missing.contains("a/none") && missing.contains("advertise"),
        "{missing}"
    );
}

#[test]
fn a_taken_port_is_an_error_that_names_the_address() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    let env = world.env(&node("d/a")).unwrap();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = env.bind(address).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

/// quinn#1509, sp1-cluster#163, ray#28562: whoever blocks a thread, be it an arbiter or the one that bound the sockets, stops no packet.
#[test]
fn packets_pass_while_everything_else_is_blocked() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    let (server, client) = (node("a/gate"), node("b/gate"));
    let (ours, theirs) = (world.env(&server).unwrap(), world.env(&client).unwrap());
    let tls = tls();
    // This thread has a runtime, which stands still as soon as the sockets are bound.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (answers, dialler) = runtime.block_on(async {
        let answers = endpoint(&*ours, "127.0.0.1:0", Some(tls.server.clone()));
        (answers, endpoint(&*theirs, "127.0.0.1:0", None))
    });
    let (gates, blocked): (Vec<_>, Vec<_>) = [Class::Gateway, Class::Node]
        .map(|class| {
            let (gate, waits) = mpsc::channel::<()>();
            let (blocks, blocked) = mpsc::channel();
            let block = move || {
                let _ = blocks.send(());
                let _ = waits.recv();
            };
            ours.spawn(class, Box::new(|| Box::pin(async move { block() })));
            (gate, blocked)
        })
        .into_iter()
        .unzip();
    for blocked in blocked {
        blocked.recv_timeout(PATIENCE).unwrap();
    }
    let address = answers.local_addr().unwrap();
    let echoed = on(&theirs, Class::Network, move |_| {
        Box::pin(async move {
            let connecting = dialler.connect_with(tls.client, address, "echo.test");
            let answer = async {
                let connection = answers.accept().await.unwrap().await.unwrap();
                let datagram = connection.read_datagram().await.unwrap();
                connection.send_datagram(datagram).unwrap();
                connection.closed().await
            };
            let ask = async {
                let connection = connecting.unwrap().await.unwrap();
                connection.send_datagram(vec![1; 50].into()).unwrap();
                let echo = connection.read_datagram().await.unwrap();
                connection.close(0u32.into(), b"");
                echo
            };
            tokio::join!(answer, ask).1
        })
    });
    assert_eq!(echoed.len(), 50);
    drop(gates);
}

#[test]
fn emulated_paths_delay_what_crosses_them() {
    let delay = Duration::from_millis(60);
    let trip = |emulate: Emulate| {
        let state = tempfile::tempdir().unwrap();
        let mut options = options(state.path());
        options.links.push(LinkPlan {
            between: ("a".parse().unwrap(), "b".parse().unwrap()),
            emulate,
            codec: Default::default(),
            lossless_down: None,
            congestion: Default::default(),
            cap: None,
            cap_back: None,
        });
        let world = World::new(options).unwrap();
        let (server, tls) = (node("a/gate"), tls());
        serve(&world.env(&server).unwrap(), &server, "127.0.0.1:0", &tls);
        on(
            &world.env(&node("b/gate")).unwrap(),
            Class::Gateway,
            move |env| {
                Box::pin(async move {
                    let endpoint = endpoint(&*env, "127.0.0.1:0", None);
                    let local = endpoint.local_addr().unwrap();
                    env.advertise(&node("b/gate"), local).unwrap();
                    let connection = loop {
                        match connect(&env, &endpoint, &server, &tls).await {
                            Ok(connection) => break connection,
                            Err(_) => env.sleep(Duration::from_millis(5)).await,
                        }
                    };
                    let sent = Instant::now();
                    connection.send_datagram(vec![1; 50].into()).unwrap();
                    connection.read_datagram().await.unwrap();
                    sent.elapsed()
                })
            },
        )
    };
    let slow = trip(Emulate {
        delay,
        rate: Some(100_000_000),
        ..Emulate::default()
    });
    assert!(slow >= 2 * delay, "{slow:?}");
}

/// A node that is started again in the same process is a new one to its peers: it must not draw the numbers of its last life again.
#[tokio::test]
async fn each_life_of_a_node_draws_numbers_of_its_own() {
    let state = tempfile::tempdir().unwrap();
    let world = World::new(options(state.path())).unwrap();
    let mut drawn = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let env = world.env(&node("d/a")).unwrap();
        let number = env.rng("incarnation").next_u64();
        assert_eq!(number, env.rng("incarnation").next_u64());
        drawn.insert(number);
        world.stop(&node("d/a")).await;
    }
    assert_eq!(drawn.len(), 3);
}
