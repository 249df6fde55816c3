use super::*;
use tombolo_core::event::{Event, Objection, RoundRecord, RoundState};
use tombolo_core::ids::Round;
use tombolo_core::pace::{Balance, Pace};
use tombolo_core::tensor::Hash;
use tombolo_core::view::{Out, View};

const ROUND: Round = 3;

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

/// What is recorded at those seconds, read from a file as a user's is.
fn chronicle(events: Vec<(f64, Event)>) -> impl Iterator<Item = Past> {
    let folder = tempfile::tempdir().unwrap();
    let lines = events.into_iter().map(|(at, event)| {
        let life = 0;
        serde_json::to_string(&Past { at, life, event }).unwrap() + "\n"
    });
    let text: String = lines.collect();
    std::fs::write(folder.path().join("events.jsonl"), text).unwrap();
    let read: Vec<_> = Chronicle::open(folder.path()).unwrap().collect();
    read.into_iter()
}

fn opened(round: Round, cohort: &[&str]) -> Event {
    Event::RoundOpened {
        round,
        epoch: 1,
        cohort: cohort.iter().map(|name| n(name)).collect(),
        deadline_ms: 30_000,
    }
}

fn reported(node: &str) -> Event {
    Event::Reported {
        round: ROUND,
        node: n(node),
        norm: 1.0,
    }
}

fn began(node: &str) -> Event {
    Event::TrainingStarted {
        node: n(node),
        round: ROUND,
    }
}

fn trained(node: &str) -> Event {
    Event::UpdateExported {
        node: n(node),
        round: ROUND,
        samples: 10,
        loss: 1.0,
    }
}

fn weighed(reasons: &[(&str, &str)]) -> Event {
    let reasons = reasons.iter();
    Event::Weighed {
        round: ROUND,
        nodes: Vec::new(),
        drifts: Vec::new(),
        reasons: reasons
            .map(|(node, reason)| (n(node), (*reason).to_owned()))
            .collect(),
    }
}

fn acknowledged(domain: &str) -> Event {
    Event::Acknowledged {
        round: ROUND,
        attempt: 0,
        domain: domain.parse().unwrap(),
        weight: 1.0,
        members: Vec::new(),
    }
}

fn record(state: RoundState, counted: &[&str], late: &[&str]) -> RoundRecord {
    let names = |names: &[&str]| names.iter().map(|name| n(name)).collect();
    RoundRecord {
        round: ROUND,
        epoch: 1,
        state,
        reason: String::new(),
        counted: names(counted),
        late: names(late),
        denied: Vec::new(),
        refused: Vec::new(),
        accuracy: 0.5,
        loss: 1.0,
        weight_norm: 1.0,
        bytes: 0,
        bytes_down: 0,
        bytes_up: 0,
        model_hash: Hash::default(),
        elapsed_s: 4.0,
        version: None,
        drifts: Vec::new(),
        balance: None,
    }
}

#[test]
fn the_last_round_told_is_found_in_the_newest_file_that_tells_of_one() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(chronicle::last_told(folder.path()), None, "nobody knows");
    let line = |event| {
        let (at, life) = (1.0, 0);
        serde_json::to_string(&Past { at, life, event }).unwrap() + "\n"
    };
    let log = folder.path().join("events.jsonl");
    std::fs::write(&log, line(began("hq/a"))).unwrap();
    assert_eq!(chronicle::last_told(folder.path()), Some(0));
    let ended = line(Event::Round(record(RoundState::Committed, &[], &[])));
    let old = std::fs::File::create(folder.path().join("events.jsonl.1.sz")).unwrap();
    let mut old = snap::write::FrameEncoder::new(old);
    std::io::Write::write_all(&mut old, ended.as_bytes()).unwrap();
    drop(old);
    assert_eq!(chronicle::last_told(folder.path()), Some(ROUND));
    let next = ended.replace("\"round\":3", "\"round\":4");
    std::fs::write(&log, next + "{\"half").unwrap();
    assert_eq!(chronicle::last_told(folder.path()), Some(ROUND + 1));
}

/// One slow link, one slow node, one node whose update is not finite and one that was silent: each is named with its cause.
fn troubled() -> Vec<(f64, Event)> {
    let refused = "element 7 of \"weight\" is NaN";
    let mut end = record(
        RoundState::Degraded,
        &["hq/a", "lab/b"],
        &["hq/slow", "lab/dead"],
    );
    end.refused = vec![(n("hq/nan"), refused.to_owned())];
    vec![
        (
            10.0,
            opened(ROUND, &["hq/a", "hq/slow", "hq/nan", "lab/b", "lab/dead"]),
        ),
        (10.1, began("hq/a")),
        (10.1, began("hq/slow")),
        (10.1, began("hq/nan")),
        (10.6, trained("hq/a")),
        (10.7, reported("hq/a")),
        (
            10.8,
            Event::UpdateRefused {
                why: Objection::NotFinite,
                round: ROUND,
                node: n("hq/nan"),
                reason: refused.to_owned(),
            },
        ),
        (
            11.0,
            Event::PeerSuspected {
                node: n("lab/b"),
                peer: n("lab/dead"),
                silent_ms: 1400,
            },
        ),
        (11.2, reported("lab/b")),
        (11.2, Event::QuorumReached { round: ROUND }),
        (12.2, weighed(&[("hq/a", "loss 2.4 is over the limit 2.0")])),
        (12.3, acknowledged("hq")),
        (16.2, acknowledged("lab")),
        (16.4, Event::Round(end)),
        (
            17.4,
            Event::LateAnswered {
                round: ROUND,
                from: "hq/slow".to_owned(),
            },
        ),
    ]
}

#[test]
fn a_round_names_who_is_not_in_it_and_why() {
    let story = round(chronicle(troubled()), ROUND).unwrap();
    let told: Vec<(&str, Fate, &str)> = story
        .nodes
        .iter()
        .map(|node| (node.node.as_str(), node.fate, node.why.as_str()))
        .collect();
    let silent = "lab/b: suspected: silent for 1400 ms, longer than a living peer would be";
    assert_eq!(
        told,
        [
            (
                "hq/a",
                Fate::Lessened,
                "weighed less, loss 2.4 is over the limit 2.0"
            ),
            (
                "hq/slow",
                Fate::Late,
                "its word came 1.0 s after its end; it was still training, which took the others 0.5 s"
            ),
            ("hq/nan", Fate::Refused, "element 7 of \"weight\" is NaN"),
            ("lab/b", Fate::Counted, ""),
            ("lab/dead", Fate::Late, silent),
        ]
    );
}

/// Without the word that came late, all that is known is that it trained.
#[test]
fn who_never_answers_is_told_to_train_still() {
    let mut events = troubled();
    events.pop();
    let story = round(chronicle(events), ROUND).unwrap();
    assert_eq!(
        story.nodes[1].why,
        "it began to train after 0.1 s and had not ended when the round closed; the others train for 0.5 s"
    );
}

/// lab's sum was 4 s on its way, of 6.4 s in all.
#[test]
fn the_longest_step_of_a_round_is_named() {
    let story = round(chronicle(troubled()), ROUND).unwrap();
    let steps: Vec<(Step, &str, i64)> = story
        .steps
        .iter()
        .map(|share| {
            let ms = (share.seconds * 1e3).round() as i64;
            (share.step, share.whom.as_str(), ms)
        })
        .collect();
    assert_eq!(
        steps,
        [
            (Step::HandOutToReport, "lab/b", 1200),
            (Step::Waiting, "hq/slow, lab/dead", 1000),
            (Step::Contribution, "lab", 4000),
            (Step::Closing, "", 200),
        ]
    );
    assert_eq!(story.limit.unwrap().step, Step::Contribution);
    assert_eq!(story.quorum_s.map(|at| (at * 10.0).round()), Some(12.0));
}

#[test]
fn a_node_in_this_process_has_its_own_times() {
    let events = vec![
        (0.0, opened(ROUND, &["hq/a"])),
        (0.5, began("hq/a")),
        (2.5, trained("hq/a")),
        (2.6, reported("hq/a")),
        (2.7, weighed(&[])),
        (2.8, acknowledged("hq")),
        (
            2.9,
            Event::Round(record(RoundState::Committed, &["hq/a"], &[])),
        ),
    ];
    let story = round(chronicle(events), ROUND).unwrap();
    let steps: Vec<Step> = story.steps.iter().map(|share| share.step).collect();
    assert_eq!(
        steps,
        [
            Step::HandOut,
            Step::Compute,
            Step::Report,
            Step::Waiting,
            Step::Contribution,
            Step::Closing,
        ]
    );
    let limit = story.limit.unwrap();
    assert_eq!((limit.step, limit.whom.as_str()), (Step::Compute, "hq/a"));
}

#[test]
fn a_round_that_a_restarted_coordinator_opened_again_is_told_of_once() {
    let events = vec![
        (50.0, opened(ROUND, &["hq/a", "hq/b"])),
        (51.0, reported("hq/a")),
        (2.0, opened(ROUND, &["hq/a", "hq/b"])),
        (2.5, reported("hq/b")),
    ];
    let story = round(chronicle(events), ROUND).unwrap();
    assert_eq!((story.openings, &story.record), (2, &None));
    let reported: Vec<Option<f64>> = story.nodes.iter().map(|node| node.reported_s).collect();
    assert_eq!(reported, [None, Some(0.5)]);
    assert!(story.nodes.iter().all(|node| node.fate == Fate::Open));
}

#[test]
fn a_node_is_told_of_with_all_that_befell_it() {
    let mut events = troubled();
    let out = View {
        epoch: 2,
        coordinator: n("hq/a"),
        gateways: Default::default(),
        out: [(n("lab/dead"), Out::Evicted(1))].into(),
    };
    events.extend([
        (
            20.0,
            Event::PeerLost {
                node: n("lab/b"),
                peer: n("lab/dead"),
            },
        ),
        (30.0, Event::EpochChanged { view: out }),
        (
            30.0,
            Event::NodeEvicted {
                node: n("lab/dead"),
                epoch: 2,
                cooldown_ms: 10_000,
            },
        ),
    ]);
    let story = node(chronicle(events.clone()), &n("lab/dead")).unwrap();
    assert!(story.out);
    assert_eq!((story.asked.rounds, story.asked.late), (1, 1));
    assert_eq!((story.last_counted, story.report_s), (None, None));
    let told: Vec<&str> = story.incidents.iter().map(|i| i.what.as_str()).collect();
    assert_eq!(
        told,
        [
            "lab/b: suspected: silent for 1400 ms, longer than a living peer would be",
            "round 3 closed without it",
            "lab/b: lost: every retry failed, out of the round",
            "evicted in epoch 2, for 10000 ms at least",
        ]
    );
    let story = node(chronicle(events), &n("hq/a")).unwrap();
    assert_eq!((story.asked.counted, story.asked.lessened), (1, 1));
    assert_eq!(story.last_counted, Some(ROUND));
    let ms = |seconds: Option<f64>| seconds.map(|seconds| (seconds * 1e3).round());
    assert_eq!(
        (ms(story.report_s), ms(story.others_s)),
        (Some(700.0), Some(1200.0))
    );
}

#[test]
fn a_link_is_told_of_from_both_ends() {
    let (a, b) = (n("hq/a"), n("lab/b"));
    let ends = |node: &NodeId, peer: &NodeId| (node.clone(), peer.clone());
    let mut events = Vec::new();
    for (at, (node, peer)) in [
        (1.0, ends(&a, &b)),
        (1.1, ends(&b, &a)),
        (1.2, ends(&a, &n("hq/c"))),
    ] {
        events.push((at, Event::LinkUp { node, peer }));
    }
    events.push((
        7.0,
        Event::LinkDown {
            node: a.clone(),
            peer: b.clone(),
            reason: "reset by peer".to_owned(),
        },
    ));
    // In another life of the process.
    events.push((
        2.0,
        Event::PeerRecovered {
            node: b.clone(),
            peer: a.clone(),
            silent_ms: 900,
            lost: false,
        },
    ));
    let story = link(chronicle(events.clone()), &b, &a).unwrap();
    assert_eq!((story.up, story.down, story.silent_ms), (2, 1, 900));
    assert_eq!(story.incidents.len(), 4);
    assert_eq!(
        story.incidents[2].what,
        "hq/a says of lab/b: the link is down: reset by peer"
    );
    let lives: Vec<u64> = story
        .incidents
        .iter()
        .map(|incident| incident.life)
        .collect();
    assert_eq!(lives, [0, 0, 0, 1]);
    assert!(link(chronicle(events), &b, &n("hq/c")).is_err());
}

#[test]
fn what_is_not_there_is_said_with_what_is() {
    let error = round(chronicle(troubled()), 9).unwrap_err();
    assert_eq!(
        error.to_string(),
        "round 9 is not in the record; it tells of rounds 3 to 3"
    );
    let error = node(chronicle(troubled()), &n("hq/b")).unwrap_err();
    let known = "hq/a, hq/nan, hq/slow, lab/b, lab/dead";
    assert_eq!(
        error.to_string(),
        format!("node hq/b is not in the record; it tells of {known}")
    );
    let folder = tempfile::tempdir().unwrap();
    let Err(ExplainError::Nothing(_)) = Chronicle::open(folder.path()) else {
        panic!("there is nothing");
    };
}

/// A process that was killed leaves half a line; one of another version may leave what this one does not know.
#[test]
fn lines_that_are_no_events_are_counted_and_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let good = serde_json::to_string(&Event::QuorumReached { round: 1 }).unwrap();
    let text =
        format!("{good}\n{{\"event\":\"from_tomorrow\"}}\n\u{1b}[31m\n{good}\n{{\"event\":\"quo");
    std::fs::write(folder.path().join("events.jsonl"), text).unwrap();
    let mut chronicle = Chronicle::open(folder.path()).unwrap();
    let read: Vec<Past> = chronicle.by_ref().collect();
    assert_eq!(read.len(), 2);
    assert_eq!(chronicle.unreadable(), 3);
}

/// One file that rotted hides what is in it, and nothing else; a pipe has no end.
#[test]
fn a_damaged_file_is_named_and_the_others_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let line = |round| serde_json::to_string(&Event::QuorumReached { round }).unwrap() + "\n";
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let compressed = |text: &str| {
        let mut writer = snap::write::FrameEncoder::new(Vec::new());
        std::io::Write::write_all(&mut writer, text.as_bytes()).unwrap();
        writer.into_inner().unwrap()
    };
    write("events.jsonl.4.sz", &compressed(&line(1)));
    let mut rotten = compressed(&line(2));
    let last = rotten.len() - 1;
    rotten[last] ^= 1;
    write("events.jsonl.2.sz", &rotten);
    write("events.jsonl", line(3).as_bytes());
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let pipe = folder.path().join("events.jsonl.1.sz");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut chronicle = Chronicle::open(folder.path()).unwrap();
    let rounds: Vec<Event> = chronicle.by_ref().map(|past| past.event).collect();
    let expected = [1, 3].map(|round| Event::QuorumReached { round });
    assert_eq!(rounds, expected);
    assert_eq!(chronicle.damaged().len(), 1);
    assert!(chronicle.damaged()[0].contains("events.jsonl.2.sz"));
}

/// Clipping is no accident, and hides none: updates that were made shorter one after the other are one line.
#[test]
fn updates_that_are_made_shorter_in_every_round_do_not_hide_what_went_wrong() {
    let clipped = |round: Round| Event::UpdateClipped {
        node: n("hq/a"),
        round,
        factor: 0.5,
    };
    let lost = Event::PeerLost {
        node: n("hq/gate"),
        peer: n("hq/a"),
    };
    let mut events: Vec<(f64, Event)> = (1..=200).map(|it| (it as f64, clipped(it))).collect();
    events.insert(100, (100.5, lost));
    let story = node(chronicle(events), &n("hq/a")).unwrap();
    let said: Vec<&str> = story.incidents.iter().map(|it| &*it.what).collect();
    assert_eq!(story.earlier, 0);
    let [before, lost, after] = said[..] else {
        panic!("{said:#?}")
    };
    assert!(
        before.starts_with("rounds 1 to 100: 100 times longer"),
        "{before}"
    );
    assert!(lost.starts_with("hq/gate:"), "{lost}");
    assert!(
        after.starts_with("rounds 101 to 200: 100 times longer"),
        "{after}"
    );
}

#[test]
fn a_node_tells_of_its_copy_that_changed_and_of_its_actors_that_waited_for_each_other() {
    let events = vec![
        (1.0, opened(ROUND, &["hq/a", "hq/b"])),
        (
            1.5,
            Event::ModelDiverged {
                node: n("hq/a"),
                round: ROUND,
                model: ROUND - 1,
                expected: Hash([1; 32]),
                found: Hash([2; 32]),
            },
        ),
        (
            9.0,
            Event::Deadlocked {
                node: n("hq/a"),
                ring: vec!["x waits for y".to_owned()],
                standing_ms: 2500,
            },
        ),
    ];
    let story = node(chronicle(events.clone()), &n("hq/a")).unwrap();
    let said: Vec<&str> = story.incidents.iter().map(|it| &*it.what).collect();
    let [changed, waited] = said[..] else {
        panic!("{said:#?}")
    };
    assert!(
        changed.starts_with("round 3: its copy of model 2 had changed: hash 0202"),
        "{changed}"
    );
    assert!(
        changed.contains("expected 0101") && changed.contains("test its memory"),
        "{changed}"
    );
    assert!(
        waited.contains("for 2500 ms already: x waits for y; start it anew"),
        "{waited}"
    );
    let other = node(chronicle(events), &n("hq/b")).unwrap();
    assert_eq!(other.incidents, []);
}

#[test]
fn a_node_whose_steps_are_balanced_tells_what_it_was_given_and_how_fast_it_is() {
    let told = |balance| {
        let mut ended = record(RoundState::Committed, &["hq/a"], &[]);
        ended.balance = balance;
        let past = vec![(1.0, opened(ROUND, &["hq/a"])), (2.0, Event::Round(ended))];
        let story = node(chronicle(past), &n("hq/a")).unwrap();
        (story.steps, story.pace)
    };
    let pace = Pace {
        node: n("hq/a"),
        step_ns: 5_000_000,
        delay_ns: 7,
    };
    let balance = Balance {
        steps: vec![(n("hq/a"), 70)],
        paces: vec![pace.clone()],
    };
    assert_eq!(told(Some(Box::new(balance))), (Some(70), Some(pace)));
    assert_eq!(told(None), (None, None));
}
