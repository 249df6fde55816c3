//! A rule whose actor blocks its thread: the round ends in time and says whom it waited for.

use std::sync::{Arc, Mutex, mpsc};

use actix::Actor;
use tombolo_actors::aggregate::Weigh;
use tombolo_core::aggregate::{AggregateError, Weight};
use tombolo_core::event::RoundState;

use crate::stand::{LIMIT, Tiny, federation, topology, within_limit};

/// Waits in its handler until the other end of the channel is dropped; in a federation that hangs, no longer than the test.
struct Stuck(Arc<Mutex<mpsc::Receiver<()>>>);

impl Actor for Stuck {
    type Context = actix::Context<Self>;
}

impl actix::Handler<Weigh> for Stuck {
    type Result = Result<Vec<Weight>, AggregateError>;

    fn handle(&mut self, _: Weigh, _: &mut Self::Context) -> Self::Result {
        let _ = self.0.lock().unwrap().recv_timeout(LIMIT);
        Err(AggregateError::Rule("at last".into()))
    }
}

/// ROUND-6: the outcome of a round is recorded within `close_limit`, whatever a user's code does with its thread.
#[test]
fn a_blocking_aggregation_actor_holds_up_no_round_beyond_the_close_limit() {
    let limits = "quorum = \"all\"\ndeadline = \"10min\"\nclose_limit = \"1s\"\nfailed_limit = 2";
    let toml = topology(9, limits).replace("\"fedavg\"", "\"stuck\"");
    let (_folder, federation) = federation(&toml);
    let (release, held) = mpsc::channel();
    let held = Arc::new(Mutex::new(held));
    let federation = federation
        .trainer(|_| Tiny::new())
        .aggregator_actor("stuck", move || Stuck(held.clone()).start().recipient());
    let report = within_limit(async { federation.spawn().await.unwrap().run().await.unwrap() });
    drop(release);
    assert_eq!(report.rounds.len(), 2, "{report:?}");
    for round in &report.rounds {
        assert_eq!(round.state, RoundState::Aborted);
        let reason = &round.reason;
        assert!(
            reason.contains("close_limit") && reason.contains("\"stuck\""),
            "{reason}"
        );
        assert!(round.elapsed_s < 20.0, "{}", round.elapsed_s);
    }
    let reason = &report.finished.reason;
    assert!(reason.contains("2 rounds in a row failed"), "{reason}");
}
