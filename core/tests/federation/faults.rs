//! What goes wrong.

use tombolo_core::ids::NodeId;

use crate::world::{Happening, World};

/// One fault, and the next one to come.
pub fn strike(world: &mut World) {
    if !world.faults {
        return;
    }
    let nodes: Vec<NodeId> = world.nodes.keys().cloned().collect();
    let node = nodes[world.rng.below(nodes.len() as u64) as usize].clone();
    match world.rng.below(10) {
        // A process ends and comes back.
        0..=2 => {
            world.crash(&node);
            world.after(200, 20_000, Happening::Boot(node));
        }
        // An actor panics and is built again.
        3..=4 => {
            if world.nodes[&node].alive {
                world.begin(&node);
            }
        }
        5 => {
            if world.coordinator.is_some() {
                world.begin_coordinator();
            }
        }
        // A link goes down and comes back, with or without what was under way.
        _ => {
            let peers = world.plan.peers(&node);
            if peers.is_empty() {
                return next(world);
            }
            let peer = peers[world.rng.below(peers.len() as u64) as usize].clone();
            let forgets = world.chance(0.5);
            world.cut(&node, &peer, forgets);
            world.mend(&node, &peer, 50, 12_000);
        }
    }
    next(world);
}

fn next(world: &mut World) {
    world.after(100, 4000, Happening::Fault);
}

/// Everything is well from now on.
pub fn end(world: &mut World) {
    world.faults = false;
    let nodes: Vec<NodeId> = world.nodes.keys().cloned().collect();
    for node in &nodes {
        world.after(0, 100, Happening::Boot(node.clone()));
    }
    for node in &nodes {
        for peer in world.plan.peers(node) {
            world.mend(node, &peer, 101, 300);
        }
    }
}
