//! VIEW-1: epochs only grow, and each node's view is one that the coordinator has written down.

use std::collections::BTreeMap;

use tombolo_core::event::Event;
use tombolo_core::ids::{Epoch, NodeId};

use super::{Cx, Law};

pub(super) struct Views {
    /// The newest that the coordinator has told; the first one is nobody's news.
    newest: Epoch,
    /// What each node goes by, in this life.
    seen: BTreeMap<NodeId, Epoch>,
}

impl Default for Views {
    fn default() -> Self {
        Views {
            newest: 1,
            seen: BTreeMap::new(),
        }
    }
}

impl Law for Views {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            Event::EpochChanged { view } => {
                if view.epoch <= self.newest {
                    let what = format!("epoch {} follows epoch {}", view.epoch, self.newest);
                    cx.violated("VIEW-1", what);
                }
                self.newest = self.newest.max(view.epoch);
            }
            Event::RoundOpened { round, epoch, .. } if *epoch < self.newest => {
                let what = format!(
                    "round {round} opens in epoch {epoch}, after epoch {} was told",
                    self.newest
                );
                cx.violated("VIEW-1", what);
            }
            // Written down before a power cut, and not told then.
            Event::RoundOpened { epoch, .. } => self.newest = *epoch,
            Event::NodeStarted { node, .. } => {
                self.seen.remove(node);
            }
            Event::ViewAdopted { node, epoch } => {
                if *epoch > self.newest {
                    let what = format!(
                        "{node} goes by epoch {epoch}, the newest that was told is {}",
                        self.newest
                    );
                    cx.violated("VIEW-1", what);
                }
                let before = self.seen.insert(node.clone(), *epoch);
                if let Some(before) = before.filter(|before| before > epoch) {
                    let what = format!("{node} goes back from epoch {before} to {epoch}");
                    cx.violated("VIEW-1", what);
                }
            }
            _ => {}
        }
    }
}
