//! Recursive halving, then doubling (after Rabenseifner): a rank and its partner each fold one half of what both still have, with partners ever
//! nearer; then they copy each other's half in the opposite order. Ranks beyond the largest power of two give their buffers to one below first
//! and get the result last.
//!
//! Order of a fold: those beyond first, 0 + p, 1 + p, ...; then partners, the lower rank first: the farthest pairs innermost.

use std::ops::Range;

use super::{Move, Term, slices};

pub(super) fn all_reduce(ranks: usize, rank: usize, elements: usize) -> Vec<Vec<Move>> {
    if ranks == 1 {
        return super::direct::steps(super::Collective::AllReduce, 1, 0, elements);
    }
    let power = 1 << ranks.ilog2();
    let beyond = ranks - power;
    let mut steps = Vec::new();
    if beyond > 0 {
        let takes = rank < beyond;
        steps.push(Vec::from_iter(takes.then(|| Move {
            range: 0..elements,
            terms: vec![Term::raw(rank), Term::raw(rank + power)],
            finishes: false,
            into: vec![rank],
        })));
    }
    let slices = slices(elements, power);
    let range = |part: &Range<usize>| slices[part.start].start..slices[part.end - 1].end;
    let distances = || (0..ranks.ilog2()).map(|bit| 1 << bit);
    let mut kept = 0..power;
    for distance in distances().rev() {
        if rank >= power {
            steps.push(Vec::new());
            continue;
        }
        kept = half(&kept, rank & distance != 0);
        let partner = rank ^ distance;
        let term = |rank: usize| Term {
            rank,
            is_raw: distance * 2 == power && rank >= beyond,
        };
        steps.push(vec![Move {
            range: range(&kept),
            terms: vec![term(rank.min(partner)), term(rank.max(partner))],
            finishes: distance == 1,
            into: vec![rank],
        }]);
    }
    for distance in distances() {
        if rank >= power {
            steps.push(Vec::new());
            continue;
        }
        let theirs = match rank & distance != 0 {
            true => kept.start - distance..kept.start,
            false => kept.end..kept.end + distance,
        };
        let copy = Move::copy(range(&theirs), rank ^ distance, vec![rank]);
        steps.push(vec![copy]);
        kept = kept.start.min(theirs.start)..kept.end.max(theirs.end);
    }
    if beyond > 0 {
        let gets = rank >= power;
        let copy = gets.then(|| Move::copy(0..elements, rank - power, vec![rank]));
        steps.push(copy.into_iter().collect());
    }
    steps
}

fn half(range: &Range<usize>, upper: bool) -> Range<usize> {
    let middle = range.start.midpoint(range.end);
    match upper {
        true => middle..range.end,
        false => range.start..middle,
    }
}
