//! `tombolo promote`: a standby goes on where a coordinator was lost, and one that was only stopped steps down when it wakes.

use rustix::process::Signal;
use serde_json::Value;

use crate::fleet::Fleet;

const COAST: &str = r#"
    [federation]
    name = "coast"
    rounds = ROUNDS
    sync_every = 2000
    standby = ["plant/gate", "lab/gate"]
    [round]
    quorum = { nodes = 3, domains = 2 }
    deadline = "1min"
    grace = "1s"
    [model]
    trainer = "digits-softmax"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c"]
    [[domain]]
    name = "lab"
    nodes = ["gate"]
    [heartbeat]
    every = "200ms"
    retry = ["200ms"]
    restore_limit = "1s"
    cooldown = { first = "1s", cap = "1s" }
"#;

fn fleet(rounds: u64) -> Fleet {
    Fleet::start(&COAST.replace("ROUNDS", &rounds.to_string()))
}

fn ended(status: &Value) -> u64 {
    status["rounds"]["ended"].as_u64().unwrap()
}

/// ray#64349, kuberay#1141: the coordinator is killed, a user promotes a standby, the run goes on to its end; the killed one comes back as a
/// gateway.
#[test]
fn a_standby_ends_the_run_of_a_coordinator_that_was_killed() {
    let mut fleet = fleet(30);
    fleet.more_rounds(3);
    fleet.signal("hq/gate", Signal::KILL);
    fleet.end("hq/gate");
    let promoted = fleet.workspace.run("promote plant/gate topology.toml");
    let said = promoted.expect(0).events("promoted");
    assert_eq!(
        (&said[0]["node"], &said[0]["epoch"], &said[0]["already"]),
        (&"plant/gate".into(), &2.into(), &false.into())
    );
    let now = ended(&fleet.until_of("plant/gate", "it coordinates", |_| true));
    fleet.until_of("plant/gate", "rounds go on", |status| {
        ended(status) >= now + 3
    });
    // Restarted, it is still the coordinator, of the run that it took over.
    fleet.signal("plant/gate", Signal::KILL);
    fleet.end("plant/gate");
    fleet.begin("plant/gate");
    let now = ended(&fleet.until_of("plant/gate", "it coordinates again", |_| true));
    fleet.until_of("plant/gate", "rounds go on again", |status| {
        ended(status) >= now.max(4) + 3
    });
    fleet.begin("hq/gate");
    fleet.until_of("plant/gate", "hq/gate is back", |status| {
        let nodes = status["membership"]["nodes"].as_array().unwrap();
        let back = nodes.iter().find(|entry| entry["node"] == "hq/gate");
        back.is_some_and(|entry| entry["state"] == "active")
    });
    let coordinator = fleet.end("plant/gate").expect(0);
    let finished = coordinator.finished();
    let rounds = ["committed", "degraded", "aborted"].map(|how| finished[how].as_u64().unwrap());
    assert_eq!(rounds.iter().sum::<u64>(), 30);
    assert!(rounds[2] <= 1, "{finished}");
    for node in ["hq/gate", "plant/c", "lab/gate"] {
        fleet.end(node).expect(0);
    }
    let verified = fleet.workspace.run("checkpoint verify topology.toml");
    verified.expect(0);
}

#[test]
fn a_coordinator_that_wakes_after_a_promotion_steps_down_and_says_why() {
    let mut fleet = fleet(900_000);
    fleet.more_rounds(2);
    let refused = fleet
        .workspace
        .run("promote plant/c topology.toml")
        .expect(2);
    assert!(
        refused
            .errors()
            .contains("plant/c is no standby; the topology names plant/gate, lab/gate"),
        "{}",
        refused.errors()
    );
    fleet.signal("hq/gate", Signal::STOP);

    // A node that looks at another store must not coordinate.
    let probe = fleet
        .workspace
        .path()
        .join("state/nodes/hq.gate/probe.json");
    let elsewhere = fleet.workspace.path().join("elsewhere.json");
    std::fs::rename(&probe, &elsewhere).unwrap();
    let refused = fleet
        .workspace
        .run("promote lab/gate topology.toml")
        .expect(1);
    assert!(
        refused.errors().contains("looks at another store"),
        "{}",
        refused.errors()
    );
    std::fs::rename(&elsewhere, &probe).unwrap();

    fleet
        .workspace
        .run("promote lab/gate topology.toml")
        .expect(0);
    // Asked again it says that there was nothing to do.
    let again = fleet.workspace.run("promote lab/gate topology.toml");
    assert_eq!(again.expect(0).events("promoted")[0]["already"], true);
    fleet.process("lab/gate").until_rounds(2);
    fleet.signal("hq/gate", Signal::CONT);
    let old = fleet.end("hq/gate").expect(4);
    assert!(
        old.errors()
            .contains("stepped down: lab/gate is the coordinator since membership view"),
        "{}",
        old.errors()
    );
    let now = ended(&fleet.until_of("lab/gate", "it coordinates", |_| true));
    fleet.until_of("lab/gate", "rounds go on", |status| {
        ended(status) >= now + 2
    });
    fleet.signal("lab/gate", Signal::INT);
    fleet.end("lab/gate").expect(130);
    for node in ["plant/gate", "plant/c"] {
        fleet.end(node);
    }
}
