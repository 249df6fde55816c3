//! Ways from one domain to another.

use crate::good::read;
use tombolo::topology::config_hash;

fn text(shut: &str) -> String {
    format!(
        r#"
        [federation]
        name = "harbour"
        [route]
        relay = ["lab"]
        [[domain]]
        name = "hq"
        [[domain.node]]
        name = "gate"
        {shut}
        [[domain]]
        name = "plant"
        [[domain.node]]
        name = "gate"
        {shut}
        [[domain]]
        name = "lab"
        nodes = ["gate"]
    "#
    )
}

#[test]
fn who_can_only_dial_out_is_joined_by_a_relay_and_that_changes_no_outcome() {
    let shut = read(&text("outbound_only = true"));
    let [hq, plant, lab] = ["hq/gate", "plant/gate", "lab/gate"].map(|it| it.parse().unwrap());
    assert!(shut.needs_relay(&hq, &plant) && !shut.needs_relay(&hq, &lab));
    assert_eq!(shut.relays(&plant, &hq), [lab]);
    let open = read(&text("outbound_only = false"));
    assert!(!open.needs_relay(&hq, &plant));
    assert_eq!(config_hash(&open), config_hash(&shut));
}
