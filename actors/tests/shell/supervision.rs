//! A panic ends a life, not an actor.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use tombolo_actors::env::Class;
use tombolo_actors::shell::{AskError, RESTARTS_MAX, Reply, TellError, WINDOW};
use tombolo_core::event::Event;

use crate::stand::{Message, Stand, on_one_thread, settle};

#[test]
fn what_was_not_begun_is_delivered_again_in_order_and_the_asker_hears_of_the_failure() {
    on_one_thread(true, async {
        let gate = Arc::new(Notify::new());
        let stand = Stand::closed(&gate);
        // More than a mailbox holds, on both sides of the panic.
        let many = u32::try_from(WINDOW).unwrap();
        let (question, answer) = Reply::channel();
        for number in 0..3 {
            stand.handle.post(Message::Note(number)).unwrap();
        }
        stand.handle.post(Message::Boom(Some(question))).unwrap();
        for number in 3..3 * many {
            stand.handle.post(Message::Note(number)).unwrap();
        }
        settle().await;
        gate.notify_one();
        assert!(answer.await.is_err(), "nobody answers");
        let kept = stand.handle.clone();
        let echo = kept.ask(|reply| Message::Echo(9, reply)).await;
        assert_eq!(echo, Ok(9), "the handle lives on");
        assert_eq!(stand.notes(), (0..3 * many).collect::<Vec<_>>());
        let events = stand.events.lock().unwrap().clone();
        let [
            Event::ActorRestarted {
                actor,
                key,
                reason,
                restarts,
            },
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!((actor.as_str(), key.as_str()), ("Puppet", "under test"));
        assert_eq!((reason.as_str(), *restarts), ("boom", 1));
        assert_eq!(stand.census.counts()["Puppet"], 1);
    });
}

#[test]
fn asking_hears_of_the_failure_and_asking_again_gets_an_answer() {
    on_one_thread(true, async {
        let stand = Stand::open();
        let answer = stand.handle.ask(|reply| Message::Boom(Some(reply))).await;
        assert_eq!(answer, Err(AskError::Failed));
        let mut asked = 0;
        let answer = stand.handle.ask_again(3, |reply| {
            asked += 1;
            match asked {
                1 | 2 => Message::Boom(Some(reply)),
                _ => Message::Echo(4, reply),
            }
        });
        assert_eq!(answer.await, Ok(4));
        let answer = stand
            .handle
            .ask_again(2, |reply| Message::Boom(Some(reply)));
        assert_eq!(answer.await, Err(AskError::Failed));
        settle().await;
        assert_eq!(stand.restarts(), [1, 2, 3, 4, 5]);
    });
}

#[test]
fn each_wait_is_about_twice_the_last_one() {
    on_one_thread(true, async {
        let stand = Stand::open();
        for step in 0..8 {
            let before = tokio::time::Instant::now();
            stand.handle.inject_panic("a fault").unwrap();
            stand.settled().await;
            let waited = before.elapsed();
            let nominal = Duration::from_millis(10 << step).min(Duration::from_secs(2));
            assert!(
                waited >= nominal / 2 && waited <= nominal * 3 / 2 + Duration::from_millis(2),
                "restart {step} after {waited:?}, about {nominal:?} is due"
            );
        }
    });
}

#[test]
fn an_actor_that_panics_too_often_is_given_up_and_says_so() {
    on_one_thread(true, async {
        let stand = Stand::open();
        for _ in 0..RESTARTS_MAX {
            stand.handle.inject_panic("again").unwrap();
            stand.settled().await;
        }
        assert_eq!(stand.restarts().len(), RESTARTS_MAX);
        stand.handle.inject_panic("once too often").unwrap();
        let waiting = stand.handle.ask(|reply| Message::Echo(1, reply)).await;
        assert!(waiting.is_err(), "who waits is told");
        let last = stand.events.lock().unwrap().last().cloned();
        let Some(Event::ActorGivenUp {
            actor,
            reason,
            restarts,
            ..
        }) = last
        else {
            panic!("{last:?}")
        };
        assert_eq!((actor.as_str(), restarts), ("Puppet", 16));
        assert_eq!(reason, "once too often");
        assert!(stand.census.counts().is_empty());
        assert_eq!(stand.handle.post(Message::Note(1)), Err(TellError::Stopped));
        let asked = stand.handle.ask(|reply| Message::Echo(1, reply)).await;
        assert_eq!(asked, Err(AskError::Stopped));
    });
}

#[test]
fn panics_that_lie_far_apart_do_not_add_up() {
    on_one_thread(true, async {
        let stand = Stand::open();
        for _ in 0..3 * RESTARTS_MAX {
            stand.handle.inject_panic("now and then").unwrap();
            stand.settled().await;
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        let restarts = stand.restarts();
        assert_eq!(restarts.len(), 3 * RESTARTS_MAX);
        assert!(restarts.iter().all(|count| *count <= 7), "{restarts:?}");
    });
}

#[test]
fn a_factory_that_panics_is_tried_again_and_no_message_is_lost() {
    on_one_thread(true, async {
        let stand = Stand::build(Class::Node, None, 2);
        for number in 0..5 {
            stand.handle.post(Message::Note(number)).unwrap();
        }
        stand.settled().await;
        assert_eq!(stand.notes(), [0, 1, 2, 3, 4]);
        assert_eq!(stand.restarts(), [1, 2]);
    });
}

#[test]
fn a_blocked_actor_that_panics_later_keeps_what_waits() {
    on_one_thread(true, async {
        let stand = Stand::open();
        let gate = Arc::new(Notify::new());
        stand.handle.post(Message::Block(gate.clone())).unwrap();
        stand.handle.inject_panic("after the wait").unwrap();
        stand.handle.post(Message::Note(1)).unwrap();
        settle().await;
        assert!(stand.notes().is_empty());
        gate.notify_one();
        stand.settled().await;
        assert_eq!(stand.notes(), [1]);
        assert_eq!(stand.restarts(), [1]);
    });
}

#[test]
fn an_actor_lives_on_the_arbiter_of_its_class() {
    on_one_thread(true, async {
        for class in [Class::Gateway, Class::Node] {
            let stand = Stand::build(class, None, 0);
            stand.handle.inject_panic("a fault").unwrap();
            stand.settled().await;
            assert_eq!(
                *stand.env.spawned.lock().unwrap(),
                [class],
                "one task for all of its lives"
            );
        }
    });
}
