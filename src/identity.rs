//! Keys, certificates and trust.
//!
//! Every domain has a certificate authority of its own. A node's certificate carries one name,
//! `spiffe://<domain>.<federation>/node/<name>`, and is checked against the roots of the domain *in that name* and no other: with one common
//! root store, any domain could forge any node of any other. Then the name is compared with the node that was dialled. TLS 1.3 only, both
//! sides with a certificate, no resumption and no early data; X25519MLKEM768 first, and nothing else if the plan requires it.
//!
//! * [`spiffe`]: names in certificates.
//! * [`bundle`]: which roots speak for which domain. [`verifier`]: the same question, as rustls asks it. [`revocation`]: what they call back.
//! * [`mint`]: keys and certificates in memory. [`files`]: on disk, with modes and atomic writes.
//! * [`notary`]: signs the record, and checks who has.
//! * [`papers`]: certificates that go stale, for simulation.
//! * [`pki`]: makes and renews them. [`lifecycle`]: asks for them, swaps them, calls them back. [`rollover`]: the same of roots. [`ledger`]: what
//!   was issued. [`show`]: says what is there and what is wrong with it.
//!
//! All of it may change while a node runs: [`NodeIdentity`] is asked now and then to look, and the next handshake goes by what it has found.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use tombolo_actors::identity::{
    Change, Identity, IdentityError, MaterialFault, Paper, PeerFault, Purpose, Refreshed,
    Revocations, Unlisted,
};
use tombolo_actors::quic::preflight::PROTOCOL as PREFLIGHT;
use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;
use tombolo_core::record::{self, PublicKey, Signature, Signer};

use self::bundle::{Bundle, Role};
use self::files::DomainFiles;
use self::notary::Notary;
use self::papers::{Papers, Standing, Wallet};
use self::revocation::List;
use self::rustls_side::{Resolver, Shows, WallClock};
use self::validity::Validity;
use self::verifier::Verifier;

pub mod bundle;
pub mod files;
pub mod ledger;
pub mod lifecycle;
pub mod mint;
pub mod notary;
pub mod papers;
pub mod pki;
mod revocation;
pub mod rollover;
mod rustls_side;
pub mod show;
pub mod spiffe;
mod validity;
pub mod verifier;

/// The protocol named in the handshake of a link.
pub const ALPN: &[u8] = b"tombolo/1";

/// The protocol named in the handshake of a tunnel.
pub const TUNNEL: &[u8] = b"tombolo-tunnel/1";

/// The wall clock: seconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// One node's identity, with everything that TLS needs.
pub struct NodeIdentity {
    node: NodeId,
    clock: Clock,
    bundle: Arc<ArcSwap<Bundle>>,
    /// What is shown in handshakes.
    shows: Arc<dyn Shows>,
    server: rustls::ServerConfig,
    client: rustls::ClientConfig,
    /// The protocol of what it dials.
    speaks: &'static [u8],
    /// Signs the record: the key of the certificate that the record tells.
    signs: ArcSwap<CertifiedKey>,
    /// Where all of it comes from, if it may change.
    source: Option<Source>,
    /// Held by whoever changes the bundle.
    changing: Mutex<()>,
}

/// The files of a node.
struct Source {
    plan: Plan,
    pair: Arc<ArcSwap<CertifiedKey>>,
    seen: Mutex<Seen>,
}

/// What was found at the last look.
#[derive(Default)]
struct Seen {
    stamps: Vec<Stamp>,
    kept: Option<String>,
}

/// What changes when a file does: inode, length, and the nanoseconds of its last changes; none without a file.
type Stamp = Option<(u64, u64, [i64; 4])>;

impl NodeIdentity {
    /// Reads the roots of all domains and the certificate and key of `node` from the files that the plan names.
    ///
    /// # Errors
    ///
    /// Names the file and what is wrong: missing, open to others, not the pinned root, another node's, key of another certificate, not signed
    /// by the domain's root, not yet or no longer valid, revoked.
    pub fn load(
        plan: &Plan,
        node: &NodeId,
        clock: Clock,
    ) -> Result<Arc<dyn Identity>, IdentityError> {
        Ok(Arc::new(Self::read(plan, node, clock)?))
    }

    /// As [`NodeIdentity::load`], of a node that dials others in order to measure its links: who is at work tells it so, and takes it for no member.
    ///
    /// # Errors
    ///
    /// As [`NodeIdentity::load`].
    pub fn load_for_preflight(
        plan: &Plan,
        node: &NodeId,
        clock: Clock,
    ) -> Result<Arc<dyn Identity>, IdentityError> {
        let mut identity = Self::read(plan, node, clock)?;
        identity.speaks = PREFLIGHT;
        Ok(Arc::new(identity))
    }

    fn read(plan: &Plan, node: &NodeId, clock: Clock) -> Result<NodeIdentity, IdentityError> {
        plan.node(node).ok_or_else(|| unknown(node))?;
        let stamps = stamps(plan, node);
        let bundle = Bundle::load(plan)?;
        let pair = read_pair(plan, node, &bundle, clock())?;
        let pair = Arc::new(ArcSwap::new(pair));
        let seen = Mutex::new(Seen { stamps, kept: None });
        let source = Source {
            plan: plan.clone(),
            pair: pair.clone(),
            seen,
        };
        let signs = pair.load_full();
        let mut identity = NodeIdentity::new(node, bundle, pair, signs, clock)?;
        identity.source = Some(source);
        Ok(identity)
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
            certified(vec![certificate], &key, &provider)
        };
        let pair = Arc::new(make(Standing::Good)?);
        let wallet = Arc::new(Wallet::new(papers, make)?);
        Ok(Arc::new(NodeIdentity::new(
            node, bundle, wallet, pair, clock,
        )?))
    }

    fn new(
        node: &NodeId,
        bundle: Bundle,
        shows: Arc<dyn Shows>,
        signs: Arc<CertifiedKey>,
        clock: Clock,
    ) -> Result<NodeIdentity, IdentityError> {
        let provider = bundle.provider().clone();
        let bundle = Arc::new(ArcSwap::from_pointee(bundle));
        let verifier = Arc::new(Verifier::new(bundle.clone(), None));
        let resolver = Arc::new(Resolver(shows.clone()));
        let time = Arc::new(WallClock(clock.clone()));
        let library = |error: rustls::Error| IdentityError::Library(error.to_string());

        let mut server = rustls::ServerConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(library)?
            .with_client_cert_verifier(verifier.clone())
            .with_cert_resolver(resolver.clone());
        // A preflight is let in far enough to be told whom it has met.
        server.alpn_protocols = vec![ALPN.to_vec(), TUNNEL.to_vec(), PREFLIGHT.to_vec()];
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;

        let mut client = rustls::ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(library)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(resolver);
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_early_data = false;

        Ok(NodeIdentity {
            node: node.clone(),
            clock,
            bundle,
            shows,
            server,
            client,
            speaks: ALPN,
            signs: ArcSwap::new(signs),
            source: None,
            changing: Mutex::new(()),
        })
    }

    fn client_for(
        &self,
        peer: &NodeId,
        protocol: &[u8],
    ) -> (Arc<dyn quinn::crypto::ClientConfig>, String) {
        let mut config = self.client.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(Verifier::new(
                self.bundle.clone(),
                Some(peer.clone()),
            )));
        let config = quinn::crypto::rustls::QuicClientConfig::try_from(config)
            .expect("the provider has QUIC's initial cipher suite");
        (
            Arc::new(config),
            spiffe::server_name(self.bundle.load().federation(), peer),
        )
    }

    fn now(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs((self.clock)()))
    }

    fn shown(&self) -> Option<CertificateDer<'static>> {
        self.shows.shown()?.cert.first().cloned()
    }

    /// Reads the roots and lists anew; says what is otherwise, and what was not taken.
    fn refresh_bundle(&self, source: &Source, found: &mut Refreshed) {
        let _changing = lock(&self.changing);
        let before = self.bundle.load_full();
        match Bundle::read(&source.plan, Some(&before)) {
            Err(error) => found.kept = Some(error.to_string()),
            Ok((bundle, fault)) => {
                found.kept = fault.map(|fault| fault.to_string());
                found.changes.extend(bundle.changes(&before));
                if !found.changes.is_empty() {
                    self.bundle.store(Arc::new(bundle));
                }
            }
        }
    }

    /// Reads the pair anew.
    fn refresh_pair(&self, source: &Source, found: &mut Refreshed) {
        let bundle = self.bundle.load();
        match read_pair(&source.plan, &self.node, &bundle, (self.clock)()) {
            Err(error) => found.kept = Some(error.to_string()),
            Ok(pair) if pair.cert != source.pair.load().cert => {
                source.pair.store(pair);
                found.changes.push(Change::Rotated(self.own()));
            }
            Ok(_) => {}
        }
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

    fn purpose(&self, handshake: Option<Box<dyn Any>>) -> Purpose {
        let data =
            handshake.and_then(|data| data.downcast::<quinn::crypto::rustls::HandshakeData>().ok());
        match data.and_then(|data| data.protocol) {
            Some(protocol) if protocol == TUNNEL => Purpose::Tunnel,
            Some(protocol) if protocol == PREFLIGHT => Purpose::Preflight,
            _ => Purpose::Link,
        }
    }

    fn client(&self, peer: &NodeId) -> (Arc<dyn quinn::crypto::ClientConfig>, String) {
        self.client_for(peer, self.speaks)
    }

    fn tunnel(&self, peer: &NodeId) -> (Arc<dyn quinn::crypto::ClientConfig>, String) {
        self.client_for(peer, TUNNEL)
    }

    fn roots(&self) -> Vec<(DomainId, Vec<u8>)> {
        self.bundle.load().certificates()
    }

    fn peer(&self, identity: Option<Box<dyn Any>>) -> Result<NodeId, IdentityError> {
        let chain = chain_of(identity)?;
        let bundle = self.bundle.load();
        let node = spiffe::node_of(bundle.federation(), &chain[0])?;
        bundle.knows(&node)?;
        Ok(node)
    }

    fn own(&self) -> Paper {
        let shown = self.shows.shown();
        shown.map_or_else(Paper::default, |shown| paper(&shown.cert))
    }

    fn recheck(&self, identity: Option<Box<dyn Any>>) -> Result<Paper, IdentityError> {
        let chain = chain_of(identity)?;
        let bundle = self.bundle.load();
        bundle.verify(&chain[0], &chain[1..], self.now(), Role::Either)?;
        Ok(paper(&chain))
    }

    fn is_watched(&self) -> bool {
        self.source.is_some()
    }

    fn refresh(&self) -> Refreshed {
        let mut found = Refreshed::default();
        let Some(source) = &self.source else {
            return found;
        };
        let mut seen = lock(&source.seen);
        // Before anything is read: what changes meanwhile is read at the next look.
        let stamps = stamps(&source.plan, &self.node);
        if stamps == seen.stamps && seen.kept.is_none() {
            return found;
        }
        self.refresh_bundle(source, &mut found);
        // What is wrong with the one keeps nobody from the other.
        let of_bundle = found.kept.take();
        self.refresh_pair(source, &mut found);
        found.kept = match (of_bundle, found.kept.take()) {
            (Some(one), Some(other)) => Some(format!("{one}; {other}")),
            (one, other) => one.or(other),
        };
        seen.stamps = stamps;
        // What time it is now is no news.
        let point = |reason: &Option<String>| {
            let point = reason.as_ref()?.split(", now ").next();
            point.map(ToOwned::to_owned)
        };
        if point(&seen.kept) == point(&found.kept) {
            found.kept.clone_from(&seen.kept);
        }
        seen.kept.clone_from(&found.kept);
        found
    }

    fn sign_as(&self, certificate: &[u8]) {
        let newest = match &self.source {
            Some(source) => source.pair.load_full(),
            None => return,
        };
        if newest
            .cert
            .first()
            .is_some_and(|leaf| **leaf == *certificate)
        {
            self.signs.store(newest);
        }
    }

    fn revocations(&self) -> Vec<Vec<u8>> {
        let bundle = self.bundle.load();
        bundle.lists().map(|list| list.der().to_vec()).collect()
    }

    fn own_fault(&self) -> Option<String> {
        let shown = self.shows.shown()?;
        let bundle = self.bundle.load();
        let checked = bundle.verify(
            shown.cert.first()?,
            &shown.cert[1..],
            self.now(),
            Role::Either,
        );
        match checked {
            Err(fault @ PeerFault::Revoked { .. }) => Some(fault.to_string()),
            _ => None,
        }
    }

    fn list_name(&self, list: &[u8]) -> String {
        let bundle = self.bundle.load();
        let list = List::read(list).ok();
        let root = list.as_ref().and_then(|list| bundle.issuer(list));
        root.map(|(_, sha256)| sha256.to_owned())
            .unwrap_or_default()
    }

    fn revoke(&self, list: &[u8]) -> Result<Option<Revocations>, Unlisted> {
        let list = Arc::new(List::read(list).map_err(Unlisted::Wrong)?);
        let _changing = lock(&self.changing);
        let mut bundle = Bundle::clone(&self.bundle.load());
        if bundle.issuer(&list).is_none() {
            return Err(Unlisted::Unrooted);
        }
        let taken = bundle.take(list);
        if taken.is_some() {
            self.bundle.store(Arc::new(bundle));
        }
        Ok(taken)
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

    fn list(&self, roots: &[Vec<u8>], list: &[u8]) -> Result<(), String> {
        record::Verifier::list(&Notary, roots, list)
    }

    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool {
        record::Verifier::verify(&Notary, key, message, signature)
    }
}

impl Signer for NodeIdentity {
    fn certificate(&self) -> Vec<u8> {
        let shown = match &self.source {
            Some(_) => self.shown(),
            // In a simulation it goes stale, and the record needs one that was once good.
            None => self.signs.load().cert.first().cloned(),
        };
        shown.map(|leaf| leaf.to_vec()).unwrap_or_default()
    }

    fn sign(&self, message: &[u8]) -> Result<(PublicKey, Signature), String> {
        notary::sign(&self.signs.load(), message)
    }

    fn pins(&self, domain: &DomainId, root: &[u8]) -> bool {
        self.bundle.load().pins(domain, root)
    }
}

/// The node's pair as it lies on disk, good for both sides of a handshake at `now`.
fn read_pair(
    plan: &Plan,
    node: &NodeId,
    bundle: &Bundle,
    now: u64,
) -> Result<Arc<CertifiedKey>, IdentityError> {
    let domain = plan.domain(&node.domain()).ok_or_else(|| unknown(node))?;
    let files = DomainFiles::of_plan(domain);
    let (chain, key) = files.read_pair(node.name())?;
    let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
    for role in [Role::Client, Role::Server] {
        bundle
            .verify(&chain[0], &chain[1..], now, role)
            .and_then(|found| spiffe::expect(&plan.name, node, &found))
            .map_err(|fault| IdentityError::Material {
                path: files.leaf(node.name()),
                fault: own_fault(fault, &files),
            })?;
    }
    Ok(Arc::new(certified(chain, &key, bundle.provider())?))
}

/// How all files look of which a node's identity is made.
fn stamps(plan: &Plan, node: &NodeId) -> Vec<Stamp> {
    let mut stamps = Vec::new();
    for domain in &plan.domains {
        let files = DomainFiles::of_plan(domain);
        stamps.extend([stamp(files.root()), stamp(&files.lists())]);
        if domain.id == node.domain() {
            stamps.push(stamp(&files.leaf(node.name())));
            stamps.push(stamp(&files.leaf_key(node.name())));
            stamps.push(stamp(&files.next_leaf_key(node.name())));
        }
    }
    stamps
}

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    let times = [
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
    ];
    Some((found.ino(), found.len(), times))
}

fn unix(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// The certificates that a TLS peer has shown: at least one.
fn chain_of(identity: Option<Box<dyn Any>>) -> Result<Vec<CertificateDer<'static>>, PeerFault> {
    identity
        .and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok())
        .map(|chain| *chain)
        .filter(|chain| !chain.is_empty())
        .ok_or(PeerFault::Anonymous)
}

/// The first certificate of a chain, good as long as all of them are.
fn paper(chain: &[CertificateDer<'static>]) -> Paper {
    let Some(leaf) = chain.first() else {
        return Paper::default();
    };
    let mut paper = Paper {
        serial: bundle::serial(leaf),
        sha256: files::hex(&files::sha256(leaf)),
        not_before: 0,
        not_after: u64::MAX,
    };
    for validity in chain.iter().filter_map(|each| Validity::of(each).ok()) {
        paper.not_before = paper.not_before.max(validity.not_before);
        paper.not_after = paper.not_after.min(validity.not_after);
    }
    paper
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
    chain: Vec<CertificateDer<'static>>,
    key: &rcgen::KeyPair,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, IdentityError> {
    let key = PrivateKeyDer::try_from(key.serialize_der())
        .map_err(|error| IdentityError::Library(error.into()))?;
    CertifiedKey::from_der(chain, key, provider)
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
            next: "renew it with `tombolo certs rotate`".into(),
        },
        PeerFault::Revoked { serial, number, .. } => MaterialFault::Revoked { serial, number },
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
