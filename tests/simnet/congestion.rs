//! The law of links on real quinn over simulated paths that are not as plain as those of `tombolo bench congestion`.

use std::time::Duration;

use tombolo::sim::LinkModel;
use tombolo::simulation::flows::{self, Flows};
use tombolo_core::congestion::Law;
use tombolo_core::congestion::delay_gradient::Settings;

/// A path whose queue holds what it carries in a round trip.
fn path(round_trip_ms: u64, loss: f64, megabits: u64) -> LinkModel {
    let round_trip = Duration::from_millis(round_trip_ms);
    flows::path(round_trip, loss, megabits * 1_000_000)
}

/// The law as links have it.
fn ours() -> Law {
    Law::DelayGradient(Settings::default())
}

#[test]
fn jitter_and_a_shallow_queue_leave_a_delay_gradient_link_fast() {
    let mut jittery = path(60, 0.0, 50);
    jittery.jitter = Duration::from_millis(5);
    let mut shallow = path(60, 0.001, 50);
    shallow.queue /= 10;
    let bytes = 25_000_000;
    for (name, model) in [("jitter", jittery), ("shallow", shallow)] {
        let (seconds, seen) = Flows::run(7, model, 1, move |flows| async move {
            let flow = flows.open(ours()).await?;
            let began = flows.now();
            flow.send(bytes);
            flows.until(0, bytes).await?;
            Ok(((flows.now() - began).as_secs_f64(), flows.statistics()))
        })
        .unwrap();
        let share = bytes as f64 * 8.0 / seconds / 50e6;
        let dropped = seen.queue_full as f64 / seen.sent as f64;
        println!("{name}: {share:.3} {dropped:.4}");
        assert!(share > 0.7, "{name}: {share}");
        assert!(dropped < 0.15, "{name}: {dropped}");
    }
}

/// Twice as long a round trip from the second second on.
#[test]
fn a_path_that_becomes_longer_is_filled_again() {
    let share = Flows::run(7, path(60, 0.0, 50), 1, |flows| async move {
        let flow = flows.open(ours()).await?;
        flow.send(1 << 30);
        flows.sleep(Duration::from_secs(2)).await;
        flows.change_path(path(120, 0.0, 50));
        flows.sleep(Duration::from_secs(8)).await;
        let before = flows.arrived(0);
        flows.sleep(Duration::from_secs(5)).await;
        Ok((flows.arrived(0) - before) as f64 * 8.0 / 5.0 / 50e6)
    })
    .unwrap();
    println!("route: {share:.3}");
    assert!(share > 0.8, "{share}");
}

/// A round's model, then training, then the next: what was learnt of the path is still there.
#[test]
fn bursts_after_the_first_start_at_full_speed() {
    let spans = Flows::run(7, path(150, 0.0, 50), 1, |flows| async move {
        let flow = flows.open(ours()).await?;
        let (mut spans, bytes) = (Vec::new(), 5_000_000);
        for burst in 1..=4 {
            let began = flows.now();
            flow.send(bytes);
            flows.until(0, burst * bytes).await?;
            spans.push((flows.now() - began).as_secs_f64());
            flows.sleep(Duration::from_secs(5)).await;
        }
        Ok(spans)
    })
    .unwrap();
    println!("bursts: {spans:?}");
    // 0.8 s at the path's rate, and half a round trip until it has arrived.
    assert!(spans[1..].iter().all(|span| *span < 1.25), "{spans:?}");
}
