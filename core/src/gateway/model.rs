//! The domain's model: obtained from the coordinator, shown to the members, held by all of them.

use super::{Effect, Gateway, TRIES_MAX};
use crate::ids::Round;
use crate::machine::Context;
use crate::tensor::Hash;
use crate::wire::Control;

impl Gateway {
    pub(super) fn obtain(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        base: Option<Hash>,
        hash: Hash,
    ) {
        if self.looks_on {
            return self.tell_seen(cx, round, hash);
        }
        let held = self.model.as_ref().map(|model| (model.round, model.hash));
        // An older one is an echo: committed rounds only grow.
        if held.is_some_and(|held| held == (round, hash) || held.0 > round) {
            return;
        }
        if self.obtaining.is_some_and(|(_, _, wanted)| wanted == hash) {
            return;
        }
        let base = base.filter(|base| self.model.as_ref().is_some_and(|model| model.hash == *base));
        self.obtaining = Some((round, base, hash));
        self.obtain_tries = 0;
        cx.effect(Effect::Obtain { round, base, hash });
    }

    pub(super) fn on_unobtained(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        reason: &str,
    ) {
        let Some((_, _, hash)) = self.obtaining.filter(|(wanted, ..)| *wanted == round) else {
            return;
        };
        self.obtain_tries += 1;
        if self.obtain_tries <= TRIES_MAX {
            // It did not come or does not fit: whoever holds it is asked for it in chunks.
            self.obtaining = Some((round, None, hash));
            let base = None;
            return cx.effect(Effect::Obtain { round, base, hash });
        }
        // The next Open or Commit, or the coordinator's answer to a join, asks for it again. Until then nobody need wait.
        self.obtaining = None;
        let Some(open) = self.current.as_ref().map(|current| &current.open) else {
            return;
        };
        if (open.base_round, open.base) != (round, hash) {
            return;
        }
        for node in &open.cohort {
            cx.effect(Effect::Tell(Control::Unreachable {
                round: open.round,
                node: node.clone(),
                reason: format!("its domain could not get the model: {reason}").into(),
            }));
        }
    }

    /// Nobody holds the model, and nobody need.
    fn tell_seen(&mut self, cx: &mut Context<'_, Effect>, round: Round, hash: Hash) {
        if self.adopted != Some((round, hash)) {
            self.adopted = Some((round, hash));
            let nodes = Vec::new();
            cx.effect(Effect::Tell(Control::Adopted { round, hash, nodes }));
        }
    }

    pub(super) fn tell_adopted(&mut self, cx: &mut Context<'_, Effect>) {
        let Some((round, hash)) = self.model.as_ref().map(|model| (model.round, model.hash)) else {
            return;
        };
        let everyone = self
            .present
            .iter()
            .all(|node| self.holds.get(node) == Some(&(round, hash)));
        if everyone && !self.present.is_empty() && self.adopted != Some((round, hash)) {
            self.adopted = Some((round, hash));
            cx.effect(Effect::Tell(Control::Adopted {
                round,
                hash,
                nodes: self.present.iter().cloned().collect(),
            }));
        }
    }
}
