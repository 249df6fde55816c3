//! Ranks in rows of consecutive ones: each row folds its slices directly, then each column, then the rows share the results. Between rows, which
//! may lie on different memories, goes only what a column has.
//!
//! Order of a fold: by rank within each row, then by row. A prime number of ranks has one column, and is direct.

use super::{Move, Term, slices, split};

/// How many ranks a row has: the largest divisor up to the square root.
pub(super) fn columns(ranks: usize) -> usize {
    let fits = |&columns: &usize| columns * columns <= ranks && ranks.is_multiple_of(columns);
    (1..=ranks).filter(fits).max().unwrap_or(1)
}

pub(super) fn all_reduce(ranks: usize, rank: usize, elements: usize) -> Vec<Vec<Move>> {
    let columns = columns(ranks);
    let rows = ranks / columns;
    let (row, column) = (rank / columns, rank % columns);
    let slices = slices(elements, columns);
    let in_row = (0..columns).map(|column| row * columns + column);
    let in_column: Vec<usize> = (0..rows).map(|row| row * columns + column).collect();
    let mut steps = Vec::new();
    if columns > 1 {
        steps.push(vec![Move {
            range: slices[column].clone(),
            terms: in_row.clone().map(Term::raw).collect(),
            finishes: false,
            into: vec![rank],
        }]);
    }
    let term = |&rank: &usize| Term {
        rank,
        is_raw: columns == 1,
    };
    steps.push(vec![Move {
        range: split(slices[column].clone(), rows)[row].clone(),
        terms: in_column.iter().map(term).collect(),
        finishes: true,
        into: in_column,
    }]);
    if columns > 1 {
        let others = in_row.zip(&slices).filter(|(other, _)| *other != rank);
        let copies = others.map(|(other, slice)| Move::copy(slice.clone(), other, vec![rank]));
        steps.push(copies.collect());
    }
    steps
}
