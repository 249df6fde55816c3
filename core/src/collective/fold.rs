//! The arithmetic of a [`Move`], in blocks that stay in a core's nearest cache.
//!
//! Buffers of others are never seen here: the caller reads and writes them, block by block, so nothing of ours is a reference to what another
//! process may change.

use std::fmt;
use std::str::FromStr;

use super::{Element, Move, Number};

/// Bytes of a block. Three of them, and the lines of the buffers they come from, fit into 32 KiB.
const BLOCK_BYTES: usize = 4096;

/// What becomes of the elements of all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Their sum.
    Sum,
    /// Their sum over how many they are.
    Mean,
    /// The sum of each times its rank's weight.
    WeightedSum,
    /// The least.
    Min,
    /// The greatest.
    Max,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Operation; 5] = [
        Operation::Sum,
        Operation::Mean,
        Operation::WeightedSum,
        Operation::Min,
        Operation::Max,
    ];

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Sum => "sum",
            Operation::Mean => "mean",
            Operation::WeightedSum => "weighted-sum",
            Operation::Min => "min",
            Operation::Max => "max",
        }
    }

    /// Puts `others` to what is folded already.
    fn fold<N: Number>(self, sums: &mut [N], others: &[N]) {
        let with = |of: fn(N, N) -> N, sums: &mut [N]| {
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum = of(*sum, *other);
            }
        };
        match self {
            Operation::Sum | Operation::Mean | Operation::WeightedSum => {
                for (sum, other) in sums.iter_mut().zip(others) {
                    *sum = sum.plus(*other);
                }
            }
            Operation::Min => with(N::least, sums),
            Operation::Max => with(N::greatest, sums),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Operation, String> {
        let found = Operation::ALL.into_iter().find(|it| it.name() == text);
        found.ok_or_else(|| {
            let names = Operation::ALL.map(Operation::name).join(", ");
            format!("operation {text:?}: expected one of {names}")
        })
    }
}

/// Does moves, with room for a block of each kind.
#[derive(Debug)]
pub struct Folder<T: Element> {
    sums: Vec<T::Sum>,
    others: Vec<T::Sum>,
    block: Vec<T>,
}

impl<T: Element> Default for Folder<T> {
    fn default() -> Self {
        let len = BLOCK_BYTES / size_of::<T>();
        Folder {
            sums: vec![bytemuck::Zeroable::zeroed(); len],
            others: vec![bytemuck::Zeroable::zeroed(); len],
            block: vec![bytemuck::Zeroable::zeroed(); len],
        }
    }
}

impl<T: Element> Folder<T> {
    /// Does one move. `weights` has one of each rank; what they are matters to [`Operation::WeightedSum`] only. `read` fills a block from a
    /// rank's buffer, beginning at that element; `write` puts a block into one.
    pub fn perform(
        &mut self,
        operation: Operation,
        weights: &[f64],
        it: &Move,
        mut read: impl FnMut(usize, usize, &mut [T]),
        mut write: impl FnMut(usize, usize, &[T]),
    ) {
        let each = self.block.len();
        for start in it.range.clone().step_by(each) {
            let len = each.min(it.range.end - start);
            if it.is_copy() {
                read(it.terms[0].rank, start, &mut self.block[..len]);
                for &rank in &it.into {
                    write(rank, start, &self.block[..len]);
                }
                continue;
            }
            for (index, term) in it.terms.iter().enumerate() {
                let target = match index {
                    0 => &mut self.sums[..len],
                    _ => &mut self.others[..len],
                };
                match T::same(target) {
                    Some(target) => read(term.rank, start, target),
                    None => {
                        read(term.rank, start, &mut self.block[..len]);
                        T::widen(&self.block[..len], target);
                    }
                }
                if operation == Operation::WeightedSum && term.is_raw {
                    let weight = weights[term.rank];
                    for value in &mut *target {
                        *value = value.times(weight);
                    }
                }
                if index > 0 {
                    operation.fold(&mut self.sums[..len], &self.others[..len]);
                }
            }
            let sums = &mut self.sums[..len];
            if it.finishes && operation == Operation::Mean {
                for sum in &mut *sums {
                    *sum = sum.over(weights.len());
                }
            }
            let result: &[T] = match T::same(sums) {
                Some(result) => result,
                None => {
                    T::narrow(&self.sums[..len], &mut self.block[..len]);
                    &self.block[..len]
                }
            };
            for &rank in &it.into {
                write(rank, start, result);
            }
        }
    }
}
