//! What the leaves say so far, and whether a next one may follow.
//!
//! Rounds follow one another without a gap, each begins after the one before has ended, what a round counts adds up, and a model changes by a
//! commit only. So a leaf that was taken out, moved or put in contradicts its neighbours even before anybody looks at a signature.

use std::collections::{BTreeMap, BTreeSet};

use super::CERTIFICATE_BYTES_MAX;
use super::leaf::{FORMAT, Leaf};
use super::note::{Note, PublicKey, Verifier, origin, signer_name};
use crate::event::RoundState;
use crate::ids::{DomainId, Epoch, NodeId, Round};
use crate::tensor::Hash;
use crate::view::View;
use crate::wire::LIST_BYTES_MAX;

/// A leaf that cannot be where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("leaf {index}: {reason}")]
pub struct Flaw {
    /// Its place, from 0.
    pub index: u64,
    /// Why not.
    pub reason: String,
}

/// The keys under which a node has signed, the newest last, each with the certificate that proves it.
type Papers = Vec<(Vec<u8>, PublicKey)>;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Account {
    size: u64,
    federation: String,
    run: Hash,
    /// By which topology the run goes.
    configuration: Hash,
    coordinators: Vec<NodeId>,
    roots: BTreeMap<DomainId, Vec<Vec<u8>>>,
    retired: BTreeSet<Vec<u8>>,
    /// The hashes of lists that were told.
    lists: BTreeSet<Hash>,
    policy: Option<Hash>,
    papers: BTreeMap<NodeId, Papers>,
    view: Option<View>,
    promoted: Option<(NodeId, Epoch)>,
    round: Round,
    /// Leaves when it had ended.
    ended: u64,
    model: Option<Hash>,
    open: Open,
}

/// The round that is being told.
#[derive(Debug, Clone, Default)]
struct Open {
    updates: BTreeMap<NodeId, f64>,
    domains: BTreeSet<DomainId>,
    counted: BTreeSet<NodeId>,
    checkpoint: Option<Hash>,
}

impl Open {
    fn is_begun(&self) -> bool {
        !self.updates.is_empty() || !self.domains.is_empty() || self.checkpoint.is_some()
    }
}

impl Account {
    /// Leaves so far.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The last round that has ended; 0 before the first.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Leaves since that round has ended: a round of many nodes is told in pieces.
    pub fn since_round(&self) -> u64 {
        self.size - self.ended
    }

    /// The last view that was told; 0 before the first.
    pub fn epoch(&self) -> Epoch {
        self.view.as_ref().map_or(0, |view| view.epoch)
    }

    /// The last view that was told.
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// The federation's name; empty before the first leaf.
    pub fn federation(&self) -> &str {
        &self.federation
    }

    /// The record's name, once the first leaf has said it.
    pub fn origin(&self) -> String {
        origin(&self.federation, &self.run)
    }

    /// The hash of the topology by which the run goes.
    pub fn configuration(&self) -> Hash {
        self.configuration
    }

    /// The roots of each domain.
    pub fn roots(&self) -> &BTreeMap<DomainId, Vec<Vec<u8>>> {
        &self.roots
    }

    /// Whether that root was told, and is not retired.
    pub fn trusts(&self, domain: &DomainId, root: &[u8]) -> bool {
        let told = self.roots.get(domain);
        told.is_some_and(|roots| roots.iter().any(|told| told == root))
            && !self.retired.contains(root)
    }

    /// Roots that were retired.
    pub fn retired(&self) -> &BTreeSet<Vec<u8>> {
        &self.retired
    }

    /// The hashes of the lists of revoked certificates that were told.
    pub fn lists(&self) -> &BTreeSet<Hash> {
        &self.lists
    }

    /// The hash of the policies that hold; none if none were ever told.
    pub fn policy(&self) -> Option<Hash> {
        self.policy
    }

    /// Who may ever coordinate.
    pub fn coordinators(&self) -> &[NodeId] {
        &self.coordinators
    }

    /// The certificate of a node under whose key it signs now.
    pub fn certificate(&self, node: &NodeId) -> Option<&[u8]> {
        let last = self.papers.get(node)?.last()?;
        Some(&last.0)
    }

    /// Whose certificates were told.
    pub(super) fn papers(&self) -> impl Iterator<Item = &NodeId> {
        self.papers.keys()
    }

    /// Takes the next line.
    ///
    /// # Errors
    /// It may not follow, and why; the account is as it was.
    pub fn take(&mut self, line: &str, keys: &dyn Verifier) -> Result<Leaf, Flaw> {
        let index = self.size;
        let flaw = |reason: String| Flaw { index, reason };
        let leaf = Leaf::parse(line).map_err(flaw)?;
        self.follow(&leaf, keys).map_err(flaw)?;
        self.size += 1;
        if matches!(leaf, Leaf::Round { .. } | Leaf::Unrecorded { .. }) {
            self.ended = self.size;
        }
        Ok(leaf)
    }

    fn follow(&mut self, leaf: &Leaf, keys: &dyn Verifier) -> Result<(), String> {
        if (self.size == 0) != matches!(leaf, Leaf::Begun { .. }) {
            return Err("the first leaf, and only the first, says which run has begun".into());
        }
        if let Some(round) = leaf.round()
            && round != self.round + 1
        {
            return Err(format!(
                "it is about round {round}, round {} is due",
                self.round + 1
            ));
        }
        match leaf {
            Leaf::Begun {
                format,
                federation,
                run,
                configuration,
                coordinators,
            } => {
                if *format != FORMAT {
                    return Err(format!(
                        "the record is of format {format}, this version reads {FORMAT}"
                    ));
                }
                (self.federation, self.run) = (federation.clone(), *run);
                self.configuration = *configuration;
                self.coordinators = coordinators.clone();
            }
            Leaf::Amended { configuration } => {
                if self.open.is_begun() || *configuration == self.configuration {
                    return Err("a topology is amended between rounds, and by another one".into());
                }
                self.configuration = *configuration;
            }
            Leaf::Policy { hash, .. } => {
                if self.open.is_begun() {
                    return Err("policies are told between rounds, not within one".into());
                }
                if self.policy.replace(*hash) == Some(*hash) {
                    return Err("those policies hold already".into());
                }
            }
            Leaf::Root {
                domain,
                certificate,
            } => {
                bounded(&certificate.0)?;
                let roots = self.roots.entry(domain.clone()).or_default();
                match roots.contains(&certificate.0) {
                    false => roots.push(certificate.0.clone()),
                    // One that was retired may come back.
                    true if self.retired.remove(&certificate.0) => {}
                    true => return Err(format!("that root of {domain} was told before")),
                }
            }
            Leaf::Retired {
                domain,
                certificate,
            } => {
                if !self.trusts(domain, &certificate.0) {
                    return Err(format!(
                        "that root of {domain} was not told, or is retired already"
                    ));
                }
                self.retired.insert(certificate.0.clone());
            }
            Leaf::Revoked { domain, list } => {
                if list.0.len() > LIST_BYTES_MAX {
                    return Err(format!(
                        "a list of {} bytes, at most {LIST_BYTES_MAX} are allowed",
                        list.0.len()
                    ));
                }
                let roots = self.roots.get(domain).map_or(&[][..], Vec::as_slice);
                keys.list(roots, &list.0)?;
                if !self.lists.insert(Hash::of_bytes(&list.0)) {
                    return Err(format!("that list of {domain} was told before"));
                }
            }
            Leaf::Certificate { node, certificate } => {
                bounded(&certificate.0)?;
                let mut roots = self.roots.clone();
                for roots in roots.values_mut() {
                    roots.retain(|root| !self.retired.contains(root));
                }
                let (holder, key) = keys.holder(&self.federation, &roots, &certificate.0)?;
                if holder != *node {
                    return Err(format!("the certificate is {holder}'s, not {node}'s"));
                }
                let papers = self.papers.entry(node.clone()).or_default();
                if papers.last().is_some_and(|last| last.0 == certificate.0) {
                    return Err(format!("that certificate of {node} was told before"));
                }
                papers.push((certificate.0.clone(), key));
            }
            Leaf::Promoted { node, epoch } => {
                if !self.coordinators.contains(node) || *epoch <= self.epoch() {
                    return Err(format!("{node} cannot have been promoted by view {epoch}"));
                }
                self.promoted = Some((node.clone(), *epoch));
            }
            Leaf::Membership { view } => self.see(view)?,
            Leaf::Update {
                node, weight, clip, ..
            } => {
                let sound = weight.is_finite() && *weight >= 0.0 && (0.0..=1.0).contains(clip);
                if !sound || self.open.updates.insert(node.clone(), *weight).is_some() {
                    return Err(format!(
                        "the update of {node} was weighed before, or weighs what none can"
                    ));
                }
            }
            Leaf::Contribution {
                domain,
                weight,
                members,
                ..
            } => self.count(domain, *weight, members)?,
            Leaf::Checkpoint { model, .. } => {
                if self.open.checkpoint.replace(*model).is_some() {
                    return Err("the round's state was written before".into());
                }
            }
            Leaf::Unrecorded { round, model, .. } => {
                if self.open.is_begun() {
                    return Err("what the round counted is told, so it was recorded".into());
                }
                (self.round, self.model) = (*round, Some(*model));
            }
            Leaf::Round {
                round,
                epoch,
                state,
                model,
                ..
            } => {
                self.end(*epoch, *state, model)?;
                (self.round, self.model) = (*round, Some(*model));
                self.open = Open::default();
            }
        }
        Ok(())
    }

    fn see(&mut self, view: &View) -> Result<(), String> {
        let known = self.epoch();
        if view.epoch <= known {
            return Err(format!("view {} follows view {known}", view.epoch));
        }
        if self.open.is_begun() {
            return Err("a view is told between rounds, not within one".into());
        }
        let before = self.view.as_ref().map(|view| &view.coordinator);
        let moved = before.is_some_and(|before| *before != view.coordinator);
        let told = self.promoted.take();
        let told =
            told.is_some_and(|(node, epoch)| node == view.coordinator && epoch <= view.epoch);
        if !self.coordinators.contains(&view.coordinator) || moved && !told {
            return Err(format!(
                "{} coordinates by view {}, and nobody has promoted it",
                view.coordinator, view.epoch
            ));
        }
        self.view = Some(view.clone());
        Ok(())
    }

    fn count(&mut self, domain: &DomainId, weight: f64, members: &[NodeId]) -> Result<(), String> {
        let mut total = 0.0;
        let mut counted = BTreeSet::new();
        for member in members {
            let update = self
                .open
                .updates
                .get(member)
                .filter(|_| member.domain() == *domain);
            let update = update.ok_or_else(|| format!("{member} is in it and was not weighed"))?;
            total += update;
            if !counted.insert(member.clone()) {
                return Err(format!("{member} is in it twice"));
            }
        }
        if members.is_empty() || f64::to_bits(total) != weight.to_bits() {
            return Err(format!("it weighs {weight}, its members weigh {total}"));
        }
        if !self.open.domains.insert(domain.clone()) {
            return Err(format!("{domain} has contributed to the round before"));
        }
        self.open.counted.append(&mut counted);
        Ok(())
    }

    fn end(&self, epoch: Epoch, state: RoundState, model: &Hash) -> Result<(), String> {
        if epoch > self.epoch() {
            return Err(format!("the round is of view {epoch}, which was not told"));
        }
        let kept = self.model.is_none_or(|before| before == *model);
        match state {
            RoundState::Aborted if self.open.is_begun() || !kept => {
                Err("an aborted round counts nothing and leaves the model as it was".into())
            }
            RoundState::Aborted => Ok(()),
            _ if self
                .open
                .checkpoint
                .is_some_and(|written| written != *model) =>
            {
                Err("the state that was written is not the round's model".into())
            }
            _ if self.open.domains.is_empty() => {
                Err("the round has a new model of nobody's contribution".into())
            }
            _ => Ok(()),
        }
    }

    /// Which of those who may coordinate has signed a note.
    ///
    /// # Errors
    /// None of them has.
    pub fn signer(&self, note: &Note, keys: &dyn Verifier) -> Result<NodeId, String> {
        let known = self.coordinators.iter();
        let known = known.filter_map(|node| Some((node, self.papers.get(node)?)));
        let mut signed = known.filter(|(_, papers)| {
            let mut newest = papers.iter().rev();
            newest.any(|(_, key)| note.is_signed(keys, key))
        });
        let found = signed.next().map(|(node, _)| node.clone());
        found.ok_or_else(|| {
            format!(
                "nobody who may coordinate has signed the root over {} leaves",
                note.head.size
            )
        })
    }

    /// When a node has cosigned a note; none if it has not.
    pub fn cosigned_at(&self, note: &Note, node: &NodeId, keys: &dyn Verifier) -> Option<u64> {
        let name = signer_name(&self.federation, node);
        let mut newest = self.papers.get(node)?.iter().rev();
        newest.find_map(|(_, key)| note.cosigned_at(keys, &name, key))
    }

    /// Who has cosigned a note, each with the time; and the names under which somebody tried in vain.
    pub fn cosigners(
        &self,
        note: &Note,
        keys: &dyn Verifier,
    ) -> (BTreeMap<NodeId, u64>, Vec<String>) {
        let names: BTreeMap<String, &NodeId> = self
            .papers
            .keys()
            .map(|node| (signer_name(&self.federation, node), node))
            .collect();
        let (mut by, mut vain) = (BTreeMap::new(), Vec::new());
        for name in note.cosigners() {
            let node = names.get(name).copied();
            let time = node.and_then(|node| self.cosigned_at(note, node, keys));
            match (node, time) {
                (Some(node), Some(time)) => _ = by.insert(node.clone(), time),
                _ => vain.push(name.to_owned()),
            }
        }
        (by, vain)
    }
}

fn bounded(certificate: &[u8]) -> Result<(), String> {
    match certificate.len() <= CERTIFICATE_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "a certificate of {} bytes, at most {CERTIFICATE_BYTES_MAX} are allowed",
            certificate.len()
        )),
    }
}
