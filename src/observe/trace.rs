//! The rounds of a picture as a Chrome trace, which Perfetto and `chrome://tracing` show.
//!
//! A domain is a process there, a node a thread, and what a domain's gateway does for the sum its first thread. The rounds are a process of
//! their own, with a second thread for what each of them spent its time on. All times are the coordinator's: what others recorded was placed on
//! its clock before, and how far off that may be stands with each span.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::picture::{Picture, RoundPicture, Span};
use crate::explain::{Share, SumSpan};
use tombolo_core::ids::{DomainId, NodeId};

/// The number of the process that shows rounds; domains follow.
const ROUNDS: usize = 1;

/// The thread of it that shows what rounds spent their time on.
const PATH: usize = 1;

/// No time that is shown is further away: thirty years.
const SECONDS_MAX: f64 = 1e9;

/// Where something is shown: in which process and which thread.
type Track = (usize, usize);

/// The trace, in the JSON object format. Only rounds whose times are kept say what their nodes did.
pub fn trace(picture: &Picture) -> String {
    let domains = picture.domains.keys().enumerate();
    let domains: BTreeMap<&DomainId, usize> = domains
        .map(|(at, domain)| (domain, ROUNDS + 1 + at))
        .collect();
    let nodes = picture.nodes.keys().enumerate();
    let nodes: BTreeMap<&NodeId, usize> = nodes.map(|(at, node)| (node, at + 1)).collect();
    let process = |domain: &DomainId| domains.get(domain).copied().unwrap_or(ROUNDS);
    let mut events = vec![
        named("process_name", (ROUNDS, 0), "rounds"),
        named("thread_name", (ROUNDS, 0), "round"),
        named("thread_name", (ROUNDS, PATH), "critical path"),
    ];
    for (domain, process) in &domains {
        events.push(named("process_name", (*process, 0), domain.as_str()));
        events.push(named("thread_name", (*process, 0), "sum"));
    }
    for (node, thread) in &nodes {
        let track = (process(&node.domain()), *thread);
        events.push(named("thread_name", track, node.name()));
    }
    let bounds = picture.nodes.iter();
    let bounds = bounds.filter_map(|(node, of)| Some((node, of.clock?.bound_ms)));
    let bounds: BTreeMap<&NodeId, f64> = bounds.collect();
    for round in &picture.rounds {
        events.extend(of_round(round, picture.at));
        for (node, span) in &round.spans {
            let thread = nodes.get(node).copied().unwrap_or_default();
            let track = (process(&node.domain()), thread);
            events.extend(of_span(round, span, track, bounds.get(node).copied()));
        }
        for (domain, sum) in &round.sums {
            let gateway = picture
                .domains
                .get(domain)
                .and_then(|of| of.gateway.as_ref());
            let bound = gateway.and_then(|gateway| bounds.get(gateway).copied());
            events.extend(of_sum(round, sum, (process(domain), 0), bound));
        }
    }
    let bounds = bounds.iter();
    let bounds: Map<String, Value> = bounds
        .map(|(node, bound)| (node.to_string(), json!(bound)))
        .collect();
    let coordinator = picture.coordinator.as_ref().map(NodeId::as_str);
    json!({
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": { "clock": coordinator, "clock_bounds_ms": bounds },
    })
    .to_string()
}

fn named(what: &str, (process, thread): Track, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": process, "tid": thread, "args": { "name": name } })
}

/// What takes a while; times in seconds of the run.
fn complete(name: &str, (process, thread): Track, from: f64, to: f64, more: &Value) -> Value {
    let (from, to) = (micros(from), micros(to));
    json!({
        "ph": "X", "name": name, "pid": process, "tid": thread, "ts": from,
        "dur": (to - from).max(0.0), "args": more,
    })
}

/// Pieces of which each begins where the one before ended; of some, not all is known. What seems to end before it began took no time: clocks
/// are not known better.
fn pieces(track: Track, opened: f64, more: &Value, steps: &[(&str, Option<f64>)]) -> Vec<Value> {
    let mut events = Vec::new();
    let mut began: Option<f64> = None;
    for (name, at) in steps {
        let Some(at) = at else {
            continue;
        };
        let at = began.map_or(*at, |began| f64::max(began, *at));
        if let Some(began) = began.filter(|_| !name.is_empty()) {
            events.push(complete(name, track, opened + began, opened + at, more));
        }
        began = Some(at);
    }
    events
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
        "limit": round.limit,
    });
    let name = format!("round {}", round.round);
    let mut events = vec![complete(&name, (ROUNDS, 0), round.opened, end, &more)];
    for mark in &round.marks {
        let at = micros(round.opened + mark.at);
        events.push(
            json!({ "ph": "i", "s": "t", "name": mark.what, "pid": ROUNDS, "tid": 0, "ts": at }),
        );
    }
    for share in &round.path {
        let Share {
            at,
            seconds,
            cause,
            why,
            ..
        } = share;
        let more = json!({ "round": round.round, "cause": cause, "why": why });
        let from = round.opened + at;
        let to = from + seconds;
        events.push(complete(&share.words(), (ROUNDS, PATH), from, to, &more));
    }
    events
}

fn of_span(round: &RoundPicture, span: &Span, track: Track, bound_ms: Option<f64>) -> Vec<Value> {
    let more = json!({ "round": round.round, "phase": span.phase, "clock_bound_ms": bound_ms });
    // A process is not told when nodes of others began: there is only the time until their report.
    let asked = span.began.is_none().then_some(0.0);
    let steps = [
        ("", span.began.or(asked.filter(|_| span.trained.is_none()))),
        ("train", span.trained),
        ("measure", span.measured.filter(|_| span.trained.is_some())),
        ("report", span.reported),
    ];
    pieces(track, round.opened, &more, &steps)
}

fn of_sum(round: &RoundPicture, sum: &SumSpan, track: Track, bound_ms: Option<f64>) -> Vec<Value> {
    let more = json!({ "round": round.round, "clock_bound_ms": bound_ms });
    let model = [("", Some(0.0)), ("download", sum.obtained)];
    let mut events = pieces(track, round.opened, &more, &model);
    // Without a record of its gateway's, all that is known of a domain's sum is when it came.
    if sum.began.is_some() {
        let steps = [
            ("", sum.began),
            ("fold", sum.made),
            ("upload", sum.arrived.or(sum.acknowledged)),
        ];
        events.extend(pieces(track, round.opened, &more, &steps));
    }
    events
}

/// The unit of the format. A record may hold any number, the format only those that JSON can write.
fn micros(seconds: f64) -> f64 {
    let bounded = seconds.clamp(-SECONDS_MAX, SECONDS_MAX);
    if bounded.is_nan() {
        return 0.0;
    }
    (bounded * 1e6).round()
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
