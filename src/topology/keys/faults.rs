//! The keys of a plan of faults, the file behind `sim --faults`.

use super::{Kind, Table, key};
use crate::simulation::plan::FAULTS_MAX;

use Kind::{Above, Duration, Flag, List, Node, Number, Place, Rate, Share, Whole, Word};

/// What a kind of fault takes, besides `kind` and `at`.
pub(in crate::topology) struct FaultKind {
    pub name: &'static str,
    /// Keys that must be there.
    pub needs: &'static [&'static str],
    /// Keys that may be there.
    pub takes: &'static [&'static str],
}

const fn kind(
    name: &'static str,
    needs: &'static [&'static str],
    takes: &'static [&'static str],
) -> FaultKind {
    FaultKind { name, needs, takes }
}

pub(in crate::topology) static KINDS: [FaultKind; 26] = [
    kind("crash", &["node"], &["until"]),
    kind("torn-write", &["node"], &["until"]),
    kind("kill", &["node"], &["changes", "until"]),
    kind("restart", &["node"], &["without_disk"]),
    kind("freeze", &["node"], &["until"]),
    kind("slow", &["node", "factor"], &["until"]),
    kind("partition", &["from"], &["to", "one_way", "until"]),
    kind("heal", &["from"], &["to", "one_way"]),
    kind("loss", &["from", "share"], &["to", "one_way", "until"]),
    kind("duplicate", &["from", "share"], &["to", "one_way", "until"]),
    kind("reorder", &["from", "within"], &["to", "one_way", "until"]),
    kind("delay", &["from", "by"], &["to", "one_way", "until"]),
    kind(
        "mtu-black-hole",
        &["from", "bytes"],
        &["to", "one_way", "until"],
    ),
    kind("rebind", &["node"], &[]),
    kind("rate-limit", &["from", "rate"], &["to", "one_way", "until"]),
    kind("clock-forward", &["node", "by"], &["until"]),
    kind("clock-back", &["node", "by"], &["until"]),
    kind(
        "clock-drift",
        &["node"],
        &["wall_ppm", "monotonic_ppm", "until"],
    ),
    kind("disk-full", &["node"], &["until"]),
    kind("stale-certificate", &["node"], &["stale", "until"]),
    kind("promote", &["node"], &[]),
    kind("pause", &[], &["until"]),
    kind("stop", &[], &["now"]),
    kind("panic", &["node", "actor"], &[]),
    kind("bit-flip", &["node"], &[]),
    kind("deadlock", &["node", "actor", "other"], &[]),
];

/// The whole file.
pub(in crate::topology) static FAULTS: Table = Table {
    shown: "the plan of faults",
    doc: "What goes wrong in a simulation, and when.",
    keys: &[key(
        "fault",
        Kind::Tables(&FAULT, FAULTS_MAX),
        "What goes wrong, in any order.",
    )
    .or("[]")],
};

static FAULT: Table = Table {
    shown: "[[fault]]",
    doc: "Something that goes wrong.",
    keys: &[
        key("at", Duration("0s", "365d"), "When it begins.").required(),
        key(
            "until",
            Duration("1us", "365d"),
            "When it ends; default: with the run.",
        ),
        key("kind", Word, "What it is.")
            .words(&[
                "crash",
                "torn-write",
                "kill",
                "restart",
                "freeze",
                "slow",
                "partition",
                "heal",
                "loss",
                "duplicate",
                "reorder",
                "delay",
                "mtu-black-hole",
                "rebind",
                "rate-limit",
                "clock-forward",
                "clock-back",
                "clock-drift",
                "disk-full",
                "stale-certificate",
                "promote",
                "pause",
                "stop",
                "panic",
                "bit-flip",
                "deadlock",
            ])
            .required(),
        key("node", Node, "Whom it befalls."),
        key(
            "from",
            List(&Place, 1, 1024),
            "The nodes or domains of one side.",
        ),
        key(
            "to",
            List(&Place, 1, 1024),
            "Those of the other; default: everybody else.",
        ),
        key("one_way", Flag, "Whether only that direction is meant."),
        key(
            "without_disk",
            Flag,
            "Whether it starts with an empty disk.",
        ),
        key(
            "changes",
            Whole(0, 1_000_000),
            "How many changes of its disk it still makes.",
        ),
        key(
            "factor",
            Above(0.0, 1e6),
            "How many times as long its work takes.",
        ),
        key("share", Share(100.0), "Of how many datagrams."),
        key(
            "within",
            Duration("1us", "60s"),
            "By how much a datagram is late at most.",
        ),
        key("by", Duration("1us", "365d"), "By how much."),
        key("bytes", Whole(1, 65_507), "What payload still passes."),
        key("rate", Rate, "What still passes."),
        key(
            "wall_ppm",
            Number(-1e5, 1e5),
            "How many millionths its wall clock is too fast.",
        ),
        key(
            "monotonic_ppm",
            Number(-500.0, 500.0),
            "How many millionths its monotonic clock is too fast.",
        ),
        key("stale", Word, "What is wrong with its certificate.")
            .words(&["expired", "not-yet-valid"]),
        key("now", Flag, "Whether the open round is given up."),
        key("actor", Word, "Which of its actors.").words(&[
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
            "Coordinator",
            "Aggregate",
        ]),
        key(
            "other",
            Word,
            "Which one it waits for, and that waits for it.",
        )
        .words(&["Node", "Quic", "Verbs", "Collective", "Checkpoint"]),
    ],
};
