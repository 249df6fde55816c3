//! Which roots speak for which domain.
//!
//! A certificate is checked against the roots of the domain that its own name claims. So a domain's authority can vouch for that domain's
//! nodes and for nobody else, however many domains are trusted.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{CertificateError, RootCertStore};
use tombolo_actors::identity::{IdentityError, MaterialFault, PeerFault};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::files::{DomainFiles, hex, sha256};
use super::validity::rfc3339;
use super::{provider, spiffe};

/// The side on which a certificate stands: its holder answers or dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It answers.
    Server,
    /// It dials.
    Client,
}

/// The roots of every domain of one federation.
pub struct Bundle {
    federation: String,
    provider: Arc<CryptoProvider>,
    roots: BTreeMap<DomainId, Roots>,
}

/// One domain's roots.
struct Roots {
    certificates: Vec<CertificateDer<'static>>,
    store: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    /// SHA-256 of each, for errors.
    fingerprints: String,
}

impl Bundle {
    /// Reads the root files that the plan names and holds them against its pins.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Material`] with the file.
    pub fn load(plan: &Plan) -> Result<Bundle, IdentityError> {
        let mut roots = Vec::new();
        for domain in &plan.domains {
            let files = DomainFiles::of_plan(domain);
            roots.push((
                domain.id.clone(),
                files.read_roots(domain.root_sha256.as_ref())?,
            ));
        }
        let provider = provider(plan.security.post_quantum_required);
        Bundle::new(&plan.name, provider, roots).map_err(|error| match error {
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
        })
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
            let entry = Roots::new(certificates, &provider).map_err(|found| {
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
        let verdict = match role {
            Role::Client => roots
                .clients
                .verify_client_cert(leaf, intermediates, now)
                .map(drop),
            Role::Server => ParsedCertificate::try_from(leaf).and_then(|parsed| {
                rustls::client::verify_server_cert_signed_by_trust_anchor(
                    &parsed,
                    &roots.store,
                    intermediates,
                    now,
                    self.provider.signature_verification_algorithms.all,
                )
            }),
        };
        let presented = || spiffe::uri(&self.federation, &node);
        verdict.map_err(|error| match error {
            rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                time,
                not_after,
            }) => PeerFault::Expired {
                presented: presented(),
                not_after: rfc3339(not_after.as_secs()),
                now: rfc3339(time.as_secs()),
            },
            rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
                time,
                not_before,
            }) => PeerFault::NotYetValid {
                presented: presented(),
                not_before: rfc3339(not_before.as_secs()),
                now: rfc3339(time.as_secs()),
            },
            other => PeerFault::Untrusted {
                presented: presented(),
                roots: roots.fingerprints.clone(),
                reason: match other {
                    rustls::Error::InvalidCertificate(reason) => reason.to_string(),
                    other => other.to_string(),
                },
            },
        })?;
        Ok(node)
    }

    /// Refuses a node whose domain has no root here.
    pub(super) fn knows(&self, node: &NodeId) -> Result<(), PeerFault> {
        self.roots_of(node).map(drop)
    }

    /// Every root, domain by domain.
    pub fn certificates(&self) -> Vec<(DomainId, Vec<u8>)> {
        let each = |(domain, roots): (&DomainId, &Roots)| {
            let certificates = roots.certificates.iter();
            let pairs = certificates.map(|root| (domain.clone(), root.to_vec()));
            pairs.collect::<Vec<_>>()
        };
        self.roots.iter().flat_map(each).collect()
    }

    /// Whether that certificate is one of the domain's roots.
    pub fn pins(&self, domain: &DomainId, certificate: &[u8]) -> bool {
        let roots = self.roots.get(domain);
        roots.is_some_and(|roots| roots.certificates.iter().any(|root| **root == *certificate))
    }

    fn roots_of(&self, node: &NodeId) -> Result<&Roots, PeerFault> {
        self.roots
            .get(&node.domain())
            .ok_or_else(|| PeerFault::Domain {
                federation: self.federation.clone(),
                presented: spiffe::uri(&self.federation, node),
            })
    }
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roots = self
            .roots
            .iter()
            .map(|(domain, roots)| (domain, &roots.fingerprints));
        f.debug_map().entries(roots).finish()
    }
}

impl Roots {
    fn new(
        certificates: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Roots, String> {
        let fingerprints: Vec<String> = certificates
            .iter()
            .map(|certificate| hex(&sha256(certificate)))
            .collect();
        let mut store = RootCertStore::empty();
        for certificate in certificates.clone() {
            store.add(certificate).map_err(|error| error.to_string())?;
        }
        let store = Arc::new(store);
        let clients = WebPkiClientVerifier::builder_with_provider(store.clone(), provider.clone())
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Roots {
            certificates,
            store,
            clients,
            fingerprints: fingerprints.join(", "),
        })
    }
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
