use super::*;
use crate::control::RoundMode;
use crate::observe::{Bounds, RecordPicture, WayPicture};
use crate::simulation::{Simulation, crash, millis, restart, secs};
use tombolo_core::event::{Cargo, Finished, Objection, Shrunk, Transfer, Vitals};
use tombolo_core::pace::{Balance, Pace};
use tombolo_core::tensor::Hash;

const COAST: &str = r#"
[federation]
name = "coast"
rounds = 4
sync_every = 5
[round]
quorum = { nodes = 2, domains = 1 }
deadline = "20s"
[model]
trainer = "digits-softmax"
[[domain]]
name = "hq"
nodes = ["gate", "a"]
[[domain]]
name = "plant"
nodes = ["gate", "c"]
[[link]]
between = ["hq", "plant"]
codec = "int8"
"#;

mod links;

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn d(name: &str) -> DomainId {
    name.parse().unwrap()
}

fn bounds() -> Bounds {
    Bounds {
        rounds: 5,
        spans: 40,
        notices: 3,
    }
}

fn picture(events: Vec<(f64, Event)>) -> Picture {
    let mut picture = Picture::new(bounds());
    apply(&mut picture, events);
    picture
}

fn apply(picture: &mut Picture, events: Vec<(f64, Event)>) {
    for (at, event) in events {
        let life = picture.life;
        picture.apply(&Past { at, life, event });
    }
}

fn opened(round: Round, cohort: &[&str]) -> Event {
    Event::RoundOpened {
        round,
        epoch: 1,
        cohort: cohort.iter().map(|name| n(name)).collect(),
        deadline_ms: 30_000,
    }
}

fn reported(round: Round, node: &str) -> Event {
    let (node, norm) = (n(node), 1.0);
    Event::Reported { round, node, norm }
}

fn began(round: Round, node: &str) -> Event {
    Event::TrainingStarted {
        node: n(node),
        round,
    }
}

fn record(round: Round, counted: &[&str], late: &[&str]) -> RoundRecord {
    RoundRecord {
        round,
        epoch: 1,
        state: match late.is_empty() {
            true => RoundState::Committed,
            false => RoundState::Degraded,
        },
        reason: String::new(),
        counted: counted.iter().map(|name| n(name)).collect(),
        late: late.iter().map(|name| n(name)).collect(),
        denied: Vec::new(),
        refused: Vec::new(),
        accuracy: 0.5,
        loss: f64::NAN,
        weight_norm: 1.0,
        bytes: 100,
        bytes_down: 60,
        bytes_up: 40,
        model_hash: Hash::default(),
        elapsed_s: 3.0,
        version: None,
        drifts: Vec::new(),
        balance: None,
    }
}

fn suspected(by: &str, peer: &str) -> Event {
    Event::PeerSuspected {
        node: n(by),
        peer: n(peer),
        silent_ms: 900,
    }
}

fn changed(epoch: Epoch, out: &[(&str, Out)]) -> Event {
    Event::EpochChanged {
        view: View {
            epoch,
            coordinator: n("hq/gate"),
            gateways: [(d("plant"), n("plant/c"))].into(),
            out: out.iter().map(|(node, why)| (n(node), *why)).collect(),
        },
    }
}

#[test]
fn a_plan_shows_who_is_there_before_anything_has_happened() {
    let simulation = Simulation::from_toml(COAST).unwrap();
    let picture = Picture::of_plan(simulation.plan(), Bounds::LIVE);
    assert_eq!((picture.federation.as_str(), picture.planned), ("coast", 4));
    assert_eq!(picture.mode, RoundMode::Sync);
    let names: Vec<&str> = picture.nodes.keys().map(NodeId::as_str).collect();
    assert_eq!(names, ["hq/a", "hq/gate", "plant/c", "plant/gate"]);
    assert!(
        picture
            .nodes
            .values()
            .all(|node| node.state == State::Joining)
    );
    let links: Vec<_> = picture
        .links
        .iter()
        .map(|link| (link.a.as_str(), link.b.as_str()))
        .collect();
    assert_eq!(links, [("hq/gate", "plant/gate")]);
    assert_eq!(picture.links[0].codec, "int8");
    assert_eq!(picture.links[0].state, LinkState::Connecting);
}

#[test]
fn a_round_shows_who_did_what_when_and_what_became_of_it() {
    let all = ["hq/a", "hq/b", "plant/c"];
    let mut picture = picture(vec![
        (1.0, opened(7, &all)),
        (1.5, began(7, "hq/a")),
        (2.0, began(7, "hq/b")),
    ]);
    assert_eq!(picture.nodes[&n("hq/a")].phase, Phase::Training);
    assert_eq!(picture.nodes[&n("plant/c")].phase, Phase::Asked);
    assert_eq!(picture.nodes[&n("plant/c")].state, State::Joining);
    let (node, round) = (n("hq/a"), 7);
    apply(
        &mut picture,
        vec![
            (
                2.5,
                Event::UpdateExported {
                    node: node.clone(),
                    round,
                    samples: 12,
                    loss: 0.25,
                },
            ),
            (3.0, reported(round, "hq/a")),
            (
                3.1,
                Event::UpdateRefused {
                    why: Objection::NotFinite,
                    round,
                    node: n("hq/b"),
                    reason: "an element is NaN".to_owned(),
                },
            ),
            (3.2, Event::QuorumReached { round }),
        ],
    );
    let refused = &picture.nodes[&n("hq/b")];
    assert_eq!(refused.phase, Phase::Refused);
    assert_eq!(refused.reason, "its update was refused: an element is NaN");
    let mut ended = record(7, &["hq/a"], &["plant/c"]);
    ended.refused = vec![(n("hq/b"), "an element is NaN".to_owned())];
    // The same word twice counts once.
    apply(
        &mut picture,
        vec![
            (4.0, Event::Round(ended.clone())),
            (4.0, Event::Round(ended)),
        ],
    );
    let shown = &picture.rounds[0];
    assert_eq!((shown.opened, shown.elapsed_s), (1.0, Some(3.0)));
    assert_eq!((shown.asked, shown.counted), (3, 1));
    assert_eq!((shown.late.len(), shown.refused.len()), (1, 1));
    assert_eq!((shown.accuracy, shown.loss), (Some(0.5), None));
    let span = &shown.spans[&node];
    assert_eq!(
        (span.began, span.trained, span.reported),
        (Some(0.5), Some(1.5), Some(2.0))
    );
    assert_eq!(span.phase, Phase::Counted);
    assert_eq!(shown.spans[&n("plant/c")].phase, Phase::Late);
    assert_eq!(shown.marks.len(), 1);
    let counts = |name: &str| {
        let node = &picture.nodes[&n(name)];
        (node.counted, node.late, node.refused)
    };
    assert_eq!(
        [counts("hq/a"), counts("hq/b"), counts("plant/c")],
        [(1, 0, 0), (0, 0, 1), (0, 1, 0)]
    );
    assert_eq!(
        (picture.nodes[&node].samples, picture.nodes[&node].loss),
        (12, Some(0.25))
    );
    let totals = &picture.totals;
    assert_eq!(
        (totals.committed, totals.degraded, totals.aborted),
        (0, 1, 0)
    );
    assert_eq!((totals.counted, totals.late, totals.refused), (1, 1, 1));
    assert_eq!(
        (totals.bytes, totals.bytes_down, totals.bytes_up),
        (100, 60, 40)
    );
    assert_eq!(totals.objections, [(Objection::NotFinite, 1)].into());
}

#[test]
fn who_is_late_again_and_again_says_since_when() {
    let mut picture = picture(vec![
        (1.0, began(1, "hq/a")),
        (2.0, Event::Round(record(1, &["hq/a"], &[]))),
        (3.0, Event::Round(record(2, &[], &["hq/a"]))),
        (4.0, Event::Round(record(3, &[], &["hq/a"]))),
    ]);
    let reason = |picture: &Picture| picture.nodes[&n("hq/a")].reason.clone();
    assert_eq!(
        reason(&picture),
        "late for round 3, last counted in round 1"
    );
    apply(&mut picture, vec![(5.0, reported(4, "hq/a"))]);
    assert_eq!(reason(&picture), "");
}

#[test]
fn behind_the_last_word_the_picture_stays_as_it_was_until_another_life() {
    let (node, peer) = (n("hq/gate"), n("plant/gate"));
    let up = Event::LinkUp {
        node: node.clone(),
        peer: peer.clone(),
    };
    let finished = Event::Finished(Finished::without_rounds(String::new()));
    let left = Event::PeerLeft { node, peer };
    let mut picture = picture(vec![(1.0, up), (2.0, finished), (3.0, left)]);
    assert_eq!(
        (picture.links[0].state, picture.notices.len()),
        (LinkState::Up, 0)
    );
    assert!(picture.finished.is_some());
    let (at, event) = (1.0, suspected("hq/gate", "plant/gate"));
    picture.apply(&Past { at, life: 1, event });
    assert_eq!(
        (picture.links[0].state, picture.finished),
        (LinkState::Suspect, None)
    );
}

#[test]
fn nobody_is_counted_in_a_round_that_was_aborted() {
    let mut ended = record(1, &["hq/a"], &[]);
    ended.state = RoundState::Aborted;
    let picture = picture(vec![
        (1.0, opened(1, &["hq/a"])),
        (2.0, Event::Round(ended)),
    ]);
    assert_eq!(picture.nodes[&n("hq/a")].counted, 0);
    assert_eq!((picture.totals.aborted, picture.totals.counted), (1, 0));
}

#[test]
fn what_a_node_was_given_where_steps_are_balanced_is_shown() {
    let mut ended = record(1, &["hq/a"], &[]);
    ended.balance = Some(Box::new(Balance {
        steps: vec![(n("hq/a"), 70)],
        paces: vec![Pace {
            node: n("hq/a"),
            step_ns: 2_000_000,
            delay_ns: 0,
        }],
    }));
    let picture = picture(vec![
        (1.0, opened(1, &["hq/a"])),
        (2.0, Event::Round(ended)),
    ]);
    let node = &picture.nodes[&n("hq/a")];
    assert_eq!((node.steps, node.step_s), (Some(70), Some(0.002)));
}

/// "Each failed node's cause reaches CLI and dashboard." flower#1400, FLIP#1001
#[test]
fn a_node_that_dies_shows_each_step_down_and_the_way_back_with_its_cause() {
    let mut picture = picture(vec![
        (1.0, opened(1, &["plant/c"])),
        (1.1, began(1, "plant/c")),
    ]);
    let shown = |picture: &Picture| {
        let node = &picture.nodes[&n("plant/c")];
        (node.state, node.rung, node.reason.clone(), node.since)
    };
    assert_eq!(
        shown(&picture),
        (State::Active, "alive", String::new(), 1.1)
    );
    let (node, peer) = (n("plant/gate"), n("plant/c"));
    apply(
        &mut picture,
        vec![(2.0, suspected("plant/gate", "plant/c"))],
    );
    let reason = "plant/gate has not heard it for 900 ms".to_owned();
    assert_eq!(shown(&picture), (State::Suspect, "suspect", reason, 2.0));
    let lost = Event::PeerLost {
        node: node.clone(),
        peer: peer.clone(),
    };
    apply(&mut picture, vec![(3.0, lost)]);
    assert_eq!(
        (shown(&picture).0, shown(&picture).1),
        (State::Restoring, "restoring")
    );
    apply(
        &mut picture,
        vec![(
            4.0,
            Event::PeerOverdue {
                node,
                peer: peer.clone(),
            },
        )],
    );
    assert_eq!(
        (shown(&picture).0, shown(&picture).3),
        (State::Restoring, 3.0)
    );
    apply(
        &mut picture,
        vec![(5.0, changed(2, &[("plant/c", Out::Evicted(1))]))],
    );
    assert_eq!(
        shown(&picture),
        (State::Evicted, "overdue", "evicted".to_owned(), 5.0)
    );
    // It may do what it likes meanwhile.
    apply(
        &mut picture,
        vec![
            (6.0, began(1, "plant/c")),
            (6.0, suspected("hq/a", "plant/c")),
        ],
    );
    assert_eq!(shown(&picture).0, State::Evicted);
    // An older view changes nothing.
    apply(&mut picture, vec![(7.0, changed(1, &[]))]);
    assert_eq!(shown(&picture).0, State::Evicted);
    apply(&mut picture, vec![(8.0, changed(3, &[]))]);
    assert_eq!((shown(&picture).0, picture.epoch), (State::Active, 3));
    assert_eq!(picture.domains[&d("plant")].gateway, Some(peer));
}

/// What the watch names is counted, stands beside its node, and is told.
#[test]
fn a_copy_that_changed_a_deadlock_and_a_stall_are_shown_with_their_node() {
    let picture = picture(vec![
        (1.0, opened(4, &["hq/a", "plant/c"])),
        (
            1.1,
            Event::ModelDiverged {
                node: n("plant/c"),
                round: 4,
                model: 3,
                expected: Hash([1; 32]),
                found: Hash([2; 32]),
            },
        ),
        (
            1.2,
            Event::Deadlocked {
                node: n("hq/a"),
                ring: vec!["x waits for y".to_owned(), "y waits for x".to_owned()],
                standing_ms: 2500,
            },
        ),
        (
            1.3,
            Event::Stalled {
                round: 4,
                domain: d("plant"),
                chain: vec!["plant/c is to fold slices 1".to_owned()],
            },
        ),
    ]);
    let totals = &picture.totals;
    let counts = (totals.diverged, totals.deadlocks, totals.stalls);
    assert_eq!(counts, (1, 1, 1));
    let node = &picture.nodes[&n("plant/c")];
    assert_eq!(node.diverged, 1);
    assert_eq!(
        node.reason,
        "round 4: its copy of model 3 had changed, and was read anew"
    );
    let reason = &picture.nodes[&n("hq/a")].reason;
    assert!(reason.contains("x waits for y, y waits for x"), "{reason}");
    assert_eq!(picture.rounds[0].marks[0].what, "plant stands still");
    let told: Vec<&str> = picture.notices.iter().map(|it| &*it.what).collect();
    for (told, words) in told.iter().zip([
        ["the copy of model 3 on plant/c has changed", "0202"],
        ["actors wait for each other, for 2500 ms", "y waits for x"],
        ["work stands still in domain plant", "plant/c is to fold"],
    ]) {
        assert!(words.iter().all(|word| told.contains(word)), "{told}");
    }
    assert_eq!(told.len(), 3);
}

#[test]
fn the_records_head_and_who_has_cosigned_it_are_those_that_were_offered_last() {
    let signed = |round, by: &[&str], behind: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|name| n(name)).collect();
        let (by, behind) = (names(by), names(behind));
        let size = 10 * round;
        Event::RecordSigned {
            round,
            size,
            by,
            behind,
        }
    };
    let picture = picture(vec![
        (1.0, signed(1, &["plant/gate", "lab/gate"], &[])),
        (2.0, signed(2, &["plant/gate"], &["lab/gate"])),
    ]);
    let expected = RecordPicture {
        round: 2,
        size: 20,
        by: vec![n("plant/gate")],
        behind: vec![n("lab/gate")],
    };
    assert_eq!(picture.record, Some(expected));
}

/// A record may have been written by anybody.
#[test]
fn numbers_of_any_size_are_taken_and_the_picture_stays_json() {
    let mut picture = Picture::new(bounds());
    let ended = r#"{"at":AT,"event":"round","round":ROUND,"epoch":18446744073709551615,"state":"committed","counted":["hq/a"],"late":[],
        "accuracy":1e308,"loss":-1e308,"weight_norm":1e308,"bytes":18446744073709551615,"bytes_down":18446744073709551615,
        "bytes_up":18446744073709551615,"model_hash":"0000000000000000000000000000000000000000000000000000000000000000","elapsed_s":-1e308}"#;
    let most = u64::MAX.to_string();
    let others = [
        r#"{"at":1e9,"event":"round_opened","round":MOST,"epoch":1,"cohort":["hq/a","plant/c"],"deadline_ms":1}"#,
        r#"{"at":1e9,"event":"model_obtained","domain":"plant","round":MOST}"#,
        r#"{"at":1e9,"event":"transferred","round":MOST,"cargo":"model","from":"hq","to":"plant","bytes":MOST,"waited_us":MOST}"#,
        r#"{"at":1e9,"event":"transferred","round":MOST,"cargo":"contribution","from":"plant","to":"hq","bytes":MOST,"plain":MOST,"waited_us":MOST,"rate":0}"#,
        r#"{"at":0,"event":"link_measured","node":"hq/a","peer":"plant/c","round_trip_ms":-1e308,"heartbeat_loss":1e308,"sent":MOST,"received":MOST}"#,
        r#"{"at":1e9,"event":"clock_measured","node":"hq/a","peer":"plant/c","life":MOST,"offset_us":-9223372036854775808,"bound_us":MOST}"#,
        r#"{"at":0,"event":"node_measured","node":"hq/a","memory":MOST,"queued":MOST,"unacknowledged":MOST,"unacknowledged_bytes":MOST,"certificate_s":MOST}"#,
        r#"{"at":0.5,"event":"transferred","round":MOST,"cargo":"contribution","from":"plant","to":"hq","bytes":MOST,"plain":MOST,"waited_us":MOST,"rate":0}"#,
    ];
    let mut lives = crate::explain::Lives::default();
    for life in 0..3 {
        for line in others {
            let past = lives.read(line.replace("MOST", &most).as_bytes()).unwrap();
            picture.apply(&past);
        }
        let line = ended.replace("ROUND", &(u64::MAX - 1 + life % 2).to_string());
        let past = lives.read(line.replace("AT", "2e8").as_bytes()).unwrap();
        picture.apply(&past);
    }
    for at in ["-1", "-0.001", "1e300", "1e10"] {
        assert_eq!(
            lives.read(ended.replace("AT", at).replace("ROUND", "1").as_bytes()),
            None
        );
    }
    let told = serde_json::to_value(&picture).unwrap();
    assert!(told["at"].is_number() && told["totals"]["bytes"].is_number());
    let trace = crate::observe::trace(&picture);
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    for event in trace["traceEvents"].as_array().unwrap() {
        let number = |name: &str| event[name].is_number();
        assert!(event["ph"] == "M" || number("ts"), "{event}");
        assert!(event["ph"] != "X" || number("dur"), "{event}");
    }
    assert!(!crate::observe::tensorboard(&picture, 0.0).is_empty());
    assert!(!crate::observe::report(&picture).is_empty());
}

#[test]
fn how_a_node_does_is_what_it_said_last() {
    let said = |memory| {
        Event::NodeMeasured(Vitals {
            node: n("hq/a"),
            memory,
            queued: 3,
            unacknowledged: 2,
            unacknowledged_bytes: 900,
            certificate_s: 60,
        })
    };
    let picture = picture(vec![(1.0, said(5)), (2.0, said(7))]);
    let vitals = picture.nodes[&n("hq/a")].vitals.unwrap();
    assert_eq!((vitals.memory, vitals.unacknowledged_bytes), (7, 900));
    assert_eq!((vitals.queued, vitals.certificate_s), (3, 60));
}

#[test]
fn rounds_whose_end_was_missed_are_made_up_for_and_count_once() {
    let ended = |round| record(round, &["hq/a"], &[]);
    let mut picture = picture(vec![
        (1.0, opened(1, &["hq/a"])),
        (2.0, Event::Round(ended(1))),
        (2.0, opened(2, &["hq/a"])),
    ]);
    picture.catch_up(9, &[ended(1), ended(2), ended(3)]);
    let rounds: Vec<_> = picture
        .rounds
        .iter()
        .map(|round| (round.round, round.counted))
        .collect();
    assert_eq!(rounds, [(1, 1), (2, 1), (3, 1)]);
    assert_eq!((picture.totals.committed, picture.totals.missed), (3, 9));
    assert_eq!(picture.nodes[&n("hq/a")].counted, 3);
}

#[test]
fn another_life_of_the_coordinator_goes_on_in_time_and_with_the_round_that_was_open() {
    let mut picture = picture(vec![(10.0, opened(4, &["hq/a"])), (11.0, began(4, "hq/a"))]);
    for (at, event) in [
        (0.5, opened(4, &["hq/a"])),
        (2.0, Event::Round(record(4, &["hq/a"], &[]))),
    ] {
        picture.apply(&Past { at, life: 1, event });
    }
    assert_eq!(picture.rounds.len(), 1);
    assert_eq!((picture.rounds[0].opened, picture.at), (11.5, 13.0));
    assert_eq!(picture.totals.committed, 1);
}

/// "Per-node series end with the node or are capped." client_golang#296
#[test]
fn however_large_and_long_a_run_is_the_picture_is_bounded() {
    let names: Vec<String> = (0..1_000)
        .map(|node| format!("d{}/n{node}", node % 10))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut picture = Picture::new(Bounds::LIVE);
    for round in 1..=20 {
        let at = round as f64;
        apply(&mut picture, vec![(at, opened(round, &names))]);
        let nodes = names
            .iter()
            .flat_map(|name| [(at, began(round, name)), (at, reported(round, name))]);
        apply(&mut picture, nodes.collect());
        apply(
            &mut picture,
            vec![(at, Event::Round(record(round, &names, &[])))],
        );
    }
    let spans = picture
        .rounds
        .iter()
        .map(|round| round.spans.len() + round.marks.len());
    assert_eq!(spans.clone().next_back(), Some(1_000));
    assert!(spans.sum::<usize>() <= Bounds::LIVE.spans);
    assert_eq!((picture.nodes.len(), picture.rounds.len()), (1_000, 20));
    assert_eq!(picture.totals.counted, 20_000);

    let mut picture = Picture::new(bounds());
    for round in 1..=100 {
        let ended = Event::Round(record(round, &["hq/a"], &["hq/b"]));
        apply(
            &mut picture,
            vec![(1.0, opened(round, &["hq/a", "hq/b"])), (1.0, ended)],
        );
    }
    assert_eq!((picture.rounds.len(), picture.notices.len()), (5, 3));
    assert_eq!(picture.rounds.back().unwrap().round, 100);
    assert_eq!(picture.totals.degraded, 100);

    let many = 2 * super::super::picture::NODES_MAX;
    for node in 0..many {
        let address = String::new();
        let started = Event::NodeStarted {
            node: n(&format!("d{node}/a")),
            address,
            life: 1,
        };
        apply(&mut picture, vec![(1.0, started)]);
        let (node, peer) = (n(&format!("d{node}/a")), n("hq/a"));
        apply(&mut picture, vec![(1.0, Event::LinkUp { node, peer })]);
    }
    assert_eq!(picture.nodes.len(), many / 2);
    assert_eq!(picture.links.len(), super::super::picture::LINKS_MAX);
    assert!(picture.domains.len() <= many / 2);
}

#[test]
fn what_a_record_holds_gives_the_same_picture_as_what_was_heard() {
    let report = Simulation::from_toml(COAST)
        .unwrap()
        .seed(7)
        .training(millis(500))
        .at(secs(1), crash("plant/c"))
        .at(secs(8), restart("plant/c"))
        .run()
        .unwrap();
    let (mut heard, mut read) = (Picture::new(Bounds::LIVE), Picture::new(Bounds::LIVE));
    for (at, event) in &report.events {
        let (at, event) = (at.0 as f64 / 1e6, event.clone());
        let past = Past { at, life: 0, event };
        heard.apply(&past);
        let line = serde_json::to_string(&past).unwrap();
        read.apply(&serde_json::from_str(&line).unwrap());
    }
    assert_eq!(
        serde_json::to_string(&heard).unwrap(),
        serde_json::to_string(&read).unwrap()
    );
    let Finished {
        committed,
        degraded,
        rounds,
        ..
    } = report.finished;
    assert_eq!(
        (heard.totals.committed, heard.totals.degraded),
        (committed, degraded)
    );
    assert_eq!(heard.rounds.len() as u64, rounds);
    let counted: usize = report
        .rounds
        .iter()
        .map(|record| record.counted.len())
        .sum();
    let shown: u64 = heard.nodes.values().map(|node| node.counted).sum();
    assert_eq!(shown, counted as u64);
    assert!(
        heard
            .notices
            .iter()
            .any(|notice| notice.what.contains("plant/c")),
        "{:?}",
        heard.notices
    );
    assert_eq!(heard.nodes.len(), 4);
    assert!(
        heard
            .links
            .iter()
            .all(|link| link.a == n("hq/gate") && link.b == n("plant/gate"))
    );
    assert!(heard.finished.is_some());
}
