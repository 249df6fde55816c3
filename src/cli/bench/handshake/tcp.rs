//! Handshakes of TLS over TCP: blocking sockets, a thread for each end.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::Shutdown;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, HandshakeKind, ServerConnection, StreamOwned};

use super::super::measure::now;
use super::settings::{Sides, Site};
use super::{Shaken, Shakes};
use tombolo::actors::identity::Identity;
use tombolo_core::ids::NodeId;

/// What is answered to who is the right one, and to anybody else.
const KNOWN: u8 = 1;
const STRANGER: u8 = 0;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Connections without TLS, and one byte.
pub fn plain(repeat: usize) -> io::Result<Shakes> {
    answered(
        |mut stream| stream.write_all(&[KNOWN]),
        |address| {
            Shakes::take(repeat, |_| {
                let began = now();
                let mut stream = connect(address)?;
                let mut byte = [STRANGER];
                stream.read_exact(&mut byte)?;
                Ok(Shaken {
                    seconds: (now() - began).as_secs_f64(),
                    bytes: 1,
                    ok: byte == [KNOWN],
                })
            })
        },
    )
}

/// Handshakes with these settings.
pub fn shakes(site: &Site, sides: &Sides, repeat: usize) -> io::Result<Shakes> {
    let server = Arc::new(sides.server.clone());
    let client = Arc::new(sides.client.clone());
    let name = ServerName::try_from(sides.name.clone()).map_err(io::Error::other)?;
    let answer = |stream: TcpStream| {
        let mut stream = stream;
        let mut connection = ServerConnection::new(server.clone()).map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream)?;
        }
        let is_known = is_peer(&*site.to, connection.peer_certificates(), site.from.node());
        let word = if is_known { KNOWN } else { STRANGER };
        let mut stream = StreamOwned::new(connection, stream);
        stream.write_all(&[word])?;
        stream.flush()
    };
    answered(answer, |address| {
        Shakes::take(repeat, |is_first| {
            let began = now();
            let connection =
                ClientConnection::new(client.clone(), name.clone()).map_err(io::Error::other)?;
            let counted = Counted {
                inner: connect(address)?,
                bytes: 0,
            };
            let mut stream = StreamOwned::new(connection, counted);
            let mut byte = [STRANGER];
            stream.read_exact(&mut byte)?;
            let seconds = (now() - began).as_secs_f64();
            let kind = match sides.resumes && !is_first {
                true => HandshakeKind::Resumed,
                false => HandshakeKind::Full,
            };
            let peer = is_peer(&*site.from, stream.conn.peer_certificates(), site.to.node());
            Ok(Shaken {
                seconds,
                bytes: stream.sock.bytes,
                ok: byte == [KNOWN]
                    && peer
                    && stream.conn.handshake_kind() == Some(kind)
                    && sides.went_right(is_first),
            })
        })
    })
}

fn is_peer(
    identity: &dyn Identity,
    shown: Option<&[CertificateDer<'static>]>,
    expected: &NodeId,
) -> bool {
    let shown = shown.map(|shown| Box::new(shown.to_vec()) as _);
    identity.peer(shown).is_ok_and(|peer| peer == *expected)
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    prepare(&stream)?;
    Ok(stream)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))
}

/// Dials, while another thread answers each connection.
fn answered<T>(
    answer: impl Fn(TcpStream) -> io::Result<()> + Sync,
    dial: impl FnOnce(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((stream, _)) = listener.accept() {
                // Who dials finds out, and says why.
                let _ = prepare(&stream).and_then(|()| answer(stream));
            }
        });
        let dialled = dial(address);
        // Ends the wait for one more.
        rustix::net::shutdown(&listener, Shutdown::Both)?;
        dialled
    })
}

/// Counts what passes.
struct Counted {
    inner: TcpStream,
    bytes: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

impl Write for Counted {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
