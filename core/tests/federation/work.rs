//! What machines ask for, done with labels instead of tensors.

use std::collections::BTreeMap;

use tombolo_core::aggregate::{Weight, check};
use tombolo_core::coordinator::{Effect, FoldError, Message, NoteError, Outcome};
use tombolo_core::gateway::{self, Collect, Gather};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::member::{self, Export};
use tombolo_core::pace::Effort;
use tombolo_core::plan::{Durability, Quorum};
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::trainer::Trained;
use tombolo_core::view::View;
use tombolo_core::wire::{
    Contribution, Control, Exported, Fold, Folded, Measure, Measured, ModelRef,
    REGION_HEADER_BYTES, RegionRef, SliceMeasure, Train,
};

use crate::disk::Write;
use crate::samples::layout;
use crate::world::{Content, Happening, Label, Sum, World, initial, label};

/// Region keys: each life of a node uses the same memory again and again, as the actors do, and the lives' keys differ.
const UPDATE: u64 = 1;
const FOLD: u64 = 2;
const MODELS: u64 = 3;
/// The next update, while the one before may still be read.
const AHEAD: u64 = 5;
const KEYS: u64 = 8;

/// Work under way on a node; it is lost with the node's life.
#[derive(Debug)]
pub enum Work {
    Adopt(ModelRef),
    Train(Train),
    Measure(NodeId, Measure),
    Fold(NodeId, Fold),
    Gather(Gather),
    Collect(Collect),
    Obtain(u64, Round, Hash),
    /// The coordinator's: fetch these and fold them, again and again until then.
    Sum(u64, Round, u32, Vec<Contribution>, Micros),
    /// The coordinator's: fetch these bytes and write them down.
    Journal(u64, Contribution, Micros),
}

/// Where a node's update lies in that life.
pub fn update_region(owner: &NodeId, life: u64) -> RegionRef {
    region(owner, life * KEYS + UPDATE)
}

fn region(owner: &NodeId, key: u64) -> RegionRef {
    let len = (REGION_HEADER_BYTES + layout().len() * 4) as u64;
    RegionRef {
        owner: owner.clone(),
        key,
        len,
    }
}

/// The norm that peers measure of an update: another update, another norm.
pub fn squares(update: Label) -> f64 {
    if update.0[0] == 0 {
        return f64::NAN;
    }
    1.0 + f64::from(u32::from_le_bytes(
        update.0[1..5].try_into().expect("four bytes"),
    )) / 1e6
}

/// In some federations one node of a domain has no rows.
pub fn samples(node: &NodeId, seed: u64) -> u64 {
    if node.name() == "n2" && seed.is_multiple_of(5) {
        0
    } else {
        10
    }
}

fn checksum(update: Label, slice: u32) -> Hash {
    label(&[b"slice", &update.0, &slice.to_le_bytes()])
}

impl World {
    fn begin_work(&mut self, node: &NodeId, least: u64, most: u64, work: Work) {
        let life = self.nodes[node].life;
        // In bad times every step takes long enough for something to go wrong in it.
        let most = if self.storm && most < 100 {
            most * 4
        } else {
            most
        };
        let slowed = (most * if self.nodes[node].slow { 8 } else { 1 }).min(12_000);
        let most = most.max(slowed);
        self.after(
            least,
            most,
            Happening::Work(node.clone(), life, Box::new(work)),
        );
    }

    pub fn adopt(&mut self, node: &NodeId, model: ModelRef) {
        self.begin_work(node, 1, 30, Work::Adopt(model));
    }

    pub fn train(&mut self, node: &NodeId, train: Train) {
        let straggles = self.storm && self.chance(0.02);
        let (least, most) = if straggles { (3000, 12_000) } else { (50, 600) };
        self.begin_work(node, least, most, Work::Train(train));
    }

    pub fn collect(&mut self, from: &NodeId, to: &NodeId, control: Control) {
        let work = match control {
            Control::Measure(measure) => Work::Measure(from.clone(), measure),
            Control::Fold(fold) => Work::Fold(from.clone(), fold),
            other => panic!("{other:?} is no order for a rank"),
        };
        self.begin_work(to, 1, 30, work);
    }

    pub fn gather(&mut self, node: &NodeId, gather: Gather) {
        self.begin_work(node, 1, 30, Work::Gather(gather));
    }

    pub fn collect_updates(&mut self, node: &NodeId, collect: Collect) {
        self.begin_work(node, 1, 30, Work::Collect(collect));
    }

    pub fn obtain(&mut self, node: &NodeId, round: Round, hash: Hash) {
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        if entry.obtaining.is_some() {
            // As in the actor: one at a time, the newest wish next.
            entry.wanted = Some((round, hash));
            return;
        }
        let term = entry.term;
        entry.obtaining = Some(term);
        self.begin_work(node, 5, 60, Work::Obtain(term, round, hash));
    }

    pub fn work(&mut self, node: &NodeId, work: Work) {
        match work {
            Work::Adopt(model) => {
                let found = self.read(&model.region);
                let right = found == Some(&Content::Model(model.round, model.hash));
                // It is READ straight into the memory of the model before.
                let held = match right {
                    true => (model.round, model.hash),
                    false => (0, label(&[b"half a model"])),
                };
                let result = if right {
                    Ok(())
                } else {
                    Err("not that model".to_owned())
                };
                self.nodes.get_mut(node).expect("it is in the plan").model = held;
                self.step_member(node, member::Message::Adopted(model, result));
            }
            Work::Train(train) => self.trained(node, train),
            Work::Measure(to, measure) => {
                let measured = self.measured(measure);
                self.send(node, &to, Control::Measured(measured));
            }
            Work::Fold(to, fold) => {
                let folded = self.folded(node, fold);
                self.send(node, &to, Control::Folded(folded));
            }
            Work::Gather(gather) => self.gathered(node, gather),
            Work::Collect(collect) => self.collected(node, collect),
            Work::Obtain(term, round, hash) => self.obtained(node, term, round, hash),
            Work::Sum(life, round, start, contributions, until) => {
                self.sum(life, round, start, contributions, until);
            }
            Work::Journal(life, contribution, until) => self.journal(life, contribution, until),
        }
    }

    fn trained(&mut self, node: &NodeId, train: Train) {
        if self.storm && self.chance(0.05) {
            let failed = member::Message::Trained(train.round, Err("no luck".into()));
            return self.step_member(node, failed);
        }
        let entry = &self.nodes[node];
        let (life, base) = (entry.life, entry.model.1);
        // A node that was restarted trains another update for the same round.
        let mut update = label(&[
            node.as_str().as_bytes(),
            &train.round.to_le_bytes(),
            &base.0,
            &train.epoch.to_le_bytes(),
            &life.to_le_bytes(),
        ]);
        update.0[0] = u8::from(!self.storm || !self.chance(0.02));
        self.check.on_update(node, &train, base, update);
        let first = update_region(node, life);
        let member = self.nodes[node].member.as_ref();
        let held = member.and_then(member::Member::held);
        let region = match held == Some(&first) {
            true => region(node, life * KEYS + AHEAD),
            false => first,
        };
        let steps = train.sync_every.steps().unwrap_or(1);
        let trained = Trained {
            samples: samples(node, train.seed),
            loss: 1.0 + f64::from(update.0[7]),
            steps,
            learning_rate: 0.1,
        };
        let effort = Effort {
            steps,
            // Names end in numbers: the higher, the slower.
            micros: steps
                * 1000
                * u64::from(node.as_str().as_bytes().last().map_or(1, |n| n % 8 + 1)),
        };
        let exported = Exported {
            round: train.round,
            epoch: train.epoch,
            region: region.clone(),
            samples: trained.samples,
            loss: trained.loss,
            steps: train.counts_as.unwrap_or(trained.steps),
            learning_rate: trained.learning_rate,
            effort,
        };
        let export = Export {
            run: train.run,
            base: train.model.hash,
            work: (train.sync_every, train.counts_as),
            exported,
        };
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        let content = Content::Update(train.round, update);
        entry.regions.insert(region.key, content);
        entry.kept = Some((export, update));
        self.step_member(
            node,
            member::Message::Trained(train.round, Ok((trained, region, effort))),
        );
    }

    fn measured(&mut self, measure: Measure) -> Measured {
        let result = match self.read(&measure.region) {
            Some(Content::Update(round, update)) if *round == measure.round => {
                let update = *update;
                let slice = |slice: &u32| SliceMeasure {
                    slice: *slice,
                    squares: squares(update),
                    checksum: checksum(update, *slice),
                };
                Ok(measure.slices.iter().map(slice).collect())
            }
            other => Err(format!("found {other:?}").into()),
        };
        Measured {
            token: measure.token,
            round: measure.round,
            node: measure.node,
            result,
        }
    }

    fn folded(&mut self, node: &NodeId, fold: Fold) -> Folded {
        let result = self.fold_slices(node, &fold);
        let key = self.nodes[node].life * KEYS + FOLD;
        Folded {
            token: fold.token,
            round: fold.round,
            attempt: fold.attempt,
            slices: fold.slices,
            result: result
                .map(|()| region(node, key))
                .map_err(|(node, reason)| (node, reason.into())),
        }
    }

    fn updates_of(
        &mut self,
        node: &NodeId,
        fold: &Fold,
    ) -> Result<BTreeMap<u32, Sum>, (NodeId, String)> {
        if self.storm && self.chance(0.01) {
            return Err((node.clone(), "no memory".into()));
        }
        let mut sums = BTreeMap::new();
        for (position, slice) in fold.slices.iter().enumerate() {
            let mut sum = Vec::new();
            for term in &fold.terms {
                let update = match self.read(&term.region) {
                    Some(Content::Update(round, update)) if *round == term.round => *update,
                    other => return Err((term.node.clone(), format!("found {other:?}"))),
                };
                if term.checksums.get(position) != Some(&checksum(update, *slice)) {
                    return Err((term.node.clone(), "not what was measured".into()));
                }
                sum.push((term.node.clone(), update));
            }
            sums.insert(*slice, sum);
        }
        Ok(sums)
    }

    fn fold_slices(&mut self, node: &NodeId, fold: &Fold) -> Result<(), (NodeId, String)> {
        let sums = self.updates_of(node, fold)?;
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        let key = entry.life * KEYS + FOLD;
        match entry.regions.get_mut(&key) {
            Some(Content::Folded(round, token, slices))
                if (*round, *token) == (fold.round, fold.token) =>
            {
                slices.extend(sums);
            }
            _ => {
                let content = Content::Folded(fold.round, fold.token, sums);
                entry.regions.insert(key, content);
            }
        }
        Ok(())
    }

    /// A rule that must see each update gets them one beside the other; here that is the same list of labels, announced with a hash a member.
    fn collected(&mut self, node: &NodeId, collect: Collect) {
        let slices = 0..collect.terms[0].checksums.len() as u32;
        let order = Fold {
            token: 0,
            round: collect.round,
            epoch: collect.epoch,
            attempt: collect.attempt,
            slices: slices.collect(),
            terms: collect.terms,
        };
        let (round, attempt) = (collect.round, collect.attempt);
        let sums = self.updates_of(node, &order);
        let result = sums.map(|mut sums| {
            let sum = sums.remove(&0).expect("a model has a slice");
            let chunks = vec![chunk(&sum); sum.len()];
            let entry = self.nodes.get_mut(node).expect("it is in the plan");
            let offered = entry.gateway.as_ref().and_then(gateway::Gateway::offered);
            entry.shelf.retain(|key, _| Some(*key) == offered);
            entry.shelf.insert((round, attempt), sum);
            chunks
        });
        self.step_gateway(
            node,
            gateway::Message::Gathered(round, attempt, result.map(Into::into)),
        );
    }

    fn gathered(&mut self, node: &NodeId, gather: Gather) {
        let mut sum: Option<Sum> = None;
        let mut blamed = None;
        for (slice, region) in &gather.parts {
            let part = match self.read(region) {
                Some(Content::Folded(round, token, slices))
                    if (*round, *token) == (gather.round, gather.token) =>
                {
                    slices.get(slice).cloned()
                }
                _ => None,
            };
            match part {
                Some(part) => {
                    let first = sum.get_or_insert_with(|| part.clone());
                    assert_eq!(*first, part, "all slices are folded over the same terms");
                }
                None => blamed = Some(region.owner.clone()),
            }
        }
        let (round, attempt) = (gather.round, gather.attempt);
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        let offered = entry.gateway.as_ref().and_then(gateway::Gateway::offered);
        let result = match (sum, blamed) {
            (Some(sum), None) => {
                entry.shelf.retain(|key, _| Some(*key) == offered);
                let chunks = vec![chunk(&sum)];
                entry.shelf.insert((round, attempt), sum);
                Ok(chunks)
            }
            (_, blamed) => Err((blamed.unwrap_or_else(|| node.clone()), "gone".into())),
        };
        self.step_gateway(
            node,
            gateway::Message::Gathered(round, attempt, result.map(Into::into)),
        );
    }

    fn obtained(&mut self, node: &NodeId, term: u64, round: Round, hash: Hash) {
        let coordinator = self.plan.coordinator.clone();
        let committed = &self.disk.committed;
        let held = (committed.round, committed.hash);
        let up = self.is_up(node, &coordinator) && self.coordinator.is_some();
        let right = (round, hash) == (0, initial()) || (up && held == (round, hash));
        let failed = self.storm && self.chance(0.02);
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        entry.obtaining = None;
        let wanted = entry.wanted.take();
        let key = entry.life * KEYS + MODELS + round % 2;
        if entry.term == term {
            let result = if right && !failed {
                entry.regions.insert(key, Content::Model(round, hash));
                Ok(ModelRef {
                    round,
                    hash,
                    region: region(node, key),
                })
            } else {
                Err("it cannot be had".to_owned())
            };
            self.step_gateway(node, gateway::Message::Obtained(round, result));
        }
        if let Some((round, hash)) = wanted {
            self.obtain(node, round, hash);
        }
    }

    /// A gateway shows its domain the model that its node holds.
    pub fn show(&mut self, node: &NodeId, (round, hash): (Round, Hash)) {
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        let key = entry.life * KEYS + MODELS + round % 2;
        let content = Content::Model(entry.model.0, entry.model.1);
        entry.regions.insert(key, content);
        let model = ModelRef {
            round,
            hash,
            region: region(node, key),
        };
        self.step_gateway(node, gateway::Message::Obtained(round, Ok(model)));
    }

    // ---- the coordinator's work ----

    pub fn perform(&mut self, life: u64, effect: Effect) {
        match effect {
            Effect::Tell(domain, control) => {
                if let Control::Commit(commit) = &control {
                    self.check.on_announced(commit);
                }
                let gateway = self.gateway_of(&domain);
                self.send(&self.plan.coordinator.clone(), &gateway, control);
            }
            Effect::Send(node, control) => {
                self.send(&self.plan.coordinator.clone(), &node, control);
            }
            Effect::View(view) => {
                self.look_at_readmissions(&view);
                self.write(Write::View(view));
            }
            // Who has no step asks for the model.
            Effect::Offer(..) => {}
            Effect::Weigh(round, reports) => {
                self.check.on_weighing(round, &reports);
                let weights: Vec<Weight> = reports
                    .iter()
                    .map(|report| Weight {
                        node: report.node.clone(),
                        weight: report.samples as f64,
                        clip: 1.0,
                        reason: String::new(),
                    })
                    .collect();
                let answer = check(&reports, &weights)
                    .map(|()| weights)
                    .map_err(|error| error.to_string());
                self.reply(life, 1, 20, Message::Weighed(round, answer));
            }
            Effect::Fix(weighing) => self.write(Write::Fix(weighing)),
            Effect::Note(contribution) => {
                self.check.on_note(&contribution);
                match self.plan.round.durability {
                    Durability::Resend => self.write(Write::Note(contribution, None)),
                    Durability::Journal => {
                        let until = self.now + self.plan.round.close_limit / 3;
                        self.begin_own(1, 40, Work::Journal(life, contribution, until));
                    }
                }
            }
            Effect::Fold(round, start, contributions) => {
                let until = self.now + self.plan.round.close_limit / 3;
                let work = Work::Sum(life, round, start, contributions, until);
                self.begin_own(5, 80, work);
            }
            Effect::Compute(round) => self.compute(life, round),
            Effect::Commit(record) => {
                let hash = record.model_hash;
                self.write(Write::End(record, Some(hash)));
            }
            Effect::Record(record) => self.write(Write::End(record, None)),
            Effect::Lifted(_) | Effect::Hold(..) | Effect::Amend(..) | Effect::Ordered(..) => {}
            Effect::Finish(finished) => {
                if finished.reason.is_empty() || finished.reason.starts_with(crate::ENOUGH) {
                    self.finished = Some(finished);
                } else {
                    self.start_over(&finished);
                }
            }
        }
    }

    /// LADDER-1: nobody comes back before its time, but for those without whom there is no quorum.
    fn look_at_readmissions(&self, view: &View) {
        let own = &self.plan.coordinator;
        let (machine, now) = (self.coordinator.as_ref().expect("it asks"), self.local(own));
        let (membership, before) = (machine.membership(), machine.view());
        let cools = |node: &NodeId| {
            let mut entries = membership.entries();
            let entry = entries.find(|(known, _)| *known == node);
            entry.is_some_and(|(_, entry)| entry.until.is_some_and(|until| until > now))
        };
        let back = before.out.keys().filter(|node| !view.is_out(node));
        let early: Vec<&NodeId> = back.filter(|node| cools(node)).collect();
        if early.is_empty() {
            return;
        }
        let is_led = |node: &&NodeId| {
            let gateway = before.gateway(&node.domain());
            gateway.is_some_and(|gateway| !before.is_out(gateway) || gateway == own)
        };
        let mut asked = self.nodes.keys().filter(|node| !before.is_out(node));
        if self.plan.round.quorum == Quorum::All && !asked.all(|node| is_led(&node)) {
            // All who are asked must answer.
            return;
        }
        let may_come = |node: &NodeId| {
            let gateway = before.gateway(&node.domain()).expect("it is in the plan");
            let reached = gateway.domain() == own.domain()
                // Who said goodbye may still be linked; its domain has nobody who would hand on a word.
                || (self.is_up(own, gateway)
                    // Perhaps before this coordinator knew its view, which it goes by from then on.
                    && !self.nodes[gateway].leaves
                    && !before.is_out(gateway)
                    && membership.is_expected(gateway, now));
            membership.is_expected(node, now) && reached
        };
        let nodes = self.nodes.keys().filter(|node| may_come(node));
        let living: Vec<NodeId> = nodes.cloned().collect();
        assert!(
            !crate::could_meet(&self.plan, &living),
            "LADDER-1: {early:?} come back before their time, and {living:?} are a quorum"
        );
    }

    fn begin_own(&mut self, least: u64, most: u64, work: Work) {
        let own = self.plan.coordinator.clone();
        // It does not end with the actor of the node, and is not heard by another life of the coordinator's.
        self.after(
            least,
            most,
            Happening::Labour(own.clone(), self.nodes[&own].process, Box::new(work)),
        );
    }

    fn journal(&mut self, life: u64, contribution: Contribution, until: Micros) {
        if life != self.coordinator_life {
            return;
        }
        match self.fetch(&contribution) {
            Ok(sum) => self.write(Write::Note(contribution, Some(sum))),
            Err(Trouble::Missing(_)) if self.now < until => {
                self.begin_own(100, 100, Work::Journal(life, contribution, until));
            }
            Err(Trouble::Missing(reason) | Trouble::Wrong(reason)) => {
                let Contribution {
                    round,
                    domain,
                    attempt,
                    ..
                } = contribution;
                let error = NoteError::Bytes(reason.to_owned());
                let told = Message::Noted(round, domain, attempt, Err(error));
                self.reply(life, 1, 5, told);
            }
        }
    }

    fn sum(
        &mut self,
        life: u64,
        round: Round,
        start: u32,
        contributions: Vec<Contribution>,
        until: Micros,
    ) {
        if life != self.coordinator_life {
            return;
        }
        let mut sums = Vec::new();
        for contribution in &contributions {
            let sum = match self.disk.kept(contribution) {
                Some(sum) => Ok(sum),
                None => self.fetch(contribution),
            };
            match sum {
                Ok(sum) => sums.extend(sum),
                Err(Trouble::Missing(_)) if self.now < until => {
                    let again = Work::Sum(life, round, start, contributions, until);
                    return self.begin_own(100, 100, again);
                }
                Err(Trouble::Missing(reason) | Trouble::Wrong(reason)) => {
                    let domain = contribution.domain.clone();
                    let failed = Err(FoldError::Domain(domain, reason.to_owned()));
                    return self.reply(life, 1, 5, Message::Folded(round, start, failed));
                }
            }
        }
        self.check.on_folded(&contributions, sums);
        self.reply(life, 1, 20, Message::Folded(round, start, Ok(())));
    }

    fn reply(&mut self, life: u64, least: u64, most: u64, message: Message) {
        // Work may hang for good.
        if self.storm && self.chance(0.01) {
            return;
        }
        let most = if self.storm && most < 100 {
            most * 8
        } else {
            most
        };
        self.after(least, most, Happening::Coordinator(life, Box::new(message)));
    }

    fn fetch(&mut self, contribution: &Contribution) -> Result<Sum, Trouble> {
        let coordinator = self.plan.coordinator.clone();
        let gateway = self.gateway_of(&contribution.domain);
        if !self.is_up(&gateway, &coordinator) || self.nodes[&gateway].frozen.is_some() {
            return Err(Trouble::Missing("out of reach"));
        }
        let shelf = &self.nodes[&gateway].shelf;
        let Some(sum) = shelf.get(&(contribution.round, contribution.attempt)) else {
            return Err(Trouble::Missing("not on the shelf"));
        };
        let tensors = contribution.tensors(self.plan.aggregator.needs);
        match contribution.chunks == vec![chunk(sum); tensors] {
            true => Ok(sum.clone()),
            false => Err(Trouble::Wrong("not the announced bytes")),
        }
    }

    fn compute(&mut self, life: u64, round: Round) {
        let base = self.disk.committed.hash;
        let mut parts: Vec<&[u8]> = vec![&base.0];
        for (_, update) in self.check.aggregate() {
            parts.push(&update.0);
        }
        let hash = label(&parts);
        self.check.on_computed(hash);
        let outcome = Outcome {
            hash,
            accuracy: 0.5,
            loss: 1.0,
        };
        let failed = self.storm && self.chance(0.02);
        let result = if failed {
            Err("evaluation: no rows".to_owned())
        } else {
            Ok(outcome)
        };
        self.reply(life, 5, 60, Message::Computed(round, result));
    }
}

fn chunk(sum: &[(NodeId, Label)]) -> Hash {
    let parts: Vec<&[u8]> = sum
        .iter()
        .flat_map(|(node, update)| [node.as_str().as_bytes(), &update.0[..]])
        .collect();
    label(&parts)
}

/// Why bytes could not be had.
enum Trouble {
    /// They may come yet.
    Missing(&'static str),
    /// They are not what was announced.
    Wrong(&'static str),
}
