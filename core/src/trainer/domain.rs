//! The nodes of a domain that train as one: what a trainer reduces among them while it trains.
//!
//! Data-parallel training inside a domain, federated between domains: each node makes the gradient of its own rows, all take the mean of all, and
//! so all take the same step. Who calls for nothing here trains alone, and costs nothing.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use half::{bf16, f16};

use crate::collective::{Element, Number, Operation};

/// Why a reduction among the nodes of a domain came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DomainError {
    /// A node was lost, and the others have found each other again. What was being reduced is part old, part new: compute the step again from values of
    /// before it, and call again.
    #[error("{lost} is lost: {ranks} go on; compute the step again")]
    Regrouped {
        /// Who was, and how.
        lost: String,
        /// How many are left, this node among them.
        ranks: usize,
    },
    /// This node cannot go on with the others in this round: give the training up.
    #[error("the domain's nodes do not train together: {0}")]
    Apart(String),
}

/// Values of any type that can be reduced.
#[derive(Debug)]
#[expect(missing_docs, reason = "named after the types")]
pub enum Values<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
    F64(&'a mut [f64]),
    I32(&'a mut [i32]),
    I64(&'a mut [i64]),
}

/// How the nodes of a domain reach each other in one round. They find each other at the first call.
pub trait Ranks: Send {
    /// This node's number among them, and how many they are.
    ///
    /// # Errors
    /// See [`DomainError`].
    fn place(&mut self) -> Result<(usize, usize), DomainError>;

    /// Reduces everybody's values into everybody's; this node's have that weight.
    ///
    /// # Errors
    /// See [`DomainError`].
    fn reduce(
        &mut self,
        values: Values<'_>,
        operation: Operation,
        weight: f64,
    ) -> Result<(), DomainError>;
}

/// The nodes of this node's domain that train in the same round. All of them must make the same calls in the same order.
#[derive(Clone, Default)]
pub struct Domain(Option<Arc<Mutex<dyn Ranks>>>);

impl Domain {
    /// A node that trains by itself.
    pub fn alone() -> Self {
        Domain(None)
    }

    /// A node among others.
    pub fn of(ranks: impl Ranks + 'static) -> Self {
        Domain(Some(Arc::new(Mutex::new(ranks))))
    }

    /// This node's number among those that train together, and how many they are; waits for the others the first time.
    ///
    /// # Errors
    /// See [`DomainError`].
    pub fn place(&self) -> Result<(usize, usize), DomainError> {
        self.with(|ranks| ranks.place()).unwrap_or(Ok((0, 1)))
    }

    /// The mean of everybody's values, into everybody's, bit for bit the same.
    ///
    /// # Errors
    /// See [`DomainError`].
    pub fn all_reduce<T: Element>(&self, values: &mut [T]) -> Result<(), DomainError> {
        self.reduce(values, Operation::Mean, 1.0)
    }

    /// Everybody's values, reduced in some way, into everybody's. The weight is this node's, for [`Operation::WeightedSum`].
    ///
    /// # Errors
    /// See [`DomainError`].
    pub fn reduce<T: Element>(
        &self,
        values: &mut [T],
        operation: Operation,
        weight: f64,
    ) -> Result<(), DomainError> {
        let reduced = self.with(|ranks| ranks.reduce(T::values(values), operation, weight));
        reduced.unwrap_or_else(|| {
            if operation == Operation::WeightedSum {
                alone(values, weight);
            }
            Ok(())
        })
    }

    fn with<R>(&self, of: impl FnOnce(&mut dyn Ranks) -> R) -> Option<R> {
        let ranks = self.0.as_ref()?;
        let mut ranks = ranks.lock().unwrap_or_else(PoisonError::into_inner);
        Some(of(&mut *ranks))
    }
}

/// What a weighted sum of one is.
fn alone<T: Element>(values: &mut [T], weight: f64) {
    let mut sums = [<T::Sum as bytemuck::Zeroable>::zeroed(); 1024];
    for block in values.chunks_mut(sums.len()) {
        let sums = &mut sums[..block.len()];
        T::widen(block, sums);
        for sum in &mut *sums {
            *sum = sum.times(weight);
        }
        T::narrow(sums, block);
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Domain" } else { "alone" })
    }
}

/// The same nodes in the same round.
impl PartialEq for Domain {
    fn eq(&self, other: &Domain) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_alone_is_the_mean_of_all_and_weighs_what_it_weighs() {
        let domain = Domain::alone();
        assert_eq!(domain.place(), Ok((0, 1)));
        let mut values = [1.5_f32, -2.0];
        domain.all_reduce(&mut values).unwrap();
        assert_eq!(values, [1.5, -2.0]);
        domain
            .reduce(&mut values, Operation::WeightedSum, 3.0)
            .unwrap();
        assert_eq!(values, [4.5, -6.0]);
        let mut halves = vec![f16::from_f32(0.5); 3000];
        domain
            .reduce(&mut halves, Operation::WeightedSum, 2.0)
            .unwrap();
        assert!(halves.iter().all(|half| half.to_f32() == 1.0));
    }
}
