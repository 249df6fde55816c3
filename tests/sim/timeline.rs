//! What three processes record by clocks of their own, on one line of time.

use std::collections::BTreeMap;

use serde_json::Value;
use tombolo::explain::{Merged, Past, Placed, Survey};
use tombolo::observe::{Bounds, Picture, trace};
use tombolo::simulation::{Simulation, SimulationReport, clock_drift, crash, millis, secs};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::membership::State;

use crate::probe::Probe;

const FAR: &str = r#"
[federation]
name = "far"
rounds = 20
sync_every = 5
[model]
trainer = "digits-softmax"
[[domain]]
name = "hq"
nodes = ["gate"]
[[domain]]
name = "plant"
nodes = ["gate", "c"]
[[link]]
between = ["hq", "plant"]
emulate = { delay = "20ms", jitter = "5ms" }
"#;

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// The clocks are 3 s apart, and run away from each other by 200 millionths.
fn run() -> SimulationReport {
    let report = Simulation::from_toml(FAR)
        .unwrap()
        .trainer(Probe::new)
        .training(secs(2))
        .limit(secs(600))
        .clock_ahead(&n("plant/gate"), secs(3))
        .clock_ahead(&n("plant/c"), secs(6))
        .at(millis(1), clock_drift("plant/gate", 0.0, 200.0))
        .at(millis(1), clock_drift("plant/c", 0.0, -200.0))
        .observed()
        .run()
        .unwrap();
    report.sound().unwrap_or_else(|failure| panic!("{failure}"))
}

/// The records in order of name: the coordinator's is the first.
fn merged(report: &SimulationReport) -> Merged<impl Iterator<Item = Past>> {
    let records = report.records.values();
    let records: Vec<Vec<Past>> = records
        .map(|record| record.iter().map(|(_, past)| past.clone()).collect())
        .collect();
    let mut survey = Survey::default();
    for (index, record) in records.iter().enumerate() {
        record.iter().for_each(|past| survey.take(index, past));
    }
    let records = records.into_iter().map(Vec::into_iter).collect();
    Merged::new(survey.settle(), records)
}

#[test]
fn spans_of_three_processes_line_up_within_the_stated_bound() {
    let report = run();
    assert_eq!(report.rounds().len(), 20);
    let truth: Vec<_> = report.records.values().collect();
    let merged = merged(&report);
    assert_eq!(truth.len(), 3);
    let bounds = merged.clocks().bounds().clone();
    let placed: Vec<Placed> = merged.collect();
    let told: usize = truth.iter().map(|record| record.len()).sum();
    assert_eq!(placed.len(), told, "nothing is left out");

    let mut next = [0; 3];
    // The coordinator's clock is the world's; the line begins when something was recorded first.
    let first = placed.iter().find(|placed| placed.record == 0).unwrap();
    let begin = truth[0][0].0.0 as f64 / 1e6 - first.past.at;
    let (mut worst, mut widest, mut apart) = (0.0, 0.0, 0.0);
    let mut last = 0.0;
    for Placed {
        record,
        past,
        bound,
    } in &placed
    {
        assert!(past.at >= last, "in order");
        last = past.at;
        let (world, own) = &truth[*record][next[*record]];
        next[*record] += 1;
        assert_eq!(own.event, past.event);
        let world = world.0 as f64 / 1e6;
        let (error, bound) = ((past.at + begin - world).abs(), bound.unwrap());
        assert!(error <= bound, "{past:?} is off by {error}, not {bound}");
        (worst, widest) = (f64::max(worst, error), f64::max(widest, bound));
        apart = f64::max(apart, (own.at - world).abs());
    }
    println!(
        "apart by {apart:.6} s; placed within {worst:.6} s; the bound was at most {widest:.6} s"
    );
    assert!(apart > 5.9, "the clocks are apart: {apart}");
    // A way of 20 to 25 ms to the gateway, and no sight before the first two heartbeats.
    assert!(widest < 0.040, "{widest}");
    assert!(bounds.values().all(|bound| bound.unwrap() <= widest + 1e-9));
    assert_eq!(bounds[&n("hq/gate")], Some(1e-6));
}

#[test]
fn the_trace_of_three_processes_is_what_the_format_asks_for() {
    let report = run();
    let mut picture = Picture::new(Bounds::REPORT);
    let mut merged = merged(&report);
    for placed in merged.by_ref() {
        picture.apply(&placed.past);
    }
    for (node, bound) in merged.clocks().bounds() {
        picture.place(node, bound.unwrap());
    }
    let trace: Value = serde_json::from_str(&trace(&picture)).unwrap();
    let spans = check(&trace);
    // Each process has its nodes' spans, each round the steps that it spent its time on.
    let named = |name: &str| spans.iter().filter(|span| span.name == name).count();
    assert_eq!(named("train"), 3 * 20);
    assert_eq!((named("fold"), named("upload")), (2 * 20, 2 * 20));
    let path: Vec<&Span> = spans.iter().filter(|span| span.track == (1, 1)).collect();
    let rounds = spans.iter().filter(|span| span.name.starts_with("round "));
    for round in rounds {
        let within = path
            .iter()
            .filter(|span| span.from >= round.from - 1.0 && span.to <= round.to + 1.0);
        let sum: f64 = within.map(|span| span.to - span.from).sum();
        let took = round.to - round.from;
        assert!((sum - took).abs() < 0.01 * took, "{} of {took}", sum);
    }
    // Training takes two seconds, give or take a fifth, wherever it is.
    for span in spans.iter().filter(|span| span.name == "train") {
        let seconds = (span.to - span.from) / 1e6;
        assert!((1.5..2.5).contains(&seconds), "{seconds}");
    }
    let bounds = trace["otherData"]["clock_bounds_ms"].as_object().unwrap();
    assert_eq!(bounds.len(), 3);
    assert!(bounds["plant/c"].as_f64().unwrap() > 1.0);
}

/// What takes a while, in microseconds.
struct Span {
    name: String,
    track: (u64, u64),
    from: f64,
    to: f64,
}

/// What the format asks of an object with events, of each kind of event, and of spans on one track: that they follow or hold each other.
fn check(trace: &Value) -> Vec<Span> {
    assert_eq!(trace["displayTimeUnit"], "ms");
    let mut spans = Vec::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        assert!(event["name"].is_string(), "{event}");
        let track = (
            event["pid"].as_u64().unwrap(),
            event["tid"].as_u64().unwrap(),
        );
        let time = |key: &str| {
            let time = event[key].as_f64();
            time.filter(|time| *time >= 0.0)
                .unwrap_or_else(|| panic!("{key} of {event}"))
        };
        match event["ph"].as_str().unwrap() {
            "X" => spans.push(Span {
                name: event["name"].as_str().unwrap().to_owned(),
                track,
                from: time("ts"),
                to: time("ts") + time("dur"),
            }),
            "i" => assert!(time("ts") >= 0.0 && event["s"] == "t"),
            "M" => assert!(event["args"]["name"].is_string()),
            other => panic!("{other}"),
        }
    }
    let mut tracks: BTreeMap<(u64, u64), Vec<&Span>> = BTreeMap::new();
    for span in &spans {
        tracks.entry(span.track).or_default().push(span);
    }
    for spans in tracks.values_mut() {
        spans.sort_by(|a, b| a.from.total_cmp(&b.from).then(b.to.total_cmp(&a.to)));
        let mut open: Vec<&Span> = Vec::new();
        for span in spans {
            while open.last().is_some_and(|outer| outer.to <= span.from) {
                open.pop();
            }
            if let Some(outer) = open.last() {
                let (one, other) = (&outer.name, &span.name);
                assert!(span.to <= outer.to, "{one} ends within {other}");
            }
            open.push(span);
        }
    }
    spans
}

/// What is measured of clocks is in the records only.
#[test]
fn only_an_observed_simulation_measures_links_and_clocks() {
    let plain = Simulation::from_toml(&FAR.replace("rounds = 20", "rounds = 2"));
    let report = plain.unwrap().trainer(Probe::new).run().unwrap();
    assert!(report.records.is_empty());
    let measured =
        |(_, event): &(_, Event)| matches!(event, Event::LinkMeasured(_) | Event::ClockMeasured(_));
    assert!(!report.events.iter().any(measured));
    assert!(run().events.iter().any(measured));
}

/// Of a member of another site only its own gateway sees that it is silent; the coordinator is told, and its record says so.
#[test]
fn a_dead_node_of_another_site_is_lost_by_the_coordinators_record_alone() {
    let quorum = "sync_every = 5\n[round]\nquorum = { nodes = 2, domains = 2 }\ngrace = \"1s\"\n";
    let text = FAR.replace("sync_every = 5\n", quorum);
    let report = Simulation::from_toml(&text)
        .unwrap()
        .trainer(Probe::new)
        .training(secs(2))
        .limit(secs(600))
        .at(secs(5), crash("plant/c"))
        .observed()
        .run()
        .unwrap();
    let mut picture = Picture::new(Bounds::REPORT);
    let mut was = Vec::new();
    for (_, past) in &report.records[&n("hq/gate")] {
        let seen = matches!(&past.event, Event::PeerSuspected { peer, .. } | Event::PeerLost { peer, .. } if *peer == n("plant/c"));
        assert!(!seen, "it has no link to it");
        picture.apply(past);
        let Some(node) = picture.nodes.get(&n("plant/c")) else {
            continue;
        };
        if was.last() != Some(&(node.state, node.reason.clone())) {
            was.push((node.state, node.reason.clone()));
        }
    }
    let told: Vec<(State, &str)> = was
        .iter()
        .map(|(state, reason)| (*state, reason.as_str()))
        .collect();
    let suspect = "no sign of life for the heartbeat limit, as the coordinator hears";
    let lost = "no sign of life through all retries, as the coordinator hears";
    assert!(told.contains(&(State::Suspect, suspect)), "{told:?}");
    assert!(told.contains(&(State::Restoring, lost)), "{told:?}");
    let late =
        |(state, reason): &(State, &str)| *state == State::Active && reason.starts_with("late for");
    assert!(!told.iter().any(late), "{told:?}");
    let notices: Vec<&str> = picture
        .notices
        .iter()
        .map(|notice| notice.what.as_str())
        .collect();
    assert!(
        notices.contains(&"plant/c: no sign of life through all retries"),
        "{notices:?}"
    );
}
