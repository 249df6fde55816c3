//! Edge dropout in a test of your own: three sites in virtual time, with the real actors, QUIC and TLS, from a seed.
//!
//! Run it with `cargo run --example edge_dropout`, or give another seed: `cargo run --example edge_dropout -- 42`.

use std::error::Error;

use tombolo::simulation::{Simulation, crash, millis, partition, restart, secs};

const TOPOLOGY: &str = r#"
    [federation]
    name = "coast"
    rounds = 14
    sync_every = 10

    [round]
    quorum = { nodes = 4, domains = 2 }   # enough to close a round
    deadline = "30s"
    grace = "1s"                          # extra wait for the rest

    [model]
    trainer = "digits-softmax"

    [[domain]]
    name = "hospital"
    nodes = ["gate", "a", "b"]

    [[domain]]
    name = "factory"
    nodes = ["gate", "c", "d"]

    [[domain]]
    name = "ship"
    nodes = ["gate", "e", "f"]

    [[link]]
    between = ["hospital", "ship"]
    emulate = { delay = "300ms", jitter = "20ms", loss = "1%", rate = "5 Mbit/s" }
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(7), |seed| seed.parse())?;
    let report = Simulation::from_toml(TOPOLOGY)?
        .seed(seed)
        // A machine loses power in the middle of a round and comes back.
        .at(millis(1500), crash("factory/c"))
        .at(secs(8), restart("factory/c"))
        // The ship loses its satellite link for five seconds.
        .between(secs(4), secs(9), partition(["hospital"], ["ship"]))
        // The coordinator itself restarts; the run goes on from the last commit.
        .at(secs(16), crash("hospital/gate"))
        .at(secs(18), restart("hospital/gate"))
        .run()?;

    for round in report.rounds() {
        let late: Vec<&str> = round.late.iter().map(|node| node.as_str()).collect();
        println!(
            "round {:>2}: {:>2} of 9 counted, accuracy {:.3}  {}",
            round.round,
            round.counted.len(),
            round.accuracy,
            if late.is_empty() {
                String::new()
            } else {
                format!("without {}", late.join(" "))
            },
        );
    }
    println!(
        "seed {seed}: {:.1} virtual seconds, trace {:016x}",
        report.virtual_time.as_secs_f64(),
        report.trace_hash
    );

    assert!(report.violations.is_empty(), "{:?}", report.violations);
    assert!(
        report.rounds().iter().all(tombolo::Round::is_committed),
        "every round ends with a commit"
    );
    let counted: Vec<usize> = report
        .rounds()
        .iter()
        .map(|round| round.counted.len())
        .collect();
    let felt = counted.iter().position(|&count| count < 9);
    let recovered = counted.iter().rposition(|&count| count == 9);
    assert!(
        felt.is_some() && felt < recovered,
        "the faults were felt, and everybody was back: {counted:?}"
    );
    Ok(())
}
