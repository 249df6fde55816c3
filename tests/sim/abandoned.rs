//! A run whose coordinator never comes back.

use std::collections::BTreeMap;
use std::time::Duration;

use tombolo::simulation::{Simulation, crash, partition, secs};
use tombolo_core::event::Event;
use tombolo_core::time::Micros;

use crate::dropout::COAST;

/// When each node gave up, and the words of one of them.
fn gave_up(simulation: Simulation) -> (BTreeMap<String, Duration>, String) {
    let report = simulation.limit(secs(7200)).run().unwrap();
    assert_eq!(report.violations, []);
    let mut moments = BTreeMap::new();
    let mut words = String::new();
    for (at, event) in &report.events {
        if let Event::GaveUp { node, reason } = event {
            let once = moments.insert(node.to_string(), at.since(Micros::default()));
            assert_eq!(once, None, "{node} gave up twice");
            words.clone_from(reason);
        }
    }
    (moments, words)
}

/// Field fault: without a coordinator nodes stop after the configured time and free everything. ray#64349, ray#33854, kuberay#1141. The
/// gateways' patience decides, their domains go with them; what is not freed is a violation of BOUND-2.
#[test]
fn nodes_give_up_on_a_coordinator_that_never_comes_back() {
    let coast = Simulation::from_toml(COAST).unwrap();
    let patience = coast.plan().round.patience;
    assert_eq!(patience, secs(600));
    let (moments, words) = gave_up(coast.at(secs(1), crash("hq/gate")));
    // The coordinator was its own domain's only gateway, so that each member waits for itself.
    let names: Vec<&str> = moments.keys().map(String::as_str).collect();
    assert_eq!(names, ["hq/a", "hq/b", "lab/gate", "plant/gate"]);
    for (node, moment) in moments {
        let waited = moment - secs(1);
        // From when it finds the link down.
        assert!(
            waited >= patience && waited < patience + secs(20),
            "{node} waited {waited:?}"
        );
    }
    assert!(words.contains(" has not reached hq/gate (udp "), "{words}");
    assert!(words.contains(" for 10 min and gives up; "), "{words}");
}

/// A coordinator that is out of reach for less than that is waited for.
#[test]
fn nobody_gives_up_on_a_coordinator_that_comes_back_in_time() {
    let coast = Simulation::from_toml(COAST).unwrap();
    let apart = partition(["hq"], ["plant", "lab"]);
    let (moments, _) = gave_up(coast.between(secs(1), secs(590), apart));
    assert_eq!(moments, BTreeMap::new());
}
