//! The keys of a topology file: the one place that says which there are, what they hold, what they default to and what they mean.
//!
//! Reading, suggestions, the JSON schema and the defaults all come from these tables. To add a key: add one line here, then take its value
//! in `build/`. A key or value that is in the contract but not built yet is listed too, so that it is refused by name and never ignored.

pub(super) mod faults;
mod places;
mod policies;
mod training;

use tombolo_core::policy::{RULES_MAX, SLICES_MAX};

use super::DOMAINS_MAX;

/// Most rounds of one run: six digits, since the names of commits and states on disk sort by them.
const ROUNDS_MAX: u64 = 999_999;

/// TOML whole numbers are signed.
const SEED_MAX: u64 = i64::MAX as u64;

/// What a key may hold.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// A whole number in a range.
    Whole(u64, u64),
    /// A number in a range, both ends allowed.
    Number(f64, f64),
    /// A number above the first and at most the second.
    Above(f64, f64),
    /// True or false.
    Flag,
    /// One of the key's words and nothing else.
    Word,
    /// The name of an aggregation rule: a word, or a name that the program registered.
    Rule,
    /// A name by the naming rule.
    Name,
    /// `domain/node`.
    Node,
    /// `domain/node`, or a domain's name.
    Place,
    /// A path.
    Path,
    /// A codec, a lossless stage, or one behind the other: `topk+fp16+zstd`.
    Codec,
    /// Any words on one line.
    Text,
    /// `ip:port`.
    Socket,
    /// `host:port`.
    HostPort,
    /// 64 hexadecimal digits.
    Sha256,
    /// `file:FOLDER`.
    Store,
    /// Local steps, or `"1 epoch"`.
    Steps,
    /// A duration in a range.
    Duration(&'static str, &'static str),
    /// Bits per second.
    Rate,
    /// A time of day, `"08:30"`, as a minute of the day.
    Clock,
    /// A percentage up to this one.
    Share(f64),
    /// A list of so many values.
    List(&'static Kind, usize, usize),
    /// A value, or a list of at most so many.
    OneOrMore(&'static Kind, usize),
    /// A table.
    Table(&'static Table),
    /// A list of at most so many tables.
    Tables(&'static Table, usize),
}

/// How far a key is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// All of it works.
    Built,
    /// Only the default works.
    DefaultOnly,
    /// Nothing of it works.
    Later,
}

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub name: &'static str,
    pub kind: Kind,
    pub doc: &'static str,
    pub stage: Stage,
    pub required: bool,
    /// As TOML. Without one, absence means something of its own.
    pub default: Option<&'static str>,
    /// Words that may stand instead of a value of the kind.
    pub words: &'static [&'static str],
    /// Words of the contract that are not built.
    pub later: &'static [&'static str],
}

/// A table of keys.
#[derive(Debug)]
pub(super) struct Table {
    /// How messages call it.
    pub shown: &'static str,
    pub doc: &'static str,
    pub keys: &'static [Key],
}

impl Table {
    pub(super) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

const fn key(name: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key {
        name,
        kind,
        doc,
        stage: Stage::Built,
        required: false,
        default: None,
        words: &[],
        later: &[],
    }
}

/// A key of the contract of which nothing is built.
const fn later(name: &'static str, doc: &'static str) -> Key {
    Key {
        stage: Stage::Later,
        ..key(name, Kind::Flag, doc)
    }
}

impl Key {
    const fn or(self, default: &'static str) -> Key {
        Key {
            default: Some(default),
            ..self
        }
    }

    const fn only(self, default: &'static str) -> Key {
        Key {
            default: Some(default),
            stage: Stage::DefaultOnly,
            ..self
        }
    }

    const fn required(self) -> Key {
        Key {
            required: true,
            ..self
        }
    }

    const fn words(self, words: &'static [&'static str]) -> Key {
        Key { words, ..self }
    }

    const fn later(self, later: &'static [&'static str]) -> Key {
        Key { later, ..self }
    }
}

/// The whole file.
pub(super) static FILE: Table = Table {
    shown: "the file",
    doc: "A Tombolo topology: the domains of a federation and how they train together.",
    keys: &[
        key(
            "federation",
            Kind::Table(&training::FEDERATION),
            "What is trained together.",
        )
        .required(),
        key(
            "run",
            Kind::Table(&training::RUN),
            "How this program computes.",
        )
        .or("{}"),
        key(
            "round",
            Kind::Table(&training::ROUND),
            "How rounds open and close.",
        )
        .or("{}"),
        key(
            "model",
            Kind::Table(&training::MODEL),
            "The built-in trainer.",
        )
        .or("{}"),
        key(
            "aggregator",
            Kind::Table(&training::AGGREGATOR),
            "How updates become one.",
        )
        .or("{}"),
        key(
            "outer",
            Kind::Table(&training::OUTER),
            "What is done with the aggregate.",
        )
        .or("{}"),
        key(
            "domain",
            Kind::Tables(&places::DOMAIN, DOMAINS_MAX),
            "An island of compute.",
        )
        .required(),
        key(
            "link",
            Kind::Tables(&places::LINK, 32_768),
            "Settings between two domains.",
        )
        .or("[]"),
        key(
            "exchange",
            Kind::Table(&places::EXCHANGE),
            "How domains exchange contributions.",
        )
        .or("{}"),
        key(
            "route",
            Kind::Table(&places::ROUTE),
            "How paths are chosen.",
        )
        .or("{}"),
        key("heartbeat", Kind::Table(&places::HEARTBEAT), "Liveness.").or("{}"),
        key(
            "security",
            Kind::Table(&places::SECURITY),
            "Keys and certificates.",
        )
        .or("{}"),
        key(
            "checkpoint",
            Kind::Table(&places::CHECKPOINT),
            "State on disk.",
        )
        .or("{}"),
        key(
            "slice",
            Kind::Tables(&policies::SLICE, SLICES_MAX),
            "A share of the federation's nodes for one tenant.",
        )
        .or("[]"),
        key(
            "policy",
            Kind::Tables(&policies::POLICY, RULES_MAX),
            "Who may do what at which site.",
        )
        .or("[]"),
    ],
};

/// Encodings of the contract; combined with `+`.
const CODECS: &[&str] = &[
    "auto", "fp16", "bf16", "int8", "topk", "snappy", "lz4", "zstd",
];
