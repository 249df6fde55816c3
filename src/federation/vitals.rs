//! How the nodes of this process do: its memory, what waits in queues and on links, and for how long certificates are good. Looked at now and then, and
//! told as events, so that whoever shows a run needs nothing but events; and where the coordinator is in another process, told to that, too.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use tombolo_actors::crew::Crew;
use tombolo_actors::node;
use tombolo_core::event::{Event, Vitals};
use tombolo_core::ids::NodeId;

/// How often nodes are looked at, if they are few.
const LOOK: Duration = Duration::from_secs(10);

/// The first look comes sooner: a page that is opened at the start has something to show.
const FIRST: Duration = Duration::from_secs(1);

/// For how many of those spans it waits for those who are to be told.
const FIRST_MAX: u32 = 10;

/// How many nodes are told of in a second at most.
const TOLD_PER_SECOND_MAX: u32 = 20;

/// Looks without end, reporting each node. `left` says for how many seconds a node's certificate is good.
pub(crate) async fn watch(
    crews: &BTreeMap<NodeId, Crew>,
    left: &(dyn Fn(&Crew) -> u64 + Send + Sync),
    report: &(dyn Fn(Event) + Send + Sync),
) -> Infallible {
    let count = u32::try_from(crews.len()).unwrap_or(u32::MAX);
    let pause = LOOK.max(Duration::from_secs(1) * count / TOLD_PER_SECOND_MAX);
    let coordinates = || crews.values().any(Crew::coordinates);
    for _ in 0..FIRST_MAX {
        tokio::time::sleep(FIRST).await;
        if coordinates() || crews.values().all(|crew| crew.presence.has_joined()) {
            break;
        }
    }
    loop {
        let memory = resident();
        for crew in crews.values() {
            let vitals = measured(crew, memory, left);
            report(Event::NodeMeasured(vitals.clone()));
            if !coordinates() {
                // A node that is too busy to be told will be told the next time.
                let _ = crew.node.post(node::Message::Vitals(vitals));
            }
        }
        tokio::time::sleep(pause).await;
    }
}

fn measured(crew: &Crew, memory: u64, left: &dyn Fn(&Crew) -> u64) -> Vitals {
    let (messages, bytes) = crew
        .outboxes
        .values()
        .map(|outbox| outbox.waiting())
        .fold((0, 0), |most, waiting| {
            (most.0.max(waiting.0), most.1.max(waiting.1))
        });
    Vitals {
        node: crew.node_id.clone(),
        memory,
        queued: crew.longest_queue() as u64,
        unacknowledged: messages as u64,
        unacknowledged_bytes: bytes as u64,
        certificate_s: left(crew),
    }
}

/// Bytes of memory that this process has now; 0 if the system does not say.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
