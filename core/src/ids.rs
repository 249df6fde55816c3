//! Names and numbers that identify things in a federation.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes. Names become file names, certificate entries and labels, so they are kept short.
pub const NAME_LENGTH_MAX: usize = 32;

/// Checks one name against the rule `[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?`.
pub fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    match bytes {
        [] => false,
        [.., last] if !inner(bytes[0]) || !inner(*last) => false,
        _ => bytes.len() <= NAME_LENGTH_MAX && bytes.iter().all(|&b| inner(b) || b == b'-'),
    }
}

/// A name that does not follow the naming rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("name {0:?} does not match [a-z0-9]([a-z0-9-]{{0,30}}[a-z0-9])?")]
pub struct InvalidName(pub String);

/// A domain: nodes that share a fast fabric and one administration.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DomainId(Arc<str>);

impl DomainId {
    /// The domain's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DomainId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if is_name(text) {
            Ok(DomainId(text.into()))
        } else {
            Err(InvalidName(text.into()))
        }
    }
}

/// A node, written `domain/name`. Ordered by that text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(Arc<str>);

impl NodeId {
    /// Joins a domain and a node name that both follow the naming rule.
    pub fn new(domain: &DomainId, name: &str) -> Result<Self, InvalidName> {
        if is_name(name) {
            Ok(NodeId(format!("{domain}/{name}").into()))
        } else {
            Err(InvalidName(name.into()))
        }
    }

    /// `domain/name`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The domain in front of the slash.
    pub fn domain(&self) -> DomainId {
        DomainId(self.split().0.into())
    }

    /// The name behind the slash.
    pub fn name(&self) -> &str {
        self.split().1
    }

    fn split(&self) -> (&str, &str) {
        self.0
            .split_once('/')
            .expect("a node id always holds one slash")
    }
}

impl FromStr for NodeId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        match text.split_once('/') {
            Some((domain, name)) if is_name(domain) && is_name(name) => Ok(NodeId(text.into())),
            _ => Err(InvalidName(text.into())),
        }
    }
}

/// A slice: a share of the federation's nodes for one tenant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SliceId(Arc<str>);

impl SliceId {
    /// The slice's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SliceId {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if is_name(text) {
            Ok(SliceId(text.into()))
        } else {
            Err(InvalidName(text.into()))
        }
    }
}

macro_rules! text_id {
    ($type:ident) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $type {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                text.parse()
            }
        }
        impl From<$type> for String {
            fn from(id: $type) -> String {
                id.0.as_ref().to_owned()
            }
        }
    };
}
text_id!(DomainId);
text_id!(NodeId);
text_id!(SliceId);

/// A round's number, from 1. Round 0 names the initial model.
pub type Round = u64;

/// The number of a membership view, from 1.
pub type Epoch = u64;

/// How often a domain's fold was started anew within one round, from 0.
pub type Attempt = u32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule() {
        for good in ["a", "hq", "node-7", "0", &"x".repeat(32)] {
            assert!(is_name(good), "{good}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "a b",
            "a/b",
            "é",
            "a.b",
            &"x".repeat(33),
        ] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_node_id_splits_into_its_parts() {
        let id: NodeId = "hq/a".parse().unwrap();
        assert_eq!((id.domain().as_str(), id.name()), ("hq", "a"));
        for bad in ["hq", "hq/", "/a", "hq/a/b", "HQ/a"] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad}");
        }
    }
}
