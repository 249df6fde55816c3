//! The keys that say where: domains, nodes, links, liveness, trust and state.

use super::{Kind, ROUNDS_MAX, Table, key, later};
use crate::topology::NODES_MAX;

/// The present root of a domain, the next one, and room.
const PINS_MAX: usize = 8;

use Kind::{Duration, Flag, List, Number, Share, Whole, Word};

pub(in crate::topology) static DOMAIN: Table = Table {
    shown: "[[domain]]",
    doc: "An island of compute.",
    keys: &[
        key("name", Kind::Name, "Its name.").required(),
        key("fabric", Word, "What carries tensors inside it.")
            .words(&["auto", "shm", "ibverbs"])
            .later(&["none"])
            .or("\"auto\""),
        key("collective", Word, "The shape of reduces in a round.")
            .words(&["auto", "direct"])
            .later(&["chain"])
            .or("\"auto\""),
        key(
            "step_collective",
            Word,
            "The shape of reduces in step mode; auto is direct, the fastest in one memory.",
        )
        .words(&["auto", "direct", "ring", "tree", "halving", "mesh"])
        .or("\"auto\""),
        key(
            "nodes",
            List(&Kind::Name, 1, NODES_MAX),
            "Its nodes by name; or [[domain.node]] tables.",
        ),
        key(
            "node",
            Kind::Tables(&NODE, NODES_MAX),
            "Its nodes with addresses.",
        ),
        key(
            "gateways",
            List(&Kind::Name, 1, NODES_MAX),
            "Nodes that hold its WAN links, in order of succession; default: the first node.",
        ),
        key(
            "root",
            Kind::Path,
            "Its CA certificate; default: certs/<name>.pem.",
        ),
        key(
            "root_sha256",
            Kind::OneOrMore(&Kind::Sha256, PINS_MAX),
            "The pin of its CA certificate; several while one takes the place of another.",
        ),
    ],
};

static NODE: Table = Table {
    shown: "[[domain.node]]",
    doc: "One node.",
    keys: &[
        key("name", Kind::Name, "Its name.").required(),
        key(
            "listen",
            Kind::Socket,
            "Where it listens; default: a free port on loopback.",
        ),
        key(
            "advertise",
            Kind::HostPort,
            "What peers dial; default: where it listens.",
        ),
        key(
            "outbound_only",
            Flag,
            "Whether nodes of other domains cannot dial it. Two such nodes need a relay: see [route].",
        )
        .or("false"),
        later("weight", "A weight of its own."),
        key("slice", Kind::Name, "The slice it belongs to."),
        later("cpus", "The processors it is pinned to."),
        later("numa", "The memory node it is pinned to."),
    ],
};

pub(in crate::topology) static LINK: Table = Table {
    shown: "[[link]]",
    doc: "Settings between the gateways of two domains.",
    keys: &[
        key("between", List(&Kind::Name, 2, 2), "The two domains.").required(),
        key(
            "cap",
            Kind::Rate,
            "The most that gateways send over this link, each way.",
        ),
        key(
            "cap_back",
            Kind::Rate,
            "The most from the second of `between` to the first; default: `cap`.",
        ),
        key(
            "hours",
            Kind::Tables(&HOURS, 8),
            "Hours of the day in which another cap holds; of several the first.",
        ),
        key(
            "codec",
            Kind::Codec,
            "The encoding of contributions, and a lossless stage behind it.",
        )
        .words(&["auto"])
        .or("\"none\""),
        key(
            "accuracy_budget",
            Share(100.0),
            "With codec = \"auto\": the share of an update's length that may stay behind in a round, to be sent with the next.",
        )
        .or("\"1%\""),
        key(
            "lossless_down",
            Word,
            "The lossless stage of models that cross this link; default: `codec_down`.",
        )
        .words(&["none", "snappy", "lz4", "zstd", "auto"]),
        key(
            "share",
            Share(100.0),
            "The share of elements that top-k sends.",
        )
        .or("\"1%\""),
        key("congestion", Word, "The congestion law.")
            .words(&["cubic", "bbr", "delay-gradient"])
            .or("\"cubic\""),
        key(
            "factor",
            Number(0.05, 1.0),
            "Of delay-gradient: the share of the queueing delay above its target by which the window is cut each round trip.",
        )
        .or("0.4"),
        key(
            "additive",
            Number(0.005, 0.25),
            "Of delay-gradient: the share of the window that is added each round trip while the queue is empty.",
        )
        .or("0.03"),
        key("overload", Word, "What gives way when more is to be sent than `cap`: who sends, the datagrams, or the rate, as long as the path shows a queue.")
            .words(&["delay", "drop", "adapt"])
            .or("\"delay\""),
        key(
            "emulate",
            Kind::Table(&EMULATE),
            "What run and sim impose on the path.",
        )
        .or("{}"),
    ],
};

static HOURS: Table = Table {
    shown: "[[link.hours]]",
    doc: "A part of every day, UTC.",
    keys: &[
        key("from", Kind::Clock, "When it begins.").required(),
        key(
            "to",
            Kind::Clock,
            "When it ends; of the next day if that is earlier.",
        )
        .required(),
        key("cap", Kind::Rate, "The most then, each way.").required(),
        key(
            "cap_back",
            Kind::Rate,
            "The most then from the second of `between` to the first; default: `cap`.",
        ),
    ],
};

static EMULATE: Table = Table {
    shown: "link.emulate",
    doc: "An emulated path, each way.",
    keys: &[
        key("delay", Duration("0s", "60s"), "One-way delay.").or("\"0s\""),
        key(
            "jitter",
            Duration("0s", "60s"),
            "Uniform extra delay, at most this.",
        )
        .or("\"0s\""),
        key("loss", Share(90.0), "Share of datagrams lost.").or("\"0%\""),
        key("rate", Kind::Rate, "The rate; default: unlimited."),
    ],
};

pub(in crate::topology) static EXCHANGE: Table = Table {
    shown: "[exchange]",
    doc: "How domains exchange contributions.",
    keys: &[key("shape", Word, "Who sends to whom.")
        .words(&["auto", "star"])
        .later(&["tree", "ring", "mesh"])
        .or("\"auto\"")],
};

pub(in crate::topology) static ROUTE: Table = Table {
    shown: "[route]",
    doc: "How paths are chosen.",
    keys: &[
        key(
            "relay",
            List(&Kind::Name, 0, NODES_MAX),
            "Domains whose gateways pass on, encrypted from end to end, what others have for each other; default: none.",
        ),
        key(
            "weights",
            Kind::Table(&ROUTE_WEIGHTS),
            "What counts in a path's score.",
        )
        .or("{}"),
        key(
            "periods",
            Kind::Table(&ROUTE_PERIODS),
            "How often it is measured.",
        )
        .or("{}"),
    ],
};

static ROUTE_WEIGHTS: Table = Table {
    shown: "route.weights",
    doc: "What counts in a path's score.",
    keys: &[
        key("latency", Number(0.0, 1.0), "Of latency.").only("0.4"),
        key("bandwidth", Number(0.0, 1.0), "Of bandwidth.").only("0.3"),
        key("loss", Number(0.0, 1.0), "Of loss.").only("0.3"),
    ],
};

static ROUTE_PERIODS: Table = Table {
    shown: "route.periods",
    doc: "How often paths are measured.",
    keys: &[
        key("latency", Duration("1ms", "1h"), "Of latency.").only("\"500ms\""),
        key("bandwidth", Duration("1ms", "1h"), "Of bandwidth.").only("\"1s\""),
        key("loss", Duration("1ms", "1h"), "Of loss.").only("\"800ms\""),
    ],
};

pub(in crate::topology) static HEARTBEAT: Table = Table {
    shown: "[heartbeat]",
    doc: "Liveness.",
    keys: &[
        key("every", Duration("10ms", "60s"), "The period.").or("\"500ms\""),
        key(
            "phi",
            Number(1.0, 100.0),
            "The suspicion at which a peer is suspected: at 8, one silence in 10^8 is a false alarm.",
        )
        .or("8.0"),
        key(
            "retry",
            List(&Duration("1ms", "10min"), 1, 8),
            "Waits of the retries; a suspected peer is dialled anew at a random moment of each.",
        )
        .or("[\"1s\", \"2s\", \"4s\"]"),
        key(
            "restore_limit",
            Duration("1s", "1d"),
            "How long a peer that was lost may take to come back before it is evicted.",
        )
        .or("\"60s\""),
        key(
            "cooldown",
            Kind::Table(&COOLDOWN),
            "How long an evicted node stays out: twice as long each time.",
        )
        .or("{}"),
    ],
};

static COOLDOWN: Table = Table {
    shown: "heartbeat.cooldown",
    doc: "How long an evicted node stays out: twice as long each time.",
    keys: &[
        key("first", Duration("1s", "1d"), "The first time.").or("\"10s\""),
        key(
            "cap",
            Duration("1s", "7d"),
            "At most; a node that was a member for as long starts anew.",
        )
        .or("\"10min\""),
    ],
};

pub(in crate::topology) static SECURITY: Table = Table {
    shown: "[security]",
    doc: "Keys and certificates.",
    keys: &[key(
        "post_quantum",
        Word,
        "Whether peers without X25519MLKEM768 are refused.",
    )
    .words(&["prefer", "require"])
    .or("\"prefer\"")],
};

pub(in crate::topology) static CHECKPOINT: Table = Table {
    shown: "[checkpoint]",
    doc: "State on disk.",
    keys: &[
        key(
            "store",
            Kind::Store,
            "Where the coordinator's records lie: file:FOLDER, which is the state folder, or an object store's URL.",
        ).or("\"file:./state\""),
        key(
            "every",
            Whole(1, ROUNDS_MAX),
            "Which committed states are kept (the newest two always).",
        )
        .or("1"),
        key(
            "snapshot",
            Duration("0s", "1d"),
            "How long a node trains before it writes down where it is.",
        )
        .or("\"10s\""),
        key(
            "retain_contributions",
            Whole(0, ROUNDS_MAX),
            "Of how many rounds each domain's gateway keeps what it contributed, for `tombolo audit recompute`.",
        )
        .or("0"),
    ],
};
