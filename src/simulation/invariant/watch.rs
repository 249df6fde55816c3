//! WATCH-1: what the watch names is so, and a copy of a model that changed is named before anything counts that was made from it.

use std::collections::BTreeSet;

use tombolo_core::event::Event;

use super::{Cx, Law};
use crate::simulation::inflict::Phase;
use crate::simulation::plan::Fault;

#[derive(Default)]
pub(super) struct Watch {
    /// Nodes of whose model a bit flipped, ever; their copies may be wrong.
    flipped: BTreeSet<String>,
    /// Of those: nobody has named it yet.
    unnamed: BTreeSet<String>,
    /// Of those: it has begun to train since.
    trains: BTreeSet<String>,
    /// Nodes of which two actors wait for each other.
    entangled: BTreeSet<String>,
}

impl Law for Watch {
    fn on_fault(&mut self, _: &mut Cx<'_>, fault: &Fault, phase: Phase) {
        match fault {
            Fault::BitFlip { node } if phase == Phase::Begins => {
                self.flipped.insert(node.clone());
                self.unnamed.insert(node.clone());
            }
            Fault::Deadlock { node, .. } => {
                self.entangled.insert(node.clone());
            }
            _ => {}
        }
    }

    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            // What its life before held is gone.
            Event::NodeStarted { node, .. } => {
                self.unnamed.remove(node.as_str());
                self.trains.remove(node.as_str());
            }
            Event::TrainingStarted { node, .. } if self.unnamed.contains(node.as_str()) => {
                self.trains.insert(node.to_string());
            }
            Event::ModelDiverged { node, .. } => {
                self.unnamed.remove(node.as_str());
                self.trains.remove(node.as_str());
                if !self.flipped.contains(node.as_str()) {
                    let what =
                        format!("{node} is said to hold another model, and nothing changed it");
                    cx.violated("WATCH-1", what);
                }
            }
            Event::Deadlocked { node, ring, .. } if !self.entangled.contains(node.as_str()) => {
                let what = format!("{node} is said to be deadlocked, and goes on: {ring:?}");
                cx.violated("WATCH-1", what);
            }
            Event::Round(record) => {
                let unseen =
                    |node: &&tombolo_core::ids::NodeId| self.trains.contains(node.as_str());
                let unseen = record.counted.iter().filter(unseen);
                for node in unseen.filter(|_| record.is_committed()) {
                    let round = record.round;
                    let what = format!(
                        "round {round} counts {node}, which trained from a model that had changed, unseen"
                    );
                    cx.violated("WATCH-1", what);
                }
            }
            _ => {}
        }
    }
}
