//! Virtual time: exact, shared with tokio's timers, and moved only by waiting.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo::sim::SimWorld;
use tombolo_actors::env::{Class, OffloadPanicked, Work};
use tombolo_core::time::Micros;

use crate::node;

#[test]
fn sleeps_end_at_their_microsecond_and_tokio_timers_at_their_millisecond() {
    let world = SimWorld::new(3);
    world
        .run(|world| async move {
            let env = world.env(&node("d/a"));
            let real = std::time::Instant::now();
            for micros in [1, 999, 1_000, 1_001, 1_500, 123_457, 3_600_000_000] {
                let before = env.now();
                env.sleep(Duration::from_micros(micros)).await;
                assert_eq!(env.now().since(before), Duration::from_micros(micros));
            }
            assert!(real.elapsed() < Duration::from_secs(5));
            // From now on a whole number of milliseconds again.
            let odd = env.now().0 % 1000;
            env.sleep(Duration::from_micros(1000 - odd)).await;
            let before = env.now();
            let coarse = tokio::task::spawn_local(tokio::time::sleep(Duration::from_millis(7)));
            env.sleep(Duration::from_micros(300)).await;
            assert_eq!(env.now().since(before), Duration::from_micros(300));
            coarse.await.unwrap();
            assert_eq!(env.now().since(before), Duration::from_millis(7));
            // A timer of tokio must not be passed on the way to a later one of ours.
            let before = env.now();
            let coarse = {
                let env = env.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    env.now()
                })
            };
            env.sleep(Duration::from_micros(90_500)).await;
            assert_eq!(
                coarse.await.unwrap().since(before),
                Duration::from_millis(20)
            );
        })
        .unwrap();
}

#[test]
fn the_wall_clock_follows_virtual_time_and_steps_alone() {
    let world = SimWorld::new(3);
    world
        .run(|world| async move {
            let (a, b) = (node("d/a"), node("d/b"));
            let (env_a, env_b) = (world.env(&a), world.env(&b));
            let start = env_a.unix_time();
            world.sleep(Duration::from_secs(90)).await;
            assert_eq!(env_a.unix_time(), start + 90);
            world.step_clock(&a, -3600.0);
            assert_eq!(env_a.unix_time(), start + 90 - 3600);
            assert_eq!(env_b.unix_time(), start + 90);
            assert_eq!(env_a.now(), Micros(90_000_000));
        })
        .unwrap();
}

#[test]
fn offloaded_work_runs_at_once_and_ends_after_its_modelled_time() {
    let world = SimWorld::new(4);
    world.set_training(Duration::from_millis(100), 0.2);
    world
        .run(|world| async move {
            world.slow(&node("d/slow"), 10.0);
            let order: Arc<Mutex<Vec<(&str, Micros)>>> = Arc::default();
            for (name, work, label) in [
                ("d/slow", Work::Train, "slow training"),
                ("d/a", Work::Train, "training"),
                ("d/a", Work::Bytes(4_000_000), "reading"),
            ] {
                let (env, order) = (world.env(&node(name)), order.clone());
                let run = env.clone();
                env.spawn(
                    Class::Node,
                    Box::new(move || {
                        Box::pin(async move {
                            let (at, inside) = (run.now(), order.clone());
                            let work = run.offload(
                                work,
                                Box::new(move || inside.lock().unwrap().push(("ran", at))),
                            );
                            work.await.unwrap();
                            order.lock().unwrap().push((label, run.now()));
                        })
                    }),
                );
            }
            world.sleep(Duration::from_secs(10)).await;
            let order = order.lock().unwrap();
            let labels: Vec<&str> = order.iter().map(|(label, _)| *label).collect();
            assert_eq!(
                labels,
                ["ran", "ran", "ran", "reading", "training", "slow training"]
            );
            assert!(order[..3].iter().all(|(_, at)| at.0 == 0));
            assert_eq!(order[3].1, Micros(1_000));
            assert!((80_000..=120_000).contains(&order[4].1.0), "{order:?}");
            assert!((800_000..=1_200_000).contains(&order[5].1.0), "{order:?}");
        })
        .unwrap();
}

#[test]
fn a_panic_in_offloaded_work_is_an_answer() {
    SimWorld::new(5)
        .run(|world| async move {
            let env = world.env(&node("d/a"));
            let failed = env
                .offload(Work::Train, Box::new(|| panic!("no data")))
                .await;
            assert_eq!(failed, Err(OffloadPanicked("no data".to_owned())));
        })
        .unwrap();
}
