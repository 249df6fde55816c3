//! However one sends, what waits is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use tombolo_actors::shell::{AskError, QUEUE, TellError, WINDOW};

use crate::stand::{Message, Stand, on_one_thread, settle};

#[test]
fn a_thousand_clones_share_one_bound() {
    on_one_thread(true, async {
        let gate = Arc::new(Notify::new());
        let stand = Stand::closed(&gate);
        let mut accepted = 0;
        for round in 0..4 {
            for number in 0..1000 {
                let posted = stand.handle.clone().post(Message::Note(number));
                match posted {
                    Ok(()) => accepted += 1,
                    Err(error) => assert_eq!(error, TellError::Full),
                }
            }
            settle().await;
            let begun = accepted - stand.handle.depth();
            assert!(begun <= WINDOW, "round {round}: {begun} in the mailbox");
        }
        assert_eq!(accepted, QUEUE + WINDOW);
        assert!(stand.notes().is_empty(), "nothing was handled meanwhile");
        gate.notify_one();
        stand.settled().await;
        assert_eq!(stand.notes().len(), QUEUE + WINDOW);
    });
}

#[test]
fn tell_and_ask_wait_at_the_same_bound() {
    on_one_thread(true, async {
        let gate = Arc::new(Notify::new());
        let stand = Stand::closed(&gate);
        let told = Arc::new(AtomicUsize::new(0));
        for number in 0..1000 {
            let (handle, counter) = (stand.handle.clone(), told.clone());
            tokio::task::spawn_local(async move {
                handle.tell(Message::Note(number)).await.unwrap();
                counter.fetch_add(1, Ordering::Relaxed);
            });
        }
        let answered = Arc::new(AtomicUsize::new(0));
        for number in 0..1000 {
            let (handle, counter) = (stand.handle.clone(), answered.clone());
            tokio::task::spawn_local(async move {
                let answer = handle.ask(|reply| Message::Echo(number, reply)).await;
                assert_eq!(answer, Ok(number));
                counter.fetch_add(1, Ordering::Relaxed);
            });
        }
        settle().await;
        // All of the told ones are in, and of the asked ones what is left of the bound.
        assert_eq!(told.load(Ordering::Relaxed), 1000);
        assert_eq!(stand.handle.depth(), QUEUE);
        assert_eq!(
            stand.handle.post(Message::Note(0)),
            Err(TellError::Full),
            "a permit of the mailbox is no place in the queue"
        );
        gate.notify_one();
        while answered.load(Ordering::Relaxed) < 1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(stand.notes().len(), 1000);
    });
}

#[test]
fn what_must_not_be_lost_waits_in_order_and_in_bounds() {
    on_one_thread(true, async {
        let gate = Arc::new(Notify::new());
        let stand = Stand::closed(&gate);
        settle().await;
        let sent = u32::try_from(2 * QUEUE + WINDOW + 100).unwrap();
        for number in 0..sent {
            stand.handle.deliver(Message::Note(number));
            if number % 500 == 0 {
                settle().await;
            }
        }
        gate.notify_one();
        while stand.handle.depth() > 0 {
            tokio::task::yield_now().await;
        }
        stand.settled().await;
        // The first one was alone when it was taken out of the queue, and no other is before it is done.
        let kept = u32::try_from(2 * QUEUE + 1).unwrap();
        assert_eq!(stand.notes(), (0..kept).collect::<Vec<_>>());
    });
}

#[test]
fn a_reserved_place_is_filled_at_once_and_given_back_if_it_is_not() {
    on_one_thread(true, async {
        let gate = Arc::new(Notify::new());
        let stand = Stand::closed(&gate);
        settle().await;
        let place = stand.handle.reserve().await.unwrap();
        assert_eq!(stand.handle.depth(), 1);
        drop(place);
        assert_eq!(stand.handle.depth(), 0);
        stand.handle.reserve().await.unwrap().fill(Message::Note(5));
        gate.notify_one();
        stand.settled().await;
        assert_eq!(stand.notes(), [5]);
    });
}

#[test]
fn an_actor_that_stopped_says_so_to_every_kind_of_sender() {
    on_one_thread(true, async {
        let stand = Stand::open();
        stand.settled().await;
        assert_eq!(stand.census.counts()["Puppet"], 1);
        stand.handle.post(Message::Stop).unwrap();
        settle().await;
        assert!(stand.census.counts().is_empty());
        assert_eq!(stand.restarts(), [0; 0], "a stop is no failure");
        assert_eq!(stand.handle.post(Message::Note(1)), Err(TellError::Stopped));
        assert_eq!(
            stand.handle.tell(Message::Note(1)).await,
            Err(TellError::Stopped)
        );
        let answer = stand.handle.ask(|reply| Message::Echo(1, reply)).await;
        assert_eq!(answer, Err(AskError::Stopped));
        assert!(stand.handle.reserve().await.is_err());
        assert_eq!(
            stand.handle.inject_panic("too late"),
            Err(TellError::Stopped)
        );
        stand.handle.deliver(Message::Note(1));
    });
}

#[test]
fn what_is_delivered_later_does_not_overtake_what_waits() {
    on_one_thread(true, async {
        let gate = Arc::new(Notify::new());
        let stand = Stand::closed(&gate);
        for _ in 0..QUEUE {
            stand.handle.post(Message::Note(0)).unwrap();
        }
        // Runs behind the task that makes room, but before the task in which the first message waits has been polled.
        let handle = stand.handle.clone();
        let later = tokio::task::spawn_local(async move {
            assert!(handle.depth() < QUEUE, "there is room again");
            handle.deliver(Message::Note(2));
        });
        stand.handle.deliver(Message::Note(1));
        later.await.unwrap();
        gate.notify_one();
        stand.settled().await;
        settle().await;
        let notes: Vec<u32> = stand.notes().into_iter().filter(|note| *note > 0).collect();
        assert_eq!(notes, [1, 2]);
    });
}
