//! Each rank does its slice for everybody: one step, each buffer read once and written at most once.
//!
//! Order of a fold: by rank, from 0.

use super::{Collective, Move, Term, slices};

pub(super) fn steps(
    collective: Collective,
    ranks: usize,
    rank: usize,
    elements: usize,
) -> Vec<Vec<Move>> {
    let range = slices(elements, ranks)[rank].clone();
    let all_but = |out: usize| (0..ranks).filter(|&other| other != out).collect();
    let fold = |into| Move {
        range: range.clone(),
        terms: (0..ranks).map(Term::raw).collect(),
        finishes: true,
        into,
    };
    let own = match collective {
        Collective::AllReduce => fold((0..ranks).collect()),
        Collective::Reduce { root } => fold(vec![root]),
        Collective::ReduceScatter => fold(vec![rank]),
        Collective::AllGather => Move::copy(range, rank, all_but(rank)),
        Collective::Broadcast { root } => Move::copy(range, root, all_but(root)),
        Collective::Gather { root } if root == rank => return vec![Vec::new()],
        Collective::Gather { root } => Move::copy(range, rank, vec![root]),
    };
    vec![vec![own]]
}
