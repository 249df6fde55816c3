//! A round's model once more, from what its domains have contributed: is it the one that the record tells?
//!
//! What a gateway has retained is held against the leaf of its contribution first, chunk by chunk, so that what was changed since has a name.
//! Then the fold, the rule and the outer step are done as the coordinator does them, on the model before, from its checkpoints.

use std::collections::BTreeMap;

use tombolo_actors::aggregate::Rule;
use tombolo_actors::checkpoint::Store;
use tombolo_actors::node::retain::{self, Retained};
use tombolo_core::aggregate::{Needs, Weight, fold_each};
use tombolo_core::compress::{self, Coding, Kernels};
use tombolo_core::event::RoundState;
use tombolo_core::fold::{self, ByteFold};
use tombolo_core::ids::{Attempt, DomainId, NodeId, Round};
use tombolo_core::outer;
use tombolo_core::record::Leaf;
use tombolo_core::tensor::Hash;
use tombolo_core::wire::CHUNK_ELEMENTS;

use super::Place;
use crate::federation::{Built, Federation};

/// A round that was computed again, or was to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recomputed {
    /// Which.
    pub round: Round,
    /// Its model, as the record tells it.
    pub told: Hash,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of computing a round again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The same model.
    Same,
    /// Another one, or what was retained is not what was counted.
    Differs {
        /// Whose contribution it is; nobody's if all are what was counted.
        domains: Vec<DomainId>,
        /// How.
        reason: String,
    },
    /// Something that it takes is not there.
    Missing {
        /// Whose contribution it is, if it is one.
        domains: Vec<DomainId>,
        /// What.
        reason: String,
    },
}

/// A round as the record tells it.
#[derive(Default)]
struct Told {
    /// The last round before it with a model of its own; 0 if it began from the initial one.
    base: Round,
    weights: BTreeMap<NodeId, Weight>,
    contributions: Vec<Counted>,
}

/// A contribution that was counted.
struct Counted {
    domain: DomainId,
    attempt: Attempt,
    weight: f64,
    hash: Hash,
    members: Vec<NodeId>,
}

/// Computes the rounds that the record tells as committed again, or that one alone. Blocks.
///
/// # Errors
/// The record is of another configuration than the topology, or nothing can be computed at all.
pub fn recompute(
    federation: &Federation,
    lines: &[String],
    places: &[Place],
    only: Option<Round>,
) -> Result<Vec<Recomputed>, String> {
    let (built, store) = federation.built().map_err(|error| error.to_string())?;
    let (mut last, mut told) = ((0, Hash::default()), Told::default());
    let mut found = Vec::new();
    for line in lines {
        match Leaf::parse(line)? {
            Leaf::Begun { configuration, .. } if configuration != built.configuration => {
                return Err(
                    "the record is of a run with another configuration than this topology: give the file that it was run with"
                        .into(),
                );
            }
            Leaf::Update {
                node, weight, clip, ..
            } => {
                let weight = Weight {
                    node: node.clone(),
                    weight,
                    clip,
                    reason: Default::default(),
                };
                told.weights.insert(node, weight);
            }
            Leaf::Contribution {
                domain,
                attempt,
                weight,
                hash,
                members,
                ..
            } => told.contributions.push(Counted {
                domain,
                attempt,
                weight,
                hash,
                members,
            }),
            Leaf::Unrecorded {
                round,
                state,
                model,
            } if state != RoundState::Aborted => last = (round, model),
            Leaf::Round {
                round,
                state,
                model,
                ..
            } => {
                let told = std::mem::take(&mut told);
                if state == RoundState::Aborted {
                    continue;
                }
                let (base, hash) = std::mem::replace(&mut last, (round, model));
                if only.is_some_and(|only| only != round) {
                    continue;
                }
                let bench = Bench {
                    built: &built,
                    store: &store,
                    round,
                    told: &Told { base, ..told },
                };
                found.push(Recomputed {
                    round,
                    told: model,
                    outcome: bench.outcome(places, hash, model),
                });
            }
            _ => {}
        }
    }
    Ok(found)
}

/// What one round is computed with.
struct Bench<'a> {
    built: &'a Built,
    store: &'a Store,
    round: Round,
    told: &'a Told,
}

impl Bench<'_> {
    fn outcome(&self, places: &[Place], base: Hash, told: Hash) -> Outcome {
        let (mut parts, mut wrong, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for counted in &self.told.contributions {
            match self.part(counted, places) {
                Ok(part) => parts.push(part),
                Err(reasons) if reasons.is_empty() => missing.push(counted.domain.clone()),
                Err(reasons) => wrong.push((counted.domain.clone(), reasons.join("; "))),
            }
        }
        if !wrong.is_empty() {
            let each = wrong
                .iter()
                .map(|(domain, reason)| format!("what {domain} has retained: {reason}"));
            return Outcome::Differs {
                reason: each.collect::<Vec<_>>().join("; "),
                domains: wrong.into_iter().map(|(domain, _)| domain).collect(),
            };
        }
        if !missing.is_empty() {
            let names: Vec<&str> = missing.iter().map(DomainId::as_str).collect();
            return Outcome::Missing {
                reason: format!(
                    "no gateway among these folders has retained what {} contributed: [checkpoint] retain_contributions says for how many rounds",
                    names.join(", ")
                ),
                domains: missing,
            };
        }
        match self.model(&parts, base).map(|model| Hash::of(&model)) {
            Ok(found) if found == told => Outcome::Same,
            Ok(found) => Outcome::Differs {
                domains: Vec::new(),
                reason: format!(
                    "these contributions, each as it was counted, make model {found}, the record tells {told}"
                ),
            },
            Err(Fault::Of(domain, reason)) => Outcome::Differs {
                domains: vec![domain],
                reason,
            },
            Err(Fault::Missing(reason)) => Outcome::Missing {
                domains: Vec::new(),
                reason,
            },
        }
    }

    /// What was retained of a contribution and is what was counted; else what is wrong with whatever there is.
    fn part(&self, counted: &Counted, places: &[Place]) -> Result<Retained, Vec<String>> {
        let mut reasons = Vec::new();
        let each = places
            .iter()
            .flat_map(|place| retain::of_round(&place.files, self.round));
        for retained in each {
            match retained {
                Ok(retained) if retained.contribution.domain != counted.domain => {}
                Ok(retained) => match self.check(counted, &retained) {
                    Ok(()) => return Ok(retained),
                    Err(reason) => reasons.push(reason),
                },
                // It may be this one's: nothing says whose it is.
                Err(reason) => reasons.push(reason),
            }
        }
        Err(reasons)
    }

    fn len(&self) -> usize {
        self.built.layout.len()
    }

    fn needs(&self) -> Needs {
        self.built.plan.aggregator.needs
    }

    /// Elements in a chunk, of as many tensors as lie chunk by chunk one beside the other.
    fn elements(&self, index: usize, tensors: usize) -> usize {
        let before = (index / tensors.max(1)).saturating_mul(CHUNK_ELEMENTS);
        self.len().saturating_sub(before).min(CHUNK_ELEMENTS)
    }

    /// Whether what was retained is what was counted.
    fn check(&self, counted: &Counted, retained: &Retained) -> Result<(), String> {
        let Retained {
            contribution,
            bytes,
        } = retained;
        let is_said = contribution.attempt == counted.attempt
            && contribution.weight.to_bits() == counted.weight.to_bits()
            && contribution.members == counted.members
            && contribution.hash() == counted.hash;
        if !is_said {
            return Err(format!(
                "attempt {} with hash {} and weight {}, counted was attempt {} with hash {} and weight {}",
                contribution.attempt,
                contribution.hash(),
                contribution.weight,
                counted.attempt,
                counted.hash,
                counted.weight
            ));
        }
        let expected = match self.needs() {
            Needs::Sum => fold::exponent(counted.weight).map_err(|error| error.to_string())?,
            Needs::Each | Needs::EachTwice => contribution.exponent,
        };
        if contribution.exponent != expected {
            return Err(format!(
                "its exponent is {}, its weight makes it {expected}",
                contribution.exponent
            ));
        }
        let tensors = contribution.tensors(self.needs());
        let chunks = self.len().div_ceil(CHUNK_ELEMENTS).saturating_mul(tensors);
        if contribution.chunks.len() != chunks {
            return Err(format!(
                "it has {} chunks, the model of this topology makes {chunks}",
                contribution.chunks.len()
            ));
        }
        let mut rest = &bytes[..];
        for (index, expected) in contribution.chunks.iter().enumerate() {
            let chunk = take(retained, &mut rest, index, self.elements(index, tensors))?;
            if Hash::of_bytes(chunk) != *expected {
                return Err(format!("chunk {index} is not the one that was counted"));
            }
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(format!("{} bytes follow its last chunk", rest.len())),
        }
    }

    /// The model that these contributions make.
    fn model(&self, parts: &[Retained], base: Hash) -> Result<Vec<f32>, Fault> {
        let (before, state) = self.before(base)?;
        let mut mean = match self.needs() {
            Needs::Sum => self.sum(parts)?,
            Needs::Each | Needs::EachTwice => self.each(parts)?,
        };
        if let Rule::Trait(mut rule) = (self.built.rule)() {
            rule.finish(&mut mean).map_err(Fault::missing)?;
        }
        let mut optimizer = outer::build(&self.built.plan.outer, self.len());
        if self.told.base > 0 {
            let state = state.iter();
            let state: Vec<(&str, &[f32])> = state
                .map(|(name, elements)| (name.as_str(), elements.as_slice()))
                .collect();
            optimizer.restore(&state).map_err(Fault::missing)?;
        }
        optimizer.step(0, &mut mean).map_err(Fault::missing)?;
        outer::adopt(&mut mean, &before);
        Ok(mean)
    }

    /// The model before, and the outer optimizer's state.
    fn before(&self, base: Hash) -> Result<(Vec<f32>, OuterState), Fault> {
        let round = self.told.base;
        if round == 0 {
            let plan = &self.built.plan;
            let made = (self.built.trainer)(&plan.coordinator).and_then(|mut trainer| {
                let mut model = vec![0.0; self.len()];
                let made = trainer.initialize(plan.seed, &mut model);
                made.map(|()| model).map_err(|error| error.to_string())
            });
            let made = made.map_err(|reason| format!("the initial model: {reason}"));
            return Ok((made.map_err(Fault::missing)?, OuterState::new()));
        }
        let what = format!("the coordinator's state of round {round}");
        let found = self.store.state(round);
        let (model, state) = found.map_err(|error| Fault::missing(format!("{what}: {error}")))?;
        let found = Hash::of(&model);
        match found == base && model.len() == self.len() {
            true => Ok((model, state)),
            false => Err(Fault::missing(format!(
                "{what} holds model {found}, the record tells {base}"
            ))),
        }
    }

    /// The mean of sums: a left fold over domains by name.
    fn sum(&self, parts: &[Retained]) -> Result<Vec<f32>, Fault> {
        let mut sum = vec![0.0; self.len()];
        for (position, part) in parts.iter().enumerate() {
            let folded = fold_part(part, &mut sum, position == 0);
            folded.map_err(|reason| Fault::Of(part.contribution.domain.clone(), reason))?;
        }
        let weights = parts.iter().map(|part| part.contribution.weight);
        fold::divide(&mut sum, fold::total(weights).map_err(Fault::missing)?);
        Ok(sum)
    }

    /// What a rule that sees each update makes of them.
    fn each(&self, parts: &[Retained]) -> Result<Vec<f32>, Fault> {
        let (mut updates, mut weights) = (Vec::new(), Vec::new());
        for part in parts {
            let read = self.updates(part);
            let (read, members) =
                read.map_err(|reason| Fault::Of(part.contribution.domain.clone(), reason))?;
            updates.extend(read);
            weights.extend(members);
        }
        let Rule::Trait(mut rule) = (self.built.rule)() else {
            let reason = "the rule is an actor of the program that ran it";
            return Err(Fault::missing(reason));
        };
        let updates: Vec<&[f32]> = updates.iter().map(Vec::as_slice).collect();
        fold_each(rule.as_mut(), &weights, &updates).map_err(Fault::missing)
    }

    /// The members' updates in a contribution, and what they weigh.
    fn updates(&self, part: &Retained) -> Result<(Vec<Vec<f32>>, Vec<Weight>), String> {
        let members = &part.contribution.members;
        let weights = members.iter().map(|node| {
            let weight = self.told.weights.get(node).cloned();
            weight.ok_or_else(|| format!("the record does not tell what {node} weighs"))
        });
        let weights: Vec<Weight> = weights.collect::<Result<_, _>>()?;
        let mut updates = vec![vec![0.0; self.len()]; members.len()];
        let mut rest = &part.bytes[..];
        for index in 0..part.contribution.chunks.len() {
            let (at, member) = (index / members.len(), index % members.len());
            let elements = self.elements(index, members.len());
            let bytes = take(part, &mut rest, index, elements)?;
            let chunk = &mut updates[member][at * CHUNK_ELEMENTS..][..elements];
            // Times one: bytes become numbers, and nothing is changed.
            let mut term = ByteFold::first(1.0);
            let pushed = term.push(chunk, bytes).and_then(|()| term.finish(chunk));
            pushed.map_err(|error| error.to_string())?;
        }
        Ok((updates, weights))
    }
}

fn fold_part(part: &Retained, sum: &mut [f32], first: bool) -> Result<(), String> {
    let contribution = &part.contribution;
    let said = |error: fold::FoldError| error.to_string();
    let power = fold::power(contribution.exponent).map_err(said)?;
    let coding = contribution.encoding.coding();
    let coder = (coding != Coding::PLAIN).then(|| coding.compressor());
    let mut rest = &part.bytes[..];
    for (index, chunk) in sum.chunks_mut(CHUNK_ELEMENTS).enumerate() {
        let bytes = take(part, &mut rest, index, chunk.len())?;
        if let Some(coder) = &coder {
            let (coder, kernels) = (coder.as_ref(), Kernels::widest());
            compress::fold_chunk(coder, kernels, bytes, power, first, chunk)
                .map_err(|error| error.to_string())?;
            continue;
        }
        let mut term = match first {
            true => ByteFold::first(power),
            false => ByteFold::next(power),
        };
        term.push(chunk, bytes).map_err(said)?;
        term.finish(chunk).map_err(said)?;
    }
    Ok(())
}

/// The bytes of the next chunk.
fn take<'a>(
    part: &Retained,
    rest: &mut &'a [u8],
    index: usize,
    elements: usize,
) -> Result<&'a [u8], String> {
    let bytes = part.contribution.encoding.chunk_bytes(index, elements);
    let split = bytes.and_then(|bytes| rest.split_at_checked(bytes));
    let (chunk, behind) = split.ok_or_else(|| format!("it ends within chunk {index}"))?;
    *rest = behind;
    Ok(chunk)
}

type OuterState = Vec<(String, Vec<f32>)>;

/// Why there is no model.
enum Fault {
    /// A contribution that is what was counted cannot be folded.
    Of(DomainId, String),
    /// Something else is not there, or not as it should be.
    Missing(String),
}

impl Fault {
    fn missing(reason: impl ToString) -> Fault {
        Fault::Missing(reason.to_string())
    }
}
