//! The examples run, and hold what they assert.
//!
//! They are part of this test rather than programs that it starts: `cargo test --test cli` does not build those anew.

#[expect(dead_code, reason = "its `main` is for `cargo run`")]
#[path = "../../examples/custom_aggregator.rs"]
mod custom_aggregator;

#[expect(dead_code, reason = "its `main` is for `cargo run`")]
#[path = "../../examples/custom_trainer.rs"]
mod custom_trainer;

#[test]
fn a_trainer_of_the_users_own_trains() {
    custom_trainer::run().unwrap();
}

#[test]
fn aggregators_of_the_users_own_aggregate() {
    custom_aggregator::run().unwrap();
}
