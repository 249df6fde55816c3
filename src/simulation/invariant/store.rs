//! STORE-1: after a power cut the disk holds what was said to be done. STORE-2: no round number goes back below it.

use std::collections::BTreeMap;

use serde_json::Value;

use tombolo_actors::env::Files;
use tombolo_core::event::Event;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::tensor::Hash;

use super::{Cx, Law};
use crate::simulation::inflict::Phase;
use crate::simulation::plan::Fault;

#[derive(Default)]
pub(super) struct Store {
    /// Rounds that were said to have ended, and the model after each.
    ended: BTreeMap<Round, Hash>,
    /// A standby has begun since a round was opened. Whoever coordinated before it may have recorded one more and not lived to tell it.
    is_new: bool,
}

impl Law for Store {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            Event::RoundOpened { round, .. } => {
                let newest = self.ended.last_key_value().map_or(0, |(round, _)| *round);
                if *round <= newest {
                    let what = format!("round {round} was opened after round {newest} had ended");
                    cx.violated("STORE-2", what);
                } else if *round > newest + 1 + u64::from(self.is_new) {
                    let what =
                        format!("round {round} was opened, the last one that ended is {newest}");
                    cx.violated("STORE-1", what);
                }
                self.is_new = false;
            }
            Event::CoordinatorPromoted { .. } => self.is_new = true,
            Event::Round(record) => {
                self.ended.insert(record.round, record.model_hash);
            }
            _ => {}
        }
    }

    fn on_fault(&mut self, cx: &mut Cx<'_>, fault: &Fault, _: Phase) {
        // Who takes the coordinator's disk away takes its promises with it.
        if let Fault::Restart {
            node,
            without_disk: true,
        } = fault
            && *node == cx.plan.coordinator.as_str()
        {
            self.ended.clear();
        }
    }

    fn on_power_cut(&mut self, cx: &mut Cx<'_>, node: &NodeId, disk: &dyn Files) {
        if *node != cx.plan.coordinator {
            return;
        }
        // The newest record says all: each is created only behind the one before it.
        let Some((round, hash)) = self.ended.last_key_value() else {
            return;
        };
        if let Err(why) = holds(disk, *round, *hash) {
            let what = format!("round {round} had ended, and after a power cut {why}");
            cx.violated("STORE-1", what);
        }
    }
}

/// Whether the disk holds a round's record, and the state that the record names.
fn holds(disk: &dyn Files, round: Round, hash: Hash) -> Result<(), String> {
    let path = format!("commits/{round:06}.json");
    let record = json(disk, &path)?;
    let model = record["record"]["model_hash"].as_str();
    if model != Some(hash.to_string().as_str()) {
        return Err(format!(
            "{path} says the model is {model:?}, expected {hash}"
        ));
    }
    let Some(state) = record["state"].as_str() else {
        return Ok(());
    };
    let manifest = json(disk, &format!("states/{state}/manifest.json"))?;
    let files = manifest["files"].as_object();
    for (name, expected) in files.into_iter().flatten() {
        let path = format!("states/{state}/{name}");
        let bytes = disk
            .read(&path)
            .map_err(|error| format!("{path} cannot be read: {error}"))?;
        let found = Hash::of_bytes(&bytes).to_string();
        if expected.as_str() != Some(found.as_str()) {
            return Err(format!(
                "the hash of {path} is {found}, its manifest says {expected}"
            ));
        }
    }
    Ok(())
}

fn json(disk: &dyn Files, path: &str) -> Result<Value, String> {
    let bytes = disk
        .read(path)
        .map_err(|error| format!("{path} cannot be read: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{path} is no JSON: {error}"))
}
