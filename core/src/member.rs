//! A node within its domain: adopts models, trains, exports, in that order and one thing at a time.
//!
//! The blocking work is done elsewhere; while it runs, the newest order of each kind waits. An order that a newer one has made pointless
//! is forgotten. In the asynchronous mode a node holds its update until that has counted, and meanwhile makes one more if there is a newer model
//! to begin with. A node that leaves says so until the view without it is here, and begins no training any more.

use crate::event::Event;
use crate::ids::{NodeId, Round};
use crate::machine::{Context, Machine};
use crate::mutants;
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
    Trained(Round, Result<(Trained, RegionRef), String>),
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
    /// As the gateway is told.
    pub exported: Exported,
}

impl Export {
    fn answers(&self, train: &Train) -> bool {
        let epoch = match mutants::is("stale-epoch") {
            true => train.epoch,
            false => self.exported.epoch,
        };
        let made_for = (self.run, self.exported.round, epoch, self.base);
        made_for == (train.run, train.round, train.epoch, train.model.hash)
    }
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
                } else if let Some(running) = self.running.as_mut().filter(|running| {
                    let made_for =
                        |train: &Train| (train.run, train.round, train.epoch, train.model.hash);
                    made_for(running) == made_for(&train)
                }) {
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
                    (Some(running), Ok((trained, region))) => {
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
                            steps: trained.steps,
                            learning_rate: trained.learning_rate,
                        };
                        let export = Export {
                            run: running.run,
                            base: running.model.hash,
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
mod tests {
    use super::*;
    use crate::machine::Outcome;
    use crate::plan::SyncEvery;

    fn node() -> NodeId {
        "hq/a".parse().unwrap()
    }

    fn model(round: Round) -> ModelRef {
        let region = RegionRef {
            owner: "hq/gate".parse().unwrap(),
            key: round,
            len: 64,
        };
        ModelRef {
            round,
            hash: Hash([round as u8; 32]),
            region,
        }
    }

    fn train(round: Round) -> Train {
        Train {
            token: 3,
            run: Hash::default(),
            round,
            epoch: 1,
            model: model(round - 1),
            sync_every: SyncEvery::Steps(1),
            seed: 7,
            oldest: None,
        }
    }

    fn member() -> Member {
        Member::new(
            node(),
            Layout::new([("w", vec![4])]).unwrap(),
            0,
            model(0).hash,
        )
    }

    fn tell(member: &mut Member, message: Message) -> Vec<Effect> {
        let mut out = Outcome::default();
        member.handle(message, &mut Context::new(crate::time::Micros(0), &mut out));
        out.effects.into()
    }

    fn trained() -> Result<(Trained, RegionRef), String> {
        let region = RegionRef {
            owner: node(),
            key: 9,
            len: 80,
        };
        Ok((
            Trained {
                samples: 10,
                loss: 1.0,
                steps: 1,
                learning_rate: 0.1,
            },
            region,
        ))
    }

    #[test]
    fn a_node_trains_from_the_model_it_holds_and_exports_once() {
        let mut member = member();
        assert_eq!(
            tell(&mut member, Message::Train(train(1))),
            [Effect::Train(train(1))]
        );
        assert_eq!(
            tell(&mut member, Message::Train(train(1))),
            [],
            "already at it"
        );
        let effects = tell(&mut member, Message::Trained(1, trained()));
        let [Effect::Tell(Control::Exported(exported))] = &effects[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(exported.round, 1);
        let again = tell(&mut member, Message::Train(train(1)));
        assert_eq!(again, effects, "asked again, the same update");
    }

    /// Killed after training: the update is there, and nothing is trained again.
    #[test]
    fn an_update_of_an_earlier_life_answers_the_same_order_and_no_other() {
        let mut before = member();
        tell(&mut before, Message::Train(train(1)));
        let effects = tell(&mut before, Message::Trained(1, trained()));
        let [Effect::Tell(Control::Exported(exported))] = &effects[..] else {
            panic!("{effects:?}")
        };
        let export = Export {
            run: Hash::default(),
            base: model(0).hash,
            exported: exported.clone(),
        };
        let mut order = train(1);
        for (same, change) in [
            (true, (|_| ()) as fn(&mut Train)),
            (false, |train| train.run = Hash([1; 32])),
            (false, |train| train.epoch = 2),
            (false, |train| train.model.hash = Hash([9; 32])),
            (false, |train| train.round = 2),
        ] {
            let mut member = member();
            member.restore(export.clone());
            change(&mut order);
            let answered = tell(&mut member, Message::Train(order.clone())) == effects;
            assert_eq!(answered, same, "{order:?}");
            order = train(1);
        }
    }

    #[test]
    fn a_node_that_missed_a_commit_heals_before_it_trains() {
        let mut member = member();
        assert_eq!(
            tell(&mut member, Message::Train(train(3))),
            [Effect::Adopt(model(2))]
        );
        let effects = tell(&mut member, Message::Adopted(model(2), Ok(())));
        assert_eq!(effects.last(), Some(&Effect::Train(train(3))));
    }

    #[test]
    fn a_straggler_finishes_its_work_and_takes_the_newest_order() {
        let mut member = member();
        tell(&mut member, Message::Train(train(1)));
        assert_eq!(tell(&mut member, Message::Adopt(model(1))), []);
        assert_eq!(tell(&mut member, Message::Train(train(2))), []);
        assert_eq!(tell(&mut member, Message::Adopt(model(2))), []);
        assert_eq!(tell(&mut member, Message::Train(train(3))), []);
        let effects = tell(&mut member, Message::Trained(1, trained()));
        assert_eq!(
            effects.last(),
            Some(&Effect::Adopt(model(2))),
            "rounds 1 and 2 are over: {effects:?}"
        );
    }

    #[test]
    fn a_node_that_leaves_says_so_to_every_gateway_and_begins_no_work() {
        let mut member = member();
        tell(&mut member, Message::Train(train(1)));
        let goodbye = || Effect::Tell(Control::Departing);
        assert_eq!(tell(&mut member, Message::Leave), [goodbye()]);
        assert_eq!(tell(&mut member, Message::GatewayUp), [goodbye()]);
        assert_eq!(tell(&mut member, Message::Train(train(2))), [goodbye()]);
        let effects = tell(&mut member, Message::Trained(1, trained()));
        assert!(
            matches!(effects[..], [Effect::Tell(Control::Exported(_))]),
            "what it had begun may still count: {effects:?}"
        );
    }

    #[test]
    fn echoes_of_the_past_bring_back_no_old_model_and_no_old_round() {
        let mut member = member();
        tell(&mut member, Message::Adopt(model(5)));
        tell(&mut member, Message::Adopted(model(5), Ok(())));
        assert_eq!(tell(&mut member, Message::Adopt(model(4))), []);
        let holds = Effect::Tell(Control::Holds {
            round: 5,
            hash: model(5).hash,
        });
        assert_eq!(tell(&mut member, Message::Train(train(5))), [holds]);
    }

    #[test]
    fn the_same_round_from_another_base_is_trained_again() {
        let mut member = member();
        tell(&mut member, Message::Train(train(1)));
        tell(&mut member, Message::Trained(1, trained()));
        let mut other = train(1);
        other.model.hash = Hash([9; 32]);
        let effects = tell(&mut member, Message::Train(other.clone()));
        assert_eq!(effects, [Effect::Adopt(other.model)]);
    }

    #[test]
    fn a_model_that_cannot_be_read_is_reported_and_not_retried_alone() {
        let mut member = member();
        tell(&mut member, Message::Train(train(2)));
        let effects = tell(
            &mut member,
            Message::Adopted(model(1), Err("stale key".into())),
        );
        assert_eq!(
            effects,
            [Effect::Tell(Control::Failed {
                round: 2,
                token: Some(3),
                reason: "stale key".into()
            })]
        );
    }

    /// A bit of it flipped since it was read.
    #[test]
    fn a_copy_that_is_not_the_model_any_more_is_told_read_anew_and_trained_from() {
        let mut member = member();
        tell(&mut member, Message::Train(train(1)));
        let found = Hash([0x5A; 32]);
        let divergence = Divergence {
            round: 1,
            model: 0,
            expected: model(0).hash,
            found,
        };
        let told = Effect::Tell(Control::Diverged(divergence));
        assert_eq!(
            tell(&mut member, Message::Diverged(1, found)),
            [told, Effect::Adopt(model(0))]
        );
        let effects = tell(&mut member, Message::Adopted(model(0), Ok(())));
        assert_eq!(effects.last(), Some(&Effect::Train(train(1))));
    }

    #[test]
    fn memory_that_never_keeps_a_model_fails_the_training_and_is_tried_again_in_the_next_round() {
        let mut member = member();
        tell(&mut member, Message::Train(train(1)));
        for _ in 0..REREADS_MAX {
            let effects = tell(&mut member, Message::Diverged(1, Hash([0x5A; 32])));
            assert_eq!(effects.last(), Some(&Effect::Adopt(model(0))));
            tell(&mut member, Message::Adopted(model(0), Ok(())));
        }
        let effects = tell(&mut member, Message::Diverged(1, Hash([0x5A; 32])));
        let [
            Effect::Tell(_),
            Effect::Tell(Control::Failed { round, token, .. }),
        ] = &effects[..]
        else {
            panic!("{effects:?}")
        };
        assert_eq!((*round, *token), (1, Some(3)));
        assert_eq!(
            tell(&mut member, Message::Train(train(2))),
            [Effect::Adopt(model(1))]
        );
    }

    /// The first order's model lies in memory of a gateway that is no more; the second says where it lies now.
    #[test]
    fn an_order_that_came_since_is_tried_where_the_one_before_failed() {
        let mut member = member();
        tell(&mut member, Message::Train(train(2)));
        let mut again = train(2);
        (again.token, again.model.region.key) = (4, 77);
        assert_eq!(tell(&mut member, Message::Train(again.clone())), []);
        let stale = Message::Adopted(model(1), Err("stale key".into()));
        let failed = Control::Failed {
            round: 1,
            token: None,
            reason: "stale key".into(),
        };
        assert_eq!(
            tell(&mut member, stale),
            [Effect::Tell(failed), Effect::Adopt(again.model)]
        );
    }

    #[test]
    fn who_asks_last_is_told_that_the_training_failed() {
        let mut member = member();
        tell(&mut member, Message::Train(train(1)));
        let again = Train {
            token: 4,
            ..train(1)
        };
        assert_eq!(tell(&mut member, Message::Train(again)), []);
        assert_eq!(
            tell(&mut member, Message::Trained(1, Err("no rows".into()))),
            [Effect::Tell(Control::Failed {
                round: 1,
                token: Some(4),
                reason: "no rows".into()
            })]
        );
    }

    // ---- the asynchronous mode ----

    fn train_with(round: Round, base: Round, oldest: Round) -> Message {
        let train = Train {
            oldest: Some(oldest),
            model: model(base),
            ..train(round)
        };
        Message::Train(train)
    }

    fn trained_in(key: u64) -> Result<(Trained, RegionRef), String> {
        let (trained, region) = trained()?;
        Ok((trained, RegionRef { key, ..region }))
    }

    fn exports(effects: &[Effect]) -> Vec<Round> {
        let exports = effects.iter().filter_map(|effect| match effect {
            Effect::Tell(Control::Exported(exported)) => Some(exported.round),
            _ => None,
        });
        exports.collect()
    }

    fn begins(effects: &[Effect]) -> Option<Round> {
        let mut trains = effects.iter().filter_map(|effect| match effect {
            Effect::Train(train) => Some(train.round),
            _ => None,
        });
        trains.next_back()
    }

    /// Versions come while it trains; what it makes is still wanted, and it begins nothing else before.
    #[test]
    fn a_slow_node_ends_what_it_began_and_offers_it_in_a_later_round() {
        let mut member = member();
        assert_eq!(begins(&tell(&mut member, train_with(1, 0, 1))), Some(1));
        tell(&mut member, Message::Adopt(model(1)));
        assert_eq!(tell(&mut member, train_with(2, 1, 1)), []);
        let effects = tell(&mut member, Message::Trained(1, trained()));
        assert_eq!(exports(&effects), [1]);
        tell(&mut member, Message::Adopted(model(1), Ok(())));
        let effects = tell(&mut member, train_with(2, 1, 1));
        assert_eq!(exports(&effects), [1], "asked again, the same update");
        assert_eq!(begins(&effects), Some(2), "and there is a newer model");
    }

    #[test]
    fn the_next_update_waits_in_silence_until_the_one_before_has_counted() {
        let mut member = member();
        tell(&mut member, train_with(1, 0, 1));
        tell(&mut member, Message::Trained(1, trained_in(9)));
        tell(&mut member, Message::Adopt(model(1)));
        tell(&mut member, Message::Adopted(model(1), Ok(())));
        tell(&mut member, train_with(2, 1, 1));
        assert_eq!(member.held().map(|held| held.key), Some(9));
        let effects = tell(&mut member, Message::Trained(2, trained_in(10)));
        assert_eq!(exports(&effects), [0; 0]);
        // A third would need a third region.
        tell(&mut member, Message::Adopt(model(2)));
        tell(&mut member, Message::Adopted(model(2), Ok(())));
        let effects = tell(&mut member, train_with(3, 2, 1));
        assert_eq!((exports(&effects), begins(&effects)), (vec![1], None));
        let effects = tell(&mut member, train_with(3, 2, 2));
        assert_eq!((exports(&effects), begins(&effects)), (vec![2], Some(3)));
        assert_eq!(member.held().map(|held| held.key), Some(10));
    }

    #[test]
    fn nothing_is_trained_twice_from_one_model() {
        let mut member = member();
        tell(&mut member, train_with(1, 0, 1));
        tell(&mut member, Message::Trained(1, trained()));
        // Round 1 was aborted.
        let effects = tell(&mut member, train_with(2, 0, 1));
        assert_eq!((exports(&effects), begins(&effects)), (vec![1], None));
        // It cannot be used: then it is.
        let effects = tell(&mut member, train_with(3, 0, 2));
        assert_eq!((exports(&effects), begins(&effects)), (vec![], Some(3)));
    }

    #[test]
    fn what_ended_too_late_is_told_and_the_newest_order_begun() {
        let mut member = member();
        tell(&mut member, train_with(1, 0, 1));
        tell(&mut member, Message::Adopt(model(5)));
        assert_eq!(tell(&mut member, train_with(6, 5, 4)), []);
        let effects = tell(&mut member, Message::Trained(1, trained()));
        assert_eq!(
            exports(&effects),
            [1],
            "whoever asked hears that it is there"
        );
        let effects = tell(&mut member, Message::Adopted(model(5), Ok(())));
        assert_eq!(begins(&effects), Some(6));
    }
}
