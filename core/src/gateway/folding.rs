//! The second half of a domain's round: weighed updates are folded slice by slice, the parts gathered, the sum announced.
//!
//! A contribution once announced stands until a heavier one replaces it: a member whose update was lost and came back lets the fold grow,
//! one that vanishes afterwards takes nothing away.

use std::collections::{BTreeMap, BTreeSet};

use super::{ATTEMPTS_MAX, Effect, FAILURES_MAX, Folding, Gateway, Weighed};
use crate::aggregate::Weight;
use crate::compress::Coding;
use crate::event::{Event, Objection};
use crate::fold;
use crate::ids::{Attempt, NodeId, Round};
use crate::machine::Context;
use crate::mutants;
use crate::tensor::{ELEMENTS_MAX, Hash};
use crate::wire::{Answer, Contribution, Control, Encoding, Fold, Folded, RegionRef, Term};

/// Checksums in one question to a rank: half a MiB, so that it fits into a message with all its terms.
const CHECKSUMS_MAX: usize = 1 << 14;

/// See [`Effect::Gather`].
#[derive(Debug, Clone, PartialEq)]
pub struct Gather {
    /// The round.
    pub round: Round,
    /// The view.
    pub epoch: u64,
    /// Which start of the fold.
    pub attempt: Attempt,
    /// As in the orders to fold.
    pub token: u64,
    /// The power of two to divide by.
    pub exponent: i32,
    /// How the sum travels.
    pub codec: Coding,
    /// Where each slice lies.
    pub parts: Vec<(u32, RegionRef)>,
}

/// What a contribution's bytes are announced by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parcel {
    /// BLAKE3 of each chunk.
    pub chunks: Vec<Hash>,
    /// How they are encoded.
    pub encoding: Encoding,
}

/// Plain chunks of these hashes.
impl From<Vec<Hash>> for Parcel {
    fn from(chunks: Vec<Hash>) -> Self {
        Parcel {
            chunks,
            encoding: Encoding::default(),
        }
    }
}

/// See [`Effect::Collect`].
#[derive(Debug, Clone, PartialEq)]
pub struct Collect {
    /// The round.
    pub round: Round,
    /// The view.
    pub epoch: u64,
    /// Which start of the fold.
    pub attempt: Attempt,
    /// In rank order; the factor of each is its clip factor.
    pub terms: Vec<Term>,
}

impl Gateway {
    pub(super) fn on_weigh(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        weights: Vec<Weight>,
        norms: Vec<f64>,
    ) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.open.round == round)
        else {
            return;
        };
        let weighed: Vec<Weighed> = weights
            .into_iter()
            .zip(norms)
            .filter(|(weight, _)| !self.out.contains(&weight.node))
            .map(|(weight, norm)| Weighed { weight, norm })
            .collect();
        current.closed = false;
        if current.weighed.as_ref() == Some(&weighed) {
            if let Some(contribution) = &current.contribution {
                // A coordinator that was restarted: it has not noted this one, as far as it says.
                if mutants::is("sent-once") {
                    return;
                }
                return cx.effect(Effect::Tell(Control::Contribute(contribution.clone())));
            }
            if current.fold.is_some() {
                return;
            }
        }
        current.weighed = Some(weighed);
        current.contribution = None;
        current.answered = false;
        self.refuse_changed(cx);
        self.fold(cx);
    }

    /// Takes out updates that are not those that were weighed: their clip factor would not bound them.
    pub(super) fn refuse_changed(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &mut self.current else {
            return;
        };
        let changed = |weighed: &&Weighed| {
            let export = current.exports.get(&weighed.weight.node);
            export
                .and_then(|export| export.report.as_ref())
                .is_some_and(|report| report.norm.to_bits() != weighed.norm.to_bits())
        };
        let stands = |weighed: &&Weighed| {
            let standing = current.contribution.as_ref();
            standing.is_some_and(|standing| standing.members.contains(&weighed.weight.node))
        };
        let changed: Vec<NodeId> = current
            .weighed
            .iter()
            .flatten()
            .filter(|weighed| changed(weighed) && !stands(weighed))
            .map(|weighed| weighed.weight.node.clone())
            .collect();
        for node in &changed {
            current.exports.remove(node);
        }
        for node in changed {
            self.refuse(
                cx,
                node,
                Objection::Unusable,
                "its update is not the one that was weighed".into(),
            );
        }
    }

    /// Folds anew if that brings in more than the contribution that stands: a weighed member that had lost its export has it again.
    ///
    /// Only once the coordinator has answered the last one, so that no more than two sums are kept.
    pub(super) fn grow(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &self.current else { return };
        let (inside, may) = match (&current.fold, &current.contribution) {
            (folding, None) => (
                folding.as_ref().map(|folding| &folding.members),
                !current.closed,
            ),
            (_, Some(standing)) => (
                Some(&standing.members),
                current.answered && !current.closed && current.fold.is_none(),
            ),
        };
        let more = current
            .terms()
            .any(|(node, ..)| !inside.is_some_and(|inside| inside.contains(node)));
        if may && more {
            self.fold(cx);
        }
    }

    /// Folds again, if what is folded or announced holds somebody who takes no part any more.
    pub(super) fn fold_without(&mut self, cx: &mut Context<'_, Effect>, out: &BTreeSet<NodeId>) {
        let Some(current) = &mut self.current else {
            return;
        };
        let holds = |members: &[NodeId]| members.iter().any(|member| out.contains(member));
        let folding = current.fold.as_ref();
        let standing = current.contribution.as_ref();
        if folding.is_some_and(|folding| holds(&folding.members))
            || standing.is_some_and(|standing| holds(&standing.members))
        {
            current.contribution = None;
            current.answered = false;
            self.fold(cx);
        }
    }

    /// Starts the fold, again if need be, over all weighed updates that can be had.
    pub(super) fn fold(&mut self, cx: &mut Context<'_, Effect>) {
        let (ranks, mut token) = (self.ranks.clone(), self.tokens.next_u64());
        if mutants::is("regroup-race") {
            token = 1;
        }
        let Some(current) = &mut self.current else {
            return;
        };
        current.fold = None;
        let mut terms = Vec::new();
        let mut weight = 0.0;
        let mut members = Vec::new();
        for rank in &ranks {
            let Some((_, given, export)) = current.terms().find(|(node, ..)| *node == rank) else {
                continue;
            };
            let factor = match self.hands_on {
                // What each update counts for is the rule's to say.
                true => fold::factor(1.0, given.clip),
                false => fold::factor(given.weight, given.clip),
            };
            let Ok(factor) = factor else {
                continue;
            };
            weight += given.weight;
            members.push(rank.clone());
            terms.push(Term {
                node: rank.clone(),
                round: export.exported.round,
                epoch: export.exported.epoch,
                region: export.exported.region.clone(),
                factor,
                checksums: export
                    .measured
                    .values()
                    .map(|slice| slice.checksum)
                    .collect(),
            });
        }
        if terms.is_empty() {
            return;
        }
        if mutants::is("planned-weight") {
            let planned = current.weighed.iter().flatten();
            weight = planned.fold(0.0, |sum, weighed| sum + weighed.weight.weight);
        }
        if current
            .contribution
            .as_ref()
            .is_some_and(|standing| standing.weight >= weight)
        {
            return;
        }
        let exponent = match fold::exponent(weight) {
            Ok(_) if self.hands_on && terms.len() * self.layout.len() > ELEMENTS_MAX as usize => {
                let all = terms.len();
                let reason = format!(
                    "{all} updates of {} elements are more than one contribution can announce",
                    self.layout.len()
                );
                return self.give_up(cx, &reason);
            }
            Ok(_) if current.attempts.saturating_sub(current.open.attempt) >= ATTEMPTS_MAX => {
                return self.give_up(cx, "the domain's fold was started too often");
            }
            Ok(exponent) => exponent,
            Err(error) => return self.give_up(cx, &error.to_string()),
        };
        let attempt = current.attempts;
        current.attempts = current.attempts.saturating_add(1);
        cx.report(Event::FoldStarted {
            round: current.open.round,
            attempt,
            domain: self.domain.clone(),
        });
        if attempt > 0 {
            cx.report(Event::Regrouped {
                round: current.open.round,
                attempt,
                domain: self.domain.clone(),
                members: members.clone(),
            });
        }
        current.fold = Some(Folding {
            token,
            attempt,
            terms,
            members,
            weight,
            exponent,
            pending: BTreeMap::new(),
            done: BTreeMap::new(),
            gathering: false,
        });
        if self.hands_on {
            return self.collect(cx);
        }
        self.spread(cx);
    }

    /// Nothing is folded here: every update is read as a whole, by this node alone.
    fn collect(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &mut self.current else {
            return;
        };
        let Some(folding) = &mut current.fold else {
            return;
        };
        folding.gathering = true;
        cx.effect(Effect::Collect(Collect {
            round: current.open.round,
            epoch: current.open.epoch,
            attempt: folding.attempt,
            terms: folding.terms.clone(),
        }));
    }

    /// Asks for the slices of the fold that nobody has folded or is folding.
    pub(super) fn spread(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &self.current else { return };
        let Some(folding) = current.fold.as_ref().filter(|folding| !folding.gathering) else {
            return;
        };
        let asked: BTreeSet<u32> = folding.pending.values().flatten().copied().collect();
        let open: Vec<u32> = self
            .slices
            .iter()
            .copied()
            .filter(|slice| !asked.contains(slice) && !folding.done.contains_key(slice))
            .collect();
        let shares = self.assign(open, &current.excused);
        let Some(current) = &mut self.current else {
            return;
        };
        let Some(folding) = &mut current.fold else {
            return;
        };
        for (rank, slices) in shares {
            folding
                .pending
                .entry(rank.clone())
                .or_default()
                .extend(&slices);
            let at_once = (CHECKSUMS_MAX / folding.terms.len()).max(1);
            for slices in slices.chunks(at_once) {
                let terms = folding.terms.iter().map(|term| term.of(slices));
                let fold = Fold {
                    token: folding.token,
                    round: current.open.round,
                    epoch: current.open.epoch,
                    attempt: folding.attempt,
                    terms: terms.collect(),
                    slices: slices.to_vec(),
                };
                cx.effect(Effect::Member(rank.clone(), Control::Fold(fold)));
            }
        }
    }

    /// A rank could not do its part: others do it, unless the whole domain keeps failing.
    fn excuse(&mut self, cx: &mut Context<'_, Effect>, rank: NodeId, reason: &str) -> bool {
        let Some(current) = &mut self.current else {
            return false;
        };
        current.excused.insert(rank.clone());
        current.failures += 1;
        if current.failures < FAILURES_MAX {
            return true;
        }
        self.give_up(
            cx,
            &format!("the domain's ranks failed too often, last {rank}: {reason}"),
        );
        false
    }

    /// The domain adds nothing more to this round; what stands, stands.
    fn give_up(&mut self, cx: &mut Context<'_, Effect>, reason: &str) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.fold = None;
        current.closed = true;
        let standing = current.contribution.clone();
        let outside: Vec<NodeId> = current
            .weighed
            .iter()
            .flatten()
            .map(|weighed| weighed.weight.node.clone())
            .filter(|node| {
                standing
                    .as_ref()
                    .is_none_or(|standing| !standing.members.contains(node))
            })
            .collect();
        for node in outside {
            self.refuse(cx, node, Objection::Unusable, reason.to_owned());
        }
    }

    pub(super) fn on_folded(
        &mut self,
        cx: &mut Context<'_, Effect>,
        rank: &NodeId,
        folded: Folded,
    ) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.open.round == folded.round)
        else {
            return;
        };
        let Some(folding) = current
            .fold
            .as_mut()
            .filter(|folding| folding.token == folded.token)
        else {
            return;
        };
        let mut slices = folded.slices;
        slices.retain(|slice| super::take(&mut folding.pending, rank, *slice));
        // Who is not asked any more has been replaced, or says it twice.
        if slices.is_empty() {
            return;
        }
        match folded.result {
            Ok(region) if region.owner == *rank => {
                for slice in slices {
                    folding.done.insert(slice, region.clone());
                }
                self.gather(cx);
            }
            Err((blamed, reason)) if folding.members.contains(&blamed) => {
                self.unreadable(cx, &blamed, &reason);
                self.fold(cx);
            }
            Ok(region) => {
                let reason = format!("its result lies in a region of {}", region.owner);
                if self.excuse(cx, rank.clone(), &reason) {
                    self.spread(cx);
                }
            }
            Err((_, reason)) => {
                if self.excuse(cx, rank.clone(), &reason) {
                    self.spread(cx);
                }
            }
        }
    }

    fn gather(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &mut self.current else {
            return;
        };
        let Some(folding) = &mut current.fold else {
            return;
        };
        if folding.done.len() < self.slices.len() {
            return self.spread(cx);
        }
        folding.gathering = true;
        cx.effect(Effect::Gather(Gather {
            round: current.open.round,
            epoch: current.open.epoch,
            attempt: folding.attempt,
            token: folding.token,
            exponent: folding.exponent,
            codec: self.codec,
            parts: folding
                .done
                .iter()
                .map(|(slice, region)| (*slice, region.clone()))
                .collect(),
        }));
    }

    pub(super) fn on_gathered(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        attempt: Attempt,
        result: Result<Parcel, (NodeId, String)>,
    ) {
        let domain = self.domain.clone();
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.open.round == round)
        else {
            return;
        };
        let Some(folding) = current
            .fold
            .take_if(|folding| folding.attempt == attempt && folding.gathering)
        else {
            return;
        };
        let Parcel { chunks, encoding } = match result {
            Ok(parcel) => parcel,
            Err((blamed, reason)) if self.hands_on => {
                self.unreadable(cx, &blamed, &reason);
                return self.fold(cx);
            }
            Err((rank, reason)) => {
                if self.excuse(cx, rank, &reason) {
                    self.fold(cx);
                }
                return;
            }
        };
        let contribution = Contribution {
            round,
            epoch: current.open.epoch,
            attempt,
            domain,
            members: folding.members,
            weight: folding.weight,
            exponent: folding.exponent,
            chunks,
            encoding,
        };
        current.contribution = Some(contribution.clone());
        current.answered = false;
        cx.report(Event::Contributed {
            round,
            attempt,
            domain: contribution.domain.clone(),
        });
        cx.effect(Effect::Tell(Control::Contribute(contribution.clone())));
        // Who can be reached may still bring its update again, and so may who has not been here yet; for the others nobody should wait.
        let gone: Vec<NodeId> = current
            .weighed
            .iter()
            .flatten()
            .filter(|weighed| weighed.weight.weight > 0.0)
            .map(|weighed| &weighed.weight.node)
            .filter(|node| !contribution.members.contains(node))
            .filter(|node| self.known.contains(*node) && !self.present.contains(*node))
            .cloned()
            .collect();
        for node in gone {
            let reason = "its update was lost after weighing".into();
            cx.effect(Effect::Tell(Control::Unreachable {
                round,
                node,
                reason,
            }));
        }
    }

    pub(super) fn on_answer(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        attempt: Attempt,
        answer: Answer,
    ) {
        if let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.open.round == round)
            && current
                .contribution
                .as_ref()
                .is_some_and(|standing| standing.attempt == attempt)
        {
            current.answered = true;
            current.closed |= matches!(answer, Answer::Late | Answer::Refused(_));
        }
        let from = self.domain.to_string();
        match answer {
            Answer::Acknowledged => {}
            Answer::Duplicate => cx.report(Event::DuplicateAnswered { round, from }),
            Answer::Late => cx.report(Event::LateAnswered { round, from }),
            Answer::Refused(reason) => cx.report(Event::DomainDropped {
                round,
                domain: self.domain.clone(),
                reason: reason.into(),
            }),
        }
        self.grow(cx);
    }
}
