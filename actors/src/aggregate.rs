//! The plugged-in aggregation rule: the trait's implementation in a mailbox, or a user's own actix actor.

use actix::Recipient;

use crate::shell::{Actor, Cx, Reply, later};
use crate::slab::SlabMut;
use tombolo_core::aggregate::{self, AggregateError, Aggregator, Report, Weight};
use tombolo_core::ids::Round;

/// Asks a user's own actor to fix weights: one for each report, in their order. Answers follow the laws of
/// [`tombolo_core::aggregate::check`].
#[derive(Debug, Clone, actix::Message)]
#[rtype(result = "Result<Vec<Weight>, AggregateError>")]
pub struct Weigh {
    /// The round.
    pub round: Round,
    /// Sorted by node; updates that are not finite have been refused before.
    pub reports: Vec<Report>,
}

/// What it takes.
#[derive(Debug)]
pub enum Message {
    /// Fix weights and clip factors.
    Weigh(
        Round,
        Vec<Report>,
        Reply<Result<Vec<Weight>, AggregateError>>,
    ),
    /// Have the last word on the mean. The slab is a handle; its elements stay where they are.
    Finish(SlabMut, Reply<Result<SlabMut, AggregateError>>),
}

/// Who decides.
pub enum Rule {
    /// An implementation of the trait.
    Trait(Box<dyn Aggregator>),
    /// A user's own actor.
    Actor(Recipient<Weigh>),
}

/// See the module.
pub struct Aggregate {
    rule: Rule,
}

impl Aggregate {
    /// An actor around a rule.
    pub fn new(rule: Rule) -> Self {
        Aggregate { rule }
    }
}

impl Actor for Aggregate {
    type Message = Message;
    const NAME: &'static str = "Aggregate";

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        match (message, &mut self.rule) {
            (Message::Weigh(_, reports, reply), Rule::Trait(rule)) => {
                reply.send(aggregate::weigh(rule.as_mut(), &reports))
            }
            (Message::Weigh(round, reports, reply), Rule::Actor(recipient)) => {
                let answer = recipient.send(Weigh {
                    round,
                    reports: reports.clone(),
                });
                later(cx, answer, move |_, answer, _| {
                    let checked = answer
                        .map_err(|error| {
                            AggregateError::Rule(format!(
                                "the aggregation actor did not answer: {error}"
                            ))
                        })
                        .and_then(|answer| answer)
                        .and_then(|weights| aggregate::check(&reports, &weights).map(|()| weights));
                    reply.send(checked);
                });
            }
            (Message::Finish(mut mean, reply), Rule::Trait(rule)) => {
                reply.send(rule.finish(&mut mean).map(|()| mean))
            }
            (Message::Finish(mean, reply), Rule::Actor(_)) => reply.send(Ok(mean)),
        }
    }
}
