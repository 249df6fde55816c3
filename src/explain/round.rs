//! Why a round took so long, and who is not in it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use tombolo_core::event::{Event, RoundRecord, RoundState};
use tombolo_core::ids::{DomainId, Epoch, NodeId, Round};
use tombolo_core::membership::State;

use super::course::{Course, Lines, Share, limit, longest};
use super::{ExplainError, Past, between};

/// Nodes of a round that are told of; names come from a file, which may hold anything.
const NODES_MAX: usize = 4_096;

/// What became of a node's update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It is in the model.
    Counted,
    /// It is in the model, made shorter or with less weight.
    Lessened,
    /// It was not there in time.
    Late,
    /// It was refused.
    Refused,
    /// The round was aborted: nobody's is in the model.
    Void,
    /// The round is still open, as far as the record goes.
    Open,
}

/// A node's part in a round; times in seconds since the round was opened.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeRound {
    /// Who.
    pub node: NodeId,
    /// When it began to train, if the record knows.
    pub began_s: Option<f64>,
    /// When its update was ready, if the record knows.
    pub trained_s: Option<f64>,
    /// When the coordinator had its report.
    pub reported_s: Option<f64>,
    /// What became of its update.
    pub fate: Fate,
    /// Why, in words; empty if it counted in full.
    pub why: String,
}

/// A domain's part in a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DomainStory {
    /// Which.
    pub domain: DomainId,
    /// When its last report was there.
    pub reported_s: Option<f64>,
    /// When its sum was acknowledged.
    pub acknowledged_s: Option<f64>,
    /// How often it began its sum anew.
    pub regrouped: u64,
    /// Why it was out of the round; empty if it was not.
    pub dropped: String,
}

/// A round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RoundStory {
    /// Its number.
    pub round: Round,
    /// The view in which it was opened.
    pub epoch: Epoch,
    /// How often it was opened: more than once if the coordinator was restarted.
    pub openings: u64,
    /// Milliseconds after its opening at which it stops accepting.
    pub deadline_ms: u64,
    /// How it ended; none if the record ends before.
    pub record: Option<RoundRecord>,
    /// Seconds from the opening to the outcome.
    pub seconds: Option<f64>,
    /// When its quorum was there; none if everybody was, or never.
    pub quorum_s: Option<f64>,
    /// In the order of the cohort.
    pub nodes: Vec<NodeRound>,
    /// Who was not asked because it was out of the view, or since a policy keeps it out, and why.
    pub out: Vec<(NodeId, String)>,
    /// In order of name.
    pub domains: Vec<DomainStory>,
    /// What it spent its time on; empty until it has ended.
    pub steps: Vec<Share>,
    /// The longest of them.
    pub limit: Option<Share>,
    /// The same in a sentence; empty if nothing is known.
    pub limited: String,
    /// Ranks that did not answer, and who waited for whom.
    pub stalls: Vec<String>,
}

/// What is collected of a round that may be the one.
struct Draft {
    opened: f64,
    story: RoundStory,
    course: Course,
    troubles: Standing,
    lessened: BTreeMap<NodeId, String>,
    /// Whoever it was that closed it.
    closed: bool,
}

/// Tells what was recorded of a round, of its last opening if there are several.
///
/// # Errors
/// The round is not in the record.
pub fn round(past: impl Iterator<Item = Past>, number: Round) -> Result<RoundStory, ExplainError> {
    let mut draft: Option<Draft> = None;
    let (mut first, mut last) = (None, 0);
    // Who is in trouble when the round is opened.
    let mut standing = Standing::default();
    let mut lines = Lines::default();
    for past in past {
        if let Event::RoundOpened { round, .. } = &past.event {
            first.get_or_insert(*round);
            last = last.max(*round);
            if *round == number {
                let openings = draft.map_or(0, |draft| draft.story.openings);
                draft = Some(Draft::new(&past, openings + 1, &standing));
                continue;
            }
        }
        if let Event::LinkMeasured(measured) = &past.event
            && draft.as_ref().is_none_or(|draft| !draft.closed)
        {
            lines.take(measured);
        }
        standing.take(&past);
        if let Some(draft) = &mut draft {
            draft.take(&past);
        }
    }
    let unknown = || ExplainError::Unknown {
        what: format!("round {number}"),
        known: match first {
            Some(first) => format!("it tells of rounds {first} to {last}"),
            None => "no round was opened yet".to_owned(),
        },
    };
    draft.map(|draft| draft.finish(&lines)).ok_or_else(unknown)
}

/// Who is in trouble, in words.
#[derive(Debug, Clone, Default)]
struct Standing {
    troubles: BTreeMap<NodeId, String>,
    /// Whom nobody talks to until somebody changes something: whatever its silence leads to, this is why.
    refused: BTreeMap<NodeId, String>,
    /// Who is out of the view.
    out: BTreeSet<NodeId>,
    /// Who trains, for which round and since when.
    busy: BTreeMap<NodeId, (Round, f64)>,
}

impl Standing {
    /// Why a node is not heard; none if nothing is wrong with it.
    fn of(&self, node: &NodeId) -> Option<String> {
        match (self.refused.get(node), self.troubles.get(node)) {
            (Some(refused), Some(trouble)) => Some(format!("{refused}; {trouble}")),
            (refused, trouble) => refused.or(trouble).cloned(),
        }
    }

    fn is_away(&self, node: &NodeId) -> bool {
        self.out.contains(node) || self.refused.contains_key(node)
    }

    fn forgive(&mut self, node: &NodeId) {
        self.troubles.remove(node);
        self.refused.remove(node);
    }

    fn set(&mut self, node: &NodeId, what: String) {
        self.troubles.insert(node.clone(), what);
    }

    fn take(&mut self, past: &Past) {
        match &past.event {
            Event::PeerRecovered { node, peer, .. } | Event::LinkUp { node, peer } => {
                self.forgive(peer);
                // Whoever is talked to again talks, too.
                self.refused.remove(node);
            }
            Event::NodeReadmitted { node, .. } => {
                self.out.remove(node);
                self.forgive(node);
            }
            Event::NodeStarted { node, .. } => {
                self.busy.remove(node);
                self.forgive(node);
            }
            Event::StandingChanged {
                node,
                state: State::Active,
                ..
            } => self.forgive(node),
            // Who sees the node itself says more.
            Event::StandingChanged { node, reason, .. } => {
                let known = self.troubles.entry(node.clone());
                known.or_insert_with(|| reason.clone());
            }
            Event::NodeEvicted { node, epoch, .. } => {
                self.out.insert(node.clone());
                self.set(node, format!("evicted in epoch {epoch}"));
            }
            Event::NodeLeft { node, epoch } => {
                self.out.insert(node.clone());
                self.set(node, format!("left in epoch {epoch}"));
            }
            Event::TrainingStarted { node, round } | Event::TrainingResumed { node, round, .. } => {
                self.busy.insert(node.clone(), (*round, past.at));
            }
            Event::UpdateExported { node, .. } | Event::TrainingFailed { node, .. } => {
                self.busy.remove(node);
            }
            Event::LinkRefused { node, peer, reason } => {
                // Of what the handshake says the certificate is the point.
                let point = reason.find("the certificate of").unwrap_or(0);
                // Whom the other end refuses is told so, too, and is the one that it is about.
                let (by, whom) = match reason.starts_with(&format!("{peer} refused")) {
                    true => (peer, node),
                    false => (node, peer),
                };
                let what = format!("{by} does not talk to it: {}", &reason[point..]);
                self.refused.insert(whom.clone(), what);
            }
            // Who is refused hears nobody, and is wrong about all the others.
            event if between(event).is_some_and(|(by, _, _)| self.is_away(by)) => {}
            event => {
                if let Some((by, peer, what)) = between(event) {
                    self.set(peer, format!("{by}: {what}"));
                }
            }
        }
    }
}

impl Draft {
    fn new(past: &Past, openings: u64, standing: &Standing) -> Self {
        let Event::RoundOpened {
            round,
            epoch,
            cohort,
            deadline_ms,
        } = &past.event
        else {
            unreachable!("the caller looked");
        };
        let nodes = cohort.iter().take(NODES_MAX).map(|node| NodeRound {
            node: node.clone(),
            began_s: None,
            trained_s: None,
            reported_s: None,
            fate: Fate::Open,
            why: String::new(),
        });
        let mut domains: BTreeMap<DomainId, DomainStory> = BTreeMap::new();
        for node in cohort.iter().take(NODES_MAX) {
            let domain = node.domain();
            domains.entry(domain.clone()).or_insert(DomainStory {
                domain,
                reported_s: None,
                acknowledged_s: None,
                regrouped: 0,
                dropped: String::new(),
            });
        }
        let out = standing.out.iter().filter(|node| !cohort.contains(node));
        let out = out.map(|node| (node.clone(), standing.of(node).unwrap_or_default()));
        Draft {
            opened: past.at,
            story: RoundStory {
                round: *round,
                epoch: *epoch,
                openings,
                deadline_ms: *deadline_ms,
                record: None,
                seconds: None,
                quorum_s: None,
                nodes: nodes.collect(),
                out: out.collect(),
                domains: domains.into_values().collect(),
                steps: Vec::new(),
                limit: None,
                limited: String::new(),
                stalls: Vec::new(),
            },
            course: Course::default(),
            troubles: standing.clone(),
            lessened: BTreeMap::new(),
            closed: false,
        }
    }

    fn domain(&mut self, domain: &DomainId) -> Option<&mut DomainStory> {
        self.story
            .domains
            .iter_mut()
            .find(|of| of.domain == *domain)
    }

    fn take(&mut self, past: &Past) {
        let since = past.at - self.opened;
        let number = self.story.round;
        if !self.closed {
            // After a restart the last opening counts, but an outcome may be all that is left of a life.
            self.troubles.take(past);
            self.course.take(number, since, &past.event);
        }
        match &past.event {
            Event::TrainingFailed {
                round,
                node,
                reason,
            } if *round == number => {
                let what = format!("training failed: {reason}");
                self.troubles.set(node, what);
            }
            Event::UpdateRefused {
                round,
                node,
                reason,
                ..
            } if *round == number => {
                self.troubles.set(node, reason.clone());
            }
            Event::UpdateClipped {
                round,
                node,
                factor,
            } if *round == number => {
                let what = format!("longer than the bound, made shorter by {factor:.3}");
                self.lessen(node, what);
            }
            Event::Weighed { round, reasons, .. } if *round == number => {
                for (node, reason) in reasons {
                    self.lessen(node, format!("weighed less, {reason}"));
                }
            }
            Event::QuorumReached { round } if *round == number => {
                self.story.quorum_s.get_or_insert(since);
            }
            Event::Regrouped { round, domain, .. } if *round == number => {
                if let Some(domain) = self.domain(domain) {
                    domain.regrouped += 1;
                }
            }
            Event::DomainDropped {
                round,
                domain,
                reason,
            } if *round == number => {
                if let Some(domain) = self.domain(domain) {
                    domain.dropped.clone_from(reason);
                }
            }
            Event::Stalled {
                round,
                domain,
                chain,
            } if *round == number => {
                let chain = chain.join(" -> ");
                self.story.stalls.push(format!("{domain}: {chain}"));
            }
            Event::LateAnswered { round, from } if *round == number => {
                let from = self.story.nodes.iter().find(|of| of.node.as_str() == from);
                if let Some(node) = from.map(|of| of.node.clone()) {
                    let closed = self.story.seconds;
                    let after =
                        closed.map(|closed| format!("{:.1} s after its end", since - closed));
                    let after = after.unwrap_or_else(|| "after the gate".to_owned());
                    let what = format!("its word came {after}");
                    self.troubles.set(&node, what);
                }
            }
            Event::Round(record) if record.round == number && !self.closed => {
                self.closed = true;
                self.story.seconds = Some(since);
                let denied = record.denied.iter().take(NODES_MAX).cloned();
                self.story.out.extend(denied);
                self.story.record = Some(record.clone());
            }
            _ => {}
        }
    }

    fn lessen(&mut self, node: &NodeId, what: String) {
        let before = self.lessened.entry(node.clone()).or_default();
        if !before.is_empty() {
            before.push_str("; ");
        }
        before.push_str(&what);
    }

    fn finish(mut self, lines: &Lines) -> RoundStory {
        let mut nodes = std::mem::take(&mut self.story.nodes);
        for node in &mut nodes {
            [node.began_s, node.trained_s, node.reported_s] = self.course.times(&node.node);
            (node.fate, node.why) = self.fate(node);
        }
        let mut reports: BTreeMap<DomainId, f64> = BTreeMap::new();
        for node in &nodes {
            if let Some(at) = node.reported_s {
                let last = reports.entry(node.node.domain()).or_insert(at);
                *last = last.max(at);
            }
        }
        for domain in &mut self.story.domains {
            domain.acknowledged_s = self.course.acknowledged(&domain.domain);
            domain.reported_s = reports.get(&domain.domain).copied();
        }
        self.story.nodes = nodes;
        if let (Some(record), Some(end)) = (&self.story.record, self.story.seconds) {
            self.story.steps = self.course.path(record, end, lines);
            self.story.limit = longest(&self.story.steps).cloned();
            let limited = limit(record.round, &self.story.steps);
            self.story.limited = limited.unwrap_or_default();
        }
        self.story
    }

    fn fate(&self, node: &NodeRound) -> (Fate, String) {
        let id = &node.node;
        let trouble = || self.troubles.of(id);
        let Some(record) = &self.story.record else {
            return (Fate::Open, trouble().unwrap_or_default());
        };
        if record.counted.contains(id) {
            return match self.lessened.get(id) {
                Some(why) => (Fate::Lessened, why.clone()),
                None => (Fate::Counted, String::new()),
            };
        }
        if let Some((_, reason)) = record.refused.iter().find(|(of, _)| of == id) {
            return (Fate::Refused, reason.clone());
        }
        let domain = self
            .story
            .domains
            .iter()
            .find(|of| of.domain == id.domain());
        let dropped = domain.map(|domain| domain.dropped.clone());
        let dropped = dropped.filter(|reason| !reason.is_empty());
        let dropped = dropped.map(|reason| format!("its domain was out of the round: {reason}"));
        let stage = || match (node.began_s, node.trained_s, node.reported_s) {
            (_, _, Some(at)) => format!(
                "it reported after {at:.1} s, but was in no sum of its domain's that came in time"
            ),
            (_, Some(at), None) => {
                format!("its update was ready after {at:.1} s, but no report of it came in time")
            }
            (Some(at), None, None) => {
                let others = self.course.others_trained(id);
                let others = others.map(|others| format!("; the others train for {others:.1} s"));
                format!(
                    "it began to train after {at:.1} s and had not ended when the round closed{}",
                    others.unwrap_or_default()
                )
            }
            (None, None, None) => match self.troubles.busy.get(id) {
                Some((round, began)) => format!(
                    "it was still training for round {round}, which it had begun {:.1} s before this one was opened",
                    self.opened - began
                ),
                None => "no report of it came before the round closed".to_owned(),
            },
        };
        let mut why = trouble().or(dropped).unwrap_or_else(stage);
        let still_trains = node.began_s.is_some() && node.trained_s.is_none();
        if still_trains && !self.troubles.is_away(id) && trouble().is_some() {
            let others = self.course.others_trained(id);
            let others = others.map(|others| format!(", which took the others {others:.1} s"));
            why += "; it was still training";
            why += &others.unwrap_or_default();
        }
        match record.state {
            RoundState::Aborted if !record.late.contains(id) => (Fate::Void, record.reason.clone()),
            _ => (Fate::Late, why),
        }
    }
}
