//! A federation at work, until its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;

use super::{FederationError, Recorder, Report, StateFolder};
use crate::control::Control;
use crate::world::World;
use tombolo_actors::crew::Crew;
use tombolo_actors::shell::Census;
use tombolo_core::coordinator::Message as CoordinatorMessage;
use tombolo_core::event::{Event, Finished};
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;

/// How long nodes may take to hear that the run is over.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// The same when somebody waits at the terminal.
const INTERRUPTED_LIMIT: Duration = Duration::from_millis(700);

/// How long the last packets may take to leave.
const DRAIN_LIMIT: Duration = Duration::from_millis(500);

/// A federation at work.
pub struct Running {
    pub(super) plan: Arc<Plan>,
    pub(super) crews: BTreeMap<NodeId, Crew>,
    pub(super) events: broadcast::Sender<Event>,
    pub(super) listener: broadcast::Receiver<Event>,
    pub(super) census: Census,
    pub(super) _control: Control,
    pub(super) world: World,
    pub(super) state: Option<StateFolder>,
    pub(super) recorder: Option<Recorder>,
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
        self.crews.values().any(|crew| crew.coordinator.is_some())
    }

    /// Living actors by type.
    pub fn census(&self) -> &Census {
        &self.census
    }

    /// Past facts from now on, as they happen.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Ends the run soon: the open round is given up, what is committed stays.
    pub fn stop(&self, interrupt: Interrupt) {
        let reason = match interrupt {
            Interrupt::Interrupted => "interrupted",
            Interrupt::Terminated => "terminated",
        };
        let message = CoordinatorMessage::Stop(reason.to_owned());
        let coordinator = self
            .crews
            .values()
            .find_map(|crew| crew.coordinator.as_ref());
        if let Some(coordinator) = coordinator {
            let _ = coordinator.post(tombolo_actors::coordinator::Message::Machine(message));
        }
    }

    /// Follows the run to its end.
    ///
    /// # Errors
    /// The report could not be written.
    pub async fn run(self) -> Result<Report, FederationError> {
        self.run_until(std::future::pending()).await
    }

    /// Follows the run to its end, or until `interrupt` happens; then ends it.
    ///
    /// # Errors
    /// The report could not be written.
    pub async fn run_until(
        mut self,
        interrupt: impl Future<Output = Interrupt>,
    ) -> Result<Report, FederationError> {
        let mut interrupt = std::pin::pin!(interrupt);
        let mut rounds = Vec::new();
        let mut stopping = false;
        let mut left: Vec<_> = self.crews.values().map(|crew| crew.left.clone()).collect();
        let hosts_coordinator = self.hosts_coordinator();
        let finished = loop {
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
                event = self.listener.recv() => match event {
                    Ok(Event::Round(record)) => rounds.push(record),
                    Ok(Event::Finished(finished)) => break finished,
                    // Nobody is left who could say the last word.
                    Ok(Event::ActorGivenUp { actor, reason, .. }) if actor == "Coordinator" => {
                        break departed(format!("the coordinator failed too often: {reason}"));
                    }
                    Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => {
                        return Err(FederationError::Machine("the federation ended without a last word".into()));
                    }
                },
                reason = gone => break departed(reason),
                why = &mut interrupt, if !stopping => {
                    stopping = true;
                    if !hosts_coordinator {
                        let reason = if why == Interrupt::Interrupted { "interrupted" } else { "terminated" };
                        break departed(reason.to_owned());
                    }
                    self.stop(why);
                }
            }
        };
        let report = Report { finished, rounds };
        let patience = match (stopping, hosts_coordinator) {
            (false, _) => LEAVE_LIMIT,
            (true, true) => INTERRUPTED_LIMIT,
            // Nobody is going to send this node away.
            (true, false) => Duration::ZERO,
        };
        self.wind_down(patience).await;
        if let Some(state) = &self.state {
            state.write_report(&report)?;
        }
        if let Some(recorder) = self.recorder.take() {
            recorder.close();
        }
        Ok(report)
    }

    async fn wind_down(&self, patience: Duration) {
        let everyone = async {
            for crew in self.crews.values() {
                let mut left = crew.left.clone();
                let _ = left.wait_for(Option::is_some).await;
            }
        };
        let _ = tokio::time::timeout(patience, everyone).await;
        for crew in self.crews.values() {
            crew.close("the run is over");
        }
        let drained = async {
            for crew in self.crews.values() {
                crew.drained().await;
            }
        };
        let _ = tokio::time::timeout(DRAIN_LIMIT, drained).await;
        for node in self.crews.keys() {
            self.world.stop(node).await;
        }
    }
}

/// The last word of a process without the coordinator.
fn departed(reason: String) -> Finished {
    Finished {
        rounds: 0,
        committed: 0,
        degraded: 0,
        aborted: 0,
        accuracy: 0.0,
        loss: 0.0,
        model_hash: Hash::default(),
        reason,
        wall_s: 0.0,
    }
}
