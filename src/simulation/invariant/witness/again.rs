//! The folds of a round, computed once more in a few lines, with what codecs make of them.

use std::collections::BTreeMap;

use tombolo_core::aggregate::{self, Aggregator, Weight};
use tombolo_core::compress::{self, Coding, Encoded, Kernels};
use tombolo_core::ids::DomainId;
use tombolo_core::plan::{NodePlan, Plan};
use tombolo_core::wire::CHUNK_ELEMENTS;

use super::Fold;

/// Domains that may have lost what their codec owed, at once: each doubles what may be right.
const LOST_MAX: usize = 6;

pub(super) type Counted<'a> = (&'a Weight, &'a Vec<f32>);

/// The counted updates in the order of folds: domains by name, in each its nodes by rank.
pub(super) fn in_order<'a>(plan: &Plan, counted: &[Counted<'a>]) -> Vec<Vec<Counted<'a>>> {
    let domains: BTreeMap<_, _> = plan.domains.iter().map(|d| (&d.id, &d.nodes)).collect();
    let by_rank = |nodes: &&Vec<NodePlan>| {
        let of = |node: &NodePlan| counted.iter().find(|(weight, _)| weight.node == node.id);
        nodes.iter().filter_map(of).copied().collect()
    };
    domains.values().map(by_rank).collect()
}

/// A built-in rule over all counted updates at once, each clipped.
pub(super) fn reference_of_each(
    plan: &Plan,
    mut rule: Box<dyn Aggregator>,
    counted: &[Counted<'_>],
) -> Option<Vec<f32>> {
    let counted = in_order(plan, counted).concat();
    let clipped = counted.iter().map(|(weight, update)| {
        let factor = weight.clip as f32;
        update.iter().map(|element| factor * element).collect()
    });
    let clipped: Vec<Vec<f32>> = clipped.collect();
    let updates: Vec<&[f32]> = clipped.iter().map(Vec::as_slice).collect();
    let weights: Vec<Weight> = counted
        .iter()
        .map(|(weight, _)| (*weight).clone())
        .collect();
    aggregate::fold_each(rule.as_mut(), &weights, &updates).ok()
}

/// What codecs have lost so far, by domain.
pub(super) type Residuals = BTreeMap<DomainId, Vec<f32>>;

impl Fold {
    /// Whether this mean is the reference fold, and then what the codecs have lost.
    pub(super) fn is_reference(
        &mut self,
        plan: &Plan,
        counted: &[Counted<'_>],
        mean: &[f32],
    ) -> bool {
        // Who lost a residual may have encoded before that, so either is right.
        let lost: Vec<DomainId> = self.lost.iter().take(LOST_MAX).cloned().collect();
        for choice in 0..1u32 << lost.len() {
            let mut residuals = self.residuals.clone();
            let zeroed = lost.iter().enumerate();
            let zeroed = zeroed.filter(|(index, _)| choice >> index & 1 == 0);
            zeroed.for_each(|(_, domain)| drop(residuals.remove(domain)));
            let expected = reference(plan, counted, &mut residuals);
            if expected.is_some_and(|expected| same_bits(&expected, mean)) {
                for (weight, _) in counted {
                    self.lost.remove(&weight.node.domain());
                }
                self.residuals = residuals;
                return true;
            }
        }
        false
    }
}

/// The fold of `core/src/fold.rs`, as its first lines describe it, with what codecs make of it.
fn reference(plan: &Plan, counted: &[Counted<'_>], residuals: &mut Residuals) -> Option<Vec<f32>> {
    let (mut global, mut total) = (None::<Vec<f32>>, 0.0f64);
    for by_rank in in_order(plan, counted) {
        let (mut sum, mut domain) = (None::<Vec<f32>>, 0.0f64);
        for (weight, update) in by_rank.iter().filter(|(weight, _)| weight.weight > 0.0) {
            let factor = (weight.weight * weight.clip) as f32;
            add(&mut sum, update.iter().map(|element| factor * element));
            domain += weight.weight;
        }
        let Some(sum) = sum else { continue };
        let power = 2f32.powi(((domain.to_bits() >> 52) & 0x7FF) as i32 - 1023);
        let of = by_rank[0].0.node.domain();
        let mut scaled: Vec<f32> = sum.iter().map(|element| element * (1.0 / power)).collect();
        if !plan.codec(&of).is_lossless() {
            let kept = residuals.entry(of.clone()).or_default();
            for (scaled, kept) in scaled.iter_mut().zip(kept.iter()) {
                *scaled += kept * (1.0 / power);
            }
            let sent = sent(plan.codec(&of), &scaled);
            let lost = scaled.iter().zip(&sent);
            *kept = lost.map(|(all, sent)| (all - sent) * power).collect();
            scaled = sent;
        }
        add(&mut global, scaled.iter().map(|element| element * power));
        total += domain;
    }
    let mut global = global?;
    global
        .iter_mut()
        .for_each(|element| *element /= total as f32);
    Some(global)
}

/// What arrives of these numbers.
fn sent(codec: Coding, values: &[f32]) -> Vec<f32> {
    let (compressor, kernels) = (codec.compressor(), Kernels::PORTABLE);
    let (mut encoded, mut sent) = (Encoded::default(), vec![0.0; values.len()]);
    compressor.encode(kernels, values, &mut encoded);
    for (bytes, sent) in encoded.chunks().zip(sent.chunks_mut(CHUNK_ELEMENTS)) {
        let decoded = compress::decode(compressor.as_ref(), kernels, bytes, sent);
        decoded.expect("what was encoded can be decoded");
    }
    sent
}

fn add(sum: &mut Option<Vec<f32>>, terms: impl Iterator<Item = f32>) {
    match sum {
        None => *sum = Some(terms.collect()),
        Some(sum) => sum
            .iter_mut()
            .zip(terms)
            .for_each(|(sum, term)| *sum += term),
    }
}

pub(super) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    let equal = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    a.len() == b.len() && a.iter().zip(b).all(equal)
}
