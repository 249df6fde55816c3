//! The record: its statements, signed heads and proofs.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::record::{Account, Leaf, Note, Proof, PublicKey, Signature, Tree, Verifier};

pub fn leaf(bytes: &[u8]) -> bool {
    let Ok(line) = std::str::from_utf8(bytes) else {
        return false;
    };
    Leaf::parse(line).is_ok_and(|leaf| {
        assert_eq!(leaf.line(), line);
        true
    })
}

/// The lines of a whole record, one after the other.
pub fn lines(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let mut account = Account::default();
    for (index, line) in text.lines().enumerate() {
        if let Err(flaw) = account.take(line, &Credulous) {
            assert_eq!(flaw.index, index as u64);
            return false;
        }
        assert_eq!(account.size(), index as u64 + 1);
    }
    account.size() > 0
}

pub fn note(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    Note::parse(text).is_ok_and(|note| {
        assert_eq!(note.text(), text);
        true
    })
}

/// A proof: what was read is written and read to the same, and whether it holds under a root is decided.
pub fn proof(bytes: &[u8]) -> bool {
    let Ok(proof) = serde_json::from_slice::<Proof>(bytes) else {
        return false;
    };
    let again = serde_json::to_vec(&proof).unwrap();
    assert_eq!(serde_json::from_slice::<Proof>(&again).unwrap(), proof);
    proof.verify(PROVEN.size(), &PROVEN.root()).is_ok()
}

/// The lines that [`proof`] proves.
pub fn proven() -> Vec<String> {
    (0..7).map(|index| format!("line {index}")).collect()
}

static PROVEN: LazyLock<Tree> = LazyLock::new(|| {
    let mut tree = Tree::default();
    proven().iter().for_each(|line| tree.push(line));
    tree
});

/// Takes every certificate that has a name in it.
struct Credulous;

impl Verifier for Credulous {
    fn holder(
        &self,
        _: &str,
        _: &BTreeMap<DomainId, Vec<Vec<u8>>>,
        certificate: &[u8],
    ) -> Result<(NodeId, PublicKey), String> {
        let name = std::str::from_utf8(certificate).map_err(|error| error.to_string())?;
        let node: NodeId = name.parse().map_err(|_| "no name".to_owned())?;
        Ok((node, [7; 32]))
    }

    fn list(&self, _: &[Vec<u8>], _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn verify(&self, _: &PublicKey, _: &[u8], _: &Signature) -> bool {
        true
    }
}
