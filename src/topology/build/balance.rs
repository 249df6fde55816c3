//! Local steps dealt by speed: where that means nothing.

use tombolo_core::plan::SyncEvery;

use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::value::{Section, Value};

/// Refuses what does not go with it.
pub(super) fn check(file: &Section, mistakes: &mut Mistakes) {
    let run = file.section("run");
    if run.is_wrong("balance_steps") || !run.flag("balance_steps") {
        return;
    }
    let (federation, round, model) = (
        file.section("federation"),
        file.section("round"),
        file.section("model"),
    );
    let epochs = !federation.is_wrong("sync_every")
        && matches!(
            federation.value("sync_every"),
            Value::Steps(SyncEvery::Epochs(_))
        );
    if epochs {
        mistakes.push(
            Mistake::at(
                &federation.place("sync_every"),
                "epochs cannot be balanced: a share of one is no epoch",
            )
            .label("steps that are balanced must be counted")
            .help("write a number of steps, or balance_steps = false in [run]"),
        );
    }
    if !round.is_wrong("mode") && round.word("mode") == "async" {
        mistakes.push(
            Mistake::at(
                &run.place("balance_steps"),
                "asynchronous rounds wait for no slow node, so there is nothing to balance",
            )
            .label("needs rounds that wait for their nodes")
            .help("remove it, or write mode = \"sync\" in [round]"),
        );
    }
    if !model.is_wrong("data_parallel") && model.flag("data_parallel") {
        mistakes.push(
            Mistake::at(
                &run.place("balance_steps"),
                "nodes that take each step together make the same number of them",
            )
            .label("needs nodes that train on their own")
            .help("remove it, or data_parallel of [model]"),
        );
    }
}
