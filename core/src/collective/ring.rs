//! Each rank adds its own slice to what its left neighbour has of it, one slice a step, until each slice has been everywhere; then the results
//! go around in the same way. Every rank reads from its left neighbour only.
//!
//! Order of a fold: of slice c, by rank from c on around to c - 1.

use super::{Move, Term, slices};

pub(super) fn all_reduce(ranks: usize, rank: usize, elements: usize) -> Vec<Vec<Move>> {
    let slices = slices(elements, ranks);
    if ranks == 1 {
        return super::direct::steps(super::Collective::AllReduce, 1, 0, elements);
    }
    let left = (rank + ranks - 1) % ranks;
    let laps = ranks - 1;
    let fold = |lap: usize| Move {
        range: slices[(rank + ranks - lap - 1) % ranks].clone(),
        terms: vec![
            Term {
                rank: left,
                is_raw: lap == 0,
            },
            Term::raw(rank),
        ],
        finishes: lap + 1 == laps,
        into: vec![rank],
    };
    let copy = |lap: usize| {
        Move::copy(
            slices[(rank + ranks - lap) % ranks].clone(),
            left,
            vec![rank],
        )
    };
    let folds = (0..laps).map(|lap| vec![fold(lap)]);
    folds.chain((0..laps).map(|lap| vec![copy(lap)])).collect()
}
