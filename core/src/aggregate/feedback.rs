//! Feedback over rounds: who drifts away from the others counts less, and regains its weight when it no longer does.
//!
//! In a round a node drifts if its update was refused as not finite, or if its gradient norm (measured by its peers) or its training loss (its own
//! word) is more than `limit` times the round's lower median. One such round says little, so what counts is the share of recent rounds, an
//! exponentially weighted mean: `share = memory share + (1 - memory) x`, with x = 1 for a round that drifts and 0 for one that does not. The
//! weight is multiplied by `1 - (1 - floor) share`. A single round moves the share by `1 - memory`, however wild its numbers are; a node that is
//! not heard of keeps its share.
//!
//! The shares stand in each round's record, and the next round goes on from there: a coordinator that is restarted, or a standby that takes its
//! place, weighs as the one before would have.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Report, Weight, dynamic_weighted::gradient_norm, lower_median};
use crate::ids::{NodeId, Round};
use crate::plan::FeedbackPlan;

/// Below it a share is forgotten: no weight changes by more than a hundredth.
const FORGOTTEN: f64 = 0.01;

/// Of two updates none is the odd one out.
const REPORTS_MIN: usize = 3;

/// How far a node has drifted; who has not is not spoken of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Who.
    pub node: NodeId,
    /// The share of recent rounds in which it drifted, 0 to 1.
    pub share: f64,
    /// What its weight is multiplied by in the next round.
    pub factor: f64,
    /// When it drifted last, and why.
    pub reason: String,
}

/// Multiplies weights by what the rounds before have left of them, and says so.
pub fn apply(drifts: &[Drift], weights: &mut [Weight]) {
    for weight in weights {
        let Some(drift) = drifts.iter().find(|drift| drift.node == weight.node) else {
            continue;
        };
        let Drift {
            share,
            factor,
            reason,
            ..
        } = drift;
        let said = format!("drifted in {share:.2} of recent rounds, times {factor:.2}: {reason}");
        weight.scale(*factor, &said);
    }
}

/// What a round leaves, from what the rounds before have left, from its reports, and from those whose update was refused; by node.
pub fn next<'a>(
    plan: &FeedbackPlan,
    before: &[Drift],
    round: Round,
    reports: impl Iterator<Item = &'a Report>,
    refused: impl Iterator<Item = &'a NodeId>,
) -> Vec<Drift> {
    let reports: Vec<&Report> = reports.filter(|report| report.samples > 0).collect();
    let mut seen: BTreeMap<&NodeId, Option<String>> = BTreeMap::new();
    if reports.len() >= REPORTS_MIN {
        let median = |of: fn(&Report) -> f64| lower_median(reports.iter().map(|report| of(report)));
        let (norm, loss) = (median(gradient_norm), median(|report| report.loss));
        for report in &reports {
            seen.insert(&report.node, away(plan.limit, report, norm, loss));
        }
    }
    for node in refused {
        seen.insert(node, Some("its update was refused".into()));
    }
    let known = before.iter().map(|drift| &drift.node);
    let nodes: BTreeSet<&NodeId> = known.chain(seen.keys().copied()).collect();
    let one = |node: &NodeId| {
        let old = before.iter().find(|drift| drift.node == *node);
        let share = old.map_or(0.0, |old| old.share);
        let Some(why) = seen.get(node) else {
            return old.cloned();
        };
        let x = if why.is_some() { 1.0 } else { 0.0 };
        let share = plan.memory * share + (1.0 - plan.memory) * x;
        if share < FORGOTTEN {
            return None;
        }
        let said = why.as_ref().map(|why| format!("round {round}: {why}"));
        Some(Drift {
            node: node.clone(),
            share,
            factor: 1.0 - (1.0 - plan.floor) * share,
            reason: said.or_else(|| old.map(|old| old.reason.clone()))?,
        })
    };
    nodes.into_iter().filter_map(one).collect()
}

/// Why a report lies apart from the others'; none if it does not. Multiples of a median of zero order nothing.
fn away(limit: f64, report: &Report, norm: Option<f64>, loss: Option<f64>) -> Option<String> {
    let far = |what: &str, found: f64, median: Option<f64>| {
        let median = median.filter(|median| *median > 0.0)?;
        let times = found / median;
        (times > limit).then(|| format!("{what} {times:.1} times the round's median"))
    };
    far("gradient norm", gradient_norm(report), norm).or_else(|| far("loss", report.loss, loss))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: FeedbackPlan = FeedbackPlan {
        memory: 0.8,
        limit: 2.0,
        floor: 0.1,
    };

    fn report(name: &str, norm: f64, loss: f64) -> Report {
        Report {
            node: format!("hq/{name}").parse().unwrap(),
            samples: 10,
            loss,
            steps: 1,
            learning_rate: 1.0,
            norm,
            finite: true,
        }
    }

    fn round(before: &[Drift], number: Round, reports: &[Report]) -> Vec<Drift> {
        next(&PLAN, before, number, reports.iter(), std::iter::empty())
    }

    fn of<'a>(drifts: &'a [Drift], name: &str) -> Option<&'a Drift> {
        drifts.iter().find(|drift| drift.node.name() == name)
    }

    #[test]
    fn who_drifts_loses_weight_round_by_round_and_regains_it() {
        let odd = [
            report("a", 1.0, 0.3),
            report("b", 1.2, 0.3),
            report("c", 9.0, 0.3),
        ];
        let even = odd.clone().map(|report| Report {
            norm: 1.0,
            ..report
        });
        let mut drifts = Vec::new();
        let mut factors = Vec::new();
        for number in 1..=3 {
            drifts = round(&drifts, number, &odd);
            factors.push(of(&drifts, "c").unwrap().factor);
        }
        let expected = [0.82, 0.676, 0.5608];
        let near = factors
            .iter()
            .zip(expected)
            .all(|(f, e)| (f - e).abs() < 1e-12);
        assert!(near, "{factors:?}");
        assert_eq!(drifts.len(), 1, "{drifts:?}");
        assert_eq!(
            drifts[0].reason,
            "round 3: gradient norm 7.5 times the round's median"
        );
        let lowest = drifts[0].factor;
        drifts = round(&drifts, 4, &even);
        assert!(drifts[0].factor > lowest);
        // When it was is still told.
        assert!(drifts[0].reason.starts_with("round 3"));
        for number in 5..30 {
            drifts = round(&drifts, number, &even);
        }
        assert_eq!(drifts, []);
    }

    #[test]
    fn a_loss_far_from_the_others_is_a_drift_too_and_a_refused_update_always() {
        let reports = [
            report("a", 1.0, 0.3),
            report("b", 1.0, 0.4),
            report("c", 1.0, 2.4),
        ];
        let drifts = round(&[], 1, &reports);
        assert_eq!(drifts.len(), 1);
        assert!(of(&drifts, "c").unwrap().reason.contains("loss 6.0 times"));
        let gone: NodeId = "hq/d".parse().unwrap();
        let drifts = next(&PLAN, &[], 1, reports[..2].iter(), std::iter::once(&gone));
        assert_eq!(
            of(&drifts, "d").unwrap().reason,
            "round 1: its update was refused"
        );
        // Two others tell nothing of each other.
        assert_eq!(drifts.len(), 1);
    }

    #[test]
    fn the_factor_ends_at_the_floor_and_one_round_moves_it_by_little_whatever_its_numbers() {
        let wild = [
            report("a", 1.0, 0.3),
            report("b", 1.0, 0.3),
            report("c", 1e30, 1e30),
        ];
        let mut drifts = round(&[], 1, &wild);
        assert!((drifts[0].share - 0.2).abs() < 1e-12);
        for number in 2..200 {
            drifts = round(&drifts, number, &wild);
            assert!((0.1..=1.0).contains(&drifts[0].factor), "{drifts:?}");
        }
        assert!((drifts[0].factor - 0.1).abs() < 1e-9);
    }

    #[test]
    fn who_is_not_heard_of_keeps_its_share_and_medians_of_zero_accuse_nobody() {
        let odd = [
            report("a", 1.0, 0.3),
            report("b", 1.0, 0.3),
            report("c", 9.0, 0.3),
        ];
        let drifts = round(&[], 1, &odd);
        let without = [
            report("a", 1.0, 0.3),
            report("b", 1.0, 0.3),
            report("d", 1.0, 0.3),
        ];
        assert_eq!(round(&drifts, 2, &without), drifts);
        let nothing = [
            report("a", 0.0, 0.0),
            report("b", 0.0, 0.0),
            report("c", 5.0, 5.0),
        ];
        assert_eq!(round(&[], 1, &nothing), []);
    }

    #[test]
    fn weights_are_multiplied_and_say_why() {
        let odd = [
            report("a", 1.0, 0.3),
            report("b", 1.0, 0.3),
            report("c", 9.0, 0.3),
        ];
        let drifts = round(&[], 1, &odd);
        let weight = |report: &Report| Weight {
            node: report.node.clone(),
            weight: 10.0,
            clip: 0.5,
            reason: "loss".into(),
        };
        let mut weights: Vec<Weight> = odd.iter().map(weight).collect();
        apply(&drifts, &mut weights);
        assert_eq!(
            (weights[0].weight, weights[0].reason.as_str()),
            (10.0, "loss")
        );
        assert!((weights[2].weight - 8.2).abs() < 1e-12);
        assert_eq!(weights[2].clip, 0.5);
        assert_eq!(
            weights[2].reason,
            "loss; drifted in 0.20 of recent rounds, times 0.82: round 1: gradient norm 9.0 times the round's median"
        );
    }
}
