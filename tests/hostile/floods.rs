//! Honest rounds while strangers knock without end: what they cost, beside the same rounds without them, in one run.
//!
//! `TOMBOLO_FLOOD_PERCENT=120` in the environment is how long a round may take with the flood, in percent of one without: `cargo xtask soak hostile`.
//! A change is held to less, since a busy machine has noise of its own.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quinn::{Connection, SendStream};
use serde_json::json;
use tombolo::federation::Federation;
use tombolo::identity::{Clock, NodeIdentity};
use tombolo::topology;
use tombolo_actors::identity::Identity;
use tombolo_core::event::{Event, RoundState};
use tombolo_core::tensor::Layout;
use tombolo_core::trainer::{Evaluation, Task, TrainError, Trained, Trainer};

use crate::ledger::{alone, begin, most_since};

/// Rounds in a row with the flood, or without.
const BLOCK: usize = 30;

/// Blocks of each kind.
const BLOCKS: usize = 5;

/// Handshakes that are begun and never finished, by as many sources; connections that say no hello; and such that begin one and dribble.
const BEGUN: usize = 100;
const SILENT: usize = 50;
const DRIBBLED: usize = 50;

/// Hellos of TLS that are made beforehand, and sent again and again from other ports.
const INITIALS: usize = 600;

/// How many of them a second.
const RATE: u64 = 2_000;

/// What all of them may make this process hold: half-open handshakes of both ends, and connections that have not said hello.
const MEMORY: usize = 64 << 20;

/// No run here takes so long, not even on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(300);

const ELEMENTS: usize = 100_000;

const TOPOLOGY: &str = r#"
[federation]
name = "small"
rounds = 301
sync_every = 1
coordinator = "hq/gate"
seed = 7
[round]
quorum = "all"
deadline = "10min"
[aggregator]
kind = "fedavg"
[[domain]]
name = "hq"
nodes = ["gate"]
[[domain]]
name = "plant"
nodes = ["gate"]
"#;

/// Trains for a while: some ten milliseconds of arithmetic.
struct Busy;

impl Trainer for Busy {
    fn layout(&self) -> Layout {
        Layout::new([("weight", vec![ELEMENTS])]).unwrap()
    }

    fn initialize(&mut self, _: u64, parameters: &mut [f32]) -> Result<(), TrainError> {
        parameters.fill(1.0);
        Ok(())
    }

    fn train(&mut self, _: &Task, parameters: &mut [f32]) -> Result<Trained, TrainError> {
        for _ in 0..200 {
            for parameter in parameters.iter_mut() {
                *parameter = 0.5 * *parameter + 0.25;
            }
            std::hint::black_box(&mut *parameters);
        }
        Ok(Trained {
            samples: 10,
            loss: 0.5,
            steps: 1,
            learning_rate: 0.1,
        })
    }

    fn evaluate(&mut self, _: &[f32]) -> Result<Evaluation, TrainError> {
        Ok(Evaluation {
            accuracy: 0.5,
            loss: 0.5,
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "a flood is about the real world")]
fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "a flood is about the real world")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// The first packets of that many handshakes, each with connection ids of its own.
fn initials(identity: &dyn Identity, target: SocketAddr) -> Vec<Vec<Vec<u8>>> {
    let (crypto, name) = identity.client(&"hq/gate".parse().unwrap());
    let mut endpoint = quinn_proto::Endpoint::new(
        Arc::new(quinn_proto::EndpointConfig::default()),
        None,
        true,
        None,
    );
    let packets = |_| {
        let config = quinn_proto::ClientConfig::new(crypto.clone());
        let (_, mut connection) = endpoint.connect(now(), config, target, &name).unwrap();
        let mut packets = Vec::new();
        let mut packet = Vec::new();
        while connection.poll_transmit(now(), 1, &mut packet).is_some() {
            packets.push(std::mem::take(&mut packet));
        }
        packets
    };
    (0..INITIALS).map(packets).collect()
}

/// Sends the same from many sources, as long as it is on.
fn flood(
    target: SocketAddr,
    initials: &[Vec<Vec<u8>>],
    on: &AtomicBool,
    over: &AtomicBool,
    sent: &AtomicU64,
) {
    // Every address of 127/8 is this machine.
    let sources = (0..32).map(|index| {
        let source =
            UdpSocket::bind(("127.0.0.1".replace(".0.1", &format!(".7.{}", index + 1)), 0));
        source.unwrap()
    });
    let sources: Vec<UdpSocket> = sources.collect();
    let mut all = initials.iter().cycle();
    let (mut index, began, mut due) = (0, now(), 0);
    while !over.load(Ordering::Relaxed) {
        pause(Duration::from_millis(2));
        let elapsed = (now() - began).as_millis() as u64;
        let until = elapsed * RATE / 1000;
        while due < until {
            due += 1;
            if !on.load(Ordering::Relaxed) {
                continue;
            }
            let source: &UdpSocket = &sources[index % sources.len()];
            for packet in all.next().unwrap() {
                let _ = source.send_to(packet, target);
            }
            sent.fetch_add(1, Ordering::Relaxed);
            index += 1;
        }
    }
}

/// Connections with a good certificate that say nothing, or a byte now and then.
async fn loris(
    endpoint: quinn::Endpoint,
    identity: Arc<dyn Identity>,
    target: SocketAddr,
    on: &AtomicBool,
    over: &AtomicBool,
) -> usize {
    let (crypto, name) = identity.client(&"hq/gate".parse().unwrap());
    let mut held: Vec<(Connection, Option<SendStream>)> = Vec::new();
    let (mut admitted, mut dialled) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if !on.load(Ordering::Relaxed) {
            held.clear();
            dialled = 0;
            continue;
        }
        for (_, send) in &mut held {
            if let Some(send) = send {
                let _ = tokio::time::timeout(Duration::from_millis(1), send.write_all(&[1])).await;
            }
        }
        // So many in each block, a few at a time.
        let few = 10.min(SILENT + DRIBBLED - dialled);
        dialled += few;
        let connecting = (0..few).map(|_| {
            let config = quinn::ClientConfig::new(crypto.clone());
            let connecting = endpoint.connect_with(config, target, &name).unwrap();
            tokio::time::timeout(Duration::from_secs(2), connecting)
        });
        for connected in futures_util::future::join_all(connecting).await {
            let Ok(Ok(connection)) = connected else {
                continue;
            };
            admitted += 1;
            let begins = Duration::from_millis(1);
            let send = match admitted % 2 {
                0 => tokio::time::timeout(begins, connection.open_bi())
                    .await
                    .ok(),
                _ => None,
            };
            let send = send.and_then(|opened| opened.ok()).map(|(send, _)| send);
            held.push((connection, send));
        }
    }
    admitted
}

/// Says so when it goes.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn median(spans: &mut [Duration]) -> f64 {
    spans.sort();
    spans[spans.len() / 2].as_secs_f64()
}

#[test]
fn slow_and_endless_strangers_cost_honest_rounds_little() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let federation = Federation::from_toml(TOPOLOGY, folder.path())
        .unwrap()
        .state(folder.path().join("state"))
        .trainer(|_| Busy);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let running = runtime.block_on(federation.spawn()).unwrap();
    let mut events = running.events();
    let target: SocketAddr = running.crew(&"hq/gate".parse().unwrap()).unwrap().address;
    let (on, over, sent) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicU64::new(0),
    );
    let plan = topology::parse("small.toml", TOPOLOGY, folder.path()).unwrap();
    let clock: Clock = Arc::new(tombolo::world::unix_now);
    let node = "plant/gate".parse().unwrap();
    let identity = NodeIdentity::load(&plan, &node, clock).unwrap();
    let initials = initials(identity.as_ref(), target);
    assert!(initials.iter().all(|packets| !packets.is_empty()));
    let endpoint = {
        let _inside = runtime.enter();
        quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap()
    };

    let (mut with, mut without, mut troubles) = (Vec::new(), Vec::new(), Vec::new());
    let mut since = begin();
    let watch = async {
        let (mut last, mut round) = (now(), 0);
        loop {
            match events.recv().await.unwrap() {
                Event::Round(record) => {
                    assert_eq!(record.state, RoundState::Committed, "{record:?}");
                    let took = now() - last;
                    last = now();
                    // The first of a block is between both; the first of all makes what the others use again.
                    if round > BLOCK && round % BLOCK != 0 {
                        match on.load(Ordering::Relaxed) {
                            true => with.push(took),
                            false => without.push(took),
                        }
                    }
                    round += 1;
                    if round == BLOCK {
                        since = begin();
                    }
                    on.store((round / BLOCK) % 2 == 1, Ordering::Relaxed);
                }
                Event::Finished(_) => break,
                event @ (Event::LinkDown { .. } | Event::PeerSuspected { .. }) => {
                    troubles.push(event);
                }
                _ => {}
            }
        }
        over.store(true, Ordering::Relaxed);
    };
    let (admitted, report) = std::thread::scope(|scope| {
        let begun = scope.spawn(|| {
            // They keep their sources, and send their packets once in each block.
            let sources: Vec<UdpSocket> = (0..BEGUN)
                .map(|_| UdpSocket::bind("127.0.0.1:0").unwrap())
                .collect();
            let mut was_on = false;
            while !over.load(Ordering::Relaxed) {
                let is_on = on.load(Ordering::Relaxed);
                if is_on && !was_on {
                    for (source, packets) in sources.iter().zip(initials.iter().rev()) {
                        for packet in packets {
                            let _ = source.send_to(packet, target);
                        }
                    }
                }
                was_on = is_on;
                pause(Duration::from_millis(2));
            }
        });
        let flooding = scope.spawn(|| flood(target, &initials, &on, &over, &sent));
        // Whatever fails here, the threads end.
        let _ends = Ends(&over);
        let together = async {
            let slow = loris(endpoint.clone(), identity.clone(), target, &on, &over);
            tokio::join!(slow, running.run(), watch)
        };
        let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, together).await });
        let (admitted, report, ()) = ended.expect("the run ends");
        over.store(true, Ordering::Relaxed);
        begun.join().unwrap();
        flooding.join().unwrap();
        (admitted, report)
    });
    assert!(report.unwrap().succeeded());
    assert_eq!(troubles, []);
    assert!(with.len() >= BLOCKS * (BLOCK - 2) && without.len() >= (BLOCKS - 1) * (BLOCK - 2));
    let most = most_since(since);
    let (flooded, quiet) = (median(&mut with), median(&mut without));
    let percent = 100.0 * flooded / quiet;
    let sent = sent.into_inner();
    let line = json!({
        "proof": "hostile",
        "rounds": with.len() + without.len(),
        "round_ms": (quiet * 1e4).round() / 10.0,
        "round_flooded_ms": (flooded * 1e4).round() / 10.0,
        "percent": percent.round(),
        "initials": sent,
        "admitted_without_hello": admitted,
        "memory_bytes": most,
    });
    println!("{line}");
    assert!(
        sent > 500 && admitted > 200,
        "{sent} initials, {admitted} connections"
    );
    assert!(most <= MEMORY, "{most} bytes");
    let limit: f64 = std::env::var("TOMBOLO_FLOOD_PERCENT").map_or(250.0, |it| it.parse().unwrap());
    assert!(
        percent <= limit,
        "a round takes {percent:.0} % of its time, {limit} % are allowed"
    );
}
