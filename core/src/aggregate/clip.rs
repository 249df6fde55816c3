//! The bound on an update's norm. A small weight bounds nothing (an update 30 times too long still counts nine times at weight 0.3); this does.

use super::Report;
use crate::plan::Clip;

/// One factor `min(1, limit / norm)` for each report. The median is taken over those with a weight: who counts for nothing moves no bound.
pub fn clip_factors(clip: Clip, reports: &[Report], weights: &[f64]) -> Vec<f64> {
    let limit = match clip {
        Clip::None => None,
        Clip::Norm(limit) => Some(limit),
        Clip::Median => lower_median(
            reports
                .iter()
                .zip(weights)
                .filter(|(_, weight)| **weight > 0.0)
                .map(|(report, _)| report.norm),
        ),
    };
    reports
        .iter()
        .map(|report| limit.map_or(1.0, |limit| factor(limit, report.norm)))
        .collect()
}

/// The median; of an even count the lower one, so that half of the reports decide nothing alone. `None` of nothing.
pub fn lower_median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len().checked_sub(1)? / 2;
    Some(numbers[middle])
}

fn factor(limit: f64, norm: f64) -> f64 {
    if norm > limit { limit / norm } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_lower_one() {
        assert_eq!(lower_median([]), None);
        assert_eq!(lower_median([3.0]), Some(3.0));
        assert_eq!(lower_median([4.0, 1.0]), Some(1.0));
        assert_eq!(lower_median([9.0, 1.0, 4.0]), Some(4.0));
        assert_eq!(lower_median([9.0, 1.0, 4.0, 2.0]), Some(2.0));
    }

    #[test]
    fn only_what_is_longer_than_the_limit_is_clipped() {
        for (limit, norm, expected) in [
            (2.0, 8.0, 0.25),
            (2.0, 2.0, 1.0),
            (2.0, 1.0, 1.0),
            (0.0, 0.0, 1.0),
            (0.0, 3.0, 0.0),
        ] {
            assert_eq!(factor(limit, norm), expected, "{limit} {norm}");
        }
    }
}
