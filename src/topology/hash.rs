//! One number for a plan: equal on every machine that will compute the same federation.

use std::fmt::Write;

use tombolo_core::plan::{Plan, RoundPlan};

/// The hash of everything in a plan that decides the outcome, whatever the file's formatting.
///
/// Not in it: addresses, fabrics, certificates, the state folder and what is kept there for how long. A node compares it with its peers before
/// it joins, and a resumed run with the run before.
pub fn config_hash(plan: &Plan) -> [u8; 32] {
    *blake3::hash(canonical(plan).as_bytes()).as_bytes()
}

/// The text that is hashed: one line a value, in fixed order. Debug output of plain enums and numbers is their source text.
fn canonical(plan: &Plan) -> String {
    // Taken apart without `..`, so that a new field must be placed on one side or the other.
    let Plan {
        name,
        rounds,
        sync_every,
        coordinator,
        seed,
        round,
        model,
        aggregator,
        outer,
        domains,
        links,
        heartbeat,
        security: _,
        checkpoint: _,
    } = plan;
    let RoundPlan {
        quorum,
        deadline,
        grace,
        failed_limit,
        close_limit,
        durability: _,
        absent,
    } = round;
    let mut text = String::new();
    let mut line = |key: &str, value: &dyn std::fmt::Debug| {
        writeln!(text, "{key} = {value:?}").expect("writing into a string cannot fail");
    };
    line("name", name);
    line("rounds", rounds);
    line("sync_every", sync_every);
    line("coordinator", coordinator);
    line("seed", seed);
    line("quorum", quorum);
    line("deadline", deadline);
    line("grace", grace);
    line("failed_limit", failed_limit);
    line("close_limit", close_limit);
    line("absent", absent);
    line("model", model);
    line("aggregator", aggregator);
    line("outer", outer);
    line("heartbeat", heartbeat);
    for domain in domains {
        line("domain", &domain.id);
        for node in &domain.nodes {
            line("node", &node.id);
        }
        line("gateways", &domain.gateways);
    }
    for link in links {
        line("link", &(&link.between, &link.emulate));
    }
    text
}
