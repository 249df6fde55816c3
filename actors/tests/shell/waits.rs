//! Actors that wait for each other are named with the ring; those that only wait long are not.

use std::time::Duration;

use tombolo_actors::shell::Handle;
use tombolo_core::event::Event;

use crate::stand::{Message, Stand, on_one_thread, settle};

/// Longer than a living peer is silent, by the stand's plan.
const LONG: Duration = Duration::from_secs(60);

fn rings(stand: &Stand) -> Vec<Vec<String>> {
    let events = stand.events.lock().unwrap();
    let rings = events.iter().filter_map(|event| match event {
        Event::Deadlocked { ring, .. } => Some(ring.clone()),
        _ => None,
    });
    rings.collect()
}

fn entangle(a: &Handle<Message>, b: &Handle<Message>) {
    let (first, second) = (a.passing(), b.passing());
    a.inject_wait(second).unwrap();
    b.inject_wait(first).unwrap();
}

#[test]
fn two_actors_that_wait_for_each_other_are_named_once() {
    on_one_thread(true, async {
        let stand = Stand::open();
        let other = stand.beside("the other");
        entangle(&stand.handle, &other);
        settle().await;
        assert_eq!(rings(&stand), [[""; 0]; 0], "a ring alone proves nothing");
        tokio::time::sleep(LONG).await;
        let mut found = rings(&stand);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].sort();
        assert_eq!(
            found[0],
            [
                "Puppet of the other waits for an answer of Puppet of under test",
                "Puppet of under test waits for an answer of Puppet of the other",
            ]
        );
        tokio::time::sleep(LONG).await;
        assert_eq!(rings(&stand).len(), 1);
    });
}

#[test]
fn who_waits_for_long_and_is_answered_at_last_is_not_named() {
    on_one_thread(true, async {
        let stand = Stand::open();
        let other = stand.beside("the other");
        let gate = std::sync::Arc::new(tokio::sync::Notify::new());
        other.post(Message::Block(gate.clone())).unwrap();
        stand.handle.inject_wait(other.passing()).unwrap();
        tokio::time::sleep(LONG).await;
        gate.notify_one();
        stand.settled().await;
        assert_eq!(rings(&stand), [[""; 0]; 0]);
    });
}
