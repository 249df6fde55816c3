//! Collectives of step mode: which rank reads and writes which range of whose buffer, and when.
//!
//! Every rank has a buffer of as many elements, and all ranks reach all buffers. A [`schedule`] is what one rank does, in steps: all ranks
//! take a step, then all meet, then all take the next. It is a pure function of its arguments, so ranks need not talk about it. Within a step no
//! rank writes what another reads or writes; that is what makes the meeting between steps enough, and the tests hold every schedule to it.
//!
//! Each element of a result is folded by one rank, in one order, and copied to the others: so all ranks hold the same bits, whoever came first.
//! The order is a property of the shape, which states it in its file. Shapes are siblings in `collective/`: [`Shape::Direct`] touches memory
//! least often and is what [`Shape::auto`] takes among processes of one machine; the others take smaller pieces from fewer others at a time.

mod direct;
mod element;
mod fold;
mod halving;
mod mesh;
mod ring;
mod tree;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

pub use element::{DType, Element, Number};
pub use fold::{Folder, Operation};

/// Most ranks of a group: more than a machine has processes that train, few enough for a byte.
pub const RANKS_MAX: usize = 64;

/// Ranges begin at multiples of so many elements: whole cache lines for every type, so that no two ranks write the same one.
pub const ALIGNMENT: usize = 64;

/// What is done together. A rank's slice is the one of its number in [`slices`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Collective {
    /// Every buffer becomes the fold of all.
    AllReduce,
    /// The root's buffer becomes the fold of all.
    Reduce {
        /// Whose.
        root: usize,
    },
    /// Each rank's slice of its own buffer becomes the fold of that slice of all.
    ReduceScatter,
    /// Every buffer becomes the slices of all, each from its rank's buffer.
    AllGather,
    /// Every buffer becomes the root's.
    Broadcast {
        /// Whose.
        root: usize,
    },
    /// The root's buffer becomes the slices of all, each from its rank's buffer.
    Gather {
        /// Whose.
        root: usize,
    },
}

impl Collective {
    /// Whose buffer is special, if one is.
    pub fn root(self) -> Option<usize> {
        match self {
            Collective::Reduce { root }
            | Collective::Broadcast { root }
            | Collective::Gather { root } => Some(root),
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather => None,
        }
    }
}

/// How an all-reduce goes. The other collectives are always direct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Each rank folds its slice over all buffers and writes it to all: one step.
    Direct,
    /// Slices go around, each growing by one rank's a step; then the results go around.
    Ring,
    /// Pairs, then pairs of pairs, up to the first rank; then back down.
    Tree,
    /// Halves are exchanged with ever nearer partners, then doubled.
    Halving,
    /// Ranks in rows and columns: direct in the rows, then in the columns.
    Mesh,
}

impl Shape {
    /// Every shape.
    pub const ALL: [Shape; 5] = [
        Shape::Direct,
        Shape::Ring,
        Shape::Tree,
        Shape::Halving,
        Shape::Mesh,
    ];

    /// The shape for buffers of one machine's memory.
    ///
    /// Direct reads each buffer once and writes it once, in one step. No other shape moves fewer bytes or meets less often, so among equals it
    /// is always best: `tombolo bench allreduce` measures them side by side. Only where rows of ranks share a memory of their own
    /// (`ranks_near`, the ranks of one NUMA node, consecutive) does the mesh save bytes on the way between them.
    pub fn auto(ranks: usize, ranks_near: usize) -> Shape {
        match mesh::columns(ranks) {
            columns if columns > 1 && ranks_near < ranks && ranks_near == columns => Shape::Mesh,
            _ => Shape::Direct,
        }
    }

    /// Its name in files and commands.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Direct => "direct",
            Shape::Ring => "ring",
            Shape::Tree => "tree",
            Shape::Halving => "halving",
            Shape::Mesh => "mesh",
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Shape, String> {
        let found = Shape::ALL.into_iter().find(|shape| shape.name() == text);
        found.ok_or_else(|| {
            let names = Shape::ALL.map(Shape::name).join(", ");
            format!("shape {text:?}: expected one of {names}")
        })
    }
}

/// One thing that a rank does in a step: it folds a range over buffers and writes it to buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Of every buffer that it touches.
    pub range: Range<usize>,
    /// What is folded, in order.
    pub terms: Vec<Term>,
    /// Whether the fold is the whole: a mean is divided now.
    pub finishes: bool,
    /// Whose buffers get it.
    pub into: Vec<usize>,
}

/// One buffer in a fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Term {
    /// Whose.
    pub rank: usize,
    /// Whether it holds that rank's own values, which its weight is still to be put to; else a part of the fold.
    pub is_raw: bool,
}

impl Term {
    fn raw(rank: usize) -> Term {
        Term { rank, is_raw: true }
    }

    fn part(rank: usize) -> Term {
        Term {
            rank,
            is_raw: false,
        }
    }
}

impl Move {
    fn copy(range: Range<usize>, from: usize, into: Vec<usize>) -> Move {
        Move {
            range,
            terms: vec![Term::part(from)],
            finishes: false,
            into,
        }
    }

    /// Whether it changes nothing on the way.
    pub fn is_copy(&self) -> bool {
        !self.finishes && matches!(self.terms[..], [Term { is_raw: false, .. }])
    }
}

/// What `rank` of `ranks` does to buffers of `elements`, step by step. All ranks have as many steps.
///
/// # Panics
///
/// If `rank` or the root is not below `ranks`.
pub fn schedule(
    collective: Collective,
    shape: Shape,
    ranks: usize,
    rank: usize,
    elements: usize,
) -> Vec<Vec<Move>> {
    assert!(rank < ranks, "rank {rank} of {ranks}");
    assert!(
        collective.root().is_none_or(|root| root < ranks),
        "{collective:?} of {ranks} ranks"
    );
    let mut steps = match (collective, shape) {
        (Collective::AllReduce, Shape::Ring) => ring::all_reduce(ranks, rank, elements),
        (Collective::AllReduce, Shape::Tree) => tree::all_reduce(ranks, rank, elements),
        (Collective::AllReduce, Shape::Halving) => halving::all_reduce(ranks, rank, elements),
        (Collective::AllReduce, Shape::Mesh) => mesh::all_reduce(ranks, rank, elements),
        _ => direct::steps(collective, ranks, rank, elements),
    };
    for step in &mut steps {
        step.retain(|it| !it.range.is_empty() && !it.into.is_empty());
    }
    steps
}

/// `parts` ranges that follow each other, as equal as [`ALIGNMENT`] allows; the last ones may be empty.
pub fn slices(elements: usize, parts: usize) -> Vec<Range<usize>> {
    split(0..elements, parts)
}

fn split(range: Range<usize>, parts: usize) -> Vec<Range<usize>> {
    let each = range.len().div_ceil(parts).next_multiple_of(ALIGNMENT);
    let bound = |part: usize| range.end.min(range.start + part * each);
    (0..parts)
        .map(|part| bound(part)..bound(part + 1))
        .collect()
}

#[cfg(test)]
mod tests;
