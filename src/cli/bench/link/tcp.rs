//! The baselines: blocking TCP, plain and under TLS 1.3, a thread for each end.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use bytes::Bytes;
use rcgen::CertifiedKey;
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConnection, RootCertStore, ServerConnection, StreamOwned};

use super::{Path, Taken, is_right};

/// Bytes of one call: large enough that calls cost nothing, small enough to stay in cache.
const PIECE: usize = 256 << 10;

/// The name in the certificate of the baseline.
const NAME: &str = "localhost";

/// Without TLS.
pub struct Plain(Ends<TcpStream, TcpStream>);

/// With TLS 1.3 by rustls on aws-lc.
pub struct Secured(
    Ends<StreamOwned<ClientConnection, TcpStream>, StreamOwned<ServerConnection, TcpStream>>,
);

struct Ends<S, R> {
    sender: S,
    receiver: R,
    object: Bytes,
    taken: Taken,
    /// The piece that was read, or all that came.
    buffer: Vec<u8>,
}

impl Plain {
    pub fn open(object: &Bytes, taken: Taken) -> io::Result<Plain> {
        let (sender, receiver) = connected()?;
        Ok(Plain(Ends::new(sender, receiver, object, taken)))
    }
}

impl Secured {
    pub fn open(object: &Bytes, taken: Taken) -> io::Result<Secured> {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone()).map_err(io::Error::other)?;
        let client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
        let server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key.into())
            .map_err(io::Error::other)?;
        let (sender, receiver) = connected()?;
        let name = ServerName::try_from(NAME).expect("it is a host name");
        let client = ClientConnection::new(Arc::new(client), name).map_err(io::Error::other)?;
        let server = ServerConnection::new(Arc::new(server)).map_err(io::Error::other)?;
        let (sender, receiver) = (
            StreamOwned::new(client, sender),
            StreamOwned::new(server, receiver),
        );
        Ok(Secured(Ends::new(sender, receiver, object, taken)))
    }
}

impl Path for Plain {
    fn pass(&mut self, is_first: bool) -> io::Result<bool> {
        self.0.pass(is_first)
    }
}

impl Path for Secured {
    fn pass(&mut self, is_first: bool) -> io::Result<bool> {
        self.0.pass(is_first)
    }
}

impl<S: Write + Send, R: Read + Send> Ends<S, R> {
    fn new(sender: S, receiver: R, object: &Bytes, taken: Taken) -> Self {
        let buffer = match taken {
            Taken::InPieces => PIECE.min(object.len()),
            Taken::AsOneTensor => object.len(),
        };
        Ends {
            sender,
            receiver,
            object: object.clone(),
            taken,
            buffer: vec![0; buffer],
        }
    }

    fn pass(&mut self, is_first: bool) -> io::Result<bool> {
        let Ends {
            sender,
            receiver,
            object,
            taken,
            buffer,
        } = self;
        std::thread::scope(|scope| {
            let received = scope.spawn(|| match taken {
                Taken::InPieces => receive(receiver, buffer, object.len(), is_first),
                Taken::AsOneTensor => {
                    receiver.read_exact(buffer)?;
                    Ok(is_right(buffer, 0, is_first))
                }
            });
            for piece in object.chunks(PIECE) {
                sender.write_all(piece)?;
            }
            sender.flush()?;
            let panicked = |_| Err(io::Error::other("the receiver ended"));
            received.join().unwrap_or_else(panicked)
        })
    }
}

/// Takes so many bytes of an object; whether they are right.
pub fn receive(
    receiver: &mut impl Read,
    buffer: &mut [u8],
    bytes: usize,
    is_first: bool,
) -> io::Result<bool> {
    let (mut at, mut right) = (0, true);
    while at < bytes {
        let room = buffer.len().min(bytes - at);
        let count = receiver.read(&mut buffer[..room])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        right &= is_right(&buffer[..count], at, is_first);
        at += count;
    }
    Ok(right)
}

/// Both ends of a connection of this machine with itself.
pub fn connected() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    sender.set_nodelay(true)?;
    let (receiver, _) = listener.accept()?;
    Ok((sender, receiver))
}
