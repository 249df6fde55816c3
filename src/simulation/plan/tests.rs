use std::path::Path;

use tombolo_actors::crew::Crew;

use super::*;
use crate::simulation::{fault::*, millis, secs};
use crate::topology;

const SECOND: u64 = 1000;

pub fn harbour() -> Plan {
    let text = r#"
        [federation]
        name = "harbour"
        [[domain]]
        name = "hq"
        nodes = ["gate", "a", "b"]
        [[domain]]
        name = "plant"
        nodes = ["gate", "c"]
        [[domain]]
        name = "ship"
        nodes = ["gate"]
    "#;
    topology::parse("harbour", text, Path::new(".")).unwrap_or_else(|error| panic!("{error:#}"))
}

fn plan(faults: impl IntoIterator<Item = (u64, Option<u64>, Fault)>) -> FaultPlan {
    let timed = |(at, until, fault): (u64, Option<u64>, Fault)| TimedFault {
        at: millis(at),
        until: until.map(millis),
        fault,
    };
    FaultPlan {
        faults: faults.into_iter().map(timed).collect(),
    }
}

/// One of each kind.
pub fn each() -> FaultPlan {
    let (a, b) = (["hq"], ["plant", "ship/gate"]);
    let windows = [
        crash("hq/a"),
        torn_write("hq/gate"),
        kill("hq/gate", 5),
        freeze("plant/c"),
        slow("plant/c", 2.5),
        partition(a, b),
        partition(a, b).one_way(),
        partition(a, []),
        loss(a, b, 0.07),
        duplicate(a, b, 1.0 / 3.0),
        reorder(a, b, millis(50)),
        delay(a, b, millis(300)),
        mtu_black_hole(a, b, 1300),
        rate_limit(a, b, 200_000),
        clock_forward("hq/a", secs(3600)),
        clock_back("hq/a", secs(60)),
        clock_drift("hq/a", -5000.5, 0.0),
        clock_drift("hq/a", 0.0, 250.0),
        disk_full("hq/a"),
        stale_certificate("hq/a", Stale::Expired),
        stale_certificate("hq/a", Stale::NotYetValid),
    ];
    let instants = [
        restart("hq/a"),
        restart_without_disk("hq/a"),
        heal(a, b),
        rebind("hq/gate"),
        panic("hq/gate", "Coordinator"),
        panic("plant/c", "Link"),
        bit_flip("plant/c"),
        deadlock("plant/c", "Node", "Verbs"),
    ];
    let windows = windows.map(|fault| (1500, Some(2000), fault));
    let instants = instants.map(|fault| (7 * SECOND, None, fault));
    plan(windows.into_iter().chain(instants))
}

#[test]
fn a_plan_reads_back_from_its_toml_and_its_json() {
    let all = each();
    all.check(&harbour()).unwrap();
    let text = all.to_toml();
    let read: FaultPlan = toml::from_str(&text).unwrap();
    for (read, written) in read.faults.iter().zip(&all.faults) {
        assert_eq!(read, written);
    }
    assert_eq!(read, all);
    let json = serde_json::to_string(&all).unwrap();
    assert_eq!(
        serde_json::from_str::<FaultPlan>(&json).unwrap(),
        all,
        "{json}"
    );
    assert_eq!(toml::from_str::<FaultPlan>("").unwrap().faults.len(), 0);
    for timed in &all.faults {
        assert!(text.contains(&format!("kind = \"{}\"", timed.fault.kind())));
    }
}

#[test]
fn the_actors_that_can_panic_are_those_that_there_are() {
    assert_eq!(ACTORS, Crew::ACTORS);
    assert_eq!(COORDINATORS_ACTORS, Crew::COORDINATORS_ACTORS);
}

#[test]
fn what_cannot_happen_is_refused() {
    let harbour = harbour();
    for (timed, said) in [
        ((1, None, crash("hq/z")), "hq/z"),
        ((1, None, loss(["hq", "mars"], [], 0.1)), "mars"),
        ((1, None, partition(["hq"], ["venus"])), "venus"),
        ((1, None, partition(["hq/a"], ["hq/a"])), "one and the same"),
        ((1, None, slow("hq/a", 0.0)), "0 times"),
        ((1, None, loss(["hq"], [], 1.5)), "1.5"),
        ((1, None, loss(["hq"], [], f64::NAN)), "NaN"),
        ((1, None, rate_limit(["hq"], [], 0)), "partition"),
        ((1, None, clock_drift("hq/a", 0.0, 501.0)), "501"),
        ((1, None, clock_drift("hq/a", f64::NAN, 1.0)), "NaN"),
        ((1, None, panic("hq/a", "Coordinator")), "Coordinator"),
        ((1, Some(2), panic("hq/a", "Node")), "an instant"),
        ((1, None, deadlock("hq/a", "Node", "Node")), "Node"),
        ((1, None, deadlock("hq/a", "Node", "Link")), "Link"),
        ((1, Some(2), restart("hq/a")), "an instant"),
        ((5, Some(5), crash("hq/a")), "not after"),
    ] {
        let refusal = plan([timed]).check(&harbour).unwrap_err().to_string();
        assert!(refusal.contains(said), "{refusal}");
    }
    let many = plan((0..=FAULTS_MAX).map(|_| (1, None, restart("hq/a"))));
    assert!(many.check(&harbour).is_err());
}

#[test]
fn a_plan_says_when_all_is_well_again() {
    let windowed = plan([(1, Some(9), crash("hq/a")), (12, None, restart("hq/b"))]);
    assert_eq!(windowed.healed_at(), Some(millis(12)));
    assert_eq!(plan([]).healed_at(), Some(millis(0)));
    assert_eq!(plan([(1, None, crash("hq/a"))]).healed_at(), None);
    let restarted = plan([(1, None, crash("hq/a")), (30, None, restart("hq/a"))]);
    assert_eq!(restarted.healed_at(), Some(millis(30)));
    let stuck = (1, None, deadlock("hq/a", "Node", "Verbs"));
    assert_eq!(plan([stuck.clone()]).healed_at(), None);
    let restarted = plan([stuck, (30, None, restart("hq/a"))]);
    assert_eq!(restarted.healed_at(), Some(millis(30)));
    let before = plan([(30, None, crash("hq/a")), (1, None, restart("hq/a"))]);
    assert_eq!(before.healed_at(), None);
    let (a, b) = (["hq"], ["ship"]);
    let healed = plan([(1, None, partition(a, b)), (40, None, heal(a, b))]);
    assert_eq!(healed.healed_at(), Some(millis(40)));
    assert_eq!(plan([(1, None, loss(a, b, 0.1))]).healed_at(), None);
}

#[test]
fn paths_are_those_between_the_groups() {
    let harbour = harbour();
    let count = |fault: Fault| fault.paths().unwrap().pairs(&harbour).len();
    assert_eq!(count(partition(["hq"], ["plant"])), 12);
    assert_eq!(count(partition(["hq"], ["plant"]).one_way()), 6);
    assert_eq!(count(partition(["hq/a"], [])), 10);
    assert_eq!(count(partition(["hq"], ["hq"])), 6);
    assert_eq!(count(partition(["hq", "hq/a"], ["hq/b"])), 4);
}

/// So many a minute, everything over in time, every kind drawn, and each of them such that it can happen.
#[test]
fn random_plans_are_bounded_and_end() {
    let harbour = harbour();
    let mut kinds = BTreeSet::new();
    for seed in 0..100 {
        let dose = Dose {
            per_minute: 30,
            span: secs(40),
        };
        let plan = FaultPlan::random(&harbour, seed, dose);
        assert_eq!(plan.faults.len(), 20);
        plan.check(&harbour).unwrap();
        assert!(plan.healed_at().unwrap() <= dose.span);
        assert!(plan.faults.is_sorted_by_key(|timed| timed.at));
        assert_eq!(plan, FaultPlan::random(&harbour, seed, dose));
        let text = plan.to_toml();
        assert_eq!(toml::from_str::<FaultPlan>(&text).unwrap(), plan, "{text}");
        for timed in &plan.faults {
            kinds.insert(timed.fault.kind());
            let coordinators = timed.fault.node() == Some("hq/gate");
            let undoes = matches!(
                timed.fault,
                Fault::Restart {
                    without_disk: true,
                    ..
                }
            );
            assert!(!(coordinators && undoes), "{timed:?}");
        }
    }
    let all = each();
    for timed in &all.faults {
        let kind = timed.fault.kind();
        assert!(
            kinds.contains(kind) || ["heal", "disk-full", "bit-flip", "deadlock"].contains(&kind),
            "{kind}"
        );
    }
    assert_ne!(
        FaultPlan::random(&harbour, 1, Dose::default()),
        FaultPlan::random(&harbour, 2, Dose::default())
    );
}
