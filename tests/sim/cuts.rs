//! A contribution over a narrow, lossy link whose connection breaks: what has come is not sent again.

use std::time::Duration;

use tombolo::simulation::{Simulation, SimulationReport, millis, partition, secs};
use tombolo_core::event::{Cargo, Event, Transfer};
use tombolo_core::ids::NodeId;
use tombolo_core::tensor::Layout;
use tombolo_core::time::Micros;

use crate::probe::Probe;

const MIB: usize = 1 << 20;

/// A chunk of a contribution.
const CHUNK: u64 = MIB as u64;

const CUTS: u32 = 3;

/// A connection without any sign of life is given up after 6 s.
const CUT: Duration = Duration::from_secs(9);

/// How large the model is. In the soak it is 64 MiB.
fn mebibytes() -> usize {
    let told = std::env::var("TOMBOLO_CUT_MIB").ok();
    told.map_or(8, |told| told.parse().expect("a number of MiB"))
}

fn narrow() -> Simulation {
    let text = r#"
        [federation]
        name = "fjord"
        rounds = 1
        sync_every = 1
        seed = 5
        [round]
        quorum = "all"
        deadline = "600s"
        close_limit = "600s"
        [[domain]]
        name = "hq"
        nodes = ["gate"]
        [[domain]]
        name = "plant"
        nodes = ["gate"]
        [[link]]
        between = ["hq", "plant"]
        congestion = "delay-gradient"
        emulate = { delay = "20ms", loss = "2%", rate = "5 Mbit/s" }
    "#;
    let elements = mebibytes() * MIB / 4;
    let wide = move |_: &NodeId| Probe {
        layout: Layout::new([("weight", vec![elements])]).unwrap(),
    };
    let simulation = Simulation::from_toml(text).unwrap().limit(secs(1200));
    simulation.trainer(wide).training(millis(100))
}

/// The contribution, and when all of it was there.
fn contribution(report: &SimulationReport) -> (Transfer, Duration) {
    let mut sums = report.events.iter().filter_map(|(at, event)| match event {
        Event::Transferred(sent) if sent.cargo == Cargo::Contribution => {
            Some((sent.clone(), at.since(Micros::default())))
        }
        _ => None,
    });
    let found = sums.next().expect("plant's came over the link");
    assert!(sums.next().is_none(), "it came once");
    found
}

fn sound(report: &SimulationReport) {
    assert_eq!(report.violations, []);
    assert_eq!(report.finished.reason, "");
    assert_eq!(report.finished.committed, 1);
    assert_eq!(report.finished.degraded, 0);
}

fn sent_up(report: &SimulationReport) -> u64 {
    report.rounds().iter().map(|round| round.bytes_up).sum()
}

/// erlang_quic#255: what broke off goes on where it was, and not from the beginning.
#[test]
fn a_transfer_that_is_cut_three_times_sends_no_more_than_two_chunks_again_each_time() {
    let whole = narrow().run().unwrap();
    sound(&whole);
    let (sent, end) = contribution(&whole);
    assert_eq!(sent.bytes, (mebibytes() * MIB) as u64);
    assert_eq!(sent.cuts, 0);

    let began = end - Duration::from_micros(sent.waited_us);
    let quarter = (end - began) / (CUTS + 1);
    let cut = (1..=CUTS).fold(narrow(), |simulation, which| {
        let at = began + quarter * which + CUT * (which - 1);
        simulation.between(at, at + CUT, partition(["hq"], ["plant"]))
    });
    let cut = cut.run().unwrap();
    sound(&cut);
    let (resumed, end_of_cut) = contribution(&cut);
    assert_eq!(resumed.cuts, CUTS);
    assert_eq!(cut.finished.model_hash, whole.finished.model_hash);

    let again = sent_up(&cut).saturating_sub(sent_up(&whole));
    let figures = serde_json::json!({
        "case": "three cuts",
        "mebibytes": mebibytes(),
        "seconds": end.as_secs_f64(),
        "seconds_cut": end_of_cut.as_secs_f64(),
        "sent": sent_up(&whole),
        "again": again,
        "chunks_again": again as f64 / CHUNK as f64,
    });
    println!("{figures}");
    assert!(again <= 2 * CHUNK * u64::from(CUTS), "{figures}");
}
