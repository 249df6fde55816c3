//! Where every node stands, as the coordinator sees it, and which view should follow.
//!
//! ```text
//! Joining -> Active <-> Suspect -> Restoring -> Evicted -- cool-down over and heard --> Active
//!              \____________________/  heard      Left  -- heard ---------------------> Active
//! ```
//!
//! Gateways say how their members do, the coordinator's own heartbeats how gateways do. Suspicion alone evicts nobody: only who stayed silent
//! through the whole ladder is put out, by a new view. The cool-down doubles with each eviction up to a cap; it is waived for nodes without
//! which there would be no quorum, and can be lifted by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{DomainId, NodeId};
use crate::mutants;
use crate::plan::{HeartbeatPlan, Plan};
use crate::time::Micros;
use crate::view::{Out, View};

/// What is heard of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// It is here.
    Active,
    /// It was not heard for the heartbeat limit.
    Suspect,
    /// It was not heard through all retries: rounds do not wait for it.
    Restoring,
    /// It was not heard through the whole ladder.
    Overdue,
    /// It said that it leaves.
    Left,
}

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not heard yet.
    Joining,
    /// Takes part.
    Active,
    /// Silent for the heartbeat limit.
    Suspect,
    /// Silent through all retries.
    Restoring,
    /// Put out by the coordinator.
    Evicted,
    /// Gone of its own will.
    Left,
}

/// What is known of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands.
    pub state: State,
    /// Since when.
    pub since: Micros,
    /// While evicted: when it may come back.
    pub until: Option<Micros>,
    overdue: bool,
    leaves: bool,
    heard: bool,
    evictions: u32,
}

impl State {
    /// In one word, as status shows it.
    pub fn word(self) -> &'static str {
        match self {
            State::Joining => "joining",
            State::Active => "active",
            State::Suspect => "suspect",
            State::Restoring => "restoring",
            State::Evicted => "evicted",
            State::Left => "left",
        }
    }
}

impl Entry {
    /// Why the node stands where it does; empty if all is well.
    pub fn reason(&self, now: Micros) -> String {
        match self.state {
            State::Joining => "never heard of".into(),
            State::Active => String::new(),
            State::Suspect => "no sign of life for the heartbeat limit".into(),
            State::Restoring if self.leaves => "it leaves".into(),
            State::Restoring if self.overdue => {
                "no sign of life through the whole ladder: it is put out once no open sum holds its update".into()
            }
            State::Restoring => "no sign of life through all retries".into(),
            State::Evicted => {
                let cools = self.until.is_some_and(|until| until > now);
                let waits = match (cools, self.heard) {
                    (true, true) => "it is back and cools down",
                    (true, false) => "it cools down",
                    (false, _) => "it is let in as soon as it is heard",
                };
                let times = self.evictions;
                format!("no sign of life through the whole ladder, {times} in a row; {waits}")
            }
            State::Left => "it said that it leaves".into(),
        }
    }
}

/// A cool-down that cannot be lifted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NotLifted {
    /// There is no such node.
    #[error("this federation has no node {0}")]
    Unknown(NodeId),
    /// It was not evicted.
    #[error("{0} is {word}, not evicted: it has no cool-down", word = .1.word())]
    NotEvicted(NodeId, State),
    /// Its cool-down has ended.
    #[error("the cool-down of {0} is over: it is let in as soon as it is heard; is it running?")]
    Over(NodeId),
}

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Membership {
    view: View,
    entries: BTreeMap<NodeId, Entry>,
    heartbeat: HeartbeatPlan,
}

impl Membership {
    /// Everybody of the plan, as the view has it. Who is out begins its cool-down anew: clocks do not outlive a process.
    pub fn new(plan: &Plan, view: View, now: Micros) -> Self {
        let mut membership = Membership {
            entries: BTreeMap::new(),
            heartbeat: plan.heartbeat.clone(),
            view: View {
                out: BTreeMap::new(),
                ..view.clone()
            },
        };
        for node in plan.nodes() {
            let entry = Entry {
                state: State::Joining,
                since: now,
                until: None,
                overdue: false,
                leaves: false,
                heard: false,
                evictions: 0,
            };
            membership.entries.insert(node.id.clone(), entry);
        }
        membership.adopt(view, now);
        membership
    }

    /// The view that holds.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// For status: every node, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&NodeId, &Entry)> {
        self.entries.iter()
    }

    /// Where a node stands; none if the plan does not have it.
    pub fn state(&self, node: &NodeId) -> Option<State> {
        self.entries.get(node).map(|entry| entry.state)
    }

    /// Whether a round may still hope for word of `node`: it is in, and not known to be silent.
    pub fn is_expected(&self, node: &NodeId, now: Micros) -> bool {
        let patience = self.heartbeat.limit() + self.heartbeat.retry.iter().sum::<Duration>();
        self.entries
            .get(node)
            .is_some_and(|entry| match entry.state {
                State::Active | State::Suspect => true,
                State::Joining => !entry.leaves && now.since(entry.since) < patience,
                State::Restoring | State::Evicted | State::Left => false,
            })
    }

    /// Takes a word about a node. If the node stands elsewhere now: where it stood, and the entry.
    pub fn on_word(&mut self, now: Micros, node: &NodeId, word: Word) -> Option<(State, &Entry)> {
        let is_out = self.view.is_out(node);
        let entry = self.entries.get_mut(node)?;
        if entry.leaves && word != Word::Active {
            // Who said goodbye is silent by right.
            return None;
        }
        entry.heard = word == Word::Active || (word == Word::Suspect && entry.heard);
        entry.leaves = word == Word::Left;
        entry.overdue = word == Word::Overdue;
        if is_out {
            return None;
        }
        let state = match word {
            Word::Active => State::Active,
            Word::Suspect => State::Suspect,
            Word::Restoring | Word::Overdue | Word::Left => State::Restoring,
        };
        // A node that nobody has heard yet cannot be lost.
        let never_came = entry.state == State::Joining && word != Word::Active;
        if state == entry.state || never_came {
            return None;
        }
        let forgiven = now.since(entry.since) >= self.heartbeat.cooldown.forgiven_after();
        if entry.state == State::Active && forgiven {
            entry.evictions = 0;
        }
        let before = std::mem::replace(&mut entry.state, state);
        entry.since = now;
        Some((before, entry))
    }

    /// Lifts the cool-down of a node; says how much of it was left.
    ///
    /// # Errors
    /// It has none.
    pub fn lift(&mut self, node: &NodeId, now: Micros) -> Result<Duration, NotLifted> {
        let Some(entry) = self.entries.get_mut(node) else {
            return Err(NotLifted::Unknown(node.clone()));
        };
        match (entry.state, entry.until) {
            (State::Evicted, Some(until)) if until > now => {
                entry.until = Some(now);
                Ok(until.since(now))
            }
            (State::Evicted, _) => Err(NotLifted::Over(node.clone())),
            (state, _) => Err(NotLifted::NotEvicted(node.clone(), state)),
        }
    }

    /// The view that should follow now, if any: with the successors named in `gateways`, without those who are overdue and of whom
    /// `may_evict` says so, with those whose cool-down is over. `waived` nodes need not wait for that.
    pub fn next(
        &self,
        now: Micros,
        gateways: &BTreeMap<DomainId, NodeId>,
        may_evict: impl Fn(&NodeId) -> bool,
        waived: impl Fn(&NodeId) -> bool,
    ) -> Option<View> {
        let mut view = self.view.clone();
        for (domain, node) in gateways {
            view.gateways.insert(domain.clone(), node.clone());
        }
        for (node, entry) in &self.entries {
            if view.is_out(node) {
                let over = entry.until.is_none_or(|until| until <= now);
                let cool = over || waived(node) || mutants::is("no-cooldown");
                if entry.heard && cool {
                    view.out.remove(node);
                }
            } else if (entry.overdue || entry.leaves) && may_evict(node) {
                let out = if entry.leaves {
                    Out::Left
                } else {
                    Out::Evicted(entry.evictions.saturating_add(1))
                };
                view.out.insert(node.clone(), out);
            }
        }
        if view == self.view {
            return None;
        }
        view.epoch += 1;
        Some(view)
    }

    /// Goes to a view that is written down. Returns who is out in it and was not before, and who came back.
    pub fn adopt(&mut self, view: View, now: Micros) -> (Vec<NodeId>, Vec<NodeId>) {
        let before: BTreeSet<NodeId> = self.view.out.keys().cloned().collect();
        let after: BTreeSet<NodeId> = view.out.keys().cloned().collect();
        let gone: Vec<NodeId> = after.difference(&before).cloned().collect();
        let back: Vec<NodeId> = before.difference(&after).cloned().collect();
        for node in &gone {
            let (Some(entry), Some(out)) = (self.entries.get_mut(node), view.out.get(node)) else {
                continue;
            };
            entry.since = now;
            match *out {
                Out::Evicted(times) => {
                    entry.state = State::Evicted;
                    entry.evictions = times;
                    entry.until = Some(now + self.heartbeat.cooldown.span(times));
                }
                Out::Left => {
                    entry.state = State::Left;
                    entry.until = None;
                }
            }
        }
        for node in &back {
            if let Some(entry) = self.entries.get_mut(node) {
                (entry.state, entry.since, entry.until) = (State::Active, now, None);
            }
        }
        self.view = view;
        (gone, back)
    }

    /// When a cool-down ends next, of nodes that wait for it.
    pub fn wake(&self, now: Micros) -> Option<Micros> {
        let waiting = self.entries.values().filter(|entry| entry.heard);
        waiting
            .filter_map(|entry| entry.until)
            .filter(|until| *until > now)
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::samples::plan;

    fn n(text: &str) -> NodeId {
        text.parse().unwrap()
    }

    fn at(seconds: u64) -> Micros {
        Micros(seconds * 1_000_000)
    }

    struct Stand(Membership);

    impl Stand {
        fn new() -> Self {
            let plan = plan(&[2, 2]);
            let view = View::first(&plan);
            let mut stand = Stand(Membership::new(&plan, view, at(0)));
            for node in plan.nodes() {
                stand.0.on_word(at(0), &node.id, Word::Active);
            }
            stand
        }

        fn next(&self, now: u64) -> Option<View> {
            self.0.next(at(now), &BTreeMap::new(), |_| true, |_| false)
        }

        fn review(&mut self, now: u64) -> (Vec<NodeId>, Vec<NodeId>) {
            let view = self.next(now).expect("a new view is due");
            self.0.adopt(view, at(now))
        }

        fn state(&self, node: &str) -> State {
            self.0.entries[&n(node)].state
        }
    }

    #[test]
    fn suspicion_alone_evicts_nobody() {
        let mut stand = Stand::new();
        for word in [Word::Suspect, Word::Restoring] {
            stand.0.on_word(at(1), &n("d1/n1"), word);
            assert_eq!(stand.next(1000), None, "{word:?}");
        }
        assert_eq!(stand.state("d1/n1"), State::Restoring);
        assert!(!stand.0.is_expected(&n("d1/n1"), at(1)));
        stand.0.on_word(at(2), &n("d1/n1"), Word::Active);
        assert!(stand.0.is_expected(&n("d1/n1"), at(2)));
    }

    #[test]
    fn who_is_silent_through_the_ladder_is_put_out_once_it_may_be() {
        let mut stand = Stand::new();
        stand.0.on_word(at(1), &n("d1/n1"), Word::Overdue);
        let held = stand.0.next(at(1), &BTreeMap::new(), |_| false, |_| false);
        assert_eq!(held, None, "its update may still count");
        assert_eq!(stand.review(2), (vec![n("d1/n1")], vec![]));
        assert_eq!(stand.0.view().epoch, 2);
        assert_eq!(stand.state("d1/n1"), State::Evicted);
    }

    #[test]
    fn a_returning_node_waits_for_its_cool_down_which_doubles_to_a_cap() {
        let mut stand = Stand::new();
        let mut now = 0;
        for wait in [10, 20, 40, 80, 160, 320, 600, 600] {
            stand.0.on_word(at(now), &n("d1/n1"), Word::Overdue);
            stand.review(now);
            stand.0.on_word(at(now + 1), &n("d1/n1"), Word::Active);
            assert_eq!(stand.0.wake(at(now + 1)), Some(at(now + wait)));
            assert_eq!(stand.next(now + wait - 1), None);
            now += wait;
            assert_eq!(stand.review(now), (vec![], vec![n("d1/n1")]));
        }
        // A long healthy time forgives.
        now += 601;
        stand.0.on_word(at(now), &n("d1/n1"), Word::Overdue);
        stand.review(now);
        assert_eq!(stand.0.view().out[&n("d1/n1")], Out::Evicted(1));
    }

    #[test]
    fn who_stays_silent_stays_out() {
        let mut stand = Stand::new();
        stand.0.on_word(at(0), &n("d1/n1"), Word::Overdue);
        stand.review(0);
        assert_eq!(stand.next(10_000), None);
        assert_eq!(stand.0.wake(at(1)), None);
    }

    #[test]
    fn a_cool_down_can_be_waived_and_lifted() {
        let mut stand = Stand::new();
        stand.0.on_word(at(0), &n("d1/n1"), Word::Overdue);
        stand.review(0);
        stand.0.on_word(at(1), &n("d1/n1"), Word::Active);
        let waived = stand.0.next(at(1), &BTreeMap::new(), |_| true, |_| true);
        assert!(waived.is_some(), "there is no quorum without it");
        let left = stand.0.lift(&n("d1/n1"), at(1));
        assert_eq!(left, Ok(Duration::from_secs(9)));
        let again = stand.0.lift(&n("d1/n1"), at(1));
        assert_eq!(again, Err(NotLifted::Over(n("d1/n1"))));
        assert_eq!(stand.review(1), (vec![], vec![n("d1/n1")]));
        let active = stand.0.lift(&n("d1/n1"), at(1)).unwrap_err();
        assert_eq!(
            active.to_string(),
            "d1/n1 is active, not evicted: it has no cool-down"
        );
        let stranger = stand.0.lift(&n("d7/n1"), at(1));
        assert_eq!(stranger, Err(NotLifted::Unknown(n("d7/n1"))));
    }

    /// horovod#3319, hivemind#137: reason and end are visible.
    #[test]
    fn every_state_but_active_says_why() {
        let mut stand = Stand::new();
        let node = n("d1/n1");
        let reason = |stand: &Stand, now| stand.0.entries[&node].reason(at(now));
        assert_eq!(reason(&stand, 0), "");
        let told = [
            (Word::Suspect, "heartbeat limit"),
            (Word::Restoring, "all retries"),
            (Word::Overdue, "whole ladder"),
        ];
        for (word, said) in told {
            stand.0.on_word(at(0), &node, word);
            assert!(reason(&stand, 0).contains(said), "{word:?}");
        }
        let mut leaver = Stand::new();
        leaver.0.on_word(at(0), &node, Word::Left);
        assert_eq!(reason(&leaver, 0), "it leaves");
        stand.review(0);
        assert!(reason(&stand, 9).ends_with("1 in a row; it cools down"));
        assert!(reason(&stand, 10).ends_with("as soon as it is heard"));
        stand.0.on_word(at(1), &node, Word::Active);
        assert!(reason(&stand, 9).ends_with("it is back and cools down"));
    }

    #[test]
    fn who_leaves_is_out_at_once_and_back_when_it_is_heard() {
        let mut stand = Stand::new();
        stand.0.on_word(at(1), &n("d1/n1"), Word::Left);
        for silence in [Word::Suspect, Word::Restoring, Word::Overdue] {
            stand.0.on_word(at(1), &n("d1/n1"), silence);
        }
        stand.review(1);
        assert_eq!(stand.state("d1/n1"), State::Left);
        stand.0.on_word(at(2), &n("d1/n1"), Word::Active);
        assert_eq!(stand.review(2), (vec![], vec![n("d1/n1")]));
        assert_eq!(stand.0.view().epoch, 3);
    }

    #[test]
    fn a_node_that_never_came_is_waited_for_a_while_and_not_evicted() {
        let plan = plan(&[2]);
        let mut membership = Membership::new(&plan, View::first(&plan), at(0));
        let node = n("d0/n1");
        assert!(membership.is_expected(&node, at(8)));
        assert!(!membership.is_expected(&node, at(9)));
        membership.on_word(at(9), &node, Word::Restoring);
        assert_eq!(membership.entries[&node].state, State::Joining);
    }

    #[test]
    fn a_restarted_coordinator_keeps_the_view_and_the_count() {
        let mut stand = Stand::new();
        stand.0.on_word(at(0), &n("d1/n1"), Word::Overdue);
        stand.review(0);
        let view = stand.0.view().clone();
        let again = Membership::new(&plan(&[2, 2]), view.clone(), at(5));
        assert_eq!(again.view(), &view);
        assert_eq!(again.entries[&n("d1/n1")].until, Some(at(15)));
        assert_eq!(again.entries[&n("d1/n1")].evictions, 1);
    }
}
