//! What a round's end adds to the record; see [`crate::record`].
//!
//! The leaves go into the very file that ends the round, so there is one order of them, whoever reads it: a coordinator that was restarted,
//! or another one, finds the record where it was.

use std::collections::{BTreeMap, BTreeSet};

use super::Coordinator;
use crate::event::{RoundRecord, RoundState};
use crate::ids::{DomainId, Epoch, NodeId, Round};
use crate::policy;
use crate::record::{Der, Leaf};
use crate::tensor::Hash;
use crate::view::View;

/// Views of one round that are told. Each takes a ladder of failures or a word of a user: there are never as many.
const VIEWS_MAX: usize = 64;

/// Roots and lists of revoked certificates of one round that are told; more come with the next one, as far as they are said again.
const PAPERS_MAX: usize = 64;

/// What the record says already.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Told {
    /// What is to be said first, if nothing is.
    pub first: Vec<Leaf>,
    /// The last view; 0 if none.
    pub epoch: Epoch,
    /// Who coordinates by that view.
    pub coordinator: Option<NodeId>,
    /// The certificates under which nodes sign.
    pub certificates: BTreeMap<NodeId, Vec<u8>>,
    /// The roots of each domain, those that were retired among them.
    pub roots: BTreeMap<DomainId, Vec<Vec<u8>>>,
    /// Roots that were retired.
    pub retired: BTreeSet<Vec<u8>>,
    /// The hash of the policies that were told last.
    pub policy: Option<Hash>,
    /// The hashes of lists of revoked certificates.
    pub lists: BTreeSet<Hash>,
}

impl Told {
    /// The leaf of a paper, if it says something new; it is told then.
    fn tell(&mut self, domain: DomainId, paper: Paper) -> Option<Leaf> {
        let is_told = self.roots.get(&domain).is_some_and(|roots| match &paper {
            Paper::Root(root) | Paper::Retired(root) => roots.contains(root),
            Paper::Revoked(_) => true,
        });
        match paper {
            Paper::Root(root) if !is_told => {
                let roots = self.roots.entry(domain.clone()).or_default();
                roots.push(root.clone());
                let certificate = Der(root);
                Some(Leaf::Root {
                    domain,
                    certificate,
                })
            }
            Paper::Retired(root) if is_told && self.retired.insert(root.clone()) => {
                let certificate = Der(root);
                Some(Leaf::Retired {
                    domain,
                    certificate,
                })
            }
            Paper::Revoked(list) if is_told && self.lists.insert(Hash::of_bytes(&list)) => {
                let list = Der(list);
                Some(Leaf::Revoked { domain, list })
            }
            _ => None,
        }
    }
}

/// What a domain's administration has changed.
#[derive(Debug)]
enum Paper {
    Root(Vec<u8>),
    Retired(Vec<u8>),
    Revoked(Vec<u8>),
}

/// What is to be said at the next round's end.
#[derive(Debug, Default)]
pub(super) struct Untold {
    /// None if no record is kept.
    told: Option<Told>,
    certificates: BTreeMap<NodeId, Vec<u8>>,
    papers: Vec<(DomainId, Paper)>,
    views: Vec<View>,
    /// The last round whose leaves are written down, and the gateways that have signed them.
    signed: (Round, Vec<NodeId>),
}

impl Untold {
    pub(super) fn begin(&mut self, told: Option<Told>) {
        self.told = told;
    }

    pub(super) fn certify(&mut self, node: NodeId, certificate: Vec<u8>) {
        self.certificates.insert(node, certificate);
    }

    pub(super) fn root(&mut self, domain: DomainId, root: Vec<u8>) {
        self.keep(domain, Paper::Root(root));
    }

    pub(super) fn retire(&mut self, domain: DomainId, root: Vec<u8>) {
        self.keep(domain, Paper::Retired(root));
    }

    pub(super) fn revoke(&mut self, domain: DomainId, list: Vec<u8>) {
        self.keep(domain, Paper::Revoked(list));
    }

    fn keep(&mut self, domain: DomainId, paper: Paper) {
        if self.papers.len() < PAPERS_MAX {
            self.papers.push((domain, paper));
        }
    }

    pub(super) fn sign(&mut self, round: Round, by: Vec<NodeId>) {
        self.signed = (round, by);
    }

    /// Whether one of these has not signed yet what was told of a round.
    pub(super) fn is_unsigned<'a>(
        &self,
        round: Round,
        mut gateways: impl Iterator<Item = &'a NodeId>,
    ) -> bool {
        let (signed, by) = &self.signed;
        self.told.is_some()
            && round > 0
            && (*signed < round || gateways.any(|node| !by.contains(node)))
    }

    pub(super) fn view(&mut self, view: View) {
        if self.views.len() == VIEWS_MAX {
            self.views.remove(0);
        }
        self.views.push(view);
    }
}

impl Coordinator {
    /// The leaves of a round that ends with this record, to be written down with it. Each time it is asked it takes what is new as told.
    pub fn leaves(&mut self, record: &RoundRecord) -> Vec<Leaf> {
        let standing = self.view().clone();
        let mut views = std::mem::take(&mut self.untold.views);
        let papers = std::mem::take(&mut self.untold.papers);
        let Some(told) = &mut self.untold.told else {
            return Vec::new();
        };
        let mut leaves = std::mem::take(&mut told.first);
        if told.policy.is_some() || !self.plan.policy.is_empty() {
            let hash = policy::hash(&self.plan);
            if told.policy.replace(hash) != Some(hash) {
                let rules = self.plan.policy.rules.clone();
                leaves.push(Leaf::Policy { hash, rules });
            }
        }
        // A certificate may be of a root that is told with it, or that is retired with it.
        let (last, papers): (Vec<_>, Vec<_>) = papers
            .into_iter()
            .partition(|(_, paper)| matches!(paper, Paper::Retired(_)));
        for (domain, paper) in papers {
            leaves.extend(told.tell(domain, paper));
        }
        for (node, certificate) in &self.untold.certificates {
            if told.certificates.get(node) != Some(certificate) {
                told.certificates.insert(node.clone(), certificate.clone());
                leaves.push(Leaf::Certificate {
                    node: node.clone(),
                    certificate: Der(certificate.clone()),
                });
            }
        }
        for (domain, paper) in last {
            leaves.extend(told.tell(domain, paper));
        }
        views.push(standing);
        for view in views {
            if view.epoch <= told.epoch {
                continue;
            }
            let (node, epoch) = (view.coordinator.clone(), view.epoch);
            let before = told.coordinator.replace(node.clone());
            if before.is_some_and(|before| before != node) {
                leaves.push(Leaf::Promoted { node, epoch });
            }
            told.epoch = epoch;
            leaves.push(Leaf::Membership { view });
        }
        self.tell_round(record, &mut leaves);
        leaves
    }

    fn tell_round(&self, record: &RoundRecord, leaves: &mut Vec<Leaf>) {
        let (round, model) = (record.round, record.model_hash);
        let current = self
            .current
            .as_ref()
            .filter(|current| current.round == round);
        if let Some(current) = current.filter(|_| record.state != RoundState::Aborted) {
            leaves.extend(current.weights.iter().map(|weight| Leaf::Update {
                round,
                node: weight.node.clone(),
                weight: weight.weight,
                clip: weight.clip,
            }));
            leaves.extend(current.noted.values().map(|noted| Leaf::Contribution {
                round,
                epoch: noted.epoch,
                domain: noted.domain.clone(),
                attempt: noted.attempt,
                weight: noted.weight,
                hash: noted.hash(),
                members: noted.members.clone(),
            }));
            if round.is_multiple_of(self.plan.checkpoint.every) {
                leaves.push(Leaf::Checkpoint { round, model });
            }
        }
        leaves.push(Leaf::Round {
            round,
            epoch: record.epoch,
            state: record.state,
            reason: record.reason.clone(),
            model,
        });
    }
}
