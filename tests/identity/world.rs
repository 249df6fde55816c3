//! Two domains on disk, endpoints that follow the rules and endpoints that do not.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, Error, NamedGroup, SignatureScheme};
use time::OffsetDateTime;
use tombolo::identity::files::DomainFiles;
use tombolo::identity::pki::{self, Terms};
use tombolo::identity::{Clock, NodeIdentity};
use tombolo_actors::identity::{Identity, IdentityError};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::*;

/// When all of this happens, unless a test says otherwise: 2027-01-15T08:00:00Z.
pub const NOW: u64 = 1_800_000_000;
pub const MINUTE: u64 = 60;
pub const HOUR: u64 = 3_600;
pub const DAY: u64 = 86_400;

pub fn node(text: &str) -> NodeId {
    text.parse().unwrap()
}

pub fn clock(now: u64) -> Clock {
    Arc::new(move || now)
}

/// The federation `harbour`: `hq` and `plant`, each with a gateway and a worker, certificates under `folder`.
pub fn plan(folder: &Path) -> Plan {
    let domain = |name: &str| DomainPlan {
        id: name.parse().unwrap(),
        fabric: Fabric::Auto,
        step_shape: tombolo_core::collective::Shape::Direct,
        nodes: ["gate", "a"]
            .map(|it| NodePlan {
                id: node(&format!("{name}/{it}")),
                listen: None,
                advertise: None,
                outbound_only: false,
                slice: None,
            })
            .into(),
        gateways: vec![node(&format!("{name}/gate"))],
        root: folder.join(format!("{name}.pem")),
        root_sha256: Vec::new(),
    };
    Plan {
        name: "harbour".into(),
        rounds: 1,
        sync_every: SyncEvery::Steps(1),
        balance_steps: false,
        coordinator: node("hq/gate"),
        standby: Vec::new(),
        seed: 7,
        round: RoundPlan {
            quorum: Quorum::All,
            deadline: Deadline::Adaptive,
            grace: Duration::ZERO,
            failed_limit: 1,
            close_limit: Duration::ZERO,
            patience: Duration::from_secs(900),
            durability: Durability::Resend,
            absent: Default::default(),
            asynchronous: None,
            codec_down: Default::default(),
        },
        model: ModelPlan {
            trainer: TrainerKind::DigitsSoftmax,
            hidden: 1,
            learning_rate: 0.1,
            batch: 1,
            init: Init::Zeros,
            order: Order::Sequential,
            partition: Partition::Iid,
            ..ModelPlan::default()
        },
        aggregator: AggregatorPlan {
            kind: "fedavg".into(),
            weights: BaseWeights::Samples,
            clip: Clip::None,
            loss_limit: 1.0,
            norm_limit: 1.0,
            penalty: 1.0,
            relative: false,
            ..AggregatorPlan::default()
        },
        outer: OuterPlan {
            optimizer: OuterKind::Sgd,
            learning_rate: 1.0,
            momentum: 0.0,
            ..OuterPlan::default()
        },
        domains: vec![domain("hq"), domain("plant")],
        links: Vec::new(),
        route: Default::default(),
        heartbeat: HeartbeatPlan {
            every: Duration::from_millis(500),
            phi: 8.0,
            retry: Vec::new(),
            restore_limit: Duration::from_secs(60),
            cooldown: Cooldown {
                first: Duration::from_secs(10),
                cap: Duration::from_secs(600),
            },
        },
        security: SecurityPlan::default(),
        checkpoint: CheckpointPlan {
            folder: folder.join("state"),
            store: None,
            every: 1,
            snapshot: Duration::from_secs(10),
            retain_contributions: 0,
        },
        policy: Default::default(),
    }
}

/// A folder with the certificates of the whole federation, made at [`NOW`].
pub struct World {
    folder: tempfile::TempDir,
    pub plan: Plan,
}

impl World {
    pub fn new() -> World {
        let world = World::empty();
        pki::ensure_dev_pki(&world.plan, NOW).unwrap();
        world
    }

    /// The folder without any certificate.
    pub fn empty() -> World {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path());
        World { folder, plan }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn files(&self, domain: &str) -> DomainFiles {
        let domain = self.plan.domain(&domain.parse().unwrap());
        DomainFiles::of_plan(domain.unwrap())
    }

    pub fn load(&self, name: &str) -> Result<Arc<dyn Identity>, IdentityError> {
        self.load_at(name, NOW)
    }

    pub fn load_at(&self, name: &str, now: u64) -> Result<Arc<dyn Identity>, IdentityError> {
        NodeIdentity::load(&self.plan, &node(name), clock(now))
    }

    /// Why `name` cannot be loaded.
    pub fn load_error(&self, name: &str) -> String {
        match self.load(name) {
            Ok(_) => panic!("{name} was loaded"),
            Err(error) => error.to_string(),
        }
    }

    /// Issues `name`'s certificate anew, at another time.
    pub fn reissue(&self, name: &str, now: u64) {
        let id = node(name);
        let terms = Terms {
            replace: true,
            ..Terms::leaf(now)
        };
        pki::issue(&self.files(id.domain().as_str()), "harbour", &id, &terms).unwrap();
    }

    pub fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap()
    }

    pub fn key(&self, name: &str) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap()
    }

    /// A certificate that `domain`'s real authority signs although it should not.
    pub fn forge(&self, domain: &str, uris: &[&str]) -> Forger {
        let root = fs::read_to_string(self.path(&format!("{domain}.pem"))).unwrap();
        let root_key = fs::read_to_string(self.path(&format!("{domain}.key"))).unwrap();
        let issuer =
            Issuer::from_ca_cert_pem(&root, KeyPair::from_pem(&root_key).unwrap()).unwrap();
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = uris
            .iter()
            .map(|uri| SanType::URI((*uri).try_into().unwrap()))
            .collect();
        params.subject_alt_names.push(SanType::DnsName(
            "gate.hq.harbour.tombolo".try_into().unwrap(),
        ));
        params.is_ca = IsCa::ExplicitNoCa;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let date = |unix: u64| OffsetDateTime::from_unix_timestamp(unix as i64).unwrap();
        params.not_before = date(NOW - HOUR);
        params.not_after = date(NOW + HOUR);
        Forger {
            chain: vec![params.signed_by(&key, &issuer).unwrap().der().clone()],
            key: Arc::new(PrivateKeyDer::try_from(key.serialize_der()).unwrap()),
            groups: vec![NamedGroup::X25519MLKEM768, NamedGroup::X25519],
            alpn: "tombolo/1",
            hello: Arc::default(),
        }
    }
}

/// Makes a file its owner's alone.
pub fn private(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// What a server saw of a client's hello.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Hello {
    pub groups: Vec<NamedGroup>,
    pub server_name: String,
}

/// An endpoint that checks nobody and presents what it likes.
#[derive(Debug, Clone)]
pub struct Forger {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: Arc<PrivateKeyDer<'static>>,
    pub groups: Vec<NamedGroup>,
    pub alpn: &'static str,
    pub hello: Arc<Mutex<Hello>>,
}

impl Forger {
    fn provider(&self) -> Arc<CryptoProvider> {
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = aws_lc_rs::ALL_KX_GROUPS.to_vec();
        provider
            .kx_groups
            .retain(|group| self.groups.contains(&group.name()));
        Arc::new(provider)
    }

    pub fn answers(&self) -> quinn::ServerConfig {
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(Arc::new(Anyone))
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = vec![self.alpn.into()];
        quinn::ServerConfig::with_crypto(Arc::new(
            quinn::crypto::rustls::QuicServerConfig::try_from(config).unwrap(),
        ))
    }

    pub fn dials(&self) -> (quinn::ClientConfig, String) {
        let builder = rustls::ClientConfig::builder_with_provider(self.provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone));
        let mut config = if self.chain.is_empty() {
            builder.with_no_client_auth()
        } else {
            builder
                .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
                .unwrap()
        };
        config.alpn_protocols = vec![self.alpn.into()];
        config.enable_early_data = true;
        let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
        (
            quinn::ClientConfig::new(Arc::new(config)),
            "gate.hq.harbour.tombolo".into(),
        )
    }
}

impl ResolvesServerCert for Forger {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        *self.hello.lock().unwrap() = Hello {
            groups: hello.named_groups().unwrap_or_default().to_vec(),
            server_name: hello.server_name().unwrap_or_default().into(),
        };
        CertifiedKey::from_der(self.chain.clone(), self.key.clone_key(), &self.provider())
            .ok()
            .map(Arc::new)
    }
}

/// The settings of an honest server.
pub fn answers(identity: &Arc<dyn Identity>) -> quinn::ServerConfig {
    quinn::ServerConfig::with_crypto(identity.server())
}

/// The settings of an honest client that means `peer`.
pub fn dials(identity: &Arc<dyn Identity>, peer: &str) -> (quinn::ClientConfig, String) {
    let (config, name) = identity.client(&node(peer));
    (quinn::ClientConfig::new(config), name)
}

/// What each side has to say about a handshake.
pub struct Met {
    /// The client's connection, or why there is none.
    pub client: Result<quinn::Connection, String>,
    /// The server's, which knows later.
    pub server: Result<quinn::Connection, String>,
    _endpoints: [quinn::Endpoint; 2],
}

impl Met {
    pub fn client_error(&self) -> &str {
        self.client.as_ref().expect_err("the client accepted")
    }

    pub fn server_error(&self) -> &str {
        self.server.as_ref().expect_err("the server accepted")
    }

    pub fn is_accepted(&self) -> bool {
        self.client.is_ok() && self.server.is_ok()
    }
}

/// One handshake over loopback.
pub async fn meet(server: quinn::ServerConfig, client: (quinn::ClientConfig, String)) -> Met {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let server = quinn::Endpoint::server(server, any).unwrap();
    let dialler = quinn::Endpoint::client(any).unwrap();
    let address = server.local_addr().unwrap();
    let dial = async {
        let connecting = dialler.connect_with(client.0, address, &client.1).unwrap();
        connecting.await.map_err(|error| error.to_string())
    };
    let answer = async {
        let incoming = server.accept().await.expect("the endpoint is open");
        incoming.await.map_err(|error| error.to_string())
    };
    let (client, server_side) = tokio::join!(dial, answer);
    Met {
        client,
        server: server_side,
        _endpoints: [server, dialler],
    }
}

/// Accepts every certificate, as a forger does.
#[derive(Debug)]
struct Anyone;

fn schemes() -> Vec<SignatureScheme> {
    vec![SignatureScheme::ED25519]
}

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

impl ClientCertVerifier for Anyone {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }
    fn client_auth_mandatory(&self) -> bool {
        false
    }
    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}
