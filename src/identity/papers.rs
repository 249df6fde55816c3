//! For simulation: a node whose certificate may go stale while it runs.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tombolo_actors::identity::IdentityError;

use super::validity::Validity;

/// Whether the certificate that a node shows counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// It does.
    Good,
    /// Its time is over.
    Expired,
    /// Its time has not come.
    NotYetValid,
}

impl Standing {
    /// All of them, in the order of their numbers.
    const ALL: [Standing; 3] = [Standing::Good, Standing::Expired, Standing::NotYetValid];

    pub(super) fn validity(self) -> Validity {
        match self {
            Standing::Good => Validity::SIMULATED,
            Standing::Expired => Validity::EXPIRED,
            Standing::NotYetValid => Validity::NOT_YET,
        }
    }
}

/// Which of its certificates a node shows in handshakes to come; a handle. Connections that stand are not asked again.
#[derive(Debug, Clone, Default)]
pub struct Papers(Arc<AtomicU8>);

impl Papers {
    /// Shows another one from now on.
    pub fn show(&self, standing: Standing) {
        self.0.store(standing as u8, Ordering::Relaxed);
    }

    fn shown(&self) -> Standing {
        Standing::ALL[usize::from(self.0.load(Ordering::Relaxed))]
    }
}

/// A node's certificates of every standing, with its one key. Only the good one is made before it is shown.
pub(super) struct Wallet {
    papers: Papers,
    make: Box<dyn Fn(Standing) -> Result<CertifiedKey, IdentityError> + Send + Sync>,
    made: [OnceLock<Option<Arc<CertifiedKey>>>; 3],
}

impl Wallet {
    pub(super) fn new(
        papers: Papers,
        make: impl Fn(Standing) -> Result<CertifiedKey, IdentityError> + Send + Sync + 'static,
    ) -> Result<Wallet, IdentityError> {
        let good = OnceLock::from(Some(Arc::new(make(Standing::Good)?)));
        Ok(Wallet {
            papers,
            make: Box::new(make),
            made: [good, OnceLock::new(), OnceLock::new()],
        })
    }

    fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        let shown = self.papers.shown();
        let made = &self.made[shown as usize];
        made.get_or_init(|| (self.make)(shown).ok().map(Arc::new))
            .clone()
    }
}

impl std::fmt::Debug for Wallet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wallet")
    }
}

impl ResolvesServerCert for Wallet {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.certificate()
    }
}

impl ResolvesClientCert for Wallet {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.certificate()
    }

    fn has_certs(&self) -> bool {
        true
    }
}
