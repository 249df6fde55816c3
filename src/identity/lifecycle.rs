//! The life of a node's certificate after its first: asked for, approved, swapped, called back.
//!
//! Two files cannot change at one instant, but one name can: the key of a new certificate lies beside the old one as `<name>.next.key` before
//! the certificate takes its place, and gets the old key's name after that. Whoever reads finds the key that fits at every instant.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    CertificateParams, CertificateRevocationListParams, CertificateSigningRequestParams,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyUsagePurpose, PublicKeyData, RevocationReason,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use time::OffsetDateTime;
use tombolo_actors::identity::{IdentityError, MaterialFault};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use tombolo_core::wire::LIST_BYTES_MAX;

use super::bundle::{Bundle, Role};
use super::files::{self, DomainFiles, exists, hex, material, sha256};
use super::ledger::{self, Issued};
use super::mint;
use super::pki::{self, Terms};
use super::show::Entry;
use super::validity::Validity;
use super::{own_fault, spiffe};

/// Gives a node a new key and a certificate for it, in the place of those that it has: where the domain's key is.
///
/// # Errors
///
/// As [`pki::issue`].
pub fn rotate(
    files: &DomainFiles,
    federation: &str,
    node: &NodeId,
    terms: &Terms,
) -> Result<Entry, IdentityError> {
    let name = node.name();
    files.settle_key(name)?;
    let validity = Validity::starting(terms.now, terms.lifetime, mint::LEAF_LIFETIME_MAX)?;
    let authority = pki::authority(files, &[], terms.now)?;
    let key = mint::generate_key()?;
    files::write_key(&files.next_leaf_key(name), &key, true)?;
    let leaf = pki::certify(files, &authority, federation, node, &key, validity)?;
    files.write_leaf(name, &leaf.pem(), true)?;
    files.settle_key(name)?;
    Ok(Entry::of_leaf(files, name, terms.now))
}

/// Puts a certificate in the place of a node's present one: one that was approved for a key that this node has made.
///
/// # Errors
///
/// It is none for a key that is here, not the node's, or does not count now. Nothing is changed then.
pub fn install(
    plan: &Plan,
    node: &NodeId,
    certificate: &Path,
    now: u64,
) -> Result<Entry, IdentityError> {
    let files = files_of(plan, node)?;
    let name = node.name();
    let chain = files::read_chain(certificate)?;
    // The roots of the other domains need not be here yet.
    let pins = plan.domain(&node.domain());
    let pins = pins.map_or(&[][..], |domain| &domain.root_sha256);
    let roots = vec![(node.domain(), files.read_roots(pins)?)];
    let mut bundle = Bundle::new(&plan.name, super::provider(false), roots)?;
    for list in files.read_lists()? {
        bundle.take(Arc::new(list));
    }
    for role in [Role::Client, Role::Server] {
        bundle
            .verify(&chain[0], &chain[1..], super::unix(now), role)
            .and_then(|found| spiffe::expect(&plan.name, node, &found))
            .map_err(|fault| material(certificate, own_fault(fault, &files)))?;
    }
    if !files.has_key_of(name, &chain[0])? {
        return Err(material(
            certificate,
            MaterialFault::Malformed {
                expected: format!(
                    "a certificate for a key of {node} that is here ({} or {})",
                    files.leaf_key(name).display(),
                    files.next_leaf_key(name).display()
                ),
                found: "one for another key; ask for one with `tombolo certs request`".into(),
            },
        ));
    }
    files.settle_key(name)?;
    files.write_leaf(name, &files::pem(&chain), true)?;
    files.settle_key(name)?;
    Ok(Entry::of_leaf(&files, name, now))
}

/// A request for a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// For whom.
    pub node: NodeId,
    /// PKCS #10, in PEM.
    #[serde(skip)]
    pub pem: String,
    /// SHA-256 of the public key, in hexadecimal: what the other side compares.
    pub key_sha256: String,
    /// Where the key lies, and stays.
    pub key: PathBuf,
}

/// Asks for a certificate of a key that is made here and stays here. One that was made for an earlier request, and has no certificate yet, is
/// asked for again.
///
/// # Errors
///
/// The topology has no such node; the disk refuses.
pub fn request(plan: &Plan, node: &NodeId) -> Result<Request, IdentityError> {
    let files = files_of(plan, node)?;
    let name = node.name();
    files.settle_key(name)?;
    let path = match exists(&files.leaf(name))? {
        false => files.leaf_key(name),
        true => files.next_leaf_key(name),
    };
    let key = pki::take_up_key(&path, false)?;
    let uri = spiffe::uri(&plan.name, node);
    let mut params = CertificateParams::default();
    params.distinguished_name = mint::node_subject(&plan.name, node);
    params.subject_alt_names = vec![SanType::URI(
        uri.as_str().try_into().map_err(mint::library)?,
    )];
    let request = params.serialize_request(&key).map_err(mint::library)?;
    Ok(Request {
        node: node.clone(),
        pem: request.pem().map_err(mint::library)?,
        key_sha256: hex(&sha256(&key.subject_public_key_info())),
        key: path,
    })
}

/// Writes a request, for all to read.
///
/// # Errors
///
/// The disk refuses.
pub fn write_request(out: &Path, request: &Request) -> Result<(), IdentityError> {
    files::write(out, request.pem.as_bytes(), 0o644, true)
}

/// A request that may be approved, once somebody has compared the fingerprint of its key with what the node's side says.
#[derive(Debug)]
pub struct Asked {
    node: NodeId,
    key_sha256: String,
    params: CertificateSigningRequestParams,
}

impl Asked {
    /// Reads a request and checks all that can be checked.
    ///
    /// # Errors
    ///
    /// It is none; it is not signed by its own key; it does not hold exactly one name, of a node of this topology; or it asks for what no node
    /// gets.
    pub fn read(plan: &Plan, path: &Path) -> Result<Asked, IdentityError> {
        let fail = |expected: &str, found: String| {
            let expected = expected.to_owned();
            material(path, MaterialFault::Malformed { expected, found })
        };
        let bytes = files::read_request(path)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| fail("a request in PEM (PKCS #10)", "bytes".into()))?;
        let params = CertificateSigningRequestParams::from_pem(&text).map_err(|error| {
            fail(
                "a request in PEM (PKCS #10) that its own key has signed",
                error.to_string(),
            )
        })?;
        let asked = &params.params;
        let uri = match &asked.subject_alt_names[..] {
            [SanType::URI(uri)] => uri.as_str(),
            names => {
                return Err(fail(
                    "one name, spiffe://<domain>.<federation>/node/<name>",
                    format!("{names:?}"),
                ));
            }
        };
        let node = spiffe::parse(&plan.name, uri)
            .map_err(|fault| fail("a name of this federation", fault.to_string()))?;
        if plan.node(&node).is_none() {
            return Err(fail("a node of this topology", node.to_string()));
        }
        if !matches!(asked.is_ca, IsCa::NoCa | IsCa::ExplicitNoCa) {
            return Err(fail("a node's request", "one for an authority".into()));
        }
        let usual = |usage: &ExtendedKeyUsagePurpose| {
            matches!(
                usage,
                ExtendedKeyUsagePurpose::ServerAuth | ExtendedKeyUsagePurpose::ClientAuth
            )
        };
        let purposes = &asked.extended_key_usages;
        // A node answers and dials: with one of both it could not do its work, and nothing is added that was not asked for.
        let both = purposes.len() == 2 && purposes.iter().all(usual);
        if !purposes.is_empty() && !both {
            return Err(fail(
                "the purposes server and client authentication, or none named",
                format!("{purposes:?}"),
            ));
        }
        let signs = [KeyUsagePurpose::DigitalSignature];
        if !asked.key_usages.is_empty() && asked.key_usages != signs {
            return Err(fail(
                "the key usage digital signature, or none named",
                format!("{:?}", asked.key_usages),
            ));
        }
        Ok(Asked {
            key_sha256: hex(&sha256(&params.public_key.subject_public_key_info())),
            node,
            params,
        })
    }

    /// Who asks.
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// SHA-256 of the public key, in hexadecimal.
    pub fn key_sha256(&self) -> &str {
        &self.key_sha256
    }

    /// SHA-256 of the root that would sign, in hexadecimal.
    ///
    /// # Errors
    ///
    /// The root or its key is not here, or does not count.
    pub fn root_sha256(&self, plan: &Plan, now: u64) -> Result<String, IdentityError> {
        let files = files_of(plan, &self.node)?;
        let authority = pki::authority(&files, &[], now)?;
        Ok(hex(&sha256(authority.certificate())))
    }

    /// Signs, and writes the certificate to `out`.
    ///
    /// # Errors
    ///
    /// As [`pki::issue`].
    pub fn approve(&self, plan: &Plan, terms: &Terms, out: &Path) -> Result<Entry, IdentityError> {
        let files = files_of(plan, &self.node)?;
        let validity = Validity::starting(terms.now, terms.lifetime, mint::LEAF_LIFETIME_MAX)?;
        let authority = pki::authority(&files, &[], terms.now)?;
        let key = &self.params.public_key;
        let leaf = pki::certify(&files, &authority, &plan.name, &self.node, key, validity)?;
        files::write(out, leaf.pem().as_bytes(), files::PRIVATE_MODE, true)?;
        Ok(Entry::of_file(out, leaf.der(), terms.now))
    }
}

/// What was called back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Revoked {
    /// Whose.
    pub node: NodeId,
    /// The serial numbers, in hexadecimal.
    pub serials: Vec<String>,
    /// The number of the newest list.
    pub number: u64,
    /// Where the lists lie.
    pub path: PathBuf,
}

/// Calls back every certificate of a node that has not ended: those that the domain's ledger names, and the one that is here.
///
/// # Errors
///
/// There is none; the key of the root that issued it is not here; the list is full; the disk refuses.
pub fn revoke(plan: &Plan, node: &NodeId, now: u64) -> Result<Revoked, IdentityError> {
    let files = files_of(plan, node)?;
    let _alone = files.lock()?;
    let roots = files.read_roots(&[])?;
    let known = files.read_lists()?;
    let mut targets: Vec<Issued> = ledger::read(&files)?;
    targets.retain(|issued| issued.node == *node);
    if exists(&files.leaf(node.name()))? {
        let chain = files.read_leaf(node.name())?;
        let leaf = &chain[0];
        let issuer = roots.iter().find(|root| pki::is_issued_by(leaf, root));
        targets.extend(issuer.map(|root| Issued::new(node, leaf, root)));
    }
    targets.retain(|issued| issued.not_after > now);
    targets.sort_by(|a, b| a.sha256.cmp(&b.sha256));
    targets.dedup_by(|a, b| a.sha256 == b.sha256);
    let is_listed = |issued: &Issued| {
        let listed = known.iter().flat_map(|list| list.revoked());
        listed
            .map(|revoked| hex(&revoked.serial))
            .any(|serial| serial == issued.serial)
    };
    targets.retain(|issued| !is_listed(issued));
    if targets.is_empty() {
        return Err(IdentityError::Configuration(format!(
            "{node} has no certificate to revoke: none that has not ended or was not revoked before is named in {} or lies at {}",
            ledger::path(&files).display(),
            files.leaf(node.name()).display()
        )));
    }
    let mut pem = String::new();
    let mut newest = known.iter().map(|list| list.number()).max().unwrap_or(0);
    for root in &roots {
        let signed = known.iter().filter(|list| list.is_signed_by(root));
        let list = signed.max_by_key(|list| list.number());
        let fingerprint = hex(&sha256(root));
        let here: Vec<&Issued> = targets.iter().filter(|it| it.root == fingerprint).collect();
        if here.is_empty() {
            pem.extend(list.map(|list| files::list_pem(list.der())));
            continue;
        }
        let date = |unix: i64| OffsetDateTime::from_unix_timestamp(unix).map_err(mint::library);
        let mut revoked = Vec::new();
        for old in list.into_iter().flat_map(|list| list.revoked()) {
            revoked.push(on_list(&old.serial, date(old.at)?, None));
        }
        for issued in &here {
            let serial = unhex(&issued.serial);
            let reason = Some(RevocationReason::KeyCompromise);
            let now = i64::try_from(now).unwrap_or(i64::MAX);
            revoked.push(on_list(&serial, date(now)?, reason));
        }
        // Of lists that were made on two machines, each without knowing of the other, the later one counts.
        newest = now.max(newest.saturating_add(1));
        let (authority, ends) = pki::authority_of(&files, root)?;
        let params = CertificateRevocationListParams {
            this_update: date(i64::try_from(now).unwrap_or(i64::MAX))?,
            // Nobody looks at it: a list holds until there is a newer one.
            next_update: date(i64::try_from(ends.max(now + 1)).unwrap_or(i64::MAX))?,
            crl_number: SerialNumber::from(newest),
            issuing_distribution_point: None,
            revoked_certs: revoked,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let made = params
            .signed_by(authority.issuer())
            .map_err(mint::library)?;
        if made.der().len() > LIST_BYTES_MAX {
            return Err(IdentityError::Configuration(format!(
                "the list of {} would have {} bytes, at most {LIST_BYTES_MAX} travel: give the domain a new root with `tombolo certs rollover`",
                files.domain(),
                made.der().len()
            )));
        }
        pem.push_str(&files::list_pem(made.der()));
    }
    files.write_lists(&pem)?;
    Ok(Revoked {
        node: node.clone(),
        serials: targets.into_iter().map(|issued| issued.serial).collect(),
        number: newest,
        path: files.lists(),
    })
}

fn on_list(
    serial: &[u8],
    revocation_time: OffsetDateTime,
    reason_code: Option<RevocationReason>,
) -> RevokedCertParams {
    RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time,
        reason_code,
        invalidity_date: None,
    }
}

fn unhex(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let bytes = pairs.filter_map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    bytes.collect()
}

pub(super) fn files_of(plan: &Plan, node: &NodeId) -> Result<DomainFiles, IdentityError> {
    plan.node(node).ok_or_else(|| super::unknown(node))?;
    domain_files(plan, &node.domain())
}

pub(super) fn domain_files(plan: &Plan, domain: &DomainId) -> Result<DomainFiles, IdentityError> {
    let found = plan.domain(domain).map(DomainFiles::of_plan);
    found.ok_or_else(|| {
        IdentityError::Configuration(format!(
            "the topology declares no domain {domain}: `tombolo check` lists what it declares"
        ))
    })
}

/// Whether a certificate counts, dates aside, by that root alone.
pub(super) fn counts_by(
    plan: &Plan,
    domain: &DomainId,
    chain: &[CertificateDer<'static>],
    root: &CertificateDer<'static>,
) -> bool {
    let roots = vec![(domain.clone(), vec![root.clone()])];
    let bundle = Bundle::new(&plan.name, super::provider(false), roots);
    let began = Validity::of(&chain[0]).map_or(0, |validity| validity.not_before);
    bundle.is_ok_and(|bundle| {
        bundle
            .verify(&chain[0], &chain[1..], super::unix(began), Role::Either)
            .is_ok()
    })
}
