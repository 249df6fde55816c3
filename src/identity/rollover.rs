//! One root of a domain takes the place of another: old, both, new.
//!
//! `next` adds a root that signs nothing yet; the file with both goes to every site. `switch` lets the new one sign from then on; every node gets
//! a certificate of it. `retire` takes the old one away, and is refused while a node has a certificate of it that would then be worthless.

use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use serde::Serialize;
use tombolo_actors::identity::{IdentityError, MaterialFault};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;

use super::files::{self, DomainFiles, exists, hex, material, sha256};
use super::ledger;
use super::lifecycle::{counts_by, domain_files};
use super::mint::{self, Authority};
use super::pki::{self, Terms};
use super::validity::Validity;

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Add a root.
    Next,
    /// Sign with it.
    Switch,
    /// Take the old one away.
    Retire,
}

/// Where a domain stands after a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stand {
    /// Which.
    pub domain: DomainId,
    /// The file of roots, which every site needs.
    pub path: PathBuf,
    /// SHA-256 of each root in it, in hexadecimal.
    pub roots: Vec<String>,
    /// SHA-256 of the one that signs.
    pub signs: String,
    /// What is to be done before the next step.
    pub next: String,
}

/// Does a step.
///
/// # Errors
///
/// It is not the time for it, and what is missing; the disk refuses.
pub fn step(
    plan: &Plan,
    domain: &DomainId,
    step: Step,
    terms: &Terms,
) -> Result<Stand, IdentityError> {
    let files = domain_files(plan, domain)?;
    let _alone = files.lock()?;
    match step {
        Step::Next => add(plan, &files, terms)?,
        Step::Switch => switch(&files, terms.now)?,
        Step::Retire => retire(plan, &files, terms.now)?,
    }
    stand(&files, step)
}

fn wrong(message: String) -> IdentityError {
    IdentityError::Configuration(message)
}

fn add(plan: &Plan, files: &DomainFiles, terms: &Terms) -> Result<(), IdentityError> {
    let domain = files.domain();
    let mut roots = files.read_roots(&[])?;
    // Whoever cannot sign with the present one has no business to add another.
    pki::authority(files, &[], terms.now)?;
    if exists(&files.old_root_key())? {
        return Err(wrong(format!(
            "domain {domain} has switched to a new root already; retire the old one first"
        )));
    }
    let key = pki::take_up_key(&files.next_root_key(), false)?;
    if roots.iter().any(|root| files::is_key_of(&key, root)) {
        // The step was done before.
        return Ok(());
    }
    let validity = Validity::starting(terms.now, terms.lifetime, mint::ROOT_LIFETIME_MAX)?;
    let (_, root) = Authority::create(&plan.name, domain, key, validity)?;
    roots.push(root.der().clone());
    files.write_roots(&roots)
}

fn switch(files: &DomainFiles, now: u64) -> Result<(), IdentityError> {
    let domain = files.domain();
    let roots = files.read_roots(&[])?;
    let next = files.next_root_key();
    if !exists(&next)? {
        return match exists(&files.old_root_key())? {
            true => Ok(()),
            false => Err(wrong(format!(
                "domain {domain} has no next root; add one with `tombolo certs rollover FILE --domain {domain} --step next`"
            ))),
        };
    }
    let key = files::read_key(&next, || MaterialFault::Missing {
        what: "the next root's key".into(),
        next: "run this again".into(),
    })?;
    if !roots.iter().any(|root| files::is_key_of(&key, root)) {
        return Err(material(
            &next,
            MaterialFault::KeyMismatch {
                certificate: files.root().to_owned(),
            },
        ));
    }
    pki::authority(files, &[], now)?;
    // At every instant there is a key that signs: the old one has two names before its first is taken.
    files::link(&files.root_key(), &files.old_root_key())?;
    files::rename(&next, &files.root_key())
}

fn retire(plan: &Plan, files: &DomainFiles, now: u64) -> Result<(), IdentityError> {
    let domain = files.domain();
    let roots = files.read_roots(&[])?;
    let (_, signs) = files.read_root_key(&roots)?;
    if exists(&files.next_root_key())? {
        return Err(wrong(format!(
            "domain {domain} still signs with its old root; do `--step switch` first"
        )));
    }
    let others: Vec<&CertificateDer<'_>> = roots.iter().filter(|root| **root != signs).collect();
    if others.is_empty() {
        return Err(wrong(format!("domain {domain} has one root only")));
    }
    let held = holders(plan, files, &signs, &others, now)?;
    if !held.is_empty() {
        let held: Vec<String> = held.iter().map(ToString::to_string).collect();
        return Err(wrong(format!(
            "{} still {} a certificate of the old root, and would be cut off; give {} a new one first: `tombolo certs rotate`, or `request` and `approve`",
            held.join(", "),
            if held.len() == 1 { "has" } else { "have" },
            if held.len() == 1 { "it" } else { "each" },
        )));
    }
    let lists = files.read_lists()?;
    files.write_roots(std::slice::from_ref(&signs))?;
    let kept = lists.iter().filter(|list| list.is_signed_by(&signs));
    let pem: String = kept.map(|list| files::list_pem(list.der())).collect();
    if !pem.is_empty() {
        files.write_lists(&pem)?;
    }
    files::remove(&files.old_root_key())
}

/// The nodes whose newest certificate is one of other roots than the one that signs.
fn holders(
    plan: &Plan,
    files: &DomainFiles,
    signs: &CertificateDer<'static>,
    others: &[&CertificateDer<'static>],
    now: u64,
) -> Result<Vec<NodeId>, IdentityError> {
    let domain = files.domain();
    let issued = ledger::read(files)?;
    let lists = files.read_lists()?;
    let is_revoked = |serial: &str| {
        let revoked = lists.iter().flat_map(|list| list.revoked());
        revoked
            .map(|revoked| hex(&revoked.serial))
            .any(|it| it == serial)
    };
    let others_sha256: Vec<String> = others.iter().map(|root| hex(&sha256(root))).collect();
    let mut held = Vec::new();
    let nodes = plan.domain(domain).into_iter().flat_map(|it| &it.nodes);
    for node in nodes.map(|node| &node.id) {
        let newest = issued.iter().rev().find(|issued| issued.node == *node);
        let by_ledger = newest.is_some_and(|issued| {
            issued.not_after > now
                && others_sha256.contains(&issued.root)
                && !is_revoked(&issued.serial)
        });
        let mut on_disk = false;
        if exists(&files.leaf(node.name()))? {
            let chain = files.read_leaf(node.name())?;
            let ends = Validity::of(&chain[0]).map_or(u64::MAX, |validity| validity.not_after);
            let by = |root: &CertificateDer<'static>| counts_by(plan, domain, &chain, root);
            on_disk = ends > now && !by(signs) && others.iter().any(|root| by(root));
        }
        if by_ledger || on_disk {
            held.push(node.clone());
        }
    }
    Ok(held)
}

fn stand(files: &DomainFiles, step: Step) -> Result<Stand, IdentityError> {
    let roots = files.read_roots(&[])?;
    let (_, signs) = files.read_root_key(&roots)?;
    let (path, domain) = (files.root().display(), files.domain());
    let next = match step {
        Step::Next => format!(
            "give {path} to every site, and where `root_sha256` pins it add the new fingerprint; running nodes take it by themselves. Then `--step switch`"
        ),
        Step::Switch => format!(
            "give every node of {domain} a new certificate: `tombolo certs rotate`, or `request` and `approve`. Then `--step retire`"
        ),
        Step::Retire => format!("give {path} to every site; the old root's key is gone"),
    };
    Ok(Stand {
        domain: domain.clone(),
        path: files.root().to_owned(),
        roots: roots.iter().map(|root| hex(&sha256(root))).collect(),
        signs: hex(&sha256(&signs)),
        next,
    })
}
