//! What must hold, whatever happens: told at every step, and looked at in full at every hundredth.
//!
//! This one sees everything. The [`Witness`] beside it hears only what users do: events and records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tombolo_core::aggregate::Report;
use tombolo_core::coordinator::Weighing;
use tombolo_core::event::Finished;
use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::ids::{Epoch, NodeId, Round};
use tombolo_core::link::OUTBOX_MESSAGES_MAX;
use tombolo_core::pace::Paces;
use tombolo_core::plan::{Plan, SyncEvery};
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::view::View;
use tombolo_core::wire::{Commit, Contribution, Train};

use crate::storm::Fault;
use crate::witness::Witness;
use crate::work::squares;
use crate::world::{Content, Label, World, initial, label};

/// Events kept for the message of a failure.
const TAIL: usize = 80;

/// What an update was made for: its node, round, view, model, and how many steps.
type Update = (NodeId, Round, Epoch, Hash, SyncEvery);

/// Watches a federation and panics at the first breach of an invariant.
pub struct Checker {
    pub deadline: Duration,
    pub witness: Witness,
    /// Runs that ended before their time.
    pub over: usize,
    plan: Plan,
    open: Option<(Round, Micros)>,
    updates: BTreeMap<Label, Update>,
    weights: BTreeMap<NodeId, f64>,
    /// Updates that are in a version, each by its node and the round that it was trained for.
    counted: BTreeSet<(NodeId, Round)>,
    /// Rounds in which nodes made unequal numbers of steps.
    pub unequal: usize,
    /// Counted updates that were made from an older model than the newest.
    pub older: usize,
    /// Updates that were too many versions old.
    pub too_stale: usize,
    norms: BTreeMap<NodeId, f64>,
    acknowledged: BTreeMap<Round, BTreeSet<NodeId>>,
    /// Rounds whose weights are written down.
    fixed: BTreeSet<Round>,
    /// Rounds that went on in another life with contributions that were acknowledged in the one before.
    pub resumed: usize,
    announced: Vec<Contribution>,
    aggregate: Vec<(NodeId, Label)>,
    /// What each model was made of that was computed since the last commit.
    computed: BTreeMap<Hash, Vec<(NodeId, Label)>>,
    pub models: BTreeMap<Round, Hash>,
    pub outcomes: BTreeMap<Round, (Micros, RoundState)>,
    pub views: Vec<View>,
    /// When each node was let in again last.
    pub back: BTreeMap<NodeId, Micros>,
    /// Who was asked in each round.
    pub cohorts: BTreeMap<Round, Vec<NodeId>>,
    seen: BTreeMap<NodeId, Epoch>,
    /// Who was out at some time since the round was opened.
    out: BTreeSet<NodeId>,
    /// Whose updates were acknowledged for a round whose record does not tell of them.
    unnamed: BTreeMap<Round, BTreeSet<NodeId>>,
    /// How the last round ended.
    last: Option<RoundRecord>,
    tail: VecDeque<String>,
}

impl Checker {
    pub fn new(plan: &Plan) -> Self {
        Checker {
            deadline: Witness::deadline(plan),
            witness: Witness::new(plan),
            over: 0,
            plan: plan.clone(),
            open: None,
            updates: BTreeMap::new(),
            unequal: 0,
            weights: BTreeMap::new(),
            counted: BTreeSet::new(),
            older: 0,
            too_stale: 0,
            norms: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            fixed: BTreeSet::new(),
            resumed: 0,
            announced: Vec::new(),
            aggregate: Vec::new(),
            computed: BTreeMap::new(),
            models: [(0, initial())].into(),
            outcomes: BTreeMap::new(),
            views: vec![View::first(plan)],
            back: BTreeMap::new(),
            cohorts: BTreeMap::new(),
            seen: BTreeMap::new(),
            out: BTreeSet::new(),
            unnamed: BTreeMap::new(),
            last: None,
            tail: VecDeque::new(),
        }
    }

    /// The last events, for a message that helps.
    pub fn tail(&self) -> String {
        let tail: Vec<&str> = self.tail.iter().map(String::as_str).collect();
        tail.join("\n")
    }

    pub fn on_restart(&mut self) {
        self.open = None;
        self.witness.on_restart();
    }

    fn note(&mut self, now: Micros, what: String) {
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail
            .push_back(format!("{:>9} ms {what}", now.0 / 1000));
    }

    pub fn on_fault(&mut self, now: Micros, fault: &Fault) {
        self.note(now, format!("*** {fault:?}"));
    }

    /// The run has ended for a stated reason, and begins again.
    pub fn on_run_over(&mut self, finished: &Finished) {
        assert!(!finished.reason.is_empty());
        self.over += 1;
        self.witness.on_run_over();
    }

    /// Something was reported at `now`, when the clock of `node` showed `local`.
    pub fn on_event(&mut self, now: Micros, local: Micros, node: &NodeId, event: &Event) {
        self.note(now, format!("{event:?}"));
        self.witness.on_event(local, node, event);
        match event {
            Event::RoundOpened {
                round,
                cohort,
                epoch,
                ..
            } => {
                self.cohorts.insert(*round, cohort.clone());
                let unnamed = self.unnamed.range(..round);
                assert_eq!(unnamed.count(), 0, "ROUND-3: {:?}", self.unnamed);
                assert!(!self.outcomes.contains_key(round), "round {round} is over");
                self.open = Some((*round, local));
                let view = self.views.get(*epoch as usize - 1);
                let view = view.expect("VIEW-1: it opens in a view that is written down");
                self.out = view.out.keys().cloned().collect();
            }
            Event::EpochChanged { view } => self.out.extend(view.out.keys().cloned()),
            Event::NodeReadmitted { node, .. } => {
                self.back.insert(node.clone(), now);
            }
            Event::RoundResumed { acknowledged, .. } => {
                self.resumed += usize::from(!acknowledged.is_empty());
            }
            Event::Reported { round, .. } => self.is_accepting(local, *round),
            Event::StaleAnswered { .. } => self.too_stale += 1,
            Event::Acknowledged { round, domain, .. } => {
                self.is_accepting(local, *round);
                let members = self.announced.iter().filter(|c| c.domain == *domain);
                let members = members.flat_map(|c| c.members.clone());
                let members: Vec<NodeId> = members.collect();
                match self.outcomes.contains_key(round) {
                    // The record of a life before has landed meanwhile, and this one does not know.
                    true => self.in_vain(*round, members),
                    false => self.acknowledged.entry(*round).or_default().extend(members),
                }
            }
            Event::DomainDropped { round, domain, .. } => {
                if let Some(unnamed) = self.unnamed.get_mut(round) {
                    unnamed.retain(|node| node.domain() != *domain);
                }
                self.unnamed.retain(|_, unnamed| !unnamed.is_empty());
            }
            Event::ModelAdopted {
                round, hash, node, ..
            } => {
                let committed = self.models.get(round);
                assert_eq!(
                    committed,
                    Some(hash),
                    "MODEL-1: {node} adopts round {round}"
                );
            }
            _ => {}
        }
    }

    /// A view was written down. What a life before has begun to write may land late: who it puts out is out once the coordinator finds it.
    pub fn on_epoch(&mut self, view: &View, by_the_living: bool) {
        let last = self.views.last().expect("there is a first one");
        assert_eq!(view.epoch, last.epoch + 1, "VIEW-1: epochs grow one by one");
        if by_the_living {
            self.out.extend(view.out.keys().cloned());
        }
        self.views.push(view.clone());
    }

    /// A node goes by a view; a node that begins anew knows the first one only.
    pub fn on_view(&mut self, node: &NodeId, view: &View) {
        let written = self.views.get(view.epoch as usize - 1);
        assert_eq!(Some(view), written, "VIEW-1: {node} has a view of its own");
        let before = self.seen.insert(node.clone(), view.epoch);
        assert!(before < Some(view.epoch), "VIEW-1: {node} goes back");
    }

    pub fn on_boot(&mut self, node: &NodeId) {
        self.witness.on_boot(node);
        self.seen.remove(node);
    }

    /// ROUND-6, first half.
    fn is_accepting(&self, now: Micros, round: Round) {
        let (open, opened) = self.open.expect("a round is open");
        assert_eq!(open, round);
        let deadline = opened + self.deadline;
        assert!(now <= deadline, "ROUND-6: accepted after the deadline");
    }

    /// A node has trained; `base` is what its memory held.
    pub fn on_update(&mut self, node: &NodeId, train: &Train, base: Hash, update: Label) {
        let made = (
            node.clone(),
            train.round,
            train.epoch,
            base,
            train.sync_every,
        );
        self.updates.insert(update, made);
    }

    /// ROUND-3: what was fixed, and acknowledged on the strength of it, is fixed for every life.
    pub fn on_fixed(&mut self, weighing: &Weighing) {
        self.fixed.insert(weighing.round);
        let weights = weighing.weights.iter();
        self.weights = weights.map(|w| (w.node.clone(), w.weight)).collect();
        if self.plan.round.asynchronous.is_some() {
            self.is_discounted(weighing);
        }
    }

    /// What each update counts for, from how many models were made since it was begun.
    fn is_discounted(&self, weighing: &Weighing) {
        let trained_for: BTreeMap<_, _> = weighing.trained_for.iter().cloned().collect();
        for (report, weight) in weighing.reports.iter().zip(&weighing.weights) {
            let round = trained_for.get(&report.node).unwrap_or(&weighing.round);
            let factor = 1.0 / ((1 + self.age(*round, weighing.round)) as f64).sqrt();
            assert_eq!(
                weight.weight,
                report.samples as f64 * factor,
                "{} in round {}",
                report.node,
                weighing.round
            );
        }
    }

    /// How many versions were made between the opening of one round and that of another.
    fn age(&self, trained_for: Round, round: Round) -> u64 {
        self.models.range(trained_for.max(1)..round).count() as u64
    }

    pub fn on_weighing(&mut self, round: Round, reports: &[Report]) {
        assert!(
            !self.fixed.contains(&round),
            "round {round} is weighed twice"
        );
        self.norms = reports.iter().map(|r| (r.node.clone(), r.norm)).collect();
        self.announced.clear();
    }

    pub fn on_folded(&mut self, contributions: &[Contribution], sum: Vec<(NodeId, Label)>) {
        let members = contributions.iter().flat_map(|c| c.members.clone());
        assert!(
            members.eq(sum.iter().map(|(node, _)| node.clone())),
            "ROUND-1: the bytes are those of other updates than announced"
        );
        for contribution in contributions {
            let members = contribution.members.iter();
            let weight = members.fold(0.0, |sum, member| sum + self.weights[member]);
            assert_eq!(
                weight.to_bits(),
                contribution.weight.to_bits(),
                "ROUND-1: the sum of {} weighs what is not inside",
                contribution.domain
            );
        }
        self.aggregate = sum;
    }

    pub fn aggregate(&self) -> &[(NodeId, Label)] {
        &self.aggregate
    }

    /// The outer step on the last aggregate makes that model.
    pub fn on_computed(&mut self, hash: Hash) {
        self.computed.insert(hash, self.aggregate.clone());
    }

    /// They are acknowledged for a round that another life's record has ended. Unless that record tells of them, the next life must say so.
    fn in_vain(&mut self, round: Round, nodes: Vec<NodeId>) {
        let record = self.last.as_ref().filter(|record| record.round == round);
        let record = record.expect("nobody opens a round before the last one");
        let refused = record.refused.iter().map(|(node, _)| node);
        let told = record.counted.iter().chain(&record.late).chain(refused);
        let told: BTreeSet<&NodeId> = told.collect();
        let unnamed = nodes.into_iter().filter(|node| !told.contains(node));
        let unnamed: BTreeSet<NodeId> = unnamed.collect();
        if !unnamed.is_empty() {
            self.unnamed.entry(round).or_default().extend(unnamed);
        }
    }

    pub fn on_record(&mut self, now: Micros, record: &RoundRecord, by_the_living: bool) {
        self.note(now, format!("on disk: {record:?}"));
        let round = record.round;
        let ended = self.outcomes.insert(round, (now, record.state));
        assert_eq!(ended, None, "ROUND-5: round {round} has one outcome");
        let counted: BTreeSet<&NodeId> = record.counted.iter().collect();
        let named = |node: &NodeId| {
            record.late.contains(node) || record.refused.iter().any(|(refused, _)| refused == node)
        };
        let acknowledged = self.acknowledged.remove(&round).unwrap_or_default();
        let told = |node: &NodeId| {
            counted.contains(node) || (record.state != RoundState::Committed && named(node))
        };
        let unnamed: Vec<NodeId> = acknowledged.into_iter().filter(|n| !told(n)).collect();
        assert!(
            unnamed.is_empty() || !by_the_living,
            "ROUND-3: {unnamed:?} in round {round}"
        );
        self.is_balanced(record);
        self.last = Some(record.clone());
        self.in_vain(round, unnamed);
        if record.state == RoundState::Aborted {
            assert!(!record.reason.is_empty() && counted.is_empty());
            return;
        }
        assert_eq!(
            counted.len(),
            record.counted.len(),
            "ROUND-2: counted twice"
        );
        for node in &self.out {
            assert!(!counted.contains(node), "ROUND-4: {node} was put out");
        }
        // Perhaps another life's than the last one: a write may land late.
        let aggregate = std::mem::take(&mut self.computed);
        let aggregate = aggregate.get(&record.model_hash);
        let aggregate = aggregate.expect("ROUND-1: nobody has computed that model");
        let inside: BTreeSet<&NodeId> = aggregate.iter().map(|(node, _)| node).collect();
        assert_eq!(inside, counted, "the record tells what is in the aggregate");
        assert_eq!(inside.len(), aggregate.len(), "ROUND-2: folded twice");
        let aggregate = aggregate.clone();
        for (node, update) in &aggregate {
            let made = self.updates.get(update).expect("somebody trained it");
            let made = made.clone();
            self.is_of_the_round(record, node, &made);
            let norm = (self.slices(node) * squares(*update)).sqrt();
            let weighed = self.norms[node];
            assert!(
                (norm - weighed).abs() < 1e-9,
                "MODEL-2: {norm} is not {weighed}"
            );
        }
    }

    /// Whatever life has dealt the steps, it did so by what the record before says.
    fn is_balanced(&mut self, record: &RoundRecord) {
        assert_eq!(record.balance.is_some(), self.plan.balance_steps);
        let (Some(balance), Some(equal)) = (&record.balance, self.plan.sync_every.steps()) else {
            return;
        };
        let before = self.last.as_ref().and_then(|last| last.balance.clone());
        let known = Paces::new(before.map_or_else(Vec::new, |before| before.paces));
        let cohort: Vec<NodeId> = balance.steps.iter().map(|(node, _)| node.clone()).collect();
        let expected: Vec<_> = known.shares(equal, &cohort).into_iter().collect();
        assert_eq!(balance.steps, expected, "round {}", record.round);
        let all_same = balance.steps.iter().all(|(_, steps)| *steps == equal);
        self.unequal += usize::from(!all_same);
    }

    /// ROUND-4: in the synchronous mode an update of this round, view and model. In the asynchronous one of the model that was the newest when it
    /// was begun, within the limit; ROUND-2: and in no other version.
    fn is_of_the_round(&mut self, record: &RoundRecord, node: &NodeId, made: &Update) {
        let base = |round| self.models.range(..round).next_back();
        let trained_for = made.1;
        let base = *base(trained_for).expect("there is a first model").1;
        let Some(plan) = &self.plan.round.asynchronous else {
            let given = record.balance.as_ref();
            let given = given.and_then(|balance| balance.steps_of(node));
            let work = given.map_or(self.plan.sync_every, SyncEvery::Steps);
            let expected = (node.clone(), record.round, record.epoch, base, work);
            let what = "ROUND-4: an update of another round, view or model, or of other steps than are recorded";
            return assert_eq!(*made, expected, "{what}");
        };
        let version = record.version.as_ref().expect("it is asynchronous");
        let index = record.counted.iter().position(|counted| counted == node);
        let index = index.expect("it is counted");
        let age = self.age(trained_for, record.round);
        let told = (version.trained_for[index], version.staleness[index]);
        assert_eq!(told, (trained_for, age), "{node} in {record:?}");
        assert!(
            age <= plan.staleness.limit && trained_for <= record.round,
            "ROUND-4: {node} is {age} versions old"
        );
        assert_eq!((&made.0, made.3), (node, base), "ROUND-4: of another model");
        self.older += usize::from(age > 0);
        assert!(
            self.counted.insert((node.clone(), trained_for)),
            "ROUND-2: the update of {node} for round {trained_for} is in two versions"
        );
    }

    /// The first ranks have one slice each, of which there are three.
    fn slices(&self, node: &NodeId) -> f64 {
        let domain = self.plan.domain(&node.domain());
        domain.map_or(0, |domain| domain.nodes.len().min(3)) as f64
    }

    pub fn on_commit(&mut self, round: Round, hash: Hash) {
        let before = self.models.insert(round, hash);
        assert_eq!(before, None, "ROUND-5: round {round} is committed once");
    }

    /// What is announced is on disk before.
    pub fn on_announced(&self, commit: &Commit) {
        let known = self.models.get(&commit.round);
        assert_eq!(
            known,
            Some(&commit.hash),
            "ROUND-5: round {} is announced and not recorded like that",
            commit.round
        );
    }

    pub fn on_note(&mut self, contribution: &Contribution) {
        self.announced.retain(|c| c.domain != contribution.domain);
        self.announced.push(contribution.clone());
    }
}

/// Everything at once.
pub fn look(world: &World) {
    let check = &world.check;
    let last = check.views.last().expect("there is a first one");
    let committed = &world.disk.committed;
    assert_eq!(
        check.models.last_key_value(),
        Some((&committed.round, &committed.hash)),
        "STORE-2: the newest model is on disk"
    );
    for link in &world.links {
        assert!(link.waiting() <= OUTBOX_MESSAGES_MAX, "BOUND-1: an outbox");
    }
    for (id, node) in world.nodes.iter().filter(|(_, node)| node.alive) {
        let view = node.seen.view();
        let written = check.views.get(view.epoch as usize - 1);
        assert_eq!(written, Some(view), "VIEW-1: {id} has a view of its own");
        assert!(view.epoch <= last.epoch);
        assert!(node.shelf.len() <= 2, "BOUND-1: {id} keeps too many sums");
        let held = node.member.as_ref().map(|member| member.model());
        let half = label(&[b"half a model"]);
        if let Some((round, hash)) = held.filter(|_| node.model.1 != half) {
            assert_eq!(
                node.model,
                (round, hash),
                "MODEL-1: {id} holds another model"
            );
            assert_eq!(check.models.get(&round), Some(&hash), "MODEL-1: {id}");
        }
        for (key, content) in &node.regions {
            if let Content::Folded(round, _, slices) = content {
                let mut sums = slices.values();
                let first = sums.next();
                assert!(
                    sums.all(|sum| Some(sum) == first),
                    "ROUND-1: {id} mixes folds of round {round} in region {key}"
                );
            }
        }
    }
}
