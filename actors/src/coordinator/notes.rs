//! What the coordinator writes down before anybody is told of it.

use super::{Coordinator, sums};
use crate::checkpoint;
use crate::shell::{ASKS_MAX, Cx, later};
use tombolo_core::aggregate::Needs;
use tombolo_core::coordinator::{self as machine, Amendment, NoteError, Paused, Weighing};
use tombolo_core::plan::Durability;
use tombolo_core::view::View;
use tombolo_core::wire::Contribution;

impl Coordinator {
    pub(super) fn write_view(&self, cx: &mut Cx<Self>, view: View) {
        let (checkpoint, epoch) = (self.setup.checkpoint.clone(), view.epoch);
        let stored = async move {
            let question = |reply| checkpoint::Message::View(view.clone(), reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        later(cx, stored, move |coordinator, stored, cx| {
            if let Some(stored) = coordinator.written(cx, stored) {
                coordinator.step(cx, Some(machine::Message::Viewed(epoch, stored)));
            }
        });
    }

    pub(super) fn fix(&self, cx: &mut Cx<Self>, weighing: Weighing) {
        let (round, checkpoint) = (weighing.round, self.setup.checkpoint.clone());
        let fixed = async move {
            let question = |reply| checkpoint::Message::Fix(weighing.clone(), reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        later(cx, fixed, move |coordinator, fixed, cx| {
            if let Some(fixed) = coordinator.written(cx, fixed) {
                coordinator.step(cx, Some(machine::Message::Fixed(round, fixed)));
            }
        });
    }

    pub(super) fn note(&self, cx: &mut Cx<Self>, contribution: Contribution) {
        let (round, domain, attempt) = (
            contribution.round,
            contribution.domain.clone(),
            contribution.attempt,
        );
        let (setup, link) = (self.setup.clone(), self.link(&domain));
        let noted = async move {
            // A rule that looks at all updates before it folds them reads them twice; they cross the WAN once.
            let plan = &setup.stage.plan;
            let twice = plan.aggregator.needs == Needs::EachTwice;
            if twice || plan.round.durability == Durability::Journal {
                let domain = (contribution.clone(), link);
                sums::write_down(&setup, &domain).await?;
            }
            let question = |reply| checkpoint::Message::Note(contribution.clone(), reply);
            Ok(setup.checkpoint.ask_again(ASKS_MAX, question).await)
        };
        later(cx, noted, move |coordinator, result, cx| {
            let result = match result {
                Ok(answer) => {
                    let written = coordinator.written(cx, answer);
                    written.map(|written| written.map_err(NoteError::Disk))
                }
                Err(error) => Some(Err(error)),
            };
            if let Some(result) = result {
                let noted = machine::Message::Noted(round, domain, attempt, result);
                coordinator.step(cx, Some(noted));
            }
        });
    }

    /// Writes down that the run is paused, or that it is not any more.
    pub(super) fn write_pause(&self, cx: &mut Cx<Self>, number: u64, paused: Option<Paused>) {
        let checkpoint = self.setup.checkpoint.clone();
        let held = async move {
            let question = |reply| checkpoint::Message::Hold(paused.clone(), reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        later(cx, held, move |coordinator, held, cx| {
            if let Some(held) = coordinator.written(cx, held) {
                coordinator.step(cx, Some(machine::Message::Held(number, held)));
            }
        });
    }

    /// Writes down by which topology the run goes on.
    pub(super) fn write_amendment(
        &self,
        cx: &mut Cx<Self>,
        number: u64,
        Amendment { configuration, .. }: Amendment,
    ) {
        let checkpoint = self.setup.checkpoint.clone();
        let amended = async move {
            let question = |reply| checkpoint::Message::Amend(configuration, reply);
            checkpoint.ask_again(ASKS_MAX, question).await
        };
        later(cx, amended, move |coordinator, amended, cx| {
            if let Some(amended) = coordinator.written(cx, amended) {
                coordinator.step(cx, Some(machine::Message::Amended(number, amended)));
            }
        });
    }
}
