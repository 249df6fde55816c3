//! Every change of the disk that a node's own state makes, gone wrong in every way, one at a time. Whatever happened, the next life finds the
//! last update and the last snapshot that were written down, whole, or what it was about to write; never older ones, never a mix.
//!
//! Field fault: killed, powered off or out of space at any moment, what was acknowledged still loads. pytorch-lightning#688, lean-ctx#954,
//! dddd_trainer#36, CellBender#253.

use std::sync::Arc;

use tombolo::sim::{Loss, MemoryDisk, SimWorld};
use tombolo_actors::node::keep::{Keep, Made, Order};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::plan::SyncEvery;
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::{Snapshot, Trained};

use crate::crash_points::FAILURES;

const ROUNDS: Round = 4;
/// Snapshots of each training.
const SNAPSHOTS: u64 = 2;
/// Longer than a disk's block, so that a torn one has both halves.
const ELEMENTS: usize = 3000;

#[test]
fn at_every_change_and_in_every_way_a_node_finds_what_it_wrote_down() {
    let changes = {
        let node = Node::new();
        node.to_the_end();
        assert_eq!(node.check("undisturbed"), (ROUNDS, 0));
        node.disk.changes()
    };
    assert!(changes > 50, "only {changes} changes: nothing was tested");
    for failure in FAILURES {
        for change in 0..changes {
            let replay = format!("{failure:?} at change {change} of {changes}");
            let mut node = Node::new();
            node.disk.fail_at(change, failure);
            node.promised = node.to_the_end();
            node.disk.set_broken(None);
            node.restart();
            node.check(&replay);
            // The next life goes on, and what it writes counts again.
            node.to_the_end();
            node.restart();
            assert_eq!(node.check(&replay), (ROUNDS, 0), "{replay}, a life later");
        }
    }
}

/// What a node has written down: the round of its last update, and the steps of the training after that.
type Place = (Round, u64);

struct Node {
    world: SimWorld,
    id: NodeId,
    disk: Arc<MemoryDisk>,
    promised: Place,
}

impl Node {
    fn new() -> Self {
        let (world, id) = (SimWorld::new(1), "hq/a".parse().unwrap());
        Node {
            disk: world.disk(&id),
            promised: (0, 0),
            world,
            id,
        }
    }

    fn restart(&self) {
        self.world.crash_with(&self.id, Loss::Everything);
        self.world.restart(&self.id);
    }

    fn keep(&self) -> Keep {
        Keep::new(self.world.env(&self.id).files(), Hash([9; 32]))
    }

    fn order(&self, round: Round) -> Order {
        Order {
            run: Hash([1; 32]),
            node: self.id.clone(),
            round,
            base: Hash([2; 32]),
            seed: 7,
            sync_every: SyncEvery::Steps(5),
        }
    }

    /// Trains all rounds as a node does that goes on when its disk fails, until its life ends; the last that was acknowledged.
    fn to_the_end(&self) -> Place {
        let mut promised = (0, 0);
        for round in 1..=ROUNDS {
            let order = self.order(round);
            for steps in 1..=SNAPSHOTS {
                let snapshot = Snapshot {
                    steps,
                    parameters: &elements((round, steps)),
                    state: &[steps as u8],
                };
                if self.keep().snapshot(&order, snapshot).is_ok() {
                    promised = (promised.0, steps);
                }
            }
            let trained = Trained {
                samples: round,
                loss: 0.5,
                steps: 5,
                learning_rate: 0.1,
            };
            let made = Made::new(order, 1, &trained);
            match self.keep().update(made, &elements((round, 0)), b"moments") {
                Ok(()) => promised = (round, 0),
                Err(_) if self.disk.has_ended() => return promised,
                // It goes on without; snapshots of the next round are of no use to this one.
                Err(_) => promised = (promised.0, 0),
            }
        }
        promised
    }

    /// Reads everything back, and compares it with what was promised.
    fn check(&self, replay: &str) -> Place {
        let update = self.keep().last_update(ELEMENTS);
        let round = update.as_ref().map_or(0, |kept| kept.about.order.round);
        let (promised, steps) = self.promised;
        assert!(
            round >= promised,
            "{replay}: the update of round {promised} was acknowledged, {round} is found"
        );
        if let Some(kept) = update {
            assert_eq!(kept.elements, elements((round, 0)), "{replay}: a mix");
            assert_eq!(
                (kept.about.samples, &kept.state[..]),
                (round, &b"moments"[..])
            );
        }
        let training = self.keep().training(&self.order(round + 1), ELEMENTS);
        let found = training.as_ref().map_or(0, |(steps, _)| *steps);
        if let Some((steps, kept)) = training {
            assert_eq!(kept.elements, elements((round + 1, steps)), "{replay}");
            assert_eq!(kept.state, [steps as u8], "{replay}");
        }
        if round == promised {
            assert!(
                found >= steps,
                "{replay}: {steps} steps were acknowledged, {found} are found"
            );
        }
        (round, found)
    }
}

fn elements((round, steps): Place) -> Vec<f32> {
    let elements = 0..ELEMENTS as u64;
    elements
        .map(|element| (element * 7 + round * 1000 + steps) as f32)
        .collect()
}
