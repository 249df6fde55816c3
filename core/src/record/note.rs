//! A root with the signatures under it, as text that other tools read: C2SP signed notes, checkpoints and cosignatures.
//!
//! ```text
//! harbour/<run>                           the origin: federation and run
//! 42                                      leaves
//! <base64>                                root
//!
//! — harbour/<run> <base64>                the coordinator's: its key id names which one
//! — plant.harbour/node/gate <base64>      a domain's gateway's, with the time at which it was given
//! ```

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::tree::Root;
use crate::ids::{DomainId, NodeId};
use crate::tensor::Hash;

/// An Ed25519 public key.
pub type PublicKey = [u8; 32];

/// An Ed25519 signature.
pub type Signature = [u8; 64];

/// The longest note: the cosignatures of 1,024 domains.
pub const NOTE_BYTES_MAX: usize = 384 << 10;

/// In front of a signature line: an em dash and a space.
const DASH: &str = "\u{2014} ";

/// The kinds of signatures, as they go into key ids.
const PLAIN: u8 = 0x01;
const COSIGNATURE: u8 = 0x04;

/// Checks certificates and signatures. The record knows no cryptography of its own but hashing.
pub trait Verifier {
    /// Whose certificate it is, and the key in it, if it chains to one of the roots of the domain in its name. Its dates do not matter: what
    /// was signed while it was valid stays signed.
    ///
    /// # Errors
    /// What is wrong with it.
    fn holder(
        &self,
        federation: &str,
        roots: &BTreeMap<DomainId, Vec<Vec<u8>>>,
        certificate: &[u8],
    ) -> Result<(NodeId, PublicKey), String>;

    /// Checks a list of revoked certificates: one of these roots must have signed it.
    ///
    /// # Errors
    /// What is wrong with it.
    fn list(&self, _roots: &[Vec<u8>], _list: &[u8]) -> Result<(), String> {
        Err("no lists of revoked certificates are read here".into())
    }

    /// Whether the key's holder has signed the message.
    fn verify(&self, key: &PublicKey, message: &[u8], signature: &Signature) -> bool;
}

/// A node that signs.
pub trait Signer: Verifier {
    /// Its certificate, in DER.
    fn certificate(&self) -> Vec<u8>;

    /// Signs.
    ///
    /// # Errors
    /// Its key is none for Ed25519.
    fn sign(&self, message: &[u8]) -> Result<(PublicKey, Signature), String>;

    /// Whether this node's administration has pinned that root for that domain.
    fn pins(&self, domain: &DomainId, root: &[u8]) -> bool;
}

/// The name of a run's record.
pub fn origin(federation: &str, run: &Hash) -> String {
    format!("{federation}/{run}")
}

/// The name under which a node cosigns.
pub fn signer_name(federation: &str, node: &NodeId) -> String {
    format!("{}.{federation}/node/{}", node.domain(), node.name())
}

fn key_id(name: &str, kind: u8, key: &PublicKey) -> [u8; 4] {
    let hash = Sha256::new().chain_update(name).chain_update([b'\n', kind]);
    let hash: [u8; 32] = hash.chain_update(key).finalize().into();
    [hash[0], hash[1], hash[2], hash[3]]
}

/// What is signed: so many leaves of a record have this root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Which record.
    pub origin: String,
    /// How many leaves.
    pub size: u64,
    /// Their root.
    pub root: Root,
}

impl Head {
    fn body(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, self.root)
    }

    fn timed(&self, time: u64) -> String {
        format!("cosignature/v1\ntime {time}\n{}", self.body())
    }
}

/// A signature line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    name: String,
    id: [u8; 4],
    bytes: Vec<u8>,
}

/// A head and the signatures under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What is signed.
    pub head: Head,
    lines: Vec<Line>,
}

impl Note {
    /// Nobody has signed it yet.
    pub fn new(head: Head) -> Note {
        Note {
            head,
            lines: Vec::new(),
        }
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut text = self.head.body();
        text.push('\n');
        for Line { name, id, bytes } in &self.lines {
            let mut both = id.to_vec();
            both.extend_from_slice(bytes);
            text.push_str(&format!("{DASH}{name} {}\n", STANDARD.encode(both)));
        }
        text
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is no checkpoint, or is written in another way than [`Note::text`] does.
    pub fn parse(text: &str) -> Result<Note, String> {
        if text.len() > NOTE_BYTES_MAX {
            return Err(format!(
                "the checkpoint has {} bytes, at most {NOTE_BYTES_MAX} are allowed",
                text.len()
            ));
        }
        let wrong = |what: &str| format!("the checkpoint cannot be read: {what}");
        let (body, signatures) = text
            .split_once("\n\n")
            .ok_or_else(|| wrong("no empty line in front of the signatures"))?;
        let mut body = body.split('\n');
        let (Some(origin), Some(size), Some(root), None) =
            (body.next(), body.next(), body.next(), body.next())
        else {
            return Err(wrong("origin, size and root are due, one a line"));
        };
        let size = size.parse().map_err(|_| wrong("the size is no number"))?;
        let root = Root::parse(root).ok_or_else(|| wrong("the root is not 32 bytes in base64"))?;
        let origin = origin.to_owned();
        let mut note = Note::new(Head { origin, size, root });
        for line in signatures.split_terminator('\n') {
            let line = line.strip_prefix(DASH);
            let line = line.and_then(|line| line.split_once(' '));
            let (name, bytes) = line.ok_or_else(|| wrong("a signature line has no name"))?;
            let bytes = STANDARD.decode(bytes).ok().filter(|bytes| bytes.len() > 4);
            let bytes = bytes.ok_or_else(|| wrong("a signature is not base64"))?;
            note.lines.push(Line {
                name: name.to_owned(),
                id: [bytes[0], bytes[1], bytes[2], bytes[3]],
                bytes: bytes[4..].to_vec(),
            });
        }
        match note.text() == text {
            true => Ok(note),
            false => Err(wrong("numbers or base64 are not in their only form")),
        }
    }

    /// Signs as the coordinator.
    ///
    /// # Errors
    /// The key does not sign.
    pub fn sign(&mut self, signer: &dyn Signer) -> Result<(), String> {
        let (key, signature) = signer.sign(self.head.body().as_bytes())?;
        let name = self.head.origin.clone();
        let id = key_id(&name, PLAIN, &key);
        let bytes = signature.to_vec();
        self.lines.push(Line { name, id, bytes });
        Ok(())
    }

    /// Signs as a domain's gateway, at a time in seconds since 1970.
    ///
    /// # Errors
    /// The key does not sign.
    pub fn cosign(&mut self, signer: &dyn Signer, name: String, time: u64) -> Result<(), String> {
        let (key, signature) = signer.sign(self.head.timed(time).as_bytes())?;
        let id = key_id(&name, COSIGNATURE, &key);
        let mut bytes = time.to_be_bytes().to_vec();
        bytes.extend_from_slice(&signature);
        self.lines.retain(|line| line.name != name);
        self.lines.push(Line { name, id, bytes });
        Ok(())
    }

    /// Takes over the cosignatures of another note of the same head.
    pub fn merge(&mut self, other: &Note) {
        for line in &other.lines {
            let known = |mine: &Line| mine.name == line.name;
            if self.head == other.head
                && line.name != self.head.origin
                && !self.lines.iter().any(known)
            {
                self.lines.push(line.clone());
            }
        }
    }

    /// The same note without cosignatures but one.
    pub fn only(&self, name: &str) -> Note {
        let kept = |line: &&Line| line.name == name || line.name == self.head.origin;
        Note {
            head: self.head.clone(),
            lines: self.lines.iter().filter(kept).cloned().collect(),
        }
    }

    /// The names of its cosigners, true or not.
    pub fn cosigners(&self) -> impl Iterator<Item = &str> {
        let names = self.lines.iter().map(|line| line.name.as_str());
        names.filter(|name| *name != self.head.origin)
    }

    /// Whether the holder of `key` has signed as the coordinator.
    pub(super) fn is_signed(&self, keys: &dyn Verifier, key: &PublicKey) -> bool {
        let id = key_id(&self.head.origin, PLAIN, key);
        let mut lines = self.lines.iter();
        lines.any(|line| {
            let signature = <Signature>::try_from(line.bytes.as_slice()).ok();
            (line.name.as_str(), line.id) == (self.head.origin.as_str(), id)
                && signature.is_some_and(|it| keys.verify(key, self.head.body().as_bytes(), &it))
        })
    }

    /// When the holder of `key` has cosigned under that name; none if not.
    pub(super) fn cosigned_at(
        &self,
        keys: &dyn Verifier,
        name: &str,
        key: &PublicKey,
    ) -> Option<u64> {
        let id = key_id(name, COSIGNATURE, key);
        let mut lines = self
            .lines
            .iter()
            .filter(|line| (line.name.as_str(), line.id) == (name, id));
        lines.find_map(|line| {
            let (time, signature) = line.bytes.split_first_chunk::<8>()?;
            let time = u64::from_be_bytes(*time);
            let signature = <Signature>::try_from(signature).ok()?;
            let message = self.head.timed(time);
            keys.verify(key, message.as_bytes(), &signature)
                .then_some(time)
        })
    }
}
