//! Two nodes with certificates, and the TLS settings that nodes do not have.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ServerConfig, SignatureScheme};

use super::super::link::quic::TOPOLOGY;
use tombolo::actors::identity::Identity;
use tombolo::identity::bundle::Bundle;
use tombolo::identity::files::DomainFiles;
use tombolo::identity::verifier::Verifier;
use tombolo::identity::{ALPN, NodeIdentity, pki, spiffe};
use tombolo::topology;
use tombolo::world::unix_now;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;

/// Two nodes of two domains, as they lie on disk.
pub struct Site {
    pub folder: PathBuf,
    pub plan: Plan,
    pub from: Arc<dyn Identity>,
    pub to: Arc<dyn Identity>,
}

impl Site {
    pub fn new(folder: &Path) -> io::Result<Site> {
        let plan = topology::parse("bench", TOPOLOGY, folder).map_err(io::Error::other)?;
        pki::ensure_dev_pki(&plan, unix_now()).map_err(io::Error::other)?;
        let load = |name: &str| {
            let node: NodeId = name.parse().map_err(io::Error::other)?;
            NodeIdentity::load(&plan, &node, Arc::new(unix_now)).map_err(io::Error::other)
        };
        let (from, to) = (load("from/gate")?, load("to/gate")?);
        Ok(Site {
            folder: folder.to_owned(),
            plan,
            from,
            to,
        })
    }
}

/// With which key exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// What nodes begin with.
    Hybrid,
    Classic,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::Hybrid => "X25519MLKEM768",
            Group::Classic => "X25519",
        }
    }
}

/// Settings of who dials and of who answers. Neither knows another group, so it is this one or none.
pub struct Sides {
    pub client: ClientConfig,
    pub server: ServerConfig,
    /// The server name to send.
    pub name: String,
    pub resumes: bool,
    /// How often who dials was asked for its certificate: in a handshake that is resumed it is not.
    asked: Arc<AtomicU64>,
}

impl Sides {
    pub fn new(site: &Site, group: Group, resumes: bool) -> io::Result<Sides> {
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = vec![match group {
            Group::Hybrid => kx_group::X25519MLKEM768,
            Group::Classic => kx_group::X25519,
        }];
        let provider = Arc::new(provider);
        let verifier = |expected: Option<NodeId>| -> io::Result<Arc<Verifier>> {
            let bundle = Bundle::load(&site.plan).map_err(io::Error::other)?;
            let bundle = Arc::new(arc_swap::ArcSwap::from_pointee(bundle));
            Ok(Arc::new(Verifier::new(bundle, expected)))
        };
        let (from, to) = (site.from.node(), site.to.node());
        let (chain, key) = pair(&site.plan, to)?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier(None)?)
            .with_single_cert(chain, key)
            .map_err(io::Error::other)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.send_tls13_tickets = usize::from(resumes);
        if !resumes {
            server.session_storage = Arc::new(NoServerSessionStorage {});
        }
        let (chain, key) = pair(&site.plan, from)?;
        let shown = CertifiedKey::from_der(chain, key, &provider).map_err(io::Error::other)?;
        let asked = Arc::new(AtomicU64::new(0));
        let shows = Shows {
            pair: Arc::new(shown),
            asked: asked.clone(),
        };
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier(Some(to.clone()))?)
            .with_client_cert_resolver(Arc::new(shows));
        client.alpn_protocols = vec![ALPN.to_vec()];
        if !resumes {
            client.resumption = Resumption::disabled();
        }
        Ok(Sides {
            client,
            server,
            name: spiffe::server_name(&site.plan.name, to),
            resumes,
            asked,
        })
    }

    /// Whether the handshakes since the last call, which was one, went as they should; the first one has nothing to resume.
    pub fn went_right(&self, is_first: bool) -> bool {
        let asked = self.asked.swap(0, Ordering::Relaxed);
        asked == u64::from(is_first || !self.resumes)
    }
}

/// A node's certificate and key.
fn pair(
    plan: &Plan,
    node: &NodeId,
) -> io::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let domain = plan.domain(&node.domain());
    let domain = domain.ok_or_else(|| io::Error::other("a node without a domain"))?;
    let files = DomainFiles::of_plan(domain);
    let chain = CertificateDer::pem_file_iter(files.leaf(node.name())).map_err(io::Error::other)?;
    let chain: Result<Vec<_>, _> = chain.collect();
    let key = PrivateKeyDer::from_pem_file(files.leaf_key(node.name()));
    Ok((
        chain.map_err(io::Error::other)?,
        key.map_err(io::Error::other)?,
    ))
}

/// Shows a certificate, and counts.
#[derive(Debug)]
struct Shows {
    pair: Arc<CertifiedKey>,
    asked: Arc<AtomicU64>,
}

impl ResolvesClientCert for Shows {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Some(self.pair.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
