//! Step mode: this rank's part of collectives among the processes of one machine.
//!
//! The schedules are those of [`tombolo_core::collective`], the memory and the meetings those of [`tombolo_fabric::group`]; here the one is carried out
//! on the other. No actor is involved: a rank's calls block its own thread, which is the one that trains.
//!
//! All ranks make the same calls in the same order. When one of them dies, stops or calls for something else, every rank gets an error that names it;
//! the others found a new group and do the step again.

mod background;
mod domain;
mod own;

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::collective::{
    Collective, DType, Element, Folder, Move, Operation, Shape, schedule,
};
use tombolo_fabric::group::{Buffer, Call, Group, GroupError};

pub use background::{Background, InFlight};
pub use domain::{Meeting, Musters};

/// Schedules that are kept: a trainer reduces a few tensors, the same ones at every step.
const SCHEDULES_MAX: usize = 64;

/// Why a collective failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A rank calls for something else than rank 0 does.
    #[error(
        "rank {rank} ({name}) calls for {found}, rank 0 for {expected}; all ranks must make the same calls in the same order"
    )]
    Mismatch {
        /// Which.
        rank: usize,
        /// Its name.
        name: String,
        /// What rank 0 calls for.
        expected: String,
        /// What that rank calls for.
        found: String,
    },
    /// Our call: a root that is no rank.
    #[error("root {root}: expected a rank of the group, 0 to {}", ranks - 1)]
    Root {
        /// As given.
        root: usize,
        /// How many there are.
        ranks: usize,
    },
    /// The thread of collectives in the background has ended before this one.
    #[error("the thread that carries out collectives has ended; its panic was printed")]
    Ended,
    /// Whatever else the group says.
    #[error(transparent)]
    Group(GroupError),
}

impl StepError {
    /// The rank that is to blame, if one is.
    pub fn rank(&self) -> Option<usize> {
        match self {
            StepError::Mismatch { rank, .. } => Some(*rank),
            StepError::Group(error) => error.rank(),
            StepError::Root { .. } | StepError::Ended => None,
        }
    }
}

impl From<GroupError> for StepError {
    fn from(error: GroupError) -> StepError {
        match error {
            GroupError::Mismatch {
                rank,
                name,
                expected,
                found,
            } => StepError::Mismatch {
                rank,
                name,
                expected: spoken(expected),
                found: spoken(found),
            },
            other => StepError::Group(other),
        }
    }
}

/// What becomes of the ranks' elements, and what this rank's weigh.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    operation: Operation,
    weight: f64,
}

impl Reduction {
    /// Their sum.
    pub const SUM: Reduction = Reduction::of(Operation::Sum);

    /// Their mean.
    pub const MEAN: Reduction = Reduction::of(Operation::Mean);

    /// The least of them.
    pub const MIN: Reduction = Reduction::of(Operation::Min);

    /// The greatest of them.
    pub const MAX: Reduction = Reduction::of(Operation::Max);

    /// The sum of each times its rank's weight, of which this is ours.
    pub const fn weighted(weight: f64) -> Reduction {
        Reduction {
            operation: Operation::WeightedSum,
            weight,
        }
    }

    /// That operation, with a weight of one.
    pub const fn of(operation: Operation) -> Reduction {
        Reduction {
            operation,
            weight: 1.0,
        }
    }
}

/// Elements of every rank in memory that all of them reach. Between collectives each rank sees its own.
pub struct Shared<T> {
    buffer: Buffer,
    element: PhantomData<T>,
}

impl<T: Element> Shared<T> {
    /// This rank's.
    ///
    /// # Errors
    ///
    /// A collective on them failed.
    pub fn values(&self) -> Result<&[T], StepError> {
        Ok(bytemuck::cast_slice(self.buffer.bytes()?))
    }

    /// This rank's for writing.
    ///
    /// # Errors
    ///
    /// As for [`Shared::values`].
    pub fn values_mut(&mut self) -> Result<&mut [T], StepError> {
        Ok(bytemuck::cast_slice_mut(self.buffer.bytes_mut()?))
    }

    /// How many each rank has.
    pub fn len(&self) -> usize {
        self.buffer.len() / size_of::<T>()
    }

    /// Whether there are none; never.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One rank's collectives.
pub struct Step {
    group: Group,
    shape: Shape,
    schedules: Vec<(Plan, Arc<Schedule>)>,
    folders: BTreeMap<TypeId, Box<dyn Any + Send>>,
    weights: Vec<f64>,
    slots: Option<Buffer>,
}

type Schedule = Vec<Vec<Move>>;

/// What a schedule follows from.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Plan {
    collective: Collective,
    shape: Shape,
    elements: usize,
}

impl Step {
    /// Collectives of a group, in the shape that suits it.
    pub fn new(group: Group) -> Step {
        let ranks = group.ranks();
        Step {
            shape: Shape::auto(ranks, ranks),
            weights: vec![1.0; ranks],
            group,
            schedules: Vec::new(),
            folders: BTreeMap::new(),
            slots: None,
        }
    }

    /// Chooses another shape of all-reduce. All ranks must choose the same.
    pub fn set_shape(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// See [`Group::set_wait`].
    pub fn set_wait(&mut self, wait: Duration) {
        self.group.set_wait(wait);
    }

    /// The ranks.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Memory for so many elements of each rank, zeroed. All ranks must ask for it.
    ///
    /// # Errors
    ///
    /// As for [`Group::allocate`].
    pub fn allocate<T: Element>(&mut self, elements: usize) -> Result<Shared<T>, StepError> {
        // What overflows is more than there is, too.
        let bytes = elements.saturating_mul(size_of::<T>());
        Ok(Shared {
            buffer: self.group.allocate(bytes)?,
            element: PhantomData,
        })
    }

    /// Reduces every rank's elements into every rank's, in place.
    ///
    /// # Errors
    ///
    /// Names the rank that is to blame; the group has failed and `shared` is retired.
    pub fn all_reduce<T: Element>(
        &mut self,
        shared: &mut Shared<T>,
        reduction: Reduction,
    ) -> Result<(), StepError> {
        self.run(Collective::AllReduce, shared, reduction)
    }

    /// Any collective, in place. What does not reduce looks at no reduction.
    ///
    /// # Errors
    ///
    /// As for [`Step::all_reduce`]; or the root is no rank, and nothing has happened.
    pub fn run<T: Element>(
        &mut self,
        collective: Collective,
        shared: &mut Shared<T>,
        reduction: Reduction,
    ) -> Result<(), StepError> {
        let ranks = self.group.ranks();
        if let Some(root) = collective.root().filter(|&root| root >= ranks) {
            return Err(StepError::Root { root, ranks });
        }
        let plan = Plan {
            collective,
            shape: self.shape,
            elements: shared.len(),
        };
        let schedule = self.schedule(plan);
        let call = call::<T>(plan, reduction.operation, false);
        let folder = folder::<T>(&mut self.folders);
        let weights = &mut self.weights;
        let mut running = self
            .group
            .begin(&mut shared.buffer, call, reduction.weight.to_bits())?;
        if reduction.operation == Operation::WeightedSum {
            for (rank, weight) in weights.iter_mut().enumerate() {
                *weight = f64::from_bits(running.contribution(rank));
            }
        }
        for (index, step) in schedule.iter().enumerate() {
            if index > 0 {
                running.meet()?;
            }
            for it in step {
                let read = |rank: usize, at: usize, block: &mut [T]| {
                    running.read(rank, at * size_of::<T>(), bytemuck::cast_slice_mut(block));
                };
                let write = |rank: usize, at: usize, block: &[T]| {
                    running.write(rank, at * size_of::<T>(), bytemuck::cast_slice(block));
                };
                folder.perform(reduction.operation, weights, it, read, write);
            }
        }
        Ok(running.finish()?)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    ///
    /// Names the rank that is to blame; the group has failed.
    pub fn barrier(&mut self) -> Result<(), StepError> {
        Ok(self.group.barrier()?)
    }

    fn schedule(&mut self, plan: Plan) -> Arc<Schedule> {
        if let Some((_, schedule)) = self.schedules.iter().find(|(other, _)| *other == plan) {
            return schedule.clone();
        }
        if self.schedules.len() >= SCHEDULES_MAX {
            self.schedules.remove(0);
        }
        let schedule = Arc::new(schedule(
            plan.collective,
            plan.shape,
            self.group.ranks(),
            self.group.rank(),
            plan.elements,
        ));
        self.schedules.push((plan, schedule.clone()));
        schedule
    }
}

fn folder<T: Element>(folders: &mut BTreeMap<TypeId, Box<dyn Any + Send>>) -> &mut Folder<T> {
    let folder = folders
        .entry(TypeId::of::<T>())
        .or_insert_with(|| Box::new(Folder::<T>::default()));
    folder.downcast_mut().expect("it is kept under its type")
}

/// What ranks compare when they meet: one byte for each thing that must be the same.
fn call<T: Element>(plan: Plan, operation: Operation, is_own: bool) -> Call {
    let kind = match plan.collective {
        Collective::AllReduce => 0,
        Collective::Reduce { .. } => 1,
        Collective::ReduceScatter => 2,
        Collective::AllGather => 3,
        Collective::Broadcast { .. } => 4,
        Collective::Gather { .. } => 5,
    };
    let root = plan.collective.root().unwrap_or(0) as u8;
    let bytes = [
        kind,
        root,
        plan.shape as u8,
        T::DTYPE as u8,
        operation as u8,
        u8::from(is_own),
        0,
        0,
    ];
    Call {
        what: u64::from_le_bytes(bytes),
        count: plan.elements as u64,
    }
}

/// A call in words; what is none of ours stays a number.
fn spoken(call: Call) -> String {
    let [kind, root, shape, dtype, operation, is_own, ..] = call.what.to_le_bytes();
    let kinds = [
        "all-reduce",
        "reduce",
        "reduce-scatter",
        "all-gather",
        "broadcast",
        "gather",
    ];
    let words = || {
        let kind = kinds.get(usize::from(kind))?;
        let shape = Shape::ALL.get(usize::from(shape))?;
        let dtype = DType::ALL.get(usize::from(dtype))?;
        let operation = Operation::ALL.get(usize::from(operation))?;
        let memory = if is_own == 1 {
            " of its own memory"
        } else {
            ""
        };
        let count = call.count;
        Some(format!(
            "{kind} ({shape}, {operation}, root {root}) of {count} {dtype}{memory}"
        ))
    };
    words().unwrap_or_else(|| match call.what {
        u64::MAX => format!("a buffer of {} bytes", call.count),
        other if other == u64::MAX - 1 => "a barrier".to_owned(),
        other => format!("call {other:#x} of {}", call.count),
    })
}
