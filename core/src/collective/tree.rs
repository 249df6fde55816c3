//! A binomial tree with rank 0 at its root: whole buffers go up, the result comes down. Few meetings, many bytes: for little to send.
//!
//! Order of a fold: neighbours first, ((0 + 1) + (2 + 3)) + ((4 + 5) + ...).

use super::{Move, Term};

pub(super) fn all_reduce(ranks: usize, rank: usize, elements: usize) -> Vec<Vec<Move>> {
    if ranks == 1 {
        return super::direct::steps(super::Collective::AllReduce, 1, 0, elements);
    }
    let distances: Vec<usize> = std::iter::successors(Some(1), |distance| Some(distance * 2))
        .take_while(|&distance| distance < ranks)
        .collect();
    let up = distances.iter().map(|&distance| {
        let (twice, other) = (distance * 2, rank + distance);
        if !rank.is_multiple_of(twice) || other >= ranks {
            return Vec::new();
        }
        // Whoever has no neighbour has folded nothing yet.
        let other_is_raw = distance == 1 || other + 1 >= ranks;
        vec![Move {
            range: 0..elements,
            terms: vec![
                Term {
                    rank,
                    is_raw: distance == 1,
                },
                Term {
                    rank: other,
                    is_raw: other_is_raw,
                },
            ],
            finishes: twice >= ranks,
            into: vec![rank],
        }]
    });
    let down = distances.iter().rev().map(|&distance| {
        let is_receiver = rank % (distance * 2) == distance;
        let copy = is_receiver.then(|| Move::copy(0..elements, rank - distance, vec![rank]));
        copy.into_iter().collect()
    });
    up.chain(down).collect()
}
