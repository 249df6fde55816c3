//! What every rank must hold after a collective: all ranks' schedules carried out here, on plain vectors, one rank after the other.

use std::cell::RefCell;

use half::{bf16, f16};
use tombolo_actors::step::{Reduction, Step, StepError};
use tombolo_core::collective::{Collective, DType, Element, Folder, Operation, Shape, schedule};

/// One collective of a test.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub collective: Collective,
    pub shape: Shape,
    pub dtype: DType,
    pub operation: Operation,
    pub elements: usize,
}

/// All that there is for so many ranks, and sizes around the borders of slices, blocks and cache lines.
pub fn every_case(ranks: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    let root = ranks - 1;
    for dtype in DType::ALL {
        for operation in Operation::ALL {
            let mut add = |collective, shape, elements| {
                cases.push(Case {
                    collective,
                    shape,
                    dtype,
                    operation,
                    elements,
                });
            };
            for shape in Shape::ALL {
                add(Collective::AllReduce, shape, 64 * ranks + 1);
                add(Collective::AllReduce, shape, 4096 + 77);
            }
            add(Collective::Reduce { root }, Shape::Direct, 1000);
            add(Collective::ReduceScatter, Shape::Direct, 1000);
        }
        let operation = Operation::Sum;
        for collective in [
            Collective::AllGather,
            Collective::Broadcast { root },
            Collective::Gather { root },
        ] {
            cases.push(Case {
                collective,
                shape: Shape::Direct,
                dtype,
                operation,
                elements: 1000,
            });
        }
    }
    cases
}

/// The weight of a rank.
pub fn weight(rank: usize) -> f64 {
    0.3 + rank as f64
}

/// What a rank's element is before the collective.
fn own<T: Element>(of: &dyn Fn(f64) -> T, rank: usize, at: usize) -> T {
    let mixed = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (rank + 20);
    of((mixed % 20_011) as f64 / 7.0 - 1000.0)
}

/// Calls with the type of the case, and how a number becomes one.
macro_rules! typed {
    ($case:expr, $call:ident, $($argument:expr),*) => {
        match $case.dtype {
            DType::F32 => $call::<f32>(&|it| it as f32, $($argument),*),
            DType::F16 => $call::<f16>(&f16::from_f64, $($argument),*),
            DType::Bf16 => $call::<bf16>(&bf16::from_f64, $($argument),*),
            DType::F64 => $call::<f64>(&|it| it, $($argument),*),
            DType::I32 => $call::<i32>(&|it| it as i32, $($argument),*),
            DType::I64 => $call::<i64>(&|it| it as i64, $($argument),*),
        }
    };
}

/// The bytes that each rank must hold.
pub fn expected(case: Case, ranks: usize) -> Vec<Vec<u8>> {
    typed!(case, calculated, case, ranks)
}

fn calculated<T: Element>(of: &dyn Fn(f64) -> T, case: Case, ranks: usize) -> Vec<Vec<u8>> {
    let values = |rank| (0..case.elements).map(|at| own(of, rank, at)).collect();
    let buffers: RefCell<Vec<Vec<T>>> = RefCell::new((0..ranks).map(values).collect());
    let weights: Vec<f64> = (0..ranks).map(weight).collect();
    let schedules: Vec<_> = (0..ranks)
        .map(|rank| schedule(case.collective, case.shape, ranks, rank, case.elements))
        .collect();
    let mut folder = Folder::default();
    for step in 0..schedules[0].len() {
        for it in schedules.iter().flat_map(|of_rank| &of_rank[step]) {
            let read = |rank: usize, at: usize, block: &mut [T]| {
                block.copy_from_slice(&buffers.borrow()[rank][at..at + block.len()]);
            };
            let write = |rank: usize, at: usize, block: &[T]| {
                buffers.borrow_mut()[rank][at..at + block.len()].copy_from_slice(block);
            };
            folder.perform(case.operation, &weights, it, read, write);
        }
    }
    let bytes = |values: Vec<T>| bytemuck::cast_slice(&values).to_vec();
    buffers.into_inner().into_iter().map(bytes).collect()
}

/// The bytes that this rank holds after the collective; with `in_own_memory`, of an all-reduce there.
pub fn carried_out(
    mut step: Step,
    case: Case,
    in_own_memory: bool,
) -> Result<(Step, Vec<u8>), StepError> {
    let bytes = typed!(case, carry_out, &mut step, case, in_own_memory)?;
    Ok((step, bytes))
}

fn carry_out<T: Element>(
    of: &dyn Fn(f64) -> T,
    step: &mut Step,
    case: Case,
    in_own_memory: bool,
) -> Result<Vec<u8>, StepError> {
    let rank = step.group().rank();
    let reduction = match case.operation {
        Operation::WeightedSum => Reduction::weighted(weight(rank)),
        other => Reduction::of(other),
    };
    let values: Vec<T> = (0..case.elements).map(|at| own(of, rank, at)).collect();
    if in_own_memory {
        let mut values = values;
        step.all_reduce_own(&mut values, reduction)?;
        return Ok(bytemuck::cast_slice(&values).to_vec());
    }
    let mut shared = step.allocate::<T>(case.elements)?;
    shared.values_mut()?.copy_from_slice(&values);
    step.set_shape(case.shape);
    step.run(case.collective, &mut shared, reduction)?;
    Ok(bytemuck::cast_slice(shared.values()?).to_vec())
}
