//! Asynchronous rounds: what an update counts for that was made from an older model, and which updates counted already.
//!
//! After FedBuff (Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022). Every round that commits makes a
//! *version* of the model. An update is known by its node and by the round it was trained for: a node trains once for a round, and the round
//! names the version it began with, the last one before it. Its *staleness* is the number of versions that were committed since.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{NodeId, Round};

/// The asynchronous mode of a federation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AsyncPlan {
    /// Updates that make a version.
    pub buffer: usize,
    /// What older updates count for.
    pub staleness: Staleness,
}

/// What an update counts for by its staleness.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Staleness {
    /// The factor on its weight.
    pub weight: Discount,
    /// Updates of a greater staleness do not count.
    pub limit: u64,
}

/// The factor on an update's weight, 0 to 1, by its staleness.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Discount {
    /// One.
    Constant,
    /// (1 + staleness) to the minus `exponent`; one half is FedBuff's.
    Polynomial {
        /// Not negative.
        exponent: f64,
    },
}

impl Discount {
    /// The factor for an update that many versions old.
    pub fn factor(self, staleness: u64) -> f64 {
        let age = 1.0 + staleness as f64;
        match self {
            Discount::Constant => 1.0,
            // Rounded once.
            Discount::Polynomial { exponent: 0.5 } => 1.0 / age.sqrt(),
            Discount::Polynomial { exponent } => libm::pow(age, -exponent),
        }
    }
}

/// What later rounds need to know of earlier ones. Written down with every outcome, so that no update counts twice in whatever life.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// The last rounds that were committed, oldest first: as many as an update may be stale, and one.
    commits: Vec<Round>,
    /// For which round a node's last counted update was trained; of nodes whose next could not be told from it otherwise.
    counted: BTreeMap<NodeId, Round>,
}

impl Past {
    /// How many versions were committed since an update was begun that was trained for this round. Beyond the limit it is one more, however old.
    pub fn staleness(&self, trained_for: Round) -> u64 {
        let since = self.commits.iter().filter(|round| **round >= trained_for);
        since.count() as u64
    }

    /// The oldest round for which an update may have been trained to be within the limit.
    pub fn oldest(&self, limit: u64) -> Round {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let beyond = self.commits.len().checked_sub(limit.saturating_add(1));
        beyond.map_or(1, |index| self.commits[index] + 1)
    }

    /// For which round the last update of a node was trained that is in a version, if that is known.
    pub fn counted(&self, node: &NodeId) -> Option<Round> {
        self.counted.get(node).copied()
    }

    /// A round is committed with these updates, each by its node and the round that it was trained for.
    pub fn on_commit(
        &mut self,
        round: Round,
        updates: impl IntoIterator<Item = (NodeId, Round)>,
        limit: u64,
    ) {
        self.commits.push(round);
        let kept = usize::try_from(limit)
            .unwrap_or(usize::MAX)
            .saturating_add(1);
        let surplus = self.commits.len().saturating_sub(kept);
        self.commits.drain(..surplus);
        self.counted.extend(updates);
        let oldest = self.oldest(limit);
        self.counted.retain(|_, trained_for| *trained_for >= oldest);
    }
}

/// Which updates a round takes of a domain's members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fresh {
    /// The oldest round for which they may have been trained.
    pub oldest: Round,
    /// Members whose updates up to the one for that round have counted, or cannot.
    pub spent: Vec<(NodeId, Round)>,
}

/// What is to be done with an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It may count.
    Fresh,
    /// It has counted, or was refused.
    Spent,
    /// It is too old.
    TooStale,
}

impl Fresh {
    /// The oldest round for which a member's update may have been trained.
    pub fn oldest_of(&self, node: &NodeId) -> Round {
        let spent = self.spent.iter().find(|(spent, _)| spent == node);
        let next = spent.map_or(0, |(_, round)| round.saturating_add(1));
        self.oldest.max(next)
    }

    /// How an update stands that a member trained for that round.
    pub fn standing(&self, node: &NodeId, trained_for: Round) -> Standing {
        let spent = self.spent.iter().find(|(spent, _)| spent == node);
        match spent {
            Some((_, last)) if trained_for <= *last => Standing::Spent,
            _ if trained_for < self.oldest => Standing::TooStale,
            _ => Standing::Fresh,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    #[test]
    fn staleness_counts_versions_and_not_rounds() {
        let mut past = Past::default();
        assert_eq!((past.staleness(1), past.oldest(2)), (0, 1));
        past.on_commit(1, [], 2);
        // Rounds 2 and 3 were aborted: who trained for them began with the version of round 1.
        past.on_commit(4, [], 2);
        let staleness = [1, 2, 3, 4, 5].map(|round| past.staleness(round));
        assert_eq!(staleness, [2, 1, 1, 1, 0]);
        assert_eq!(past.oldest(2), 1);
        past.on_commit(5, [], 2);
        assert_eq!(past.staleness(1), 3, "beyond the limit");
        assert_eq!(past.oldest(2), 2);
        past.on_commit(6, [], 2);
        assert_eq!(
            past.oldest(2),
            5,
            "round 4 began with the version of round 1"
        );
        assert_eq!(past.staleness(5), 2);
    }

    #[test]
    fn what_has_counted_is_known_for_as_long_as_its_age_would_not_tell() {
        let mut past = Past::default();
        past.on_commit(1, [(node("a/x"), 1), (node("a/y"), 1)], 1);
        past.on_commit(2, [(node("a/x"), 2)], 1);
        assert_eq!(past.counted(&node("a/x")), Some(2));
        assert_eq!(past.counted(&node("a/y")), None, "it would be too stale");
        assert_eq!(past.oldest(1), 2);
    }

    #[test]
    fn an_update_is_fresh_spent_or_too_stale() {
        let fresh = Fresh {
            oldest: 4,
            spent: vec![(node("a/x"), 6)],
        };
        let standing = |name, round| fresh.standing(&node(name), round);
        assert_eq!(standing("a/y", 3), Standing::TooStale);
        assert_eq!(standing("a/y", 4), Standing::Fresh);
        assert_eq!(standing("a/x", 3), Standing::Spent);
        assert_eq!(standing("a/x", 6), Standing::Spent);
        assert_eq!(standing("a/x", 7), Standing::Fresh);
        assert_eq!(fresh.oldest_of(&node("a/x")), 7);
        assert_eq!(fresh.oldest_of(&node("a/y")), 4);
    }

    #[test]
    fn the_factor_falls_as_the_root_of_the_age() {
        let half = Discount::Polynomial { exponent: 0.5 };
        assert_eq!(half.factor(0), 1.0);
        assert_eq!(half.factor(3), 0.5);
        assert_eq!(half.factor(8), 1.0 / 3.0);
        assert_eq!(Discount::Polynomial { exponent: 1.0 }.factor(4), 0.2);
        assert_eq!(Discount::Constant.factor(9), 1.0);
    }
}
