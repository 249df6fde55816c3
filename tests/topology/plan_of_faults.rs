//! The file behind `sim --faults`: read to the last digit, and every mistake told with its place.

use std::collections::BTreeSet;
use std::path::Path;

use tombolo::simulation::plan::{Dose, FaultPlan};
use tombolo::topology::{load_faults, parse, parse_faults};
use tombolo_core::plan::Plan;

fn harbour() -> Plan {
    let text = r#"
        [federation]
        name = "harbour"
        standby = ["plant/gate"]
        [[domain]]
        name = "hq"
        nodes = ["gate", "a"]
        [[domain]]
        name = "plant"
        nodes = ["gate", "c"]
    "#;
    parse("harbour", text, Path::new(".")).unwrap_or_else(|error| panic!("{error:#}"))
}

/// Every kind with every key of it.
const ALL: &str = r#"
[[fault]]
at = "1s"
until = "4s"
kind = "crash"
node = "plant/c"

[[fault]]
at = "1s"
kind = "torn-write"
node = "hq/gate"
until = "2s"

[[fault]]
at = "3s"
kind = "kill"
node = "hq/gate"
changes = 5
until = "4s"

[[fault]]
at = "5s"
kind = "restart"
node = "plant/c"
without_disk = true

[[fault]]
at = "0s"
kind = "freeze"
node = "plant/c"
until = "300ms"

[[fault]]
at = "0s"
kind = "slow"
node = "plant/c"
factor = 3

[[fault]]
at = "0s"
kind = "partition"
from = ["hq"]
to = ["plant/gate", "plant/c"]
one_way = true

[[fault]]
at = "0s"
kind = "heal"
from = ["hq"]
one_way = true

[[fault]]
at = "0s"
kind = "loss"
from = ["hq"]
share = "0.1%"

[[fault]]
at = "0s"
kind = "duplicate"
from = ["hq/a"]
share = "100%"

[[fault]]
at = "0s"
kind = "reorder"
from = ["hq/a"]
within = "20ms"

[[fault]]
at = "0s"
kind = "delay"
from = ["hq/a"]
by = "20ms"

[[fault]]
at = "0s"
kind = "mtu-black-hole"
from = ["hq/a"]
bytes = 1300

[[fault]]
at = "0s"
kind = "rebind"
node = "hq/a"

[[fault]]
at = "0s"
kind = "rate-limit"
from = ["hq/a"]
rate = "300 kbit/s"

[[fault]]
at = "0s"
kind = "clock-forward"
node = "hq/a"
by = "1h"

[[fault]]
at = "0s"
kind = "clock-back"
node = "hq/a"
by = "1h"

[[fault]]
at = "0s"
kind = "clock-drift"
node = "hq/a"
wall_ppm = -3000
monotonic_ppm = 0.5

[[fault]]
at = "0s"
kind = "disk-full"
node = "hq/a"

[[fault]]
at = "0s"
kind = "stale-certificate"
node = "hq/a"
stale = "not-yet-valid"

[[fault]]
at = "12s"
kind = "promote"
node = "plant/gate"

[[fault]]
at = "13s"
until = "14s"
kind = "pause"

[[fault]]
at = "15s"
kind = "stop"
now = true

[[fault]]
at = "0s"
kind = "panic"
node = "hq/gate"
actor = "Aggregate"

[[fault]]
at = "0s"
kind = "bit-flip"
node = "hq/a"

[[fault]]
at = "0s"
kind = "deadlock"
node = "hq/a"
actor = "Node"
other = "Collective"
"#;

#[test]
fn a_plan_with_every_kind_and_every_key_is_read_and_written() {
    let harbour = harbour();
    let plan = parse_faults("all", ALL, &harbour).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(plan.faults.len(), 26);
    let kinds: std::collections::BTreeSet<&str> =
        plan.faults.iter().map(|timed| timed.fault.kind()).collect();
    assert_eq!(kinds.len(), 26);
    let read = |plan: &FaultPlan| parse_faults("again", &plan.to_toml(), &harbour);
    assert_eq!(read(&plan).unwrap(), plan);
    for seed in 0..50 {
        let plan = FaultPlan::random(&harbour, seed, Dose::default());
        assert_eq!(read(&plan).unwrap(), plan, "seed {seed}");
    }
    assert_eq!(parse_faults("none", "", &harbour).unwrap().faults.len(), 0);
}

#[test]
fn every_mistake_is_told_with_its_place_and_what_to_do() {
    let crash = "[[fault]]\nat = \"1s\"\nkind = \"crash\"\nnode = \"plant/c\"\n";
    let loss = "[[fault]]\nat = \"1s\"\nkind = \"loss\"\nfrom = [\"hq\"]\nshare = \"5%\"\n";
    let with = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        text.replacen(from, to, 1)
    };
    let cases = [
        (with(crash, "node", "nod"), "4:1", "did you mean `node`"),
        (with(crash, "node", "nod"), "1:1", "a crash needs `node`"),
        (
            with(crash, "\"crash\"", "\"crush\""),
            "3:8",
            "did you mean \"crash\"",
        ),
        (
            with(crash, "plant/c", "plant/d"),
            "4:8",
            "did you mean \"plant/c\"",
        ),
        (with(crash, "plant/c", "plant"), "4:8", "not a node"),
        (with(crash, "at = \"1s\"\n", ""), "1:1", "has no `at`"),
        (with(crash, "1s", "1"), "2:6", "no unit"),
        (
            with(crash, "at", "share = \"5%\"\nat"),
            "2:1",
            "a crash has no `share`",
        ),
        (with(crash, "at", "until = \"1s\"\nat"), "2:9", "not after"),
        (
            with(crash, "crash", "restart") + "until = \"2s\"",
            "5:1",
            "at an instant",
        ),
        (with(crash, "crash", "slow"), "1:1", "a slow needs `factor`"),
        (
            with(crash, "crash", "panic") + "actor = \"Link2\"",
            "5:9",
            "\"Link\"",
        ),
        (
            with(crash, "crash", "panic") + "actor = \"Coordinator\"",
            "5:9",
            "no actor",
        ),
        (with(loss, "\"hq\"", "\"hk\""), "4:9", "did you mean \"hq\""),
        (
            with(loss, "\"hq\"", "\"hq/a b\""),
            "4:9",
            "neither a domain nor a node",
        ),
        (with(loss, "[\"hq\"]", "\"hq\""), "4:8", "list"),
        (with(loss, "\"5%\"", "0.05"), "5:9", "percentage"),
        (
            with(loss, "[\"hq\"]", "[\"hq/a\"]\nto = [\"hq/a\"]"),
            "5:6",
            "one and the same",
        ),
        (
            crash.replace("[[fault]]", "[fault]"),
            "1:1",
            "double brackets",
        ),
        ("[[faults]]\nat = \"1s\"".into(), "1:3", "[[fault]]"),
        (format!("{crash}at = \"2s\"\n"), "5:1", "given twice"),
        (with(crash, "\"1s\"", "1s"), "2:6", ""),
    ];
    for (text, place, said) in cases {
        let refusal = parse_faults("plan.toml", &text, &harbour()).unwrap_err();
        let told = format!("{refusal:#}");
        let line = told
            .lines()
            .find(|line| line.starts_with(&format!("plan.toml:{place}:")) && line.contains(said));
        assert!(line.is_some(), "{place} {said} in\n{told}\nof\n{text}");
    }
}

/// CorfuDB#1860: a missing file is named in full.
#[test]
fn a_plan_that_cannot_be_read_is_named_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("no.toml");
    let refusal = format!("{:#}", load_faults(&path, &harbour()).unwrap_err());
    assert!(refusal.contains(&path.display().to_string()), "{refusal}");
    std::fs::write(&path, [0xFF, 0xFE]).unwrap();
    let refusal = format!("{:#}", load_faults(&path, &harbour()).unwrap_err());
    assert!(refusal.contains("UTF-8"), "{refusal}");
    std::fs::write(
        &path,
        "[[fault]]\nat = \"1s\"\nkind = \"crash\"\nnode = \"hq/a\"\n",
    )
    .unwrap();
    assert_eq!(load_faults(&path, &harbour()).unwrap().faults.len(), 1);
}

/// The list that people read to learn the kinds of faults has all of them; `promote` needs a topology with a standby, and `stop` would end the example.
#[test]
fn the_example_has_every_kind_of_fault() {
    let topology = include_str!("../../examples/harbour.toml");
    let topology = parse("harbour", topology, Path::new("examples")).unwrap();
    let kinds = |plan: &FaultPlan| {
        let kinds = plan.faults.iter().map(|timed| timed.fault.kind());
        kinds.collect::<BTreeSet<&str>>()
    };
    let example = include_str!("../../examples/faults.toml");
    let example = parse_faults("faults", example, &topology).unwrap();
    let mut all = kinds(&parse_faults("all", ALL, &harbour()).unwrap());
    assert!(all.remove("promote") && all.remove("stop"));
    assert_eq!(kinds(&example), all);
}
