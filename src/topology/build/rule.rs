//! How updates become one, and what is done with the result.

use tombolo_core::aggregate;
use tombolo_core::plan::{
    AggregatorPlan, BaseWeights, Clip, FeedbackPlan, InnerKind, InnerPlan, OuterKind, OuterPlan,
};

use super::domains::Domains;
use crate::topology::diagnosis::{Mistake, Mistakes};
use crate::topology::value::{Section, Value};

/// Most nodes under a rule that must see each update: the coordinator holds a chunk of 1 MiB of every one.
const EACH_NODES_MAX: usize = 256;

/// `[aggregator]`.
pub(super) fn aggregator(
    section: &Section,
    domains: &Domains<'_>,
    mistakes: &mut Mistakes,
) -> AggregatorPlan {
    let mut plan = AggregatorPlan {
        kind: section.word("kind").to_owned(),
        weights: match section.word("weights") {
            "equal" => BaseWeights::Equal,
            _ => BaseWeights::Samples,
        },
        clip: match section.value("clip") {
            Value::Number(norm) => Clip::Norm(*norm),
            Value::Word(word) if word == "none" => Clip::None,
            _ => Clip::Median,
        },
        loss_limit: section.number("loss_limit"),
        norm_limit: section.number("norm_limit"),
        penalty: section.number("penalty"),
        relative: section.word("thresholds") == "relative",
        faulty: section.whole("faulty") as usize,
        iterations: section.whole("iterations") as u32,
        feedback: match section.value("feedback") {
            Value::Section(feedback) => Some(FeedbackPlan {
                memory: feedback.number("memory"),
                limit: feedback.number("limit"),
                floor: feedback.number("floor"),
            }),
            _ => None,
        },
        ..AggregatorPlan::default()
    };
    let Some(rule) = aggregate::build(&plan) else {
        return plan;
    };
    plan.needs = rule.needs();
    let usual = AggregatorPlan::default();
    let (dynamic, centred) = (&["dynamic-weighted"][..], &["centred-clipping"][..]);
    let counting = &["trimmed-mean", "krum", "multi-krum"][..];
    let weighing = &["dynamic-weighted", "fedavg"][..];
    let homes = [
        ("thresholds", dynamic, plan.relative != usual.relative),
        ("loss_limit", dynamic, plan.loss_limit != usual.loss_limit),
        ("norm_limit", dynamic, plan.norm_limit != usual.norm_limit),
        ("penalty", dynamic, plan.penalty != usual.penalty),
        ("faulty", counting, plan.faulty != usual.faulty),
        ("iterations", centred, plan.iterations != usual.iterations),
        ("feedback", weighing, plan.feedback.is_some()),
    ];
    misplaced(section, "kind", &homes, mistakes);
    if plan.needs == aggregate::Needs::Sum {
        return plan;
    }
    let kind = &plan.kind;
    if kind == "centred-clipping" && plan.clip == Clip::None {
        mistakes.push(
            Mistake::at(
                &section.place("clip"),
                "centred-clipping without a radius is the plain mean",
            )
            .label("the radius around the centre")
            .help("write clip = \"median\" or a number, or kind = \"fedavg\""),
        );
    }
    let (nodes, least) = (domains.count, rule.least());
    if domains.known && nodes < least {
        let at = if section.gives("faulty") {
            "faulty"
        } else {
            "kind"
        };
        let faulty = plan.faulty;
        mistakes.push(
            Mistake::at(
                &section.place(at),
                format!("{kind} with faulty = {faulty} needs {least} updates a round: the file declares {nodes} nodes"),
            )
            .label(format!("needs {least} nodes"))
            .help("lower `faulty`, or write kind = \"median\", which takes any number"),
        );
    }
    if domains.known && nodes > EACH_NODES_MAX {
        mistakes.push(
            Mistake::at(
                &section.place("kind"),
                format!("{kind} must see each update, which is built for at most {EACH_NODES_MAX} nodes: the file declares {nodes}"),
            )
            .label("too many nodes for it")
            .help("write kind = \"dynamic-weighted\", whose sums are made inside the domains"),
        );
    }
    plan
}

/// `[outer]`.
pub(super) fn outer(section: &Section, mistakes: &mut Mistakes) -> OuterPlan {
    let plan = OuterPlan {
        optimizer: match section.word("optimizer") {
            "momentum" => OuterKind::Momentum,
            "nesterov" => OuterKind::Nesterov,
            "adam" => OuterKind::Adam,
            "yogi" => OuterKind::Yogi,
            "adagrad" => OuterKind::Adagrad,
            _ => OuterKind::Sgd,
        },
        learning_rate: section.number("learning_rate"),
        momentum: section.number("momentum"),
        beta1: section.number("beta1"),
        beta2: section.number("beta2"),
        epsilon: section.number("epsilon"),
    };
    let usual = OuterPlan::default();
    let adaptive = &["adam", "yogi", "adagrad"][..];
    let (fading, rolling) = (&adaptive[..2], &["momentum", "nesterov"][..]);
    let homes = [
        ("momentum", rolling, plan.momentum != usual.momentum),
        ("beta1", adaptive, plan.beta1 != usual.beta1),
        ("beta2", fading, plan.beta2 != usual.beta2),
        ("epsilon", adaptive, plan.epsilon != usual.epsilon),
    ];
    misplaced(section, "optimizer", &homes, mistakes);
    plan
}

/// The optimizer of `[model]`.
pub(super) fn inner(section: &Section, mistakes: &mut Mistakes) -> InnerPlan {
    let plan = InnerPlan {
        optimizer: match section.word("optimizer") {
            "adamw" => InnerKind::AdamW,
            _ => InnerKind::Sgd,
        },
        beta1: section.number("beta1"),
        beta2: section.number("beta2"),
        epsilon: section.number("epsilon"),
        weight_decay: section.number("weight_decay"),
    };
    let usual = InnerPlan::default();
    let adam = &["adamw"][..];
    let homes = [
        ("beta1", adam, plan.beta1 != usual.beta1),
        ("beta2", adam, plan.beta2 != usual.beta2),
        ("epsilon", adam, plan.epsilon != usual.epsilon),
        (
            "weight_decay",
            adam,
            plan.weight_decay != usual.weight_decay,
        ),
    ];
    misplaced(section, "optimizer", &homes, mistakes);
    plan
}

/// Refuses keys that the chosen word does not look at, unless they say what they say by default: who writes something else means something by it.
/// A name that the program registered may look at all of them.
fn misplaced(
    section: &Section,
    choice: &str,
    homes: &[(&str, &[&str], bool)],
    mistakes: &mut Mistakes,
) {
    let chosen = section.word(choice);
    for (key, home, is_unusual) in homes {
        let is_wrong = section.is_wrong(choice) || section.is_wrong(key);
        if !is_unusual || is_wrong || home.contains(&chosen) {
            continue;
        }
        let names: Vec<String> = home.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(" or ");
        mistakes.push(
            Mistake::at(
                &section.place(key),
                format!("`{key}` has no meaning for the {choice} {chosen:?}"),
            )
            .label(format!("belongs to {names}"))
            .help(format!("remove it, or write {choice} = {names}")),
        );
    }
}
