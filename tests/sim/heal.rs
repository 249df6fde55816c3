//! A gateway that is behind heals from its own domain's members, whatever befalls them, and leaves its coordinator alone.

use std::sync::LazyLock;
use std::time::Duration;

use tombolo::Round;
use tombolo::core::mutants;
use tombolo::simulation::{
    Simulation, SimulationReport, crash, millis, partition, rate_limit, restart, secs,
};
use tombolo_core::event::{Event, Share};
use tombolo_core::ids::NodeId;
use tombolo_core::outline::{CHUNK_BYTES, chunks};
use tombolo_core::tensor::Layout;
use tombolo_core::time::Micros;

use crate::probe::Probe;

/// Elements of a model of five chunks, the last one short.
const ELEMENTS: usize = 4 * 262_144 + 1000;
const BYTES: u64 = ELEMENTS as u64 * 4;

/// The round in which it happens.
const ROUND: u64 = 2;

/// Nobody may be missing, so that the same bits must come out, and a round waits for whoever is behind.
const BAY: &str = r#"
    [federation]
    name = "bay"
    rounds = 3
    sync_every = 5
    seed = 3
    [round]
    quorum = "all"
    deadline = "120s"
    [[domain]]
    name = "hq"
    nodes = ["gate"]
    [[domain]]
    name = "plant"
    nodes = ["gate", "c", "d"]
"#;

fn wide(_: &NodeId) -> Probe {
    let layout = Layout::new([("weight", vec![ELEMENTS])]).unwrap();
    Probe { layout }
}

fn bay() -> Simulation {
    simulation(BAY)
}

/// The plant is its gateway alone, which has only the coordinator to heal from.
fn outpost() -> Simulation {
    simulation(&BAY.replace("[\"gate\", \"c\", \"d\"]", "[\"gate\"]"))
}

fn simulation(text: &str) -> Simulation {
    let simulation = Simulation::from_toml(text).unwrap().limit(secs(600));
    simulation.trainer(wide).training(secs(1))
}

static UNDISTURBED: LazyLock<SimulationReport> = LazyLock::new(|| bay().run().unwrap());
static ALONE: LazyLock<SimulationReport> = LazyLock::new(|| outpost().run().unwrap());

fn moment(report: &SimulationReport, what: impl Fn(&Event) -> bool) -> Duration {
    let happened = report.events.iter().filter(|(_, event)| what(event));
    let last = happened.last().expect("it happened");
    last.0.since(Micros::default())
}

/// While everybody trains, and so holds the model before.
fn in_training(report: &SimulationReport) -> Duration {
    let started = |event: &Event| matches!(event, Event::TrainingStarted { round: ROUND, .. });
    moment(report, started) + millis(300)
}

fn sound(report: &SimulationReport) {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    assert_eq!(report.rounds().len(), 3);
    let rounds = report.rounds();
    assert!(rounds.iter().all(Round::is_committed), "{rounds:#?}");
}

fn well(report: &SimulationReport, undisturbed: &SimulationReport) {
    sound(report);
    assert_eq!(report.finished.model_hash, undisturbed.finished.model_hash);
}

/// What the coordinator sent over the WAN.
fn sent(report: &SimulationReport) -> u64 {
    report.rounds().iter().map(|round| round.bytes_down).sum()
}

struct Healed {
    kept: u64,
    again: u64,
    from: Vec<Share>,
}

impl Healed {
    fn givers(&self) -> Vec<&str> {
        let givers = self.from.iter();
        givers.map(|share| share.peer.as_str()).collect()
    }

    fn chunks(&self) -> u64 {
        self.kept + self.from.iter().map(|share| share.chunks).sum::<u64>()
    }
}

/// How the plant's gateway was healed, each time.
fn healed(report: &SimulationReport) -> Vec<Healed> {
    let healed = report.events.iter().filter_map(|(_, event)| match event {
        Event::ModelHealed {
            node,
            kept,
            again,
            from,
            ..
        } if node.as_str() == "plant/gate" => Some(Healed {
            kept: *kept,
            again: *again,
            from: from.clone(),
        }),
        _ => None,
    });
    healed.collect()
}

fn refused(report: &SimulationReport) -> Vec<&str> {
    let refused = report.events.iter().filter_map(|(_, event)| match event {
        Event::HealRefused { peer, .. } => Some(peer.as_str()),
        _ => None,
    });
    refused.collect()
}

/// The domain's links carry so many bits a second from then on.
fn narrow(simulation: Simulation, at: Duration, rate: u64) -> Simulation {
    simulation.at(at, rate_limit(["plant/gate"], ["plant/c", "plant/d"], rate))
}

/// The gateway is killed while everybody trains, and is back at once.
fn restarted(simulation: Simulation, at: Duration) -> Simulation {
    simulation
        .at(at, crash("plant/gate"))
        .at(at + millis(400), restart("plant/gate"))
}

#[test]
fn a_restarted_gateway_heals_from_its_members_and_the_coordinator_sends_no_model() {
    let undisturbed = &*UNDISTURBED;
    assert_eq!(healed(undisturbed).len(), 0);
    let at = in_training(undisturbed);
    let disturbed = || restarted(narrow(bay(), at, 20_000_000), at);
    let report = disturbed().run().unwrap();
    well(&report, undisturbed);
    let healed = healed(&report);
    assert_eq!(healed.len(), 1);
    assert_eq!(healed[0].givers(), ["plant/c", "plant/d"]);
    assert_eq!(healed[0].chunks(), chunks(ELEMENTS) as u64);
    assert_eq!(healed[0].again, 0);
    let more = sent(&report).saturating_sub(sent(undisturbed));
    assert!(more < BYTES / 50, "{more} of {BYTES} bytes");
    // The same seed, the same trace.
    let again = disturbed().run().unwrap();
    assert_eq!(again.trace_hash, report.trace_hash);
}

#[test]
fn a_gateway_without_members_has_the_whole_from_the_coordinator_as_one_stream() {
    let undisturbed = &*ALONE;
    let at = in_training(undisturbed);
    let report = restarted(outpost(), at).run().unwrap();
    well(&report, undisturbed);
    assert_eq!(healed(&report).len(), 0, "nothing came in chunks");
    let more = sent(&report).saturating_sub(sent(undisturbed));
    assert!((BYTES..BYTES * 21 / 20).contains(&more), "{more}");
}

#[test]
fn a_member_that_sends_a_wrong_chunk_is_named_and_the_others_give_what_it_owes() {
    let undisturbed = &*UNDISTURBED;
    let at = in_training(undisturbed);
    let planted = mutants::plant("rotten-copy");
    let slow = narrow(bay(), at, 20_000_000);
    let report = restarted(slow, at).run().unwrap();
    drop(planted);
    well(&report, undisturbed);
    assert_eq!(refused(&report), ["plant/c"]);
    let healed = healed(&report);
    assert_eq!(healed.len(), 1);
    assert_eq!(healed[0].givers(), ["plant/d"]);
    assert_eq!(healed[0].chunks(), chunks(ELEMENTS) as u64);
    let more = sent(&report).saturating_sub(sent(undisturbed));
    assert!(more < BYTES / 50, "{more} of {BYTES} bytes");
}

/// A coordinator that was restarted has the model from its store, and sends it as one that never died does.
#[test]
fn a_restarted_coordinator_sends_the_whole_as_well() {
    let at = in_training(&ALONE);
    let coordinator = outpost()
        .at(at, crash("hq/gate"))
        .at(at + millis(100), restart("hq/gate"));
    let report = restarted(coordinator, at).run().unwrap();
    sound(&report);
    assert_eq!(healed(&report).len(), 0, "nothing came in chunks");
}

/// The domain's links carry a chunk in two seconds, and one member is gone before it has sent its share. The round goes on without it.
#[test]
fn a_member_that_is_cut_off_in_the_middle_loses_its_share_to_the_others() {
    let at = in_training(&UNDISTURBED);
    let patient = BAY.replace("\"all\"", "{ nodes = 3, domains = 2 }\n    grace = \"1s\"");
    let cuts = [crash("plant/c"), partition(["plant/gate"], ["plant/c"])];
    for cut in cuts {
        let slow = rate_limit(["plant/gate"], ["plant/c", "plant/d"], 4_000_000);
        let report = restarted(simulation(&patient), at)
            .at(at, slow)
            .between(at + secs(3), at + secs(30), cut)
            .run()
            .unwrap();
        sound(&report);
        let healed = healed(&report);
        assert_eq!(healed.len(), 1);
        assert_eq!(healed[0].givers(), ["plant/d"]);
        assert_eq!(healed[0].chunks(), chunks(ELEMENTS) as u64);
        assert_eq!(healed[0].again, 2, "its share was sent again");
        let more = sent(&report).saturating_sub(sent(&UNDISTURBED));
        assert!(more < BYTES / 50, "{more} of {BYTES} bytes");
    }
}

/// The path to the coordinator, which alone has the model, is gone for so long that the connection is dialled anew.
#[test]
fn a_transfer_that_is_interrupted_goes_on_with_two_chunks_sent_again_at_most() {
    let undisturbed = &*ALONE;
    let at = in_training(undisturbed);
    let cut = || partition(["plant"], ["hq"]);
    for span in [2, 7].map(secs) {
        let report = restarted(outpost(), at)
            .at(at, rate_limit(["plant"], ["hq"], 4_000_000))
            .between(at + secs(4), at + secs(4) + span, cut())
            .run()
            .unwrap();
        well(&report, undisturbed);
        let healed = healed(&report);
        assert_eq!(healed.len(), 1);
        assert_eq!(healed[0].chunks(), chunks(ELEMENTS) as u64);
        let all = sent(&report).saturating_sub(sent(undisturbed));
        let most = BYTES + 2 * CHUNK_BYTES as u64;
        assert!(healed[0].again <= 2, "{} again", healed[0].again);
        assert!(
            all < most * 21 / 20,
            "{span:?}: {all} bytes, at most {most}"
        );
    }
}

/// A model that was just committed is one stream. What has come of it stays, and the rest comes in chunks.
#[test]
fn a_whole_model_that_is_interrupted_goes_on_in_chunks() {
    let undisturbed = &*ALONE;
    let committed = |event: &Event| matches!(event, Event::Round(record) if record.round == ROUND);
    let at = moment(undisturbed, committed);
    let report = outpost()
        .at(at + millis(10), rate_limit(["hq"], ["plant"], 4_000_000))
        .between(at + secs(4), at + secs(11), partition(["plant"], ["hq"]))
        .run()
        .unwrap();
    well(&report, undisturbed);
    let healed = healed(&report);
    assert!(!healed.is_empty());
    assert!(healed[0].kept >= 1, "{} kept", healed[0].kept);
    assert!(healed[0].again <= 2, "{} again", healed[0].again);
    assert_eq!(healed[0].chunks(), chunks(ELEMENTS) as u64);
}
