//! The nodes of a domain that train as one: how they find each other in a round, and again when one of them is lost.
//!
//! The first of those who are asked in a round and give signs of life makes the group and invites the others, over the links that have authenticated
//! them; whom it invites decides who is in, and who is not in is told so. When a rank is lost, all others are told the same one, so they agree on who is
//! left and on who is first among them, and that one invites anew. Heartbeats say who is silent; a rank that computes for long is not.
//!
//! Views of who lives differ for a moment, so two may make a group at once. Whoever makes one and is invited by a node before it gives its own up; whoever
//! hears that others have begun without it gives the round up, and is asked again in the next one: were it to train alone, its update would be of
//! another path than its neighbours'. What waits here is the thread that trains.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::SetOnce;

use super::{Reduction, Shared, Step, StepError};
use crate::link;
use crate::node::Company;
use tombolo_core::collective::{Element, Operation, Shape};
use tombolo_core::ids::{Epoch, NodeId, Round};
use tombolo_core::trainer::{Domain, DomainError, Ranks, Values};
use tombolo_core::wire::{Control, Muster};
use tombolo_fabric::group::{Founding, Group};
use tombolo_fabric::{Endpoint, FabricError};

/// How long the first waits for the others to come, and these for its invitation: the model may reach one later than another.
const COME: Duration = Duration::from_secs(20);

/// Who has come waits for the others as long as the first may wait for two of them, one after the other.
const JOIN: Duration = Duration::from_secs(40);

/// How often the first looks meanwhile whether somebody has fallen silent, or has begun without it.
const LOOK: Duration = Duration::from_millis(100);

/// How long a rank may keep the others waiting while it gives signs of life: nobody computes a step for longer.
const STEP: Duration = Duration::from_secs(30 * 60);

/// Who was asked and did not come, though it gives signs of life, is not waited for in so many rounds.
const ROUNDS_ABSENT: Round = 4;

/// Why nobody trains together where there is no place to meet.
const NOWHERE: &str = "there is no step mode in simulation, nor among several machines";

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
    life: u64,
    meeting: Option<Meeting>,
    company: Arc<SetOnce<Company>>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The newest word of each neighbour that is first among some.
    heard: BTreeMap<NodeId, Muster>,
    /// What this node says to whom as the first of a round: over a link that comes up only then it is said again.
    saying: BTreeMap<NodeId, Muster>,
    /// Numbers its words.
    said: u64,
    silent: BTreeSet<NodeId>,
    /// Who did not come, and until which round it is not waited for.
    absent: BTreeMap<NodeId, Round>,
    /// The round in which this node does not train with the others any more.
    apart: Option<(Round, Epoch)>,
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
    pub fn new(
        me: NodeId,
        life: u64,
        meeting: Option<Meeting>,
        company: Arc<SetOnce<Company>>,
    ) -> Self {
        Musters(Arc::new(Known {
            me,
            life,
            meeting,
            company,
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// A neighbour is the first of some, and says who they are.
    pub fn hear(&self, from: NodeId, muster: Muster) {
        let mut state = self.state();
        let known = state.heard.get(&from);
        if known.is_none_or(|known| known.life != muster.life || known.number < muster.number) {
            state.heard.insert(from, muster);
        }
        drop(state);
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

    /// The link to a neighbour is up: what was said before may have been to an earlier life of it.
    pub fn met(&self, node: &NodeId) {
        self.note(node, false);
        let mut state = self.state();
        state.absent.remove(node);
        let muster = state.saying.get(node).cloned();
        drop(state);
        if let Some(muster) = muster {
            self.send(node, muster);
        }
    }

    /// Those with whom this node trains in a round that was opened in that view: of these, in this order, who come. `apart` is why they cannot
    /// come together.
    pub fn domain(
        &self,
        round: Round,
        epoch: Epoch,
        asked: Vec<NodeId>,
        apart: Option<&'static str>,
    ) -> Domain {
        let apart = apart.or_else(|| self.0.meeting.is_none().then_some(NOWHERE));
        match (asked.len(), apart) {
            (0 | 1, _) => Domain::alone(),
            (_, Some(reason)) => Domain::of(Apart(reason)),
            _ => Domain::of(InRound {
                musters: self.clone(),
                round,
                epoch,
                everyone: asked.clone(),
                asked,
                done_with: BTreeMap::new(),
                step: None,
                shared: None,
                doubts: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, to: &NodeId, muster: Muster) {
        let company = self.0.company.get();
        let link = company.and_then(|company| company.links.get(to));
        if let Some(link) = link
            && let Err(error) = link.post(link::Message::Send(Control::Muster(muster)))
        {
            // It is missed when it does not come.
            tracing::debug!(%to, %error, "a word to a neighbour was not sent");
        }
    }
}

/// This node among those with whom it trains in one round.
struct InRound {
    musters: Musters,
    round: Round,
    epoch: Epoch,
    /// Who is asked in the round.
    everyone: Vec<NodeId>,
    /// Who of them may still come; once the group is made, who is in it.
    asked: Vec<NodeId>,
    /// Words that have led to nothing, by who said them.
    done_with: BTreeMap<NodeId, (u64, u64)>,
    step: Option<Step>,
    /// Of that group: memory that all reach, for shapes that need it. Calls follow each other with values of one type and number.
    shared: Option<Box<dyn Any + Send>>,
    doubts: Option<Arc<AtomicU64>>,
}

/// What comes of trying to make a group.
enum Made {
    Group(Group, Vec<NodeId>),
    /// Somebody fell out, or said something: look again.
    Not,
}

#[expect(
    clippy::disallowed_methods,
    reason = "step mode is in the real world only, where others take their time"
)]
fn now() -> Instant {
    Instant::now()
}

impl InRound {
    /// Makes the group, or joins it.
    fn meet(&mut self) -> Result<&mut Step, DomainError> {
        if self.step.is_none() {
            let step = self.gather().map_err(|reason| self.part(reason))?;
            self.step = Some(step);
        }
        Ok(self.step.as_mut().expect("it was just made"))
    }

    /// This node does not train with the others in this round any more, however often it is asked.
    fn part(&self, reason: String) -> DomainError {
        self.musters.state().apart = Some((self.round, self.epoch));
        DomainError::Apart(reason)
    }

    /// What was heard of this round and has led to nothing yet: first that it goes on without this node, then who comes first.
    fn word(&self, state: &State) -> Option<(NodeId, Muster)> {
        let me = &self.musters.0.me;
        let place = |node: &NodeId| self.everyone.iter().position(|other| other == node);
        let is_new = |(from, muster): &(&NodeId, &Muster)| {
            let done = self.done_with.get(*from);
            (muster.round, muster.epoch) == (self.round, self.epoch)
                && done.is_none_or(|(life, number)| {
                    *life != muster.life || *number < muster.number
                })
                // Whoever comes later has to join this node, and not the other way about.
                && (!muster.ranks.contains(me) || place(from) < place(me))
        };
        let words = state.heard.iter().filter(is_new);
        let first = words.min_by_key(|(from, muster)| (muster.ranks.contains(me), place(from)));
        first.map(|(from, muster)| (from.clone(), muster.clone()))
    }

    fn gather(&mut self) -> Result<Step, String> {
        let me = self.musters.0.me.clone();
        let Some(Meeting { folder, shape }) = self.musters.0.meeting.clone() else {
            return Err(NOWHERE.into());
        };
        let is_apart = self.musters.state().apart == Some((self.round, self.epoch));
        if is_apart {
            return Err(format!(
                "the others train without {me} in round {}",
                self.round
            ));
        }
        self.musters.state().saying.clear();
        // Each turn somebody falls out or a word is used up.
        for _ in 0..4 * self.everyone.len() + 4 {
            let word = self.word(&self.musters.state());
            if let Some((from, muster)) = word {
                if !muster.ranks.contains(&me) {
                    return Err(format!(
                        "{from} and others have begun round {} without {me}",
                        self.round
                    ));
                }
                self.done_with.insert(from, (muster.life, muster.number));
                let Ok(door) = Endpoint::from_bytes(&muster.door) else {
                    continue;
                };
                match Group::join(&folder, me.as_str(), &door, JOIN) {
                    Ok(group) => {
                        let names = group.names().iter();
                        let ranks = names.filter_map(|name| name.parse().ok()).collect();
                        return Ok(self.begin(group, ranks, shape));
                    }
                    // It was given up, or is made without somebody else.
                    Err(error) => tracing::debug!(%me, %error, "the domain's group was not made"),
                }
                continue;
            }
            match self.first() {
                first if first == me => {
                    if let Made::Group(group, ranks) = self.found(&folder)? {
                        self.tell(&ranks, &self.without(&ranks), |_| Vec::new());
                        return Ok(self.begin(group, ranks, shape));
                    }
                }
                first => self.wait_for(&first),
            }
        }
        Err("the nodes did not find each other".into())
    }

    /// The first who gives signs of life and comes when it is asked to.
    fn first(&self) -> NodeId {
        let state = self.musters.state();
        let comes = |node: &&NodeId| self.comes(&state, node);
        let first = self.asked.iter().find(comes);
        first.unwrap_or(&self.musters.0.me).clone()
    }

    fn comes(&self, state: &State, node: &NodeId) -> bool {
        let absent = state
            .absent
            .get(node)
            .is_some_and(|until| self.round < *until);
        *node == self.musters.0.me || !(absent || state.silent.contains(node))
    }

    fn without(&self, ranks: &[NodeId]) -> Vec<NodeId> {
        let out = self.everyone.iter().filter(|node| !ranks.contains(node));
        out.cloned().collect()
    }

    /// Waits until somebody says something of this round, or that node falls silent. One that says nothing for long is not waited for any more.
    fn wait_for(&mut self, first: &NodeId) {
        let state = self.musters.state();
        let waits = |state: &mut State| self.word(state).is_none() && !state.silent.contains(first);
        let waited = self
            .musters
            .0
            .changed
            .wait_timeout_while(state, COME, waits);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            state
                .absent
                .insert(first.clone(), self.round.saturating_add(ROUNDS_ABSENT));
            drop(state);
            self.asked.retain(|node| node != first);
        }
    }

    /// Tells some who is in, each with an invitation of its own.
    fn tell(&self, ranks: &[NodeId], whom: &[NodeId], door: impl Fn(&NodeId) -> Vec<u8>) {
        let mut state = self.musters.state();
        state.said += 1;
        let number = state.said;
        let words = whom.iter().map(|node| {
            let muster = Muster {
                round: self.round,
                epoch: self.epoch,
                life: self.musters.0.life,
                number,
                ranks: ranks.to_vec(),
                door: door(node),
            };
            (node.clone(), muster)
        });
        let words: Vec<(NodeId, Muster)> = words.collect();
        state.saying.extend(words.iter().cloned());
        drop(state);
        for (node, muster) in words {
            self.musters.send(&node, muster);
        }
    }

    /// Makes a group of all who come, unless somebody does not.
    fn found(&mut self, folder: &Path) -> Result<Made, String> {
        let state = self.musters.state();
        let comes = |node: &&NodeId| self.comes(&state, node);
        let ranks: Vec<NodeId> = self.asked.iter().filter(comes).cloned().collect();
        drop(state);
        let names: Vec<&str> = ranks.iter().map(NodeId::as_str).collect();
        let failed = |error: FabricError| error.to_string();
        let mut founding = Founding::new(folder, &names).map_err(failed)?;
        self.tell(&ranks, &ranks[1..], |node| {
            let rank = ranks.iter().position(|other| other == node);
            founding.invitation(rank.unwrap_or_default()).to_bytes()
        });
        let until = now() + COME;
        let missing = loop {
            match founding.gather(LOOK) {
                Ok(()) => break None,
                Err(FabricError::TimedOut { peer, .. }) => {
                    let state = self.musters.state();
                    if self.word(&state).is_some() {
                        return Ok(Made::Not);
                    }
                    let is_silent = state.silent.iter().any(|node| node.as_str() == peer);
                    if is_silent || now() >= until {
                        break Some(peer);
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        };
        let lost = match missing {
            Some(peer) => ranks.iter().find(|node| node.as_str() == peer),
            None => match founding.found(COME) {
                Ok(group) => return Ok(Made::Group(group, ranks)),
                // Somebody has come and is gone again.
                Err(error) => error.rank().and_then(|rank| ranks.get(rank)),
            },
        };
        if let Some(lost) = lost.filter(|node| **node != self.musters.0.me) {
            let until = self.round.saturating_add(ROUNDS_ABSENT);
            self.musters.state().absent.insert(lost.clone(), until);
            self.asked.retain(|node| node != lost);
        }
        Ok(Made::Not)
    }

    fn begin(&mut self, group: Group, ranks: Vec<NodeId>, shape: Shape) -> Step {
        let doubts = group.doubts();
        let mut state = self.musters.state();
        state.watched = Some((ranks.clone(), doubts.clone()));
        state.doubt();
        drop(state);
        (self.asked, self.doubts) = (ranks, Some(doubts));
        let mut step = Step::new(group);
        step.set_shape(shape);
        step.set_wait(STEP);
        step
    }

    /// A reduction has failed: who is left finds each other anew.
    fn regroup(&mut self, error: StepError) -> DomainError {
        let lost = match (&error, error.rank()) {
            // It is a mistake of the program's, and would happen again.
            (StepError::Mismatch { .. }, _) | (_, None) => return self.part(error.to_string()),
            (_, Some(rank)) => self.asked.get(rank).cloned(),
        };
        let Some(lost) = lost.filter(|lost| *lost != self.musters.0.me) else {
            return self.part("the others went on without this node, which came too late".into());
        };
        (self.step, self.shared) = (None, None);
        self.asked.retain(|node| *node != lost);
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
        let reduced = match self.meet()?.shape {
            Shape::Direct => self.meet()?.all_reduce_own(values, reduction),
            _ => {
                let mut shared = self.shared.take();
                let reduced = through(self.meet()?, &mut shared, values, reduction);
                self.shared = shared;
                reduced
            }
        };
        reduced.map_err(|error| self.regroup(error))
    }
}

/// In the shape that was chosen, which takes memory that all reach: that of the call before, if it is for as many values of that type.
fn through<T: Element>(
    step: &mut Step,
    kept: &mut Option<Box<dyn Any + Send>>,
    values: &mut [T],
    reduction: Reduction,
) -> Result<(), StepError> {
    let before = kept
        .take()
        .and_then(|kept| kept.downcast::<Shared<T>>().ok());
    let mut shared = match before.filter(|shared| shared.len() == values.len()) {
        Some(shared) => shared,
        None => Box::new(step.allocate::<T>(values.len())?),
    };
    shared.values_mut()?.copy_from_slice(values);
    step.all_reduce(&mut shared, reduction)?;
    values.copy_from_slice(shared.values()?);
    *kept = Some(shared);
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

/// The group is over with the round; what was said of it is not: who comes late is to hear it.
impl Drop for InRound {
    fn drop(&mut self) {
        let mut state = self.musters.state();
        let own = self.doubts.as_ref();
        if let (Some((_, watched)), Some(own)) = (&state.watched, own)
            && Arc::ptr_eq(watched, own)
        {
            state.watched = None;
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
