//! What can go wrong in a group, by who is to blame.

use std::time::Duration;

use super::Call;
use crate::error::FabricError;

/// Something that a group could not do.
///
/// A rank that is named made the group fail, for everybody and for good: form a new one of those who are left, and do the operation again from
/// values of before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// A rank's process has ended.
    #[error("rank {rank} ({name}) died; form a new group without it and compute the step again")]
    Dead {
        /// Whose.
        rank: usize,
        /// Its name.
        name: String,
    },
    /// A rank did not come to the meeting in time: stopped, or still at something else.
    #[error(
        "rank {rank} ({name}) did not come within {wait:?}; form a new group without it and compute the step again, or give it more time"
    )]
    Late {
        /// The first that is missing.
        rank: usize,
        /// Its name.
        name: String,
        /// How long it was waited for.
        wait: Duration,
    },
    /// A rank calls for something else than rank 0: another operation, type, number of elements.
    #[error(
        "rank {rank} ({name}) calls for {found:?} where rank 0 calls for {expected:?}; all ranks must make the same calls in the same order"
    )]
    Mismatch {
        /// Which.
        rank: usize,
        /// Its name.
        name: String,
        /// Of rank 0.
        expected: Call,
        /// Of that rank.
        found: Call,
    },
    /// A rank gave up: it dropped its group, or an operation in the middle.
    #[error("rank {rank} ({name}) left; form a new group without it")]
    Left {
        /// Which.
        rank: usize,
        /// Its name.
        name: String,
    },
    /// Our call: the buffer's operation failed, so nobody knows what it holds, and ranks that wake up late may still write it.
    #[error("this buffer was in an operation that failed; allocate another one in a new group")]
    Retired,
    /// Our call: a buffer of another group.
    #[error("this buffer belongs to another group; allocate one in this group")]
    Foreign,
    /// A buffer that does not fit, or a call to the kernel that failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl GroupError {
    /// The rank that is to blame, if one is.
    pub fn rank(&self) -> Option<usize> {
        match self {
            GroupError::Dead { rank, .. }
            | GroupError::Late { rank, .. }
            | GroupError::Mismatch { rank, .. }
            | GroupError::Left { rank, .. } => Some(*rank),
            GroupError::Retired | GroupError::Foreign | GroupError::Fabric(_) => None,
        }
    }
}
