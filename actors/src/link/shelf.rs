//! What peers may fetch from a node: contributions, a model that was just committed, and the models it holds, chunk by chunk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dashmap::DashMap;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use tombolo_core::outline::{CHUNK_BYTES, Outline};
use tombolo_core::tensor::Hash;
use tombolo_core::wire::Object;

/// Chunks and outlines of models that are sent at once, to all peers: two nodes that heal from here keep their whole shares on the way, and
/// what a round needs never waits for more than these few MiB.
const HEALS_MAX: usize = 4;

/// Tensor objects that peers may fetch from this node.
#[derive(Debug, Clone)]
pub struct Shelf {
    objects: Arc<DashMap<Object, Bytes>>,
    held: Arc<Mutex<BTreeMap<Holder, Held>>>,
    heals: Arc<Semaphore>,
}

impl Default for Shelf {
    fn default() -> Self {
        Shelf {
            objects: Arc::default(),
            held: Arc::default(),
            heals: Arc::new(Semaphore::new(HEALS_MAX)),
        }
    }
}

/// Which part of a node holds a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// The member: the one that it trains from.
    Member,
    /// The coordinator: the one that it committed last.
    Coordinator,
}

/// A model that is held: its outline, and its elements as they travel.
#[derive(Debug, Clone)]
pub struct Held {
    /// The values of its chunks.
    pub outline: Arc<Outline>,
    /// All of it.
    pub bytes: Bytes,
}

impl Held {
    /// One chunk, without a copy.
    fn chunk(&self, index: u32) -> Option<Bytes> {
        let begin = (index as usize).checked_mul(CHUNK_BYTES)?;
        let end = begin.saturating_add(CHUNK_BYTES).min(self.bytes.len());
        (begin < end).then(|| self.bytes.slice(begin..end))
    }
}

impl Shelf {
    /// Puts an object there.
    pub fn put(&self, object: Object, bytes: Bytes) {
        self.objects.insert(object, bytes);
    }

    /// Takes an object away; a transfer under way still ends well.
    pub fn remove(&self, object: Object) {
        self.objects.remove(&object);
    }

    /// Keeps those objects and takes all others away; models stay.
    pub fn keep(&self, wanted: impl Fn(Object) -> bool) {
        self.objects.retain(|object, _| wanted(*object));
    }

    /// Shows a model in place of the one that this part held.
    pub fn hold(&self, holder: Holder, held: Held) {
        self.held().insert(holder, held);
    }

    /// This part holds no model for the time being; a transfer under way still ends well.
    pub fn let_go(&self, holder: Holder) {
        self.held().remove(&holder);
    }

    /// The model of that hash, whoever holds it.
    pub fn model(&self, hash: Hash) -> Option<Held> {
        let held = self.held();
        let found = held.values().find(|held| held.outline.hash() == hash);
        found.cloned()
    }

    /// An object, if it is there.
    pub fn find(&self, object: Object) -> Option<Bytes> {
        match object {
            Object::Outline(hash) => Some(self.model(hash)?.outline.to_bytes().into()),
            Object::Chunk(hash, index) => self.model(hash)?.chunk(index),
            Object::Rest(round, attempt, from) => {
                let whole = self.find(Object::Contribution(round, attempt))?;
                let from = usize::try_from(from).ok()?;
                (from < whole.len()).then(|| whole.slice(from..))
            }
            _ => self.objects.get(&object).map(|entry| entry.value().clone()),
        }
    }

    /// Leave to send a part of a model, unless as many are on their way as may be.
    pub(super) fn heal(&self) -> Option<OwnedSemaphorePermit> {
        self.heals.clone().try_acquire_owned().ok()
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<Holder, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an object is part of a model that somebody heals from, which waits behind what a round needs.
pub(super) fn heals(object: Object) -> bool {
    matches!(object, Object::Outline(_) | Object::Chunk(..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::outline::chunks;
    use tombolo_core::tensor::bytes_of;
    use tombolo_core::wire::CHUNK_ELEMENTS;

    fn model(seed: f32) -> (Vec<f32>, Held) {
        let elements: Vec<f32> = (0..2 * CHUNK_ELEMENTS + 3)
            .map(|element| element as f32 * seed)
            .collect();
        let held = Held {
            outline: Arc::new(Outline::of(&elements)),
            bytes: Bytes::copy_from_slice(bytes_of(&elements)),
        };
        (elements, held)
    }

    #[test]
    fn a_held_model_is_there_chunk_by_chunk_by_its_hash() {
        let shelf = Shelf::default();
        let (elements, held) = model(1.0);
        let hash = held.outline.hash();
        assert!(shelf.find(Object::Outline(hash)).is_none());
        shelf.hold(Holder::Member, held.clone());
        let outline = shelf.find(Object::Outline(hash)).unwrap();
        let read = Outline::read(&outline, elements.len(), hash).unwrap();
        assert_eq!(&read, held.outline.as_ref());
        let mut all = Vec::new();
        for index in 0..chunks(elements.len()) as u32 {
            all.extend(shelf.find(Object::Chunk(hash, index)).unwrap());
        }
        assert_eq!(all, bytes_of(&elements));
        for beyond in [3, u32::MAX] {
            assert!(shelf.find(Object::Chunk(hash, beyond)).is_none());
        }
        assert!(shelf.find(Object::Chunk(Hash::default(), 0)).is_none());
    }

    /// The coordinator's and the member's are the same one most of the time.
    #[test]
    fn a_model_is_there_as_long_as_anybody_holds_it() {
        let shelf = Shelf::default();
        let (one, other) = (model(1.0).1, model(2.0).1);
        let hash = one.outline.hash();
        shelf.hold(Holder::Coordinator, one.clone());
        shelf.hold(Holder::Member, one);
        shelf.keep(|_| false);
        shelf.let_go(Holder::Member);
        assert!(shelf.model(hash).is_some());
        shelf.hold(Holder::Coordinator, other.clone());
        assert!(shelf.model(hash).is_none());
        assert!(shelf.model(other.outline.hash()).is_some());
    }

    #[test]
    fn few_parts_of_models_are_sent_at_once() {
        let shelf = Shelf::default();
        let mut permits: Vec<_> = (0..HEALS_MAX).map(|_| shelf.heal().unwrap()).collect();
        assert!(shelf.clone().heal().is_none());
        permits.pop();
        assert!(shelf.heal().is_some());
    }
}
