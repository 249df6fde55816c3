//! Whether this node coordinates: the actor lives on every node that may, and the machine in it is at work on one.
//!
//! The last view in the store says who. A standby does nothing until a user promotes it; then it writes the next view, which fences the
//! coordinator before it, and begins as a coordinator does that was restarted. A coordinator that finds itself fenced says nothing more to
//! anybody and steps down.

use super::{Coordinator, Promoted, Setup};
use crate::checkpoint::{self, CheckpointError};
use crate::shell::{ASKS_MAX, AskError, Cx, Reply, later};
use tombolo_core::coordinator as machine;
use tombolo_core::event::Event;
use tombolo_core::ids::{Epoch, NodeId};
use tombolo_core::policy::{self, Action};
use tombolo_core::tensor::Hash;

/// A machine that has not begun.
pub(super) fn machine(setup: &Setup) -> machine::Coordinator {
    let plan = setup.stage.plan.as_ref().clone();
    machine::Coordinator::new(plan, setup.layout.clone()).on(setup.stage.node.clone())
}

impl Coordinator {
    pub(super) fn acts(&self) -> bool {
        self.setup.durable().acts == Some(true)
    }

    fn set_acts(&mut self, acts: bool) {
        self.setup.durable().acts = Some(acts);
        self.setup.board().acts = acts;
    }

    pub(super) fn run(&self) -> Hash {
        self.setup.durable().run.unwrap_or(self.setup.run)
    }

    /// Begins if this node is the coordinator.
    pub(super) fn learn_whether_it_acts(&mut self, cx: &mut Cx<Self>) {
        let plan = &self.setup.stage.plan;
        let is_first = self.setup.stage.node == plan.coordinator;
        if !plan.shares_store() {
            self.set_acts(is_first);
            return self.begin(cx);
        }
        let checkpoint = self.setup.checkpoint.clone();
        let looked = async move {
            checkpoint
                .ask_again(ASKS_MAX, checkpoint::Message::Look)
                .await
        };
        later(cx, looked, move |coordinator, looked, cx| {
            let me = coordinator.setup.stage.node.clone();
            if coordinator.setup.durable().acts.is_some() {
                return;
            }
            if let Ok(Ok(Some((view, _)))) = &looked {
                coordinator.setup.durable().known = Some(view.coordinator.clone());
            }
            match looked {
                Ok(Ok(Some((view, run)))) if view.coordinator == me => {
                    if !is_first {
                        // It was promoted in an earlier life. Only the first one's state folder says which run this is.
                        coordinator.setup.durable().run = run;
                    }
                    coordinator.set_acts(true);
                    coordinator.begin(cx);
                }
                Ok(Ok(Some((view, _)))) if is_first => {
                    coordinator.step_down(&view.coordinator, view.epoch);
                }
                Ok(Ok(None)) if is_first => {
                    coordinator.set_acts(true);
                    coordinator.begin(cx);
                }
                Ok(Ok(_)) => coordinator.set_acts(false),
                failed if is_first => {
                    coordinator.set_acts(true);
                    if let Some(Err(reason)) = coordinator.written(cx, failed) {
                        coordinator.fail(cx, reason);
                    }
                }
                failed => {
                    tracing::warn!(node = %me, ?failed, "a standby cannot read the coordinator's store: it could not be promoted now");
                    coordinator.set_acts(false);
                }
            }
        });
    }

    /// A user makes this node the coordinator.
    pub(super) fn promote(&mut self, cx: &mut Cx<Self>, reply: Reply<Result<Promoted, String>>) {
        if self.acts() {
            let epoch = self.machine.view().epoch;
            return reply.send(Ok(Promoted {
                epoch,
                already: true,
            }));
        }
        let (plan, me) = (&self.setup.stage.plan, &self.setup.stage.node);
        let verdict = policy::of(plan, &me.domain(), me, Action::Coordinate, me);
        if !verdict.allowed {
            self.setup.stage.deny(&verdict);
            return reply.send(Err(verdict.to_string()));
        }
        let checkpoint = self.setup.checkpoint.clone();
        let known = self.setup.durable().known.clone();
        let after = known.unwrap_or_else(|| self.setup.stage.plan.coordinator.clone());
        let appointed = async move {
            let question = |reply| checkpoint::Message::Appoint(after.clone(), reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        later(cx, appointed, move |coordinator, appointed, cx| {
            let (view, run) = match appointed {
                Ok(Ok(appointed)) => appointed,
                Ok(Err(error)) => {
                    if let CheckpointError::Meanwhile { by, .. } = &error {
                        coordinator.setup.durable().known = Some(by.clone());
                    }
                    return reply.send(Err(error.to_string()));
                }
                Err(error) => return reply.send(Err(format!("the checkpoint actor: {error}"))),
            };
            let (stage, epoch) = (coordinator.setup.stage.clone(), view.epoch);
            if coordinator.acts() {
                // Asked twice.
                return reply.send(Ok(Promoted {
                    epoch,
                    already: true,
                }));
            }
            {
                let mut durable = coordinator.setup.durable();
                // What others have recorded since this node last did is not its to report.
                (durable.run, durable.reported) = (Some(run), None);
                durable.known = Some(stage.node.clone());
            }
            coordinator.set_acts(true);
            stage.report(Event::EpochChanged { view });
            stage.report(Event::CoordinatorPromoted {
                node: stage.node.clone(),
                epoch,
            });
            reply.send(Ok(Promoted {
                epoch,
                already: false,
            }));
            coordinator.renew();
            coordinator.begin(cx);
        });
    }

    /// Another node is the coordinator. Nobody is told: they know better, or will not hear of it from here.
    pub(super) fn step_down(&mut self, by: &NodeId, epoch: Epoch) {
        let acted = self.acts();
        if self.setup.durable().acts == Some(false) || *by == self.setup.stage.node {
            return;
        }
        self.set_acts(false);
        self.renew();
        {
            let mut board = self.setup.board();
            (board.progress, board.membership, board.paused) = (None, None, None);
        }
        self.setup.stage.report(Event::CoordinatorSteppedDown {
            node: self.setup.stage.node.clone(),
            by: by.clone(),
            epoch,
            acted,
        });
    }

    /// Forgets everything but what is written down.
    fn renew(&mut self) {
        self.machine = machine(&self.setup);
        let life = {
            let mut durable = self.setup.durable();
            durable.lives += 1;
            durable.lives
        };
        self.life = life;
        (self.model, self.mean, self.bench) = (None, None, None);
        (self.computed, self.fold, self.asked) = (None, None, None);
        self.tally = (0, 0, 0);
        self.orders.clear();
    }

    /// What the checkpoint actor said; nothing if that ends this coordinator's work, or has it begin anew.
    pub(super) fn written<T>(
        &mut self,
        cx: &mut Cx<Self>,
        answer: Result<Result<T, CheckpointError>, AskError>,
    ) -> Option<Result<T, String>> {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Some(Err(format!("the checkpoint actor: {error}"))),
        };
        match answer {
            Err(CheckpointError::Superseded { by, epoch }) => {
                self.step_down(&by, epoch);
                None
            }
            Err(CheckpointError::Taken(_) | CheckpointError::TakenView(_))
                if self.setup.stage.plan.shares_store() =>
            {
                self.reconsider(cx);
                None
            }
            answer => Some(answer.map_err(|error| error.to_string())),
        }
    }

    /// Somebody else has written what this coordinator was about to write. If the last view still names it, it was the one before it, with the
    /// last thing that it did: the work goes on from there.
    fn reconsider(&mut self, cx: &mut Cx<Self>) {
        self.renew();
        tracing::info!(node = %self.setup.stage.node, "another coordinator was quicker: what it wrote is read back");
        // Refused with the name of whoever it is now, if it is not this node.
        self.begin(cx);
    }
}
