//! What anybody can check who has the events and records of all nodes and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::ids::{DomainId, Epoch, NodeId, Round};
use tombolo_core::plan::{Deadline, Plan, Quorum};
use tombolo_core::tensor::Hash;
use tombolo_core::time::Micros;

/// See the file. It panics at the first breach.
pub struct Witness {
    plan: Plan,
    open: Option<Open>,
    /// Whose sums are acknowledged, by round and domain, in whatever life.
    acknowledged: BTreeMap<(Round, DomainId), Vec<NodeId>>,
    records: BTreeMap<Round, RoundRecord>,
    models: BTreeMap<Round, Hash>,
    epoch: Epoch,
    /// By the view that was told last.
    out: BTreeSet<NodeId>,
    seen: BTreeMap<NodeId, Epoch>,
    /// Since when a node suspects another one, and since when it holds it for lost.
    suspected: BTreeMap<(NodeId, NodeId), Micros>,
    lost: BTreeMap<(NodeId, NodeId), Micros>,
}

/// The open round, as its coordinator's clock has it.
struct Open {
    round: Round,
    opened: Micros,
    deadline: Micros,
    cohort: Vec<NodeId>,
    /// Who was put out meanwhile.
    out: BTreeSet<NodeId>,
    /// How long its process did not run.
    stopped: Duration,
}

impl Witness {
    pub fn new(plan: &Plan) -> Self {
        Witness {
            plan: plan.clone(),
            open: None,
            acknowledged: BTreeMap::new(),
            records: BTreeMap::new(),
            models: BTreeMap::new(),
            epoch: 1,
            out: BTreeSet::new(),
            seen: BTreeMap::new(),
            suspected: BTreeMap::new(),
            lost: BTreeMap::new(),
        }
    }

    /// A node's process begins anew.
    pub fn on_boot(&mut self, node: &NodeId) {
        self.seen.remove(node);
        self.suspected.retain(|(by, _), _| by != node);
        self.lost.retain(|(by, _), _| by != node);
    }

    pub fn on_run_over(&mut self) {
        self.open = None;
    }

    /// A process that was stopped for that long goes on.
    pub fn on_thaw(&mut self, node: &NodeId, span: Duration) {
        if let Some(open) = self
            .open
            .as_mut()
            .filter(|_| *node == self.plan.coordinator)
        {
            open.stopped += span;
        }
    }

    /// A coordinator begins anew.
    pub fn on_restart(&mut self) {
        self.open = None;
    }

    pub fn on_event(&mut self, now: Micros, node: &NodeId, event: &Event) {
        match event {
            Event::RoundOpened {
                round,
                epoch,
                cohort,
                deadline_ms,
            } => {
                let last = self.records.last_key_value().map_or(0, |(round, _)| *round);
                assert!(*round > last, "STORE-2: round {round} opens after {last}");
                assert!(*epoch >= self.epoch, "VIEW-1: round {round} in {epoch}");
                self.open = Some(Open {
                    round: *round,
                    opened: now,
                    deadline: now + Duration::from_millis(*deadline_ms),
                    cohort: cohort.clone(),
                    out: BTreeSet::new(),
                    stopped: Duration::ZERO,
                });
            }
            Event::Reported { round, .. } => self.accepts(now, *round),
            Event::Acknowledged {
                round,
                domain,
                members,
                ..
            } => {
                self.accepts(now, *round);
                let sum = (*round, domain.clone());
                self.acknowledged.insert(sum, members.clone());
            }
            Event::Round(record) => self.on_record(now, record),
            Event::EpochChanged { view } => {
                assert!(view.epoch > self.epoch, "VIEW-1: {} is old", view.epoch);
                self.epoch = view.epoch;
                self.out = view.out.keys().cloned().collect();
                if let Some(open) = &mut self.open {
                    open.out.extend(view.out.keys().cloned());
                }
            }
            Event::ViewAdopted { node, epoch } => {
                let before = self.seen.insert(node.clone(), *epoch);
                assert!(before < Some(*epoch), "VIEW-1: {node} goes back to {epoch}");
            }
            Event::ModelAdopted {
                node, round, hash, ..
            } => {
                // A coordinator that ended before it could say so may have committed it.
                let known = *self.models.entry(*round).or_insert(*hash);
                assert_eq!(known, *hash, "MODEL-1: {node} in round {round}");
            }
            Event::PeerSuspected { peer, .. } => {
                let pair = (node.clone(), peer.clone());
                self.suspected.insert(pair, now);
            }
            Event::PeerLost { peer, .. } => {
                let pair = (node.clone(), peer.clone());
                let since = self.suspected.get(&pair);
                let since = since.expect("LADDER-1: lost without suspicion");
                let retries: Duration = self.plan.heartbeat.retry.iter().sum();
                assert!(
                    now >= *since + retries,
                    "LADDER-1: {node} gives {peer} up without its retries"
                );
                self.lost.insert(pair, now);
            }
            Event::PeerOverdue { peer, .. } => {
                let since = self.lost.get(&(node.clone(), peer.clone()));
                let since = since.expect("LADDER-1: overdue without being lost");
                // It was decided when the climb began: a timer that was late before makes the rest shorter.
                let late = self.plan.heartbeat.every / 2;
                assert!(
                    now + late >= *since + self.plan.heartbeat.restore_limit,
                    "LADDER-1: {node} gives {peer} no time to restore"
                );
            }
            Event::PeerRecovered { peer, .. } => {
                let pair = (node.clone(), peer.clone());
                self.suspected.remove(&pair);
                self.lost.remove(&pair);
            }
            _ => {}
        }
    }

    /// ROUND-6, first half.
    fn accepts(&self, now: Micros, round: Round) {
        let open = self.open.as_ref().expect("ROUND-6: no round is open");
        assert_eq!(open.round, round);
        assert!(now <= open.deadline, "ROUND-6: accepted after the deadline");
    }

    fn on_record(&mut self, now: Micros, record: &RoundRecord) {
        let round = record.round;
        let known = self.records.insert(round, record.clone());
        assert_eq!(known, None, "ROUND-5: round {round} ends twice");
        let counted: BTreeSet<&NodeId> = record.counted.iter().collect();
        assert_eq!(counted.len(), record.counted.len(), "ROUND-2: {record:?}");
        let refused = record.refused.iter().map(|(node, _)| node);
        let named: BTreeSet<&NodeId> = record.late.iter().chain(refused).collect();
        assert!(counted.is_disjoint(&named), "ROUND-3: {record:?}");
        if record.is_committed() {
            let known = *self.models.entry(round).or_insert(record.model_hash);
            assert_eq!(known, record.model_hash, "ROUND-5: round {round}");
            self.has_quorum(record, &counted);
        } else {
            assert!(counted.is_empty() && !record.reason.is_empty());
        }
        let acknowledged = self.acknowledged.iter();
        let acknowledged = acknowledged.filter(|((of, _), _)| *of == round);
        for node in acknowledged.flat_map(|(_, members)| members) {
            let said = record.state != RoundState::Committed && named.contains(node);
            assert!(
                counted.contains(node) || said,
                "ROUND-3: {node}, {record:?}"
            );
        }
        self.acknowledged.retain(|(of, _), _| *of > round);
        let Some(open) = self.open.take().filter(|open| open.round == round) else {
            // Its coordinator has begun anew since.
            return;
        };
        let latest = open.deadline + self.plan.round.close_limit;
        // The store may be slow; what is begun to be written is written to the end. And who is stopped can do nothing.
        let written = latest + Duration::from_millis(2_500) + open.stopped;
        assert!(
            now <= written,
            "ROUND-6: round {round} opened at {:?}, its deadline was {:?}, its outcome due by {written:?} ({:?} of it for a stopped coordinator), \
             and was recorded at {now:?}: {record:?}",
            open.opened,
            open.deadline,
            open.stopped
        );
        for node in counted {
            assert!(!open.out.contains(node), "ROUND-4: {node} was put out");
            assert!(open.cohort.contains(node), "ROUND-4: {node} was not asked");
        }
    }

    fn has_quorum(&self, record: &RoundRecord, counted: &BTreeSet<&NodeId>) {
        let domains: BTreeSet<_> = counted.iter().map(|node| node.domain()).collect();
        if let Quorum::AtLeast {
            nodes,
            domains: spread,
        } = self.plan.round.quorum
        {
            let met = counted.len() >= nodes && domains.len() >= spread;
            assert!(met, "round {} has no quorum", record.round);
        }
    }

    /// How long a round accepts in these plans.
    pub fn deadline(plan: &Plan) -> Duration {
        match plan.round.deadline {
            Deadline::Fixed(deadline) => deadline,
            Deadline::Adaptive => panic!("these plans have fixed deadlines"),
        }
    }
}
