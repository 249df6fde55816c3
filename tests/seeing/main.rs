//! What it costs to see a federation: the processor time of telling beside that of the rounds, how late events are at a page, how large a page's
//! picture is, and how long a scrape takes.
//!
//! Each test prints its figures as a line of JSON; `cargo xtask soak seeing` does it with larger numbers. One at a time: they measure.

#![allow(clippy::unwrap_used, reason = "tests say with a panic what went wrong")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::oneshot;
use tombolo::Federation;
use tombolo::explain::Past;
use tombolo::observe::{Bounds, Dashboard, Feed, Picture, metrics};
use tombolo::simulation::{Simulation, secs};
use tombolo_core::event::{Event, Measured, Shrunk, Vitals};
use tombolo_core::ids::NodeId;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[allow(
    clippy::disallowed_methods,
    reason = "how long it takes is about the real world"
)]
fn now() -> Instant {
    Instant::now()
}

/// Processor seconds of this process, or of this thread.
fn cpu_seconds(of: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap();
    let fields = stat.rsplit(')').next().unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Sites of ten nodes each.
fn ocean(nodes: usize, rounds: usize, sync_every: usize) -> String {
    let names: Vec<String> = (0..10).map(|node| format!("\"n{node}\"")).collect();
    let mut text = format!(
        "[federation]\nname = \"ocean\"\nrounds = {rounds}\nsync_every = {sync_every}\n[round]\nquorum = \"all\"\ndeadline = \"1min\"\n\
         [model]\ntrainer = \"digits-softmax\"\npartition = {{ kind = \"iid\" }}\n"
    );
    for domain in 0..nodes.div_ceil(10) {
        text += &format!(
            "[[domain]]\nname = \"d{domain}\"\nnodes = [{}]\n",
            names.join(", ")
        );
    }
    text
}

/// Nine nodes that train a small network.
const COAST: &str = r#"
[federation]
name = "coast"
rounds = ROUNDS
sync_every = "1 epoch"
[round]
quorum = "all"
deadline = "10min"
[heartbeat]
every = "5s"
[model]
trainer = "digits-mlp"
hidden = 64
partition = { kind = "iid" }
[[domain]]
name = "hq"
nodes = ["gate", "a", "b"]
[[domain]]
name = "plant"
nodes = ["gate", "c", "d"]
[[domain]]
name = "lab"
nodes = ["gate", "e", "f"]
"#;

/// A run with real nodes, and its processor seconds: what happened in it.
fn trained(folder: &Path, rounds: usize) -> (Vec<Past>, f64) {
    let path = folder.join("topology.toml");
    std::fs::write(&path, COAST.replace("ROUNDS", &rounds.to_string())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let before = cpu_seconds("self");
    let events = runtime.block_on(async {
        let mut running = Federation::from_path(&path).unwrap().spawn().await.unwrap();
        let (mut all, clock) = (running.all_events().unwrap(), running.clock());
        let mut events = Vec::new();
        let run = running.run();
        let mut run = std::pin::pin!(run);
        let report = loop {
            tokio::select! {
                biased;
                event = all.recv() => {
                    let event = event.expect("none is missed");
                    events.push(Past { at: clock(), life: 0, event });
                }
                report = &mut run => break report.unwrap(),
            }
        };
        while let Ok(event) = all.try_recv() {
            events.push(Past {
                at: clock(),
                life: 0,
                event,
            });
        }
        assert_eq!(report.rounds().len(), rounds);
        events
    });
    (events, cpu_seconds("self") - before)
}

/// The record, the copies for whoever listens, and the picture: each event of a run goes once through what every run with a page has.
fn tell(file: &mut impl Write, past: &[Past], picture: &mut Picture) {
    for past in past {
        let mut line = serde_json::to_vec(&std::hint::black_box(past.clone())).unwrap();
        line.push(b'\n');
        file.write_all(&line).unwrap();
        picture.apply(&std::hint::black_box(past.clone()));
    }
}

#[test]
fn telling_what_happens_costs_less_than_a_hundredth_of_the_rounds() {
    let _alone = alone();
    let rounds = number("TOMBOLO_ROUNDS", 10);
    let folder = tempfile::tempdir().unwrap();
    let (past, all_s) = trained(folder.path(), rounds);
    let file = std::fs::File::create(folder.path().join("again.jsonl")).unwrap();
    let mut file = std::io::BufWriter::new(file);
    // Often enough that the clock's ticks do not matter.
    let (mut times, before) = (0, cpu_seconds("thread-self"));
    let telling_s = loop {
        tell(&mut file, &past, &mut Picture::new(Bounds::LIVE));
        times += 1;
        let used = cpu_seconds("thread-self") - before;
        if used >= 0.5 {
            break used / f64::from(times);
        }
    };
    let share = telling_s / all_s;
    println!(
        "{}",
        json!({
            "case": "event path",
            "rounds": rounds,
            "events_per_round": past.len() / rounds,
            "round_cpu_ms": all_s / rounds as f64 * 1e3,
            "telling_cpu_ms": telling_s / rounds as f64 * 1e3,
            "share_percent": share * 100.0,
        })
    );
    assert!(past.len() > rounds * 30, "{}", past.len());
    assert!(share < 0.01, "{share}");
}

/// What a simulated federation of so many nodes tells.
fn simulated(nodes: usize) -> Vec<Past> {
    let simulation = Simulation::from_toml(&ocean(nodes, 3, 2)).unwrap();
    let report = simulation.limit(secs(600)).run().unwrap();
    assert_eq!(report.violations, []);
    let past = report.events.into_iter().map(|(at, event)| Past {
        at: at.0 as f64 / 1e6,
        life: 0,
        event,
    });
    past.collect()
}

/// A picture in which everything is known of so many nodes, at sites of ten.
fn crowded(nodes: usize) -> Picture {
    let mut picture = Picture::new(Bounds::LIVE);
    for nth in 0..nodes {
        let node: NodeId = format!("d{}/n{}", nth / 10, nth % 10).parse().unwrap();
        let gate: NodeId = format!("d{}/n0", nth / 10).parse().unwrap();
        let address = "[::1]:4600".to_owned();
        let mut events = vec![
            Event::NodeStarted {
                node: node.clone(),
                address,
                life: 1,
            },
            Event::UpdateExported {
                node: node.clone(),
                round: 1,
                samples: 180,
                loss: 0.5,
            },
            Event::NodeMeasured(Vitals {
                node: node.clone(),
                memory: 1 << 25,
                queued: 1,
                unacknowledged: 2,
                unacknowledged_bytes: 700,
                certificate_s: 86_400,
            }),
        ];
        if node == gate && nth > 0 {
            events.push(Event::LinkMeasured(Measured {
                node,
                peer: "d0/n0".parse().unwrap(),
                round_trip_ms: Some(12.5),
                heartbeat_loss: 0.01,
                sent: 1 << 20,
                received: 1 << 21,
                unacknowledged: 2,
                unacknowledged_bytes: 700,
                models: Shrunk {
                    plain: 1 << 22,
                    travelled: 1 << 20,
                },
            }));
        }
        for event in events {
            let (at, life) = (1.0, 0);
            picture.apply(&Past { at, life, event });
        }
    }
    picture
}

/// "Per-node series end with the node or are capped; scrape time is bounded." client_golang#296, cadence#5398
#[test]
fn the_picture_of_many_nodes_is_small_and_a_scrape_of_it_is_bounded() {
    let _alone = alone();
    let nodes = number("TOMBOLO_NODES", 40);
    let mut picture = Picture::new(Bounds::LIVE);
    simulated(nodes).iter().for_each(|past| picture.apply(past));
    assert_eq!(picture.nodes.len(), nodes);
    scraped("scrape", picture);
    scraped("scrape, everything known", crowded(1_000));
    // Beyond the cap it does not grow.
    scraped("scrape, everything known", crowded(4_000));
}

/// Scrapes a picture a few times, and says how much there is of it.
fn scraped(case: &str, picture: Picture) {
    let (nodes, links) = (picture.nodes.len(), picture.links.len());
    let state = serde_json::to_vec(&picture).unwrap();
    let picture = Arc::new(picture);
    let (mut spans, mut text) = (Vec::new(), String::new());
    for _ in 0..20 {
        let began = now();
        text = metrics(&picture);
        spans.push(now() - began);
    }
    spans.sort();
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    println!(
        "{}",
        json!({
            "case": case,
            "nodes": nodes,
            "links": links,
            "series": series,
            "bytes": text.len(),
            "scrape_ms": spans[spans.len() / 2].as_secs_f64() * 1e3,
            "state_json_bytes": state.len(),
        })
    );
    let median = spans[spans.len() / 2];
    assert!(median < Duration::from_secs(1), "{median:?}");
    // Thirteen of each node and twelve of each link at most, and those of the federation.
    assert!(
        series <= 80 + 13 * nodes.min(1024) + 12 * links.min(1024),
        "{series}"
    );
    assert!(
        state.len() < 4000 + nodes * 1200 + links * 800,
        "{}",
        state.len()
    );
}

/// A page that is served by a thread of its own until the last is dropped: where, for whom, and what takes events.
fn served(picture: Picture) -> (SocketAddr, String, Feed, oneshot::Sender<()>) {
    let ((tell, told), (over, is_over)) = (std::sync::mpsc::channel(), oneshot::channel());
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let address = "127.0.0.1:0".parse().unwrap();
            let dashboard = Dashboard::serve(address, picture).await.unwrap();
            let token = dashboard.token().to_owned();
            tell.send((dashboard.address(), token, dashboard.feed()))
                .unwrap();
            let _ = is_over.await;
        });
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "the server of a page, on real time"
    )]
    std::thread::spawn(serve);
    let (address, token, feed) = told.recv().unwrap();
    (address, token, feed, over)
}

/// A client that reads the events of a page.
fn listen(address: SocketAddr, token: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    write!(
        stream,
        "GET /events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n",
    )
    .unwrap();
    BufReader::new(stream)
}

#[test]
fn an_event_is_at_a_page_soon_after_it_has_happened() {
    let _alone = alone();
    let nodes = number("TOMBOLO_NODES", 40);
    let mut picture = Picture::new(Bounds::LIVE);
    simulated(nodes).iter().for_each(|past| picture.apply(past));
    let (address, token, feed, over) = served(picture);
    let mut page = listen(address, &token);
    // The head of the answer: from then on everything is told.
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        page.read_line(&mut line).unwrap();
    }
    let mut lags = Vec::new();
    for round in 1_000_000..1_000_200 {
        let event = Event::QuorumReached { round };
        let began = now();
        let (at, life) = (1e6, 0);
        feed.push(&Past { at, life, event });
        let told = format!("\"round\":{round}");
        loop {
            line.clear();
            assert_ne!(page.read_line(&mut line).unwrap(), 0, "the page ends");
            if line.contains(&told) {
                break;
            }
        }
        lags.push(now() - began);
    }
    lags.sort();
    let ms = |lag: Duration| lag.as_secs_f64() * 1e3;
    println!(
        "{}",
        json!({
            "case": "event lag",
            "nodes": nodes,
            "events": lags.len(),
            "lag_ms": ms(lags[lags.len() / 2]),
            "lag_ms_p99": ms(lags[lags.len() * 99 / 100]),
        })
    );
    drop(over);
    let median = lags[lags.len() / 2];
    assert!(median < Duration::from_millis(250), "{median:?}");
}
