//! Rounds that do not wait for each other's nodes.

use tombolo_core::aggregate::Needs;
use tombolo_core::plan::{AggregatorPlan, Quorum};
use tombolo_core::staleness::{AsyncPlan, Discount, Staleness};

use super::rounds::Count;
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::value::{Section, Value};

/// The buffer where the file names none, unless a majority of the nodes is less.
const BUFFER: usize = 8;

/// What `[round]` says of the asynchronous mode; none in the synchronous one.
pub(super) fn plan(
    section: &Section,
    count: &Count,
    known: bool,
    mistakes: &mut Mistakes,
) -> Option<AsyncPlan> {
    let table = match section.value("staleness") {
        Value::Section(table) => Some(table),
        _ => None,
    };
    if section.word("mode") != "async" {
        if !section.is_wrong("mode") {
            let keys = [
                ("buffer", section.gives("buffer")),
                ("staleness", table.is_some()),
            ];
            for (key, _) in keys.iter().filter(|(_, given)| *given) {
                let message = format!("`{key}` has no meaning in the synchronous mode");
                mistakes.push(
                    Mistake::at(&section.place(key), message)
                        .label("belongs to mode = \"async\"")
                        .help("remove it, or write mode = \"async\""),
                );
            }
        }
        return None;
    }
    if section.gives("staleness") && table.is_none() {
        mistakes.push(
            Mistake::at(
                &section.place("staleness"),
                "asynchronous rounds cannot refuse every update of an earlier round",
            )
            .label("all updates of a slow node are of one")
            .help("write staleness = { limit = 10 }, or remove it"),
        );
    }
    Some(AsyncPlan {
        buffer: buffer(section, count, known, mistakes),
        staleness: staleness(table),
    })
}

fn buffer(section: &Section, count: &Count, known: bool, mistakes: &mut Mistakes) -> usize {
    if !section.gives("buffer") {
        return BUFFER.min(count.nodes / 2 + 1);
    }
    let (buffer, nodes) = (section.whole("buffer") as usize, count.nodes);
    if known && buffer > nodes {
        mistakes.push(
            Mistake::at(
                &section.place("buffer"),
                format!("a buffer of {buffer} updates is never full: the file declares {nodes} nodes, and a version counts each once"),
            )
            .label(format!("more than {nodes}"))
            .help("write fewer than there are nodes, so that nobody is waited for"),
        );
    }
    buffer
}

fn staleness(table: Option<&Section>) -> Staleness {
    let usual = Staleness {
        weight: Discount::Polynomial { exponent: 0.5 },
        limit: 10,
    };
    let Some(table) = table else {
        return usual;
    };
    Staleness {
        weight: match table.word("weight") {
            "constant" => Discount::Constant,
            _ => Discount::Polynomial {
                exponent: table.number("exponent"),
            },
        },
        limit: table.whole("limit"),
    }
}

/// The quorum of asynchronous rounds: what a version needs at its deadline, and a full buffer has.
pub(super) fn quorum(
    section: &Section,
    plan: &AsyncPlan,
    quorum: Quorum,
    mistakes: &mut Mistakes,
) -> Quorum {
    let buffer = plan.buffer;
    let table = match section.find("quorum").map(|entry| &entry.item.value) {
        Some(Value::Section(table)) => Some(table),
        Some(Value::Word(_)) => {
            mistakes.push(
                Mistake::at(
                    &section.place("quorum"),
                    "asynchronous rounds cannot wait for all nodes",
                )
                .label("they wait for nobody")
                .help(format!(
                    "write quorum = {{ nodes = {buffer} }} or fewer: what a version needs at its deadline"
                )),
            );
            None
        }
        _ => None,
    };
    let gives = |key| table.is_some_and(|table| table.gives(key));
    let (nodes, domains) = match quorum {
        Quorum::AtLeast { nodes, domains } => (nodes, domains),
        Quorum::All => (1, 1),
    };
    if let Some(table) = table.filter(|_| gives("nodes") && nodes > buffer) {
        mistakes.push(
            Mistake::at(
                &table.place("nodes"),
                format!("a quorum of {nodes} nodes is more than the buffer of {buffer} that makes a version"),
            )
            .label(format!("more than {buffer}"))
            .help(format!("write at most {buffer}, or a larger buffer")),
        );
    }
    Quorum::AtLeast {
        nodes: if gives("nodes") {
            nodes
        } else {
            buffer / 2 + 1
        },
        domains: if gives("domains") { domains } else { 1 },
    }
}

/// Refuses rules that cannot let an older update count for less.
pub(super) fn check_rule(file: &Section, rule: &AggregatorPlan, mistakes: &mut Mistakes) {
    let section = file.section("aggregator");
    if rule.needs == Needs::Sum || section.is_wrong("kind") {
        return;
    }
    let kind = &rule.kind;
    mistakes.push(
        Mistake::at(
            &section.place("kind"),
            format!("{kind} counts every update alike, so asynchronous rounds could not let older ones count for less"),
        )
        .label("has no weights")
        .help("write kind = \"fedavg\" or \"dynamic-weighted\", or mode = \"sync\" in [round]"),
    );
}

/// Refuses what takes nodes that train for the same round.
pub(super) fn check_model(file: &Section, mistakes: &mut Mistakes) {
    let section = file.section("model");
    if section.is_wrong("data_parallel") || !section.flag("data_parallel") {
        return;
    }
    mistakes.push(
        Mistake::at(
            &section.place("data_parallel"),
            "in the asynchronous mode each node trains for a round of its own, so none of them step together",
        )
        .label("needs rounds that all begin together")
        .help("remove it, or write mode = \"sync\" in [round]"),
    );
}
