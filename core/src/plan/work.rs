//! How much a node trains between two synchronisations.

use serde::{Deserialize, Serialize};

/// Local work between two synchronisations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncEvery {
    /// So many local steps.
    Steps(u64),
    /// So many whole passes over the node's own rows, the last batch of a pass short.
    Epochs(u64),
}

impl SyncEvery {
    /// How many steps, if they are counted.
    pub fn steps(self) -> Option<u64> {
        match self {
            SyncEvery::Steps(steps) => Some(steps),
            SyncEvery::Epochs(_) => None,
        }
    }
}
