//! What becomes of rounds where a site denies something. POLICY-1 looks at each of these runs besides.

use std::collections::BTreeSet;

use tombolo::Round;
use tombolo::simulation::{Simulation, SimulationReport, millis, promote, secs};
use tombolo_core::event::Event;
use tombolo_core::mutants;
use tombolo_core::policy::Action;

/// Three sites; plant's `b` may succeed its gateway, `lab/gate` may be promoted, and `plant/c` is in slice blue.
const COAST: &str = r#"
    [federation]
    name = "coast"
    rounds = 4
    sync_every = 5
    seed = 3
    standby = ["lab/gate"]
    [round]
    quorum = "all"
    deadline = "20s"
    grace = "1s"
    failed_limit = 3
    [model]
    trainer = "digits-softmax"
    partition = { kind = "iid" }
    [[slice]]
    name = "blue"
    [[domain]]
    name = "hq"
    nodes = ["gate", "a"]
    [[domain]]
    name = "plant"
    gateways = ["gate", "b"]
    [[domain.node]]
    name = "gate"
    [[domain.node]]
    name = "b"
    [[domain.node]]
    name = "c"
    slice = "blue"
    [[domain]]
    name = "lab"
    nodes = ["gate", "e"]
"#;

const ALL: &str = r#"["join", "train", "aggregate", "coordinate", "read-model", "read-metrics"]"#;

/// A rule of a site; `rest` holds its actions, and slices if it has any.
fn rule(site: &str, identity: &str, rest: &str) -> String {
    format!("[[policy]]\nsite = \"{site}\"\nidentity = \"{identity}\"\nactions = {rest}\n")
}

fn coast(rules: &[String]) -> Simulation {
    let text = format!("{COAST}\n{}", rules.join("\n"));
    let simulation = Simulation::from_toml(&text).unwrap_or_else(|error| panic!("{error}"));
    simulation.limit(secs(3600))
}

fn run(rules: &[String]) -> SimulationReport {
    let report = coast(rules).run().unwrap();
    assert_eq!(report.violations, []);
    report
}

/// Everybody who was counted in any round, and the rounds all ended well.
#[track_caller]
fn counted(report: &SimulationReport) -> Vec<String> {
    assert_eq!(report.finished.reason, "", "{:#?}", report.rounds());
    assert_eq!(report.rounds().len(), 4);
    assert!(
        report.rounds().iter().all(Round::is_committed),
        "{:#?}",
        report.rounds()
    );
    let all = report.rounds().iter().flat_map(|round| &round.counted);
    let all: BTreeSet<String> = all.map(ToString::to_string).collect();
    all.into_iter().collect()
}

/// Who refused whom what, by the events.
fn denials(report: &SimulationReport) -> BTreeSet<(String, String, Action)> {
    let events = report.events.iter().map(|(_, event)| event);
    let denials = events.filter_map(|event| match event {
        Event::PolicyDenied { node, verdict } => Some((
            node.to_string(),
            verdict.identity.to_string(),
            verdict.action,
        )),
        _ => None,
    });
    denials.collect()
}

fn of(node: &str, identity: &str, action: Action) -> (String, String, Action) {
    (node.to_owned(), identity.to_owned(), action)
}

const EVERYBODY: [&str; 7] = [
    "hq/a",
    "hq/gate",
    "lab/e",
    "lab/gate",
    "plant/b",
    "plant/c",
    "plant/gate",
];

fn without(left_out: &[&str]) -> Vec<String> {
    let rest = EVERYBODY.iter().filter(|node| !left_out.contains(node));
    rest.map(ToString::to_string).collect()
}

#[test]
fn a_rule_that_grants_everything_changes_nothing() {
    let plain = run(&[]);
    let granted = run(&["hq", "plant", "lab"].map(|site| rule(site, "*", ALL)));
    assert_eq!(counted(&plain), EVERYBODY);
    assert_eq!(counted(&granted), EVERYBODY);
    assert_eq!(plain.finished.model_hash, granted.finished.model_hash);
    assert_eq!(denials(&granted), BTreeSet::new());
}

/// At its own site or at the coordinator's: it is asked in no round, the record of each round says why, and it holds every model.
#[test]
fn who_may_not_train_only_follows_and_each_round_says_so() {
    let rest = r#"["join", "read-model", "aggregate", "coordinate", "read-metrics"]"#;
    let own = [
        rule("plant", "*", rest),
        rule("plant", "plant/gate", r#"["train"]"#),
        rule("plant", "plant/b", r#"["train"]"#),
    ];
    let theirs = [
        rule("hq", "*", rest),
        rule("hq", "hq/*", r#"["train"]"#),
        rule("hq", "lab/*", r#"["train"]"#),
        rule("hq", "plant/gate", r#"["train"]"#),
        rule("hq", "spiffe://plant.coast/node/b", r#"["train"]"#),
    ];
    for (site, rules) in [("plant", own.to_vec()), ("hq", theirs.to_vec())] {
        let report = run(&rules);
        assert_eq!(counted(&report), without(&["plant/c"]), "{site}");
        for round in report.rounds() {
            let [(node, why)] = &round.denied[..] else {
                panic!("{:?}", round.denied);
            };
            assert_eq!(node.as_str(), "plant/c");
            let said = format!("plant/c may not train at {site} in slice blue");
            assert!(why.starts_with(&said), "{why}");
            assert!(!round.late.contains(node));
        }
        let told = of("hq/gate", "plant/c", Action::Train);
        assert_eq!(denials(&report), BTreeSet::from([told]));
        let last = report.finished.model_hash;
        let holds = |event: &Event| matches!(event, Event::ModelAdopted { node, hash, .. } if node.as_str() == "plant/c" && *hash == last);
        assert!(report.events.iter().any(|(_, event)| holds(event)));
    }
}

/// The rule names the slice and not the node.
#[test]
fn a_slice_has_a_policy_of_its_own() {
    let all_but_c = [
        rule("plant", "*", &format!("{ALL}\nslices = [\"blue\"]")),
        rule(
            "plant",
            "*",
            r#"["join", "read-model", "coordinate", "aggregate"]"#,
        ),
    ];
    let report = run(&all_but_c);
    assert_eq!(counted(&report), without(&["plant/gate", "plant/b"]));
}

#[test]
fn who_may_not_join_is_refused_by_name_on_both_sides() {
    let rules = [
        rule("plant", "plant/gate", ALL),
        rule("plant", "plant/b", ALL),
        rule("plant", "hq/gate", ALL),
        rule("plant", "lab/gate", ALL),
    ];
    let report = run(&rules);
    assert_eq!(counted(&report), without(&["plant/c"]));
    let up = |event: &Event| matches!(event, Event::LinkUp { node, peer } if [node, peer].iter().any(|end| end.as_str() == "plant/c"));
    assert!(!report.events.iter().any(|(_, event)| up(event)));
    let refused = report.events.iter().filter_map(|(_, event)| match event {
        Event::LinkRefused { node, peer, reason } => {
            assert!(reason.contains("may not join at plant"), "{reason}");
            Some((node.to_string(), peer.to_string()))
        }
        _ => None,
    });
    let refused: BTreeSet<(String, String)> = refused.collect();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    // It would let them in, and hears from them why they do not.
    for gate in ["plant/gate", "plant/b"] {
        assert!(refused.contains(&pair(gate, "plant/c")), "{refused:?}");
        assert!(refused.contains(&pair("plant/c", gate)), "{refused:?}");
        assert!(denials(&report).contains(&of(gate, "plant/c", Action::Join)));
    }
}

/// A site that takes no orders from the coordinator is asked nothing, and is not waited for.
#[test]
fn a_site_that_is_not_led_by_the_coordinator_takes_no_part() {
    let rules = [
        rule("plant", "plant/*", ALL),
        rule("plant", "*", r#"["join", "read-model"]"#),
    ];
    let report = run(&rules);
    assert_eq!(
        counted(&report),
        without(&["plant/gate", "plant/b", "plant/c"])
    );
    let first = &report.rounds()[0];
    assert_eq!(first.denied.len(), 3);
    for (_, why) in &first.denied {
        assert!(why.contains("hq/gate may not coordinate at plant"), "{why}");
    }
    assert!(denials(&report).contains(&of("plant/gate", "hq/gate", Action::Coordinate)));
}

/// The coordinator's site does not send its models there.
#[test]
fn who_may_not_read_the_model_gets_none() {
    let rules = [
        rule("hq", "hq/*", ALL),
        rule("hq", "lab/*", ALL),
        rule("hq", "plant/*", r#"["join", "train", "aggregate"]"#),
        // Each site guards its own copy: this one would have healed plant.
        rule("lab", "hq/*", ALL),
        rule("lab", "lab/*", ALL),
    ];
    let report = run(&rules);
    assert_eq!(
        counted(&report),
        without(&["plant/gate", "plant/b", "plant/c"])
    );
    assert!(denials(&report).contains(&of("hq/gate", "plant/gate", Action::ReadModel)));
    let adopted = |event: &Event| matches!(event, Event::ModelAdopted { node, round, .. } if node.domain().as_str() == "plant" && *round > 0);
    assert!(!report.events.iter().any(|(_, event)| adopted(event)));
}

/// A neighbour that may not read the model gets no endpoint either: it is none of the gateway's members.
#[test]
fn a_neighbour_that_may_not_read_the_model_is_no_member() {
    let rules = [
        rule("plant", "plant/gate", ALL),
        rule("plant", "plant/b", ALL),
        rule("plant", "plant/c", r#"["join", "train"]"#),
        rule("plant", "*", r#"["join", "coordinate", "aggregate"]"#),
    ];
    let report = run(&rules);
    assert_eq!(counted(&report), without(&["plant/c"]));
    assert!(denials(&report).contains(&of("plant/gate", "plant/c", Action::ReadModel)));
    let holds = |event: &Event| matches!(event, Event::ModelAdopted { node, round, .. } if node.as_str() == "plant/c" && *round > 0);
    assert!(!report.events.iter().any(|(_, event)| holds(event)));
}

/// The next gateway of the list acts from the first view on.
#[test]
fn a_gateway_that_may_not_speak_for_its_domain_does_not_act() {
    let rules = [
        rule("hq", "hq/*", ALL),
        rule("hq", "lab/*", ALL),
        rule("hq", "plant/*", r#"["join", "train", "read-model"]"#),
        rule("hq", "plant/b", r#"["aggregate"]"#),
    ];
    let report = run(&rules);
    assert_eq!(counted(&report), EVERYBODY);
    let by = report.events.iter().filter_map(|(_, event)| match event {
        Event::RecordSigned { by, .. } => Some(by.iter().map(ToString::to_string)),
        _ => None,
    });
    let by: BTreeSet<String> = by.flatten().collect();
    assert_eq!(
        by,
        BTreeSet::from(["lab/gate".to_owned(), "plant/b".to_owned()])
    );
}

/// Its own site is asked first, before anything is written down.
#[test]
fn a_standby_that_may_not_coordinate_is_not_promoted() {
    let rules = [
        rule(
            "lab",
            "lab/*",
            r#"["join", "train", "aggregate", "read-model"]"#,
        ),
        rule("lab", "hq/*", ALL),
        rule("lab", "plant/*", r#"["join"]"#),
    ];
    let report = coast(&rules)
        .at(millis(400), promote("lab/gate"))
        .run()
        .unwrap();
    assert_eq!(report.violations, []);
    assert_eq!(counted(&report), EVERYBODY);
    assert!(denials(&report).contains(&of("lab/gate", "lab/gate", Action::Coordinate)));
    let promoted = |event: &Event| matches!(event, Event::CoordinatorPromoted { .. });
    assert!(!report.events.iter().any(|(_, event)| promoted(event)));
}

/// The law of these simulations finds a node that lets anybody in.
#[test]
fn a_node_that_asks_no_policy_is_found() {
    let rules = [
        rule("plant", "plant/gate", ALL),
        rule("plant", "plant/b", ALL),
        rule("plant", "hq/gate", ALL),
        rule("plant", "lab/gate", ALL),
    ];
    let planted = mutants::plant("anybody-joins");
    let report = coast(&rules).run().unwrap();
    drop(planted);
    let found = report
        .violations
        .iter()
        .any(|violation| violation.law == "POLICY-1");
    assert!(found, "{:?}", report.violations);
}
