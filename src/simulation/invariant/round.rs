//! ROUND-2 to ROUND-8. (ROUND-1: `witness`.)

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tombolo_core::event::{Event, Finished, RoundRecord, RoundState};
use tombolo_core::ids::{DomainId, Epoch, NodeId, Round};
use tombolo_core::plan::{Plan, Quorum};
use tombolo_core::policy;
use tombolo_core::time::Micros;
use tombolo_core::view::View;

use super::{Cx, Law, has_quorum, slack};
use crate::simulation::inflict::Phase;
use crate::simulation::plan::Fault;

/// What is said of each round, and when.
#[derive(Default)]
pub(super) struct Rounds {
    open: Option<Open>,
    ended: BTreeMap<Round, RoundState>,
    /// Whose updates were made for which round.
    exported: BTreeSet<(Round, NodeId)>,
    /// Which of these are in a version already, in the asynchronous mode.
    counted: BTreeSet<(Round, NodeId)>,
    /// Whose updates are in acknowledged contributions: by round, then domain.
    acknowledged: BTreeMap<Round, BTreeMap<DomainId, Vec<NodeId>>>,
    /// Who is out of the coordinator's view.
    out: BTreeSet<NodeId>,
    /// The epochs in which the open round was opened; more than one if the coordinator was restarted meanwhile.
    epochs: BTreeSet<(Round, Epoch)>,
    /// How many times as slow the coordinator is, by each fault in force.
    factors: Vec<f64>,
    /// How many times as slow it was at most since the open round began.
    slowest: f64,
    /// A user has paused the run, as far as the present coordinator has said.
    paused: bool,
}

struct Open {
    round: Round,
    epoch: Epoch,
    cohort: Vec<NodeId>,
    since: Micros,
    deadline: Duration,
    /// The coordinator stood still for so long meanwhile.
    lost: Duration,
    still_since: Option<Micros>,
}

impl Open {
    /// How long the round has lasted on a coordinator that lives.
    fn lived(&self, at: Micros) -> Duration {
        let still = self
            .still_since
            .map_or(Duration::ZERO, |from| at.since(from));
        at.since(self.since).saturating_sub(self.lost + still)
    }
}

impl Rounds {
    fn on_opened(&mut self, cx: &mut Cx<'_>, open: Open) {
        // One that was open when it was paused is gone on with by the next life of the coordinator.
        let is_new = !self.epochs.iter().any(|(round, _)| *round == open.round);
        if self.paused && is_new {
            let what = format!("round {} is opened while the run is paused", open.round);
            cx.violated("ROUND-8", what);
        }
        self.forget(cx.plan, open.round);
        self.epochs.insert((open.round, open.epoch));
        for node in &open.cohort {
            if self.out.contains(node) {
                let what = format!("round {} asks {node}, which is out", open.round);
                cx.violated("ROUND-4", what);
            }
        }
        self.slowest = self.slowness();
        self.open = Some(open);
    }

    /// ROUND-6, first half: after its deadline nothing is taken.
    fn on_accepted(&self, cx: &mut Cx<'_>, round: Round, what: &str) {
        let Some(open) = self.open.as_ref().filter(|open| open.round == round) else {
            return cx.violated(
                "ROUND-4",
                format!("{what} for round {round}, which is not open"),
            );
        };
        // A crystal that is off by the most that is simulated.
        let late = open.deadline + open.deadline / 1000 + Duration::from_millis(1);
        if cx.at.since(open.since) > late {
            let took = cx.at.since(open.since);
            let what = format!(
                "{what} {took:?} after round {round} opened, its deadline is {:?}",
                open.deadline
            );
            cx.violated("ROUND-6", what);
        }
    }

    fn on_record(&mut self, cx: &mut Cx<'_>, record: &RoundRecord) {
        let round = record.round;
        if self.ended.insert(round, record.state).is_some() {
            cx.violated("ROUND-5", format!("round {round} ended twice"));
        }
        let acknowledged = self.acknowledged.remove(&round).unwrap_or_default();
        self.check_counted(cx, record);
        self.check_version(cx, record);
        check_acknowledged(cx, record, &acknowledged);
        if let Some(open) = self.open.take_if(|open| open.round == round) {
            self.check_open(cx, record, &open);
        }
        self.forget(cx.plan, round + 1);
        self.epochs.retain(|(of, _)| *of > round);
    }

    fn check_counted(&self, cx: &mut Cx<'_>, record: &RoundRecord) {
        let round = record.round;
        let mut seen = BTreeSet::new();
        for node in &record.counted {
            if !seen.insert(node) {
                cx.violated("ROUND-2", format!("round {round} counts {node} twice"));
            }
            if record.late.contains(node) {
                cx.violated(
                    "ROUND-2",
                    format!("round {round} counts {node} and calls it late"),
                );
            }
            let made = made_for(record, node);
            if !self.exported.contains(&(made, node.clone())) {
                let what = format!("round {round} counts {node}, which made no update for it");
                cx.violated("ROUND-4", what);
            }
            if self.out.contains(node) {
                let what =
                    format!("round {round} counts {node}, which was put out before its commit");
                cx.violated("ROUND-4", what);
            }
        }
        if record.state == RoundState::Aborted && !record.counted.is_empty() {
            cx.violated(
                "ROUND-3",
                format!("round {round} was aborted and counts somebody"),
            );
        }
        if record.state != RoundState::Committed && record.reason.is_empty() {
            cx.violated(
                "ROUND-6",
                format!("round {round} is {:?} without a reason", record.state),
            );
        }
    }

    /// Updates of rounds before this one cannot count any more. In the asynchronous mode they may for some time, which is not told from events
    /// alone: all are kept.
    fn forget(&mut self, plan: &Plan, before: Round) {
        if plan.round.asynchronous.is_none() {
            self.exported.retain(|(round, _)| *round >= before);
        }
    }

    /// ROUND-2 and ROUND-4 of an asynchronous round: no update is in two versions, none is older than the limit, and its age is what the record
    /// says.
    fn check_version(&mut self, cx: &mut Cx<'_>, record: &RoundRecord) {
        let (round, version) = (record.round, record.version.as_ref());
        let (Some(plan), Some(version)) = (cx.plan.round.asynchronous, version) else {
            if cx.plan.round.asynchronous.is_some() {
                cx.violated(
                    "ROUND-4",
                    format!("round {round} does not say of what age its updates are"),
                );
            }
            return;
        };
        for (index, node) in record.counted.iter().enumerate() {
            let made = made_for(record, node);
            if !self.counted.insert((made, node.clone())) {
                let what = format!(
                    "round {round} counts the update of {node} for round {made}, which is in a version already"
                );
                cx.violated("ROUND-2", what);
            }
            let since = self.ended.range(made.min(round)..round);
            let age = since
                .filter(|(_, state)| **state != RoundState::Aborted)
                .count() as u64;
            if version.staleness.get(index) != Some(&age) || age > plan.staleness.limit {
                let what = format!(
                    "round {round} counts the update of {node} for round {made} as {:?} versions old: it is {age}, the limit is {}",
                    version.staleness.get(index),
                    plan.staleness.limit
                );
                cx.violated("ROUND-4", what);
            }
        }
    }

    fn check_open(&self, cx: &mut Cx<'_>, record: &RoundRecord, open: &Open) {
        let round = record.round;
        if !self.epochs.contains(&(round, record.epoch)) {
            let what = format!("round {round} did not open in epoch {}", record.epoch);
            cx.violated("ROUND-4", what);
        }
        if let Some(node) = record
            .counted
            .iter()
            .find(|node| !open.cohort.contains(node))
        {
            cx.violated(
                "ROUND-4",
                format!("round {round} counts {node}, which was not asked"),
            );
        }
        let limit = open.deadline + cx.plan.round.close_limit;
        // What the coordinator still has to write once its limit has passed is not waiting.
        let writing = slack(limit).mul_f64(self.slowest.max(1.0));
        let lived = open.lived(cx.at);
        if lived > limit + writing {
            let what = format!("round {round} took {lived:?}, its limit is {limit:?}");
            cx.violated("ROUND-6", what);
        }
    }

    /// Faults that overlap multiply.
    fn slowness(&self) -> f64 {
        self.factors.iter().product()
    }

    /// Whether the coordinator stands still changes how long a round has lasted for it.
    fn on_stillness(&mut self, cx: &Cx<'_>) {
        let still = cx.state.still.contains(&cx.plan.coordinator);
        let Some(open) = &mut self.open else { return };
        match (still, open.still_since) {
            (true, None) => open.still_since = Some(cx.at),
            (false, Some(since)) => {
                open.lost += cx.at.since(since);
                open.still_since = None;
            }
            _ => {}
        }
    }
}

/// For which round a counted update was trained.
pub(super) fn made_for(record: &RoundRecord, node: &NodeId) -> Round {
    let version = record.version.as_ref();
    let index = record.counted.iter().position(|counted| counted == node);
    let made = version.and_then(|version| version.trained_for.get(index?).copied());
    made.unwrap_or(record.round)
}

/// ROUND-3: what was acknowledged is counted, or the record says that it is not.
fn check_acknowledged(
    cx: &mut Cx<'_>,
    record: &RoundRecord,
    acknowledged: &BTreeMap<DomainId, Vec<NodeId>>,
) {
    let named = |node: &NodeId| {
        record.late.contains(node) || record.refused.iter().any(|(refused, _)| refused == node)
    };
    for node in acknowledged.values().flatten() {
        let counted = record.counted.contains(node);
        if !counted && (record.state == RoundState::Committed || !named(node)) {
            let what = format!(
                "the update of {node} was acknowledged in round {}, which is {:?} and does not name it",
                record.round, record.state
            );
            cx.violated("ROUND-3", what);
        }
    }
}

impl Law for Rounds {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        self.on_stillness(cx);
        match event {
            Event::RoundOpened {
                round,
                epoch,
                cohort,
                deadline_ms,
            } => {
                let open = Open {
                    round: *round,
                    epoch: *epoch,
                    cohort: cohort.clone(),
                    since: cx.at,
                    deadline: Duration::from_millis(*deadline_ms),
                    lost: Duration::ZERO,
                    still_since: None,
                };
                self.on_opened(cx, open);
            }
            Event::NodeEvicted { node, .. } | Event::NodeLeft { node, .. } => {
                self.out.insert(node.clone());
            }
            Event::NodeReadmitted { node, .. } => {
                self.out.remove(node);
            }
            Event::EpochChanged { view } => {
                // What was written down before a power cut may never have been told one by one.
                self.out = view.out.keys().cloned().collect();
            }
            Event::UpdateExported { node, round, .. } | Event::UpdateRestored { node, round } => {
                self.exported.insert((*round, node.clone()));
            }
            Event::Reported { round, node, .. } => {
                self.on_accepted(cx, *round, &format!("the report of {node} was taken"));
            }
            Event::Acknowledged {
                round,
                domain,
                members,
                ..
            } => {
                let what = format!("the contribution of {domain} was acknowledged");
                self.on_accepted(cx, *round, &what);
                let of_round = self.acknowledged.entry(*round).or_default();
                of_round.insert(domain.clone(), members.clone());
            }
            Event::Round(record) => self.on_record(cx, record),
            Event::RunPaused { .. } => self.paused = true,
            Event::RunResumed { .. } => self.paused = false,
            // It says so anew if the run is paused.
            Event::NodeStarted { .. }
            | Event::ActorRestarted { .. }
            | Event::CoordinatorPromoted { .. } => self.paused = false,
            _ => {}
        }
    }

    fn on_fault(&mut self, cx: &mut Cx<'_>, fault: &Fault, phase: Phase) {
        self.on_stillness(cx);
        if let Fault::Slow { node, factor } = fault
            && *node == cx.plan.coordinator.as_str()
        {
            match phase {
                Phase::Begins => self.factors.push(*factor),
                Phase::Ends => {
                    let ended = self.factors.iter().position(|known| known == factor);
                    if let Some(ended) = ended {
                        self.factors.swap_remove(ended);
                    }
                }
            }
            // A round that has felt it may be late to its end, the next one may not.
            self.slowest = self.slowest.max(self.slowness());
        }
    }
}

/// ROUND-7: once nothing is wrong any more a round commits within two deadlines.
#[derive(Default)]
pub(super) struct Liveness {
    /// When rounds opened, and their deadlines.
    opened: Vec<(Micros, Duration)>,
    commits: Vec<Micros>,
    /// Whether a user has paused the run.
    paused: bool,
    /// When a user last went on with it.
    resumed: Option<Micros>,
}

impl Law for Liveness {
    fn on_event(&mut self, cx: &mut Cx<'_>, event: &Event) {
        match event {
            Event::RoundOpened { deadline_ms, .. } => {
                let deadline = Duration::from_millis(*deadline_ms);
                self.opened.push((cx.at, deadline));
            }
            Event::Round(record) if record.is_committed() => self.commits.push(cx.at),
            Event::RunPaused { .. } => self.paused = true,
            Event::RunResumed { .. } => (self.paused, self.resumed) = (false, Some(cx.at)),
            _ => {}
        }
    }

    fn on_end(&mut self, cx: &mut Cx<'_>, finished: &Finished) {
        let Some(healed) = cx.faults.healed_at() else {
            return;
        };
        let healed = Micros::default() + healed;
        let healed = self.resumed.map_or(healed, |resumed| resumed.max(healed));
        if self.paused {
            return;
        }
        if !can_have_quorum(cx.plan) || cx.at < healed {
            return;
        }
        // The round that was open when all was well, and the one after it.
        let before = self.opened.iter().rposition(|(at, _)| *at <= healed);
        let two = self.opened.iter().skip(before.unwrap_or(0)).take(2);
        let deadline = two.map(|(_, deadline)| *deadline).max();
        let limit = deadline.unwrap_or(Duration::ZERO) * 2;
        if limit < farthest(cx.plan) * WAYS * 2 {
            // A path on which no round can end in time is the file's own choice.
            return;
        }
        let until = healed + limit + slack(limit);
        let commit = self.commits.iter().find(|at| **at >= healed);
        let ended = finished.reason.is_empty() || finished.was_stopped();
        let over = ended && cx.at <= until;
        if commit.is_none_or(|at| *at > until) && !over {
            let what = format!(
                "nothing was wrong from {healed:?} on, and no round was committed by {until:?}, two deadlines later; the run ended {:?}",
                finished.reason
            );
            cx.violated_at(until.min(cx.at), "ROUND-7", what);
        }
    }
}

/// How often a round crosses the WAN one way, generously: open, fetch, step, report, weigh, contribute, fetch, sum, answer.
const WAYS: u32 = 10;

/// The longest way that the file emulates.
fn farthest(plan: &Plan) -> Duration {
    let ways = plan.links.iter();
    let ways = ways.map(|link| link.emulate.delay + link.emulate.jitter);
    ways.max().unwrap_or_default()
}

/// Whether those who are asked are enough in every round.
fn can_have_quorum(plan: &Plan) -> bool {
    let enough = |round: Round| {
        let (mut cohort, view) = (plan.cohort(round), View::first(plan));
        cohort.retain(|node| policy::left_out(plan, &view, node).is_none());
        plan.round.quorum == Quorum::All && !cohort.is_empty() || has_quorum(plan, cohort.iter())
    };
    plan.round.absent.keys().copied().all(enough) && enough(0)
}
