//! Which rows a node sees in which step. A node's batches are one endless stream of passes over its rows, the last batch of a pass short; a
//! round's place in it follows from the round's number alone, so that any round can be repeated and nothing has to be remembered.

use tombolo_core::ids::NodeId;
use tombolo_core::plan::{Order, SyncEvery};
use tombolo_core::rng::Rng;
use tombolo_core::trainer::Task;

/// The stream of one node.
#[derive(Debug)]
pub(super) struct Batches {
    rows: Vec<usize>,
    batch: usize,
    order: Order,
    /// The rows in the order of the pass `of`.
    pass: Vec<usize>,
    of: Option<PassKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PassKey {
    node: NodeId,
    seed: u64,
    pass: u64,
}

impl Batches {
    /// The stream over `rows`, which are not empty; `batch` is at least one.
    pub(super) fn new(rows: Vec<usize>, batch: usize, order: Order) -> Self {
        Batches {
            pass: Vec::with_capacity(rows.len()),
            of: None,
            rows,
            batch,
            order,
        }
    }

    /// How many rows the node holds.
    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The steps of a round.
    pub(super) fn steps(&self, sync_every: SyncEvery) -> u64 {
        match sync_every {
            SyncEvery::Steps(steps) => steps,
            SyncEvery::Epochs(epochs) => epochs.saturating_mul(self.per_pass()),
        }
    }

    /// The rows of step `step` (from 0) of a round.
    pub(super) fn batch(&mut self, task: &Task, step: u64) -> &[usize] {
        let per_pass = self.per_pass();
        // Wraps only beyond 2^64 steps, and then still lands on a batch.
        let before = task
            .round
            .saturating_sub(1)
            .wrapping_mul(self.steps(task.sync_every));
        let index = before.wrapping_add(step);
        self.prepare(task, index / per_pass);
        let start = (index % per_pass) as usize * self.batch;
        &self.pass[start..self.pass.len().min(start + self.batch)]
    }

    fn per_pass(&self) -> u64 {
        self.rows.len().div_ceil(self.batch) as u64
    }

    fn prepare(&mut self, task: &Task, pass: u64) {
        let key = PassKey {
            node: task.node.clone(),
            seed: task.seed,
            pass,
        };
        if self.of.as_ref() == Some(&key) {
            return;
        }
        self.pass.clear();
        self.pass.extend_from_slice(&self.rows);
        if self.order == Order::Shuffled {
            Rng::derive(
                task.seed,
                &[
                    b"batches",
                    task.node.as_str().as_bytes(),
                    &pass.to_le_bytes(),
                ],
            )
            .shuffle(&mut self.pass);
        }
        self.of = Some(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(round: u64, sync_every: SyncEvery) -> Task {
        Task {
            node: "hq/a".parse().unwrap(),
            round,
            seed: 7,
            sync_every,
            domain: tombolo_core::trainer::Domain::alone(),
        }
    }

    fn round(batches: &mut Batches, task: &Task) -> Vec<Vec<usize>> {
        let steps = batches.steps(task.sync_every);
        (0..steps)
            .map(|step| batches.batch(task, step).to_vec())
            .collect()
    }

    #[test]
    fn steps_run_on_through_the_rows_and_the_last_batch_of_a_pass_is_short() {
        let mut batches = Batches::new(vec![3, 1, 4, 15, 9], 2, Order::Sequential);
        let first = round(&mut batches, &task(1, SyncEvery::Steps(2)));
        let second = round(&mut batches, &task(2, SyncEvery::Steps(2)));
        assert_eq!(first, [vec![3, 1], vec![4, 15]]);
        assert_eq!(second, [vec![9], vec![3, 1]]);
    }

    #[test]
    fn an_epoch_is_a_whole_pass_in_every_round() {
        let mut batches = Batches::new(vec![3, 1, 4, 15, 9], 2, Order::Sequential);
        for number in [1, 2, 9] {
            let batches = round(&mut batches, &task(number, SyncEvery::Epochs(2)));
            assert_eq!(batches.concat(), [3, 1, 4, 15, 9, 3, 1, 4, 15, 9]);
        }
    }

    #[test]
    fn each_pass_is_shuffled_anew_and_holds_every_row_once() {
        let rows: Vec<usize> = (0..40).collect();
        let mut batches = Batches::new(rows.clone(), 8, Order::Shuffled);
        let passes = round(&mut batches, &task(1, SyncEvery::Epochs(2))).concat();
        let (mut one, mut two) = (passes[..40].to_vec(), passes[40..].to_vec());
        assert_ne!(one, two);
        one.sort_unstable();
        two.sort_unstable();
        assert_eq!((&one, &two), (&rows, &rows));
    }

    #[test]
    fn a_round_repeats_whatever_came_before() {
        let rows: Vec<usize> = (0..37).collect();
        let mut used = Batches::new(rows.clone(), 8, Order::Shuffled);
        for number in [1, 5, 2] {
            round(&mut used, &task(number, SyncEvery::Steps(7)));
        }
        let mut fresh = Batches::new(rows, 8, Order::Shuffled);
        let wanted = task(3, SyncEvery::Steps(7));
        assert_eq!(round(&mut used, &wanted), round(&mut fresh, &wanted));
        let mut other = wanted.clone();
        other.seed = 8;
        assert_ne!(round(&mut used, &other), round(&mut fresh, &wanted));
        other = wanted.clone();
        other.node = "hq/b".parse().unwrap();
        assert_ne!(round(&mut used, &other), round(&mut fresh, &wanted));
    }

    #[test]
    fn numbers_at_the_end_of_their_range_still_give_a_batch() {
        let mut batches = Batches::new(vec![1, 2, 3], 2, Order::Shuffled);
        let far = task(u64::MAX, SyncEvery::Steps(u64::MAX));
        assert!(!batches.batch(&far, u64::MAX).is_empty());
        assert_eq!(batches.steps(SyncEvery::Epochs(u64::MAX)), u64::MAX);
    }
}
