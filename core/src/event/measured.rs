//! What is measured now and then: links, clocks, transfers and how nodes do.

use serde::{Deserialize, Serialize};

use crate::ids::{DomainId, NodeId, Round};

/// How a link was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Who saw it so.
    pub node: NodeId,
    /// Who is at the other end.
    pub peer: NodeId,
    /// How long two heartbeats that crossed were on their way; none if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<f64>,
    /// The share of the peer's heartbeats that got lost lately.
    pub heartbeat_loss: f64,
    /// UDP payload that the node has sent over it, since its process began.
    pub sent: u64,
    /// UDP payload that the node has received over it, since its process began.
    pub received: u64,
    /// Messages that the peer has not acknowledged yet. A link keeps 4,096.
    #[serde(default)]
    pub unacknowledged: u64,
    /// Their bytes. A link keeps 64 MiB.
    #[serde(default)]
    pub unacknowledged_bytes: u64,
    /// Models that the node has sent over it through a lossless stage, since its process began.
    #[serde(default)]
    pub models: Shrunk,
}

/// Tensors that travel in fewer bytes than they have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shrunk {
    /// Their bytes as they are.
    pub plain: u64,
    /// Their bytes as they travelled.
    pub travelled: u64,
}

/// How far a peer's clock is from a node's. Clocks count from the start of their process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// Whose clock the record goes by.
    pub node: NodeId,
    /// Whose clock was measured.
    pub peer: NodeId,
    /// Which life of the peer that was.
    pub life: u64,
    /// Add it to the node's clock to get the peer's, in microseconds.
    pub offset_us: i64,
    /// The offset is off by no more.
    pub bound_us: u64,
}

/// What travels between sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cargo {
    /// A domain's sum, towards the coordinator.
    Contribution,
    /// A committed model, away from it.
    Model,
}

/// A tensor that has come over a link between sites.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The round that it is of: of a model, the one that committed it.
    pub round: Round,
    /// What it is.
    pub cargo: Cargo,
    /// Who sent it.
    pub from: DomainId,
    /// Who has it now.
    pub to: DomainId,
    /// As it travelled.
    pub bytes: u64,
    /// As it is, without codec and lossless stage; 0 if nobody has said.
    #[serde(default)]
    pub plain: u64,
    /// How long its receiver had nothing to do but to wait for it.
    pub waited_us: u64,
    /// What the topology says that the link carries, in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// How often it was gone on with after its connection had broken.
    #[serde(default, skip_serializing_if = "is_none")]
    pub cuts: u32,
}

/// Nothing worth a word.
fn is_none(count: &u32) -> bool {
    *count == 0
}

/// How a node does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vitals {
    /// Which.
    pub node: NodeId,
    /// Bytes of memory that its process has; 0 if that is not known.
    pub memory: u64,
    /// Messages in the longest queue of its actors. A queue takes 1,024.
    pub queued: u64,
    /// Messages that a peer has not acknowledged yet, of the link with the most. A link keeps 4,096.
    pub unacknowledged: u64,
    /// Their bytes, of the link with the most. A link keeps 64 MiB.
    pub unacknowledged_bytes: u64,
    /// Seconds that its certificate is still good for.
    pub certificate_s: u64,
}
