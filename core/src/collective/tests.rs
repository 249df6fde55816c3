//! Every schedule, carried out on buffers of symbols: no two ranks touch the same elements in a step, and all get the same fold of each rank
//! once. Then the arithmetic, against a calculation that goes by the symbols.

use std::rc::Rc;

use half::{bf16, f16};

use super::*;

/// More than one slice for each rank, with a last one that is shorter.
const ELEMENTS: usize = 64 * 11 + 5;

const RANKS: std::ops::RangeInclusive<usize> = 1..=9;

/// What an element holds, as it came to be.
#[derive(Debug, PartialEq)]
enum Symbol {
    Own(usize),
    Fold(Vec<Symbols>, bool),
}

#[derive(Debug, Clone, PartialEq)]
struct Symbols(Rc<Symbol>, bool);

impl Symbols {
    fn own(rank: usize) -> Symbols {
        Symbols(Rc::new(Symbol::Own(rank)), true)
    }

    /// The symbol with brackets; a mean's division as a stroke.
    fn text(&self) -> String {
        match &*self.0 {
            Symbol::Own(rank) => rank.to_string(),
            Symbol::Fold(terms, finished) => {
                let terms: Vec<String> = terms.iter().map(Symbols::text).collect();
                let stroke = if *finished { "'" } else { "" };
                format!("({}){stroke}", terms.join("+"))
            }
        }
    }

    fn ranks(&self, into: &mut Vec<usize>) {
        match &*self.0 {
            Symbol::Own(rank) => into.push(*rank),
            Symbol::Fold(terms, _) => terms.iter().for_each(|term| term.ranks(into)),
        }
    }
}

fn schedules(
    collective: Collective,
    shape: Shape,
    ranks: usize,
    elements: usize,
) -> Vec<Vec<Vec<Move>>> {
    let of = |rank| schedule(collective, shape, ranks, rank, elements);
    (0..ranks).map(of).collect()
}

/// Carries out what all ranks do, a step at a time, the ranks of each step in the order given.
fn carry_out(schedules: &[Vec<Vec<Move>>], backwards: bool, mut act: impl FnMut(usize, &Move)) {
    for step in 0..schedules[0].len() {
        let mut order: Vec<usize> = (0..schedules.len()).collect();
        if backwards {
            order.reverse();
        }
        for rank in order {
            for it in &schedules[rank][step] {
                act(rank, it);
            }
        }
    }
}

fn symbols(schedules: &[Vec<Vec<Move>>], elements: usize, backwards: bool) -> Vec<Vec<Symbols>> {
    let mut buffers: Vec<Vec<Symbols>> = (0..schedules.len())
        .map(|rank| vec![Symbols::own(rank); elements])
        .collect();
    carry_out(schedules, backwards, |_, it| {
        for at in it.range.clone() {
            let terms = it.terms.iter().map(|term| {
                let found = buffers[term.rank][at].clone();
                if !it.is_copy() {
                    assert_eq!(
                        found.1,
                        term.is_raw,
                        "{}: raw or not at {at}: {it:?}",
                        found.text()
                    );
                }
                found
            });
            let terms: Vec<Symbols> = terms.collect();
            let result = match it.is_copy() {
                true => terms[0].clone(),
                false => Symbols(Rc::new(Symbol::Fold(terms, it.finishes)), false),
            };
            for &rank in &it.into {
                buffers[rank][at] = result.clone();
            }
        }
    });
    buffers
}

fn every_case() -> impl Iterator<Item = (Collective, Shape, usize)> {
    RANKS.flat_map(|ranks| {
        let shaped = Shape::ALL.map(|shape| (Collective::AllReduce, shape, ranks));
        let rooted = (0..ranks).flat_map(move |root| {
            [
                Collective::Reduce { root },
                Collective::Broadcast { root },
                Collective::Gather { root },
            ]
        });
        let direct = [Collective::ReduceScatter, Collective::AllGather];
        let direct = direct.into_iter().chain(rooted);
        shaped
            .into_iter()
            .chain(direct.map(move |it| (it, Shape::Direct, ranks)))
    })
}

#[test]
fn within_a_step_nobody_writes_what_another_touches() {
    for (collective, shape, ranks) in every_case() {
        let schedules = schedules(collective, shape, ranks, ELEMENTS);
        let steps = schedules[0].len();
        for rank in &schedules {
            assert_eq!(rank.len(), steps, "{collective:?} {shape} of {ranks}");
        }
        for step in 0..steps {
            let mut written: Vec<Vec<Option<usize>>> = vec![vec![None; ELEMENTS]; ranks];
            let moves: Vec<&Vec<Move>> = schedules.iter().map(|of_rank| &of_rank[step]).collect();
            for (rank, moves) in moves.iter().enumerate() {
                for it in *moves {
                    for (&into, at) in it
                        .into
                        .iter()
                        .flat_map(|into| it.range.clone().map(move |at| (into, at)))
                    {
                        let before = written[into][at].replace(rank);
                        assert_eq!(before, None, "{collective:?} {shape}/{ranks} step {step}");
                    }
                }
            }
            for (rank, moves) in moves.into_iter().enumerate() {
                for it in moves {
                    for term in &it.terms {
                        let touched = it.range.clone().filter_map(|at| written[term.rank][at]);
                        for writer in touched {
                            assert_eq!(
                                writer, rank,
                                "{collective:?} {shape}/{ranks} step {step}: {it:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_rank_gets_one_fold_of_each_rank_once_in_whatever_order_ranks_act() {
    for ranks in RANKS {
        for shape in Shape::ALL {
            let schedules = schedules(Collective::AllReduce, shape, ranks, ELEMENTS);
            let buffers = symbols(&schedules, ELEMENTS, false);
            for buffer in &buffers {
                assert_eq!(buffer, &buffers[0], "{shape} of {ranks}");
            }
            for element in &buffers[0] {
                let mut found = Vec::new();
                element.ranks(&mut found);
                found.sort_unstable();
                let text = element.text();
                assert_eq!(found, Vec::from_iter(0..ranks), "{shape}: {text}");
                assert_eq!(text.matches('\'').count(), 1, "{shape}: {text}");
                assert!(text.ends_with('\''), "{shape}: {text}");
            }
            assert_eq!(symbols(&schedules, ELEMENTS, true), buffers, "{shape}");
        }
    }
}

#[test]
fn each_shape_folds_in_the_order_that_it_states() {
    let order = |shape, ranks: usize, slice: usize| {
        let schedules = schedules(Collective::AllReduce, shape, ranks, 64 * ranks);
        let buffers = symbols(&schedules, 64 * ranks, false);
        buffers[0][64 * slice].text()
    };
    assert_eq!(order(Shape::Direct, 4, 2), "(0+1+2+3)'");
    assert_eq!(order(Shape::Ring, 4, 2), "(((2+3)+0)+1)'");
    assert_eq!(order(Shape::Ring, 4, 0), "(((0+1)+2)+3)'");
    assert_eq!(order(Shape::Tree, 6, 3), "(((0+1)+(2+3))+(4+5))'");
    assert_eq!(order(Shape::Tree, 5, 0), "(((0+1)+(2+3))+4)'");
    assert_eq!(order(Shape::Halving, 4, 1), "((0+2)+(1+3))'");
    assert_eq!(order(Shape::Halving, 6, 0), "(((0+4)+2)+((1+5)+3))'");
    assert_eq!(order(Shape::Mesh, 6, 0), "((0+1)+(2+3)+(4+5))'");
    assert_eq!(order(Shape::Mesh, 5, 4), "(0+1+2+3+4)'");
}

#[test]
fn the_other_collectives_leave_what_they_say() {
    for (collective, shape, ranks) in every_case() {
        let schedules = schedules(collective, shape, ranks, ELEMENTS);
        let buffers = symbols(&schedules, ELEMENTS, false);
        let slices = slices(ELEMENTS, ranks);
        let owner = |at| slices.iter().position(|slice| slice.contains(&at)).unwrap();
        let whole = {
            let terms: Vec<String> = (0..ranks).map(|rank| rank.to_string()).collect();
            format!("({})'", terms.join("+"))
        };
        for (rank, buffer) in buffers.iter().enumerate() {
            for (at, element) in buffer.iter().enumerate() {
                let own = rank.to_string();
                let expected = match collective {
                    Collective::AllReduce => continue,
                    Collective::Reduce { root } if root == rank => whole.clone(),
                    Collective::ReduceScatter if owner(at) == rank => whole.clone(),
                    Collective::Broadcast { root } => root.to_string(),
                    Collective::AllGather => owner(at).to_string(),
                    Collective::Gather { root } if root == rank => owner(at).to_string(),
                    Collective::Reduce { .. }
                    | Collective::ReduceScatter
                    | Collective::Gather { .. } => own,
                };
                assert_eq!(
                    element.text(),
                    expected,
                    "{collective:?} {rank}/{ranks} {at}"
                );
            }
        }
    }
}

#[test]
fn few_elements_are_dealt_out_too() {
    for elements in [0, 1, 63, 64, 65, 129] {
        for ranks in RANKS {
            for shape in Shape::ALL {
                let schedules = schedules(Collective::AllReduce, shape, ranks, elements);
                for buffer in symbols(&schedules, elements, false) {
                    for element in buffer {
                        assert!(element.text().ends_with('\''), "{shape} {ranks} {elements}");
                    }
                }
            }
        }
    }
    let lens: Vec<usize> = slices(130, 4).iter().map(Range::len).collect();
    assert_eq!(lens, [64, 64, 2, 0]);
}

/// The value of a symbol: each fold from the left, in the type of sums, rounded to the element where a move ends.
fn value<T: Element>(
    symbol: &Symbols,
    operation: Operation,
    weights: &[f64],
    own: &dyn Fn(usize) -> T,
) -> T {
    let wide = |element: T| {
        let mut sum = [<T::Sum as bytemuck::Zeroable>::zeroed()];
        T::widen(&[element], &mut sum);
        sum[0]
    };
    let (terms, finished) = match &*symbol.0 {
        Symbol::Own(rank) => return own(*rank),
        Symbol::Fold(terms, finished) => (terms, *finished),
    };
    let terms = terms.iter().map(|term| {
        let found = wide(value(term, operation, weights, own));
        match (&*term.0, operation) {
            (Symbol::Own(rank), Operation::WeightedSum) => found.times(weights[*rank]),
            _ => found,
        }
    });
    let folded = terms.reduce(|sum, other| match operation {
        Operation::Min => sum.least(other),
        Operation::Max => sum.greatest(other),
        _ => sum.plus(other),
    });
    let mut folded = folded.expect("a fold has terms");
    if finished && operation == Operation::Mean {
        folded = folded.over(weights.len());
    }
    let mut narrow = [T::zeroed()];
    T::narrow(&[folded], &mut narrow);
    narrow[0]
}

fn arithmetic<T: Element + std::fmt::Debug>(of: impl Fn(f64) -> T) {
    // Longer than a block, and no multiple of one.
    let elements = 4096 / size_of::<T>() * 3 + 77;
    let own = |rank: usize, at: usize| {
        let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (rank + 20);
        of((mixed % 20_011) as f64 / 7.0 - 1000.0)
    };
    for ranks in [1, 2, 3, 5, 8] {
        let weights: Vec<f64> = (0..ranks).map(|rank| 0.3 + rank as f64).collect();
        for shape in Shape::ALL {
            let schedules = schedules(Collective::AllReduce, shape, ranks, elements);
            let symbols = symbols(&schedules, elements, false);
            for operation in Operation::ALL {
                let buffers: Vec<Vec<T>> = (0..ranks)
                    .map(|rank| (0..elements).map(|at| own(rank, at)).collect())
                    .collect();
                let buffers = std::cell::RefCell::new(buffers);
                let mut folder = Folder::default();
                carry_out(&schedules, false, |_, it| {
                    let read = |rank: usize, at: usize, block: &mut [T]| {
                        block.copy_from_slice(&buffers.borrow()[rank][at..at + block.len()]);
                    };
                    let write = |rank: usize, at: usize, block: &[T]| {
                        buffers.borrow_mut()[rank][at..at + block.len()].copy_from_slice(block);
                    };
                    folder.perform(operation, &weights, it, read, write);
                });
                let buffers = buffers.into_inner();
                for at in [0, 1, 63, 64, elements / 2, elements - 1] {
                    let own = |rank| own(rank, at);
                    let expected = value(&symbols[0][at], operation, &weights, &own);
                    for (rank, buffer) in buffers.iter().enumerate() {
                        assert_eq!(
                            bytemuck::bytes_of(&buffer[at]),
                            bytemuck::bytes_of(&expected),
                            "{} {operation} {shape} {rank}/{ranks} at {at}: {:?}, expected {expected:?}",
                            T::DTYPE,
                            buffer[at],
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_arithmetic_is_that_of_the_stated_order_in_every_type() {
    arithmetic(|value| value as f32);
    arithmetic(|value| value);
    arithmetic(|value| value as i32);
    arithmetic(|value| value as i64);
    arithmetic(f16::from_f64);
    arithmetic(bf16::from_f64);
}

#[test]
fn what_is_not_a_number_wins_and_whole_numbers_wrap() {
    assert!(1.0f32.least(f32::NAN).is_nan() && f32::NAN.greatest(1.0).is_nan());
    assert_eq!(0.0f32.least(-0.0).to_bits(), 0, "of equals the first");
    assert_eq!(i32::MAX.plus(1), i32::MIN);
    assert_eq!((-7i64).over(2), -3);
    assert_eq!(7i32.times(0.5), 3);
}

#[test]
fn names_are_read_as_they_are_written_and_others_are_refused() {
    for shape in Shape::ALL {
        assert_eq!(shape.to_string().parse(), Ok(shape));
    }
    for dtype in DType::ALL {
        assert_eq!(dtype.to_string().parse(), Ok(dtype));
    }
    for operation in Operation::ALL {
        assert_eq!(operation.to_string().parse(), Ok(operation));
    }
    let refused = "star".parse::<Shape>().unwrap_err();
    assert!(
        refused.contains("\"star\"") && refused.contains("halving"),
        "{refused}"
    );
    assert_eq!(Shape::auto(8, 8), Shape::Direct);
    assert_eq!(Shape::auto(16, 4), Shape::Mesh);
}
