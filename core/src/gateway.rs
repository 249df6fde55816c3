//! A domain within the federation: the gateway's view of one round.
//!
//! Members export updates; every rank that can be reached measures its slices of each of them; the gateway reports norms, gets weights, has
//! the ranks fold their slices, gathers the parts and announces one contribution. Whoever fails on the way is left out by starting the fold
//! again without its term, never by subtracting it. Slices are fixed by the domain's size; who works on a slice changes with who is there.
//!
//! Orders outlive whoever gave them: a rank may still work for an earlier life of the gateway, for the gateway before it, or on an update that
//! another has replaced. So each order carries a token, drawn in this life for what it is about, and only answers with that token are taken.

mod folding;
mod measure;
mod model;
mod views;
mod watch;

use std::collections::{BTreeMap, BTreeSet};

use crate::aggregate::{Needs, Report, Weight};
use crate::compress::Coding;
use crate::event::{Event, Objection};
use crate::fold;
use crate::ids::{Attempt, DomainId, NodeId, Round};
use crate::machine::{Context, Machine};
use crate::membership::Word;
use crate::plan::SyncEvery;
use crate::rng::Rng;
use crate::tensor::{Hash, Layout};
use crate::text::Text;
use crate::view::View;
use crate::wire::{
    Commit, Contribution, Control, Exported, Join, ModelRef, Open, RegionRef, SliceMeasure, Term,
    Train,
};

pub use folding::{Collect, Gather, Parcel};

/// Starts of one round's fold. More than the members that can fail one after another in a round worth finishing.
pub const ATTEMPTS_MAX: Attempt = 64;

/// Orders of one round at which a rank itself failed. A few for each rank of a usual domain; a domain that fails more often is ill.
const FAILURES_MAX: u32 = 16;

/// How often one member's failed order is given again within a round.
const TRIES_MAX: u32 = 3;

/// What comes in.
#[derive(Debug)]
pub enum Message {
    /// The coordinator can be reached; it is to be told where this domain stands.
    CoordinatorUp,
    /// From the coordinator.
    Coordinator(Control),
    /// A member's link came up: it is asked to join.
    MemberUp(NodeId),
    /// A member is suspect or its link closed: its share of the work goes to others.
    MemberSilent(NodeId),
    /// A member is lost: it is out of the round unless it comes back.
    MemberLost(NodeId),
    /// A member was silent through the whole ladder: the coordinator should put it out.
    MemberOverdue(NodeId),
    /// A member leaves, perhaps this node itself.
    MemberLeaves(NodeId),
    /// Who is in, from now on.
    View(View),
    /// From a member.
    Member(NodeId, Control),
    /// The model lies in a region that the domain may READ, or could not be had.
    Obtained(Round, Result<ModelRef, String>),
    /// The parts are gathered, or a rank's part could not be read.
    Gathered(Round, Attempt, Result<Parcel, (NodeId, String)>),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send to the coordinator.
    Tell(Control),
    /// Send to a member, perhaps this node itself.
    Member(NodeId, Control),
    /// Get the model of a round: from the coordinator, which has just committed it, if the model before is at hand, else from whoever holds it.
    Obtain {
        /// The round that committed it.
        round: Round,
        /// The model before, if the domain holds that.
        base: Option<Hash>,
        /// What must come out.
        hash: Hash,
    },
    /// READ the folded slices together, scale by 2 to the minus `exponent`, hash the chunks, keep the result for the coordinator to fetch.
    Gather(Gather),
    /// The rule must see each update: READ them one beside the other, verified and clipped, hash the chunks, keep the result for the coordinator to
    /// fetch; answer with [`Message::Gathered`], which then blames the member whose update could not be read.
    Collect(Collect),
    /// The run is over for this domain.
    Finished(String),
}

/// See the module.
#[derive(Debug)]
pub struct Gateway {
    tokens: Rng,
    /// The token of this life.
    life: u64,
    domain: DomainId,
    ranks: Vec<NodeId>,
    layout: Layout,
    slices: Vec<u32>,
    /// Whether the rule folds the updates itself, so that the domain hands on each of them.
    hands_on: bool,
    /// Nobody here is asked in any round.
    looks_on: bool,
    /// How the domain's sum travels.
    codec: Coding,
    model: Option<ModelRef>,
    obtaining: Option<(Round, Option<Hash>, Hash)>,
    obtain_tries: u32,
    adopt_tries: BTreeMap<NodeId, u32>,
    finished: Option<Text>,
    present: BTreeSet<NodeId>,
    /// Who was here since this gateway began.
    known: BTreeSet<NodeId>,
    silent: BTreeSet<NodeId>,
    holds: BTreeMap<NodeId, (Round, Hash)>,
    adopted: Option<(Round, Hash)>,
    /// Who takes no part, by the view.
    out: BTreeSet<NodeId>,
    /// What the coordinator was told of each member last.
    told: BTreeMap<NodeId, Word>,
    watch: watch::Watch,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    open: Open,
    exports: BTreeMap<NodeId, Export>,
    tries: BTreeMap<NodeId, u32>,
    /// Ranks that failed at their work in this round: others are asked first.
    excused: BTreeSet<NodeId>,
    failures: u32,
    weighed: Option<Vec<Weighed>>,
    attempts: Attempt,
    fold: Option<Folding>,
    /// The last one announced.
    contribution: Option<Contribution>,
    /// The coordinator answered it.
    answered: bool,
    /// The coordinator takes no other.
    closed: bool,
}

/// A weight, and the norm of the update that it was fixed for.
#[derive(Debug, PartialEq)]
struct Weighed {
    weight: Weight,
    norm: f64,
}

#[derive(Debug)]
struct Export {
    token: u64,
    exported: Exported,
    pending: BTreeMap<NodeId, Vec<u32>>,
    measured: BTreeMap<u32, SliceMeasure>,
    /// Ranks that could not READ it.
    unread: BTreeSet<NodeId>,
    report: Option<Report>,
}

#[derive(Debug)]
struct Folding {
    token: u64,
    attempt: Attempt,
    terms: Vec<Term>,
    members: Vec<NodeId>,
    weight: f64,
    exponent: i32,
    pending: BTreeMap<NodeId, Vec<u32>>,
    done: BTreeMap<u32, RegionRef>,
    gathering: bool,
}

impl Current {
    fn new(open: Open) -> Self {
        Current {
            attempts: open.attempt,
            open,
            exports: BTreeMap::new(),
            tries: BTreeMap::new(),
            excused: BTreeSet::new(),
            failures: 0,
            weighed: None,
            fold: None,
            contribution: None,
            answered: false,
            closed: false,
        }
    }

    /// The updates that a fold may use: weighed, and still the ones that were weighed.
    fn terms(&self) -> impl Iterator<Item = (&NodeId, &Weight, &Export)> {
        self.weighed
            .iter()
            .flatten()
            .filter(|weighed| weighed.weight.weight > 0.0)
            .filter_map(|weighed| {
                let node = &weighed.weight.node;
                let export = self.exports.get(node)?;
                let report = export.report.as_ref()?;
                (report.norm.to_bits() == weighed.norm.to_bits()).then_some((
                    node,
                    &weighed.weight,
                    export,
                ))
            })
    }
}

/// Takes one slice off a rank's list; false if it was not on it.
fn take(pending: &mut BTreeMap<NodeId, Vec<u32>>, rank: &NodeId, slice: u32) -> bool {
    let Some(slices) = pending.get_mut(rank) else {
        return false;
    };
    let before = slices.len();
    slices.retain(|asked| *asked != slice);
    let taken = slices.len() < before;
    if slices.is_empty() {
        pending.remove(rank);
    }
    taken
}

impl Gateway {
    /// The gateway of a domain whose nodes are `ranks`, in rank order. `tokens` names its orders: of another seed in every life.
    pub fn new(domain: DomainId, ranks: Vec<NodeId>, layout: Layout, mut tokens: Rng) -> Self {
        let slices = fold::slices(layout.len(), ranks.len());
        let filled = slices
            .iter()
            .enumerate()
            .filter(|(_, range)| !range.is_empty());
        Gateway {
            life: tokens.next_u64(),
            tokens,
            domain,
            slices: filled.map(|(index, _)| index as u32).collect(),
            ranks,
            layout,
            hands_on: false,
            looks_on: false,
            codec: Coding::PLAIN,
            model: None,
            obtaining: None,
            obtain_tries: 0,
            adopt_tries: BTreeMap::new(),
            finished: None,
            present: BTreeSet::new(),
            known: BTreeSet::new(),
            silent: BTreeSet::new(),
            holds: BTreeMap::new(),
            adopted: None,
            out: BTreeSet::new(),
            told: BTreeMap::new(),
            watch: watch::Watch::default(),
            current: None,
        }
    }

    /// For a rule that needs this: its sum by default.
    pub fn for_rule(self, needs: Needs) -> Self {
        Gateway {
            hands_on: needs != Needs::Sum,
            ..self
        }
    }

    /// For sums that travel in this codec: as they are by default.
    pub fn with_codec(self, codec: Coding) -> Self {
        Gateway { codec, ..self }
    }

    /// For a domain of which nobody is asked in any round: it hears of models and holds none.
    pub fn looks_on(self) -> Self {
        Gateway {
            looks_on: true,
            ..self
        }
    }

    /// The sum that the coordinator may fetch.
    pub fn offered(&self) -> Option<(Round, Attempt)> {
        let current = self.current.as_ref()?;
        let standing = current.contribution.as_ref()?;
        Some((standing.round, standing.attempt))
    }

    /// The open round.
    fn round(&self) -> Option<Round> {
        self.current.as_ref().map(|current| current.open.round)
    }

    fn reachable(&self) -> impl Iterator<Item = &NodeId> {
        self.present
            .iter()
            .filter(|rank| !self.silent.contains(*rank))
    }

    /// Divides slices among the ranks that can be reached: each slice to its own rank, or to the next one that is there. Ranks to `avoid`
    /// only if there is no other.
    fn assign(&self, slices: Vec<u32>, avoid: &BTreeSet<NodeId>) -> BTreeMap<NodeId, Vec<u32>> {
        let reachable: BTreeSet<&NodeId> = self.reachable().collect();
        let mut shares: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        for slice in slices {
            let ranks = (0..self.ranks.len())
                .map(|step| &self.ranks[(slice as usize + step) % self.ranks.len()])
                .filter(|rank| reachable.contains(rank));
            let willing = ranks.clone().find(|rank| !avoid.contains(*rank));
            if let Some(rank) = willing.or_else(|| ranks.clone().next()) {
                shares.entry(rank.clone()).or_default().push(slice);
            }
        }
        shares
    }

    fn train(&self, cx: &mut Context<'_, Effect>, node: &NodeId) {
        let (Some(current), Some(model)) = (&self.current, &self.model) else {
            return;
        };
        let open = &current.open;
        if !open.cohort.contains(node)
            || !self.present.contains(node)
            || (model.round, model.hash) != (open.base_round, open.base)
        {
            return;
        }
        let given = open.steps.iter().find(|(of, _)| of == node);
        let given = given.map(|(_, steps)| *steps);
        let train = Train {
            token: self.life,
            run: open.run,
            round: open.round,
            epoch: open.epoch,
            model: model.clone(),
            sync_every: given.map_or(open.sync_every, SyncEvery::Steps),
            counts_as: given.and(open.sync_every.steps()),
            seed: open.seed,
            oldest: open.fresh.as_ref().map(|fresh| fresh.oldest_of(node)),
        };
        cx.effect(Effect::Member(node.clone(), Control::Train(train)));
    }

    fn train_all(&self, cx: &mut Context<'_, Effect>) {
        if let Some(current) = &self.current {
            for node in &current.open.cohort {
                if !current.exports.contains_key(node) {
                    self.train(cx, node);
                }
            }
        }
    }

    fn on_open(&mut self, cx: &mut Context<'_, Effect>, mut open: Open) {
        open.cohort.retain(|node| !self.out.contains(node));
        let (base_round, base) = (open.base_round, open.base);
        if self
            .model
            .as_ref()
            .is_some_and(|model| model.round >= open.round)
        {
            // An echo: that round is committed.
            return;
        }
        match &mut self.current {
            // An echo from before a reconnection.
            Some(current) if open.round < current.open.round => return,
            Some(Current { open: now, .. })
                if (now.run, now.round, now.epoch, now.base, &now.steps)
                    == (open.run, open.round, open.epoch, base, &open.steps) => {}
            _ => {
                self.current = Some(Current::new(open));
                self.obtain(cx, base_round, None, base);
                return self.train_all(cx);
            }
        }
        // A coordinator that was restarted, or a link that came back: say again what is known.
        let Some(current) = &mut self.current else {
            return;
        };
        current.attempts = current.attempts.max(open.attempt);
        for export in current.exports.values() {
            let Some(report) = export.report.clone() else {
                continue;
            };
            cx.effect(Effect::Tell(Control::Reported {
                round: open.round,
                epoch: open.epoch,
                trained_for: export.exported.round,
                report,
                effort: export.exported.effort,
            }));
        }
        let gone: Vec<NodeId> = open
            .cohort
            .into_iter()
            .filter(|node| {
                current
                    .tries
                    .get(node)
                    .is_some_and(|tries| *tries > TRIES_MAX)
            })
            .collect();
        for node in gone {
            cx.effect(Effect::Tell(Control::TrainingFailed {
                round: open.round,
                node,
                reason: "its update could not be used".into(),
            }));
        }
        self.obtain(cx, base_round, None, base);
        self.train_all(cx);
    }

    fn on_coordinator(&mut self, cx: &mut Context<'_, Effect>, control: Control) {
        match control {
            Control::Resync => self.introduce(cx),
            Control::Open(open) => self.on_open(cx, open),
            Control::Weigh {
                round,
                weights,
                norms,
            } => self.on_weigh(cx, round, weights, norms),
            Control::Answer {
                round,
                attempt,
                answer,
            } => self.on_answer(cx, round, attempt, answer),
            Control::Commit(Commit {
                round, base, hash, ..
            }) => {
                if self.round().is_some_and(|open| open <= round) {
                    self.current = None;
                }
                self.obtain(cx, round, Some(base), hash);
                self.tell_adopted(cx);
            }
            Control::Abort { round, reason } => {
                if self.round() != Some(round) {
                    return;
                }
                self.current = None;
                for node in &self.present {
                    cx.effect(Effect::Member(
                        node.clone(),
                        Control::Drop {
                            round,
                            reason: reason.clone(),
                        },
                    ));
                }
            }
            Control::Finish { reason } => {
                for node in self.present.iter().chain(&self.out) {
                    cx.effect(Effect::Member(
                        node.clone(),
                        Control::Leave {
                            reason: reason.clone(),
                        },
                    ));
                }
                self.current = None;
                self.finished = Some(reason.clone());
                cx.effect(Effect::Finished(reason.into()));
            }
            // Not a coordinator's words; the link's authorization has refused them before.
            _ => {}
        }
    }

    fn on_member(&mut self, cx: &mut Context<'_, Effect>, node: NodeId, control: Control) {
        if !self.ranks.contains(&node) {
            return;
        }
        match control {
            Control::Join(Join {
                layout,
                round,
                hash,
            }) => {
                if let Some(difference) = self.layout.difference(&layout) {
                    let reason = Text::from(format!(
                        "{node} trains another model than {}: {difference}",
                        self.domain
                    ));
                    cx.report(Event::UpdateRefused {
                        why: Objection::WrongShape,
                        round,
                        node: node.clone(),
                        reason: reason.to_string(),
                    });
                    return cx.effect(Effect::Member(node, Control::Leave { reason }));
                }
                self.stand(cx, &node, Word::Active);
                if self.out.contains(&node) {
                    // Heard, which is all it takes to be let in again when its time has come.
                    return;
                }
                self.present.insert(node.clone());
                self.known.insert(node.clone());
                self.silent.remove(&node);
                self.holds.insert(node.clone(), (round, hash));
                self.adopt_tries.remove(&node);
                self.adopted = None;
                if let Some(reason) = self.finished.clone() {
                    return cx.effect(Effect::Member(node, Control::Leave { reason }));
                }
                match &self.model {
                    // A gateway that was restarted holds less than its members, until the coordinator says more.
                    Some(model)
                        if model.round >= round && (model.round, model.hash) != (round, hash) =>
                    {
                        cx.effect(Effect::Member(node.clone(), Control::Adopt(model.clone())));
                    }
                    _ => self.tell_adopted(cx),
                }
                self.train(cx, &node);
                // Who introduces itself may have been rebuilt and forgotten what it was asked; an answer given twice counts once.
                self.forget_asked(&node);
                self.resume_work(cx);
            }
            Control::Exported(exported) => self.on_exported(cx, node, exported),
            Control::Failed {
                round,
                token,
                reason,
            } => {
                if token.is_some_and(|token| token != self.life) {
                    // It could not do what an earlier gateway asked for; it was asked anew since.
                } else if self.holds_update_of(&node) {
                    // The next one failed; the one that the round has is not worse for it.
                } else if self.round() == Some(round) {
                    self.unreadable(cx, &node, &reason);
                } else if let Some(model) = self.model.clone().filter(|model| model.round >= round)
                {
                    let tries = self.adopt_tries.entry(node.clone()).or_default();
                    *tries += 1;
                    // After that the next order to train, or the next model, tries again.
                    if *tries <= TRIES_MAX {
                        cx.effect(Effect::Member(node, Control::Adopt(model)));
                    }
                }
            }
            Control::Departing => self.on_leaving(cx, node),
            Control::Measured(measured) => self.on_measured(cx, &node, measured),
            Control::Folded(folded) => self.on_folded(cx, &node, folded),
            Control::Holds { round, hash } => {
                self.holds.insert(node, (round, hash));
                self.tell_adopted(cx);
            }
            Control::Diverged(divergence) => {
                self.holds
                    .insert(node.clone(), (divergence.model, divergence.found));
                cx.effect(Effect::Tell(Control::MemberDiverged(node, divergence)));
            }
            _ => {}
        }
    }

    /// Whether an asynchronous round has a member's update already, while the member goes on.
    fn holds_update_of(&self, node: &NodeId) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|now| now.open.fresh.is_some() && now.exports.contains_key(node))
    }

    /// Gives the work of a member that leaves to others. What it brought to the round counts until the view without it is here.
    fn on_leaving(&mut self, cx: &mut Context<'_, Effect>, node: NodeId) {
        self.stand(cx, &node, Word::Left);
        self.silent.insert(node);
        self.resume_work(cx);
    }

    /// Takes it that a rank will not answer what it was asked before.
    fn forget_asked(&mut self, rank: &NodeId) {
        let Some(current) = &mut self.current else {
            return;
        };
        for export in current.exports.values_mut() {
            export.pending.remove(rank);
        }
        if let Some(folding) = &mut current.fold {
            folding.pending.remove(rank);
        }
    }

    /// Gives out again what silent members had been asked for.
    fn resume_work(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &mut self.current else {
            return;
        };
        let gone = |rank: &NodeId| !self.present.contains(rank) || self.silent.contains(rank);
        for export in current.exports.values_mut() {
            export.pending.retain(|rank, _| !gone(rank));
        }
        if let Some(folding) = &mut current.fold {
            folding.pending.retain(|rank, _| !gone(rank));
        }
        let nodes: Vec<NodeId> = current.exports.keys().cloned().collect();
        nodes.iter().for_each(|node| self.measure(cx, node));
        self.spread(cx);
    }
}

impl Machine for Gateway {
    type Message = Message;
    type Effect = Effect;

    fn handle(&mut self, message: Message, cx: &mut Context<'_, Effect>) {
        match message {
            Message::CoordinatorUp => self.introduce(cx),
            Message::Coordinator(control) => self.on_coordinator(cx, control),
            Message::MemberUp(node) => {
                self.silent.remove(&node);
                cx.effect(Effect::Member(node, Control::Rejoin));
            }
            Message::View(view) => self.on_view(cx, &view),
            Message::MemberOverdue(node) => self.stand(cx, &node, Word::Overdue),
            Message::MemberLeaves(node) => self.on_leaving(cx, node),
            Message::MemberSilent(node) => {
                if self.told.get(&node) == Some(&Word::Active) {
                    self.stand(cx, &node, Word::Suspect);
                }
                self.silent.insert(node);
                self.resume_work(cx);
            }
            Message::MemberLost(node) => {
                self.stand(cx, &node, Word::Restoring);
                self.present.remove(&node);
                self.silent.remove(&node);
                if let Some(current) = &self.current {
                    let round = current.open.round;
                    let counted = current
                        .contribution
                        .as_ref()
                        .is_some_and(|mine| mine.members.contains(&node));
                    if current.open.cohort.contains(&node) && !counted {
                        let reason = "no sign of life".into();
                        cx.effect(Effect::Tell(Control::Unreachable {
                            round,
                            node,
                            reason,
                        }));
                    }
                }
                self.resume_work(cx);
                self.tell_adopted(cx);
            }
            Message::Member(node, control) => self.on_member(cx, node, control),
            Message::Obtained(round, Ok(model)) => {
                if self.obtaining.is_some_and(|(wanted, ..)| wanted == round) {
                    self.obtaining = None;
                }
                if self
                    .model
                    .as_ref()
                    .is_some_and(|held| held.round > model.round)
                {
                    return;
                }
                self.model = Some(model.clone());
                self.adopt_tries.clear();
                cx.report(Event::ModelObtained {
                    domain: self.domain.clone(),
                    round: model.round,
                });
                for node in &self.present {
                    cx.effect(Effect::Member(node.clone(), Control::Adopt(model.clone())));
                }
                self.train_all(cx);
            }
            Message::Obtained(round, Err(reason)) => self.on_unobtained(cx, round, &reason),
            Message::Gathered(round, attempt, result) => {
                self.on_gathered(cx, round, attempt, result)
            }
        }
        self.look(cx);
    }

    fn on_wake(&mut self, cx: &mut Context<'_, Effect>) {
        self.look(cx);
    }
}

#[cfg(test)]
mod tests;
