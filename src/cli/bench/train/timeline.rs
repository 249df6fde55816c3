//! Where the time of a round goes, from the events of a federation whose nodes all run in this process.
//!
//! A round goes from the end of the round before to its own, for each node. What happens to the node on the way stands in [`STEPS`], in order:
//! the time up to each of them is one share's. So a node's shares add up to the round, whatever happens at the same time elsewhere.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use tombolo_core::event::{Event, RoundRecord};
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::plan::Plan;

/// What a node's time is spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// Local steps, and the update that is made of them and written down.
    Compute,
    /// Reading and folding in the domain.
    Fabric,
    /// Messages, contributions and models between domains.
    Wan,
    /// For other nodes, for other domains, and for the outer step, the evaluation and the record of the coordinator.
    Waiting,
}

const SHARES: usize = 4;

/// What happens in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Obtained,
    Adopted,
    Started,
    Exported,
    Measured,
    Reported,
    Weighed,
    FoldStarted,
    Contributed,
    Acknowledged,
    AllAcknowledged,
    Folded,
    Ended,
}

/// To whom it happens.
#[derive(Clone, Copy)]
enum Whose {
    Node,
    Domain,
    Everybody,
}

/// The first two are of the model that the round before has committed, the last is the round's end.
const STEPS: [(Step, Whose, Share); 13] = [
    (Step::Obtained, Whose::Domain, Share::Wan),
    (Step::Adopted, Whose::Node, Share::Fabric),
    (Step::Started, Whose::Node, Share::Waiting),
    (Step::Exported, Whose::Node, Share::Compute),
    (Step::Measured, Whose::Node, Share::Fabric),
    (Step::Reported, Whose::Node, Share::Wan),
    (Step::Weighed, Whose::Everybody, Share::Waiting),
    (Step::FoldStarted, Whose::Domain, Share::Wan),
    (Step::Contributed, Whose::Domain, Share::Fabric),
    (Step::Acknowledged, Whose::Domain, Share::Wan),
    (Step::AllAcknowledged, Whose::Everybody, Share::Waiting),
    (Step::Folded, Whose::Everybody, Share::Wan),
    (Step::Ended, Whose::Everybody, Share::Waiting),
];

/// When what happened.
#[derive(Debug)]
pub struct Timeline {
    nodes: Vec<NodeId>,
    /// By round, step and the name of whom it happened to; what happens again counts when it happens last.
    at: BTreeMap<(Round, Step, String), f64>,
    rows: BTreeMap<(Round, NodeId), u64>,
}

/// What some rounds were spent on.
#[derive(Debug, Default, PartialEq)]
pub struct Spent {
    /// Seconds of all nodes in all rounds, share by share.
    shares: [f64; SHARES],
    /// Seconds from a node's update until it holds the next model; each node, each round.
    sync_s: Vec<f64>,
    /// Seconds from the end of the round before to the round's.
    pub rounds_s: Vec<f64>,
    /// Rows of the nodes that have trained, summed over rounds.
    pub rows: u64,
}

impl Timeline {
    /// Of the federation of a plan.
    pub fn of(plan: &Plan) -> Self {
        Timeline {
            nodes: plan.nodes().map(|node| node.id.clone()).collect(),
            at: BTreeMap::new(),
            rows: BTreeMap::new(),
        }
    }

    /// Takes an event that happened at so many seconds.
    pub fn on_event(&mut self, at: f64, event: &Event) {
        let mut note = |round: &Round, step, whose: String| {
            self.at.insert((*round, step, whose), at);
        };
        match event {
            Event::TrainingStarted { node, round } => note(round, Step::Started, node.to_string()),
            Event::UpdateExported {
                node,
                round,
                samples,
                ..
            } => {
                note(round, Step::Exported, node.to_string());
                self.rows.insert((*round, node.clone()), *samples);
            }
            Event::UpdateMeasured { node, round } => note(round, Step::Measured, node.to_string()),
            Event::Reported { round, node, .. } => note(round, Step::Reported, node.to_string()),
            Event::Weighed { round, .. } => note(round, Step::Weighed, String::new()),
            Event::FoldStarted { round, domain, .. } => {
                note(round, Step::FoldStarted, domain.to_string());
            }
            Event::Contributed { round, domain, .. } => {
                note(round, Step::Contributed, domain.to_string());
            }
            Event::Acknowledged { round, domain, .. } => {
                note(round, Step::Acknowledged, domain.to_string());
                note(round, Step::AllAcknowledged, String::new());
            }
            Event::ContributionsFolded { round } => note(round, Step::Folded, String::new()),
            Event::Round(RoundRecord { round, .. }) => note(round, Step::Ended, String::new()),
            Event::ModelObtained { domain, round } => {
                note(round, Step::Obtained, domain.to_string());
            }
            Event::ModelAdopted { node, round, .. } => note(round, Step::Adopted, node.to_string()),
            _ => {}
        }
    }

    /// What these rounds were spent on; none if one of them is not complete, for some node.
    pub fn spent(&self, rounds: RangeInclusive<Round>) -> Option<Spent> {
        let mut spent = Spent::default();
        for round in rounds {
            let ended = |round| self.at(round, Step::Ended, "");
            let (began, ended) = (ended(round.checked_sub(1)?)?, ended(round)?);
            spent.rounds_s.push(ended - began);
            for node in &self.nodes {
                spent.rows += self.rows.get(&(round, node.clone()))?;
                self.split(node, round, [began, ended], &mut spent.shares)?;
                let own = node.as_str();
                let exported = self.at(round, Step::Exported, own)?;
                spent
                    .sync_s
                    .push(self.at(round, Step::Adopted, own)? - exported);
            }
        }
        Some(spent)
    }

    /// Adds a node's round to the shares.
    fn split(
        &self,
        node: &NodeId,
        round: Round,
        [began, ended]: [f64; 2],
        shares: &mut [f64; SHARES],
    ) -> Option<()> {
        let domain = node.domain();
        let mut now = began;
        for (step, whose, share) in STEPS {
            let whose = match whose {
                Whose::Node => node.as_str(),
                Whose::Domain => domain.as_str(),
                Whose::Everybody => "",
            };
            let round = match step {
                Step::Obtained | Step::Adopted => round.checked_sub(1)?,
                _ => round,
            };
            // What two actors tell at the same moment may come in either order.
            let then = self.at(round, step, whose)?.min(ended).max(now);
            shares[share as usize] += then - now;
            now = then;
        }
        Some(())
    }

    fn at(&self, round: Round, step: Step, whose: &str) -> Option<f64> {
        self.at.get(&(round, step, whose.to_owned())).copied()
    }
}

impl Spent {
    /// The mean seconds of a round.
    pub fn mean_s(&self) -> f64 {
        self.rounds_s.iter().sum::<f64>() / self.rounds_s.len() as f64
    }

    /// The mean seconds of a share in a node's round; those of all shares add up to a round's.
    pub fn share_s(&self, share: Share) -> f64 {
        // There is one synchronisation in a node's round.
        self.shares[share as usize] / self.sync_s.len() as f64
    }

    /// The time that 99 of 100 synchronisations do not exceed, by the nearest rank; zero if there was none.
    pub fn sync_p99_s(&self) -> f64 {
        let mut sorted = self.sync_s.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * 99).div_ceil(100);
        rank.checked_sub(1).map_or(0.0, |index| sorted[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::event::RoundState;
    use tombolo_core::ids::DomainId;
    use tombolo_core::tensor::Hash;

    const NODES: [&str; 2] = ["hq/a", "plant/b"];

    fn nodes() -> Vec<NodeId> {
        NODES.map(|node| node.parse().unwrap()).to_vec()
    }

    fn ended(round: Round) -> Event {
        Event::Round(RoundRecord {
            round,
            epoch: 1,
            state: RoundState::Committed,
            reason: String::new(),
            counted: nodes(),
            late: Vec::new(),
            denied: Vec::new(),
            refused: Vec::new(),
            accuracy: 0.5,
            loss: 1.0,
            weight_norm: 1.0,
            bytes: 0,
            bytes_down: 0,
            bytes_up: 0,
            model_hash: Hash::default(),
            elapsed_s: 1.0,
            version: None,
            drifts: Vec::new(),
            balance: None,
        })
    }

    /// Round 1 ends at 0, round 2 at 10. The second node trains for 3 s longer than the first.
    fn events() -> Vec<(f64, Event)> {
        let (round, attempt) = (2, 0);
        let [a, b] = [0, 1].map(|index| nodes()[index].clone());
        let [hq, plant] = [&a, &b].map(NodeId::domain);
        let adopted = |node: &NodeId, round| Event::ModelAdopted {
            node: node.clone(),
            round,
            hash: Hash::default(),
            healed: false,
        };
        let node = |node: &NodeId, [started, exported, measured, reported]: [f64; 4]| {
            let node = node.clone();
            [
                (
                    started,
                    Event::TrainingStarted {
                        node: node.clone(),
                        round,
                    },
                ),
                (
                    exported,
                    Event::UpdateExported {
                        node: node.clone(),
                        round,
                        samples: 70,
                        loss: 1.0,
                    },
                ),
                (
                    measured,
                    Event::UpdateMeasured {
                        node: node.clone(),
                        round,
                    },
                ),
                (
                    reported,
                    Event::Reported {
                        round,
                        node,
                        norm: 1.0,
                    },
                ),
            ]
        };
        let domain = |domain: &DomainId, [started, made, noted]: [f64; 3]| {
            let domain = domain.clone();
            [
                (
                    started,
                    Event::FoldStarted {
                        round,
                        attempt,
                        domain: domain.clone(),
                    },
                ),
                (
                    made,
                    Event::Contributed {
                        round,
                        attempt,
                        domain: domain.clone(),
                    },
                ),
                (
                    noted,
                    Event::Acknowledged {
                        round,
                        attempt,
                        domain,
                        weight: 1.0,
                        members: Vec::new(),
                    },
                ),
            ]
        };
        let mut events = vec![(0.0, ended(1))];
        for domain in [&hq, &plant] {
            let domain = domain.clone();
            events.push((0.5, Event::ModelObtained { domain, round: 1 }));
        }
        events.extend([(1.0, adopted(&a, 1)), (1.0, adopted(&b, 1))]);
        events.extend(node(&a, [1.5, 3.5, 4.0, 4.25]));
        events.extend(node(&b, [1.5, 6.5, 7.0, 7.25]));
        let weighed = Event::Weighed {
            round,
            nodes: nodes(),
            drifts: Vec::new(),
            reasons: Vec::new(),
        };
        events.push((7.5, weighed));
        events.extend(domain(&hq, [7.75, 8.0, 8.25]));
        events.extend(domain(&plant, [8.0, 8.5, 9.0]));
        events.push((9.5, Event::ContributionsFolded { round }));
        events.push((10.0, ended(2)));
        events.extend([(10.75, adopted(&a, 2)), (11.0, adopted(&b, 2))]);
        events
    }

    fn timeline(events: &[(f64, Event)]) -> Timeline {
        let mut timeline = Timeline {
            nodes: nodes(),
            at: BTreeMap::new(),
            rows: BTreeMap::new(),
        };
        events
            .iter()
            .for_each(|(at, event)| timeline.on_event(*at, event));
        timeline
    }

    #[test]
    fn a_round_is_split_into_what_it_was_spent_on() {
        let spent = timeline(&events()).spent(2..=2).unwrap();
        let a = [
            2.0,
            0.5 + 0.5 + 0.25,
            0.5 + 0.25 + 0.25 + 0.25 + 0.5,
            0.5 + 3.25 + 0.75 + 0.5,
        ];
        let b = [
            5.0,
            0.5 + 0.5 + 0.5,
            0.5 + 0.25 + 0.5 + 0.5 + 0.5,
            0.5 + 0.25 + 0.0 + 0.5,
        ];
        let both: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(spent.shares[..], both);
        assert_eq!(spent.sync_s, [10.75 - 3.5, 11.0 - 6.5]);
        assert_eq!((spent.rounds_s[..].to_vec(), spent.rows), (vec![10.0], 140));
        assert_eq!(spent.share_s(Share::Compute), 3.5);
        assert_eq!(in_all(&spent), spent.mean_s());
    }

    fn in_all(spent: &Spent) -> f64 {
        let shares = [Share::Compute, Share::Fabric, Share::Wan, Share::Waiting];
        shares.map(|share| spent.share_s(share)).iter().sum()
    }

    #[test]
    fn without_one_of_its_events_a_round_is_not_told() {
        let events = events();
        for missing in 0..events.len() {
            let mut rest = events.clone();
            let (_, missed) = rest.remove(missing);
            let told = timeline(&rest).spent(2..=2);
            assert_eq!(told, None, "without {missed:?}");
        }
        assert_eq!(timeline(&events).spent(2..=3), None);
        assert_eq!(timeline(&events).spent(0..=2), None);
    }

    #[test]
    fn what_two_actors_tell_in_the_other_order_takes_no_time() {
        let mut events = events();
        for (at, event) in &mut events {
            match event {
                Event::ModelObtained { .. } => *at = 1.25,
                Event::ContributionsFolded { .. } => *at = 10.25,
                _ => {}
            }
        }
        let spent = timeline(&events).spent(2..=2).unwrap();
        // Of each node: the model's way within its domain is not seen, nor what comes behind the last contribution.
        let [compute, fabric, wan, waiting] = spent.shares;
        assert_eq!((compute, fabric), (7.0, 2.75 - 2.0 * 0.5));
        assert_eq!(wan, 4.0 + 2.0 * (0.75 + 0.5));
        assert_eq!(waiting, 6.25 - 2.0 * (0.25 + 0.5));
        assert_eq!(in_all(&spent), spent.mean_s());
    }

    #[test]
    fn the_99th_percentile_is_the_nearest_rank() {
        let of = |count: u32| Spent {
            sync_s: (1..=count).rev().map(f64::from).collect(),
            ..Spent::default()
        };
        assert_eq!(of(200).sync_p99_s(), 198.0);
        assert_eq!(of(100).sync_p99_s(), 99.0);
        assert_eq!(of(3).sync_p99_s(), 3.0);
        assert_eq!(Spent::default().sync_p99_s(), 0.0);
    }
}
