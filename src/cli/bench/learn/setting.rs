//! One run of the study: ten islands of one node each, some of them bad, some sends lost; in virtual time, with everything that a real
//! federation has.

use std::collections::BTreeMap;
use std::fmt::Write;

use tombolo::Simulation;
use tombolo::simulation::secs;
use tombolo_core::ids::NodeId;
use tombolo_core::plan::Plan;
use tombolo_core::rng::Rng;
use tombolo_core::tensor::Hash;

use super::Outcome;
use super::bad::{Fault, Suspect};

/// Nodes, each a domain of its own: all updates cross the WAN.
pub const NODES: u64 = 10;

/// Of them bad.
const BAD: usize = 2;

/// How one run is set up.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Seeds rows, first weights, batches, which nodes are bad, and the simulated world.
    pub seed: u64,
    /// Rounds.
    pub rounds: u64,
    /// Local work a round, as the topology says it.
    pub sync_every: &'static str,
    /// Concentration of the Dirichlet partition; without one the rows are dealt out evenly.
    pub alpha: Option<f64>,
    /// Lines of `[aggregator]`.
    pub rule: &'static str,
    /// Lines of `[outer]`.
    pub outer: &'static str,
    /// What is wrong with two of the nodes.
    pub fault: Option<Fault>,
    /// The share of sends that fail, and are tried again.
    pub failing_sends: f64,
    /// The share of a round's nodes that are not in it at all.
    pub absent: f64,
}

impl Default for Setting {
    /// The study's: one pass a round over rows of medium skew, plain settings, no fault.
    fn default() -> Self {
        Setting {
            seed: 1,
            rounds: 60,
            sync_every: "\"1 epoch\"",
            alpha: Some(0.5),
            rule: "",
            outer: "",
            fault: None,
            failing_sends: 0.0,
            absent: 0.0,
        }
    }
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    /// Accuracy after each round.
    pub accuracies: Vec<f64>,
    /// The model at the end.
    pub model: Hash,
    /// The share of updates that should have come and are in no sum, those that were refused apart.
    pub missing: f64,
    /// Updates that were refused.
    pub refused: u64,
    /// Why it ended before its time; empty if it did not.
    pub reason: String,
}

impl Learned {
    /// Accuracy at the end.
    pub fn accuracy(&self) -> f64 {
        self.accuracies.last().copied().unwrap_or_default()
    }
}

impl Setting {
    /// The nodes that are bad if any are. The first one, which judges the models, is not.
    pub fn bad_nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<u64> = (1..NODES).collect();
        Rng::derive(self.seed, &[b"bad"]).shuffle(&mut nodes);
        nodes.into_iter().take(BAD).map(node).collect()
    }

    fn topology(&self) -> String {
        let Setting {
            seed,
            rounds,
            sync_every,
            rule,
            outer,
            ..
        } = self;
        let partition = match self.alpha {
            Some(alpha) => format!("{{ kind = \"dirichlet\", alpha = {alpha:?} }}"),
            None => "{ kind = \"iid\" }".into(),
        };
        let mut text = format!(
            "[federation]\nname = \"study\"\nrounds = {rounds}\nsync_every = {sync_every}\nseed = {seed}\n\
             [round]\nquorum = {{ nodes = 5, domains = 5 }}\ndeadline = \"20s\"\nabsent = [{}]\n\
             [model]\nlearning_rate = 0.1\nbatch = 16\npartition = {partition}\n\
             [aggregator]\n{rule}\n[outer]\n{outer}\n",
            self.absences()
        );
        for domain in 0..NODES {
            let _ = write!(text, "[[domain]]\nname = \"d{domain}\"\nnodes = [\"n\"]\n");
        }
        text
    }

    /// Who is missing in which round, as the topology says it.
    fn absences(&self) -> String {
        let mut rng = Rng::derive(self.seed, &[b"absent"]);
        let mut rounds = Vec::new();
        for round in 1..=self.rounds {
            let absent: Vec<String> = (1..NODES)
                .filter(|_| rng.next_f64() < self.absent)
                .map(|index| format!("{:?}", node(index).as_str()))
                .collect();
            if !absent.is_empty() {
                let nodes = absent.join(", ");
                rounds.push(format!("{{ round = {round}, nodes = [{nodes}] }}"));
            }
        }
        rounds.join(", ")
    }

    /// The topology as it is read.
    pub fn plan(&self) -> Outcome<Plan> {
        Ok(Simulation::from_toml(&self.topology())?.plan().clone())
    }

    /// The trainers of all nodes.
    pub fn trainers(&self, plan: &Plan) -> Outcome<BTreeMap<NodeId, Suspect>> {
        let of = |node: &NodeId| Suspect::new(plan, node, self.fault_of(node));
        plan.nodes()
            .map(|node| Ok((node.id.clone(), of(&node.id)?)))
            .collect()
    }

    fn fault_of(&self, node: &NodeId) -> Option<Fault> {
        self.fault.filter(|_| self.bad_nodes().contains(node))
    }

    /// Runs it as a federation in virtual time.
    ///
    /// # Errors
    /// It cannot be run, or violates an invariant.
    pub fn simulate(&self) -> Outcome<Learned> {
        let simulation = Simulation::from_toml(&self.topology())?;
        let (plan, setting) = (simulation.plan().clone(), self.clone());
        let report = simulation
            .seed(self.seed)
            .failing_sends(self.failing_sends)
            .limit(secs(60 * self.rounds))
            .trainer(move |node| {
                Suspect::new(&plan, node, setting.fault_of(node))
                    .expect("the topology says what can be trained")
            })
            .run()?
            .sound()?;
        // A run that ended before its time keeps the model that it had.
        let mut accuracies: Vec<f64> = report.rounds().iter().map(|round| round.accuracy).collect();
        accuracies.resize(self.rounds as usize, report.finished.accuracy);
        let planned = report.rounds().len() as f64 * (NODES - 1) as f64;
        let (mut counted, mut refused) = (0, 0);
        for round in report.rounds() {
            let first = node(0);
            counted += round.counted.iter().filter(|node| **node != first).count();
            refused += round.refused.len();
        }
        Ok(Learned {
            accuracies,
            model: report.finished.model_hash,
            missing: 1.0 - (counted + refused) as f64 / planned,
            refused: refused as u64,
            reason: report.finished.reason,
        })
    }
}

fn node(index: u64) -> NodeId {
    format!("d{index}/n").parse().expect("a plain name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absences_are_of_the_share_asked_for_and_the_judge_is_always_there() {
        let setting = Setting {
            rounds: 400,
            absent: 0.12,
            ..Setting::default()
        };
        let plan = setting.plan().unwrap();
        let absent: Vec<&NodeId> = plan.round.absent.values().flatten().collect();
        let share = absent.len() as f64 / (400 * (NODES - 1)) as f64;
        assert!((share - 0.12).abs() < 0.02, "{share}");
        assert!(!absent.contains(&&node(0)));
        assert_eq!(Setting::default().plan().unwrap().round.absent.len(), 0);
    }

    #[test]
    fn two_nodes_are_bad_and_which_ones_is_a_matter_of_the_seed() {
        let of = |seed| {
            let setting = Setting {
                seed,
                ..Setting::default()
            };
            setting.bad_nodes()
        };
        let drawn: Vec<_> = (0..8).map(of).collect();
        assert!(drawn.iter().all(|bad| bad.len() == BAD && bad[0] != bad[1]));
        assert!(drawn.iter().flatten().all(|bad| *bad != node(0)));
        assert!(drawn.iter().any(|bad| *bad != drawn[0]));
    }
}
