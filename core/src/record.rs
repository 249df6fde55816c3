//! The record that nobody can rewrite: what happened in a federation, as every domain holds it.
//!
//! The coordinator says at the end of each round what it was made of: whose contribution of which hash and weight, which model came out, who
//! took part. Each such statement is a [`Leaf`], one line of JSON, of an append-only RFC 6962 tree. Every domain's gateway keeps a copy of its
//! own. It takes what continues its copy, agrees with what it knows itself (what it contributed, which model it adopted) and gives the root
//! that the coordinator has signed; then it signs that root, too. With the next leaves come everyone's signatures of the root before: a
//! coordinator that tells two domains different things is found out by the first domain that sees a signature under another root.
//!
//! ```text
//! leaf       the statements: their form, and nothing else than that form
//! account    what the leaves say so far, and whether a next one may follow
//! tree       the root over any number of leaves; proofs that a leaf is under a root
//! note       a root with the signatures under it, in the C2SP formats for signed notes, checkpoints and cosignatures
//! keeper     a domain's copy: what it takes, what it refuses and whom it names
//! scribe     the coordinator's side: who has cosigned how much
//! audit      the same questions over copies on disk, long after
//! ```
//!
//! Who signs is proven by certificates, which are leaves like everything else and chain to roots that are leaves as well; each keeper takes
//! only the roots that its own administration has pinned.

mod account;
pub mod audit;
mod keeper;
mod leaf;
mod note;
mod scribe;
#[cfg(test)]
mod tests;
mod tree;

pub use account::{Account, Flaw};
pub use keeper::{Keeper, Next, Offered, Trespass};
pub use leaf::{Der, FORMAT, LEAF_BYTES_MAX, Leaf};
pub use note::{
    Head, NOTE_BYTES_MAX, Note, PublicKey, Signature, Signer, Verifier, origin, signer_name,
};
pub use scribe::{Heard, Scribe};
pub use tree::{Proof, Root, Tree, leaf_hash, prove};

/// Most bytes of leaves in one message. A round of 1,024 nodes fits twice, and a message holds twice as much.
pub const APPEND_BYTES_MAX: usize = 1 << 20;

/// The most bytes of a certificate that anybody takes: larger than any authority issues.
pub const CERTIFICATE_BYTES_MAX: usize = 16 << 10;
