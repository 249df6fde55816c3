//! Says which certificates are there and what is wrong with them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use serde::Serialize;
use tombolo_actors::identity::IdentityError;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::{DomainPlan, Plan};
use tombolo_core::text::span;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::bundle::{Bundle, Role};
use super::files::{DomainFiles, exists, hex, sha256};
use super::validity::{Validity, rfc3339};
use super::{provider, spiffe};

/// One certificate on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its file.
    pub path: PathBuf,
    /// `root` or `node`.
    pub kind: Kind,
    /// Its subject, empty if it cannot be read; so below.
    pub subject: String,
    /// The name that counts; empty for a root.
    pub spiffe_id: String,
    /// RFC 3339.
    pub not_before: String,
    /// RFC 3339.
    pub not_after: String,
    /// Of its DER, in hexadecimal: what `root_sha256` pins.
    pub sha256: String,
    /// Seconds of life left; zero if it has ended.
    pub remaining_s: u64,
    /// What is wrong, each with what to do about it.
    pub problems: Vec<String>,
}

/// What a certificate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It vouches for its domain's nodes.
    Root,
    /// It speaks for one node.
    Node,
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Root => "root",
            Kind::Node => "node",
        };
        write!(f, "{kind} {}", self.path.display())?;
        for (name, value) in [("subject", &self.subject), ("id", &self.spiffe_id)] {
            if !value.is_empty() {
                write!(f, "\n  {name} {value}")?;
            }
        }
        if !self.sha256.is_empty() {
            write!(
                f,
                "\n  valid {} to {} ({} left)\n  sha256 {}",
                self.not_before,
                self.not_after,
                span(self.remaining_s),
                self.sha256
            )?;
        }
        for problem in &self.problems {
            write!(f, "\n  problem: {problem}")?;
        }
        Ok(())
    }
}

/// The roots of a plan's domains, and those nodes' certificates that are here, each domain's root first.
///
/// # Errors
///
/// A folder cannot be read. Whatever is wrong with one file is among its problems.
pub fn show_plan(plan: &Plan, now: u64) -> Result<Vec<Entry>, IdentityError> {
    let mut entries = Vec::new();
    for domain in &plan.domains {
        let files = DomainFiles::of_plan(domain);
        entries.push(Entry::of_root(&files, now));
        for node in &domain.nodes {
            if exists(&files.leaf(node.id.name()))? {
                let entry = Entry::of_leaf(&files, node.id.name(), now);
                entries.push(entry.belonging_to(&plan.name));
            }
        }
    }
    Ok(entries)
}

/// A domain's root.
pub fn show_root(domain: &DomainPlan, now: u64) -> Entry {
    Entry::of_root(&DomainFiles::of_plan(domain), now)
}

/// One node's certificate.
pub fn show_node(plan: &Plan, node: &NodeId, now: u64) -> Option<Entry> {
    let files = DomainFiles::of_plan(plan.domain(&node.domain())?);
    Some(Entry::of_leaf(&files, node.name(), now).belonging_to(&plan.name))
}

impl Entry {
    /// What is known of a domain's root.
    pub(super) fn of_root(files: &DomainFiles, now: u64) -> Entry {
        let roots = files.read_roots(&[]);
        let first = roots.as_ref().ok().and_then(|roots| roots.first());
        let mut entry = Entry::new(files.root().to_owned(), Kind::Root, first, now);
        // The key may well be kept elsewhere. If it is here, it must be in order.
        let checked = roots.and_then(|roots| match exists(&files.root_key())? {
            true => files.read_root_key(&roots).map(drop),
            false => Ok(()),
        });
        entry
            .problems
            .extend(checked.err().map(|error| error.to_string()));
        entry
    }

    /// What is known of a node's certificate.
    pub(super) fn of_leaf(files: &DomainFiles, name: &str, now: u64) -> Entry {
        let chain = files.read_leaf(name);
        let found = chain.as_ref().ok().and_then(|chain| chain.first());
        let mut entry = Entry::new(files.leaf(name), Kind::Node, found, now);
        match chain {
            Err(error) => entry.problems.push(error.to_string()),
            Ok(chain) => {
                let key = files.read_pair(name);
                entry
                    .problems
                    .extend(key.err().map(|error| error.to_string()));
                entry.problems.extend(check_leaf(files, name, &chain).err());
            }
        }
        entry
    }

    /// A certificate in any file.
    pub(super) fn of_file(path: &Path, certificate: &CertificateDer<'static>, now: u64) -> Entry {
        Entry::new(path.to_owned(), Kind::Node, Some(certificate), now)
    }

    /// Adds it as a problem if the certificate is one of another federation than the topology's.
    fn belonging_to(mut self, federation: &str) -> Entry {
        if let Some((_, found, _)) = spiffe::split(&self.spiffe_id)
            && found != federation
        {
            self.problems.push(format!(
                "is of federation {found:?}, the topology is of {federation:?}; issue it anew, or use the topology that it belongs to"
            ));
        }
        self
    }

    /// What the certificate itself says.
    fn new(
        path: PathBuf,
        kind: Kind,
        certificate: Option<&CertificateDer<'static>>,
        now: u64,
    ) -> Entry {
        let mut entry = Entry {
            path,
            kind,
            subject: String::new(),
            spiffe_id: String::new(),
            not_before: String::new(),
            not_after: String::new(),
            sha256: String::new(),
            remaining_s: 0,
            problems: Vec::new(),
        };
        let Some(certificate) = certificate else {
            return entry;
        };
        let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
            entry.problems.push("is no X.509 certificate".into());
            return entry;
        };
        entry.subject = parsed.subject().to_string();
        entry.sha256 = hex(&sha256(certificate));
        if let Ok([uri]) = spiffe::uris(certificate).as_deref() {
            entry.spiffe_id = uri.clone();
        }
        match Validity::of(certificate) {
            Err(problem) => entry.problems.push(problem),
            Ok(validity) => {
                entry.not_before = rfc3339(validity.not_before);
                entry.not_after = rfc3339(validity.not_after);
                entry.remaining_s = validity.not_after.saturating_sub(now);
                if now < validity.not_before {
                    entry.problems.push(format!(
                        "not yet valid: now {}; check this machine's clock",
                        rfc3339(now)
                    ));
                } else if entry.remaining_s == 0 {
                    entry
                        .problems
                        .push(format!("has expired: now {}; renew it", rfc3339(now)));
                } else if validity.is_due(now) {
                    entry
                        .problems
                        .push("less than a third of its life is left; renew it".into());
                }
            }
        }
        entry
    }
}

/// Whether the certificate is the one that its path promises, signed by the root beside it.
fn check_leaf(
    files: &DomainFiles,
    name: &str,
    chain: &[CertificateDer<'static>],
) -> Result<(), String> {
    let certificate = &chain[0];
    let uris = spiffe::uris(certificate).map_err(|fault| fault.to_string())?;
    let [uri] = &uris[..] else {
        return Err(format!(
            "holds {} URI names, expected exactly one; issue it anew",
            uris.len()
        ));
    };
    let federation = match spiffe::split(uri) {
        Some((domain, federation, found)) if domain == files.domain().as_str() && found == name => {
            federation
        }
        _ => {
            return Err(format!(
                "holds {uri:?}, expected spiffe://{}.<federation>/node/{name}; issue it anew",
                files.domain()
            ));
        }
    };
    let roots = files.read_roots(&[]).map_err(|error| error.to_string())?;
    let bundle = Bundle::new(
        federation,
        provider(false),
        vec![(files.domain().clone(), roots)],
    )
    .map_err(|error| error.to_string())?;
    let mut bundle = bundle;
    let lists = files.read_lists().map_err(|error| error.to_string())?;
    for list in lists {
        bundle.take(Arc::new(list));
    }
    let validity = Validity::of(certificate)?;
    let then = UnixTime::since_unix_epoch(Duration::from_secs(validity.not_before));
    bundle
        .verify(certificate, &chain[1..], then, Role::Server)
        .map(drop)
        .map_err(|fault| fault.to_string())
}
