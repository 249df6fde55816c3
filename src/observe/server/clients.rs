//! Pages that listen to events. Each has a short queue; one that does not keep up is dropped, and told so.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::response::sse::Event as Line;
use futures_util::Stream;
use tokio::sync::mpsc;

use super::lock;
use crate::explain::Past;

/// Pages that may listen at a time.
const CLIENTS_MAX: usize = 16;

/// Events that a page may be behind. It asks for the whole picture anyway, so it loses nothing if it must begin anew.
const BEHIND_MAX: usize = 256;

/// All who listen.
#[derive(Default)]
pub(super) struct Clients(Mutex<State>);

#[derive(Default)]
struct State {
    listening: Vec<Client>,
    is_over: bool,
}

struct Client {
    events: mpsc::Sender<Arc<str>>,
    fell_behind: Arc<AtomicBool>,
}

/// What a new page hears.
pub(super) struct Listener {
    events: mpsc::Receiver<Arc<str>>,
    fell_behind: Arc<AtomicBool>,
}

impl Clients {
    /// A new page, unless there are too many.
    pub fn admit(&self) -> Option<Listener> {
        let mut state = lock(&self.0);
        state.listening.retain(|client| !client.events.is_closed());
        if state.listening.len() == CLIENTS_MAX {
            return None;
        }
        let (events, receiver) = mpsc::channel(BEHIND_MAX);
        let fell_behind = Arc::new(AtomicBool::new(false));
        // Whoever comes after the end hears just that.
        if !state.is_over {
            state.listening.push(Client {
                events,
                fell_behind: fell_behind.clone(),
            });
        }
        Some(Listener {
            events: receiver,
            fell_behind,
        })
    }

    /// Tells everybody; waits for nobody.
    pub fn tell(&self, past: &Past) {
        let listening = &mut lock(&self.0).listening;
        if listening.is_empty() {
            return;
        }
        let Ok(text) = serde_json::to_string(past) else {
            return;
        };
        let text: Arc<str> = text.into();
        listening.retain(|client| {
            let told = client.events.try_send(text.clone());
            if matches!(told, Err(mpsc::error::TrySendError::Full(_))) {
                client.fell_behind.store(true, Ordering::Relaxed);
            }
            told.is_ok()
        });
    }

    /// The run is over; whether anybody listened.
    pub fn end(&self) -> bool {
        let mut state = lock(&self.0);
        state.is_over = true;
        let count = std::mem::take(&mut state.listening).len();
        count > 0
    }
}

impl Listener {
    /// What it hears, and at last why it hears no more.
    pub fn lines(self) -> impl Stream<Item = Result<Line, Infallible>> {
        futures_util::stream::unfold(Some(self), |listener| async {
            let mut listener = listener?;
            Some(match listener.events.recv().await {
                Some(text) => (Ok(Line::default().event("past").data(text)), Some(listener)),
                None => {
                    let (name, why) = match listener.fell_behind.load(Ordering::Relaxed) {
                        true => ("dropped", "this page did not keep up with the events"),
                        false => ("end", "the run is over"),
                    };
                    (Ok(Line::default().event(name).data(why)), None)
                }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use tombolo_core::event::Event;

    fn past(round: u64) -> Past {
        Past {
            at: 0.0,
            life: 0,
            event: Event::QuorumReached { round },
        }
    }

    #[tokio::test]
    async fn who_does_not_keep_up_is_dropped_and_told_and_others_hear_all() {
        let clients = Clients::default();
        let (slow, mut quick) = (clients.admit().unwrap(), clients.admit().unwrap());
        let sent = 3 * BEHIND_MAX as u64;
        for round in 0..sent {
            clients.tell(&past(round));
            let heard = quick.events.recv().await.unwrap();
            assert_eq!(serde_json::from_str::<Past>(&heard).unwrap(), past(round));
        }
        assert_eq!(lock(&clients.0).listening.len(), 1);
        let told: Vec<_> = slow.lines().collect().await;
        assert_eq!(told.len(), BEHIND_MAX + 1);
        assert!(
            format!("{:?}", told.last()).contains("dropped"),
            "{:?}",
            told.last()
        );
        assert!(clients.end());
        let told: Vec<_> = quick.lines().collect().await;
        assert_eq!(told.len(), 1);
        assert!(format!("{told:?}").contains("the run is over"));
    }

    #[test]
    fn pages_that_went_away_make_room_and_too_many_are_refused() {
        let clients = Clients::default();
        let mut there: Vec<_> = (0..CLIENTS_MAX).map(|_| clients.admit().unwrap()).collect();
        assert!(clients.admit().is_none());
        there.pop();
        assert!(clients.admit().is_some());
    }
}
