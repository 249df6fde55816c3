//! The page over HTTP, on loopback, for whoever has the token.
//!
//! A run never waits for a page. Events go into the picture as they are heard, and copies of them into a short queue for each page that
//! listens; one whose queue is full is dropped, and told so. What a client may take is bounded: its headers, its time, the number of
//! connections. Nothing can be changed from here: there is no request that does anything.

mod answer;
mod clients;
mod gate;
pub use gate::TOKEN_VARIABLE;
mod patience;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;

use super::picture::Picture;
use crate::explain::Past;
use crate::federation::Ledger;
use clients::Clients;
use gate::Token;
use patience::Patient;
use tombolo_core::event::Event;

/// Connections at a time: a few pages, each with its stream and a request, and a few readers of metrics.
const CONNECTIONS_MAX: usize = 64;

/// Connections beyond those that are told so, instead of being cut.
const REFUSED_MAX: usize = 8;

/// How long a client may take to send its headers, or to read anything of what it asked for.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of a request's line and headers. What browsers send is a tenth of it.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// Bytes for a client that the system keeps.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// How long pages may take to look at the end of a run.
const FAREWELL: Duration = Duration::from_millis(400);

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n\
too many connections; close other pages of this run, or wait a moment\n";

/// Why there is no page. Whoever gave the address is to blame.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DashboardError {
    /// Others could read it, and the token, on the way.
    #[error(
        "the page is served without encryption, so on loopback only, not on {0}; take 127.0.0.1:{port}, and from elsewhere `ssh -L {port}:127.0.0.1:{port} HOST`", port = match .0.port() { 0 => 4601, port => port }
    )]
    NotLoopback(SocketAddr),
    /// The address cannot be had.
    #[error("cannot serve the page on {address}: {reason}; take another port, or 0 for a free one")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// The system's words.
        reason: String,
    },
    /// A token from outside that is too easy to guess, or cannot stand in an address.
    #[error(
        "{} must be at least {} letters and digits of ASCII; leave it out, and one is drawn",
        gate::TOKEN_VARIABLE,
        gate::TOKEN_LENGTH_MIN
    )]
    Token,
}

/// What is shown, and to whom.
struct Shared {
    picture: Mutex<Arc<Picture>>,
    clients: Clients,
    token: Token,
    /// The picture in JSON, and of how many events it was.
    json: Mutex<(u64, axum::body::Bytes)>,
}

/// Takes the events of a run.
#[derive(Clone)]
pub struct Feed(Arc<Shared>);

impl Feed {
    /// Takes a past fact; never waits.
    pub fn push(&self, past: &Past) {
        Arc::make_mut(&mut *lock(&self.0.picture)).apply(past);
        self.0.clients.tell(past);
    }

    /// Events were missed: what the ledger knows of rounds makes up for it.
    fn catch_up(&self, missed: u64, ledger: &Ledger) {
        let mut picture = lock(&self.0.picture);
        let picture = Arc::make_mut(&mut *picture);
        let first = picture.rounds.back().map_or(0, |round| round.round);
        let mut rounds = ledger.rounds_from(0);
        rounds.retain(|record| record.round >= first);
        picture.catch_up(missed, &rounds);
    }
}

impl Shared {
    fn picture(&self) -> Arc<Picture> {
        lock(&self.picture).clone()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A page that is served until this is dropped.
pub struct Dashboard {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Ends with this.
    _accepting: JoinSet<()>,
    followers: JoinSet<()>,
    is_over: watch::Sender<bool>,
}

impl Dashboard {
    /// Begins to serve; port 0 takes a free one. To be called, and kept, in a tokio runtime.
    ///
    /// # Errors
    /// See [`DashboardError`].
    pub async fn serve(address: SocketAddr, picture: Picture) -> Result<Self, DashboardError> {
        if !address.ip().is_loopback() {
            return Err(DashboardError::NotLoopback(address));
        }
        let token = Token::from_environment().ok_or(DashboardError::Token)?;
        let failed = |error: std::io::Error| DashboardError::Listen {
            address,
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            picture: Mutex::new(Arc::new(picture)),
            clients: Clients::default(),
            token,
            json: Mutex::default(),
        });
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, shared.clone()));
        Ok(Dashboard {
            address,
            shared,
            _accepting: accepting,
            followers: JoinSet::new(),
            is_over: watch::Sender::new(false),
        })
    }

    /// Where it is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What `Authorization: Bearer` must say.
    pub fn token(&self) -> &str {
        self.shared.token.as_str()
    }

    /// What a browser opens. The token stands where browsers do not send it anywhere; the page itself does.
    pub fn url(&self) -> String {
        format!("http://{}/#token={}", self.address, self.token())
    }

    /// Takes events from here.
    pub fn feed(&self) -> Feed {
        Feed(self.shared.clone())
    }

    /// Shows what happens in a run; `clock` tells its seconds.
    pub fn follow(
        &mut self,
        mut events: broadcast::Receiver<Event>,
        ledger: Arc<Ledger>,
        clock: impl Fn() -> f64 + Send + 'static,
    ) {
        let feed = self.feed();
        let mut is_over = self.is_over.subscribe();
        self.followers.spawn(async move {
            loop {
                let event = tokio::select! {
                    biased;
                    event = events.recv() => event,
                    // Only once nothing waits any more.
                    _ = is_over.wait_for(|is_over| *is_over) => return,
                };
                match event {
                    Ok(event) => feed.push(&Past {
                        at: clock(),
                        life: 0,
                        event,
                    }),
                    Err(RecvError::Lagged(missed)) => feed.catch_up(missed, &ledger),
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    /// Says that the run is over, once everything that has happened in it is told, and gives pages a moment to look at its end.
    pub async fn close(mut self) {
        self.is_over.send_replace(true);
        let told = async { while self.followers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FAREWELL, told).await;
        if self.shared.clients.end() {
            tokio::time::sleep(FAREWELL).await;
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let router = answer::router(shared);
    let served = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let refused = Arc::new(Semaphore::new(REFUSED_MAX));
    // Ends with this task.
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a client of the page was not accepted");
                    tokio::time::sleep(FAREWELL).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        if let Ok(place) = served.clone().try_acquire_owned() {
            let router = router.clone();
            connections.spawn(async move {
                attend(stream, router).await;
                drop(place);
            });
        } else if let Ok(place) = refused.clone().try_acquire_owned() {
            connections.spawn(async move {
                refuse(stream).await;
                drop(place);
            });
        }
    }
}

async fn attend(stream: TcpStream, router: axum::Router) {
    // It is only slower without.
    let _ = socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER_BYTES);
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        // One request each: nobody holds a connection without asking for something.
        .keep_alive(false)
        .serve_connection(
            TokioIo::new(Patient::new(stream, CLIENT_LIMIT)),
            TowerToHyperService::new(router),
        );
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a client of the page went away");
    }
}

/// Tells a client that it is one too many. It is heard first: an answer to somebody who still talks is lost with the connection.
async fn refuse(mut stream: TcpStream) {
    let talk = async {
        let mut heard = [0; 1024];
        let _ = stream.read(&mut heard).await;
        let _ = stream.write_all(BUSY).await;
        let _ = stream.shutdown().await;
    };
    let _ = tokio::time::timeout(CLIENT_LIMIT, talk).await;
}

#[cfg(test)]
mod tests;
