//! The plugged-in aggregation rule: the trait's implementation in a mailbox, or a user's own actix actor.

use std::fmt;
use std::sync::Arc;

use actix::Recipient;

use crate::env::{Env, Work, work};
use crate::shell::{Actor, Cx, Reply, later, pause};
use crate::slab::SlabMut;
use tombolo_core::aggregate::{self, AggregateError, Aggregator, EachFold, Report, Weight};
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
    /// Begin the fold over each of these updates, for a rule that needs them.
    Each(Vec<Weight>, Reply<Result<Folder, AggregateError>>),
    /// Have the last word on the mean. The slab is a handle; its elements stay where they are.
    Finish(SlabMut, Reply<Result<SlabMut, AggregateError>>),
}

/// A round's fold over each update; it is lent to the work on each chunk.
pub struct Folder(pub Box<dyn EachFold>);

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Folder")
    }
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
    env: Arc<dyn Env>,
    /// Lent to the work on a mean; an actor whose rule panicked over it is rebuilt.
    rule: Option<Rule>,
}

impl Aggregate {
    /// An actor around a rule.
    pub fn new(env: Arc<dyn Env>, rule: Rule) -> Self {
        Aggregate {
            env,
            rule: Some(rule),
        }
    }

    /// Lends the rule to work off the arbiter: it is a user's code and may take its time. Until it is back no other question is taken; the
    /// round that waits for it has a deadline of its own.
    fn lend<R: Send + 'static>(
        &mut self,
        cx: &mut Cx<Self>,
        bytes: u64,
        reply: Reply<Result<R, AggregateError>>,
        job: impl FnOnce(&mut dyn Aggregator) -> Result<R, AggregateError> + Send + 'static,
    ) {
        let Some(Rule::Trait(mut rule)) = self.rule.take() else {
            return;
        };
        let done = work(self.env.as_ref(), Work::Bytes(bytes), move || {
            let result = job(rule.as_mut());
            (rule, result)
        });
        pause(cx, done, |aggregate, done, _| match done {
            Ok((rule, result)) => {
                aggregate.rule = Some(Rule::Trait(rule));
                reply.send(result);
            }
            Err(panicked) => {
                reply.send(Err(AggregateError::Rule(panicked.to_string())));
                panic!("the rule failed: {panicked}");
            }
        });
    }
}

impl Actor for Aggregate {
    type Message = Message;
    const NAME: &'static str = "Aggregate";

    fn handle(&mut self, message: Message, cx: &mut Cx<Self>) {
        let rule = self.rule.as_mut();
        match (
            message,
            rule.expect("no message comes while the rule is lent"),
        ) {
            (Message::Weigh(_, reports, reply), Rule::Trait(_)) => {
                self.lend(cx, 0, reply, move |rule| aggregate::weigh(rule, &reports));
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
            (Message::Each(counted, reply), Rule::Trait(_)) => {
                self.lend(cx, 0, reply, move |rule| rule.each(&counted).map(Folder));
            }
            (Message::Each(_, reply), Rule::Actor(_)) => {
                let reason = "an aggregation actor weighs updates and does not see them".into();
                reply.send(Err(AggregateError::Rule(reason)));
            }
            (Message::Finish(mut mean, reply), Rule::Trait(_)) => {
                let bytes = mean.len() as u64 * 4;
                self.lend(cx, bytes, reply, move |rule| {
                    rule.finish(&mut mean).map(|()| mean)
                });
            }
            (Message::Finish(mean, reply), Rule::Actor(_)) => reply.send(Ok(mean)),
        }
    }
}
