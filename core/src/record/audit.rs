//! Are these copies one record, and is each what its node has signed? Asked of files, long after, by whoever has them.
//!
//! One copy alone shows that a leaf was changed, taken out, put in or moved: the root is not the signed one any more, and mostly the leaves
//! contradict each other, too. That a copy was cut back to an older head that its node once signed, or that two domains hold two histories,
//! takes a second copy: it holds the signatures.

use std::collections::{BTreeMap, BTreeSet};

use super::account::Account;
use super::leaf::Leaf;
use super::note::{Note, Verifier};
use super::tree::{Root, Tree, leaf_hash};
use crate::event::RoundState;
use crate::ids::{NodeId, Round};
use crate::tensor::Hash;

/// One site's copy, as it was found.
pub struct Copy<'a> {
    /// What people know it by.
    pub name: String,
    /// Its lines, in order; an error where they cannot be read.
    pub lines: Box<dyn Iterator<Item = Result<String, String>> + 'a>,
    /// The text of its head.
    pub checkpoint: Option<String>,
    /// The text of an older head with everybody's cosignatures.
    pub cosigned: Option<String>,
}

/// Something that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// In which copy.
    pub copy: String,
    /// Where in it.
    pub place: String,
    /// What.
    pub reason: String,
}

/// What one copy says.
#[derive(Debug)]
pub struct Audited {
    /// As given.
    pub name: String,
    /// Leaves that were read.
    pub size: u64,
    /// Whose copy it is, by the cosignature under its head.
    pub node: Option<NodeId>,
    /// The head that it has signed.
    pub head: Option<Note>,
    /// Leaves behind that head. A node that ended between two writes leaves them, and drops them when it starts again.
    pub unsigned: u64,
    /// What the leaves say.
    pub account: Account,
    /// Rounds that ended: with everyone, with some, without a commit.
    pub tally: (u64, u64, u64),
    /// The model of each round that made one.
    pub models: BTreeMap<Round, Hash>,
    /// Who has cosigned the newest head that came with others' cosignatures.
    pub cosigners: BTreeSet<NodeId>,
    hashes: Vec<Root>,
    roots: BTreeMap<u64, Root>,
    broken: bool,
    /// Its leaves give the root that its node has signed.
    sound: bool,
}

/// What was found.
#[derive(Debug)]
pub struct Report {
    /// In the order given.
    pub copies: Vec<Audited>,
    /// Empty if all is as it should be.
    pub findings: Vec<Finding>,
}

struct Notes {
    head: Option<Note>,
    cosigned: Option<Note>,
}

/// Looks at all copies.
pub fn audit(copies: Vec<Copy<'_>>, keys: &dyn Verifier) -> Report {
    let mut findings = Vec::new();
    let mut find = |copy: &str, place: &str, reason: String| {
        let found = Finding {
            copy: copy.to_owned(),
            place: place.to_owned(),
            reason,
        };
        // The same head may lie beside several copies.
        let is_known = |known: &Finding| (&known.copy, &known.place) == (&found.copy, &found.place);
        if !findings.iter().any(is_known) {
            findings.push(found);
        }
    };
    let mut notes = Vec::new();
    for copy in &copies {
        let mut read = |text: &Option<String>, place: &str| {
            let parsed = Note::parse(text.as_ref()?);
            parsed
                .inspect_err(|reason| find(&copy.name, place, reason.clone()))
                .ok()
        };
        let (head, cosigned) = (
            read(&copy.checkpoint, "checkpoint"),
            read(&copy.cosigned, "cosigned"),
        );
        if copy.checkpoint.is_none() {
            find(
                &copy.name,
                "checkpoint",
                "it is missing: nothing says how many leaves there were".into(),
            );
        }
        notes.push(Notes { head, cosigned });
    }
    let told = notes
        .iter()
        .flat_map(|notes| [&notes.head, &notes.cosigned]);
    let sizes: BTreeSet<u64> = told.flatten().map(|note| note.head.size).collect();
    let mut audited = Vec::new();
    for (copy, notes) in copies.into_iter().zip(&notes) {
        audited.push(read(copy, notes, &sizes, keys, &mut find));
    }
    for (copy, notes) in audited.iter_mut().zip(&notes) {
        judge(copy, notes, keys, &mut find);
    }
    for (at, copy) in audited.iter().enumerate() {
        for (of, notes) in notes.iter().enumerate() {
            let known = [&notes.head, &notes.cosigned].into_iter().flatten();
            known.for_each(|note| compare(copy, &audited[of], at == of, note, keys, &mut find));
        }
    }
    for (at, copy) in audited.iter().enumerate() {
        for other in &audited[at + 1..] {
            part(copy, other, &mut find);
        }
    }
    Report {
        copies: audited,
        findings,
    }
}

/// Reads a copy leaf by leaf.
fn read(
    copy: Copy<'_>,
    notes: &Notes,
    sizes: &BTreeSet<u64>,
    keys: &dyn Verifier,
    find: &mut impl FnMut(&str, &str, String),
) -> Audited {
    let signed = notes.head.as_ref().map(|note| note.head.size);
    let mut found = Audited {
        name: copy.name,
        size: 0,
        node: None,
        head: notes.head.clone(),
        unsigned: 0,
        account: Account::default(),
        tally: (0, 0, 0),
        models: BTreeMap::new(),
        cosigners: BTreeSet::new(),
        hashes: Vec::new(),
        roots: BTreeMap::new(),
        broken: false,
        sound: false,
    };
    let mut tree = Tree::default();
    for line in copy.lines {
        if signed.is_some_and(|signed| tree.size() >= signed) {
            found.unsigned += 1;
            continue;
        }
        let line = match line {
            Ok(line) => line,
            Err(reason) => {
                found.broken = true;
                find(&found.name, &format!("leaf {}", tree.size()), reason);
                break;
            }
        };
        if !found.broken {
            match found.account.take(&line, keys) {
                Ok(leaf) => found.note(&leaf),
                Err(flaw) => {
                    found.broken = true;
                    find(&found.name, &format!("leaf {}", flaw.index), flaw.reason);
                }
            }
        }
        let hash = leaf_hash(&line);
        found.hashes.push(hash);
        tree.push_hash(hash);
        if sizes.contains(&tree.size()) {
            found.roots.insert(tree.size(), tree.root());
        }
    }
    found.size = tree.size();
    found
}

impl Audited {
    fn note(&mut self, leaf: &Leaf) {
        if let Leaf::Round {
            round,
            state,
            model,
            ..
        }
        | Leaf::Unrecorded {
            round,
            state,
            model,
        } = leaf
        {
            match state {
                RoundState::Committed => self.tally.0 += 1,
                RoundState::Degraded => self.tally.1 += 1,
                RoundState::Aborted => self.tally.2 += 1,
            }
            if *state != RoundState::Aborted {
                self.models.insert(*round, *model);
            }
        }
    }
}

/// Holds a copy against the head that its own node has signed.
fn judge(
    copy: &mut Audited,
    notes: &Notes,
    keys: &dyn Verifier,
    find: &mut impl FnMut(&str, &str, String),
) {
    let Some(note) = &notes.head else { return };
    let (name, signed) = (copy.name.clone(), note.head.size);
    if copy.size < signed {
        let place = format!("leaf {}", copy.size);
        let reason = format!(
            "the copy ends here, its signed head is over {signed} leaves: they were cut off"
        );
        find(&name, &place, reason);
    } else if copy.roots.get(&signed) != Some(&note.head.root) {
        let reason = format!(
            "its {signed} leaves do not give the root that was signed: a leaf was changed, moved, put in or taken out"
        );
        find(&name, "leaves", reason);
    } else {
        copy.sound = true;
    }
    if copy.broken {
        // Whose keys count is among what cannot be believed.
        return;
    }
    if note.head.origin != copy.account.origin() {
        find(
            &name,
            "checkpoint",
            format!(
                "it is of record {}, the leaves are of {}",
                note.head.origin,
                copy.account.origin()
            ),
        );
    }
    if let Err(reason) = copy.account.signer(note, keys) {
        find(&name, "checkpoint", reason);
    }
    let (by, vain) = copy.account.cosigners(note, keys);
    copy.node = by.keys().next().cloned();
    if by.is_empty() && vain.is_empty() {
        find(
            &name,
            "checkpoint",
            "no domain's gateway has signed it".into(),
        );
    }
    // A node that signs before its certificate is told cannot be proven yet.
    let certified = |name: &&String| {
        let mut papers = copy.account.papers();
        papers.any(|node| super::note::signer_name(copy.account.federation(), node) == **name)
    };
    for who in vain.iter().filter(certified) {
        find(
            &name,
            "checkpoint",
            format!("the signature of {who} is not under this head"),
        );
    }
    if let Some(cosigned) = &notes.cosigned {
        let (by, vain) = copy.account.cosigners(cosigned, keys);
        copy.cosigners = by.into_keys().collect();
        for who in vain {
            find(
                &name,
                "cosigned",
                format!("the signature of {who} is not under this head"),
            );
        }
    }
}

/// Holds a copy against a head that was found with another, or with itself.
fn compare(
    copy: &Audited,
    source: &Audited,
    own: bool,
    note: &Note,
    keys: &dyn Verifier,
    find: &mut impl FnMut(&str, &str, String),
) {
    let account = match copy.broken {
        true => &source.account,
        false => &copy.account,
    };
    let (by, _) = account.cosigners(note, keys);
    let size = note.head.size;
    match copy.roots.get(&size) {
        Some(root) if *root == note.head.root => {}
        // Its own head is judged already, and what another copy's leaves are is its own matter unless somebody has signed it.
        // Of a copy that is not even its own node's, no more can be said.
        Some(_) if !copy.sound => {}
        Some(root) if !own && !by.is_empty() => {
            let whose: Vec<&str> = by.keys().map(NodeId::as_str).collect();
            let twice = copy
                .head
                .as_ref()
                .and_then(|mine| account.signer(mine, keys).ok());
            let twice = twice.filter(|node| account.signer(note, keys).as_ref() == Ok(node));
            let twice = twice.map_or(String::new(), |node| format!("; {node} has signed both"));
            let reason = format!(
                "two histories: {size} leaves have the root {root} here and {} as {} signed it ({}){twice}",
                note.head.root,
                whose.join(", "),
                source.name
            );
            find(&copy.name, &format!("head over {size} leaves"), reason);
        }
        Some(root)
            if own
                && copy
                    .head
                    .as_ref()
                    .is_some_and(|head| head.head.size != size) =>
        {
            let reason = format!(
                "its {size} leaves have the root {root}, cosigned is {}",
                note.head.root
            );
            find(&copy.name, "cosigned", reason);
        }
        Some(_) => {}
        None => {
            let cut = copy
                .node
                .as_ref()
                .filter(|node| by.contains_key(*node) && copy.size < size);
            if let Some(node) = cut {
                let reason = format!(
                    "the copy ends here, {node} has signed a head over {size} leaves (its signature is in {}): they were cut off",
                    source.name
                );
                find(&copy.name, &format!("leaf {}", copy.size), reason);
            }
        }
    }
}

/// Says where two copies part.
fn part(one: &Audited, other: &Audited, find: &mut impl FnMut(&str, &str, String)) {
    let both = one.hashes.iter().zip(&other.hashes);
    if let Some(at) = both.clone().position(|(one, other)| one != other) {
        let reason = format!("this leaf is another one than in {}", other.name);
        find(&one.name, &format!("leaf {at}"), reason);
    }
}
