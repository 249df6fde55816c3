//! The keys that say what is trained and how rounds go.

use super::{CODECS, Kind, ROUNDS_MAX, SEED_MAX, Table, key};
use crate::topology::{DOMAINS_MAX, NODES_MAX};

/// Each keeps a link to every gateway.
const STANDBYS_MAX: usize = 16;

use Kind::{Above, Duration, Flag, List, Number, Whole, Word};

pub(in crate::topology) static FEDERATION: Table = Table {
    shown: "[federation]",
    doc: "What is trained together.",
    keys: &[
        key(
            "name",
            Kind::Name,
            "The federation's name; part of every certificate.",
        )
        .required(),
        key("rounds", Whole(1, ROUNDS_MAX), "How many rounds to run.").or("20"),
        key(
            "sync_every",
            Kind::Steps,
            "Local steps a round, or \"1 epoch\".",
        )
        .or("50"),
        key(
            "coordinator",
            Kind::Node,
            "The node that opens and closes rounds; default: the first domain's gateway.",
        ),
        key(
            "standby",
            List(&Kind::Node, 0, STANDBYS_MAX),
            "Gateways that `promote` may make coordinator; all share the store.",
        )
        .or("[]"),
        key(
            "seed",
            Whole(0, SEED_MAX),
            "Seeds batch order and partitions.",
        )
        .or("7"),
    ],
};

pub(in crate::topology) static RUN: Table = Table {
    shown: "[run]",
    doc: "How this program computes.",
    keys: &[
        key(
            "kernels",
            Word,
            "Which arithmetic is used; results are the same.",
        )
        .words(&["auto", "portable"])
        .or("\"auto\""),
        key(
            "balance_steps",
            Flag,
            "Whether measured speed decides how many of the local steps each node makes.",
        )
        .or("false"),
    ],
};

pub(in crate::topology) static ROUND: Table = Table {
    shown: "[round]",
    doc: "How rounds open and close.",
    keys: &[
        key(
            "quorum",
            Kind::Table(&QUORUM),
            "What must have arrived to close; default: a majority of nodes and of domains.",
        )
        .words(&["all"]),
        key(
            "deadline",
            Duration("100ms", "7d"),
            "When a round stops accepting.",
        )
        .words(&["adaptive"])
        .or("\"adaptive\""),
        key(
            "grace",
            Duration("0s", "1d"),
            "Extra wait after the quorum.",
        )
        .or("\"2s\""),
        key("mode", Word, "How rounds follow each other.")
            .words(&["sync", "async"])
            .or("\"sync\""),
        key(
            "buffer",
            Whole(1, NODES_MAX as u64),
            "Updates that make a version in the asynchronous mode; default: 8, or a majority of the nodes.",
        ),
        key(
            "staleness",
            Kind::Table(&STALENESS),
            "What happens to a late update; in the asynchronous mode, what an older one counts for.",
        )
        .words(&["refuse"])
        .or("\"refuse\""),
        key(
            "failed_limit",
            Whole(1, 1_000_000),
            "Failed rounds in a row that end the run.",
        )
        .or("3"),
        key(
            "close_limit",
            Duration("1s", "1d"),
            "How long closing may take.",
        )
        .or("\"30s\""),
        key(
            "durability",
            Word,
            "How an acknowledged update survives a restart: its sender is asked again, or its bytes are written down.",
        )
        .words(&["resend", "journal"])
        .or("\"resend\""),
        key(
            "codec_down",
            Word,
            "The lossless stage of models on their way down, where a link does not say its own.",
        )
        .words(&["none", "snappy", "lz4", "zstd"])
        .later(CODECS)
        .or("\"none\""),
        key(
            "absent",
            Kind::Tables(&ABSENT, 4096),
            "Who explicitly takes no part in which round.",
        )
        .or("[]"),
    ],
};

static QUORUM: Table = Table {
    shown: "round.quorum",
    doc: "What must have arrived.",
    keys: &[
        key(
            "nodes",
            Whole(1, NODES_MAX as u64),
            "Nodes; default: a majority.",
        ),
        key(
            "domains",
            Whole(1, DOMAINS_MAX as u64),
            "Domains; default: a majority.",
        ),
    ],
};

static STALENESS: Table = Table {
    shown: "round.staleness",
    doc: "What an update counts for that was begun some versions ago.",
    keys: &[
        key(
            "weight",
            Word,
            "The factor on its weight: (1 + versions) to the minus exponent, or one.",
        )
        .words(&["polynomial", "constant"])
        .or("\"polynomial\""),
        key("exponent", Number(0.0, 4.0), "How fast the factor falls.").or("0.5"),
        key(
            "limit",
            Whole(0, 1000),
            "Versions after which it does not count.",
        )
        .or("10"),
    ],
};

static ABSENT: Table = Table {
    shown: "round.absent",
    doc: "Nodes that take no part in one round.",
    keys: &[
        key("round", Whole(1, ROUNDS_MAX), "The round, from 1.").required(),
        key("nodes", List(&Kind::Node, 1, NODES_MAX), "The nodes.").required(),
    ],
};

pub(in crate::topology) static MODEL: Table = Table {
    shown: "[model]",
    doc: "The built-in trainer.",
    keys: &[
        key("trainer", Word, "Which model.")
            .words(&["digits-mlp", "digits-softmax"])
            .or("\"digits-mlp\""),
        key("hidden", Whole(1, 4096), "Hidden units of digits-mlp.").or("64"),
        key(
            "learning_rate",
            Above(0.0, 1000.0),
            "The local learning rate.",
        )
        .or("0.1"),
        key(
            "optimizer",
            Word,
            "What makes a step of a gradient; adamw keeps its moments on the node, over rounds.",
        )
        .words(&["sgd", "adamw"])
        .or("\"sgd\""),
        key(
            "beta1",
            Number(0.0, 0.9999),
            "Of adamw: how slowly the mean of the gradients follows.",
        )
        .or("0.9"),
        key(
            "beta2",
            Number(0.0, 0.99999),
            "Of adamw: how slowly the mean of their squares follows.",
        )
        .or("0.999"),
        key(
            "epsilon",
            Above(0.0, 1e3),
            "Of adamw: what is added to the root that divides the step.",
        )
        .or("1e-8"),
        key(
            "weight_decay",
            Number(0.0, 1.0),
            "Of adamw: the share of each weight, times the learning rate, that a step takes off.",
        )
        .or("0.01"),
        key("batch", Whole(1, 1797), "Rows in a batch.").or("32"),
        key(
            "accumulate",
            Whole(1, 1797),
            "Batches whose gradients are added up before a step is made of them.",
        )
        .or("1"),
        key(
            "precision",
            Word,
            "What weights and activations are rounded to while a gradient is made; the model and its steps are f32.",
        )
        .words(&["f32", "bf16"])
        .or("\"f32\""),
        key(
            "proximal",
            Number(0.0, 1000.0),
            "How strongly local training is pulled back to the model that the round began with (FedProx).",
        )
        .or("0.0"),
        key(
            "data_parallel",
            Flag,
            "The nodes of a domain take each step together, by the mean of all their gradients.",
        )
        .or("false"),
        key("init", Kind::Table(&INIT), "The first weights.")
            .words(&["zeros"])
            .or("{ seed = 7 }"),
        key("order", Word, "The order in which a node sees its rows.")
            .words(&["shuffled", "sequential"])
            .or("\"shuffled\""),
        key(
            "partition",
            Kind::Table(&PARTITION),
            "Who holds which training rows.",
        )
        .or("{ kind = \"dirichlet\" }"),
    ],
};

static INIT: Table = Table {
    shown: "model.init",
    doc: "First weights drawn from a seed.",
    keys: &[key("seed", Whole(0, SEED_MAX), "The seed.").or("7")],
};

static PARTITION: Table = Table {
    shown: "model.partition",
    doc: "Who holds which training rows.",
    keys: &[
        key("kind", Word, "How rows are dealt out.")
            .words(&["iid", "shards", "dirichlet", "rows", "clients"])
            .or("\"dirichlet\""),
        key(
            "alpha",
            Above(0.0, 1e6),
            "Concentration of dirichlet, small is skewed; default 0.5.",
        ),
        key(
            "file",
            Kind::Path,
            "Of rows: a JSON file {\"hq/a\": [0, 1, 2], ...}. Of clients: a CSV file with a column `row`.",
        ),
        key(
            "column",
            Kind::Text,
            "Of clients: the column that says whose a row is; default \"client\".",
        ),
    ],
};

pub(in crate::topology) static AGGREGATOR: Table = Table {
    shown: "[aggregator]",
    doc: "How updates become one.",
    keys: &[
        key(
            "kind",
            Kind::Rule,
            "The rule, or a name that the program registered.",
        )
        .words(&[
            "fedavg",
            "dynamic-weighted",
            "median",
            "trimmed-mean",
            "krum",
            "multi-krum",
            "centred-clipping",
        ])
        .or("\"dynamic-weighted\""),
        key("weights", Word, "What an update weighs before any rule.")
            .words(&["samples", "equal"])
            .or("\"samples\""),
        key("clip", Above(0.0, 1e30), "The bound on an update's norm.")
            .words(&["none", "median"])
            .or("\"median\""),
        key(
            "thresholds",
            Word,
            "Whether limits are absolute or multiples of the round's median.",
        )
        .words(&["absolute", "relative"])
        .or("\"absolute\""),
        key(
            "loss_limit",
            Above(0.0, 1e30),
            "The loss above which the penalty applies.",
        )
        .or("2.0"),
        key(
            "norm_limit",
            Above(0.0, 1e30),
            "The gradient norm above which the penalty applies.",
        )
        .or("5.0"),
        key("penalty", Number(0.0, 1.0), "The factor on such a weight.").or("0.3"),
        key(
            "faulty",
            Whole(0, NODES_MAX as u64),
            "How many updates of a round may be bad, for trimmed-mean, krum and multi-krum.",
        )
        .or("1"),
        key(
            "feedback",
            Kind::Table(&FEEDBACK),
            "Whether a node that drifts away from the others over rounds loses weight until it no longer does.",
        )
        .words(&["off"])
        .or("\"off\""),
        key(
            "iterations",
            Whole(1, 100),
            "How often centred-clipping moves its centre.",
        )
        .or("3"),
    ],
};

static FEEDBACK: Table = Table {
    shown: "aggregator.feedback",
    doc: "How a node that drifts away loses weight and regains it.",
    keys: &[
        key(
            "memory",
            Number(0.0, 0.999),
            "How much of what was known of a node before a round is kept.",
        )
        .or("0.8"),
        key(
            "limit",
            Above(1.0, 1e6),
            "The multiple of the round's median above which a gradient norm or a loss drifts.",
        )
        .or("2.0"),
        key(
            "floor",
            Number(0.001, 1.0),
            "What the weight of a node that drifts in every round is multiplied by.",
        )
        .or("0.1"),
    ],
};

pub(in crate::topology) static OUTER: Table = Table {
    shown: "[outer]",
    doc: "What is done with the aggregate.",
    keys: &[
        key("optimizer", Word, "The outer optimizer.")
            .words(&["sgd", "momentum", "nesterov", "adam", "yogi", "adagrad"])
            .or("\"sgd\""),
        key("learning_rate", Above(0.0, 1000.0), "Its learning rate.").or("1.0"),
        key("momentum", Number(0.0, 0.9999), "Its momentum.").or("0.9"),
        key(
            "beta1",
            Number(0.0, 0.9999),
            "Of adam, yogi and adagrad: how slowly the mean of the steps follows.",
        )
        .or("0.9"),
        key(
            "beta2",
            Number(0.0, 0.9999),
            "Of adam and yogi: how slowly the mean of the squares follows.",
        )
        .or("0.99"),
        key(
            "epsilon",
            Above(0.0, 1e3),
            "Of adam, yogi and adagrad: what is added to the root that divides the step.",
        )
        .or("0.001"),
    ],
};
