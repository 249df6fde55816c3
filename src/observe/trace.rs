//! The rounds of a picture as a Chrome trace, which Perfetto and `chrome://tracing` show.
//!
//! A domain is a process there, a node a thread, the rounds a process of their own. All times are the recording process's.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::picture::{Picture, RoundPicture, Span};
use tombolo_core::ids::NodeId;

/// The number of the process that shows rounds; domains follow.
const ROUNDS: usize = 1;

/// The trace, in the JSON object format. Only rounds whose times are kept say what their nodes did.
pub fn trace(picture: &Picture) -> String {
    let domains = picture.domains.keys().enumerate();
    let domains: BTreeMap<_, _> = domains
        .map(|(at, domain)| (domain, ROUNDS + 1 + at))
        .collect();
    let nodes = picture.nodes.keys().enumerate();
    let nodes: BTreeMap<&NodeId, usize> = nodes.map(|(at, node)| (node, at + 1)).collect();
    let mut events = vec![named("process_name", ROUNDS, 0, "rounds")];
    for (domain, process) in &domains {
        events.push(named("process_name", *process, 0, domain.as_str()));
    }
    for (node, thread) in &nodes {
        let process = domains.get(&node.domain()).copied().unwrap_or(ROUNDS);
        events.push(named("thread_name", process, *thread, node.name()));
    }
    for round in &picture.rounds {
        events.extend(of_round(round, picture.at));
        for (node, span) in &round.spans {
            let process = domains.get(&node.domain()).copied().unwrap_or(ROUNDS);
            let thread = nodes.get(node).copied().unwrap_or_default();
            events.extend(of_span(round, span, process, thread));
        }
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
}

fn named(what: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name } })
}

/// What takes a while; times in seconds of the run.
fn complete(name: String, process: usize, thread: usize, from: f64, to: f64, more: Value) -> Value {
    json!({
        "ph": "X", "name": name, "pid": process, "tid": thread, "ts": micros(from),
        "dur": micros((to - from).max(0.0)), "args": more,
    })
}

fn of_round(round: &RoundPicture, now: f64) -> Vec<Value> {
    let state = match round.state {
        Some(state) => crate::federation::state_word(state),
        None => "open",
    };
    let end = round
        .elapsed_s
        .map_or(now, |elapsed| round.opened + elapsed);
    let more = json!({
        "state": state, "reason": round.reason, "asked": round.asked, "counted": round.counted,
        "late": round.late, "bytes": round.bytes, "loss": round.loss, "accuracy": round.accuracy,
    });
    let name = format!("round {}", round.round);
    let mut events = vec![complete(name, ROUNDS, 0, round.opened, end, more)];
    for mark in &round.marks {
        let at = micros(round.opened + mark.at);
        events.push(
            json!({ "ph": "i", "s": "t", "name": mark.what, "pid": ROUNDS, "tid": 0, "ts": at }),
        );
    }
    events
}

fn of_span(round: &RoundPicture, span: &Span, process: usize, thread: usize) -> Vec<Value> {
    let more = json!({ "round": round.round, "phase": span.phase });
    let piece = |name: &str, from: Option<f64>, to: Option<f64>| {
        let (from, to) = (round.opened + from?, round.opened + to?);
        Some(complete(
            name.to_owned(),
            process,
            thread,
            from,
            to,
            more.clone(),
        ))
    };
    // A process is not told when nodes of others began: there is only the time until their report.
    let asked = span.began.is_none().then_some(0.0);
    let pieces = [
        piece("train", span.began, span.trained),
        piece("report", span.trained.or(asked), span.reported),
    ];
    pieces.into_iter().flatten().collect()
}

/// The unit of the format.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e6).round()
}

#[cfg(test)]
mod tests {
    use super::super::picture::{Bounds, Mark};
    use super::*;
    use crate::explain::Past;
    use tombolo_core::event::Event;

    #[test]
    fn a_trace_places_rounds_and_what_their_nodes_did_on_one_line_of_time() {
        let mut picture = Picture::new(Bounds::REPORT);
        let node: NodeId = "hq/a".parse().unwrap();
        let other: NodeId = "plant/c".parse().unwrap();
        let (round, samples, loss, norm) = (4, 10, 0.5, 1.0);
        for (at, event) in [
            (
                2.0,
                Event::RoundOpened {
                    round,
                    epoch: 1,
                    cohort: vec![node.clone(), other.clone()],
                    deadline_ms: 1,
                },
            ),
            (
                2.5,
                Event::TrainingStarted {
                    node: node.clone(),
                    round,
                },
            ),
            (
                3.0,
                Event::UpdateExported {
                    node: node.clone(),
                    round,
                    samples,
                    loss,
                },
            ),
            (3.25, Event::Reported { node, round, norm }),
            (
                3.5,
                Event::Reported {
                    node: other,
                    round,
                    norm,
                },
            ),
        ] {
            picture.apply(&Past { at, life: 0, event });
        }
        picture.rounds[0].marks.push(Mark {
            at: 1.5,
            what: "quorum".to_owned(),
        });
        let trace: Value = serde_json::from_str(&trace(&picture)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        // What the format asks of each kind of event.
        for event in events {
            assert!(event["name"].is_string() && event["pid"].is_u64() && event["tid"].is_u64());
            match event["ph"].as_str().unwrap() {
                "X" => assert!(event["ts"].is_f64() && event["dur"].as_f64() >= Some(0.0)),
                "i" => assert!(event["ts"].is_f64() && event["s"] == "t"),
                "M" => assert!(event["args"]["name"].is_string()),
                other => panic!("{other}"),
            }
        }
        let shown = |name: &str| {
            let named = events.iter().filter(|event| event["name"] == name);
            let times = named.map(|event| (event["ts"].as_f64().unwrap(), event["dur"].as_f64()));
            times.collect::<Vec<_>>()
        };
        assert_eq!(shown("round 4"), [(2e6, Some(1.5e6))]);
        assert_eq!(shown("train"), [(2.5e6, Some(0.5e6))]);
        assert_eq!(shown("report"), [(3e6, Some(0.25e6)), (2e6, Some(1.5e6))]);
        assert_eq!(shown("quorum"), [(3.5e6, None)]);
    }
}
