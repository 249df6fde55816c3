//! A federation whose links have congestion laws of their own, on the side that dials and on the side that is dialled.

use tombolo::Round;
use tombolo::simulation::{Simulation, SimulationReport, secs};

fn strait(law: &str) -> SimulationReport {
    let text = format!(
        r#"
        [federation]
        name = "strait"
        rounds = 3
        sync_every = 5
        seed = 3
        [model]
        trainer = "digits-mlp"
        hidden = 400
        partition = {{ kind = "iid" }}
        [[domain]]
        name = "hq"
        nodes = ["gate", "a"]
        [[domain]]
        name = "plant"
        nodes = ["gate", "c"]
        [[link]]
        between = ["hq", "plant"]
        {law}
        emulate = {{ delay = "40ms", loss = "1%", rate = "5 Mbit/s" }}
    "#
    );
    let simulation = Simulation::from_toml(&text).unwrap().limit(secs(600));
    simulation.run().unwrap()
}

#[test]
fn every_law_trains_the_same_model_and_repeats_itself() {
    let plain = strait("");
    assert_eq!(
        strait("congestion = \"cubic\"").trace_hash,
        plain.trace_hash
    );
    for law in ["bbr", "delay-gradient"] {
        let law = format!("congestion = {law:?}");
        let report = strait(&law);
        assert_eq!(report.violations, [], "{law}");
        assert!(report.rounds().iter().all(Round::is_committed), "{law}");
        assert_eq!(
            report.finished.model_hash, plain.finished.model_hash,
            "{law}"
        );
        assert_ne!(report.trace_hash, plain.trace_hash, "{law} does nothing");
        assert_eq!(strait(&law).trace_hash, report.trace_hash, "{law}");
    }
}
