//! Who waits for whom: the wait-for graph of a process's actors, and the rings in it that nobody leaves by himself.
//!
//! A ring alone proves nothing: whoever was asked may have handed the question on. One of which every wait has stood for as long as any answer
//! takes does. So a ring is found when the wait that closes it begins, and named if it still stands after the watch's patience; one that has been
//! named is not named again before one of its waits has ended. Nothing is looked at in between, so a graph without rings costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::time::Micros;

/// An actor: its type, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    /// Its type.
    pub actor: &'static str,
    /// Its node, or its node and its peer.
    pub key: String,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.actor, self.key)
    }
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The answer to a question.
    Answer,
    /// Room in a queue.
    Room,
    /// Work of a collective that was ordered.
    Work,
}

/// One waits for another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Who waits.
    pub who: Arc<Party>,
    /// Whom it needs.
    pub on: Arc<Party>,
    /// For what.
    pub what: What,
    /// Since when.
    pub since: Micros,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::Answer => "an answer of",
            What::Room => "room in the queue of",
            What::Work => "the work of",
        };
        write!(f, "{} waits for {what} {}", self.who, self.on)
    }
}

/// A wait that has begun, until [`WaitFor::end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitId(u64);

/// Waits that lead back to where they begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ring(Vec<WaitId>);

/// The graph; see the module. It holds as many waits as there are questions under way.
#[derive(Debug, Default)]
pub struct WaitFor {
    last: u64,
    waits: BTreeMap<WaitId, Wait>,
    by: BTreeMap<Arc<Party>, BTreeSet<WaitId>>,
    told: Vec<Ring>,
}

impl WaitFor {
    /// A wait begins; and the ring that it closes, if it closes one.
    pub fn begin(&mut self, wait: Wait) -> (WaitId, Option<Ring>) {
        self.last += 1;
        let id = WaitId(self.last);
        let way = self.way(&wait.on, &wait.who);
        self.by.entry(wait.who.clone()).or_default().insert(id);
        self.waits.insert(id, wait);
        let ring = way.map(|mut way| {
            way.insert(0, id);
            Ring(way)
        });
        (id, ring)
    }

    /// A wait is over.
    pub fn end(&mut self, id: WaitId) {
        let Some(wait) = self.waits.remove(&id) else {
            return;
        };
        if let Some(waits) = self.by.get_mut(&wait.who) {
            waits.remove(&id);
            if waits.is_empty() {
                self.by.remove(&wait.who);
            }
        }
        self.told.retain(|ring| !ring.0.contains(&id));
    }

    /// The waits of a ring if all of them still stand, each but the first behind the one that it waits on; once for each ring of the same
    /// parties.
    pub fn stands(&mut self, ring: &Ring) -> Option<Vec<Wait>> {
        let waits: Option<Vec<Wait>> = ring
            .0
            .iter()
            .map(|id| self.waits.get(id).cloned())
            .collect();
        let waits = waits?;
        let parties = |ring: &Ring| -> BTreeSet<&Arc<Party>> {
            let waits = ring.0.iter().filter_map(|id| self.waits.get(id));
            waits.map(|wait| &wait.who).collect()
        };
        if self.told.iter().any(|told| parties(told) == parties(ring)) {
            return None;
        }
        self.told.push(ring.clone());
        Some(waits)
    }

    /// Waits that stand.
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// The waits that lead from one party to another, if any do: the fewest.
    fn way(&self, from: &Arc<Party>, to: &Arc<Party>) -> Option<Vec<WaitId>> {
        let mut came: BTreeMap<&Arc<Party>, Option<WaitId>> = BTreeMap::from([(from, None)]);
        let mut front = vec![from];
        while !came.contains_key(to) {
            let mut next = Vec::new();
            for party in front {
                for id in self.by.get(party).into_iter().flatten() {
                    let on = &self.waits[id].on;
                    if !came.contains_key(on) {
                        came.insert(on, Some(*id));
                        next.push(on);
                    }
                }
            }
            if next.is_empty() {
                return None;
            }
            front = next;
        }
        let (mut way, mut at) = (Vec::new(), to);
        while let Some(Some(id)) = came.get(at) {
            way.push(*id);
            at = &self.waits[id].who;
        }
        way.reverse();
        Some(way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(key: &str) -> Arc<Party> {
        let (actor, key) = ("Node", key.to_owned());
        Arc::new(Party { actor, key })
    }

    fn wait(graph: &mut WaitFor, who: &str, on: &str) -> (WaitId, Option<Ring>) {
        graph.begin(Wait {
            who: party(who),
            on: party(on),
            what: What::Answer,
            since: Micros(5),
        })
    }

    fn told(graph: &mut WaitFor, ring: &Ring) -> Option<Vec<String>> {
        let waits = graph.stands(ring)?;
        Some(waits.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn waits_that_lead_nowhere_close_no_ring() {
        let mut graph = WaitFor::default();
        for (who, on) in [("a", "b"), ("b", "c"), ("a", "c"), ("d", "a"), ("b", "c")] {
            assert_eq!(wait(&mut graph, who, on).1, None, "{who} {on}");
        }
        assert_eq!(graph.len(), 5);
    }

    #[test]
    fn the_wait_that_closes_a_ring_finds_all_of_it_and_the_shortest() {
        let mut graph = WaitFor::default();
        for (who, on) in [("a", "b"), ("b", "c"), ("c", "d"), ("b", "d"), ("b", "x")] {
            assert_eq!(wait(&mut graph, who, on).1, None);
        }
        let ring = wait(&mut graph, "d", "a").1.unwrap();
        assert_eq!(
            told(&mut graph, &ring).unwrap(),
            [
                "Node of d waits for an answer of Node of a",
                "Node of a waits for an answer of Node of b",
                "Node of b waits for an answer of Node of d",
            ]
        );
    }

    #[test]
    fn who_waits_for_itself_is_a_ring_of_one() {
        let mut graph = WaitFor::default();
        let ring = wait(&mut graph, "a", "a").1.unwrap();
        assert_eq!(graph.stands(&ring).unwrap().len(), 1);
    }

    #[test]
    fn a_ring_of_which_one_wait_has_ended_does_not_stand() {
        let mut graph = WaitFor::default();
        let (first, _) = wait(&mut graph, "a", "b");
        let (second, ring) = wait(&mut graph, "b", "a");
        graph.end(first);
        assert_eq!(graph.stands(&ring.unwrap()), None);
        graph.end(second);
        graph.end(second);
        assert!(graph.is_empty() && graph.by.is_empty(), "nothing is kept");
        assert_eq!(wait(&mut graph, "a", "b").1, None);
    }

    #[test]
    fn a_ring_is_named_once_and_again_only_after_it_was_left() {
        let mut graph = WaitFor::default();
        wait(&mut graph, "a", "b");
        let (back, ring) = wait(&mut graph, "b", "a");
        let ring = ring.unwrap();
        assert!(graph.stands(&ring).is_some());
        assert_eq!(graph.stands(&ring), None, "it was named");
        // A second question of the same actor closes it once more.
        let (_, same) = wait(&mut graph, "b", "a");
        assert_eq!(graph.stands(&same.unwrap()), None);
        graph.end(back);
        let (_, anew) = wait(&mut graph, "b", "a");
        assert!(graph.stands(&anew.unwrap()).is_some());
    }
}
