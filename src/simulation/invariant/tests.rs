//! Each law is broken once, and seen to be; and a run without fault breaks none.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use tombolo_core::event::{RoundRecord, RoundState};
use tombolo_core::ids::DomainId;
use tombolo_core::tensor::Hash;

use super::*;
use crate::simulation::plan::{Stale, TimedFault};
use crate::simulation::{fault::*, millis, secs};
use crate::topology;

fn plan() -> Plan {
    let text = r#"
        [federation]
        name = "f"
        [round]
        deadline = "10s"
        close_limit = "5s"
        quorum = { nodes = 2, domains = 1 }
        [[domain]]
        name = "hq"
        nodes = ["gate", "a"]
        [[domain]]
        name = "plant"
        nodes = ["gate", "c"]
    "#;
    topology::parse("f", text, Path::new(".")).unwrap()
}

fn node(name: &str) -> NodeId {
    name.parse().unwrap()
}

fn domain(name: &str) -> DomainId {
    name.parse().unwrap()
}

/// A checker at an instant that only grows.
struct Stand {
    checker: Checker,
    at: Micros,
}

impl Stand {
    fn new() -> Self {
        Self::under(FaultPlan::default())
    }

    fn under(faults: FaultPlan) -> Self {
        Stand {
            checker: Checker::new(Arc::new(plan()), faults, None),
            at: Micros::default(),
        }
    }

    fn pass(&mut self, span: Duration) -> &mut Self {
        self.at = self.at + span;
        self
    }

    fn event(&mut self, event: Event) -> &mut Self {
        self.checker.on_event(self.at, &event);
        self
    }

    fn fault(&mut self, fault: Fault, phase: Phase) -> &mut Self {
        self.checker.on_fault(self.at, &fault, phase);
        self
    }

    /// A round of everybody, up to its end.
    fn round(&mut self, round: u64) -> &mut Self {
        self.open(round);
        for name in ["hq/gate", "hq/a", "plant/gate", "plant/c"] {
            self.pass(millis(10)).event(exported(round, name));
            self.event(reported(round, name, 1.0));
        }
        self.event(acknowledged(round, "hq", &["hq/gate", "hq/a"]));
        self.event(acknowledged(round, "plant", &["plant/gate", "plant/c"]))
    }

    fn open(&mut self, round: u64) -> &mut Self {
        self.event(Event::RoundOpened {
            round,
            epoch: 1,
            cohort: plan().cohort(round),
            deadline_ms: 10_000,
        })
    }

    fn end(&mut self, record: RoundRecord) -> &mut Self {
        self.event(Event::Round(record))
    }

    /// The laws that were broken.
    fn broken(&mut self) -> Vec<&'static str> {
        let found = self.checker.violations();
        found.iter().map(|violation| violation.law).collect()
    }
}

fn exported(round: u64, name: &str) -> Event {
    Event::UpdateExported {
        node: node(name),
        round,
        samples: 1,
        loss: 1.0,
    }
}

fn reported(round: u64, name: &str, norm: f64) -> Event {
    Event::Reported {
        round,
        node: node(name),
        norm,
    }
}

fn acknowledged(round: u64, of: &str, members: &[&str]) -> Event {
    Event::Acknowledged {
        round,
        attempt: 0,
        domain: domain(of),
        weight: 2.0,
        members: members.iter().map(|name| node(name)).collect(),
    }
}

fn record(round: u64) -> RoundRecord {
    RoundRecord {
        round,
        epoch: 1,
        state: RoundState::Committed,
        reason: String::new(),
        counted: plan().cohort(round),
        late: Vec::new(),
        denied: Vec::new(),
        refused: Vec::new(),
        accuracy: 0.5,
        loss: 1.0,
        weight_norm: 1.0,
        bytes: 0,
        bytes_down: 0,
        bytes_up: 0,
        model_hash: hash(round),
        elapsed_s: 0.1,
        version: None,
        drifts: Vec::new(),
        balance: None,
    }
}

fn hash(number: u64) -> Hash {
    Hash::of(&[number as f32])
}

fn degraded(round: u64, counted: &[&str], late: &[&str]) -> RoundRecord {
    RoundRecord {
        state: RoundState::Degraded,
        reason: "some".into(),
        counted: counted.iter().map(|name| node(name)).collect(),
        late: late.iter().map(|name| node(name)).collect(),
        ..record(round)
    }
}

fn adopted(name: &str, round: u64, hash: Hash) -> Event {
    Event::ModelAdopted {
        node: node(name),
        round,
        hash,
        healed: false,
    }
}

fn finished(reason: &str) -> Finished {
    Finished::without_rounds(reason.into())
}

#[test]
fn a_run_without_fault_breaks_no_law() {
    let mut stand = Stand::new();
    for round in 1..=3 {
        stand.round(round).end(record(round));
        stand.event(adopted("plant/c", round, hash(round)));
    }
    stand.checker.on_look(stand.at, &Look::default());
    stand.checker.on_end(stand.at, &finished(""));
    stand.checker.on_leftovers(stand.at, &Leftovers::default());
    assert_eq!(stand.broken(), [""; 0]);
}

#[test]
fn who_is_counted_was_asked_made_an_update_and_is_counted_once() {
    let mut twice = record(1);
    twice.counted.push(node("hq/a"));
    assert_eq!(Stand::new().round(1).end(twice).broken(), ["ROUND-2"]);
    let mut both = record(1);
    both.late.push(node("hq/a"));
    assert_eq!(Stand::new().round(1).end(both).broken(), ["ROUND-2"]);
    // Nobody has trained.
    let broken = Stand::new().open(1).end(record(1)).broken();
    assert_eq!(broken, ["ROUND-4"; 4]);
    let mut stranger = record(1);
    stranger.counted.push(node("plant/z"));
    assert_eq!(
        Stand::new()
            .round(1)
            .event(exported(1, "plant/z"))
            .end(stranger)
            .broken(),
        ["ROUND-4"]
    );
    let mut other_epoch = record(1);
    other_epoch.epoch = 2;
    assert_eq!(Stand::new().round(1).end(other_epoch).broken(), ["ROUND-4"]);
    // A report for a round that is over.
    let mut stand = Stand::new();
    stand
        .round(1)
        .end(record(1))
        .event(reported(1, "hq/a", 1.0));
    assert_eq!(stand.broken(), ["ROUND-4"]);
}

#[test]
fn what_was_acknowledged_is_counted_or_named() {
    let some = ["hq/gate", "hq/a"];
    let rest = ["plant/gate", "plant/c"];
    assert_eq!(
        Stand::new()
            .round(1)
            .end(degraded(1, &some, &rest))
            .broken(),
        [""; 0]
    );
    let unnamed = Stand::new().round(1).end(degraded(1, &some, &[])).broken();
    assert_eq!(unnamed, ["ROUND-3"; 2]);
    let mut silent = record(1);
    silent.counted.pop();
    assert_eq!(Stand::new().round(1).end(silent).broken(), ["ROUND-3"]);
    let mut aborted = degraded(1, &some, &rest);
    aborted.state = RoundState::Aborted;
    assert_eq!(Stand::new().round(1).end(aborted).broken(), ["ROUND-3"]);
}

#[test]
fn a_round_ends_once_and_in_time() {
    let mut stand = Stand::new();
    stand.round(1).end(record(1)).end(record(1));
    assert!(stand.broken().contains(&"ROUND-5"));
    let mut stand = Stand::new();
    stand.round(1).pass(secs(14)).end(record(1));
    assert_eq!(stand.broken(), [""; 0], "the close limit is not over");
    let mut stand = Stand::new();
    stand.round(1).pass(secs(17)).end(record(1));
    assert_eq!(stand.broken(), ["ROUND-6"]);
    let mut stand = Stand::new();
    stand.open(1).pass(secs(11)).event(reported(1, "hq/a", 1.0));
    assert_eq!(stand.broken(), ["ROUND-6"]);
    let mut stand = Stand::new();
    stand.open(1).pass(secs(11));
    assert_eq!(
        stand.event(acknowledged(1, "hq", &[])).broken(),
        ["ROUND-6"]
    );
    // The clock of a coordinator that does not live does not count.
    for still in ["hq/gate", "plant/c"] {
        let mut stand = Stand::new();
        stand
            .round(1)
            .fault(freeze(still), Phase::Begins)
            .pass(secs(30));
        stand.fault(freeze(still), Phase::Ends).end(record(1));
        let excused = still == "hq/gate";
        assert_eq!(stand.broken().is_empty(), excused, "{still}");
    }
    // Nor does what a slow one still has to write; one that is slow no more has no such excuse.
    let (slow_twice, others) = (slow("hq/gate", 2.0), slow("plant/c", 40.0));
    for (before, within, excused) in [
        (vec![&slow_twice, &slow_twice], vec![], true),
        (vec![&slow_twice], vec![&slow_twice], true),
        (vec![&slow_twice], vec![], false),
        (vec![&others], vec![&others], false),
    ] {
        let mut stand = Stand::new();
        for fault in &before {
            stand.fault((*fault).clone(), Phase::Begins);
        }
        stand.round(1);
        for fault in &within {
            stand.fault((*fault).clone(), Phase::Begins);
        }
        for fault in before.iter().chain(&within) {
            stand.fault((*fault).clone(), Phase::Ends);
        }
        stand.pass(secs(18)).end(record(1));
        let broken = stand.broken();
        assert_eq!(broken.is_empty(), excused, "{before:?}, {within:?}");
        // The next round is another one.
        stand.round(2).pass(secs(17)).end(record(2));
        assert_eq!(stand.broken(), ["ROUND-6"]);
    }
    let mut without_reason = degraded(1, &["hq/gate"], &["hq/a", "plant/gate", "plant/c"]);
    without_reason.reason.clear();
    assert_eq!(
        Stand::new().round(1).end(without_reason).broken(),
        ["ROUND-6"]
    );
}

#[test]
fn once_all_is_well_a_round_is_committed_within_two_deadlines() {
    let crash = |until| FaultPlan {
        faults: vec![TimedFault {
            at: secs(1),
            until,
            fault: crash("plant/c"),
        }],
    };
    let aborted = |round| RoundRecord {
        state: RoundState::Aborted,
        reason: "quorum not met".into(),
        counted: Vec::new(),
        late: plan().cohort(round),
        model_hash: Hash::default(),
        ..record(round)
    };
    let run = |faults: FaultPlan, rounds: u64, last: RoundRecord, reason: &str| {
        let mut stand = Stand::under(faults);
        for round in 1..=rounds {
            stand.open(round).pass(secs(10)).end(aborted(round));
        }
        stand.round(rounds + 1).end(last);
        stand.checker.on_end(stand.at, &finished(reason));
        stand.broken()
    };
    let healed = || crash(Some(secs(5)));
    assert_eq!(run(healed(), 2, record(3), ""), [""; 0]);
    assert_eq!(run(healed(), 3, record(4), ""), ["ROUND-7"]);
    assert_eq!(
        run(healed(), 1, aborted(2), "two failed rounds"),
        ["ROUND-7"]
    );
    assert_eq!(
        run(healed(), 1, aborted(2), ""),
        [""; 0],
        "it is over too early to tell"
    );
    assert_eq!(run(crash(None), 5, aborted(6), "too many failed"), [""; 0]);
}

#[test]
fn all_adopt_the_same_finite_model() {
    let mut stand = Stand::new();
    stand
        .round(1)
        .end(record(1))
        .event(adopted("hq/a", 1, hash(9)));
    assert_eq!(stand.broken(), ["MODEL-1"]);
    let mut stand = Stand::new();
    stand.event(adopted("hq/a", 1, hash(1)));
    stand.event(adopted("plant/c", 1, hash(2)));
    assert_eq!(
        stand.broken(),
        ["MODEL-1"],
        "before anybody says what was committed"
    );
    let mut changed = degraded(2, &[], &["hq/gate", "hq/a", "plant/gate", "plant/c"]);
    changed.state = RoundState::Aborted;
    let mut stand = Stand::new();
    stand.round(1).end(record(1)).round(2).end(changed);
    assert_eq!(
        stand.broken(),
        ["MODEL-1"],
        "an aborted round keeps the model"
    );
    for number in [f64::NAN, f64::INFINITY] {
        let mut stand = Stand::new();
        stand.round(1).event(reported(1, "hq/a", number));
        assert_eq!(stand.end(record(1)).broken(), ["MODEL-2"]);
        let mut bad = record(1);
        bad.weight_norm = number;
        assert_eq!(Stand::new().round(1).end(bad).broken(), ["MODEL-2"]);
    }
}

#[test]
fn the_ladder_is_climbed_rung_by_rung() {
    let (own, peer) = (|| node("hq/a"), || node("hq/gate"));
    let suspected = || Event::PeerSuspected {
        node: own(),
        peer: peer(),
        silent_ms: 1500,
    };
    let lost = || Event::PeerLost {
        node: own(),
        peer: peer(),
    };
    let recovered = || Event::PeerRecovered {
        node: own(),
        peer: peer(),
        silent_ms: 2000,
        lost: false,
    };
    let started = || Event::NodeStarted {
        node: own(),
        address: String::new(),
        life: 1,
    };
    let climb = |events: Vec<Event>| {
        let mut stand = Stand::new();
        // So that suspicion alone is not told to be of clocks.
        stand.fault(crash("hq/gate"), Phase::Begins);
        for event in events {
            stand.event(event);
        }
        stand.broken()
    };
    let good = vec![suspected(), recovered(), suspected(), lost(), recovered()];
    assert_eq!(climb(good), [""; 0]);
    let forgets = vec![suspected(), started(), suspected(), lost(), started()];
    assert_eq!(climb(forgets), [""; 0]);
    for bad in [
        vec![lost()],
        vec![recovered()],
        vec![suspected(), suspected()],
        vec![suspected(), lost(), suspected()],
        vec![suspected(), started(), lost()],
    ] {
        assert_eq!(climb(bad.clone()), ["LADDER-1"], "{bad:?}");
    }
}

#[test]
fn wall_clocks_make_nobody_suspect() {
    let suspected = Event::PeerSuspected {
        node: node("hq/a"),
        peer: node("hq/gate"),
        silent_ms: 1500,
    };
    for (fault, excused) in [
        (clock_forward("hq/a", secs(3600)), false),
        (clock_back("hq/a", secs(3600)), false),
        (clock_drift("hq/a", 1e5, 0.0), false),
        (clock_drift("hq/a", 0.0, 500.0), true),
        (loss(["hq"], [], 0.1), true),
    ] {
        let mut stand = Stand::new();
        stand
            .fault(fault.clone(), Phase::Begins)
            .event(suspected.clone());
        let expected: &[&str] = if excused { &[] } else { &["CLOCK-1"] };
        assert_eq!(stand.broken(), expected, "{fault:?}");
    }
}

#[test]
fn only_who_can_show_who_it_is_is_talked_to() {
    let up = || Event::LinkUp {
        node: node("plant/gate"),
        peer: node("hq/gate"),
    };
    let refused = || Event::LinkRefused {
        node: node("plant/gate"),
        peer: node("hq/gate"),
        reason: "expired".into(),
    };
    let stale = |phase| {
        move |stand: &mut Stand| {
            stand.fault(stale_certificate("hq/gate", Stale::Expired), phase);
        }
    };
    let (begin, end) = (stale(Phase::Begins), stale(Phase::Ends));
    let mut stand = Stand::new();
    assert_eq!(stand.event(up()).broken(), [""; 0]);
    assert_eq!(stand.event(refused()).broken(), ["IDENT-1"]);
    begin(&mut stand);
    assert_eq!(
        stand.event(refused()).event(up()).broken(),
        [""; 0],
        "on its way before"
    );
    stand.pass(secs(31));
    assert_eq!(stand.event(refused()).event(up()).broken(), ["IDENT-1"]);
    begin(&mut stand);
    end(&mut stand);
    assert_eq!(
        stand.event(refused()).broken(),
        [""; 0],
        "another one still lasts"
    );
    end(&mut stand);
    assert_eq!(
        stand.event(refused()).event(up()).broken(),
        [""; 0],
        "on its way before"
    );
    stand.pass(secs(31));
    assert_eq!(stand.event(refused()).broken(), ["IDENT-1"]);
    // Whoever lives on another day has other certificates for expired, and rightly.
    for (by, broken) in [(secs(3600), &["IDENT-1"][..]), (secs(86_400), &[])] {
        for fault in [clock_forward("hq/gate", by), clock_back("hq/gate", by)] {
            let mut stand = Stand::new();
            stand.fault(fault, Phase::Begins).event(refused());
            assert_eq!(stand.broken(), broken, "{by:?}");
        }
    }
}

#[test]
fn queues_have_caps_and_nothing_is_left_at_the_end() {
    let full = |look: Look| {
        let mut stand = Stand::new();
        stand.checker.on_look(stand.at, &look);
        stand.broken()
    };
    let of = |depth| BTreeMap::from([(node("hq/a"), depth)]);
    let cap = tombolo_actors::shell::QUEUE;
    let queues = |depth| Look {
        queues: of(depth),
        ..Look::default()
    };
    assert_eq!(full(queues(cap)), [""; 0]);
    assert_eq!(full(queues(cap + 1)), ["BOUND-1"]);
    let outbox = Look {
        outboxes: BTreeMap::from([(node("hq/a"), (1, usize::MAX))]),
        ..Look::default()
    };
    assert_eq!(full(outbox), ["BOUND-1"]);
    let mut inbox = Look::default();
    inbox.network.inbox_bytes = usize::MAX;
    assert_eq!(full(inbox), ["BOUND-1"]);
    let clock = |error| Look {
        clocks: BTreeMap::from([((node("hq/a"), node("hq/b")), (error, 20_000))]),
        ..Look::default()
    };
    assert_eq!(full(clock(20_000)), [""; 0]);
    assert_eq!(full(clock(20_001)), ["CLOCK-2"]);
    for left in [
        Leftovers {
            actors: BTreeMap::from([("Node", 1)]),
            ..Leftovers::default()
        },
        Leftovers {
            reporters: 1,
            ..Leftovers::default()
        },
        Leftovers {
            regions: 1,
            ..Leftovers::default()
        },
    ] {
        let mut stand = Stand::new();
        stand.checker.on_leftovers(stand.at, &left);
        assert_eq!(stand.broken(), ["BOUND-2"], "{left:?}");
    }
}

/// A disk that holds these files.
struct Disk(BTreeMap<String, Vec<u8>>);

impl Files for Disk {
    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        let found = self.0.get(path).cloned();
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn replace(&self, _: &str, _: &[&[u8]]) -> io::Result<()> {
        unreachable!("a law only reads")
    }

    fn create(&self, _: &str, _: &[u8]) -> io::Result<()> {
        unreachable!("a law only reads")
    }

    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        unreachable!("a law only reads")
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        unreachable!("a law only reads")
    }

    fn settle(&self, _: &str) -> io::Result<()> {
        unreachable!("a law only reads")
    }
}

#[test]
fn what_was_said_to_be_done_outlives_a_power_cut() {
    let model = b"the model".to_vec();
    let disk = || {
        let record = serde_json::json!({
            "record": { "model_hash": hash(1).to_string() },
            "state": "000001-abc",
        });
        let manifest = serde_json::json!({
            "files": { "model.safetensors": Hash::of_bytes(&model).to_string() },
        });
        BTreeMap::from([
            (
                "commits/000001.json".to_owned(),
                record.to_string().into_bytes(),
            ),
            (
                "states/000001-abc/manifest.json".to_owned(),
                manifest.to_string().into_bytes(),
            ),
            (
                "states/000001-abc/model.safetensors".to_owned(),
                model.clone(),
            ),
        ])
    };
    let cut = |name: &str, files: BTreeMap<String, Vec<u8>>| {
        let mut stand = Stand::new();
        stand.round(1).end(record(1));
        stand
            .checker
            .on_power_cut(stand.at, &node(name), &Disk(files));
        stand.broken()
    };
    assert_eq!(cut("hq/gate", disk()), [""; 0]);
    assert_eq!(
        cut("plant/c", BTreeMap::new()),
        [""; 0],
        "it promised nothing"
    );
    for lost in disk().keys() {
        let mut files = disk();
        files.remove(lost);
        assert_eq!(cut("hq/gate", files), ["STORE-1"], "{lost}");
        let mut files = disk();
        files.insert(lost.clone(), b"half".to_vec());
        assert_eq!(cut("hq/gate", files), ["STORE-1"], "{lost}");
    }
    let mut stand = Stand::new();
    stand.round(1).end(record(1)).open(1);
    assert_eq!(stand.broken(), ["STORE-2"]);
    for (opened, broken) in [(3, &["STORE-1"][..]), (2, &[])] {
        let mut stand = Stand::new();
        stand.round(1).end(record(1)).open(opened);
        assert_eq!(stand.broken(), broken);
    }
    // What the one before it recorded and did not live to tell, a standby cannot know not to be told.
    for (opened, broken) in [(3, &[][..]), (4, &["STORE-1"])] {
        let mut stand = Stand::new();
        let promoted = Event::CoordinatorPromoted {
            node: node("plant/gate"),
            epoch: 2,
        };
        let opens = Event::RoundOpened {
            round: opened,
            epoch: 2,
            cohort: plan().cohort(opened),
            deadline_ms: 10_000,
        };
        stand.round(1).end(record(1)).event(promoted).event(opens);
        let found = stand.broken();
        assert_eq!(found.contains(&"STORE-1"), broken.contains(&"STORE-1"));
    }
}

#[test]
fn epochs_only_grow() {
    let opened = |round, epoch| Event::RoundOpened {
        round,
        epoch,
        cohort: Vec::new(),
        deadline_ms: 1,
    };
    let mut stand = Stand::new();
    stand
        .event(opened(1, 1))
        .event(opened(1, 3))
        .event(opened(1, 2));
    assert_eq!(stand.broken(), ["VIEW-1"]);
}

#[test]
fn who_breaks_a_law_for_ever_is_told_so_a_hundred_times() {
    let mut stand = Stand::new();
    stand.round(1).end(record(1));
    for _ in 0..1000 {
        stand.open(1);
    }
    assert_eq!(stand.broken().len(), VIOLATIONS_MAX);
}
