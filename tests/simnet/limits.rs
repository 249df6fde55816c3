//! Every simulation ends, and leaves nothing behind.

use std::sync::Arc;

use std::time::Duration;

use tombolo::sim::{SimError, SimWorld};
use tombolo_actors::env::{Class, Env, LocalFuture};

use crate::echo::{dial, serve, tls};
use crate::node;

/// Two nodes that talk; counts what of them is alive.
fn talk(world: &SimWorld) -> Arc<()> {
    let alive = Arc::new(());
    let tls = tls();
    let (a, b) = (node("a/x"), node("b/x"));
    serve(&world.env(&a), &a, "0.0.0.0:4433", &tls);
    dial(&world.env(&b), &a, &tls);
    let held = alive.clone();
    world.env(&a).spawn(
        Class::Node,
        Box::new(move || {
            Box::pin(async move {
                std::future::pending::<()>().await;
                drop(held);
            })
        }),
    );
    alive
}

#[test]
fn a_world_that_never_ends_is_stopped_at_its_limit_with_seed_and_last_events() {
    let world = SimWorld::new(99);
    world.set_limit(Duration::from_secs(30));
    let error = world
        .run(|world| async move {
            talk(&world);
            std::future::pending::<()>().await;
        })
        .unwrap_err();
    assert!(matches!(error, SimError::Limit { seed: 99, .. }));
    let text = error.to_string();
    assert!(
        text.contains("seed 99") && text.contains("a/x:4433"),
        "{text}"
    );
    assert_eq!(world.now().0, 30_000_000);
}

type Spin = fn(Arc<dyn Env>) -> LocalFuture;

#[test]
fn tasks_that_run_for_ever_at_one_instant_are_stopped() {
    let spins: [Spin; 3] = [
        |_| Box::pin(async { forever(tokio::task::yield_now).await }),
        |env| Box::pin(async move { forever(|| env.sleep(Duration::ZERO)).await }),
        |env| Box::pin(async move { forever(|| env.resolve(&node("d/none"))).await }),
    ];
    for (nth, spin) in spins.into_iter().enumerate() {
        // In the scenario, and in a node.
        for inside in [false, true] {
            let error = SimWorld::new(5)
                .run(move |world| async move {
                    world.sleep(Duration::from_micros(1500)).await;
                    let env = world.env(&node("d/a"));
                    if inside {
                        let run = env.clone();
                        env.spawn(Class::Node, Box::new(move || spin(run)));
                        std::future::pending::<()>().await;
                    }
                    spin(env).await
                })
                .unwrap_err();
            let expected = Duration::from_micros(1500);
            assert!(
                matches!(error, SimError::Stalled { seed: 5, at, .. } if at == expected),
                "{nth} {inside}: {error}"
            );
        }
    }
}

async fn forever<F: Future>(make: impl Fn() -> F) {
    loop {
        make().await;
    }
}

#[test]
fn a_world_runs_once() {
    let world = SimWorld::new(1);
    assert_eq!(world.run(|_| async { 7 }), Ok(7));
    assert_eq!(
        world.run(|_| async { 8 }),
        Err(SimError::AlreadyRan { seed: 1 })
    );
}

#[test]
fn a_panic_of_the_scenario_is_the_callers() {
    let world = SimWorld::new(1);
    let alive = Arc::new(std::sync::Mutex::new(None));
    let (run, slot) = (world.clone(), alive.clone());
    let panic = std::thread::spawn(move || {
        run.run(|world| async move {
            *slot.lock().unwrap() = Some(talk(&world));
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(1, 2, "broken on purpose");
        })
    })
    .join()
    .unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("broken on purpose"), "{text}");
    let alive = alive.lock().unwrap().take().unwrap();
    assert_eq!(Arc::strong_count(&alive), 1);
}

/// Open descriptors and threads of this process.
fn held() -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Set in the process that counts.
const ALONE: &str = "TOMBOLO_TEST_ALONE";

#[test]
fn a_hundred_worlds_leave_no_task_no_descriptor_and_no_thread() {
    // In a process of its own: the tests beside this one open files, too.
    if std::env::var_os(ALONE).is_none() {
        let name = "limits::a_hundred_worlds_leave_no_task_no_descriptor_and_no_thread";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let before = held();
    for seed in 0..100 {
        let alive = SimWorld::new(seed)
            .run(|world| async move {
                let alive = talk(&world);
                world.sleep(Duration::from_secs(3)).await;
                assert_eq!(Arc::strong_count(&alive), 2);
                alive
            })
            .unwrap();
        assert_eq!(Arc::strong_count(&alive), 1, "a task outlived its world");
    }
    assert_eq!(before, held());
}
