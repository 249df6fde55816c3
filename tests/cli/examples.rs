//! The examples run, and hold what they assert.

use std::process::Command;

use crate::fixture::{Process, built};

fn run(name: &str) -> String {
    // `cargo test` builds examples beside the program.
    let output = Process::spawn(Command::new(built("examples", name))).end();
    let output = output.expect(0);
    output.lines.join("\n")
}

#[test]
fn a_trainer_of_the_users_own_trains() {
    assert!(run("custom_trainer").contains("3.0"));
}

#[test]
fn aggregators_of_the_users_own_aggregate() {
    let said = run("custom_aggregator");
    assert!(said.contains("trait") && said.contains("actor"), "{said}");
}
