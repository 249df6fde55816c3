//! Long fat paths.

use tombolo::Round;
use tombolo::simulation::{Simulation, millis, secs};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;

use crate::probe::Probe;

/// Field fault: a fast link with a long round trip is filled, not capped (honk#120); and a burst of losses at the start costs no connection.
#[test]
fn a_large_model_crosses_a_long_fat_path_on_one_connection() {
    let text = r#"
        [federation]
        name = "bay"
        rounds = 1
        sync_every = 1
        seed = 3
        [round]
        quorum = "all"
        deadline = "300s"
        close_limit = "120s"
        [[domain]]
        name = "hq"
        nodes = ["gate"]
        [[domain]]
        name = "plant"
        nodes = ["gate"]
        [[link]]
        between = ["plant", "hq"]
        emulate = { delay = "75ms", rate = "200 Mbit/s" }
    "#;
    let elements = 6_000_000;
    let wide = move |_: &NodeId| Probe {
        layout: Layout::new([("weight", vec![elements])]).unwrap(),
    };
    let simulation = Simulation::from_toml(text).unwrap();
    let report = simulation
        .limit(secs(600))
        .trainer(wide)
        .training(millis(100))
        .observed()
        .run()
        .unwrap();
    let broken = report
        .events
        .iter()
        .any(|(_, event)| matches!(event, Event::LinkDown { .. }));
    assert_eq!(report.violations, []);
    assert!(report.rounds().iter().all(Round::is_committed));
    assert!(!broken);
    for (_, event) in &report.events {
        if let Event::Transferred(sent) = event {
            assert_eq!(sent.cuts, 0, "{sent:?}");
        }
    }
}
