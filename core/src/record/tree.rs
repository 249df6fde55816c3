//! The RFC 6962 tree over the lines: its root, and proofs that a line is under it.
//!
//! To go on, a tree needs no more than the roots of its full subtrees, one for each bit of its size. Proofs are those of `ct-merkle`.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ct_merkle::mem_backed_tree::MemoryBackedTree;
use ct_merkle::{InclusionProof, RootHash};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The root of a tree, or of a subtree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Root(pub [u8; 32]);

impl Root {
    /// From base64.
    pub(super) fn parse(text: &str) -> Option<Root> {
        let bytes = STANDARD.decode(text).ok()?;
        bytes.try_into().ok().map(Root)
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a line is in the tree. The first byte keeps a leaf from passing for a node.
pub fn leaf_hash(line: &str) -> Root {
    let hash = Sha256::new().chain_update([0]).chain_update(line);
    Root(hash.finalize().into())
}

fn node_hash(left: &Root, right: &Root) -> Root {
    let hash = Sha256::new().chain_update([1]);
    let hash = hash.chain_update(left.0).chain_update(right.0);
    Root(hash.finalize().into())
}

/// A tree that can be added to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    size: u64,
    /// The roots of the full subtrees, the largest first.
    peaks: Vec<Root>,
}

impl Tree {
    /// How many leaves it has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a line.
    pub fn push(&mut self, line: &str) {
        self.push_hash(leaf_hash(line));
    }

    /// Adds a line whose hash is known.
    pub fn push_hash(&mut self, mut hash: Root) {
        for _ in 0..self.size.trailing_ones() {
            let left = self.peaks.pop().expect("there is a peak for each bit");
            hash = node_hash(&left, &hash);
        }
        self.peaks.push(hash);
        self.size += 1;
    }

    /// The root.
    pub fn root(&self) -> Root {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            Some(last) => peaks.fold(*last, |right, left| node_hash(left, &right)),
            None => Root(Sha256::digest([]).into()),
        }
    }
}

/// That a line is the one at `index` under a root over `size` lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proof {
    /// [`super::FORMAT`].
    pub format: u32,
    /// Which record.
    pub origin: String,
    /// Its place, from 0.
    pub index: u64,
    /// Over so many lines.
    pub size: u64,
    /// The line.
    pub leaf: String,
    /// The hashes beside the way from the leaf to the root, base64.
    pub path: Vec<String>,
}

/// Proves the line at `index`.
///
/// # Errors
/// There is no such line.
pub fn prove(origin: &str, lines: &[String], index: u64) -> Result<Proof, String> {
    let at = usize::try_from(index).ok().filter(|at| *at < lines.len());
    let Some(at) = at else {
        return Err(format!("there is no leaf {index} among {}", lines.len()));
    };
    let mut tree = MemoryBackedTree::<Sha256, &str>::new();
    lines.iter().for_each(|line| tree.push(line.as_str()));
    let path = tree.prove_inclusion(at);
    let path = path.as_bytes().chunks(32);
    Ok(Proof {
        format: super::FORMAT,
        origin: origin.to_owned(),
        index,
        size: lines.len() as u64,
        leaf: lines[at].clone(),
        path: path.map(|hash| STANDARD.encode(hash)).collect(),
    })
}

impl Proof {
    /// Whether the line is under that root.
    ///
    /// # Errors
    /// It is not, and why.
    pub fn verify(&self, size: u64, root: &Root) -> Result<(), String> {
        if self.format != super::FORMAT {
            return Err(format!(
                "the proof is of format {}, this version reads {}",
                self.format,
                super::FORMAT
            ));
        }
        if self.size != size {
            return Err(format!(
                "the proof is for {} leaves, the checkpoint for {size}",
                self.size
            ));
        }
        let mut path = Vec::with_capacity(self.path.len().min(64) * 32);
        for hash in self.path.iter().take(65) {
            let hash = Root::parse(hash).ok_or("a hash of the path is not 32 bytes in base64")?;
            path.extend_from_slice(&hash.0);
        }
        let proof =
            InclusionProof::<Sha256>::try_from_bytes(path).map_err(|error| error.to_string())?;
        let root = RootHash::<Sha256>::new(root.0.into(), size);
        let verified = root.verify_inclusion(&self.leaf.as_str(), self.index, &proof);
        verified.map_err(|error| {
            format!(
                "leaf {} is not under the checkpoint's root: {error}",
                self.index
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(n: u64) -> Vec<String> {
        (0..n).map(|i| format!("line {i}")).collect()
    }

    #[test]
    fn the_roots_are_those_of_rfc_6962() {
        let empty = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        assert_eq!(Tree::default().root().to_string(), empty);
        let mut tree = Tree::default();
        let mut other = MemoryBackedTree::<Sha256, String>::new();
        for line in lines(70) {
            tree.push(&line);
            other.push(line);
            let root: [u8; 32] = (*other.root().as_bytes()).into();
            assert_eq!(tree.root(), Root(root), "over {} leaves", tree.size());
        }
    }

    #[test]
    fn a_proof_holds_for_its_line_and_its_root_and_for_no_other() {
        for n in [1u64, 2, 3, 7, 8, 9, 64, 65] {
            let all = lines(n);
            let mut tree = Tree::default();
            all.iter().for_each(|line| tree.push(line));
            for index in 0..n {
                let proof = prove("o", &all, index).unwrap();
                assert_eq!(proof.verify(n, &tree.root()), Ok(()), "{index} of {n}");
                let other = Proof {
                    leaf: "line x".into(),
                    ..proof.clone()
                };
                assert!(other.verify(n, &tree.root()).is_err());
                assert!(proof.verify(n + 1, &tree.root()).is_err());
                let mut longer = proof.clone();
                longer.path.push(tree.root().to_string());
                assert!(longer.verify(n, &tree.root()).is_err());
                if n > 1 {
                    let moved = Proof {
                        index: (index + 1) % n,
                        ..proof
                    };
                    assert!(moved.verify(n, &tree.root()).is_err(), "{index} of {n}");
                }
            }
            assert!(prove("o", &all, n).is_err());
        }
    }
}
