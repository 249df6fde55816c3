//! What must hold, whatever happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tombolo_core::aggregate::Report;
use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::ids::{Epoch, NodeId, Round};
use tombolo_core::plan::{Deadline, Plan};
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;
use tombolo_core::view::View;
use tombolo_core::wire::Contribution;

use crate::work::squares;
use crate::world::{Label, initial};

/// Watches a federation and panics at the first breach of an invariant.
pub struct Checker {
    pub deadline: Duration,
    pub faults_end: Micros,
    plan: Plan,
    close_limit: Duration,
    open: Option<(Round, Micros)>,
    updates: BTreeMap<Label, (NodeId, Round, Hash)>,
    norms: BTreeMap<NodeId, f64>,
    acknowledged: BTreeMap<Round, BTreeSet<NodeId>>,
    /// Rounds whose weights are written down.
    fixed: BTreeSet<Round>,
    /// Rounds that went on in another life with contributions that were acknowledged in the one before.
    pub resumed: usize,
    announced: Vec<Contribution>,
    aggregate: Vec<(NodeId, Label)>,
    pub models: BTreeMap<Round, Hash>,
    pub outcomes: BTreeMap<Round, (Micros, RoundState)>,
    pub behind: Vec<String>,
    pub views: Vec<View>,
    /// Who was asked in each round.
    pub cohorts: BTreeMap<Round, Vec<NodeId>>,
    seen: BTreeMap<NodeId, Epoch>,
    /// Who was out at some time since the round was opened.
    out: BTreeSet<NodeId>,
    tail: Vec<String>,
}

impl Checker {
    pub fn new(plan: &Plan) -> Self {
        let Deadline::Fixed(deadline) = plan.round.deadline else {
            panic!("these plans have fixed deadlines")
        };
        Checker {
            deadline,
            faults_end: Micros::NEVER,
            plan: plan.clone(),
            close_limit: plan.round.close_limit,
            open: None,
            updates: BTreeMap::new(),
            norms: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            fixed: BTreeSet::new(),
            resumed: 0,
            announced: Vec::new(),
            aggregate: Vec::new(),
            models: [(0, initial())].into(),
            outcomes: BTreeMap::new(),
            behind: Vec::new(),
            views: vec![View::first(plan)],
            cohorts: BTreeMap::new(),
            seen: BTreeMap::new(),
            out: BTreeSet::new(),
            tail: Vec::new(),
        }
    }

    /// The last events, for a message that helps.
    pub fn tail(&self) -> String {
        self.tail[self.tail.len().saturating_sub(60)..].join("\n")
    }

    pub fn commits(&self) -> usize {
        self.models.len() - 1
    }

    pub fn on_restart(&mut self) {
        self.open = None;
    }

    pub fn on_event(&mut self, now: Micros, event: &Event) {
        self.tail.push(format!("{:>9} ms {event:?}", now.0 / 1000));
        match event {
            Event::RoundOpened { round, cohort, .. } => {
                self.cohorts.insert(*round, cohort.clone());
                assert!(!self.outcomes.contains_key(round), "round {round} is over");
                self.open = Some((*round, now));
                self.out = self
                    .views
                    .last()
                    .expect("there is a first one")
                    .out
                    .keys()
                    .cloned()
                    .collect();
            }
            Event::RoundResumed { acknowledged, .. } => {
                self.resumed += usize::from(!acknowledged.is_empty());
            }
            Event::Reported { round, .. } => self.is_accepting(now, *round),
            Event::Acknowledged { round, domain, .. } => {
                self.is_accepting(now, *round);
                let members = self.announced.iter().filter(|c| c.domain == *domain);
                let members = members.flat_map(|c| c.members.clone());
                self.acknowledged.entry(*round).or_default().extend(members);
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
            Event::DomainDropped { reason, .. } if reason.contains("the last model") => {
                self.behind.push(reason.clone());
            }
            _ => {}
        }
    }

    /// The coordinator has written a view down.
    pub fn on_epoch(&mut self, view: &View) {
        let last = self.views.last().expect("there is a first one");
        assert_eq!(view.epoch, last.epoch + 1, "VIEW-1: epochs grow one by one");
        self.out.extend(view.out.keys().cloned());
        self.views.push(view.clone());
    }

    /// A node goes by a view; a node that begins anew knows the first one only.
    pub fn on_view(&mut self, node: &NodeId, view: &View) {
        let written = &self.views[view.epoch as usize - 1];
        assert_eq!(view, written, "VIEW-1: {node} has a view of its own");
        let before = self.seen.insert(node.clone(), view.epoch);
        assert!(before < Some(view.epoch), "VIEW-1: {node} goes back");
    }

    pub fn on_boot(&mut self, node: &NodeId) {
        self.seen.remove(node);
    }

    /// ROUND-6, first half.
    fn is_accepting(&self, now: Micros, round: Round) {
        let (open, opened) = self.open.expect("a round is open");
        assert_eq!(open, round);
        let deadline = opened + self.deadline;
        assert!(now <= deadline, "ROUND-6: accepted after the deadline");
    }

    pub fn on_update(&mut self, node: &NodeId, round: Round, base: Hash, update: Label) {
        self.updates.insert(update, (node.clone(), round, base));
    }

    /// ROUND-3: what was fixed, and acknowledged on the strength of it, is fixed for every life.
    pub fn on_fixed(&mut self, round: Round) {
        self.fixed.insert(round);
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
        assert!(members.eq(sum.iter().map(|(node, _)| node.clone())));
        self.aggregate = sum;
    }

    pub fn aggregate(&self) -> &[(NodeId, Label)] {
        &self.aggregate
    }

    pub fn on_record(&mut self, now: Micros, record: &RoundRecord) {
        self.tail.push(format!("{:>9} ms {record:?}", now.0 / 1000));
        let round = record.round;
        let ended = self.outcomes.insert(round, (now, record.state));
        assert_eq!(ended, None, "ROUND-5: round {round} has one outcome");
        let (open, opened) = self.open.take().expect("a round is open");
        assert_eq!(open, round);
        let latest = opened + self.deadline + self.close_limit;
        assert!(now <= latest, "ROUND-6: the outcome is late");
        let counted: BTreeSet<&NodeId> = record.counted.iter().collect();
        let named = |node: &NodeId| {
            record.late.contains(node) || record.refused.iter().any(|(refused, _)| refused == node)
        };
        for node in self.acknowledged.remove(&round).unwrap_or_default() {
            let in_aggregate = counted.contains(&node);
            let said = record.state != RoundState::Committed && named(&node);
            assert!(in_aggregate || said, "ROUND-3: {node} in round {round}");
        }
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
        let inside: BTreeSet<&NodeId> = self.aggregate.iter().map(|(node, _)| node).collect();
        assert_eq!(inside, counted, "the record tells what is in the aggregate");
        assert_eq!(inside.len(), self.aggregate.len(), "ROUND-2: folded twice");
        let base = self
            .models
            .last_key_value()
            .expect("there is a first model")
            .1;
        for (node, update) in &self.aggregate {
            let made = self.updates.get(update).expect("somebody trained it");
            assert_eq!(
                *made,
                (node.clone(), round, *base),
                "ROUND-4: another round's update"
            );
            let norm = (self.slices(node) * squares(*update)).sqrt();
            let weighed = self.norms[node];
            assert!(
                (norm - weighed).abs() < 1e-9,
                "MODEL-2: {norm} is not {weighed}"
            );
        }
    }

    /// Each rank of these small domains has one slice.
    fn slices(&self, node: &NodeId) -> f64 {
        let domain = self.plan.domain(&node.domain());
        domain.map_or(0, |domain| domain.nodes.len()) as f64
    }

    pub fn on_commit(&mut self, round: Round, hash: Hash) {
        let before = self.models.insert(round, hash);
        assert_eq!(before, None, "ROUND-5: round {round} is committed once");
    }

    pub fn on_note(&mut self, contribution: &Contribution) {
        self.announced.retain(|c| c.domain != contribution.domain);
        self.announced.push(contribution.clone());
    }
}
