//! A domain within the federation: the gateway's view of one round.
//!
//! Members export updates; every rank that can be reached measures its slices of each of them; the gateway reports norms, gets weights, has
//! the ranks fold their slices, gathers the parts and announces one contribution. Whoever fails on the way is left out by starting the fold
//! again without its term, never by subtracting it. Slices are fixed by the domain's size; who works on a slice changes with who is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::aggregate::{Report, Weight};
use crate::event::Event;
use crate::fold;
use crate::ids::{Attempt, DomainId, NodeId, Round};
use crate::machine::{Context, Machine};
use crate::tensor::{Hash, Layout};
use crate::wire::{
    Answer, Commit, Contribution, Control, DomainJoin, Exported, Fold, Folded, Join, Measure,
    Measured, ModelRef, Open, REGION_HEADER_BYTES, RegionRef, SliceMeasure, Term, Train,
};

/// Starts of one round's fold. More than the members that can fail one after another in a round worth finishing.
pub const ATTEMPTS_MAX: Attempt = 64;

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
    /// From a member.
    Member(NodeId, Control),
    /// The model lies in a region that the domain may READ, or could not be had.
    Obtained(Round, Result<ModelRef, String>),
    /// The parts are gathered, or a rank's part could not be read.
    Gathered(Round, Attempt, Result<Vec<Hash>, (NodeId, String)>),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Send to the coordinator.
    Tell(Control),
    /// Send to a member, perhaps this node itself.
    Member(NodeId, Control),
    /// Get the model of a round: add the step to the model of hash `base` if that is at hand, else fetch it whole.
    Obtain {
        /// The round that committed it.
        round: Round,
        /// The model before the step, if a step will do.
        base: Option<Hash>,
        /// What must come out.
        hash: Hash,
    },
    /// READ the folded slices together, scale by 2 to the minus `exponent`, hash the chunks, keep the result for the coordinator to fetch.
    Gather(Gather),
    /// The run is over for this domain.
    Finished(String),
}

/// See [`Effect::Gather`].
#[derive(Debug, Clone, PartialEq)]
pub struct Gather {
    /// The round.
    pub round: Round,
    /// The view.
    pub epoch: u64,
    /// Which start of the fold.
    pub attempt: Attempt,
    /// The power of two to divide by.
    pub exponent: i32,
    /// Where each slice lies.
    pub parts: Vec<(u32, RegionRef)>,
}

/// See the module.
#[derive(Debug)]
pub struct Gateway {
    domain: DomainId,
    ranks: Vec<NodeId>,
    layout: Layout,
    slices: Vec<u32>,
    model: Option<ModelRef>,
    obtaining: Option<(Round, Option<Hash>, Hash)>,
    obtain_tries: u32,
    present: BTreeSet<NodeId>,
    silent: BTreeSet<NodeId>,
    holds: BTreeMap<NodeId, (Round, Hash)>,
    adopted: Option<(Round, Hash)>,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    open: Open,
    exports: BTreeMap<NodeId, Export>,
    tries: BTreeMap<NodeId, u32>,
    weights: Option<Vec<Weight>>,
    attempts: Attempt,
    fold: Option<Folding>,
    contribution: Option<Contribution>,
}

#[derive(Debug)]
struct Export {
    exported: Exported,
    pending: BTreeMap<NodeId, Vec<u32>>,
    measured: BTreeMap<u32, SliceMeasure>,
    report: Option<Report>,
}

#[derive(Debug)]
struct Folding {
    attempt: Attempt,
    terms: Vec<Term>,
    members: Vec<NodeId>,
    weight: f64,
    exponent: i32,
    pending: BTreeMap<NodeId, Vec<u32>>,
    done: BTreeMap<u32, RegionRef>,
}

impl Gateway {
    /// The gateway of a domain whose nodes are `ranks`, in rank order.
    pub fn new(domain: DomainId, ranks: Vec<NodeId>, layout: Layout) -> Self {
        let slices = fold::slices(layout.len(), ranks.len());
        let filled = slices
            .iter()
            .enumerate()
            .filter(|(_, range)| !range.is_empty());
        Gateway {
            domain,
            slices: filled.map(|(index, _)| index as u32).collect(),
            ranks,
            layout,
            model: None,
            obtaining: None,
            obtain_tries: 0,
            present: BTreeSet::new(),
            silent: BTreeSet::new(),
            holds: BTreeMap::new(),
            adopted: None,
            current: None,
        }
    }

    /// The model that the domain may READ.
    pub fn model(&self) -> Option<&ModelRef> {
        self.model.as_ref()
    }

    /// The members that answered.
    pub fn present(&self) -> impl Iterator<Item = &NodeId> {
        self.present.iter()
    }

    fn join(&self) -> Control {
        let (round, hash) = self
            .model
            .as_ref()
            .map_or((0, Hash::default()), |model| (model.round, model.hash));
        let members = self.present.iter().cloned().collect();
        Control::DomainJoin(DomainJoin {
            layout: self.layout.clone(),
            round,
            hash,
            members,
        })
    }

    /// Divides slices among the ranks that can be reached: each slice to its own rank, or to the next one that is there.
    fn assign(&self, slices: impl IntoIterator<Item = u32>) -> BTreeMap<NodeId, Vec<u32>> {
        let mut shares: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
        for slice in slices {
            let ranks = (0..self.ranks.len())
                .map(|step| &self.ranks[(slice as usize + step) % self.ranks.len()]);
            let reachable =
                |rank: &&NodeId| self.present.contains(*rank) && !self.silent.contains(*rank);
            if let Some(rank) = ranks.clone().find(reachable) {
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
        let train = Train {
            round: open.round,
            epoch: open.epoch,
            model: model.clone(),
            sync_every: open.sync_every,
            seed: open.seed,
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

    fn obtain(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        base: Option<Hash>,
        hash: Hash,
    ) {
        if self
            .model
            .as_ref()
            .is_some_and(|model| (model.round, model.hash) == (round, hash))
        {
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

    fn on_open(&mut self, cx: &mut Context<'_, Effect>, open: Open) {
        if let Some(current) = &self.current {
            let now = &current.open;
            if (now.round, now.epoch, now.base) == (open.round, open.epoch, open.base) {
                // A coordinator that was restarted, or a link that came back: say again what is known.
                for report in current
                    .exports
                    .values()
                    .filter_map(|export| export.report.clone())
                {
                    cx.effect(Effect::Tell(Control::Reported {
                        round: open.round,
                        epoch: open.epoch,
                        report,
                    }));
                }
                return self.train_all(cx);
            }
        }
        let (base_round, base) = (open.base_round, open.base);
        self.current = Some(Current {
            open,
            exports: BTreeMap::new(),
            tries: BTreeMap::new(),
            weights: None,
            attempts: 0,
            fold: None,
            contribution: None,
        });
        self.obtain(cx, base_round, None, base);
        self.train_all(cx);
    }

    fn on_exported(&mut self, cx: &mut Context<'_, Effect>, node: NodeId, exported: Exported) {
        let region_len = (REGION_HEADER_BYTES + self.layout.len() * 4) as u64;
        let Some(current) = &mut self.current else {
            return cx.report(Event::LateAnswered {
                round: exported.round,
                from: node.to_string(),
            });
        };
        if (exported.round, exported.epoch) != (current.open.round, current.open.epoch) {
            return cx.report(Event::LateAnswered {
                round: exported.round,
                from: node.to_string(),
            });
        }
        if !current.open.cohort.contains(&node)
            || exported.region.owner != node
            || exported.region.len != region_len
        {
            let reason = format!(
                "a region of {} bytes where {region_len} are due",
                exported.region.len
            );
            cx.report(Event::UpdateRefused {
                round: exported.round,
                node: node.clone(),
                reason: reason.clone(),
            });
            return cx.effect(Effect::Tell(Control::TrainingFailed {
                round: exported.round,
                node,
                reason,
            }));
        }
        if current
            .exports
            .get(&node)
            .is_some_and(|known| known.exported == exported)
        {
            return cx.report(Event::DuplicateAnswered {
                round: exported.round,
                from: node.to_string(),
            });
        }
        let export = Export {
            exported,
            pending: BTreeMap::new(),
            measured: BTreeMap::new(),
            report: None,
        };
        current.exports.insert(node.clone(), export);
        self.measure(cx, &node);
    }

    /// Asks for the slices of an update that nobody has measured or is measuring.
    fn measure(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId) {
        let Some(export) = self
            .current
            .as_ref()
            .and_then(|current| current.exports.get(node))
        else {
            return;
        };
        let asked: BTreeSet<u32> = export.pending.values().flatten().copied().collect();
        let open = self
            .slices
            .iter()
            .copied()
            .filter(|slice| !asked.contains(slice) && !export.measured.contains_key(slice));
        let shares = self.assign(open.collect::<Vec<_>>());
        let export = self
            .current
            .as_mut()
            .and_then(|current| current.exports.get_mut(node))
            .expect("it was there above");
        for (rank, slices) in shares {
            export
                .pending
                .entry(rank.clone())
                .or_default()
                .extend(&slices);
            let Exported {
                round,
                epoch,
                ref region,
                ..
            } = export.exported;
            let measure = Measure {
                round,
                epoch,
                node: node.clone(),
                region: region.clone(),
                slices,
            };
            cx.effect(Effect::Member(rank, Control::Measure(measure)));
        }
    }

    fn on_measured(&mut self, cx: &mut Context<'_, Effect>, rank: &NodeId, measured: Measured) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.open.round == measured.round)
        else {
            return;
        };
        let Some(export) = current.exports.get_mut(&measured.node) else {
            return;
        };
        if export.exported.region.key != measured.key {
            return;
        }
        let slices = match measured.result {
            Ok(slices) => slices,
            Err(reason) => return self.unreadable(cx, &measured.node, &reason),
        };
        let pending = export.pending.remove(rank).unwrap_or_default();
        for slice in slices
            .into_iter()
            .filter(|slice| pending.contains(&slice.slice))
        {
            export.measured.entry(slice.slice).or_insert(slice);
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
        let (round, epoch) = (current.open.round, current.open.epoch);
        cx.effect(Effect::Tell(Control::Reported {
            round,
            epoch,
            report,
        }));
        self.refold_if_missing(cx, &measured.node);
    }

    /// A member's region cannot be READ: it is as if it had not exported. It is asked again, a few times.
    fn unreadable(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId, reason: &str) {
        let Some(current) = &mut self.current else {
            return;
        };
        current.exports.remove(node);
        let round = current.open.round;
        let tries = current.tries.entry(node.clone()).or_default();
        *tries += 1;
        if *tries <= TRIES_MAX {
            self.train(cx, node);
        } else {
            let reason = format!("its update could not be used {tries} times, last: {reason}");
            cx.report(Event::UpdateRefused {
                round,
                node: node.clone(),
                reason: reason.clone(),
            });
            cx.effect(Effect::Tell(Control::TrainingFailed {
                round,
                node: node.clone(),
                reason,
            }));
        }
    }

    fn on_weigh(&mut self, cx: &mut Context<'_, Effect>, round: Round, weights: Vec<Weight>) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.open.round == round)
        else {
            return;
        };
        if current.weights.as_ref() == Some(&weights) {
            if let Some(contribution) = &current.contribution {
                return cx.effect(Effect::Tell(Control::Contribute(contribution.clone())));
            }
            if current.fold.is_some() {
                return;
            }
        }
        current.weights = Some(weights);
        self.fold(cx);
    }

    /// A node that was weighed but lost its export has it again: the fold includes it, unless a contribution already stands.
    fn refold_if_missing(&mut self, cx: &mut Context<'_, Effect>, node: &NodeId) {
        let Some(current) = &self.current else { return };
        let weighed = current
            .weights
            .iter()
            .flatten()
            .any(|weight| weight.node == *node && weight.weight > 0.0);
        let inside = current
            .fold
            .as_ref()
            .is_some_and(|fold| fold.members.contains(node));
        if weighed && !inside && current.contribution.is_none() {
            self.fold(cx);
        }
    }

    /// Starts the fold, again if need be, over all weighed updates that can be had.
    fn fold(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(current) = &mut self.current else {
            return;
        };
        let round = current.open.round;
        current.fold = None;
        current.contribution = None;
        let mut terms = Vec::new();
        let mut weight = 0.0;
        let mut members = Vec::new();
        for rank in &self.ranks {
            let given = current
                .weights
                .iter()
                .flatten()
                .find(|given| given.node == *rank && given.weight > 0.0);
            let Some(given) = given else { continue };
            let Some(export) = current
                .exports
                .get(rank)
                .filter(|export| export.report.is_some())
            else {
                continue;
            };
            let Ok(factor) = fold::factor(given.weight, given.clip) else {
                continue;
            };
            weight += given.weight;
            members.push(rank.clone());
            terms.push(Term {
                node: rank.clone(),
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
        let exponent = match fold::exponent(weight) {
            Ok(exponent) if current.attempts < ATTEMPTS_MAX => exponent,
            Ok(_) => return self.give_up(cx, "the domain's fold was started too often"),
            Err(error) => return self.give_up(cx, &error.to_string()),
        };
        let attempt = current.attempts;
        current.attempts += 1;
        if attempt > 0 {
            let domain = self.domain.clone();
            cx.report(Event::Regrouped {
                round,
                attempt,
                domain,
                members: members.clone(),
            });
        }
        let (pending, done) = (BTreeMap::new(), BTreeMap::new());
        current.fold = Some(Folding {
            attempt,
            terms,
            members,
            weight,
            exponent,
            pending,
            done,
        });
        self.spread(cx);
    }

    /// Asks for the slices of the fold that nobody has folded or is folding.
    fn spread(&mut self, cx: &mut Context<'_, Effect>) {
        let Some(folding) = self
            .current
            .as_ref()
            .and_then(|current| current.fold.as_ref())
        else {
            return;
        };
        let asked: BTreeSet<u32> = folding.pending.values().flatten().copied().collect();
        let open = self
            .slices
            .iter()
            .copied()
            .filter(|slice| !asked.contains(slice) && !folding.done.contains_key(slice));
        let shares = self.assign(open.collect::<Vec<_>>());
        let current = self.current.as_mut().expect("it was there above");
        let folding = current.fold.as_mut().expect("it was there above");
        for (rank, slices) in shares {
            folding
                .pending
                .entry(rank.clone())
                .or_default()
                .extend(&slices);
            let fold = Fold {
                round: current.open.round,
                epoch: current.open.epoch,
                attempt: folding.attempt,
                terms: folding.terms.clone(),
                slices,
            };
            cx.effect(Effect::Member(rank, Control::Fold(fold)));
        }
    }

    fn give_up(&mut self, cx: &mut Context<'_, Effect>, reason: &str) {
        let Some(current) = &mut self.current else {
            return;
        };
        let round = current.open.round;
        for node in current
            .weights
            .take()
            .into_iter()
            .flatten()
            .map(|weight| weight.node)
        {
            let reason = reason.to_owned();
            cx.effect(Effect::Tell(Control::TrainingFailed {
                round,
                node,
                reason,
            }));
        }
    }

    fn on_folded(&mut self, cx: &mut Context<'_, Effect>, rank: &NodeId, folded: Folded) {
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
            .filter(|folding| folding.attempt == folded.attempt)
        else {
            return;
        };
        match folded.result {
            Ok(region) => {
                let pending = folding.pending.remove(rank).unwrap_or_default();
                for slice in folded
                    .slices
                    .into_iter()
                    .filter(|slice| pending.contains(slice))
                {
                    folding.done.insert(slice, region.clone());
                }
                if folding.done.len() < self.slices.len() {
                    return self.spread(cx);
                }
                let parts = folding
                    .done
                    .iter()
                    .map(|(slice, region)| (*slice, region.clone()))
                    .collect();
                cx.effect(Effect::Gather(Gather {
                    round: current.open.round,
                    epoch: current.open.epoch,
                    attempt: folding.attempt,
                    exponent: folding.exponent,
                    parts,
                }));
            }
            Err((blamed, reason)) if folding.members.contains(&blamed) => {
                self.unreadable(cx, &blamed, &reason);
                self.fold(cx);
            }
            Err((blamed, _)) => {
                self.silent.insert(blamed);
                folding.pending.remove(rank);
                self.spread(cx);
            }
        }
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        attempt: Attempt,
        result: Result<Vec<Hash>, (NodeId, String)>,
    ) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.open.round == round)
        else {
            return;
        };
        let Some(folding) = current
            .fold
            .as_ref()
            .filter(|folding| folding.attempt == attempt)
        else {
            return;
        };
        match result {
            Ok(chunks) => {
                let contribution = Contribution {
                    round,
                    epoch: current.open.epoch,
                    attempt,
                    domain: self.domain.clone(),
                    members: folding.members.clone(),
                    weight: folding.weight,
                    exponent: folding.exponent,
                    chunks,
                };
                current.contribution = Some(contribution.clone());
                cx.effect(Effect::Tell(Control::Contribute(contribution)));
                let missing = current.weights.iter().flatten().filter(|weight| {
                    weight.weight > 0.0 && !folding.members.contains(&weight.node)
                });
                for node in missing.map(|weight| weight.node.clone()) {
                    let reason = "its update was lost after weighing".to_owned();
                    cx.effect(Effect::Tell(Control::Unreachable {
                        round,
                        node,
                        reason,
                    }));
                }
            }
            Err((rank, _)) => {
                self.silent.insert(rank);
                self.fold(cx);
            }
        }
    }

    fn on_coordinator(&mut self, cx: &mut Context<'_, Effect>, control: Control) {
        match control {
            Control::Resync => cx.effect(Effect::Tell(self.join())),
            Control::Open(open) => self.on_open(cx, open),
            Control::Weigh { round, weights } => self.on_weigh(cx, round, weights),
            Control::Answer { round, answer, .. } => match answer {
                Answer::Acknowledged => {}
                Answer::Duplicate => cx.report(Event::DuplicateAnswered {
                    round,
                    from: self.domain.to_string(),
                }),
                Answer::Late => cx.report(Event::LateAnswered {
                    round,
                    from: self.domain.to_string(),
                }),
                Answer::Refused(reason) => {
                    cx.report(Event::DomainDropped {
                        round,
                        domain: self.domain.clone(),
                        reason,
                    });
                }
            },
            Control::Commit(Commit {
                round, base, hash, ..
            }) => {
                if self
                    .current
                    .as_ref()
                    .is_some_and(|current| current.open.round <= round)
                {
                    self.current = None;
                }
                self.obtain(cx, round, Some(base), hash);
                self.tell_adopted(cx);
            }
            Control::Abort { round, reason } => {
                if self
                    .current
                    .as_ref()
                    .is_some_and(|current| current.open.round == round)
                {
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
            }
            Control::Finish { reason } => {
                for node in &self.present {
                    cx.effect(Effect::Member(
                        node.clone(),
                        Control::Leave {
                            reason: reason.clone(),
                        },
                    ));
                }
                cx.effect(Effect::Finished(reason));
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
                    let reason = format!(
                        "{node} trains another model than {}: {difference}",
                        self.domain
                    );
                    cx.report(Event::UpdateRefused {
                        round,
                        node: node.clone(),
                        reason: reason.clone(),
                    });
                    return cx.effect(Effect::Member(node, Control::Leave { reason }));
                }
                self.present.insert(node.clone());
                self.silent.remove(&node);
                self.holds.insert(node.clone(), (round, hash));
                self.adopted = None;
                match &self.model {
                    Some(model) if (model.round, model.hash) != (round, hash) => {
                        cx.effect(Effect::Member(node.clone(), Control::Adopt(model.clone())));
                    }
                    _ => self.tell_adopted(cx),
                }
                self.train(cx, &node);
                self.resume_work(cx);
            }
            Control::Exported(exported) => self.on_exported(cx, node, exported),
            Control::Failed { round, reason } => {
                if self
                    .current
                    .as_ref()
                    .is_some_and(|current| current.open.round == round)
                {
                    self.unreadable(cx, &node, &reason);
                } else if let Some(model) = self.model.clone().filter(|model| model.round >= round)
                {
                    cx.effect(Effect::Member(node, Control::Adopt(model)));
                }
            }
            Control::Measured(measured) => self.on_measured(cx, &node, measured),
            Control::Folded(folded) => self.on_folded(cx, &node, folded),
            Control::Holds { round, hash } => {
                self.holds.insert(node, (round, hash));
                self.tell_adopted(cx);
            }
            _ => {}
        }
    }

    fn tell_adopted(&mut self, cx: &mut Context<'_, Effect>) {
        let Some((round, hash)) = self.model.as_ref().map(|model| (model.round, model.hash)) else {
            return;
        };
        let everyone = self
            .present
            .iter()
            .all(|node| self.holds.get(node) == Some(&(round, hash)));
        if everyone && self.adopted != Some((round, hash)) {
            self.adopted = Some((round, hash));
            cx.effect(Effect::Tell(Control::Adopted {
                round,
                hash,
                nodes: self.present.iter().cloned().collect(),
            }));
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
            Message::CoordinatorUp => cx.effect(Effect::Tell(self.join())),
            Message::Coordinator(control) => self.on_coordinator(cx, control),
            Message::MemberUp(node) => {
                self.silent.remove(&node);
                cx.effect(Effect::Member(node, Control::Rejoin));
            }
            Message::MemberSilent(node) => {
                self.silent.insert(node);
                self.resume_work(cx);
            }
            Message::MemberLost(node) => {
                self.present.remove(&node);
                self.silent.remove(&node);
                if let Some(current) = &self.current {
                    let round = current.open.round;
                    let counted = current
                        .contribution
                        .as_ref()
                        .is_some_and(|mine| mine.members.contains(&node));
                    if current.open.cohort.contains(&node) && !counted {
                        let reason = "no sign of life".to_owned();
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
                for node in &self.present {
                    cx.effect(Effect::Member(node.clone(), Control::Adopt(model.clone())));
                }
                self.train_all(cx);
            }
            Message::Obtained(round, Err(_)) => {
                let Some((wanted, _, hash)) =
                    self.obtaining.filter(|(wanted, ..)| *wanted == round)
                else {
                    return;
                };
                self.obtain_tries += 1;
                if self.obtain_tries <= TRIES_MAX {
                    // A step that did not fit or did not come: the whole model always does.
                    self.obtaining = Some((wanted, None, hash));
                    cx.effect(Effect::Obtain {
                        round: wanted,
                        base: None,
                        hash,
                    });
                } else {
                    // The next Open or Commit, or the coordinator's answer to a join, asks for it again.
                    self.obtaining = None;
                }
            }
            Message::Gathered(round, attempt, result) => {
                self.on_gathered(cx, round, attempt, result)
            }
        }
    }

    fn on_wake(&mut self, _: &mut Context<'_, Effect>) {}
}

#[cfg(test)]
mod tests;
