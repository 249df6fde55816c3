//! The nodes of a domain that train as one: how they find each other in a round, and again when one of them is lost.
//!
//! The first of those who are asked in a round and give signs of life makes the group and invites the others, over the links that have authenticated
//! them; whom it invites decides who is in. When a rank is lost, all others are told the same one, so they agree on who is left and on who is first
//! among them, and that one invites anew, under the next attempt. Heartbeats say who is silent; a rank that computes for long is not.
//!
//! What waits here is the thread that trains. A node whose first does not invite it fails its training, and is asked again in the next round.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::SetOnce;

use super::{Reduction, Step, StepError};
use crate::link;
use crate::node::Company;
use tombolo_core::collective::{Element, Operation, Shape};
use tombolo_core::ids::{Attempt, NodeId, Round};
use tombolo_core::trainer::{Domain, DomainError, Ranks, Values};
use tombolo_core::wire::{Control, Muster};
use tombolo_fabric::group::{Founding, Group, GroupError};
use tombolo_fabric::{Endpoint, FabricError};

/// How long the first waits for the others to come, and these for its invitation: the model may reach one later than another.
const COME: Duration = Duration::from_secs(20);

/// How often the first looks meanwhile whether one of those for whom it waits has fallen silent.
const LOOK: Duration = Duration::from_millis(100);

/// How long a rank may keep the others waiting while it gives signs of life: nobody computes a step for longer.
const STEP: Duration = Duration::from_secs(30 * 60);

/// Rounds whose invitations are kept: the one that is trained for, and the next.
const ROUNDS_KEPT: usize = 2;

/// Why nobody trains together where there is no place to meet.
const NOWHERE: &str = "there is no step mode in simulation";

/// Where the nodes of this machine meet, and in which shape they reduce.
#[derive(Debug, Clone)]
pub struct Meeting {
    /// The folder of their sockets.
    pub folder: PathBuf,
    /// The shape of reduces.
    pub shape: Shape,
}

/// What a node knows of those with whom it trains. Its actor tells, the thread that trains waits.
#[derive(Clone)]
pub struct Musters(Arc<Known>);

struct Known {
    me: NodeId,
    meeting: Option<Meeting>,
    company: Arc<SetOnce<Company>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    invited: BTreeMap<Round, Muster>,
    /// What this node says to whom as the first of a round: over a link that comes up only then it is said again.
    inviting: BTreeMap<NodeId, Muster>,
    silent: BTreeSet<NodeId>,
    /// The group at work: who is in it, and what it is told of whom to wait for no longer.
    watched: Option<(Vec<NodeId>, Arc<AtomicU64>)>,
}

impl State {
    fn doubt(&self) {
        if let Some((ranks, doubts)) = &self.watched {
            let bit = |(index, node)| match self.silent.contains(node) {
                true => 1_u64 << index,
                false => 0,
            };
            let bits = ranks.iter().enumerate().map(bit);
            doubts.store(bits.fold(0, |all, bit| all | bit), Ordering::Relaxed);
        }
    }
}

impl Musters {
    /// Of a node that nobody has invited yet. Without a place to meet nobody trains together here.
    pub fn new(me: NodeId, meeting: Option<Meeting>, company: Arc<SetOnce<Company>>) -> Self {
        Musters(Arc::new(Known {
            me,
            meeting,
            company,
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// An invitation has come.
    pub fn invite(&self, muster: Muster) {
        let mut state = self.state();
        let known = state.invited.get(&muster.round);
        if known.is_none_or(|known| known.attempt < muster.attempt) {
            state.invited.insert(muster.round, muster);
        }
        while state.invited.len() > ROUNDS_KEPT {
            state.invited.pop_first();
        }
        self.0.changed.notify_all();
    }

    /// A neighbour gives no sign of life, or does so again.
    pub fn note(&self, node: &NodeId, is_silent: bool) {
        let mut state = self.state();
        match is_silent {
            true => state.silent.insert(node.clone()),
            false => state.silent.remove(node),
        };
        state.doubt();
        self.0.changed.notify_all();
    }

    /// The link to a neighbour is up: what was said before may have been for an earlier life of it.
    pub fn met(&self, node: &NodeId) {
        self.note(node, false);
        let muster = self.state().inviting.get(node).cloned();
        if let Some(muster) = muster {
            self.send(node, muster);
        }
    }

    /// Those with whom this node trains in a round: of these, in this order, who come. `apart` is why they cannot come together.
    pub fn domain(&self, round: Round, asked: Vec<NodeId>, apart: Option<&'static str>) -> Domain {
        let apart = apart.or_else(|| self.0.meeting.is_none().then_some(NOWHERE));
        match (asked.len(), apart) {
            (0 | 1, _) => Domain::alone(),
            (_, Some(reason)) => Domain::of(Apart(reason)),
            _ => Domain::of(InRound {
                musters: self.clone(),
                round,
                asked,
                attempt: 0,
                step: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an invitation to the round that is no older, from one of those who come before this node. None if the first of them has fallen silent.
    fn invitation(
        &self,
        round: Round,
        attempt: Attempt,
        first: &NodeId,
    ) -> Result<Option<Muster>, DomainError> {
        let is_due = |state: &State| {
            let found = state.invited.get(&round);
            let found = found.filter(|muster| muster.attempt >= attempt);
            (found.cloned(), state.silent.contains(first))
        };
        let state = self.state();
        let waits = |state: &mut State| matches!(is_due(state), (None, false));
        let waited = self.0.changed.wait_timeout_while(state, COME, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match is_due(&state) {
            (Some(muster), _) => Ok(Some(muster)),
            (None, true) => Ok(None),
            (None, false) => Err(DomainError::Apart(format!(
                "{first} has not invited {} within {COME:?}: it does not train in this round, or reduces nothing",
                self.0.me
            ))),
        }
    }

    fn is_silent(&self, name: &str) -> bool {
        let state = self.state();
        state.silent.iter().any(|node| node.as_str() == name)
    }

    /// Tells those who were asked and are not in that the others have begun without them, now and when they can be reached again.
    fn shut(&self, asked: &[NodeId], muster: &Muster) {
        let out = asked.iter().filter(|node| !muster.ranks.contains(*node));
        for node in out {
            let mut state = self.state();
            state.inviting.insert(node.clone(), muster.clone());
            drop(state);
            self.send(node, muster.clone());
        }
    }

    fn send(&self, to: &NodeId, muster: Muster) {
        let link = self
            .0
            .company
            .get()
            .and_then(|company| company.links.get(to));
        if let Some(link) = link
            && let Err(error) = link.post(link::Message::Send(Control::Muster(muster)))
        {
            // It is missed when it does not come.
            tracing::debug!(%to, %error, "an invitation was not sent");
        }
    }
}

/// This node among those with whom it trains in one round.
struct InRound {
    musters: Musters,
    round: Round,
    /// Who may come; once the group is made, who is in it.
    asked: Vec<NodeId>,
    attempt: Attempt,
    step: Option<Step>,
}

impl InRound {
    /// Makes the group, or joins it.
    fn meet(&mut self) -> Result<&mut Step, DomainError> {
        if self.step.is_none() {
            self.step = Some(self.gather()?);
        }
        Ok(self.step.as_mut().expect("it was just made"))
    }

    fn gather(&mut self) -> Result<Step, DomainError> {
        let Some(Meeting { folder, shape }) = self.musters.0.meeting.clone() else {
            return Err(DomainError::Apart(NOWHERE.into()));
        };
        let (me, everyone) = (self.musters.0.me.clone(), self.asked.clone());
        // Each turn somebody falls out, or an attempt is used up.
        for _ in 0..=2 * self.asked.len() {
            let silent = self.musters.state().silent.clone();
            let first = self.asked.iter().find(|node| !silent.contains(*node));
            let first = first.cloned().unwrap_or_else(|| me.clone());
            if first == me {
                let there = |node: &&NodeId| **node == me || !silent.contains(*node);
                let ranks: Vec<NodeId> = self.asked.iter().filter(there).cloned().collect();
                match self.found(&folder, &ranks) {
                    Ok(group) => {
                        let begun = Muster {
                            round: self.round,
                            attempt: self.attempt,
                            ranks: ranks.clone(),
                            door: Vec::new(),
                        };
                        self.musters.shut(&everyone, &begun);
                        return Ok(self.begin(group, ranks, shape));
                    }
                    Err(GroupError::Fabric(FabricError::TimedOut { peer, .. }))
                        if peer != me.as_str() =>
                    {
                        self.asked.retain(|node| node.as_str() != peer);
                        self.attempt += 1;
                    }
                    Err(error) => return Err(DomainError::Apart(error.to_string())),
                }
                continue;
            }
            let Some(muster) = self.musters.invitation(self.round, self.attempt, &first)? else {
                continue;
            };
            if !muster.ranks.contains(&me) {
                return Err(DomainError::Apart(format!(
                    "{first} and others have begun round {} without {me}",
                    self.round
                )));
            }
            let door = Endpoint::from_bytes(&muster.door);
            let door = door.map_err(|error| DomainError::Apart(error.to_string()))?;
            self.attempt = muster.attempt;
            match Group::join(&folder, me.as_str(), &door, COME) {
                Ok(group) => {
                    let names = group.names().iter();
                    let ranks = names.filter_map(|name| name.parse().ok()).collect();
                    return Ok(self.begin(group, ranks, shape));
                }
                // It was made without somebody else, and is made anew.
                Err(error) => {
                    tracing::debug!(%me, %error, "the domain's group was not made");
                    self.attempt += 1;
                }
            }
        }
        Err(DomainError::Apart(
            "the nodes did not find each other".into(),
        ))
    }

    fn found(&self, folder: &std::path::Path, ranks: &[NodeId]) -> Result<Group, GroupError> {
        let names: Vec<&str> = ranks.iter().map(NodeId::as_str).collect();
        let mut founding = Founding::new(folder, &names)?;
        for (rank, node) in ranks.iter().enumerate().skip(1) {
            let muster = Muster {
                round: self.round,
                attempt: self.attempt,
                ranks: ranks.to_vec(),
                door: founding.invitation(rank).to_bytes(),
            };
            let mut state = self.musters.state();
            state.inviting.insert(node.clone(), muster.clone());
            drop(state);
            self.musters.send(node, muster);
        }
        let mut left = COME;
        let missing = loop {
            left = left.saturating_sub(LOOK);
            match founding.gather(LOOK) {
                Ok(()) => break None,
                Err(FabricError::TimedOut { peer, .. })
                    if !left.is_zero() && !self.musters.is_silent(&peer) => {}
                Err(error) => break Some(error),
            }
        };
        self.musters.state().inviting.clear();
        match missing {
            None => founding.found(COME),
            Some(error) => Err(error.into()),
        }
    }

    fn begin(&mut self, group: Group, ranks: Vec<NodeId>, shape: Shape) -> Step {
        let mut state = self.musters.state();
        state.watched = Some((ranks.clone(), group.doubts()));
        state.doubt();
        drop(state);
        self.asked = ranks;
        let mut step = Step::new(group);
        step.set_shape(shape);
        step.set_wait(STEP);
        step
    }

    /// A reduction has failed: who is left finds each other anew.
    fn regroup(&mut self, error: StepError) -> DomainError {
        let lost = match (&error, error.rank()) {
            // It is a mistake of the program's, and would happen again.
            (StepError::Mismatch { .. }, _) | (_, None) => {
                return DomainError::Apart(error.to_string());
            }
            (_, Some(rank)) => self.asked.get(rank).cloned(),
        };
        let Some(lost) = lost.filter(|lost| *lost != self.musters.0.me) else {
            return DomainError::Apart(
                "the others went on without this node, which came too late".into(),
            );
        };
        self.step = None;
        self.asked.retain(|node| *node != lost);
        self.attempt += 1;
        match self.place() {
            Ok((_, ranks)) => DomainError::Regrouped {
                lost: error.to_string(),
                ranks,
            },
            Err(error) => error,
        }
    }

    fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
    ) -> Result<(), DomainError> {
        if values.is_empty() {
            return Ok(());
        }
        let step = self.meet()?;
        let reduced = match step.shape {
            Shape::Direct => step.all_reduce_own(values, reduction),
            _ => through(step, values, reduction),
        };
        reduced.map_err(|error| self.regroup(error))
    }
}

/// In the shape that was chosen, which takes memory that all reach.
fn through<T: Element>(
    step: &mut Step,
    values: &mut [T],
    reduction: Reduction,
) -> Result<(), StepError> {
    let mut shared = step.allocate::<T>(values.len())?;
    shared.values_mut()?.copy_from_slice(values);
    step.all_reduce(&mut shared, reduction)?;
    values.copy_from_slice(shared.values()?);
    Ok(())
}

impl Ranks for InRound {
    fn place(&mut self) -> Result<(usize, usize), DomainError> {
        let group = self.meet()?.group();
        Ok((group.rank(), group.ranks()))
    }

    fn reduce(
        &mut self,
        values: Values<'_>,
        operation: Operation,
        weight: f64,
    ) -> Result<(), DomainError> {
        let reduction = match operation {
            Operation::WeightedSum => Reduction::weighted(weight),
            operation => Reduction::of(operation),
        };
        match values {
            Values::F32(values) => self.all_reduce(values, reduction),
            Values::F16(values) => self.all_reduce(values, reduction),
            Values::Bf16(values) => self.all_reduce(values, reduction),
            Values::F64(values) => self.all_reduce(values, reduction),
            Values::I32(values) => self.all_reduce(values, reduction),
            Values::I64(values) => self.all_reduce(values, reduction),
        }
    }
}

/// Nodes that cannot train together, and why.
struct Apart(&'static str);

impl Ranks for Apart {
    fn place(&mut self) -> Result<(usize, usize), DomainError> {
        Err(DomainError::Apart(self.0.into()))
    }

    fn reduce(&mut self, _: Values<'_>, _: Operation, _: f64) -> Result<(), DomainError> {
        Err(DomainError::Apart(self.0.into()))
    }
}

impl Drop for InRound {
    fn drop(&mut self) {
        let mut state = self.musters.state();
        state.watched = None;
        state.inviting.clear();
    }
}
