//! Makes a failing plan of faults smaller, as far as it still fails in the same way.
//!
//! Delta debugging (Zeller, Hildebrandt: "Simplifying and Isolating Failure-Inducing Input", 2002): parts of the list are left out, large ones
//! first; then each fault that is left is made shorter, by halves. Every attempt is a run, so their number is bounded; and since a run is
//! decided by its plan, the result is always the same.

use std::time::Duration;

use super::plan::FaultPlan;

/// Runs that shrinking takes at most, unless told otherwise.
pub const RUNS_MAX: usize = 200;

/// A fault is not made shorter than this.
const SHORTEST: Duration = Duration::from_millis(10);

/// The smallest plan that was found, and after how many runs.
pub(super) fn shrink(
    plan: FaultPlan,
    runs_max: usize,
    fails: impl FnMut(&FaultPlan) -> bool,
) -> (FaultPlan, usize) {
    let mut search = Search {
        best: plan,
        runs: 0,
        runs_max,
        fails,
    };
    search.leave_out();
    search.shorten();
    (search.best, search.runs)
}

struct Search<F> {
    best: FaultPlan,
    runs: usize,
    runs_max: usize,
    fails: F,
}

impl<F: FnMut(&FaultPlan) -> bool> Search<F> {
    /// Takes a plan if it still fails.
    fn attempt(&mut self, plan: FaultPlan) -> bool {
        if self.runs >= self.runs_max {
            return false;
        }
        self.runs += 1;
        let fails = (self.fails)(&plan);
        if fails {
            self.best = plan;
        }
        fails
    }

    fn leave_out(&mut self) {
        let mut size = self.best.faults.len().div_ceil(2);
        while size > 0 && self.runs < self.runs_max {
            let mut start = 0;
            let mut smaller = false;
            while start < self.best.faults.len() {
                let mut plan = self.best.clone();
                let end = (start + size).min(plan.faults.len());
                plan.faults.drain(start..end);
                match self.attempt(plan) {
                    true => smaller = true,
                    false => start = end,
                }
            }
            // What could not be left out before may be now.
            let again = smaller && size == 1;
            size = if again { 1 } else { size / 2 };
        }
    }

    fn shorten(&mut self) {
        for nth in 0..self.best.faults.len() {
            loop {
                let timed = &self.best.faults[nth];
                let Some(until) = timed.until else { break };
                let half = (until - timed.at) / 2;
                // In whole milliseconds, which are easier to read.
                let half = Duration::from_millis(u64::try_from(half.as_millis()).unwrap_or(0));
                if half < SHORTEST {
                    break;
                }
                let mut plan = self.best.clone();
                plan.faults[nth].until = Some(timed.at + half);
                if !self.attempt(plan) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::plan::{Fault, TimedFault};
    use crate::simulation::{fault::*, millis};

    fn plan(count: u64) -> FaultPlan {
        let timed = |nth| TimedFault {
            at: millis(nth * 100),
            until: Some(millis(nth * 100 + 6400)),
            fault: freeze(&format!("hq/n{nth}")),
        };
        FaultPlan {
            faults: (0..count).map(timed).collect(),
        }
    }

    fn nodes(plan: &FaultPlan) -> Vec<&str> {
        plan.faults.iter().filter_map(|t| t.fault.node()).collect()
    }

    fn lasts(timed: &TimedFault) -> Duration {
        timed.until.unwrap() - timed.at
    }

    #[test]
    fn only_the_faults_that_make_it_fail_are_left_and_no_longer_than_they_must() {
        let guilty = ["hq/n3", "hq/n17", "hq/n18"];
        let fails = |plan: &FaultPlan| {
            let long = |name: &str| {
                plan.faults
                    .iter()
                    .any(|timed| timed.fault.node() == Some(name) && lasts(timed) >= millis(700))
            };
            guilty.iter().all(|name| long(name))
        };
        let (smallest, runs) = shrink(plan(40), RUNS_MAX, fails);
        assert_eq!(nodes(&smallest), guilty);
        for timed in &smallest.faults {
            assert_eq!(lasts(timed), millis(800));
        }
        assert!(runs < 120, "{runs} runs");
        assert_eq!(shrink(plan(40), RUNS_MAX, fails), (smallest, runs));
    }

    #[test]
    fn a_failure_without_faults_shrinks_to_none_and_the_runs_are_bounded() {
        let (smallest, _) = shrink(plan(9), RUNS_MAX, |_| true);
        assert_eq!(smallest, FaultPlan::default());
        let (smallest, runs) = shrink(plan(64), 10, |plan| nodes(plan).contains(&"hq/n1"));
        assert_eq!(runs, 10);
        assert!(nodes(&smallest).contains(&"hq/n1") && smallest.faults.len() < 64);
        let (same, runs) = shrink(plan(5), 0, |_| true);
        assert_eq!((same, runs), (plan(5), 0));
    }

    #[test]
    fn what_happens_at_an_instant_is_not_shortened() {
        let instant = TimedFault {
            at: millis(5),
            until: None,
            fault: restart("hq/a"),
        };
        let plan = FaultPlan {
            faults: vec![instant.clone()],
        };
        let needed = |plan: &FaultPlan| {
            let restarts = |timed: &TimedFault| matches!(timed.fault, Fault::Restart { .. });
            plan.faults.iter().any(restarts)
        };
        assert_eq!(shrink(plan, RUNS_MAX, needed).0.faults, [instant]);
    }
}
