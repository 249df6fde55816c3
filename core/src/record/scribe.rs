//! The coordinator's side: it offers new leaves to every gateway, and passes on who has cosigned the ones before.

use std::collections::BTreeMap;

use super::keeper::{Keeper, Trespass};
use super::note::{Head, Note, Signer, Verifier};
use super::tree::Tree;
use crate::ids::NodeId;
use crate::wire::{Append, Recorded};

/// What is known of the gateways' copies.
#[derive(Debug, Clone, Default)]
pub struct Scribe {
    copies: BTreeMap<NodeId, Copy>,
}

#[derive(Debug, Clone, Default)]
struct Copy {
    size: u64,
    note: Option<Note>,
}

/// What a gateway's answer leads to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// It lacks the leaves from here on.
    pub lacks: Option<u64>,
    /// What it told cannot be.
    pub found: Option<Trespass>,
}

impl Scribe {
    /// Leaves that follow `tree`, under a signed head.
    ///
    /// # Errors
    /// The node's key does not sign.
    pub fn offer(
        &self,
        origin: &str,
        tree: &Tree,
        leaves: Vec<String>,
        cosigned: Vec<String>,
        keys: &dyn Signer,
    ) -> Result<Append, String> {
        let mut after = tree.clone();
        leaves.iter().for_each(|line| after.push(line));
        let mut note = Note::new(Head {
            origin: origin.to_owned(),
            size: after.size(),
            root: after.root(),
        });
        note.sign(keys)?;
        Ok(Append {
            from: tree.size(),
            leaves,
            head: note.text(),
            cosigned,
        })
    }

    /// Takes a gateway's answer.
    pub fn on_recorded(
        &mut self,
        keeper: &Keeper,
        from: &NodeId,
        recorded: &Recorded,
        keys: &dyn Verifier,
    ) -> Heard {
        let copy = self.copies.entry(from.clone()).or_default();
        copy.size = recorded.size;
        let trespass = |forks, reason| {
            let by = from.clone();
            Some(Trespass { by, forks, reason })
        };
        if !recorded.refused.is_empty() {
            let reason = format!("it does not take the leaves: {}", &*recorded.refused);
            return Heard {
                lacks: None,
                found: trespass(false, reason),
            };
        }
        let mut heard = Heard::default();
        if recorded.size < keeper.size() {
            heard.lacks = Some(recorded.size);
        } else if recorded.size > keeper.size() {
            let reason = format!(
                "it holds {} leaves, the coordinator {}: rounds were taken back, or are another run's",
                recorded.size,
                keeper.size()
            );
            heard.found = trespass(false, reason);
        }
        if recorded.note.is_empty() {
            return heard;
        }
        let note = match Note::parse(&recorded.note) {
            Ok(note) => note,
            Err(reason) => {
                heard.found = trespass(false, reason);
                return heard;
            }
        };
        if keeper.account().cosigned_at(&note, from, keys).is_none() {
            let known = keeper.account().certificate(from).is_some();
            // The first leaf with its certificate is yet to come.
            heard.found = known
                .then(|| trespass(false, "its cosignature is not its key's".to_owned()))
                .flatten();
            return heard;
        }
        if let Some(mine) = keeper.head(note.head.size)
            && mine.head != note.head
        {
            let reason = format!(
                "two histories: {} leaves have the root {} here and {} at {from}",
                note.head.size, mine.head.root, note.head.root
            );
            heard.found = trespass(true, reason);
        }
        copy.note = Some(note);
        heard
    }

    /// What to pass on of the head over `size` leaves: one note with all who have cosigned it, and one for each other history.
    pub fn cosigned(&self, own: Option<&Note>, size: u64) -> Vec<String> {
        let mut notes: Vec<Note> = own
            .filter(|own| own.head.size == size)
            .cloned()
            .into_iter()
            .collect();
        let theirs = self.copies.values().filter_map(|copy| copy.note.as_ref());
        for note in theirs.filter(|note| note.head.size == size) {
            match notes.iter_mut().find(|known| known.head == note.head) {
                Some(known) => known.merge(note),
                None => notes.push(note.clone()),
            }
        }
        notes.iter().map(Note::text).collect()
    }

    /// Of those gateways, who has cosigned the head over `size` leaves, and who has not.
    pub fn standing<'a>(
        &self,
        gateways: impl Iterator<Item = &'a NodeId>,
        size: u64,
    ) -> (Vec<NodeId>, Vec<NodeId>) {
        let has = |node: &NodeId| {
            let note = self.copies.get(node).and_then(|copy| copy.note.as_ref());
            note.is_some_and(|note| note.head.size >= size)
        };
        gateways.cloned().partition(has)
    }

    /// Which of those gateways hold so many leaves: what a copy holds its gateway has signed.
    pub fn holding<'a>(
        &self,
        gateways: impl Iterator<Item = &'a NodeId>,
        size: u64,
    ) -> Vec<NodeId> {
        let holds = |node: &&NodeId| self.size(node).is_some_and(|held| held >= size);
        gateways.filter(holds).cloned().collect()
    }

    /// How many leaves a gateway holds, as far as it has said.
    pub fn size(&self, node: &NodeId) -> Option<u64> {
        self.copies.get(node).map(|copy| copy.size)
    }
}
