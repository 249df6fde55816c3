//! The member side of a node: what its [`Member`](tombolo_core::member::Member) decides, the blocking work it asks for, and the collective's
//! work of its rank.

use std::collections::VecDeque;

use super::Node;
use super::bench::{Bench, Untrained, bench};
use crate::collective;
use crate::env::{Work, work};
use crate::link::Holder;
use crate::shell::{ASKS_MAX, Cx, later};
use tombolo_core::event::Event;
use tombolo_core::ids::NodeId;
use tombolo_core::machine::{Context, Machine, Outcome};
use tombolo_core::member;
use tombolo_core::text::clip;
use tombolo_core::wire::{Control, Measured, ModelRef, Train};

impl Node {
    pub(super) fn step_member(&mut self, cx: &mut Cx<Self>, message: member::Message) {
        for effect in self.ask_member(message) {
            match effect {
                member::Effect::Tell(control) => self.send(&self.gateway_of_mine(), control),
                member::Effect::Adopt(model) => self.adopt(cx, model),
                member::Effect::Train(train) => self.train(cx, train),
            }
        }
    }

    fn ask_member(&mut self, message: member::Message) -> VecDeque<member::Effect> {
        let Some(member) = &mut self.member else {
            return VecDeque::new();
        };
        let mut out = Outcome::default();
        member.handle(
            message,
            &mut Context::new(self.setup.stage.env.now(), &mut out),
        );
        out.events
            .into_iter()
            .for_each(|event| self.setup.stage.report(event));
        out.effects
    }

    fn adopt(&mut self, cx: &mut Cx<Self>, model: ModelRef) {
        let Some(mut bench) = self.bench.take() else {
            return self.step_member(
                cx,
                member::Message::Adopted(model, Err("the node is busy".into())),
            );
        };
        // Without a holder its memory can be used again.
        self.setup.shelf.let_go(Holder::Member);
        let (wanted, fabric) = (model.clone(), self.setup.fabric.clone());
        let (env, elements) = (self.setup.stage.env.clone(), self.setup.layout.len());
        let adopted = work(env.as_ref(), Work::Bytes(elements as u64 * 4), move || {
            let result = bench.adopt(&wanted, &fabric, elements);
            (bench, result)
        });
        later(cx, adopted, move |node, adopted, cx| match adopted {
            Ok((bench, result)) => {
                node.hold(&bench);
                node.bench = Some(bench);
                node.step_member(cx, member::Message::Adopted(model, result));
            }
            Err(panicked) => {
                let result = Err(panicked.to_string());
                node.rebuild(cx, member::Message::Adopted(model, result));
            }
        });
    }

    /// Shows peers that are behind the model that this node holds.
    pub(super) fn hold(&self, bench: &Bench) {
        if let Some(held) = bench.held() {
            self.setup.shelf.hold(Holder::Member, held);
        }
    }

    fn train(&mut self, cx: &mut Cx<Self>, train: Train) {
        let round = train.round;
        let Some(mut bench) = self.bench.take() else {
            return self.step_member(
                cx,
                member::Message::Trained(round, Err("the node is busy".into())),
            );
        };
        let (setup, env) = (self.setup.clone(), self.setup.stage.env.clone());
        let held = self.member.as_ref().and_then(member::Member::held);
        let held = held.map(|region| region.key);
        let length = match (train.sync_every.steps(), train.counts_as) {
            (Some(steps), Some(of)) => Work::Steps { steps, of },
            _ => Work::Train,
        };
        let clock = env.clone();
        let trained = work(env.as_ref(), length, move || {
            let result = bench.train(&setup, &train, held);
            (bench, result)
        });
        later(cx, trained, move |node, trained, cx| match trained {
            Ok((bench, result)) => {
                node.bench = Some(bench);
                let message = match result {
                    Ok(done) => {
                        let (trained, region) = (done.trained, done.region);
                        let effort = done.began.effort(&trained, clock.now());
                        member::Message::Trained(round, Ok((trained, region, effort)))
                    }
                    Err(Untrained::Failed(reason)) => member::Message::Trained(round, Err(reason)),
                    Err(Untrained::Diverged(found)) => {
                        node.setup.shelf.let_go(Holder::Member);
                        member::Message::Diverged(round, found)
                    }
                };
                node.step_member(cx, message);
            }
            Err(panicked) => {
                let result = Err(panicked.to_string());
                node.rebuild(cx, member::Message::Trained(round, result));
            }
        });
    }

    /// The trainer panicked and took the bench with it: a new one is made, and the machine starts over from the initial model.
    pub(super) fn rebuild(&mut self, cx: &mut Cx<Self>, message: member::Message) {
        let setup = self.setup.clone();
        let env = setup.stage.env.clone();
        let bytes = Work::Bytes(setup.layout.len() as u64 * 4);
        let made = work(env.as_ref(), bytes, move || bench(&setup));
        later(cx, made, move |node, made, cx| {
            // The old machine's last word. What it would begin now is for a model that is gone; the gateway asks the new one for it.
            for effect in node.ask_member(message) {
                if let member::Effect::Tell(control) = effect {
                    node.send(&node.gateway_of_mine(), control);
                }
            }
            match made.unwrap_or_else(|panicked| Err(panicked.to_string())) {
                Ok((bench, initial)) => {
                    node.enlist(cx, bench, initial.outline.hash(), initial.export);
                    node.step_member(cx, member::Message::GatewayUp);
                }
                Err(reason) => {
                    let reason = format!("its trainer could not be made again: {reason}");
                    node.setup.stage.report(Event::TrainingFailed {
                        node: node.me().clone(),
                        round: 0,
                        reason: clip(reason),
                    });
                }
            }
        });
    }

    pub(super) fn collect(&mut self, cx: &mut Cx<Self>, from: NodeId, control: Control) {
        let collective = self.setup.collective.clone();
        match control {
            Control::Measure(measure) => {
                let (token, round, node) = (measure.token, measure.round, measure.node.clone());
                let answer = async move {
                    let question = |reply| collective::Message::Measure(measure.clone(), reply);
                    let measured = collective.ask_again(ASKS_MAX, question).await;
                    measured.unwrap_or_else(|error| Measured {
                        token,
                        round,
                        node,
                        result: Err(format!("the collective: {error}").into()),
                    })
                };
                later(cx, answer, move |node, measured, _| {
                    node.send(&from, Control::Measured(measured))
                });
            }
            Control::Fold(fold) => {
                let own = self.me().clone();
                let answer = async move {
                    let question = |reply| collective::Message::Fold(fold.clone(), reply);
                    let folded = collective.ask_again(ASKS_MAX, question).await;
                    folded.unwrap_or_else(|error| tombolo_core::wire::Folded {
                        token: fold.token,
                        round: fold.round,
                        attempt: fold.attempt,
                        slices: fold.slices,
                        result: Err((own, format!("its collective: {error}").into())),
                    })
                };
                later(cx, answer, move |node, folded, _| {
                    node.send(&from, Control::Folded(folded))
                });
            }
            _ => {}
        }
    }
}
