//! Who takes part in the domain: what the coordinator is told of members, and what its views change.

use std::collections::BTreeSet;

use super::{Effect, Gateway};
use crate::ids::NodeId;
use crate::machine::Context;
use crate::membership::Word;
use crate::tensor::Hash;
use crate::view::View;
use crate::wire::{Control, DomainJoin};

impl Gateway {
    /// Says where this domain stands, all of it: whoever asks may know nothing.
    pub(super) fn introduce(&mut self, cx: &mut Context<'_, Effect>) {
        let (round, hash) = self
            .model
            .as_ref()
            .map_or((0, Hash::default()), |model| (model.round, model.hash));
        let members = self.present.iter().cloned().collect();
        cx.effect(Effect::Tell(Control::DomainJoin(DomainJoin {
            layout: self.layout.clone(),
            round,
            hash,
            members,
        })));
        // Who is among the members is active.
        for (node, word) in &self.told {
            if self.present.contains(node) && *word == Word::Active {
                continue;
            }
            let (node, word) = (node.clone(), *word);
            cx.effect(Effect::Tell(Control::Standing { node, word }));
        }
        self.adopted = None;
        self.tell_adopted(cx);
    }

    /// Tells the coordinator how a member does, if that is news.
    pub(super) fn stand(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, word: Word) {
        if self.told.insert(node.clone(), word) != Some(word) {
            let node = node.clone();
            cx.effect(Effect::Tell(Control::Standing { node, word }));
        }
    }

    pub(super) fn on_view(&mut self, cx: &mut Context<'_, Effect>, view: &View) {
        let ranks = self.ranks.iter();
        let out: BTreeSet<NodeId> = ranks.filter(|rank| view.is_out(rank)).cloned().collect();
        let before = std::mem::replace(&mut self.out, out.clone());
        for node in out.difference(&before) {
            self.present.remove(node);
            self.leave_out(node);
        }
        self.fold_without(cx, &out);
        self.resume_work(cx);
        self.tell_adopted(cx);
        for node in before.difference(&out) {
            cx.effect(Effect::Member(node.clone(), Control::Rejoin));
        }
    }

    /// Takes what a node brought out of the round.
    pub(super) fn leave_out(&mut self, node: &NodeId) {
        if let Some(current) = &mut self.current {
            current.open.cohort.retain(|asked| asked != node);
            current.exports.remove(node);
            if let Some(weighed) = &mut current.weighed {
                weighed.retain(|weighed| weighed.weight.node != *node);
            }
        }
    }
}
