//! MODEL-1: who adopts a round adopts the same bytes. MODEL-2: what is counted is finite. (The clip bound: `witness`.)

use std::collections::BTreeMap;

use tombolo_core::event::Event;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::tensor::Hash;

use super::{Cx, Law};

#[derive(Default)]
pub(super) struct Models {
    /// What was committed, and by whom what was adopted that nobody has committed yet.
    committed: BTreeMap<Round, Hash>,
    adopted: BTreeMap<Round, (NodeId, Hash)>,
    norms: BTreeMap<(Round, NodeId), f64>,
}

impl Models {
    fn same(&self, cx: &mut Cx<'_>, round: Round) {
        let (Some(committed), Some((node, adopted))) =
            (self.committed.get(&round), self.adopted.get(&round))
        else {
            return;
        };
        if committed != adopted {
            let what = format!(
                "{node} adopted {adopted:?} for round {round}, committed was {committed:?}"
            );
            cx.violated("MODEL-1", what);
        }
    }
}

impl Law for Models {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            Event::ModelAdopted {
                node, round, hash, ..
            } => {
                let first = self.adopted.get(round);
                if let Some((other, other_hash)) = first.filter(|(_, other)| other != hash) {
                    let what = format!(
                        "{node} adopted {hash:?} for round {round}, {other} {other_hash:?}"
                    );
                    cx.violated("MODEL-1", what);
                }
                self.adopted
                    .entry(*round)
                    .or_insert_with(|| (node.clone(), *hash));
                self.same(cx, *round);
            }
            Event::Reported { round, node, norm } => {
                self.norms.insert((*round, node.clone()), *norm);
            }
            Event::Round(record) => {
                let round = record.round;
                for node in &record.counted {
                    let norm = self.norms.get(&(round, node.clone()));
                    if norm.is_some_and(|norm| !norm.is_finite() || *norm < 0.0) {
                        let what = format!("round {round} counts {node}, whose norm is {norm:?}");
                        cx.violated("MODEL-2", what);
                    }
                }
                self.norms.retain(|(of, _), _| *of > round);
                let numbers = [record.accuracy, record.loss, record.weight_norm];
                if !numbers.iter().all(|number| number.is_finite()) {
                    let what =
                        format!("accuracy, loss and norm after round {round} are {numbers:?}");
                    cx.violated("MODEL-2", what);
                }
                if record.is_committed() {
                    self.committed.insert(round, record.model_hash);
                    self.same(cx, round);
                } else {
                    // The model stays.
                    let last = self.committed.last_key_value().map(|(_, hash)| *hash);
                    if last.is_some_and(|last| last != record.model_hash) {
                        let what = format!("round {round} was aborted and changed the model");
                        cx.violated("MODEL-1", what);
                    }
                }
            }
            _ => {}
        }
    }
}
