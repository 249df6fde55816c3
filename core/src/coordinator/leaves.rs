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

/// Lists of revoked certificates of one round that are told: 4 MiB of the largest. A newer list says what an older one of its root said.
const LISTS_MAX: usize = 64;

/// Roots of one domain that come or go in one round and are told. At most eight hold at once.
const ROOTS_MAX: usize = 64;

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
    /// The leaf of a root that comes or goes, if it says something new; it is told then. A root that was retired may come back.
    fn tell_root(&mut self, domain: DomainId, change: Change) -> Option<Leaf> {
        let Change { root, comes } = change;
        let roots = self.roots.entry(domain.clone()).or_default();
        let is_told = roots.contains(&root);
        let is_new = match (comes, is_told) {
            (true, false) => {
                roots.push(root.clone());
                true
            }
            (true, true) => self.retired.remove(&root),
            (false, told) => told && self.retired.insert(root.clone()),
        };
        let certificate = Der(root);
        let leaf = match comes {
            true => Leaf::Root {
                domain,
                certificate,
            },
            false => Leaf::Retired {
                domain,
                certificate,
            },
        };
        is_new.then_some(leaf)
    }

    fn tell_list(&mut self, domain: DomainId, list: Vec<u8>) -> Option<Leaf> {
        let is_new = self.roots.contains_key(&domain) && self.lists.insert(Hash::of_bytes(&list));
        let list = Der(list);
        is_new.then_some(Leaf::Revoked { domain, list })
    }
}

/// A root of a domain comes or goes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Change {
    root: Vec<u8>,
    comes: bool,
}

/// What is to be said at the next round's end.
#[derive(Debug, Default)]
pub(super) struct Untold {
    /// None if no record is kept.
    told: Option<Told>,
    certificates: BTreeMap<NodeId, Vec<u8>>,
    roots: BTreeMap<DomainId, Vec<Change>>,
    lists: Vec<(DomainId, Vec<u8>)>,
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
        // Before its end was told it is back.
        if let Some(changes) = self.roots.get_mut(&domain) {
            changes.retain(|change| change.comes || change.root != root);
        }
        self.change(domain, Change { root, comes: true });
    }

    pub(super) fn retire(&mut self, domain: DomainId, root: Vec<u8>) {
        self.change(domain, Change { root, comes: false });
    }

    fn change(&mut self, domain: DomainId, change: Change) {
        let changes = self.roots.entry(domain.clone()).or_default();
        if changes.contains(&change) {
            return;
        }
        changes.push(change);
        if changes.len() <= ROOTS_MAX {
            return;
        }
        // That a root goes may stay untold. Without one that comes no certificate of it may be told: whoever shows it again brings the root, too.
        let goes = changes.iter().position(|change| !change.comes);
        changes.remove(goes.unwrap_or_default());
        if goes.is_none() {
            self.certificates.retain(|node, _| node.domain() != domain);
        }
    }

    /// If there are too many, of the domain that has most the oldest goes.
    pub(super) fn revoke(&mut self, domain: DomainId, list: Vec<u8>) {
        let entry = (domain, list);
        if self.lists.contains(&entry) {
            return;
        }
        self.lists.push(entry);
        if self.lists.len() <= LISTS_MAX {
            return;
        }
        let mut by: BTreeMap<&DomainId, usize> = BTreeMap::new();
        for (domain, _) in &self.lists {
            *by.entry(domain).or_default() += 1;
        }
        let most = by.into_iter().max_by_key(|(_, count)| *count);
        let most = most.map(|(domain, _)| domain.clone());
        let mut each = self.lists.iter();
        let oldest = each.position(|(domain, _)| Some(domain) == most.as_ref());
        self.lists.remove(oldest.unwrap_or_default());
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
        let roots = std::mem::take(&mut self.untold.roots);
        let lists = std::mem::take(&mut self.untold.lists);
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
        let each = roots.into_iter().flat_map(|(domain, changes)| {
            let each = changes.into_iter();
            each.map(move |change| (domain.clone(), change))
        });
        let (come, go): (Vec<_>, Vec<_>) = each.partition(|(_, change)| change.comes);
        for (domain, change) in come {
            leaves.extend(told.tell_root(domain, change));
        }
        for (domain, list) in lists {
            leaves.extend(told.tell_list(domain, list));
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
        for (domain, change) in go {
            leaves.extend(told.tell_root(domain, change));
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
