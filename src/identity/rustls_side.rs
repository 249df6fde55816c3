//! What a node shows and what time it is, as rustls asks for them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::UnixTime;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;

use super::Clock;

/// Which certificate a node shows.
pub(super) trait Shows: Send + Sync {
    fn shown(&self) -> Option<Arc<CertifiedKey>>;
}

impl Shows for ArcSwap<CertifiedKey> {
    fn shown(&self) -> Option<Arc<CertifiedKey>> {
        Some(self.load_full())
    }
}

/// What a node shows, as rustls asks for it.
pub(super) struct Resolver(pub Arc<dyn Shows>);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.shown()
    }
}

impl ResolvesClientCert for Resolver {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.shown()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The caller's clock, as rustls asks for it.
pub(super) struct WallClock(pub Clock);

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
