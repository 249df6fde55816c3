//! For simulation: a node whose certificate may go stale while it runs.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use rustls::sign::CertifiedKey;
use tombolo_actors::identity::IdentityError;

use super::Shows;
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
    /// It does until a minute after simulations begin.
    Brief,
}

impl Standing {
    /// All of them, in the order of their numbers.
    const ALL: [Standing; 4] = [
        Standing::Good,
        Standing::Expired,
        Standing::NotYetValid,
        Standing::Brief,
    ];

    pub(super) fn validity(self) -> Validity {
        match self {
            Standing::Good => Validity::SIMULATED,
            Standing::Expired => Validity::EXPIRED,
            Standing::NotYetValid => Validity::NOT_YET,
            Standing::Brief => Validity::BRIEF,
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
    made: [OnceLock<Option<Arc<CertifiedKey>>>; 4],
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
            made: [good, OnceLock::new(), OnceLock::new(), OnceLock::new()],
        })
    }
}

impl Shows for Wallet {
    fn shown(&self) -> Option<Arc<CertifiedKey>> {
        let shown = self.papers.shown();
        let made = &self.made[shown as usize];
        made.get_or_init(|| (self.make)(shown).ok().map(Arc::new))
            .clone()
    }
}
