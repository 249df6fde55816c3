//! On this machine, over real sockets: restarts, and threads that are kept busy.

use std::net::SocketAddr;
use std::time::Duration;

use tombolo::Federation;
use tombolo::identity::papers::Papers;
use tombolo::world::{World, WorldOptions};
use tombolo_actors::aggregate::Weigh;
use tombolo_core::aggregate::{AggregateError, Weight};
use tombolo_core::event::Event;
use tombolo_core::time::Micros;
use tombolo_fabric::memory::Memory;

use crate::stand::{self, Log, hq, link_down, link_up, plan, plant};

/// Longer than anything here takes; only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is reported.
async fn seen(log: &Log, since: Micros, wanted: impl Fn(&Event) -> bool) -> (Micros, Event) {
    let looked = async {
        loop {
            if let Some(found) = log.first(since, &wanted) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, looked).await;
    found.unwrap_or_else(|_| panic!("it was not reported; troubles: {:?}", log.troubles()))
}

/// "A restart takes over within a heartbeat": the restarted node knows its peers' packets by a key that it keeps beside its files, and says
/// that they belong to another life.
#[tokio::test]
async fn a_restarted_peer_is_noticed_by_its_stateless_reset() {
    // The connection would be given up after a minute, and the peer be suspected after a quarter of one.
    let plan = plan("every = \"5s\"");
    let (memory, log) = (Memory::new(), Log::default());
    let state = tempfile::tempdir().unwrap();
    // Two worlds on one state folder stand for two processes.
    let worlds = [(); 2].map(|()| {
        let options = WorldOptions {
            state: state.path().to_owned(),
            nodes: Vec::new(),
            links: Vec::new(),
            seed: 1,
        };
        World::new(options).unwrap()
    });
    let start = |index: usize, listen: SocketAddr| {
        let node = [hq(), plant()][index].clone();
        let env = worlds[index].env(&node).unwrap();
        stand::start(
            &env,
            &plan,
            &node,
            &memory,
            listen,
            &log,
            &Papers::default(),
        )
    };
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let (first, _other) = (start(0, any), start(1, any));
    seen(&log, Micros(0), link_up(plant())).await;
    // On both sides: who ends before it has greeted says so.
    seen(&log, Micros(0), link_up(hq())).await;
    let (address, mut crew) = (first.address, first);
    let mut reasons = Vec::new();
    // What ends here is no process: now and then its streams get to say that they end, and nobody needs a reset.
    while !reasons
        .iter()
        .any(|reason: &String| reason.contains("reset"))
    {
        assert!(reasons.len() < 10, "{reasons:?}");
        let restarted = worlds[1].env(&plant()).unwrap().now();
        worlds[0].stop(&hq()).await;
        drop(crew);
        crew = start(0, address);
        let (down, event) = seen(&log, restarted, link_down(plant())).await;
        reasons.push(format!("{event:?}"));
        assert!(
            down.since(restarted) < Duration::from_secs(10),
            "{down:?}, restarted at {restarted:?}"
        );
        seen(&log, down, link_up(plant())).await;
        seen(&log, down, link_up(hq())).await;
    }
}

/// A rule that keeps its thread, the one of the links and of the coordinator, from everything else.
struct Stubborn;

const BUSY: Duration = Duration::from_secs(2);

impl actix::Actor for Stubborn {
    type Context = actix::Context<Self>;
}

impl actix::Handler<Weigh> for Stubborn {
    type Result = Result<Vec<Weight>, AggregateError>;

    #[expect(clippy::disallowed_methods, reason = "it blocks on purpose")]
    fn handle(&mut self, weigh: Weigh, _: &mut Self::Context) -> Self::Result {
        std::thread::sleep(BUSY);
        let equal = weigh.reports.iter().map(|report| Weight {
            node: report.node.clone(),
            weight: 1.0,
            clip: 1.0,
            reason: String::new(),
        });
        Ok(equal.collect())
    }
}

/// sp1-cluster#163, ray#28562, quinn#1509: heavy compute, even on a thread that carries messages or on the one that started the federation,
/// never makes a healthy node look dead. Here each is blocked for eight times as long as a silence may last.
#[test]
fn who_keeps_a_thread_busy_does_not_look_dead() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[federation]\nname = \"busy\"\nrounds = 2\nsync_every = 1\n[aggregator]\nkind = \"stubborn\"\n\
                [model]\ntrainer = \"digits-softmax\"\n[round]\nquorum = \"all\"\ndeadline = \"60s\"\n\
                [heartbeat]\nevery = \"100ms\"\n\
                [[domain]]\nname = \"hq\"\nnodes = [\"gate\", \"a\"]\n[[domain]]\nname = \"plant\"\nnodes = [\"gate\", \"b\"]\n";
    let federation = Federation::from_toml(text, folder.path())
        .unwrap()
        .state(folder.path().join("state"))
        .aggregator_actor("stubborn", || actix::Actor::start(Stubborn).recipient());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (report, events) = runtime.block_on(async {
        let running = federation.spawn().await.unwrap();
        let mut events = running.events();
        keep_busy();
        let report = tokio::time::timeout(PATIENCE, running.run())
            .await
            .unwrap()
            .unwrap();
        let mut seen = Vec::new();
        while let Ok(event) = events.try_recv() {
            // After that everybody leaves everybody.
            if matches!(event, Event::Finished(_)) {
                break;
            }
            seen.push(event);
        }
        (report, seen)
    });
    assert_eq!(report.finished.committed, 2, "{report:#?}");
    let suspicion = |event: &&Event| matches!(event, Event::PeerSuspected { .. });
    let suspicions: Vec<&Event> = events.iter().filter(suspicion).collect();
    assert_eq!(suspicions, Vec::<&Event>::new());
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Weighed { .. }))
    );
}

#[expect(clippy::disallowed_methods, reason = "it blocks on purpose")]
fn keep_busy() {
    std::thread::sleep(BUSY);
}
