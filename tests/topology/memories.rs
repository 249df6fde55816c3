//! What is remembered from round to round: of nodes that drift, and by a node's inner optimizer.

use std::path::Path;

use tombolo::topology::{explicit, parse};
use tombolo_core::plan::{FeedbackPlan, InnerKind, InnerPlan, Plan};

fn read(more: &str) -> Plan {
    let domain = "[[domain]]\nname = \"hq\"\nnodes = [\"gate\", \"a\"]\n";
    let text = format!("[federation]\nname = \"harbour\"\n{domain}{more}");
    parse("harbour.toml", &text, Path::new("")).unwrap_or_else(|diagnosis| panic!("{diagnosis:#}"))
}

#[test]
fn feedback_and_moments_are_off_unless_asked_for_and_then_have_defaults() {
    let plan = read("");
    assert_eq!(plan.aggregator.feedback, None);
    assert_eq!(plan.model.inner, InnerPlan::default());
    assert!(!explicit(&plan).to_string().contains("with feedback"));
    let off = read("[aggregator]\nfeedback = \"off\"\n");
    assert_eq!(off.aggregator.feedback, None);
    let plan = read("[aggregator]\nfeedback = { floor = 0.5 }\n[model]\noptimizer = \"adamw\"\n");
    let feedback = FeedbackPlan {
        memory: 0.8,
        limit: 2.0,
        floor: 0.5,
    };
    assert_eq!(plan.aggregator.feedback, Some(feedback));
    assert_eq!(plan.model.inner.optimizer, InnerKind::AdamW);
    assert!(explicit(&plan).to_string().contains("with feedback"));
}
