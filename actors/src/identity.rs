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
        "the certificate of {presented:?} has expired: valid until {not_after}, now {now}; renew it with `tombolo certs issue`"
    )]
    Expired {
        presented: String,
        not_after: String,
        now: String,
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
    /// Not signed by its domain's root.
    #[error("does not verify against {}: {reason}; issue it anew from that root", root.display())]
    Untrusted { root: PathBuf, reason: String },
}
