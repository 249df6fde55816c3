//! Real quinn endpoints that echo datagrams and count streams, on whatever `Env` they are given.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::HashedConnectionIdGenerator;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use tombolo_actors::env::{Class, Env};
use tombolo_core::ids::NodeId;

/// One certificate for all servers of a run.
#[derive(Clone)]
pub struct Tls {
    pub server: quinn::ServerConfig,
    pub client: quinn::ClientConfig,
}

fn transport() -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport.max_idle_timeout(Some(quinn::VarInt::from_u32(3000).into()));
    // Above the product of bandwidth and delay of every path here, so that only the path limits.
    transport.stream_receive_window(quinn::VarInt::from_u32(8 << 20));
    Arc::new(transport)
}

/// New keys each time: their contents must not matter to a trace, only their sizes, and those are fixed for Ed25519.
pub fn tls() -> Tls {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["echo.test".to_owned()]).unwrap();
    params.serial_number = Some(rcgen::SerialNumber::from(7u64));
    let certificate: CertificateDer<'static> = params.self_signed(&key).unwrap().der().clone();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], private)
        .unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut server =
        quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server).unwrap()));
    server.transport_config(transport());
    let mut client =
        quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).unwrap()));
    client.transport_config(transport());
    Tls { server, client }
}

/// An endpoint as the product makes one: seeded, and recognised after a restart.
pub fn endpoint(env: &dyn Env, bind: &str, server: Option<quinn::ServerConfig>) -> quinn::Endpoint {
    let reset_key = env.reset_key();
    let cid_key = u64::from_le_bytes(reset_key[..8].try_into().unwrap());
    let hmac = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &reset_key);
    let mut config = quinn::EndpointConfig::new(Arc::new(hmac));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(cid_key)));
    config.rng_seed(env.endpoint_seed());
    let (socket, runtime) = env.bind(bind.parse().unwrap()).unwrap();
    quinn::Endpoint::new_with_abstract_socket(config, server, socket, runtime).unwrap()
}

/// Starts a server that sends every datagram back and counts the bytes of every stream.
pub fn serve(env: &Arc<dyn Env>, name: &NodeId, bind: &'static str, tls: &Tls) -> Arc<AtomicU64> {
    let read = Arc::new(AtomicU64::new(0));
    let (env2, name, config, count) = (env.clone(), name.clone(), tls.server.clone(), read.clone());
    env.spawn(
        Class::Gateway,
        Box::new(move || {
            Box::pin(async move {
                let endpoint = endpoint(&*env2, bind, Some(config));
                env2.advertise(&name, endpoint.local_addr().unwrap())
                    .unwrap();
                while let Some(incoming) = endpoint.accept().await {
                    let count = count.clone();
                    // On purpose not through the Env: whatever a node's tasks start must end with the node.
                    tokio::task::spawn_local(async move {
                        let Ok(connection) = incoming.await else {
                            return;
                        };
                        tokio::task::spawn_local(drain(connection.clone(), count));
                        while let Ok(datagram) = connection.read_datagram().await {
                            let _ = connection.send_datagram(datagram);
                        }
                    });
                }
            })
        }),
    );
    read
}

async fn drain(connection: quinn::Connection, count: Arc<AtomicU64>) {
    while let Ok(mut stream) = connection.accept_uni().await {
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
            count.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        }
    }
}

/// What a client has seen.
#[derive(Default)]
pub struct Seen {
    pub echoes: AtomicU64,
    /// When the connection was made and lost.
    pub log: Mutex<Vec<(Duration, String)>>,
}

impl Seen {
    pub fn echoes(&self) -> u64 {
        self.echoes.load(Ordering::Relaxed)
    }
}

/// Starts a client that sends a datagram twice a second and dials anew when the connection is lost.
pub fn dial(env: &Arc<dyn Env>, server: &NodeId, tls: &Tls) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let (env2, server, tls, seen2) = (env.clone(), server.clone(), tls.clone(), seen.clone());
    env.spawn(
        Class::Node,
        Box::new(move || {
            Box::pin(async move {
                let endpoint = endpoint(&*env2, "0.0.0.0:0", None);
                loop {
                    let why = once(&env2, &endpoint, &server, &tls, &seen2).await;
                    let at = Duration::from_micros(env2.now().0);
                    seen2.log.lock().unwrap().push((at, why));
                    env2.sleep(Duration::from_secs(1)).await;
                }
            })
        }),
    );
    seen
}

/// One connection, from dialling to its loss.
async fn once(
    env: &Arc<dyn Env>,
    endpoint: &quinn::Endpoint,
    server: &NodeId,
    tls: &Tls,
    seen: &Arc<Seen>,
) -> String {
    let connection = match connect(env, endpoint, server, tls).await {
        Ok(connection) => connection,
        Err(why) => return why,
    };
    let at = Duration::from_micros(env.now().0);
    seen.log.lock().unwrap().push((at, "up".to_owned()));
    let (reader, counter) = (connection.clone(), seen.clone());
    tokio::task::spawn_local(async move {
        while reader.read_datagram().await.is_ok() {
            counter.echoes.fetch_add(1, Ordering::Relaxed);
        }
    });
    loop {
        if let Err(error) = connection.send_datagram(vec![7; 64].into()) {
            return error.to_string();
        }
        env.sleep(Duration::from_millis(500)).await;
    }
}

pub async fn connect(
    env: &Arc<dyn Env>,
    endpoint: &quinn::Endpoint,
    server: &NodeId,
    tls: &Tls,
) -> Result<quinn::Connection, String> {
    let addresses: Vec<SocketAddr> = env.resolve(server).await.map_err(|e| e.to_string())?;
    endpoint
        .connect_with(tls.client.clone(), addresses[0], "echo.test")
        .map_err(|error| error.to_string())?
        .await
        .map_err(|error| error.to_string())
}
