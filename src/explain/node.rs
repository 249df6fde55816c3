//! Why a node counts for what it counts.

use std::collections::BTreeSet;

use serde::Serialize;
use tombolo_core::aggregate::feedback::Drift;
use tombolo_core::event::Event;
use tombolo_core::ids::{NodeId, Round};
use tombolo_core::pace::Pace;

use super::{ExplainError, Incident, Incidents, Past, between};

/// Names of nodes that are told where one is not known.
const NAMED_MAX: usize = 20;

/// How a node's rounds ended for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Asked {
    /// Rounds for which it was asked and that ended.
    pub rounds: u64,
    /// Its update is in the model.
    pub counted: u64,
    /// It was not there in time.
    pub late: u64,
    /// Its update was refused.
    pub refused: u64,
    /// Of the counted ones: made shorter, or weighed less.
    pub lessened: u64,
}

/// A node's part in the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeStory {
    /// Who.
    pub node: NodeId,
    /// How its rounds ended for it.
    pub asked: Asked,
    /// The last round in which it counted.
    pub last_counted: Option<Round>,
    /// Mean seconds from a round's opening to its report.
    pub report_s: Option<f64>,
    /// The same of all the other nodes.
    pub others_s: Option<f64>,
    /// How far it has drifted from the others in recent rounds, and what the next round makes of that; none if it has not.
    pub drift: Option<Drift>,
    /// Where steps are balanced: how many it was given in the last round, and how fast it is since then.
    pub steps: Option<u64>,
    /// See `steps`.
    pub pace: Option<Pace>,
    /// Whether it is out of the membership view.
    pub out: bool,
    /// What happened to it, the last things.
    pub incidents: Vec<Incident>,
    /// Incidents before those.
    pub earlier: u64,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// Tells what was recorded of a node.
///
/// # Errors
/// The record never speaks of that node.
pub fn node(past: impl Iterator<Item = Past>, node: &NodeId) -> Result<NodeStory, ExplainError> {
    let mut story = NodeStory {
        node: node.clone(),
        asked: Asked::default(),
        last_counted: None,
        report_s: None,
        others_s: None,
        drift: None,
        steps: None,
        pace: None,
        out: false,
        incidents: Vec::new(),
        earlier: 0,
    };
    let mut incidents = Incidents::default();
    let (mut own, mut others) = (Mean::default(), Mean::default());
    let mut opened: Option<(Round, f64, bool)> = None;
    let mut lessened = false;
    let mut denied: Option<String> = None;
    let mut known = BTreeSet::new();
    for past in past {
        if let Some((by, peer, what)) = between(&past.event) {
            // That links come up is no news.
            if peer == node && !matches!(past.event, Event::LinkUp { .. }) {
                incidents.push(&past, format!("{by}: {what}"));
            }
            continue;
        }
        match &past.event {
            Event::RoundOpened { round, cohort, .. } => {
                opened = Some((*round, past.at, cohort.contains(node)));
                lessened = false;
                known.extend(cohort.iter().cloned());
            }
            Event::Reported {
                round, node: by, ..
            } => {
                if let Some((_, at, _)) = opened.filter(|(open, ..)| open == round) {
                    let mean = if by == node { &mut own } else { &mut others };
                    mean.add(past.at - at);
                }
            }
            Event::Weighed { round, reasons, .. } => {
                for (_, reason) in reasons.iter().filter(|(of, _)| of == node) {
                    lessened = true;
                    incidents.push(&past, format!("round {round}: weighed less, {reason}"));
                }
            }
            Event::Round(record) => {
                let out = record.denied.iter().find(|(of, _)| of == node);
                let out = out.map(|(_, why)| why);
                if let Some(why) = out.filter(|why| denied.as_ref() != Some(*why)) {
                    let what = format!("not asked from round {} on: {why}", record.round);
                    incidents.push(&past, what);
                }
                denied = out.cloned();
                story.drift = record.drifts.iter().find(|d| d.node == *node).cloned();
                let balance = record.balance.as_deref();
                story.steps = balance.and_then(|balance| balance.steps_of(node));
                story.pace = balance.and_then(|balance| balance.pace_of(node)).cloned();
                let counted = record.counted.contains(node);
                let refused = record.refused.iter().find(|(of, _)| of == node);
                let late = record.late.contains(node);
                let asked = opened.is_some_and(|(round, _, asked)| round == record.round && asked);
                if !(asked || counted || late || refused.is_some()) {
                    continue;
                }
                story.asked.rounds += 1;
                story.asked.counted += u64::from(counted);
                story.asked.late += u64::from(late);
                story.asked.refused += u64::from(refused.is_some());
                if counted {
                    story.last_counted = Some(record.round);
                    story.asked.lessened += u64::from(lessened);
                } else if late && record.is_committed() {
                    let what = format!("round {} closed without it", record.round);
                    incidents.push(&past, what);
                }
            }
            Event::UpdateClipped {
                node: of,
                round,
                factor,
            } if of == node => {
                lessened = true;
                incidents.push_clipped(&past, *round, *factor);
            }
            event => {
                story.out = match event {
                    Event::EpochChanged { view } => view.is_out(node),
                    _ => story.out,
                };
                if let Some(what) = about(event, node) {
                    incidents.push(&past, what);
                }
            }
        }
    }
    if story.asked.rounds == 0 && incidents.kept.is_empty() && !known.contains(node) {
        let names: Vec<&str> = known.iter().map(NodeId::as_str).collect();
        let (shown, more) = names.split_at(names.len().min(NAMED_MAX));
        let more = match more.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        return Err(ExplainError::Unknown {
            what: format!("node {node}"),
            known: match shown {
                [] => "no round was opened yet".to_owned(),
                shown => format!("it tells of {}{more}", shown.join(", ")),
            },
        });
    }
    (story.report_s, story.others_s) = (own.get(), others.get());
    (story.incidents, story.earlier) = (incidents.kept.into(), incidents.earlier);
    Ok(story)
}

/// What an event says of one node alone.
fn about(event: &Event, node: &NodeId) -> Option<String> {
    let (of, what) = match event {
        Event::NodeStarted { node, address, .. } => {
            (node, format!("started, listens on {address}"))
        }
        Event::GaveUp { node, reason } => (node, format!("gave up: {reason}")),
        Event::NodeEvicted {
            node,
            epoch,
            cooldown_ms,
        } => (
            node,
            format!("evicted in epoch {epoch}, for {cooldown_ms} ms at least"),
        ),
        Event::NodeLeft { node, epoch } => (node, format!("left in epoch {epoch}")),
        Event::NodeReadmitted { node, epoch } => (node, format!("readmitted in epoch {epoch}")),
        Event::CoordinatorPromoted { node, epoch } => {
            (node, format!("made coordinator in epoch {epoch}"))
        }
        Event::CoordinatorSteppedDown { node, by, .. } => {
            (node, format!("coordinates no more: {by} does"))
        }
        Event::TrainingFailed {
            node,
            round,
            reason,
        } => (node, format!("round {round}: training failed: {reason}")),
        Event::TrainingResumed { node, round, steps } => (
            node,
            format!("round {round}: trains on after {steps} steps of its life before"),
        ),
        Event::UpdateRefused {
            node,
            round,
            reason,
            ..
        } => (node, format!("round {round}: update refused: {reason}")),
        Event::StaleAnswered {
            node,
            round,
            trained_for,
            staleness,
        } => (
            node,
            format!(
                "round {round}: its update for round {trained_for} is {staleness} versions old, too many"
            ),
        ),
        Event::ModelDiverged {
            node,
            round,
            model,
            expected,
            found,
        } => (
            node,
            format!(
                "round {round}: its copy of model {model} had changed: hash {found}, expected {expected}; it read it anew. If that comes again, test its memory"
            ),
        ),
        Event::Deadlocked {
            node,
            ring,
            standing_ms,
        } => (
            node,
            format!(
                "its actors waited for each other, for {standing_ms} ms already: {}; start it anew",
                ring.join(", ")
            ),
        ),
        Event::ModelHealed { node, round, .. } => {
            (node, format!("was behind, and has healed model {round}"))
        }
        Event::StandingChanged {
            node,
            state,
            reason,
        } => {
            let word = state.word();
            let why = if reason.is_empty() { "" } else { ": " };
            (
                node,
                format!("{word}{why}{reason}, as the coordinator hears"),
            )
        }
        Event::LateAnswered { round, from } if from == node.as_str() => {
            return Some(format!(
                "round {round}: its word came after the round had closed"
            ));
        }
        Event::ActorGivenUp {
            actor, key, reason, ..
        } if key == node.as_str() => {
            return Some(format!(
                "its {actor} panicked too often and stays down: {reason}"
            ));
        }
        Event::DomainDropped {
            round,
            domain,
            reason,
        } if *domain == node.domain() => {
            return Some(format!("round {round}: domain {domain} is out: {reason}"));
        }
        _ => return None,
    };
    (of == node).then_some(what)
}
