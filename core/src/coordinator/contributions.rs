//! The second gate: domains' contributions are checked, noted, and only then acknowledged.

use super::round::Phase;
use super::{Coordinator, Effect, NoteError};
use crate::compress::Coding;
use crate::event::Event;
use crate::ids::{Attempt, DomainId, Round};
use crate::machine::Context;
use crate::mutants;
use crate::wire::{Answer, CHUNK_ELEMENTS, Contribution, Control};

impl Coordinator {
    pub(super) fn on_contribute(
        &mut self,
        cx: &mut Context<'_, Effect>,
        domain: DomainId,
        contribution: Contribution,
    ) {
        let (round, attempt) = (contribution.round, contribution.attempt);
        let answer = |cx: &mut Context<'_, Effect>, answer| {
            cx.effect(Effect::Tell(
                domain.clone(),
                Control::Answer {
                    round,
                    attempt,
                    answer,
                },
            ));
        };
        let from = domain.to_string();
        let Some(current) = self.current.as_mut().filter(|open| open.round == round) else {
            let announced = self.announced.as_ref();
            let counted = announced.is_some_and(|commit| {
                commit.round == round && commit.contributions.contains(&(domain.clone(), attempt))
            });
            cx.report(match counted {
                true => Event::ReplayAnswered { round, from },
                false => Event::LateAnswered { round, from },
            });
            return answer(cx, Answer::Late);
        };
        if contribution.epoch != current.epoch && !mutants::is("stale-epoch") {
            cx.report(Event::EpochAnswered { round, from });
            let reason = format!(
                "made in epoch {}, the round is one of epoch {}",
                contribution.epoch, current.epoch
            );
            return answer(cx, Answer::Refused(reason.as_str().into()));
        }
        match current.phase {
            Phase::Contributions => {}
            // Made for a coordinator that is no more: once weights are fixed again, the domain is asked again.
            Phase::Reports | Phase::Weighing | Phase::Fixing => return,
            Phase::Folding(_) | Phase::Computing | Phase::Committing => {
                cx.report(Event::LateAnswered {
                    round,
                    from: domain.to_string(),
                });
                return answer(cx, Answer::Late);
            }
        }
        if contribution
            .members
            .iter()
            .any(|node| current.out.contains(node))
        {
            // The view that takes this member out is on its way; the domain folds again without it.
            return;
        }
        current.found(&contribution);
        let known = current.known_attempt(&domain);
        if known.is_some_and(|known| attempt <= known) {
            cx.report(match known == Some(attempt) {
                true => Event::DuplicateAnswered { round, from },
                false => Event::ReorderAnswered { round, from },
            });
            answer(cx, Answer::Duplicate);
            return self.check(cx);
        }
        let acceptable = match self.plan.domain(&domain) {
            Some(plan) => {
                let needs = self.plan.aggregator.needs;
                let codec = self.plan.codec(&domain);
                let fits = current.acceptable(plan, &contribution, self.layout.len(), needs);
                fits.and_then(|()| encoded(&contribution, self.layout.len(), codec))
            }
            None => Err(format!("{domain} is no domain of this federation")),
        };
        if let Err(reason) = acceptable {
            cx.report(Event::DomainDropped {
                round,
                domain: domain.clone(),
                reason: reason.clone(),
            });
            answer(cx, Answer::Refused(reason.as_str().into()));
            current.dropped.insert(domain, reason);
            return self.check(cx);
        }
        current.orphaned.remove(&domain);
        if let (None, Some(weighed)) = (known, current.weighed) {
            self.paces.on_contribution(&domain, cx.now().since(weighed));
        }
        let before = current.noting.insert(domain.clone(), contribution.clone());
        if before.is_none() {
            cx.effect(Effect::Note(contribution));
        }
        if mutants::is("early-acknowledgement") {
            self.on_noted(cx, round, domain, attempt, Ok(()));
        }
    }

    pub(super) fn on_noted(
        &mut self,
        cx: &mut Context<'_, Effect>,
        round: Round,
        domain: DomainId,
        attempt: Attempt,
        result: Result<(), NoteError>,
    ) {
        let Some(current) = self
            .current
            .as_mut()
            .filter(|current| current.round == round)
        else {
            return;
        };
        let Some(contribution) = current.noting.get(&domain).cloned() else {
            return;
        };
        if contribution.attempt != attempt {
            // Another one came meanwhile. It is written down after this one and not beside it: the last one on disk must be the newest.
            return cx.effect(Effect::Note(contribution));
        }
        current.noting.remove(&domain);
        let orphaned = current.orphaned.remove(&domain);
        let answer = match result {
            Ok(()) if current.phase != Phase::Contributions && !mutants::is("late-counts") => {
                Answer::Late
            }
            Ok(()) => {
                let weight = contribution.weight;
                cx.report(Event::Acknowledged {
                    round,
                    attempt,
                    domain: domain.clone(),
                    weight,
                    members: contribution.members.clone(),
                });
                current.dropped.remove(&domain);
                match orphaned {
                    true => current.away.insert(domain.clone()),
                    false => current.away.remove(&domain),
                };
                current.noted.insert(domain.clone(), contribution);
                Answer::Acknowledged
            }
            Err(error) => {
                let reason = format!("the coordinator could not note it: {error}");
                if !current.noted.contains_key(&domain) {
                    // What is written down of nobody is waited for by nobody: a disk that takes nothing is told now, not at the deadline.
                    // A sender that is lost with its bytes has a successor, and members that hold their updates.
                    if matches!(error, NoteError::Disk(_)) {
                        for member in &contribution.members {
                            current.failed.insert(member.clone(), reason.clone());
                        }
                    }
                    current.dropped.insert(domain.clone(), reason.clone());
                    cx.report(Event::DomainDropped {
                        round,
                        domain: domain.clone(),
                        reason: reason.clone(),
                    });
                }
                Answer::Refused(reason.into())
            }
        };
        cx.effect(Effect::Tell(
            domain,
            Control::Answer {
                round,
                attempt,
                answer,
            },
        ));
        self.check(cx);
    }
}

/// Whether a contribution is encoded as the plan says, in chunks of sizes that can be.
fn encoded(contribution: &Contribution, elements: usize, codec: Coding) -> Result<(), String> {
    let (found, sizes) = (contribution.encoding.coding(), &contribution.encoding.sizes);
    if found != codec {
        return Err(format!(
            "it is encoded as {found} where the plan has {codec}"
        ));
    }
    if codec.is_plain() {
        let plain = sizes.is_empty();
        return plain
            .then_some(())
            .ok_or_else(|| "plain chunks need no sizes".into());
    }
    if sizes.len() != contribution.chunks.len() {
        let (sizes, chunks) = (sizes.len(), contribution.chunks.len());
        return Err(format!("{sizes} sizes of {chunks} chunks"));
    }
    let compressor = codec.compressor();
    for (index, size) in sizes.iter().enumerate() {
        let left = elements.saturating_sub(index * CHUNK_ELEMENTS);
        let most = compressor.bytes_max(left.min(CHUNK_ELEMENTS));
        if *size as usize > most {
            return Err(format!(
                "chunk {index} has {size} bytes, {most} are the most of {codec}"
            ));
        }
    }
    Ok(())
}
