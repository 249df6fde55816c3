//! From checked values to a [`Plan`]: judges what needs more than one value, then builds.

use std::path::{Path, PathBuf};

use tombolo_core::ids::NodeId;
use tombolo_core::plan::{
    CheckpointPlan, Cooldown, HeartbeatPlan, Init, ModelPlan, Order, Plan, Precision, SecurityPlan,
    SyncEvery, TrainerKind,
};

use super::diagnosis::{Mistake, Mistakes};
use super::reader::nearest;
use super::units::show_duration;
use super::value::{Section, Value};

mod addresses;
mod asynchronous;
mod balance;
mod caps;
mod domains;
mod links;

pub(super) use links::is_emulated;
mod partition;
mod policies;
mod rounds;
mod route;
mod rule;

use domains::Domains;

/// Suggestions cost time, and nobody reads more than these.
const SUGGESTIONS_MAX: usize = 100;

/// The state folder where the coordinator's records lie in an object store.
const STATE: &str = "./state";

/// Judges the whole file, in which the reader found `mistakes`. The plan is there exactly if there is no mistake at all.
pub(super) fn plan(
    file: &Section,
    folder: &Path,
    mut mistakes: Mistakes,
) -> Result<Plan, Mistakes> {
    let domains = domains::collect(file, &mut mistakes);
    addresses::check(&domains.list, &mut mistakes);
    let coordinator = rounds::coordinator(file, &domains, &mut mistakes);
    let standby = rounds::standby(file, &domains, coordinator.as_ref(), &mut mistakes);
    let round = rounds::plan(file, &domains, &mut mistakes);
    let home = coordinator.as_ref().map(NodeId::domain);
    let links = links::plan(file, &domains, home.as_ref(), &mut mistakes);
    let model = model(file, folder, &domains, &mut mistakes);
    let heartbeat = heartbeat(file.section("heartbeat"), &mut mistakes);
    let aggregator = rule::aggregator(file.section("aggregator"), &domains, &mut mistakes);
    if round.asynchronous.is_some() {
        asynchronous::check_model(file, &mut mistakes);
        asynchronous::check_rule(file, &aggregator, &mut mistakes);
    }
    balance::check(file, &mut mistakes);
    let outer = rule::outer(file.section("outer"), &mut mistakes);
    links::check_codecs(file, home.as_ref(), aggregator.needs, &mut mistakes);
    let route = route::plan(file, &domains, &mut mistakes);
    let policy = policies::plan(file, &domains, &mut mistakes);
    let (true, Some(coordinator), Some(model)) = (mistakes.is_empty(), coordinator, model) else {
        return Err(mistakes);
    };
    let federation = file.section("federation");
    let plan = Plan {
        name: federation.text("name").unwrap_or_default().to_owned(),
        rounds: federation.whole("rounds"),
        sync_every: match federation.value("sync_every") {
            Value::Steps(sync_every) => *sync_every,
            _ => SyncEvery::Steps(1),
        },
        balance_steps: file.section("run").flag("balance_steps"),
        coordinator,
        standby,
        seed: federation.whole("seed"),
        round,
        model,
        aggregator,
        outer,
        domains: domains::plans(&domains.list, folder),
        links,
        route,
        heartbeat,
        security: SecurityPlan {
            post_quantum_required: file.section("security").word("post_quantum") == "require",
        },
        checkpoint: checkpoint(file.section("checkpoint"), folder),
        policy,
    };
    policies::judge(file, &plan, &mut mistakes);
    route::judge(&domains, &plan, &mut mistakes);
    match mistakes.is_empty() {
        true => Ok(plan),
        false => Err(mistakes),
    }
}

fn model(
    file: &Section,
    folder: &Path,
    domains: &Domains<'_>,
    mistakes: &mut Mistakes,
) -> Option<ModelPlan> {
    let section = file.section("model");
    let trainer = match section.word("trainer") {
        "digits-softmax" => TrainerKind::DigitsSoftmax,
        _ => TrainerKind::DigitsMlp,
    };
    if trainer == TrainerKind::DigitsSoftmax && section.gives("hidden") {
        mistakes.push(
            Mistake::at(
                &section.place("hidden"),
                "`hidden` has no meaning for digits-softmax",
            )
            .label("softmax regression has no hidden units")
            .help("remove it, or write trainer = \"digits-mlp\""),
        );
    }
    let inner = rule::inner(section, mistakes);
    Some(ModelPlan {
        trainer,
        hidden: section.whole("hidden") as usize,
        learning_rate: section.number("learning_rate"),
        inner,
        batch: section.whole("batch") as usize,
        accumulate: section.whole("accumulate") as usize,
        precision: match section.word("precision") {
            "bf16" => Precision::Bf16,
            _ => Precision::F32,
        },
        proximal: section.number("proximal"),
        data_parallel: section.flag("data_parallel"),
        init: match section.value("init") {
            Value::Section(init) => Init::Seed(init.whole("seed")),
            _ => Init::Zeros,
        },
        order: match section.word("order") {
            "sequential" => Order::Sequential,
            _ => Order::Shuffled,
        },
        partition: partition::plan(section.section("partition"), folder, domains, mistakes)?,
    })
}

fn heartbeat(section: &Section, mistakes: &mut Mistakes) -> HeartbeatPlan {
    let retry = section
        .list("retry")
        .iter()
        .filter_map(|item| match item.value {
            Value::Duration(wait) => Some(wait),
            _ => None,
        });
    HeartbeatPlan {
        every: section.duration("every"),
        phi: section.number("phi"),
        retry: retry.collect(),
        restore_limit: section.duration("restore_limit"),
        cooldown: cooldown(section.section("cooldown"), mistakes),
    }
}

fn cooldown(section: &Section, mistakes: &mut Mistakes) -> Cooldown {
    let (first, cap) = (section.duration("first"), section.duration("cap"));
    if first > cap && !section.is_wrong("first") && !section.is_wrong("cap") {
        let (first, cap) = (show_duration(first), show_duration(cap));
        let at = if section.gives("cap") { "cap" } else { "first" };
        mistakes.push(
            Mistake::at(
                &section.place(at),
                format!("a cool-down that begins at {first} cannot have a cap of {cap}"),
            )
            .label("the cap is below the first one")
            .help(format!("write a cap of at least {first}")),
        );
    }
    Cooldown { first, cap }
}

fn checkpoint(section: &Section, folder: &Path) -> CheckpointPlan {
    let store = section.text("store").unwrap_or_default();
    let (at, store) = match store.strip_prefix("file:") {
        Some(at) => (at, None),
        None => (STATE, Some(store.to_owned())),
    };
    CheckpointPlan {
        folder: resolved(folder, at),
        store,
        every: section.whole("every"),
        snapshot: section.duration("snapshot"),
        retain_contributions: section.whole("retain_contributions"),
    }
}

/// What to do about a name that is not there: take the one that was meant, or what else may be done.
pub(super) fn did_you_mean<'a>(
    mistakes: &Mistakes,
    given: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    else_do: &str,
) -> String {
    match (mistakes.len() < SUGGESTIONS_MAX).then(|| nearest(given, candidates)) {
        Some(Some(near)) => format!("did you mean {near:?}?"),
        _ => else_do.to_owned(),
    }
}

/// A path of the file, against the file's folder and without `.` in it.
fn resolved(folder: &Path, path: &str) -> PathBuf {
    folder.join(path).components().collect()
}
