//! What each event changes in the picture.

mod links;
mod views;

use std::collections::BTreeMap;

use super::picture::{
    ClockPicture, MARKS_MAX, Mark, Notice, Phase, Picture, RoundPicture, Span, VitalsPicture,
};
use crate::control::LinkState;
use crate::explain::{Course, Past, between, limit, trouble};
use tombolo_core::coordinator::Paused;
use tombolo_core::event::{ClockOffset, Event, Measured, RoundRecord, RoundState};
use tombolo_core::ids::{DomainId, Epoch, NodeId, Round};
use tombolo_core::membership::State;
use tombolo_core::text::clip;
use tombolo_core::view::{Out, View};

/// How the reason of a node begins that is only late.
const LATE: &str = "late for round ";

impl Picture {
    /// Takes a past fact.
    pub fn apply(&mut self, past: &Past) {
        if past.life != self.life {
            (self.life, self.life_at) = (past.life, self.at);
            // A coordinator that is started anew says so again.
            (self.finished, self.paused) = (None, None);
        }
        // What was recorded a moment too late does not turn back the clock.
        self.at = self.at.max(self.life_at + past.at);
        self.totals.events += 1;
        let event = &past.event;
        if matches!(event, Event::RoundOpened { .. }) {
            (self.finished, self.paused) = (None, None);
        }
        if self.finished.is_some() {
            // Everybody leaves then, which is how it should be: what a reader wants to see is how it was before.
            return;
        }
        if let Some(objection) = event.objection() {
            *self.totals.objections.entry(objection).or_default() += 1;
        }
        self.notice(event);
        self.see_nodes(event);
        self.see_links(event);
        self.see_rounds(event);
        self.see_views(event);
        self.see_course(event);
    }

    /// How the clock of a node's process lies to the coordinator's over a whole record.
    pub fn place(&mut self, node: &NodeId, bound_s: f64) {
        if let Some(node) = self.node(node) {
            node.clock = Some(ClockPicture {
                offset_ms: node.clock.and_then(|clock| clock.offset_ms),
                bound_ms: bound_s * 1e3,
            });
        }
    }

    /// Takes note of events that were missed, and of the rounds that ended meanwhile.
    pub fn catch_up(&mut self, missed: u64, rounds: &[RoundRecord]) {
        self.totals.missed += missed;
        let known = self.rounds.back().map_or(0, |round| match round.state {
            Some(_) => round.round,
            None => round.round.saturating_sub(1),
        });
        for record in rounds.iter().filter(|record| record.round > known) {
            self.close(record);
        }
    }

    fn notice(&mut self, event: &Event) {
        let what = match event {
            Event::LinkUp { .. } | Event::UpdateClipped { .. } => None,
            Event::NodeLeft { node, .. } => Some(format!("{node} left")),
            Event::NodeReadmitted { node, .. } => Some(format!("{node} takes part again")),
            Event::ActorRestarted { .. } => {
                self.totals.restarts += 1;
                trouble(event)
            }
            Event::LateAnswered { round, from } => {
                Some(format!("{from} was too late for round {round}"))
            }
            Event::Round(record) if record.state != RoundState::Committed => {
                let word = crate::federation::state_word(record.state);
                let late: Vec<&str> = record.late.iter().map(NodeId::as_str).collect();
                let without = match late.is_empty() || !record.is_committed() {
                    true => String::new(),
                    false => format!("; without {}", late.join(", ")),
                };
                Some(format!(
                    "round {} {word}: {}{without}",
                    record.round, record.reason
                ))
            }
            Event::RoundResumed { round, .. } => Some(format!(
                "the coordinator was started anew and goes on with round {round}"
            )),
            Event::Finished(finished) if !finished.reason.is_empty() => {
                Some(format!("the run ended: {}", finished.reason))
            }
            // Unless somebody here has seen it already.
            Event::StandingChanged {
                node,
                state: state @ (State::Suspect | State::Restoring),
                reason,
            } => {
                let known = self.nodes.get(node).map(|node| node.state);
                (known != Some(*state)).then(|| format!("{node}: {reason}"))
            }
            event => trouble(event).or_else(|| {
                let (node, peer, what) = between(event)?;
                Some(format!("{node} of {peer}: {what}"))
            }),
        };
        let Some(what) = what else { return };
        if self.notices.len() >= self.bounds.notices {
            self.notices.pop_front();
        }
        self.notices.push_back(Notice {
            at: self.at,
            what: clip(what),
        });
    }

    /// Something that only a living node does.
    fn lives(&mut self, node: &NodeId) {
        let (at, is_out) = (self.at, self.out.contains_key(node));
        let Some(found) = self.node(node) else { return };
        if found.rung != "alive" {
            (found.rung, found.since) = ("alive", at);
        }
        if !is_out {
            found.state = State::Active;
            found.reason.clear();
        }
    }

    /// Somebody else does not reach it.
    fn misses(&mut self, node: &NodeId, state: State, rung: &'static str, reason: String) {
        let (at, is_out) = (self.at, self.out.contains_key(node));
        let Some(found) = self.node(node) else { return };
        if is_out {
            // Why it is out says more.
            found.rung = rung;
            return;
        }
        if found.state != state {
            found.since = at;
        }
        (found.state, found.rung, found.reason) = (state, rung, clip(reason));
    }

    /// The coordinator has heard of it from others: that is all it knows of nodes of other sites.
    fn stands(&mut self, node: &NodeId, state: State, reason: &str) {
        let rung = match state {
            State::Active => return self.lives(node),
            State::Suspect => "suspect",
            State::Restoring => "restoring",
            // Views say so.
            State::Joining | State::Evicted | State::Left => return,
        };
        // Who has seen it itself says more.
        if self.nodes.get(node).is_some_and(|node| node.state != state) {
            let reason = format!("{reason}, as the coordinator hears");
            self.misses(node, state, rung, reason);
        }
    }

    fn see_nodes(&mut self, event: &Event) {
        match event {
            Event::NodeStarted { node, .. } => self.lives(node),
            Event::NodeWaits(wait) => {
                if let Some(node) = self.node(&wait.node) {
                    let missing = wait.missing.iter().map(|missing| &missing.node);
                    let missing: Vec<&str> = missing.map(NodeId::as_str).collect();
                    node.reason = clip(format!("waits for {}", missing.join(", ")));
                }
            }
            Event::NodeMeasured(vitals) => {
                if let Some(node) = self.node(&vitals.node) {
                    node.vitals = Some(VitalsPicture {
                        memory: vitals.memory,
                        queued: vitals.queued,
                        unacknowledged: vitals.unacknowledged,
                        unacknowledged_bytes: vitals.unacknowledged_bytes,
                        certificate_s: vitals.certificate_s,
                    });
                }
            }
            Event::GaveUp { node, reason } => {
                self.misses(node, State::Left, "left", reason.clone());
            }
            Event::PeerSuspected {
                node,
                peer,
                silent_ms,
            } => {
                let reason = format!("{node} has not heard it for {silent_ms} ms");
                self.misses(peer, State::Suspect, "suspect", reason);
            }
            Event::PeerLost { node, peer } => {
                let reason = format!("{node} has tried in vain: it is out of the round");
                self.misses(peer, State::Restoring, "restoring", reason);
            }
            Event::PeerOverdue { node, peer } => {
                let reason = format!("{node} waits for it no longer: it is to be evicted");
                self.misses(peer, State::Restoring, "overdue", reason);
            }
            Event::PeerLeft { peer, .. } => {
                self.misses(
                    peer,
                    State::Left,
                    "left",
                    "it said that it leaves".to_owned(),
                );
            }
            Event::PeerRecovered { peer, .. } => self.lives(peer),
            Event::StandingChanged {
                node,
                state,
                reason,
            } => self.stands(node, *state, reason),
            Event::TrainingStarted { node, round } | Event::TrainingResumed { node, round, .. } => {
                self.lives(node);
                self.step(node, *round, Phase::Training, |span, at| {
                    span.began = span.began.or(Some(at));
                });
            }
            Event::UpdateExported {
                node,
                round,
                samples,
                loss,
            } => {
                self.lives(node);
                self.step(node, *round, Phase::Trained, |span, at| {
                    span.trained = Some(at);
                });
                if let Some(node) = self.node(node) {
                    (node.samples, node.loss) = (*samples, finite(*loss));
                }
            }
            Event::UpdateMeasured { node, round } => {
                let (at, last) = (self.at, self.rounds.back_mut());
                let open = last.filter(|open| open.round == *round);
                if let Some((opened, span)) =
                    open.and_then(|open| Some((open.opened, open.spans.get_mut(node)?)))
                {
                    span.measured = Some(at - opened);
                }
            }
            Event::Reported { node, round, .. } => {
                self.lives(node);
                self.step(node, *round, Phase::Reported, |span, at| {
                    span.reported = Some(at);
                });
            }
            Event::TrainingFailed {
                node,
                round,
                reason,
            } => {
                self.lives(node);
                self.step(node, *round, Phase::Failed, |_, _| {});
                if let Some(node) = self.node(node) {
                    node.failed += 1;
                    node.reason = clip(format!("training failed: {reason}"));
                }
            }
            Event::UpdateRefused {
                node,
                round,
                reason,
                ..
            } => {
                self.step(node, *round, Phase::Refused, |_, _| {});
                if let Some(node) = self.node(node) {
                    node.reason = clip(format!("its update was refused: {reason}"));
                }
            }
            Event::ModelDiverged {
                node, round, model, ..
            } => {
                self.totals.diverged += 1;
                let reason = format!(
                    "round {round}: its copy of model {model} had changed, and was read anew"
                );
                if let Some(node) = self.node(node) {
                    node.diverged += 1;
                    node.reason = clip(reason);
                }
            }
            Event::Deadlocked { node, ring, .. } => {
                self.totals.deadlocks += 1;
                let reason = format!("its actors wait for each other: {}", ring.join(", "));
                if let Some(node) = self.node(node) {
                    node.reason = clip(reason);
                }
            }
            Event::UpdateClipped { node, .. } => {
                if let Some(node) = self.node(node) {
                    node.clipped += 1;
                }
            }
            Event::ModelAdopted { node, round, .. } => {
                self.lives(node);
                if let Some(node) = self.node(node) {
                    node.model = *round;
                }
            }
            _ => {}
        }
    }

    /// A node goes on in a round.
    fn step(
        &mut self,
        node: &NodeId,
        round: Round,
        phase: Phase,
        change: impl FnOnce(&mut Span, f64),
    ) {
        if let Some(node) = self.node(node) {
            node.phase = phase;
        }
        let (at, spans_max) = (self.at, self.bounds.spans);
        let found = self.rounds.iter_mut().rev().take(MARKS_MAX);
        let Some(round) = found.into_iter().find(|found| found.round == round) else {
            return;
        };
        // A round whose times are forgotten begins no new ones.
        let is_kept = round.state.is_none() && round.spans.len() < spans_max;
        let at = at - round.opened;
        let span = match is_kept {
            true => Some(round.spans.entry(node.clone()).or_default()),
            false => round.spans.get_mut(node),
        };
        if let Some(span) = span {
            span.phase = phase;
            change(span, at);
        }
    }

    fn see_rounds(&mut self, event: &Event) {
        match event {
            Event::RoundOpened {
                round,
                epoch,
                cohort,
                ..
            } => self.open(*round, *epoch, cohort),
            Event::Round(record) => {
                self.close(record);
                self.forget();
            }
            Event::QuorumReached { round } => self.mark(*round, "quorum"),
            Event::Weighed { round, .. } => self.mark(*round, "weighed"),
            Event::Contributed { round, domain, .. } => {
                self.mark(*round, &format!("{domain} contributed"));
            }
            Event::Acknowledged { round, domain, .. } => {
                self.mark(*round, &format!("{domain} acknowledged"));
                if let Some(domain) = self.domains.get_mut(domain) {
                    domain.acknowledged = *round;
                    domain.reason.clear();
                }
            }
            Event::ContributionsFolded { round } => self.mark(*round, "folded"),
            Event::Stalled { round, domain, .. } => {
                self.totals.stalls += 1;
                self.mark(*round, &format!("{domain} stands still"));
            }
            Event::DomainDropped {
                round,
                domain,
                reason,
            } => {
                self.mark(*round, &format!("{domain} dropped"));
                if let Some(domain) = self.domains.get_mut(domain) {
                    domain.reason = clip(reason.as_str());
                }
            }
            Event::TurnedAway { domain, reason, .. } => {
                if let Some(domain) = self.domains.get_mut(domain) {
                    domain.reason = clip(reason.as_str());
                }
            }
            Event::RunPaused { by, since, .. } => {
                let (by, since) = (clip(by.as_str()), *since);
                self.paused = Some(Paused { by, since });
            }
            Event::RunResumed { .. } => self.paused = None,
            Event::Finished(finished) => self.finished = Some(finished.clone()),
            _ => {}
        }
    }

    fn mark(&mut self, round: Round, what: &str) {
        let at = self.at;
        let open = self.rounds.back_mut().filter(|open| open.round == round);
        if let Some(open) = open.filter(|open| open.marks.len() < MARKS_MAX) {
            open.marks.push(Mark {
                at: at - open.opened,
                what: clip(what),
            });
        }
    }

    fn open(&mut self, round: Round, epoch: Epoch, cohort: &[NodeId]) {
        // The coordinator was started anew.
        while self.rounds.back().is_some_and(|last| last.round >= round) {
            self.rounds.pop_back();
        }
        let asked = cohort.iter().take(self.bounds.spans);
        let asked = asked.map(|node| {
            let phase = Phase::Asked;
            (
                node.clone(),
                Span {
                    phase,
                    ..Span::default()
                },
            )
        });
        let spans = asked.collect();
        let at = self.at;
        self.epoch = self.epoch.max(epoch);
        self.push(RoundPicture {
            asked: cohort.len(),
            spans,
            ..RoundPicture::new(round, epoch, at)
        });
        self.course = Course::default();
        for node in self.nodes.values_mut() {
            node.phase = Phase::Idle;
        }
        for node in cohort {
            if let Some(node) = self.node(node) {
                node.phase = Phase::Asked;
            }
        }
        self.forget();
    }

    fn push(&mut self, round: RoundPicture) {
        if self.rounds.len() >= self.bounds.rounds {
            self.rounds.pop_front();
        }
        self.rounds.push_back(round);
    }

    fn close(&mut self, record: &RoundRecord) {
        let last = self.rounds.back();
        match last.filter(|last| last.round >= record.round) {
            Some(last) if last.round > record.round || last.state.is_some() => return,
            Some(_) => {}
            // Its opening was missed, or recorded in a part that is gone.
            None => {
                let opened = self.at - record.elapsed_s;
                let round = RoundPicture::new(record.round, record.epoch, opened);
                let asked = record.counted.len() + record.late.len() + record.refused.len();
                self.push(RoundPicture { asked, ..round });
                self.course = Course::default();
            }
        }
        let end = self.at - self.rounds.back().map_or(self.at, |round| round.opened);
        let path = self.course.path(record, end, &self.lines);
        let sums = self.course.sums();
        let is_committed = record.is_committed();
        let counted = if is_committed {
            record.counted.len()
        } else {
            0
        };
        if let Some(open) = self.rounds.back_mut() {
            open.state = Some(record.state);
            open.reason = clip(record.reason.as_str());
            open.elapsed_s = Some(record.elapsed_s);
            open.limit = limit(record.round, &path).map(clip).unwrap_or_default();
            (open.path, open.sums) = (path, sums);
            open.counted = counted;
            open.late = record.late.iter().take(MARKS_MAX).cloned().collect();
            let refused = record.refused.iter().take(MARKS_MAX);
            open.refused = refused
                .map(|(node, why)| (node.clone(), clip(why.as_str())))
                .collect();
            (open.loss, open.accuracy) = (finite(record.loss), finite(record.accuracy));
            open.weight_norm = finite(record.weight_norm);
            (open.bytes, open.bytes_down, open.bytes_up) =
                (record.bytes, record.bytes_down, record.bytes_up);
        }
        let totals = &mut self.totals;
        *match record.state {
            RoundState::Committed => &mut totals.committed,
            RoundState::Degraded => &mut totals.degraded,
            RoundState::Aborted => &mut totals.aborted,
        } += 1;
        totals.counted += counted as u64;
        totals.late += record.late.len() as u64;
        totals.refused += record.refused.len() as u64;
        // A record may hold any number.
        totals.bytes = totals.bytes.saturating_add(record.bytes);
        totals.bytes_down = totals.bytes_down.saturating_add(record.bytes_down);
        totals.bytes_up = totals.bytes_up.saturating_add(record.bytes_up);
        if is_committed {
            for node in &record.counted {
                self.ended(node, Phase::Counted);
                if let Some(node) = self.node(node) {
                    (node.counted, node.counted_in) = (node.counted + 1, record.round);
                }
            }
        }
        for (node, steps) in record.balance.iter().flat_map(|balance| &balance.steps) {
            if let Some(node) = self.node(node) {
                node.steps = Some(*steps);
            }
        }
        for pace in record.balance.iter().flat_map(|balance| &balance.paces) {
            if let Some(node) = self.node(&pace.node) {
                node.step_s = Some(pace.step().as_secs_f64());
            }
        }
        for node in &record.late {
            self.ended(node, Phase::Late);
            if let Some(node) = self.node(node) {
                node.late += 1;
                if node.state == State::Active
                    && (node.reason.is_empty() || node.reason.starts_with(LATE))
                {
                    node.reason = match node.counted_in {
                        0 => format!("{LATE}{}", record.round),
                        last => format!("{LATE}{}, last counted in round {last}", record.round),
                    };
                }
            }
        }
        for (node, why) in &record.denied {
            if let Some(node) = self.node(node) {
                node.reason = clip(format!("not asked: {why}"));
            }
        }
        for (node, why) in &record.refused {
            self.ended(node, Phase::Refused);
            if let Some(node) = self.node(node) {
                node.refused += 1;
                node.reason = clip(format!("its update was refused: {why}"));
            }
        }
    }

    /// What became of a node in the round that has just ended.
    fn ended(&mut self, node: &NodeId, phase: Phase) {
        if let Some(node) = self.node(node) {
            node.phase = phase;
        }
        let last = self.rounds.back_mut();
        if let Some(span) = last.and_then(|last| last.spans.get_mut(node)) {
            span.phase = phase;
        }
    }

    /// Forgets the times of the oldest rounds, until those of the others are few enough.
    fn forget(&mut self) {
        let kept = |round: &RoundPicture| {
            round.spans.len() + round.marks.len() + round.sums.len() + round.path.len()
        };
        let mut sum: usize = self.rounds.iter().map(kept).sum();
        let last = self.rounds.len().saturating_sub(1);
        for round in self.rounds.iter_mut().take(last) {
            if sum <= self.bounds.spans {
                return;
            }
            sum -= kept(round);
            (round.spans, round.marks) = (BTreeMap::new(), Vec::new());
            (round.sums, round.path) = (BTreeMap::new(), Vec::new());
        }
    }
}

impl RoundPicture {
    fn new(round: Round, epoch: Epoch, opened: f64) -> Self {
        RoundPicture {
            round,
            epoch,
            opened,
            elapsed_s: None,
            state: None,
            reason: String::new(),
            asked: 0,
            counted: 0,
            late: Vec::new(),
            refused: Vec::new(),
            loss: None,
            accuracy: None,
            weight_norm: None,
            bytes: 0,
            bytes_down: 0,
            bytes_up: 0,
            marks: Vec::new(),
            spans: BTreeMap::new(),
            sums: BTreeMap::new(),
            path: Vec::new(),
            limit: String::new(),
        }
    }
}

/// JSON has no word for the others.
fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests;
