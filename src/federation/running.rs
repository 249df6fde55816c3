//! A federation at work, until its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{broadcast, watch};

use super::amendment;
use super::pulse::Pulse;
use super::vitals;
use super::waiting::Clock;
use super::{FederationError, Ledger, Paths, Recorders, Report, StateFolder, Waiting};
use crate::control::Control;
use crate::world::World;
use tombolo_actors::crew::{Crew, Farewell};
use tombolo_actors::env::Env;
use tombolo_actors::node::Ahead;
pub use tombolo_actors::node::DEPARTED;
use tombolo_actors::shell::Census;
use tombolo_core::coordinator::{AMENDED, Message as CoordinatorMessage};
use tombolo_core::event::{Event, Finished};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;

/// How long nodes may take to hear that the run is over.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// How long it may take until a node that was told to leave is not needed any more. Less than any supervisor of processes waits before it
/// kills; what takes longer is only a coordinator that cannot be reached.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// As [`LEAVE_LIMIT`], when somebody waits at the terminal.
const INTERRUPTED_LIMIT: Duration = Duration::from_millis(700);

/// How long nodes of other processes may take to acknowledge the last word. Whoever does not answer by then gives no sign of life.
const FAREWELL_LIMIT: Duration = Duration::from_secs(2);

/// How long the last packets may take to leave.
const PACKETS_LIMIT: Duration = Duration::from_millis(500);

/// Why a node that was told to leave ends in spite of who may still wait for it.
pub const NOT_DRAINED: &str = "terminated before it could drain: the coordinator took no note of it; is the coordinator, or the domain's gateway, down?";

/// Why a process ends whose coordinator is none any more; who is follows.
pub const STEPPED_DOWN: &str = "stepped down: ";

/// A federation at work.
pub struct Running {
    pub(super) plan: Arc<Plan>,
    pub(super) crews: BTreeMap<NodeId, Crew>,
    pub(super) events: broadcast::Sender<Event>,
    /// From the first event on, for whoever asks for it before the run is followed.
    pub(super) all_events: Vec<broadcast::Receiver<Event>>,
    pub(super) clock: Clock,
    pub(super) pulse: Option<Pulse>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) census: Census,
    pub(super) waiting: Arc<Waiting>,
    pub(super) paths: Paths,
    pub(super) sink: Arc<dyn Fn(Event) + Send + Sync>,
    pub(super) _control: Control,
    pub(super) world: World,
    pub(super) state: Option<StateFolder>,
    pub(super) recorders: Arc<Mutex<Recorders>>,
    /// Hash of the topology with which the run began, as each node knows it.
    pub(super) began_with: BTreeMap<NodeId, Hash>,
    /// Where the first node of this process acts.
    pub(super) env: Arc<dyn Env>,
    /// Looks for another topology by which the run may go on.
    pub(super) ahead: Option<Ahead>,
    /// Changes when a node of this process becomes coordinator, or is none any more.
    pub(super) role_changes: watch::Receiver<()>,
}

/// Why a run was ended from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupt {
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

impl Running {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The actors of a node of this process.
    pub fn crew(&self, node: &NodeId) -> Option<&Crew> {
        self.crews.get(node)
    }

    /// The nodes of this process.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.crews.keys()
    }

    /// Whether the coordinator is among them, so that the run ends with its word.
    pub fn hosts_coordinator(&self) -> bool {
        self.crews.values().any(Crew::coordinates)
    }

    /// Whether one of them is the coordinator or may become it.
    pub fn may_coordinate(&self) -> bool {
        self.crews.keys().any(|node| self.plan.may_coordinate(node))
    }

    pub(super) fn began_with(&self, node: &NodeId) -> Hash {
        self.began_with.get(node).copied().unwrap_or_default()
    }

    /// Nodes of this process and those of other ones that they need, as far as the topology does not give their addresses.
    pub fn unaddressed(&self) -> Vec<NodeId> {
        self.waiting.unaddressed()
    }

    /// Living actors by type.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// The rounds that ended, and the last word.
    pub fn ledger(&self) -> Arc<Ledger> {
        self.ledger.clone()
    }

    /// Past facts from now on, as they happen. A listener that falls far behind misses some, but none of the [`Ledger`]'s.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Past facts from the first one on, for what is shown of the run and for a page of it: twice, and only before the run is followed. A listener that
    /// falls far behind misses some.
    pub fn all_events(&mut self) -> Option<broadcast::Receiver<Event>> {
        self.all_events.pop()
    }

    /// Tells the time of this run: seconds since its process began, as the record has them.
    pub fn clock(&self) -> impl Fn() -> f64 + Send + Sync + use<> {
        let clock = self.clock.clone();
        move || clock().0 as f64 / 1e6
    }

    /// Makes the nodes of this process look at once whether certificates, keys and roots on disk have changed, as they do now and then.
    pub fn look_again(&self) -> impl Fn() + Send + Sync + use<> {
        let each = self.crews.values().map(|crew| crew.credentials.clone());
        let each: Vec<_> = each.collect();
        move || {
            for credentials in &each {
                // One that has no room for it is about to look.
                let _ = credentials.post(tombolo_actors::credentials::Message::Look);
            }
        }
    }

    /// Whether this process's arbiters still take their turns; once.
    pub fn pulse(&mut self) -> Option<Pulse> {
        self.pulse.take()
    }

    /// Ends the run soon: the open round is given up, what is committed stays.
    pub fn stop(&self, interrupt: Interrupt) {
        let reason = match interrupt {
            Interrupt::Interrupted => "interrupted",
            Interrupt::Terminated => "terminated",
        };
        let message = CoordinatorMessage::Stop(reason.to_owned());
        let mut acting = self.crews.values().filter(|crew| crew.coordinates());
        let coordinator = acting.find_map(|crew| crew.coordinator.as_ref());
        if let Some(coordinator) = coordinator {
            let _ = coordinator.post(tombolo_actors::coordinator::Message::Machine(message));
        }
    }

    /// Tells the nodes of this process to leave: whoever waits for them hears so, and the others go on. They come back as the same nodes.
    fn leave(&self) {
        for crew in self.crews.values() {
            let _ = crew.node.post(tombolo_actors::node::Message::Leave);
        }
    }

    /// Follows the run to its end. One that goes on by an amended topology ends here, too, with a reason that
    /// [`goes_on_by`](super::goes_on_by) reads: build the federation anew from the file, and spawn it with `resume(true)`.
    ///
    /// # Errors
    /// The report could not be written; it is in the error.
    pub async fn run(self) -> Result<Report, FederationError> {
        self.run_until(std::future::pending()).await
    }

    /// Follows the run to its end, or until `interrupt` happens; then ends it.
    ///
    /// # Errors
    /// The report could not be written; it is in the error.
    pub async fn run_until(
        mut self,
        interrupt: impl Future<Output = Interrupt>,
    ) -> Result<Report, FederationError> {
        let mut interrupt = std::pin::pin!(interrupt);
        let (waiting, sink) = (self.waiting.clone(), self.sink.clone());
        // Nobody asked for it, so nothing is kept for it.
        self.all_events.clear();
        let mut watch = std::pin::pin!(waiting.watch(sink.as_ref()));
        let mut measure = std::pin::pin!(self.paths.watch(&self.clock, sink.as_ref()));
        let left = |crew: &Crew| {
            let own = crew.identity.own();
            own.not_after.saturating_sub(crate::world::unix_now())
        };
        let mut feel = std::pin::pin!(vitals::watch(&self.crews, &left, sink.as_ref()));
        let ledger = self.ledger.clone();
        let mut summoned = std::pin::pin!(amendment::summons(
            &waiting,
            self.ahead.as_ref(),
            self.env.as_ref()
        ));
        let mut stopping = None;
        let mut left: Vec<_> = self.crews.values().map(|crew| crew.left.clone()).collect();
        let mut role_changes = self.role_changes.clone();
        let mut is_over = false;
        let mut finished = loop {
            let hosts_coordinator = self.hosts_coordinator();
            let patience = match hosts_coordinator {
                true => self.plan.round.close_limit + LEAVE_LIMIT,
                false => DRAIN_LIMIT,
            };
            let gone = async {
                if hosts_coordinator {
                    return std::future::pending().await;
                }
                let mut reason = String::new();
                for left in &mut left {
                    if let Ok(said) = left.wait_for(Option::is_some).await {
                        reason = said.clone().unwrap_or_default();
                    }
                }
                reason
            };
            tokio::select! {
                biased;
                finished = ledger.finished() => {
                    is_over = !finished.reason.starts_with(STEPPED_DOWN);
                    break finished;
                }
                Ok(()) = role_changes.changed() => {}
                reason = gone => {
                    is_over = reason != DEPARTED;
                    break Finished::without_rounds(reason);
                }
                topology = &mut summoned, if !hosts_coordinator => {
                    break Finished::without_rounds(format!("{AMENDED}{topology}"));
                }
                never = &mut watch => match never {},
                never = &mut measure => match never {},
                never = &mut feel => match never {},
                why = &mut interrupt, if stopping.is_none() => {
                    stopping = Some(why);
                    if hosts_coordinator {
                        self.stop(why);
                    } else if self.crews.values().any(|crew| crew.presence.has_joined()) {
                        self.leave();
                    } else {
                        break Finished::without_rounds(DEPARTED.to_owned());
                    }
                }
                () = tokio::time::sleep(patience), if stopping.is_some() => {
                    break Finished::without_rounds(match hosts_coordinator {
                        // Code of the user's that blocks the coordinator's thread must not keep the process.
                        true => "interrupted; the coordinator did not answer: does an aggregation actor block?".to_owned(),
                        false => NOT_DRAINED.to_owned(),
                    });
                }
            }
        };
        // Whoever places this record beside others goes from here back to the last look.
        let offsets = self.paths.offsets((self.clock)());
        offsets.map(Event::ClockMeasured).for_each(sink.as_ref());
        let hosts_coordinator = self.hosts_coordinator();
        let farewell = match is_over {
            true => Farewell::Over(finished.reason.clone()),
            false => Farewell::Leaves,
        };
        if stopping == Some(Interrupt::Interrupted) && !hosts_coordinator {
            finished.reason = "interrupted".to_owned();
        }
        if let Some(topology) = amendment::goes_on_by(&finished) {
            self.keep_memories(topology);
            // Who told this process to end did not mean it to begin again.
            match stopping {
                Some(Interrupt::Interrupted) => finished.reason = "interrupted".to_owned(),
                Some(Interrupt::Terminated) => finished.reason = "terminated".to_owned(),
                None => {}
            }
        }
        let rounds = ledger.rounds_from(0);
        let objections = self.ledger.objections();
        let report = Report {
            finished,
            rounds,
            objections,
        };
        let began = report.finished.rounds > 0 || report.finished.reason.is_empty();
        let patience = match (stopping, hosts_coordinator) {
            // Whoever is not there yet has nothing to lose.
            (None, true) if !began => INTERRUPTED_LIMIT,
            (None, _) => LEAVE_LIMIT,
            (Some(_), true) => INTERRUPTED_LIMIT,
            // Nobody is going to send this node away.
            (Some(_), false) => Duration::ZERO,
        };
        if !self.wind_down(patience, &farewell).await {
            // Its threads cannot be joined; they end with the process.
            std::mem::forget(self.world);
        }
        let recorders = self.recorders.lock();
        recorders.unwrap_or_else(PoisonError::into_inner).close();
        // A run that could not begin leaves the report of the one before.
        let state = self.state.as_ref().filter(|_| report.finished.rounds > 0);
        match state.map_or(Ok(()), |state| state.write_report(&report)) {
            Ok(()) => Ok(report),
            Err(error) => Err(FederationError::Report {
                report: Box::new(report),
                error,
            }),
        }
    }

    /// Ends every node; false if one could not be ended in time.
    async fn wind_down(&self, patience: Duration, word: &Farewell) -> bool {
        let gone = self.crews.values().map(|crew| {
            let mut left = crew.left.clone();
            async move { left.wait_for(Option::is_some).await.is_ok() }
        });
        all_within(patience, gone).await;
        // Closing drops what is not yet sent, and the last word to nodes of other processes may be among it.
        let farewell = patience.min(FAREWELL_LIMIT);
        let elsewhere = |peer: &NodeId| !self.crews.contains_key(peer);
        let settled = self.crews.values();
        let settled = settled.map(|crew| crew.settle(elsewhere, farewell));
        all_within(farewell, settled).await;
        for crew in self.crews.values() {
            crew.close(word);
        }
        all_within(PACKETS_LIMIT, self.crews.values().map(Crew::drained)).await;
        let stopped = self.crews.keys().map(|node| self.world.stop(node));
        all_within(LEAVE_LIMIT, stopped).await
    }
}

/// Waits until all of that has happened, however many they are no longer than `limit`; false if something has not. What is waited for goes on
/// by itself, so it does not matter that one is asked behind the other.
async fn all_within<F: Future>(limit: Duration, waits: impl Iterator<Item = F>) -> bool {
    let all = async {
        for wait in waits {
            wait.await;
        }
    };
    tokio::time::timeout(limit, all).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Federation;

    const SMALL: &str = r#"
        [federation]
        name = "small"
        rounds = 3
        sync_every = 1
        [model]
        trainer = "digits-softmax"
        [[domain]]
        name = "hq"
        nodes = ["gate"]
        [[domain]]
        name = "plant"
        nodes = ["gate"]
    "#;

    #[tokio::test(start_paused = true)]
    async fn however_many_are_waited_for_it_takes_no_longer_than_the_limit() {
        let began = tokio::time::Instant::now();
        let waits = |seconds: [u64; 3]| {
            let waits = seconds.into_iter().map(Duration::from_secs);
            waits.map(|after| tokio::time::sleep_until(began + after))
        };
        assert!(all_within(FAREWELL_LIMIT, waits([1, 0, 1])).await);
        assert_eq!(began.elapsed(), Duration::from_secs(1));
        assert!(!all_within(FAREWELL_LIMIT, waits([60, 90, 70])).await);
        assert_eq!(began.elapsed(), Duration::from_secs(1) + FAREWELL_LIMIT);
    }

    /// "Waiting for nodes is never silent or endless." flower#4147, FLIP#992
    #[tokio::test]
    async fn a_node_that_reaches_nobody_says_so_and_gives_up_in_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let federation = Federation::from_toml(SMALL, folder.path()).unwrap();
        let mut federation = federation.state(folder.path());
        assert_eq!(federation.plan().round.patience, Duration::from_secs(5490));
        federation.blueprint.plan.round.patience = Duration::from_secs(4);
        federation.prepare().unwrap();
        let node: NodeId = "plant/gate".parse().unwrap();
        let running = federation.spawn_node(&node).await.unwrap();
        assert_eq!(running.unaddressed().len(), 2);
        let mut events = running.events();
        let report = running.run().await.unwrap();
        let mut waits = Vec::new();
        while let Ok(event) = events.try_recv() {
            if let Event::NodeWaits(wait) = event {
                waits.push(wait);
            }
        }
        let wait = &waits[0];
        assert_eq!(
            (wait.missing[0].node.as_str(), wait.have, wait.need),
            ("hq/gate", 0, 1)
        );
        assert!(wait.left_s.unwrap() < 4, "{wait:?}");
        let reason = &report.finished.reason;
        let expected = "plant/gate has not reached hq/gate (no address yet) for 4 s";
        assert!(reason.starts_with(expected), "{reason}");
    }

    /// Field fault: without a coordinator nodes stop after the configured time and free everything. ray#64349, kuberay#1141: with the coordinator gone for good, a gateway gives up and its domain with it, and nothing is left of them.
    #[tokio::test]
    async fn a_domain_without_a_coordinator_ends_with_its_gateway() {
        let folder = tempfile::tempdir().unwrap();
        let text = SMALL.replace("rounds = 3", "rounds = 900000").replace(
            "name = \"plant\"\n        nodes = [\"gate\"]",
            "name = \"plant\"\n        nodes = [\"gate\", \"c\"]",
        );
        let federation = || {
            let federation = Federation::from_toml(&text, folder.path()).unwrap();
            let mut federation = federation.state(folder.path().join("state"));
            federation.blueprint.plan.round.patience = Duration::from_secs(6);
            federation
        };
        federation().prepare().unwrap();
        let spawn = async |name: &str| {
            let node = name.parse().unwrap();
            federation().spawn_node(&node).await.unwrap()
        };
        let (coordinator, gateway, member) = (
            spawn("hq/gate").await,
            spawn("plant/gate").await,
            spawn("plant/c").await,
        );
        let mut events = coordinator.events();
        while !matches!(events.recv().await, Ok(Event::Round(record)) if record.counted.len() == 3)
        {
        }
        // As a crash: nobody is told that the run is over.
        drop(coordinator);
        let census = [gateway.census().clone(), member.census().clone()];
        let (gateway, member) = tokio::join!(gateway.run(), member.run());
        for report in [gateway, member] {
            let reason = report.unwrap().finished.reason;
            assert!(
                reason.starts_with("plant/gate has not reached hq/gate"),
                "{reason}"
            );
        }
        for census in census {
            assert!(census.counts().is_empty(), "{:?}", census.counts());
        }
        let run = folder.path().join("state/run");
        let mut left = Vec::new();
        for part in [run.clone(), run.join("fabric")] {
            for entry in std::fs::read_dir(part).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                left.extend((name.contains("plant") && name.ends_with(".sock")).then_some(name));
            }
        }
        assert_eq!(left, [""; 0]);
    }

    /// What is said before anybody listens, such as that the run is paused, is heard by what is shown of it and by a page of it.
    #[tokio::test]
    async fn two_listeners_hear_a_run_from_its_first_event_on() {
        let folder = tempfile::tempdir().unwrap();
        let federation = Federation::from_toml(SMALL, folder.path()).unwrap();
        let mut running = federation.state(folder.path()).spawn().await.unwrap();
        running.ledger().finished().await;
        for listener in ["shown", "a page"] {
            let mut events = running.all_events().expect(listener);
            let first = events.try_recv();
            assert!(
                matches!(first, Ok(Event::NodeStarted { .. })),
                "{listener}: {first:?}"
            );
        }
        assert!(running.all_events().is_none());
        running.run().await.unwrap();
    }

    /// However many events come between, the report has every round and the run its end.
    #[tokio::test]
    async fn no_round_is_lost_to_a_flood_of_events() {
        let folder = tempfile::tempdir().unwrap();
        let federation = Federation::from_toml(SMALL, folder.path()).unwrap();
        let running = federation.state(folder.path()).spawn().await.unwrap();
        running.ledger().finished().await;
        for round in 0..=super::super::EVENTS_KEPT as u64 {
            // Whether anybody listens does not matter.
            let _ = running.events.send(Event::QuorumReached { round });
        }
        let report = running.run().await.unwrap();
        let rounds: Vec<_> = report.rounds.iter().map(|record| record.round).collect();
        assert_eq!(rounds, [1, 2, 3]);
        assert_eq!(report.finished.committed + report.finished.degraded, 3);
    }
}
