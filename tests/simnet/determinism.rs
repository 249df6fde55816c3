//! SEED-1: same seed, same trace.

use std::time::Duration;

use tombolo::sim::{LinkModel, SimWorld};
use tombolo_core::ids::NodeId;

use crate::echo::{dial, serve, tls};
use crate::node;

/// Four domains of five nodes for a minute, with loss, jitter, reordering, copies, partitions, a crash and a restart. Gives the trace hash,
/// how many events there were, and how many echoes came back.
fn minute(seed: u64) -> (u64, u64, u64) {
    let world = SimWorld::new(seed);
    let echoes = world.run(scenario).unwrap();
    (world.trace_hash(), world.event_count(), echoes)
}

async fn scenario(world: SimWorld) -> u64 {
    let lossy = LinkModel {
        loss: 0.02,
        duplicate: 0.01,
        reorder: true,
        jitter: Duration::from_millis(5),
        ..LinkModel::wan()
    };
    world.set_default_links(LinkModel::lan(), lossy);
    let tls = tls();
    let gates: Vec<NodeId> = (0..4).map(|d| node(&format!("d{d}/n0"))).collect();
    for gate in &gates {
        serve(&world.env(gate), gate, "0.0.0.0:4433", &tls);
    }
    let mut all = Vec::new();
    for d in 0..4 {
        for n in 1..5 {
            let env = world.env(&node(&format!("d{d}/n{n}")));
            all.push(dial(&env, &gates[d], &tls));
            all.push(dial(&env, &gates[(d + n) % 4], &tls));
        }
    }
    world.sleep(Duration::from_secs(15)).await;
    let third: Vec<NodeId> = (0..5).map(|n| node(&format!("d3/n{n}"))).collect();
    world.partition(&gates[..2], &third);
    world.sleep(Duration::from_secs(5)).await;
    world.crash(&gates[2]);
    world.sleep(Duration::from_secs(10)).await;
    let env = world.restart(&gates[2]);
    serve(&env, &gates[2], "0.0.0.0:4433", &tls);
    world.sleep(Duration::from_secs(5)).await;
    world.heal_all();
    world.sleep(Duration::from_secs(25)).await;
    all.iter().map(|seen| seen.echoes()).sum()
}

#[test]
fn equal_seeds_give_equal_traces_and_others_do_not() {
    let first = minute(1);
    assert_eq!(first, minute(1));
    // From another thread, and beside another simulation.
    let (beside, second) = (
        std::thread::spawn(|| minute(1)),
        std::thread::spawn(|| minute(2)),
    );
    assert_eq!(first, beside.join().unwrap());
    let second = second.join().unwrap();
    assert_ne!(first.0, second.0);
    // 32 clients, two datagrams a second for a minute, less what the faults took.
    for (_, events, echoes) in [first, second] {
        assert!((2500..3840).contains(&echoes), "{echoes} echoes");
        assert!(events > 20_000, "{events} events");
    }
}

#[test]
fn chance_differs_by_seed_node_purpose_and_life_and_nothing_else() {
    let draw = |seed: u64, name: &str, purpose: &str, lives: u32| {
        let world = SimWorld::new(seed);
        let mut env = world.env(&node(name));
        for _ in 1..lives {
            env = world.restart(&node(name));
        }
        (env.rng(purpose).next_u64(), env.endpoint_seed().unwrap())
    };
    let same = draw(1, "d/a", "jitter", 1);
    assert_eq!(same, draw(1, "d/a", "jitter", 1));
    for (what, other) in [
        ("seed", draw(2, "d/a", "jitter", 1)),
        ("node", draw(1, "d/b", "jitter", 1)),
        ("life", draw(1, "d/a", "jitter", 2)),
    ] {
        assert_ne!(same.0, other.0, "{what}");
        assert_ne!(same.1, other.1, "{what}");
    }
    assert_ne!(same.0, draw(1, "d/a", "order", 1).0);
    let world = SimWorld::new(1);
    let env = world.env(&node("d/a"));
    assert_ne!(env.endpoint_seed(), env.endpoint_seed());
    let key = env.reset_key();
    assert_eq!(key, world.restart(&node("d/a")).reset_key());
    assert_ne!(key, world.env(&node("d/b")).reset_key());
}
