//! What a node keeps on disk for its next life: its last update, and where it is in training.
//!
//! ```text
//! node/update      the update and what it was made for, then the trainer's state
//! node/training    the parameters after so many steps, and what else the trainer needs to go on
//! ```
//!
//! A file is a line of JSON, the raw bytes, and the BLAKE3 of all that. It is written before anybody hears of the update. One that cannot be
//! written costs nothing but the safety: that is logged, no more; one that cannot be read or is of something else is as good as none.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::env::{Env, Files};
use tombolo_core::ids::{Epoch, NodeId, Round};
use tombolo_core::pace::Effort;
use tombolo_core::plan::SyncEvery;
use tombolo_core::tensor::{Hash, bytes_of};
use tombolo_core::time::Micros;
use tombolo_core::trainer::{Snapshot, Snapshots, Task, Trained};

const FORMAT: u32 = 1;
const UPDATE: &str = "node/update";
const TRAINING: &str = "node/training";

/// A node's files.
#[derive(Clone)]
pub struct Keep {
    files: Arc<dyn Files>,
    configuration: Hash,
}

/// Which training: only its own update or snapshot answers it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Of which run.
    pub run: Hash,
    /// Whose.
    pub node: NodeId,
    /// Of which round.
    pub round: Round,
    /// The model that it starts from.
    pub base: Hash,
    /// Seeds the batches.
    pub seed: u64,
    /// How long it is.
    pub sync_every: SyncEvery,
}

impl Order {
    /// That of a task.
    pub fn new(task: &Task, run: Hash, base: Hash) -> Self {
        Order {
            run,
            node: task.node.clone(),
            round: task.round,
            base,
            seed: task.seed,
            sync_every: task.sync_every,
        }
    }
}

/// The first line of a file.
#[derive(Serialize, Deserialize)]
struct Head<T> {
    format: u32,
    configuration: Hash,
    elements: usize,
    about: T,
}

/// What an update is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Made {
    /// The training.
    pub order: Order,
    /// The view in which it was asked for.
    pub epoch: Epoch,
    /// As its trainer reported; so below.
    pub samples: u64,
    /// Mean over the steps.
    pub loss: f64,
    /// Local steps.
    pub steps: u64,
    /// Of the local steps.
    pub learning_rate: f64,
    /// How many steps it counts as, if it was stretched to that.
    #[serde(default)]
    pub counts_as: Option<u64>,
    /// How long the training took, up to this file.
    #[serde(default)]
    pub effort: Effort,
}

impl Made {
    /// What came of a training.
    pub fn new(order: Order, epoch: Epoch, trained: &Trained) -> Self {
        Made {
            order,
            epoch,
            counts_as: None,
            effort: Effort::default(),
            samples: trained.samples,
            loss: trained.loss,
            steps: trained.steps,
            learning_rate: trained.learning_rate,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Reached {
    order: Order,
    steps: u64,
}

/// Read from a file: what it is about, the elements, and the trainer's own bytes.
pub struct Kept<T> {
    /// What it is.
    pub about: T,
    /// The update, or the parameters.
    pub elements: Vec<f32>,
    /// The trainer's own.
    pub state: Vec<u8>,
}

impl Keep {
    /// Over a node's own files; `configuration` is the hash of everything that decides the outcome.
    pub fn new(files: Arc<dyn Files>, configuration: Hash) -> Self {
        Keep {
            files,
            configuration,
        }
    }

    /// Writes the update down, in place of the one before, and forgets the training that has led to it.
    ///
    /// # Errors
    /// A node that is killed now trains again.
    pub fn update(&self, made: Made, update: &[f32], state: &[u8]) -> io::Result<()> {
        self.write(UPDATE, made, update, state)?;
        if let Err(error) = self.files.remove(TRAINING) {
            // It is of an order that is done with, so nobody goes on from it.
            tracing::warn!(%error, "where the training was is still on disk");
        }
        Ok(())
    }

    /// Writes down where a training is, in place of where it was.
    ///
    /// # Errors
    /// A node that is killed now goes on from where it was before, or begins anew.
    pub fn snapshot(&self, order: &Order, snapshot: Snapshot<'_>) -> io::Result<()> {
        let reached = Reached {
            order: order.clone(),
            steps: snapshot.steps,
        };
        self.write(TRAINING, reached, snapshot.parameters, snapshot.state)
    }

    /// The last update, for a model of so many elements.
    pub fn last_update(&self, elements: usize) -> Option<Kept<Made>> {
        self.read(UPDATE, elements)
    }

    /// Where a training was interrupted, if it is this one.
    pub fn training(&self, order: &Order, elements: usize) -> Option<(u64, Kept<()>)> {
        let kept: Kept<Reached> = self.read(TRAINING, elements)?;
        (kept.about.order == *order).then_some((
            kept.about.steps,
            Kept {
                about: (),
                elements: kept.elements,
                state: kept.state,
            },
        ))
    }

    fn write<T: Serialize>(
        &self,
        path: &str,
        about: T,
        elements: &[f32],
        state: &[u8],
    ) -> io::Result<()> {
        let head = Head {
            format: FORMAT,
            configuration: self.configuration,
            elements: elements.len(),
            about,
        };
        let mut head = serde_json::to_vec(&head)?;
        head.push(b'\n');
        let body = bytes_of(elements);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head).update(body).update(state);
        let hash = hasher.finalize();
        self.files
            .replace(path, &[&head, body, state, hash.as_bytes()])
    }

    fn read<T: DeserializeOwned>(&self, path: &str, elements: usize) -> Option<Kept<T>> {
        let bytes = match self.files.read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path, %error, "what was kept on disk cannot be read");
                return None;
            }
        };
        self.understand(&bytes, elements)
            .inspect_err(|reason| {
                tracing::warn!(path, reason, "what was kept on disk is of no use")
            })
            .ok()
    }

    fn understand<T: DeserializeOwned>(
        &self,
        bytes: &[u8],
        elements: usize,
    ) -> Result<Kept<T>, String> {
        let (sealed, hash) = bytes
            .split_last_chunk::<32>()
            .ok_or("it is shorter than a hash")?;
        if blake3::hash(sealed).as_bytes() != hash {
            return Err("its hash is not that of its bytes".into());
        }
        let line = sealed.iter().position(|byte| *byte == b'\n');
        let (head, body) = sealed.split_at(line.ok_or("it has no first line")? + 1);
        let head: Head<T> = serde_json::from_slice(head).map_err(|error| error.to_string())?;
        if (head.format, head.elements) != (FORMAT, elements) {
            return Err(format!(
                "it is of (format, elements) {:?}, expected {:?}",
                (head.format, head.elements),
                (FORMAT, elements)
            ));
        }
        if head.configuration != self.configuration {
            return Err("it is of another configuration".into());
        }
        let (elements, state) = body
            .split_at_checked(elements * 4)
            .ok_or("it is shorter than a model")?;
        let elements = elements.as_chunks::<4>().0.iter();
        Ok(Kept {
            about: head.about,
            elements: elements.map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            state: state.to_vec(),
        })
    }
}

/// Writes snapshots of one training down, now and then.
pub(super) struct Diary<'a> {
    keep: &'a Keep,
    env: &'a dyn Env,
    every: Duration,
    due: Micros,
    order: Order,
    fails: bool,
}

impl<'a> Diary<'a> {
    pub(super) fn new(keep: &'a Keep, env: &'a dyn Env, every: Duration, order: Order) -> Self {
        Diary {
            keep,
            due: env.now() + every,
            env,
            every,
            order,
            fails: false,
        }
    }
}

impl Snapshots for Diary<'_> {
    fn are_due(&self) -> bool {
        !self.fails && self.env.now() >= self.due
    }

    fn take(&mut self, snapshot: Snapshot<'_>) {
        if let Err(error) = self.keep.snapshot(&self.order, snapshot) {
            // Once is enough: the disk will not be better at the next step.
            self.fails = true;
            tracing::warn!(%error, "the training is not on disk: a node that is killed now begins it anew");
        }
        self.due = self.env.now() + self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Memory;

    fn order(round: Round) -> Order {
        Order {
            run: Hash([1; 32]),
            node: "hq/a".parse().unwrap(),
            round,
            base: Hash([2; 32]),
            seed: 7,
            sync_every: SyncEvery::Steps(5),
        }
    }

    fn made(round: Round) -> Made {
        let trained = Trained {
            samples: 10,
            loss: 1.0 / 3.0,
            steps: 5,
            learning_rate: 0.1,
        };
        Made::new(order(round), 4, &trained)
    }

    fn keep(files: &Arc<Memory>) -> Keep {
        Keep::new(files.clone(), Hash([9; 32]))
    }

    #[test]
    fn an_update_is_given_back_to_the_last_bit_with_what_it_was_made_for() {
        let files = Arc::new(Memory::default());
        assert!(keep(&files).last_update(3).is_none());
        let update = [1.5, f32::from_bits(0x7fc0_1234), -0.0];
        keep(&files).update(made(6), &update, b"moments\n").unwrap();
        let kept = keep(&files).last_update(3).unwrap();
        assert_eq!(kept.about, made(6));
        assert_eq!(bytes_of(&kept.elements), bytes_of(&update));
        assert_eq!(kept.state, b"moments\n");
    }

    /// Files that cannot be removed.
    #[derive(Default)]
    struct Stuck(Memory);

    impl Files for Stuck {
        fn read(&self, path: &str) -> io::Result<Vec<u8>> {
            self.0.read(path)
        }

        fn replace(&self, path: &str, parts: &[&[u8]]) -> io::Result<()> {
            self.0.replace(path, parts)
        }

        fn create(&self, path: &str, contents: &[u8]) -> io::Result<()> {
            self.0.create(path, contents)
        }

        fn list(&self, folder: &str) -> io::Result<Vec<String>> {
            self.0.list(folder)
        }

        fn remove(&self, _: &str) -> io::Result<()> {
            Err(io::ErrorKind::PermissionDenied.into())
        }

        fn settle(&self, folder: &str) -> io::Result<()> {
            self.0.settle(folder)
        }
    }

    /// What has led to it belongs to an older round, and is not looked at again.
    #[test]
    fn an_update_is_on_disk_even_if_the_training_before_it_cannot_be_removed() {
        let keep = Keep::new(Arc::new(Stuck::default()), Hash([9; 32]));
        keep.update(made(6), &[1.0], b"").unwrap();
        assert!(keep.last_update(1).is_some());
    }

    #[test]
    fn one_changed_byte_anywhere_makes_it_worthless() {
        let files = Arc::new(Memory::default());
        keep(&files).update(made(6), &[1.0, 2.0], b"state").unwrap();
        let whole = files.read(UPDATE).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            files.replace(UPDATE, &[&changed]).unwrap();
            assert!(keep(&files).last_update(2).is_none(), "byte {at}");
            files.replace(UPDATE, &[&whole[..at]]).unwrap();
            assert!(keep(&files).last_update(2).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn what_is_of_another_configuration_or_model_is_left_alone() {
        let files = Arc::new(Memory::default());
        keep(&files).update(made(6), &[1.0, 2.0], b"").unwrap();
        assert!(keep(&files).last_update(3).is_none());
        let other = Keep::new(files.clone(), Hash([8; 32]));
        assert!(other.last_update(2).is_none());
        assert!(keep(&files).last_update(2).is_some());
    }

    #[test]
    fn a_training_is_gone_on_with_by_the_same_order_only_and_until_it_is_done() {
        let files = Arc::new(Memory::default());
        let snapshot = Snapshot {
            steps: 3,
            parameters: &[4.0],
            state: b"loss",
        };
        keep(&files).snapshot(&order(6), snapshot).unwrap();
        let (steps, kept) = keep(&files).training(&order(6), 1).unwrap();
        assert_eq!(
            (steps, &kept.elements[..], &kept.state[..]),
            (3, &[4.0][..], &b"loss"[..])
        );
        let mut other = order(6);
        other.run = Hash([3; 32]);
        assert!(keep(&files).training(&other, 1).is_none());
        assert!(keep(&files).training(&order(7), 1).is_none());
        keep(&files).update(made(6), &[1.0], b"").unwrap();
        assert!(keep(&files).training(&order(6), 1).is_none());
    }
}
