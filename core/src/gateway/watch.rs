//! No collective stands still unseen: what ranks were asked for and do not answer is told as a chain of who waits for whom, and given to others.
//!
//! A rank that is dead is found by its heartbeat, much sooner. This is for one that lives and does not work.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Effect, Gateway};
use crate::event::Event;
use crate::ids::NodeId;
use crate::machine::Context;
use crate::time::Micros;

/// What a gateway waits for, and since when nothing of it has changed.
#[derive(Debug, Default)]
pub(super) struct Watch {
    patience: Option<Duration>,
    since: Micros,
    waits: Vec<Wait>,
}

/// A rank and what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wait {
    /// None: the gateway itself.
    rank: Option<NodeId>,
    slices: Vec<u32>,
    task: Task,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Task {
    /// To measure this node's update.
    Measure(NodeId),
    /// To fold these nodes' updates, in that attempt.
    Fold(u32, Vec<NodeId>),
    /// To read together what was folded, or the updates themselves, in that attempt.
    Gather(u32),
}

impl Wait {
    fn told(&self) -> String {
        let slices: Vec<String> = self.slices.iter().map(u32::to_string).collect();
        let rank = self.rank.as_ref().map_or("the gateway", NodeId::as_str);
        let slices = slices.join(", ");
        match &self.task {
            Task::Measure(node) => {
                format!("{rank} is to measure slices {slices} of the region of {node}")
            }
            Task::Fold(attempt, nodes) => {
                let nodes: Vec<&str> = nodes.iter().map(NodeId::as_str).collect();
                let nodes = nodes.join(", ");
                format!(
                    "{rank} is to fold slices {slices} of the regions of {nodes} (attempt {attempt})"
                )
            }
            Task::Gather(attempt) => {
                format!("{rank} is to gather slices {slices} (attempt {attempt})")
            }
        }
    }
}

impl Gateway {
    /// The same, and it does not wait longer than `patience` for ranks that answer nothing at all.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Self {
        self.watch.patience = Some(patience);
        self
    }

    /// The ranks whose work is waited for.
    pub fn waits_for(&self) -> BTreeSet<&NodeId> {
        let waits = self.watch.waits.iter();
        waits.filter_map(|wait| wait.rank.as_ref()).collect()
    }

    fn waits(&self) -> Vec<Wait> {
        let Some(current) = &self.current else {
            return Vec::new();
        };
        let mut waits = Vec::new();
        for (node, export) in &current.exports {
            waits.extend(export.pending.iter().map(|(rank, slices)| Wait {
                rank: Some(rank.clone()),
                slices: slices.clone(),
                task: Task::Measure(node.clone()),
            }));
        }
        if let Some(folding) = &current.fold {
            waits.extend(folding.pending.iter().map(|(rank, slices)| Wait {
                rank: Some(rank.clone()),
                slices: slices.clone(),
                task: Task::Fold(folding.attempt, folding.members.clone()),
            }));
            waits.extend(folding.gathering.then(|| Wait {
                rank: None,
                slices: self.slices.clone(),
                task: Task::Gather(folding.attempt),
            }));
        }
        waits
    }

    /// Looks whether anything has moved, and says when to look again.
    pub(super) fn look(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(patience) = self.watch.patience else {
            return;
        };
        let waits = self.waits();
        if waits != self.watch.waits {
            (self.watch.since, self.watch.waits) = (cx.now(), waits);
        } else if !waits.is_empty() && cx.now() >= self.watch.since + patience {
            self.stalled(cx, &waits);
            (self.watch.since, self.watch.waits) = (cx.now(), self.waits());
        }
        if !self.watch.waits.is_empty() {
            cx.wake_at(self.watch.since + patience);
        }
    }

    fn stalled(&mut self, cx: &mut Context<'_, Effect>, waits: &[Wait]) {
        let Some(current) = &mut self.current else {
            return;
        };
        cx.report(Event::Stalled {
            round: current.open.round,
            domain: self.domain.clone(),
            chain: waits.iter().map(Wait::told).collect(),
        });
        for Wait { rank, task, .. } in waits {
            // Nobody else can gather: that is told, and waited for.
            let Some(rank) = rank else { continue };
            current.excused.insert(rank.clone());
            match task {
                Task::Measure(node) => {
                    if let Some(export) = current.exports.get_mut(node) {
                        export.pending.remove(rank);
                    }
                }
                Task::Fold(..) => {
                    if let Some(folding) = &mut current.fold {
                        folding.pending.remove(rank);
                    }
                }
                Task::Gather(_) => {}
            }
        }
        self.resume_work(cx);
    }
}
