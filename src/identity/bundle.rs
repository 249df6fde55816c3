//! Which roots speak for which domain.
//!
//! A certificate is checked against the roots of the domain that its own name claims. So a domain's authority can vouch for that domain's
//! nodes and for nobody else, however many domains are trusted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use tombolo_actors::identity::{Change, IdentityError, MaterialFault, PeerFault, Revocations};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use webpki::{
    EndEntityCert, ExpirationPolicy, ExtendedKeyUsageValidator, KeyPurposeIdIter, KeyUsage,
    RevocationCheckDepth, RevocationOptionsBuilder, UnknownStatusPolicy, VerifiedPath,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::{DomainFiles, hex, sha256};
use super::revocation::List;
use super::validity::rfc3339;
use super::{provider, spiffe};

/// The side on which a certificate stands: its holder answers or dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It answers.
    Server,
    /// It dials.
    Client,
    /// It was on its side when the connection was made.
    Either,
}

/// The roots of every domain of one federation, and what they have revoked.
#[derive(Clone)]
pub struct Bundle {
    federation: String,
    provider: Arc<CryptoProvider>,
    roots: BTreeMap<DomainId, Vec<Root>>,
}

/// One root of a domain.
#[derive(Clone)]
struct Root {
    certificate: CertificateDer<'static>,
    anchor: TrustAnchor<'static>,
    sha256: String,
    list: Option<Arc<List>>,
}

impl Bundle {
    /// Reads the root files that the plan names and holds them against its pins; and what lies beside them of revoked certificates.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Material`] with the file.
    pub fn load(plan: &Plan) -> Result<Bundle, IdentityError> {
        let (bundle, fault) = Bundle::read(plan, None)?;
        match fault {
            None => Ok(bundle),
            Some(fault) => Err(fault),
        }
    }

    /// Reads the same anew. Lists that were known stay; a file with roots or lists that is not sound is left out, and named: what was known of that
    /// domain holds.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Material`] with the file of a root.
    pub(super) fn read(
        plan: &Plan,
        before: Option<&Bundle>,
    ) -> Result<(Bundle, Option<IdentityError>), IdentityError> {
        let (mut roots, mut fault) = (Vec::new(), None);
        for domain in &plan.domains {
            let files = DomainFiles::of_plan(domain);
            let known = before.and_then(|before| before.roots.get(&domain.id));
            let read = match (files.read_roots(&domain.root_sha256), known) {
                (Err(error), Some(known)) => {
                    // One domain's file keeps no other domain's from being read.
                    fault = Some(error);
                    known.iter().map(|root| root.certificate.clone()).collect()
                }
                (read, _) => read?,
            };
            roots.push((domain.id.clone(), read));
        }
        let provider = provider(plan.security.post_quantum_required);
        let bundle = Bundle::new(&plan.name, provider, roots);
        let mut bundle = bundle.map_err(|error| match error {
            IdentityError::Material { path, fault } => IdentityError::Material {
                // Memory knows no files; the domain leads back to one.
                path: plan
                    .domains
                    .iter()
                    .find(|domain| domain.id.as_str() == path.as_os_str())
                    .map_or(path, |domain| domain.root.clone()),
                fault,
            },
            other => other,
        })?;
        for list in before.into_iter().flat_map(Bundle::lists) {
            bundle.take(list.clone());
        }
        for domain in &plan.domains {
            let files = DomainFiles::of_plan(domain);
            match files.read_lists() {
                Err(error) => fault = Some(error),
                Ok(lists) => {
                    for list in lists {
                        let list = Arc::new(list);
                        // Of a root that was retired, or not yet added, it says nothing.
                        bundle.take(list);
                    }
                }
            }
        }
        Ok((bundle, fault))
    }

    /// A bundle of roots in memory.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Material`] with the domain's name instead of a path: a root is no authority, there is none, or two domains share one.
    pub fn new(
        federation: &str,
        provider: Arc<CryptoProvider>,
        domains: Vec<(DomainId, Vec<CertificateDer<'static>>)>,
    ) -> Result<Bundle, IdentityError> {
        let mut roots = BTreeMap::new();
        let mut keys: BTreeMap<Vec<u8>, DomainId> = BTreeMap::new();
        for (domain, certificates) in domains {
            let fail = |fault| IdentityError::Material {
                path: domain.as_str().into(),
                fault,
            };
            for certificate in &certificates {
                let key = authority_key(certificate).map_err(fail)?;
                if let Some(other) = keys.get(&key).filter(|other| **other != domain) {
                    return Err(fail(MaterialFault::Shared {
                        domain: domain.to_string(),
                        other: other.to_string(),
                    }));
                }
                keys.insert(key, domain.clone());
            }
            let entry: Result<Vec<Root>, String> =
                certificates.into_iter().map(Root::new).collect();
            let entry = entry.map_err(|found| {
                fail(MaterialFault::Malformed {
                    expected: "the certificate of an authority".into(),
                    found,
                })
            })?;
            if roots.insert(domain.clone(), entry).is_some() {
                return Err(IdentityError::Configuration(format!(
                    "domain {domain} is there twice; keep one"
                )));
            }
        }
        Ok(Bundle {
            federation: federation.into(),
            provider,
            roots,
        })
    }

    /// The federation whose names count.
    pub fn federation(&self) -> &str {
        &self.federation
    }

    /// What TLS is made of.
    pub fn provider(&self) -> &Arc<CryptoProvider> {
        &self.provider
    }

    /// The node that `leaf` proves at `now`: by its only URI name, vouched for by the roots of the domain in that name.
    ///
    /// # Errors
    ///
    /// What is wrong with the certificate.
    pub fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        role: Role,
    ) -> Result<NodeId, PeerFault> {
        let node = spiffe::node_of(&self.federation, leaf)?;
        let roots = self.roots_of(&node)?;
        let presented = || spiffe::uri(&self.federation, &node);
        let untrusted = |reason: String| {
            let each: Vec<&str> = roots.iter().map(|root| root.sha256.as_str()).collect();
            PeerFault::Untrusted {
                presented: presented(),
                roots: each.join(", "),
                reason,
            }
        };
        let end = EndEntityCert::try_from(leaf).map_err(|error| untrusted(error.to_string()))?;
        let mut found = None;
        for root in roots {
            let error = match self.verify_by(root, &end, intermediates, now, role) {
                Ok(()) => return Ok(node),
                Err(error) => error,
            };
            // That another root did not sign it says nothing.
            if found.is_none() || error != webpki::Error::UnknownIssuer {
                found = Some((root, error));
            }
        }
        let Some((root, error)) = found else {
            return Err(untrusted("there is none".into()));
        };
        Err(match error {
            webpki::Error::CertExpired { time, not_after } => PeerFault::Expired {
                presented: presented(),
                not_after: rfc3339(not_after.as_secs()),
                now: rfc3339(time.as_secs()),
            },
            webpki::Error::CertNotValidYet { time, not_before } => PeerFault::NotYetValid {
                presented: presented(),
                not_before: rfc3339(not_before.as_secs()),
                now: rfc3339(time.as_secs()),
            },
            webpki::Error::CertRevoked => PeerFault::Revoked {
                presented: presented(),
                serial: serial(leaf),
                number: self
                    .revoked_by(leaf)
                    .or(root.list.as_deref())
                    .map_or(0, List::number),
            },
            other => untrusted(other.to_string()),
        })
    }

    fn verify_by(
        &self,
        root: &Root,
        end: &EndEntityCert<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        role: Role,
    ) -> Result<(), webpki::Error> {
        let lists: Vec<_> = root.list.iter().map(|list| list.checked()).collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            options
                .with_depth(RevocationCheckDepth::Chain)
                // A list of the root says nothing of what an intermediate has issued.
                .with_status_policy(UnknownStatusPolicy::Allow)
                .with_expiration_policy(ExpirationPolicy::Ignore)
                .build()
        });
        let algorithms = self.provider.signature_verification_algorithms.all;
        let anchors = std::slice::from_ref(&root.anchor);
        // A chain may lead past the root that has signed a certificate, over another's word for the same key: its list holds all the same.
        let is_revoked = |path: &VerifiedPath<'_>| {
            let above = path.intermediate_certificates().map(|each| each.der());
            let mut each = std::iter::once(end.der()).chain(above);
            match each.any(|certificate| self.revoked_by(&certificate).is_some()) {
                true => Err(webpki::Error::CertRevoked),
                false => Ok(()),
            }
        };
        end.verify_for_usage(
            algorithms,
            anchors,
            intermediates,
            now,
            role,
            revocation,
            Some(&is_revoked),
        )
        .map(drop)
    }

    /// The list that has a certificate on it, of whichever pinned root's key has signed it.
    fn revoked_by(&self, certificate: &CertificateDer<'_>) -> Option<&List> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let roots = self.roots.values().flatten();
        let mut listed = roots.filter_map(|root| Some((root, root.list.as_deref()?)));
        let found =
            listed.find(|(root, list)| list.names(parsed.raw_serial()) && root.has_signed(&parsed));
        found.map(|(_, list)| list)
    }

    /// Refuses a node whose domain has no root here.
    pub(super) fn knows(&self, node: &NodeId) -> Result<(), PeerFault> {
        self.roots_of(node).map(drop)
    }

    /// Every root, domain by domain.
    pub fn certificates(&self) -> Vec<(DomainId, Vec<u8>)> {
        let each = |(domain, roots): (&DomainId, &Vec<Root>)| {
            let pairs = roots
                .iter()
                .map(|root| (domain.clone(), root.certificate.to_vec()));
            pairs.collect::<Vec<_>>()
        };
        self.roots.iter().flat_map(each).collect()
    }

    /// Whether that certificate is one of the domain's roots.
    pub fn pins(&self, domain: &DomainId, certificate: &[u8]) -> bool {
        let roots = self.roots.get(domain);
        roots.is_some_and(|roots| roots.iter().any(|root| *root.certificate == *certificate))
    }

    /// The newest list of each root that has one.
    pub(super) fn lists(&self) -> impl Iterator<Item = &Arc<List>> {
        let roots = self.roots.values().flatten();
        roots.filter_map(|root| root.list.as_ref())
    }

    /// The domain of the root that has signed a list, and the SHA-256 of that root.
    pub(super) fn issuer(&self, list: &List) -> Option<(&DomainId, &str)> {
        let each = self.roots.iter();
        let mut each =
            each.flat_map(|(domain, roots)| roots.iter().map(move |root| (domain, root)));
        let found = each.find(|(_, root)| list.is_signed_by(&root.certificate));
        found.map(|(domain, root)| (domain, root.sha256.as_str()))
    }

    /// Takes a list that is newer than the one of its root; says what holds then. None if it is not newer, or of no root. It holds for every
    /// certificate of that root's key: a root that was renewed with the same key and name has two.
    pub(super) fn take(&mut self, list: Arc<List>) -> Option<Revocations> {
        let mut taken = None;
        for (domain, roots) in &mut self.roots {
            for root in roots {
                let known = root.list.as_ref().map(|known| known.number());
                let is_newer = known.is_none_or(|known| known < list.number());
                if !is_newer || !list.is_signed_by(&root.certificate) {
                    continue;
                }
                root.list = Some(list.clone());
                taken.get_or_insert_with(|| Revocations {
                    domain: domain.clone(),
                    number: list.number(),
                    count: list.revoked().len(),
                    list: list.der().to_vec(),
                });
            }
        }
        taken
    }

    /// What is otherwise than before.
    pub(super) fn changes(&self, before: &Bundle) -> Vec<Change> {
        let mut changes = Vec::new();
        for (domain, roots) in &self.roots {
            let known = before.roots.get(domain).map_or(&[][..], Vec::as_slice);
            let is_in =
                |roots: &[Root], root: &Root| roots.iter().any(|known| known.sha256 == root.sha256);
            let added = roots.iter().filter(|root| !is_in(known, root));
            changes.extend(added.map(|root| Change::RootAdded {
                domain: domain.clone(),
                certificate: root.certificate.to_vec(),
                sha256: root.sha256.clone(),
            }));
            let retired = known.iter().filter(|root| !is_in(roots, root));
            changes.extend(retired.map(|root| Change::RootRetired {
                domain: domain.clone(),
                certificate: root.certificate.to_vec(),
                sha256: root.sha256.clone(),
            }));
            for root in roots {
                let Some(list) = &root.list else { continue };
                let known = known.iter().find(|known| known.sha256 == root.sha256);
                let known = known.and_then(|known| known.list.as_ref());
                if known.is_none_or(|known| known.number() < list.number()) {
                    changes.push(Change::Revoked(Revocations {
                        domain: domain.clone(),
                        number: list.number(),
                        count: list.revoked().len(),
                        list: list.der().to_vec(),
                    }));
                }
            }
        }
        changes
    }

    fn roots_of(&self, node: &NodeId) -> Result<&[Root], PeerFault> {
        let roots = self.roots.get(&node.domain()).map(Vec::as_slice);
        roots.ok_or_else(|| PeerFault::Domain {
            federation: self.federation.clone(),
            presented: spiffe::uri(&self.federation, node),
        })
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = |roots: &Vec<Root>| -> Vec<String> {
            roots.iter().map(|root| root.sha256.clone()).collect()
        };
        let roots = self.roots.iter();
        let roots = roots.map(|(domain, roots)| (domain, each(roots)));
        f.debug_map().entries(roots).finish()
    }
}

impl Root {
    fn new(certificate: CertificateDer<'static>) -> Result<Root, String> {
        let anchor = webpki::anchor_from_trusted_cert(&certificate);
        let anchor = anchor.map_err(|error| error.to_string())?.to_owned();
        Ok(Root {
            sha256: hex(&sha256(&certificate)),
            certificate,
            anchor,
            list: None,
        })
    }

    /// Whether its key has, whatever the name of the issuer.
    fn has_signed(&self, certificate: &X509Certificate<'_>) -> bool {
        let own = X509Certificate::from_der(&self.certificate);
        own.is_ok_and(|(_, own)| certificate.verify_signature(Some(own.public_key())).is_ok())
    }
}

impl ExtendedKeyUsageValidator for Role {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        match self {
            Role::Server => KeyUsage::server_auth().validate(purposes),
            Role::Client => KeyUsage::client_auth().validate(purposes),
            Role::Either => Ok(()),
        }
    }
}

/// A certificate's serial number, in hexadecimal.
pub(super) fn serial(certificate: &CertificateDer<'_>) -> String {
    X509Certificate::from_der(certificate)
        .map(|(_, parsed)| hex(parsed.raw_serial()))
        .unwrap_or_default()
}

/// The public key of a certificate that may sign others.
fn authority_key(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, MaterialFault> {
    let malformed = |found: String| MaterialFault::Malformed {
        expected: "the certificate of an authority".into(),
        found,
    };
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|error| malformed(error.to_string()))?;
    if !parsed.is_ca() {
        return Err(malformed(format!(
            "one that may sign no others ({})",
            parsed.subject()
        )));
    }
    Ok(parsed.public_key().raw.to_vec())
}
