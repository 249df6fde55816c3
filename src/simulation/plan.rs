//! A plan of faults: what befalls a federation, and when. A plain value, so that it can be drawn, printed, saved, made smaller and played again,
//! on the real actors as well as on the machines of `core/` alone.
//!
//! As TOML it is a list of `[[fault]]`; `crate::topology` reads that with every mistake's place.

mod random;
mod text;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use tombolo_core::ids::{DomainId, NodeId};
use tombolo_core::plan::Plan;

pub use random::Dose;

/// Most faults of a plan: far above what a run survives to feel.
pub const FAULTS_MAX: usize = 10_000;

/// Actors that every node has and that a fault may let panic.
pub const ACTORS: [&str; 10] = [
    "Node",
    "Quic",
    "Verbs",
    "Collective",
    "Checkpoint",
    "Record",
    "Credentials",
    "Link",
    "Heartbeat",
    "ClockSync",
];

/// Those that only the coordinator's node has.
pub const COORDINATORS_ACTORS: [&str; 2] = ["Coordinator", "Aggregate"];

/// Those of which a node has one, so that two of them may be made to wait for each other.
pub const ENTANGLED: [&str; 5] = ["Node", "Quic", "Verbs", "Collective", "Checkpoint"];

/// What befalls a federation, and when, in any order.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct FaultPlan {
    /// The faults.
    #[serde(rename = "fault", default)]
    pub faults: Vec<TimedFault>,
}

/// A fault with its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedFault {
    /// When it begins, in virtual time since the start.
    #[serde(with = "text::span")]
    pub at: Duration,
    /// When it ends; without it a fault that can end lasts as long as the run.
    #[serde(
        default,
        with = "text::span_if_any",
        skip_serializing_if = "Option::is_none"
    )]
    pub until: Option<Duration>,
    /// What it is.
    #[serde(flatten)]
    pub fault: Fault,
}

/// What can go wrong. Nodes are `domain/name`; groups may also name whole domains.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// A power cut: tasks, sockets and memory are gone, and of the disk what was not synchronized. The node starts again at the end.
    Crash {
        /// Who.
        node: String,
    },
    /// The power is cut in the middle of the node's next write to its disk; at the end of the fault it starts again, with half of that write there.
    TornWrite {
        /// Who.
        node: String,
    },
    /// The process is killed at a change of its disk, as by `SIGKILL`, or at the end of the fault if it makes none so late; then it starts again.
    /// Whatever it has written is there, synchronized or not: a later power cut may still take that away.
    Kill {
        /// Who.
        node: String,
        /// After how many more changes: files and folders made, writes, names given and taken, synchronizations.
        #[serde(default, skip_serializing_if = "is_default")]
        changes: u64,
    },
    /// The node starts again; if it is up it is cut off first. Without its disk it is a new machine of the same name, which listens elsewhere.
    Restart {
        /// Who.
        node: String,
        /// Whether its disk is empty.
        #[serde(default, skip_serializing_if = "is_default")]
        without_disk: bool,
    },
    /// The node's tasks and timers stop where they are, as under `SIGSTOP`; at the end they go on.
    Freeze {
        /// Who.
        node: String,
    },
    /// All blocking work of the node takes so many times as long: training, reading, hashing, folding.
    Slow {
        /// Who.
        node: String,
        /// How many times.
        factor: f64,
    },
    /// No datagram passes between the groups; inside a domain the fabric is cut, too, since its reads need both ways.
    Partition {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
    },
    /// Partitions between the groups are lifted, whoever made them.
    Heal {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
    },
    /// Datagrams are lost at random.
    Loss {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
        /// How many of them, 0 to 1.
        #[serde(with = "text::share")]
        share: f64,
    },
    /// Datagrams arrive twice at random.
    Duplicate {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
        /// How many of them, 0 to 1.
        #[serde(with = "text::share")]
        share: f64,
    },
    /// Each datagram is late by a time of its own, and later ones overtake it.
    Reorder {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
        /// By how much at most.
        #[serde(with = "text::span")]
        within: Duration,
    },
    /// Every datagram is late.
    Delay {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
        /// By how much.
        #[serde(with = "text::span")]
        by: Duration,
    },
    /// Datagrams with more payload than this vanish without notice.
    MtuBlackHole {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
        /// What still passes. QUIC needs 1,200.
        bytes: u64,
    },
    /// What the node sends to peers that it dials comes from other ports: a translation of addresses on its way has forgotten it.
    Rebind {
        /// Who.
        node: String,
    },
    /// No more than this passes; what is above it waits, and is dropped when a tenth of a second of it waits.
    RateLimit {
        /// Between whom.
        #[serde(flatten)]
        paths: Paths,
        /// Bits per second.
        #[serde(with = "text::rate")]
        rate: u64,
    },
    /// The node's wall clock is set forward; at the end, back again.
    ClockForward {
        /// Who.
        node: String,
        /// By how much.
        #[serde(with = "text::span")]
        by: Duration,
    },
    /// The node's wall clock is set back; at the end, forward again.
    ClockBack {
        /// Who.
        node: String,
        /// By how much.
        #[serde(with = "text::span")]
        by: Duration,
    },
    /// The node's clocks run too fast (or slow, below zero); at the end they run right, from where they stand.
    ClockDrift {
        /// Who.
        node: String,
        /// Parts per million of the wall clock, at most 100,000.
        #[serde(default, skip_serializing_if = "is_default")]
        wall_ppm: f64,
        /// Parts per million of the monotonic clock, at most 500: it is a crystal.
        #[serde(default, skip_serializing_if = "is_default")]
        monotonic_ppm: f64,
    },
    /// Nothing more fits on the node's disk; at the end there is room again.
    DiskFull {
        /// Who.
        node: String,
    },
    /// The node shows a certificate that does not count in handshakes; connections that stand are not asked again. At the end it shows a good one.
    StaleCertificate {
        /// Who.
        node: String,
        /// What is wrong with it.
        #[serde(default)]
        stale: Stale,
    },
    /// A user makes the node coordinator: one of `standby`, or the one that was it at the beginning.
    Promote {
        /// Who.
        node: String,
    },
    /// A user pauses the run, and at the end goes on with it: both through whoever coordinates then.
    Pause,
    /// A user ends the run, through whoever coordinates.
    Stop {
        /// Whether the open round is given up.
        #[serde(default, skip_serializing_if = "is_default")]
        now: bool,
    },
    /// An actor of the node panics, by its type's name: one of [`ACTORS`], or at the coordinator of [`COORDINATORS_ACTORS`]; of those
    /// of each peer all.
    Panic {
        /// Whose.
        node: String,
        /// Which.
        actor: String,
    },
    /// A bit of the model that the node holds flips in its memory, before it trains from it next.
    BitFlip {
        /// Whose.
        node: String,
    },
    /// Two actors of the node wait for each other and take no message any more: two of [`ENTANGLED`].
    Deadlock {
        /// Whose.
        node: String,
        /// One.
        actor: String,
        /// The other.
        other: String,
    },
}

/// What is wrong with a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stale {
    /// Its time is over.
    #[default]
    Expired,
    /// Its time has not come.
    NotYetValid,
}

/// The paths between two groups of nodes and domains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paths {
    /// One group.
    pub from: Vec<String>,
    /// The other; if empty, everybody who is not in the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<String>,
    /// Whether only what goes from the first to the second is meant.
    #[serde(default, skip_serializing_if = "is_default")]
    pub one_way: bool,
}

/// A fault that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// Of a name.
    #[error("a fault names {0:?}, which is no node or domain of the topology")]
    Unknown(String),
    /// Of anything else.
    #[error("{0}")]
    Impossible(String),
}

impl FaultPlan {
    /// Whether every fault can be, in a federation of this topology.
    ///
    /// # Errors
    /// The first one that cannot.
    pub fn check(&self, topology: &Plan) -> Result<(), FaultError> {
        if self.faults.len() > FAULTS_MAX {
            let message = format!(
                "the plan has {} faults, at most {FAULTS_MAX} are played",
                self.faults.len()
            );
            return Err(FaultError::Impossible(message));
        }
        let check = |timed: &TimedFault| timed.check(topology);
        self.faults.iter().try_for_each(check)
    }

    /// From when on nothing is wrong any more; `None` if something lasts as long as the run.
    pub fn healed_at(&self) -> Option<Duration> {
        let mut healed = Duration::ZERO;
        for timed in &self.faults {
            let end = match timed.until {
                Some(until) => until,
                None if !timed.fault.lasts() && !timed.fault.stays() => timed.at,
                None => self.undone_at(timed)?,
            };
            healed = healed.max(end);
        }
        Some(healed)
    }

    /// When a fault without an end of its own is undone by another one.
    fn undone_at(&self, timed: &TimedFault) -> Option<Duration> {
        let later = self.faults.iter().filter(|other| other.at >= timed.at);
        let undone = later.filter(|other| match (&timed.fault, &other.fault) {
            (
                Fault::Crash { node }
                | Fault::TornWrite { node }
                | Fault::Kill { node, .. }
                | Fault::Deadlock { node, .. }
                | Fault::Freeze { node },
                Fault::Restart { node: again, .. },
            ) => node == again,
            (Fault::Partition { paths }, Fault::Heal { paths: healed }) => paths == healed,
            _ => false,
        });
        undone.map(|other| other.at).min()
    }

    /// The plan as a file that `tombolo sim FILE --faults` reads.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("every part of a plan has a form in TOML")
    }
}

impl TimedFault {
    /// Whether it can be, in a federation of this topology.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, topology: &Plan) -> Result<(), FaultError> {
        let impossible = |message: String| Err(FaultError::Impossible(message));
        match self.until {
            Some(_) if !self.fault.lasts() => impossible(format!(
                "a {} happens at an instant: give it no end",
                self.fault.kind()
            )),
            Some(until) if until <= self.at => impossible(format!(
                "a {} ends at {until:?}, which is not after its beginning at {:?}",
                self.fault.kind(),
                self.at
            )),
            _ => self.fault.check(topology),
        }
    }
}

impl Fault {
    /// Whether it has a beginning and an end, or happens at an instant.
    pub fn lasts(&self) -> bool {
        !matches!(
            self,
            Fault::Restart { .. }
                | Fault::Heal { .. }
                | Fault::Panic { .. }
                | Fault::BitFlip { .. }
                | Fault::Deadlock { .. }
                | Fault::Promote { .. }
                | Fault::Stop { .. }
                | Fault::Rebind { .. }
        )
    }

    /// Whether what happens at an instant stays so until its node starts again.
    fn stays(&self) -> bool {
        matches!(self, Fault::Deadlock { .. })
    }

    /// The node that it befalls, if it is one.
    pub fn node(&self) -> Option<&str> {
        match self {
            Fault::Crash { node }
            | Fault::TornWrite { node }
            | Fault::Kill { node, .. }
            | Fault::Restart { node, .. }
            | Fault::Freeze { node }
            | Fault::Slow { node, .. }
            | Fault::ClockForward { node, .. }
            | Fault::ClockBack { node, .. }
            | Fault::ClockDrift { node, .. }
            | Fault::DiskFull { node }
            | Fault::StaleCertificate { node, .. }
            | Fault::Promote { node }
            | Fault::Rebind { node }
            | Fault::BitFlip { node }
            | Fault::Deadlock { node, .. }
            | Fault::Panic { node, .. } => Some(node),
            _ => None,
        }
    }

    /// The paths that it befalls, if it does.
    pub fn paths(&self) -> Option<&Paths> {
        match self {
            Fault::Partition { paths }
            | Fault::Heal { paths }
            | Fault::Loss { paths, .. }
            | Fault::Duplicate { paths, .. }
            | Fault::Reorder { paths, .. }
            | Fault::Delay { paths, .. }
            | Fault::MtuBlackHole { paths, .. }
            | Fault::RateLimit { paths, .. } => Some(paths),
            _ => None,
        }
    }

    /// The same, for what goes from the first group to the second only.
    #[must_use]
    pub fn one_way(mut self) -> Fault {
        match &mut self {
            Fault::Partition { paths }
            | Fault::Heal { paths }
            | Fault::Loss { paths, .. }
            | Fault::Duplicate { paths, .. }
            | Fault::Reorder { paths, .. }
            | Fault::Delay { paths, .. }
            | Fault::MtuBlackHole { paths, .. }
            | Fault::RateLimit { paths, .. } => paths.one_way = true,
            _ => {}
        }
        self
    }

    /// Its kind, as a plan's file writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Crash { .. } => "crash",
            Fault::TornWrite { .. } => "torn-write",
            Fault::Kill { .. } => "kill",
            Fault::Restart { .. } => "restart",
            Fault::Freeze { .. } => "freeze",
            Fault::Slow { .. } => "slow",
            Fault::Partition { .. } => "partition",
            Fault::Heal { .. } => "heal",
            Fault::Loss { .. } => "loss",
            Fault::Duplicate { .. } => "duplicate",
            Fault::Reorder { .. } => "reorder",
            Fault::Delay { .. } => "delay",
            Fault::MtuBlackHole { .. } => "mtu-black-hole",
            Fault::Rebind { .. } => "rebind",
            Fault::RateLimit { .. } => "rate-limit",
            Fault::ClockForward { .. } => "clock-forward",
            Fault::ClockBack { .. } => "clock-back",
            Fault::ClockDrift { .. } => "clock-drift",
            Fault::DiskFull { .. } => "disk-full",
            Fault::StaleCertificate { .. } => "stale-certificate",
            Fault::Promote { .. } => "promote",
            Fault::Pause => "pause",
            Fault::Stop { .. } => "stop",
            Fault::Panic { .. } => "panic",
            Fault::BitFlip { .. } => "bit-flip",
            Fault::Deadlock { .. } => "deadlock",
        }
    }

    fn check(&self, topology: &Plan) -> Result<(), FaultError> {
        if let Some(name) = self.unknown(topology) {
            return Err(FaultError::Unknown(name.to_owned()));
        }
        self.possible(topology).map_err(FaultError::Impossible)
    }

    fn unknown(&self, topology: &Plan) -> Option<&str> {
        let nodes = self.node().into_iter();
        let mut unknown = nodes.filter(|name| find_node(topology, name).is_none());
        unknown.next().or_else(|| {
            let paths = self.paths()?;
            let names = paths.from.iter().chain(&paths.to).map(String::as_str);
            names
                .filter(|name| !is_place(topology, name))
                .find(|_| true)
        })
    }

    /// Whether its numbers are such that it can happen.
    fn possible(&self, topology: &Plan) -> Result<(), String> {
        let share_fits = |share: f64| (0.0..=1.0).contains(&share);
        match self {
            Fault::Slow { node, factor } if !(factor.is_finite() && *factor > 0.0) => Err(format!(
                "{node} cannot be {factor} times as slow: expected a positive number"
            )),
            Fault::Loss { share, .. } | Fault::Duplicate { share, .. } if !share_fits(*share) => {
                Err(format!(
                    "{share} is no share: expected a number from 0 to 1"
                ))
            }
            Fault::RateLimit { rate: 0, .. } => {
                Err("a rate of nothing is a partition: expected at least 1 bit/s".into())
            }
            Fault::ClockDrift {
                node,
                wall_ppm,
                monotonic_ppm,
            } if !(wall_ppm.abs() <= 1e5 && monotonic_ppm.abs() <= 500.0) => Err(format!(
                "the clocks of {node} cannot drift by {wall_ppm} and {monotonic_ppm} millionths: expected at most 100,000 of the wall \
                 clock and 500 of the monotonic one"
            )),
            Fault::Promote { node }
                if !find_node(topology, node).is_some_and(|id| topology.may_coordinate(id)) =>
            {
                let standby = topology.standby.iter();
                let standby: Vec<&str> = standby.map(|node| node.as_str()).collect();
                Err(format!(
                    "{node} cannot be promoted: expected one of standby = {standby:?}"
                ))
            }
            Fault::Panic { node, actor } => {
                let coordinates =
                    find_node(topology, node).is_some_and(|id| topology.may_coordinate(id));
                let has = |actors: &[&str]| actors.contains(&actor.as_str());
                if has(&ACTORS) || coordinates && has(&COORDINATORS_ACTORS) {
                    return Ok(());
                }
                Err(format!(
                    "{node} has no actor {actor:?}: expected one of {ACTORS:?}, or at the coordinator {COORDINATORS_ACTORS:?}"
                ))
            }
            Fault::Deadlock { actor, other, .. }
                if actor == other
                    || ![actor, other]
                        .map(String::as_str)
                        .iter()
                        .all(|name| ENTANGLED.contains(name)) =>
            {
                Err(format!(
                    "{actor:?} and {other:?} cannot be made to wait for each other: expected two of {ENTANGLED:?}"
                ))
            }
            _ => match self.paths().map(|paths| paths.pairs(topology).is_empty()) {
                Some(true) => Err(format!(
                    "a {} has no paths: its two groups are one and the same",
                    self.kind()
                )),
                _ => Ok(()),
            },
        }
    }
}

impl Paths {
    /// Every path that is meant, each way on its own.
    pub fn pairs(&self, topology: &Plan) -> Vec<(NodeId, NodeId)> {
        let from = stand_for(topology, &self.from);
        let mut to = stand_for(topology, &self.to);
        if self.to.is_empty() {
            let all = topology.nodes().map(|node| node.id.clone());
            to = all.filter(|node| !from.contains(node)).collect();
        }
        let mut pairs = BTreeSet::new();
        for a in &from {
            for b in to.iter().filter(|b| *b != a) {
                pairs.insert((a.clone(), b.clone()));
                if !self.one_way {
                    pairs.insert((b.clone(), a.clone()));
                }
            }
        }
        pairs.into_iter().collect()
    }
}

/// The node of that name.
pub fn find_node<'a>(topology: &'a Plan, name: &str) -> Option<&'a NodeId> {
    let node = name.parse::<NodeId>().ok()?;
    topology.node(&node).map(|node| &node.id)
}

/// Whether a node or a domain has that name.
pub fn is_place(topology: &Plan, name: &str) -> bool {
    let domain = || name.parse::<DomainId>().ok();
    find_node(topology, name).is_some() || domain().is_some_and(|id| topology.domain(&id).is_some())
}

/// The nodes that names of nodes and domains stand for.
fn stand_for(topology: &Plan, names: &[String]) -> BTreeSet<NodeId> {
    let meant =
        |node: &NodeId, name: &String| node.as_str() == name || node.domain().as_str() == name;
    topology
        .nodes()
        .map(|node| node.id.clone())
        .filter(|node| names.iter().any(|name| meant(node, name)))
        .collect()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
