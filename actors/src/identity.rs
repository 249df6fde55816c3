//! Who a node is, and how it learns who its peers are.
//!
//! The link layer asks an [`Identity`] for its TLS settings and, once a connection stands, for the name of the peer. Nothing else names a
//! peer: not its address, not the server name in the handshake (which only routes), not what its frames say.

use std::any::Any;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::record::Signer;

/// One node's certificate, key and trust, as the link layer uses them.
pub trait Identity: Signer + Send + Sync + 'static {
    /// The node that this is.
    fn node(&self) -> &NodeId;

    /// How to answer: mutual TLS, any node of the federation.
    fn server(&self) -> Arc<dyn quinn::crypto::ServerConfig>;

    /// How to dial `peer`, and the server name to send. The handshake fails unless that very node answers.
    fn client(&self, peer: &NodeId) -> (Arc<dyn quinn::crypto::ClientConfig>, String);

    /// The same, for a tunnel.
    fn tunnel(&self, peer: &NodeId) -> (Arc<dyn quinn::crypto::ClientConfig>, String) {
        self.client(peer)
    }

    /// What a connection is for, from [`quinn::Connection::handshake_data`].
    fn purpose(&self, _handshake: Option<Box<dyn Any>>) -> Purpose {
        Purpose::Link
    }

    /// The roots that are pinned, domain by domain in order.
    fn roots(&self) -> Vec<(DomainId, Vec<u8>)>;

    /// Who the TLS peer is, from [`quinn::Connection::peer_identity`] of a connection made with these settings.
    ///
    /// This says who it is, not what it may do: whether that node belongs to the plan is for the caller to decide.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Peer`] if there is no certificate or it does not hold exactly one URI name of this federation.
    fn peer(&self, identity: Option<Box<dyn Any>>) -> Result<NodeId, IdentityError>;

    /// The certificate that this node shows in handshakes to come.
    fn own(&self) -> Paper;

    /// What the TLS peer showed, checked again as of now: dates, root, revocation.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Peer`]: it does not count any more, and why.
    fn recheck(&self, identity: Option<Box<dyn Any>>) -> Result<Paper, IdentityError>;

    /// Whether [`Identity::refresh`] may ever find anything.
    fn is_watched(&self) -> bool {
        false
    }

    /// Looks whether the files of which this identity is made have changed, and takes what is sound; the rest stays as it was. Blocks.
    fn refresh(&self) -> Refreshed {
        Refreshed::default()
    }

    /// The record tells that certificate of this node: from here on it is signed with its key, if that is the newest of ours.
    fn sign_as(&self, _certificate: &[u8]) {}

    /// The newest list of revoked certificates of each root that has one, in DER.
    fn revocations(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Why this node's own certificate does not count, if it does not.
    fn own_fault(&self) -> Option<String> {
        None
    }

    /// A name for such a list, the same for all of one root: letters and digits.
    fn list_name(&self, _list: &[u8]) -> String {
        String::new()
    }

    /// Takes a list of revoked certificates if a pinned root has signed it and it is newer than the one that is known; none if it is not newer.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    fn revoke(&self, _list: &[u8]) -> Result<Option<Revocations>, Unlisted> {
        Err(Unlisted::Wrong("no lists are taken here".to_owned()))
    }
}

/// What two nodes have a connection for: agreed upon in its handshake (RFC 7301).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// What the two have to do with each other.
    Link,
    /// What one of them has to do with others, whose datagrams the other one passes on.
    Tunnel,
    /// To be measured, before there is anything to do.
    Preflight,
}

/// Why a list of revoked certificates is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unlisted {
    /// It may be that of a root to come.
    #[error("no root that is pinned here has signed it")]
    Unrooted,
    /// It is none.
    #[error("{0}")]
    Wrong(String),
}

/// A certificate, in short.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paper {
    /// Its serial number, in hexadecimal.
    pub serial: String,
    /// SHA-256 of its DER, in hexadecimal.
    pub sha256: String,
    /// Seconds since 1970, of it and of whatever else was shown with it.
    pub not_before: u64,
    /// The same.
    pub not_after: u64,
}

impl Paper {
    /// Whether less than a third of its life is left.
    pub fn is_due(&self, now: u64) -> bool {
        let life = self.not_after.saturating_sub(self.not_before);
        self.not_after.saturating_sub(now) < life / 3
    }
}

/// What a domain has revoked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocations {
    /// The domain.
    pub domain: DomainId,
    /// The list's number: it only grows.
    pub number: u64,
    /// How many certificates are on it.
    pub count: usize,
    /// The list, in DER.
    pub list: Vec<u8>,
}

/// What a look at the files has brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// What holds from now on.
    pub changes: Vec<Change>,
    /// Why something that is there was not taken.
    pub kept: Option<String>,
}

/// What holds since a look at the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// This node has another certificate.
    Rotated(Paper),
    /// A root vouches for a domain that did not before.
    RootAdded {
        /// For which.
        domain: DomainId,
        /// It, in DER.
        certificate: Vec<u8>,
        /// SHA-256, in hexadecimal.
        sha256: String,
    },
    /// A root does not vouch for a domain any more.
    RootRetired {
        /// For which.
        domain: DomainId,
        /// It, in DER.
        certificate: Vec<u8>,
        /// SHA-256, in hexadecimal.
        sha256: String,
    },
    /// A domain has revoked certificates.
    Revoked(Revocations),
}

/// Why there is no identity. The variant says who is to blame.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The peer: its certificate does not prove that it is who it must be.
    #[error("peer refused: {0}")]
    Peer(#[from] PeerFault),
    /// Our plan or arguments: they ask for what cannot be.
    #[error("wrong configuration: {0}")]
    Configuration(String),
    /// Our own certificate or key on disk.
    #[error("{}: {fault}", path.display())]
    Material {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: MaterialFault,
    },
    /// The file system.
    #[error("cannot {action} {}: {source}", path.display())]
    Files {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The cryptographic library.
    #[error("the cryptographic library failed: {0}")]
    Library(String),
}

/// What is wrong with a peer's certificate. Times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "field names say it; variants are documented")]
pub enum PeerFault {
    /// None at all.
    #[error(
        "no certificate presented, expected one of its domain; issue one with `tombolo certs issue`"
    )]
    Anonymous,
    /// Bytes that are no certificate.
    #[error("the certificate cannot be parsed ({reason}), expected X.509 in DER")]
    Malformed { reason: String },
    /// Not exactly one URI name.
    #[error(
        "{count} URI names presented {presented:?}, expected exactly one: spiffe://<domain>.{federation}/node/<name>"
    )]
    Names {
        federation: String,
        count: usize,
        presented: Vec<String>,
    },
    /// A URI that names no node.
    #[error("presented {presented:?}, expected spiffe://<domain>.{federation}/node/<name>")]
    Form {
        federation: String,
        presented: String,
    },
    /// A node of another federation.
    #[error(
        "presented {presented:?} of federation {found:?}, expected federation {expected:?}; both sides must use the same topology"
    )]
    Federation {
        expected: String,
        found: String,
        presented: String,
    },
    /// A domain without a pinned root.
    #[error(
        "presented {presented:?}, expected a domain whose root is pinned here; add its [[domain]] to the topology of federation {federation:?}"
    )]
    Domain {
        federation: String,
        presented: String,
    },
    /// Another node than the one that was dialled.
    #[error(
        "expected {expected:?}, presented {presented:?}; is the dialled address that of another node?"
    )]
    Unexpected { expected: String, presented: String },
    /// Issued for later.
    #[error(
        "the certificate of {presented:?} is not yet valid: valid from {not_before}, now {now}; compare the clocks of both nodes"
    )]
    NotYetValid {
        presented: String,
        not_before: String,
        now: String,
    },
    /// Past its end.
    #[error(
        "the certificate of {presented:?} has expired: valid until {not_after}, now {now}; renew it with `tombolo certs rotate`"
    )]
    Expired {
        presented: String,
        not_after: String,
        now: String,
    },
    /// Called back by its domain.
    #[error(
        "the certificate of {presented:?} with serial {serial} was revoked by its domain (list {number}); it needs a new one: `tombolo certs request` on the node, `tombolo certs approve` at its domain"
    )]
    Revoked {
        presented: String,
        serial: String,
        number: u64,
    },
    /// Not signed by its own domain's root, or not for this use.
    #[error(
        "the certificate of {presented:?} does not verify against the roots of its trust domain (sha256 {roots}): {reason}"
    )]
    Untrusted {
        presented: String,
        roots: String,
        reason: String,
    },
}

/// What is wrong with a certificate or key file of ours. Times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "field names say it; variants are documented")]
pub enum MaterialFault {
    /// Needed and not there.
    #[error("expected {what}, found no file; {next}")]
    Missing { what: String, next: String },
    /// There already.
    #[error("exists already and is left as it is; ask for replacement if it is to go")]
    Exists,
    /// Not what the name promises.
    #[error("expected {expected}, found {found}")]
    Malformed { expected: String, found: String },
    /// Others may read or write it.
    #[error(
        "mode is {mode:04o}, expected {expected:04o}: others could {danger} it; run `chmod {expected:o}` on it"
    )]
    Exposed {
        mode: u32,
        expected: u32,
        danger: &'static str,
    },
    /// The key is another certificate's.
    #[error(
        "this key does not match the certificate {}; restore the pair or issue it anew", certificate.display()
    )]
    KeyMismatch { certificate: PathBuf },
    /// Not the pinned root.
    #[error(
        "expected a root with sha256 {expected}, found {found}; compare with the domain's administration before changing the pin"
    )]
    Pin { expected: String, found: String },
    /// Another node's certificate.
    #[error("expected a certificate of {expected:?}, found {found}; issue it anew")]
    Name { expected: String, found: String },
    /// A certificate of another federation whose topology uses the same folder.
    #[error(
        "issued for federation {found:?}, this topology is {expected:?}: each needs certificates of its own, so name another root than {} in this topology's [[domain]] tables (root = \"certs-{expected}/...\")",
        root.display()
    )]
    OtherFederation {
        expected: String,
        found: String,
        root: PathBuf,
    },
    /// Two domains with one root.
    #[error(
        "domain {domain} has the same root as domain {other}, so each could speak for the other; give each its own"
    )]
    Shared { domain: String, other: String },
    /// Not yet valid.
    #[error("not yet valid: valid from {not_before}, now {now}; check this machine's clock")]
    NotYetValid { not_before: String, now: String },
    /// Past its end.
    #[error("has expired: valid until {not_after}, now {now}; {next}")]
    Expired {
        not_after: String,
        now: String,
        next: String,
    },
    /// Called back by its domain.
    #[error(
        "the certificate with serial {serial} was revoked by its domain (list {number}); ask for a new one with `tombolo certs request`, or issue one with `tombolo certs rotate` where the domain's key is"
    )]
    Revoked { serial: String, number: u64 },
    /// Not signed by its domain's root.
    #[error("does not verify against {}: {reason}; issue it anew from that root", root.display())]
    Untrusted { root: PathBuf, reason: String },
}
