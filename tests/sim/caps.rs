//! What a site sends over a capped link, on a path that would carry more.

use tombolo::Round;
use tombolo::simulation::{Simulation, SimulationReport, millis, secs};
use tombolo_core::event::{Cargo, Event, Transfer};
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;
use tombolo_core::time::Micros;

use crate::probe::Probe;

const MBIT: u64 = 1_000_000;

/// So large a model is on its way for about ten seconds at the rate.
fn elements(rate: u64) -> usize {
    (rate * 10 / 32) as usize
}

fn bay(link: &str, elements: usize) -> Simulation {
    let wide = move |_: &NodeId| Probe {
        layout: Layout::new([("weight", vec![elements])]).unwrap(),
    };
    let simulation = Simulation::from_toml(&text(link)).unwrap();
    simulation
        .limit(secs(600))
        .trainer(wide)
        .training(millis(100))
}

fn text(link: &str) -> String {
    format!(
        r#"
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
        {link}
    "#
    )
}

fn run(link: &str, elements: usize) -> SimulationReport {
    let report = bay(link, elements).observed().run().unwrap();
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    assert!(report.rounds().iter().all(Round::is_committed));
    assert_eq!(report.finished.degraded, 0);
    report
}

fn transfer(report: &SimulationReport, cargo: Cargo) -> Transfer {
    let mut found = report.events.iter().filter_map(|(_, event)| match event {
        Event::Transferred(sent) if sent.cargo == cargo => Some(sent.clone()),
        _ => None,
    });
    found.next().expect("it was sent")
}

/// Bits of tensors in a second, while they were waited for.
fn rate(sent: &Transfer) -> f64 {
    sent.bytes as f64 * 8.0 / (sent.waited_us as f64 / 1e6)
}

/// In the UDP payload that a cap counts there are headers of QUIC, words of TLS and acknowledgements, too.
const OVERHEAD: f64 = 0.035;

#[test]
fn a_cap_is_filled_and_never_exceeded_in_each_direction_by_itself() {
    let (forth, back) = (20 * MBIT, 5 * MBIT);
    let link = r#"cap = "20 Mbit/s"
        cap_back = "5 Mbit/s"
        emulate = { delay = "20ms", rate = "200 Mbit/s" }"#;
    let report = run(link, elements(forth * 8 / 5));
    for (cargo, cap) in [(Cargo::Contribution, forth), (Cargo::Model, back)] {
        let share = rate(&transfer(&report, cargo)) / cap as f64;
        println!("{{\"case\":\"cap\",\"cargo\":\"{cargo:?}\",\"cap\":{cap},\"share\":{share}}}");
        assert!(
            (0.99 - OVERHEAD..=1.0).contains(&share),
            "{cargo:?}: {share}"
        );
    }
    let sent = bits_sent(&report, "plant/gate");
    let full = sent.windows(2).filter(|pair| {
        let seconds = pair[1].0 - pair[0].0;
        pair[1].1 - pair[0].1 > 0.5 * forth as f64 * seconds
    });
    let full: Vec<_> = full.collect();
    let (mut seconds, mut bits) = (0.0, 0.0);
    // Neither the look in which it began nor that in which it ended.
    for pair in &full[1..full.len() - 1] {
        seconds += pair[1].0 - pair[0].0;
        bits += pair[1].1 - pair[0].1;
    }
    let share = bits / seconds / forth as f64;
    println!("{{\"case\":\"cap\",\"seconds\":{seconds},\"share\":{share}}}");
    assert!(
        seconds >= 10.0 && (0.99..=1.01).contains(&share),
        "{share} over {seconds} s"
    );
}

/// UDP payload that a node has sent over its link, by the second.
fn bits_sent(report: &SimulationReport, node: &str) -> Vec<(f64, f64)> {
    let measured = report.events.iter().filter_map(|(at, event)| match event {
        Event::LinkMeasured(seen) if seen.node.as_str() == node => {
            let at = at.since(Micros::default()).as_secs_f64();
            Some((at, seen.sent as f64 * 8.0))
        }
        _ => None,
    });
    measured.collect()
}

#[test]
fn another_cap_holds_in_its_hours() {
    let link = |hours: &str| {
        format!(
            r#"cap = "100 Mbit/s"
            {hours}
            emulate = {{ delay = "20ms", rate = "200 Mbit/s" }}"#
        )
    };
    let all_day = r#"hours = [{ from = "00:00", to = "12:00", cap = "10 Mbit/s" }, { from = "12:00", to = "00:00", cap = "10 Mbit/s" }]"#;
    let slow = run(&link(all_day), elements(4 * MBIT));
    let fast = run(&link(""), elements(4 * MBIT));
    let [slow, fast] = [slow, fast].map(|report| rate(&transfer(&report, Cargo::Contribution)));
    assert!((9.4e6..=10.0e6).contains(&slow), "{slow}");
    assert!(fast > 20e6, "{fast}");
}

/// At three times the cap: who sends waits and nothing is lost; or datagrams are dropped; or the rate follows what the path carries.
#[test]
fn what_gives_way_is_what_the_file_says() {
    let link = |overload: &str, path: &str| {
        format!(
            r#"cap = "30 Mbit/s"
            overload = "{overload}"
            emulate = {{ delay = "20ms", rate = "{path}" }}"#
        )
    };
    let sent = |report: &SimulationReport| -> u64 {
        report.rounds().iter().map(|round| round.bytes_up).sum()
    };
    let bytes = |elements: usize| elements as f64 * 4.0 * (1.0 + OVERHEAD);
    let size = elements(15 * MBIT);

    let delay = run(&link("delay", "100 Mbit/s"), size);
    assert!((sent(&delay) as f64) < bytes(size), "nothing is sent twice");

    let drop = run(&link("drop", "100 Mbit/s"), size);
    let share = rate(&transfer(&drop, Cargo::Contribution)) / 30e6;
    assert!(sent(&drop) > sent(&delay), "what was dropped is sent again");
    assert!((0.3..=1.0).contains(&share), "{share}");

    // The path carries a third of the cap: a queue stands in front of it, unless the rate sinks.
    let [blind, adapt] = ["delay", "adapt"].map(|overload| run(&link(overload, "10 Mbit/s"), size));
    let [before, after] = [&blind, &adapt].map(mean_round_trip_ms);
    let adapted = rate(&transfer(&adapt, Cargo::Contribution)) / 10e6;
    let figures = serde_json::json!({
        "case": "overload",
        "bytes_delay": sent(&delay),
        "bytes_drop": sent(&drop),
        "drop_share": share,
        "round_trip_ms_delay": before,
        "round_trip_ms_adapt": after,
        "adapt_share": adapted,
    });
    println!("{figures}");
    // Without a queue it is 40 ms.
    assert!(after - 40.0 < (before - 40.0) / 2.0, "{figures}");
    assert!((0.6..=1.0).contains(&adapted), "{figures}");
}

/// Of heartbeats while much was sent.
fn mean_round_trip_ms(report: &SimulationReport) -> f64 {
    let measured = report.events.iter().filter_map(|(_, event)| match event {
        Event::LinkMeasured(seen) => seen.round_trip_ms,
        _ => None,
    });
    let measured: Vec<f64> = measured.collect();
    measured.iter().sum::<f64>() / measured.len() as f64
}

/// A gateway's successor has a connection of its own on the same budget: while a model goes to the gateway, its heartbeats still go out.
#[test]
fn a_full_link_starves_no_other_connection_of_its_site() {
    let link = r#"cap = "20 Mbit/s"
        emulate = { delay = "20ms", rate = "200 Mbit/s" }"#;
    let text = text(link).replace(
        "name = \"plant\"\n        nodes = [\"gate\"]",
        "name = \"plant\"\n        nodes = [\"gate\", \"a\"]\n        gateways = [\"gate\", \"a\"]",
    );
    assert!(text.contains("gateways"));
    let elements = elements(20 * MBIT);
    let wide = move |_: &NodeId| Probe {
        layout: Layout::new([("weight", vec![elements])]).unwrap(),
    };
    let simulation = Simulation::from_toml(&text).unwrap().limit(secs(600));
    let report = simulation
        .trainer(wide)
        .training(millis(100))
        .run()
        .unwrap();
    assert_eq!(report.violations, []);
    assert!(report.rounds().iter().all(Round::is_committed));
    let suspected = |(_, event): &&(_, Event)| matches!(event, Event::PeerSuspected { .. });
    let suspected: Vec<_> = report.events.iter().filter(suspected).collect();
    assert!(suspected.is_empty(), "{suspected:?}");
}
