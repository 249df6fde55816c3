//! Makes and renews certificates on disk.
//!
//! The two halves of a first pair are written key first: a crash between them leaves a key without a certificate, which the next run takes up. A
//! renewal keeps the key, so that it is one atomic write and never a pair that does not match; what changes the key is in
//! [`lifecycle`](super::lifecycle).

use std::fmt;
use std::path::Path;
use std::time::Duration;

use rcgen::{Certificate, KeyPair, PublicKeyData};
use rustls::pki_types::{CertificateDer, UnixTime};
use serde::Serialize;
use tombolo_actors::identity::{IdentityError, MaterialFault};
use tombolo_core::ids::{NodeId, is_name};
use tombolo_core::plan::{DomainPlan, Plan};

use super::bundle::{Bundle, Role};
use super::files::{DomainFiles, exists, is_key_of, material, read_key, write_key};
use super::ledger::{self, Issued};
use super::lifecycle;
use super::mint::{self, Authority};
use super::show::Entry;
use super::validity::{Validity, rfc3339};
use super::{own_fault, provider, spiffe};
use x509_parser::prelude::{FromDer, X509Certificate};

/// On what terms something is issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The wall clock: seconds since 1970.
    pub now: u64,
    /// How long it lives. It is dated back by ten minutes, for verifiers whose clocks are behind.
    pub lifetime: Duration,
    /// Whether files that are there are replaced.
    pub replace: bool,
}

impl Terms {
    /// A root: a year, nothing replaced.
    pub fn root(now: u64) -> Terms {
        Terms {
            now,
            lifetime: mint::ROOT_LIFETIME,
            replace: false,
        }
    }

    /// A node: a week, nothing replaced.
    pub fn leaf(now: u64) -> Terms {
        Terms {
            now,
            lifetime: mint::LEAF_LIFETIME,
            replace: false,
        }
    }
}

/// Makes a domain's authority: the root and its key. A key without a root is taken up, not replaced.
///
/// # Errors
///
/// Something is there already and `terms.replace` is not set; lifetime or name out of bounds; the disk refuses.
pub fn init_domain(
    files: &DomainFiles,
    federation: &str,
    terms: &Terms,
) -> Result<Entry, IdentityError> {
    check_federation(federation)?;
    let validity = Validity::starting(terms.now, terms.lifetime, mint::ROOT_LIFETIME_MAX)?;
    if !terms.replace && exists(files.root())? {
        return Err(material(files.root(), MaterialFault::Exists));
    }
    let key = take_up_key(&files.root_key(), terms.replace)?;
    let (_, root) = Authority::create(federation, files.domain(), key, validity)?;
    files.write_root(&root, terms.replace)?;
    Ok(Entry::of_root(files, terms.now))
}

/// Issues a node's certificate and key from its domain's authority.
///
/// # Errors
///
/// The root or its key is missing, open to others, expired or mismatched; something is there already and `terms.replace` is not set; lifetime
/// or name out of bounds; the disk refuses.
pub fn issue(
    files: &DomainFiles,
    federation: &str,
    node: &NodeId,
    terms: &Terms,
) -> Result<Entry, IdentityError> {
    check_federation(federation)?;
    if node.domain() != *files.domain() {
        return Err(IdentityError::Configuration(format!(
            "domain {} cannot issue for {node}; ask the administration of domain {}",
            files.domain(),
            node.domain()
        )));
    }
    let validity = Validity::starting(terms.now, terms.lifetime, mint::LEAF_LIFETIME_MAX)?;
    if !terms.replace && exists(&files.leaf(node.name()))? {
        return Err(material(&files.leaf(node.name()), MaterialFault::Exists));
    }
    if terms.replace && exists(&files.leaf(node.name()))? && files.read_leaf(node.name()).is_ok() {
        return lifecycle::rotate(files, federation, node, terms);
    }
    let authority = authority(files, &[], terms.now)?;
    let key = take_up_key(&files.leaf_key(node.name()), terms.replace)?;
    let leaf = certify(files, &authority, federation, node, &key, validity)?;
    files.write_leaf(node.name(), &leaf.pem(), terms.replace)?;
    Ok(Entry::of_leaf(files, node.name(), terms.now))
}

/// What was done about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was not there.
    Made,
    /// It was there and good.
    Found,
    /// It was there with less than a third of its life left.
    Renewed,
}

/// One certificate after [`ensure_dev_pki`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ensured {
    /// What was done.
    pub outcome: Outcome,
    /// What is there now.
    #[serde(flatten)]
    pub entry: Entry,
}

impl fmt::Display for Ensured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Made => "made",
            Outcome::Found => "found",
            Outcome::Renewed => "renewed",
        };
        write!(f, "{outcome} {}", self.entry)
    }
}

/// Makes what a run on one machine lacks: roots and nodes' certificates of all domains, where the plan says they lie. Renews nodes'
/// certificates with less than a third of their life left. Roots come first, each followed by its nodes.
///
/// # Errors
///
/// What is there is not good (open to others, mismatched, expired, not the pinned root), or something must be issued and the root's key is not
/// here. Nothing that was there is replaced then.
pub fn ensure_dev_pki(plan: &Plan, now: u64) -> Result<Vec<Ensured>, IdentityError> {
    let mut report = Vec::new();
    for domain in &plan.domains {
        let files = DomainFiles::of_plan(domain);
        let outcome = ensure_root(plan, domain, &files, now)?;
        report.push(Ensured {
            outcome,
            entry: Entry::of_root(&files, now),
        });
        for node in &domain.nodes {
            let outcome = ensure_leaf(plan, domain, &files, &node.id, now)?;
            report.push(Ensured {
                outcome,
                entry: Entry::of_leaf(&files, node.id.name(), now),
            });
        }
    }
    Ok(report)
}

fn ensure_root(
    plan: &Plan,
    domain: &DomainPlan,
    files: &DomainFiles,
    now: u64,
) -> Result<Outcome, IdentityError> {
    if exists(files.root())? {
        files.read_roots(&domain.root_sha256)?;
        if exists(&files.root_key())? {
            authority(files, &domain.root_sha256, now)?;
        }
        return Ok(Outcome::Found);
    }
    if !domain.root_sha256.is_empty() {
        return Err(material(
            files.root(),
            MaterialFault::Missing {
                what: format!("the pinned root certificate of domain {}", domain.id),
                next: "a new one would not match the pin: copy it from the domain's administration, or remove `root_sha256`"
                    .into(),
            },
        ));
    }
    init_domain(files, &plan.name, &Terms::root(now))?;
    Ok(Outcome::Made)
}

fn ensure_leaf(
    plan: &Plan,
    domain: &DomainPlan,
    files: &DomainFiles,
    node: &NodeId,
    now: u64,
) -> Result<Outcome, IdentityError> {
    if !exists(&files.leaf(node.name()))? {
        issue(files, &plan.name, node, &Terms::leaf(now))?;
        return Ok(Outcome::Made);
    }
    let (chain, key) = files.read_pair(node.name())?;
    let validity = check_issued(plan, domain, files, node, &chain)?;
    if !validity.is_due(now) {
        return Ok(Outcome::Found);
    }
    if !exists(&files.root_key())? && validity.not_after > now {
        return Ok(Outcome::Found);
    }
    let authority = authority(files, &domain.root_sha256, now)?;
    let validity = Validity::starting(now, mint::LEAF_LIFETIME, mint::LEAF_LIFETIME_MAX)?;
    let leaf = certify(files, &authority, &plan.name, node, &key, validity)?;
    files.write_leaf(node.name(), &leaf.pem(), true)?;
    Ok(Outcome::Renewed)
}

/// Whether the certificate was once good for `node`, whatever the time is now.
fn check_issued(
    plan: &Plan,
    domain: &DomainPlan,
    files: &DomainFiles,
    node: &NodeId,
    chain: &[CertificateDer<'static>],
) -> Result<Validity, IdentityError> {
    let path = files.leaf(node.name());
    let roots = files.read_roots(&domain.root_sha256)?;
    let bundle = Bundle::new(
        &plan.name,
        provider(false),
        vec![(domain.id.clone(), roots)],
    )?;
    let validity = validity_of(&path, &chain[0])?;
    let then = UnixTime::since_unix_epoch(Duration::from_secs(validity.not_before));
    bundle
        .verify(&chain[0], &chain[1..], then, Role::Server)
        .and_then(|found| spiffe::expect(&plan.name, node, &found))
        .map_err(|fault| material(&path, own_fault(fault, files)))?;
    Ok(validity)
}

/// Issues a certificate, and notes that it was.
pub(super) fn certify(
    files: &DomainFiles,
    authority: &Authority,
    federation: &str,
    node: &NodeId,
    key: &impl PublicKeyData,
    validity: Validity,
) -> Result<Certificate, IdentityError> {
    let leaf = authority.issue(federation, node, key, validity)?;
    let issued = Issued::new(node, leaf.der(), authority.certificate());
    ledger::note(files, &issued)?;
    Ok(leaf)
}

/// A root of the domain with its key, whether it signs now or not, and when it ends.
pub(super) fn authority_of(
    files: &DomainFiles,
    root: &CertificateDer<'static>,
) -> Result<(Authority, u64), IdentityError> {
    let validity = validity_of(files.root(), root)?;
    for path in [
        files.root_key(),
        files.old_root_key(),
        files.next_root_key(),
    ] {
        if !exists(&path)? {
            continue;
        }
        let key = read_key(&path, || MaterialFault::Missing {
            what: "a root's key".into(),
            next: "run this again".into(),
        })?;
        if is_key_of(&key, root) {
            let authority = Authority::existing(root.clone(), validity.not_after, key)?;
            return Ok((authority, validity.not_after));
        }
    }
    Err(material(
        &files.root_key(),
        MaterialFault::Missing {
            what: format!(
                "the key of the root of domain {} that issued it",
                files.domain()
            ),
            next: "run this where that key is kept".into(),
        },
    ))
}

/// Whether that root alone has signed it.
pub(super) fn is_issued_by(certificate: &CertificateDer<'_>, root: &CertificateDer<'_>) -> bool {
    let (Ok((_, leaf)), Ok((_, root))) = (
        X509Certificate::from_der(certificate),
        X509Certificate::from_der(root),
    ) else {
        return false;
    };
    leaf.verify_signature(Some(root.public_key())).is_ok()
}

/// The domain's root with its key, fit to issue at `now`.
pub(super) fn authority(
    files: &DomainFiles,
    pins: &[[u8; 32]],
    now: u64,
) -> Result<Authority, IdentityError> {
    let roots = files.read_roots(pins)?;
    let (key, root) = files.read_root_key(&roots)?;
    let validity = validity_of(files.root(), &root)?;
    if now < validity.not_before {
        return Err(material(
            files.root(),
            MaterialFault::NotYetValid {
                not_before: rfc3339(validity.not_before),
                now: rfc3339(now),
            },
        ));
    }
    if now >= validity.not_after {
        return Err(material(
            files.root(),
            MaterialFault::Expired {
                not_after: rfc3339(validity.not_after),
                now: rfc3339(now),
                next:
                    "make the domain anew with `tombolo certs init` and give its root to the others"
                        .into(),
            },
        ));
    }
    Authority::existing(root, validity.not_after, key)
}

/// The key at `path`, or a new one put there.
pub(super) fn take_up_key(path: &Path, replace: bool) -> Result<KeyPair, IdentityError> {
    if !replace && exists(path)? {
        return read_key(path, || MaterialFault::Missing {
            what: "a private key".into(),
            next: "run this again".into(),
        });
    }
    let key = mint::generate_key()?;
    write_key(path, &key, replace)?;
    Ok(key)
}

fn validity_of(path: &Path, certificate: &CertificateDer<'_>) -> Result<Validity, IdentityError> {
    Validity::of(certificate).map_err(|found| {
        material(
            path,
            MaterialFault::Malformed {
                expected: "a certificate with dates after 1970".into(),
                found,
            },
        )
    })
}

fn check_federation(name: &str) -> Result<(), IdentityError> {
    if is_name(name) {
        return Ok(());
    }
    Err(IdentityError::Configuration(format!(
        "federation name {name:?} does not match [a-z0-9]([a-z0-9-]{{0,30}}[a-z0-9])?; rename it"
    )))
}
