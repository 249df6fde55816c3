//! What a domain's codec lost, kept by its gateway until it can be sent: error feedback, as in `core/src/compress/feedback.rs`.
//!
//! Each start of a round's fold is encoded from the same residual and leaves what it lost as pending. The commit that lists a contribution
//! makes its pending the residual; every other pending of that round is forgotten. A gateway that has not encoded what was committed has no
//! residual of use to anybody, and begins at zero. It lives beside the actors, so that the panic of one loses nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::slab::Slab;
use tombolo_core::ids::{Attempt, Round};

/// Pending encodings of one round that are kept: what stands and what takes its place, and one for a coordinator that knows an older one.
const PENDING_MAX: usize = 3;

/// See the module.
#[derive(Debug, Default)]
pub struct Residual(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    kept: Option<Slab>,
    pending: BTreeMap<(Round, Attempt), Slab>,
}

impl Residual {
    /// What was lost and not sent yet, in the units of the domain's sum; nothing at the start, and after a loss.
    pub fn kept(&self) -> Option<Slab> {
        self.lock().kept.clone()
    }

    /// Remembers what an encoding has lost.
    pub fn put(&self, round: Round, attempt: Attempt, lost: Slab) {
        let mut state = self.lock();
        state.pending.retain(|(of, _), _| *of == round);
        while state.pending.len() >= PENDING_MAX {
            state.pending.pop_first();
        }
        state.pending.insert((round, attempt), lost);
    }

    /// A round was committed, with this attempt of the domain in it, if with any.
    pub fn on_commit(&self, round: Round, attempt: Option<Attempt>) {
        let mut state = self.lock();
        if let Some(attempt) = attempt {
            match state.pending.remove(&(round, attempt)) {
                Some(lost) => state.kept = Some(lost),
                // A commit that is told again changes nothing; one that others have encoded leaves nothing of use here.
                None if state.pending.keys().any(|(of, _)| *of == round) => state.kept = None,
                None => {}
            }
        }
        state.pending.retain(|(of, _), _| *of > round);
    }

    /// A round ended without a commit.
    pub fn on_abort(&self, round: Round) {
        self.lock().pending.retain(|(of, _), _| *of > round);
    }

    /// Another gateway has led the domain, or will.
    pub fn clear(&self) {
        *self.lock() = State::default();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Pool;

    fn slab(value: f32) -> Slab {
        let mut slab = Pool::default().take(1);
        slab[0] = value;
        slab.freeze()
    }

    fn kept(residual: &Residual) -> Option<f32> {
        residual.kept().map(|slab| slab[0])
    }

    #[test]
    fn only_what_was_committed_is_adopted_and_only_once() {
        let residual = Residual::default();
        assert_eq!(kept(&residual), None);
        residual.put(1, 0, slab(1.0));
        residual.put(1, 1, slab(2.0));
        residual.on_commit(1, Some(0));
        assert_eq!(kept(&residual), Some(1.0));
        // Told again, by a coordinator that was restarted.
        residual.on_commit(1, Some(0));
        residual.on_commit(1, Some(1));
        assert_eq!(kept(&residual), Some(1.0));
    }

    #[test]
    fn a_round_without_the_domain_or_without_a_commit_leaves_the_residual() {
        let residual = Residual::default();
        residual.put(1, 0, slab(1.0));
        residual.on_commit(1, Some(0));
        residual.put(2, 0, slab(5.0));
        residual.on_commit(2, None);
        residual.put(3, 0, slab(6.0));
        residual.on_abort(3);
        residual.on_commit(3, Some(0));
        assert_eq!(kept(&residual), Some(1.0));
    }

    #[test]
    fn who_has_not_encoded_what_was_committed_begins_at_zero() {
        let residual = Residual::default();
        residual.put(1, 0, slab(1.0));
        residual.on_commit(1, Some(0));
        residual.put(2, 3, slab(2.0));
        residual.on_commit(2, Some(1));
        assert_eq!(kept(&residual), None);
        residual.put(3, 0, slab(3.0));
        residual.on_commit(3, Some(0));
        residual.clear();
        assert_eq!(kept(&residual), None);
    }

    #[test]
    fn few_pendings_are_kept() {
        let residual = Residual::default();
        for attempt in 0..10 {
            residual.put(1, attempt, slab(attempt as f32));
        }
        assert_eq!(residual.lock().pending.len(), PENDING_MAX);
        residual.put(2, 0, slab(0.0));
        assert_eq!(residual.lock().pending.len(), 1);
    }
}
