//! The first half of a domain's round: updates are exported and measured by peers, and their norms reported.

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, Export, Gateway, TRIES_MAX};
use crate::aggregate::Report;
use crate::event::{Event, Objection};
use crate::ids::NodeId;
use crate::machine::Context;
use crate::mutants;
use crate::staleness::Standing;
use crate::text::Text;
use crate::wire::{Control, Exported, Measure, Measured, REGION_HEADER_BYTES};

/// Ranks that must have failed to READ an update before its owner is to blame rather than the reader.
const READERS_FAILED_MAX: usize = 2;

impl Gateway {
    pub(super) fn on_exported(
        &mut self,
        cx: &mut Context<'_, Effect>,
        node: NodeId,
        exported: Exported,
    ) {
        let region_len = (REGION_HEADER_BYTES + self.layout.len() * 4) as u64;
        let round = exported.round;
        if !self.is_for_the_open_round(cx, &node, &exported) {
            return;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        let fault = if !current.open.cohort.contains(&node) {
            let reason = "it was not asked in this round".to_owned();
            Some((Objection::NotAsked, reason))
        } else if exported.region.owner != node {
            let reason = format!("its region belongs to {}", exported.region.owner);
            Some((Objection::Unusable, reason))
        } else if exported.region.len != region_len {
            let found = exported.region.len;
            let reason = format!("a region of {found} bytes where {region_len} are due");
            Some((Objection::WrongShape, reason))
        } else {
            None
        };
        if let Some((why, reason)) = fault {
            return self.refuse(cx, node, why, reason);
        }
        if current
            .exports
            .get(&node)
            .is_some_and(|known| known.exported == exported)
        {
            return cx.report(Event::DuplicateAnswered {
                round,
                from: node.to_string(),
            });
        }
        let export = Export {
            token: self.tokens.next_u64(),
            exported,
            pending: BTreeMap::new(),
            measured: BTreeMap::new(),
            unread: BTreeSet::new(),
            report: None,
        };
        current.exports.insert(node.clone(), export);
        self.measure(cx, &node);
    }

    /// Whether the open round takes an update of that round and view; if not, says why.
    fn is_for_the_open_round(
        &self,
        cx: &mut Context<'_, Effect>,
        node: &NodeId,
        exported: &Exported,
    ) -> bool {
        let (round, from) = (exported.round, node.to_string());
        let Some(open) = self.current.as_ref().map(|current| &current.open) else {
            cx.report(Event::LateAnswered { round, from });
            return false;
        };
        let Some(fresh) = &open.fresh else {
            if open.round != round {
                cx.report(Event::LateAnswered { round, from });
            } else if open.epoch != exported.epoch && !mutants::is("stale-epoch") {
                cx.report(Event::EpochAnswered { round, from });
            } else {
                return true;
            }
            return false;
        };
        let known = self.current.as_ref().and_then(|c| c.exports.get(node));
        if round > open.round || known.is_some_and(|known| round < known.exported.round) {
            // An echo of another round of this gateway, or of an update that a newer one has replaced.
            cx.report(Event::ReorderAnswered { round, from });
            return false;
        }
        let standing = match fresh.standing(node, round) {
            Standing::TooStale if mutants::is("limit-ignored") => Standing::Fresh,
            standing => standing,
        };
        match standing {
            Standing::Fresh => return true,
            Standing::Spent => cx.report(Event::ReplayAnswered { round, from }),
            Standing::TooStale => cx.effect(Effect::Tell(Control::Stale {
                round: open.round,
                node: node.clone(),
                trained_for: round,
            })),
        }
        // It goes on from the newest model.
        self.train(cx, node);
        false
    }

    /// Asks for the slices of an update that nobody has measured or is measuring.
    pub(super) fn measure(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId) {
        let Some(current) = &self.current else { return };
        let Some(export) = current.exports.get(node) else {
            return;
        };
        let asked: BTreeSet<u32> = export.pending.values().flatten().copied().collect();
        let open: Vec<u32> = self
            .slices
            .iter()
            .copied()
            .filter(|slice| !asked.contains(slice) && !export.measured.contains_key(slice))
            .collect();
        let avoid = export.unread.union(&current.excused).cloned().collect();
        let shares = self.assign(open, &avoid);
        let Some(export) = self
            .current
            .as_mut()
            .and_then(|current| current.exports.get_mut(node))
        else {
            return;
        };
        for (rank, slices) in shares {
            export
                .pending
                .entry(rank.clone())
                .or_default()
                .extend(&slices);
            let measure = Measure {
                token: export.token,
                round: export.exported.round,
                epoch: export.exported.epoch,
                node: node.clone(),
                region: export.exported.region.clone(),
                slices,
            };
            cx.effect(Effect::Member(rank, Control::Measure(measure)));
        }
    }

    pub(super) fn on_measured(
        &mut self,
        cx: &mut Context<'_, Effect>,
        rank: &NodeId,
        measured: Measured,
    ) {
        let reachable = self.reachable().count();
        let Some(current) = &mut self.current else {
            return;
        };
        let named = |export: &&mut Export| {
            (export.token, export.exported.round) == (measured.token, measured.round)
        };
        let export = current.exports.get_mut(&measured.node).filter(named);
        let Some(export) = export else {
            return;
        };
        // Who is not asked any more has been replaced, or says it twice.
        if !export.pending.contains_key(rank) {
            return;
        }
        let slices = match measured.result {
            Ok(slices) => slices,
            Err(reason) => {
                export.pending.remove(rank);
                export.unread.insert(rank.clone());
                if *rank == measured.node
                    || export.unread.len() >= READERS_FAILED_MAX.min(reachable)
                {
                    return self.unreadable(cx, &measured.node, &reason);
                }
                return self.measure(cx, &measured.node);
            }
        };
        for slice in slices {
            if super::take(&mut export.pending, rank, slice.slice) {
                export.measured.insert(slice.slice, slice);
            }
        }
        if export.report.is_some() || export.measured.len() < self.slices.len() {
            return self.measure(cx, &measured.node);
        }
        let squares = export
            .measured
            .values()
            .fold(0.0, |sum, slice| sum + slice.squares);
        let report = Report {
            node: measured.node.clone(),
            samples: export.exported.samples,
            loss: export.exported.loss,
            steps: export.exported.steps,
            learning_rate: export.exported.learning_rate,
            norm: squares.sqrt(),
            finite: squares.is_finite(),
        };
        export.report = Some(report.clone());
        cx.report(Event::UpdateMeasured {
            node: measured.node.clone(),
            round: export.exported.round,
        });
        cx.effect(Effect::Tell(Control::Reported {
            round: current.open.round,
            epoch: current.open.epoch,
            trained_for: export.exported.round,
            report,
            effort: export.exported.effort,
        }));
        self.refuse_changed(cx);
        self.grow(cx);
    }

    /// A member's region cannot be READ, or it could not train: it is as if it had not exported. It is asked again, a few times.
    pub(super) fn unreadable(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, reason: &str) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.exports.remove(node);
        let tries = current.tries.entry(node.clone()).or_default();
        *tries += 1;
        if *tries <= TRIES_MAX {
            return self.train(cx, node);
        }
        let reason = format!("its update could not be used {tries} times, last: {reason}");
        self.refuse(cx, node.clone(), Objection::Unusable, reason);
    }

    /// A member's update will not be in this round; the coordinator need not wait for it.
    pub(super) fn refuse(
        &mut self,
        cx: &mut Context<'_, Effect>,
        node: NodeId,
        why: Objection,
        reason: String,
    ) {
        let Some(current) = &self.current else { return };
        let reason = Text::from(reason);
        let round = current.open.round;
        cx.report(Event::UpdateRefused {
            why,
            round,
            node: node.clone(),
            reason: reason.to_string(),
        });
        cx.effect(Effect::Tell(Control::TrainingFailed {
            round,
            node,
            reason,
        }));
    }
}
