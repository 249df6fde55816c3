//! A node within its domain: adopts models, trains, exports, in that order and one thing at a time.
//!
//! The blocking work is done elsewhere; while it runs, the newest order of each kind waits. An order that a newer one has made pointless
//! is forgotten. In the asynchronous mode a node holds its update until that has counted, and meanwhile makes one more if there is a newer model
//! to begin with. A node that leaves says so until the view without it is here, and begins no training any more.

use crate::event::Event;
use crate::ids::{Epoch, NodeId, Round};
use crate::machine::{Context, Machine};
use crate::mutants;
use crate::pace::Effort;
use crate::plan::SyncEvery;
use crate::tensor::{Hash, Layout};
use crate::text::Text;
use crate::trainer::Trained;
use crate::wire::{Control, Divergence, Exported, Join, ModelRef, RegionRef, Train};

/// How often a model is read anew for one order because the copy of it has changed: once is an accident, and memory that never keeps one trains
/// nothing.
const REREADS_MAX: u32 = 3;

/// What comes in.
#[derive(Debug)]
pub enum Message {
    /// The gateway can be reached; it is to be told where this node stands.
    GatewayUp,
    /// From the gateway.
    Train(Train),
    /// From the gateway.
    Adopt(ModelRef),
    /// From the gateway: the round ended without a commit.
    Drop(Round),
    /// This node leaves.
    Leave,
    /// Work is done: the model was read and its hash is right, or not.
    Adopted(ModelRef, Result<(), String>),
    /// Work is done: the update lies in the region, or training failed.
    Trained(Round, Result<(Trained, RegionRef, Effort), String>),
    /// Nothing was trained for that round: what is held is not the model any more, but something of this hash.
    Diverged(Round, Hash),
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Send to the gateway.
    Tell(Control),
    /// READ a model, verify its hash, hold it.
    Adopt(ModelRef),
    /// Train from the model held and export the update.
    Train(Train),
}

/// See the module.
#[derive(Debug)]
pub struct Member {
    node: NodeId,
    layout: Layout,
    round: Round,
    hash: Hash,
    leaves: bool,
    busy: bool,
    adopt: Option<ModelRef>,
    train: Option<Train>,
    running: Option<Train>,
    rereads: u32,
    exported: Option<Export>,
    /// In the asynchronous mode: the next update, while the one before may still be READ.
    ahead: Option<Export>,
}

/// The last update, and what it was made for.
#[derive(Debug, Clone, PartialEq)]
pub struct Export {
    /// The run.
    pub run: Hash,
    /// The model that it was trained from.
    pub base: Hash,
    /// How much work it was.
    pub work: (SyncEvery, Option<u64>),
    /// As the gateway is told.
    pub exported: Exported,
}

impl Export {
    fn answers(&self, train: &Train) -> bool {
        let epoch = match mutants::is("stale-epoch") {
            true => train.epoch,
            false => self.exported.epoch,
        };
        let made_for = (self.run, self.exported.round, epoch, self.base, self.work);
        made_for == made_for_by(train)
    }
}

/// What an update is made for that answers an order.
fn made_for_by(train: &Train) -> (Hash, Round, Epoch, Hash, (SyncEvery, Option<u64>)) {
    let work = (train.sync_every, train.counts_as);
    (train.run, train.round, train.epoch, train.model.hash, work)
}

impl Member {
    /// A node that holds the model of `round` with `hash`.
    pub fn new(node: NodeId, layout: Layout, round: Round, hash: Hash) -> Self {
        Member {
            node,
            layout,
            round,
            hash,
            leaves: false,
            busy: false,
            adopt: None,
            train: None,
            running: None,
            rereads: 0,
            exported: None,
            ahead: None,
        }
    }

    /// Takes up an update that an earlier life has made: it is never made twice.
    pub fn restore(&mut self, export: Export) {
        self.exported = Some(export);
    }

    /// The region whose update the domain may still READ, so that the next one must lie in another.
    pub fn held(&self) -> Option<&RegionRef> {
        self.exported.as_ref().map(|held| &held.exported.region)
    }

    /// The model held.
    pub fn model(&self) -> (Round, Hash) {
        (self.round, self.hash)
    }

    fn next(&mut self, cx: &mut Context<'_, Effect>) {
        if self.busy {
            return;
        }
        if let Some(model) = self.adopt.take() {
            if (model.round, model.hash) != (self.round, self.hash) {
                self.busy = true;
                return cx.effect(Effect::Adopt(model));
            }
            cx.effect(Effect::Tell(Control::Holds {
                round: self.round,
                hash: self.hash,
            }));
        }
        let Some(train) = self.train.take() else {
            return;
        };
        if (train.model.round, train.model.hash) != (self.round, self.hash) {
            self.busy = true;
            let model = train.model.clone();
            self.train = Some(train);
            return cx.effect(Effect::Adopt(model));
        }
        self.busy = true;
        self.running = Some(train.clone());
        if train.oldest.is_none() {
            self.exported = None;
        }
        cx.report(Event::TrainingStarted {
            node: self.node.clone(),
            round: train.round,
        });
        cx.effect(Effect::Train(train));
    }
}

impl Member {
    /// An order to train cannot be carried out.
    fn fail(&self, cx: &mut Context<'_, Effect>, order: Train, reason: String) {
        let (round, token) = (order.round, Some(order.token));
        let (node, reason) = (self.node.clone(), Text::from(reason));
        cx.report(Event::TrainingFailed {
            node,
            round,
            reason: reason.to_string(),
        });
        cx.effect(Effect::Tell(Control::Failed {
            round,
            token,
            reason,
        }));
    }

    /// An order of an asynchronous round: updates from this round on may count in it, and are not made twice.
    fn on_asynchronous(&mut self, cx: &mut Context<'_, Effect>, train: Train, oldest: Round) {
        let answers = |held: &Export| {
            held.run == train.run && (oldest..=train.round).contains(&held.exported.round)
        };
        self.exported = self.exported.take().filter(answers);
        self.ahead = self.ahead.take().filter(answers);
        if self.exported.is_none() {
            self.exported = self.ahead.take();
        }
        if let Some(held) = &self.exported {
            cx.effect(Effect::Tell(Control::Exported(held.exported.clone())));
        }
        if let Some(running) = &mut self.running
            && running.run == train.run
            && running.round >= oldest
        {
            running.token = train.token;
            return;
        }
        let newer = |held: &Export| held.base != train.model.hash;
        if self.ahead.is_none() && self.exported.as_ref().is_none_or(newer) {
            self.train = Some(train);
        }
    }
}

impl Machine for Member {
    type Message = Message;
    type Effect = Effect;

    fn handle(&mut self, message: Message, cx: &mut Context<'_, Effect>) {
        match message {
            Message::Leave => {
                self.leaves = true;
                self.train = None;
                cx.effect(Effect::Tell(Control::Departing));
            }
            Message::GatewayUp | Message::Train(_) if self.leaves => {
                cx.effect(Effect::Tell(Control::Departing));
            }
            Message::GatewayUp => {
                let join = Join {
                    layout: self.layout.clone(),
                    round: self.round,
                    hash: self.hash,
                };
                cx.effect(Effect::Tell(Control::Join(join)));
            }
            Message::Train(train) => {
                let done = self.exported.as_ref();
                let is_over = train.round <= self.round;
                if let Some(oldest) = train.oldest.filter(|_| !is_over) {
                    self.on_asynchronous(cx, train, oldest);
                } else if let Some(done) = done.filter(|done| done.answers(&train)) {
                    // Asked again: the same update, never trained twice.
                    cx.effect(Effect::Tell(Control::Exported(done.exported.clone())));
                } else if is_over {
                    // An echo: that round is committed, and this node holds its model.
                    cx.effect(Effect::Tell(Control::Holds {
                        round: self.round,
                        hash: self.hash,
                    }));
                } else if let Some(running) = self
                    .running
                    .as_mut()
                    .filter(|running| made_for_by(running) == made_for_by(&train))
                {
                    // Asked again, perhaps by another gateway: that one is to be answered.
                    *running = train;
                } else {
                    self.train = Some(train);
                }
            }
            // An echo: committed rounds only grow.
            Message::Adopt(model) if model.round < self.round => {}
            Message::Adopt(model) => {
                if self
                    .train
                    .as_ref()
                    .is_some_and(|train| train.round <= model.round)
                {
                    self.train = None;
                }
                self.adopt = Some(model);
            }
            Message::Drop(round) => {
                if self
                    .train
                    .as_ref()
                    .is_some_and(|train| train.round == round)
                {
                    self.train = None;
                }
            }
            Message::Adopted(model, result) => {
                self.busy = false;
                match result.or_else(|reason| match mutants::is("hash-ignored") {
                    true => Ok(()),
                    false => Err(reason),
                }) {
                    Ok(()) => {
                        let healed = self
                            .train
                            .as_ref()
                            .is_some_and(|train| train.model == model);
                        (self.round, self.hash) = (model.round, model.hash);
                        cx.report(Event::ModelAdopted {
                            node: self.node.clone(),
                            round: model.round,
                            hash: model.hash,
                            healed,
                        });
                        cx.effect(Effect::Tell(Control::Holds {
                            round: model.round,
                            hash: model.hash,
                        }));
                    }
                    Err(reason) => {
                        // The gateway is told and sends the order again if it still stands; trying on our own could loop. An order that
                        // came since, and says another place of the model, is tried.
                        let (round, token) = match self.train.take_if(|train| train.model == model)
                        {
                            Some(train) => (train.round, Some(train.token)),
                            None => (model.round, None),
                        };
                        let reason = reason.into();
                        cx.effect(Effect::Tell(Control::Failed {
                            round,
                            token,
                            reason,
                        }));
                    }
                }
            }
            Message::Diverged(round, found) => {
                self.busy = false;
                let Some(running) = self.running.take() else {
                    return self.next(cx);
                };
                cx.effect(Effect::Tell(Control::Diverged(Divergence {
                    round,
                    model: self.round,
                    expected: self.hash,
                    found,
                })));
                // What it holds is nobody's model: whatever is to be done next reads one first.
                self.hash = found;
                self.rereads += 1;
                if self.rereads <= REREADS_MAX {
                    self.train.get_or_insert(running);
                } else {
                    let reason = format!(
                        "its memory does not keep the model: {} copies of it have changed",
                        self.rereads
                    );
                    self.rereads = 0;
                    self.fail(cx, running, reason);
                }
            }
            Message::Trained(round, result) => {
                self.busy = false;
                self.rereads = 0;
                match (self.running.take(), result) {
                    (None, _) => {}
                    (Some(running), Ok((trained, region, effort))) => {
                        cx.report(Event::UpdateExported {
                            node: self.node.clone(),
                            round,
                            samples: trained.samples,
                            loss: trained.loss,
                        });
                        let exported = Exported {
                            round,
                            epoch: running.epoch,
                            region,
                            samples: trained.samples,
                            loss: trained.loss,
                            steps: running.counts_as.unwrap_or(trained.steps),
                            learning_rate: trained.learning_rate,
                            effort,
                        };
                        let export = Export {
                            run: running.run,
                            base: running.model.hash,
                            work: (running.sync_every, running.counts_as),
                            exported: exported.clone(),
                        };
                        if self.exported.is_some() {
                            self.ahead = Some(export);
                        } else {
                            self.exported = Some(export);
                            cx.effect(Effect::Tell(Control::Exported(exported)));
                        }
                    }
                    (Some(running), Err(reason)) => self.fail(cx, running, reason),
                }
            }
        }
        self.next(cx);
    }

    fn on_wake(&mut self, _: &mut Context<'_, Effect>) {}
}

#[cfg(test)]
mod tests;
