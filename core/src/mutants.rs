//! Planted bugs, one at a time: the test of the tests.
//!
//! A simulation that never finds anything may be right or blind. So the bugs that it is there for are planted on purpose, behind
//! [`is`], and a test wants each of them found: `core/tests/federation/mutants.rs` for those that the machines alone show. Without the feature
//! `mutants` [`is`] is a constant `false`, and nothing of a bug is built. Only tests turn the feature on, through their dev-dependencies, so
//! that they need no build of their own; `cargo xtask tidy` holds that.
//!
//! One bug is planted for one thread, so tests beside each other do not disturb one another, and a simulation is one thread.

/// A planted bug's name, and what it does.
pub type Mutant = (&'static str, &'static str);

/// Bugs of the machines.
pub const CORE: &[Mutant] = &[
    (
        "double-count",
        "a sum that was started again is folded twice",
    ),
    (
        "early-acknowledgement",
        "a contribution is acknowledged before it is noted",
    ),
    ("stale-epoch", "what was made in another view is taken"),
    (
        "planned-weight",
        "a sum is said to weigh what all weighed members weigh, not those inside",
    ),
    (
        "regroup-race",
        "an answer to an older start of the fold is taken for the newest",
    ),
    (
        "evicted-counts",
        "a node is put out while an open sum holds its update",
    ),
    (
        "commit-unfenced",
        "a commit that somebody else has recorded already is announced all the same",
    ),
    (
        "deadline-ignored",
        "a round accepts for as long as something may come",
    ),
    (
        "late-counts",
        "what is noted after the fold has begun counts",
    ),
    (
        "acknowledged-forgotten",
        "a coordinator that goes on with a round has forgotten whom it had acknowledged",
    ),
    ("view-untold", "a view is told before it is written down"),
    (
        "no-second-fold",
        "who joins behind the first gate is not told the weights: no successor folds",
    ),
    (
        "no-cooldown",
        "who was put out is let in as soon as it is heard",
    ),
    ("rung-skipped", "a silent peer is lost without a retry"),
    (
        "hash-ignored",
        "a member holds what it has read, whatever its hash",
    ),
    ("no-quorum", "a round closes with whoever came"),
    (
        "counted-forgotten",
        "asynchronous rounds do not know which updates are in a version already",
    ),
    (
        "stale-in-full",
        "what was made from an old model counts like what is new",
    ),
    (
        "limit-ignored",
        "asynchronous rounds take updates of any age",
    ),
];

/// Whether the bug of that name is planted for this thread.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn is(_: &str) -> bool {
    false
}

#[cfg(feature = "mutants")]
mod planted {
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Whether the bug of that name is planted for this thread.
    pub fn is(name: &str) -> bool {
        PLANTED.get() == Some(name)
    }

    /// Plants a bug for this thread, until the answer is dropped.
    #[must_use]
    pub fn plant(name: &'static str) -> Planted {
        Planted(PLANTED.replace(Some(name)))
    }

    /// While it lives a bug is planted.
    #[derive(Debug)]
    pub struct Planted(Option<&'static str>);

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(self.0);
        }
    }
}

#[cfg(feature = "mutants")]
pub use planted::{Planted, is, plant};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_planted_for_a_while() {
        {
            let _planted = plant("no-quorum");
            assert!(is("no-quorum") && !is("double-count"));
            {
                let _other = plant("double-count");
                assert!(is("double-count") && !is("no-quorum"));
            }
            assert!(is("no-quorum"));
        }
        assert!(!is("no-quorum"));
    }
}
