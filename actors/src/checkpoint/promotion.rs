//! How a store tells coordinators apart that take turns.
//!
//! Who coordinates, the last view says. A new coordinator makes itself one by the next view, which only one can create; from then on the one
//! before it is refused here, whatever it still has in hand. What two of them might write at once and is not created if absent, states and
//! notes, bears the coordinator's *term* in its name: the epoch in which it took the store up. So neither ever overwrites the other's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CheckpointError, Store, state};
use tombolo_core::ids::{Epoch, NodeId};
use tombolo_core::plan::Plan;
use tombolo_core::tensor::Hash;
use tombolo_core::view::View;

/// A store that coordinators share, as one of them sees it.
#[derive(Clone)]
pub(super) struct Shared {
    pub me: NodeId,
    pub term: super::Term,
}

impl Store {
    /// The same store as one of several coordinators sees it.
    #[must_use]
    pub fn shared(mut self, me: NodeId, term: super::Term) -> Self {
        self.shared = Some(Shared { me, term });
        self
    }

    /// Refuses the work of a coordinator that is none any more.
    pub(super) fn check_acting(&self) -> Result<(), CheckpointError> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        match self.last_view()? {
            Some(view) if view.coordinator != shared.me => Err(CheckpointError::Superseded {
                by: view.coordinator,
                epoch: view.epoch,
            }),
            _ => Ok(()),
        }
    }

    /// Whose the store's rounds are, if anybody was promoted.
    pub(super) fn look(&self) -> Result<Option<super::Standing>, CheckpointError> {
        let Some(view) = self.last_view()? else {
            return Ok(None);
        };
        Ok(Some((view, self.probe()?.map(|probe| probe.run))))
    }

    /// Begins a term: whatever is written from now on bears it.
    pub(super) fn begin_term(&self) -> Result<(), CheckpointError> {
        self.check_acting()?;
        if let Some(shared) = &self.shared {
            let epoch = self.last_view()?.map_or(0, |view| view.epoch);
            let run = self.probe()?.map(|probe| probe.run);
            shared.term.begin(epoch, run);
        }
        Ok(())
    }

    pub(super) fn term(&self) -> Epoch {
        let shared = self.shared.as_ref();
        shared.map_or(0, |shared| shared.term.epoch())
    }

    /// Makes the node of this store the coordinator, by the next view; gives that view and the run. Blocks.
    ///
    /// It takes over from `after` and from nobody else: of two that are promoted at once, one is.
    ///
    /// # Errors
    /// The coordinator's probe cannot be read back, the store cannot create if absent, the newest state does not verify (nothing could be gone
    /// on from), or somebody else was promoted meanwhile.
    pub fn appoint(&self, plan: &Plan, after: &NodeId) -> Result<(View, Hash), CheckpointError> {
        self.check_topology()?;
        let me = match &self.shared {
            Some(shared) => shared.me.clone(),
            None => plan.coordinator.clone(),
        };
        let Some(probe) = self.probe()? else {
            let path = self.files.locate(super::probe::PROBE);
            return Err(CheckpointError::NoProbe { path });
        };
        self.claim(probe.run)?;
        if let Some(newest) = self.newest_stated(self.ended()?)? {
            let folder = super::store::folder_of(&newest);
            state::verify(self.files.as_ref(), &folder, &newest.record)?;
        }
        let (last, _) = self.standing(plan)?;
        if last.coordinator == me {
            return Ok((last, probe.run));
        }
        if last.coordinator != *after {
            let (by, epoch) = (last.coordinator, last.epoch);
            return Err(CheckpointError::Meanwhile { by, epoch });
        }
        let next = last.promoting(&me);
        match self.create_view(&next) {
            Ok(()) => Ok((next, probe.run)),
            // Perhaps of the coordinator's own making, at this moment.
            Err(CheckpointError::TakenView(_)) => self.appoint(plan, after),
            Err(error) => Err(error),
        }
    }
}

/// In which epoch this node took the store up, and of which run it is; outlives the actor. Nothing where nobody shares the store.
#[derive(Debug, Clone, Default)]
pub struct Term(Arc<Mutex<(Epoch, Option<Hash>)>>);

impl Term {
    pub(crate) fn epoch(&self) -> Epoch {
        self.lock().0
    }

    pub(super) fn run(&self) -> Option<Hash> {
        self.lock().1
    }

    fn begin(&self, epoch: Epoch, run: Option<Hash>) {
        *self.lock() = (epoch, run);
    }

    fn lock(&self) -> MutexGuard<'_, (Epoch, Option<Hash>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
