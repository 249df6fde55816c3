use super::*;
use tombolo_core::event::{RoundState, Shrunk};
use tombolo_core::tensor::Hash;

const ROUND: Round = 14;

fn n(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn d(name: &str) -> DomainId {
    name.parse().unwrap()
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
        elapsed_s: 10.0,
        version: None,
        drifts: Vec::new(),
        balance: None,
    }
}

fn trains(node: &str, began: f64, trained: f64, measured: f64, reported: f64) -> Vec<(f64, Event)> {
    let (node, round) = (n(node), ROUND);
    let (samples, loss, norm) = (1, 1.0, 1.0);
    let exported = Event::UpdateExported {
        node: node.clone(),
        round,
        samples,
        loss,
    };
    let begins = Event::TrainingStarted {
        node: node.clone(),
        round,
    };
    let measures = Event::UpdateMeasured {
        node: node.clone(),
        round,
    };
    vec![
        (began, begins),
        (trained, exported),
        (measured, measures),
        (reported, Event::Reported { round, node, norm }),
    ]
}

fn sums(domain: &str, began: f64, made: f64, acknowledged: f64) -> Vec<(f64, Event)> {
    let (round, attempt, domain) = (ROUND, 0, d(domain));
    let begins = Event::FoldStarted {
        round,
        attempt,
        domain: domain.clone(),
    };
    let announces = Event::Contributed {
        round,
        attempt,
        domain: domain.clone(),
    };
    let noted = Event::Acknowledged {
        round,
        attempt,
        domain,
        weight: 1.0,
        members: Vec::new(),
    };
    vec![(began, begins), (made, announces), (acknowledged, noted)]
}

fn came(cargo: Cargo, from: &str, to: &str, bytes: u64, waited_us: u64) -> Event {
    Event::Transferred(Transfer {
        round: ROUND - u64::from(cargo == Cargo::Model),
        cargo,
        from: d(from),
        to: d(to),
        bytes,
        plain: 4 * bytes,
        waited_us,
        rate: Some(16_500_000),
        cuts: 0,
    })
}

fn weighed() -> Event {
    Event::Weighed {
        round: ROUND,
        nodes: Vec::new(),
        drifts: Vec::new(),
        reasons: Vec::new(),
    }
}

/// Ten seconds, in which plant's sum is on its way from 2.1 to 8.3.
fn slow_upload() -> Vec<(f64, Event)> {
    let (domain, round) = (d("plant"), ROUND - 1);
    let mut events = vec![
        (0.4, came(Cargo::Model, "hq", "plant", 800_000, 390_000)),
        (0.4, Event::ModelObtained { domain, round }),
        (1.9, weighed()),
        (
            8.3,
            came(Cargo::Contribution, "plant", "hq", 12_400_000, 6_100_000),
        ),
        (8.3, Event::ContributionsFolded { round: ROUND }),
    ];
    events.extend(trains("hq/a", 0.1, 1.1, 1.15, 1.2));
    events.extend(trains("plant/d", 0.5, 1.5, 1.6, 1.7));
    events.extend(trains("plant/c", 0.5, 1.6, 1.7, 1.8));
    events.extend(sums("hq", 1.95, 2.0, 2.05));
    events.extend(sums("plant", 2.0, 2.1, 2.2));
    events
}

const ALL: [&str; 3] = ["hq/a", "plant/c", "plant/d"];

fn course(events: &[(f64, Event)]) -> Course {
    let mut course = Course::default();
    for (since, event) in events {
        course.take(ROUND, *since, event);
    }
    course
}

/// Steps, for whom, milliseconds, and why.
fn told(path: &[Share]) -> Vec<(Step, &str, i64, Cause)> {
    let ms = |seconds: f64| (seconds * 1e3).round() as i64;
    let shares = path.iter();
    shares
        .map(|share| {
            (
                share.step,
                share.whom.as_str(),
                ms(share.seconds),
                share.cause,
            )
        })
        .collect()
}

#[test]
fn the_chain_of_a_round_is_the_one_that_is_found_by_hand() {
    let course = course(&slow_upload());
    let path = course.path(
        &record(RoundState::Committed, &ALL, &[]),
        10.0,
        &Lines::default(),
    );
    assert_eq!(
        told(&path),
        [
            (Step::Download, "hq -> plant", 400, Cause::Link),
            (Step::HandOut, "plant/c", 100, Cause::Fabric),
            (Step::Compute, "plant/c", 1100, Cause::Compute),
            (Step::Measure, "plant/c", 100, Cause::Fabric),
            (Step::Report, "plant/c", 100, Cause::Latency),
            (Step::Waiting, "", 100, Cause::Waiting),
            (Step::Word, "plant", 100, Cause::Latency),
            (Step::Fold, "plant", 100, Cause::Fabric),
            (Step::Upload, "plant -> hq", 6200, Cause::Link),
            (Step::Closing, "", 1700, Cause::Coordinator),
        ]
    );
    // Without a hole and without an overlap.
    let mut at = 0.0;
    for share in &path {
        assert!((share.at - at).abs() < 1e-9, "{share:?}");
        at = share.at + share.seconds;
    }
    assert!((at - 10.0).abs() < 1e-9);
    assert_eq!(
        limit(ROUND, &path).unwrap(),
        "62 % of round 14 was plant -> hq upload, link-limited: 12.4 MB in 6.2 s, 16.0 Mbit/s of the link's 16.5"
    );
    assert!(longest(&path).unwrap().advice().contains("codec"));
}

#[test]
fn the_coordinators_own_record_tells_of_other_sites_as_a_whole() {
    let mut events = slow_upload();
    events.retain(|(_, event)| {
        matches!(
            event,
            Event::Reported { .. }
                | Event::Weighed { .. }
                | Event::Acknowledged { .. }
                | Event::ContributionsFolded { .. }
        ) || matches!(event, Event::Transferred(sent) if sent.cargo == Cargo::Contribution)
    });
    let path = course(&events).path(
        &record(RoundState::Committed, &ALL, &[]),
        10.0,
        &Lines::default(),
    );
    assert_eq!(
        told(&path),
        [
            (Step::HandOutToReport, "plant/c", 1800, Cause::Unknown),
            (Step::Waiting, "", 100, Cause::Waiting),
            (Step::Contribution, "plant", 6400, Cause::Link),
            (Step::Closing, "", 1700, Cause::Coordinator),
        ]
    );
}

/// With a journal, bytes are written down before their domain is told that they are noted: what comes last then is that word.
#[test]
fn bytes_that_were_there_before_the_last_word_did_not_hold_the_sum_up() {
    let mut events = slow_upload();
    events.retain(|(_, event)| !matches!(event, Event::Acknowledged { .. }));
    for (at, event) in &mut events {
        match event {
            Event::Transferred(sent) if sent.cargo == Cargo::Contribution => *at = 5.0,
            Event::ContributionsFolded { .. } => *at = 8.5,
            _ => {}
        }
    }
    events.extend(sums("plant", 2.0, 2.1, 5.2));
    events.extend(sums("hq", 1.95, 8.0, 8.1));
    let path = course(&events).path(
        &record(RoundState::Committed, &ALL, &[]),
        10.0,
        &Lines::default(),
    );
    let tail = told(&path[path.len() - 4..])
        .iter()
        .map(|told| (told.0, told.2))
        .collect::<Vec<_>>();
    assert_eq!(
        tail,
        [
            (Step::Word, 50),
            (Step::Fold, 6050),
            (Step::Sum, 500),
            (Step::Closing, 1500)
        ]
    );
}

#[test]
fn a_node_that_trains_for_longer_than_the_others_is_a_straggler() {
    let mut events = slow_upload();
    events.retain(|(_, event)| !matches!(event, Event::UpdateMeasured { .. }));
    for (at, event) in &mut events {
        match event {
            Event::UpdateExported { node, .. } if node.as_str() == "plant/c" => {
                *at = 1.0 + 0.5 + 8.0
            }
            Event::Reported { node, .. } if node.as_str() == "plant/c" => *at = 9.6,
            _ => {}
        }
    }
    let course = course(&events);
    let path = course.path(
        &record(RoundState::Committed, &ALL, &[]),
        10.0,
        &Lines::default(),
    );
    assert_eq!(
        limit(ROUND, &path).unwrap(),
        "90 % of round 14 was training on plant/c, waiting for a straggler: it trained 9.0 times as long as the others"
    );
    // The same node, if it is not waited for to its end.
    let events: Vec<(f64, Event)> = events.into_iter().filter(|(at, _)| *at < 9.0).collect();
    let path = self::course(&events).path(
        &record(RoundState::Aborted, &ALL[..1], &["plant/c"]),
        10.0,
        &Lines::default(),
    );
    let last = path.last().unwrap();
    assert_eq!((last.step, last.cause), (Step::Waiting, Cause::Straggler));
    assert_eq!(
        limit(ROUND, &path).unwrap(),
        "88 % of round 14 was waiting for plant/c: still training: plant/c"
    );
}

#[test]
fn what_holds_a_transfer_up_is_told_by_its_rate_its_link_and_its_losses() {
    let sent = |bytes, rate| {
        let Event::Transferred(sent) = came(Cargo::Contribution, "plant", "hq", bytes, 0) else {
            unreachable!()
        };
        Transfer { rate, ..sent }
    };
    let seen = |round_trip_ms, heartbeat_loss| Measured {
        node: n("hq/a"),
        peer: n("plant/c"),
        round_trip_ms,
        heartbeat_loss,
        sent: 0,
        received: 0,
        unacknowledged: 0,
        unacknowledged_bytes: 0,
        models: Shrunk::default(),
    };
    let lines = |round_trip_ms, heartbeat_loss| {
        let mut lines = Lines::default();
        lines.take(&seen(round_trip_ms, heartbeat_loss));
        lines
    };
    let cause = |transfer: &Transfer, lines: &Lines| verdict(transfer, 2.0, lines).0;
    let known = Some(10_000_000);
    // 8 Mbit/s of 10; then 4.
    assert_eq!(
        cause(&sent(2_000_000, known), &lines(Some(40.0), 0.05)),
        Cause::Link
    );
    assert_eq!(
        cause(&sent(1_000_000, known), &lines(Some(40.0), 0.05)),
        Cause::Loss
    );
    assert_eq!(
        cause(&sent(1_000_000, known), &lines(Some(40.0), 0.0)),
        Cause::Window
    );
    assert_eq!(
        cause(&sent(1_000_000, known), &lines(Some(600.0), 0.05)),
        Cause::Latency
    );
    let resumed = Transfer {
        cuts: 3,
        ..sent(1_000_000, known)
    };
    let (_, why) = verdict(&resumed, 2.0, &lines(Some(40.0), 0.0));
    assert!(why.contains("; its connection broke 3 times"), "{why}");
    // Nobody has said what it carries: it is taken to be full.
    assert_eq!(
        cause(&sent(1_000_000, None), &lines(Some(40.0), 0.0)),
        Cause::Link
    );
    assert_eq!(
        cause(&sent(1_000_000, None), &lines(None, 0.02)),
        Cause::Loss
    );
    // What gets lost in the queue of a full link is no trouble of its own.
    let mut queued = lines(Some(40.0), 0.0);
    queued.take(&seen(Some(90.0), 0.02));
    assert_eq!(cause(&sent(1_000_000, None), &queued), Cause::Link);
}
