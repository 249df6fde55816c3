//! What may befall a path for a while, on top of its model.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{LinkModel, queue_of};

/// A trouble on a path, one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PathFault {
    /// Nothing passes, nor arrives of what is under way.
    Cut,
    /// This share of datagrams is lost.
    Loss(f64),
    /// This share of datagrams arrives twice.
    Duplicate(f64),
    /// Each datagram is delayed by up to this, and later ones overtake.
    Reorder(Duration),
    /// Each datagram is delayed by this.
    Delay(Duration),
    /// Datagrams with more payload than this vanish without notice.
    Mtu(usize),
    /// No more bits per second than this pass.
    Rate(u64),
}

/// The troubles of a path now, by the number that names each.
#[derive(Debug, Default)]
pub struct Troubles(BTreeMap<u64, PathFault>);

impl Troubles {
    pub fn add(&mut self, id: u64, fault: PathFault) {
        self.0.insert(id, fault);
    }

    /// Whether there was one of that number.
    pub fn remove(&mut self, id: u64) -> Option<PathFault> {
        self.0.remove(&id)
    }

    /// Takes every cut away.
    pub fn remove_cuts(&mut self) {
        self.0.retain(|_, fault| *fault != PathFault::Cut);
    }

    pub fn cut(&self) -> bool {
        self.0.values().any(|fault| *fault == PathFault::Cut)
    }

    /// What a path of this model does under these troubles: several of a kind add up as they would in a row.
    pub fn over(&self, model: &LinkModel) -> LinkModel {
        let mut model = model.clone();
        for fault in self.0.values() {
            match *fault {
                PathFault::Cut => {}
                PathFault::Loss(share) => model.loss = either(model.loss, share),
                PathFault::Duplicate(share) => model.duplicate = either(model.duplicate, share),
                PathFault::Reorder(within) => {
                    model.reorder = true;
                    model.jitter += within;
                }
                PathFault::Delay(by) => model.latency += by,
                PathFault::Mtu(bytes) => model.mtu = model.mtu.min(bytes),
                PathFault::Rate(rate) if model.rate.is_none_or(|usual| usual > rate) => {
                    model.rate = Some(rate);
                    model.queue = queue_of(rate);
                }
                PathFault::Rate(_) => {}
            }
        }
        model
    }
}

/// The chance that one of two independent things happens.
fn either(a: f64, b: f64) -> f64 {
    1.0 - (1.0 - a) * (1.0 - b)
}
