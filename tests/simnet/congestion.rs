//! The congestion laws on real quinn over a simulated path: how full, how frugal, how fair.
//!
//! A transfer is one stream from its opening until the last byte has arrived, so the start counts. CI moves fewer bytes than the 100 MB of
//! `cargo xtask soak congestion`, which runs every cell.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tombolo::sim::{LinkModel, SimWorld};
use tombolo_actors::env::{Class, Env};
use tombolo_actors::quic::congestion::Fixed;
use tombolo_core::congestion::Law;
use tombolo_core::congestion::delay_gradient::Settings;
use tombolo_core::ids::NodeId;

use crate::echo::{connect, endpoint, tls};
use crate::node;

const OURS: Law = Law::DelayGradient(Settings {
    factor: 0.4,
    additive: 0.03,
});

/// How often arrivals are looked at.
const LOOK: Duration = Duration::from_millis(1);

/// A path whose queue holds what it carries in a round trip.
fn path(round_trip_ms: u64, loss: f64, megabits: u64) -> LinkModel {
    let rate = megabits * 1_000_000;
    LinkModel {
        latency: Duration::from_millis(round_trip_ms) / 2,
        jitter: Duration::ZERO,
        loss,
        rate: Some(rate),
        queue: (rate / 8000 * round_trip_ms).max(30_000),
        ..LinkModel::lan()
    }
}

/// One node that takes what another sends, over any number of connections.
struct Stand {
    world: SimWorld,
    from: NodeId,
    to: NodeId,
    sender: Arc<dyn Env>,
    tls: crate::echo::Tls,
    /// Bytes that arrived, by connection in the order they were accepted.
    arrived: Vec<Arc<AtomicU64>>,
}

impl Stand {
    fn new(world: &SimWorld, model: LinkModel, flows: usize) -> Self {
        let (from, to) = (node("a/gate"), node("b/gate"));
        let (sender, receiver) = (world.env(&from), world.env(&to));
        world.link(&from, &to, model);
        let mut tls = tls();
        tls.server.transport_config(transport(Law::Cubic));
        let arrived: Vec<Arc<AtomicU64>> = (0..flows).map(|_| Arc::default()).collect();
        let (counters, server, name) = (arrived.clone(), tls.server.clone(), to.clone());
        let env = receiver.clone();
        receiver.spawn(
            Class::Gateway,
            Box::new(move || {
                Box::pin(async move {
                    let endpoint = endpoint(&*env, "0.0.0.0:4433", Some(server));
                    env.advertise(&name, endpoint.local_addr().unwrap())
                        .unwrap();
                    for counter in counters {
                        let connection = endpoint.accept().await.unwrap().await.unwrap();
                        tokio::task::spawn_local(drain(connection, counter));
                    }
                    std::future::pending::<()>().await;
                })
            }),
        );
        Stand {
            world: world.clone(),
            from,
            to,
            sender,
            tls,
            arrived,
        }
    }

    /// Connects under a law.
    async fn connect(&self, law: Law) -> quinn::Connection {
        let mut tls = self.tls.clone();
        tls.client.transport_config(transport(law));
        let endpoint = endpoint(&*self.sender, "0.0.0.0:0", None);
        loop {
            match connect(&self.sender, &endpoint, &self.to, &tls).await {
                Ok(connection) => return connection,
                Err(_) => self.world.sleep(LOOK).await,
            }
        }
    }

    fn arrived(&self, flow: usize) -> u64 {
        self.arrived[flow].load(Ordering::Relaxed)
    }

    /// Waits until so many bytes have arrived; gives the seconds since `began`.
    async fn until(&self, flow: usize, bytes: u64, began: Duration) -> f64 {
        while self.arrived(flow) < bytes {
            self.world.sleep(LOOK).await;
        }
        (self.now() - began).as_secs_f64()
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.world.now().0)
    }
}

fn transport(law: Law) -> Arc<quinn::TransportConfig> {
    let mut transport = quinn::TransportConfig::default();
    transport
        .initial_rtt(Duration::from_millis(100))
        .stream_receive_window(quinn::VarInt::from_u32(32 << 20))
        .send_window(64 << 20)
        .congestion_controller_factory(Arc::new(Fixed(Some(law))));
    Arc::new(transport)
}

async fn drain(connection: quinn::Connection, count: Arc<AtomicU64>) {
    while let Ok(mut stream) = connection.accept_uni().await {
        while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
            count.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        }
    }
}

/// Sends in the background; the connection lives as long.
fn send(connection: &quinn::Connection, bytes: u64) {
    let connection = connection.clone();
    tokio::task::spawn_local(async move {
        let mut stream = connection.open_uni().await.unwrap();
        let block = bytes::Bytes::from(vec![7; 64 << 10]);
        let mut left = bytes;
        while left > 0 {
            let length = left.min(block.len() as u64);
            left -= length;
            if stream
                .write_chunk(block.slice(..length as usize))
                .await
                .is_err()
            {
                return;
            }
        }
        let _ = stream.finish();
        connection.closed().await;
    });
}

/// What a transfer took of its path.
#[derive(Debug, Clone, Copy)]
struct Found {
    /// The share of the path's rate that the payload had.
    share: f64,
    queue_ms: f64,
    /// The share of packets that the queue dropped.
    dropped: f64,
}

fn transfer(law: Law, model: LinkModel, bytes: u64) -> Found {
    let world = SimWorld::new(7);
    let rate = model.rate.unwrap() as f64;
    world
        .run(|world| async move {
            let stand = Stand::new(&world, model, 1);
            let connection = stand.connect(law).await;
            let began = stand.now();
            send(&connection, bytes);
            let seconds = stand.until(0, bytes, began).await;
            let seen = world.statistics(&stand.from, &stand.to);
            let taken = (seen.sent - seen.queue_full).max(1);
            Found {
                share: bytes as f64 * 8.0 / seconds / rate,
                queue_ms: seen.queue_delay_total.as_secs_f64() * 1000.0 / taken as f64,
                dropped: seen.queue_full as f64 / seen.sent as f64,
            }
        })
        .unwrap()
}

/// Round trip in ms, loss, Mbit/s, and the megabytes that CI moves: some ten thousand packets a cell, and yet so many that the start is a small part.
const CELLS: [(u64, f64, u64, f64); 6] = [
    (20, 0.0, 5, 2.5),
    (20, 0.01, 50, 25.0),
    (60, 0.001, 50, 25.0),
    (60, 0.0, 200, 40.0),
    (150, 0.01, 50, 50.0),
    (300, 0.001, 5, 12.5),
];

/// All cells of the matrix, 100 MB each.
fn matrix() -> Vec<(u64, f64, u64, f64)> {
    let mut cells = Vec::new();
    for round_trip in [20, 60, 150, 300] {
        for loss in [0.0, 0.001, 0.01] {
            for megabits in [5, 50, 200] {
                cells.push((round_trip, loss, megabits, 100.0));
            }
        }
    }
    cells
}

/// Field fault: a fast link with a long round trip is filled. honk#120
#[test]
fn delay_gradient_fills_the_path_beside_cubic_and_bbr_with_a_short_queue() {
    let whole = std::env::var("TOMBOLO_CELLS").is_ok_and(|cells| cells == "all");
    let cells = if whole { matrix() } else { CELLS.to_vec() };
    let mut missed = String::new();
    for (round_trip, loss, megabits, megabytes) in cells {
        let model = path(round_trip, loss, megabits);
        let bytes = (megabytes * 1e6) as u64;
        let [ours, cubic, bbr] =
            [OURS, Law::Cubic, Law::Bbr].map(|law| transfer(law, model.clone(), bytes));
        let best = cubic.share.max(bbr.share);
        let queue_most = (bbr.queue_ms / 5.0).max(8.0);
        let meets = ours.share >= 0.85 && ours.share >= 0.9 * best && ours.queue_ms <= queue_most;
        println!(
            "{{\"proof\":\"congestion\",\"ms\":{round_trip},\"loss\":{loss},\"mbit\":{megabits},\"mb\":{megabytes},\"ours\":{:.3},\"cubic\":{:.3},\"bbr\":{:.3},\"queue_ms_ours\":{:.1},\"cubic_queue_ms\":{:.1},\"bbr_queue_ms\":{:.1},\"dropped_ours\":{:.4},\"dropped_bbr\":{:.4},\"meets\":{meets}}}",
            ours.share,
            cubic.share,
            bbr.share,
            ours.queue_ms,
            cubic.queue_ms,
            bbr.queue_ms,
            ours.dropped,
            bbr.dropped,
        );
        if !meets {
            writeln!(
                missed,
                "{round_trip} ms, {loss}, {megabits} Mbit/s: {ours:?}"
            )
            .unwrap();
        }
    }
    assert!(whole || missed.is_empty(), "{missed}");
}

#[test]
fn jitter_and_a_shallow_queue_leave_a_delay_gradient_link_fast() {
    let mut jittery = path(60, 0.0, 50);
    jittery.jitter = Duration::from_millis(5);
    let mut shallow = path(60, 0.001, 50);
    shallow.queue /= 10;
    for (name, model) in [("jitter", jittery), ("shallow", shallow)] {
        let found = transfer(OURS, model, 25_000_000);
        println!("{name}: {found:?}");
        assert!(found.share > 0.7, "{name}: {found:?}");
        assert!(found.dropped < 0.15, "{name}: {found:?}");
    }
}

/// Twice as long a round trip from the second second on.
#[test]
fn a_path_that_becomes_longer_is_filled_again() {
    let share = SimWorld::new(7)
        .run(|world| async move {
            let stand = Stand::new(&world, path(60, 0.0, 50), 1);
            let connection = stand.connect(OURS).await;
            send(&connection, 1 << 30);
            world.sleep(Duration::from_secs(2)).await;
            world.link(&stand.from, &stand.to, path(120, 0.0, 50));
            world.sleep(Duration::from_secs(8)).await;
            let before = stand.arrived(0);
            world.sleep(Duration::from_secs(5)).await;
            (stand.arrived(0) - before) as f64 * 8.0 / 5.0 / 50e6
        })
        .unwrap();
    println!("route: {share:.3}");
    assert!(share > 0.8, "{share}");
}

/// A round's model, then training, then the next: what was learnt of the path is still there.
#[test]
fn bursts_after_the_first_start_at_full_speed() {
    let spans = SimWorld::new(7)
        .run(|world| async move {
            let stand = Stand::new(&world, path(150, 0.0, 50), 1);
            let connection = stand.connect(OURS).await;
            let (mut spans, bytes) = (Vec::new(), 5_000_000);
            for burst in 1..=4 {
                let began = stand.now();
                send(&connection, bytes);
                spans.push(stand.until(0, burst * bytes, began).await);
                world.sleep(Duration::from_secs(5)).await;
            }
            spans
        })
        .unwrap();
    println!("bursts: {spans:?}");
    // 0.8 s at the path's rate, and half a round trip until it has arrived.
    assert!(spans[1..].iter().all(|span| *span < 1.25), "{spans:?}");
}

/// The rates of two flows on one path over the last seconds, the second begun two seconds after the first.
fn two(laws: [Law; 2]) -> [f64; 2] {
    SimWorld::new(7)
        .run(|world| async move {
            let stand = Stand::new(&world, path(60, 0.0, 20), 2);
            for law in laws {
                send(&stand.connect(law).await, 1 << 30);
                world.sleep(Duration::from_secs(2)).await;
            }
            world.sleep(Duration::from_secs(20)).await;
            let before = [0, 1].map(|flow| stand.arrived(flow));
            world.sleep(Duration::from_secs(20)).await;
            [0, 1].map(|flow| (stand.arrived(flow) - before[flow]) as f64 * 8.0 / 20.0 / 20e6)
        })
        .unwrap()
}

#[test]
fn two_delay_gradient_flows_share_a_path_and_cubic_does_not_starve_one() {
    let [a, b] = two([OURS, OURS]);
    let jain = (a + b).powi(2) / (2.0 * (a * a + b * b));
    println!("two of ours: {a:.3} {b:.3}, Jain {jain:.3}");
    let [cubic, ours] = two([Law::Cubic, OURS]);
    println!("cubic {cubic:.3}, ours {ours:.3}");
    assert!(jain >= 0.9, "{a} {b}");
    assert!(ours >= 0.35, "{ours} beside {cubic}");
}
