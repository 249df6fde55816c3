//! What travels between nodes.
//!
//! A connection carries one ordered control stream (frames: a fixed little-endian header, then a bincode message), one unidirectional
//! stream per tensor object that the other side fetched (a fixed header, then raw bytes), and heartbeat datagrams ([`Heartbeat`]). Tensor bytes never pass
//! through a serializer. Everything that comes from a peer is checked against a bound before anything is allocated for it.

pub mod codec;
mod header;
mod heartbeat;

use serde::{Deserialize, Serialize};

use crate::aggregate::{Needs, Report, Weight};
use crate::compress::{Codec, Coding, Lossless};
use crate::event::Vitals;
use crate::ids::{Attempt, DomainId, Epoch, NodeId, Round};
use crate::membership::Word;
use crate::pace::Effort;
use crate::plan::SyncEvery;
use crate::staleness::Fresh;
use crate::tensor::{Hash, Layout};
use crate::text::Text;
use crate::view::View;

pub use codec::DecodeError;
pub use header::{FrameHeader, ObjectHeader, RegionHeader, STRIPE_BYTES, STRIPES_MAX};
pub use heartbeat::{Echo, Exchange, HEALTH_MAX, Heartbeat};

/// The protocol's version; the handshake refuses another.
pub const VERSION: u16 = 2;

/// A fingerprint of the message schema: the first eight bytes of the BLAKE3 of `wire/golden.txt`'s frames. Two builds that number
/// their versions alike but encode differently refuse each other.
pub const FINGERPRINT: u64 = 0xDB71_EB18_0BBC_31AB;

/// The largest control message. A cohort of 1,024 nodes or the chunk hashes of an 8 GiB contribution fit four times over.
pub const CONTROL_BYTES_MAX: usize = 2 << 20;

/// Elements in one chunk of a contribution: 1 MiB, so that a chunk stays in a core's cache while it is hashed and folded.
pub const CHUNK_ELEMENTS: usize = 256 * 1024;

/// Bytes before the first element of an exported region: see [`RegionHeader`].
pub const REGION_HEADER_BYTES: usize = 64;

/// First message on a control stream, both ways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// [`FINGERPRINT`] of the sender.
    pub fingerprint: u64,
    /// Hash of the shared keys of the topology.
    pub topology: Hash,
    /// Drawn when the sender's process (or simulated node) started.
    pub incarnation: u64,
    /// The receiver's incarnation as the sender last knew it; 0 if never.
    pub known: u64,
    /// The last sequence number that the sender received from that incarnation.
    pub received: u64,
    /// The heartbeat period of the sender, in milliseconds.
    pub heartbeat_ms: u64,
    /// Whether the sender is at work by its topology: it coordinates, or has been let in by who leads it.
    pub at_work: bool,
}

/// A registered region that a peer may READ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionRef {
    /// Whose memory it is.
    pub owner: NodeId,
    /// The key within the owner's device.
    pub key: u64,
    /// Its length in bytes, header included.
    pub len: u64,
}

/// A model that lies in a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRef {
    /// The round that committed it; 0 is the initial model.
    pub round: Round,
    /// BLAKE3 of its elements.
    pub hash: Hash,
    /// Where to READ it.
    pub region: RegionRef,
}

/// What a node says of itself when a link to its gateway comes up or when it is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Join {
    /// Names and shapes of its trainer's tensors.
    pub layout: Layout,
    /// The round of the model it holds.
    pub round: Round,
    /// The hash of the model it holds.
    pub hash: Hash,
}

/// A node's copy of a model is not that model any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Divergence {
    /// The round for which it was to train from it.
    pub round: Round,
    /// The round that committed the model.
    pub model: Round,
    /// The model's hash.
    pub expected: Hash,
    /// The hash of what the node holds.
    pub found: Hash,
}

/// What a gateway says of its domain when a link to the coordinator comes up or when it is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DomainJoin {
    /// Names and shapes of its trainer's tensors.
    pub layout: Layout,
    /// The round of the model it holds.
    pub round: Round,
    /// The hash of the model it holds.
    pub hash: Hash,
    /// The members that it reaches.
    pub members: Vec<NodeId>,
}

/// A round begins; from the coordinator to a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The run: another one has other updates under the same numbers.
    pub run: Hash,
    /// Its number.
    pub round: Round,
    /// The view it belongs to.
    pub epoch: Epoch,
    /// The round whose commit made the model that this one starts from: the one before, unless that was aborted.
    pub base_round: Round,
    /// The hash of that model.
    pub base: Hash,
    /// The members of this domain that are asked.
    pub cohort: Vec<NodeId>,
    /// The domain's first start of its fold: above every one that is noted, so that a gateway that was restarted repeats none.
    pub attempt: Attempt,
    /// Local work.
    pub sync_every: SyncEvery,
    /// Where steps are balanced, how many each member makes in place of that.
    pub steps: Vec<(NodeId, u64)>,
    /// Seeds the local work.
    pub seed: u64,
    /// In the asynchronous mode, which older updates are taken, too.
    pub fresh: Option<Fresh>,
}

/// A node's turn in a round; from a gateway to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Train {
    /// Names the gateway's life; who fails repeats it.
    pub token: u64,
    /// The run.
    pub run: Hash,
    /// The round.
    pub round: Round,
    /// The view it belongs to.
    pub epoch: Epoch,
    /// The model to start from.
    pub model: ModelRef,
    /// Local work.
    pub sync_every: SyncEvery,
    /// Where steps are balanced, how many the update is to count as: it is stretched to that.
    pub counts_as: Option<u64>,
    /// Seeds the local work.
    pub seed: u64,
    /// In the asynchronous mode, the oldest round for which an update may have been trained that answers this.
    pub oldest: Option<Round>,
}

/// Some nodes of a domain train together in a round: what the first of them tells another one, who is in or is not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Muster {
    /// The round.
    pub round: Round,
    /// The view in which it was opened.
    pub epoch: Epoch,
    /// Which life of the sender says so; what another one has said counts no more.
    pub life: u64,
    /// Of two words of one life the one with the greater number counts.
    pub number: u64,
    /// Who is in it, the sender first.
    pub ranks: Vec<NodeId>,
    /// The fabric's invitation for the receiver, if it is in. It carries a secret.
    pub door: Vec<u8>,
}

/// A node's update is ready to be READ; from a member to its gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exported {
    /// The round that it was trained for.
    pub round: Round,
    /// The view in which that was asked for.
    pub epoch: Epoch,
    /// Where the update lies.
    pub region: RegionRef,
    /// Rows trained on.
    pub samples: u64,
    /// Mean training loss.
    pub loss: f64,
    /// Local steps; where they are balanced, those that it counts as.
    pub steps: u64,
    /// Local learning rate.
    pub learning_rate: f64,
    /// How long the training took.
    pub effort: Effort,
}

/// Asks a rank to measure some slices of one update; round and view are those that it was trained for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Names this export to this life of the gateway; the answer repeats it.
    pub token: u64,
    /// The round.
    pub round: Round,
    /// The view.
    pub epoch: Epoch,
    /// Whose update.
    pub node: NodeId,
    /// Where it lies.
    pub region: RegionRef,
    /// Which slices of the domain's partition.
    pub slices: Vec<u32>,
}

/// One slice of one update, measured by a peer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SliceMeasure {
    /// Which slice.
    pub slice: u32,
    /// Sum of squares in f64, blocks of 4,096 elements in order. Not finite exactly if an element is not.
    pub squares: f64,
    /// BLAKE3 of the slice's bytes.
    pub checksum: Hash,
}

/// Answers [`Measure`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// As in the question.
    pub token: u64,
    /// The round.
    pub round: Round,
    /// Whose update.
    pub node: NodeId,
    /// The slices, or why they could not be read.
    pub result: Result<Vec<SliceMeasure>, Text>,
}

/// One term of a fold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// Whose update.
    pub node: NodeId,
    /// The round that it was trained for.
    pub round: Round,
    /// The view in which that was asked for.
    pub epoch: Epoch,
    /// Where it lies.
    pub region: RegionRef,
    /// Weight times clip factor, rounded once to f32.
    pub factor: f32,
    /// The checksum of each slice that is asked for, in that order, as measured; verified again while folding.
    pub checksums: Vec<Hash>,
}

impl Term {
    /// Of a term with the checksums of all slices, the one for these slices: all terms times all slices would outgrow a message.
    pub(crate) fn of(&self, slices: &[u32]) -> Term {
        let checksum = |slice: &u32| self.checksums.get(*slice as usize).copied();
        Term {
            checksums: slices.iter().filter_map(checksum).collect(),
            ..self.clone()
        }
    }
}

/// Asks a rank to fold some slices over all terms, in rank order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fold {
    /// Names this start of the fold in this life of the gateway; the answer repeats it, and the result carries it.
    pub token: u64,
    /// The round.
    pub round: Round,
    /// The view.
    pub epoch: Epoch,
    /// Which start of the domain's fold.
    pub attempt: Attempt,
    /// In rank order.
    pub terms: Vec<Term>,
    /// Which slices.
    pub slices: Vec<u32>,
}

/// Answers [`Fold`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folded {
    /// As in the question.
    pub token: u64,
    /// The round.
    pub round: Round,
    /// Which start of the domain's fold.
    pub attempt: Attempt,
    /// Which slices.
    pub slices: Vec<u32>,
    /// Where the results lie, or whose update is to blame and why.
    pub result: Result<RegionRef, (NodeId, Text)>,
}

/// A domain's contribution, announced before a byte of it travels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// The round.
    pub round: Round,
    /// The view.
    pub epoch: Epoch,
    /// Which start of the domain's fold.
    pub attempt: Attempt,
    /// Whose.
    pub domain: DomainId,
    /// Whose updates are inside, in rank order.
    pub members: Vec<NodeId>,
    /// The sum of their weights, added in rank order.
    pub weight: f64,
    /// The sum was multiplied by 2 to the minus this.
    pub exponent: i32,
    /// BLAKE3 of each chunk of [`CHUNK_ELEMENTS`] elements; the last of a tensor may be short. Where the rule must see each update there are as many
    /// tensors as members, chunk by chunk: the first chunk of every member in rank order, then the second of every member.
    pub chunks: Vec<Hash>,
    /// How its bytes are to be read.
    pub encoding: Encoding,
}

/// How the chunks of a contribution are encoded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoding {
    /// The codec.
    pub codec: Codec,
    /// The lossless stage behind it. Notes on disk that were written before there was one do not name it.
    #[serde(default)]
    pub lossless: Lossless,
    /// The bytes of each chunk; empty for plain `f32`, whose size is known.
    pub sizes: Vec<u32>,
}

impl Encoding {
    /// Chunks of these sizes.
    pub fn new(coding: Coding, sizes: Vec<u32>) -> Self {
        let Coding { codec, lossless } = coding;
        Encoding {
            codec,
            lossless,
            sizes,
        }
    }

    /// The codec and the stage behind it.
    pub fn coding(&self) -> Coding {
        Coding {
            codec: self.codec,
            lossless: self.lossless,
        }
    }

    /// The bytes of a chunk of so many elements; none if there is no such chunk.
    pub fn chunk_bytes(&self, index: usize, elements: usize) -> Option<usize> {
        match self.coding() {
            Coding::PLAIN => Some(elements * 4),
            _ => self.sizes.get(index).map(|size| *size as usize),
        }
    }

    /// The bytes of all chunks of that many elements altogether.
    pub fn bytes(&self, elements: usize) -> u64 {
        match self.coding() {
            Coding::PLAIN => elements as u64 * 4,
            _ => self.sizes.iter().map(|size| u64::from(*size)).sum(),
        }
    }
}

impl Contribution {
    /// How many tensors it is made of: one sum, or every member's clipped update.
    pub fn tensors(&self, needs: Needs) -> usize {
        match needs {
            Needs::Sum => 1,
            Needs::Each | Needs::EachTwice => self.members.len(),
        }
    }

    /// BLAKE3 of the chunk hashes in order: names the whole contribution.
    pub fn hash(&self) -> Hash {
        let mut bytes = Vec::with_capacity(self.chunks.len() * 32);
        self.chunks
            .iter()
            .for_each(|chunk| bytes.extend_from_slice(&chunk.0));
        Hash::of_bytes(&bytes)
    }
}

/// What became of a contribution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Durably noted: it is in the aggregate, or the round ends degraded or aborted naming it.
    Acknowledged,
    /// Already noted.
    Duplicate,
    /// The round does not accept any more.
    Late,
    /// Not acceptable, and why.
    Refused(Text),
}

/// A round's outcome is recorded; from the coordinator to every gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The round.
    pub round: Round,
    /// The model before it.
    pub base: Hash,
    /// The model after it.
    pub hash: Hash,
    /// The domains whose contribution is inside, with the attempt.
    pub contributions: Vec<(DomainId, Attempt)>,
}

/// A tensor object that a peer may fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Object {
    /// The whole model after a round.
    Model(Round),
    /// The [`Outline`](crate::outline::Outline) of the whole model of that hash.
    Outline(Hash),
    /// A chunk of [`CHUNK_ELEMENTS`] elements of the model of that hash.
    Chunk(Hash, u32),
    /// A domain's scaled sum.
    Contribution(Round, Attempt),
    /// What it holds from that byte on: for whoever has the bytes before.
    Rest(Round, Attempt, u64),
}

/// Why an object is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lack {
    /// It is not there.
    Absent,
    /// It may be there, but as much is being sent as may be at once: a little later it can be had.
    Busy,
}

/// Leaves of the record; from the coordinator to a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Append {
    /// The place of the first one, from 0.
    pub from: u64,
    /// The lines, at most [`APPEND_BYTES_MAX`](crate::record::APPEND_BYTES_MAX) bytes of them.
    pub leaves: Vec<String>,
    /// The root over all leaves up to the last of these, as the coordinator has signed it.
    pub head: String,
    /// An older head with those who have cosigned it; one for each history that was signed.
    pub cosigned: Vec<String>,
}

/// How far a gateway's copy of the record is; to the coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// How many leaves it holds.
    pub size: u64,
    /// The head over them with its cosignature; empty if it has not taken any just now.
    pub note: String,
    /// Why it does not take what was offered; empty if it does.
    pub refused: Text,
    /// Its certificate, when it says this for the first time on a link.
    pub certificate: Vec<u8>,
}

/// The longest [`RevocationList`]: some 1,500 certificates.
pub const LIST_BYTES_MAX: usize = 64 << 10;

/// Certificates that a domain has called back: a CRL in DER, signed by the domain's root, which proves it whoever tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>")]
pub struct RevocationList(Vec<u8>);

impl RevocationList {
    /// The DER.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for RevocationList {
    type Error = String;

    fn try_from(bytes: Vec<u8>) -> Result<Self, String> {
        match bytes.len() {
            0..=LIST_BYTES_MAX => Ok(RevocationList(bytes)),
            found => Err(format!(
                "a list of {found} bytes, at most {LIST_BYTES_MAX} are allowed"
            )),
        }
    }
}

/// Every control message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(
    missing_docs,
    reason = "a variant is named after its message, which is documented"
)]
pub enum Control {
    // Either way.
    Fetch {
        tag: u64,
        object: Object,
    },
    Offer {
        tag: u64,
        object: Object,
    },
    Missing {
        tag: u64,
        lack: Lack,
        reason: Text,
    },
    Endpoint(Vec<u8>),
    Muster(Muster),

    // Coordinator to gateways and their successors, and from these to their domain.
    View(View),

    // Coordinator to gateway.
    Resync,
    Open(Open),
    Weigh {
        round: Round,
        weights: Vec<Weight>,
        /// The norms that they were fixed for, in the same order: an update of another norm is another update.
        norms: Vec<f64>,
    },
    Answer {
        round: Round,
        attempt: Attempt,
        answer: Answer,
    },
    Commit(Commit),
    Abort {
        round: Round,
        reason: Text,
    },
    Finish {
        reason: Text,
    },
    /// Whether the domain's nodes have the topology with that hash at hand, to go on by it.
    Amend(Hash),

    // Gateway to coordinator.
    DomainJoin(DomainJoin),
    Reported {
        round: Round,
        epoch: Epoch,
        /// The round that the update was trained for.
        trained_for: Round,
        report: Report,
        /// How long its training took.
        effort: Effort,
    },
    /// In the asynchronous mode: an update came that is too old for the round.
    Stale {
        round: Round,
        node: NodeId,
        trained_for: Round,
    },
    TrainingFailed {
        round: Round,
        node: NodeId,
        reason: Text,
    },
    Unreachable {
        round: Round,
        node: NodeId,
        reason: Text,
    },
    Contribute(Contribution),
    Adopted {
        round: Round,
        hash: Hash,
        nodes: Vec<NodeId>,
    },
    Standing {
        node: NodeId,
        word: Word,
    },
    MemberDiverged(NodeId, Divergence),
    MemberVitals(Vitals),
    /// A node has the topology at hand, or why not.
    MemberAgreed {
        node: NodeId,
        topology: Hash,
        objection: Option<Text>,
    },

    // Gateway to member.
    Rejoin,
    Train(Train),
    Measure(Measure),
    Fold(Fold),
    Adopt(ModelRef),
    Drop {
        round: Round,
        reason: Text,
    },
    Leave {
        reason: Text,
    },
    /// Whether it has the topology with that hash at hand.
    Consider(Hash),

    // Member to gateway.
    Join(Join),
    Exported(Exported),
    Failed {
        round: Round,
        /// Of the order to train, if one failed; a model may also be handed out by itself.
        token: Option<u64>,
        reason: Text,
    },
    Measured(Measured),
    Folded(Folded),
    Holds {
        round: Round,
        hash: Hash,
    },
    Diverged(Divergence),
    Departing,
    Vitals(Vitals),
    Agreed {
        topology: Hash,
        objection: Option<Text>,
    },

    // The record: coordinator to gateway, and back.
    Append(Append),
    Recorded(Recorded),

    // Either way.
    /// This connection is to be replaced: whoever dials dials anew, and what stands goes on until then.
    Renew,
    Revoked(RevocationList),
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
