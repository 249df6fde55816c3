//! What machines ask for, done with labels instead of tensors.

use std::collections::BTreeMap;

use tombolo_core::aggregate::{Weight, check};
use tombolo_core::coordinator::{Effect, FoldError, Message, Outcome};
use tombolo_core::gateway::{self, Gather};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::member;
use tombolo_core::plan::Durability;
use tombolo_core::tensor::Hash;
use tombolo_core::trainer::Trained;
use tombolo_core::wire::{
    Contribution, Control, Fold, Folded, Measure, Measured, ModelRef, REGION_HEADER_BYTES,
    RegionRef, SliceMeasure, Train,
};

use crate::samples::layout;
use crate::world::{Content, Happening, Label, Sum, World, initial, label};

/// Region keys: each node uses the same memory again and again, as the actors do.
const UPDATE: u64 = 1;
const FOLD: u64 = 2;
const MODELS: u64 = 3;

/// Work under way on a node; it is lost with the node's life.
#[derive(Debug)]
pub enum Work {
    Adopt(ModelRef),
    Train(Train),
    Measure(NodeId, Measure),
    Fold(NodeId, Fold),
    Gather(Gather),
    Obtain(Round, Hash),
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
        let most = if self.faults && most < 100 {
            most * 8
        } else {
            most
        };
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
        let straggles = self.faults && self.chance(0.02);
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

    pub fn obtain(&mut self, node: &NodeId, round: Round, hash: Hash) {
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        if entry.obtaining {
            // As in the actor: one at a time, the newest wish next.
            entry.wanted = Some((round, hash));
            return;
        }
        entry.obtaining = true;
        self.begin_work(node, 5, 60, Work::Obtain(round, hash));
    }

    pub fn work(&mut self, node: &NodeId, work: Work) {
        match work {
            Work::Adopt(model) => {
                let found = self.read(&model.region);
                let right = found == Some(&Content::Model(model.round, model.hash));
                let result = if right {
                    Ok(())
                } else {
                    Err("not that model".to_owned())
                };
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
            Work::Obtain(round, hash) => self.obtained(node, round, hash),
        }
    }

    fn trained(&mut self, node: &NodeId, train: Train) {
        if self.faults && self.chance(0.05) {
            let failed = member::Message::Trained(train.round, Err("no luck".into()));
            return self.step_member(node, failed);
        }
        let life = self.nodes[node].life;
        // A node that was restarted trains another update for the same round.
        let mut update = label(&[
            node.as_str().as_bytes(),
            &train.round.to_le_bytes(),
            &train.model.hash.0,
            &life.to_le_bytes(),
        ]);
        update.0[0] = u8::from(!self.faults || !self.chance(0.02));
        self.check
            .on_update(node, train.round, train.model.hash, update);
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        entry
            .regions
            .insert(UPDATE, Content::Update(train.round, update));
        let trained = Trained {
            samples: samples(node, train.seed),
            loss: 1.0,
            steps: 1,
            learning_rate: 0.1,
        };
        let exported = Ok((trained, region(node, UPDATE)));
        self.step_member(node, member::Message::Trained(train.round, exported));
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
        Folded {
            token: fold.token,
            round: fold.round,
            attempt: fold.attempt,
            slices: fold.slices,
            result: result
                .map(|()| region(node, FOLD))
                .map_err(|(node, reason)| (node, reason.into())),
        }
    }

    fn fold_slices(&mut self, node: &NodeId, fold: &Fold) -> Result<(), (NodeId, String)> {
        if self.faults && self.chance(0.01) {
            return Err((node.clone(), "no memory".into()));
        }
        let mut sums = BTreeMap::new();
        for (position, slice) in fold.slices.iter().enumerate() {
            let mut sum = Vec::new();
            for term in &fold.terms {
                let update = match self.read(&term.region) {
                    Some(Content::Update(round, update)) if *round == fold.round => *update,
                    other => return Err((term.node.clone(), format!("found {other:?}"))),
                };
                if term.checksums.get(position) != Some(&checksum(update, *slice)) {
                    return Err((term.node.clone(), "not what was measured".into()));
                }
                sum.push((term.node.clone(), update));
            }
            sums.insert(*slice, sum);
        }
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        match entry.regions.get_mut(&FOLD) {
            Some(Content::Folded(round, token, slices))
                if (*round, *token) == (fold.round, fold.token) =>
            {
                slices.extend(sums);
            }
            _ => {
                let content = Content::Folded(fold.round, fold.token, sums);
                entry.regions.insert(FOLD, content);
            }
        }
        Ok(())
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
        self.step_gateway(node, gateway::Message::Gathered(round, attempt, result));
    }

    fn obtained(&mut self, node: &NodeId, round: Round, hash: Hash) {
        let coordinator = self.plan.coordinator.clone();
        let (held, up) = (
            (self.committed.round, self.committed.hash),
            self.is_up(node, &coordinator) && self.coordinator.is_some(),
        );
        let right = (round, hash) == (0, initial()) || (up && held == (round, hash));
        let failed = self.faults && self.chance(0.02);
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        let result = if right && !failed {
            let key = MODELS + round % 2;
            entry.regions.insert(key, Content::Model(round, hash));
            Ok(ModelRef {
                round,
                hash,
                region: region(node, key),
            })
        } else {
            Err("it cannot be had".to_owned())
        };
        entry.obtaining = false;
        let wanted = entry.wanted.take();
        self.step_gateway(node, gateway::Message::Obtained(round, result));
        if let Some((round, hash)) = wanted {
            self.obtain(node, round, hash);
        }
    }

    /// A node that rises shows its domain the model that it holds.
    pub fn show(&mut self, node: &NodeId, (round, hash): (Round, Hash)) {
        let key = MODELS + round % 2;
        let entry = self.nodes.get_mut(node).expect("it is in the plan");
        entry.regions.insert(key, Content::Model(round, hash));
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
                let gateway = self.gateway_of(&domain);
                self.send(&self.plan.coordinator.clone(), &gateway, control);
            }
            Effect::Send(node, control) => {
                self.send(&self.plan.coordinator.clone(), &node, control);
            }
            Effect::View(view) => {
                self.check.on_epoch(&view);
                self.committed.view = Some(view.clone());
                self.reply(life, 1, 40, Message::Viewed(view.epoch, Ok(())));
            }
            // Who has no step asks for the model.
            Effect::Offer(..) => {}
            Effect::Weigh(round, reports) => {
                self.note_weighing(round, &reports);
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
            Effect::Fix(weighing) => {
                let (round, failed) = (weighing.round, self.faults && self.chance(0.01));
                let mut result = Ok(());
                if failed {
                    result = Err("disk full".to_owned());
                }
                // What failed may be there all the same.
                if !failed || self.chance(0.5) {
                    self.check.on_fixed(round);
                    self.notes.weighing = Some(*weighing);
                    self.notes.noted.clear();
                }
                self.reply(life, 1, 20, Message::Fixed(round, result));
            }
            Effect::Note(contribution) => self.note(life, contribution),
            Effect::Fold(round, start, contributions) => {
                let result = self.fold_all(&contributions);
                self.reply(life, 5, 80, Message::Folded(round, start, result));
            }
            Effect::Compute(round) => self.compute(life, round),
            Effect::Commit(record) => {
                self.write(&record, Some(record.model_hash));
                self.reply(life, 5, 60, Message::Committed(record.round, Ok(())));
            }
            Effect::Record(record) => {
                self.write(&record, None);
                self.reply(life, 1, 20, Message::Recorded(record.round, Ok(())));
            }
            Effect::Lifted(_) => {}
            Effect::Finish(finished) => self.finished = Some(finished),
        }
    }

    fn note(&mut self, life: u64, contribution: Contribution) {
        let (round, attempt) = (contribution.round, contribution.attempt);
        let domain = contribution.domain.clone();
        let sum = match self.plan.round.durability {
            Durability::Resend => Ok(None),
            Durability::Journal => self.fetch(&contribution).map(Some),
        };
        let failed = self.faults && self.chance(0.02);
        let mut result = sum
            .as_ref()
            .map(drop)
            .map_err(|reason| (*reason).to_owned());
        if failed {
            result = Err("disk full".to_owned());
        }
        self.check.on_note(&contribution);
        if let Ok(sum) = sum
            && (!failed || self.chance(0.5))
        {
            let noted = (contribution, sum);
            self.notes.noted.insert(domain.clone(), noted);
        }
        self.reply(life, 1, 40, Message::Noted(round, domain, attempt, result));
    }

    fn reply(&mut self, life: u64, least: u64, most: u64, message: Message) {
        // Writing always ends; whatever else is asked for may never be answered.
        let writing = matches!(
            message,
            Message::Committed(..)
                | Message::Recorded(..)
                | Message::Fixed(..)
                | Message::Viewed(..)
        );
        let silent = !writing && self.chance(0.01);
        if self.faults && silent {
            return;
        }
        let most = if self.faults && most < 100 {
            most * 8
        } else {
            most
        };
        self.after(least, most, Happening::Coordinator(life, message));
    }

    fn fold_all(&mut self, contributions: &[Contribution]) -> Result<(), FoldError> {
        let mut sums = Vec::new();
        for contribution in contributions {
            let written = self.notes.noted.get(&contribution.domain);
            let kept = written.and_then(|(noted, sum)| {
                let same = noted == contribution;
                sum.clone().filter(|_| same)
            });
            let sum = match kept {
                Some(sum) => Ok(sum),
                None => self.fetch(contribution),
            };
            sums.extend(sum.map_err(|reason| {
                FoldError::Domain(contribution.domain.clone(), reason.to_owned())
            })?);
        }
        self.check.on_folded(contributions, sums);
        Ok(())
    }

    fn fetch(&mut self, contribution: &Contribution) -> Result<Sum, &'static str> {
        let coordinator = self.plan.coordinator.clone();
        let gateway = self.gateway_of(&contribution.domain);
        if !self.is_up(&gateway, &coordinator) {
            return Err("out of reach");
        }
        let shelf = &self.nodes[&gateway].shelf;
        let Some(sum) = shelf.get(&(contribution.round, contribution.attempt)) else {
            return Err("not on the shelf");
        };
        match contribution.chunks == [chunk(sum)] {
            true => Ok(sum.clone()),
            false => Err("not the announced bytes"),
        }
    }

    fn compute(&mut self, life: u64, round: Round) {
        let base = self.committed.hash;
        let mut parts: Vec<&[u8]> = vec![&base.0];
        for (_, update) in self.check.aggregate() {
            parts.push(&update.0);
        }
        let hash = label(&parts);
        let outcome = Outcome {
            hash,
            accuracy: 0.5,
            loss: 1.0,
        };
        let failed = self.faults && self.chance(0.02);
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
