//! Keys, certificates and trust.
//!
//! Every domain has a certificate authority of its own. A node's certificate carries one name,
//! `spiffe://<domain>.<federation>/node/<name>`, and is checked against the roots of the domain *in that name* and no other: with one common
//! root store, any domain could forge any node of any other. Then the name is compared with the node that was dialled. TLS 1.3 only, both
//! sides with a certificate, no resumption and no early data; X25519MLKEM768 first, and nothing else if the plan requires it.
//!
//! * [`spiffe`]: names in certificates.
//! * [`bundle`]: which roots speak for which domain. [`verifier`]: the same question, as rustls asks it.
//! * [`mint`]: keys and certificates in memory. [`files`]: on disk, with modes and atomic writes.
//! * [`notary`]: signs the record, and checks who has.
//! * [`papers`]: certificates that go stale, for simulation.
//! * [`pki`]: makes and renews them. [`show`]: says what is there and what is wrong with it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use tombolo_actors::identity::{Identity, IdentityError, MaterialFault, PeerFault};
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use tombolo_core::record::{self, PublicKey, Signature, Signer};

use self::bundle::{Bundle, Role};
use self::files::DomainFiles;
use self::notary::Notary;
use self::papers::{Papers, Standing, Wallet};
use self::verifier::Verifier;

pub mod bundle;
pub mod files;
pub mod mint;
pub mod notary;
pub mod papers;
pub mod pki;
pub mod show;
pub mod spiffe;
mod validity;
pub mod verifier;

/// The protocol named in the handshake.
pub const ALPN: &[u8] = b"tombolo/1";

/// The wall clock: seconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// One node's identity, with everything that TLS needs.
pub struct NodeIdentity {
    node: NodeId,
    bundle: Arc<Bundle>,
    server: rustls::ServerConfig,
    client: rustls::ClientConfig,
    /// Signs the record.
    pair: Arc<CertifiedKey>,
}

impl NodeIdentity {
    /// Reads the roots of all domains and the certificate and key of `node` from the files that the plan names.
    ///
    /// # Errors
    ///
    /// Names the file and what is wrong: missing, open to others, not the pinned root, another node's, key of another certificate, not signed
    /// by the domain's root, not yet or no longer valid.
    pub fn load(
        plan: &Plan,
        node: &NodeId,
        clock: Clock,
    ) -> Result<Arc<dyn Identity>, IdentityError> {
        plan.node(node).ok_or_else(|| unknown(node))?;
        let domain = plan.domain(&node.domain()).ok_or_else(|| unknown(node))?;
        let bundle = Bundle::load(plan)?;
        let files = DomainFiles::of_plan(domain);
        let certificate = files.read_leaf(node.name())?;
        let key = files.read_leaf_key(node.name(), &certificate)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(clock()));
        for role in [Role::Client, Role::Server] {
            bundle
                .verify(&certificate, &[], now, role)
                .and_then(|found| spiffe::expect(&plan.name, node, &found))
                .map_err(|fault| IdentityError::Material {
                    path: files.leaf(node.name()),
                    fault: own_fault(fault, &files),
                })?;
        }
        let pair = Arc::new(certified(certificate, &key, bundle.provider())?);
        let resolver = SingleCertAndKey::from(pair.clone());
        Ok(Arc::new(NodeIdentity::new(
            node, bundle, resolver, pair, clock,
        )?))
    }

    /// For simulation: every key of the federation follows from `seed`, nothing touches the disk, and all sizes are fixed.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Configuration`] if the plan has no such node.
    pub fn seeded(
        plan: &Plan,
        node: &NodeId,
        seed: u64,
        clock: Clock,
    ) -> Result<Arc<dyn Identity>, IdentityError> {
        Self::seeded_with(plan, node, seed, clock, Papers::default())
    }

    /// [`NodeIdentity::seeded`], of a node whose certificate may go stale.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Configuration`] if the plan has no such node.
    pub fn seeded_with(
        plan: &Plan,
        node: &NodeId,
        seed: u64,
        clock: Clock,
        papers: Papers,
    ) -> Result<Arc<dyn Identity>, IdentityError> {
        plan.node(node).ok_or_else(|| unknown(node))?;
        let mut roots = Vec::new();
        let mut own = None;
        for domain in &plan.domains {
            let authority = mint::seeded_authority(&plan.name, &domain.id, seed)?;
            roots.push((domain.id.clone(), vec![authority.certificate().clone()]));
            if domain.id == node.domain() {
                own = Some(authority);
            }
        }
        let authority = own.ok_or_else(|| unknown(node))?;
        let provider = provider(plan.security.post_quantum_required);
        let bundle = Bundle::new(&plan.name, provider.clone(), roots)?;
        let (federation, holder) = (plan.name.clone(), node.clone());
        let make = move |standing: Standing| {
            let validity = standing.validity();
            let (certificate, key) =
                mint::seeded_leaf(&authority, &federation, &holder, seed, validity)?;
            certified(certificate, &key, &provider)
        };
        let pair = Arc::new(make(Standing::Good)?);
        let wallet = Wallet::new(papers, make)?;
        Ok(Arc::new(NodeIdentity::new(
            node, bundle, wallet, pair, clock,
        )?))
    }

    fn new(
        node: &NodeId,
        bundle: Bundle,
        certificates: impl ResolvesServerCert + ResolvesClientCert + 'static,
        pair: Arc<CertifiedKey>,
        clock: Clock,
    ) -> Result<NodeIdentity, IdentityError> {
        let bundle = Arc::new(bundle);
        let verifier = Arc::new(Verifier::new(bundle.clone(), None));
        let resolver = Arc::new(certificates);
        let clock = Arc::new(WallClock(clock));
        let library = |error: rustls::Error| IdentityError::Library(error.to_string());

        let mut server =
            rustls::ServerConfig::builder_with_details(bundle.provider().clone(), clock.clone())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(library)?
                .with_client_cert_verifier(verifier.clone())
                .with_cert_resolver(resolver.clone());
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;

        let mut client =
            rustls::ClientConfig::builder_with_details(bundle.provider().clone(), clock)
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(library)?
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_client_cert_resolver(resolver);
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_early_data = false;

        Ok(NodeIdentity {
            node: node.clone(),
            bundle,
            server,
            client,
            pair,
        })
    }

    fn client_config(&self, peer: &NodeId) -> rustls::ClientConfig {
        let mut config = self.client.clone();
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(Verifier::new(
                self.bundle.clone(),
                Some(peer.clone()),
            )));
        config
    }
}

impl Identity for NodeIdentity {
    fn node(&self) -> &NodeId {
        &self.node
    }

    fn server(&self) -> Arc<dyn quinn::crypto::ServerConfig> {
        Arc::new(
            quinn::crypto::rustls::QuicServerConfig::try_from(self.server.clone())
                .expect("the provider has QUIC's initial cipher suite"),
        )
    }

    fn client(&self, peer: &NodeId) -> (Arc<dyn quinn::crypto::ClientConfig>, String) {
        let config = quinn::crypto::rustls::QuicClientConfig::try_from(self.client_config(peer))
            .expect("the provider has QUIC's initial cipher suite");
        (
            Arc::new(config),
            spiffe::server_name(self.bundle.federation(), peer),
        )
    }

    fn roots(&self) -> Vec<(DomainId, Vec<u8>)> {
        self.bundle.certificates()
    }

    fn peer(&self, identity: Option<Box<dyn Any>>) -> Result<NodeId, IdentityError> {
        let chain = identity
            .and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok())
            .ok_or(PeerFault::Anonymous)?;
        let leaf = chain.first().ok_or(PeerFault::Anonymous)?;
        let node = spiffe::node_of(self.bundle.federation(), leaf)?;
        self.bundle.knows(&node)?;
        Ok(node)
    }
}

impl record::Verifier for NodeIdentity {
    fn holder(
        &self,
        federation: &str,
        roots: &BTreeMap<DomainId, Vec<Vec<u8>>>,
        certificate: &[u8],
    ) -> Result<(NodeId, PublicKey), String> {
        record::Verifier::holder(&Notary, federation, roots, certificate)
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        record::Verifier::verify(&Notary, key, message, signature)
    }
}

impl Signer for NodeIdentity {
    fn certificate(&self) -> Vec<u8> {
        self.pair
            .cert
            .first()
            .map(|leaf| leaf.to_vec())
            .unwrap_or_default()
    }

    fn sign(&self, message: &[u8]) -> Result<(PublicKey, Signature), String> {
        notary::sign(&self.pair, message)
    }

    fn pins(&self, domain: &DomainId, root: &[u8]) -> bool {
        self.bundle.pins(domain, root)
    }
}

/// Leaves the key out.
impl fmt::Debug for NodeIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeIdentity")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// What TLS is made of. The groups are listed so that their order is ours, not the library's default.
fn provider(post_quantum_required: bool) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    provider.kx_groups = if post_quantum_required {
        vec![kx_group::X25519MLKEM768]
    } else {
        vec![kx_group::X25519MLKEM768, kx_group::X25519]
    };
    Arc::new(provider)
}

/// The pair as rustls signs with it.
fn certified(
    certificate: CertificateDer<'static>,
    key: &rcgen::KeyPair,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, IdentityError> {
    let key = PrivateKeyDer::try_from(key.serialize_der())
        .map_err(|error| IdentityError::Library(error.into()))?;
    CertifiedKey::from_der(vec![certificate], key, provider)
        .map_err(|error| IdentityError::Library(error.to_string()))
}

fn unknown(node: &NodeId) -> IdentityError {
    IdentityError::Configuration(format!(
        "the topology has no node {node}; add it to its [[domain]] or name one that is there"
    ))
}

/// The same finding, told about our own certificate.
fn own_fault(fault: PeerFault, files: &DomainFiles) -> MaterialFault {
    match fault {
        PeerFault::NotYetValid {
            not_before, now, ..
        } => MaterialFault::NotYetValid { not_before, now },
        PeerFault::Expired { not_after, now, .. } => MaterialFault::Expired {
            not_after,
            now,
            next: "renew it with `tombolo certs issue`".into(),
        },
        PeerFault::Unexpected {
            expected,
            presented,
        } => MaterialFault::Name {
            expected,
            found: format!("one of {presented:?}"),
        },
        PeerFault::Untrusted { reason, .. } => MaterialFault::Untrusted {
            root: files.root().to_owned(),
            reason,
        },
        PeerFault::Federation {
            expected, found, ..
        } => MaterialFault::OtherFederation {
            expected,
            found,
            root: files.root().to_owned(),
        },
        other => MaterialFault::Malformed {
            expected: "a node's certificate".into(),
            found: other.to_string(),
        },
    }
}

/// The caller's clock, as rustls asks for it.
struct WallClock(Clock);

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WallClock")
    }
}

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs((self.0)())))
    }
}
