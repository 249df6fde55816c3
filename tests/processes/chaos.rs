//! kill -9 and SIGSTOP of any process of a federation, coordinator and gateways too: the run comes to its end, and every model of it is what
//! its recorded `counted` lists say (ROUND-1 to ROUND-5, over real processes).
//!
//! `TOMBOLO_KILLS=50` kills as often, over 30 rounds; `TOMBOLO_FREEZE_S=30` stops a node for 30 s. Each test prints one line of figures.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tombolo::core::event::{RoundRecord, RoundState};
use tombolo::core::rng::Rng;

use crate::fixture::now;
use crate::fleet::{Fleet, from_environment};
use crate::replay;

const SEED: u64 = 7;

/// Trainings are written down on the way; a majority of both is enough. Everyone may be missed for a moment.
const ARCHIPELAGO: &str = r#"
    [federation]
    name = "archipelago"
    rounds = ROUNDS
    sync_every = STEPS
    seed = 7
    [run]
    kernels = "portable"
    [round]
    quorum = { nodes = 4, domains = 2 }
    deadline = "30s"
    grace = "1s"
    failed_limit = 20
    [model]
    trainer = "digits-softmax"
    [aggregator]
    kind = "fedavg"
    clip = "none"
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c", "d"]
    gateways = ["gate", "c"]
    [[domain]]
    name = "lab"
    nodes = ["gate", "e"]
    gateways = ["gate", "e"]
    [heartbeat]
    every = "100ms"
    retry = ["100ms", "100ms"]
    restore_limit = "1s"
    cooldown = { first = "1s", cap = "2s" }
    [checkpoint]
    snapshot = "50ms"
"#;

pub fn archipelago(rounds: u64, steps: u64) -> String {
    let text = ARCHIPELAGO.replace("ROUNDS", &rounds.to_string());
    text.replace("STEPS", &steps.to_string())
}

fn topology(fleet: &Fleet) -> PathBuf {
    fleet.workspace.path().join("topology.toml")
}

pub fn commits(fleet: &Fleet) -> PathBuf {
    let node = fleet.coordinator().replace('/', ".");
    fleet
        .workspace
        .path()
        .join(format!("state/nodes/{node}/commits"))
}

/// Rounds that are written down as ended.
pub fn ended(fleet: &Fleet) -> u64 {
    let names = std::fs::read_dir(commits(fleet)).into_iter().flatten();
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.ends_with(".json")).count() as u64
}

/// Reads what everybody says until so many rounds have ended.
fn until_ended(fleet: &mut Fleet, rounds: u64) {
    fleet.until_true("the rounds", |fleet| ended(fleet) >= rounds);
}

/// Waits for the end of all processes, none of which may fail; what the coordinator wrote down.
fn finish(mut fleet: Fleet) -> Vec<RoundRecord> {
    let coordinator = fleet.coordinator();
    let output = fleet.end(&coordinator).expect(0);
    let records = replay::records(&commits(&fleet));
    let hash = replay::equals(&topology(&fleet), &records);
    assert_eq!(output.hash(), hash, "{output:#?}");
    for node in fleet.nodes() {
        if node != coordinator {
            fleet.end(&node).expect(0);
        }
    }
    records
}

fn states(records: &[RoundRecord]) -> [usize; 3] {
    let of = |state| {
        records
            .iter()
            .filter(|record| record.state == state)
            .count()
    };
    [
        RoundState::Committed,
        RoundState::Degraded,
        RoundState::Aborted,
    ]
    .map(of)
}

/// Field fault: a restarted member gets work in the next rounds. Field fault: a restarted coordinator resumes from its last committed round;
/// nodes re-attach to it. torchft#63, hivemind#525, NVFlare#242, openfl#1229, ray#64349.
#[test]
fn killed_at_random_the_run_ends_with_the_model_that_its_counted_lists_say() {
    let kills = from_environment("TOMBOLO_KILLS", 8);
    let rounds = (kills * 3 / 5).max(10);
    let began = now();
    let mut fleet = Fleet::start(&archipelago(rounds, 1500));
    let (nodes, coordinator) = (fleet.nodes(), fleet.coordinator());
    let roles = ["coordinator", "gateways", "nodes"];
    let role_of = |node: &String| match node {
        node if *node == coordinator => roles[0],
        node if node.ends_with("/gate") => roles[1],
        _ => roles[2],
    };
    let mut rng = Rng::derive(SEED, &[b"kills"]);
    // After which round each comes; the last round is left for everybody to come back.
    let mut moments: Vec<u64> = (0..kills).map(|_| rng.below(rounds - 1)).collect();
    moments.sort_unstable();
    let mut killed: BTreeMap<&str, u64> = roles.into_iter().map(|role| (role, 0)).collect();
    for round in moments {
        until_ended(&mut fleet, round);
        let role = roles[rng.below(3) as usize];
        let of_role: Vec<&String> = nodes.iter().filter(|node| role_of(node) == role).collect();
        let node = of_role[rng.below(of_role.len() as u64) as usize].clone();
        // Somewhere in training, report, fold or commit.
        let moment = Duration::from_millis(rng.below(700));
        assert!(
            !fleet.process(&node).ended_within(moment),
            "{:#?}",
            fleet.end(&node)
        );
        fleet.signal(&node, Signal::KILL);
        assert_eq!(fleet.end(&node).status.unwrap().code(), None, "{node}");
        fleet.begin(&node);
        *killed.entry(role).or_default() += 1;
    }
    let records = finish(fleet);
    assert_eq!(records.len() as u64, rounds);
    let [committed, degraded, aborted] = states(&records);
    let counted: usize = records.iter().map(|record| record.counted.len()).sum();
    println!(
        "{}",
        json!({
            "proof": "kills", "seed": SEED, "kills": kills, "coordinator_kills": killed["coordinator"], "gateway_kills": killed["gateways"], "node_kills": killed["nodes"], "rounds": rounds, "committed": committed,
            "degraded": degraded, "aborted": aborted, "counted": counted, "equals_replay": true,
            "wall_s": (now() - began).as_secs_f64(),
        })
    );
}

/// Field fault: a dead member leaves the count after the heartbeat limit, a restarted one gets work in the next round; here it stood still.
/// torchft#63, hivemind#525, scaleout-client#329.
#[test]
fn a_stopped_node_is_waited_for_by_no_round_and_counted_again_when_it_goes_on() {
    const NODE: &str = "plant/d";
    let freeze = Duration::from_secs(from_environment("TOMBOLO_FREEZE_S", 0));
    let began = now();
    let mut fleet = Fleet::start(&archipelago(900_000, 400));
    fleet.until_state(NODE, "active");
    fleet.more_rounds(1);
    let stopped = now();
    fleet.signal(NODE, Signal::STOP);
    // Out of the count, and then out of the view; `status` would wait for an answer of its.
    let evicted = format!("NodeEvicted {{ node: {NODE}");
    let coordinator = fleet.coordinator();
    fleet
        .process(&coordinator)
        .until(&evicted, |seen| seen.errors().contains(&evicted));
    let rounds = ended(&fleet);
    fleet.until_true("more rounds", |fleet| ended(fleet) >= rounds + 2);
    while now() - stopped < freeze {
        fleet.more_rounds(1);
    }
    let stood_still = now() - stopped;
    let without = fleet.rounds();
    fleet.signal(NODE, Signal::CONT);
    fleet.until_state(NODE, "active");
    fleet.more_rounds(2);
    let is_counted = |round: &serde_json::Value| {
        let counted = round["counted"].as_array().unwrap();
        counted.iter().any(|node| node == NODE)
    };
    let missing =
        |rounds: &[serde_json::Value]| rounds.iter().filter(|round| !is_counted(round)).count();
    assert!(missing(&without) >= 2, "{without:#?}");
    fleet.until_true("a round that counts it", |fleet| {
        fleet.rounds().last().is_some_and(is_counted)
    });
    let (topology, commits) = (topology(&fleet), commits(&fleet));
    let outputs = fleet.stop();
    let records = replay::records(&commits);
    replay::equals(&topology, &records);
    assert_eq!(outputs[&coordinator].code(), 130);
    assert!(!outputs[NODE].errors().contains("NodeEvicted"));
    let [committed, degraded, aborted] = states(&records);
    println!(
        "{}",
        json!({
            "proof": "freeze", "stood_still_s": stood_still.as_secs_f64(), "rounds": records.len(), "rounds_without_it": missing(&without),
            "committed": committed, "degraded": degraded, "aborted": aborted, "equals_replay": true,
            "wall_s": (now() - began).as_secs_f64(),
        })
    );
}
