//! A domain's copy of the record: what it takes, what it refuses, and whom it names.
//!
//! A keeper decides; whoever runs it reads and writes. Give it what it knows of its own ([`Keeper::sent`], [`Keeper::committed`]) and what the
//! coordinator offers ([`Keeper::offer`]). What it would take it hands out as [`Next`]; once that is on stable storage it is told so
//! ([`Keeper::adopt`]), and only then its cosignature may leave the node.

use std::collections::{BTreeMap, BTreeSet};

use super::account::Account;
use super::leaf::Leaf;
use super::note::{Note, Signer, Verifier, signer_name};
use super::tree::{Root, Tree};
use super::{APPEND_BYTES_MAX, LEAF_BYTES_MAX};
use crate::event::RoundState;
use crate::ids::{Attempt, DomainId, NodeId, Round};
use crate::tensor::Hash;
use crate::wire::{Append, Contribution};

/// How many of its last heads a keeper remembers, to hold late cosignatures against them. Those that come are one round old.
const HEADS_KEPT: usize = 32;

/// How many contributions of its own, and how many committed models, a keeper remembers.
const OWN_KEPT: usize = 128;

/// Heads in a row that a domain may leave without its cosignature before it is named.
const SILENT_MAX: u32 = 3;

/// See the module.
#[derive(Debug, Clone)]
pub struct Keeper {
    me: NodeId,
    account: Account,
    tree: Tree,
    heads: BTreeMap<u64, Note>,
    /// The newest head with the cosignatures that came for it.
    cosigned: Option<Note>,
    sent: BTreeMap<(Round, Attempt), Contribution>,
    committed: BTreeMap<Round, Hash>,
    silent: BTreeMap<DomainId, u32>,
}

/// What is to be written down.
#[derive(Debug, Clone)]
pub struct Next {
    /// The place of the first new line.
    pub from: u64,
    /// The new lines.
    pub lines: Vec<String>,
    /// The new head, with the coordinator's signature and this node's.
    pub note: Note,
    /// An older head with all cosignatures that came for it.
    pub cosigned: Option<Note>,
    /// What was found on the way; nobody is refused for it.
    pub found: Vec<Trespass>,
    /// Whose cosignatures did not come with some heads in a row; told once.
    pub silent: Vec<NodeId>,
    keeper: Box<Keeper>,
}

/// Somebody told something that cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trespass {
    /// Who.
    pub by: NodeId,
    /// Two histories were signed: there is proof.
    pub forks: bool,
    /// What.
    pub reason: String,
}

/// What becomes of leaves that were offered.
#[derive(Debug)]
pub enum Offered {
    /// They follow.
    Taken(Box<Next>),
    /// They are known; the head is signed once more.
    Known(Note),
    /// Those before them are missing, or they are an echo of what is older.
    Elsewhere,
    /// They are not taken.
    Refused(Trespass),
}

impl Keeper {
    /// A keeper of nothing yet.
    pub fn new(me: NodeId) -> Keeper {
        Keeper {
            me,
            account: Account::default(),
            tree: Tree::default(),
            heads: BTreeMap::new(),
            cosigned: None,
            sent: BTreeMap::new(),
            committed: BTreeMap::new(),
            silent: BTreeMap::new(),
        }
    }

    /// A keeper of what its node has on disk.
    ///
    /// # Errors
    /// It is not what the node has signed; names the place.
    pub fn restore(
        me: NodeId,
        account: Account,
        tree: Tree,
        note: Note,
        keys: &dyn Verifier,
    ) -> Result<Keeper, String> {
        let found = (tree.size(), tree.root());
        let signed = (note.head.size, note.head.root);
        if found != signed {
            return Err(format!(
                "its {} leaves have the root {}, signed are {} with the root {}: a leaf was changed, moved or taken out since",
                found.0, found.1, signed.0, signed.1
            ));
        }
        if account.certificate(&me).is_some() && account.cosigned_at(&note, &me, keys).is_none() {
            return Err(format!(
                "the root over its {} leaves is not signed by {me}",
                found.0
            ));
        }
        let heads = BTreeMap::from([(found.0, note)]);
        Ok(Keeper {
            account,
            tree,
            heads,
            ..Keeper::new(me)
        })
    }

    /// What the leaves say.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// The tree over them.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// How many leaves it has.
    pub fn size(&self) -> u64 {
        self.tree.size()
    }

    /// A head that it has signed not long ago.
    pub fn head(&self, size: u64) -> Option<&Note> {
        self.heads.get(&size)
    }

    /// The newest head.
    pub fn newest(&self) -> Option<&Note> {
        self.heads.last_key_value().map(|(_, note)| note)
    }

    /// What this node has sent for its domain.
    pub fn sent(&mut self, contribution: Contribution) {
        self.sent
            .insert((contribution.round, contribution.attempt), contribution);
        while self.sent.len() > OWN_KEPT {
            self.sent.pop_first();
        }
    }

    /// The model of a round, as this node was told when it was to adopt it.
    pub fn committed(&mut self, round: Round, hash: Hash) {
        self.committed.insert(round, hash);
        while self.committed.len() > OWN_KEPT {
            self.committed.pop_first();
        }
    }

    /// What to do with leaves that the coordinator offers.
    pub fn offer(&self, from: &NodeId, append: &Append, keys: &dyn Signer, time: u64) -> Offered {
        let mut next = self.clone();
        let (found, silent) = next.hear(&append.cosigned, keys);
        let fork = found.iter().find(|found| found.forks).cloned();
        let offered = next.examine(from, append, (found, silent), keys, time);
        offered.unwrap_or_else(|(forks, reason)| {
            let by = from.clone();
            // What does not follow because two histories were signed is told with that proof.
            Offered::Refused(fork.unwrap_or(Trespass { by, forks, reason }))
        })
    }

    fn examine(
        self,
        from: &NodeId,
        append: &Append,
        (found, silent): (Vec<Trespass>, Vec<NodeId>),
        keys: &dyn Signer,
        time: u64,
    ) -> Result<Offered, (bool, String)> {
        let refused = |reason: String| (false, reason);
        let note = Note::parse(&append.head).map_err(refused)?;
        if self.size() > 0 && note.head.origin != self.account.origin() {
            return Err(refused(format!(
                "it offers leaves of record {}, this domain keeps that of {}; if the run was begun anew, move the folder `record` away",
                note.head.origin,
                self.account.origin()
            )));
        }
        if let Some(mine) = self.heads.get(&note.head.size)
            && mine.head.root != note.head.root
        {
            let signed = self.account.signer(&note, keys).is_ok();
            return Err((
                signed,
                fork(
                    &mine.head.root,
                    "this domain",
                    &note.head.root,
                    &self.me,
                    note.head.size,
                ),
            ));
        }
        if note.head.size == self.size() && self.size() > 0 {
            let mine = self.newest().filter(|mine| mine.head.size == self.size());
            return Ok(mine.map_or(Offered::Elsewhere, |mine| Offered::Known(mine.clone())));
        }
        if append.from > self.size() || note.head.size <= self.size() {
            return Ok(Offered::Elsewhere);
        }
        let bytes: usize = append.leaves.iter().map(String::len).sum();
        if bytes > APPEND_BYTES_MAX + LEAF_BYTES_MAX {
            return Err(refused(format!(
                "{bytes} bytes of leaves at once, at most {APPEND_BYTES_MAX} are allowed"
            )));
        }
        let known = usize::try_from(self.size() - append.from).unwrap_or(usize::MAX);
        let lines = append.leaves.get(known..).unwrap_or_default().to_vec();
        let from_place = self.size();
        let me = self.me.clone();
        let mut next = self;
        for line in &lines {
            next.take(line, keys).map_err(refused)?;
        }
        let (size, root) = (next.tree.size(), next.tree.root());
        if (size, root) != (note.head.size, note.head.root)
            || note.head.origin != next.account.origin()
        {
            return Err(refused(format!(
                "the leaves give the root {root} over {size}, it signed {} over {}",
                note.head.root, note.head.size
            )));
        }
        let signer = next.account.signer(&note, keys).map_err(refused)?;
        if signer != *from {
            return Err(refused(format!(
                "the root over {size} leaves is signed by {signer}, who does not coordinate"
            )));
        }
        let mut note = note.only("");
        let name = signer_name(next.account.federation(), &me);
        note.cosign(keys, name, time)
            .map_err(|reason| (false, format!("this node cannot sign: {reason}")))?;
        next.heads.insert(size, note.clone());
        while next.heads.len() > HEADS_KEPT {
            next.heads.pop_first();
        }
        Ok(Offered::Taken(Box::new(Next {
            from: from_place,
            lines,
            note,
            cosigned: next.cosigned.clone(),
            found,
            silent,
            keeper: Box::new(next),
        })))
    }

    /// Takes one line, if it says nothing else than what this node knows itself.
    fn take(&mut self, line: &str, keys: &dyn Signer) -> Result<(), String> {
        let leaf = self
            .account
            .take(line, keys)
            .map_err(|flaw| flaw.to_string())?;
        let index = self.tree.size();
        match &leaf {
            Leaf::Root {
                domain,
                certificate,
            } if !keys.pins(domain, &certificate.0) => {
                return Err(format!(
                    "leaf {index}: it tells a root of {domain} that is not pinned here"
                ));
            }
            Leaf::Contribution {
                round,
                domain,
                attempt,
                weight,
                hash,
                members,
                ..
            } if *domain == self.me.domain() => {
                if let Some(sent) = self.sent.get(&(*round, *attempt))
                    && (sent.hash(), sent.weight.to_bits(), &sent.members)
                        != (*hash, weight.to_bits(), members)
                {
                    return Err(format!(
                        "leaf {index}: it tells a contribution of {domain} to round {round} with hash {hash} and weight {weight}, {} was sent with hash {} and weight {}",
                        self.me,
                        sent.hash(),
                        sent.weight
                    ));
                }
            }
            Leaf::Round {
                round,
                model,
                state,
                ..
            }
            | Leaf::Unrecorded {
                round,
                model,
                state,
            } if *state != RoundState::Aborted => {
                if let Some(told) = self.committed.get(round)
                    && told != model
                {
                    return Err(format!(
                        "leaf {index}: it tells that round {round} made model {model}, this domain was given {told}"
                    ));
                }
            }
            _ => {}
        }
        self.tree.push(line);
        Ok(())
    }

    /// Holds what others have signed against its own heads. Who has not signed for a while is named once.
    fn hear(&mut self, notes: &[String], keys: &dyn Verifier) -> (Vec<Trespass>, Vec<NodeId>) {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let mut signed = BTreeSet::new();
        let mut judged = false;
        for text in notes {
            let Ok(note) = Note::parse(text) else {
                continue;
            };
            let Some(mine) = self.heads.get(&note.head.size) else {
                continue;
            };
            judged = true;
            let (by, _) = self.account.cosigners(&note, keys);
            if note.head == mine.head {
                signed.extend(by.keys().map(NodeId::domain));
                let mut all = mine.clone();
                all.merge(&note);
                self.cosigned = Some(all);
                continue;
            }
            // Each signature under another root is proof against whoever made that root: the coordinator, if it signed it.
            let Some(other) = by.keys().find(|node| **node != self.me) else {
                continue;
            };
            let reason = fork(
                &mine.head.root,
                "this domain",
                &note.head.root,
                other,
                note.head.size,
            );
            let by = self
                .account
                .signer(&note, keys)
                .unwrap_or_else(|_| other.clone());
            found.push(Trespass {
                by,
                forks: true,
                reason,
            });
        }
        if judged && let Some(view) = self.account.view() {
            for (domain, gateway) in view
                .gateways
                .iter()
                .filter(|(domain, _)| **domain != self.me.domain())
            {
                let silent = self.silent.entry(domain.clone()).or_default();
                *silent = match signed.contains(domain) {
                    true => 0,
                    false => silent.saturating_add(1),
                };
                if *silent == SILENT_MAX {
                    missing.push(gateway.clone());
                }
            }
        }
        (found, missing)
    }

    /// What was to be written is on stable storage.
    pub fn adopt(&mut self, next: Next) {
        let (sent, committed) = (
            std::mem::take(&mut self.sent),
            std::mem::take(&mut self.committed),
        );
        *self = *next.keeper;
        (self.sent, self.committed) = (sent, committed);
    }
}

fn fork(mine: &Root, whose: &str, other: &Root, theirs: &NodeId, size: u64) -> String {
    format!("two histories: {size} leaves have the root {mine} at {whose} and {other} at {theirs}")
}
