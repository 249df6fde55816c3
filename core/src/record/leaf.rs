//! One statement of the record: a line of JSON with its fields in one order.
//!
//! A line is taken only if writing what it says gives the same line again: there is one way to say a thing, and nothing can be hidden in
//! spaces, fields or digits that a reader skips.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::event::RoundState;
use crate::ids::{Attempt, DomainId, Epoch, NodeId, Round};
use crate::policy::Rule;
use crate::tensor::Hash;
use crate::view::View;

/// The version of the leaves' form. The first leaf names it.
pub const FORMAT: u32 = 1;

/// The longest line. A view of a federation of 1,024 domains fits twice.
pub const LEAF_BYTES_MAX: usize = 256 << 10;

/// A certificate in DER, base64 where people read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Der(pub Vec<u8>);

impl Serialize for Der {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Der {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Der(bytes))
    }
}

/// A statement. Fields are written in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "leaf", rename_all = "snake_case", deny_unknown_fields)]
#[expect(missing_docs, reason = "field names say it; variants are documented")]
pub enum Leaf {
    /// The first leaf, and no other: which run this is, and who may ever coordinate it.
    Begun {
        format: u32,
        federation: String,
        run: Hash,
        configuration: Hash,
        coordinators: Vec<NodeId>,
    },
    /// The run goes on by another topology, with that hash: who joins by it is told behind it, by root and membership.
    Amended { configuration: Hash },
    /// Who may do what from here on: the rules of all sites, and one number for them and for who is in which slice. Until the first of these
    /// no site has any. A run that goes on with other policies tells them before its next round.
    Policy { hash: Hash, rules: Vec<Rule> },
    /// The certificate of an authority that vouches for a domain's nodes from here on, for the first time or again.
    Root { domain: DomainId, certificate: Der },
    /// No certificate of that root is taken from here on; what was signed before stays signed.
    Retired { domain: DomainId, certificate: Der },
    /// Certificates that a domain has called back: a list that its root has signed.
    Revoked { domain: DomainId, list: Der },
    /// The certificate under whose key a node signs from here on.
    Certificate { node: NodeId, certificate: Der },
    /// A user has made a node the coordinator, by the view of that epoch.
    Promoted { node: NodeId, epoch: Epoch },
    /// Who takes part from here on.
    Membership { view: View },
    /// What a node's update weighs in the round, and the factor that bounds its norm.
    Update {
        round: Round,
        node: NodeId,
        weight: f64,
        clip: f64,
    },
    /// A domain's contribution is in the round's model. The hash is BLAKE3 over the hashes of its chunks; the weight is that of its members.
    Contribution {
        round: Round,
        epoch: Epoch,
        domain: DomainId,
        attempt: Attempt,
        weight: f64,
        hash: Hash,
        members: Vec<NodeId>,
    },
    /// The state of the round is written, and is one that is to stay.
    Checkpoint { round: Round, model: Hash },
    /// The round ended while no record was kept: what it counted is not told.
    Unrecorded {
        round: Round,
        state: RoundState,
        model: Hash,
    },
    /// The round ended; the last leaf about it. The model is the one that holds after it.
    Round {
        round: Round,
        epoch: Epoch,
        state: RoundState,
        reason: String,
        model: Hash,
    },
}

impl Leaf {
    /// The line, without its end.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("a leaf has text keys and finite numbers only")
    }

    /// Reads a line.
    ///
    /// # Errors
    /// It is too long, is no statement of this format, or is written in another way than [`Leaf::line`] does.
    pub fn parse(line: &str) -> Result<Leaf, String> {
        if line.len() > LEAF_BYTES_MAX {
            return Err(format!(
                "it has {} bytes, at most {LEAF_BYTES_MAX} are allowed",
                line.len()
            ));
        }
        let leaf: Leaf = serde_json::from_str(line)
            .map_err(|error| format!("it is no statement of a record: {error}"))?;
        match leaf.line() == line {
            true => Ok(leaf),
            false => Err(
                "it is not written as this statement is written: order, spaces or digits differ"
                    .into(),
            ),
        }
    }

    /// The round that it is about.
    pub fn round(&self) -> Option<Round> {
        match self {
            Leaf::Update { round, .. }
            | Leaf::Contribution { round, .. }
            | Leaf::Checkpoint { round, .. }
            | Leaf::Unrecorded { round, .. }
            | Leaf::Round { round, .. } => Some(*round),
            _ => None,
        }
    }

    /// Whether it says something of that node.
    pub fn names(&self, node: &NodeId) -> bool {
        match self {
            Leaf::Update { node: of, .. }
            | Leaf::Certificate { node: of, .. }
            | Leaf::Promoted { node: of, .. } => of == node,
            Leaf::Policy { rules, .. } => rules.iter().any(|rule| rule.identity.includes(node)),
            Leaf::Contribution { members, .. } => members.contains(node),
            _ => false,
        }
    }
}
