//! The records of state folders, as `explain`, `report` and `trace` read them.

use std::path::PathBuf;

use tombolo::explain::{Chronicle, ExplainError, Merged, Past};
use tombolo_core::ids::NodeId;

/// One record as it is, or several on the coordinator's clock.
pub enum Records {
    One(Box<Chronicle>),
    Several(Box<Merged<Chronicle>>),
}

impl Records {
    /// Opens all records of these folders.
    pub fn open(folders: &[PathBuf]) -> Result<Self, ExplainError> {
        let mut each = Chronicle::open_each(folders)?;
        if each.len() == 1 {
            return Ok(Records::One(Box::new(each.remove(0))));
        }
        Ok(Records::Several(Box::new(Merged::open(folders)?)))
    }

    /// How far off the times of each node are at the most, in seconds, if there are several records.
    pub fn bounds(&self) -> Vec<(NodeId, Option<f64>)> {
        match self {
            Records::One(_) => Vec::new(),
            Records::Several(merged) => {
                let bounds = merged.clocks().bounds().iter();
                bounds.map(|(node, bound)| (node.clone(), *bound)).collect()
            }
        }
    }

    /// Says what could not be read.
    pub fn complain(&self) {
        let (unreadable, damaged): (u64, Vec<&str>) = match self {
            Records::One(one) => (
                one.unreadable(),
                one.damaged().iter().map(String::as_str).collect(),
            ),
            Records::Several(merged) => (merged.unreadable(), merged.damaged().collect()),
        };
        for damaged in damaged {
            complain!("a part of the record is left out, {damaged}");
        }
        if unreadable > 0 {
            complain!("{unreadable} lines of the record are no events of this version");
        }
        if let Records::Several(merged) = self
            && merged.unplaced() > 0
        {
            complain!(
                "{} events are left out: their process's clock was never compared with one that leads to the coordinator's; \
                 name the state folders of the nodes in between, too",
                merged.unplaced()
            );
        }
    }
}

impl Iterator for Records {
    type Item = Past;

    fn next(&mut self) -> Option<Past> {
        match self {
            Records::One(one) => one.next(),
            Records::Several(merged) => merged.next().map(|placed| placed.past),
        }
    }
}
