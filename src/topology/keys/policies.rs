//! The keys that say who may do what.

use tombolo_core::policy::{Action, RULE_SLICES_MAX};

use super::{Kind, Table, key, later};

use Kind::{List, Name};

pub(in crate::topology) static SLICE: Table = Table {
    shown: "[[slice]]",
    doc: "A share of the federation's nodes for one tenant; nodes name it by `slice`.",
    keys: &[
        key("name", Name, "Its name.").required(),
        later("class", "The class of its traffic."),
        later("path", "The path of its traffic."),
        later("budget", "What it may use."),
    ],
};

pub(in crate::topology) static POLICY: Table = Table {
    shown: "[[policy]]",
    doc: "Grants something. A site with one of these grants nothing else; a site without any grants what roles imply.",
    keys: &[
        key(
            "site",
            Name,
            "The domain whose policy it is; default: every domain's.",
        ),
        key(
            "identity",
            Kind::Text,
            "Whom it grants something: \"plant/c\", \"plant/*\", \"*\", or a node's SPIFFE ID.",
        )
        .required(),
        key(
            "actions",
            List(&Kind::Text, 1, Action::ALL.len()),
            "What: join, train, aggregate, coordinate, read-model, read-metrics.",
        )
        .required(),
        key(
            "slices",
            List(&Name, 1, RULE_SLICES_MAX),
            "Only for what concerns nodes of these slices; default: all nodes.",
        ),
    ],
};
